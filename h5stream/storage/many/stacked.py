"""Many similar objects or files read as rows of one dataset: one row each, several rows each, or one byte string each.

With one row each, the dataset has an additional first axis and the chunks of all members. With several rows each,
members that are stored in the same way are concatenated: each begins at the edge of a chunk, and one that does not
fill its last chunk is followed by a gap that no sample refers to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from h5stream.base.names import Ints, Names
from h5stream.samples.packing import MEANINGS
from h5stream.storage.file.h5py_reader import fill_element
from h5stream.storage.layout.access import DECODED, DIRECT, Chunked, Heap, ObjectsAsRows, RowsOfObjects
from h5stream.storage.layout.heap import DOUBTFUL, HeapValues
from h5stream.storage.layout.index import ChunkIndex, ColumnPiece, column_pieces, cut_extent
from h5stream.storage.layout.parts import BLOCK_NBYTES, DatasetPart, Meaning, Target
from h5stream.storage.many.members import (
    BytesColumn,
    DatasetColumn,
    FileMembers,
    Members,
    MixedStorageError,
    ObjectMembers,
    chunk_offsets,
    member_path,
)


def stacked_rows(members: Members, which: Ints, column: DatasetColumn, part: DatasetPart) -> DatasetPart:
    """Return a part with one row for each member, made from the part of the first member."""
    index = part.chunk_index
    owner, number, _, nbytes, mask = column.chunks
    offset = chunk_offsets(members, column.chunks, which, column.path)
    is_chunked = column.reference is not None and any(column.reference.chunk_shape)
    if (number >= (index.chunks if is_chunked else 1)).any():
        raise ValueError(column.path)
    if not is_chunked:  # contiguous data are cut as the first member's are
        whole = cut_extent(index.shape, 0, part.stored_element_nbytes)
        offset = (offset[:, None] + whole.offset).reshape(-1)
        number, nbytes = (np.tile(values, len(owner)) for values in (whole.numbers, whole.nbytes))
        owner, mask = (np.repeat(values, whole.chunks) for values in (owner, mask))
    elif part.access == DIRECT and (nbytes != part.chunk_nbytes).any():
        raise MixedStorageError(column.path)
    stacked = ChunkIndex(
        shape=(len(which), *index.shape),
        chunk_shape=(1, *index.chunk_shape),
        numbers=owner * index.chunks + number,
        offset=offset,
        nbytes=nbytes.copy(),
        filter_mask=mask.astype(np.uint32),
    )
    wanted = tuple(list(along.offsets) for along in part.along)
    columns = None if wanted == tuple(list(range(count)) for count in part.shape) else wanted
    # Members of a compound that are apart in an element are gathered from decoded chunks, as for rows of several axes.
    is_scattered = any(target.leaf is not None and len(target.leaf.offsets) > 1 for target in part.targets)
    return replace(
        part,
        rows=len(which),
        via=Chunked(index=stacked, access=DECODED if is_scattered else part.access),
        chunk_rows=1,
        columns=columns,
        pieces=column_pieces(part.shape, index.chunk_shape, columns),
        shape=stacked.shape,
        along=(),
    )


def with_meanings(part: DatasetPart, members: Members, which: Ints, column: DatasetColumn, order: Ints) -> DatasetPart:
    """Return a part whose targets have the meaning of the first member in an order, and the meanings that differ.

    For each attribute, only the first member that differs is listed, with its path.
    """
    which, meanings = which[order], column.meanings
    meaning_of_row = np.where(column.kind[order] >= 0, column.meaning_numbers[order], -1)
    numbers, begins = np.unique(meaning_of_row, return_index=True)
    by_first = [k for k in np.argsort(begins).tolist() if numbers[k] >= 0]
    if not by_first:
        return part
    first, others = meanings[numbers[by_first[0]]], dict[str, tuple[str, Meaning]]()
    for k in by_first[1:]:
        place, meaning = int(which[begins[k]]), meanings[numbers[k]]
        where = (
            members.paths[place] if isinstance(members, FileMembers) else member_path(members.names[place], column.path)
        )
        for name in MEANINGS:
            if dict(meaning).get(name) != dict(first).get(name):
                others.setdefault(name, (where, meaning))
    differing = tuple(dict.fromkeys(others.values()))
    return replace(part, targets=tuple(replace(one, meaning=first, others=differing) for one in part.targets))


def targets_with_fill(members: Members, k: int, numbers: Ints, path: str, part: DatasetPart) -> tuple[Target, ...]:
    """Return the targets of a member that only has chunks of some numbers, with its fill value for the others.

    An index that is damaged may list chunks that it has no address for: the part then seems to be complete.
    """
    index = part.chunk_index
    if len(index.numbers) < index.chunks:
        return part.targets
    stored_numbers = numbers[numbers < index.chunks]
    stored = replace(
        index,
        numbers=stored_numbers,
        offset=index.offset[stored_numbers],
        nbytes=index.nbytes[stored_numbers],
        filter_mask=index.filter_mask[stored_numbers],
    )
    with members.opened(k) as (file, name):
        element = fill_element(file[member_path(name, path)], stored)
    return tuple(
        target if target.leaf is None or element is None else replace(target, fill=element[target.leaf.places])
        for target in part.targets
    )


def concatenated_rows(
    members: Members, which: Ints, column: DatasetColumn, describe: Callable[[int], DatasetPart], begin: int
) -> tuple[list[DatasetPart], Ints]:
    """Return parts, from row `begin` on, of members that differ only along the first axis, and each one's first row.

    `describe` opens a member with every check.
    """
    first, parts = np.zeros(len(which), np.int64), list[DatasetPart]()
    stored = np.bincount(column.chunks[0], minlength=len(which))
    for kind in np.unique(column.kind[column.kind >= 0]).tolist():
        same_kind = np.flatnonzero(column.kind == kind)
        template = describe(int(which[same_kind[0]]))
        cuts = [*_by_chunk_shape(template, column, same_kind)] if isinstance(template.via, Chunked) else []
        lacking = (
            k
            for chunk_shape, indices in cuts
            for k in indices[stored[indices] < _chunk_counts(template, chunk_shape, column.rows[indices])]
        )
        if (incomplete := next(lacking, None)) is not None:
            # Only the description of an incomplete member has the fill value.
            template = describe(int(which[incomplete]))
            if isinstance(template.via, Chunked):
                numbers = column.chunks_of(np.array([incomplete]))[1]
                template = replace(
                    template, targets=targets_with_fill(members, int(which[incomplete]), numbers, column.path, template)
                )
        if not isinstance(template.via, Chunked):  # a part for each, read through libhdf5
            if members.file is not None:
                raise MixedStorageError(column.path)
            for k in same_kind.tolist():
                first[k] = begin
                parts.append(replace(describe(int(which[k])), row_start=begin))
                begin += int(column.rows[k])
            continue
        for chunk_shape, indices in cuts:
            part, first[indices] = _concatenated(members, which, column, template, chunk_shape, indices)
            first[indices] += begin
            parts.append(replace(part, row_start=begin, file=part.file if members.file is None else members.file))
            begin += part.rows
    return parts, first


def _by_chunk_shape(
    template: DatasetPart, column: DatasetColumn, same_kind: Ints
) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Yield each chunk shape of members of one kind, and the members that have it; contiguous data are one chunk."""
    numbers, shapes = column.shape_numbers[same_kind], column.shapes
    order = np.argsort(numbers, kind="stable")
    distinct, low = np.unique(numbers[order], return_index=True)
    for number, indices in zip(distinct.tolist(), np.split(same_kind[order], low[1:]), strict=True):
        whole = max(1, int(column.rows[indices].max())), *template.chunk_index.chunk_shape[1:]
        yield shapes[number] if any(shapes[number]) else whole, indices


