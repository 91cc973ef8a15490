"""The figures of a sample by name: one table for files, TensorBoard and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from h5stream.monitor.sample import GpuSample, SystemSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that a sample may have.

    Attributes
    ----------
    name : str
        Its name outside, ending in its unit.
    path : str
        The attribute of the sample, or of its GPU, that holds it.
    help : str
        What it is, in one line.
    """

    name: str
    path: str
    help: str


def _figure(path: str, help_text: str, name: str = "") -> Figure:
    return Figure(name=name or path.replace(".", "_").removeprefix("host_"), path=path, help=help_text)


GPU_FIGURES = (
    _figure("utilization_ratio", "Share of the time in which some kernel ran."),
    _figure("sm_activity_ratio", "Share of the multiprocessors that were busy."),
    _figure("memory_used_bytes", "Device memory taken."),
    _figure("memory_total_bytes", "Device memory there is."),
    _figure("pcie_receive_bytes_per_s", "Bytes a second that came over PCIe."),
    _figure("power_w", "Power drawn."),
    _figure("power_limit_w", "Power that may be drawn."),
    _figure("temperature_c", "Temperature of the die."),
    _figure("sm_clock_hz", "Clock of the multiprocessors."),
    _figure("memory_clock_hz", "Clock of the device memory."),
)

SYSTEM_FIGURES = (
    _figure("host.cpu_ratio", "Share of the machine's processors that was busy."),
    _figure("host.ram_used_bytes", "Memory taken, within the cgroup's limit where there is one."),
    _figure("host.ram_total_bytes", "Memory there is, within the cgroup's limit where there is one."),
    _figure("host.disk_read_bytes_per_s", "Bytes a second read from the machine's disks."),
    _figure("process.processes", "Processes that are watched: one and its children."),
    _figure("process.cpu_cores", "Processors that the watched processes kept busy."),
    _figure("process.memory_bytes", "Resident memory of the watched process."),
    _figure("process.children_memory_bytes", "Resident memory of its children."),
    _figure("process.disk_read_bytes_per_s", "Bytes a second fetched from storage for the watched processes."),
    _figure("data_wait_ratio", "Share of the time that the training loop waited for a batch."),
    _figure("cost_ratio", "Share of one processor that the monitor itself takes.", "monitor_cost_ratio"),
)

_GETTERS = {figure.path: attrgetter(figure.path) for figure in (*GPU_FIGURES, *SYSTEM_FIGURES)}


def value_of(figure: Figure, sample: SystemSample | GpuSample) -> float | None:
    """Give the figure's value in its unit, or None where the sample has none."""
    if figure.path.startswith("process.") and isinstance(sample, SystemSample) and sample.process is None:
        return None
    value: float | None = _GETTERS[figure.path](sample)
    return value


def flatten(sample: SystemSample) -> Iterator[tuple[str, float | str | None]]:
    """Give every figure of a sample with its name; those of a GPU begin with ``gpu0_``, ``gpu1_`` ...

    Examples
    --------
    >>> dict(flatten(SystemSample(time_s=0.0)))["cpu_ratio"] is None
    True
    """
    yield from (("time_s", sample.time_s), ("elapsed_s", sample.elapsed_s), ("interval_s", sample.interval_s))
    yield from ((figure.name, value_of(figure, sample)) for figure in SYSTEM_FIGURES)
    for position, gpu in enumerate(sample.gpus):
        yield f"gpu{position}_uuid", gpu.uuid
        yield from ((f"gpu{position}_{figure.name}", value_of(figure, gpu)) for figure in GPU_FIGURES)
        reasons = gpu.throttle_reasons
        yield f"gpu{position}_throttle_reasons", None if reasons is None else "+".join(reasons)
