"""Arithmetic about training, without a device: memory, and the consequences of another batch size.

GPU memory of a model, and host memory of its loader; the learning rate for another batch by the square-root and the
linear rule, with the warm-up; gradient accumulation; and the settings to try first.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence

from h5stream.advice import NOT_WAITING, WAITING, Suggestion, Turn, above_zero, at_least
from h5stream.base.texts import counted, text_of_bytes
from h5stream.engine import footprint
from h5stream.engine.plan.tasks import TASK_NBYTES
from h5stream.errors import OptionError
from h5stream.order.places import place_nbytes
from h5stream.training import GpuPreset, Setting

# The CUDA context with the kernels of torch and its libraries; several hundred MiB on every recent card.
CONTEXT_BYTES = 512 << 20

# Share of the card's memory, between notes of 0.2 of 8 GiB (2.5 %) left on a full card, and of 4 of 24 GiB (17 %): for
# allocator fragmentation, library workspaces and the backward pass's own temporaries.
SAFETY_SHARE = 0.10

BATCHES_ON_DEVICE = 2  # the one in use and the one that is prefetched
ELEMENT_BYTES = 4  # of a parameter and its gradient; autocast leaves both in 32 bits

# Memory of a worker process itself. Noted with a PyTorch image pipeline: 4 workers about 2 GiB, 12 about 6 GiB, 16
# about 8 GiB. A process forked late from a small parent adds less.
WORKER_BYTES = 512 << 20

_MANY_ROWS = 1 << 30  # more than a window has, and still numbers of 32 bits


def _count(number: int, singular: str, plural: str = "") -> str:
    """Return a count and its noun; numbers of the arithmetic have no commas."""
    return counted(number, singular, plural).replace(",", "")


def _memory(
    title: str,
    answer: str,
    parts: list[tuple[str, str, int]],
    lines: Sequence[str] = (),
    *,
    caveats: tuple[str, ...],
    sources: tuple[str, ...] = (),
    figures: Mapping[str, int | bool | None],
) -> Suggestion:
    """Return a suggestion about memory from parts, each with a name, its derivation and bytes."""
    derivations = [f"{name}: {how} = {text_of_bytes(nbytes)}" for name, how, nbytes in parts]
    return Suggestion(
        title=title,
        answer=answer,
        arithmetic=(*lines, *derivations),
        caveats=caveats,
        sources=sources,
        figures={**{f"{name}_bytes": nbytes for name, _, nbytes in parts}, **figures},
    )


def gpu_memory(
    parameters: int,
    *,
    optimizer: str,
    batch_size: int,
    memory_gib: float,
    activation_bytes_per_row: float = 0,
    row_bytes: int = 0,
) -> Suggestion:
    """Return the GPU memory of a training step, part by part, and the largest batch that fits."""
    capacity, weights, name = int(memory_gib * (1 << 30)), ELEMENT_BYTES * parameters, find_optimizer(optimizer)
    on_device, kept, (state, states) = BATCHES_ON_DEVICE * row_bytes, activation_bytes_per_row, OPTIMIZERS[name]
    parts = [
        ("weight", f"{counted(parameters, 'parameter')} x {ELEMENT_BYTES} B", weights),
        ("gradient", "as much", weights),
        ("optimizer", f"{name} keeps {states}, {state:.3g} B each", math.ceil(parameters * state)),
        ("context", "that of CUDA, with its libraries", CONTEXT_BYTES),
        ("safety", f"{SAFETY_SHARE:.0%} of the card", int(capacity * SAFETY_SHARE)),
    ]
    room = capacity - sum(nbytes for _, _, nbytes in parts)
    # The peak has the larger of activations and the optimizer's temporaries, as large as the weights (``foreach``).
    step = [
        ("batch", f"{BATCHES_ON_DEVICE} x {_count(batch_size, 'row')} x {row_bytes} B", batch_size * on_device),
        ("activation", f"{_count(batch_size, 'row')} x {text_of_bytes(kept)}", int(kept * batch_size)),
        ("step", "temporaries of the optimizer; the larger of them and of activations counts", weights),
    ]
    total = capacity - room + step[0][2] + max(step[1][2], weights)
    # Solve ``batches + max(activations, step) <= room`` for the rows; None if the memory per row is unknown.
    largest, fits = None, total <= capacity
    if kept:
        by_step = (room - weights) / on_device if on_device else math.inf if room >= weights else 0
        largest = max(0, int(min(room / (kept + on_device), by_step)))
    verdict = "fits" if fits else f"{text_of_bytes(total - capacity)} too much"
    rows = "" if largest is None else f"; {_count(largest, 'row')} would fit"
    caveat = "workspaces and the backward pass's temporaries are in the safety; find_batch_size() measures"
    if not kept:
        step = [one for one in step if one[0] != "activation" and one[2]]
        verdict = "without activations, which are not known" if fits else f"{verdict} without activations"
        caveat = (
            "whether a batch fits depends on activations: measure_activations(model, batch) on a small batch, then "
        )
        caveat += "--activation-bytes; or find_batch_size() tries batches"
    figures: dict[str, int | bool | None] = {
        "total_bytes": total,
        "capacity_bytes": capacity,
        "largest_batch_size": largest,
    }
    return _memory(
        "GPU memory",
        f"{text_of_bytes(total)} of {text_of_bytes(capacity)}: {verdict}{rows}",
        parts + step,
        caveats=(caveat,),
        figures=figures | {"fits": fits if kept or not fits else None},
    )


# --- Memory of an optimizer per parameter -----------------------------------------------------------


# Bytes per float32 parameter, and their content, without step counters (4 bytes a tensor, by default on the host).
# 8-bit states have a float32 scale for 256 values: https://arxiv.org/abs/2110.02861 and bitsandbytes' defaults.
# Adafactor, without first moment, has a row and a column for each matrix: https://arxiv.org/abs/1804.04235, section 3.
_KEEP = {
    "sgd": (0, "nothing"),
    "momentum, lion": (4, "momentum"),
    "rmsprop": (4, "square average"),
    "adagrad": (4, "sum of squares"),
    "adadelta": (8, "square average and step average"),
    "adam, adamw, nadam, radam, lamb": (8, "first and second moment"),
    "adamax": (8, "first moment and largest norm"),
    "amsgrad": (12, "both moments and the largest second moment"),
    "adam8bit, adamw8bit": (2 + 2 * 4 / 256, "both moments, 8 bits a value"),
    "lion8bit": (1 + 4 / 256, "momentum, 8 bits a value"),
    "adafactor": (0, "second moment as rows and columns, next to nothing"),
}
OPTIMIZERS = {name: kept for names, kept in _KEEP.items() for name in names.split(", ")}
_ALIASES = {"sgdmomentum": "momentum", "sgdm": "momentum", "nesterov": "momentum"}


def find_optimizer(name: str) -> str:
    """Return an optimizer's name in the table, ignoring case, dashes and the position of "8bit"."""
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    if "8bit" in key:
        key = key.replace("8bit", "").removeprefix("paged") + "8bit"
    key = _ALIASES.get(key, key)
    if key not in OPTIMIZERS:
        near = difflib.get_close_matches(key, OPTIMIZERS, n=1, cutoff=0.3)
        raise OptionError(f"no optimizer is known as {name!r}; known: {', '.join(dict.fromkeys([*near, *OPTIMIZERS]))}")
    return key


