"""Read rows and chunks through h5py, under its lock, if they cannot be decoded directly."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar, cast

import h5py
import hdf5plugin  # noqa: F401  registers its filters with libhdf5
import numpy as np
from numpy.typing import NDArray

from h5stream.base.cancel import raise_if_stopped
from h5stream.compiled import _native as kernels
from h5stream.errors import CorruptChunkError, H5StreamError, SourceError
from h5stream.storage.decode.columns import columns_of
from h5stream.storage.decode.elements import StoredElement, stored_as, type_of
from h5stream.storage.decode.filters import DecodeError, DecodeScratch, NotAskedError
from h5stream.storage.decode.images import MOST_NBYTES
from h5stream.storage.decode.pipeline import check_stored
from h5stream.storage.decode.values import in_stored_byte_order, safe_to_read, values_of
from h5stream.storage.headers.headers import superblock_of
from h5stream.storage.layout.access import DIRECT
from h5stream.storage.layout.heap import values_of as heap_values_of
from h5stream.storage.layout.index import COMPARED_NBYTES, ChunkIndex, read_stored_chunk
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.source.handles import open_file, watch
from h5stream.storage.source.identity import SourceIdentity
from h5stream.storage.source.local import FilesIdentity, bytes_at
from h5stream.storage.source.remote import ObjectFile, ObjectIdentity, check_reads, opened_again

_log = logging.getLogger("h5stream")

_Scalar = TypeVar("_Scalar", bound=np.generic)

_SYSTEM_ERROR = re.compile(r"errno = \d+, error message = '([^']*)'")
"""A system error in a message of libhdf5; without one, the file's bytes are damaged."""


