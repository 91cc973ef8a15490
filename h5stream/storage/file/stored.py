"""Places and parts: in which file a dataset is, how it is stored there, and how the rows of fields are reached."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5o
from numpy.typing import NDArray

from h5stream.base.names import Reading
from h5stream.errors import (
    CorruptChunkError,
    H5StreamError,
    MissingFilterError,
    NotHDF5Error,
    SourceError,
    TruncatedFileError,
)
from h5stream.samples.space import Along
from h5stream.storage.decode import elements, filters
from h5stream.storage.decode.columns import ColumnPiece, Columns, column_pieces
from h5stream.storage.decode.elements import dtype_of
from h5stream.storage.decode.filters import NBIT, SCALEOFFSET, DecodeError
from h5stream.storage.decode.small_floats import widened
from h5stream.storage.file.discovery import Thing, find_dataset, is_attribute, means, once_of, refusal, type_once
from h5stream.storage.file.external import Guard, files_behind, without_soft_links
from h5stream.storage.file.h5py_reader import compact_offset, decode_stored, fill_element, why_not_decoded_here
from h5stream.storage.headers.headers import superblock_of
from h5stream.storage.layout.heap import MOST_VALUES, base_of, values_of
from h5stream.storage.layout.index import (
    COMPARED_NBYTES,
    INDEX_UNREADABLE,
    ChunkIndex,
    build_index,
    cut_extent,
    rows_together,
)
from h5stream.storage.layout.layout import (
    DECODED,
    DIRECT,
    HEAP,
    IN_EXTERNAL_FILES,
    IS_VIRTUAL,
    VIA_H5PY,
    DatasetPart,
    Target,
)
from h5stream.storage.source.handles import open_file
from h5stream.storage.source.identity import SourceIdentity
from h5stream.storage.source.local import absolute, identities_of, identity_of, no_such_file, not_permitted, stat_of
from h5stream.storage.source.remote import check_reads
from h5stream.storage.source.stores import is_address

WATCHED_FILES = 100
"""Files behind a virtual dataset that are looked at for changes: one look costs a microsecond or two, at each read."""

VARIABLE_LENGTH = "variable length"
"""A reason for h5py, unless the values can be read from the heap."""


@contextlib.contextmanager
def open_hdf5(path: str) -> Iterator[Any]:
    """Open an HDF5 file for reading, beside whatever has it open, and close it at the end."""
    try:
        file = open_file(path)
    except FileNotFoundError:
        check_reads(path)
        raise no_such_file(path) from None
    except OSError as error:
        check_reads(path)
        if isinstance(error, PermissionError) or error.errno in (errno.EACCES, errno.EPERM):
            raise not_permitted(path) from None
        if "truncated file" in str(error):
            said = f"{path!r} is truncated: {error}. Copy it again from its source."
            raise TruncatedFileError(said, file=path) from None
        if "signature not found" in str(error):
            what = f"it has no HDF5 signature ({identity_of(path).size} bytes)"
            raise NotHDF5Error(f"{path!r} is not an HDF5 file: {what}.", file=path) from None
        is_written = "already open for write" in str(error)
        way_out = ". Another process writes to it: wait until that has closed it" * is_written
        raise SourceError(f"libhdf5 cannot open {path!r}: {error}{way_out}", file=path) from None
    with file:
        try:
            yield file
            check_reads(path)
        except H5StreamError:
            check_reads(path)
            raise
        except MemoryError as error:
            why = f"there is no memory for what {path!r} says it holds ({error}); it is damaged, or too large here"
            raise SourceError(why, file=path) from error
        except (RuntimeError, OSError, KeyError, UnicodeError) as error:  # what h5py makes of libhdf5's failures
            check_reads(path)
            raise SourceError(f"libhdf5 cannot read the structure of {path!r}: {error}", file=path) from error


class Files:
    """The files that were named, and behind them those that links of theirs lead to."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.identities, self.named = identities_of(paths), len(paths)
        self._numbers: dict[Any, int] = {}
        # by the place of each field in a sample: the names of the first file's columns, and where these go in a row
        self.columns: dict[tuple[int, str], tuple[list[str], NDArray[np.int32]]] = {}

    def number_of(self, path: str) -> int:
        """Return a file's number; one that was not named is added."""
        if not self._numbers:
            self._numbers = {_inode(identity.path): n for n, identity in reversed([*enumerate(self.identities)])}
        number = self._numbers.setdefault(_inode(path), len(self.identities))
        if number == len(self.identities):
            self.identities.append(identity_of(path))
        return number


def _inode(path: str) -> Any:
    if is_address(path):
        return path
    stat = stat_of(path)
    return stat.st_dev, stat.st_ino


