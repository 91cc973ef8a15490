"""Values of variable length: what a dataset keeps of each, and reading them from the file's global heap."""

from __future__ import annotations

import ctypes
import itertools
import os
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.compiled._native import read_objects
from h5stream.storage.decode import elements
from h5stream.storage.headers.headers import Superblock
from h5stream.storage.headers.templates import NOWHERE, Bytes, Ints
from h5stream.storage.source.identity import ByteSource, Descriptor, SourceIdentity
from h5stream.storage.source.local import LOCAL_GAP_NBYTES

DOUBTFUL = -2
"""Stands for the address of a value that cannot be right; libhdf5 says what is wrong."""

MOST_VALUES = 1 << 25
"""Values of a dataset whose places are kept in memory, 16 bytes each; of more, h5py reads."""

TAKEN_APART = 1 << 20
"""Values that are taken apart together."""

HEADER_NBYTES = 16
"""Of a collection, and of an object in one."""

_FETCHED_NBYTES = 4096
"""Of a collection whose size is not known: what libhdf5 makes them, where no value needs more."""

ROOM_NBYTES = 512 * 1024
"""Collections that are read together, at most: as much as a core's own cache holds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeapValues:
    """Where the values of a dataset lie, one after the other, whatever shape its rows have.

    Things that are bytes, such as images, are such values too: theirs lie in the open, each by itself.
    """

    superblock: Superblock  # of the file
    base: np.dtype[Any]  # one item of a value, as it is stored; a byte of text
    is_text: bool  # whether values are strings
    # of each value's collection, as an offset into the file, or of itself; `NOWHERE` for an empty one, or `DOUBTFUL`
    address: Ints
    index: NDArray[np.uint32] | None  # its number there; none where values lie in the open
    length: NDArray[np.uint32]  # its items; 1 where that is in doubt
    row_nbytes: float  # bytes of a row, on average

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(each.nbytes for each in (self.address, self.index, self.length) if each is not None)

    def nbytes_of(self, chosen: Any) -> Ints:
        """Return the bytes of some values."""
        items: Ints = self.length[chosen].astype(np.int64)
        return items * self.base.itemsize

    def nbytes_of_rows(self, rows: int) -> Ints:
        """Return the bytes of the values of each of so many rows."""
        found: Ints = self.nbytes_of(slice(None)).reshape(rows, self.address.size // max(1, rows)).sum(axis=1)
        return found

    @property
    def room_nbytes(self) -> int:
        """Bytes to read into, for the collection of the largest value; what lies in the open needs none."""
        if self.index is None:
            return 1
        largest = int(self.length.max(initial=0)) * self.base.itemsize
        return max(ROOM_NBYTES, 2 * HEADER_NBYTES + -(-largest // 8) * 8)

    def read(
        self, source: ByteSource, chosen: Ints, targets: Ints, wanted: Ints, room: Bytes
    ) -> tuple[NDArray[np.bool_], tuple[int, int]]:
        """Read some values to memory, without the GIL; tells which could not be, and bytes and ranges that were."""
        order = np.argsort(self.address[chosen], kind="stable")
        ours, file = chosen[order], self.superblock
        if self.index is None:
            return self._read_each(source, self.address[chosen], targets, wanted, order)
        address, size, held = self.address[ours], file.file_nbytes, source.descriptor()
        if held is None:
            held, address, size = self._fetched(source, address, self.nbytes_of(ours))
        failed = np.zeros(len(ours), dtype=bool)
        counts = read_objects(
            held.number, size, file.length_nbytes, address, self.index[ours].astype(np.int64),
            self.nbytes_of(ours), wanted[order], targets[order], room, LOCAL_GAP_NBYTES, failed,
        )  # fmt: skip
        found = np.zeros_like(failed)
        found[order] = failed
        return found, counts

    def _read_each(
        self, source: ByteSource, address: Ints, targets: Ints, wanted: Ints, order: Ints
    ) -> tuple[NDArray[np.bool_], tuple[int, int]]:
        """Read values that lie in the open, each to where it goes."""
        some = order[(address[order] >= 0) & (wanted[order] > 0)]
        known = zip(wanted[some].tolist(), targets[some].tolist(), strict=True)
        memory: list[Any] = [(ctypes.c_uint8 * nbytes).from_address(at) for nbytes, at in known]
        source.read_many(address[some].tolist(), [memoryview(one).cast("B") for one in memory])
        return (address < 0) & (address != NOWHERE), (int(wanted[some].sum()), len(some))

    def _fetched(self, source: ByteSource, address: Ints, nbytes: Ints) -> tuple[Descriptor, Ints, int]:
        """Fetch the collections at ascending addresses into a file of memory; gives where each lies there, too.

        What comes first of each has room for the values that are wanted of it: then it mostly is all.
        """
        long, end = self.superblock.length_nbytes, self.superblock.file_nbytes
        begins, of = np.unique(address[address >= 0], return_inverse=True)
        needed = HEADER_NBYTES + np.bincount(of, weights=nbytes[address >= 0] + HEADER_NBYTES + 8).astype(np.int64)
        first = np.minimum(np.maximum(needed, _FETCHED_NBYTES), end - begins)
        edges = np.append(0, np.cumsum(first)).tolist()
        whole = memoryview(bytearray(edges[-1]))
        heads = [whole[low:high] for low, high in itertools.pairwise(edges)]
        source.read_many(begins.tolist(), heads)
        sizes = [int.from_bytes(head[8 : 8 + long], "little") if bytes(head[:4]) == b"GCOL" else 0 for head in heads]
        known = zip(begins.tolist(), heads, sizes, strict=True)
        left = [
            (begin + len(head), bytearray(size - len(head)) if len(head) < size <= end - begin else bytearray())
            for begin, head, size in known
        ]
        further = [(begin, memoryview(rest)) for begin, rest in left if rest]
        source.read_many([begin for begin, _ in further], [rest for _, rest in further])
        held = Descriptor(os.memfd_create("h5stream-heap"))
        places = np.cumsum([0, *(len(head) + len(rest) for head, (_, rest) in zip(heads, left, strict=True))])
        with open(held.number, "wb", closefd=False) as file:
            file.writelines(itertools.chain(*((head, rest) for head, (_, rest) in zip(heads, left, strict=True))))
        there = places[np.minimum(np.searchsorted(begins, address), max(0, len(begins) - 1))]
        return held, np.where(address >= 0, there, address), int(places[-1])

    def one(self, identity: SourceIdentity, number: int) -> Bytes:
        """Return the bytes of one value, without asking h5py; none where it cannot be had."""
        memory = np.zeros(int(self.nbytes_of(number)), dtype=np.uint8)
        source, chosen = identity.open(), np.array([number])
        try:
            where = np.array([memory.__array_interface__["data"][0]])
            room = np.empty(self.room_nbytes, dtype=np.uint8)
            failed, _ = self.read(source, chosen, where, np.array([memory.nbytes]), room)
        finally:
            source.close()
        return memory[:0] if failed[0] else memory


def values_of(raw: Bytes, superblock: Superblock, base: Any, rows: int, *, is_text: bool) -> HeapValues:
    """Take apart what a dataset stores of its values: items, address of a collection, number there."""
    wide = superblock.offset_nbytes
    stored = raw.reshape(-1).view([("length", "<u4"), ("address", f"<u{wide}"), ("index", "<u4")])
    length, index = stored["length"].copy(), stored["index"].copy()
    address = stored["address"].astype(np.int64)  # one of 2**63 and more is negative
    for first in range(0, len(address), TAKEN_APART):
        some = slice(first, first + TAKEN_APART)
        found = address[some]
        left = superblock.file_nbytes - superblock.base_address - found
        nbytes = length[some].astype(np.int64) * base.itemsize
        doubtful, empty = (found < 0) | (left < HEADER_NBYTES) | (nbytes > left), found == 0
        length[some][doubtful], length[some][empty] = 1, 0
        address[some] = np.where(empty, NOWHERE, np.where(doubtful, DOUBTFUL, found + superblock.base_address))
    return HeapValues(
        superblock=superblock,
        base=base,
        is_text=is_text,
        address=address,
        index=index,
        length=length,
        row_nbytes=float(length.sum(dtype=np.int64)) * base.itemsize / max(1, rows),
    )


def base_of(stored: Any) -> tuple[np.dtype[Any] | None, bool]:
    """Return one item of values of a stored type, and whether they are strings; None if libhdf5 must convert them."""
    text = h5py.check_string_dtype(stored.dtype)
    if text is not None:
        return (np.dtype(np.uint8) if text.length is None else None), True
    base = elements.vlen_base(elements.type_of(stored))
    if base is None or not _is_plain(base):
        return None, False
    return (base if elements.is_stored_as(stored.get_super(), base) else None), False


def _is_plain(base: np.dtype[Any]) -> bool:
    members = [base[name] for name in base.names] if base.names else [base]
    # Numbers of the other byte order are for h5py: what `ragged=` makes of the heap's bytes is not swapped.
    return all(each.kind in "biufc" and each.isnative for each in members)
