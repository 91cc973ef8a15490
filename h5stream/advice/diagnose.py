"""`diagnose`: data or step? Three short runs name the limiting part, and the next setting to change.

The limiting part of a loader follows from its settings and statistics alone; `track` and `tune` use `Trial` too.
"""

from __future__ import annotations

import contextlib
import enum
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from h5stream.advice import NOT_WAITING, WAITING, Suggestion, Turn, above_zero
from h5stream.advice.loaders import LoaderKnobs, ReaderRoom, length_of, lists_of_fields, statistics_of, unit_of
from h5stream.base import limits
from h5stream.base.texts import NA, counted, or_na, percent, text_of_bytes
from h5stream.device.facts import synchronize
from h5stream.engine.footprint import SCRATCH_SHARE
from h5stream.engine.statistics import LoaderStatistics, combined
from h5stream.errors import OptionError
from h5stream.loader.loader import H5StreamLoader
from h5stream.monitor import SystemSummary
from h5stream.monitor.system import MIN_INTERVAL_S, SystemMonitor
from h5stream.structure import first_rows, rows_of

BatchT = TypeVar("BatchT")

TRIAL_S = 5.0  # seconds of each of the three runs
ACCELERATOR_AIM = 0.90  # share of the ceiling that a loop should reach; the rest is paid for but unused
FIXED_SHARE = 0.6  # share of a step independent of the rows above which the batch is too small

STORAGE, DECODE, SCATTER, COPY, H5PY = "storage", "decode", "scatter", "copy", "h5py"
PYTHON, PLANNING, START = "Python", "planning", "start of the epoch"
BATCH_TOO_SMALL, STEP = "batch too small", "step"

# Decoding rate of one thread for lz4 on the 2-core reference machine , as for a repacked file.
FAST_DECODE_BYTES_PER_S = 1.8e9
TORN = 1.5  # bytes decoded per byte used above which the order should change, not the filter
IDLE = 0.6  # share of idle time above which readers cannot be the limit
SMALL_STEP_S = 2e-3  # duration of a step below which launching dominates: some hundred kernels of 5 to 10 us
ROWS_OF_A_CHUNK = 64  # rows per chunk above which planning is mostly shuffling rows, and below which looking up chunks
COPYING = 0.8  # share of the time with a copy in progress above which the bus is the limit


@dataclass(frozen=True, slots=True)
class Limit:
    """The part that all others wait for."""

    name: str  # one of the names above
    measured: str  # its rate or share, as measured
    turns: tuple[Turn, ...]  # settings to change, the likeliest gain first

    def __str__(self) -> str:
        return f"{self.name}: {self.measured}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Suggestion):
    """The limiting part of a training loop.

    Attributes
    ----------
    data_s, step_s, together_s : float
        Seconds per batch: of the loader alone, of the step alone on a single batch, which is the ceiling, and of both
        together.
    first_waiting_share : float
        Share of the loop's time spent waiting for data in its first epoch, 0 to 1. Below 0.05: not input-bound.
        Above 0.2: strongly.
    waiting_share : float
        The same for later epochs, which reuse what stays in memory; for the first if no later one was measured.
    ceiling_share : float
        The share of the ceiling that the loop reaches, 0 to 1. Below 0.9 there is something to gain.
    gpu_ratio : float or None
        Utilisation that the driver measured during the loop, 0 to 1; None without a GPU.
    limit : Limit
        The limiting part: its `name`, its rate or share as `measured`, and the `turns` that concern it.
    turns : tuple of Turn
        Settings to change next: `knob`, its value at `present`, what to `try_next`, `why`, and `speedup`, the gain for
        the loop while it waits for data, capped by the ceiling; or for the ceiling, if the loop does not wait. Empty if
        the loop waits, but reaches 0.9 of the ceiling.
    statistics : LoaderStatistics or None
        The loader's own, alone.
    """

    data_s: float
    step_s: float
    together_s: float
    first_waiting_share: float
    waiting_share: float
    ceiling_share: float
    gpu_ratio: float | None
    limit: Limit
    turns: tuple[Turn, ...]
    statistics: LoaderStatistics | None


