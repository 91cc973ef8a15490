"""Parts: how a dataset of one file is stored, and how the rows that fields take of it are reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import CorruptChunkError, H5StreamError, MissingFilterError
from h5stream.samples.space import Along
from h5stream.storage import elements, filters
from h5stream.storage.codecs import NBIT, SCALEOFFSET, DecodeError
from h5stream.storage.external import files_behind
from h5stream.storage.fallback import compact_offset, decode_stored, fill_element, why_not_decoded_here
from h5stream.storage.global_heap import MOST_VALUES, base_of, values_of
from h5stream.storage.headers import superblock_of
from h5stream.storage.index import COMPARED_NBYTES, INDEX_UNREADABLE, ChunkIndex, build_index, one_extent
from h5stream.storage.layout import DECODED, DIRECT, HEAP, IN_EXTERNAL_FILES, IS_VIRTUAL, VIA_H5PY, DatasetPart, Target
from h5stream.storage.places import OpenFile, Place
from h5stream.storage.rowbox import ColumnPiece, Columns, column_pieces

WATCHED_FILES = 100
"""Files behind a virtual dataset that are looked at for changes: one look costs a microsecond or two, at each read."""

VARIABLE_LENGTH = "variable length"
"""A reason for h5py, unless the values can be read from the heap."""

READ_TOGETHER_NBYTES = 256 * 1024
"""Bytes of unchunked data that count as one block.

