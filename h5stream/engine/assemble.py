"""A filled slot becomes tensors and lists in the user's structure; nothing is copied."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from h5stream.engine.changes import Change, change_of, tensor_of
from h5stream.engine.kinds.values import Maker, maker_of
from h5stream.engine.slots import Memory, SlotFormat
from h5stream.errors import OptionError
from h5stream.storage.layout.layout import FieldLayout, SampleLayout

COPIED_SHARE = 32
"""A field that takes one part in so many of its slot, or less, is copied: kept labels must not keep the images."""

COPIED_NBYTES = 64 * 1024
"""So is one of this many bytes that takes a quarter of it or less: that costs some microseconds."""

UNINTERRUPTED_NBYTES = 1024 * 1024
"""Bytes that are copied without letting others run Python meanwhile: some 100 us."""

Changing = Callable[[Change, torch.Tensor, "torch.Tensor | None"], torch.Tensor]
"""Changes numbers; the last argument is that of `Change.into`."""


@dataclass(slots=True)
class Filled:
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
        self.types: dict[int, torch.dtype] = {}  # those of the fields that are tensors, as they are stored
        self._row_nbytes = tuple(map(_ROW_NBYTES, layout.fields))
        self._own_shapes: list[tuple[int, int]] = []
        self.changes: tuple[Change | None, ...] = ()
        self._makers: list[tuple[Maker, int, FieldLayout]] = []
        for number, f in enumerate(layout.fields):
            if f.cast is not None and (f.is_listed or not isinstance(f.cast, torch.dtype)):
                what = "a torch dtype" if not f.is_listed else "nothing for a field that is no tensor"
                raise OptionError(f"field {f.name!r}: dtype= takes {what}, not {f.cast!r}")
            if not f.is_listed:
                empty = np.empty(0, f.dtype)  # bits of small floats, if its type has metadata
                self.types[number] = (torch.from_numpy if f.dtype.metadata is None else tensor_of)(empty).dtype
            if f.shapes is not None:
                self._own_shapes.append((number, f.shapes))
            self.changes += (None if f.is_as_stored else change_of(f, self.types.get(number)),)
            is_rare = f.is_of_values or f.kind in ("object", "ragged", "bytes")
            make = maker_of(f) if is_rare else None
            self._makers.append((make or Assembler.tensor, number, f))

    @property
    def dtypes(self) -> list[tuple[FieldLayout, torch.dtype]]:
        """The fields that are tensors, with their types in a batch."""
        changes = [(n, dtype, self.changes[n]) for n, dtype in self.types.items()]
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
        filled = Filled(memory, place, slot_format, rows, objects, device, changed)
        values = []
        for make, number, f in self._makers:
            values.append(make(self, number, f, filled))
        for number, shapes in self._own_shapes:
            sizes = self.numbers(shapes, filled, memory).tolist()
            values[number] = [one[tuple(map(slice, size))] for one, size in zip(values[number], sizes, strict=True)]
        batch = self.layout.assemble(values)
        return list(batch) if self._gives_lists else batch

    def tensor(self, number: int, f: FieldLayout, filled: Filled) -> torch.Tensor:
        """Return the numbers of a field that lives in slots."""
        which = None if f.packed_by is None else self.packing(f, filled, filled.place)
        return self.numbers(number, filled, filled.place, which)

    def packing(self, f: FieldLayout, filled: Filled, packed: Memory | torch.Tensor) -> torch.Tensor | None:
        """Return the number of each sample's packing, or None if all samples share one."""
        return None if f.packed_by is None else self.numbers(f.packed_by, filled, packed)

    def numbers(
        self, number: int, filled: Filled, packed: Memory | torch.Tensor, which: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a field's numbers, changed as far as that is asked for."""
        f, dtype, start = self.layout.fields[number], self.types[number], filled.slot_format.offsets[number]
        nbytes, shape = filled.rows * self._row_nbytes[number], (filled.rows, *f.row_shape)
        if not nbytes:
            tensor = torch.empty(shape, dtype=dtype, device=packed.device)
        elif isinstance(packed, torch.Tensor):
            tensor = packed[start : start + nbytes].view(dtype).view(shape)
        else:
            tensor = torch.from_numpy(_apart(packed, start, nbytes, f.dtype, shape))
            if tensor.dtype is not dtype:  # it has the bits of small floats
                tensor = tensor.view(dtype)
        change = self.changes[number]
        return tensor if change is None else filled.changed(change, tensor, which)


def _apart(memory: Memory, start: int, nbytes: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return a field with memory of its own: over the slot, or a copy."""
    keeps = memory.nbytes / nbytes
    if keeps < COPIED_SHARE and (nbytes > COPIED_NBYTES or keeps < 4):
        return np.ndarray(shape, dtype, memory, start)
    if nbytes > UNINTERRUPTED_NBYTES:
        return np.ndarray(shape, dtype, memory, start).copy()
    # NumPy would let Python's lock go for the copy, and wait for it while a reader runs Python.
    return np.ndarray(shape, dtype, bytearray(memory.data[start : start + nbytes]))
