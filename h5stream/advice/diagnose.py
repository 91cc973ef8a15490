"""`diagnose`: is it the data or the step? Three short runs, the limit by name, and the next knob.

Which part limits a loader is named from its settings and statistics alone. Runs of `tune` are measured and compared
here as well.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

from h5stream import allowance
from h5stream.advice import NOT_WAITING, WAITING, Suggestion, Turn, above_zero
from h5stream.device.facts import synchronize
from h5stream.engine.statistics import LoaderStatistics, combined
from h5stream.errors import OptionError
from h5stream.loader import H5StreamLoader
from h5stream.monitor import SystemSummary
from h5stream.monitor.system import MIN_INTERVAL_S, SystemMonitor
from h5stream.storage.layout import DECODED, VIA_H5PY
from h5stream.structure import first_rows, rows_of
from h5stream.units import NA, percent, text_of_bytes, told, whole_number

Step = Callable[[Any], object]

TRIAL_S = 5.0  # seconds of each of the three runs
ACCELERATOR_AIM = 0.90  # share of the ceiling that a loop should reach; what is missing is paid for and not used
FIXED_SHARE = 0.6  # share of a step that does not depend on the rows, over which the batch is too small for it

STORAGE, DECODE, SCATTER, COPY, H5PY = "storage", "decode", "scatter", "copy", "h5py"
PYTHON, PLANNING, START = "Python", "planning", "start of the epoch"
BATCH_TOO_SMALL, STEP = "batch too small", "step"

# What a thread decodes of lz4 on the 2-core reference machine (docs/history.md): what a repacked file would do.
FAST_DECODE_BYTES_PER_S = 1.8e9
TORN = 1.5  # bytes decoded for each byte used from which the order, not the filter, is what to change
IDLE = 0.6  # share of the readers' time without work over which no work of theirs can be the limit
SMALL_STEP_S = 2e-3  # seconds of a step under which launching it is most of it: some hundred kernels of 5 to 10 us
ROWS_OF_A_CHUNK = 64  # rows of a chunk over which planning is shuffling rows, and under which looking up chunks
COPYING = 0.8  # share of the time with a copy on its way over which the bus is the limit


@dataclass(frozen=True, slots=True)
class Limit:
    """The part that all others wait for."""

    name: str  # one of the names above
    measured: str  # its rate or share, as measured
    turns: tuple[Turn, ...]  # what to turn, the likeliest gain first

    def __str__(self) -> str:
        return f"{self.name}: {self.measured}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderKnobs:
    """What a loader is set to; None where it has no such setting."""

    batch_size: int | None = None
    num_workers: int | None = None  # reader threads, or worker processes of a stock `DataLoader`
    prefetch_factor: int | None = None  # batches ahead
    window_rows: int | None = None  # rows that are shuffled with one another
    first_window_rows: int | None = None  # those of an epoch's first window
    pin_memory: bool | None = None  # as in `DataLoader`
    batch_transform: str | None = None  # the name of the function that runs for each batch
    collate_fn: str | None = None  # the name of the function that runs for each sample
    filters: str = ""  # how the field with the most bytes is compressed; empty if it is not, or if that is not known
    via_h5py: str = ""  # why a field is read through h5py; empty if none is

    @classmethod
    def of(cls, loader: Any) -> LoaderKnobs:
        """Read the settings of a loader; any object will do."""
        batch_size, window = whole_number(getattr(loader, "batch_size", None)), getattr(loader, "window_size", None)
        if batch_size is None:
            batch_size = whole_number(getattr(getattr(loader, "batch_sampler", None), "batch_size", None))
        layout = getattr(getattr(loader, "dataset", None), "layout", None)
        parts = [parts[0] for parts in getattr(layout, "datasets", ())]
        decoded = [part for part in parts if part.access == DECODED]
        widest = max(decoded, key=lambda part: part.stored_row_nbytes, default=None)
        names = {
            key: getattr(function, "__name__", type(function).__name__)
            for key in ("batch_transform", "collate_fn")
            if (function := getattr(loader, key, None)) is not None
        }
        # A stock DataLoader always has a collate_fn: torch's own is nothing that its user could leave out.
        if names.get("collate_fn") in ("default_collate", "default_convert"):
            del names["collate_fn"]
        return cls(
            batch_size=batch_size,
            num_workers=whole_number(getattr(loader, "num_workers", None)),
            prefetch_factor=whole_number(getattr(loader, "prefetch_factor", None)),
            window_rows=whole_number(getattr(window, "window_rows", None)),
            first_window_rows=whole_number(getattr(window, "first_window_rows", None)),
            pin_memory=getattr(loader, "pin_memory", None),
            filters=widest.pipeline.describe() if widest is not None else "",
            via_h5py=next((f"{part.path}: {part.reason}" for part in parts if part.access == VIA_H5PY), ""),
            **names,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Suggestion):
    """What limits a training loop.

    Attributes
    ----------
    data_s, step_s, together_s : float
        Seconds a batch: of the loader alone, of the step alone on a batch that is there already, which is the ceiling,
        and of both together.
    waiting_share : float
        Share of the loop's time that went into waiting for data, 0 to 1. Under 0.05: not input-bound. Over
        0.2: strongly.
    ceiling_share : float
        How much of the ceiling the loop reaches, 0 to 1; of an accelerator, the share of time that it could
        work. Under 0.9 something is left to gain.
    gpu_ratio : float or None
        Utilisation that the driver measured during the loop, 0 to 1; None without a GPU.
    limit : Limit
        What limits, with its measured rate.
    turns : tuple of Turn
        What to turn next, with `speedup` as the gain for the whole loop, capped by the ceiling.
    statistics : LoaderStatistics or None
        The loader's own, alone.
    """

    data_s: float
    step_s: float
    together_s: float
    waiting_share: float
    ceiling_share: float
    gpu_ratio: float | None
    limit: Limit
    turns: tuple[Turn, ...]
    statistics: LoaderStatistics | None


class _Runs(NamedTuple):
    """What was measured, and of which loader."""

    alone: Trial
    ceiling: Trial
    both: Trial
    knobs: LoaderKnobs

    @property
    def waiting(self) -> float:
        """Share of the loop's time spent waiting for data."""
        if self.both.on_device:
            # The host may wait while the device still has work queued, so only the device's own time counts.
            return max(0.0, 1.0 - self.ceiling.batch_s / self.both.batch_s)
        return self.both.waiting_share