def _chunk_counts(template: DatasetPart, chunk_shape: tuple[int, ...], rows: Ints) -> Ints:
    """Return the numbers of chunks of members with these numbers of rows."""
    across = (-(-n // length) if length else 1 for n, length in zip(template.shape[1:], chunk_shape[1:], strict=True))
    count: Ints = -(-rows // chunk_shape[0]) * math.prod(across)
    return count


def _concatenated(
    members: Members,
    which: Ints,
    column: DatasetColumn,
    template: DatasetPart,
    chunk_shape: tuple[int, ...],
    indices: Ints,
) -> tuple[DatasetPart, Ints]:
    """Return the part of members of one kind, concatenated in the order of their offsets, and each one's first row."""
    chunks, rows = column.chunks_of(indices), column.rows[indices]
    owner, number, _, nbytes, mask = chunks
    offset = chunk_offsets(members, chunks, which[indices], column.path)
    if (number >= _chunk_counts(template, chunk_shape, rows)[owner]).any():
        raise ValueError(template.path)
    if not any(column.shapes[column.shape_numbers[indices[0]]]):
        nbytes = rows[owner] * (template.stored_element_nbytes * math.prod(template.shape[1:]))
    begins = np.full(len(rows), np.iinfo(np.int64).max)
    np.minimum.at(begins, owner, offset)
    by_offset = np.argsort(begins, kind="stable")
    rank = np.argsort(by_offset)
    edges = np.append(0, np.cumsum(-(-rows[by_offset] // chunk_shape[0])))
    shape = (int(edges[-1]) * chunk_shape[0], *template.shape[1:])
    number = edges[rank[owner]] * int(_chunk_counts(template, chunk_shape, np.array(1))) + number
    order = np.argsort(number, kind="stable")
    joined = ChunkIndex(
        shape=shape,
        chunk_shape=chunk_shape,
        numbers=number[order],
        offset=offset[order],
        nbytes=nbytes[order],
        filter_mask=mask[order].astype(np.uint32),
        has_gaps=True,
    )
    names = Names.of(member_path(members.names[k], column.path) for k in which[indices].tolist())
    part = replace(
        _with_index(template, joined),
        rows=shape[0],
        objects=RowsOfObjects(names.taken(by_offset), edges * chunk_shape[0], rows[by_offset]),
    )
    return with_meanings(part, members, which, column, indices[by_offset]), edges[:-1][rank] * chunk_shape[0]


def _with_index(template: DatasetPart, index: ChunkIndex) -> DatasetPart:
    """Return a copy of a part with another chunk index."""
    pieces = template.pieces
    if index.chunk_shape[1:] != template.grid_shape[1:]:
        pieces = column_pieces(template.shape[1:], index.chunk_shape[1:], template.columns)
    via = Chunked(index=index, access=template.access)
    return replace(template, via=via, chunk_rows=index.chunk_shape[0], pieces=pieces, shape=index.shape)


def part_of_member(
    template: DatasetPart, column: DatasetColumn, k: int, chunks: slice, **changes: Any
) -> DatasetPart | None:
    """Return the part of member `k`, made from that of another of its kind; None if some of it was never written."""
    number, offset, nbytes, mask = column.chunks[1:, chunks].copy()
    chunk_shape, shape = column.shapes[column.shape_numbers[k]], (int(column.rows[k]), *template.shape[1:])
    if not len(number):
        return None
    if any(chunk_shape):
        index = ChunkIndex(
            shape=shape,
            chunk_shape=chunk_shape,
            numbers=number,
            offset=offset,
            nbytes=nbytes,
            filter_mask=mask.astype(np.uint32),
        )
    else:
        index = cut_extent(shape, int(offset[0]), template.stored_element_nbytes)
    return replace(_with_index(template, index), **changes) if len(index.numbers) == index.chunks else None


def stacked_bytes(
    members: ObjectMembers, which: Ints, column: BytesColumn, *, file: int, row_start: int, targets: Sequence[Target]
) -> DatasetPart:
    """Return a part whose rows are objects of a file that are byte strings."""
    superblock, address, nbytes = members.raw_file.superblock, column.table["where"], column.table["nbytes"]
    doubtful = (address >= 0) & ((nbytes < 0) | (nbytes > superblock.file_nbytes - address) | (nbytes >= 1 << 32))
    address, nbytes = np.where(doubtful, DOUBTFUL, address), np.where(doubtful, 1, nbytes)
    names = Names.of(member_path(members.names[k], column.path) for k in which.tolist())
    row_nbytes = float(nbytes.mean())
    references = HeapValues(
        superblock=superblock,
        base=np.dtype(np.uint8),
        is_text=False,
        address=address,
        index=None,
        length=nbytes.astype(np.uint32),
        row_nbytes=row_nbytes,
    )
    return DatasetPart(
        file=file,
        path=names[0],
        rows=len(names),
        row_start=row_start,
        via=Heap(references),
        chunk_rows=max(1, min(len(names), BLOCK_NBYTES // max(1, int(row_nbytes)))),
        pieces=(ColumnPiece(number=0, row_elements=1, segments=np.array([[0, 0, 1]])),),
        targets=tuple(targets),
        stored_element_nbytes=1,
        dtype_text="bytes",
        shape=(len(names),),
        objects=ObjectsAsRows(names),
    )
