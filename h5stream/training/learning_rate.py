"""A learning rate for another batch: the square-root and the linear rule, and how long to warm up."""

from __future__ import annotations

import math

from h5stream.advice.suggestion import Suggestion, above_zero, at_least
from h5stream.training.gpu_memory import find_optimizer

# Goyal et al. ramp over 5 epochs; Adam's ramp follows its second moment, of which this is everyone's default.
_WARMUP_EPOCHS = 5
_BETA2 = 0.999
_STEP_BY_GRADIENT = frozenset({"sgd", "momentum"})

_SOURCES = (
    "linear: Goyal et al. 2017, arXiv:1706.02677, section 2.1; Krizhevsky 2014, arXiv:1404.5997",
    "sqrt: Hoffer et al. 2017, arXiv:1705.08741; for Adam Malladi et al. 2022, arXiv:2205.10287",
    "warm-up: Goyal et al., section 2.2; for Adam Ma and Yarats 2019, arXiv:1910.04209",
    "limits of any rule: Shallue et al. 2019, arXiv:1811.03600; McCandlish et al. 2018, arXiv:1812.06162",
)


def learning_rate_for(
    new_batch_size: int, *, old_batch_size: int, old_lr: float, optimizer: str = "adamw", rows: int | None = None
) -> Suggestion:
    """Return the learning rate for a new batch of an optimizer step by both rules, and the warm-up."""
    at_least(1, new_batch_size=new_batch_size, old_batch_size=old_batch_size, rows=rows)
    above_zero(old_lr=old_lr)
    plain = find_optimizer(optimizer) in _STEP_BY_GRADIENT
    linear, root = old_lr * (ratio := new_batch_size / old_batch_size), old_lr * math.sqrt(ratio)
    rule, rate = ("linear", linear) if plain else ("sqrt", root)
    epoch = rows and math.ceil(rows / new_batch_size)
    if plain:
        steps = epoch and _WARMUP_EPOCHS * epoch
        end = f" = {steps} steps" if steps else " steps; give the rows"
        warmup = f"warm-up: {_WARMUP_EPOCHS} epochs x ceil({rows or 'rows'} / {new_batch_size}){end}"
    else:  # 0.999 is no binary fraction: without rounding, 2 / (1 - 0.999) would come out above 2000
        steps = math.ceil(round(2 / (1 - _BETA2), 6))
        warmup = f"warm-up: 2 / (1 - {_BETA2:g}) = {steps} steps, whatever the batch"
    caveats = ["a start, not a law: check the loss of the first epoch against the old batch"]
    if plain and new_batch_size > 8192:
        caveats.append("over 8192 rows Goyal et al. lost accuracy with this rule, on ImageNet")
    if not plain and ratio > 1:
        caveats.append("for Adam, beta1 and beta2 change with the batch as well (arXiv:2205.10287)")
    if steps and epoch and steps > epoch:
        caveats.append(f"the warm-up is {steps / epoch:.1f} epochs of {epoch} steps")
    # Goyal et al. ramp up from the old rate; Adam's ramp begins at 0. A smaller batch starts where it ends.
    start = min(old_lr, rate) if plain else 0.0
    return Suggestion(
        title=f"Learning rate for a batch of {new_batch_size}",
        answer=f"{rate:.3g} ({rule} rule)" + ("" if steps is None else f", {steps} warm-up steps from {start:.3g}"),
        arithmetic=(
            f"ratio: {new_batch_size} / {old_batch_size} = {ratio:.4g}",
            f"linear: {old_lr:g} x {ratio:.4g} = {linear:.4g}  (SGD)",
            f"sqrt:   {old_lr:g} x sqrt({ratio:.4g}) = {root:.4g}  (Adam and its kin)",
            warmup,
        ),
        caveats=tuple(caveats),
        sources=_SOURCES,
        figures={
            "old_batch_size": old_batch_size,
            "new_batch_size": new_batch_size,
            "old_lr": old_lr,
            "linear": linear,
            "sqrt": root,
            "rule": rule,
            "lr": rate,
            "warmup_steps": steps,
            "warmup_start": start,
        },
    )
