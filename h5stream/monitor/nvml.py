"""GPU readings through NVML, every one of which may be missing.

The only home of ``pynvml``. What a device does not support is None; a lost device says so and the others go
on; a driver that goes away raises `DriverGone`, once, with its reason.

Guarantees:
    An `NvmlReader` belongs to one thread: the one that opens it reads and closes it.
    NVML itself may block while the driver recovers; no lock may be held over a call into it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from h5stream.monitor.sample import GpuSample
from h5stream.monitor.visible import DeviceName

# nvidia-smi's names for the bits of the clocks-event-reasons mask (nvml.h, nvmlClocksEventReasons).
THROTTLE_BITS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)


class DriverGone(Exception):  # noqa: N818 - an event, not an error: machines without a GPU are ordinary
    """The driver is absent, or went away while it was in use; the message says why."""


class NvmlApi(Protocol):
    """The part of nvidia-ml-py that is used here: a seam for machines without a GPU.

    The real one is the module ``pynvml``; the other, in ``tests/monitor/fake_nvml.py``, fails on demand; a
    test holds that both have every name that is used. Functions raise ``NVMLError`` with a ``value``, the
    error number. Handles are opaque and belong to the library. Calls come from one thread at a time.
    """

    NVMLError: type[Exception]

    def __getattr__(self, name: str) -> Any:
        """Return a function ``nvml...`` or a constant ``NVML_...``."""


def installed_nvml() -> NvmlApi:
    """Give nvidia-ml-py's module; loading it touches no driver."""
    import pynvml

    return cast(NvmlApi, pynvml)


@dataclass(slots=True)
class _Device:
    """A device under observation and what has been learnt about it."""

    name: DeviceName
    handle: Any
    card: Any  # the handle of the whole card; the same as `handle` unless this is a MIG instance
    gpm: GpmPair | None = None
    unsupported: set[str] = field(default_factory=set)
    received: tuple[int, float] | None = None  # PCIe bytes so far, and when
    lost: str | None = None

    @property
    def is_mig(self) -> bool:
        return self.name.parent_uuid is not None


