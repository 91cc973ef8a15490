"""Short measured runs: a loader alone, a step alone, both together; and whether runs of one setting are the faster."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from h5stream.device.facts import synchronize
from h5stream.engine.statistics import LoaderStatistics, combined
from h5stream.errors import OptionError
from h5stream.structure import rows_of

Step = Callable[[Any], object]

SYNCHRONIZE_S = 0.25  # seconds of device work that may be queued: enough to hide the pause, and an end in sight
MOST_STEPS = 1000  # steps of a trial: more would not make the mean better
LEAST_GAIN = 0.03  # share by which a setting must be faster, however little its runs differ
CHANCE = 0.01  # how likely an order of runs as clear as the one found may be where both settings are equally fast

clock = time.perf_counter
_END = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a run did."""

    batches: int
    rows: int  # taken
    elapsed_s: float  # seconds, to the end of the device's work
    waited_s: float = 0.0  # seconds of them in ``next``
    first_s: float = 0.0  # seconds of them until the first batch
    epoch_batches: int | None = None  # batches of an epoch; None where the loader does not tell
    whole_epochs: bool = False  # whether at least one epoch was run to its end
    on_device: bool = False  # whether there was a device whose work was waited for
    statistics: LoaderStatistics | None = None  # the loader's own, of all epochs in the run together

    @property
    def _start_s(self) -> float:
        # The first batch is waited for once an epoch: a run that ended within its first epoch counts only the part
        # of that wait which its batches are of the epoch's, and none of it where that is not known.
        if self.whole_epochs or self.batches < 2:
            return 0.0
        return self.first_s * (max(0.0, 1.0 - self.batches / self.epoch_batches) if self.epoch_batches else 1.0)

    @property
    def batch_s(self) -> float:
        """Seconds a batch, with its share of the wait for the first one of an epoch."""
        count = self.batches - (self._start_s > 0 and not self.epoch_batches)
        return (self.elapsed_s - self._start_s) / max(1, count)

    @property
    def rows_per_s(self) -> float:
        """Rows a second, by the same rule."""
        return self.rows / max(1, self.batches) / self.batch_s if self.batch_s else 0.0

    @property
    def waiting_share(self) -> float:
        """Share of the time spent in ``next``, 0 to 1, by the same rule."""
        return min(1.0, max(0.0, (self.waited_s - self._start_s) / max(self.elapsed_s - self._start_s, 1e-9)))