class Place(NamedTuple):
    """Where a dataset is: in which file, and under which path there, behind all links."""

    number: int
    identity: SourceIdentity
    dataset: Any
    path: str
    unresolved: str = ""  # why only the path that was asked for leads to it


class OpenFile:
    """One of the files that were named, open, and those that its links lead to."""

    def __init__(self, file: Any, number: int, files: Files, guard: Guard, linked: contextlib.ExitStack) -> None:
        self.file, self.number, self.files, self.guard = file, number, files, guard
        self.identity = files.identities[number]
        self.path = self.identity.path
        self._linked = linked

    def beside(self, path: str) -> OpenFile:
        """Open another file, which is closed with this one."""
        number = self.files.number_of(path)  # the file as it was before it was opened
        return OpenFile(self._linked.enter_context(open_hdf5(path)), number, self.files, self.guard, self._linked)

    def find(self, name: str) -> Thing:
        """Find a field's dataset."""
        return find_dataset(self.file, name, self.path, self.guard)

    def once(self, name: str) -> Any:
        """Return what the file, or a group of it, has once under a name, or a whole dataset; small floats as bits."""
        return once_of(self.file, name, self.path, self.guard)

    def numbers(self, name: str) -> Any:
        """Return the same with small floats as the numbers that they are."""
        return widened(self.once(name))

    def once_type(self, name: str) -> np.dtype[Any]:
        """Return the type of what the file has once, also where NumPy's value has lost the labels of an enum."""
        return type_once(self.file, name, self.path, self.guard)

    def means(self, name: str) -> Reading | None:
        """Return what a name means in the file; None for nothing there."""
        return means(self.file, name, self.path, self.guard)

    def is_attribute(self, name: str) -> bool:
        """Tell whether a name is that of an attribute."""
        return is_attribute(self.file, name, self.path, self.guard)

    def place(self, thing: Thing) -> Place:
        """Follow the links to a dataset, so that it is read as if its own file had been named."""
        here = Place(self.number, self.identity, thing.dataset, thing.path)
        if thing.dataset.file.filename == self.file.filename:
            return here
        # libhdf5 knows a path in the other file only for what was not reached over a soft link in this one.
        found = self.file[without_soft_links(self.file, thing.path)]
        target, name = absolute(os.fsdecode(found.file.filename)), found.name
        self.guard.check_file(thing.path, target, self.path)
        other = self.beside(target)
        there = other.file.get(name) if name else None
        if not isinstance(there, h5py.Dataset) or h5o.get_info(there.id).addr != h5o.get_info(found.id).addr:
            return here._replace(unresolved="it lies in another file, behind an external link")
        return Place(other.number, other.identity, there, name.strip("/"))


# --- parts: how a dataset is stored


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
    part = _through_h5py(place, None if along else columns, targets, row_start)
    described = _of_heap if part.reason == VARIABLE_LENGTH else _of_chunks
    part = described(part, place, name, targets)
    if not part.pieces:  # of rows that h5py reads, or values in a heap
        part = replace(part, pieces=column_pieces(part.shape[1:], part.shape[1:], part.columns))
    if part.leads_on:
        found = files_behind(place.dataset, place.identity.path)
        part = replace(part, behind=tuple(opened.files.number_of(path) for path in found[:WATCHED_FILES]))
    if along:
        elements = int(np.prod(part.shape[1:], dtype=object))
        whole = ColumnPiece(number=0, row_elements=elements, segments=np.array([[0, 0, elements]]))
        part = replace(part, along=along, pieces=(whole,))
    return part


def part_moved(part: DatasetPart, moved: NDArray[np.int64] | None) -> DatasetPart:
    """Return columns of a sparse matrix that are replaced by others as they are read, in memory of their own."""
    if moved is None:
        return part
    if part.moved is not None:
        moved = moved[part.moved]
    return replace(part, moved=moved, access=DECODED if part.access == DIRECT else part.access)


def _through_h5py(place: Place, columns: Columns, targets: Sequence[Target], row_start: int) -> DatasetPart:
    """Describe a dataset as h5py reads it; its reason is empty where h5stream may read it itself."""
    dataset, row_shape = place.dataset, place.dataset.shape[1:]
    pipeline = filters.pipeline_of(dataset.id.get_create_plist())
    dtype, stored = dtype_of(dataset), elements.stored_as(dataset)
    row_nbytes = dtype.itemsize * int(np.prod(row_shape, dtype=object))
    chunk_rows = int(dataset.chunks[0]) if dataset.chunks else rows_together(row_nbytes, dataset.shape[0])
    return DatasetPart(
        file=place.number,
        path=place.path,
        rows=dataset.shape[0],
        row_start=row_start,
        access=VIA_H5PY,
        reason=_why_h5py(place, pipeline, targets, stored),
        chunk_rows=max(1, chunk_rows),
        pipeline=pipeline,
        columns=columns,
        pieces=(),
        targets=tuple(replace(t, leaf=None) for t in targets),
        stored_element_nbytes=stored.nbytes,
        dtype_text=str(elements.plain_dtype(dtype)),
        shape=tuple(dataset.shape),
    )