# --- Host memory of a setting: for a stock `DataLoader`, and for h5stream's single budget -----------------


def dataloader_memory(
    *, row_bytes: int, batch_size: int, workers: int, prefetch_factor: int = 2, available_bytes: int | None = None
) -> Suggestion:
    """Return the host memory of a stock `DataLoader`; rows are those of all fields, decoded."""
    batch, count, making = row_bytes * batch_size, workers * prefetch_factor, max(workers, 1)
    of, batches = f"x {text_of_bytes(batch)}", _count(prefetch_factor, "batch", "batches")
    processes = _count(workers, "process", "processes")
    queued = f"{_count(workers, 'worker')} x {batches} = {_count(count, 'batch', 'batches')} {of}"
    parts = [
        ("batch", f"the one in use, {_count(batch_size, 'row')} x {row_bytes} B", batch),
        ("queued", queued, count * batch),
        # Without workers the training process itself makes its single batch, and holds its rows meanwhile.
        ("collating", f"rows on their way into a batch, {making} {of}", making * batch),
        ("worker", f"{processes} x {text_of_bytes(WORKER_BYTES)}", workers * WORKER_BYTES),
    ]
    total, fits = sum(nbytes for _, _, nbytes in parts), tuple[str, ...]()
    if available_bytes is not None:
        share = f"{text_of_bytes(total)} of {text_of_bytes(available_bytes)} that can be taken here now"
        fits = (f"{'more than there is' if total > available_bytes else 'fits'}: {share}",)
    return _memory(
        "Host memory, stock DataLoader",
        f"{text_of_bytes(count * batch)} queued, about {text_of_bytes(total)} in all",
        parts,
        caveats=fits,
        sources=("DataLoader keeps at most prefetch_factor x num_workers batches outstanding (torch docs)",),
        figures={"queued_batches": count, "total_bytes": total, "available_bytes": available_bytes},
    )


