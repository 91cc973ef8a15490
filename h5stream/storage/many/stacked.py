"""Many things that are alike as rows of datasets: each is a row, or has rows of its own, or is bytes.

Where each is one row, its dataset has an axis more, and the chunks are those of all. Where each has rows of its own,
those that are stored alike lie one behind the other: each begins at a chunk's edge, and behind those that do not fill
their last chunk there are gaps, in which no sample has rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from h5stream.base.names import Ints, Names
from h5stream.samples.packing import MEANINGS
from h5stream.storage.decode.columns import ColumnPiece, column_pieces
from h5stream.storage.file.h5py_reader import fill_element
from h5stream.storage.layout.heap import DOUBTFUL, HeapValues
from h5stream.storage.layout.index import ChunkIndex, cut_extent
from h5stream.storage.layout.layout import BLOCK_NBYTES, DECODED, DIRECT, HEAP, DatasetPart, Meaning, Target
from h5stream.storage.many.members import (
    EachBytes,
    FilesEach,
    Lying,
    Members,
    ObjectsOfFile,
    UnlikeError,
    inside_of,
    placed,
)


def row_of_each(members: Members, which: Ints, lying: Lying, part: DatasetPart) -> DatasetPart:
    """Return the part that has a row for each of some, by that of the first."""
    assert lying.like is not None
    index = part.chunk_index
    owner, number, _, nbytes, mask = lying.chunks
    offset = placed(members, lying.chunks, which, lying.path)
    if (number >= (index.chunks if any(lying.like.side) else 1)).any():
        raise ValueError(lying.path)
    if not any(lying.like.side):  # what lies together is cut as the first is
        whole = cut_extent(index.shape, 0, part.stored_element_nbytes)
        offset = (offset[:, None] + whole.offset).reshape(-1)
        number, nbytes = (np.tile(each, len(owner)) for each in (whole.numbers, whole.nbytes))
        owner, mask = (np.repeat(each, whole.chunks) for each in (owner, mask))
    elif part.access == DIRECT and (nbytes != part.chunk_nbytes).any():
        raise UnlikeError(lying.path)
    found = ChunkIndex(
        shape=(len(which), *index.shape),
        chunk_shape=(1, *index.chunk_shape),
        numbers=owner * index.chunks + number,
        offset=offset,
        nbytes=nbytes.copy(),
        filter_mask=mask.astype(np.uint32),
    )
    wanted = tuple(list(along.offsets) for along in part.along)
    columns = None if wanted == tuple(list(range(count)) for count in part.shape) else wanted
    # Members apart are put together as of several axes, which rows of objects have.
    is_scattered = any(target.leaf is not None and len(target.leaf.offsets) > 1 for target in part.targets)
    return replace(
        part,
        access=DECODED if is_scattered else part.access,
        rows=len(which),
        chunk_rows=1,
        index=found,
        columns=columns,
        pieces=column_pieces(part.shape, index.chunk_shape, columns),
        shape=found.shape,
        along=(),
    )


def with_meanings(part: DatasetPart, members: Members, which: Ints, lying: Lying, some: Ints) -> DatasetPart:
    """Return a part that has some in their order, with what attributes say of their numbers.

    That is what they say of those of the first, and where they say otherwise: for each attribute the first such.
    """
    which, meanings = which[some], lying.meanings
    said = np.where(lying.kind[some] >= 0, lying.table["said"][some], -1)
    numbers, begins = np.unique(said, return_index=True)
    order = [k for k in np.argsort(begins).tolist() if numbers[k] >= 0]
    if not order:
        return part
    first, others = meanings[numbers[order[0]]], dict[str, tuple[str, Meaning]]()
    for k in order[1:]:
        place, meaning = int(which[begins[k]]), meanings[numbers[k]]
        where = members.paths[place] if isinstance(members, FilesEach) else inside_of(members.names[place], lying.path)
        for name in MEANINGS:
            if dict(meaning).get(name) != dict(first).get(name):
                others.setdefault(name, (where, meaning))
    told = tuple(dict.fromkeys(others.values()))
    return replace(part, targets=tuple(replace(one, meaning=first, others=told) for one in part.targets))


def filled(members: Members, k: int, numbers: Ints, path: str, part: DatasetPart) -> tuple[Target, ...]:
    """Return what one fills that lacks chunks but for those of some numbers, with the value that stands for these.

    A damaged index lists chunks that it does not lead to: its thing is described as whole, and is not to libhdf5.
    """
    index = part.chunk_index
    if len(index.numbers) < index.chunks:
        return part.targets
    some = numbers[numbers < index.chunks]
    stored = replace(
        index,
        numbers=some,
        offset=index.offset[some],
        nbytes=index.nbytes[some],
        filter_mask=index.filter_mask[some],
    )
    with members.opened(k) as (file, name):
        element = fill_element(file[inside_of(name, path)], stored)
    return tuple(
        target if target.leaf is None or element is None else replace(target, fill=element[target.leaf.places])
        for target in part.targets
    )


def rows_of_each(
    members: Members, which: Ints, lying: Lying, describe: Callable[[int], DatasetPart], begin: int
) -> tuple[list[DatasetPart], Ints]:
    """Return the datasets, from a row on, of things that differ in their first axis alone, and the first row of each.

    `describe` opens one of them, with every check.
    """
    first, parts = np.zeros(len(which), np.int64), list[DatasetPart]()
    stored = np.bincount(lying.chunks[0], minlength=len(which))
    for kind in np.unique(lying.kind[lying.kind >= 0]).tolist():
        alike = np.flatnonzero(lying.kind == kind)
        template = describe(int(which[alike[0]]))
        cuts = [*_cuts(template, lying, alike)] if template.access in (DIRECT, DECODED) else []
        lacking = (k for side, some in cuts for k in some[stored[some] < _counted(template, side, lying.rows[some])])
        if (one := next(lacking, None)) is not None:
            # The value that stands for what was never written is known of such a one alone.
            template = describe(int(which[one]))
            if template.access in (DIRECT, DECODED):
                numbers = lying.chunks_of(np.array([one]))[1]
                template = replace(template, targets=filled(members, int(which[one]), numbers, lying.path, template))
        if template.access not in (DIRECT, DECODED):  # each by itself, as libhdf5 reads them
            if members.file is not None:
                raise UnlikeError(lying.path)
            for k in alike.tolist():
                first[k] = begin
                parts.append(replace(describe(int(which[k])), row_start=begin))
                begin += int(lying.rows[k])
            continue
        for side, some in cuts:
            part, first[some] = _together(members, which, lying, template, side, some)
            first[some] += begin
            parts.append(replace(part, row_start=begin, file=part.file if members.file is None else members.file))
            begin += part.rows
    return parts, first


def _cuts(template: DatasetPart, lying: Lying, alike: Ints) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Yield the shape of a chunk, and those of one kind that are cut so; what is not chunked is one chunk each."""
    numbers, shapes = lying.table["shape"][alike], lying.shapes
    order = np.argsort(numbers, kind="stable")
    found, low = np.unique(numbers[order], return_index=True)
    for number, some in zip(found.tolist(), np.split(alike[order], low[1:]), strict=True):
        whole = max(1, int(lying.rows[some].max())), *template.chunk_index.chunk_shape[1:]
        yield shapes[number] if any(shapes[number]) else whole, some