def diagnose(
    loader: Iterable[BatchT],
    step: Callable[[BatchT], object],
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
    >>> diagnosis = diagnose(DataLoader(torch.zeros(64, 2), batch_size=8), lambda batch: time.sleep(0.01 * len(batch)),
    ...                  seconds=0.2)
    >>> diagnosis.waiting_share < 0.5  # the step takes the time, and not the data
    True
    """
    return measure(loader, step, seconds, probe_batch=probe_batch, progress=progress)


def measure(
    loader: Iterable[BatchT],
    step: Callable[[BatchT], object],
    seconds: float,
    *,
    probe_batch: bool = True,
    is_pause: bool = False,
    progress: Callable[[str, Trial], None] = lambda what, trial: None,
) -> Diagnosis:
    """Measure the three runs of `diagnose`; `is_pause` marks a step that is only a placeholder."""
    above_zero(seconds=seconds)
    with _epoch_put_back(loader):
        first = Trial(unit=unit_of(loader))
        with contextlib.closing(first.batches_of(loader)) as batches:
            if (batch := next(batches, _End.END)) is _End.END:
                raise OptionError("the loader gives no batch, so there is nothing to measure")
        _forget_kept(loader)
        progress("loader alone", alone := time_loop(loader, None, seconds))
        ceiling = time_step(step, batch, seconds)
        ceiling.rows, ceiling.unit = ceiling.batches * first.rows, first.unit
        progress("step alone", ceiling)
        _forget_kept(loader)
        with SystemMonitor(interval_s=max(MIN_INTERVAL_S, min(1.0, seconds / 10))) as monitor:
            both = time_loop(loader, step, seconds, step_s=ceiling.batch_s)
        progress("both", both)
    knobs, parts = LoaderKnobs.of(loader), [_Part(one, waiting_of(one, ceiling)) for one in both.parts]
    gaining = _gaining(parts, ceiling.batch_s)
    # Of the same epochs: only the first waits for data that later ones have in memory.
    waited = alone.parts[gaining] if gaining is not None and gaining < len(alone.parts) else alone
    is_fed = gaining is None
    if is_fed and is_pause:
        limit = Limit(STEP, f"{1e3 * ceiling.batch_s:.2f} ms a batch, a pause in its place", ())
    elif is_fed:
        rows = first.rows if probe_batch else 0
        half = first_rows(batch, rows // 2, lists_of_fields(loader)) if rows > 1 else None
        limit = _step_limit(step, ceiling, rows, half, knobs, seconds)
    elif waited.statistics is not None:
        ahead = _rows_ahead(waited, knobs)
        limit = data_limit(waited.statistics, knobs, cpus=limits.cpus(), rows_ahead=ahead)
    else:
        more = max(2 * (knobs.num_workers or 0), limits.cpus())
        turn = _turn("num_workers", knobs.num_workers, None, more, "more batches are made at a time")
        limit = Limit(PYTHON, f"{1e3 * waited.batch_s:.1f} ms a batch; this loader keeps no statistics", (turn,))
    turns = limit.turns
    if gaining is not None:
        turns = tuple(_reachable(turns, waited.batch_s, ceiling.batch_s, parts[gaining].trial.batch_s))
    caveats = tuple(_caveats(alone, ceiling, parts[-1], _rows_ahead(alone, knobs), turns, is_pause=is_pause))
    return _verdict(alone, ceiling, parts, limit, turns, caveats, gpu_ratio(monitor.summary()))


@dataclass(frozen=True, slots=True)
class _Part:
    """The loop's first epoch, or its later ones, and the share of time spent waiting."""

    trial: Trial
    waiting: float


def _gaining(parts: Sequence[_Part], step_s: float) -> int | None:
    """Return which part waits for data, the last one, and rather one that is not near the ceiling; None if none is."""
    waiting = [number for number, part in enumerate(parts) if part.waiting >= NOT_WAITING]
    below = [number for number in waiting if step_s < ACCELERATOR_AIM * parts[number].trial.batch_s]
    return next(reversed(below or waiting), None)


def waiting_of(both: Trial, ceiling: Trial) -> float:
    """Return the share of a loop's time spent waiting for data."""
    if both.on_device:  # the host may wait while the device still has work queued, so only the device's own time counts
        return max(0.0, 1.0 - ceiling.batch_s / both.batch_s)
    return both.waiting_share


def _rows_ahead(alone: Trial, knobs: LoaderKnobs) -> int:
    """Return the most rows that were read but not taken when a run was cut off: those of two windows."""
    remaining = -alone.batches % alone.epoch_batches if alone.epoch_batches else 0
    return min(2 * (knobs.window_rows or 0), remaining * (knobs.batch_size or 0))


def _forget_kept(loader: object) -> None:
    """Free the rows kept in memory, so that a run begins like training; other loaders keep theirs."""
    if isinstance(loader, H5StreamLoader):
        loader.trim()


@contextlib.contextmanager
def _epoch_put_back(loader: object) -> Iterator[None]:
    """Restore the loader's epoch afterwards, so that the next epoch is shuffled as without the measurement."""
    if not isinstance(loader, H5StreamLoader):
        yield
        return
    position = loader._cursor.position
    try:
        yield
    finally:
        loader._cursor.position = position  # not `set_epoch`, which would move the user's own sampler


def _step_limit(
    step: Callable[[BatchT], object], ceiling: Trial, rows: int, half: BatchT | None, knobs: LoaderKnobs, seconds: float
) -> Limit:
    """Tell a step limited by computation from one limited by launching: half the rows should take half the time."""
    whole_s = ceiling.batch_s
    plain = Limit(STEP, f"{1e3 * whole_s:.2f} ms a batch", _step_turns())
    if half is None:
        return plain
    try:
        half_s = time_step(step, half, seconds / 5).batch_s
    except Exception:  # a step may insist on its batch size, in whatever way it likes
        return plain
    # step_s = fixed + rows * each, and the same for half the rows.
    share = min(whole_s, max(0.0, 2 * half_s - whole_s)) / whole_s
    measured = f"{1e3 * whole_s:.2f} ms for {counted(rows, knobs.unit)}, {1e3 * half_s:.2f} ms for {rows // 2:,}"
    if share < FIXED_SHARE:
        return replace(plain, measured=measured)
    measured += f": {share:.0%} of a step does not depend on the {knobs.unit}s"
    return Limit(BATCH_TOO_SMALL, measured, _larger_batch(knobs, 2 / (2 - share)))


def _verdict(
    alone: Trial,
    ceiling: Trial,
    parts: Sequence[_Part],
    limit: Limit,
    turns: tuple[Turn, ...],
    caveats: tuple[str, ...],
    gpu_share: float | None,
) -> Diagnosis:
    both, first_waiting, waiting = parts[-1].trial, parts[0].waiting, parts[-1].waiting
    gaining = _gaining(parts, ceiling.batch_s)
    is_fed, where = gaining is None, " in the first epoch" * (gaining == 0 and len(parts) > 1)
    data_s, step_s, together_s = alone.batch_s, ceiling.batch_s, both.batch_s
    ceiling_share = min(1.0, step_s / together_s) if together_s else 0.0
    raised = "the ceiling rises, " if is_fed else f"{where} ".lstrip()
    return Diagnosis(
        title="Diagnosis",
        answer=f"{_answer(parts)}; the limit{where} is {limit}",
        arithmetic=(
            f"loader alone: {alone} ({counted(alone.batches, 'batch', 'batches')}){_first_of(alone)}",
            f"step alone, on a batch that is there: {ceiling}: the ceiling",
            *_loop_lines(parts),
            f"the loop's first batch came after {1e3 * (parts[0].trial.first_s or 0.0):.0f} ms: its part is counted",
            f"the loop reaches {ceiling_share:.0%} of the ceiling{' in later epochs' * (len(parts) > 1)} (aim: "
            f"{ACCELERATOR_AIM:.0%}); GPU utilization {percent(gpu_share)}",
            *(f"next: {turn}{_gain(turn, raised)}" for turn in turns),
            *["next: nothing, no setting of the loader makes the loop much faster"] * (not turns and not is_fed),
        ),
        caveats=caveats,
        data_s=data_s,
        step_s=step_s,
        together_s=together_s,
        first_waiting_share=first_waiting,
        waiting_share=waiting,
        ceiling_share=ceiling_share,
        gpu_ratio=gpu_share,
        limit=limit,
        turns=turns,
        statistics=alone.statistics,
    )


def _reachable(turns: Sequence[Turn], alone_s: float, step_s: float, both_s: float) -> Iterator[Turn]:
    """Yield the changes worth trying, with gains up to the ceiling; times are of a batch."""
    for turn in turns if step_s < ACCELERATOR_AIM * both_s else ():
        gain = turn.speedup and min(turn.speedup, both_s / max(step_s, alone_s / turn.speedup, 1e-9))
        if gain is None or round(gain, 1) > 1:
            yield replace(turn, speedup=gain)


def _bound(waiting: float) -> str:
    return "not" if waiting < NOT_WAITING else "strongly" if waiting > WAITING else "somewhat"


def _answer(parts: Sequence[_Part]) -> str:
    """Return whether the loop waits for data, separately for first and later epochs if they differ."""
    first, last = parts[0].waiting, parts[-1].waiting
    if _bound(first) == _bound(last):
        return f"{_bound(last)} input-bound ({last:.1%} waiting)"
    return (
        f"the first epoch is {_bound(first)} input-bound ({first:.1%} waiting), later ones are {_bound(last)} so "
        f"({last:.1%})"
    )


def _first_of(alone: Trial) -> str:
    """Return the time of a batch in the first epoch, if later ones were measured too."""
    return f"; {1e3 * alone.parts[0].batch_s:.2f} ms in its first epoch" if len(alone.parts) > 1 else ""


def _loop_lines(parts: Sequence[_Part]) -> Iterator[str]:
    rule = f"under {NOT_WAITING:.0%}: not input-bound, over {WAITING:.0%}: strongly"
    for name, (part, is_last) in zip(
        ("first epoch", "later epochs"), zip(parts, (False, True), strict=False), strict=False
    ):
        waits = f"{part.trial}, {part.waiting:.1%} of it waiting"
        yield f"both, {name}: {waits}" + f" ({rule})" * (is_last or len(parts) == 1)
    if len(parts) == 1:
        yield "later epochs were not measured: the first took all of the time"


def _gain(turn: Turn, raised: str) -> str:
    """Return what a change is expected to gain, computed from measurements but not measured itself."""
    if not turn.speedup:
        return f"; {raised.rstrip(', ')}" * bool(raised)
    what = "as many rows a second" if turn.knob == "batch_size" else "as fast"
    return f"; {raised}at most {turn.speedup:.1f} times {what}, computed"


def _caveats(
    alone: Trial, ceiling: Trial, both: _Part, ahead: int, turns: Sequence[Turn], *, is_pause: bool
) -> Iterator[str]:
    own_s, statistics = both.trial.batch_s * (1 - both.waiting), alone.statistics
    if not both.trial.on_device and own_s > 1.3 * ceiling.batch_s:
        wants_threads = any(turn.knob in ("num_workers", "memory_budget") for turn in turns)
        advice = "more threads gain less than computed" if wants_threads else "fewer num_workers"
        yield (
            f"the pause takes {1e3 * own_s:.2f} ms beside the loader, whose threads and the loop share the processors"
            if is_pause
            else f"the step takes {1e3 * own_s:.2f} ms beside the loader: both compute on the same processors "
            f"({advice}, or torch.set_num_threads)"
        )
    # Of rows that were in memory there is no amplification to explain.
    if statistics is not None and (statistics.read_amplification or 0.0) > 1 and ahead > statistics.rows / 10:
        least = _least_amplification(statistics, ahead)
        yield (
            f"the loader's amplification of {statistics.read_amplification:.2f} counts what it had read ahead when it "
            f"was stopped, up to {counted(ahead, alone.unit)} beside {statistics.rows:,} taken: of the {alone.unit}s "
            f"that were read it is {least:.2f} or more"
        )


# --- naming the limit -------------------------------------------------------------------------------------------


def _least_amplification(statistics: LoaderStatistics, rows_ahead: int) -> float:
    """Return the decoded bytes per used byte, as if all rows that may have been read ahead had been: a lower bound."""
    return (statistics.read_amplification or 0.0) * statistics.rows / max(1, statistics.rows + rows_ahead)


def data_limit(statistics: LoaderStatistics, knobs: LoaderKnobs, *, cpus: int, rows_ahead: int = 0) -> Limit:
    """Name the limiting part of a loader that the loop waits for; up to `rows_ahead` rows were read but not taken."""
    batches, spent_s = max(1, statistics.batches), statistics.wait_s + statistics.transform_s
    if statistics.copy_busy > COPYING:
        rate = _rate(statistics.delivered_bytes, statistics.copy_s)
        is_pinned = "as it is, with casts on the GPU rather than before the copy" if knobs.pin_memory else ""
        turn = _turn("pin_memory", knobs.pin_memory, None, is_pinned)
        return Limit(COPY, f"{rate}; under way {statistics.copy_busy:.0%} of the time", (turn,))
    functions = {"collate_fn": knobs.collate_fn, "batch_transform": knobs.batch_transform}
    if statistics.transform_s > statistics.wait_s and any(functions.values()):
        gain = spent_s / max(statistics.wait_s, 1e-9)
        measured = (
            f"{1e3 * statistics.transform_s / batches:.1f} ms a batch in batch_transform and collate_fn; "
            f"{statistics.transform_s / spent_s:.0%} of the time to a batch"
        )
        return Limit(PYTHON, measured, tuple(_turn(knob, name, gain) for knob, name in functions.items() if name))
    if statistics.transform_s <= statistics.wait_s:
        if statistics.idle <= IDLE:
            return _readers(statistics, knobs, cpus, rows_ahead)
        if 2 * statistics.epochs * (statistics.first_batch_s or 0.0) > statistics.wait_s:
            return _start(statistics, knobs)
    batch = counted(round(statistics.rows / batches), knobs.unit)
    measured = (
        f"{1e6 * spent_s / batches:.0f} us to hand over a batch of {batch}; "
        f"the readers idle {statistics.idle:.0%} of the time"
    )
    return Limit(BATCH_TOO_SMALL, measured, _larger_batch(knobs, 2.0))


def loop_limit(statistics: LoaderStatistics, knobs: LoaderKnobs, *, cpus: int) -> Limit:
    """Name the limiting part of a training loop: the data while it waits, else its step, or its batch."""
    if statistics.wait_share >= NOT_WAITING:
        return data_limit(statistics, knobs, cpus=cpus)
    own_s = statistics.elapsed_s - statistics.wait_s - statistics.transform_s
    step_s = own_s / max(1, statistics.batches)
    measured = f"{1e3 * step_s:.1f} ms a batch, {statistics.wait_share:.0%} of the time waiting for data"
    if step_s < SMALL_STEP_S:
        return Limit(BATCH_TOO_SMALL, measured, _larger_batch(knobs))
    return Limit(STEP, measured, _step_turns())


def _step_turns() -> tuple[Turn, ...]:
    return (_turn("step", "as it is"),)


def _larger_batch(knobs: LoaderKnobs, speedup: float | None = None) -> tuple[Turn, ...]:
    """Return the advice to double the batch, which is never applied automatically; none if it holds all rows."""
    if knobs.epoch_batches == 1:
        return ()
    return (_turn("batch_size", knobs.batch_size, speedup, 2 * knobs.batch_size if knobs.batch_size else ""),)


# The change to try for each setting, unless it is computed, and the reason.
_TURNS = {
    "step": ("a faster one, which nothing here has tried", "the loader has batches ready; only a faster step helps"),
    "batch_size": (
        "twice as many rows",
        "fewer launches and hand-overs for as many rows; yours to decide, it changes training",
    ),
    "staging": ('stage_to="/dev/shm/h5stream", or a folder on a local disk', "memory answers at once"),
    "order": ("shuffle=True without a sampler, or a larger window", "each chunk is then decoded once"),
    "filters": ("repack with lz4", f"a thread decodes {text_of_bytes(FAST_DECODE_BYTES_PER_S, '/s')} of it"),
    "storage of the field": ("repack it with an ordinary filter and type", "h5py's lock lets one thread in at a time"),
    "collate_fn": ("leave it out; batch_transform= gets whole batches", "samples are taken apart one by one for it"),
    "batch_transform": (
        "work on whole tensors, or on the GPU inside the step",
        "it runs in the thread that asks for the batch",
    ),
    "chunks": ("repack with larger chunks", "fewer places to look up"),
    "window": (
        "a quarter of its rows",
        "fewer rows are sorted at a time, in cache; it mixes less, `h5stream tune` measures it",
    ),
    "pin_memory": (
        "True, and casts on the GPU rather than before the copy",
        "pinned memory is copied at the bus's rate, and fewer bytes sooner",
    ),
    "epochs": ("several of one loader, without sampler=", "their first windows are read during the epoch before"),
}


def _turn(knob: str, present: object, speedup: float | None = None, try_next: object = "", why: str = "") -> Turn:
    to_try, reason = _TURNS.get(knob, ("", ""))
    shown, tried = (NA if value is None else str(value) for value in (present, try_next))
    return Turn(knob, shown, tried or to_try, why or reason, speedup)


def _rate(nbytes: int, seconds: float) -> str:
    return text_of_bytes(nbytes / seconds if seconds else None, "/s")


def _without(share: float) -> float:
    """Return the speedup if that share of the work is removed."""
    return 1.0 / max(1.0 - share, 0.01)


def _readers(statistics: LoaderStatistics, knobs: LoaderKnobs, cpus: int, rows_ahead: int) -> Limit:
    """Name the part of the readers' work that takes longest, with its rate."""
    read_size, decoded = text_of_bytes(statistics.read_bytes / max(1, statistics.reads)), statistics.decode_bytes_per_s
    work = {
        STORAGE: (
            statistics.read_s,
            f"{text_of_bytes(statistics.read_bytes_per_s, '/s')} a thread in reads of {read_size}",
        ),
        DECODE: (
            statistics.decode_s,
            f"{text_of_bytes(decoded, '/s')} a thread ({knobs.filters or 'its filters'}, {statistics.threads} of them)",
        ),
        SCATTER: (statistics.scatter_s, f"{_rate(statistics.delivered_bytes, statistics.scatter_s)} a thread"),
        H5PY: (statistics.h5py_s, f"{_rate(statistics.h5py_bytes, statistics.h5py_s)} under its lock"),
        PLANNING: (statistics.plan_s, f"{1e9 * statistics.plan_s / max(1, statistics.rows):,.0f} ns a {knobs.unit}"),
    }
    name = max(work, key=lambda part: work[part][0])
    share = work[name][0] / max(1e-9, sum(seconds for seconds, _ in work.values()))
    turns = tuple(_reader_turns(name, share, statistics, knobs, cpus, rows_ahead))
    return Limit(name, f"{work[name][1]}; {share:.0%} of the readers' work", turns)


def _reader_turns(
    name: str, share: float, statistics: LoaderStatistics, knobs: LoaderKnobs, cpus: int, rows_ahead: int
) -> Iterator[Turn]:
    threads, decoded = statistics.threads, statistics.decode_bytes_per_s
    torn = _least_amplification(statistics, rows_ahead)
    if name == DECODE and torn > TORN:
        yield _turn("order", f"{torn:.1f} bytes decoded for each one used", torn)
    # Not if the loader may already have more threads but starts fewer.
    wanted = {STORAGE: 2 * threads, DECODE: cpus, SCATTER: cpus}.get(name, 0)
    if wanted > (most := max(threads, knobs.num_workers or 0)):
        why = "reads that wait can wait together" if name == STORAGE else f"{cpus} processors are allowed"
        if knobs.room is None or knobs.room.most_threads > most:
            fitting = wanted if knobs.room is None else min(wanted, knobs.room.most_threads)
            yield _turn("num_workers", knobs.num_workers, fitting / threads, fitting, why)
        else:
            budget = f"{_budget_of(wanted, knobs.room)}, with num_workers={wanted}"
            why += f", and this one has room for {counted(most, 'thread')}"
            yield _turn("memory_budget", text_of_bytes(knobs.room.memory_budget), wanted / threads, budget, why)
    if name == STORAGE:
        yield _turn("staging", "the files where they are", _without(share))
    elif name == DECODE and decoded is not None and decoded < FAST_DECODE_BYTES_PER_S and "lz4" not in knobs.filters:
        gain = _without(share * (1 - decoded / FAST_DECODE_BYTES_PER_S))
        yield _turn("filters", knobs.filters or "as written", gain)
    elif name == SCATTER and knobs.has_narrow_chunks:
        yield Turn("chunks", "as written", "repack with chunks of whole rows", "rows then move in one piece")
    elif name == H5PY:
        yield _turn("storage of the field", knobs.via_h5py or "read through h5py")
    elif name == PLANNING and (chunk_rows := statistics.rows / max(1, statistics.chunks)) <= ROWS_OF_A_CHUNK:
        if knobs.window_rows is None or chunk_rows < knobs.window_rows:
            yield _turn("chunks", f"{counted(round(chunk_rows), 'row')} each")
    elif name == PLANNING and (knobs.window_rows is None or knobs.window_rows > 1):
        fewer = max(1, knobs.window_rows // 4) if knobs.window_rows else ""
        yield _turn("window", knobs.window_rows, None, fewer)


def _budget_of(threads: int, room: ReaderRoom) -> str:
    """Return a larger memory budget, in whole MiB, that has room for so many threads beside a window."""
    more = (threads - room.most_threads) * room.thread_nbytes
    enough = max(room.memory_budget + more, SCRATCH_SHARE * threads * room.thread_nbytes)
    return f"{math.ceil(enough / (1 << 20))}MiB"


def _start(statistics: LoaderStatistics, knobs: LoaderKnobs) -> Limit:
    """Name the start of the epoch, and changes that bring the first batch sooner, if they are not made yet."""
    first_s, turns = statistics.first_batch_s or 0.0, []
    share = statistics.epochs * first_s / max(statistics.elapsed_s, 1e-9)
    speedup = _without(share)
    first_rows = knobs.window_rows if knobs.first_window_rows is None else knobs.first_window_rows
    fewer = max(knobs.batch_size or 1, (first_rows or 0) // 4)
    if first_rows is not None and fewer < first_rows:
        present = f"{or_na(knobs.window_rows, '{}')}, the first {first_rows}"
        why = "batches come when the first window is read; fewer rows mix less"
        turns.append(_turn("window", present, speedup, fewer, why))
    if knobs.num_workers == 0:
        why = "an epoch's first window is then read during the epoch before"
        turns.append(_turn("num_workers", 0, speedup, "1 or more", why))
    measured = f"{1e3 * first_s:.1f} ms until an epoch's first batch, {share:.0%} of the time"
    return Limit(START, measured, tuple(turns) or (_turn("epochs", "each starts anew", speedup),))


# --- short measured runs: a loader alone, a step alone, both together -------------------------------------------


SYNCHRONIZE_S = 0.25  # seconds of device work that may be queued: enough to hide the pause, and an end in sight
MOST_STEPS = 1000  # steps of a trial: more would not make the mean better

clock = time.perf_counter


class _End(enum.Enum):
    """Stands for the end of batches, which may be anything."""

    END = enum.auto()


@dataclass(kw_only=True)
class Trial:
    """A run over a loader: its batches, their rows, and the time spent waiting for them.

    # Guarantees: `batches_of` is run by the loop alone, which alone writes; `share` is called by one other thread, a
    monitor's, and sees a wait that is still going on. No lock: each figure is one number.
    """

    batches: int = 0
    rows: int = 0  # taken
    largest: int | None = None  # rows of the largest batch; None while none was known
    epochs: int = 0  # completed epochs
    epoch_batches: int | None = None  # batches of an epoch; None if the loader has no length
    elapsed_s: float = 0.0  # seconds until the device finished its work
    waited_s: float = 0.0  # seconds of them in ``next``
    first_s: float | None = None  # seconds of the first wait
    longest_s: float = 0.0  # seconds of the longest later wait
    on_device: bool = False  # whether there was a device whose work was waited for
    statistics: LoaderStatistics | None = None  # the loader's own, of all epochs in the run
    unit: str = "row"  # the name of one entry of a batch
    parts: tuple[Trial, ...] = ()  # its first epoch, and the later ones if they had two or more batches
    _waiting_since_s: float | None = None  # the start of the current wait
    _seen: tuple[float, float] = field(
        default_factory=lambda: (0.0, clock())
    )  # seconds waited, and the time, at the last `share`

    def batches_of(
        self, loader: Iterable[BatchT], arrived: Callable[[], None] = lambda: None
    ) -> Generator[BatchT, None, None]:
        """Yield the batches of an epoch; `arrived` is called after each was counted."""
        self._waiting_since_s, of_fields = clock(), lists_of_fields(loader)
        iterator = iter(loader)
        if (remaining := length_of(iterator)) is not None and remaining < (self.epoch_batches or 0):  # a resumed epoch
            self.epoch_batches = remaining
        try:
            while (batch := next(iterator, _End.END)) is not _End.END:
                waited_s = self._waited()
                if self.first_s is None:
                    self.first_s = waited_s
                else:
                    self.longest_s = max(self.longest_s, waited_s)
                self.batches, rows = self.batches + 1, rows_of(batch, of_fields)
                if rows is not None:
                    self.rows, self.largest = self.rows + rows, max(rows, self.largest or 0)
                arrived()
                # Handed over, not shared: a local variable would keep the batch's memory while the loop runs.
                handover = [batch]
                del batch
                yield handover.pop()
                self._waiting_since_s = clock()
            self.epochs += 1
        finally:
            self._waited()
            if callable(close := getattr(iterator, "close", None)):
                close()

    def _waited(self) -> float:
        waited_s = 0.0 if self._waiting_since_s is None else clock() - self._waiting_since_s
        self.waited_s, self._waiting_since_s = self.waited_s + waited_s, None
        return waited_s

    def share(self) -> float:
        """Return the share of the time since the last call that was spent waiting, 0 to 1."""
        (before_s, at_s), now_s, since_s = self._seen, clock(), self._waiting_since_s
        waited_s = self.waited_s + (0.0 if since_s is None else now_s - since_s)
        self._seen = waited_s, now_s
        # A wait that ends between the two readings is counted a moment early or late.
        return min(1.0, max(0.0, (waited_s - before_s) / max(now_s - at_s, 1e-9)))

    @property
    def _start_s(self) -> float:
        # An epoch waits for its first batch once: a run that ended within its first epoch counts the share of this
        # wait that corresponds to its share of the batches, or nothing if that is unknown.
        if self.epochs or self.batches < 2:
            return 0.0
        remaining = max(0.0, 1.0 - self.batches / self.epoch_batches) if self.epoch_batches else 1.0
        return (self.first_s or 0.0) * remaining

    @property
    def batch_s(self) -> float:
        """Seconds per batch, with its share of the wait for the epoch's first batch."""
        count = self.batches - (self._start_s > 0 and not self.epoch_batches)
        return (self.elapsed_s - self._start_s) / max(1, count)

    @property
    def rows_per_s(self) -> float:
        """Rows per second, by the same rule."""
        return self.rows / max(1, self.batches) / self.batch_s if self.batch_s else 0.0

    @property
    def waiting_share(self) -> float:
        """Share of the time spent in ``next``, 0 to 1, by the same rule."""
        return min(1.0, max(0.0, (self.waited_s - self._start_s) / max(self.elapsed_s - self._start_s, 1e-9)))

    def __str__(self) -> str:
        return f"{1e3 * self.batch_s:.2f} ms a batch, {self.rows_per_s:,.0f} {self.unit}s/s"


def time_step(
    step: Callable[[BatchT], object], batch: BatchT, seconds: float, *, rows: int = 0, unit: str = "row"
) -> Trial:
    """Run a step repeatedly on one batch of some rows, for the ceiling; the first call compiles and is not timed."""

    def timed(count: int) -> Trial:
        began_s = clock()
        for _ in range(count):
            step(batch)
        on_device = synchronize()  # queued work is not done yet
        return Trial(
            batches=count, rows=count * rows, elapsed_s=clock() - began_s, epochs=1, on_device=on_device, unit=unit
        )

    step(batch)
    synchronize()
    return timed(int(min(MOST_STEPS, max(2, seconds / max(timed(1).elapsed_s, 1e-9)))))


def time_loop(
    loader: Iterable[BatchT], step: Callable[[BatchT], object] | None, seconds: float, *, step_s: float = 0.0
) -> Trial:
    """Iterate over a loader, epoch after epoch, until `seconds` after its first batch; at least two batches."""
    stride = max(1, round(SYNCHRONIZE_S / step_s)) if step_s else 0
    epochs, taken, before, ends_s = list[Trial](), 0, -1, math.inf
    while before < taken and clock() < ends_s:
        before, trial, began_s = taken, Trial(epoch_batches=length_of(loader), unit=unit_of(loader)), clock()
        epochs.append(trial)
        with contextlib.closing(trial.batches_of(loader)) as batches:
            for batch in batches:
                taken += 1
                if taken == 1:
                    ends_s = clock() + seconds
                if step is not None:
                    step(batch)
                    if stride and taken % stride == 0:
                        synchronize()
                if taken > 1 and clock() >= ends_s:
                    break
        # In later epochs the device may still work during the next; at the end, wait for queued work.
        if step is not None and (len(epochs) == 1 or clock() >= ends_s):
            trial.on_device = synchronize()
        trial.elapsed_s, trial.statistics = clock() - began_s, statistics_of(loader)
    later = joined(epochs[1:]) if sum(one.batches for one in epochs[1:]) > 1 else None
    return replace(joined(epochs), parts=(epochs[0], *([later] if later else [])))


def joined(epochs: Sequence[Trial]) -> Trial:
    """Return several epochs as one run."""
    kept = [one.statistics for one in epochs if one.statistics is not None]
    largest = [one.largest for one in epochs if one.largest is not None]
    return Trial(
        batches=sum(one.batches for one in epochs),
        rows=sum(one.rows for one in epochs),
        largest=max(largest, default=None),
        epochs=sum(one.epochs for one in epochs),
        epoch_batches=epochs[0].epoch_batches,
        elapsed_s=sum(one.elapsed_s for one in epochs),
        waited_s=sum(one.waited_s for one in epochs),
        first_s=epochs[0].first_s,
        longest_s=max([one.longest_s for one in epochs] + [one.first_s or 0.0 for one in epochs[1:]]),
        on_device=epochs[-1].on_device,
        unit=epochs[0].unit,
        statistics=combined(kept) if kept else None,
    )


def gpu_ratio(machine: SystemSummary | None, device: int = 0) -> float | None:
    """Return the mean utilisation of a GPU; None if it is unknown."""
    spread = machine.gpus[device].utilization_ratio if machine is not None and device < len(machine.gpus) else None
    return spread.mean if spread is not None else None
