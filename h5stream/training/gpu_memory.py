"""What training a model takes of a GPU's memory, and how many rows fit: arithmetic, no device."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from h5stream.advice.suggestion import Suggestion, above_zero, at_least
from h5stream.errors import OptionError
from h5stream.units import text_of_bytes

# The CUDA context with the kernels of torch and its libraries; several hundred MiB on every recent card.
CONTEXT_BYTES = 512 << 20

# Of the card's memory. Between the notes that leave 0.2 of 8 GiB (2.5 %) and call it full, and those that
# keep 4 of 24 GiB (17 %): allocator fragmentation, library workspaces and the backward pass's own temporaries.
SAFETY_SHARE = 0.10

# The batch in use and the one that is prefetched.
BATCHES_ON_DEVICE = 2

# Of a parameter and its gradient; autocast leaves both in 32 bits.
ELEMENT_BYTES = 4


def gpu_memory(
    parameters: int,
    *,
    optimizer: str,
    batch_size: int,
    memory_gib: float,
    activation_bytes_per_row: float = 0,
    row_bytes: int = 0,
) -> Suggestion:
    """Return what a training step takes of a GPU's memory, part by part, and the batch that would fit."""
    # Parameters stand for one square matrix, which matters to factored optimizers alone. The peak takes the larger of
    # activations and the optimizer's temporaries, as large as the parameters (``foreach``).
    at_least(0, row_bytes=row_bytes, activation_bytes_per_row=activation_bytes_per_row)
    at_least(1, parameters=parameters, batch_size=batch_size)
    above_zero(memory_gib=memory_gib)
    capacity, side = int(memory_gib * (1 << 30)), int(parameters**0.5)
    weights = ELEMENT_BYTES * parameters
    parts = {
        "weight_bytes": weights,
        "gradient_bytes": weights,
        "optimizer_bytes": optimizer_state_bytes(optimizer, [(side, side), (parameters - side * side,)]),
        "context_bytes": CONTEXT_BYTES,
        "safety_bytes": int(capacity * SAFETY_SHARE),
    }
    room = capacity - sum(parts.values())
    parts |= {
        "activation_bytes": int(activation_bytes_per_row * batch_size),
        "batch_bytes": BATCHES_ON_DEVICE * batch_size * row_bytes,
        "step_bytes": weights,
    }
    total = capacity - room + parts["batch_bytes"] + max(parts["activation_bytes"], weights)
    largest = _largest_batch(room, weights, activation_bytes_per_row, BATCHES_ON_DEVICE * row_bytes)
    text = {name: text_of_bytes(nbytes) for name, nbytes in parts.items()}
    name = find_optimizer(optimizer)
    rows = "" if largest is None else f"; {largest} rows would fit"
    verdict = "fits" if total <= capacity else f"{text_of_bytes(total - capacity)} too much"
    caveat = "workspaces and the backward pass's temporaries are in the safety; find_batch_size() measures"
    if not parts["activation_bytes"]:
        caveat = "activations are not in here: measure_activations(model, batch) on a small batch gives them"
    return Suggestion(
        title="GPU memory",
        answer=f"{text_of_bytes(total)} of {text_of_bytes(capacity)}: {verdict}{rows}",
        arithmetic=(
            f"weights: {parameters:,} parameters = {text['weight_bytes']}, and as much for their gradients",
            f"optimizer, {name}: keeps {OPTIMIZERS[name].keeps} = {text['optimizer_bytes']}",
            f"activations: {batch_size} rows x {text_of_bytes(activation_bytes_per_row)} = {text['activation_bytes']}",
            f"optimizer step's temporaries: {text['step_bytes']}; the larger of the two counts: "
            f"{text_of_bytes(max(parts['activation_bytes'], weights))}",
            f"batches: {BATCHES_ON_DEVICE} x {batch_size} rows x {row_bytes} B = {text['batch_bytes']}",
            f"CUDA context {text['context_bytes']}, safety {SAFETY_SHARE:.0%} of the card {text['safety_bytes']}",
            f"together {text_of_bytes(total)} of {text_of_bytes(capacity)}",
        ),
        caveats=(caveat,),
        figures=parts
        | {"total_bytes": total, "capacity_bytes": capacity, "largest_batch_size": largest, "fits": total <= capacity},
    )