def _why_h5py(place: Place, pipeline: filters.Pipeline, targets: Sequence[Target], stored: elements.Stored) -> str:
    """Say why a dataset is read through h5py, as far as its type and its way of storing say; empty where it is not."""
    dataset, dtype = place.dataset, dtype_of(place.dataset)
    is_loose = len(targets) == 1 and targets[0].member in stored.loose
    opaque = dtype.kind == "V" and dtype.fields is None and dtype.subdtype is None  # bytes, whatever they are called
    undone = [f for f in pipeline.filters if f.id in (NBIT, SCALEOFFSET)]
    if dataset.is_virtual:
        return IS_VIRTUAL
    if dataset.id.get_create_plist().get_external_count():
        return IN_EXTERNAL_FILES
    if place.unresolved or dtype.kind == "O" or is_loose or opaque:
        return place.unresolved or ("" if opaque else VARIABLE_LENGTH)
    if any(t.leaf is None for t in targets):
        return f"{dtype}: libhdf5 converts it"
    if stored.plain is None or not elements.is_stored_as(stored.plain, dtype if stored.is_whole else stored.dtype):
        return "its stored type is not a NumPy type; libhdf5 converts it"
    return f"{filters.KNOWN_NAMES[undone[0].id]}: only libhdf5 undoes it" if undone else ""


def _of_chunks(part: DatasetPart, place: Place, name: str, targets: Sequence[Target]) -> DatasetPart:
    """Describe how the chunks of a dataset are read; as h5py reads it where these cannot be relied on."""
    index, why = _read_index(part, place, name)
    if index is None or part.reason:
        return replace(part, reason=part.reason or why)
    try:
        element = fill_element(place.dataset, index)
    except (OSError, RuntimeError) as error:  # nothing was written, and no fill value defined
        return replace(part, reason=f"what its missing chunks hold cannot be read: {error}")
    if element is not None:
        targets = [replace(t, fill=element[t.leaf.places]) for t in targets if t.leaf]
    found = _with_index(part, index, targets)
    why = why_not_decoded_here(place.dataset, found, place.identity)
    return replace(part, reason=why) if why else found


def _with_index(part: DatasetPart, index: ChunkIndex, targets: Sequence[Target]) -> DatasetPart:
    """Return a part whose chunks are read by their index."""
    is_filtered = bool(part.pipeline.filters)
    # Members that are put together, element by element, are as good as a filter.
    is_scattered = len(part.shape) > 1 and any(t.leaf is not None and len(t.leaf.offsets) > 1 for t in targets)
    return replace(
        part,
        access=DECODED if is_filtered or is_scattered else DIRECT,
        reason=part.pipeline.describe() if is_filtered else "no filter",
        chunk_rows=max(1, index.chunk_shape[0]),
        index=index,
        pieces=column_pieces(part.shape[1:], index.chunk_shape[1:], part.columns),
        targets=tuple(targets),
    )


def _read_index(part: DatasetPart, place: Place, name: str, element_nbytes: int = 0) -> tuple[ChunkIndex | None, str]:
    """Read the chunk index, of elements of so many stored bytes, if it is needed; else, or if it cannot be, say why."""
    dataset, identity = place.dataset, place.identity
    # Even where h5py reads, only the index tells whether a filter that is missing was applied to any chunk.
    lacking = dataset.chunks is not None and not all(h5py.h5z.filter_avail(f.id) for f in part.pipeline.filters)
    if part.reason and not (lacking or element_nbytes):
        return None, part.reason
    try:
        element_nbytes = element_nbytes or part.stored_element_nbytes
        if dataset.id.get_create_plist().get_layout() == h5py.h5d.COMPACT:
            if (offset := compact_offset(dataset, identity)) is None:
                return None, "compact: its bytes lie in the object header"
            index = cut_extent(dataset.shape, offset, element_nbytes)
        else:
            index = build_index(dataset, file_size=identity.size, element_nbytes=element_nbytes)
    except H5StreamError:
        raise
    except INDEX_UNREADABLE as error:
        return None, f"its chunk index cannot be read: {error}"
    for bit, f in enumerate(part.pipeline.filters):  # those that stored chunks need and are not decoded here
        if f.decodable or not ((index.filter_mask >> np.uint32(bit)) & 1 == 0).any():
            continue
        if h5py.h5z.filter_avail(f.id):
            return None, f"filter {f.id} ({f.name}): only a plugin of this machine's libhdf5 undoes it"
        label = filters.KNOWN_NAMES.get(f.id, f.name or "unnamed")
        why = f": field {name!r} needs HDF5 filter {f.id} ({label}), which is not available. Get a plugin for it "
        why += "(The HDF Group lists registered filters) and name its folder in HDF5_PLUGIN_PATH before Python starts."
        raise refusal(identity.path, name, why, MissingFilterError, filter_id=f.id)
    return index, ""


