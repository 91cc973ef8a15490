"""`track`: iteration over a loader with a progress bar, the state of the machine, and a summary after the epoch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic

from rich.console import Console

from h5stream.advice import WAITING
from h5stream.advice.diagnose import Limit, Trial, clock, gpu_ratio, loop_limit
from h5stream.advice.loaders import LoaderKnobs, length_of, statistics_of
from h5stream.base import limits
from h5stream.base.texts import ShownAsText, counted, or_na, percent, text_of_bytes
from h5stream.device.facts import DeviceMemory, device_memory
from h5stream.engine.statistics import LEAST_TOLD, LoaderStatistics
from h5stream.errors import OptionError
from h5stream.loader.options import Batch
from h5stream.monitor import SystemSummary, summarize
from h5stream.monitor.progress import Bar
from h5stream.monitor.system import SystemMonitor

LOW_UTILIZATION = 0.30  # mean GPU utilisation under which the summary warns


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPace(ShownAsText):
    """The batches of an epoch, and the time they took; `EpochSummary` documents its attributes."""

    batches: int
    expected_batches: int | None
    samples: int | None
    epoch_s: float
    wait_mean_s: float | None
    wait_max_s: float | None
    wait_first_s: float | None
    waiting_share: float

    @property
    def samples_per_s(self) -> float | None:
        """Rows per second, including the loop's own work."""
        return None if self.samples is None or not self.epoch_s else self.samples / self.epoch_s

    @property
    def batches_per_s(self) -> float:
        """Batches per second, including the loop's own work."""
        return self.batches / self.epoch_s if self.epoch_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSummary(EpochPace):
    """One epoch, as `h5stream.track` saw it.

    Attributes
    ----------
    description : str
        The name of the epoch.
    batches, expected_batches : int
        Batches taken, fewer if the loop ended early, and ``len(loader)``, or the rest after a resume; None if it has no
        length.
    samples : int or None
        Rows taken; None if no batch's rows could be counted.
    epoch_s : float
        Seconds from the first ``next`` to the end.
    batch_size, expected_batch_size : int or None
        Rows of the largest batch, fewer if the data, or the rank's share of it, has fewer; and as requested.
    wait_mean_s, wait_max_s, wait_first_s : float or None
        Seconds in ``next``: mean and maximum without the first, and the first. High compared to the step: input-bound.
        Only the first high: the first window is large, workers start, or storage is cold.
    waiting_share : float
        Share of the epoch spent in ``next``, 0 to 1. Under 0.05: not input-bound; over 0.2: strongly.
    knobs : LoaderKnobs
        The loader's settings.
    first_memory, memory : DeviceMemory or None
        GPU memory in tensors at the first batch, and at the end; None if CUDA is not used.
    machine : SystemSummary or None
        Means and extremes of the monitor's samples in this epoch.
    gpu_ratio : float or None
        Mean utilisation of the GPU that was used, 0 to 1. Low (under 0.3): it mostly waits.
    statistics : LoaderStatistics or None
        The loader's own statistics; None if it keeps none.
    limit : Limit or None
        The limiting part of the loop, if it is known.

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
    batch_size: int | None
    expected_batch_size: int | None
    knobs: LoaderKnobs
    first_memory: DeviceMemory | None = None
    memory: DeviceMemory | None = None
    machine: SystemSummary | None = None
    gpu_ratio: float | None = None
    statistics: LoaderStatistics | None = None
    limit: Limit | None = None

    @property
    def low_utilization(self) -> bool:
        """Whether the GPU's mean utilisation was measured and is below 30 %."""
        return self.gpu_ratio is not None and self.gpu_ratio < LOW_UTILIZATION

    def __str__(self) -> str:
        early, memory = "", self.memory
        allocated, peak = (memory.allocated_bytes, memory.peak_bytes) if memory is not None else (None, None)
        if self.expected_batches is not None and self.batches < self.expected_batches:
            early = f" | ended after {self.batches} of {counted(self.expected_batches, 'batch', 'batches')}"
        cpu = self.machine.cpu_ratio if self.machine is not None else None
        # The time to make batches from rows that were read, unless it is negligible.
        share = self.statistics.transform_s / self.epoch_s if self.statistics is not None and self.epoch_s else 0.0
        made = f" (tensors, batch_transform and collate_fn: {percent(share)})" if share >= LEAST_TOLD else ""
        sizes = (or_na(rows, "{}") for rows in (self.batch_size, self.expected_batch_size))
        waits = (self.wait_mean_s, self.wait_max_s, self.wait_first_s)
        lines = (
            f"{self.description or 'epoch'}: {self.epoch_s:.1f}s | {or_na(self.samples_per_s, '{:,.0f}')} samples/s | "
            f"{self.batches_per_s:.1f} batches/s{early}",
            "Batch size: {} (expected: {})".format(*sizes),
            f"GPU memory: {text_of_bytes(allocated)} allocated, {text_of_bytes(peak)} peak",
            "DataLoader avg: {}, max: {} (first batch: {})".format(
                *(or_na(seconds and 1e3 * seconds, "{:.1f}ms") for seconds in waits)
            ),
            f"Waiting for data: {percent(self.waiting_share)} of the time{made}",
            f"Mean utilisation: GPU {percent(self.gpu_ratio)} | CPU {percent(cpu.mean if cpu else None)}",
        )
        return "\n".join((*lines, *self.warning()))

    def warning(self) -> tuple[str, ...]:
        """Return a warning with the reason why the GPU, or the loop, waits, and the settings to change.

        Returns
        -------
        tuple of str
            Lines for people; none if all is well.
        """
        if self.low_utilization:
            head = f"LOW GPU UTILIZATION ({percent(self.gpu_ratio)})!"
        elif self.gpu_ratio is None and self.waiting_share > WAITING and self.limit is not None:
            head = f"INPUT-BOUND: {self.waiting_share:.0%} of the time went into waiting for data."
        else:
            return ()
        why = "this loader keeps no statistics" if self.statistics is None else "too short to tell"
        turns = () if self.limit is None else self.limit.turns
        values = {
            "batch_size": self.knobs.batch_size,
            "num_workers": self.knobs.num_workers,
            "window": self.knobs.window_rows,
            "prefetch_factor": self.knobs.prefetch_factor,
        }
        named = {turn.knob for turn in turns}
        others = [f"{name} (current: {value})" for name, value in values.items() if name not in named and value]
        lines = [f"{head} Likely cause: {self.limit or f'n/a ({why}).'}", *(f"   - {turn}" for turn in turns)]
        return (*lines, *([f"   other knobs: {', '.join(others)}"] if others else []))


