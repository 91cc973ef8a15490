"""What an optimizer keeps for each parameter, in bytes."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from h5stream.errors import OptionError

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
