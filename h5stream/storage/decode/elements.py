"""How one stored element becomes what a batch holds.

A *leaf* is what a field takes of a stored element: one scalar or like scalars, in one run of bytes (a plain number, a
member of a compound, an array member) or in several (members that are stacked). Whatever is not provably laid out like
its NumPy dtype goes through h5py, which converts it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.storage.decode.libhdf5 import call, elements_of, sequences_in
from h5stream.storage.decode.small_floats import (
    FLOATS,
    NO_SMALL_TYPE,
    bits_dtype,
    dtype_of_float,
    name_of,
    stored_float,
)
from h5stream.storage.source.handles import DAMAGE, is_shared, opened_apart

MOST_NBYTES = 1 << 24
"""Larger elements go through h5py: each byte of one has a place in a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Where a field's bytes lie inside one stored element."""

    stored_nbytes: int  # bytes of the whole stored element
    offsets: tuple[int, ...]  # first byte of each of its runs inside it
    unit_nbytes: int  # bytes that are swapped together: the scalar, or half of a complex number
    units: int  # how many of them a run has
    swapped: bool  # whether the file's byte order is not this machine's
    dtype: np.dtype[Any]  # the scalar in native byte order, as a batch holds it
    shape: tuple[int, ...]  # shape of an array member, or of stacked members; else `()`

    @property
    def nbytes(self) -> int:
        """Bytes of the leaf."""
        return self.run_nbytes * len(self.offsets)

    @property
    def run_nbytes(self) -> int:
        """Bytes of each of its runs."""
        return self.unit_nbytes * self.units

    @property
    def places(self) -> NDArray[np.int64]:
        """Where the leaf's bytes lie in a stored element, in the order of a batch: native, units one after another."""
        within = np.arange(self.unit_nbytes, dtype=np.int64)[:: -1 if self.swapped else 1]
        begins = np.array(self.offsets)[:, None] + np.arange(self.units) * self.unit_nbytes
        return (begins[..., None] + within).reshape(-1)

    @property
    def is_whole(self) -> bool:
        """Whether the stored element *is* the leaf, byte for byte."""
        return not self.swapped and self.offsets == (0,) and self.nbytes == self.stored_nbytes


def leaf_of(dtype: np.dtype[Any], member: tuple[str, ...], stacked: tuple[str, ...] = ()) -> Leaf | None:
    """Find a leaf by its member path; None if it is not of like scalars."""
    if stacked:
        return _stacked([leaf_of(dtype, (*member, name)) for name in stacked])
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
        dtype=held_dtype(base),
        shape=tuple(shape),
    )


def held_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that a batch holds a scalar as: native, and the whole numbers that dates and times are."""
    return np.dtype(np.int64) if dtype.kind in "mM" else np.dtype(dtype.newbyteorder("="))


def _stacked(leaves: list[Leaf | None]) -> Leaf | None:
    """Make one leaf of several; neighbours in the element become one run."""
    known = [leaf for leaf in leaves if leaf is not None]
    first = known[0] if known else None
    if first is None or len(known) < len(leaves) or any(replace(one, offsets=first.offsets) != first for one in known):
        return None
    offsets = tuple(offset for leaf in known for offset in leaf.offsets)
    shape = (len(leaves), *first.shape)
    if all(b - a == first.nbytes for a, b in itertools.pairwise(offsets)):
        return replace(first, offsets=offsets[:1], units=first.units * len(leaves), shape=shape)
    return replace(first, offsets=offsets, shape=shape)


def plain_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype with arrays of arrays as arrays, and members in the order in which they lie in an element.

    In another order they cannot be relied on: libhdf5 sorts the type of an open dataset when its elements are
    first converted, for any reader, and h5py's names then change.
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


def may_be_sorted(dtype: np.dtype[Any]) -> bool:
    """Tell whether libhdf5 may have sorted the parts of complex numbers, which h5py then takes for a compound."""
    base = dtype.base
    if base.names is None:
        return False
    return is_parted(base) or any(may_be_sorted(base[name]) for name in base.names)


def is_parted(dtype: np.dtype[Any]) -> bool:
    """Tell whether elements are the parts of complex numbers, the imaginary one first."""
    return dtype.names == ("i", "r") and dtype["i"] == dtype["r"] and dtype["i"].kind == "f"


def as_complex(values: Any) -> Any:
    """Return complex numbers of their parts, in a field that has such; see `dtype_of`."""
    if values.dtype.names is None or not is_parted(values.dtype):
        return values
    whole = np.empty(values.shape, f"c{2 * values.dtype['r'].itemsize}")
    whole.real, whole.imag = values["r"], values["i"]
    return whole


NO_TYPE = "h5py cannot read it"
"""What the metadata of a member's type has that h5py has none for: why."""