def diagnose(
    loader: Any,
    step: Callable[[Any], object],
    *,
    seconds: float = TRIAL_S,
    probe_batch: bool = True,
    progress: Callable[[str, Trial], None] = lambda what, trial: None,
) -> Diagnosis:
    """Measure a loader and a training step, alone and together, and name what limits them.

    The step really runs: use a model that may be trained for some seconds, or a copy. The loader is iterated over; an
    `H5StreamLoader` has the same epoch number afterwards. Nothing else is changed.

    Parameters
    ----------
    loader : iterable
        An `H5StreamLoader`, or any other loader, of which the limits inside are then not known.
    step : callable
        Takes a batch and does what a training step does. Work that it queues on a GPU is waited for when times are
        taken, and not between steps.
    seconds : float, optional
        Time of each of the three runs, from the first batch on. A run takes at most one batch and one step longer.
    probe_batch : bool, optional
        Whether the step may be tried on half a batch, which shows whether the batch is too small for the step.
    progress : callable, optional
        Gets the name of each of the three runs and what it measured, as soon as it is over.

    Returns
    -------
    Diagnosis
        Prints as a verdict with its arithmetic.

    Raises
    ------
    OptionError
        If the loader gives nothing, or `seconds` is not positive.

    Examples
    --------
    >>> import time, torch
    >>> from torch.utils.data import DataLoader
    >>> found = diagnose(DataLoader(torch.zeros(64, 2), batch_size=8), lambda batch: time.sleep(0.01 * len(batch)),
    ...                  seconds=0.2)
    >>> found.waiting_share < 0.5  # the step takes the time, and not the data
    True
    """
    above_zero(seconds=seconds)
    with _epoch_put_back(loader):
        batch = first_batch(loader)
        alone = time_loop(loader, None, seconds)
        progress("loader alone", alone)
        ceiling = time_step(step, batch, seconds)
        progress("step alone", ceiling)
        with SystemMonitor(interval_s=max(MIN_INTERVAL_S, min(1.0, seconds / 10))) as monitor:
            both = time_loop(loader, step, seconds, step_s=ceiling.batch_s)
        progress("both", both)
    runs = _Runs(alone, ceiling, both, LoaderKnobs.of(loader))
    if runs.waiting >= NOT_WAITING:
        limit = _data_limit(runs)
    else:
        limit = _step_limit(runs, step, batch if probe_batch else None, seconds)
    return _verdict(runs, limit, gpu_ratio(monitor.summary()))


