"""Dataset parts: the file of a dataset, its storage layout, and how rows of its fields are read."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5o
from numpy.typing import NDArray

from h5stream.base.names import Reading, is_address
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
from h5stream.storage.decode.columns import Columns
from h5stream.storage.decode.elements import dtype_of
from h5stream.storage.decode.filters import DecodeError, is_packing
from h5stream.storage.decode.pipeline import Pipeline, pipeline_of
from h5stream.storage.decode.small_floats import widened
from h5stream.storage.file.discovery import FieldSource, find_dataset, is_attribute, means, once_of, refusal, type_once
from h5stream.storage.file.external import VIRTUAL, Guard, files_behind, without_soft_links
from h5stream.storage.file.h5py_reader import compact_offset, decode_stored, fill_element, why_not_decoded_here
from h5stream.storage.headers.headers import superblock_of
from h5stream.storage.layout.access import (
    DECODED,
    DIRECT,
    IN_EXTERNAL_FILES,
    IS_VIRTUAL,
    VARIABLE_LENGTH,
    Chunked,
    Heap,
    ThroughH5py,
)
from h5stream.storage.layout.heap import MOST_VALUES, base_of, values_of
from h5stream.storage.layout.index import (
    COMPARED_NBYTES,
    INDEX_UNREADABLE,
    ChunkIndex,
    ColumnPiece,
    build_index,
    column_pieces,
    cut_extent,
    rows_together,
)
from h5stream.storage.layout.parts import DatasetPart, Target
from h5stream.storage.source.handles import open_file, said_of_writer
from h5stream.storage.source.identity import SourceIdentity
from h5stream.storage.source.local import absolute, identities_of, identity_of
from h5stream.storage.source.one_file import no_such_file, not_permitted, stat_of
from h5stream.storage.source.remote import check_reads, failures

WATCHED_FILES = 100
"""The most files behind a virtual dataset that are checked for changes, in 1 to 2 us each at every read."""


def _check_writer(path: str) -> None:
    """Raise if another process has a file open for writing."""
    if writer := said_of_writer(path):
        raise SourceError(writer, file=path)


@contextlib.contextmanager
def open_hdf5(path: str) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading, independently of other handles, and close it at the end of the block."""
    _check_writer(path)
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
            message = f"{path!r} is truncated: {error}. Copy it again from its source."
            raise TruncatedFileError(message, file=path) from None
        if "signature not found" in str(error):
            what = f"it has no HDF5 signature ({identity_of(path).size} bytes)"
            raise NotHDF5Error(f"{path!r} is not an HDF5 file: {what}.", file=path) from None
        is_written = "already open for write" in str(error)
        way_out = f". Its writer has not closed it. If none is left: h5clear -s {shlex.quote(path)}" * is_written
        raise SourceError(f"libhdf5 cannot open {path!r}: {error}{way_out}", file=path) from None
    with file:
        try:
            yield file
            if failures:
                check_reads(path)
        except H5StreamError:
            check_reads(path)
            raise
        except MemoryError as error:
            why = f"there is no memory for what {path!r} says it holds{f' ({error})' if str(error) else ''}; it is "
            why += "damaged, or it, or a sample of it, is too large here"
            raise SourceError(why, file=path) from error
        except (RuntimeError, OSError, KeyError, UnicodeError) as error:  # h5py's exceptions for libhdf5's failures
            check_reads(path)
            raise SourceError(f"libhdf5 cannot read the structure of {path!r}: {error}", file=path) from error


class Files:
    """The files that a user named, followed by those that their links lead to."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.identities, self.named = identities_of(paths), len(paths)
        self._numbers: dict[str | tuple[int, int], int] = {}
        # by the index of each field in a sample: the names of the first file's columns, and their positions in a row
        self.columns: dict[tuple[int, str], tuple[list[str], NDArray[np.int32]]] = {}

    def number_of(self, path: str) -> int:
        """Return a file's number, adding the file if it is new."""
        if not self._numbers:
            self._numbers = {_inode(identity.path): n for n, identity in reversed([*enumerate(self.identities)])}
        number = self._numbers.setdefault(_inode(path), len(self.identities))
        if number == len(self.identities):
            self.identities.append(identity_of(path))
        return number


def _inode(path: str) -> str | tuple[int, int]:
    if is_address(path):
        return path
    stat = stat_of(path)
    return stat.st_dev, stat.st_ino