class NvmlReader:
    """Reads devices through NVML, by default nvidia-ml-py's; `DriverGone` if there is no driver that starts."""

    def __init__(self, api: NvmlApi | None = None) -> None:
        self._api = api if api is not None else installed_nvml()
        try:
            self._api.nvmlInit()
        except self._api.NVMLError as error:
            raise DriverGone(f"no NVIDIA driver: {error}") from None
        self._devices: list[_Device] = []

    def close(self) -> None:
        """Free what NVML lent and shut it down; harmless after the driver has gone."""
        for device in self._devices:
            if device.gpm is not None:
                device.gpm.close()
        self._devices = []
        with contextlib.suppress(self._api.NVMLError):  # The driver may have gone already.
            self._api.nvmlShutdown()

    def list_devices(self) -> list[DeviceName]:
        """Return every card in NVML's order, each followed by its MIG instances."""
        return [device.name for device in self._enumerate()]

    def driver_version(self) -> str | None:
        """Return the driver's version, ``570.86.15``."""
        return cast("str | None", self._once(self._api.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> tuple[int, int] | None:
        """Return the newest CUDA version that the driver can run, as (major, minor)."""
        number = self._once(self._api.nvmlSystemGetCudaDriverVersion)
        return None if number is None else (number // 1000, number % 1000 // 10)

    def watch(self, uuids: tuple[str, ...]) -> None:
        """Observe the devices of these UUIDs from now on, in this order, keeping what was learnt."""
        known = {device.name.uuid: device for device in self._devices}
        fresh = {device.name.uuid: device for device in self._enumerate()}
        chosen = [known.get(uuid) or fresh[uuid] for uuid in uuids if uuid in known or uuid in fresh]
        for device in self._devices:
            if device not in chosen and device.gpm is not None:
                device.gpm.close()
        self._devices = chosen
        for device in chosen:
            device.gpm = device.gpm or self._start_gpm(device)

    def read(self) -> tuple[GpuSample, ...]:
        """Read every observed device; after a `DriverGone` this reader is of no use, but for `close`."""
        return tuple(self._read_device(device) for device in self._devices)

    # -- finding devices

    def _enumerate(self) -> list[_Device]:
        found: list[_Device] = []
        for index in range(self._once(self._api.nvmlDeviceGetCount) or 0):
            card = self._once(self._api.nvmlDeviceGetHandleByIndex, index)
            uuid = None if card is None else self._once(self._api.nvmlDeviceGetUUID, card)
            if card is None or uuid is None:
                continue  # A card that is already lost has neither; the others count.
            name = self._once(self._api.nvmlDeviceGetName, card) or "unnamed GPU"
            pci = self._once(self._api.nvmlDeviceGetPciInfo, card)
            bus = None if pci is None else _sysfs_bus_id(pci.busId)
            entry = _Device(DeviceName(uuid=uuid, name=name, pci_bus_id=bus), card, card)
            found += [entry, *self._mig_instances(entry)]
        return found

    def _mig_instances(self, card: _Device) -> list[_Device]:
        mode = self._once(self._api.nvmlDeviceGetMigMode, card.handle)
        if not mode or not mode[0]:
            return []
        found = []
        for index in range(self._once(self._api.nvmlDeviceGetMaxMigDeviceCount, card.handle) or 0):
            handle = self._once(self._api.nvmlDeviceGetMigDeviceHandleByIndex, card.handle, index)
            uuid = None if handle is None else self._once(self._api.nvmlDeviceGetUUID, handle)
            if uuid is None:
                continue  # The instances' numbers have gaps.
            name = DeviceName(
                uuid=uuid,
                name=self._once(self._api.nvmlDeviceGetName, handle) or card.name.name,
                parent_uuid=card.name.uuid,
                gpu_instance_id=self._once(self._api.nvmlDeviceGetGpuInstanceId, handle),
                compute_instance_id=self._once(self._api.nvmlDeviceGetComputeInstanceId, handle),
                pci_bus_id=card.name.pci_bus_id,
            )
            found.append(_Device(name, handle, card.handle))
        return found

    def _start_gpm(self, device: _Device) -> GpmPair | None:
        support = self._once(self._api.nvmlGpmQueryDeviceSupport, device.card)
        if support is None or not support.isSupportedDevice:
            return None
        return GpmPair(self._api, device.card, device.name.gpu_instance_id if device.is_mig else None)

    # -- reading

    def _read_device(self, device: _Device) -> GpuSample:
        identity: dict[str, Any] = {"uuid": device.name.uuid, "name": device.name.name}
        if device.lost is None:
            try:
                return GpuSample(**identity, **self._values(device))
            except _DeviceLostError as error:
                device.lost = str(error)
        return GpuSample(**identity, unavailable=device.lost)

    def _values(self, device: _Device) -> dict[str, Any]:
        card = device.card
        utilization = self._ask(device, "nvmlDeviceGetUtilizationRates", device.handle)
        memory = self._memory(device)
        busy, received = (self._try(device, "gpm", device.gpm.read) if device.gpm else None) or (None, None)
        return {
            "utilization_ratio": None if utilization is None else utilization.gpu / 100,
            "sm_activity_ratio": busy,
            "memory_used_bytes": None if memory is None else int(memory.used),
            "memory_total_bytes": None if memory is None else int(memory.total),
            "pcie_receive_bytes_per_s": self._pcie(device, received),
            "power_w": _times(self._ask(device, "nvmlDeviceGetPowerUsage", card), 1e-3),
            "power_limit_w": _times(self._ask(device, "nvmlDeviceGetEnforcedPowerLimit", card), 1e-3),
            "temperature_c": self._temperature(device),
            "sm_clock_hz": self._clock_hz(device, self._api.NVML_CLOCK_SM),
            "memory_clock_hz": self._clock_hz(device, self._api.NVML_CLOCK_MEM),
            "throttle_reasons": self._throttle(device),
        }

    def _memory(self, device: _Device) -> Any:
        # Version 2 keeps the driver's own share out of "used"; drivers before 510 have only version 1.
        version = self._api.nvmlMemory_v2
        second = self._ask(device, "nvmlDeviceGetMemoryInfo", device.handle, version)
        return second or self._ask(device, "nvmlDeviceGetMemoryInfo", device.handle)

    def _temperature(self, device: _Device) -> float | None:
        where = (device.card, self._api.NVML_TEMPERATURE_GPU)
        degrees = self._ask(device, "nvmlDeviceGetTemperatureV", *where)
        if degrees is None:  # drivers before 570
            degrees = self._ask(device, "nvmlDeviceGetTemperature", *where)
        return _times(degrees, 1.0)

    def _clock_hz(self, device: _Device, clock: int) -> float | None:
        return _times(self._ask(device, "nvmlDeviceGetClockInfo", device.card, clock), 1e6)

    def _throttle(self, device: _Device) -> tuple[str, ...] | None:
        mask = self._ask(device, "nvmlDeviceGetCurrentClocksEventReasons", device.card)
        if mask is None:  # drivers before 535
            mask = self._ask(device, "nvmlDeviceGetCurrentClocksThrottleReasons", device.card)
        if mask is None:
            return None
        return tuple(name for bit, name in enumerate(THROTTLE_BITS) if mask & 1 << bit)

    def _pcie(self, device: _Device, from_gpm: float | None) -> float | None:
        """Prefer the card's byte counter, then GPM; a MIG instance does not get its neighbours' bytes."""
        if device.is_mig:
            return from_gpm
        count = self._try(device, "pcie counter", lambda: self._pcie_counter(device.card))
        now, before = time.monotonic(), device.received
        device.received = None if count is None else (count, now)
        if count is not None and before is not None and count >= before[0] and now > before[1]:
            return float(count - before[0]) / (now - before[1])
        return from_gpm

    def _pcie_counter(self, card: Any) -> int | None:
        api = self._api
        value = api.nvmlDeviceGetFieldValues(card, [api.NVML_FI_DEV_PCIE_COUNT_RX_BYTES])[0]
        if value.nvmlReturn:
            raise api.NVMLError(value.nvmlReturn)
        # A 32-bit counter wraps every 4 GiB, ten times a second at full rate: no rate can be had from it.
        wide = value.valueType == api.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        return int(value.value.ullVal) if wide else None

    # -- failing

    def _ask(self, device: _Device, function: str, *arguments: Any) -> Any:
        """Return what NVML's `function` gives; None where driver, device or nvidia-ml-py lacks it."""
        call = getattr(self._api, function, None)
        if call is None:
            return None
        return self._try(device, f"{function}/{arguments[1:]}", lambda: call(*arguments))

    def _try(self, device: _Device, what: str, call: Callable[[], Any]) -> Any:
        """Return what `call` gives; None if it cannot, and do not ask again for what is not supported."""
        if what in device.unsupported:
            return None
        try:
            return call()
        except self._api.NVMLError as error:
            self._raise_if_gone(error)
            if _number(error) in self._codes("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED"):
                raise _DeviceLostError(str(error)) from None
            if _number(error) in self._codes("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND"):
                device.unsupported.add(what)
            return None

    def _once(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._api.NVMLError as error:
            self._raise_if_gone(error)
            return None

    def _raise_if_gone(self, error: Exception) -> None:
        gone = self._codes(
            "NVML_ERROR_UNINITIALIZED",
            "NVML_ERROR_DRIVER_NOT_LOADED",
            "NVML_ERROR_LIBRARY_NOT_FOUND",
            "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        )
        if _number(error) in gone:
            raise DriverGone(f"the NVIDIA driver went away: {error}") from None

    def _codes(self, *names: str) -> tuple[int, ...]:
        return tuple(getattr(self._api, name) for name in names)


class _DeviceLostError(Exception):
    """One device is out; the others are not."""


def _number(error: Exception) -> int:
    return cast(int, getattr(error, "value", -1))


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _sysfs_bus_id(bus_id: str | bytes) -> str:
    """Turn NVML's ``00000000:17:00.0`` into the kernel's ``0000:17:00.0``."""
    text = bus_id.decode() if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """The driver and its devices."""

    version: str | None = None
    """The driver's version, None without a driver."""
    cuda_version: tuple[int, int] | None = None
    """The newest CUDA that the driver runs, as (major, minor)."""
    devices: tuple[DeviceName, ...] = ()
    """Every card and MIG instance in NVML's order."""
    reason: str | None = None
    """Why there is no driver, or None."""


def driver_facts(api: NvmlApi | None = None) -> DriverFacts:
    """Ask the driver once and give NVML back.

    Examples
    --------
    >>> facts = driver_facts()
    >>> (facts.version is None) == (facts.reason is not None)
    True
    """
    try:
        reader = NvmlReader(api)
    except DriverGone as gone:
        return DriverFacts(reason=str(gone))
    try:
        return DriverFacts(
            version=reader.driver_version() or "unknown version",
            cuda_version=reader.cuda_version(),
            devices=tuple(reader.list_devices()),
        )
    except DriverGone as gone:
        return DriverFacts(reason=str(gone))
    finally:
        reader.close()


# --- SM activity and PCIe traffic from NVML's GPU performance monitoring (Hopper and later) -------
#
# Utilisation only says that some kernel ran; GPM counts how many multiprocessors were busy. It works on pairs of
# samples, and gives means over the time between them.
#
# Source: ``nvmlGpmMetricsGet`` in the NVML API reference.


Means = tuple[float | None, float | None]
"""The share of the multiprocessors that were busy, 0 to 1, and bytes a second over PCIe, between two samples."""


class GpmPair:
    """Two GPM samples of one device that take turns; owned by the thread of its `NvmlReader`.

    The device is the whole card, or the MIG instance of it that has NVML's number `gpu_instance`.
    """

    def __init__(self, api: Any, card: Any, gpu_instance: int | None) -> None:
        self._api, self._card, self._gpu_instance = api, card, gpu_instance
        self._samples: list[Any] = []
        # 19 kB of ctypes structure: made once, filled at every reading.
        self._request = api.c_nvmlGpmMetricsGet_t()
        self._has_first = False

    def read(self) -> Means | None:
        """Return the means since the reading before, or None the first time."""
        api = self._api
        while len(self._samples) < 2:
            self._samples.append(api.nvmlGpmSampleAlloc())
        earlier, later = self._samples
        if self._gpu_instance is None:
            api.nvmlGpmSampleGet(self._card, later)
        else:
            api.nvmlGpmMigSampleGet(self._card, self._gpu_instance, later)
        self._samples.reverse()
        if not self._has_first:
            self._has_first = True
            return None
        return self._between(earlier, later)

    def close(self) -> None:
        """Return the samples back to NVML."""
        for sample in self._samples:
            try:
                self._api.nvmlGpmSampleFree(sample)
            except self._api.NVMLError:
                break  # The driver has gone, and the samples with it.
        self._samples = []

    def _between(self, earlier: Any, later: Any) -> Means:
        api, request = self._api, self._request
        request.version = api.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 2
        request.sample1, request.sample2 = earlier, later
        request.metrics[0].metricId = api.NVML_GPM_METRIC_SM_UTIL
        request.metrics[1].metricId = api.NVML_GPM_METRIC_PCIE_RX_PER_SEC
        api.nvmlGpmMetricsGet(request)
        busy, mebibytes = _value(request.metrics[0]), _value(request.metrics[1])
        # Drivers have given MIG instances a little over 100.
        return None if busy is None else min(busy / 100, 1.0), None if mebibytes is None else mebibytes * 2**20


def _value(metric: Any) -> float | None:
    """Return a metric's value; two samples without a clock tick between them make it not a number."""
    if metric.nvmlReturn or not math.isfinite(metric.value):
        return None
    return float(metric.value)