@contextlib.contextmanager
def _epoch_put_back(loader: Any) -> Iterator[None]:
    """Leave the loader's count of epochs as it was: the next one is to be shuffled as it would have been."""
    cursor = loader._cursor if isinstance(loader, H5StreamLoader) else None
    position = cursor.position if cursor is not None else None
    try:
        yield
    finally:
        if cursor is not None and position is not None:
            cursor.position = position  # not `set_epoch`, which would move the user's own sampler


def _data_limit(runs: _Runs) -> Limit:
    knobs, trial = runs.knobs, runs.alone if runs.alone.statistics is not None else runs.both
    if trial.statistics is not None:
        return data_limit(trial.statistics, knobs, cpus=allowance.cpus(), rows_ahead=_rows_ahead(trial, knobs))
    more = str(max(2 * (knobs.num_workers or 0), allowance.cpus()))
    turn = Turn("num_workers", told(knobs.num_workers, "{}"), more, "more batches are made at a time")
    return Limit(PYTHON, f"{1e3 * runs.alone.batch_s:.1f} ms a batch; this loader keeps no statistics", (turn,))


def _rows_ahead(trial: Trial, knobs: LoaderKnobs) -> int:
    """Return how many rows at most had been read, and were not taken, when a run was cut off: those of two windows."""
    left = -trial.batches % trial.epoch_batches if trial.epoch_batches else 0
    return min(2 * (knobs.window_rows or 0), left * (knobs.batch_size or 0))


