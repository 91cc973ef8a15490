"""Values of variable length: references in a dataset, and reading the values from the file's global heap."""

from __future__ import annotations

import ctypes
import itertools
import os
from dataclasses import dataclass

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.compiled._native import read_objects
from h5stream.storage.decode import elements
from h5stream.storage.headers.headers import Superblock
from h5stream.storage.headers.templates import NOWHERE, Bytes, Ints
from h5stream.storage.source.identity import ByteSource, Descriptor, SourceIdentity
from h5stream.storage.source.one_file import LOCAL_GAP_NBYTES

DOUBTFUL = -2
"""Replaces an invalid address; such a value is read through libhdf5, which raises the error."""

MOST_VALUES = 1 << 25
"""The most values of a dataset whose references are kept in memory, 16 bytes each; h5py reads larger datasets."""

PARSED_TOGETHER = 1 << 20
"""References that are parsed together."""

HEADER_NBYTES = 16
"""Bytes of the header of a heap collection, and of an object in one."""

_FETCHED_NBYTES = 4096
"""Bytes to fetch of a collection of unknown size: libhdf5's default size."""

_AROUND_NBYTES = HEADER_NBYTES + 8
"""The most bytes of a collection that an object takes beside its value: its header, and up to a multiple of 8."""

_NEAR = 64
"""Values before and behind those wanted that are looked at for what else a collection has, and of how many for each."""

_MOST_WALKED_NBYTES = 64 * 1024 * 1024
"""The most bytes of a collection that is looked at before libhdf5 reads it, unless a value has more."""