class Location(NamedTuple):
    """The location of a dataset: its file, and its path in the file after resolving all links."""

    number: int
    identity: SourceIdentity
    dataset: h5py.Dataset
    path: str
    unresolved: str = ""  # why it can only be reached by the requested path


class OpenFile:
    """An open file, and the files that its links lead to."""

    def __init__(self, file: h5py.File, number: int, files: Files, guard: Guard, linked: contextlib.ExitStack) -> None:
        self.file, self.number, self.files, self.guard = file, number, files, guard
        self.identity = files.identities[number]
        self.path = self.identity.path
        self._linked = linked

    def beside(self, path: str) -> OpenFile:
        """Open another file, which is closed with this one."""
        number = self.files.number_of(path)  # its state before it is opened
        return OpenFile(self._linked.enter_context(open_hdf5(path)), number, self.files, self.guard, self._linked)

    def find(self, name: str) -> FieldSource:
        """Return a field's dataset."""
        return find_dataset(self.file, name, self.path, self.guard)

    def once(self, name: str) -> Any:
        """Return an attribute or a whole dataset; small floats as bits."""
        return once_of(self.file, name, self.path, self.guard)

    def numbers(self, name: str) -> Any:
        """Return the value of `once`, with small floats as float32."""
        return widened(self.once(name))

    def once_type(self, name: str) -> np.dtype:
        """Return the dtype of the value of `once`, including the labels of an enum, which NumPy values lose."""
        return type_once(self.file, name, self.path, self.guard)

    def means(self, name: str) -> Reading | None:
        """Return the reading of a name under which the file has an object; None if there is none."""
        return means(self.file, name, self.path, self.guard)

    def is_attribute(self, name: str) -> bool:
        """Return whether a name is that of an attribute."""
        return "@" in name and is_attribute(self.file, name, self.path, self.guard)

    def place(self, source: FieldSource) -> Location:
        """Return the location of a dataset after following links, as if its own file had been opened."""
        here = Location(self.number, self.identity, source.dataset, source.path)
        if source.dataset.file.filename == self.file.filename:
            return here
        # libhdf5 only has a path in the other file for objects that were not reached through a soft link in this one.
        dataset = self.file[without_soft_links(self.file, source.path)]
        target, name = absolute(os.fsdecode(dataset.file.filename)), dataset.name
        self.guard.check_file(source.path, target, self.path)
        other = self.beside(target)
        resolved = other.file.get(name) if name else None
        if not isinstance(resolved, h5py.Dataset) or h5o.get_info(resolved.id).addr != h5o.get_info(dataset.id).addr:
            return here._replace(unresolved="it lies in another file, behind an external link")
        return Location(other.number, other.identity, resolved, name.strip("/"))


# --- parts: the storage layouts of datasets


def part_of(
    opened: OpenFile,
    place: Location,
    name: str,
    columns: Columns = None,
    along: tuple[Along, ...] = (),
    targets: Sequence[Target] = (),
    *,
    row_start: int = 0,
) -> DatasetPart:
    """Return the part of a dataset and its fields; with `along`, samples are boxes, and columns are not selected."""
    dataset = place.dataset
    opened.guard.check_data(dataset, name, place.identity.path)
    pipeline = pipeline_of(dataset.id.get_create_plist())
    dtype, stored = dtype_of(dataset), elements.stored_as(dataset)
    row_nbytes = dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=object))
    part = DatasetPart(  # read through h5py, unless a way without it follows
        file=place.number,
        path=place.path,
        rows=dataset.shape[0],
        row_start=row_start,
        via=ThroughH5py(reason=_h5py_reason(place, pipeline, targets, stored)),
        chunk_rows=max(1, int(dataset.chunks[0]) if dataset.chunks else rows_together(row_nbytes, dataset.shape[0])),
        pipeline=pipeline,
        columns=None if along else columns,
        targets=tuple(replace(target, leaf=None) for target in targets),
        stored_element_nbytes=stored.nbytes,
        dtype_text=str(elements.plain_dtype(dtype)),
        shape=tuple(dataset.shape),
    )
    describe = _heap_part if part.reason == VARIABLE_LENGTH else _chunked_part
    part = describe(part, place, name, targets)
    if not part.pieces:  # rows that h5py reads, or values in a heap
        part = replace(part, pieces=column_pieces(part.shape[1:], part.shape[1:], part.columns))
    if part.leads_on:
        kinds = files_behind(dataset, place.identity.path)
        for path in (path for path, kind in kinds.items() if kind == VIRTUAL):
            _check_writer(path)
        behind = tuple(opened.files.number_of(path) for path in [*kinds][:WATCHED_FILES])
        part = replace(part, via=ThroughH5py(reason=part.reason, behind=behind))
    if along:
        count = int(np.prod(part.shape[1:], dtype=object))
        whole = ColumnPiece(number=0, row_elements=count, segments=np.array([[0, 0, count]]))
        part = replace(part, along=along, pieces=(whole,))
    return part