CANNOT_READ = (TypeError, ValueError, NotImplementedError)
"""What h5py raises for types that NumPy has not."""


def type_of(stored: Any) -> np.dtype[Any]:
    """Return the type that elements of a stored one come as; members that h5py cannot read are opaque, and say why."""
    try:
        return _own_type(stored)
    except CANNOT_READ:
        if stored.get_class() != h5py.h5t.COMPOUND:
            raise
    formats = dict[str, np.dtype[Any]]()
    for name, _, member in _members_of(stored):
        try:
            formats[name] = type_of(member)
        except CANNOT_READ as error:
            formats[name] = np.dtype(f"V{member.get_size()}", metadata={NO_TYPE: str(error)})
    return np.dtype([*formats.items()])


def dtype_of(dataset: Any) -> np.dtype[Any]:
    """Return the type of a dataset's elements, whether or not anybody has read of it.

    libhdf5 sorts the members of an open dataset's type by their places when it first converts elements, for any reader.
    Complex numbers whose real part was declared first, and comes second in an element, are a compound for h5py then.
    """
    dtype = type_of(dataset.id.get_type())
    if not may_be_sorted(dtype) or not dataset.name:
        return dtype
    with contextlib.suppress(*DAMAGE), opened_apart(os.fsdecode(dataset.file.filename)) as file:
        return type_of(file[dataset.name].id.get_type())
    return dtype


def type_if_any(stored: Any) -> np.dtype[Any] | None:
    """Return the type that elements of a stored one come as, its members in their order; None if h5py has none."""
    try:
        return plain_dtype(type_of(stored))
    except CANNOT_READ:
        return None


def _own_type(stored: Any) -> np.dtype[Any]:
    """Return the type that values of a stored one are read as; raises `CANNOT_READ` for one that is of no use for it.

    It is h5py's, but for small floats, which are bits.
    """
    if not any(dtype_of_float(one) is not None for one in _types_in(stored)):
        dtype: np.dtype[Any] = stored.dtype
        if _overlaps(dtype):
            raise TypeError("h5py gives its members types that are larger than they are, and overlap")
        return dtype
    kind = stored.get_class()
    if kind == h5py.h5t.ARRAY:
        return np.dtype((_own_type(stored.get_super()), stored.get_array_dims()))
    if kind == h5py.h5t.VLEN:
        items: np.dtype[Any] = h5py.vlen_dtype(_own_type(stored.get_super()))
        return items
    if kind != h5py.h5t.COMPOUND:
        bits = dtype_of_float(stored)
        assert bits is not None
        return bits
    names, offsets, members = zip(*_members_of(stored), strict=True)
    formats = [*map(_own_type, members)]
    dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": stored.get_size()})
    if _overlaps(dtype):
        raise TypeError("h5py gives its members types that are larger than they are, and overlap")
    return dtype


