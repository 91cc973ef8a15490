"""Objects of unlike lengths, read as rows of few datasets: those that are stored alike lie one behind the other.

Each object begins at a chunk's edge of such a dataset, which has gaps behind objects that do not fill their last chunk;
no sample has rows there. Objects come in the order in which they lie in the file, so that neighbours are read together.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldLengthError, UnsupportedFieldError
from h5stream.storage import elements, whereabouts
from h5stream.storage.discovery import check_has_numpy_type, dataset_at
from h5stream.storage.fallback import compact_offset
from h5stream.storage.global_heap import DOUBTFUL, HeapValues
from h5stream.storage.headers import Headers, chunks_of
from h5stream.storage.index import INDEX_UNREADABLE, ChunkIndex, beyond_end, fill_of, found_chunks, offset_of
from h5stream.storage.layout import BLOCK_NBYTES, DECODED, DIRECT, HEAP, DatasetPart, Target
from h5stream.storage.names import Names
from h5stream.storage.rowbox import ColumnPiece, column_pieces
from h5stream.storage.source import FileIdentity
from h5stream.storage.templates import CHUNKED, COMPACT, CONTIGUOUS, NOWHERE
from h5stream.storage.whereabouts import RawFile

Ints = NDArray[np.int64]
Owned = tuple[Ints, Ints, Ints, Ints, Ints]
"""Of chunks: object, number, offset, bytes, filter mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRows:
    """Rows of objects of one file."""

    parts: list[DatasetPart]  # the datasets that they are rows of, their first rows counted from 0
    first: Ints  # first, counts: of each object, its first row and how many it has
    counts: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where objects lie, for those of one kind: stored alike, but for how many rows they have.

    `which` has their places among all, `rows` how many each has, `owner` the place of each chunk's object in `which`.
    """

    which: Ints
    rows: Ints
    owner: Ints
    number: Ints
    offset: Ints
    nbytes: Ints
    filter_mask: Ints


def object_rows(
    raw: RawFile, names: Sequence[str], addresses: Ints, suffix: str, describe: Callable[[str], DatasetPart]
) -> ObjectRows:
    """Read where objects lie that differ in their first axis alone."""
    first, counts = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    parts: list[DatasetPart] = []
    kept = raw.catalogue.is_kept
    if len(addresses) and (addresses == NOWHERE).any():  # these have no rows
        there = np.flatnonzero(addresses != NOWHERE)
        found = object_rows(raw, [names[k] for k in there.tolist()], addresses[there], suffix, describe)
        first[there], counts[there] = found.first, found.counts
        return ObjectRows(parts=found.parts, first=first, counts=counts)
    for stored in _kept(raw, names, suffix) if kept else _kinds(raw, names, addresses, suffix):
        begin = sum(part.rows for part in parts)
        template = describe(names[int(stored.which[0])])
        counts[stored.which] = stored.rows
        lacking = _first_lacking(raw, template, stored) if template.access in (DIRECT, DECODED) else None
        if lacking is not None:  # the value that stands for what was never written is known of such a one alone
            template = describe(names[lacking])
        if template.access not in (DIRECT, DECODED):  # each by itself, as libhdf5 reads them
            for k, rows in zip(stored.which.tolist(), stored.rows.tolist(), strict=True):
                first[k] = begin
                parts.append(replace(describe(names[k]), row_start=begin))
                begin += rows
            continue
        part, first[stored.which] = together(template, stored, names, is_chunked=_is_chunked(raw, template))
        _check_inside(raw, part)
        first[stored.which] += begin
        parts.append(replace(part, row_start=begin))
    return ObjectRows(parts=parts, first=first, counts=counts)


def _is_chunked(raw: RawFile, template: DatasetPart) -> bool:
    return raw.file[template.path].chunks is not None


def _first_lacking(raw: RawFile, template: DatasetPart, stored: Stored) -> int | None:
    """Return the place of the first object of which something was never written."""
    assert template.index is not None
    chunk_rows = template.index.chunk_shape[0] if _is_chunked(raw, template) else max(1, int(stored.rows.max()))
    wanted = -(-stored.rows // chunk_rows) * template.index.columns
    lacking = np.flatnonzero(np.bincount(stored.owner, minlength=len(stored.which)) < wanted)
    return int(stored.which[lacking[0]]) if len(lacking) else None


def together(
    template: DatasetPart, stored: Stored, names: Sequence[str], *, is_chunked: bool
) -> tuple[DatasetPart, Ints]:
    """Put objects of one kind one behind the other; gives where each begins, too."""
    index = template.chunk_index
    chunk_rows = index.chunk_shape[0] if is_chunked else max(1, int(stored.rows.max()))
    row_nbytes = template.stored_element_nbytes * int(np.prod(template.shape[1:], dtype=object))
    by_offset = _by_first_offset(stored)
    rank = np.empty(len(by_offset), np.int64)
    rank[by_offset] = np.arange(len(by_offset))
    chunks_of_each = -(-stored.rows[by_offset] // chunk_rows)
    edges = np.append(0, np.cumsum(chunks_of_each))
    number = edges[rank[stored.owner]] * index.columns + stored.number
    order = np.argsort(number, kind="stable")
    nbytes = stored.nbytes if is_chunked else stored.rows[stored.owner] * row_nbytes
    found = ChunkIndex(
        shape=(int(edges[-1]) * chunk_rows, *index.shape[1:]),
        chunk_shape=(chunk_rows, *index.chunk_shape[1:]),
        grid=(int(edges[-1]), *index.grid[1:]),
        numbers=number[order],
        offset=stored.offset[order],
        nbytes=nbytes[order],
        filter_mask=stored.filter_mask[order].astype(np.uint32),
        has_gaps=True,
    )
    listed = Names.of(names[k] for k in stored.which[by_offset].tolist())
    part = replace(
        template,
        rows=found.shape[0],
        chunk_rows=chunk_rows,
        index=found,
        pieces=column_pieces(template.shape[1:], found.chunk_shape[1:], template.columns),
        shape=found.shape,
        objects=listed,
        object_edges=edges * chunk_rows,
        object_rows=stored.rows[by_offset],
    )
    return part, edges[:-1][rank] * chunk_rows


def _by_first_offset(stored: Stored) -> Ints:
    """Order objects by where their first chunk lies."""
    begins = np.full(len(stored.which), np.iinfo(np.int64).max)
    np.minimum.at(begins, stored.owner, stored.offset)
    return np.argsort(begins, kind="stable")


def _check_inside(raw: RawFile, part: DatasetPart) -> None:
    index = part.chunk_index
    if len(beyond_end(index.offset, index.nbytes, raw.superblock.file_nbytes)):
        raise FieldLengthError(
            f"{raw.file.filename!r}: bytes of {part.objects[0]!r}, or of one that is stored like it, are said to lie "
            "beyond the file's end",
            field=part.objects[0],
        )


def _kept(raw: RawFile, names: Sequence[str], suffix: str) -> list[Stored]:
    """Return what the catalogue has, some of it compared with what libhdf5 says."""
    arrays, found = raw.catalogue.arrays, list[Stored]()
    for number in range(int(arrays[f"{suffix} kinds"][0])):
        columns = {one.name: arrays[f"{suffix} {number} {one.name}"].astype(np.int64) for one in fields(Stored)}
        found.append(Stored(**columns))
    every = np.concatenate([one.which for one in found])
    if not np.array_equal(np.sort(every), np.arange(len(names))):
        raise ValueError(suffix)
    for one in found:
        lengths = {len(getattr(one, name)) for name in ("owner", "number", "offset", "nbytes", "filter_mask")}
        if len(lengths) > 1 or len(one.rows) != len(one.which) or not _is_within(one):
            raise ValueError(suffix)
        if not all(_agrees(raw, names, one, k) for k in whereabouts.checked(len(one.which))):
            raise ValueError(suffix)
    return found


def _is_within(stored: Stored) -> bool:
    """Tell whether chunks belong to objects that there are."""
    owner = stored.owner
    return bool((stored.rows >= 0).all() and (owner >= 0).all() and (owner < len(stored.which)).all())


def _kinds(raw: RawFile, names: Sequence[str], addresses: Ints, suffix: str) -> list[Stored]:
    """Say where objects lie, kind by kind, for the catalogue too."""
    found, left = list[Stored](), np.arange(len(names))
    if len(names) >= whereabouts.MANY:
        found, left = _from_bytes(raw, names, addresses)
    found += _asked_for(raw, names, left)
    arrays = raw.catalogue.arrays
    arrays |= {f"{suffix} {k} {one.name}": getattr(s, one.name) for k, s in enumerate(found) for one in fields(Stored)}
    arrays[f"{suffix} kinds"] = np.array([len(found)])
    return found


def _asked_for(raw: RawFile, names: Sequence[str], left: Ints) -> list[Stored]:
    """Ask libhdf5 where objects lie."""
    found = list[Stored]()
    by_kind: dict[Any, list[tuple[int, _Asked]]] = {}
    for k in left.tolist():
        asked = asked_of(raw.file, names[k])
        by_kind.setdefault(asked.kind, []).append((k, asked))
    for some in by_kind.values():
        chunks = np.concatenate([np.zeros((0, 4), np.int64), *(one.chunks for _, one in some)])
        owner = np.repeat(np.arange(len(some)), [len(one.chunks) for _, one in some])
        which, rows = np.array([k for k, _ in some]), np.array([one.shape[0] for _, one in some])
        number, offset, nbytes, mask = chunks.T
        found.append(
            Stored(which=which, rows=rows, owner=owner, number=number, offset=offset, nbytes=nbytes, filter_mask=mask)
        )
    return found


def _from_bytes(raw: RawFile, names: Sequence[str], addresses: Ints) -> tuple[list[Stored], Ints]:
    """Say where objects lie that are understood from the file's bytes, and which have to be asked of libhdf5."""
    headers, found = raw.headers(addresses), list[Stored]()
    left = np.ones(len(names), dtype=bool)
    rest = headers.dims[:, 1:] if headers.dims.shape[1] > 1 else headers.dims[:, :0]
    usual = (headers.kind >= 0) & (headers.rank > 0) & (rest == rest[0]).all(axis=1)
    for kind in np.unique(headers.kind[usual]).tolist():
        which, (owner, number, offset, nbytes, mask) = owned_chunks(
            raw.given, headers, np.flatnonzero(usual & (headers.kind == kind))
        )
        if not len(which):
            continue
        one = Stored(
            which=which,
            rows=headers.dims[which, 0],
            owner=np.searchsorted(which, owner),
            number=number,
            offset=offset,
            nbytes=nbytes,
            filter_mask=mask,
        )
        if all(_agrees(raw, names, one, k) for k in whereabouts.checked(len(which))):
            found.append(one)
            left[which] = False
    return found, np.flatnonzero(left)


