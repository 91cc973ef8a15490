"""A learning rate for another batch: the square-root and the linear rule, and how long to warm up."""

from __future__ import annotations

import math

from h5stream.advice.suggestion import NOT_WAITING, WAITING, Suggestion, Turn, above_zero, at_least
from h5stream.errors import OptionError
from h5stream.training.memory import find_optimizer
from h5stream.training.presets import GpuPreset, Setting

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


# --- gradient accumulation -------------------------------------------------------------------------------


def accumulation_for(target_batch_size: int, batch_size: int, *, rows: int | None = None) -> Suggestion:
    """Return how many batches to accumulate for a target batch, and the weight of each one's mean loss."""
    at_least(1, target_batch_size=target_batch_size, batch_size=batch_size, rows=rows)
    target, steps = target_batch_size, math.ceil(target_batch_size / batch_size)
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


# --- what to turn first ----------------------------------------------------------------------------------


_FASTER_PRECISION = {
    "fp32": "tf32, then bf16 autocast",
    "tf32": "bf16 autocast",
    "fp16": "leave it",
    "bf16": "leave it",
}

# Why a knob is turned, and when to stop; in the usual order.
_KNOBS = {
    "batch_size": (
        "more work for each launch and each copy",
        "when rows/s no longer rise or memory ends (find_batch_size)",
    ),
    "num_workers": (
        "threads that read and decode; by default all processors that are allowed",
        "when the processors are busy or the wait is under 5 %",
    ),
    "memory_budget": (
        "rows that fit stay decoded in memory, so that later epochs neither read nor decode them (keep=)",
        "when stats() says that nothing is read any more, or memory ends",
    ),
    "precision": (
        "faster matrix products and smaller activations",
        "if the loss departs from the one in fp32",
    ),
}


def what_to_try_first(
    setting: Setting,
    *,
    precision: str = "fp32",
    waiting_share: float | None = None,
    preset: GpuPreset | None = None,
    cpus: int | None = None,
) -> Suggestion:
    """Return the settings in the order to try them, which the share of time spent waiting for data decides."""
    at_least(1, cpus=cpus)
    if waiting_share is not None and not 0 <= waiting_share <= 1:
        raise OptionError(f"waiting_share must be between 0 and 1, not {waiting_share}")
    if precision not in _FASTER_PRECISION:
        raise OptionError(f"precision must be one of {', '.join(_FASTER_PRECISION)}, not {precision!r}")
    batch, workers, memory, faster = _KNOBS
    order, share = [*_KNOBS], f"{waiting_share or 0:.0%} of the step waits for data"
    if waiting_share is None:
        reason = "nothing measured: batch first; `h5stream diagnose` measures the wait and may reverse it"
    elif waiting_share > WAITING:
        order, reason = [workers, memory, batch, faster], f"{share} (over {WAITING:.0%}): feed it first"
    elif waiting_share < NOT_WAITING:
        order = [batch, faster, workers, memory]
        reason = f"{share} (under {NOT_WAITING:.0%}): the loader is not the limit"
    else:
        reason = f"{share}: neither side is clearly the limit"
    tried = {
        batch: (str(setting.batch_size), _next_batch(setting.batch_size, preset)),
        workers: (str(setting.workers), _next_workers(setting.workers, preset, cpus)),
        memory: ("the default", "all decoded rows and 2GiB"),
        faster: (precision, _FASTER_PRECISION[precision]),
    }
    turns = tuple(Turn(knob, *tried[knob], _KNOBS[knob][0], stop=_KNOBS[knob][1]) for knob in order)
    lines = [
        line
        for place, turn in enumerate(turns, 1)
        for line in (f"{place}. {turn.knob}: {turn.present} -> {turn.try_next}", f"   {turn.why}; stop {turn.stop}")
    ]
    return Suggestion(
        title="What to try first",
        answer=", then ".join(order) + " (one at a time)",
        arithmetic=(reason, *lines),
        caveats=("a larger batch changes training, not only its speed: see the learning rate",),
        sources=("docs/troubleshooting.md, Low GPU utilization; `h5stream diagnose` measures the wait",),
        figures={"knobs": turns, "waiting_share": waiting_share},
    )


def _next_batch(now: int, preset: GpuPreset | None) -> str:
    if preset is None:
        return f"{2 * now} (double)"
    if now < preset.setting.batch_size:
        return f"{preset.setting.batch_size} (the preset)"
    if preset.underused is not None and now < preset.underused.batch_size:
        return f"{preset.underused.batch_size} (the preset of an underused {preset.gpu})"
    # As from 8192 to 10240, the one step beyond a preset that the table has.
    return f"{now + max(1, now // 4)} (a quarter more than now)"


def _next_workers(now: int, preset: GpuPreset | None, cpus: int | None) -> str:
    known = [one.workers for one in (preset.setting, preset.underused) if one] if preset else []
    wanted = next((value for value in known if value > now), max(1, 2 * now))
    if cpus is not None and now > cpus:
        return f"{cpus} (no more processors are allowed here)"
    if now == cpus:
        return f"leave it: {cpus} processors allowed"
    return f"{cpus} (all processors allowed)" if cpus is not None and wanted >= cpus else str(wanted)