def memory_type(dtype: np.dtype[Any], *, is_stored: bool = False) -> Any:
    """Return HDF5's type of what NumPy has in memory, or of the same as a file has it, without Python's objects.

    Bits of small floats are floats to it, so that it converts none.
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


def _dtypes_in(dtype: np.dtype[Any]) -> Iterator[np.dtype[Any]]:
    """Yield the types of the numbers that elements are, or are made of."""
    if dtype.base.names is None:
        yield dtype.base
    for name in dtype.base.names or ():
        yield from _dtypes_in(dtype.base[name])


def has_small_floats(dtype: np.dtype[Any]) -> bool:
    """Tell whether elements are, or hold, floats that NumPy has no type for."""
    return any(name_of(one) or has_small_sequences(one) for one in _dtypes_in(dtype))


def has_small_sequences(dtype: np.dtype[Any]) -> bool:
    """Tell whether elements are, or hold, values of variable length of such floats."""
    inside = (vlen_base(one) for one in _dtypes_in(dtype))
    return any(items is not None and has_small_floats(items) for items in inside)


def as_asked(dtype: np.dtype[Any], asked: Any) -> np.dtype[Any]:
    """Return a type in which opaque bytes are the bits of a torch type that a user asks for, if they are as many."""
    name = str(asked).removeprefix("torch.")
    if name not in FLOATS or dtype.kind != "V" or _why_no_type(dtype):
        return dtype
    if dtype.subdtype is not None:
        return np.dtype((as_asked(dtype.subdtype[0], asked), dtype.subdtype[1]))
    if dtype.fields is None or dtype.names is None:
        return bits_dtype(name, dtype.itemsize) if dtype.itemsize == FLOATS[name].nbytes else dtype
    formats, offsets = (
        [as_asked(dtype[one], asked) for one in dtype.names],
        [dtype.fields[one][1] for one in dtype.names],
    )
    return np.dtype({"names": dtype.names, "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize})


def value_as_asked(value: Any, asked: Any) -> Any:
    """Return a value, or an array, in which opaque bytes are the bits of a torch type that a user asks for."""
    if asked is None or not isinstance(value, (np.ndarray, np.void)):
        return value
    dtype = as_asked(value.dtype, asked)
    return value if dtype is value.dtype else np.asarray(value).view(dtype)


def same_type(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Tell whether two types are the same, and the bits of floats of the same name where they are bits."""
    return a == b and [*map(name_of, _dtypes_in(a))] == [*map(name_of, _dtypes_in(b))]


def _overlaps(dtype: np.dtype[Any]) -> bool:
    """Tell whether members of a type overlap, as h5py 3.16 makes them of numbers that it widens."""
    if dtype.subdtype is not None:
        return _overlaps(dtype.subdtype[0])
    items = h5py.check_vlen_dtype(dtype)
    if dtype.fields is None:
        return isinstance(items, np.dtype) and _overlaps(items)
    ends = sorted((offset, offset + one.itemsize) for one, offset, *_ in dtype.fields.values())
    crosses = any(end > begin for (_, end), (begin, _) in itertools.pairwise(ends))
    return crosses or any(_overlaps(one) for one, *_ in dtype.fields.values())


def _why_no_type(dtype: np.dtype[Any]) -> str:
    """Say why h5py has no type for a member; empty for one that it has."""
    return "" if dtype.metadata is None else str(dtype.metadata.get(NO_TYPE, ""))


def no_type(why: str) -> str:
    """Say that h5py has no type for what a file has, and what to do."""
    way_out = "Write it anew as one that NumPy has: times of HDF5's own type, for instance, as int64"
    if why.startswith(NO_SMALL_TYPE):
        way_out = "Write it anew as a larger one: float16, or bfloat16"
    return f"a type that h5py cannot read: {why}. {way_out}"