def owned_chunks(givens: Ints, headers: Headers, which: Ints) -> tuple[Ints, Owned]:
    """Give which of some objects of one kind are understood from their headers, and where their chunks lie."""
    layout = headers.layout[which[0]] if len(which) else -1
    if layout == CONTIGUOUS:
        dims, element_nbytes = headers.dims[which], headers.kinds[headers.kind[which[0]]].element_nbytes
        is_whole = headers.nbytes[which] == dims.prod(axis=1, where=dims > 0) * element_nbytes
        which = which[is_whole | (headers.address[which] == NOWHERE)]
        owner = which[headers.address[which] != NOWHERE]
        zeros = np.zeros_like(owner)
        return which, (owner, zeros, headers.address[owner], headers.nbytes[owner], zeros)
    if layout != CHUNKED:
        none = which[:0]
        return none, (none, none, none, none, none)
    chunks = chunks_of(givens, headers, which)
    mask = chunks.filter_mask.astype(np.int64)
    return which[chunks.understood], (chunks.owner, chunks.number, chunks.offset, chunks.nbytes, mask)


def _agrees(raw: RawFile, names: Sequence[str], stored: Stored, k: int) -> bool:
    """Tell whether libhdf5 sees an object as its bytes were understood."""
    asked, ours = asked_of(raw.file, names[int(stored.which[k])]), stored.owner == k
    columns = np.stack([stored.number, stored.offset, stored.nbytes, stored.filter_mask], axis=1)[ours]
    return asked.shape[0] == stored.rows[k] and np.array_equal(columns, asked.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What libhdf5 says of one object: how it is stored, its shape, and of its chunks number, offset, bytes, mask."""

    kind: Any
    shape: tuple[int, ...]
    chunks: Ints


def asked_of(file: Any, name: str) -> _Asked:
    """Ask libhdf5 how an object is stored, and where its chunks lie."""
    path = file.filename
    opened = dataset_at(file, name, path)
    check_has_numpy_type(opened, name, path)
    creation, shape = opened.get_create_plist(), opened.shape
    if not shape:
        raise FieldLengthError(
            f"{path!r}: {name!r} is {'empty' if shape is None else 'a single value'}, and has no rows "
            "that ragged= or names= could take",
            field=name,
            file=path,
        )
    layout = creation.get_layout()
    pipeline = tuple(creation.get_filter(k) for k in range(creation.get_nfilters()))
    kind: tuple[Any, ...] = (layout, opened.get_type().encode(), shape[1:], pipeline, fill_of(opened))
    if layout == h5py.h5d.CHUNKED:
        with contextlib.suppress(*INDEX_UNREADABLE):
            return _Asked(kind=(*kind, creation.get_chunk()), shape=shape, chunks=found_chunks(opened))
    where, is_known = None, layout == h5py.h5d.CONTIGUOUS and not creation.get_external_count()
    if is_known:
        where = offset_of(opened)
    elif layout == h5py.h5d.COMPACT and 0 not in shape:
        where = compact_offset(h5py.Dataset(opened), FileIdentity.of(path))
        is_known = where is not None
    if not is_known:  # it is a kind of its own, which is read as it is described
        return _Asked(kind=(*kind, name), shape=shape, chunks=np.zeros((0, 4), np.int64))
    chunks = np.array([[0, where or 0, opened.get_storage_size(), 0]], dtype=np.int64)[: where is not None]
    return _Asked(kind=kind, shape=shape, chunks=chunks)


# --- Objects that are bytes, each of a length of its own, such as encoded images: where each lies, and reading it.
#
# They are values of variable length whose bytes lie in the open instead of in a heap, so they land as such values do.


class ObjectValues(HeapValues):
    """Where objects lie in a file; what is filtered, and so has no bytes of its own there, is `DOUBTFUL`."""

    __slots__ = ()

    @property
    def room_nbytes(self) -> int:
        """Bytes to read into: none, since each object is read to where it goes."""
        return 1

    def read(
        self, descriptor: int, chosen: Ints, targets: Ints, wanted: Ints, room: Any
    ) -> tuple[NDArray[np.bool_], tuple[int, int]]:
        """Read some objects to memory; see `HeapValues.read`."""
        failed, address = np.zeros(len(chosen), dtype=bool), self.address[chosen]
        for k in np.argsort(address, kind="stable").tolist():
            if address[k] >= 0:
                memory: Any = (ctypes.c_uint8 * int(wanted[k])).from_address(int(targets[k]))
                failed[k] = os.preadv(descriptor, [memory], int(address[k])) != wanted[k]
            else:
                failed[k] = address[k] != NOWHERE
        return failed, (int(wanted[address >= 0].sum()), int((address >= 0).sum()))


def part_of_bytes(
    raw: RawFile, file: int, row_start: int, names: Sequence[str], targets: list[Target], addresses: Ints | None = None
) -> DatasetPart:
    """Describe objects that are bytes as rows."""
    key, arrays = f"bytes of {names[0].rpartition('/')[2]}", raw.catalogue.arrays
    if raw.catalogue.is_kept:
        where, nbytes = arrays[f"{key} where"].astype(np.int64), arrays[f"{key} nbytes"].astype(np.int64)
        some = whereabouts.checked(len(names))
        if len(where) != len(names) or any(_asked(raw, names[k]) != (where[k], nbytes[k]) for k in some):
            raise ValueError(key)
    else:
        where, nbytes = _places(raw, names, addresses)
        arrays |= {f"{key} where": where, f"{key} nbytes": nbytes}
    left = raw.superblock.file_nbytes - where
    doubtful = (where >= 0) & ((nbytes < 0) | (nbytes > left) | (nbytes >= 1 << 32))
    where, nbytes = np.where(doubtful, DOUBTFUL, where), np.where(doubtful, 1, nbytes)
    row_nbytes = float(nbytes.mean())
    return DatasetPart(
        file=file,
        path=names[0],
        rows=len(names),
        row_start=row_start,
        access=HEAP,
        reason="",
        chunk_rows=max(1, min(len(names), BLOCK_NBYTES // max(1, int(row_nbytes)))),
        pieces=(ColumnPiece(number=0, row_elements=1, segments=np.array([[0, 0, 1]])),),
        targets=tuple(targets),
        stored_element_nbytes=1,
        dtype_text="bytes",
        shape=(len(names),),
        objects=Names.of(names),
        heap=ObjectValues(
            superblock=raw.superblock,
            base=np.dtype(np.uint8),
            is_text=False,
            address=where,
            index=np.zeros(len(names), dtype=np.uint32),
            length=nbytes.astype(np.uint32),
            row_nbytes=row_nbytes,
        ),
    )


def _places(raw: RawFile, names: Sequence[str], addresses: Ints | None) -> tuple[Ints, Ints]:
    """Return where objects begin, and their bytes; those whose headers are not understood are asked of libhdf5."""
    where, nbytes = np.full((2, len(names)), DOUBTFUL)
    left = np.ones(len(names), dtype=bool)
    if addresses is not None and len(names) >= whereabouts.MANY:
        headers = raw.headers(addresses)
        usual = (headers.kind == headers.kind[0]) & (headers.kind >= 0) & (headers.address >= 0)
        usual &= (headers.layout == CONTIGUOUS) | (headers.layout == COMPACT)
        where[usual], nbytes[usual] = headers.address[usual], headers.nbytes[usual]
        some = np.flatnonzero(usual)[:: whereabouts.CHECKED_EVERY].tolist()
        if headers.layout[0] == CONTIGUOUS and all(_asked(raw, names[k]) == (where[k], nbytes[k]) for k in some):
            left = ~usual
    for k in np.flatnonzero(left).tolist():
        where[k], nbytes[k] = _asked(raw, names[k])
    return where, nbytes


def _asked(raw: RawFile, name: str) -> tuple[int, int]:
    """Ask libhdf5 where the bytes of an object begin, and how many they are."""
    opened = dataset_at(raw.file, name, raw.file.filename)
    check_has_numpy_type(opened, name, raw.file.filename)
    dtype, shape = opened.dtype, opened.shape
    if shape is None or elements.bytes_leaf(dtype) is None or len(shape) > 1 or (shape and dtype.itemsize > 1):
        said = "of variable length" if dtype.kind == "O" else dtype
        raise UnsupportedFieldError(
            f"{raw.file.filename!r}: {name!r} is {said} {shape}: decode= takes objects that are bytes: uint8, or "
            "one opaque value (np.void); values of variable length are taken as rows of one dataset",
            field=name,
            file=raw.file.filename,
        )
    assert raw.guard is not None
    raw.guard.check_data(h5py.Dataset(opened), name, raw.file.filename)
    creation, nbytes = opened.get_create_plist(), dtype.itemsize * int(np.prod(shape, dtype=object))
    is_plain = dtype.kind != "u" or elements.is_stored_as(opened.get_type(), dtype)
    if not is_plain or creation.get_layout() != h5py.h5d.CONTIGUOUS or creation.get_external_count():
        return DOUBTFUL, 1
    where = offset_of(opened)
    return (NOWHERE, 0) if where is None else (where, nbytes)