# --- values of variable length, where their heap can be read without libhdf5


def _of_heap(part: DatasetPart, place: Place, name: str, targets: Sequence[Target]) -> DatasetPart:
    """Describe a dataset of values of variable length, having read where each lies; else as h5py reads it."""
    dataset, rows = place.dataset, place.dataset.shape[0]
    where, kind, whole = 0, dataset.id.get_type(), elements.stored_as(dataset)
    if member := targets[0].member if targets else ():
        where, kind = whole.loose.get(member, (0, kind))
    base, is_text = base_of(kind)
    is_compact = dataset.id.get_create_plist().get_layout() == h5py.h5d.COMPACT
    if base is None or is_compact or dataset.size > MOST_VALUES:
        return part
    superblock = superblock_of(dataset.file, place.identity.size)
    said_nbytes = superblock.offset_nbytes + 8  # by which an element says where its value lies
    element_nbytes = whole.nbytes if member else said_nbytes
    index, why = _read_index(part, place, name, element_nbytes)
    if index is None:
        return replace(part, reason=f"{VARIABLE_LENGTH}; {why}")
    stored = _with_index(replace(part, columns=None, stored_element_nbytes=element_nbytes), index, ())
    if stored.chunk_nbytes > COMPARED_NBYTES:
        return part
    try:
        raw = _all_elements(place, stored, slice(where, where + said_nbytes))
    except (H5StreamError, DecodeError) as error:
        reason = f"{VARIABLE_LENGTH}; where its values lie cannot be read: {error}"
        damaged = error.chunk if isinstance(error, CorruptChunkError) else None
        return replace(part, reason=reason, damaged=damaged)
    if raw is None:
        return replace(part, reason=f"{VARIABLE_LENGTH}; with a fill value of its own")
    heap = values_of(raw, superblock, base, rows, is_text=is_text)
    together = min(part.chunk_rows, rows) if dataset.chunks else rows_together(int(heap.row_nbytes), rows)
    return replace(part, access=HEAP, heap=heap, chunk_rows=max(1, together), targets=tuple(targets))


def _all_elements(place: Place, stored: DatasetPart, taken: slice) -> NDArray[np.uint8] | None:
    """Read some bytes of all elements, chunk by chunk; None where one has a fill value that is not empty."""
    index, dataset, nbytes = stored.index, place.dataset, stored.stored_element_nbytes
    assert index is not None
    is_filled = dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if is_filled and len(index.numbers) < index.chunks:
        return None
    return stored_elements(stored, place.identity, np.zeros(nbytes, dtype=np.uint8), taken).reshape(-1)


def stored_elements(
    part: DatasetPart, identity: SourceIdentity, fill: NDArray[np.uint8], taken: slice = slice(None)
) -> NDArray[np.uint8]:
    """Decode all chunks of a small dataset one by one; return its shape and one axis more, the bytes taken of elements.

    Elements of chunks that were never written are `fill`. A chunk that cannot be decoded here is a `DecodeError` or a
    `CorruptChunkError`.
    """
    index = part.chunk_index
    decoded = np.empty((*index.shape, len(fill[taken])), dtype=np.uint8)
    decoded[...] = fill[taken]
    for entry, number in enumerate(index.numbers.tolist()):
        if part.may_be_unfiltered(np.array([entry]))[0]:
            raise DecodeError("a chunk of it may have been left unfiltered")
        low = index.coordinates(number)
        where = tuple(slice(a, a + n) for a, n in zip(low, index.chunk_shape, strict=True))
        inside = tuple(slice(0, n - a) for a, n in zip(low, index.shape, strict=True))
        try:
            chunk = decode_stored(part, identity, place=entry)
        except DecodeError as error:
            raise CorruptChunkError(f"chunk {low} at byte {index.offset[entry]}: {error}", chunk=low) from error
        shape = (-1, *index.chunk_shape[1:], len(fill))  # of contiguous data the last block is shorter
        if chunk.size % math.prod(shape[1:]) or chunk.size < math.prod((*decoded[where].shape[:1], *shape[1:])):
            said = f"it has {chunk.size:,} bytes, and its elements more"
            raise CorruptChunkError(f"chunk {low} at byte {index.offset[entry]}: {said}", chunk=low)
        decoded[where] = chunk.reshape(shape)[inside][..., taken]
    return decoded
