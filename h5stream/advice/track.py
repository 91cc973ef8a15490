"""`track`: iterate over a loader with a progress bar that shows the machine, and a summary after the epoch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from h5stream import allowance
from h5stream.advice.epoch_summary import EpochSummary, gpu_ratio
from h5stream.advice.limits import Limit, LoaderKnobs, loop_limit
from h5stream.advice.trials import length_of
from h5stream.device.facts import DeviceMemory, device_memory
from h5stream.engine.statistics import LoaderStatistics
from h5stream.errors import OptionError
from h5stream.monitor.summary import SystemSummary, summarize
from h5stream.monitor.system import SystemMonitor
from h5stream.structure import rows_of
from h5stream.units import text_of_bytes

clock = time.perf_counter

REFRESH_S = 0.2
"""Seconds between two drawings of the bar: drawing takes about 2 ms, so 1 %."""


def track(
    loader: Iterable[Any],
    monitor: SystemMonitor | bool | None = None,
    *,
    description: str = "",
    every: float = 0.1,
    console: Console | None = None,
) -> Tracked:
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


class Tracked:
    """A loader that shows how far it is; made by `track`."""

    def __init__(
        self,
        loader: Iterable[Any],
        monitor: SystemMonitor | bool | None,
        description: str,
        every: float,
        console: Console | None,
    ) -> None:
        self._loader, self._monitor, self._description = loader, monitor, description
        self._every, self._console = every, console
        self.summary: EpochSummary | None = None

    def __len__(self) -> int:
        """Batches of an epoch, if the loader knows."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Start an epoch."""
        with contextlib.ExitStack() as stack:
            monitor = self._begin_monitor(stack)
            epoch = _Epoch(self._loader, monitor, self._description, self._every, self._display())
            stack.callback(self._end, epoch)
            yield from epoch.batches()

    def _begin_monitor(self, stack: contextlib.ExitStack) -> SystemMonitor | None:
        if isinstance(self._monitor, SystemMonitor):
            return self._monitor
        return None if self._monitor is False else stack.enter_context(SystemMonitor())

    def _display(self) -> Display:
        console = self._console if self._console is not None else Console(stderr=True)
        return Display(console, self._description, length_of(self._loader))

    def _end(self, epoch: _Epoch) -> None:
        """Print the summary, however the epoch ended: exhausted, left with `break`, or by an exception."""
        self.summary = epoch.end()


class _Epoch:
    """One pass."""

    def __init__(
        self, loader: Iterable[Any], monitor: SystemMonitor | None, description: str, every: float, display: Display
    ) -> None:
        self._loader, self._monitor, self._description, self._display = loader, monitor, description, display
        self._advance = Advance(total=length_of(loader))
        self._waits = WaitClock()
        self._stride = max(1, round(every * (self._advance.total or 100)))
        self._largest: int | None = None
        self._first_memory: DeviceMemory | None = None
        self._began_at_s = time.time()
        self._before = monitor.data_wait if monitor is not None else None
        self._began_s = time.perf_counter()
        if monitor is not None:
            monitor.data_wait = self._waits.share

    def batches(self) -> Iterator[Any]:
        """Return the batches."""
        iterator = iter(self._loader)
        while True:
            batch, there = self._waits.take(iterator)
            if not there:
                return
            self._count(batch)
            # Handed over, not shared: a name of ours would keep the batch's memory while the loop runs.
            held = [batch]
            del batch
            yield held.pop()

    def _count(self, batch: Any) -> None:
        advance, rows = self._advance, rows_of(batch)
        advance.batches += 1
        if rows is not None:
            advance.samples += rows
            self._largest = rows if self._largest is None else max(self._largest, rows)
        advance.elapsed_s = time.perf_counter() - self._began_s
        if advance.batches == 1:
            self._note_first()
        if advance.batches % self._stride == 0:
            self._display.note(advance, self._monitor.line(self._device) if self._monitor is not None else "")
        else:
            self._display.update(advance)

    @property
    def _device(self) -> int:
        memory = self._first_memory
        return memory.device if memory is not None else 0

    def _note_first(self) -> None:
        self._first_memory = device_memory()
        if self._first_memory is not None:
            self._display.say(f"GPU memory at the first batch: {text_of_bytes(self._first_memory.allocated_bytes)}")

    def end(self) -> EpochSummary:
        """Take the display away, sum up, and print that."""
        elapsed_s = time.perf_counter() - self._began_s
        machine = self._end_monitor()
        self._display.close()
        summary = self._sum_up(elapsed_s, machine)
        if summary.batches:
            self._display.say(str(summary))
        return summary

    def _end_monitor(self) -> SystemSummary | None:
        if self._monitor is None:
            return None
        self._monitor.data_wait = self._before
        return summarize([sample for sample in self._monitor.history if sample.time_s >= self._began_at_s])

    def _sum_up(self, elapsed_s: float, machine: SystemSummary | None) -> EpochSummary:
        statistics, knobs, waits = _statistics_of(self._loader), LoaderKnobs.of(self._loader), self._waits
        return EpochSummary(
            description=self._description,
            batches=self._advance.batches,
            expected_batches=self._advance.total,
            samples=None if self._largest is None else self._advance.samples,
            epoch_s=elapsed_s,
            batch_size=self._largest,
            expected_batch_size=knobs.batch_size,
            wait_mean_s=waits.mean_s,
            wait_max_s=None if waits.mean_s is None else waits.longest_s,
            wait_first_s=waits.first_s,
            waiting_share=min(1.0, waits.total_s / elapsed_s) if elapsed_s else 0.0,
            knobs=knobs,
            first_memory=self._first_memory,
            memory=device_memory(),
            machine=machine,
            gpu_ratio=gpu_ratio(machine, self._device),
            statistics=statistics,
            limit=_limit_of(statistics, knobs),
        )


