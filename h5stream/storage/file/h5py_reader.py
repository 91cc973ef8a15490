"""Rows and chunks through h5py, under its lock: for what cannot be decoded directly."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import h5py
import hdf5plugin  # noqa: F401  registers its filters with libhdf5
import numpy as np
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.errors import CorruptChunkError, H5StreamError, SourceError
from h5stream.storage.decode.columns import columns_of
from h5stream.storage.decode.elements import in_stored_byte_order, stored_as, to_be_read, type_of, values_of
from h5stream.storage.decode.filters import DecodeError, DecodeScratch, NotAskedError
from h5stream.storage.decode.images import MOST_NBYTES
from h5stream.storage.layout.index import COMPARED_NBYTES, ChunkIndex, read_stored_chunk
from h5stream.storage.layout.layout import DIRECT, DatasetPart, SampleLayout
from h5stream.storage.source.handles import open_file, watch
from h5stream.storage.source.identity import SourceIdentity
from h5stream.storage.source.local import FilesIdentity, bytes_at
from h5stream.storage.source.remote import ObjectFile, ObjectIdentity, check_reads, opened_again
from h5stream.storage.source.stores import raise_if_stopped

_log = logging.getLogger("h5stream")

_SYSTEM_ERROR = re.compile(r"errno = \d+, error message = '([^']*)'")
"""How libhdf5 words what the system said; without it the file's bytes are at fault."""