class Meter:
    """Takes the batches of a loader, and counts them, their rows, and how long they were waited for.

    It is over so many seconds after the first batch, and not before the second.

    # Guarantees: `batches_of` is run by the loop alone, which alone writes; `share` is called by one other thread, a
    monitor's, and sees a wait that is still going on. No lock: each figure is one number.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self.batches = self.rows = self.epochs = 0  # epochs that came to their end
        self.is_over = False
        self.largest: int | None = None  # rows of a batch; None while none told how many it has
        self.first_s: float | None = None  # seconds of the first wait
        self.longest_s = self.total_s = 0.0  # of the others, and of all
        self._seconds, self._ends_s = seconds, math.inf
        self._asked_s: float | None = None
        self._seen_s, self._seen_at_s = 0.0, clock()

    def batches_of(self, loader: Any, arrived: Callable[[], None] = lambda: None) -> Generator[Any, None, None]:
        """Yield the batches of an epoch; `arrived` is called when one was counted."""
        self._asked_s = clock()
        iterator = iter(loader)
        try:
            while (batch := next(iterator, _END)) is not _END:
                waited_s = self._waited(self._asked_s)
                if self.first_s is None:
                    self.first_s, self._ends_s = waited_s, self._asked_s + waited_s + self._seconds
                else:
                    self.longest_s = max(self.longest_s, waited_s)
                self._asked_s = None
                self.batches, rows = self.batches + 1, rows_of(batch)
                if rows is not None:
                    self.rows, self.largest = self.rows + rows, max(rows, self.largest or 0)
                arrived()
                # Handed over, not shared: a name of ours would keep the batch's memory while the loop runs.
                held = [batch]
                del batch
                yield held.pop()
                self._asked_s = clock()
                if self._asked_s >= self._ends_s and self.batches > 1:
                    self.is_over = True
                    return
            self.epochs += 1
        finally:
            if self._asked_s is not None:
                self.is_over |= self._asked_s + self._waited(self._asked_s) >= self._ends_s
                self._asked_s = None
            if callable(close := getattr(iterator, "close", None)):
                close()

    def _waited(self, asked_s: float) -> float:
        waited_s = clock() - asked_s
        self.total_s += waited_s
        return waited_s

    @property
    def mean_s(self) -> float | None:
        """Seconds of a wait after the first, on average; None before there is one."""
        return (self.total_s - (self.first_s or 0.0)) / (self.batches - 1) if self.batches > 1 else None

    def share(self) -> float:
        """Return the share of the time since the last call that was spent waiting, 0 to 1."""
        now_s, asked_s = clock(), self._asked_s
        waited_s = self.total_s + (now_s - asked_s if asked_s is not None else 0.0)
        passed_s, new_s = now_s - self._seen_at_s, waited_s - self._seen_s
        self._seen_s, self._seen_at_s = waited_s, now_s
        # The wait may have ended between the two readings, and is then counted a moment early or late.
        return min(1.0, max(0.0, new_s / passed_s)) if passed_s > 0 else 0.0


def first_batch(loader: Any) -> Any:
    """Take one batch, and end that iteration; a loader that has none is an error."""
    with contextlib.closing(Meter().batches_of(loader)) as batches:
        for batch in batches:
            return batch
    raise OptionError("the loader gives no batch, so there is nothing to measure")


def time_step(step: Step, batch: Any, seconds: float) -> Trial:
    """Run a step again and again on one batch: the ceiling of the loop; the first call compiles and is not timed."""
    step(batch)
    synchronize()
    once_s = _timed(step, batch, 1)[0]
    count = int(min(MOST_STEPS, max(2, seconds / max(once_s, 1e-9))))
    elapsed_s, on_device = _timed(step, batch, count)
    rows = count * (rows_of(batch) or 0)
    return Trial(batches=count, rows=rows, elapsed_s=elapsed_s, whole_epochs=True, on_device=on_device)


def _timed(step: Step, batch: Any, count: int) -> tuple[float, bool]:
    began_s = clock()
    for _ in range(count):
        step(batch)
    on_device = synchronize()  # what is only queued is not done
    return clock() - began_s, on_device


def time_loop(loader: Any, step: Step | None, seconds: float, *, step_s: float = 0.0) -> Trial:
    """Iterate over a loader, epoch after epoch, until so many seconds after its first batch; two at least."""
    stride = max(1, round(SYNCHRONIZE_S / step_s)) if step_s else 0
    began_s, meter, kept, before = clock(), Meter(seconds), list[LoaderStatistics](), -1
    while not meter.is_over and before < meter.batches:
        before = meter.batches
        with contextlib.closing(meter.batches_of(loader)) as batches:
            for batch in batches:
                if step is not None:
                    step(batch)
                    if stride and meter.batches % stride == 0:
                        synchronize()
        if (found := statistics_of(loader)) is not None:
            kept.append(found)
    on_device = synchronize() if step is not None else False
    return Trial(
        batches=meter.batches,
        rows=meter.rows,
        elapsed_s=clock() - began_s,
        waited_s=meter.total_s,
        first_s=meter.first_s or 0.0,
        epoch_batches=length_of(loader),
        whole_epochs=meter.epochs > 0,
        on_device=on_device,
        statistics=combined(kept) if kept else None,
    )


def statistics_of(loader: Any) -> LoaderStatistics | None:
    """Return the loader's own statistics; None where it keeps none."""
    ask = getattr(loader, "stats", None)
    found = ask() if callable(ask) else None
    return found if isinstance(found, LoaderStatistics) else None


def length_of(loader: Any) -> int | None:
    """Return the batches of an epoch; None where the loader does not tell."""
    try:
        return len(loader)
    except TypeError:  # of an iterable, or a DataLoader over one, which has a __len__ and raises
        return None


class Comparison(NamedTuple):
    """Runs of two settings that took turns."""

    gain: float  # how many times faster the one is than the other: their median runs
    spread: float  # share by which two runs of one setting typically differ: high where something else uses the machine
    is_faster: bool  # whether beyond the noise: by more than runs of one setting differ, and not by chance


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare the rates of two settings, run in turns, by the exact rank-sum test of Mann and Whitney."""
    upsets = sum(theirs_run >= our_run for our_run in ours for theirs_run in theirs)
    orders = _upsets_of_orders(len(ours), len(theirs))
    gain = statistics.median(ours) / max(1e-9, statistics.median(theirs))
    spread = max(spread_of(ours), spread_of(theirs))
    chance = sum(one <= upsets for one in orders) / len(orders)
    return Comparison(gain, spread, gain > 1.0 + max(LEAST_GAIN, spread) and chance <= CHANCE)


def spread_of(runs: Sequence[float]) -> float:
    """Return the share by which two runs of one setting typically differ: the median of all pairs of them."""
    pairs = [1 - min(a, b) / max(a, b) for a, b in itertools.combinations(runs, 2) if max(a, b) > 0]
    return statistics.median(pairs) if pairs else 0.0


@functools.cache
def _upsets_of_orders(ours: int, theirs: int) -> tuple[int, ...]:
    orders = itertools.combinations(range(ours + theirs), ours)
    return tuple(sum(place - k for k, place in enumerate(places)) for places in orders)
