"""Values of variable length and strings, as batches have them: lists, and tensors of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from h5stream.engine.changes import Change, tensor_of
from h5stream.engine.kinds.ragged import RaggedRows, rows_of_values
from h5stream.samples.ragged import ARRAYS, DENSE, STACKED
from h5stream.storage.layout.layout import FieldLayout
from h5stream.structure import in_form, with_tensors

if TYPE_CHECKING:
    from h5stream.engine.assemble import Assembler, Filled


Nested: TypeAlias = "bytes | list[Nested]"
"""Strings of a field whose rows have axes."""


def fill(values: torch.Tensor, where: torch.Tensor, number: float) -> None:
    """Write a number to some places of the first axes; torch fills no floats of 8 bits."""
    if values.element_size() > 1:
        values[where] = number
    else:
        values.view(torch.uint8)[where] = torch.tensor(number).to(values.dtype).view(torch.uint8)


def strings_to_lists(strings: np.ndarray, *, cut_at_nul: bool) -> list[Nested]:
    """Turn an array of fixed-length strings into nested lists of bytes."""
    listed: list[Nested] = strings.tolist()
    return cut(listed) if cut_at_nul else listed


def cut(strings: list[Any]) -> list[Nested]:
    """Cut nested lists of bytes where a string ends, to libhdf5."""
    return [cut(s) if isinstance(s, list) else s.split(b"\0", 1)[0] for s in strings]


def objects_of(values: list[Any], f: FieldLayout, change: Change | None = None) -> list[object]:
    """Convert values that live outside of slots, one a sample, or a list of each sample's steps."""
    if 0 in f.row_shape:  # no chunk holds anything of such rows, so nothing was read
        empty: list[object] = np.empty((len(values) // f.places, *f.row_shape), dtype=object).tolist()
        return empty
    converted = [object_value(value) for value in values]
    if f.take.steps is not None:
        return [converted[first : first + f.places] for first in range(0, len(converted), f.places)]
    return converted if change is None else [change.on_host(value) for value in converted]


def object_value(value: object) -> Any:
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


# --- what an assembler makes of fields that are not numbers in a slot ----------------------------------------


def objects(assembler: Assembler, number: int, f: FieldLayout, filled: Filled) -> list[object]:
    """Return values that live in no slot."""
    return objects_of(filled.objects[number], f, assembler.changes[number])


def ragged(assembler: Assembler, number: int, f: FieldLayout, filled: Filled) -> object:
    """Return ragged rows in the form that the field asks for."""
    return _ragged(assembler, number, f, filled.objects[number], filled, assembler.packing(f, filled, filled.memory))


def _ragged(
    assembler: Assembler,
    number: int,
    f: FieldLayout,
    rows: RaggedRows,
    filled: Filled,
    which: torch.Tensor | None = None,
) -> object:
    if f.is_listed:
        listed = rows.listed()
        if f.dtype.kind == "O":
            return [[object_value(value) for value in each] for each in listed]
        return cut(listed) if f.cut_at_nul else listed
    form, dtype, memory, counts = f.form, assembler.types[number], rows.laid(), rows.of
    # Made of the array itself, which says when its memory may be used again.
    values = torch.frombuffer(memory, dtype=dtype) if memory.nbytes else torch.empty(0, dtype=dtype)
    if form.form == DENSE:
        values = values.view(len(counts.lengths), form.wanted)
    elif form.form in ("pad", STACKED):
        values = values.view(len(counts.lengths), counts.longest, *f.row_shape)
    elif f.row_shape:
        values = values.view(int(counts.offsets[-1]), *f.row_shape)
    change = assembler.changes[number]
    if change is not None:
        if which is not None and form.form not in ("pad", STACKED):
            which = which.repeat_interleave(torch.from_numpy(np.asarray(counts.lengths, dtype=np.int64)))
        # Changed here also for a device, but for a cast: padding must stay what it is.
        values = filled.changed(change, values, None) if change.casts_alone else change.on_host(values, which)
        if not change.casts_alone and form.form == "pad":
            outside = torch.from_numpy(np.arange(counts.longest) >= counts.lengths[:, None])
            fill(values, outside, form.pad_value)
    batch, device = in_form(values, counts.lengths, counts.offsets, form.form), filled.device
    if device is None or device.type == "cpu":
        return batch
    return with_tensors(batch, lambda tensor: tensor.to(device))


def arrays(assembler: Assembler, number: int, f: FieldLayout, filled: Filled) -> object:
    """Return values in memory, an array for each sample, in the form that the field asks for."""
    values: list[Any] = filled.objects[number]
    if f.form.form != ARRAYS:
        return _ragged(assembler, number, f, rows_of_values(values, f), filled)
    tensors, change = (tensor_of(value.copy()) for value in values), assembler.changes[number]
    moved = [one if filled.device is None else one.to(filled.device) for one in tensors]
    return moved if change is None else [filled.changed(change, one, None) for one in moved]


def strings(_: Assembler, number: int, f: FieldLayout, filled: Filled) -> list[Nested]:
    """Return strings of a fixed length as lists of bytes."""
    start, nbytes = filled.slot_format.offsets[number], filled.rows * f.row_nbytes
    strings = filled.memory[start : start + nbytes].view(f.dtype) if nbytes else np.zeros(0, f.dtype)
    return strings_to_lists(strings.reshape(filled.rows, *f.row_shape), cut_at_nul=f.cut_at_nul)


Maker = Callable[["Assembler", int, FieldLayout, "Filled"], Any]
"""Makes the values of a field, by its number, of a filled slot."""


def maker_of(field: FieldLayout) -> Maker | None:
    """Return what makes the values of a field; None for numbers that live in slots."""
    if field.is_of_values:
        return arrays
    makers: dict[str, Maker] = {"object": objects, "ragged": ragged, "bytes": strings}
    return makers.get(field.kind)
