"""What an epoch was like: times, batch sizes, memory, utilisation, and what kept the GPU waiting."""

from __future__ import annotations

from dataclasses import dataclass

from h5stream.advice.limits import Limit, LoaderKnobs
from h5stream.device.facts import DeviceMemory
from h5stream.engine.statistics import LEAST_TOLD, LoaderStatistics
from h5stream.monitor.sample import NA, percent, size
from h5stream.monitor.summary import SystemSummary
from h5stream.notebook import ShownAsText

LOW_UTILIZATION = 0.30
"""Mean GPU utilisation under which the summary warns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSummary(ShownAsText):
    """One epoch, as `h5stream.track` saw it.

    Attributes
    ----------
    description : str
        What the epoch was called.
    batches : int
        Batches taken. Fewer than `expected_batches`: the loop ended early.
    expected_batches : int or None
        ``len(loader)``; None if it has none.
    samples : int or None
        Rows taken; None if no batch told how many it has.
    epoch_s : float
        Seconds from the first ``next`` to the end.
    batch_size : int or None
        Rows of the largest batch.
    expected_batch_size : int or None
        What the loader was asked for. More than `batch_size`: the data has fewer rows, or the rank gets less.
    wait_mean_s, wait_max_s : float or None
        Seconds in ``next``, without the first. High beside the step: input-bound. Near 0: it is not.
    wait_first_s : float or None
        Seconds in the first ``next``. High: the first window is large, workers start, or storage is cold.
    waiting_share : float
        Share of the epoch spent in ``next``, 0 to 1. Under 0.05: not input-bound; over 0.2: strongly.
    first_memory, memory : DeviceMemory or None
        GPU memory in tensors at the first batch, and at the end; None where CUDA is not used.
    machine : SystemSummary or None
        Means and extremes of the monitor's samples in this epoch.
    gpu_ratio : float or None
        Mean utilisation of the GPU that was used, 0 to 1. Low (under 0.3): it mostly waits.
    statistics : LoaderStatistics or None
        The loader's own; None if it keeps none.
    knobs : LoaderKnobs
        The loader's settings.
    limit : Limit or None
        What limited the loop, where it can be named.

    Examples
    --------
    >>> print(EpochSummary(description="train", batches=100, expected_batches=100, samples=819200, epoch_s=4.0,
    ...     batch_size=8192, expected_batch_size=8192, wait_mean_s=0.0253, wait_max_s=0.0781, wait_first_s=0.3,
    ...     waiting_share=0.7, knobs=LoaderKnobs(batch_size=8192)))
    train: 4.0s | 204,800 samples/s | 25.0 batches/s
    Batch size: 8192 (expected: 8192)
    GPU memory: n/a allocated, n/a peak
    DataLoader avg: 25.3ms, max: 78.1ms (first batch: 300.0ms)
    Waiting for data: 70.0% of the time
    Mean utilisation: GPU n/a | CPU n/a
    """

    description: str
    batches: int
    expected_batches: int | None
    samples: int | None
    epoch_s: float
    batch_size: int | None
    expected_batch_size: int | None
    wait_mean_s: float | None
    wait_max_s: float | None
    wait_first_s: float | None
    waiting_share: float
    knobs: LoaderKnobs
    first_memory: DeviceMemory | None = None
    memory: DeviceMemory | None = None
    machine: SystemSummary | None = None
    gpu_ratio: float | None = None
    statistics: LoaderStatistics | None = None
    limit: Limit | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Rows a second, the loop's own work included."""
        return None if self.samples is None or not self.epoch_s else self.samples / self.epoch_s

    @property
    def batches_per_s(self) -> float:
        """Batches a second, the loop's own work included."""
        return self.batches / self.epoch_s if self.epoch_s else 0.0

    @property
    def low_utilization(self) -> bool:
        """Whether the GPU's mean utilisation was measured and is under 30 %."""
        return self.gpu_ratio is not None and self.gpu_ratio < LOW_UTILIZATION

    def __str__(self) -> str:
        return "\n".join((*self._lines(), *self.warning()))

    def _lines(self) -> tuple[str, ...]:
        samples = NA if self.samples_per_s is None else f"{self.samples_per_s:,.0f}"
        early = ""
        if self.expected_batches is not None and self.batches < self.expected_batches:
            early = f" | ended after {self.batches} of {self.expected_batches} batches"
        cpu = self.machine.cpu_ratio if self.machine is not None else None
        return (
            f"{self.description or 'epoch'}: {self.epoch_s:.1f}s | {samples} samples/s | "
            f"{self.batches_per_s:.1f} batches/s{early}",
            f"Batch size: {_count(self.batch_size)} (expected: {_count(self.expected_batch_size)})",
            f"GPU memory: {size(self.memory.allocated_bytes if self.memory else None)} allocated, "
            f"{size(self.memory.peak_bytes if self.memory else None)} peak",
            f"DataLoader avg: {_ms(self.wait_mean_s)}, max: {_ms(self.wait_max_s)} "
            f"(first batch: {_ms(self.wait_first_s)})",
            f"Waiting for data: {percent(self.waiting_share)} of the time{self._transforming()}",
            f"Mean utilisation: GPU {percent(self.gpu_ratio)} | CPU {percent(cpu.mean if cpu else None)}",
        )

    def _transforming(self) -> str:
        """Return what part of it went into making batches of rows that were there, where it is not next to nothing."""
        share = self.statistics.transform_s / self.epoch_s if self.statistics is not None and self.epoch_s else 0.0
        return f" (tensors, batch_transform and collate_fn: {percent(share)})" if share >= LEAST_TOLD else ""

    def warning(self) -> tuple[str, ...]:
        """Say why the GPU, or the loop, waits, and what to turn.

        Returns
        -------
        tuple of str
            Lines for people; none if all is well.
        """
        if self.low_utilization:
            head = f"LOW GPU UTILIZATION ({percent(self.gpu_ratio)})!"
        elif self.gpu_ratio is None and self.waiting_share > 0.2 and self.limit is not None:
            head = f"INPUT-BOUND: {self.waiting_share:.0%} of the time went into waiting for data."
        else:
            return ()
        if self.limit is None:
            cause = "this loader keeps no statistics" if self.statistics is None else "too short to tell"
            return (f"{head} Likely cause: n/a ({cause}).", *self._present_values())
        return (
            f"{head} Likely cause: {self.limit}",
            *(f"   - {turn}" for turn in self.limit.turns),
            *self._present_values(),
        )

    def _present_values(self) -> tuple[str, ...]:
        named = {turn.knob for turn in self.limit.turns} if self.limit is not None else set()
        values = {
            "batch_size": self.knobs.batch_size,
            "num_workers": self.knobs.num_workers,
            "window": self.knobs.window_rows,
            "prefetch_factor": self.knobs.prefetch_factor,
        }
        others = [f"{name} (current: {value})" for name, value in values.items() if name not in named and value]
        return (f"   other knobs: {', '.join(others)}",) if others else ()


def gpu_ratio(machine: SystemSummary | None, device: int = 0) -> float | None:
    """Return the mean utilisation of a GPU; None where it is not known."""
    spread = machine.gpus[device].utilization_ratio if machine is not None and device < len(machine.gpus) else None
    return spread.mean if spread is not None else None


def _count(value: int | None) -> str:
    return NA if value is None else str(value)


def _ms(seconds: float | None) -> str:
    return NA if seconds is None else f"{1e3 * seconds:.1f}ms"
