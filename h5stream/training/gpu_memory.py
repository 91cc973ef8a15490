"""What training a model takes of a GPU's memory, and how many rows fit: arithmetic, no device."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Return what a training step takes of a GPU's memory, part by part, and the batch that would fit.

    The parameters, all of them trained, stand for one square matrix, which matters to factored optimizers alone (and
    flatters them). Activations and the optimizer's temporaries are not there at the same time, so the peak takes the
    larger of the two. The temporaries are another copy of the parameters: torch's default on CUDA (``foreach``).

    Examples
    --------
    >>> need = gpu_memory(110_000_000, optimizer="adamw", batch_size=96, memory_gib=8,
    ...                   activation_bytes_per_row=40 << 20).figures
    >>> need["fits"], need["largest_batch_size"]
    (True, 129)
    """
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
    kind, text = find_optimizer(optimizer), {name: text_of_bytes(nbytes) for name, nbytes in parts.items()}
    return Suggestion(
        title="GPU memory",
        answer=_answer(total, capacity, largest),
        arithmetic=(
            f"weights: {parameters:,} parameters = {text['weight_bytes']}, and as much for their gradients",
            f"optimizer, {kind.name}: keeps {kind.keeps} = {text['optimizer_bytes']}",
            f"activations: {batch_size} rows x {text_of_bytes(activation_bytes_per_row)} = {text['activation_bytes']}",
            f"optimizer step's temporaries: {text['step_bytes']}; the larger of the two counts: "
            f"{text_of_bytes(max(parts['activation_bytes'], weights))}",
            f"batches: {BATCHES_ON_DEVICE} x {batch_size} rows x {row_bytes} B = {text['batch_bytes']}",
            f"CUDA context {text['context_bytes']}, safety {SAFETY_SHARE:.0%} of the card {text['safety_bytes']}",
            f"together {text_of_bytes(total)} of {text_of_bytes(capacity)}",
        ),
        caveats=_caveats(parts["activation_bytes"]),
        figures=parts
        | {"total_bytes": total, "capacity_bytes": capacity, "largest_batch_size": largest, "fits": total <= capacity},
    )


def _answer(total: int, capacity: int, largest: int | None) -> str:
    verdict = "fits" if total <= capacity else f"{text_of_bytes(total - capacity)} too much"
    rows = "" if largest is None else f"; {largest} rows would fit"
    return f"{text_of_bytes(total)} of {text_of_bytes(capacity)}: {verdict}{rows}"


def _largest_batch(room: int, step: int, activations_per_row: float, on_device: int) -> int | None:
    """Solve ``batches + max(activations, step) <= room`` for the rows; None where rows cost nothing."""
    per_row = activations_per_row + on_device
    if per_row <= 0:
        return None
    by_activations = room / per_row
    if on_device > 0:
        by_step = (room - step) / on_device
    else:
        by_step = by_activations if room >= step else 0
    return max(0, int(min(by_activations, by_step)))


def _caveats(activations: int) -> tuple[str, ...]:
    if not activations:
        return ("activations are not in here: measure_activations(model, batch) on a small batch gives them",)
    return ("workspaces and the backward pass's temporaries are in the safety; find_batch_size() measures",)


# --- What an optimizer keeps for each parameter, in bytes -----------------------------------------


Shape = tuple[int, ...]

# bitsandbytes keeps one float32 scale for each block of this many values, and keeps tensors smaller than
# `min_8bit_size` in 32 bits.
_BLOCK_VALUES = 256
_SMALLEST_8BIT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """How much an optimizer keeps."""

    name: str
    """Its short name."""
    copies: int
    """State tensors as large as the parameter (or, with 8 bits, as many values)."""
    keeps: str
    """What they are."""
    form: str = "full"
    """``"full"`` in the parameter's own type, ``"8bit"``, or ``"factored"`` into rows and columns."""


