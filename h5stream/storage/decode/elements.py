"""Types of stored elements, and the parts of an element that a batch takes.

A *leaf* is the part of a stored element that a field takes: scalars of one type, in one run of bytes (a plain number, a
member of a compound, an array member) or in several (stacked members). Elements that are not provably laid out like
their NumPy dtype are read through h5py, which converts them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.storage.decode.small_floats import (
    FLOATS,
    NO_SMALL_TYPE,
    bits_dtype,
    dtype_of_float,
    name_of,
    stored_float,
)
from h5stream.storage.source.handles import DAMAGE, opened_apart

_Key = TypeVar("_Key")
_Made = TypeVar("_Made")

MOST_NBYTES = 1 << 24
"""Larger elements are read through h5py: a table has an entry for each byte of an element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The bytes of one stored element that a field takes."""

    stored_nbytes: int  # bytes of the whole stored element
    offsets: tuple[int, ...]  # first byte of each run within the element
    unit_nbytes: int  # bytes that are swapped together: a scalar, or half of a complex number
    units: int  # units in a run
    swapped: bool  # whether the file's byte order differs from this machine's
    dtype: np.dtype  # the scalar in native byte order, as a batch holds it
    shape: tuple[int, ...]  # shape of an array member, or of stacked members; otherwise `()`
    run_nbytes: int = field(init=False)  # run_nbytes, nbytes: bytes of a run, and of the leaf
    nbytes: int = field(init=False)
    is_whole: bool = field(init=False)  # whether the stored element *is* the leaf, byte for byte

    def __post_init__(self) -> None:
        run_nbytes = self.unit_nbytes * self.units
        nbytes = run_nbytes * len(self.offsets)
        is_whole = not self.swapped and self.offsets == (0,) and nbytes == self.stored_nbytes
        object.__setattr__(self, "run_nbytes", run_nbytes)
        object.__setattr__(self, "nbytes", nbytes)
        object.__setattr__(self, "is_whole", is_whole)

    @property
    def places(self) -> NDArray[np.int64]:
        """Offsets of the leaf's bytes in a stored element, in the order of a batch: units in sequence, native order."""
        within = np.arange(self.unit_nbytes, dtype=np.int64)[:: -1 if self.swapped else 1]
        begins = np.array(self.offsets)[:, None] + np.arange(self.units) * self.unit_nbytes
        return (begins[..., None] + within).reshape(-1)


def leaf_of(dtype: np.dtype, member: tuple[str, ...], stacked: tuple[str, ...] = ()) -> Leaf | None:
    """Return the leaf of a member, or of stacked members; None if it is not made of scalars of one type."""
    if stacked:
        return _stack_leaves([leaf_of(dtype, (*member, name)) for name in stacked])
    if dtype.itemsize > MOST_NBYTES:
        return None
    stored_nbytes, offset, current = dtype.itemsize, 0, dtype
    for name in member:
        if current.fields is None or name not in current.fields:
            return None
        current, inner = current.fields[name][:2]
        offset += inner
    base, shape = current.subdtype or (current, ())
    if base.fields is not None or base.kind not in "biufcSmM" or base.subdtype is not None:
        return None
    unit = {"c": base.itemsize // 2, "S": 1}.get(base.kind, base.itemsize)
    if unit not in (1, 2, 4, 8):
        return None
    return Leaf(
        stored_nbytes=stored_nbytes,
        offsets=(offset,),
        unit_nbytes=unit,
        units=current.itemsize // unit,
        swapped=unit > 1 and base.newbyteorder("=") != base,
        dtype=batch_dtype(base),
        shape=tuple(shape),
    )


def batch_dtype(dtype: np.dtype) -> np.dtype:
    """Return a scalar's type in a batch: native byte order, and int64 for dates and times."""
    return np.dtype(np.int64) if dtype.kind in "mM" else np.dtype(dtype.newbyteorder("="))


def _stack_leaves(leaves: list[Leaf | None]) -> Leaf | None:
    """Join leaves into one; adjacent ones become one run."""
    stackable = [leaf for leaf in leaves if leaf is not None]
    first = stackable[0] if stackable else None
    if (
        first is None
        or len(stackable) < len(leaves)
        or any(replace(one, offsets=first.offsets) != first for one in stackable)
    ):
        return None
    offsets = tuple(offset for leaf in stackable for offset in leaf.offsets)
    shape = (len(leaves), *first.shape)
    if all(b - a == first.nbytes for a, b in itertools.pairwise(offsets)):
        return replace(first, offsets=offsets[:1], units=first.units * len(leaves), shape=shape)
    return replace(first, offsets=offsets, shape=shape)


def plain_dtype(dtype: np.dtype) -> np.dtype:
    """Return a dtype with nested arrays flattened, and members in the order of their offsets.

    Other orders are unreliable: libhdf5 sorts the members of an open dataset's type when its elements are first
    converted, for any reader, and h5py's names then change.
    """
    if dtype.subdtype is not None:
        base = plain_dtype(dtype.subdtype[0])
        if base.subdtype is not None:
            return np.dtype((base.subdtype[0], (*dtype.subdtype[1], *base.subdtype[1])))
        return dtype if base is dtype.subdtype[0] else np.dtype((base, dtype.subdtype[1]))
    if dtype.fields is None or dtype.names is None:
        return dtype
    offset_of = {name: dtype.fields[name][1] for name in dtype.names}
    names = sorted(dtype.names, key=lambda name: (offset_of[name], name))
    formats = [plain_dtype(dtype[name]) for name in names]
    if (*names,) == dtype.names and all(a is dtype[name] for name, a in zip(names, formats, strict=True)):
        return dtype
    offsets = [offset_of[name] for name in names]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize})