def track(
    loader: Iterable[Batch],
    monitor: SystemMonitor | bool | None = None,
    *,
    description: str = "",
    every: float = 0.1,
    console: Console | None = None,
) -> Tracked[Batch]:
    """Iterate over a loader with a progress bar, and print a summary after the epoch.

    Nothing about the loader is changed, its batch size least of all. Any loader will do; of one without
    ``len`` the end is not known, and one without ``stats()`` is not diagnosed.

    Parameters
    ----------
    loader : iterable
        `H5StreamLoader`, a stock `DataLoader`, or anything that gives batches.
    monitor : SystemMonitor or bool, optional
        A running monitor, whose line is shown and which gets the share of time spent waiting
        (`SystemMonitor.data_wait`). By default one is started for each epoch and stopped after it; False does
        without.
    description : str, optional
        Stands before the bar.
    every : float, optional
        Share of the epoch after which the monitor's line is shown anew, 0 to 1.
    console : rich.console.Console, optional
        Where to print; by default standard error, where progress belongs.

    Returns
    -------
    Tracked
        Gives the loader's batches; ``summary`` is the last epoch's.

    Raises
    ------
    OptionError
        If `every` is not a share.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import DataLoader
    >>> epoch = track(DataLoader(torch.arange(10), batch_size=4), monitor=False)
    >>> [len(batch) for batch in epoch]
    [4, 4, 2]
    >>> epoch.summary.samples, epoch.summary.batch_size
    (10, 4)
    """
    if not 0 < every <= 1:
        raise OptionError(f"every={every!r}: must be a share of the epoch, more than 0 and at most 1")
    return Tracked(loader, monitor, description, every, console)