def _counted(template: DatasetPart, side: tuple[int, ...], rows: Ints) -> Ints:
    """Return how many chunks things of so many rows have."""
    across = (-(-n // length) if length else 1 for n, length in zip(template.shape[1:], side[1:], strict=True))
    count: Ints = -(-rows // side[0]) * math.prod(across)
    return count


def _together(
    members: Members, which: Ints, lying: Lying, template: DatasetPart, side: tuple[int, ...], some: Ints
) -> tuple[DatasetPart, Ints]:
    """Put those of one kind one behind the other, as they lie in the file; gives where each begins, too."""
    chunks, rows = lying.chunks_of(some), lying.rows[some]
    owner, number, _, nbytes, mask = chunks
    offset = placed(members, chunks, which[some], lying.path)
    if (number >= _counted(template, side, rows)[owner]).any():
        raise ValueError(template.path)
    if not any(lying.shapes[lying.table["shape"][some[0]]]):
        nbytes = rows[owner] * (template.stored_element_nbytes * math.prod(template.shape[1:]))
    begins = np.full(len(rows), np.iinfo(np.int64).max)
    np.minimum.at(begins, owner, offset)
    by_offset = np.argsort(begins, kind="stable")
    rank = np.argsort(by_offset)
    edges = np.append(0, np.cumsum(-(-rows[by_offset] // side[0])))
    shape = (int(edges[-1]) * side[0], *template.shape[1:])
    number = edges[rank[owner]] * int(_counted(template, side, np.array(1))) + number
    order = np.argsort(number, kind="stable")
    found = ChunkIndex(
        shape=shape,
        chunk_shape=side,
        numbers=number[order],
        offset=offset[order],
        nbytes=nbytes[order],
        filter_mask=mask[order].astype(np.uint32),
        has_gaps=True,
    )
    names = Names.of(inside_of(members.names[k], lying.path) for k in which[some].tolist())
    part = replace(
        _with_index(template, found),
        rows=shape[0],
        objects=names.taken(by_offset) if len(names) else names,
        object_edges=edges * side[0],
        object_rows=rows[by_offset],
    )
    return with_meanings(part, members, which, lying, some[by_offset]), edges[:-1][rank] * side[0]


def _with_index(template: DatasetPart, index: ChunkIndex) -> DatasetPart:
    """Return a part that is stored as another is, in chunks of another number, and perhaps of another shape."""
    pieces = template.pieces
    if index.chunk_shape[1:] != template.grid_shape[1:]:
        pieces = column_pieces(template.shape[1:], index.chunk_shape[1:], template.columns)
    return replace(template, chunk_rows=index.chunk_shape[0], index=index, pieces=pieces, shape=index.shape)


def part_alike(template: DatasetPart, lying: Lying, k: int, chunks: slice, **said: Any) -> DatasetPart | None:
    """Return one of many as a part of its own, by that of another of its kind; None where something was not written."""
    number, offset, nbytes, mask = lying.chunks[1:, chunks].copy()
    side, shape = lying.shapes[lying.table["shape"][k]], (int(lying.rows[k]), *template.shape[1:])
    if not len(number):
        return None
    if any(side):
        index = ChunkIndex(
            shape=shape,
            chunk_shape=side,
            numbers=number,
            offset=offset,
            nbytes=nbytes,
            filter_mask=mask.astype(np.uint32),
        )
    else:
        index = cut_extent(shape, int(offset[0]), template.stored_element_nbytes)
    return replace(_with_index(template, index), **said) if len(index.numbers) == index.chunks else None


def bytes_of_each(
    members: ObjectsOfFile, which: Ints, found: EachBytes, *, file: int, row_start: int, targets: Sequence[Target]
) -> DatasetPart:
    """Return objects of a file that are bytes as rows."""
    superblock, where, nbytes = members.within.superblock, found.table["where"], found.table["nbytes"]
    doubtful = (where >= 0) & ((nbytes < 0) | (nbytes > superblock.file_nbytes - where) | (nbytes >= 1 << 32))
    where, nbytes = np.where(doubtful, DOUBTFUL, where), np.where(doubtful, 1, nbytes)
    names = Names.of(inside_of(members.names[k], found.path) for k in which.tolist())
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
        objects=names,
        heap=HeapValues(
            superblock=superblock,
            base=np.dtype(np.uint8),
            is_text=False,
            address=where,
            index=None,
            length=nbytes.astype(np.uint32),
            row_nbytes=row_nbytes,
        ),
    )
