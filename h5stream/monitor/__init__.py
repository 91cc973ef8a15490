"""Monitoring of the machine while training runs: `SystemMonitor`, its samples, and sinks for them.

A sample describes one interval by frozen values in base units: bytes, seconds, watts, degrees Celsius and hertz; ratios
are from 0 to 1. None means that the device or the system does not report a value, and is shown as ``n/a``; 0 always
means a measured zero.
"""

from __future__ import annotations

import functools
import importlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from h5stream.base.texts import NA, ShownAsText, counted, or_na, percent, text_of_bytes

if TYPE_CHECKING:
    from h5stream.monitor.export import CsvLog, JsonlLog, TensorBoardLog, open_log, read_log
    from h5stream.monitor.system import Sink, SystemMonitor

__all__ = [
    "CsvLog",
    "GpuSample",
    "GpuSummary",
    "HostSample",
    "JsonlLog",
    "ProcessSample",
    "Sink",
    "Spread",
    "SystemMonitor",
    "SystemSample",
    "SystemSummary",
    "TensorBoardLog",
    "format_line",
    "open_log",
    "read_log",
    "summarize",
]


if not TYPE_CHECKING:  # so that a type checker reports missing names

    def __getattr__(name: str) -> object:
        """Return a public name of a module that imports psutil, which is slow and only needed for monitoring."""
        for file in ("export", "system") if name in __all__ else ():
            if hasattr(module := importlib.import_module(f"{__name__}.{file}"), name):
                return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU, or one MIG instance of a GPU, in one interval.

    Attributes
    ----------
    uuid, name : str
        NVML's name of the device, ``GPU-...`` or ``MIG-...``, and the name of the product.
    utilization_ratio : float or None
        Share of the driver's last sample period in which some kernel ran. Low: the GPU waits, most often for
        data. High: it is never idle, which does not yet say that it is well used; see `sm_activity_ratio`.
        None on MIG instances.
    sm_activity_ratio : float or None
        Share of the streaming multiprocessors that were busy, averaged over the interval. Low beside a high
        utilisation: kernels too small, so a larger batch. Near 1: the GPU is the limit. None before Hopper.
    memory_used_bytes, memory_total_bytes : int or None
        Device memory used by all processes, and in total. Nearly all used: no room for a larger batch.
    pcie_receive_bytes_per_s : float or None
        Bytes per second received by the device over PCIe. Near the link's rate (about 25e9 for PCIe 4 x16):
        the copy is the limit. None on MIG instances without GPM.
    power_w, power_limit_w : float or None
        Watts drawn by the whole card, and the limit at which clocks drop. Low under load: mostly idle.
    temperature_c : float or None
        Temperature of the die in degrees Celsius. High (over about 83): clocks drop soon.
    sm_clock_hz, memory_clock_hz : float or None
        Clocks of the multiprocessors, low under load if they are throttled, and of the device memory, low in a
        power-saving state.
    throttle_reasons : tuple of str or None
        Why the clocks are below their highest, by nvidia-smi's names. ``gpu_idle`` is no complaint; a
        ``..._slowdown`` or ``..._power_cap`` is. Empty: nothing holds the clocks back.
    unavailable : str or None
        Why this device no longer reports values (lost, reset required), or None.
    """

    uuid: str
    name: str
    utilization_ratio: float | None = None
    sm_activity_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    pcie_receive_bytes_per_s: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    unavailable: str | None = None

    @property
    def memory_ratio(self) -> float | None:
        """Share of the device memory in use, 0 to 1."""
        return _share(self.memory_used_bytes, self.memory_total_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """The machine in one interval.

    Attributes
    ----------
    cpu_ratio : float or None
        Share of all the machine's processors that was busy. High (over 0.9): decode or Python is the likely
        limit. Low while the GPU waits: storage, or too few threads.
    ram_used_bytes, ram_total_bytes : int or None
        Memory that is not available now, and in total: of the cgroup if its limit is below the machine's memory.
        Nearly all used: the next window may not fit, and the page cache shrinks.
    disk_read_bytes_per_s : float or None
        Bytes per second read from the machine's disks by all processes. Near the disk's rate: storage is the limit.
        Near 0 while data flows: it comes from the page cache or over the network.
    """

    cpu_ratio: float | None = None
    ram_used_bytes: int | None = None
    ram_total_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None

    @property
    def ram_ratio(self) -> float | None:
        """Share of the memory in use, 0 to 1."""
        return _share(self.ram_used_bytes, self.ram_total_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """The watched process, and its children where stated, in one interval.

    Attributes
    ----------
    pid : int
        Process number.
    processes : int
        The number of processes: this one and its children. High: many DataLoader workers.
    cpu_cores : float or None
        Processor seconds used per second, including children. Near `cpus_allowed`: computing is the limit. Near 1.0
        with many threads: Python's global lock. Low: it waits.
    cpus_allowed : int
        Processors that the monitoring process may use (affinity and cgroup).
    memory_bytes, children_memory_bytes : int or None
        Resident memory of the process itself, which grows without end if something keeps batches, and of the children,
        added up: pages that forked workers share are counted once for each.
    disk_read_bytes_per_s : float or None
        Bytes per second that this process and its children read from storage, including network file systems. Low
        while data flows: it comes from the page cache.
    """

    pid: int
    processes: int = 1
    cpu_cores: float | None = None
    cpus_allowed: int = 1
    memory_bytes: int | None = None
    children_memory_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None

    @property
    def cpu_ratio(self) -> float | None:
        """Share of the allowed processors that this process and its children kept busy, 0 to 1."""
        return _share(self.cpu_cores, self.cpus_allowed)

    @property
    def memory_together_bytes(self) -> int | None:
        """Resident memory of the process and its children."""
        return None if self.memory_bytes is None else self.memory_bytes + (self.children_memory_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSample:
    """All values read at one moment. Rates are means over the `interval_s` before it.

    Attributes
    ----------
    time_s, elapsed_s : float
        The time, in seconds since 1970 UTC, and since the monitor's first reading.
    interval_s : float
        Seconds since the previous reading. Much more than requested: the sampling thread had to wait, or the driver
        answered late.
    cost_cpu_s, cost_wall_s : float
        Processor time, and time, to take this sample, in seconds. Over 0.01 of processor time at an interval of 1 s:
        sample less often. Much longer time: the driver is slow to answer.
    gpus : tuple of GpuSample
        The devices in CUDA's order, as the watched process sees them; empty without a GPU.
    gpu_reason : str or None
        Why there are no GPU values (no driver, driver gone), or None while there are.
    host : HostSample
        The machine.
    process : ProcessSample or None
        The watched process; None once it has ended.
    data_wait_ratio : float or None
        Share of the interval in which the training loop waited for a batch. Below 0.05: not input-bound. Above
        0.2: strongly. None without a loader.
    """

    time_s: float
    elapsed_s: float = 0.0
    interval_s: float = 0.0
    cost_cpu_s: float = 0.0
    cost_wall_s: float = 0.0
    gpus: tuple[GpuSample, ...] = ()
    gpu_reason: str | None = None
    host: HostSample = HostSample()
    process: ProcessSample | None = None
    data_wait_ratio: float | None = None

    @property
    def cost_ratio(self) -> float | None:
        """Share of one processor that the monitor itself uses, 0 to 1."""
        return _share(self.cost_cpu_s, self.interval_s)

    def gpu(self, position: int = 0) -> GpuSample | None:
        """Look up a device of the sample.

        Parameters
        ----------
        position : int, default 0
            Its position in CUDA's order.

        Returns
        -------
        GpuSample or None
            None if there is none.
        """
        return self.gpus[position] if 0 <= position < len(self.gpus) else None


# --- The figures of a sample: one table for files, TensorBoard, Prometheus, the screen and summaries ------


Show = Callable[[float | None], str]


class Figure(NamedTuple):
    """A value of a sample, and its display."""

    path: str  # the path of the value
    text: str = ""  # description for exports; figures without it are derived from others
    label: str = ""  # name on the screen; figures without it are not shown there
    show: Show = percent
    colour: str = "green"
    top: float | str | None = 1.0  # value of a full bar, or its path; None for the greatest value shown
    amount: tuple[str, str] | None = None  # paths of used and total, which are shown instead of the newest value


_RATE: Show = functools.partial(text_of_bytes, per="/s")
_WATTS: Show = functools.partial(or_na, form="{:.0f} W")
_CORES: Show = functools.partial(or_na, form="{:.2f} cores")
_DISK = ("Disk read", _RATE, "magenta", None)
_VRAM, _RAM = ((f"{of}_used_bytes", f"{of}_total_bytes") for of in ("gpu.memory", "host.ram"))

FIGURES = (
    Figure("gpu.utilization_ratio", "Share of the time in which some kernel ran.", "Utilisation"),
    Figure("gpu.sm_activity_ratio", "Share of the multiprocessors that were busy.", "SM activity"),
    Figure("gpu.memory_used_bytes", "Device memory taken."),
    Figure("gpu.memory_total_bytes", "Device memory there is."),
    Figure("gpu.memory_ratio", "", "VRAM", percent, "blue", 1.0, _VRAM),
    Figure("gpu.pcie_receive_bytes_per_s", "Bytes a second that came over PCIe.", "PCIe in", _RATE, "magenta", None),
    Figure("gpu.power_w", "Power drawn.", "Power", _WATTS, "yellow", "gpu.power_limit_w"),
    Figure("gpu.power_limit_w", "Power that may be drawn."),
    Figure("gpu.temperature_c", "Temperature of the die."),
    Figure("gpu.sm_clock_hz", "Clock of the multiprocessors."),
    Figure("gpu.memory_clock_hz", "Clock of the device memory."),
    Figure("host.cpu_ratio", "Share of the machine's processors that was busy.", "CPU"),
    Figure("host.ram_used_bytes", "Memory taken, within the cgroup's limit where there is one."),
    Figure("host.ram_total_bytes", "Memory there is, within the cgroup's limit where there is one."),
    Figure("host.ram_ratio", "", "RAM", percent, "blue", 1.0, _RAM),
    Figure("host.disk_read_bytes_per_s", "Bytes a second read from the machine's disks.", *_DISK),
    Figure("process.processes", "Processes that are watched: one and its children."),
    Figure("process.cpu_cores", "Processors that these kept busy.", "CPU", _CORES, "green", "process.cpus_allowed"),
    Figure("process.memory_bytes", "Resident memory of the watched process."),
    Figure("process.children_memory_bytes", "Resident memory of its children."),
    Figure("process.memory_together_bytes", "", "Memory", text_of_bytes, "blue", None),
    Figure("process.disk_read_bytes_per_s", "Bytes a second fetched from storage for the processes.", *_DISK),
    Figure(
        "data_wait_ratio", "Share of the time that the training loop waited for a batch.", "Data wait", colour="red"
    ),
    Figure("cost_ratio", "Share of one processor that the monitor itself takes."),
)


def figure_name(path: str) -> str:
    """Return the name of a figure in logs; it ends with the unit."""
    name = path.removeprefix("gpu.").removeprefix("host.").replace(".", "_")
    return "monitor_cost_ratio" if path == "cost_ratio" else name


def value_at(path: str, sample: SystemSample, gpu: int = 0) -> Any:
    """Return the value at a path such as ``host.cpu_ratio``, or ``gpu.power_w`` of a device; None if there is none."""
    owner, _, name = path.rpartition(".")
    part = sample.gpu(gpu) if owner == "gpu" else getattr(sample, owner) if owner else sample
    return None if part is None else getattr(part, name)


def held_back_by(gpu: GpuSample) -> list[str] | None:
    """Return the reasons for lower clocks other than idleness; None if unknown."""
    return None if gpu.throttle_reasons is None else [one for one in gpu.throttle_reasons if one != "gpu_idle"]


def amount(sample: SystemSample, paths: tuple[str, str], gpu: int = 0) -> str:
    """Return memory as used/total and its share, in GB of 2**30 bytes, such as ``12.3/24.0GB(51.2%)``."""
    used, total = (value_at(path, sample, gpu) for path in paths)
    if used is None or not total:
        return NA
    return f"{used / (1 << 30):.1f}/{total / (1 << 30):.1f}GB({used / total:.1%})"


def format_line(sample: SystemSample, device: int = 0) -> str:
    """Format the state of the machine as one line, for a progress bar.

    Parameters
    ----------
    sample : SystemSample
        The sample to show.
    device : int, default 0
        The position of the GPU in CUDA's order.

    Returns
    -------
    str
        Utilisation and memory of the GPU, processors and memory of the machine; ``n/a`` for unknown values.

    Examples
    --------
    >>> from h5stream.monitor import GpuSample, HostSample
    >>> gib = 2**30
    >>> gpu = GpuSample(uuid="GPU-1", name="A", utilization_ratio=0.85,
    ...                 memory_used_bytes=int(12.3 * gib), memory_total_bytes=24 * gib)
    >>> host = HostSample(cpu_ratio=0.452, ram_used_bytes=int(18.41 * gib), ram_total_bytes=64 * gib)
    >>> format_line(SystemSample(time_s=0, gpus=(gpu,), host=host))
    'GPU: 85% | VRAM:12.3/24.0GB(51.2%) | CPU: 45.2% | RAM:18.4/64.0GB(28.8%)'
    >>> format_line(SystemSample(time_s=0, host=host))
    'GPU: n/a | VRAM:n/a | CPU: 45.2% | RAM:18.4/64.0GB(28.8%)'
    """
    busy = percent(value_at("gpu.utilization_ratio", sample, device), 0)
    vram, ram = (amount(sample, paths, device) for paths in (_VRAM, _RAM))
    return f"GPU: {busy} | VRAM:{vram} | CPU: {percent(sample.host.cpu_ratio)} | RAM:{ram}"


# --- means and extremes over many samples ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure over many samples, in the figure's own unit.

    Attributes
    ----------
    mean, low, high : float
        Mean, least and greatest value. A `high` far from the mean: bursts, so look at the course over time.
    count : int
        The number of samples with a value. Low: the mean is not reliable.
    """

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Summarize the values that are not None.

        Parameters
        ----------
        values : iterable of float or None
            Measured values; None for those that could not be measured.

        Returns
        -------
        Spread or None
            None if there are no values.

        Examples
        --------
        >>> Spread.of([0.5, None, 1.0])
        Spread(mean=0.75, low=0.5, high=1.0, count=2)
        """
        measured = [value for value in values if value is not None]
        if not measured:
            return None
        return cls(mean=statistics.fmean(measured), low=min(measured), high=max(measured), count=len(measured))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSummary:
    """One GPU over many samples; see `GpuSample` for what high and low mean.

    Attributes
    ----------
    uuid, name : str
        The device.
    utilization_ratio, sm_activity_ratio, memory_used_bytes, pcie_receive_bytes_per_s, power_w, temperature_c : Spread
        None if not measured. A mean utilisation below 0.3: the GPU mostly waits. A memory peak between two samples is
        missed.
    memory_total_bytes : int or None
        Device memory there is.
    throttled_ratio : float or None
        Share of the samples, 0 to 1, in which clocks were lowered for a reason other than idleness. High: power or heat
        is the limit.
    throttle_reasons : tuple of str
        These reasons, the most frequent first.
    unavailable : str or None
        Why the device reported no values at the end.
    """

    uuid: str
    name: str
    utilization_ratio: Spread | None
    sm_activity_ratio: Spread | None
    memory_used_bytes: Spread | None
    memory_total_bytes: int | None
    pcie_receive_bytes_per_s: Spread | None
    power_w: Spread | None
    temperature_c: Spread | None
    throttled_ratio: float | None
    throttle_reasons: tuple[str, ...]
    unavailable: str | None

    def __str__(self) -> str:
        text = (
            f"{self.name}: GPU {_mean(self.utilization_ratio)} | SM {_mean(self.sm_activity_ratio)} | VRAM peak "
            f"{_peak(self.memory_used_bytes)} | PCIe in {_mean(self.pcie_receive_bytes_per_s, _RATE)} | "
            f"{_mean(self.power_w, _WATTS)}"
        )
        if self.throttled_ratio:
            text += f" | held back {self.throttled_ratio:.1%} of the time: {', '.join(self.throttle_reasons)}"
        return text + (f" | {self.unavailable}" if self.unavailable else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSummary(ShownAsText):
    """The machine over many samples; see `HostSample` and `ProcessSample` for what high and low mean.

    Attributes
    ----------
    samples : int
        The number of samples. Low: the means are not reliable.
    duration_s : float
        Seconds that they cover.
    gpus : tuple of GpuSummary
        In CUDA's order.
    gpu_reason : str or None
        Why there are no GPU values.
    cpu_ratio, ram_used_bytes, disk_read_bytes_per_s : Spread or None
        Values of the machine.
    ram_total_bytes : int or None
        Total memory in bytes.
    process_cpu_cores, process_disk_read_bytes_per_s, process_memory_bytes : Spread or None
        Values of the process and its children.
    data_wait_ratio : Spread or None
        Share of the time spent waiting for batches, 0 to 1; a mean above 0.2 is strongly input-bound.
    cost_ratio : Spread or None
        Share of one processor that the monitor itself used, 0 to 1; above 0.01 is too much: sample less often.
    """

    samples: int
    duration_s: float
    gpus: tuple[GpuSummary, ...]
    gpu_reason: str | None
    cpu_ratio: Spread | None
    process_cpu_cores: Spread | None
    ram_used_bytes: Spread | None
    ram_total_bytes: int | None
    disk_read_bytes_per_s: Spread | None
    process_disk_read_bytes_per_s: Spread | None
    process_memory_bytes: Spread | None
    data_wait_ratio: Spread | None
    cost_ratio: Spread | None

    def __str__(self) -> str:
        lines = [str(gpu) for gpu in self.gpus] or [f"GPU: n/a ({self.gpu_reason or 'no samples'})"]
        lines.append(
            f"CPU {_mean(self.cpu_ratio)} | process {_mean(self.process_cpu_cores, _CORES)} | "
            f"RAM peak {_peak(self.ram_used_bytes)} | disk {_mean(self.disk_read_bytes_per_s, _RATE)}"
        )
        taken = _mean(self.cost_ratio, functools.partial(percent, digits=2))
        lines.append(
            f"data wait {_mean(self.data_wait_ratio)} | {counted(self.samples, 'sample')} in {self.duration_s:.1f} s | "
            f"the monitor took {taken} of one processor"
        )
        return "\n".join(lines)


def _mean(spread: Spread | None, show: Show = percent) -> str:
    return show(None if spread is None else spread.mean)


def _peak(spread: Spread | None) -> str:
    return text_of_bytes(None if spread is None else spread.high)


def _spreads(kind: type, values: Callable[[str], Iterable[float | None]]) -> dict[str, Spread | None]:
    """Return the spreads of a summary's fields, each from the values of the same name."""
    return {one.name: Spread.of(values(one.name)) for one in fields(kind) if str(one.type).startswith("Spread")}