Small enough that a window holds many blocks, large enough that a read costs more than its system call."""


def part_of(
    opened: OpenFile,
    place: Place,
    name: str,
    columns: Columns = None,
    along: tuple[Along, ...] = (),
    targets: Sequence[Target] = (),
    *,
    row_start: int = 0,
) -> DatasetPart:
    """Describe a dataset, for the fields that it fills; what samples take along its axes is no selection of columns."""
    opened.guard.check_data(place.dataset, name, place.identity.path)
    pipeline = filters.pipeline_of(place.dataset.id.get_create_plist())
    part = _part(place, None if along else columns, targets, pipeline, name)
    changes: dict[str, Any] = {"row_start": row_start} if row_start else {}
    if part.leads_on:
        found = files_behind(place.dataset, place.identity.path)
        changes["behind"] = tuple(opened.files.number_of(path) for path in found[:WATCHED_FILES])
    if along:
        elements = int(np.prod(part.shape[1:], dtype=object))
        whole = ColumnPiece(number=0, row_elements=elements, segments=np.array([[0, 0, elements]]))
        changes |= {"along": along, "pieces": (whole,)}
    return replace(part, **changes) if changes else part


def _part(
    place: Place, columns: Columns, targets: Sequence[Target], pipeline: filters.Pipeline, name: str
) -> DatasetPart:
    dataset = place.dataset
    reason = _why_h5py(place, targets, pipeline)
    if reason == VARIABLE_LENGTH:
        return _heap_part(place, columns, targets, pipeline, name)
    index, why_no_index = _read_index(place, pipeline, reason, name)
    if reason or why_no_index:
        return _describe(place, columns, targets, pipeline, None, reason or why_no_index)
    assert index is not None
    try:
        element = fill_element(dataset, index)
    except (OSError, RuntimeError) as error:  # nothing was written, and no fill value defined
        reason = f"what its missing chunks hold cannot be read: {error}"
        return _describe(place, columns, targets, pipeline, None, reason)
    if element is not None:
        targets = [replace(t, fill=element[t.leaf.places]) for t in targets if t.leaf]
    part = _describe(place, columns, targets, pipeline, index, "")
    if reason := why_not_decoded_here(dataset, part, place.identity):
        return _describe(place, columns, targets, pipeline, None, reason)
    return part


def _heap_part(
    place: Place, columns: Columns, targets: Sequence[Target], pipeline: filters.Pipeline, name: str
) -> DatasetPart:
    """Describe a dataset of values of variable length, having read where each lies."""
    through_h5py = _describe(place, columns, targets, pipeline, None, VARIABLE_LENGTH)
    base, is_text = base_of(place.dataset)
    is_compact = place.dataset.id.get_create_plist().get_layout() == h5py.h5d.COMPACT
    if base is None or is_compact or place.dataset.size > MOST_VALUES:
        return through_h5py
    superblock = superblock_of(place.dataset.file, place.identity.size)
    index, why_not = _read_index(place, pipeline, "", name, superblock.offset_nbytes + 8)
    if index is None:
        return replace(through_h5py, reason=f"{VARIABLE_LENGTH}; {why_not}")
    stored = _describe(place, None, [], pipeline, index, "")
    stored = replace(stored, stored_element_nbytes=superblock.offset_nbytes + 8)
    if stored.chunk_nbytes > COMPARED_NBYTES:
        return through_h5py
    try:
        raw = _all_elements(place, stored)
    except (H5StreamError, DecodeError) as error:
        reason = f"{VARIABLE_LENGTH}; where its values lie cannot be read: {error}"
        damaged = error.chunk if isinstance(error, CorruptChunkError) else None
        return replace(through_h5py, reason=reason, damaged=damaged)
    if raw is None:
        return replace(through_h5py, reason=f"{VARIABLE_LENGTH}; with a fill value of its own")
    heap = values_of(raw, superblock, base, place.dataset.shape[0], is_text=is_text)
    rows = place.dataset.shape[0]
    together = min(through_h5py.chunk_rows, rows) if place.dataset.chunks else _together(int(heap.row_nbytes), rows)
    return replace(through_h5py, access=HEAP, heap=heap, chunk_rows=max(1, together), targets=tuple(targets))


def _read_index(
    place: Place, pipeline: filters.Pipeline, reason: str, name: str, element_nbytes: int = 0
) -> tuple[ChunkIndex | None, str]:
    """Read the chunk index if it is needed; else, or if it cannot be used, say why not.

    `element_nbytes` are those of a stored element, where they are not those that libhdf5 says.
    """
    dataset = place.dataset
    # Even where h5py reads, only the index tells whether a filter that is missing was applied to any chunk.
    lacking = dataset.chunks is not None and not all(h5py.h5z.filter_avail(f.id) for f in pipeline.filters)
    if reason and not lacking:
        return None, reason
    try:
        element_nbytes = element_nbytes or dataset.id.get_type().get_size()
        if dataset.id.get_create_plist().get_layout() == h5py.h5d.COMPACT:
            if (offset := compact_offset(dataset, place.identity)) is None:
                return None, "compact: its bytes lie in the object header"
            nbytes = int(np.prod(dataset.shape)) * element_nbytes
            index = one_extent(dataset.shape, offset=offset, nbytes=nbytes)
        else:
            index = build_index(dataset, file_size=place.identity.size, element_nbytes=element_nbytes)
    except H5StreamError:
        raise
    except INDEX_UNREADABLE as error:
        return None, f"its chunk index cannot be read: {error}"
    why_not = _why_h5py_after_index(place.identity.path, name, pipeline, index)
    if why_not:
        return None, why_not
    return index if dataset.chunks else _cut_extent(index, element_nbytes), ""


def _describe(
    place: Place,
    columns: Columns,
    targets: Sequence[Target],
    pipeline: filters.Pipeline,
    index: ChunkIndex | None,
    reason: str,
) -> DatasetPart:
    dataset = place.dataset
    if index is not None:
        chunk_rows, chunk_row_shape = index.chunk_shape[0], index.chunk_shape[1:]
        # Members that are put together, element by element, are as good as a filter.
        scattered = dataset.ndim > 1 and any(t.leaf is not None and len(t.leaf.offsets) > 1 for t in targets)
        access = DECODED if pipeline.filters or scattered else DIRECT
    else:
        chunk_row_shape = dataset.shape[1:]
        row_nbytes = dataset.dtype.itemsize * int(np.prod(chunk_row_shape, dtype=object))
        chunk_rows = int(dataset.chunks[0]) if dataset.chunks else _together(row_nbytes, dataset.shape[0])
        access = VIA_H5PY
        targets = [replace(t, leaf=None) for t in targets]
    return DatasetPart(
        file=place.number,
        path=place.path,
        rows=dataset.shape[0],
        row_start=0,
        access=access,
        reason=reason or (pipeline.describe() if pipeline.filters else "no filter"),
        chunk_rows=max(1, chunk_rows),
        index=index,
        pipeline=pipeline,
        columns=columns,
        pieces=column_pieces(dataset.shape[1:], chunk_row_shape, columns),
        targets=tuple(targets),
        stored_element_nbytes=dataset.id.get_type().get_size(),
        dtype_text=str(elements.plain_dtype(dataset.dtype)),
        shape=tuple(dataset.shape),
    )


def _why_h5py(place: Place, targets: Sequence[Target], pipeline: filters.Pipeline) -> str:
    dataset = place.dataset
    creation = dataset.id.get_create_plist()
    if dataset.is_virtual:
        return IS_VIRTUAL
    if creation.get_external_count():
        return IN_EXTERNAL_FILES
    if place.unresolved:
        return place.unresolved
    if dataset.dtype.kind == "O":
        return VARIABLE_LENGTH
    if dataset.dtype.kind == "V" and dataset.dtype.fields is None and dataset.dtype.subdtype is None:
        return ""  # opaque: bytes, whatever they are called
    if any(t.leaf is None for t in targets):
        return f"{dataset.dtype}: libhdf5 converts it"
    if not elements.is_stored_as(dataset.id.get_type(), dataset.dtype):
        return "its stored type is not a NumPy type; libhdf5 converts it"
    for f in pipeline.filters:
        if f.id in (NBIT, SCALEOFFSET):
            return f"{filters.KNOWN_NAMES[f.id]}: only libhdf5 undoes it"
    return ""


def _why_h5py_after_index(path: str, name: str, pipeline: filters.Pipeline, index: ChunkIndex) -> str:
    """Look for filters that stored chunks really need and that are not decoded here."""
    for place, f in enumerate(pipeline.filters):
        needed = bool(((index.filter_mask >> np.uint32(place)) & 1 == 0).any())
        if f.decodable or not needed:
            continue
        if h5py.h5z.filter_avail(f.id):
            return f"filter {f.id} ({f.name}): only a plugin of this machine's libhdf5 undoes it"
        label = filters.KNOWN_NAMES.get(f.id, f.name or "unnamed")
        raise MissingFilterError(
            f"{path!r}: field {name!r} needs HDF5 filter {f.id} ({label}), which is not available. "
            "Get a plugin for it (hdf5plugin carries most; others are listed as registered filters by The HDF "
            "Group) and name its folder in HDF5_PLUGIN_PATH before Python starts.",
            filter_id=f.id,
            file=path,
            field=name,
        )
    return ""


def _all_elements(place: Place, stored: DatasetPart) -> NDArray[np.uint8] | None:
    """Read all stored elements of a dataset, chunk by chunk; None where one has a fill value that is not empty."""
    index, dataset, nbytes = stored.index, place.dataset, stored.stored_element_nbytes
    assert index is not None
    is_filled = dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if is_filled and len(index.numbers) < index.chunks:
        return None
    found = np.zeros((*index.shape, nbytes), dtype=np.uint8)
    for entry, number in enumerate(index.numbers.tolist()):
        if stored.may_be_unfiltered(np.array([entry]))[0]:
            raise DecodeError("a chunk of it may have been left unfiltered")
        low = index.coordinates(number)
        where = tuple(slice(a, a + n) for a, n in zip(low, index.chunk_shape, strict=True))
        inside = tuple(slice(0, n - a) for a, n in zip(low, index.shape, strict=True))
        try:
            chunk = decode_stored(stored, place.identity, place=entry)
        except DecodeError as error:
            raise CorruptChunkError(f"chunk {low} at byte {index.offset[entry]}: {error}", chunk=low) from error
        shape = (-1, *index.chunk_shape[1:], nbytes)  # of contiguous data the last block is shorter
        found[where] = chunk.reshape(shape)[inside]
    return found.reshape(-1)


def _together(row_nbytes: int, rows: int) -> int:
    """Return how many rows of unchunked data are read together."""
    return max(1, min(READ_TOGETHER_NBYTES // max(1, row_nbytes), rows))


def _cut_extent(index: ChunkIndex, element_nbytes: int) -> ChunkIndex:
    """Cut one contiguous extent into blocks of rows, so that it is read like chunks."""
    row_nbytes = element_nbytes * int(np.prod(index.shape[1:], dtype=object))
    rows = index.shape[0]
    together = _together(row_nbytes, rows)
    count, is_stored = -(-rows // together), len(index.numbers) > 0
    numbers = np.arange(count if is_stored else 0, dtype=np.int64)
    return ChunkIndex(
        shape=index.shape,
        chunk_shape=(together, *index.shape[1:]),
        grid=(count, *index.grid[1:]),
        numbers=numbers,
        offset=np.repeat(index.offset, len(numbers)) + numbers * (together * row_nbytes),
        nbytes=np.minimum(together, rows - numbers * together) * row_nbytes,
        filter_mask=np.zeros(len(numbers), dtype=np.uint32),
    )