def _step_limit(runs: _Runs, step: Step, batch: Any, seconds: float) -> Limit:
    """Tell a step that computes from one that is launched: half the rows should take half the time."""
    rows, whole_s = 0 if batch is None else rows_of(batch) or 0, runs.ceiling.batch_s
    plain = Limit(STEP, f"{1e3 * whole_s:.2f} ms a batch", step_turns(runs.knobs))
    half = first_rows(batch, rows // 2) if rows > 1 else None
    if half is None:
        return plain
    try:
        half_s = time_step(step, half, seconds / 5).batch_s
    except Exception:  # a step may insist on its batch size, in whatever way it likes
        return plain
    # step_s = fixed + rows * each, and the same for half the rows.
    share = min(whole_s, max(0.0, 2 * half_s - whole_s)) / whole_s
    measured = f"{1e3 * whole_s:.2f} ms for {rows} rows, {1e3 * half_s:.2f} ms for {rows // 2}"
    if share < FIXED_SHARE:
        return replace(plain, measured=measured)
    measured += f": {share:.0%} of a step does not depend on the rows"
    return Limit(BATCH_TOO_SMALL, measured, (larger_batch(runs.knobs, 2 / (2 - share)),))


def _verdict(runs: _Runs, limit: Limit, gpu_share: float | None) -> Diagnosis:
    alone, ceiling, both, waiting = runs.alone, runs.ceiling, runs.both, runs.waiting
    data_s, step_s, together_s = alone.batch_s, ceiling.batch_s, both.batch_s
    ceiling_share = min(1.0, step_s / together_s) if together_s else 0.0
    turns = limit.turns
    if limit.name not in (STEP, BATCH_TOO_SMALL):  # the gain of the loop is that of its part, which the step caps
        gains = (turn.speedup and max(1.0, together_s / max(step_s, data_s / turn.speedup, 1e-9)) for turn in turns)
        turns = tuple(replace(turn, speedup=gain) for turn, gain in zip(turns, gains, strict=True))
    bound = "not" if waiting < NOT_WAITING else "strongly" if waiting > WAITING else "somewhat"
    return Diagnosis(
        title="Diagnosis",
        answer=f"{bound} input-bound ({waiting:.1%} waiting); the limit is {limit}",
        arithmetic=(
            f"loader alone: {1e3 * data_s:.2f} ms a batch ({alone.rows_per_s:,.0f} rows/s, {alone.batches} batches)",
            f"step alone, on a batch that is there: {1e3 * step_s:.2f} ms ({ceiling.rows_per_s:,.0f} rows/s): the "
            "ceiling",
            f"both: {1e3 * together_s:.2f} ms a batch ({both.rows_per_s:,.0f} rows/s), {waiting:.1%} of it waiting "
            f"(under {NOT_WAITING:.0%}: not input-bound, over {WAITING:.0%}: strongly)",
            f"the first batch came after {1e3 * both.first_s:.0f} ms: once an epoch, and its part is counted",
            f"the loop reaches {ceiling_share:.0%} of the ceiling (aim: {ACCELERATOR_AIM:.0%}); "
            f"GPU utilisation {percent(gpu_share)}",
            *(f"next: {turn}{f'; up to {turn.speedup:.1f} times faster' if turn.speedup else ''}" for turn in turns),
        ),
        caveats=(*_caveats(runs),),
        data_s=data_s,
        step_s=step_s,
        together_s=together_s,
        waiting_share=waiting,
        ceiling_share=ceiling_share,
        gpu_ratio=gpu_share,
        limit=limit,
        turns=turns,
        statistics=alone.statistics,
    )


def _caveats(runs: _Runs) -> Iterator[str]:
    own_s = runs.both.batch_s * (1 - runs.waiting)
    if not runs.both.on_device and own_s > 1.3 * runs.ceiling.batch_s:
        yield (
            f"the step takes {1e3 * own_s:.2f} ms beside the loader: both compute on the same processors "
            "(fewer num_workers, or torch.set_num_threads)"
        )
    ahead, statistics = _rows_ahead(runs.alone, runs.knobs), runs.alone.statistics
    if statistics is not None and statistics.read_amplification is not None and ahead > statistics.rows / 10:
        yield (
            f"the loader's amplification of {statistics.read_amplification:.2f} counts what it had read ahead when it "
            f"was stopped, up to {ahead:,} rows beside {statistics.rows:,} taken: of the rows that were read it is "
            f"{least_amplification(statistics, ahead):.2f} or more"
        )


# --- what limits, by its name -----------------------------------------------------------------------------------


def least_amplification(statistics: LoaderStatistics, rows_ahead: int) -> float:
    """Return the bytes decoded for each byte used at the least: as if all rows that may be read ahead had been."""
    taken = statistics.rows / (statistics.rows + rows_ahead) if rows_ahead else 1.0
    return (statistics.read_amplification or 0.0) * taken


def data_limit(statistics: LoaderStatistics, knobs: LoaderKnobs, *, cpus: int, rows_ahead: int = 0) -> Limit:
    """Name what limits a loader that is waited for, of which at most `rows_ahead` rows were read and not taken."""
    if statistics.copy_busy > COPYING:
        rate = _rate(statistics.delivered_bytes, statistics.copy_s)
        turn = _turn("pin_memory", knobs.pin_memory)
        return Limit(COPY, f"{rate}; under way {statistics.copy_busy:.0%} of the time", (turn,))
    if statistics.transform_s > statistics.wait_s:
        has_functions = knobs.batch_transform is not None or knobs.collate_fn is not None
        return _python(statistics, knobs) if has_functions else _batch_overhead(statistics, knobs)
    if statistics.idle > IDLE:
        starts = 2 * (statistics.first_batch_s or 0.0) > statistics.wait_s
        return _start(statistics, knobs) if starts else _batch_overhead(statistics, knobs)
    return _readers(statistics, knobs, cpus, least_amplification(statistics, rows_ahead))


def loop_limit(statistics: LoaderStatistics, knobs: LoaderKnobs, *, cpus: int) -> Limit:
    """Name what limits a training loop: the data while it waits, else its step, or its batch."""
    if statistics.wait_share >= NOT_WAITING:
        return data_limit(statistics, knobs, cpus=cpus)
    own_s = statistics.elapsed_s - statistics.wait_s - statistics.transform_s
    step_s = own_s / max(1, statistics.batches)
    measured = f"{1e3 * step_s:.1f} ms a batch, {statistics.wait_share:.0%} of the time waiting for data"
    if step_s < SMALL_STEP_S:
        return Limit(BATCH_TOO_SMALL, measured, (larger_batch(knobs, None),))
    return Limit(STEP, measured, step_turns(knobs))


def step_turns(knobs: LoaderKnobs) -> tuple[Turn, ...]:
    """Return what to turn where the step is the limit."""
    return (_turn("precision", "as it is"), larger_batch(knobs, None))


def larger_batch(knobs: LoaderKnobs, speedup: float | None) -> Turn:
    """Return twice the batch as something to try; nothing here ever does it."""
    twice = None if knobs.batch_size is None else 2 * knobs.batch_size
    return _turn("batch_size", knobs.batch_size, speedup, twice)


# What is tried of each knob, where the numbers do not say it, and why.
_TURNS = {
    "precision": ("bf16 autocast, or torch.compile", "the loader has batches ready; only a faster step helps"),
    "batch_size": ("", "more work for each launch and each hand-over; yours to decide, it changes training"),
    "staging": ("h5stream stage FILE, on a local disk or tmpfs", "memory answers at once"),
    "order": ("shuffle=True without a sampler, or a larger window", "each chunk is then decoded once"),
    "filters": ("repack with lz4", f"a thread decodes {text_of_bytes(FAST_DECODE_BYTES_PER_S, '/s')} of it"),
    "storage of the field": (
        "repack it with an ordinary filter and type",
        "threads do not help: h5py's lock lets one in at a time",
    ),
    "collate_fn": ("leave it out; batch_transform= gets whole batches", "samples are taken apart one by one for it"),
    "batch_transform": (
        "work on whole tensors, or on the GPU inside the step",
        "it runs in the thread that asks for the batch",
    ),
    "chunks": ("repack with larger chunks", "fewer places to look up"),
    "window": ("", "fewer rows are sorted at a time, in cache; it mixes less, `h5stream tune` measures it"),
    "pin_memory": (
        "True, and casts on the GPU rather than before the copy",
        "pinned memory is copied at the bus's rate, and fewer bytes sooner",
    ),
    "epochs": (
        "several of one loader, without sampler=",
        "the first window of the next one is then read during the one before",
    ),
}


def _turn(knob: str, present: object, speedup: float | None = None, try_next: object = "", why: str = "") -> Turn:
    to_try, reason = _TURNS.get(knob, ("", ""))
    said, tried = (NA if value is None else str(value) for value in (present, try_next))
    return Turn(knob, said, tried or to_try, why or reason, speedup)


def _rate(nbytes: int, seconds: float) -> str:
    return text_of_bytes(nbytes / seconds if seconds else None, "/s")


def _without(share: float) -> float:
    """Return how many times faster it gets if that share of the work is gone."""
    return 1.0 / max(1.0 - share, 0.01)


def _readers(statistics: LoaderStatistics, knobs: LoaderKnobs, cpus: int, torn: float) -> Limit:
    """Name the part of the readers' work that takes longest, with its rate; `torn` bytes are decoded for one used."""
    took = {
        STORAGE: statistics.read_s,
        DECODE: statistics.decode_s,
        SCATTER: statistics.scatter_s,
        H5PY: statistics.h5py_s,
        PLANNING: statistics.plan_s,
    }
    name = max(took, key=lambda part: took[part])
    share, threads, turns = took[name] / max(1e-9, sum(took.values())), statistics.threads, list[Turn]()
    if name == DECODE and torn > TORN:
        turns.append(_turn("order", f"{torn:.1f} bytes decoded for each one used", torn))
    # Unless the loader may have more threads already, and starts fewer.
    wanted = {STORAGE: 2 * threads, DECODE: cpus, SCATTER: cpus}.get(name, 0)
    if wanted > max(threads, knobs.num_workers or 0):
        why = "reads that wait can wait together" if name == STORAGE else f"{cpus} processors are allowed"
        turns.append(_turn("num_workers", knobs.num_workers, wanted / threads, wanted, why))
    if name == STORAGE:
        each = text_of_bytes(statistics.read_bytes / max(1, statistics.reads))
        rate = f"{text_of_bytes(statistics.read_bytes_per_s, '/s')} a thread in reads of {each}"
        turns.append(_turn("staging", "the files where they are", _without(share)))
    elif name == DECODE:
        decoded = statistics.decode_bytes_per_s
        rate = f"{text_of_bytes(decoded, '/s')} a thread ({knobs.filters or 'its filters'}, {threads} of them)"
        if decoded is not None and decoded < FAST_DECODE_BYTES_PER_S:
            gain = _without(share * (1 - decoded / FAST_DECODE_BYTES_PER_S))
            turns.append(_turn("filters", knobs.filters or "as written", gain))
    elif name == SCATTER:
        rate = f"{_rate(statistics.delivered_bytes, statistics.scatter_s)} a thread"
        turns.append(Turn("chunks", "as written", "repack with chunks of whole rows", "rows then move in one piece"))
    elif name == H5PY:
        rate = f"{_rate(statistics.h5py_bytes, statistics.h5py_s)} under its lock"
        turns.append(_turn("storage of the field", knobs.via_h5py or "read through h5py"))
    else:
        rate = f"{1e9 * statistics.plan_s / max(1, statistics.rows):.0f} ns a row"
        chunk_rows, rows = statistics.rows / max(1, statistics.chunks), knobs.window_rows
        turn = _turn("window", rows, None, None if rows is None else max(1, rows // 4))
        if chunk_rows <= ROWS_OF_A_CHUNK:
            turn = _turn("chunks", f"{chunk_rows:.0f} rows each")
        turns.append(turn)
    return Limit(name, f"{rate}; {share:.0%} of the readers' work", tuple(turns))


def _python(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    spent_s = statistics.transform_s + statistics.wait_s
    gain = spent_s / max(statistics.wait_s, 1e-9)
    functions = {"collate_fn": knobs.collate_fn, "batch_transform": knobs.batch_transform}
    measured = (
        f"{1e3 * statistics.transform_s / max(1, statistics.batches):.1f} ms a batch in batch_transform and "
        f"collate_fn; {statistics.transform_s / spent_s:.0%} of the time to a batch"
    )
    return Limit(PYTHON, measured, tuple(_turn(knob, name, gain) for knob, name in functions.items() if name))


def _start(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    """Name the start of the epoch, and what brings the first batch sooner, of that only what is not so already."""
    first_s, turns = statistics.first_batch_s or 0.0, []
    share = first_s / max(statistics.elapsed_s, 1e-9)
    speedup = _without(share)
    first_rows = knobs.window_rows if knobs.first_window_rows is None else knobs.first_window_rows
    fewer = max(knobs.batch_size or 1, (first_rows or 0) // 4)
    if first_rows is not None and fewer < first_rows:
        present = f"{NA if knobs.window_rows is None else knobs.window_rows}, the first {first_rows}"
        why = "batches come when the first window is read; fewer rows mix less"
        turns.append(_turn("window", present, speedup, fewer, why))
    if knobs.num_workers == 0:
        why = "an epoch's first window is then read during the epoch before"
        turns.append(_turn("num_workers", 0, speedup, "1 or more", why))
    measured = f"{1e3 * first_s:.0f} ms until first batches, {share:.0%} of the time"
    return Limit(START, measured, tuple(turns) or (_turn("epochs", "each starts anew", speedup),))


def _batch_overhead(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    spent_s, batches = statistics.wait_s + statistics.transform_s, max(1, statistics.batches)
    measured = (
        f"{1e6 * spent_s / batches:.0f} us to hand over a batch of {statistics.rows / batches:,.0f} rows; the readers "
        f"idle {statistics.idle:.0%} of the time"
    )
    return Limit(BATCH_TOO_SMALL, measured, (larger_batch(knobs, 2.0),))


# --- short measured runs: a loader alone, a step alone, both together -------------------------------------------


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
    count = operator.length_hint(loader, -1)  # of an iterable, or a DataLoader over one, `len` raises
    return None if count < 0 else count


def gpu_ratio(machine: SystemSummary | None, device: int = 0) -> float | None:
    """Return the mean utilisation of a GPU; None where it is not known."""
    spread = machine.gpus[device].utilization_ratio if machine is not None and device < len(machine.gpus) else None
    return spread.mean if spread is not None else None


class Comparison(NamedTuple):
    """Runs of two settings that took turns."""

    gain: float  # how many times faster the one is than the other: their median runs
    spread: float  # share by which two runs of one setting typically differ: high where something else uses the machine
    is_faster: bool  # whether beyond the noise: by more than runs of one setting differ, and not by chance


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare the rates of two settings, run in turns, by the exact rank-sum test of Mann and Whitney."""
    upsets = sum(theirs_run >= our_run for our_run in ours for theirs_run in theirs)
    orders = _upsets_of_orders(len(ours), len(theirs))
    gain = median(ours) / max(1e-9, median(theirs))
    spread = max(spread_of(ours), spread_of(theirs))
    chance = sum(one <= upsets for one in orders) / len(orders)
    return Comparison(gain, spread, gain > 1.0 + max(LEAST_GAIN, spread) and chance <= CHANCE)


def spread_of(runs: Sequence[float]) -> float:
    """Return the share by which two runs of one setting typically differ: the median of all pairs of them."""
    pairs = [1 - min(a, b) / max(a, b) for a, b in itertools.combinations(runs, 2) if max(a, b) > 0]
    return median(pairs) if pairs else 0.0


@functools.cache
def _upsets_of_orders(ours: int, theirs: int) -> tuple[int, ...]:
    orders = itertools.combinations(range(ours + theirs), ours)
    return tuple(sum(place - k for k, place in enumerate(places)) for places in orders)