class H5pyReader:
    """Reads through h5py; opens each file once per process, and again after a system error.

    # Guarantees: any thread may call; h5py's own lock serialises them. Handles opened before a fork are not
    # used in the child, which opens its own; `_pid` detects that. Those opened before an error stay open until
    # `close`, because other threads may be about to read through them. Pickling carries the layout's paths only.
    """

    def __init__(self, layout: SampleLayout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._files: dict[int, h5py.File] = {}
        self._datasets: dict[tuple[int, str], h5py.Dataset] = {}

    def __reduce__(self) -> tuple[type[H5pyReader], tuple[SampleLayout]]:
        return H5pyReader, (self._layout,)

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        with self._own_lock():
            files, self._files, self._datasets = self._files, {}, {}
            for file in files.values():
                file.close()

    def _own_lock(self) -> threading.Lock:
        """Return this process's lock, replacing the parent's, which another thread may hold forever."""
        if self._pid != os.getpid():
            # The parent's handles are not closed: that would affect its libhdf5 state.
            self._lock, self._files, self._datasets = threading.Lock(), {}, {}
            self._pid = os.getpid()
        return self._lock

    def _dataset(self, part: DatasetPart) -> h5py.Dataset:
        key = (part.file, part.path)
        with self._own_lock():
            if part.file in self._files and not self._files[part.file]:  # it changed, and was reopened elsewhere
                self._forget(part.file)
            if key not in self._datasets:
                if part.file not in self._files:
                    identity = self._layout.files[part.file]
                    identity.check_unchanged()
                    with opened_again(identity):  # a replaced object raises at the first read
                        self._files[part.file] = open_file(identity.path)
                watch(self._files[part.file], [self._layout.files[number].path for number in part.behind])
                self._datasets[key] = self._files[part.file][part.path]
            return self._datasets[key]

    def rows(self, part: DatasetPart, first: int, count: int) -> np.ndarray:
        """Read `count` rows from row `first` of a dataset part, converted to its dtype, with columns selected."""
        return columns_of(self.box(part, (first,), (count,)), part.columns, len(part.shape) - 1)

    def bytes_of(self, part: DatasetPart, row: int) -> NDArray[np.uint8]:
        """Read the bytes of an object, such as an image."""

        def read(dataset: h5py.Dataset) -> NDArray[np.uint8]:
            if dataset.nbytes > MOST_NBYTES:
                raise ValueError(f"it claims {dataset.nbytes:,} bytes")
            check_stored(dataset)
            return np.frombuffer(dataset[()].tobytes(), dtype=np.uint8)

        return self._read(replace(part, path=part.path_of(row)), (0,), read)

    def box(self, part: DatasetPart, start: tuple[int, ...], count: tuple[int, ...]) -> np.ndarray:
        """Read a box of a dataset part, converted to its dtype."""

        def read(dataset: h5py.Dataset) -> np.ndarray:
            return cast(np.ndarray, in_stored_byte_order(values_of(dataset, start, count)))

        return self._read(part, start, read)

    def chunk(self, part: DatasetPart, number: int) -> NDArray[np.uint8]:
        """Read one chunk as its raw stored elements, padded with zeros beyond the data."""
        index, files = part.chunk_index, self._layout.files[part.file]
        if part.objects is not None:
            own, inner = part.in_object(number)
            if not isinstance(files, FilesIdentity):
                return self.chunk(own, inner)
            one = files.at(int(index.offset[index.find(np.array([number]))[0]]))[0]
            # A single one of many files is not kept open.
            with contextlib.closing(H5pyReader(replace(self._layout, files=(one,)))) as reader:
                return reader.chunk(replace(own, file=0), inner)
        start = index.coordinates(number)
        count = chunk_box(index.shape, index.chunk_shape, start)
        box = self._read(part, start, lambda dataset: read_raw_box(dataset, start, count))
        chunk = np.zeros(index.chunk_shape, dtype=box.dtype)
        chunk[tuple(slice(0, n) for n in count)] = box
        return chunk.reshape(-1).view(np.uint8)

    def _read(
        self, part: DatasetPart, start: tuple[int, ...], read: Callable[[h5py.Dataset], NDArray[_Scalar]]
    ) -> NDArray[_Scalar]:
        path = self._layout.files[part.file].path
        what = f"{path!r}, dataset {part.path!r}: h5py cannot read the rows from {start[0]} on"
        first = ""
        while True:
            dataset = None
            try:
                dataset = self._dataset(part)
                return read(dataset)
            except H5StreamError:
                raise  # for instance, the file changed
            except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
                if dataset is not None and (self._datasets.get((part.file, part.path)) is not dataset or not dataset):
                    continue  # another thread closed it
                raise_if_stopped()
                check_reads(path)
                system_error = _SYSTEM_ERROR.search(str(error))
                if system_error is None:
                    raise CorruptChunkError(f"{what}: {error}", file=path, field=part.path, chunk=start) from error
                if first:
                    messages = f"{first}; then, with the file opened afresh: {system_error[1]}"
                    raise SourceError(f"{what}: {messages}", file=path) from error
                first = system_error[1]
                _log.warning("%s: %s; trying once more with the file opened afresh", what, first)
                with self._own_lock():  # libhdf5 would share an open file
                    if part.file in self._files and self._datasets.get((part.file, part.path)) is dataset:
                        self._forget(part.file).close()

    def _forget(self, number: int) -> h5py.File:
        self._datasets = {key: other for key, other in self._datasets.items() if key[0] != number}
        return self._files.pop(number)


# --- Comparisons with h5py when a file is opened: some stored chunks, and the fill value of missing ones.
#
# A wrong parameter of a filter silently produces garbage, and so does an index with wrong addresses; a comparison with
# h5py detects both.


_SLAB_NBYTES = 8 * 1024 * 1024

# Chunks of a dataset that are compared, and the most bytes of all but the last of them: opening
# thousands of files must stay quick.
_COMPARED = 5
_COMPARED_NBYTES = 2 * 1024 * 1024


_COMPACT_NBYTES = 64 * 1024
"""The most bytes of a message in an object header, and so of a compact dataset."""

_HEADER_NBYTES = 8 * 1024


def read_raw_box(dataset: h5py.Dataset, start: tuple[int, ...], count: tuple[int, ...]) -> NDArray[np.void]:
    """Read a box of elements through h5py as stored; references to values elsewhere are zeros."""
    stored = stored_as(dataset)
    box = np.zeros(count, dtype=f"V{stored.nbytes}")
    if box.size and stored.plain is not None:
        if dataset.chunks is not None:
            check_stored(dataset, start, count)
        file_space = dataset.id.get_space()
        file_space.select_hyperslab(start, count)
        is_number = stored.plain.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT)
        with contextlib.nullcontext(dataset) if is_number else safe_to_read(dataset) as opened:
            opened.id.read(h5py.h5s.create_simple(count), file_space, box, stored.plain)
    return box