def may_be_sorted(dtype: np.dtype) -> bool:
    """Return whether libhdf5 may have sorted the parts of complex numbers, so that h5py sees a compound."""
    base = dtype.base
    if base.names is None:
        return False
    return has_imaginary_first(base) or any(may_be_sorted(base[name]) for name in base.names)


def has_imaginary_first(dtype: np.dtype) -> bool:
    """Return whether elements are complex numbers with the imaginary part first."""
    return dtype.names == ("i", "r") and dtype["i"] == dtype["r"] and dtype["i"].kind == "f"


def as_complex(values: np.ndarray) -> np.ndarray:
    """Convert parts of complex numbers to complex numbers; return other values unchanged. See `dtype_of`."""
    if values.dtype.names is None or not has_imaginary_first(values.dtype):
        return values
    whole = np.empty(values.shape, f"c{2 * values.dtype['r'].itemsize}")
    whole.real, whole.imag = values["r"], values["i"]
    return whole


NO_TYPE = "h5py cannot read it"
"""The key, in the metadata of a member's dtype, of the reason why h5py cannot read it."""

CANNOT_READ = (TypeError, ValueError, NotImplementedError)
"""The exceptions of h5py for types that NumPy lacks."""


# What is known of compounds, by their encoding: a file has few, but a thousand members ask. No type of libhdf5 is kept,
# since it belongs to its file.
_MOST_KEPT = 64
_compounds = dict[bytes, np.dtype]()
_as_in_memory = dict[bytes, bool]()


def _kept(cache: dict[_Key, _Made], key: _Key, make: Callable[[], _Made]) -> _Made:
    """Return what was made for a key, or make it."""
    if (made := cache.get(key)) is None:
        made = make()
        if len(cache) >= _MOST_KEPT:
            cache.clear()
        cache[key] = made
    return made


def type_of(stored: h5py.h5t.TypeID) -> np.dtype:
    """Return the dtype of a stored type; members that h5py cannot read are opaque, with the reason as metadata."""
    kind = stored.get_class()
    if kind == h5py.h5t.INTEGER or (kind == h5py.h5t.FLOAT and stored.get_size() > 2 and stored.get_precision() > 8):
        plain: np.dtype = stored.dtype
        return plain
    if kind != h5py.h5t.COMPOUND:
        return _readable_type(stored)
    return _kept(_compounds, stored.encode(), lambda: _compound_of(stored))


