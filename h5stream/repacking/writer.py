"""A file written anew from another one: the same tree, some datasets in other chunks.

# Guarantees: one thread writes. Chunks come compressed by others and are stored as they are; nothing of the
source is changed. When a write fails, the space that was taken is given back before the file is closed, or
libhdf5 could not close it: it would have to write what did not fit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5f, h5p, h5s, h5z
from numpy.typing import NDArray

from h5stream.repacking.raw import RawDataset, address_of_object
from h5stream.repacking.tree import TreeCopy
from h5stream.storage.filters import Filter
from h5stream.storage.handles import open_file
from h5stream.storage.values import is_fixed

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewShape:
    """How a dataset is stored in the new file."""

    chunk_rows: int | None  # rows of a chunk, which holds whole rows; None for one extent without chunks
    filters: tuple[Filter, ...] = ()  # of its chunks


class Rebuild:
    """The open new file; made by `rebuilding`."""

    def __init__(self, target: Any, places: Mapping[int, bytes], notices: list[str]) -> None:
        self._target, self._places, self.notices = target, places, notices  # what could not be kept, for people
        self._open: tuple[int, Any] | None = None

    def _dataset(self, address: int) -> Any:
        if self._open is None or self._open[0] != address:
            self._open = (address, h5d.open(self._target.id, self._places[address]))
        return self._open[1]

    def place_of(self, dataset: RawDataset) -> str:
        """Return where a dataset lies in the new file; empty where it could not be kept."""
        return self._places.get(dataset.address, b"").decode("utf-8", "surrogateescape").lstrip("/")

    def write_chunk(self, dataset: RawDataset, first_row: int, data: Bytes, filter_mask: int) -> None:
        """Store a chunk that is compressed already."""
        where = (first_row,) + (0,) * (len(dataset.shape) - 1)
        self._dataset(dataset.address).write_direct_chunk(where, data, filter_mask)

    def write_rows(self, dataset: RawDataset, first_row: int, data: Bytes) -> None:
        """Store the bytes of some rows of a dataset without chunks."""
        target, rows = self._dataset(dataset.address), data.nbytes // dataset.row_nbytes
        stored, count = target.get_type(), (rows, *dataset.shape[1:])
        space = target.get_space()
        space.select_hyperslab((first_row,) + (0,) * (len(count) - 1), count)
        target.write(h5s.create_simple(count), space, data.view(f"V{dataset.element_nbytes}").reshape(count), stored)

    def permute_rows(self, dataset: RawDataset, order: NDArray[np.int64]) -> None:
        """Put the rows of a dataset that was copied as it is into another order, through h5py, in memory."""
        target = self._dataset(dataset.address)
        stored = target.get_type()
        if is_fixed(stored):
            raw = np.zeros(dataset.shape, dtype=f"V{stored.get_size()}")
            target.read(h5s.ALL, h5s.ALL, raw, stored)
            target.write(h5s.ALL, h5s.ALL, raw[order], stored)
            return
        twin = h5py.Dataset(target)
        target.write(h5s.ALL, h5s.ALL, np.asarray(twin[()], dtype=twin.dtype)[order])


@contextlib.contextmanager
def rebuilding(source: str, target: str, shapes: Mapping[int, NewShape]) -> Iterator[Rebuild]:
    """Make a new file with the tree of another; the datasets in `shapes` are there, and empty."""
    with open_file(source) as old, _created(old, target) as new:

        def create(dataset: Any, group: Any, name: bytes) -> bool:
            shape = shapes.get(address_of_object(dataset))
            if shape is not None:
                _create_dataset(dataset, group, name, shape, tree.notices)
            return shape is not None

        tree = TreeCopy(old, new, create)
        tree.run()
        rebuild = Rebuild(new, tree.places, tree.notices)
        yield rebuild
        rebuild._open = None
        user_block = old.userblock_size
    _finish(source, target, user_block)


@contextlib.contextmanager
def _created(old: Any, target: str) -> Iterator[Any]:
    creation, access = old.id.get_create_plist(), h5p.create(h5p.FILE_ACCESS)
    root = old["/"].id.get_create_plist()
    creation.set_link_creation_order(root.get_link_creation_order())
    creation.set_attr_creation_order(root.get_attr_creation_order())
    access.set_file_locking(False, True)
    file = h5py.File(h5f.create(os.fsencode(target), h5f.ACC_TRUNC, fcpl=creation, fapl=access))
    try:
        yield file
        file.flush()
    except BaseException:
        with contextlib.suppress(OSError):
            os.truncate(target, 0)
        with contextlib.suppress(OSError, RuntimeError):
            file.close()
        raise
    file.close()


def _finish(source: str, target: str, user_block: int) -> None:
    """Copy what stands before the HDF5 data, and see the file on the disk."""
    descriptor = os.open(target, os.O_RDWR | os.O_CLOEXEC)
    try:
        if user_block:
            with open(source, "rb") as head:
                os.pwrite(descriptor, head.read(user_block), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create_dataset(dataset: Any, group: Any, name: bytes, shape: NewShape, notices: list[str]) -> None:
    creation, space = dataset.get_create_plist(), dataset.get_space()
    for code in [creation.get_filter(i)[0] for i in range(creation.get_nfilters())]:
        creation.remove_filter(code)
    dims = space.get_simple_extent_dims()
    if shape.chunk_rows is None:
        creation.set_layout(h5d.CONTIGUOUS)
        if space.get_simple_extent_dims(True) != dims:
            notices.append(f"{name.decode(errors='replace')} can no longer grow: it is stored without chunks")
        space = h5s.create_simple(dims)
    else:
        creation.set_chunk((shape.chunk_rows, *dims[1:]))
    creation.set_alloc_time(h5d.ALLOC_TIME_DEFAULT)
    for each in shape.filters:
        # Optional, so that a chunk which does not get smaller may be stored without it.
        creation.set_filter(each.id, h5z.FLAG_OPTIONAL, each.values)
    h5d.create(group, name, dataset.get_type().copy(), space, creation)