_PATHS = {figure_name(figure.path): figure.path for figure in FIGURES} | {
    "process_memory_bytes": "process.memory_together_bytes",
    "cost_ratio": "cost_ratio",
}
"""The paths of the values whose spread a summary has."""


def summarize(samples: Sequence[SystemSample]) -> SystemSummary:
    """Summarize samples: mean, least and greatest value of every figure.

    Parameters
    ----------
    samples : sequence of SystemSample
        Oldest first.

    Returns
    -------
    SystemSummary
        Without samples, everything is None.

    Examples
    --------
    >>> summarize([]).samples
    0
    """
    last = samples[-1] if samples else SystemSample(time_s=0.0)
    return SystemSummary(
        samples=len(samples),
        duration_s=sum(sample.interval_s for sample in samples),
        gpus=tuple(_summarize_gpu(gpu.uuid, samples) for gpu in last.gpus),
        gpu_reason=last.gpu_reason,
        ram_total_bytes=last.host.ram_total_bytes,
        **_spreads(SystemSummary, lambda name: (value_at(_PATHS[name], sample) for sample in samples)),
    )


def _summarize_gpu(uuid: str, samples: Sequence[SystemSample]) -> GpuSummary:
    readings = [gpu for sample in samples for gpu in sample.gpus if gpu.uuid == uuid]
    throttling = [reasons for reasons in map(held_back_by, readings) if reasons is not None]
    counts = Counter(reason for reasons in throttling for reason in sorted(reasons))
    return GpuSummary(
        uuid=uuid,
        name=readings[-1].name,
        memory_total_bytes=next((g.memory_total_bytes for g in reversed(readings) if g.memory_total_bytes), None),
        throttled_ratio=sum(map(bool, throttling)) / len(throttling) if throttling else None,
        throttle_reasons=tuple(reason for reason, _ in counts.most_common()),
        unavailable=readings[-1].unavailable,
        **_spreads(GpuSummary, lambda name: (getattr(gpu, name) for gpu in readings)),
    )
