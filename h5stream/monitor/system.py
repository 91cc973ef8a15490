"""`SystemMonitor`: samples of the machine, taken in the background while training runs.

Guarantees:
    One thread a running monitor, a daemon. It alone owns NVML, from starting it to
    closing it, and it alone writes to the sinks and closes them. Readers (`line`, `sample`, `history`,
    `summary`) look only at the finished samples, under a lock that is never held over a call into psutil,
    NVML or a sink: a driver that hangs stops the samples, not the training. `stop` wakes the thread and
    waits for it at most `timeout_s`; a thread that hangs in the driver is left. After a fork the child has
    the history and no thread; at interpreter exit every thread is stopped; a monitor that is dropped
    without `stop` stops by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import psutil

from h5stream.base import limits
from h5stream.base.leases import Living
from h5stream.base.texts import ShownAsText
from h5stream.device.facts import started_cuda_uuids
from h5stream.errors import OptionError
from h5stream.monitor import GpuSample, HostSample, ProcessSample, SystemSample, SystemSummary, format_line, summarize
from h5stream.monitor.nvml import DriverGone, NvmlReader, visible_devices

MIN_INTERVAL_S = 0.1  # Processor time is counted in steps of 0.01 s: below ten steps a share is noise.
FIRST_SAMPLE_S = 0.3  # The first sample need not wait a whole interval, but a share of 0.1 s would be coarse.
DEFAULT_INTERVAL_S = 1.0
DEFAULT_HISTORY = 3600  # An hour at the default interval, about 3 MB.

_log = logging.getLogger("h5stream.monitor")


class Sink(Protocol):
    """Where samples go: a file, TensorBoard.

    `write` is called with every sample and `close` once at the end, both from the monitor's thread. A sink
    that raises is dropped, with a warning in the log; the sampling goes on.
    """

    def write(self, sample: SystemSample) -> None:
        """Take one sample.

        Parameters
        ----------
        sample : SystemSample
            What was measured.
        """

    def close(self) -> None:
        """Take no more; what was written is complete after that."""


# --- what is read of the machine and of one process, through psutil -----------------------------------------

# Stacked and memory-backed devices: what they read is counted again below them, or is no disk at all.
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")


def host_samples() -> Iterator[HostSample]:
    """Yield what processors, memory and disks do; rates are means since the reading before, and the first has none."""
    before: tuple[float, int | None] | None = None
    while True:
        total = limits.memory_total_bytes()  # both within the cgroup's limit, where that is the smaller
        used = max(0, total - limits.memory_available_bytes())
        # Since this thread's last call; waiting for a disk is not being busy, and a sandbox may not tell.
        busy = psutil.cpu_percent() / 100 if any(psutil.cpu_times()) else None
        now_s, nbytes, rate = time.monotonic(), _disk_bytes(), None
        if before and nbytes is not None and before[1] is not None and nbytes >= before[1]:  # else one was taken out
            rate = (nbytes - before[1]) / max(now_s - before[0], 1e-9)
        busy = busy if before else None
        yield HostSample(cpu_ratio=busy, ram_used_bytes=used, ram_total_bytes=total, disk_read_bytes_per_s=rate)
        before = now_s, nbytes


def _disk_bytes() -> int | None:
    """Return the bytes read from whole, physical disks since boot."""
    try:
        disks = psutil.disk_io_counters(perdisk=True)
    except (OSError, ValueError, NotImplementedError):  # neither /proc/diskstats nor /sys/block, or a new format
        return None
    whole = [name for name in disks if not name.startswith(_NOT_DISKS) and os.path.exists(f"/sys/block/{name}")]
    return sum(disks[name].read_bytes for name in whole) if whole else None


def process_samples(process: Any) -> Iterator[ProcessSample | None]:
    """Yield what a process of psutil and its children do, as rates since the reading before; None once it has ended."""
    # Of each: processor seconds, bytes read, None where that may not be known, and memory.
    before: dict[tuple[int, float], tuple[float, int | None, int]] = {}
    at_s: float | None = None
    children: list[Any] = []
    look_again_s = 0.0
    while True:
        now_s = time.monotonic()
        sample: ProcessSample | None = None
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                if now_s >= look_again_s:  # This reads every process of the machine: at most 0.2 % of the time.
                    children = process.children(recursive=True)
                    look_again_s = now_s + 500 * (time.monotonic() - now_s)
                counts = dict(filter(None, map(_counted, (process, *children))))
                seconds = 0.0 if at_s is None else now_s - at_s
                grown = [(before.get(key, (0.0, 0, 0)), now) for key, now in counts.items()]  # a new one began at 0
                known = [(then[1], now[1]) for then, now in grown]
                fetched = [max(0, now - then) for then, now in known if now is not None and then is not None]
                cpu_s = sum(max(0.0, now[0] - then[0]) for then, now in grown)
                memory = {pid: nbytes for (pid, _), (_, _, nbytes) in counts.items()}
                sample = ProcessSample(
                    pid=process.pid,
                    processes=len(counts),
                    cpu_cores=cpu_s / seconds if seconds else None,
                    cpus_allowed=limits.cpus(),
                    memory_bytes=memory.pop(process.pid, None),
                    children_memory_bytes=sum(memory.values()),
                    disk_read_bytes_per_s=sum(fetched) / seconds if seconds and fetched else None,
                )
                before, at_s = counts, now_s
        yield sample


def _counted(process: Any) -> tuple[tuple[int, float], tuple[float, int | None, int]] | None:
    """Return which process it is and what it has used; None of a child that has ended meanwhile."""
    with contextlib.suppress(psutil.Error), process.oneshot():
        times, nbytes = process.cpu_times(), None
        with contextlib.suppress(psutil.Error, OSError, AttributeError):  # another user's, or no such kernel file
            nbytes = process.io_counters().read_bytes
        used = times.user + times.system, nbytes, process.memory_info().rss
        return (process.pid, process.create_time()), used
    return None


def environment_of(process: Any) -> dict[str, str]:
    """Return a process's environment, as it was when the process began; empty if it may not be read."""
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}


