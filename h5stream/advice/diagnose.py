"""`diagnose`: is it the data or the step? Three short runs, the limit by name, and the next knob."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from h5stream import allowance
from h5stream.advice.limits import (
    BATCH_TOO_SMALL,
    PYTHON,
    STEP,
    Limit,
    LoaderKnobs,
    data_limit,
    larger_batch,
    least_amplification,
    step_turns,
)
from h5stream.advice.suggestion import NOT_WAITING, WAITING, Suggestion, Turn, above_zero
from h5stream.advice.track import gpu_ratio
from h5stream.advice.trials import Step, Trial, first_batch, time_loop, time_step
from h5stream.engine.statistics import LoaderStatistics
from h5stream.loader import H5StreamLoader
from h5stream.monitor.system import MIN_INTERVAL_S, SystemMonitor
from h5stream.structure import first_rows, rows_of
from h5stream.units import percent, told

TRIAL_S = 5.0  # seconds of each of the three runs
ACCELERATOR_AIM = 0.90  # share of the ceiling that a loop should reach; what is missing is paid for and not used
FIXED_SHARE = 0.6  # share of a step that does not depend on the rows, over which the batch is too small for it


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
    >>> found = diagnose(DataLoader(torch.zeros(64, 2), batch_size=8), lambda batch: time.sleep(0.002 * len(batch)),
    ...                  seconds=0.2)
    >>> found.waiting_share < 0.2  # the step takes the time, and not the data
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
