"""What h5py reads, asked when a file is opened: some stored chunks, and what stands in for missing ones.

A wrong parameter of a filter gives silent garbage, and so does an index that names chunks in the wrong places;
compared with h5py both show at once.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import H5StreamError
from h5stream.storage.codecs import DecodeError, NotAskedError, unshuffle
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.index import COMPARED_NBYTES, ChunkIndex, read_stored_chunk
from h5stream.storage.layout import DIRECT, DatasetPart
from h5stream.storage.source import SourceIdentity

_SLAB_NBYTES = 8 * 1024 * 1024

# Chunks of a dataset that are looked up one by one, and the bytes that all but the last of them may have: opening
# thousands of files must stay quick.
_LOOKED_UP = 5
_LOOKED_UP_NBYTES = 2 * 1024 * 1024


_COMPACT_NBYTES = 64 * 1024
"""A message of an object header has no more: so much has a compact dataset, and its header not much besides."""

_HEADER_NBYTES = 8 * 1024


def read_raw_box(dataset: Any, start: tuple[int, ...], count: tuple[int, ...]) -> NDArray[np.void]:
    """Read a box of elements through h5py in the file's own type, without any conversion."""
    stored = dataset.id.get_type()
    box = np.zeros(count, dtype=f"V{stored.get_size()}")
    if box.size:
        file_space = dataset.id.get_space()
        file_space.select_hyperslab(start, count)
        dataset.id.read(h5py.h5s.create_simple(count), file_space, box, stored)
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
    if dataset.dtype.hasobject or math.prod(shape) * dataset.id.get_type().get_size() > _COMPACT_NBYTES:
        return None  # pointers, or damage
    stored = read_raw_box(dataset, (0,) * len(shape), shape).tobytes()
    header = dataset.file.userblock_size + h5py.h5o.get_info(dataset.id).addr
    nbytes = min(identity.size - header, len(stored) + _HEADER_NBYTES)
    if not stored or nbytes < len(stored):
        return None
    around = bytearray(nbytes)
    source = identity.open()
    try:
        source.read_many((header,), (memoryview(around),))
    finally:
        source.close()
    found = around.find(stored)
    return None if found < 0 else header + found


def why_not_decoded_here(dataset: Any, part: DatasetPart, identity: SourceIdentity) -> str:
    """Say why a dataset's chunks should be left to h5py; empty if those that are looked at show no reason."""
    if part.access != DIRECT and part.chunk_nbytes > COMPARED_NBYTES:
        return f"its chunks have {part.chunk_nbytes:,} bytes each, too many to compare one with h5py's"
    if _differs(dataset, part, identity):
        return "its first chunk, decoded here, is not what h5py reads"
    if dataset.chunks is not None and _lies_elsewhere(dataset, part.index, identity):
        return "its chunks do not lie where libhdf5's list of them says"
    return ""


def _lies_elsewhere(dataset: Any, index: ChunkIndex | None, identity: SourceIdentity) -> bool:
    """Tell whether chunks are not where the index says: the last and some others, as they are stored.

    Libhdf5 looks each up, which is another way than the one by which it lists them. A chunk that either side cannot
    read is not a difference.
    """
    assert index is not None
    count, left = len(index.numbers), _LOOKED_UP_NBYTES
    source = identity.open()
    try:
        # The last always, the others while they are small; the first was compared decoded.
        for place in dict.fromkeys(count - 1 - k * count // _LOOKED_UP for k in range(min(count, _LOOKED_UP))):
            nbytes = int(index.nbytes[place])
            left -= nbytes
            if nbytes > COMPARED_NBYTES or (left < 0 and place != count - 1):
                break
            stored = bytearray(nbytes)
            with contextlib.suppress(OSError, RuntimeError, H5StreamError):
                source.read_many((int(index.offset[place]),), (memoryview(stored),))
                start = index.coordinates(int(index.numbers[place]))
                if _looked_up(dataset, start, nbytes) != (int(index.filter_mask[place]), stored):
                    return True
    finally:
        source.close()
    return False


def _looked_up(dataset: Any, start: tuple[int, ...], nbytes: int) -> tuple[int, bytearray] | None:
    try:
        return read_stored_chunk(dataset, start, nbytes)
    except ValueError:  # it is larger
        return None


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
    chunk = ours.view(expected.dtype).reshape(index.chunk_shape)[tuple(slice(0, n) for n in count)]
    # A slab at a time, so that no third copy of a large chunk is made.
    slab = max(1, _SLAB_NBYTES // max(1, expected[:1].nbytes))
    return any(
        chunk[row : row + slab].tobytes() != expected[row : row + slab].tobytes() for row in range(0, count[0], slab)
    )


def decode_stored(part: DatasetPart, identity: SourceIdentity, *, place: int) -> NDArray[np.uint8]:
    """Read and decode a chunk as the engine would."""
    index = part.chunk_index
    stored = np.empty(int(index.nbytes[place]), dtype=np.uint8)
    source = identity.open()
    try:
        source.read_many((int(index.offset[place]),), (stored.data,))
    finally:
        source.close()
    if part.access == DIRECT:
        return stored
    scratch = DecodeScratch()
    data, shuffled = part.pipeline.decode(
        stored, filter_mask=int(index.filter_mask[place]), raw_nbytes=part.chunk_nbytes, scratch=scratch
    )
    # A copy, because what a plugin decoded lies in memory that goes with the scratch.
    return unshuffle(data, shuffled, np.empty_like(data)) if shuffled else data.copy()