# --- devices, and everything together ---------------------------------------------------------------------------

_Devices = Sequence[int | str] | None  # positions in CUDA's order, or beginnings of UUIDs; None for all


def gpu_samples(
    watched: Any, devices: _Devices, nvml: Any
) -> Generator[tuple[tuple[GpuSample, ...], str | None, str | None]]:
    """Yield what the devices of a process do, why there are none, and what is uncertain about which is which."""
    is_own = watched.pid == os.getpid()  # torch can be asked for CUDA's order of this process alone
    environment = os.environ if is_own else environment_of(watched)
    gpus: tuple[GpuSample, ...] = ()
    try:
        with contextlib.closing(NvmlReader(nvml)) as reader:
            started: tuple[str, ...] = ()
            reason, note = _choose(reader, devices, environment, started)
            while True:
                if is_own and not started and (started := started_cuda_uuids()):
                    reason, note = _choose(reader, devices, environment, started)
                gpus = reader.read()
                yield gpus, reason, note
    except DriverGone as gone:  # After that the devices stay without values.
        reason = str(gone)
    if gpus:  # No driver at all is an ordinary case; one that goes away is not.
        _log.warning("GPU sampling ended: %s", reason)
    gpus = tuple(GpuSample(uuid=one.uuid, name=one.name, unavailable=reason) for one in gpus)
    while True:
        yield gpus, reason, None


def _choose(
    reader: NvmlReader, devices: _Devices, environment: Mapping[str, str], started: Sequence[str]
) -> tuple[str | None, str | None]:
    """Let the reader watch the devices that are asked for; return why there are none, and what is uncertain."""
    uuids, note = visible_devices(reader.devices, environment, started)
    every, missed = [one.uuid for one in reader.devices], ""
    if devices is not None:  # one that does not exist is left out
        placed: dict[int | str, str] = dict(enumerate(uuids))
        starts = (str(placed.get(one, one)).lower() for one in devices)
        uuids = [*dict.fromkeys(uuid for start in starts for uuid in every if uuid.lower().startswith(start))]
        missed = f", and devices={list(devices)!r} names none of them"
    reader.watched = [one for uuid in uuids for one in reader.devices if one.uuid == uuid]
    return None if uuids else note or f"the driver lists {len(every)} devices{missed}", note


def system_samples(
    pid: int | None, devices: _Devices, nvml: Any, data_wait: Callable[[], float | None]
) -> Generator[tuple[SystemSample, str | None]]:
    """Yield what everything does, with what reading that cost, and what is uncertain about which GPU is which."""
    watched = psutil.Process(pid)
    host, process = host_samples(), process_samples(watched)
    began_s = before_s = time.monotonic()
    with contextlib.closing(gpu_samples(watched, devices, nvml)) as of_gpus:
        while True:
            wall_s, cpu_s = time.monotonic(), time.thread_time()
            gpus, reason, note = next(of_gpus)
            of_host, of_process, waited = next(host), next(process), data_wait()
            yield (
                SystemSample(
                    time_s=time.time(),
                    elapsed_s=wall_s - began_s,
                    interval_s=wall_s - before_s,
                    cost_cpu_s=time.thread_time() - cpu_s,
                    cost_wall_s=time.monotonic() - wall_s,
                    gpus=gpus,
                    gpu_reason=reason,
                    host=of_host,
                    process=of_process,
                    data_wait_ratio=waited,
                ),
                note,
            )
            before_s = wall_s


