"""Gradient accumulation: a larger batch for the optimizer from batches that fit, counted honestly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from h5stream.advice.rules import at_least
from h5stream.advice.suggestion import Suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation(Suggestion):
    """How to make one optimizer step from several batches.

    Attributes
    ----------
    target_batch_size : int
        Rows of one optimizer step, over all ranks.
    batch_size : int
        Rows of a batch, as given; it is not changed.
    world_size : int
        Processes that each contribute.
    steps : int
        Batches of each rank for one optimizer step.
    microbatch_rows : tuple of int
        Rows of each of them, on one rank. All are `batch_size`, but the last may be smaller.
    weights : tuple of float
        What each microbatch's mean loss is multiplied by before ``backward()``; they sum to 1.
    even_batch_size : int
        The largest size up to `batch_size` that divides the target evenly.
    effective_batch_size : int
        Rows of an optimizer step if the last microbatch is full instead.
    last_step_rows : int or None
        Rows of an epoch's last optimizer step, where the rows of an epoch were given.
    """

    target_batch_size: int
    batch_size: int
    world_size: int
    steps: int
    microbatch_rows: tuple[int, ...]
    weights: tuple[float, ...]
    even_batch_size: int
    effective_batch_size: int
    last_step_rows: int | None


def accumulation_for(
    target_batch_size: int, batch_size: int, *, world_size: int = 1, rows: int | None = None
) -> Accumulation:
    """Give the number of batches to accumulate for a target batch, and the weight of each one's loss.

    Dividing each mean loss by the number of steps is right only if all batches have the same number of rows.
    Where the target is no multiple, the last batch is smaller and weighs less: a mean loss counts with its
    rows over the target's.

    Parameters
    ----------
    target_batch_size : int
        Rows that one optimizer step shall see, over all ranks.
    batch_size : int
        Rows of the user's batch, on one rank.
    world_size : int, optional
        Ranks. A target that does not divide by them is rounded up to the next that does.
    rows : int, optional
        Rows of an epoch, to tell the size of its last optimizer step.

    Examples
    --------
    >>> plan = accumulation_for(300, 128)
    >>> plan.steps, plan.microbatch_rows, [round(weight, 3) for weight in plan.weights]
    (3, (128, 128, 44), [0.427, 0.427, 0.147])
    >>> accumulation_for(128, 64).weights
    (0.5, 0.5)
    """
    at_least(1, target_batch_size=target_batch_size, batch_size=batch_size, world_size=world_size, rows=rows)
    share = math.ceil(target_batch_size / world_size)
    target = share * world_size
    steps = math.ceil(share / batch_size)
    last = share - (steps - 1) * batch_size
    microbatches = (batch_size,) * (steps - 1) + (last,)
    even = max(size for size in range(1, min(batch_size, share) + 1) if share % size == 0)
    last_step = None if rows is None else (rows % target or min(target, rows))
    return Accumulation(
        title=f"Gradient accumulation for a batch of {target_batch_size}",
        answer=_answer(steps, batch_size, last, world_size),
        arithmetic=_arithmetic(target_batch_size, target, share, batch_size, steps, last, world_size),
        caveats=_caveats(steps, batch_size, last, share, even, last_step, target),
        sources=(),
        target_batch_size=target,
        batch_size=batch_size,
        world_size=world_size,
        steps=steps,
        microbatch_rows=microbatches,
        weights=tuple(count / share for count in microbatches),
        even_batch_size=even,
        effective_batch_size=steps * batch_size * world_size,
        last_step_rows=last_step,
    )


def _answer(steps: int, batch_size: int, last: int, world_size: int) -> str:
    ranks = "" if world_size == 1 else f" on each of {world_size} ranks"
    if steps == 1:
        return f"no accumulation: one batch of {last} does it{ranks}"
    if last == batch_size:
        return f"{steps} batches of {batch_size}{ranks}"
    return f"{steps - 1} x {batch_size} and a last batch of {last}{ranks}"


def _arithmetic(
    asked: int, target: int, share: int, batch_size: int, steps: int, last: int, world_size: int
) -> tuple[str, ...]:
    lines = []
    if world_size > 1:
        lines.append(f"a rank's share: ceil({asked} / {world_size}) = {share} rows, {target} over all ranks")
    lines.append(f"batches: ceil({share} / {batch_size}) = {steps}")
    if last != batch_size and steps > 1:
        lines.append(f"the last one: {share} - {steps - 1} x {batch_size} = {last} rows")
        lines.append(
            f"weights of the mean losses: {batch_size}/{share} = {batch_size / share:.4f}, the last "
            f"{last}/{share} = {last / share:.4f} (1/{steps} = {1 / steps:.4f} would be wrong)"
        )
    elif steps > 1:
        lines.append(f"weight of each mean loss: 1/{steps} = {1 / steps:.4f}")
    return tuple(lines)


def _caveats(
    steps: int, batch_size: int, last: int, share: int, even: int, last_step: int | None, target: int
) -> tuple[str, ...]:
    found = []
    if steps > 1 and last != batch_size:
        found.append(
            f"even alternatives: batches of {even} ({share // even} of them), or full batches and an "
            f"optimizer step of {steps * batch_size} rows a rank"
        )
    if last_step is not None and last_step != target:
        found.append(f"an epoch's last optimizer step has {last_step} rows: weigh by those, or drop it")
    if steps > 1:
        found.append("batch normalisation and in-batch contrastive losses still see one batch at a time")
    return tuple(found)