ROOM_NBYTES = 512 * 1024
"""The most bytes of collections that are read together: the size of a core's private cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeapValues:
    """References to the values of a dataset, flat, whatever shape its rows have.

    Datasets of bytes, such as images, are values too; they are stored outside the heap, each at its own address.
    """

    superblock: Superblock  # of the file
    base: np.dtype  # an item of a value, as stored; a byte for text
    is_text: bool  # whether values are strings
    # file offset of each value's collection, or of the value itself; `NOWHERE` if it is empty, or `DOUBTFUL`
    address: Ints
    index: NDArray[np.uint32] | None  # its number in the collection; None for values outside the heap
    length: NDArray[np.uint32]  # its items; 1 if the address is `DOUBTFUL`
    row_nbytes: float  # bytes of a row, on average

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in (self.address, self.index, self.length) if array is not None)

    def nbytes_of(self, chosen: slice | int | Ints) -> Ints:
        """Return the bytes of the chosen values."""
        items: Ints = self.length[chosen].astype(np.int64)
        return items * self.base.itemsize

    def nbytes_of_rows(self, rows: int) -> Ints:
        """Return the bytes of the values in each of `rows` rows."""
        nbytes: Ints = self.nbytes_of(slice(None)).reshape(rows, self.address.size // max(1, rows)).sum(axis=1)
        return nbytes

    @property
    def room_nbytes(self) -> int:
        """Bytes of a buffer that holds the collection of the largest value; 1 for values outside the heap."""
        if self.index is None:
            return 1
        largest = int(self.length.max(initial=0)) * self.base.itemsize
        return max(ROOM_NBYTES, 2 * HEADER_NBYTES + -(-largest // 8) * 8)

    def read(
        self, source: ByteSource, chosen: Ints, targets: Ints, wanted: Ints, room: Bytes, *, of_one_file: bool = True
    ) -> tuple[NDArray[np.bool_], tuple[int, int]]:
        """Copy values to the addresses `targets`, without the GIL; return a mask of failures, and bytes and reads."""
        order = np.argsort(self.address[chosen], kind="stable")
        ordered, file = chosen[order], self.superblock
        if self.index is None:
            return self._read_direct(source, self.address[chosen], targets, wanted, order)
        address, size, descriptor = self.address[ordered], file.file_nbytes, source.descriptor()
        if descriptor is None:
            descriptor, address, size = self._fetch_collections(source, ordered, address, of_one_file)
        failed = np.zeros(len(ordered), dtype=bool)
        counts = read_objects(
            descriptor.number, size, file.length_nbytes, address, self.index[ordered].astype(np.int64),
            self.nbytes_of(ordered), wanted[order], targets[order], room, LOCAL_GAP_NBYTES, failed,
        )  # fmt: skip
        mask = np.zeros_like(failed)
        mask[order] = failed
        return mask, counts

    def _read_direct(
        self, source: ByteSource, address: Ints, targets: Ints, wanted: Ints, order: Ints
    ) -> tuple[NDArray[np.bool_], tuple[int, int]]:
        """Read values outside the heap, each to its target address."""
        readable = order[(address[order] >= 0) & (wanted[order] > 0)]
        destinations = zip(wanted[readable].tolist(), targets[readable].tolist(), strict=True)
        memory = [(ctypes.c_uint8 * nbytes).from_address(at) for nbytes, at in destinations]
        source.read_many(address[readable].tolist(), [memoryview(one).cast("B") for one in memory])
        return (address < 0) & (address != NOWHERE), (int(wanted[readable].sum()), len(readable))

    def _fetch_collections(
        self, source: ByteSource, chosen: Ints, address: Ints, of_one_file: bool
    ) -> tuple[Descriptor, Ints, int]:
        """Fetch the collections at ascending addresses into a memory file; return it, each one's offset, and its size.

        The first read of a collection is large enough for the values that are known to be in it, so a second is rarely
        needed.
        """
        long, end, nbytes = self.superblock.length_nbytes, self.superblock.file_nbytes, self.nbytes_of(chosen)
        begins, of = np.unique(address[address >= 0], return_inverse=True)
        needed = HEADER_NBYTES + np.bincount(of, weights=nbytes[address >= 0] + _AROUND_NBYTES).astype(np.int64)
        if of_one_file:
            needed = np.maximum(needed, self._known_nbytes(chosen, begins))
        first = np.minimum(np.maximum(needed, _FETCHED_NBYTES), end - begins)
        edges = np.append(0, np.cumsum(first)).tolist()
        whole = memoryview(bytearray(edges[-1]))
        heads = [whole[low:high] for low, high in itertools.pairwise(edges)]
        source.read_many(begins.tolist(), heads)
        sizes = [int.from_bytes(head[8 : 8 + long], "little") if bytes(head[:4]) == b"GCOL" else 0 for head in heads]
        headers = zip(begins.tolist(), heads, sizes, strict=True)
        rests = [
            (begin + len(head), bytearray(size - len(head)) if len(head) < size <= end - begin else bytearray())
            for begin, head, size in headers
        ]
        further = [(begin, memoryview(rest)) for begin, rest in rests if rest]
        source.read_many([begin for begin, _ in further], [rest for _, rest in further])
        memory_file = Descriptor(os.memfd_create("h5stream-heap"))
        places = np.cumsum([0, *(len(head) + len(rest) for head, (_, rest) in zip(heads, rests, strict=True))])
        with open(memory_file.number, "wb", closefd=False) as file:
            file.writelines(itertools.chain(*((head, rest) for head, (_, rest) in zip(heads, rests, strict=True))))
        offsets = places[np.minimum(np.searchsorted(begins, address), max(0, len(begins) - 1))]
        return memory_file, np.where(address >= 0, offsets, address), int(places[-1])

    def _known_nbytes(self, chosen: Ints, begins: Ints) -> Ints:
        """Return the bytes of the collections at ascending addresses, as far as values near the chosen ones tell.

        A collection is read whole, and rows close to one another have their values in the same ones.
        """
        low, high = max(0, int(chosen.min()) - _NEAR), int(chosen.max()) + _NEAR
        if self.index is None or not len(begins) or high - low > _NEAR * (len(chosen) + 2):
            return np.zeros(len(begins), dtype=np.int64)
        address, nbytes = self.address[low:high], self.nbytes_of(slice(low, high))
        of = np.minimum(np.searchsorted(begins, address), len(begins) - 1)
        inside = np.flatnonzero(begins[of] == address)
        _, first = np.unique(of[inside] << 32 | self.index[low:high][inside], return_index=True)  # each object once
        once = inside[first]
        full = HEADER_NBYTES + np.bincount(of[once], nbytes[once] + _AROUND_NBYTES, len(begins)).astype(np.int64)
        # There may be free space at its end, up to where the next one begins.
        ends = np.append(np.unique(address), np.iinfo(np.int64).max)
        free = ends[np.searchsorted(ends, begins, side="right")] - begins - full
        nbytes_of_each: Ints = np.minimum(full + np.clip(free, 0, full // 8), self.room_nbytes)
        return nbytes_of_each

    def endless_at(self, source: ByteSource, numbers: Ints) -> int:
        """Return the offset of a collection of some values from which libhdf5 would never come back; -1 without one.

        An object in it takes no bytes at all, as where the end of a copy is zeros.
        """
        if self.index is None:
            return -1
        addresses = np.unique(self.address[numbers])
        at, long, end = addresses[addresses >= 0].tolist(), self.superblock.length_nbytes, self.superblock.file_nbytes
        heads = [bytearray(HEADER_NBYTES) for _ in at]
        source.read_many(at, [memoryview(head) for head in heads])
        sizes = [int.from_bytes(head[8 : 8 + long], "little") if head[:4] == b"GCOL" else 0 for head in heads]
        # libhdf5 says what is wrong with others.
        sound = [(place, size) for place, size in zip(at, sizes, strict=True) if HEADER_NBYTES < size <= end - place]
        most = max(self.room_nbytes, _MOST_WALKED_NBYTES)
        read = itertools.accumulate(size for _, size in sound)
        for _, together in itertools.groupby(zip(sound, read, strict=True), lambda one: one[1] // ROOM_NBYTES):
            several = [one for one, _ in together]
            wholes = [bytearray(min(size, most)) for _, size in several]
            source.read_many([place for place, _ in several], [memoryview(whole) for whole in wholes])
            for (place, size), whole in zip(several, wholes, strict=True):
                if size > most or _is_endless(whole, long):
                    return int(place)
        return -1

    def one(self, identity: SourceIdentity, number: int) -> Bytes:
        """Return the bytes of one value, without h5py; empty if it cannot be read."""
        memory = np.zeros(int(self.nbytes_of(number)), dtype=np.uint8)
        source, chosen = identity.open(), np.array([number])
        try:
            where = np.array([memory.__array_interface__["data"][0]])
            room = np.empty(self.room_nbytes, dtype=np.uint8)
            failed, _ = self.read(source, chosen, where, np.array([memory.nbytes]), room)
        finally:
            source.close()
        return memory[:0] if failed[0] else memory


def _is_endless(collection: bytearray, long: int) -> bool:
    """Return whether an object takes no bytes at all, in the 64 bits in which libhdf5 counts.

    Source: HDF5's ``H5HG__cache_heap_deserialize``, in ``H5HGcache.c``.
    """
    place = step = HEADER_NBYTES
    while step and place + HEADER_NBYTES <= len(collection):
        nbytes = int.from_bytes(collection[place + 8 : place + 8 + long], "little")
        is_free = collection[place : place + 2] == b"\0\0"
        step = nbytes if is_free else (HEADER_NBYTES + (nbytes + 7) % (1 << 64) // 8 * 8) % (1 << 64)
        place += step
    return not step


def values_of(raw: Bytes, superblock: Superblock, base: np.dtype, rows: int, *, is_text: bool) -> HeapValues:
    """Parse the stored references: number of items, address of a collection, index in it."""
    wide = superblock.offset_nbytes
    stored = raw.reshape(-1).view([("length", "<u4"), ("address", f"<u{wide}"), ("index", "<u4")])
    length, index = stored["length"].copy(), stored["index"].copy()
    address = stored["address"].astype(np.int64)  # one of 2**63 and more is negative
    for first in range(0, len(address), PARSED_TOGETHER):
        part = slice(first, first + PARSED_TOGETHER)
        addresses = address[part]
        available = superblock.file_nbytes - superblock.base_address - addresses
        nbytes = length[part].astype(np.int64) * base.itemsize
        doubtful, empty = (addresses < 0) | (available < HEADER_NBYTES) | (nbytes > available), addresses == 0
        length[part][doubtful], length[part][empty] = 1, 0
        address[part] = np.where(empty, NOWHERE, np.where(doubtful, DOUBTFUL, addresses + superblock.base_address))
    return HeapValues(
        superblock=superblock,
        base=base,
        is_text=is_text,
        address=address,
        index=index,
        length=length,
        row_nbytes=float(length.sum(dtype=np.int64)) * base.itemsize / max(1, rows),
    )


def base_of(stored: h5py.h5t.TypeID) -> tuple[np.dtype | None, bool]:
    """Return the dtype of a value's items, None if libhdf5 must convert them, and whether values are strings."""
    text = h5py.check_string_dtype(stored.dtype)
    if text is not None:
        return (np.dtype(np.uint8) if text.length is None else None), True
    base = elements.vlen_base(elements.type_of(stored))
    if base is None or not _is_plain(base):
        return None, False
    return (base if elements.is_stored_as(stored.get_super(), base) else None), False


def _is_plain(base: np.dtype) -> bool:
    members = [base[name] for name in base.names] if base.names else [base]
    # Foreign byte order is left to h5py: the heap's bytes reach ragged fields unswapped.
    return all(member.kind in "biufc" and member.isnative for member in members)