# --- the thread, and who asks it ------------------------------------------------------------------------------


class SystemMonitor(ShownAsText):
    """Watches GPU, processors, memory and disks from a background thread.

    A machine without a GPU is an ordinary case: the values are None and show as ``n/a``.

    Parameters
    ----------
    interval_s : float, default 1.0
        Seconds between samples, at least 0.1.
    pid : int, optional
        Process to watch with its children, by default this one.
    devices : sequence of int or str, optional
        Which GPUs: positions in CUDA's order as the watched process sees them, or UUIDs (a beginning will
        do). By default all that it sees.
    history : int, default 3600
        How many samples are kept; older ones are dropped.
    data_wait : callable, optional
        Called at each sample, in the monitor's thread; gives the share of the time since its last call that
        the training loop waited for a batch, or None.
    sinks : iterable of Sink, optional
        Where every sample goes as well. The monitor closes them.
    nvml : module, optional
        Stands in for nvidia-ml-py, for tests.

    Attributes
    ----------
    data_wait : callable or None
        Where the share of time spent waiting for data comes from; may be set while the monitor runs.
    failure : str or None
        Why the sampling ended by itself, or None.
    note : str or None
        What is uncertain about which GPU is which, or None.

    Raises
    ------
    OptionError
        If the interval is too short, the history holds nothing or there is no process `pid`.

    Examples
    --------
    >>> with SystemMonitor(interval_s=0.1) as monitor:
    ...     sample = monitor.sample()
    >>> 0 < sample.host.ram_ratio < 1
    True
    >>> monitor.line().startswith("GPU: ")
    True
    """

    failure: str | None = None
    note: str | None = None

    def __init__(
        self,
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
        pid: int | None = None,
        devices: Sequence[int | str] | None = None,
        history: int = DEFAULT_HISTORY,
        data_wait: Callable[[], float | None] | None = None,
        sinks: Iterable[Sink] = (),
        nvml: Any = None,
    ) -> None:
        if not MIN_INTERVAL_S <= interval_s <= threading.TIMEOUT_MAX:
            most = f"{threading.TIMEOUT_MAX:.0f} s"
            raise OptionError(f"interval_s={interval_s!r}: must be at least {MIN_INTERVAL_S} s, and at most {most}")
        if history < 1:
            raise OptionError(f"history={history!r}: must keep at least 1 sample")
        if pid is not None and not psutil.pid_exists(pid):
            raise OptionError(f"pid={pid!r}: there is no such process")
        self.interval_s, self.data_wait = float(interval_s), data_wait
        self._sinks, self._machine = tuple(sinks), (pid, devices, nvml)
        self._samples: deque[SystemSample] = deque(maxlen=history)
        self._begin_anew()
        _monitors.add(self)

    def _begin_anew(self) -> None:
        """Forget a thread that has ended, or that a fork left behind, and locks that it may hold."""
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._first = threading.Event()  # with the first sample, or when there will be none
        self._taken_s = time.monotonic()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to sample in the background; does nothing if it does so already.

        Returns
        -------
        SystemMonitor
            Itself.

        Raises
        ------
        OptionError
            If it was stopped before and has sinks, which are closed by now.
        """
        if self.running:
            return self
        if self._sinks and self._stopping.is_set():
            raise OptionError("the monitor's sinks were closed when it stopped: make a new SystemMonitor")
        self._begin_anew()
        self.failure = self.note = None
        # The thread has no reference to the monitor, so this fires when the last user forgets the monitor.
        weakref.finalize(self, self._stopping.set)
        samples = system_samples(*self._machine, functools.partial(_data_wait, weakref.ref(self)))
        life = weakref.ref(self), samples, self.interval_s, self._stopping, self._first, self._sinks
        self._thread = threading.Thread(target=_sample, args=life, name="h5stream-monitor", daemon=True)
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the background sampling and keep the history; does nothing if there is none.

        Parameters
        ----------
        timeout_s : float, default 2.0
            How long to wait for the thread. It ends at once unless the driver hangs; then it is left
            behind, and the log says so.
        """
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout_s)
        if thread.is_alive():
            _log.warning("the monitor's thread did not end in %g s; the driver may hang", timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether samples are being taken in the background, in this process."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def history(self) -> tuple[SystemSample, ...]:
        """The samples so far, oldest first; never more than the monitor was told to keep."""
        with self._lock:
            return tuple(self._samples)

    def sample(self) -> SystemSample:
        """Take the newest sample.

        While the monitor runs it is the last of `history`; the first is there 0.3 s after the start.
        Otherwise one is taken now, over 0.3 s, and added to `history`.

        Returns
        -------
        SystemSample
            If the driver hangs, one without values and with a `gpu_reason` that says so: nothing waits for it
            for more than a few seconds.
        """
        if self.running:
            self._first.wait(self._patience_s)
            return self._newest()
        once = SystemMonitor(interval_s=self.interval_s, data_wait=self.data_wait)
        once._machine = self._machine
        once.start()._first.wait(self._patience_s)  # in a thread, so that a hanging driver does not hang the caller
        once.stop(self._patience_s)
        if taken := once.history:
            self._take(taken[0], once.note)
            return taken[0]
        return _blank(once.failure or f"no answer within {self._patience_s:g} s")

    def line(self, device: int = 0) -> str:
        """Write the newest sample as a line for a progress bar, at once.

        Parameters
        ----------
        device : int, default 0
            Which GPU, by its position in CUDA's order among those watched.

        Returns
        -------
        str
            ``GPU: 85% | VRAM:12.3/24.0GB(51.2%) | CPU: 45.2% | RAM:18.4/64.0GB(28.8%)``; what is not known is
            ``n/a``.
        """
        return format_line(self._newest(), device)

    def summary(self) -> SystemSummary:
        """Summarize the history.

        Returns
        -------
        SystemSummary
            Means, least and most of every figure, and what the monitor itself cost.
        """
        return summarize(self.history)

    def __str__(self) -> str:
        return str(self.summary())

    # -- inside

    @property
    def _patience_s(self) -> float:
        return 5 * self.interval_s + 2.0

    def _take(self, sample: SystemSample, note: str | None) -> None:
        with self._lock:
            self._samples.append(sample)
            self._taken_s, self.note = time.monotonic(), note

    def _newest(self) -> SystemSample:
        with self._lock:
            newest = self._samples[-1] if self._samples else None
            age_s = time.monotonic() - self._taken_s
        if newest is None or self.failure is not None:
            return _blank(self.failure or "no sample yet")
        if self.running and age_s > self._patience_s:
            # Old values would look alive; the driver is the only thing here that can block.
            return _blank(f"no new sample for {age_s:.0f} s")
        return newest

    def _after_fork(self) -> None:
        self._sinks = ()  # Files and event writers stay the parent's.
        self._begin_anew()


def _data_wait(of: weakref.ref[SystemMonitor]) -> float | None:
    monitor = of()
    return None if monitor is None or monitor.data_wait is None else monitor.data_wait()


def _sample(
    of: weakref.ref[SystemMonitor],
    readings: Generator[tuple[SystemSample, str | None]],
    interval_s: float,
    stopping: threading.Event,
    first: threading.Event,
    sinks: Sequence[Sink],
) -> None:
    """Be the thread of a monitor, which it refers to for moments only, so that a forgotten one can be collected."""
    try:
        with contextlib.closing(readings) as samples:
            next(samples)  # Rates need a first reading; its values are not shown.
            # The first sample comes as soon as a rate means anything, the others in the rhythm asked for.
            due_s = time.monotonic() + min(interval_s, FIRST_SAMPLE_S)
            while not stopping.wait(max(0.0, due_s - time.monotonic())):
                sample, note = next(samples)
                if (monitor := of()) is not None and monitor._stopping is stopping:  # it was not started anew
                    monitor._take(sample, note)
                del monitor
                first.set()
                sinks = [sink for sink in sinks if _is_told(sink, sink.write, sample)]
                # Late samples are skipped, never made up for in a burst.
                due_s = max(due_s + interval_s, time.monotonic())
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        _log.warning("sampling ended: %s", failure)
        if (monitor := of()) is not None and monitor._stopping is stopping:
            monitor.failure = failure
        del monitor
    finally:
        first.set()
        for sink in sinks:
            _is_told(sink, sink.close)


def _is_told(sink: Sink, call: Callable[..., None], *arguments: SystemSample) -> bool:
    try:
        call(*arguments)
    except Exception as error:
        _log.warning("%s gets no more samples: %s: %s", type(sink).__name__, type(error).__name__, error)
        return False
    return True


def _blank(reason: str) -> SystemSample:
    return SystemSample(time_s=time.time(), gpu_reason=reason)


_monitors: Living[SystemMonitor] = Living()


@atexit.register
def stop_all() -> None:
    """Stop every monitor, at the end of the process."""
    for monitor in _monitors:
        monitor.stop(1.0)


os.register_at_fork(after_in_child=lambda: [*map(SystemMonitor._after_fork, _monitors)])