class H5pyReader:
    """Reads through h5py; opens each file once in each process, and again where the system reports an error.

    # Guarantees: any thread may call; h5py's own lock serialises them. Handles opened before a fork are not
    # used in the child: `_pid` tells, and the child opens its own. Those opened before an error stay open until
    # `close`, because other threads may be about to read through them. Pickling carries the layout's paths only.
    """

    def __init__(self, layout: SampleLayout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._files: dict[int, Any] = {}
        self._datasets: dict[tuple[int, str], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return H5pyReader, (self._layout,)

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        with self._own_lock():
            files, self._files, self._datasets = self._files, {}, {}
            for file in files.values():
                file.close()

    def _own_lock(self) -> threading.Lock:
        """Return this process's lock: a thread that stayed in the parent may hold that one for ever."""
        if self._pid != os.getpid():
            # The parent's handles are left alone: closing them here would touch its libhdf5 state.
            self._lock, self._files, self._datasets = threading.Lock(), {}, {}
            self._pid = os.getpid()
        return self._lock

    def _dataset(self, part: DatasetPart) -> Any:
        key = (part.file, part.path)
        with self._own_lock():
            if part.file in self._files and not self._files[part.file]:  # it changed, and was opened anew elsewhere
                self._forget(part.file)
            if key not in self._datasets:
                if part.file not in self._files:
                    identity = self._layout.files[part.file]
                    identity.check_unchanged()
                    with opened_again(identity):  # an object that was replaced says so where it is read
                        self._files[part.file] = open_file(identity.path)
                watch(self._files[part.file], [self._layout.files[number].path for number in part.behind])
                self._datasets[key] = self._files[part.file][part.path]
            return self._datasets[key]

    def rows(self, part: DatasetPart, first: int, count: int) -> NDArray[Any]:
        """Read `count` rows from row `first` of a dataset part, converted to its dtype, columns taken."""
        return columns_of(self.box(part, (first,), (count,)), part.columns, len(part.shape) - 1)

    def bytes_of(self, part: DatasetPart, row: int) -> NDArray[np.uint8]:
        """Read the bytes of an object."""

        def read(dataset: Any) -> NDArray[np.uint8]:
            if dataset.nbytes > MOST_NBYTES:
                raise ValueError(f"it claims {dataset.nbytes:,} bytes")
            return np.frombuffer(dataset[()].tobytes(), dtype=np.uint8)

        return cast(NDArray[np.uint8], self._read(replace(part, path=part.objects[row]), (0,), read))

    def box(self, part: DatasetPart, start: tuple[int, ...], count: tuple[int, ...]) -> NDArray[Any]:
        """Read a box of a dataset part, converted to its dtype."""

        def read(dataset: Any) -> NDArray[Any]:
            return cast(NDArray[Any], in_stored_byte_order(values_of(dataset, start, count)))

        return cast(NDArray[Any], self._read(part, start, read))

    def chunk(self, part: DatasetPart, number: int) -> NDArray[np.uint8]:
        """Read one chunk as its raw stored elements, padded with zeros beyond the data."""
        index, files = part.chunk_index, self._layout.files[part.file]
        if part.objects:
            own, inner = part.in_object(number)
            if not isinstance(files, FilesIdentity):
                return self.chunk(own, inner)
            one = files.at(int(index.offset[index.find(np.array([number]))[0]]))[0]
            # What is read of one of many is not kept open.
            with contextlib.closing(H5pyReader(replace(self._layout, files=(one,)))) as reader:
                return reader.chunk(replace(own, file=0), inner)
        start = index.coordinates(number)
        count = chunk_box(index.shape, index.chunk_shape, start)
        box = self._read(part, start, lambda dataset: read_raw_box(dataset, start, count))
        chunk = np.zeros(index.chunk_shape, dtype=box.dtype)
        chunk[tuple(slice(0, n) for n in count)] = box
        return chunk.reshape(-1).view(np.uint8)

    def _read(self, part: DatasetPart, start: tuple[int, ...], read: Callable[[Any], Any]) -> Any:
        path = self._layout.files[part.file].path
        what = f"{path!r}, dataset {part.path!r}: h5py cannot read the rows from {start[0]} on"
        first = ""
        while True:
            dataset = None
            try:
                dataset = self._dataset(part)
                return read(dataset)
            except H5StreamError:
                raise  # the file changed, say
            except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
                if dataset is not None and (self._datasets.get((part.file, part.path)) is not dataset or not dataset):
                    continue  # another thread closed it
                raise_if_stopped()
                check_reads(path)
                said = _SYSTEM_ERROR.search(str(error))
                if said is None:
                    raise CorruptChunkError(f"{what}: {error}", file=path, field=part.path, chunk=start) from error
                if first:
                    said_twice = f"{first}; then, with the file opened afresh: {said[1]}"
                    raise SourceError(f"{what}: {said_twice}", file=path) from error
                first = said[1]
                _log.warning("%s: %s; trying once more with the file opened afresh", what, first)
                with self._own_lock():  # while it is open, libhdf5 would share it
                    if part.file in self._files and self._datasets.get((part.file, part.path)) is dataset:
                        self._forget(part.file).close()

    def _forget(self, number: int) -> Any:
        self._datasets = {key: other for key, other in self._datasets.items() if key[0] != number}
        return self._files.pop(number)


# --- What h5py reads, asked when a file is opened: some stored chunks, and what stands in for missing ones.
#
# A wrong parameter of a filter gives silent garbage, and so does an index that names chunks in the wrong places;
# compared with h5py both show at once.


_SLAB_NBYTES = 8 * 1024 * 1024

# Chunks of a dataset that are looked up one by one, and the bytes that all but the last of them may have: opening
# thousands of files must stay quick.
_LOOKED_UP = 5
_LOOKED_UP_NBYTES = 2 * 1024 * 1024


_COMPACT_NBYTES = 64 * 1024
"""A message of an object header has no more: so much has a compact dataset, and its header not much besides."""

_HEADER_NBYTES = 8 * 1024


def read_raw_box(dataset: Any, start: tuple[int, ...], count: tuple[int, ...]) -> NDArray[np.void]:
    """Read a box of elements through h5py as they lie in the file; what does not lie in place is zeros."""
    stored = stored_as(dataset)
    box = np.zeros(count, dtype=f"V{stored.nbytes}")
    if box.size and stored.plain is not None:
        file_space = dataset.id.get_space()
        file_space.select_hyperslab(start, count)
        with to_be_read(dataset) as opened:
            opened.id.read(h5py.h5s.create_simple(count), file_space, box, stored.plain)
    return box


def chunk_box(dataset_shape: tuple[int, ...], chunk_shape: tuple[int, ...], start: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many elements of a chunk lie inside the data, along each axis."""
    return tuple(min(c, n - s) for c, n, s in zip(chunk_shape, dataset_shape, start, strict=True))


def fill_element(dataset: Any, index: ChunkIndex) -> NDArray[np.uint8] | None:
    """Return the bytes of a stored element in a chunk that was never written; None if there is no such chunk.

    libhdf5 is asked, because it alone knows: a fill value has a type of its own, and with a fill time of "never"
    it is not used at all.
    """
    if len(index.numbers) == index.chunks or 0 in index.shape:
        return None
    gaps = np.flatnonzero(index.numbers != np.arange(len(index.numbers)))
    missing = int(gaps[0]) if len(gaps) else len(index.numbers)
    one = read_raw_box(dataset, index.coordinates(missing), (1,) * len(index.shape))
    return one.reshape(-1).view(np.uint8)


def compact_offset(dataset: Any, identity: SourceIdentity) -> int | None:
    """Return where the bytes of a compact dataset lie in its file; None if they are not found in its object header.

    Libhdf5 does not tell where in the header they are. What is found there is byte for byte what it reads, so it does
    not matter what they are part of: a file that changes is refused.
    """
    shape = dataset.shape
    how = stored_as(dataset)
    if type_of(dataset.id.get_type()).hasobject or not how.is_whole or math.prod(shape) * how.nbytes > _COMPACT_NBYTES:
        return None  # pointers, members that libhdf5 is not asked for, or damage
    stored = read_raw_box(dataset, (0,) * len(shape), shape).tobytes()
    header = dataset.file.userblock_size + h5py.h5o.get_info(dataset.id).addr
    nbytes = min(identity.size - header, len(stored) + _HEADER_NBYTES)
    if not stored or nbytes < len(stored):
        return None
    found = bytes_at(identity, header, nbytes).find(stored)
    return None if found < 0 else header + found


def why_not_decoded_here(dataset: Any, part: DatasetPart, identity: SourceIdentity) -> str:
    """Say why a dataset's chunks should be left to h5py; empty if those that are looked at show no reason."""
    if part.access != DIRECT and part.chunk_nbytes > COMPARED_NBYTES:
        return f"its chunks have {part.chunk_nbytes:,} bytes each, too many to compare one with h5py's"
    if part.index is not None and isinstance(identity, ObjectIdentity):
        some = [*range(min(1, len(part.index.numbers))), *(_looked_up(part.index) if dataset.chunks else ())]
        ranges = [(int(part.index.offset[place]), int(part.index.nbytes[place])) for place in some]
        ObjectFile(identity).hold(ranges)
    if _differs(dataset, part, identity):
        return "its first chunk, decoded here, is not what h5py reads"
    if dataset.chunks is not None and _lies_elsewhere(dataset, part.chunk_index, identity):
        return "its chunks do not lie where libhdf5's list of them says"
    return ""


def _lies_elsewhere(dataset: Any, index: ChunkIndex, identity: SourceIdentity) -> bool:
    """Tell whether chunks are not where the index says: the last and some others, as they are stored.

    Libhdf5 looks each up, which is another way than the one by which it lists them. A chunk that either side cannot
    read is not a difference.
    """
    for place in _looked_up(index):
        nbytes = int(index.nbytes[place])
        with contextlib.suppress(OSError, RuntimeError, H5StreamError):
            stored, found = bytes_at(identity, int(index.offset[place]), nbytes), None
            with contextlib.suppress(ValueError):  # it is larger
                found = read_stored_chunk(dataset, index.coordinates(int(index.numbers[place])), nbytes)
            if found != (int(index.filter_mask[place]), stored):
                return True
    return False


def _looked_up(index: ChunkIndex) -> Iterator[int]:
    """Choose chunks: the last always, others while they are small; the first is compared decoded."""
    count, left = len(index.numbers), _LOOKED_UP_NBYTES
    for place in dict.fromkeys(count - 1 - k * count // _LOOKED_UP for k in range(min(count, _LOOKED_UP))):
        nbytes = int(index.nbytes[place])
        left -= nbytes
        if nbytes > COMPARED_NBYTES or (left < 0 and place != count - 1):
            return
        yield place


def _differs(dataset: Any, part: DatasetPart, identity: SourceIdentity) -> bool:
    """Tell whether the first stored chunk decodes to something else than h5py reads.

    A chunk that neither side can read is not a difference: it is an error where its rows are asked for.
    """
    index = part.chunk_index
    filtered = np.flatnonzero(~part.may_be_unfiltered(np.arange(len(index.numbers))))
    if len(filtered) == 0:
        return False
    place = int(filtered[0])
    start = index.coordinates(int(index.numbers[place]))
    count = chunk_box(index.shape, index.chunk_shape, start)
    ours: NDArray[np.uint8] | None = None
    try:
        ours = decode_stored(part, identity, place=place)
    except NotAskedError:
        return False  # corrupt, whatever libhdf5 would make of it; it must not even be asked
    except (DecodeError, H5StreamError):
        pass
    try:
        expected = read_raw_box(dataset, start, count)
    except (OSError, RuntimeError):
        return False
    if ours is None:
        return True
    if ours.nbytes != math.prod(index.chunk_shape) * expected.dtype.itemsize:
        return True
    if not (how := stored_as(dataset)).is_whole:  # all else h5py was not asked for
        raw, places = expected.reshape(-1).view(np.uint8), np.flatnonzero(how.in_place)
        ours, raw = (one.reshape(-1, how.nbytes).take(places, axis=1).reshape(-1) for one in (ours, raw))
        expected = raw.view(f"V{len(places)}").reshape(count)
    chunk = ours.view(expected.dtype).reshape(index.chunk_shape)[tuple(slice(0, n) for n in count)]
    # A slab at a time, so that no third copy of a large chunk is made.
    slab = max(1, _SLAB_NBYTES // max(1, expected[:1].nbytes))
    return any(
        chunk[row : row + slab].tobytes() != expected[row : row + slab].tobytes() for row in range(0, count[0], slab)
    )


def decode_stored(part: DatasetPart, identity: SourceIdentity, *, place: int) -> NDArray[np.uint8]:
    """Read and decode a chunk as the engine would."""
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
