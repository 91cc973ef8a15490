"""Means and extremes over many samples."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from h5stream.monitor.sample import SystemSample, percent, scaled, size, value_at
from h5stream.notebook import ShownAsText


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure over many samples, in the figure's own unit.

    Attributes
    ----------
    mean, low, high : float
        Mean, least and greatest value. A `high` far from the mean: bursts, so look at the course over time.
    count : int
        How many samples had a value. Low: the mean says little.
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
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(mean=statistics.fmean(known), low=min(known), high=max(known), count=len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSummary:
    """One GPU over many samples; see `GpuSample` for what high and low mean.

    Attributes
    ----------
    uuid, name : str
        Which device.
    utilization_ratio, sm_activity_ratio : Spread or None
        Shares from 0 to 1. A mean utilisation under 0.3: the GPU mostly waits.
    memory_used_bytes : Spread or None
        Bytes; `high` is the peak between samples' moments, so a short peak can be missed.
    memory_total_bytes : int or None
        Bytes.
    pcie_receive_bytes_per_s : Spread or None
        Bytes a second.
    power_w, temperature_c : Spread or None
        Watts, degrees Celsius.
    throttled_ratio : float or None
        Share of the samples, 0 to 1, in which something other than idleness held the clocks back. High: power
        or heat is the limit.
    throttle_reasons : tuple of str
        What did, the most frequent first.
    unavailable : str or None
        Why the device gave nothing at the end.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSummary(ShownAsText):
    """The machine over many samples; see `HostSample` and `ProcessSample` for what high and low mean.

    Attributes
    ----------
    samples : int
        How many samples. Low: the means say little.
    duration_s : float
        Seconds that they cover.
    gpus : tuple of GpuSummary
        In CUDA's order.
    gpu_reason : str or None
        Why there are no GPU values.
    cpu_ratio : Spread or None
        Share of the machine's processors that was busy, 0 to 1.
    process_cpu_cores : Spread or None
        Processor seconds a second of the process and its children.
    ram_used_bytes : Spread or None
        Bytes.
    ram_total_bytes : int or None
        Bytes.
    disk_read_bytes_per_s, process_disk_read_bytes_per_s : Spread or None
        Bytes a second, machine and process.
    process_memory_bytes : Spread or None
        Bytes of the process and its children.
    data_wait_ratio : Spread or None
        Share of the time that went into waiting for batches, 0 to 1; a mean over 0.2 is strongly input-bound.
    cost_ratio : Spread or None
        Share of one processor that the monitor itself took, 0 to 1; over 0.01 is too much: sample less often.
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
        lines = [_gpu_text(gpu) for gpu in self.gpus] or [f"GPU: n/a ({self.gpu_reason or 'no samples'})"]
        lines.append(
            f"CPU {percent(_mean(self.cpu_ratio))} | process {scaled(_mean(self.process_cpu_cores), 'cores')} | "
            f"RAM peak {_peak(self.ram_used_bytes)} | disk {scaled(_mean(self.disk_read_bytes_per_s), 'B/s')}"
        )
        lines.append(
            f"data wait {percent(_mean(self.data_wait_ratio))} | {self.samples} samples in "
            f"{self.duration_s:.1f} s | the monitor took {percent(_mean(self.cost_ratio), 2)} of one processor"
        )
        return "\n".join(lines)


# Where the values stand of which a summary has the spread.
_OF_GPU = (
    "utilization_ratio",
    "sm_activity_ratio",
    "memory_used_bytes",
    "pcie_receive_bytes_per_s",
    "power_w",
    "temperature_c",
)
_OF_SYSTEM = {
    "cpu_ratio": "host.cpu_ratio",
    "process_cpu_cores": "process.cpu_cores",
    "ram_used_bytes": "host.ram_used_bytes",
    "disk_read_bytes_per_s": "host.disk_read_bytes_per_s",
    "process_disk_read_bytes_per_s": "process.disk_read_bytes_per_s",
    "process_memory_bytes": "process.memory_together_bytes",
    "data_wait_ratio": "data_wait_ratio",
    "cost_ratio": "cost_ratio",
}


def summarize(samples: Sequence[SystemSample]) -> SystemSummary:
    """Summarize samples: means, least and most of every figure.

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
    spreads: dict[str, Any] = {
        name: Spread.of(value_at(path, sample) for sample in samples) for name, path in _OF_SYSTEM.items()
    }
    return SystemSummary(
        samples=len(samples),
        duration_s=sum(sample.interval_s for sample in samples),
        gpus=tuple(_summarize_gpu(gpu.uuid, samples) for gpu in last.gpus),
        gpu_reason=last.gpu_reason,
        ram_total_bytes=last.host.ram_total_bytes,
        **spreads,
    )


def _summarize_gpu(uuid: str, samples: Sequence[SystemSample]) -> GpuSummary:
    readings = [gpu for sample in samples for gpu in sample.gpus if gpu.uuid == uuid]
    held = [set(gpu.throttle_reasons) - {"gpu_idle"} for gpu in readings if gpu.throttle_reasons is not None]
    counts = Counter(reason for reasons in held for reason in sorted(reasons))
    spreads: dict[str, Any] = {name: Spread.of(getattr(gpu, name) for gpu in readings) for name in _OF_GPU}
    return GpuSummary(
        uuid=uuid,
        name=readings[-1].name,
        memory_total_bytes=next((g.memory_total_bytes for g in reversed(readings) if g.memory_total_bytes), None),
        throttled_ratio=sum(map(bool, held)) / len(held) if held else None,
        throttle_reasons=tuple(reason for reason, _ in counts.most_common()),
        unavailable=readings[-1].unavailable,
        **spreads,
    )


def _gpu_text(gpu: GpuSummary) -> str:
    text = (
        f"{gpu.name}: GPU {percent(_mean(gpu.utilization_ratio))} | SM {percent(_mean(gpu.sm_activity_ratio))} | "
        f"VRAM peak {_peak(gpu.memory_used_bytes)} | PCIe in {scaled(_mean(gpu.pcie_receive_bytes_per_s), 'B/s')} | "
        f"{scaled(_mean(gpu.power_w), 'W')}"
    )
    if gpu.throttled_ratio:
        text += f" | held back {percent(gpu.throttled_ratio)} of the time: {', '.join(gpu.throttle_reasons)}"
    return text + (f" | {gpu.unavailable}" if gpu.unavailable else "")


def _mean(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean


def _peak(spread: Spread | None) -> str:
    return size(None if spread is None else spread.high)
