"""Short measured runs: a loader alone, a step alone, both together; and whether runs of one setting are the faster."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from h5stream.device.facts import synchronize
from h5stream.engine.statistics import LoaderStatistics, combined
from h5stream.errors import OptionError
from h5stream.structure import rows_of

Step = Callable[[Any], object]

SYNCHRONIZE_S = 0.25
"""Seconds of device work that may be queued before it is waited for: enough to hide the pause, and an end in sight."""

MOST_STEPS = 1000
"""Steps of a trial: more would not make the mean better."""

LEAST_GAIN = 0.03
"""Share by which a setting must be faster, however little its runs differ: less is not worth another setting."""

CHANCE = 0.01
"""How likely an order of runs as clear as the one found may be where both settings are equally fast."""

clock = time.perf_counter


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
        """Seconds of the wait for the first batch that are not this run's share of it.

        The start of an epoch is waited for once an epoch. Of a run that ended within its first epoch, what counts is
        that part of it which the batches taken are of the epoch's; none of it where that is not known.
        """
        if self.whole_epochs or self.batches < 2:
            return 0.0
        if not self.epoch_batches:
            return self.first_s
        return self.first_s * max(0.0, 1.0 - self.batches / self.epoch_batches)

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


def first_batch(loader: Any) -> Any:
    """Take one batch, and end that iteration; a loader that has none is an error."""
    iterator = iter(loader)
    try:
        return next(iterator)
    except StopIteration:
        raise OptionError("the loader gives no batch, so there is nothing to measure") from None
    finally:
        _close(iterator)


def time_step(step: Step, batch: Any, seconds: float) -> Trial:
    """Run a step again and again on one batch, whose data costs nothing: the ceiling of the loop.

    The first call is not counted: it compiles, and lets libraries choose their algorithms.
    """
    step(batch)
    synchronize()
    once_s = _timed(step, batch, 1)[0]
    count = int(min(MOST_STEPS, max(2, seconds / max(once_s, 1e-9))))
    elapsed_s, on_device = _timed(step, batch, count)
    rows = rows_of(batch) or 0
    return Trial(batches=count, rows=count * rows, elapsed_s=elapsed_s, whole_epochs=True, on_device=on_device)


def _timed(step: Step, batch: Any, count: int) -> tuple[float, bool]:
    began_s = clock()
    for _ in range(count):
        step(batch)
    on_device = synchronize()  # what is only queued is not done
    return clock() - began_s, on_device


def time_loop(loader: Any, step: Step | None, seconds: float, *, step_s: float = 0.0) -> Trial:
    """Iterate over a loader, epoch after epoch, until so many seconds after its first batch; at least two are taken.

    Of a step that takes `step_s`, not more than `SYNCHRONIZE_S` of device work is queued.
    """
    loop = _Loop(step, seconds, max(1, round(SYNCHRONIZE_S / step_s)) if step_s else 0)
    kept: list[LoaderStatistics] = []
    epochs = 0
    while not epochs or clock() < loop.ends_s:
        before = loop.batches
        ended = loop.run(loader)
        if isinstance(found := loader.stats() if hasattr(loader, "stats") else None, LoaderStatistics):
            kept.append(found)
        epochs += ended
        if not ended or loop.batches == before:
            break
    on_device = synchronize() if step is not None else False
    return Trial(
        batches=loop.batches,
        rows=loop.rows,
        elapsed_s=clock() - loop.began_s,
        waited_s=loop.waited_s,
        first_s=loop.first_s,
        epoch_batches=length_of(loader),
        whole_epochs=epochs > 0,
        on_device=on_device,
        statistics=combined(kept) if kept else None,
    )


def length_of(loader: Any) -> int | None:
    """Return the batches of an epoch; None where the loader does not tell."""
    try:
        return len(loader)
    except TypeError:  # of an iterable, or a DataLoader over one, which has a __len__ and raises
        return None


class _Loop:
    """A training loop with a stopwatch."""

    def __init__(self, step: Step | None, seconds: float, stride: int) -> None:
        self._step, self._seconds, self._stride = step, seconds, stride
        self.batches = self.rows = 0
        self.began_s = self.ends_s = clock()
        self.waited_s = self.first_s = 0.0

    def run(self, loader: Any) -> bool:
        """Run an epoch; tell whether it came to its end."""
        asked_s = clock()
        iterator = iter(loader)
        try:
            while True:
                batch = next(iterator, _END)
                got_s = clock()
                self.waited_s += got_s - asked_s
                if batch is _END:
                    return True
                self._take(batch, got_s)
                asked_s = clock()
                if asked_s >= self.ends_s and self.batches >= 2:
                    return False
        finally:
            _close(iterator)

    def _take(self, batch: Any, got_s: float) -> None:
        if not self.batches:
            self.first_s, self.ends_s = got_s - self.began_s, got_s + self._seconds
        self.batches += 1
        self.rows += rows_of(batch) or 0
        if self._step is not None:
            self._step(batch)
            if self._stride and self.batches % self._stride == 0:
                synchronize()


_END = object()


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if callable(close):
        close()


# --- runs of two settings, compared ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs of two settings that took turns."""

    gain: float  # how many times faster the one is than the other: their median runs
    spread: float  # share by which two runs of one setting typically differ: high where something else uses the machine
    chance: float  # how likely runs of equally fast settings come out in so clear an order

    @property
    def is_faster(self) -> bool:
        """Whether it is faster beyond the noise: by more than runs of one setting differ, and not by chance."""
        return self.gain > 1.0 + max(LEAST_GAIN, self.spread) and self.chance <= CHANCE


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare the rates of two settings, run in turns; five runs of each can decide, fewer cannot."""
    return Comparison(
        gain=statistics.median(ours) / max(1e-9, statistics.median(theirs)),
        spread=max(spread_of(ours), spread_of(theirs)),
        chance=_chance(ours, theirs),
    )


def spread_of(runs: Sequence[float]) -> float:
    """Return the share by which two runs of one setting typically differ: the median of all pairs of them.

    One run that was disturbed does not make it large; half of them do.
    """
    pairs = [1 - min(a, b) / max(a, b) for a, b in itertools.combinations(runs, 2) if max(a, b) > 0]
    return statistics.median(pairs) if pairs else 0.0


def _chance(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how likely equally fast settings have so few upsets: pairs of runs in which theirs is not slower.

    All orders of the runs are then equally likely (the rank-sum test of Mann and Whitney, exact).
    """
    upsets = sum(theirs_run >= our_run for our_run in ours for theirs_run in theirs)
    orders = orders_by_upsets(len(ours), len(theirs))
    return sum(orders[: upsets + 1]) / math.comb(len(ours) + len(theirs), len(ours))


def orders_by_upsets(ours: int, theirs: int) -> list[int]:
    """Count the orders of so many runs of each by their upsets: the coefficients of the Gaussian binomial."""
    counts = [1] + [0] * (ours * theirs)
    for k in range(1, ours + 1):
        for place in range(len(counts) - 1, theirs + k - 1, -1):  # times 1 - q^(theirs + k)
            counts[place] -= counts[place - theirs - k]
        for place in range(k, len(counts)):  # divided by 1 - q^k
            counts[place] += counts[place - k]
    return counts
