"""A filled slot becomes tensors and lists in the user's structure; nothing is copied."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.engine.kinds.ragged import RaggedRows, rows_of_values
from h5stream.engine.slots import Memory, SlotFormat
from h5stream.engine.unpacking import Unpacking
from h5stream.errors import OptionError
from h5stream.samples.ragged import ARRAYS, DENSE, STACKED, Normalization
from h5stream.storage.decode.small_floats import FLOATS, name_of
from h5stream.storage.layout.layout import FieldLayout, SampleLayout
from h5stream.structure import in_form, with_tensors

_SMALL = {str(one).removeprefix("torch."): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
"""Torch's types by their names, as `h5stream.storage.decode.small_floats` has those that NumPy has not."""


def tensor_of(values: NDArray[Any]) -> torch.Tensor:
    """Return a tensor over an array; if it holds the bits of small floats, of these."""
    tensor, name = torch.from_numpy(values), name_of(values.dtype)
    return tensor.view(_SMALL[name]) if name else tensor


_WHOLE = torch.uint8, torch.int8, torch.int16, torch.uint16, torch.bool

NARROW = (torch.float32, torch.float16, *(_SMALL[name] for name in FLOATS), *_WHOLE)
"""Types whose every number a float32 holds; others are worked on as float64, and rounded at the end."""


class Change:
    """Makes floats of stored numbers, normalizes them and casts them, as far as that is asked for.

    # Guarantees: any thread may call; constants are made once for each device, and stay.
    """

    def __init__(
        self, dtype: torch.dtype, normalization: Normalization | None = None, unpacking: Unpacking | None = None
    ) -> None:
        self.dtype, self.normalization, self.unpacking = dtype, normalization, unpacking
        self._constants: dict[tuple[Any, torch.dtype], tuple[Any, Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Change, (self.dtype, self.normalization, self.unpacking)

    @property
    def casts_alone(self) -> bool:
        """Whether it changes the type of the numbers alone."""
        return self.normalization is None and self.unpacking is None

    def on_host(self, raw: torch.Tensor, which: torch.Tensor | None = None) -> torch.Tensor:
        """Return the numbers changed; in place where their type stays, for a batch owns its memory."""
        if self.casts_alone:
            return raw.to(self.dtype)
        out = raw if raw.dtype == self.dtype else torch.empty_like(raw, dtype=self.dtype)
        self.into(out, raw, which)
        return out

    def into(self, out: torch.Tensor, raw: torch.Tensor, which: torch.Tensor | None = None) -> None:
        """Write the changed numbers; kernels are launched on the current stream.

        `which` says for each index of the first axis by which packing it is stored, where there are several.
        """
        if self.unpacking is not None:
            unpacked = self.unpacking.dtype
            work = out if out.dtype == unpacked else torch.empty_like(out, dtype=unpacked)
            self.unpacking.into(work, raw, which)
            raw = work
        normalization = self.normalization
        if normalization is None:
            if raw is not out:
                out.copy_(raw)
            return
        wide = raw.dtype not in NARROW or self.dtype == torch.float64
        dtype = torch.float64 if wide else torch.float32
        work = out if out.dtype == dtype else torch.empty_like(out, dtype=dtype)
        if work.data_ptr() != raw.data_ptr():
            work.copy_(raw)
        mean, std = self._constants_on(work, normalization)
        if normalization.factor != 1:
            work.mul_(normalization.factor)
        if normalization.mean != 0:
            work.sub_(mean)
        if normalization.std != 1:
            work.div_(std)
        if normalization.nan is not None:
            work.nan_to_num_(nan=normalization.nan, posinf=float("inf"), neginf=-float("inf"))
        if work is not out:
            out.copy_(work)

    def _constants_on(self, work: torch.Tensor, normalization: Normalization) -> tuple[Any, Any]:
        """Return mean and deviation on the device of the numbers; single ones as Python's numbers."""
        key = work.device, work.dtype
        if key not in self._constants:
            mean, std = (a.item() if a.ndim == 0 else torch.from_numpy(a).to(work) for a in normalization.arrays)
            self._constants[key] = mean, std
        return self._constants[key]


# --- batches ---


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
            self._changes += (_change_of(f, self._dtypes.get(number)) if changes else None,)
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
            return _cut(listed) if f.cut_at_nul else listed
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
                _fill(values, outside, form.pad_value)
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


def unpacking_of(field: FieldLayout) -> Unpacking | None:
    """Return what makes floats of a field's stored numbers; None for a field whose numbers come as they are stored."""
    return Unpacking(field.packings, field.dtype) if field.packings else None


def _change_of(field: FieldLayout, dtype: torch.dtype | None) -> Change | None:
    """Return the change to a field's numbers, or None if they stay the same."""
    unpacking = unpacking_of(field)
    if field.normalize is None and unpacking is None:
        return None if field.cast is None or field.cast == dtype else Change(field.cast)
    wanted = field.cast
    if wanted is None:
        wanted = torch.float32 if field.normalize is not None or unpacking is None else unpacking.dtype
    if not wanted.is_floating_point:
        option = "missing=" if field.normalize is None else "normalize="
        raise OptionError(
            f"field {field.name!r}: {option} gives floating point numbers, so dtype= takes such a type, not {wanted}"
        )
    return Change(wanted, field.normalize, unpacking)


def _apart(memory: Memory, start: int, nbytes: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a field with memory of its own: over the slot, or a copy."""
    keeps = memory.nbytes / nbytes
    if keeps < COPIED_SHARE and (nbytes > COPIED_NBYTES or keeps < 4):
        return np.ndarray(shape, dtype, memory, start)
    if nbytes > UNINTERRUPTED_NBYTES:
        return np.ndarray(shape, dtype, memory, start).copy()
    # NumPy would let Python's lock go for the copy, and wait for it while a reader runs Python.
    return np.ndarray(shape, dtype, bytearray(memory.data[start : start + nbytes]))


def _fill(values: torch.Tensor, where: torch.Tensor, number: float) -> None:
    """Write a number to some places of the first axes; torch fills no floats of 8 bits."""
    if values.element_size() > 1:
        values[where] = number
    else:
        values.view(torch.uint8)[where] = torch.tensor(number).to(values.dtype).view(torch.uint8)


def strings_to_lists(strings: Any, *, cut_at_nul: bool) -> list[Any]:
    """Turn an array of fixed-length strings into nested lists of bytes."""
    listed: list[Any] = strings.tolist()
    return _cut(listed) if cut_at_nul else listed


def _cut(strings: list[Any]) -> list[Any]:
    return [_cut(s) if isinstance(s, list) else s.split(b"\0", 1)[0] for s in strings]


def objects_of(values: list[Any], f: FieldLayout, change: Change | None = None) -> list[Any]:
    """Convert values that live outside of slots, one a sample, or a list of each sample's steps."""
    if 0 in f.row_shape:  # no chunk holds anything of such rows, so nothing was read
        empty: list[Any] = np.empty((len(values) // f.places, *f.row_shape), dtype=object).tolist()
        return empty
    converted = [object_value(value) for value in values]
    if f.steps is not None:
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