def _compound_of(stored: h5py.h5t.TypeID) -> np.dtype:
    try:
        return _readable_type(stored)
    except CANNOT_READ:
        formats = dict[str, np.dtype]()
    for name, _, member in stored_members(stored):
        try:
            formats[name] = type_of(member)
        except CANNOT_READ as error:
            formats[name] = np.dtype(f"V{member.get_size()}", metadata={NO_TYPE: str(error)})
    return np.dtype([*formats.items()])


def dtype_of(dataset: h5py.Dataset) -> np.dtype:
    """Return the dtype of a dataset's elements, whether or not elements were read before.

    libhdf5 sorts the members of an open dataset's type by offset when it first converts elements, for any reader. After
    that, h5py sees a compound in complex numbers whose real part was declared first but has the larger offset.
    """
    dtype = type_of(dataset.id.get_type())
    if dtype.base.names is None or not may_be_sorted(dtype) or not dataset.name:
        return dtype
    with contextlib.suppress(*DAMAGE), opened_apart(os.fsdecode(dataset.file.filename)) as file:
        return type_of(file[dataset.name].id.get_type())
    return dtype


def type_if_any(stored: h5py.h5t.TypeID) -> np.dtype | None:
    """Return the dtype of a stored type, its members by offset; None if h5py has none."""
    try:
        return plain_dtype(type_of(stored))
    except CANNOT_READ:
        return None


def _readable_type(stored: h5py.h5t.TypeID) -> np.dtype:
    """Return the dtype that values of a stored type are read as; raise one of `CANNOT_READ` if there is none.

    It is h5py's dtype, except that small floats are bits.
    """
    inside = [*_types_in(stored)]
    if any(one.get_class() == h5py.h5t.BITFIELD and not _is_full(one) for one in inside):
        raise TypeError("libhdf5 converts no bit fields with unused bits")
    if not any(dtype_of_float(one) is not None for one in inside):
        dtype: np.dtype = stored.dtype
        if _overlaps(dtype):
            raise TypeError("h5py gives its members types that are larger than they are, and overlap")
        return dtype
    kind = stored.get_class()
    if kind == h5py.h5t.ARRAY:
        return np.dtype((_readable_type(stored.get_super()), stored.get_array_dims()))
    if kind == h5py.h5t.VLEN:
        items: np.dtype = h5py.vlen_dtype(_readable_type(stored.get_super()))
        return items
    if kind != h5py.h5t.COMPOUND and (bits := dtype_of_float(stored)) is not None:
        return bits
    names, offsets, members = zip(*stored_members(stored), strict=True)
    formats = [*map(_readable_type, members)]
    dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": stored.get_size()})
    if _overlaps(dtype):
        raise TypeError("h5py gives its members types that are larger than they are, and overlap")
    return dtype


def memory_type(dtype: np.dtype, *, is_stored: bool = False) -> h5py.h5t.TypeID:
    """Return the HDF5 type of a dtype in memory, or with `is_stored` in a file, where no Python objects are.

    Small floats are floats in it, so that libhdf5 converts none.
    """
    if all(not name_of(one) for one in _dtypes_in(dtype)):
        return h5py.h5t.py_create(dtype, logical=is_stored)
    if dtype.subdtype is not None:
        return h5py.h5t.array_create(memory_type(dtype.subdtype[0], is_stored=is_stored), dtype.subdtype[1])
    if dtype.fields is None or dtype.names is None:
        return stored_float(dtype)
    compound = h5py.h5t.create(h5py.h5t.COMPOUND, dtype.itemsize)
    for name in dtype.names:
        one, offset = dtype.fields[name][:2]
        compound.insert(name.encode("utf-8", "surrogateescape"), offset, memory_type(one, is_stored=is_stored))
    return compound


def _dtypes_in(dtype: np.dtype) -> Iterator[np.dtype]:
    """Yield the dtypes of all scalars in an element."""
    if dtype.base.names is None:
        yield dtype.base
    for name in dtype.base.names or ():
        yield from _dtypes_in(dtype.base[name])


