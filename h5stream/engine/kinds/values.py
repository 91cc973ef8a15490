"""Values of variable length and strings, as batches have them: lists, and tensors of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from h5stream.engine.changes import Change, tensor_of
from h5stream.storage.layout.layout import FieldLayout


def fill(values: torch.Tensor, where: torch.Tensor, number: float) -> None:
    """Write a number to some places of the first axes; torch fills no floats of 8 bits."""
    if values.element_size() > 1:
        values[where] = number
    else:
        values.view(torch.uint8)[where] = torch.tensor(number).to(values.dtype).view(torch.uint8)


def strings_to_lists(strings: Any, *, cut_at_nul: bool) -> list[Any]:
    """Turn an array of fixed-length strings into nested lists of bytes."""
    listed: list[Any] = strings.tolist()
    return cut(listed) if cut_at_nul else listed


def cut(strings: list[Any]) -> list[Any]:
    """Cut nested lists of bytes where a string ends, to libhdf5."""
    return [cut(s) if isinstance(s, list) else s.split(b"\0", 1)[0] for s in strings]


def objects_of(values: list[Any], f: FieldLayout, change: Change | None = None) -> list[Any]:
    """Convert values that live outside of slots, one a sample, or a list of each sample's steps."""
    if 0 in f.row_shape:  # no chunk holds anything of such rows, so nothing was read
        empty: list[Any] = np.empty((len(values) // f.places, *f.row_shape), dtype=object).tolist()
        return empty
    converted = [object_value(value) for value in values]
    if f.take.steps is not None:
        return [converted[first : first + f.places] for first in range(0, len(converted), f.places)]
    return converted if change is None else [change.on_host(value) for value in converted]


def object_value(value: Any) -> Any:
    """Make a sequence of numbers a tensor of its own length, anything else of several a list; strings stay bytes."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "O":
        return [object_value(inner) for inner in value]
    if value.dtype.kind not in "biufc":
        return value.tolist()
    # Copied, so that a sample that is kept does not keep its neighbours.
    native = value.dtype.isnative
    return tensor_of(value.copy() if native else value.astype(value.dtype.newbyteorder("=")))