def _largest_batch(room: int, step: int, activations_per_row: float, on_device: int) -> int | None:
    """Solve ``batches + max(activations, step) <= room`` for the rows; None where rows cost nothing."""
    per_row = activations_per_row + on_device
    if per_row <= 0:
        return None
    by_step = (room - step) / on_device if on_device else math.inf if room >= step else 0
    return max(0, int(min(room / per_row, by_step)))


# --- What an optimizer keeps for each parameter, in bytes -----------------------------------------


Shape = tuple[int, ...]

# bitsandbytes keeps one float32 scale for each block of this many values, and keeps tensors smaller than
# `min_8bit_size` in 32 bits.
_BLOCK_VALUES = 256
_SMALLEST_8BIT = 4096


class OptimizerKind(NamedTuple):
    """How much an optimizer keeps."""

    copies: int  # state tensors as large as the parameter (or, with 8 bits, as many values)
    keeps: str  # what they are
    form: str = "full"  # in the parameter's own type, "8bit", or "factored" into rows and columns


_MOMENTS = OptimizerKind(2, "first and second moment")
OPTIMIZERS = {
    "sgd": OptimizerKind(0, "nothing"),
    "momentum": OptimizerKind(1, "momentum"),
    "rmsprop": OptimizerKind(1, "square average"),
    "adagrad": OptimizerKind(1, "sum of squares"),
    "adadelta": OptimizerKind(2, "square average and step average"),
    "adam": _MOMENTS,
    "adamw": _MOMENTS,
    "nadam": _MOMENTS,
    "radam": _MOMENTS,
    "adamax": OptimizerKind(2, "first moment and largest norm"),
    "amsgrad": OptimizerKind(3, "both moments and the largest second moment"),
    "lamb": _MOMENTS,
    "lion": OptimizerKind(1, "momentum"),
    "adam8bit": OptimizerKind(2, "both moments, 8 bits a value", "8bit"),
    "adamw8bit": OptimizerKind(2, "both moments, 8 bits a value", "8bit"),
    "lion8bit": OptimizerKind(1, "momentum, 8 bits a value", "8bit"),
    "adafactor": OptimizerKind(1, "second moment as rows and columns", "factored"),
}
_ALIASES = {"sgdmomentum": "momentum", "sgdm": "momentum", "nesterov": "momentum"}


def find_optimizer(name: str) -> str:
    """Return an optimizer's name in the table; case, dashes and where "8bit" stands do not matter."""
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    if "8bit" in key:
        key = key.replace("8bit", "").removeprefix("paged") + "8bit"
    key = _ALIASES.get(key, key)
    if key not in OPTIMIZERS:
        near = difflib.get_close_matches(key, OPTIMIZERS, n=1, cutoff=0.3)
        names = ", ".join([*near, *(known for known in OPTIMIZERS if known not in near)])
        raise OptionError(f"no optimizer is known as {name!r}; known: {names}")
    return key


def optimizer_state_bytes(optimizer: str, shapes: Sequence[Shape]) -> int:
    """Return the bytes of state that an optimizer keeps for float32 parameters of these shapes.

    The step counters (4 bytes a tensor, by default on the host) are left out. 8-bit states:
    https://arxiv.org/abs/2110.02861 and bitsandbytes' defaults. Adafactor: https://arxiv.org/abs/1804.04235,
    section 3, without first moment: a row and a column for every matrix, a full state for vectors.
    """
    kind = OPTIMIZERS[find_optimizer(optimizer)]

    def state(shape: Shape) -> int:
        values = math.prod(shape)
        if kind.form == "8bit" and values >= _SMALLEST_8BIT:
            return values + 4 * math.ceil(values / _BLOCK_VALUES)
        if kind.form == "factored" and len(shape) >= 2:
            return 4 * math.prod(shape[:-2]) * (shape[-2] + shape[-1])
        return 4 * values

    return sum(kind.copies * state(shape) for shape in shapes)