@dataclass(eq=False)
class Tracked(Generic[Batch]):
    """A loader that shows its progress; made by `track`."""

    loader: Iterable[Batch]
    monitor: SystemMonitor | bool | None
    description: str
    every: float
    console: Console | None
    summary: EpochSummary | None = None

    def __len__(self) -> int:
        """Return the batches of an epoch, if the loader has a length."""
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        """Start an epoch; its summary is printed at the end, even after `break` or an exception."""
        trial, memory = Trial(epoch_batches=length_of(self.loader)), list[DeviceMemory]()
        stride = max(1, round(self.every * (trial.epoch_batches or 100)))
        console, name = self.console or Console(stderr=True), self.description or "epoch"
        began_at_s, began_s = time.time(), clock()
        with contextlib.ExitStack() as stack:
            monitor = self.monitor if isinstance(self.monitor, SystemMonitor) else None
            if monitor is None and self.monitor is not False:
                monitor = stack.enter_context(SystemMonitor())
            if monitor is not None:
                stack.callback(setattr, monitor, "data_wait", monitor.data_wait)
                monitor.data_wait = trial.share
            bar = Bar(console, name, unit="batches", total=trial.epoch_batches)
            bar.start()

            def show() -> None:
                if trial.batches == 1 and (first := device_memory()) is not None:
                    memory.append(first)
                    bar.say(f"GPU memory at the first batch: {text_of_bytes(first.allocated_bytes)}")
                is_due = trial.batches % stride == 0
                if is_due or bar.is_due():
                    elapsed_s = clock() - began_s
                    many, unit = (trial.rows, "samples/s") if trial.rows else (trial.batches, "batches/s")
                    rate = f"{many / elapsed_s if elapsed_s else 0:,.0f} {unit}"
                    note = "" if monitor is None else monitor.line(memory[0].device if memory else 0)
                    bar.show_batches(trial.batches, trial.epoch_batches, elapsed_s, rate, note if is_due else None)

            try:
                yield from trial.batches_of(self.loader, show)
            finally:
                trial.elapsed_s = clock() - began_s
                samples = [one for one in (monitor.history if monitor else ()) if one.time_s >= began_at_s]
                machine = summarize(samples) if monitor else None
                bar.stop()
                self.summary = self._summary(trial, memory, machine)
                if trial.batches:
                    bar.say(str(self.summary), soft_wrap=bar.disable)

    def _summary(self, trial: Trial, memory: list[DeviceMemory], machine: SystemSummary | None) -> EpochSummary:
        knobs, statistics, waits = LoaderKnobs.of(self.loader), statistics_of(self.loader), trial.batches - 1
        return EpochSummary(
            description=self.description,
            batches=trial.batches,
            expected_batches=trial.epoch_batches,
            samples=None if trial.largest is None else trial.rows,
            epoch_s=trial.elapsed_s,
            batch_size=trial.largest,
            expected_batch_size=knobs.batch_size,
            wait_mean_s=(trial.waited_s - (trial.first_s or 0.0)) / waits if waits > 0 else None,
            wait_max_s=trial.longest_s if waits > 0 else None,
            wait_first_s=trial.first_s,
            waiting_share=min(1.0, trial.waited_s / trial.elapsed_s) if trial.elapsed_s else 0.0,
            knobs=knobs,
            first_memory=memory[0] if memory else None,
            memory=device_memory(),
            machine=machine,
            gpu_ratio=gpu_ratio(machine, memory[0].device if memory else 0),
            statistics=statistics,
            limit=loop_limit(statistics, knobs, cpus=limits.cpus()) if statistics and statistics.batches else None,
        )