def chunk_box(dataset_shape: tuple[int, ...], chunk_shape: tuple[int, ...], start: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of elements of a chunk inside the data, along each axis."""
    return tuple(map(min, chunk_shape, map(operator.sub, dataset_shape, start)))


def fill_element(dataset: h5py.Dataset, index: ChunkIndex) -> NDArray[np.uint8] | None:
    """Return the bytes of a stored element in a chunk that was never written; None if there is no such chunk.

    It is read through libhdf5, which alone knows it: a fill value has its own type, and with a fill time of "never"
    it is not used at all.
    """
    if len(index.numbers) == index.chunks or 0 in index.shape:
        return None
    gaps = np.flatnonzero(index.numbers != np.arange(len(index.numbers)))
    missing = int(gaps[0]) if len(gaps) else len(index.numbers)
    one = read_raw_box(dataset, index.coordinates(missing), (1,) * len(index.shape))
    return one.reshape(-1).view(np.uint8)


def compact_offset(dataset: h5py.Dataset, identity: SourceIdentity) -> int | None:
    """Return the file offset of a compact dataset's bytes; None if they are not found in its object header.

    libhdf5 does not report the offset. The bytes that are found equal those that it reads, so it does not matter what
    they are part of: a file that changes is refused.
    """
    shape = dataset.shape
    how = stored_as(dataset)
    if type_of(dataset.id.get_type()).hasobject or not how.is_whole or math.prod(shape) * how.nbytes > _COMPACT_NBYTES:
        return None  # pointers, members that are not read, or damage
    stored = read_raw_box(dataset, (0,) * len(shape), shape).tobytes()
    header = dataset.file.userblock_size + h5py.h5o.get_info(dataset.id).addr
    nbytes = min(identity.size - header, len(stored) + _HEADER_NBYTES)
    if not stored or nbytes < len(stored):
        return None
    offset = bytes_at(identity, header, nbytes).find(stored)
    return None if offset < 0 else header + offset


def why_not_decoded_here(dataset: h5py.Dataset, part: DatasetPart, identity: SourceIdentity) -> str:
    """Return why a dataset's chunks must be read through h5py; empty if comparisons find no reason."""
    if part.access != DIRECT and part.chunk_nbytes > COMPARED_NBYTES:
        return f"its chunks have {part.chunk_nbytes:,} bytes each, too many to compare one with h5py's"
    if part.index is not None and isinstance(identity, ObjectIdentity):
        places = [*range(min(1, len(part.index.numbers))), *(_chunks_to_compare(part.index) if dataset.chunks else ())]
        ranges = [(int(part.index.offset[place]), int(part.index.nbytes[place])) for place in places]
        ObjectFile(identity).hold(ranges)
    if _differs(dataset, part, identity):
        return "its first chunk, decoded here, is not what h5py reads"
    # libhdf5 looks each chunk up, which does not use the listing that the index comes from. A chunk that either side
    # cannot read is not a difference.
    index = part.chunk_index
    for place in _chunks_to_compare(index) if dataset.chunks is not None else ():
        nbytes = int(index.nbytes[place])
        with contextlib.suppress(OSError, RuntimeError, H5StreamError):
            stored, chunk = bytes_at(identity, int(index.offset[place]), nbytes), None
            with contextlib.suppress(ValueError):  # the chunk is larger
                chunk = read_stored_chunk(dataset, index.coordinates(int(index.numbers[place])), nbytes)
            if chunk != (int(index.filter_mask[place]), stored):
                return "its chunks do not lie where libhdf5's list of them says"
    return ""


def _chunks_to_compare(index: ChunkIndex) -> Iterator[int]:
    """Yield the chunks to compare: the last, and others while they are small; the first is compared decoded."""
    count, remaining = len(index.numbers), _COMPARED_NBYTES
    for place in np.unique(count - 1 - np.arange(min(count, _COMPARED)) * count // _COMPARED)[::-1].tolist():
        nbytes = int(index.nbytes[place])
        remaining -= nbytes
        if nbytes > COMPARED_NBYTES or (remaining < 0 and place != count - 1):
            return
        yield place


def _is_endless(
    decoded: NDArray[np.uint8], how: StoredElement, dataset: h5py.Dataset, identity: SourceIdentity
) -> bool:
    """Return whether libhdf5 would never come back from the values of variable length that elements refer to."""
    superblock, beside = superblock_of(dataset.file, identity.size), decoded.size % how.nbytes
    rows = decoded.reshape(-1)[: decoded.size - beside].reshape(-1, how.nbytes)
    with contextlib.closing(identity.open()) as source:
        for begin, _ in how.loose.values():
            raw = np.ascontiguousarray(rows[:, begin : begin + superblock.offset_nbytes + 8])
            values = heap_values_of(raw, superblock, np.dtype(np.uint8), len(raw), is_text=False)
            if values.endless_at(source, np.arange(len(raw))) >= 0:
                return True
    return False


def _differs(dataset: h5py.Dataset, part: DatasetPart, identity: SourceIdentity) -> bool:
    """Return whether the first stored chunk decodes to other bytes than h5py reads.

    A chunk that neither side can read is not a difference: reading its rows raises an error.
    """
    index = part.chunk_index
    filtered = np.flatnonzero(~part.may_be_unfiltered(np.arange(len(index.numbers))))
    if len(filtered) == 0:
        return False
    place = int(filtered[0])
    start = index.coordinates(int(index.numbers[place]))
    count = chunk_box(index.shape, index.chunk_shape, start)
    decoded: NDArray[np.uint8] | None = None
    try:
        decoded = decode_stored(part, identity, place=place)
    except NotAskedError:
        return False  # corrupt, and libhdf5 must not be tried on it
    except (DecodeError, H5StreamError):
        pass
    how = stored_as(dataset)
    if decoded is not None and how.loose and _is_endless(decoded, how, dataset, identity):
        return False  # damaged, and libhdf5 must not be tried on it
    try:
        expected = read_raw_box(dataset, start, count)
    except (OSError, RuntimeError):
        return False
    if decoded is None:
        return True
    if decoded.nbytes != math.prod(index.chunk_shape) * expected.dtype.itemsize:
        return True
    if not how.is_whole:  # the other bytes were not read through h5py
        raw, places = expected.reshape(-1).view(np.uint8), np.flatnonzero(how.in_place)
        decoded, raw = (one.reshape(-1, how.nbytes).take(places, axis=1).reshape(-1) for one in (decoded, raw))
        expected = raw.view(f"V{len(places)}").reshape(count)
    chunk = decoded.view(expected.dtype).reshape(index.chunk_shape)[tuple(slice(0, n) for n in count)]
    # One slab at a time, to avoid a third copy of a large chunk.
    slab = max(1, _SLAB_NBYTES // max(1, expected[:1].nbytes))
    for row in range(0, count[0], slab):
        if chunk[row : row + slab].tobytes() != expected[row : row + slab].tobytes():
            return True
    return False


def decode_stored(part: DatasetPart, identity: SourceIdentity, *, place: int) -> NDArray[np.uint8]:
    """Read and decode a chunk like the engine."""
    index = part.chunk_index
    stored = np.frombuffer(bytes_at(identity, int(index.offset[place]), int(index.nbytes[place])), dtype=np.uint8)
    if part.access == DIRECT:
        return stored
    data, shuffled = part.pipeline.decode(
        stored, filter_mask=int(index.filter_mask[place]), raw_nbytes=part.chunk_nbytes, scratch=DecodeScratch()
    )
    if not shuffled:
        return data
    whole = np.empty_like(data)
    kernels.unshuffle(data, shuffled, whole)
    return whole
