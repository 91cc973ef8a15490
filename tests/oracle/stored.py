"""What a dataset or a member of it holds, by h5py and NumPy; by its bytes, where h5py has no type for them."""

from typing import Any

import h5py
import numpy as np
from h5py import h5s, h5t

SMALL = {(2, 8): ("bfloat16", "<u2"), (1, 4): ("e4m3", "u1"), (1, 5): ("e5m2", "u1")}
"""By their bytes and the bits of their exponent: floats that torch has types for, and integers of their size."""


FULL = [getattr(h5t, f"STD_B{bits}{order}") for bits in (8, 16, 32, 64) for order in ("LE", "BE")]
"""Bit fields without unused bits."""


class RefusalError(Exception):
    """What h5stream must refuse in words: there is no value that would be right."""


def small_float(kind: Any) -> np.dtype[Any] | None:
    """Return a dtype of one member, named as the float is, that holds the bits of such a float."""
    if not isinstance(kind, h5t.TypeFloatID):
        return None
    exponent = kind.get_fields()[2]
    is_ieee = (kind.get_size(), exponent) not in SMALL
    return None if is_ieee else np.dtype([SMALL[kind.get_size(), exponent]])


def members_of(kind: Any) -> dict[str, tuple[int, Any]]:
    """Return the offset and the type of each member of a compound, by its name."""
    numbers = range(kind.get_nmembers())
    return {kind.get_member_name(k).decode(): (kind.get_member_offset(k), kind.get_member_type(k)) for k in numbers}


def is_unusual(kind: Any) -> bool:
    """Tell whether a type has something that h5py does not read as it is."""
    if isinstance(kind, h5t.TypeCompoundID):
        return any(is_unusual(one) for _, one in members_of(kind).values())
    if isinstance(kind, (h5t.TypeArrayID, h5t.TypeVlenID)):
        return is_unusual(kind.get_super())
    is_odd = isinstance(kind, h5t.TypeIntegerID) and kind.get_size() not in (1, 2, 4, 8)
    is_odd |= isinstance(kind, h5t.TypeBitfieldID) and not any(map(kind.equal, FULL))
    return is_odd or small_float(kind) is not None or isinstance(kind, (h5t.TypeTimeID, h5t.TypeReferenceID))


def dtype_of(kind: Any) -> np.dtype[Any]:
    """Return the dtype of a type, in which small floats are dtypes of one member; refuse what torch has no type for."""
    if isinstance(kind, h5t.TypeCompoundID) and is_unusual(kind):
        every = members_of(kind).items()
        names, offsets = [name for name, _ in every], [offset for _, (offset, _) in every]
        formats = [member_dtype(one) for _, (_, one) in every]
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": kind.get_size()})
    if isinstance(kind, h5t.TypeArrayID):
        return np.dtype((dtype_of(kind.get_super()), kind.get_array_dims()))
    if (small := small_float(kind)) is not None:
        return small
    if is_unusual(kind):
        raise RefusalError(f"a type of {kind.get_size()} bytes that h5py does not read: {type(kind).__name__}")
    return kind.dtype


def member_dtype(kind: Any) -> np.dtype[Any]:
    """Return the dtype of a member; one that h5py does not read is a dtype of one member, named so."""
    try:
        return dtype_of(kind)
    except RefusalError:
        return np.dtype([("unreadable", f"V{kind.get_size()}")])


def refuse_unreadable(dtype: np.dtype[Any]) -> None:
    """Refuse values of which a member cannot be read."""
    if dtype.names == ("unreadable",):
        raise RefusalError(f"a type of {dtype.itemsize} bytes that h5py does not read")
    for name in dtype.names or ():
        refuse_unreadable(dtype[name].base)


def values_of(dataset: h5py.Dataset, members: tuple[str, ...] = ()) -> Any:
    """Read a dataset, or a member of it."""
    if isinstance(dataset, h5py.Group):
        raise RefusalError("a group in place of a dataset")
    kind = dataset.id.get_type()
    if not is_unusual(kind):
        values = in_stored_byte_order(dataset)
        for name in members:
            values = values[name]
        return complex_of(values)
    first = 0
    for name in members:
        offset, kind = members_of(kind)[name]
        first += offset
    dtype, whole = dtype_of(kind), dataset.id.get_type()
    raw = np.zeros((int(np.prod(dataset.shape)), whole.get_size()), "u1")
    if raw.size:
        dataset.id.read(h5s.ALL, h5s.ALL, raw, mtype=whole)
    values = np.ascontiguousarray(raw[:, first : first + kind.get_size()])
    base, inner = (dtype.base, dtype.shape) if dtype.subdtype else (dtype, ())
    return complex_of(values.reshape(-1).view(base).reshape((*dataset.shape, *inner)))


def attribute_of(owner: Any, name: str) -> Any:
    """Read an attribute, of small floats the bits."""
    opened = owner.attrs.get_id(name)
    kind = opened.get_type()
    if (small := small_float(kind)) is None:
        return owner.attrs[name]
    raw = np.zeros((int(np.prod(opened.shape)), kind.get_size()), "u1")
    if raw.size:
        opened.read(raw, mtype=kind)
    return raw.reshape(-1).view(small).reshape(opened.shape)[()]


def complex_of(values: Any) -> Any:
    """Turn a compound of "r" and "i" into complex numbers, as h5py does where they are declared in this order."""
    if isinstance(values, bytes):  # a single text
        return values
    dtype = values.dtype
    if not dtype.names or set(dtype.names) != {"r", "i"} or dtype["r"] != dtype["i"] or dtype["r"].kind != "f":
        return values
    found = np.zeros(values.shape, np.result_type(dtype["r"].newbyteorder("="), "c8"))
    found.real, found.imag = values["r"], values["i"]
    return found


def in_stored_byte_order(dataset: h5py.Dataset) -> Any:
    """Read a dataset; h5py 3.16 returns sequences of foreign byte order as if they were native."""
    values, base = dataset[()], h5py.check_vlen_dtype(dataset.dtype)
    if isinstance(base, np.dtype) and not base.isnative:
        for where in np.ndindex(dataset.shape):
            values[where] = values[where].view(base)
    return values


def resolved(root: Any, path: str) -> tuple[Any, tuple[str, ...], str]:
    """Find what a name means: the object, members of its compound, an attribute; a whole name comes before parts."""
    if path in root:
        return root[path], (), ""
    for mark in "@:":
        for place in range(len(path) - 1, -1, -1):
            owner, rest = path[:place] or "/", path[place + 1 :]
            if path[place] != mark or owner not in root:
                continue
            if mark == "@" and rest in root[owner].attrs:
                return root[owner], (), rest
            is_dataset = mark == ":" and isinstance(root[owner], h5py.Dataset)
            if is_dataset and (members := _members(root[owner].id.get_type(), rest)) is not None:
                return root[owner], members, ""
    raise KeyError(path)


def _members(kind: Any, rest: str) -> tuple[str, ...] | None:
    if not isinstance(kind, h5t.TypeCompoundID):
        return None
    every = members_of(kind)
    if rest in every:
        return (rest,)
    for name, (_, one) in every.items():
        if rest.startswith(f"{name}:") and (inner := _members(one, rest[len(name) + 1 :])) is not None:
            return (name, *inner)
    return None