def loader_memory(
    *,
    row_bytes: int,
    batch_size: int,
    threads: int = 1,
    chunk_bytes: int = 1 << 20,
    block_rows: int | None = None,
    rows: int | None = None,
    memory_budget: int | None = None,
) -> Suggestion:
    """Return the host memory that `H5StreamLoader` plans with, and the effect of a budget on its window."""
    at_least(1, row_bytes=row_bytes, batch_size=batch_size, chunk_bytes=chunk_bytes)
    budget, shape = memory_budget or footprint.DEFAULT_BUDGET, _shape_of(row_bytes, chunk_bytes, rows, block_rows)
    default_rows, size, smallest = _sizes(shape, min(batch_size, shape.rows), threads, budget)
    leased = shape.held_nbytes(min(batch_size, shape.rows), size.window_rows)
    caveat, over = f"the least that would do, with a weaker shuffle: {text_of_bytes(smallest)}", ""
    if smallest > budget:
        over = f": over the budget, {text_of_bytes(smallest)} would do"
        caveat = f"memory_budget={budget} is too small; memory_budget={smallest} would do"
    elif size.window_rows < default_rows:
        blocks, default_blocks = (math.ceil(count / shape.block_rows) for count in (size.window_rows, default_rows))
        caveat = f"the shuffle mixes {_count(blocks, 'block')} at a time instead of {default_blocks}"
    block = _count(shape.block_rows, "row")
    if block_rows is None:
        block = f"{text_of_bytes(chunk_bytes)} chunk / {row_bytes} B = {block}"
    else:
        block += f", {'those' if shape.block_rows > 1 else 'that'} of a chunk ({text_of_bytes(chunk_bytes)})"
    open_batches = f"{_count(size.max_open_batches, 'batch', 'batches')} x {text_of_bytes(size.batch_nbytes)}"
    readers = f"{_count(max(size.threads, 1), 'thread')} x {text_of_bytes(shape.scratch.nbytes)}"
    figures = {"batch_bytes": size.batch_nbytes, "window_rows": size.window_rows, "total_bytes": size.needed_nbytes}
    verdict = {"capped": size.window_rows < default_rows, "smallest_budget_bytes": smallest, "fits": smallest <= budget}
    return _memory(
        "Host memory, h5stream",
        f"{text_of_bytes(size.needed_nbytes)}, window of {_count(size.window_rows, 'row')}{over}",
        [
            ("window", f"one is read while one is consumed: {open_batches}", size.max_open_batches * size.batch_nbytes),
            ("leased", "what the training loop holds as it goes from one batch to the next", leased),
            ("plan", f"{shape.plan_row_nbytes:.0f} B a row of two windows", size.plan_nbytes),
            ("scratch", readers, size.scratch_nbytes),
        ],
        (f"block: {block}", _window_line(default_rows, size.window_rows, batch_size, shape)),
        caveats=(caveat,),
        sources=("h5stream's design: one budget over slots, windows, plans and scratch; loader.stats() measures",),
        figures=figures | {"threads": size.threads} | verdict,
    )