_KINDS = (
    OptimizerKind(name="sgd", copies=0, keeps="nothing"),
    OptimizerKind(name="momentum", copies=1, keeps="momentum"),
    OptimizerKind(name="rmsprop", copies=1, keeps="square average"),
    OptimizerKind(name="adagrad", copies=1, keeps="sum of squares"),
    OptimizerKind(name="adadelta", copies=2, keeps="square average and step average"),
    OptimizerKind(name="adam", copies=2, keeps="first and second moment"),
    OptimizerKind(name="adamw", copies=2, keeps="first and second moment"),
    OptimizerKind(name="nadam", copies=2, keeps="first and second moment"),
    OptimizerKind(name="radam", copies=2, keeps="first and second moment"),
    OptimizerKind(name="adamax", copies=2, keeps="first moment and largest norm"),
    OptimizerKind(name="amsgrad", copies=3, keeps="both moments and the largest second moment"),
    OptimizerKind(name="lamb", copies=2, keeps="first and second moment"),
    OptimizerKind(name="lion", copies=1, keeps="momentum"),
    OptimizerKind(name="adam8bit", copies=2, keeps="both moments, 8 bits a value", form="8bit"),
    OptimizerKind(name="adamw8bit", copies=2, keeps="both moments, 8 bits a value", form="8bit"),
    OptimizerKind(name="lion8bit", copies=1, keeps="momentum, 8 bits a value", form="8bit"),
    OptimizerKind(name="adafactor", copies=1, keeps="second moment as rows and columns", form="factored"),
)
OPTIMIZERS = {kind.name: kind for kind in _KINDS}

_ALIASES = {"sgdmomentum": "momentum", "sgdm": "momentum", "nesterov": "momentum"}


def find_optimizer(name: str) -> OptimizerKind:
    """Return the optimizer of a name; case, dashes and where "8bit" stands do not matter.

    The error for an unknown one lists all names, the nearest first.

    Examples
    --------
    >>> find_optimizer("8-bit AdamW").name, find_optimizer("SGD").copies
    ('adamw8bit', 0)
    """
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    if "8bit" in key:
        key = key.replace("8bit", "").removeprefix("paged") + "8bit"
    kind = OPTIMIZERS.get(_ALIASES.get(key, key))
    if kind is None:
        near = difflib.get_close_matches(key, OPTIMIZERS, n=1, cutoff=0.3)
        names = ", ".join([*near, *(known for known in OPTIMIZERS if known not in near)])
        raise OptionError(f"no optimizer is known as {name!r}; known: {names}")
    return kind


def optimizer_state_bytes(optimizer: str, shapes: Sequence[Shape]) -> int:
    """Return the bytes of state that an optimizer keeps for float32 parameters of these shapes.

    The step counters (4 bytes a tensor, by default on the host) are left out.

    Notes
    -----
    8-bit states: https://arxiv.org/abs/2110.02861 and bitsandbytes' defaults (blocks of 256 values with one
    float32 scale, tensors under 4096 values stay in 32 bits). Adafactor: https://arxiv.org/abs/1804.04235,
    section 3, without first moment: a row and a column for every matrix, a full state for vectors.

    Examples
    --------
    >>> optimizer_state_bytes("adamw", [(1000, 1000)]), optimizer_state_bytes("adafactor", [(1000, 1000)])
    (8000000, 8000)
    """
    kind = find_optimizer(optimizer)
    if kind.form == "8bit":
        return sum(kind.copies * _bytes_8bit(math.prod(shape)) for shape in shapes)
    if kind.form == "factored":
        return 4 * sum(_factored_elements(shape) for shape in shapes)
    return 4 * kind.copies * sum(math.prod(shape) for shape in shapes)


def _bytes_8bit(values: int) -> int:
    if values < _SMALLEST_8BIT:
        return values * 4
    return values + 4 * math.ceil(values / _BLOCK_VALUES)


def _factored_elements(shape: Shape) -> int:
    if len(shape) < 2:
        return math.prod(shape)
    leading = math.prod(shape[:-2])
    return leading * (shape[-2] + shape[-1])
