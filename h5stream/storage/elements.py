"""How one stored element becomes what a batch holds.

A *leaf* is what a field takes of a stored element: one scalar or like scalars, in one run of bytes (a plain number, a
member of a compound, an array member) or in several (members that are stacked). Whatever is not provably laid out like
its NumPy dtype goes through h5py, which converts it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

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
    """Return complex numbers of their parts, in a field that has such; see `h5stream.storage.handles.dtype_of`."""
    if values.dtype.names is None or not is_parted(values.dtype):
        return values
    whole = np.empty(values.shape, f"c{2 * values.dtype['r'].itemsize}")
    whole.real, whole.imag = values["r"], values["i"]
    return whole


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


def bytes_leaf(dtype: np.dtype[Any]) -> Leaf | None:
    """Return the leaf of an element that is taken as so many bytes; None where it is not bytes."""
    if (dtype.kind not in "SV" and dtype != np.uint8) or dtype.fields is not None:
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
        return bool(_same_layout(stored, h5py.h5t.py_create(dtype, logical=True)))
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
    if kind == h5py.h5t.INTEGER and size == 1 and stored.get_order() != numpy_like.get_order():
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
    if dtype.kind == "V" and dtype.fields is None and dtype.subdtype is None:
        return "opaque bytes have no number type; store them as uint8, or read them with h5py"
    if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
        return f"{dtype} is wider than any torch dtype; store it as float64 (complex128)"
    if dtype.subdtype is not None:
        return refusal(dtype.subdtype[0])
    inside = h5py.check_vlen_dtype(dtype)
    if isinstance(inside, np.dtype):
        return "dates and times of variable length have no form" if inside.kind in "mM" else refusal(inside)
    return None


# --- values, as h5py gives them


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
    loose = (h5py.h5t.VLEN, h5py.h5t.REFERENCE)
    return not any(
        one.get_class() in loose or (one.get_class() == h5py.h5t.STRING and one.is_variable_str())
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
