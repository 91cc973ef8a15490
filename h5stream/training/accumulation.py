"""Gradient accumulation: a larger batch for the optimizer from batches that fit, counted honestly."""

from __future__ import annotations

import math

from h5stream.advice.suggestion import Suggestion, at_least


def accumulation_for(target_batch_size: int, batch_size: int, *, rows: int | None = None) -> Suggestion:
    """Return how many batches to accumulate for a target batch, and the weight of each one's mean loss."""
    at_least(1, target_batch_size=target_batch_size, batch_size=batch_size, rows=rows)
    target = target_batch_size
    steps = math.ceil(target / batch_size)
    last = target - (steps - 1) * batch_size
    microbatches = (batch_size,) * (steps - 1) + (last,)
    even = max(size for size in range(1, min(batch_size, target) + 1) if target % size == 0)
    last_step = None if rows is None else (rows % target or min(target, rows))
    lines, caveats = [f"batches: ceil({target} / {batch_size}) = {steps}"], []
    answer = f"{steps} batches of {batch_size}"
    if steps == 1:
        answer = f"no accumulation: one batch of {last} does it"
    elif last == batch_size:
        lines.append(f"weight of each mean loss: 1/{steps} = {1 / steps:.4f}")
    else:
        answer = f"{steps - 1} x {batch_size} and a last batch of {last}"
        lines += [
            f"the last one: {target} - {steps - 1} x {batch_size} = {last} rows",
            f"weights of the mean losses: {batch_size}/{target} = {batch_size / target:.4f}, the last "
            f"{last}/{target} = {last / target:.4f} (1/{steps} = {1 / steps:.4f} would be wrong)",
        ]
        caveats.append(
            f"even alternatives: batches of {even} ({target // even} of them), or full batches and an "
            f"optimizer step of {steps * batch_size} rows a rank"
        )
    if last_step is not None and last_step != target:
        caveats.append(f"an epoch's last optimizer step has {last_step} rows: weigh by those, or drop it")
    if steps > 1:
        caveats.append("batch normalisation and in-batch contrastive losses still see one batch at a time")
    return Suggestion(
        title=f"Gradient accumulation for a batch of {target}",
        answer=answer,
        arithmetic=tuple(lines),
        caveats=tuple(caveats),
        figures={
            "target_batch_size": target,
            "batch_size": batch_size,
            "steps": steps,
            "microbatch_rows": microbatches,
            "weights": tuple(count / target for count in microbatches),
            "even_batch_size": even,
            "effective_batch_size": steps * batch_size,
            "last_step_rows": last_step,
        },
    )
