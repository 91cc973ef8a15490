"""`SystemMonitor`: samples of the machine, taken in the background while training runs.

Guarantees:
    Each running monitor has one daemon thread. Only this thread uses NVML, from start to close, and only it writes to
    the sinks and closes them. Readers (`line`, `sample`, `history`, `summary`) only access finished samples, under a
    lock that is never held over a call into psutil, NVML or a sink: a driver that hangs stops the samples, not the
    training. `stop` wakes the thread and waits for it at most `timeout_s`; a thread that hangs in the driver is
    abandoned. After a fork the child has the history and no thread; at interpreter exit every thread is stopped; a
    monitor that is dropped without `stop` stops by itself.
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
from typing import Protocol, Self

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
    """A destination of samples, such as a file or TensorBoard.

    `write` is called with every sample and `close` once at the end, both from the monitor's thread. A sink
    that raises is dropped, with a warning in the log, and sampling continues.
    """

    def write(self, sample: SystemSample) -> None:
        """Write one sample.

        Parameters
        ----------
        sample : SystemSample
            The sample.
        """

    def close(self) -> None:
        """Complete the output; no samples follow."""


# --- readings of the machine and of one process, through psutil ---------------------------------------------

# Stacked and memory-backed devices: their reads are counted again by the devices below, or are from memory.
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")


def host_samples() -> Iterator[HostSample]:
    """Yield the state of processors, memory and disks, with rates since the previous reading; the first has none."""
    before: tuple[float, int | None] | None = None
    while True:
        total = limits.memory_total_bytes()  # total and available are within the cgroup's limit if that is smaller
        used = max(0, total - limits.memory_available_bytes())
        # Since this thread's last call; waiting for a disk does not count as busy, and sandboxes may report nothing.
        busy = psutil.cpu_percent() / 100 if any(psutil.cpu_times()) else None
        now_s, nbytes, rate = time.monotonic(), _disk_bytes(), None
        if (
            before and nbytes is not None and before[1] is not None and nbytes >= before[1]
        ):  # fewer bytes if a disk was removed
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


def process_samples(process: psutil.Process) -> Iterator[ProcessSample | None]:
    """Yield the state of a process and its children, with rates since the previous reading; None once it has ended."""
    # For each process: processor seconds, bytes read (None if not accessible), and memory.
    before: dict[tuple[int, float], tuple[float, int | None, int]] = {}
    at_s: float | None = None
    children: list[psutil.Process] = []
    look_again_s = 0.0
    while True:
        now_s = time.monotonic()
        sample: ProcessSample | None = None
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                if now_s >= look_again_s:  # This reads all processes of the machine, so limit it to 0.2 % of the time.
                    children = process.children(recursive=True)
                    look_again_s = now_s + 500 * (time.monotonic() - now_s)
                counts = dict(filter(None, map(_counted, (process, *children))))
                seconds = 0.0 if at_s is None else now_s - at_s
                grown = [(before.get(key, (0.0, 0, 0)), now) for key, now in counts.items()]  # new processes begin at 0
                read_counts = [(then[1], now[1]) for then, now in grown]
                fetched = [max(0, now - then) for then, now in read_counts if now is not None and then is not None]
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


def _counted(process: psutil.Process) -> tuple[tuple[int, float], tuple[float, int | None, int]] | None:
    """Return the identity of a process, and its use of resources; None if it has ended."""
    with contextlib.suppress(psutil.Error), process.oneshot():
        times, nbytes = process.cpu_times(), None
        with contextlib.suppress(psutil.Error, OSError, AttributeError):  # another user's, or no such kernel file
            nbytes = process.io_counters().read_bytes
        used = times.user + times.system, nbytes, process.memory_info().rss
        return (process.pid, process.create_time()), used
    return None


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return the initial environment of a process; empty if it is not accessible."""
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}


# --- devices, and everything together ---------------------------------------------------------------------------

_Devices = Sequence[int | str] | None  # positions in CUDA's order, or beginnings of UUIDs; None for all


def gpu_samples(
    watched: psutil.Process, devices: _Devices, nvml: object
) -> Generator[tuple[tuple[GpuSample, ...], str | None, str | None]]:
    """Yield the samples of a process's devices, the reason if there are none, and a note if they are uncertain."""
    is_own = watched.pid == os.getpid()  # torch only knows CUDA's order for this process
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
    except DriverGone as gone:  # From now on the devices have no values.
        reason = str(gone)
    if gpus:  # Having no driver is an ordinary case; losing it is not.
        _log.warning("GPU sampling ended: %s", reason)
    gpus = tuple(GpuSample(uuid=one.uuid, name=one.name, unavailable=reason) for one in gpus)
    while True:
        yield gpus, reason, None


def _choose(
    reader: NvmlReader, devices: _Devices, environment: Mapping[str, str], started: Sequence[str]
) -> tuple[str | None, str | None]:
    """Set the devices to watch; return the reason if there are none, and a note if their identity is uncertain."""
    uuids, note = visible_devices(reader.devices, environment, started)
    every, missed = [one.uuid for one in reader.devices], ""
    if devices is not None:  # devices that do not exist are ignored
        placed: dict[int | str, str] = dict(enumerate(uuids))
        starts = (str(placed.get(one, one)).lower() for one in devices)
        uuids = [*dict.fromkeys(uuid for start in starts for uuid in every if uuid.lower().startswith(start))]
        missed = f", and devices={list(devices)!r} names none of them"
    reader.watched = [one for uuid in uuids for one in reader.devices if one.uuid == uuid]
    return None if uuids else note or f"the driver lists {len(every)} devices{missed}", note