def part_moved(part: DatasetPart, moved: NDArray[np.int64] | None) -> DatasetPart:
    """Return the part of a sparse matrix's columns with new numbers, which are applied after reading."""
    if moved is None:
        return part
    targets = (replace(one, moved=moved if one.moved is None else moved[one.moved]) for one in part.targets)
    via = Chunked(index=part.via.index, access=DECODED) if isinstance(part.via, Chunked) else part.via
    return replace(part, via=via, targets=tuple(targets))


def _h5py_reason(place: Location, pipeline: Pipeline, targets: Sequence[Target], stored: elements.StoredElement) -> str:
    """Return why a dataset's type or layout requires h5py; empty if it does not."""
    dataset, dtype = place.dataset, dtype_of(place.dataset)
    if dataset.is_virtual:
        return IS_VIRTUAL
    if dataset.id.get_create_plist().get_external_count():
        return IN_EXTERNAL_FILES
    is_loose = len(targets) == 1 and targets[0].member in stored.loose
    opaque = dtype.kind == "V" and dtype.fields is None and dtype.subdtype is None  # bytes under any name
    if place.unresolved or dtype.kind == "O" or is_loose or opaque:
        return place.unresolved or ("" if opaque else VARIABLE_LENGTH)
    for target in targets:
        if target.leaf is None:
            return f"{dtype}: libhdf5 converts it"
    if stored.plain is None or not elements.is_stored_as(stored.plain, dtype if stored.is_whole else stored.dtype):
        return "its stored type is not a NumPy type; libhdf5 converts it"
    for one in pipeline.filters:
        if is_packing(one):
            return f"{filters.KNOWN_NAMES[one.id]}: only libhdf5 undoes it"
    return ""


def _chunked_part(part: DatasetPart, place: Location, name: str, targets: Sequence[Target]) -> DatasetPart:
    """Return the part with its chunk index, or for h5py if the chunks are not reliable."""
    index, why = _read_index(part, place, name)
    if index is None or part.reason:
        return replace(part, via=ThroughH5py(reason=part.reason or why))
    try:
        element = fill_element(place.dataset, index)
    except (OSError, RuntimeError) as error:  # nothing was written, and the fill value is undefined
        return replace(part, via=ThroughH5py(reason=f"what its missing chunks hold cannot be read: {error}"))
    if element is not None:
        targets = [replace(t, fill=element[t.leaf.places]) for t in targets if t.leaf]
    decoded = _with_index(part, index, targets)
    why = why_not_decoded_here(place.dataset, decoded, place.identity)
    return replace(part, via=ThroughH5py(reason=why)) if why else decoded


def _with_index(part: DatasetPart, index: ChunkIndex, targets: Sequence[Target]) -> DatasetPart:
    """Return the part with a chunk index and targets."""
    is_scattered = False
    for target in targets:  # gathering members element by element needs memory, like a filter
        is_scattered |= len(part.shape) > 1 and target.leaf is not None and len(target.leaf.offsets) > 1
    return replace(
        part,
        via=Chunked(index=index, access=DECODED if part.pipeline.filters or is_scattered else DIRECT),
        chunk_rows=max(1, index.chunk_shape[0]),
        pieces=column_pieces(part.shape[1:], index.chunk_shape[1:], part.columns),
        targets=tuple(targets),
    )


