"""Values of datasets and attributes, as h5py returns them; small floats, which h5py converts, as bits."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np

from h5stream.storage.decode.elements import (
    has_small_floats,
    has_small_sequences,
    has_variable,
    is_readable,
    memory_type,
    readable_of,
    stored_members,
    type_of,
)
from h5stream.storage.decode.libhdf5 import call, elements_of, sequences_in
from h5stream.storage.decode.pipeline import check_stored
from h5stream.storage.source.handles import is_shared, opened_apart


@contextlib.contextmanager
def safe_to_read(dataset: h5py.Dataset) -> Iterator[h5py.Dataset]:
    """Yield a dataset whose elements are safe to read: the same, or the same in a separately opened file.

    The type of an open dataset points to the file through which it was opened first. libhdf5 2.0 corrects that before
    it reads elements of variable length, but not if they are members of a compound: once the first file is closed,
    reading through another one crashes the process.
    """
    stored = dataset.id.get_type()
    inner = stored.get_super() if stored.get_class() == h5py.h5t.VLEN else stored
    is_simple = inner.get_class() in (h5py.h5t.STRING, h5py.h5t.INTEGER, h5py.h5t.FLOAT)
    with contextlib.ExitStack() as opened:
        if not is_simple and has_variable(inner) and is_shared(dataset):
            with contextlib.suppress(OSError):  # for instance, it is open for writing
                file = opened.enter_context(opened_apart(os.fsdecode(dataset.file.filename)))
                place = h5py.h5r.create(dataset.id, b".", h5py.h5r.OBJECT)
                dataset = h5py.Dataset(h5py.h5r.dereference(place, file.id))
        yield dataset


def values_of(dataset: h5py.Dataset, start: tuple[int, ...], count: tuple[int, ...]) -> Any:
    """Read a box of elements as h5py does, small floats as bits, without members that h5py cannot read.

    Axes beyond those of `start` and `count` are read whole. Raises `OSError` as `check_stored`.
    """
    check_stored(dataset, start, count)
    with safe_to_read(dataset) as opened:
        return _values_of(opened, start, count)


def _values_of(dataset: h5py.Dataset, start: tuple[int, ...], count: tuple[int, ...]) -> Any:
    stored = dataset.id.get_type()
    whole = type_of(stored)
    if not has_small_floats(whole) and (stored.get_class() != h5py.h5t.COMPOUND or is_readable(stored)):
        return dataset[tuple(slice(first, first + length) for first, length in zip(start, count, strict=True))]
    dtype, space = readable_of(whole), dataset.id.get_space()
    if dtype is None:
        raise TypeError("h5py cannot read any of its members")
    start, count = (*start, *(0 for _ in dataset.shape[len(start) :])), (*count, *dataset.shape[len(count) :])
    if count:
        space.select_hyperslab(start, count)
    memory = h5py.h5s.create_simple(count) if count else h5py.h5s.create(h5py.h5s.SCALAR)
    return _read(dataset.id, count, dtype, functools.partial(dataset.id.read, memory, space), space)


def attribute_of(attributes: h5py.AttributeManager, name: str) -> object:
    """Read an attribute as h5py does, small floats as bits."""
    opened = attributes.get_id(name)
    stored = opened.get_type()
    if opened.shape is None or not is_readable(stored) or not has_small_floats(dtype := type_of(stored)):
        return attributes[name]
    return _read(opened, opened.shape, dtype, opened.read)


def _read(
    opened: h5py.h5d.DatasetID | h5py.h5a.AttrID,
    shape: tuple[int, ...],
    dtype: np.dtype,
    read: Callable[[np.ndarray, h5py.h5t.TypeID], None],
    space: h5py.h5s.SpaceID | None = None,
) -> np.ndarray:
    """Read elements of a dataset or an attribute; small floats of variable length, which h5py converts, as bits.

    `read` is h5py's function that reads elements into an array, with their type in memory.
    """
    values = _empty(shape, dtype)
    rest = _without_sequences(dtype)
    if values.size and rest is dtype:
        read(values, memory_type(dtype))
    elif values.size:
        if rest is not None:
            partial = _empty(shape, rest)
            read(partial, memory_type(rest))
            _copy_members(partial, values)
        with elements_of(opened, space) as raw:
            _copy_sequences(raw, opened.get_type(), values.reshape(-1))
    return values


def _without_sequences(dtype: np.dtype) -> np.dtype | None:
    """Return a dtype without variable-length values of small floats; None if nothing remains."""
    if not has_small_sequences(dtype):
        return dtype
    inner = ((name, _without_sequences(dtype[name])) for name in dtype.names or ())
    members = [(name, one) for name, one in inner if one is not None]
    return np.dtype(members) if members else None


def _copy_members(source: np.ndarray, target: np.ndarray) -> None:
    """Copy the members of one array to another that has more of them."""
    for name in source.dtype.names or ():
        if source.dtype[name].names is None:
            target[name] = source[name]
        else:
            _copy_members(source[name], target[name])


def _copy_sequences(raw: np.ndarray, stored: h5py.h5t.TypeID, values: np.ndarray) -> None:
    """Copy the variable-length values of small floats from raw elements, as libhdf5 has them in memory."""
    if values.dtype.names is None:
        values[...] = sequences_in(raw, values.dtype).reshape(values.shape)
        return
    within = raw.view(np.uint8).reshape(len(raw), -1)
    for name, offset, member in stored_members(stored):
        if name in values.dtype.names and has_small_sequences(values.dtype[name]):
            nbytes = member.get_size() // math.prod(values.dtype[name].shape)
            part = np.ascontiguousarray(within[:, offset : offset + member.get_size()]).reshape(-1).view(f"V{nbytes}")
            inner = member.get_super() if values.dtype[name].subdtype is not None else member
            _copy_sequences(part, inner, values[name])


def fill_value_of(dataset: h5py.Dataset) -> object:
    """Return the fill value of a dataset as h5py does, small floats as bits."""
    stored = dataset.id.get_type()
    if not is_readable(stored) or not has_small_floats(dtype := type_of(stored)):
        return dataset.fillvalue
    value, creation, memory = _empty((), dtype), dataset.id.get_create_plist(), memory_type(dtype)
    call("H5Pget_fill_value", creation.id, memory.id, value.ctypes.data)
    return value


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an empty array to read elements into; the axes of array elements become its last axes."""
    return np.empty((*shape, *dtype.shape), dtype.base)


def in_stored_byte_order(values: Any, dtype: np.dtype | None = None) -> Any:
    """Correct the byte order of sequences that h5py has read without swapping their bytes.

    h5py 3.16 returns variable-length sequences of foreign byte order as if they were native. `dtype` is that of the
    dataset or attribute, needed if `values` is a single sequence.
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