def system_samples(
    pid: int | None, devices: _Devices, nvml: object, data_wait: Callable[[], float | None]
) -> Generator[tuple[SystemSample, str | None]]:
    """Yield complete samples with the cost of taking them, and a note if the identity of GPUs is uncertain."""
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


# --- the monitor and its thread ---------------------------------------------------------------------------------


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
        The GPUs: positions in CUDA's order as seen by the watched process, or UUIDs or their beginnings. By default
        all visible ones.
    history : int, default 3600
        The number of samples that are kept; older ones are dropped.
    data_wait : callable, optional
        Called at each sample, in the monitor's thread; returns the share of the time since its last call that the
        training loop waited for a batch, or None.
    sinks : iterable of Sink, optional
        Destinations of every sample. The monitor closes them.
    nvml : module, optional
        Replaces nvidia-ml-py, for tests.

    Attributes
    ----------
    data_wait : callable or None
        Returns the share of time spent waiting for data; may be set while the monitor runs.
    failure : str or None
        Why sampling ended by itself, or None.
    note : str or None
        A note if the identity of GPUs is uncertain, or None.

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
        nvml: object = None,
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
        self._reset()
        _monitors.add(self)

    def _reset(self) -> None:
        """Reset thread, events and locks, after the thread has ended or was left behind by a fork."""
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._first = threading.Event()  # set with the first sample, or when there will be none
        self._taken_s = time.monotonic()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Start sampling in the background; does nothing if it is running.

        Returns
        -------
        SystemMonitor
            Itself.

        Raises
        ------
        OptionError
            If it was stopped before and has sinks, which are closed then.
        """
        if self.running:
            return self
        if self._sinks and self._stopping.is_set():
            raise OptionError("the monitor's sinks were closed when it stopped: make a new SystemMonitor")
        self._reset()
        self.failure = self.note = None
        # The thread has no reference to the monitor, so this runs when the last user drops the monitor.
        weakref.finalize(self, self._stopping.set)
        samples = system_samples(*self._machine, functools.partial(_data_wait, weakref.ref(self)))
        life = weakref.ref(self), samples, self.interval_s, self._stopping, self._first, self._sinks
        self._thread = threading.Thread(target=_sample, args=life, name="h5stream-monitor", daemon=True)
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop sampling in the background and keep the history; does nothing if it is not running.

        Parameters
        ----------
        timeout_s : float, default 2.0
            The time to wait for the thread. It ends at once unless the driver hangs; then it is abandoned, with a
            warning in the log.
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
        """The samples so far, oldest first; at most the configured number."""
        with self._lock:
            return tuple(self._samples)

    def sample(self) -> SystemSample:
        """Return the newest sample.

        While the monitor runs it is the last of `history`; the first is available 0.3 s after the start.
        Otherwise one is taken now, over 0.3 s, and added to `history`.

        Returns
        -------
        SystemSample
            If the driver hangs, a sample without values and with a `gpu_reason` that says so, after a few seconds.
        """
        if self.running:
            self._first.wait(self._patience_s)
            return self._newest()
        once = SystemMonitor(interval_s=self.interval_s, data_wait=self.data_wait)
        once._machine = self._machine
        once.start()._first.wait(self._patience_s)  # in a thread, so that a hanging driver does not block the caller
        once.stop(self._patience_s)
        if taken := once.history:
            self._take(taken[0], once.note)
            return taken[0]
        return _blank(once.failure or f"no answer within {self._patience_s:g} s")

    def line(self, device: int = 0) -> str:
        """Format the newest sample as a line for a progress bar, without waiting.

        Parameters
        ----------
        device : int, default 0
            The position of the GPU among the watched ones, in CUDA's order.

        Returns
        -------
        str
            ``GPU: 85% | VRAM:12.3/24.0GB(51.2%) | CPU: 45.2% | RAM:18.4/64.0GB(28.8%)``; unknown values are
            ``n/a``.
        """
        return format_line(self._newest(), device)

    def summary(self) -> SystemSummary:
        """Summarize the history.

        Returns
        -------
        SystemSummary
            Mean, least and greatest value of every figure, and the monitor's own cost.
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
            # Old values would look current; only the driver can block here.
            return _blank(f"no new sample for {age_s:.0f} s")
        return newest

    def _after_fork(self) -> None:
        self._sinks = ()  # Files and event writers belong to the parent.
        self._reset()


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
    """Run the thread of a monitor; it refers to the monitor only briefly, so that a dropped one can be collected."""
    try:
        with contextlib.closing(readings) as samples:
            next(samples)  # Rates need a previous reading; this one is not shown.
            # The first sample comes as soon as rates are meaningful, the others at the requested interval.
            due_s = time.monotonic() + min(interval_s, FIRST_SAMPLE_S)
            while not stopping.wait(max(0.0, due_s - time.monotonic())):
                sample, note = next(samples)
                if (monitor := of()) is not None and monitor._stopping is stopping:  # it was not restarted
                    monitor._take(sample, note)
                del monitor
                first.set()
                sinks = [sink for sink in sinks if _call_sink(sink, sink.write, sample)]
                # Late samples are skipped, not made up for in a burst.
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
            _call_sink(sink, sink.close)


def _call_sink(sink: Sink, call: Callable[..., None], *arguments: SystemSample) -> bool:
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