def has_small_floats(dtype: np.dtype) -> bool:
    """Return whether elements are, or contain, floats that NumPy has no type for."""
    return any(name_of(one) or has_small_sequences(one) for one in _dtypes_in(dtype))


def has_small_sequences(dtype: np.dtype) -> bool:
    """Return whether elements are, or contain, variable-length values of such floats."""
    inside = (vlen_base(one) for one in _dtypes_in(dtype))
    return any(items is not None and has_small_floats(items) for items in inside)


def as_torch_bits(dtype: np.dtype, torch_dtype: object) -> np.dtype:
    """Return a dtype with opaque bytes as the bits of `torch_dtype`, if the sizes match."""
    name = str(torch_dtype).removeprefix("torch.")
    if name not in FLOATS or dtype.kind != "V" or _why_no_type(dtype):
        return dtype
    if dtype.subdtype is not None:
        return np.dtype((as_torch_bits(dtype.subdtype[0], torch_dtype), dtype.subdtype[1]))
    if dtype.fields is None or dtype.names is None:
        return bits_dtype(name, dtype.itemsize) if dtype.itemsize == FLOATS[name].nbytes else dtype
    formats, offsets = (
        [as_torch_bits(dtype[one], torch_dtype) for one in dtype.names],
        [dtype.fields[one][1] for one in dtype.names],
    )
    return np.dtype({"names": dtype.names, "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize})


def value_as_torch_bits(value: object, torch_dtype: object) -> object:
    """Return a value or an array with opaque bytes as the bits of `torch_dtype`."""
    if torch_dtype is None or not isinstance(value, (np.ndarray, np.void)):
        return value
    dtype = as_torch_bits(value.dtype, torch_dtype)
    return value if dtype is value.dtype else np.asarray(value).view(dtype)


def same_type(a: np.dtype, b: np.dtype) -> bool:
    """Return whether two dtypes are equal, and name the same small floats."""
    return a == b and [*map(name_of, _dtypes_in(a))] == [*map(name_of, _dtypes_in(b))]


def _overlaps(dtype: np.dtype) -> bool:
    """Return whether members of a dtype overlap, as those of h5py 3.16 do if it widens numbers."""
    if dtype.subdtype is not None:
        return _overlaps(dtype.subdtype[0])
    items = h5py.check_vlen_dtype(dtype)
    if dtype.fields is None:
        return isinstance(items, np.dtype) and _overlaps(items)
    ends = sorted((offset, offset + one.itemsize) for one, offset, *_ in dtype.fields.values())
    crosses = any(end > begin for (_, end), (begin, _) in itertools.pairwise(ends))
    return crosses or any(_overlaps(one) for one, *_ in dtype.fields.values())


def _why_no_type(dtype: np.dtype) -> str:
    """Return why h5py has no type for a member; empty if it has one."""
    return "" if dtype.metadata is None else str(dtype.metadata.get(NO_TYPE, ""))


def no_type(why: str) -> str:
    """Return the message for a type that h5py cannot read, with the way out."""
    way_out = "Write it anew as one that NumPy has: times of HDF5's own type, for instance, as int64"
    if why.startswith(NO_SMALL_TYPE):
        way_out = "Write it anew as a larger one: float16, or bfloat16"
    return f"a type that h5py cannot read: {why}. {way_out}"


def readable_of(dtype: np.dtype) -> np.dtype | None:
    """Return a dtype without the members that h5py cannot read; None if none remains."""
    if dtype.fields is None:
        return None if _why_no_type(dtype) else dtype
    inner = {name: readable_of(dtype[name]) for name in dtype.names or ()}
    if all(one is dtype[name] for name, one in inner.items()):
        return dtype
    readable = [(name, one) for name, one in inner.items() if one is not None]
    return np.dtype(readable) if readable else None


def stored_members(stored: h5py.h5t.TypeID) -> list[tuple[str, int, h5py.h5t.TypeID]]:
    """Return the name, offset and type of each member of a stored compound, by ascending offset."""
    numbers = range(stored.get_nmembers())
    names = (stored.get_member_name(i).decode("utf-8", "surrogateescape") for i in numbers)
    every = (
        (name, stored.get_member_offset(i), stored.get_member_type(i)) for i, name in zip(numbers, names, strict=True)
    )
    return sorted(every, key=lambda member: member[1])


def is_readable(stored: h5py.h5t.TypeID) -> bool:
    """Return whether h5py can read all of a stored type."""
    try:
        return _readable_type(stored) is not None
    except CANNOT_READ:
        return False


class StoredElement(NamedTuple):
    """The layout of a dataset's elements in the file."""

    nbytes: int  # of an element
    plain: h5py.h5t.TypeID | None  # the type of the data in the element itself, for a compound of those members
    loose: dict[tuple[str, ...], tuple[int, h5py.h5t.TypeID]]  # variable-length members: offset of the reference, type

    is_whole: bool = False  # whether `plain` is all of the stored type

    @property
    def in_place(self) -> NDArray[np.bool_]:
        """A mask of the bytes of an element that hold data of a member, and no reference to the heap."""
        mask = np.zeros(self.nbytes, dtype=bool)
        inside = [] if self.plain is None else [(0, self.plain)]
        while inside:
            begin, one = inside.pop()
            if one.get_class() == h5py.h5t.COMPOUND:
                inside += [(begin + offset, member) for _, offset, member in stored_members(one)]
            else:
                mask[begin : begin + one.get_size()] = True
        return mask

    @property
    def dtype(self) -> np.dtype:
        """The dtype of `plain`."""
        return np.dtype("V1") if self.plain is None else plain_dtype(type_of(self.plain))


def element_nbytes(dataset: h5py.Dataset) -> int:
    """Return the bytes of a dataset's element in its file."""
    stored = dataset.id.get_type()
    if is_fixed(stored):
        return int(stored.get_size())
    wide, _ = dataset.file.id.get_create_plist().get_sizes()
    return _file_layout(stored, wide).nbytes


def stored_as(dataset: h5py.Dataset) -> StoredElement:
    """Return the layout of a dataset's elements in its file; libhdf5 only has that in memory."""
    stored = dataset.id.get_type()
    if stored.get_class() != h5py.h5t.COMPOUND or _kept(_as_in_memory, stored.encode(), lambda: _is_whole(stored)):
        return StoredElement(stored.get_size(), stored, {}, is_whole=True)
    wide, _ = dataset.file.id.get_create_plist().get_sizes()
    return _file_layout(stored, wide)


def _is_whole(stored: h5py.h5t.TypeID) -> bool:
    return is_readable(stored) and not has_variable(stored)


def _file_layout(stored: h5py.h5t.TypeID, wide: int) -> StoredElement:
    """Return the layout of elements in a file whose addresses have `wide` bytes.

    Pointers in memory and heap references in the file differ in size: libhdf5 shifts all later members, in the order of
    their offsets (`H5T_set_loc`).
    """
    kind = stored.get_class()
    if kind == h5py.h5t.VLEN or (kind == h5py.h5t.STRING and stored.is_variable_str()):
        return StoredElement(wide + 8, None, {(): (0, stored)})
    if kind == h5py.h5t.REFERENCE:
        return StoredElement(wide + 4 * (not stored.equal(h5py.h5t.STD_REF_OBJ)), None, {})
    if kind == h5py.h5t.ARRAY:
        inner = _file_layout(stored.get_super(), wide)
        count = math.prod(stored.get_array_dims())
        return StoredElement(inner.nbytes * count, stored if is_fixed(stored) and is_readable(stored) else None, {})
    if kind != h5py.h5t.COMPOUND:
        is_plain = is_readable(stored) and _readable_type(stored).itemsize == stored.get_size()
        return StoredElement(stored.get_size(), stored if is_plain else None, {})
    loose, shift, plain = (
        dict[tuple[str, ...], tuple[int, h5py.h5t.TypeID]](),
        0,
        list[tuple[bytes, int, h5py.h5t.TypeID]](),
    )
    for name, offset, member in stored_members(stored):
        inner = _file_layout(member, wide)
        loose |= {(name, *path): (offset + shift + begin, one) for path, (begin, one) in inner.loose.items()}
        if inner.plain is not None:
            plain.append((name.encode("utf-8", "surrogateescape"), offset + shift, inner.plain))
        shift += inner.nbytes - member.get_size()
    nbytes = stored.get_size() + shift
    if not plain:
        return StoredElement(nbytes, None, loose)
    compound = h5py.h5t.create(h5py.h5t.COMPOUND, nbytes)
    for encoded, offset, member in plain:
        compound.insert(encoded, offset, member)
    return StoredElement(nbytes, compound, loose)


def vlen_base(dtype: np.dtype) -> np.dtype | None:
    """Return the dtype of the items of variable-length values; None for strings and everything else."""
    base = h5py.check_vlen_dtype(dtype)
    return base if isinstance(base, np.dtype) else None


Meanings = tuple[tuple[int, str], ...]
"""The numbers of an enum, ascending, with their labels; empty for other types."""


def meanings_of(dtype: np.dtype) -> Meanings:
    """Return the labels of an enum, also of arrays or variable-length values of one."""
    items = h5py.check_vlen_dtype(dtype)
    labels = h5py.check_enum_dtype((items if isinstance(items, np.dtype) else dtype).base)
    return tuple(sorted((int(number), str(label)) for label, number in labels.items())) if labels else ()


def joined_meanings(several: Iterable[tuple[Meanings, str]]) -> tuple[Meanings, str]:
    """Merge the labels of enums; return them, and a message if two contradict each other.

    An enum may have numbers and labels that another lacks, and plain numbers never contradict.
    """
    numbers, labels, pairs = dict[int, tuple[str, str]](), dict[str, tuple[int, str]](), set[tuple[int, str]]()
    for meanings, place in several:
        for number, label in meanings:
            first, where = numbers.setdefault(number, (label, place))
            if first != label:
                return (), f"number {number} stands for {first!r} in {where}, and for {label!r} in {place}"
            pairs.add((number, label))
            other, where = labels.setdefault(label, (number, place))
            if other != number:
                return (), f"{label!r} is the number {other} in {where}, and {number} in {place}"
    return tuple(sorted(pairs)), ""


def enums_in(dtype: np.dtype, path: str = "") -> Iterator[tuple[str, Meanings]]:
    """Yield the enums of a dtype, with the paths of their members."""
    for name in dtype.base.names or ():
        yield from enums_in(dtype.base[name], f"{path}:{name}")
    if meanings := meanings_of(dtype):
        yield path, meanings


def why_not_joined(a: np.dtype, b: np.dtype, places: tuple[str, str]) -> str:
    """Return how enums of two dtypes contradict each other; empty if they do not."""
    others = dict(enums_in(b))
    pairs = ((path, [(mine, places[0]), (others.get(path, ()), places[1])]) for path, mine in enums_in(a))
    every = ((path, joined_meanings(pair)[1]) for path, pair in pairs)
    return next((f"enum {path.lstrip(':') or 'of its elements'}: {why}" for path, why in every if why), "")


def is_text(dtype: np.dtype) -> bool:
    """Return whether values are strings of variable length."""
    text = h5py.check_string_dtype(dtype)
    return text is not None and text.length is None


def is_byte(dtype: np.dtype | None) -> bool:
    """Return whether elements are bytes, and not floats of 8 bits."""
    return dtype is not None and dtype == np.uint8 and not name_of(dtype)


def bytes_leaf(dtype: np.dtype) -> Leaf | None:
    """Return the leaf that takes an element as bytes; None if its dtype is not one of bytes."""
    if (dtype.kind not in "SV" and not is_byte(dtype)) or dtype.fields is not None:
        return None
    count = dtype.itemsize
    shape = () if dtype.kind == "u" else (count,)
    return Leaf(
        stored_nbytes=count, offsets=(0,), unit_nbytes=1, units=count, swapped=False, dtype=np.dtype("u1"), shape=shape
    )


def is_stored_as(stored: h5py.h5t.TypeID, dtype: np.dtype) -> bool:
    """Return whether a stored type has the layout of a dtype, byte for byte."""
    if stored.get_size() != dtype.itemsize:
        return False
    try:
        if dtype.kind in "iuf" and dtype.metadata is None and stored.equal(h5py.h5t.py_create(dtype, logical=True)):
            return True
        return bool(_same_layout(stored, memory_type(dtype, is_stored=True)))
    except (TypeError, ValueError, NotImplementedError):  # for instance, a member without a name
        return False


BITFIELDS = tuple(getattr(h5py.h5t, f"STD_B{bits}{order}") for bits in (8, 16, 32, 64) for order in ("LE", "BE"))
"""Bit fields without unused bits, which are stored like unsigned numbers."""


def _is_full(bits: h5py.h5t.TypeID) -> bool:
    """Return whether a bit field has no unused bits."""
    return any(bits.equal(one) for one in BITFIELDS)


def _same_layout(stored: h5py.h5t.TypeID, numpy_like: h5py.h5t.TypeID) -> bool:
    kind, size, other = stored.get_class(), stored.get_size(), numpy_like.get_class()
    if kind == h5py.h5t.BITFIELD:  # stored like an unsigned number
        is_unsigned = other == h5py.h5t.INTEGER and numpy_like.get_sign() == h5py.h5t.SGN_NONE
        is_same_order = is_unsigned and (size == 1 or stored.get_order() == numpy_like.get_order())
        return is_same_order and size == numpy_like.get_size() and _is_full(stored)
    if kind != other or size != numpy_like.get_size():
        return False
    if kind == h5py.h5t.COMPOUND:
        # Compare names too: h5py orders the parts of a complex number its own way, whatever the order in the file.
        members, twins = (
            {(t.get_member_name(i), t.get_member_offset(i)): t.get_member_type(i) for i in range(t.get_nmembers())}
            for t in (stored, numpy_like)
        )
        return members.keys() == twins.keys() and all(_same_layout(one, twins[at]) for at, one in members.items())
    if kind in (h5py.h5t.ARRAY, h5py.h5t.ENUM):
        # The labels of an enum do not matter to the bytes, its integer type does.
        is_like = kind == h5py.h5t.ENUM or stored.get_array_dims() == numpy_like.get_array_dims()
        return is_like and _same_layout(stored.get_super(), numpy_like.get_super())
    if kind == h5py.h5t.STRING:
        # A space-padded string is converted by libhdf5; `ends_at_nul` deals with the others.
        return not stored.is_variable_str() and stored.get_strpad() in (h5py.h5t.STR_NULLTERM, h5py.h5t.STR_NULLPAD)
    if kind == h5py.h5t.VLEN:
        # The file holds heap references, which libhdf5 turns into pointers: reading them raw would leak.
        return False
    if kind in (h5py.h5t.INTEGER, h5py.h5t.FLOAT) and size == 1 and stored.get_order() != numpy_like.get_order():
        numpy_like = numpy_like.copy()  # one byte has no order
        numpy_like.set_order(stored.get_order())
    return bool(stored.equal(numpy_like))


def ends_at_nul(stored: h5py.h5t.TypeID, member: tuple[str, ...]) -> bool:
    """Return whether a leaf holds fixed-length strings that end at their first NUL.

    Bytes after that NUL are not part of the string, and libhdf5 does not return them.
    """
    for name in member:
        stored = stored.get_member_type(stored.get_member_index(name.encode()))
    while stored.get_class() == h5py.h5t.ARRAY:
        stored = stored.get_super()
    return bool(stored.get_class() == h5py.h5t.STRING and stored.get_strpad() == h5py.h5t.STR_NULLTERM)


def refusal(dtype: np.dtype) -> str | None:
    """Return why a dtype cannot become a tensor or a list; None if it can."""
    if h5py.check_ref_dtype(dtype) is not None:
        return "references point into the file and mean nothing in a batch; read what they point to"
    if dtype.metadata is not None and (why := _why_no_type(dtype)):
        return no_type(why)
    if dtype.fields is not None and (
        lacking := [name for name in dtype.names or () if readable_of(dtype[name]) is None]
    ):
        return f"its member {lacking[0]!r} has {refusal(dtype[lacking[0]]) or 'members'}"
    if dtype.kind == "V" and dtype.fields is None and dtype.subdtype is None:
        why = "opaque bytes have no number type; store them as uint8, or read them with h5py"
        name = next((name for name, one in FLOATS.items() if one.nbytes == dtype.itemsize), "")
        others = " (or another type of 8 bits)" if dtype.itemsize == 1 else ""
        return f"{why}; Field(..., dtype=torch.{name}){others} takes bytes as ml_dtypes has them" if name else why
    if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
        return f"{dtype} is wider than any torch dtype; store it as float64 (complex128)"
    if dtype.subdtype is not None:
        return refusal(dtype.subdtype[0])
    inside = h5py.check_vlen_dtype(dtype)
    if isinstance(inside, np.dtype):
        return "dates and times of variable length have no form" if inside.kind in "mM" else refusal(inside)
    return None


def _types_in(stored: h5py.h5t.TypeID) -> Iterator[h5py.h5t.TypeID]:
    """Yield a stored type and all types nested in it."""
    yield stored
    kind = stored.get_class()
    if kind == h5py.h5t.COMPOUND:
        for i in range(stored.get_nmembers()):
            yield from _types_in(stored.get_member_type(i))
    elif kind in (h5py.h5t.ARRAY, h5py.h5t.VLEN):
        yield from _types_in(stored.get_super())


def is_fixed(stored: h5py.h5t.TypeID) -> bool:
    """Return whether elements contain neither variable-length values nor references."""
    return not has_variable(stored) and not holds_reference(stored)


def has_variable(stored: h5py.h5t.TypeID) -> bool:
    """Return whether elements are, or contain, variable-length values."""
    return any(
        one.get_class() == h5py.h5t.VLEN or (one.get_class() == h5py.h5t.STRING and one.is_variable_str())
        for one in _types_in(stored)
    )


def holds_reference(stored: h5py.h5t.TypeID) -> bool:
    """Return whether elements are, or contain, references."""
    return any(one.get_class() == h5py.h5t.REFERENCE for one in _types_in(stored))


def same(a: object, b: Any) -> bool:
    """Return whether two values are equal, nested variable-length values included."""
    if isinstance(a, h5py.Empty):
        return bool(a == b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.void) and a.dtype.names is not None:
        return all(same(a[name], b[name]) for name in a.dtype.names)
    if isinstance(a, np.ndarray) and (a.dtype.kind == "O" or a.dtype.names is not None):
        return a.shape == b.shape and all(same(x, y) for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True))
    if isinstance(a, (np.ndarray, np.generic)):
        return a.shape == b.shape and bool(a.tobytes() == b.tobytes())
    return bool(a == b)


def compound_of(value: object) -> np.dtype | None:
    """Return the dtype of a compound, or of an array of compounds; None for anything else."""
    dtype = plain_dtype(value.dtype) if isinstance(value, (np.ndarray, np.void)) else None
    return None if dtype is None or dtype.fields is None else dtype


def member_type(dtype: np.dtype, member: Sequence[str]) -> np.dtype:
    """Return the dtype of a member, by its path."""
    for part in member:
        dtype = dtype.base[part]
    return dtype


def member_of(value: Any, member: Sequence[str]) -> object:
    """Return a member of compounds, by its path."""
    for step in member:
        value = value[step]
    return value


def sample_value(value: object) -> object:
    """Return a value of a file, a group or an object as samples hold it: an array of numbers, or Python objects."""
    if isinstance(value, (str, bytes)):  # NumPy would take zeros from its end
        return bytes(value) if isinstance(value, bytes) else str(value)
    values = np.asarray(value)
    if values.dtype.kind in "biufcmM":
        return values.astype(values.dtype.newbyteorder("="))
    return values.astype(object).tolist()


def kind_of(value: object) -> str:
    """Return the kind of a value; the values of one field of objects are all of one kind."""
    return "numbers" if isinstance(value, np.ndarray) else "empty" if isinstance(value, h5py.Empty) else "no numbers"
