"""One reading of everything: devices, machine, process, data wait and what the reading itself cost."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence

from h5stream.device.facts import started_cuda_uuids
from h5stream.monitor.host import HostReader, ProcessReader
from h5stream.monitor.nvml import DriverGone, NvmlApi, NvmlReader
from h5stream.monitor.sample import GpuSample, SystemSample
from h5stream.monitor.visible import visible_devices

_log = logging.getLogger("h5stream.monitor")


class Probe:
    """Reads everything once per call, in one thread; `data_wait` returns the share of time spent waiting.

    Devices are positions in CUDA's order, or UUIDs; only of this very process torch can be asked for that order.
    """

    def __init__(
        self,
        *,
        pid: int | None = None,
        devices: Sequence[int | str] | None = None,
        data_wait: Callable[[], float | None],
        api: NvmlApi | None = None,
    ) -> None:
        self._process, self._host, self._data_wait = ProcessReader(pid), HostReader(), data_wait
        self._own, self._devices = pid is None or pid == os.getpid(), devices
        self._cuda_uuids: tuple[str, ...] = ()
        self._last: tuple[GpuSample, ...] = ()
        self._reader: NvmlReader | None = None
        self.reason: str | None = None
        self.note: str | None = None
        try:
            self._reader = NvmlReader(api)
            self._choose(self._reader)
        except DriverGone as gone:
            self._give_up(gone)
        self._started_s = self._last_s = time.monotonic()
        self.read()  # Rates need a first reading; its values are not shown.

    def read(self) -> SystemSample:
        """Read everything."""
        wall_s, cpu_s = time.monotonic(), time.thread_time()
        gpus, host, process = self._gpus(), self._host.read(), self._process.read()
        waited = self._data_wait()
        interval_s, self._last_s = wall_s - self._last_s, wall_s
        return SystemSample(
            time_s=time.time(),
            elapsed_s=wall_s - self._started_s,
            interval_s=interval_s,
            cost_cpu_s=time.thread_time() - cpu_s,
            cost_wall_s=time.monotonic() - wall_s,
            gpus=gpus,
            gpu_reason=self.reason,
            host=host,
            process=process,
            data_wait_ratio=waited,
        )

    def close(self) -> None:
        """Give NVML back."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _gpus(self) -> tuple[GpuSample, ...]:
        """Read the devices; after the driver has gone, the same devices without values."""
        if self._reader is None:
            return self._last
        try:
            if self._own and not self._cuda_uuids:
                self._cuda_uuids = started_cuda_uuids()
                if self._cuda_uuids:
                    self._choose(self._reader)
            self._last = self._reader.read()
        except DriverGone as gone:
            self._give_up(gone)
        return self._last

    def _choose(self, reader: NvmlReader) -> None:
        names = reader.list_devices()
        seen = visible_devices(names, os.environ if self._own else self._process.environment(), self._cuda_uuids)
        uuids = seen.uuids
        nothing = "there is a driver, but it lists no GPU"
        if self._devices is not None:  # one that does not exist is left out
            found: list[str] = []
            for one in self._devices:
                if isinstance(one, int):
                    found += seen.uuids[one:][:1] if one >= 0 else ()
                else:
                    found += [name.uuid for name in names if name.uuid.lower().startswith(one.lower())]
            uuids = tuple(dict.fromkeys(found))
            if names:
                nothing = f"devices={list(self._devices)!r} names none of the {len(names)} devices that NVML lists"
        self.note = seen.note
        self.reason = None if uuids else seen.note or nothing
        reader.watch(uuids)

    def _give_up(self, gone: DriverGone) -> None:
        self.reason = str(gone)
        self._last = tuple(GpuSample(uuid=one.uuid, name=one.name, unavailable=str(gone)) for one in self._last)
        if self._last:  # No driver at all is an ordinary case; one that goes away is not.
            _log.warning("GPU sampling ended: %s", gone)
        self.close()