def readable_of(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return a type without the members that h5py cannot read; None if none is left."""
    if dtype.fields is None:
        return None if _why_no_type(dtype) else dtype
    inner = {name: readable_of(dtype[name]) for name in dtype.names or ()}
    if all(one is dtype[name] for name, one in inner.items()):
        return dtype
    left = [(name, one) for name, one in inner.items() if one is not None]
    return np.dtype(left) if left else None


def _members_of(stored: Any) -> list[tuple[str, int, Any]]:
    """Return the name, the offset and the type of each member of a stored compound, in the order of the offsets."""
    numbers = range(stored.get_nmembers())
    names = (stored.get_member_name(i).decode("utf-8", "surrogateescape") for i in numbers)
    every = (
        (name, stored.get_member_offset(i), stored.get_member_type(i)) for i, name in zip(numbers, names, strict=True)
    )
    return sorted(every, key=lambda member: member[1])


def is_readable(stored: Any) -> bool:
    """Tell whether h5py has a type for all of a stored one, which it can read into."""
    try:
        return _own_type(stored) is not None
    except CANNOT_READ:
        return False


class Stored(NamedTuple):
    """How elements of a dataset lie in its file."""

    nbytes: int  # of an element
    plain: Any  # the type of what lies in place, of a compound those members; None if there is nothing
    loose: dict[tuple[str, ...], tuple[int, Any]]  # members of variable length: where the place of each lies, its type

    is_whole: bool = False  # whether `plain` is all of the stored type

    @property
    def in_place(self) -> NDArray[np.bool_]:
        """Which bytes of an element lie in place, and belong to a member."""
        found = np.zeros(self.nbytes, dtype=bool)
        inside = [] if self.plain is None else [(0, self.plain)]
        while inside:
            begin, one = inside.pop()
            if one.get_class() == h5py.h5t.COMPOUND:
                inside += [(begin + offset, member) for _, offset, member in _members_of(one)]
            else:
                found[begin : begin + one.get_size()] = True
        return found

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of what lies in place."""
        return np.dtype("V1") if self.plain is None else plain_dtype(type_of(self.plain))


def stored_as(dataset: Any) -> Stored:
    """Return how elements of a dataset lie in its file: libhdf5 tells how they would lie in memory."""
    stored = dataset.id.get_type()
    if stored.get_class() != h5py.h5t.COMPOUND or (is_readable(stored) and not has_variable(stored)):
        return Stored(stored.get_size(), stored, {}, is_whole=True)
    wide, _ = dataset.file.id.get_create_plist().get_sizes()
    return _in_file(stored, wide)


def _in_file(stored: Any, wide: int) -> Stored:
    """Return how elements lie in a file whose addresses have so many bytes.

    In memory there are pointers, of other sizes than the places of values that the file has: libhdf5 moves all members
    behind those, in the order of their offsets (`H5T_set_loc`).
    """
    kind = stored.get_class()
    if kind == h5py.h5t.VLEN or (kind == h5py.h5t.STRING and stored.is_variable_str()):
        return Stored(wide + 8, None, {(): (0, stored)})
    if kind == h5py.h5t.REFERENCE:
        return Stored(wide + 4 * (not stored.equal(h5py.h5t.STD_REF_OBJ)), None, {})
    if kind == h5py.h5t.ARRAY:
        inner = _in_file(stored.get_super(), wide)
        count = math.prod(stored.get_array_dims())
        return Stored(inner.nbytes * count, stored if is_fixed(stored) and is_readable(stored) else None, {})
    if kind != h5py.h5t.COMPOUND:
        is_plain = is_readable(stored) and _own_type(stored).itemsize == stored.get_size()
        return Stored(stored.get_size(), stored if is_plain else None, {})
    loose, moved, plain = dict[tuple[str, ...], tuple[int, Any]](), 0, list[tuple[bytes, int, Any]]()
    for name, offset, member in _members_of(stored):
        inner = _in_file(member, wide)
        loose |= {(name, *path): (offset + moved + begin, one) for path, (begin, one) in inner.loose.items()}
        if inner.plain is not None:
            plain.append((name.encode("utf-8", "surrogateescape"), offset + moved, inner.plain))
        moved += inner.nbytes - member.get_size()
    nbytes = stored.get_size() + moved
    if not plain:
        return Stored(nbytes, None, loose)
    found = h5py.h5t.create(h5py.h5t.COMPOUND, nbytes)
    for encoded, offset, member in plain:
        found.insert(encoded, offset, member)
    return Stored(nbytes, found, loose)


def vlen_base(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the type of the items of values of variable length; None for strings and everything else."""
    base = h5py.check_vlen_dtype(dtype)
    return base if isinstance(base, np.dtype) else None


Meanings = tuple[tuple[int, str], ...]
"""The numbers of an enum, ascending, with their labels; empty for other types."""


def meanings_of(dtype: np.dtype[Any]) -> Meanings:
    """Return what the numbers of an enum stand for, also of arrays or values of variable length of one."""
    items = vlen_base(dtype)
    labels = h5py.check_enum_dtype((dtype if items is None else items).base)
    return tuple(sorted((int(number), str(label)) for label, number in labels.items())) if labels else ()


def joined_meanings(several: Iterable[tuple[Meanings, str]]) -> tuple[Meanings, str]:
    """Return what the numbers of enums of several places stand for, and in which two of these one has two meanings.

    An enum may have numbers and labels that another lacks, and plain numbers contradict none.
    """
    numbers, labels = dict[int, tuple[str, str]](), dict[str, tuple[int, str]]()
    for meanings, place in several:
        for number, label in meanings:
            first, where = numbers.setdefault(number, (label, place))
            if first != label:
                return (), f"number {number} stands for {first!r} in {where}, and for {label!r} in {place}"
            other, where = labels.setdefault(label, (number, place))
            if other != number:
                return (), f"{label!r} is the number {other} in {where}, and {number} in {place}"
    return tuple(sorted((number, label) for number, (label, _) in numbers.items())), ""


def enums_in(dtype: np.dtype[Any], path: str = "") -> Iterator[tuple[str, Meanings]]:
    """Yield each enum of a type, with the path of its member."""
    for name in dtype.base.names or ():
        yield from enums_in(dtype.base[name], f"{path}:{name}")
    if meanings := meanings_of(dtype):
        yield path, meanings


def why_not_joined(a: np.dtype[Any], b: np.dtype[Any], places: tuple[str, str]) -> str:
    """Say in which number enums of two types contradict one another; empty if in none."""
    others = dict(enums_in(b))
    pairs = ((path, [(mine, places[0]), (others.get(path, ()), places[1])]) for path, mine in enums_in(a))
    every = ((path, joined_meanings(pair)[1]) for path, pair in pairs)
    return next((f"enum {path.lstrip(':') or 'of its elements'}: {why}" for path, why in every if why), "")


def is_text(dtype: np.dtype[Any]) -> bool:
    """Tell whether values are strings of variable length."""
    text = h5py.check_string_dtype(dtype)
    return text is not None and text.length is None


def is_byte(dtype: np.dtype[Any] | None) -> bool:
    """Tell whether elements are bytes, and not floats of 8 bits."""
    return dtype is not None and dtype == np.uint8 and not name_of(dtype)


def bytes_leaf(dtype: np.dtype[Any]) -> Leaf | None:
    """Return the leaf of an element that is taken as so many bytes; None where it is not bytes."""
    if (dtype.kind not in "SV" and not is_byte(dtype)) or dtype.fields is not None:
        return None
    count = dtype.itemsize
    shape = () if dtype.kind == "u" else (count,)
    return Leaf(
        stored_nbytes=count, offsets=(0,), unit_nbytes=1, units=count, swapped=False, dtype=np.dtype("u1"), shape=shape
    )


def is_stored_as(stored: Any, dtype: np.dtype[Any]) -> bool:
    """Tell whether a stored type has, byte for byte, the layout of a dtype: no odd precision or foreign float has."""
    if stored.get_size() != dtype.itemsize:
        return False
    try:
        return bool(_same_layout(stored, memory_type(dtype, is_stored=True)))
    except (TypeError, ValueError, NotImplementedError):  # a member without a name, say
        return False


BITFIELDS = tuple(getattr(h5py.h5t, f"STD_B{bits}{order}") for bits in (8, 16, 32, 64) for order in ("LE", "BE"))
"""Bit fields without unused bits: the bytes of an unsigned number."""


def _same_layout(stored: Any, numpy_like: Any) -> bool:
    kind, size, other = stored.get_class(), stored.get_size(), numpy_like.get_class()
    if kind == h5py.h5t.BITFIELD:  # it has the bytes of an unsigned number
        is_unsigned = other == h5py.h5t.INTEGER and numpy_like.get_sign() == h5py.h5t.SGN_NONE
        alike = is_unsigned and (size == 1 or stored.get_order() == numpy_like.get_order())
        return alike and size == numpy_like.get_size() and any(stored.equal(one) for one in BITFIELDS)
    if kind != other or size != numpy_like.get_size():
        return False
    if kind == h5py.h5t.COMPOUND:
        # By their names too: h5py has the parts of a complex number in one order, whatever their order in the file.
        members, twins = (
            {(t.get_member_name(i), t.get_member_offset(i)): t.get_member_type(i) for i in range(t.get_nmembers())}
            for t in (stored, numpy_like)
        )
        return members.keys() == twins.keys() and all(_same_layout(one, twins[at]) for at, one in members.items())
    if kind in (h5py.h5t.ARRAY, h5py.h5t.ENUM):
        # Member names of an enum do not matter to the bytes, the integers below them do.
        is_like = kind == h5py.h5t.ENUM or stored.get_array_dims() == numpy_like.get_array_dims()
        return is_like and _same_layout(stored.get_super(), numpy_like.get_super())
    if kind == h5py.h5t.STRING:
        # A space-padded string is converted by libhdf5; `ends_at_nul` deals with the others.
        return not stored.is_variable_str() and stored.get_strpad() in (h5py.h5t.STR_NULLTERM, h5py.h5t.STR_NULLPAD)
    if kind == h5py.h5t.VLEN:
        # The file holds heap addresses, of which libhdf5 makes pointers: reading them raw would leak.
        return False
    if kind in (h5py.h5t.INTEGER, h5py.h5t.FLOAT) and size == 1 and stored.get_order() != numpy_like.get_order():
        numpy_like = numpy_like.copy()  # one byte has no order
        numpy_like.set_order(stored.get_order())
    return bool(stored.equal(numpy_like))


def ends_at_nul(stored: Any, member: tuple[str, ...]) -> bool:
    """Tell whether a leaf holds fixed-length strings that end at their first NUL.

    What follows that NUL is not part of the string, and libhdf5 does not hand it out.
    """
    for name in member:
        stored = stored.get_member_type(stored.get_member_index(name.encode()))
    while stored.get_class() == h5py.h5t.ARRAY:
        stored = stored.get_super()
    return bool(stored.get_class() == h5py.h5t.STRING and stored.get_strpad() == h5py.h5t.STR_NULLTERM)


def refusal(dtype: np.dtype[Any]) -> str | None:
    """Say why a dtype cannot become a tensor or a list; None if it can."""
    if h5py.check_ref_dtype(dtype) is not None:
        return "references point into the file and mean nothing in a batch; read what they point to"
    if why := _why_no_type(dtype):
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


# --- values, as h5py gives them


@contextlib.contextmanager
def to_be_read(dataset: Any) -> Iterator[Any]:
    """Return a dataset whose elements libhdf5 may be asked for: the same, or the same in a file that is open alone.

    The type of an open dataset points to the file through which it was opened first. libhdf5 2.0 puts that right
    before it reads elements of variable length, and not where these are inside of a compound: once the first file is
    closed, whoever reads through another one ends the process.
    """
    stored = dataset.id.get_type()
    inner = stored.get_super() if stored.get_class() == h5py.h5t.VLEN else stored
    is_simple = inner.get_class() in (h5py.h5t.STRING, h5py.h5t.INTEGER, h5py.h5t.FLOAT)
    with contextlib.ExitStack() as opened:
        if not is_simple and has_variable(inner) and is_shared(dataset):
            with contextlib.suppress(OSError):  # it is open for writing, say
                file = opened.enter_context(opened_apart(os.fsdecode(dataset.file.filename)))
                place = h5py.h5r.create(dataset.id, b".", h5py.h5r.OBJECT)
                dataset = h5py.Dataset(h5py.h5r.dereference(place, file.id))
        yield dataset


def values_of(dataset: Any, start: tuple[int, ...], count: tuple[int, ...]) -> Any:
    """Read a box of elements as h5py gives them, small floats as bits, without members that h5py cannot read.

    It takes all of the axes that it says nothing of.
    """
    with to_be_read(dataset) as opened:
        return _values_of(opened, start, count)


def _values_of(dataset: Any, start: tuple[int, ...], count: tuple[int, ...]) -> Any:
    stored = dataset.id.get_type()
    whole = type_of(stored)
    if not has_small_floats(whole) and (stored.get_class() != h5py.h5t.COMPOUND or is_readable(stored)):
        return dataset[tuple(slice(first, first + some) for first, some in zip(start, count, strict=True))]
    dtype, space = readable_of(whole), dataset.id.get_space()
    if dtype is None:
        raise TypeError("h5py cannot read any of its members")
    start, count = (*start, *(0 for _ in dataset.shape[len(start) :])), (*count, *dataset.shape[len(count) :])
    if count:
        space.select_hyperslab(start, count)
    memory = h5py.h5s.create_simple(count) if count else h5py.h5s.create(h5py.h5s.SCALAR)
    return _read(dataset.id, count, dtype, functools.partial(dataset.id.read, memory, space), space)


def attribute_of(attributes: Any, name: str) -> Any:
    """Read an attribute as h5py gives it, small floats as bits."""
    opened = attributes.get_id(name)
    stored = opened.get_type()
    if opened.shape is None or not is_readable(stored) or not has_small_floats(dtype := type_of(stored)):
        return attributes[name]
    return _read(opened, opened.shape, dtype, opened.read)


def _read(
    opened: Any, shape: tuple[int, ...], dtype: np.dtype[Any], read: Callable[[Any, Any], None], space: Any = None
) -> NDArray[Any]:
    """Read elements of a dataset or an attribute; of small floats of variable length h5py would give what it converts.

    `read` is how h5py reads elements into an array, of a type in memory.
    """
    values = _empty(shape, dtype)
    rest = _without_sequences(dtype)
    if values.size and rest is dtype:
        read(values, memory_type(dtype))
    elif values.size:
        if rest is not None:
            some = _empty(shape, rest)
            read(some, memory_type(rest))
            _copy_members(some, values)
        with elements_of(opened, space) as raw:
            _take_sequences(raw, opened.get_type(), values.reshape(-1))
    return values


def _without_sequences(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return a type without its values of variable length of small floats; None if nothing is left."""
    if not has_small_sequences(dtype):
        return dtype
    inner = ((name, _without_sequences(dtype[name])) for name in dtype.names or ())
    left = [(name, one) for name, one in inner if one is not None]
    return np.dtype(left) if left else None


def _copy_members(some: NDArray[Any], values: NDArray[Any]) -> None:
    """Copy the members that an array has to one that has more."""
    for name in some.dtype.names or ():
        if some.dtype[name].names is None:
            values[name] = some[name]
        else:
            _copy_members(some[name], values[name])


def _take_sequences(raw: NDArray[Any], stored: Any, values: NDArray[Any]) -> None:
    """Take the values of variable length of small floats out of elements as libhdf5 has them in memory."""
    if values.dtype.names is None:
        values[...] = sequences_in(raw, values.dtype).reshape(values.shape)
        return
    within = raw.view(np.uint8).reshape(len(raw), -1)
    for name, offset, member in _members_of(stored):
        if name in values.dtype.names and has_small_sequences(values.dtype[name]):
            nbytes = member.get_size() // math.prod(values.dtype[name].shape)
            part = np.ascontiguousarray(within[:, offset : offset + member.get_size()]).reshape(-1).view(f"V{nbytes}")
            inner = member.get_super() if values.dtype[name].subdtype is not None else member
            _take_sequences(part, inner, values[name])


def fill_value_of(dataset: Any) -> Any:
    """Return the fill value of a dataset as h5py gives it, small floats as bits."""
    stored = dataset.id.get_type()
    if not is_readable(stored) or not has_small_floats(dtype := type_of(stored)):
        return dataset.fillvalue
    value, creation, memory = _empty((), dtype), dataset.id.get_create_plist(), memory_type(dtype)
    call("H5Pget_fill_value", creation.id, memory.id, value.ctypes.data)
    return value


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array of elements to read into: of arrays, it has their axes, and not their type."""
    return np.empty((*shape, *dtype.shape), dtype.base)


def _types_in(stored: Any) -> Iterator[Any]:
    """Yield a stored type and all that are inside of it."""
    yield stored
    kind = stored.get_class()
    if kind == h5py.h5t.COMPOUND:
        for i in range(stored.get_nmembers()):
            yield from _types_in(stored.get_member_type(i))
    elif kind in (h5py.h5t.ARRAY, h5py.h5t.VLEN):
        yield from _types_in(stored.get_super())


def is_fixed(stored: Any) -> bool:
    """Tell whether the elements of a type lie in place, all of them: no variable length, no references."""
    return not has_variable(stored) and not holds_reference(stored)


def has_variable(stored: Any) -> bool:
    """Tell whether elements of a type are, or hold, values of variable length."""
    return any(
        one.get_class() == h5py.h5t.VLEN or (one.get_class() == h5py.h5t.STRING and one.is_variable_str())
        for one in _types_in(stored)
    )


def holds_reference(stored: Any) -> bool:
    """Tell whether elements of a type are, or hold, references."""
    return any(one.get_class() == h5py.h5t.REFERENCE for one in _types_in(stored))


def same(a: Any, b: Any) -> bool:
    """Compare values of variable length, however deep."""
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


def in_stored_byte_order(values: Any, dtype: Any = None) -> Any:
    """Return sequences that h5py has read without swapping their bytes as numbers of the byte order that they have.

    h5py 3.16 gives sequences of variable length of foreign byte order as if they were native. `dtype` is that of the
    dataset or attribute, where `values` may be a single sequence.
    """
    base = h5py.check_vlen_dtype(values.dtype if dtype is None else dtype)
    if not isinstance(base, np.dtype) or base.isnative or not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind != "O":
        return values.view(base)
    out = values.copy()
    for where in np.ndindex(values.shape):
        out[where] = values[where].view(base)
    return out


def compound_of(value: Any) -> np.dtype[Any] | None:
    """Return the type of what holds compounds, or is one; None for all else."""
    dtype = plain_dtype(value.dtype) if isinstance(value, (np.ndarray, np.void)) else None
    return None if dtype is None or dtype.fields is None else dtype


def member_type(dtype: np.dtype[Any], member: Sequence[str]) -> np.dtype[Any]:
    """Return the type of a member of a compound, the steps to it given."""
    for part in member:
        dtype = dtype.base[part]
    return dtype


def member_of(value: Any, member: Sequence[str]) -> Any:
    """Return a member of compounds, a step for each compound in a compound."""
    for step in member:
        value = value[step]
    return value


def as_samples_have_it(value: Any) -> Any:
    """Return what a file, a group or an object has once: numbers as an array, all else as Python's objects in lists."""
    if isinstance(value, (str, bytes)):  # NumPy would take zeros from its end
        return bytes(value) if isinstance(value, bytes) else str(value)
    values = np.asarray(value)
    if values.dtype.kind in "biufcmM":
        return values.astype(values.dtype.newbyteorder("="))
    return values.astype(object).tolist()


def kind_of(value: Any) -> str:
    """Return what a value is, of the kinds that one field of objects does not mix."""
    return "numbers" if isinstance(value, np.ndarray) else "empty" if isinstance(value, h5py.Empty) else "no numbers"
