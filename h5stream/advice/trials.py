"""Short measured runs: a loader alone, a step alone, both together; and whether runs of one setting are the faster."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
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
    kept: list[LoaderStatistics] = []
    batches = rows = epochs = 0
    waited_s = first_s = 0.0
    began_s = ends_s = clock()
    while True:
        before, asked_s = batches, clock()
        iterator = iter(loader)
        try:
            while (batch := next(iterator, _END)) is not _END:
                got_s = clock()
                waited_s += got_s - asked_s
                if not batches:
                    first_s, ends_s = got_s - began_s, got_s + seconds
                batches, rows = batches + 1, rows + (rows_of(batch) or 0)
                if step is not None:
                    step(batch)
                    if stride and batches % stride == 0:
                        synchronize()
                asked_s = clock()
                if asked_s >= ends_s and batches >= 2:
                    break
            else:
                waited_s += clock() - asked_s
                epochs += 1
        finally:
            _close(iterator)
        if isinstance(found := loader.stats() if hasattr(loader, "stats") else None, LoaderStatistics):
            kept.append(found)
        if batch is not _END or batches == before or clock() >= ends_s:
            break
    on_device = synchronize() if step is not None else False
    return Trial(
        batches=batches,
        rows=rows,
        elapsed_s=clock() - began_s,
        waited_s=waited_s,
        first_s=first_s,
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


def _close(iterator: Iterator[Any]) -> None:
    if callable(close := getattr(iterator, "close", None)):
        close()


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