def _statistics_of(loader: Any) -> LoaderStatistics | None:
    ask = getattr(loader, "stats", None)
    found = ask() if callable(ask) else None
    return found if isinstance(found, LoaderStatistics) else None


def _limit_of(statistics: LoaderStatistics | None, knobs: LoaderKnobs) -> Limit | None:
    if statistics is None or not statistics.batches:
        return None
    return loop_limit(statistics, knobs, cpus=allowance.cpus())


# --- the clock -------------------------------------------------------------------------------------------


class WaitClock:
    """Times the waits of one loop.

    # Guarantees: `take` is called by the loop alone and alone writes; `share` is called by one other thread, the
    monitor's, and sees a wait that is still going on. No lock: each figure is one number.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.first_s: float | None = None
        self.longest_s = 0.0
        self.total_s = 0.0
        self._began_s: float | None = None
        self._seen_s, self._seen_at_s = 0.0, clock()

    def take(self, iterator: Iterator[Any]) -> tuple[Any, bool]:
        """Return the next value, and whether there was one."""
        self._began_s = began_s = clock()
        try:
            value = next(iterator)
        except StopIteration:
            return None, False
        finally:
            waited_s = clock() - began_s
            self._began_s = None
            self.total_s += waited_s
        self.batches += 1
        if self.first_s is None:
            self.first_s = waited_s
        else:
            self.longest_s = max(self.longest_s, waited_s)
        return value, True

    @property
    def mean_s(self) -> float | None:
        """Seconds of a wait after the first, on average; None before there is one."""
        if self.batches < 2 or self.first_s is None:
            return None
        return (self.total_s - self.first_s) / (self.batches - 1)

    def share(self) -> float:
        """Return the share of the time since the last call that was spent waiting, 0 to 1."""
        now_s, began_s = clock(), self._began_s
        waited_s = self.total_s + (now_s - began_s if began_s is not None else 0.0)
        passed_s, new_s = now_s - self._seen_at_s, waited_s - self._seen_s
        self._seen_s, self._seen_at_s = waited_s, now_s
        # The wait may have ended between the two readings, and is then counted a moment early or late.
        return min(1.0, max(0.0, new_s / passed_s)) if passed_s > 0 else 0.0


# --- the bar -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Advance:
    """How far the epoch is."""

    batches: int = 0
    samples: int = 0  # taken so far
    total: int | None = None  # batches of the epoch, if they are known
    elapsed_s: float = 0.0

    @property
    def rate(self) -> str:
        """Samples a second, or batches where samples are not known."""
        what, unit = (self.samples, "samples/s") if self.samples else (self.batches, "batches/s")
        return f"{what / self.elapsed_s if self.elapsed_s else 0:,.0f} {unit}"

    @property
    def left(self) -> str:
        """Time that the rest will take, as minutes and seconds."""
        if self.total is None or not self.batches:
            return "?:??"
        seconds = round(self.elapsed_s / self.batches * (self.total - self.batches))
        return f"{seconds // 60}:{seconds % 60:02d}"


class Display:
    """An epoch as it goes: a bar where there is a terminal, with the machine's state below it, lines elsewhere.

    # Guarantees: called by the loop's thread alone. There is no drawing thread: the bar is drawn when a batch arrives
    and the last drawing is `REFRESH_S` old.
    """

    def __init__(self, console: Console, description: str, total: int | None) -> None:
        self._console, self._description, self._drawn_s = console, description or "epoch", 0.0
        self._bar: _TwoLines | None = None
        if console.is_terminal:
            self._bar = _TwoLines(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(compact=True),
                console=console,
                auto_refresh=False,
                transient=True,
                expand=True,
            )
            self._task = self._bar.add_task(self._description, total=total, rate="")
            self._bar.start()

    def update(self, advance: Advance) -> None:
        """Note how far the epoch is; called for each batch, so it must cost next to nothing."""
        if self._bar is not None and (now_s := time.monotonic()) - self._drawn_s >= REFRESH_S:
            self._drawn_s = now_s
            self._draw(self._bar, advance)

    def note(self, advance: Advance, text: str) -> None:
        """Show the state of the machine."""
        if self._bar is not None:
            self._bar.below = Text(text, style="dim", no_wrap=True, overflow="ellipsis")
            self._draw(self._bar, advance)
            return
        done = "" if not advance.total else f"{advance.batches / advance.total:4.0%} "
        of = "" if advance.total is None else f"/{advance.total}"
        self.say(
            f"{self._description}: {done}{advance.batches}{of} | {advance.rate} | {advance.left} left"
            + (f" | {text}" if text else "")
        )

    def say(self, text: str) -> None:
        """Print a line that stays: above the bar, or whole, since a file has no width."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=self._bar is None)

    def close(self) -> None:
        """Take the bar away; what was said stays."""
        if self._bar is not None:
            self._bar.stop()

    def _draw(self, bar: _TwoLines, advance: Advance) -> None:
        bar.update(self._task, completed=advance.batches, rate=advance.rate)
        bar.refresh()


class _TwoLines(Progress):
    below = Text("")

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield self.below
