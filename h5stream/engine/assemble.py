"""A filled slot becomes tensors and lists in the user's structure; nothing is copied."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.engine.changes import Change, change_of, tensor_of
from h5stream.engine.kinds.ragged import RaggedRows, rows_of_values
from h5stream.engine.kinds.values import cut, fill, object_value, objects_of, strings_to_lists
from h5stream.engine.slots import Memory, SlotFormat
from h5stream.errors import OptionError
from h5stream.samples.ragged import ARRAYS, DENSE, STACKED
from h5stream.storage.layout.layout import FieldLayout, SampleLayout
from h5stream.structure import in_form, with_tensors

COPIED_SHARE = 32
"""A field that takes one part in so many of its slot, or less, is copied: kept labels must not keep the images."""

COPIED_NBYTES = 64 * 1024
"""So is one of this many bytes that takes a quarter of it or less: that costs some microseconds."""

UNINTERRUPTED_NBYTES = 1024 * 1024
"""Bytes that are copied without letting others run Python meanwhile: some 100 us."""

Changing = Callable[[Change, torch.Tensor, "torch.Tensor | None"], torch.Tensor]
"""Changes numbers; the last argument is that of `Change.into`."""


@dataclass(slots=True)
class _Filled:
    """A filled slot, and what its tensors are made of."""

    memory: Memory  # the slot here
    place: Memory | torch.Tensor  # the slot here, or as pinned memory, or its copy on a device
    slot_format: SlotFormat
    rows: int
    objects: dict[int, Any]  # by field number, values outside of slots
    device: torch.device | None  # that of `place`, if it is a tensor
    changed: Changing


_ROW_NBYTES = operator.attrgetter("row_nbytes")


class Assembler:
    """Makes batches out of slots.

    # Guarantees: immutable but for memory that is used again; any thread may call.
    """

    def __init__(self, layout: SampleLayout, *, gives_lists: bool = False) -> None:
        # Without users' functions that look up, which other processes may not be able to have.
        self.layout = replace(layout, lookups=(), shape=replace(layout.shape, fields=()))
        self._gives_lists = gives_lists and layout.shape.kind == "tuple"
        self._dtypes: dict[int, torch.dtype] = {}
        self._row_nbytes = tuple(map(_ROW_NBYTES, layout.fields))
        self._own_shapes: list[tuple[int, int]] = []
        self._changes: tuple[Change | None, ...] = ()
        self._makers: list[tuple[_Maker, int, FieldLayout]] = []
        for number, f in enumerate(layout.fields):
            if f.cast is not None and (f.is_listed or not isinstance(f.cast, torch.dtype)):
                what = "a torch dtype" if not f.is_listed else "nothing for a field that is no tensor"
                raise OptionError(f"field {f.name!r}: dtype= takes {what}, not {f.cast!r}")
            if not f.is_listed:
                self._dtypes[number] = tensor_of(np.empty(0, dtype=f.dtype)).dtype
            if f.shapes is not None:
                self._own_shapes.append((number, f.shapes))
            changes = f.cast is not None or f.normalize is not None or f.packings
            self._changes += (change_of(f, self._dtypes.get(number)) if changes else None,)
            is_rare = f.is_of_values or f.kind in ("object", "ragged", "bytes")
            self._makers.append((_maker_of(f) if is_rare else Assembler.tensor, number, f))

    @property
    def dtypes(self) -> list[tuple[FieldLayout, torch.dtype]]:
        """The fields that are tensors, with their types in a batch."""
        changes = [(n, dtype, self._changes[n]) for n, dtype in self._dtypes.items()]
        return [(self.layout.fields[n], dtype if change is None else change.dtype) for n, dtype, change in changes]

    def batch(
        self,
        memory: Memory,
        slot_format: SlotFormat,
        rows: int,
        objects: dict[int, Any],
        *,
        within: torch.Tensor | None = None,
        changed: Changing = Change.on_host,
    ) -> Any:
        """Return the batch that a slot holds; its tensors keep the slot leased, but for small ones, which are copies.

        Each tensor has a storage of its own length, so that ``torch.save`` writes no more, and small ones memory of
        their own. Not so where torch's allocators must know the memory again: tensors are views of `within` then, which
        is the slot as pinned memory, or its copy on a device.
        """
        place, device = (memory, None) if within is None else (within, within.device)
        filled = _Filled(memory, place, slot_format, rows, objects, device, changed)
        values = []
        for make, number, f in self._makers:
            values.append(make(self, number, f, filled))
        for number, shapes in self._own_shapes:
            sizes = self._numbers(shapes, filled, memory).tolist()
            values[number] = [one[tuple(map(slice, size))] for one, size in zip(values[number], sizes, strict=True)]
        batch = self.layout.assemble(values)
        return list(batch) if self._gives_lists else batch

    def tensor(self, number: int, f: FieldLayout, filled: _Filled) -> torch.Tensor:
        """Return the numbers of a field that lives in slots."""
        which = None if f.packed_by is None else self._packing(f, filled, filled.place)
        return self._numbers(number, filled, filled.place, which)

    def _packing(self, f: FieldLayout, filled: _Filled, packed: Memory | torch.Tensor) -> torch.Tensor | None:
        """Return the number of each sample's packing, or None if all samples share one."""
        return None if f.packed_by is None else self._numbers(f.packed_by, filled, packed)

    def objects(self, number: int, f: FieldLayout, filled: _Filled) -> list[Any]:
        """Return values that live in no slot."""
        return objects_of(filled.objects[number], f, self._changes[number])

    def ragged(self, number: int, f: FieldLayout, filled: _Filled) -> Any:
        """Return ragged rows in the form that the field asks for."""
        return self._ragged(number, f, filled.objects[number], filled, self._packing(f, filled, filled.memory))

    def _ragged(
        self, number: int, f: FieldLayout, rows: RaggedRows, filled: _Filled, which: torch.Tensor | None = None
    ) -> Any:
        if f.is_listed:
            listed: list[Any] = rows.arrange()
            if f.dtype.kind == "O":
                return [[object_value(value) for value in each] for each in listed]
            return cut(listed) if f.cut_at_nul else listed
        form, dtype, memory, counts = f.form, self._dtypes[number], rows.arrange(), rows.of
        # Made of the array itself, which says when its memory may be used again.
        values = torch.frombuffer(memory, dtype=dtype) if memory.nbytes else torch.empty(0, dtype=dtype)
        if form.form == DENSE:
            values = values.view(len(counts.lengths), form.wanted)
        elif form.form in ("pad", STACKED):
            values = values.view(len(counts.lengths), counts.longest, *f.row_shape)
        elif f.row_shape:
            values = values.view(int(counts.offsets[-1]), *f.row_shape)
        change = self._changes[number]
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

    def arrays(self, number: int, f: FieldLayout, filled: _Filled) -> Any:
        """Return values in memory, an array for each sample, in the form that the field asks for."""
        values: list[Any] = filled.objects[number]
        if f.form.form != ARRAYS:
            return self._ragged(number, f, rows_of_values(values, f), filled)
        tensors, change = (tensor_of(value.copy()) for value in values), self._changes[number]
        moved = [one if filled.device is None else one.to(filled.device) for one in tensors]
        return moved if change is None else [filled.changed(change, one, None) for one in moved]

    def strings(self, number: int, f: FieldLayout, filled: _Filled) -> list[Any]:
        """Return strings of a fixed length as lists of bytes."""
        start, nbytes = filled.slot_format.offsets[number], filled.rows * f.row_nbytes
        strings = filled.memory[start : start + nbytes].view(f.dtype) if nbytes else np.zeros(0, f.dtype)
        return strings_to_lists(strings.reshape(filled.rows, *f.row_shape), cut_at_nul=f.cut_at_nul)

    def _numbers(
        self, number: int, filled: _Filled, packed: Memory | torch.Tensor, which: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a field's numbers, changed as far as that is asked for."""
        f, dtype, start = self.layout.fields[number], self._dtypes[number], filled.slot_format.offsets[number]
        nbytes, shape = filled.rows * self._row_nbytes[number], (filled.rows, *f.row_shape)
        if not nbytes:
            tensor = torch.empty(shape, dtype=dtype, device=packed.device)
        elif isinstance(packed, torch.Tensor):
            tensor = packed[start : start + nbytes].view(dtype).view(shape)
        else:
            tensor = torch.from_numpy(_apart(packed, start, nbytes, f.dtype, shape))
            if tensor.dtype is not dtype:  # it has the bits of small floats
                tensor = tensor.view(dtype)
        change = self._changes[number]
        return tensor if change is None else filled.changed(change, tensor, which)


_Maker = Callable[[Assembler, int, FieldLayout, _Filled], Any]


def _maker_of(field: FieldLayout) -> _Maker:
    """Return what makes the values of a field."""
    if field.is_of_values:
        return Assembler.arrays
    makers: dict[str, _Maker] = {"object": Assembler.objects, "ragged": Assembler.ragged, "bytes": Assembler.strings}
    return makers.get(field.kind, Assembler.tensor)


def _apart(memory: Memory, start: int, nbytes: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a field with memory of its own: over the slot, or a copy."""
    keeps = memory.nbytes / nbytes
    if keeps < COPIED_SHARE and (nbytes > COPIED_NBYTES or keeps < 4):
        return np.ndarray(shape, dtype, memory, start)
    if nbytes > UNINTERRUPTED_NBYTES:
        return np.ndarray(shape, dtype, memory, start).copy()
    # NumPy would let Python's lock go for the copy, and wait for it while a reader runs Python.
    return np.ndarray(shape, dtype, bytearray(memory.data[start : start + nbytes]))
