"""Objects that are bytes, each of a length of its own, such as encoded images: where each lies, and reading it.

They are values of variable length whose bytes lie in the open instead of in a heap, so they land as such values do.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import UnsupportedFieldError
from h5stream.storage import elements, whereabouts
from h5stream.storage.discovery import check_has_numpy_type, dataset_at
from h5stream.storage.global_heap import DOUBTFUL, HeapValues
from h5stream.storage.index import offset_of
from h5stream.storage.layout import BLOCK_NBYTES, HEAP, DatasetPart, Target
from h5stream.storage.names import Names
from h5stream.storage.rowbox import ColumnPiece
from h5stream.storage.templates import COMPACT, CONTIGUOUS, NOWHERE
from h5stream.storage.whereabouts import RawFile

Ints = NDArray[np.int64]


class ObjectValues(HeapValues):
    """Where objects lie in a file; what is filtered, and so has no bytes of its own there, is `DOUBTFUL`."""

    __slots__ = ()

    @property
    def room_nbytes(self) -> int:
        """Bytes to read into: none, since each object is read to where it goes."""
        return 1

    def read(
        self, descriptor: int, chosen: Ints, targets: Ints, wanted: Ints, room: Any
    ) -> tuple[NDArray[np.bool_], tuple[int, int]]:
        """Read some objects to memory; see `HeapValues.read`."""
        failed, address = np.zeros(len(chosen), dtype=bool), self.address[chosen]
        for k in np.argsort(address, kind="stable").tolist():
            if address[k] >= 0:
                memory: Any = (ctypes.c_uint8 * int(wanted[k])).from_address(int(targets[k]))
                failed[k] = os.preadv(descriptor, [memory], int(address[k])) != wanted[k]
            else:
                failed[k] = address[k] != NOWHERE
        return failed, (int(wanted[address >= 0].sum()), int((address >= 0).sum()))


def part_of_bytes(
    raw: RawFile, file: int, row_start: int, names: Sequence[str], targets: list[Target], addresses: Ints | None = None
) -> DatasetPart:
    """Describe objects that are bytes as rows."""
    key, arrays = f"bytes of {names[0].rpartition('/')[2]}", raw.catalogue.arrays
    if raw.catalogue.is_kept:
        where, nbytes = arrays[f"{key} where"].astype(np.int64), arrays[f"{key} nbytes"].astype(np.int64)
        some = whereabouts.checked(len(names))
        if len(where) != len(names) or any(_asked(raw, names[k]) != (where[k], nbytes[k]) for k in some):
            raise ValueError(key)
    else:
        where, nbytes = _places(raw, names, addresses)
        arrays |= {f"{key} where": where, f"{key} nbytes": nbytes}
    left = raw.superblock.file_nbytes - where
    doubtful = (where >= 0) & ((nbytes < 0) | (nbytes > left) | (nbytes >= 1 << 32))
    where, nbytes = np.where(doubtful, DOUBTFUL, where), np.where(doubtful, 1, nbytes)
    row_nbytes = float(nbytes.mean())
    return DatasetPart(
        file=file,
        path=names[0],
        rows=len(names),
        row_start=row_start,
        access=HEAP,
        reason="",
        chunk_rows=max(1, min(len(names), BLOCK_NBYTES // max(1, int(row_nbytes)))),
        pieces=(ColumnPiece(number=0, row_elements=1, segments=np.array([[0, 0, 1]])),),
        targets=tuple(targets),
        stored_element_nbytes=1,
        dtype_text="bytes",
        shape=(len(names),),
        objects=Names.of(names),
        heap=ObjectValues(
            superblock=raw.superblock,
            base=np.dtype(np.uint8),
            is_text=False,
            address=where,
            index=np.zeros(len(names), dtype=np.uint32),
            length=nbytes.astype(np.uint32),
            row_nbytes=row_nbytes,
        ),
    )


def _places(raw: RawFile, names: Sequence[str], addresses: Ints | None) -> tuple[Ints, Ints]:
    """Return where objects begin, and their bytes; those whose headers are not understood are asked of libhdf5."""
    where, nbytes = np.full((2, len(names)), DOUBTFUL)
    left = np.ones(len(names), dtype=bool)
    if addresses is not None and len(names) >= whereabouts.MANY:
        headers = raw.headers(addresses)
        usual = (headers.kind == headers.kind[0]) & (headers.kind >= 0) & (headers.address >= 0)
        usual &= (headers.layout == CONTIGUOUS) | (headers.layout == COMPACT)
        where[usual], nbytes[usual] = headers.address[usual], headers.nbytes[usual]
        some = np.flatnonzero(usual)[:: whereabouts.CHECKED_EVERY].tolist()
        if headers.layout[0] == CONTIGUOUS and all(_asked(raw, names[k]) == (where[k], nbytes[k]) for k in some):
            left = ~usual
    for k in np.flatnonzero(left).tolist():
        where[k], nbytes[k] = _asked(raw, names[k])
    return where, nbytes


def _asked(raw: RawFile, name: str) -> tuple[int, int]:
    """Ask libhdf5 where the bytes of an object begin, and how many they are."""
    opened = dataset_at(raw.file, name, raw.file.filename)
    check_has_numpy_type(opened, name, raw.file.filename)
    dtype, shape = opened.dtype, opened.shape
    if shape is None or elements.bytes_leaf(dtype) is None or len(shape) > 1 or (shape and dtype.itemsize > 1):
        said = "of variable length" if dtype.kind == "O" else dtype
        raise UnsupportedFieldError(
            f"{raw.file.filename!r}: {name!r} is {said} {shape}: decode= takes objects that are bytes: uint8, or "
            "one opaque value (np.void); values of variable length are taken as rows of one dataset",
            field=name,
            file=raw.file.filename,
        )
    assert raw.guard is not None
    raw.guard.check_data(h5py.Dataset(opened), name, raw.file.filename)
    creation, nbytes = opened.get_create_plist(), dtype.itemsize * int(np.prod(shape, dtype=object))
    is_plain = dtype.kind != "u" or elements.is_stored_as(opened.get_type(), dtype)
    if not is_plain or creation.get_layout() != h5py.h5d.CONTIGUOUS or creation.get_external_count():
        return DOUBTFUL, 1
    where = offset_of(opened)
    return (NOWHERE, 0) if where is None else (where, nbytes)
