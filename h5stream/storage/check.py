"""What h5py reads, asked when a file is opened: the first stored chunk, and what stands in for missing ones.

A wrong parameter of a filter gives silent garbage; compared with h5py it shows at once.
"""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import H5StreamError
from h5stream.storage.codecs import DecodeError, NotAskedError, unshuffle
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.index import ChunkIndex
from h5stream.storage.layout import DIRECT, DatasetPart
from h5stream.storage.source import FileBytes, FileIdentity


def read_raw_box(dataset: Any, start: tuple[int, ...], count: tuple[int, ...]) -> NDArray[np.void]:
    """Read a box of elements through h5py in the file's own type, without any conversion.

    Returns
    -------
    ndarray of void
        Shape `count`, each item the stored element's bytes.
    """
    stored = dataset.id.get_type()
    box = np.zeros(count, dtype=f"V{stored.get_size()}")
    if box.size:
        file_space = dataset.id.get_space()
        file_space.select_hyperslab(start, count)
        dataset.id.read(h5py.h5s.create_simple(count), file_space, box, stored)
    return box


def chunk_box(dataset_shape: tuple[int, ...], chunk_shape: tuple[int, ...], start: tuple[int, ...]) -> tuple[int, ...]:
    """Give how many elements of a chunk lie inside the data, along each axis."""
    return tuple(min(c, n - s) for c, n, s in zip(chunk_shape, dataset_shape, start, strict=True))


def fill_element(dataset: Any, index: ChunkIndex) -> NDArray[np.uint8] | None:
    """Give the bytes of a stored element in a chunk that was never written; None if there is no such chunk.

    libhdf5 is asked, because it alone knows: a fill value has a type of its own, and with a fill time of "never"
    it is not used at all.
    """
    if len(index.numbers) == index.chunks or 0 in index.shape:
        return None
    gaps = np.flatnonzero(index.numbers != np.arange(len(index.numbers)))
    missing = int(gaps[0]) if len(gaps) else len(index.numbers)
    one = read_raw_box(dataset, index.coordinates(missing), (1,) * len(index.shape))
    return one.reshape(-1).view(np.uint8)


def first_chunk_differs(dataset: Any, part: DatasetPart, identity: FileIdentity) -> bool:
    """Tell whether the first stored chunk decodes to something else than h5py reads.

    A chunk that neither side can read is not a difference: it is an error for whoever asks for its rows.
    """
    index = part.index
    assert index is not None
    filtered = np.flatnonzero(~part.may_be_unfiltered(np.arange(len(index.numbers))))
    if len(filtered) == 0:
        return False
    place = int(filtered[0])
    start = index.coordinates(int(index.numbers[place]))
    count = chunk_box(index.shape, index.chunk_shape, start)
    ours: NDArray[np.uint8] | None = None
    try:
        ours = _decode_stored(part, identity, place=place)
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
    chunk = np.zeros(index.chunk_shape, dtype=expected.dtype)
    flat = chunk.reshape(-1).view(np.uint8)
    flat[: ours.nbytes] = ours
    return chunk[tuple(slice(0, n) for n in count)].tobytes() != expected.tobytes()


def _decode_stored(part: DatasetPart, identity: FileIdentity, *, place: int) -> NDArray[np.uint8]:
    index = part.index
    assert index is not None
    stored = np.empty(int(index.nbytes[place]), dtype=np.uint8)
    source = FileBytes(identity)
    try:
        source.read_into(int(index.offset[place]), stored.data)
    finally:
        source.close()
    if part.access == DIRECT:
        return stored
    scratch = DecodeScratch()
    data, shuffled = part.pipeline.decode(
        stored, filter_mask=int(index.filter_mask[place]), raw_nbytes=part.chunk_nbytes, scratch=scratch
    )
    return unshuffle(data, shuffled, np.empty_like(data)) if shuffled else data.copy()
