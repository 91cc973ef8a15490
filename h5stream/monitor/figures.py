"""The figures of a sample by name: one table for files, TensorBoard and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from h5stream.monitor.sample import SystemSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that a sample may have."""

    name: str
    """Its name outside, ending in its unit."""
    path: str
    """Where `value_at` finds it."""
    help: str
    """What it is, in one line."""


def _figure(path: str, help_text: str, name: str = "") -> Figure:
    return Figure(
        name=name or path.removeprefix("gpu.").removeprefix("host.").replace(".", "_"), path=path, help=help_text
    )


GPU_FIGURES = (
    _figure("gpu.utilization_ratio", "Share of the time in which some kernel ran."),
    _figure("gpu.sm_activity_ratio", "Share of the multiprocessors that were busy."),
    _figure("gpu.memory_used_bytes", "Device memory taken."),
    _figure("gpu.memory_total_bytes", "Device memory there is."),
    _figure("gpu.pcie_receive_bytes_per_s", "Bytes a second that came over PCIe."),
    _figure("gpu.power_w", "Power drawn."),
    _figure("gpu.power_limit_w", "Power that may be drawn."),
    _figure("gpu.temperature_c", "Temperature of the die."),
    _figure("gpu.sm_clock_hz", "Clock of the multiprocessors."),
    _figure("gpu.memory_clock_hz", "Clock of the device memory."),
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


def value_at(path: str, sample: SystemSample, gpu: int = 0) -> float | None:
    """Return the value at a path such as ``host.cpu_ratio`` or, of one device, ``gpu.power_w``; None if there is none.

    Examples
    --------
    >>> value_at("gpu.power_w", SystemSample(time_s=0.0)), value_at("elapsed_s", SystemSample(time_s=0.0))
    (None, 0.0)
    """
    owner, _, name = path.rpartition(".")
    found = sample.gpu(gpu) if owner == "gpu" else getattr(sample, owner) if owner else sample
    value: float | None = None if found is None else getattr(found, name)
    return value


def flatten(sample: SystemSample) -> Iterator[tuple[str, float | str | None]]:
    """Return every figure of a sample with its name; those of a GPU begin with ``gpu0_``, ``gpu1_`` ...

    Examples
    --------
    >>> dict(flatten(SystemSample(time_s=0.0)))["cpu_ratio"] is None
    True
    """
    yield from (("time_s", sample.time_s), ("elapsed_s", sample.elapsed_s), ("interval_s", sample.interval_s))
    yield from ((figure.name, value_at(figure.path, sample)) for figure in SYSTEM_FIGURES)
    for position, gpu in enumerate(sample.gpus):
        yield f"gpu{position}_uuid", gpu.uuid
        yield from ((f"gpu{position}_{figure.name}", value_at(figure.path, sample, position)) for figure in GPU_FIGURES)
        reasons = gpu.throttle_reasons
        yield f"gpu{position}_throttle_reasons", None if reasons is None else "+".join(reasons)