def _shape_of(row_bytes: int, chunk_bytes: int, rows: int | None, block_rows: int | None) -> footprint.Shape:
    """Return the shape of data with few known properties: one compressed dataset whose chunks do not grow."""
    rows, chunk_rows = rows or _MANY_ROWS, block_rows or max(1, chunk_bytes // row_bytes)
    chunk = chunk_bytes if block_rows else chunk_rows * row_bytes
    return footprint.Shape(
        rows=rows,
        field_nbytes=(row_bytes,),
        block_rows=chunk_rows,
        scratch=footprint.Scratch(min(TASK_NBYTES, rows * row_bytes + chunk) + 4 * chunk),
        plan_row_nbytes=4 * place_nbytes(rows)
        + max(1.0, chunk_rows * row_bytes / max(1, chunk)) / chunk_rows * footprint.CHUNK_PLAN_NBYTES,
    )


def _sizes(shape: footprint.Shape, batch_rows: int, threads: int, budget: int) -> tuple[int, footprint.Footprint, int]:
    """Return a window's rows with the default budget, the footprint for this budget, and the least budget."""

    def sized(nbytes: int, most_rows: int | None = None) -> footprint.Footprint:
        return footprint.size_window(
            shape, batch_size=batch_rows, window="auto", memory_budget=nbytes, threads=threads, most_rows=most_rows
        )

    default_rows = footprint.least_that_fits(sized, footprint.DEFAULT_BUDGET).window_rows
    chosen, least = (footprint.least_that_fits(lambda nbytes: sized(nbytes, default_rows), one) for one in (budget, 1))
    return default_rows, chosen, least.memory_budget


def _window_line(default_rows: int, rows: int, batch_size: int, shape: footprint.Shape) -> str:
    wished = shape.wished_rows("auto", batch_size)
    most = f"the most of {footprint.AUTO_BATCHES} batches, {footprint.AUTO_BLOCKS} blocks and "
    most += f"{text_of_bytes(footprint.AUTO_NBYTES)} of at most {footprint.AUTO_ROWS} rows, {_count(wished, 'row')}"
    if wished >= shape.rows:
        most = f"all {wished} rows" if wished > 1 else "the 1 row of the data"
    line = f"rows of a window: {most}"
    line += f", of which two fit {text_of_bytes(footprint.DEFAULT_BUDGET)}: {default_rows}" * (default_rows < wished)
    return line + f", cut to {rows} by the budget" * (rows != default_rows)


# --- a learning rate for another batch ----------------------------------------------------------------------


# Goyal et al. ramp over 5 epochs; Adam's ramp follows its second moment, 2 / (1 - beta2), by default 0.999.
_WARMUP_EPOCHS = 5
_ADAM_STEPS = 2000
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
    """Return the learning rate of an optimizer step for a new batch by both rules, and the warm-up."""
    above_zero(old_lr=old_lr)
    plain = find_optimizer(optimizer) in _STEP_BY_GRADIENT
    linear, root = old_lr * (ratio := new_batch_size / old_batch_size), old_lr * math.sqrt(ratio)
    rule, rate = ("linear", linear) if plain else ("sqrt", root)
    epoch = rows and math.ceil(rows / new_batch_size)
    steps: int | None = _ADAM_STEPS
    warmup = f"2 / (1 - 0.999) = {steps} steps, whatever the batch"
    if plain:
        steps = epoch and _WARMUP_EPOCHS * epoch
        end = f" = {_count(steps, 'step')}" if steps else " steps; give the rows"
        warmup = f"{_WARMUP_EPOCHS} epochs x ceil({rows or 'rows'} / {new_batch_size}){end}"
    caveats = ["a start, not a law: check the loss of the first epoch against the old batch"]
    if plain and new_batch_size > 8192:
        caveats.append("over 8192 rows Goyal et al. lost accuracy with this rule, on ImageNet")
    if not plain and ratio > 1:
        caveats.append("for Adam, beta1 and beta2 change with the batch as well (arXiv:2205.10287)")
    if steps and epoch and steps > epoch:
        caveats.append(f"the warm-up is {steps / epoch:.1f} epochs of {_count(epoch, 'step')}")
    # Goyal et al. ramp up from the old rate; Adam's ramp begins at 0. A smaller batch starts with its final rate.
    start = min(old_lr, rate) if plain else 0.0
    inputs = {"old_batch_size": old_batch_size, "new_batch_size": new_batch_size, "old_lr": old_lr}
    results = {"linear": linear, "sqrt": root, "rule": rule, "lr": rate, "warmup_steps": steps, "warmup_start": start}
    return Suggestion(
        title=f"Learning rate for a batch of {new_batch_size}",
        answer=f"{rate:.3g} ({rule} rule)" + ("" if steps is None else f", {steps} warm-up steps from {start:.3g}"),
        arithmetic=(
            f"ratio: {new_batch_size} / {old_batch_size} = {ratio:.4g}",
            f"linear: {old_lr:g} x {ratio:.4g} = {linear:.4g}  (SGD)",
            f"sqrt:   {old_lr:g} x sqrt({ratio:.4g}) = {root:.4g}  (Adam and its kin)",
            f"warm-up: {warmup}",
        ),
        caveats=tuple(caveats),
        sources=_SOURCES,
        figures=inputs | results,
    )


# --- gradient accumulation -------------------------------------------------------------------------------


def accumulation_for(target_batch_size: int, batch_size: int, *, rows: int | None = None) -> Suggestion:
    """Return how many batches to accumulate for a target batch, and the weight of the mean loss of each."""
    target, steps = target_batch_size, math.ceil(target_batch_size / batch_size)
    last = target - (steps - 1) * batch_size
    microbatches = (batch_size,) * (steps - 1) + (last,)
    even = max(size for size in range(1, min(batch_size, target) + 1) if target % size == 0)
    last_step = None if rows is None else (rows % target or min(target, rows))
    answer, caveats = f"{_count(steps, 'batch', 'batches')} of {batch_size}", list[str]()
    weighed = f"weight of each mean loss: {batch_size}/{target} = {batch_size / target:.4f}"
    if steps == 1:
        answer = f"no accumulation: one batch of {last} does it"
    elif last != batch_size:
        answer = f"{steps - 1} x {batch_size} and a last batch of {last}"
        weighed += f", the last {last}/{target} = {last / target:.4f} (1/{steps} = {1 / steps:.4f} would be wrong)"
        caveats.append(
            f"even alternatives: batches of {even} ({target // even} of them), or full batches and an "
            f"optimizer step of {steps * batch_size} rows a rank"
        )
    if last_step is not None and last_step != target:
        caveats.append(f"an epoch's last optimizer step has {_count(last_step, 'row')}: weigh by those, or drop it")
    if steps > 1:
        caveats.append("batch normalization and in-batch contrastive losses still see one batch at a time")
    weights = tuple(count / target for count in microbatches)
    figures = {"target_batch_size": target, "batch_size": batch_size, "steps": steps, "microbatch_rows": microbatches}
    sizes = {"even_batch_size": even, "effective_batch_size": steps * batch_size, "last_step_rows": last_step}
    return Suggestion(
        title=f"Gradient accumulation for a batch of {target}",
        answer=answer,
        arithmetic=(f"batches: ceil({target} / {batch_size}) = {steps}", *[weighed] * (steps > 1)),
        caveats=tuple(caveats),
        figures=figures | {"weights": weights} | sizes,
    )


# --- settings to try first -------------------------------------------------------------------------------


_FASTER_PRECISION = {
    "fp32": "tf32, then bf16 autocast",
    "tf32": "bf16 autocast",
    "fp16": "leave it",
    "bf16": "leave it",
}

# The reason to change each setting, and when to stop; in the usual order.
_KNOBS = {
    "batch_size": ("more work for each launch and copy", "when rows/s no longer rise or memory ends (find_batch_size)"),
    "num_workers": ("threads that read and decode", "when the processors are busy or the wait is under 5 %"),
    "memory_budget": ("rows that fit stay decoded in memory (keep=)", "when stats() says that nothing more is read"),
    "precision": ("faster matrix products and smaller activations", "if the loss departs from the one in fp32"),
}


def what_to_try_first(
    setting: Setting,
    *,
    precision: str = "fp32",
    waiting_share: float | None = None,
    preset: GpuPreset | None = None,
    cpus: int | None = None,
    rows: int | None = None,
) -> Suggestion:
    """Return the settings in the order to try them, which depends on the share of time spent waiting for data."""
    if waiting_share is not None and not 0 <= waiting_share <= 1:
        raise OptionError(f"waiting_share must be between 0 and 1, not {waiting_share}")
    if precision not in _FASTER_PRECISION:
        raise OptionError(f"precision must be one of {', '.join(_FASTER_PRECISION)}, not {precision!r}")
    tried = (
        (str(setting.batch_size), _next_batch(setting.batch_size, preset, rows)),
        (str(setting.workers), _next_workers(setting.workers, preset, cpus)),
        ("the default", "all decoded rows and 2GiB"),
        (precision, _FASTER_PRECISION[precision]),
    )
    batch, workers, memory, faster = turns = tuple(
        Turn(knob, *now, why, stop=stop) for (knob, (why, stop)), now in zip(_KNOBS.items(), tried, strict=True)
    )
    share = f"{waiting_share or 0:.0%} of the step waits for data"
    if waiting_share is None:
        reason = (
            "nothing is measured: `h5stream diagnose` says whether the data or the step is the limit; the usual order:"
        )
    elif waiting_share > WAITING:
        turns, reason = (workers, memory, batch, faster), f"{share} (over {WAITING:.0%}): feed it first"
    elif waiting_share < NOT_WAITING:
        turns = (batch, faster, workers, memory)
        reason = f"{share} (under {NOT_WAITING:.0%}): the loader is not the limit"
    else:
        reason = f"{share}: neither side is clearly the limit"
    lines = [
        line
        for place, turn in enumerate(turns, 1)
        for line in (f"{place}. {turn.knob}: {turn.present} -> {turn.try_next}", f"   {turn.why}; stop {turn.stop}")
    ]
    return Suggestion(
        title="What to try first",
        answer="`h5stream diagnose`, then " * (waiting_share is None)
        + ", then ".join(turn.knob for turn in turns)
        + " (one at a time)",
        arithmetic=(reason, *lines),
        caveats=("a larger batch changes training, not only its speed: see the learning rate",),
        sources=("docs/troubleshooting.md, Low GPU utilization; `h5stream diagnose` measures the wait",),
        figures={"knobs": turns, "waiting_share": waiting_share},
    )


def _next_batch(now: int, preset: GpuPreset | None, rows: int | None) -> str:
    """Return twice the batch, or a nearer preset: larger jumps are not justified for an unknown model."""
    if rows is not None and now >= rows:
        return f"leave it: it holds {'all rows' if rows > 1 else 'the 1 row'} of the data"
    presets = (
        [(preset.setting, "the preset"), (preset.underused, f"the preset of an underused {preset.gpu}")]
        if preset
        else []
    )
    larger = [f"{one.batch_size} ({which})" for one, which in presets if one and now < one.batch_size <= 2 * now]
    # For example from 8192 to 10240, the only step beyond a preset in the table.
    return larger[0] if larger else f"{2 * now} (double)"


def _next_workers(now: int, preset: GpuPreset | None, cpus: int | None) -> str:
    counts = [one.workers for one in (preset.setting, preset.underused) if one] if preset else []
    wanted = next((value for value in counts if value > now), max(1, 2 * now))
    if cpus is not None and now > cpus:
        return f"{cpus} (no more processors are allowed here)"
    if now == cpus:
        return f"leave it: {_count(cpus, 'processor')} allowed"
    return f"{cpus} (all processors allowed)" if cpus is not None and wanted >= cpus else str(wanted)