def _read_index(
    part: DatasetPart, place: Location, name: str, element_nbytes: int = 0
) -> tuple[ChunkIndex | None, str]:
    """Return the chunk index if it is needed and readable, or None and the reason."""
    dataset, identity = place.dataset, place.identity
    # Even if h5py reads, only the index shows whether a missing filter was applied to any chunk.
    is_needed = bool(element_nbytes) or not part.reason
    if not is_needed and (dataset.chunks is None or all(h5py.h5z.filter_avail(f.id) for f in part.pipeline.filters)):
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
    for bit, f in enumerate(part.pipeline.filters):  # filters of stored chunks that are not decoded here
        if f.decodable or not ((index.filter_mask >> np.uint32(bit)) & 1 == 0).any():
            continue
        if h5py.h5z.filter_avail(f.id):
            return None, f"filter {f.id} ({f.name}): only a plugin of this machine's libhdf5 undoes it"
        label = filters.KNOWN_NAMES.get(f.id, f.name or "unnamed")
        why = f": field {name!r} needs HDF5 filter {f.id} ({label}), which is not available. Get a plugin for it "
        why += "(The HDF Group lists registered filters) and name its folder in HDF5_PLUGIN_PATH before Python starts."
        raise refusal(identity.path, name, why, MissingFilterError, filter_id=f.id)
    return index, ""


# --- values of variable length whose heap can be read without libhdf5


def _heap_part(part: DatasetPart, place: Location, name: str, targets: Sequence[Target]) -> DatasetPart:
    """Return the part with references to its variable-length values, or for h5py if they cannot be read."""
    dataset, rows = place.dataset, place.dataset.shape[0]
    where, kind, whole = 0, dataset.id.get_type(), elements.stored_as(dataset)
    if member := targets[0].member if targets else ():
        where, kind = whole.loose.get(member, (0, kind))
    base, is_text = base_of(kind)
    is_compact = dataset.id.get_create_plist().get_layout() == h5py.h5d.COMPACT
    if base is None or is_compact or dataset.size > MOST_VALUES:
        return part
    superblock = superblock_of(dataset.file, place.identity.size)
    reference_nbytes = superblock.offset_nbytes + 8  # of an element's reference to its value
    element_nbytes = whole.nbytes if member else reference_nbytes
    index, why = _read_index(part, place, name, element_nbytes)
    if index is None:
        return replace(part, via=ThroughH5py(reason=f"{VARIABLE_LENGTH}; {why}"))
    stored = _with_index(replace(part, columns=None, stored_element_nbytes=element_nbytes), index, ())
    if stored.chunk_nbytes > COMPARED_NBYTES:
        return part
    try:
        raw = _read_all_elements(place, stored, slice(where, where + reference_nbytes))
    except (H5StreamError, DecodeError) as error:
        reason = f"{VARIABLE_LENGTH}; where its values lie cannot be read: {error}"
        damaged = error.chunk if isinstance(error, CorruptChunkError) else None
        return replace(part, via=ThroughH5py(reason=reason, damaged=damaged))
    if raw is None:
        return replace(part, via=ThroughH5py(reason=f"{VARIABLE_LENGTH}; with a fill value of its own"))
    references = values_of(raw, superblock, base, rows, is_text=is_text)
    together = min(part.chunk_rows, rows) if dataset.chunks else rows_together(int(references.row_nbytes), rows)
    return replace(part, via=Heap(references), chunk_rows=max(1, together), targets=tuple(targets))


def _read_all_elements(place: Location, stored: DatasetPart, taken: slice) -> NDArray[np.uint8] | None:
    """Read the bytes `taken` of all elements, chunk by chunk; None if missing chunks have a fill value."""
    index, dataset, nbytes = stored.chunk_index, place.dataset, stored.stored_element_nbytes
    is_filled = dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if is_filled and len(index.numbers) < index.chunks:
        return None
    return stored_elements(stored, place.identity, np.zeros(nbytes, dtype=np.uint8), taken).reshape(-1)


def stored_elements(
    part: DatasetPart, identity: SourceIdentity, fill: NDArray[np.uint8], taken: slice = slice(None)
) -> NDArray[np.uint8]:
    """Decode all chunks of a small dataset; return an array of its shape, with an axis of the elements' bytes `taken`.

    Elements of missing chunks are `fill`. A chunk that cannot be decoded here raises `DecodeError` or
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
        shape = (-1, *index.chunk_shape[1:], len(fill))  # the last block of contiguous data is shorter
        if chunk.size % math.prod(shape[1:]) or chunk.size < math.prod((*decoded[where].shape[:1], *shape[1:])):
            problem = f"it has {chunk.size:,} bytes, and its elements more"
            raise CorruptChunkError(f"chunk {low} at byte {index.offset[entry]}: {problem}", chunk=low)
        decoded[where] = chunk.reshape(shape)[inside][..., taken]
    return decoded
