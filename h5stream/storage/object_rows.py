"""Many things that are alike as rows of datasets: each is a row, or has rows of its own, or is bytes.

Where each is one row, its dataset has an axis more, and the chunks are those of all. Where each has rows of its own,
those that are stored alike lie one behind the other: each begins at a chunk's edge, and behind those that do not fill
their last chunk there are gaps, in which no sample has rows.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.storage.global_heap import DOUBTFUL, HeapValues
from h5stream.storage.headers import Chunks
from h5stream.storage.identity import ByteSource
from h5stream.storage.index import ChunkIndex, cut_extent
from h5stream.storage.layout import BLOCK_NBYTES, DECODED, DIRECT, HEAP, DatasetPart, Target
from h5stream.storage.names import Ints, Names
from h5stream.storage.rowbox import ColumnPiece, column_pieces
from h5stream.storage.templates import NOWHERE
from h5stream.storage.units import EachBytes, Lying, Members, ObjectsOfFile, UnlikeError, inside_of, placed


def row_of_each(members: Members, which: Ints, lying: Lying, part: DatasetPart) -> DatasetPart:
    """Return the part that has a row for each of some, by that of the first."""
    assert lying.like is not None
    index = part.chunk_index
    owner, number, _, nbytes, mask = lying.chunks
    offset = placed(members, lying.chunks, which, lying.path)
    across = index.chunks if lying.like.is_chunked else 1
    if (number >= across).any():
        raise ValueError(lying.path)
    number = owner * index.chunks + number
    if not lying.like.is_chunked:  # what lies together is cut as the first is
        cuts, side = np.arange(index.chunks), index.chunk_shape[0]
        row_nbytes = part.stored_element_nbytes * int(np.prod(index.shape[1:], dtype=object))
        sizes = np.minimum(side, index.shape[0] - cuts * side) * row_nbytes
        number, offset = ((a[:, None] + b).reshape(-1) for a, b in ((number, cuts), (offset, cuts * side * row_nbytes)))
        nbytes, mask = np.tile(sizes, len(owner)), np.zeros_like(number)
    elif part.access == DIRECT and (nbytes != part.chunk_nbytes).any():
        raise UnlikeError(lying.path)
    found = ChunkIndex(
        shape=(len(which), *index.shape),
        chunk_shape=(1, *index.chunk_shape),
        grid=(len(which), *index.grid),
        numbers=number,
        offset=offset,
        nbytes=nbytes,
        filter_mask=mask.astype(np.uint32),
    )
    wanted = tuple(list(along.offsets) for along in part.along)
    columns = None if wanted == tuple(list(range(count)) for count in part.shape) else wanted
    return replace(
        part,
        rows=len(which),
        chunk_rows=1,
        index=found,
        columns=columns,
        pieces=column_pieces(part.shape, index.chunk_shape, columns),
        shape=found.shape,
        along=(),
    )


def rows_of_each(
    members: Members, which: Ints, lying: Lying, describe: Callable[[int], DatasetPart], begin: int
) -> tuple[list[DatasetPart], Ints]:
    """Return the datasets, from a row on, of things that differ in their first axis alone, and the first row of each.

    `describe` opens one of them, with every check.
    """
    first, parts = np.zeros(len(which), np.int64), list[DatasetPart]()
    owner, *columns = lying.chunks
    stored, shapes = np.bincount(owner, minlength=len(which)), lying.shapes
    ends = np.cumsum(stored)
    for kind in np.unique(lying.kind[lying.kind >= 0]).tolist():
        alike = np.flatnonzero(lying.kind == kind)
        template = describe(int(which[alike[0]]))
        cuts = [*_cuts(template, shapes, alike, lying)] if template.access in (DIRECT, DECODED) else []
        lacking = (k for cut, some in cuts for k in some[stored[some] < cut.chunks_of(lying.rows[some])])
        if (one := next(lacking, None)) is not None:
            # The value that stands for what was never written is known of such a one alone.
            template = describe(int(which[one]))
        if template.access not in (DIRECT, DECODED):  # each by itself, as libhdf5 reads them
            if members.file is not None:
                raise UnlikeError(lying.path)
            for k in alike.tolist():
                first[k] = begin
                parts.append(replace(describe(int(which[k])), row_start=begin))
                begin += int(lying.rows[k])
            continue
        for cut, some in cuts:
            count = stored[some]
            at = np.arange(count.sum()) + np.repeat(ends[some] - np.cumsum(count), count)
            chunks: Chunks = (np.repeat(np.arange(len(some)), count), *(each[at] for each in columns))
            chunks = (*chunks[:2], placed(members, chunks, which[some], lying.path), *chunks[3:])
            names = Names.of(inside_of(members.names[k], lying.path) for k in which[some].tolist())
            part, first[some] = _together(template, lying.rows[some], chunks, names, cut)
            first[some] += begin
            parts.append(replace(part, row_start=begin, file=part.file if members.file is None else members.file))
            begin += part.rows
    return parts, first


class _Cut(NamedTuple):
    """How some are cut into chunks, or into one each."""

    shape: tuple[int, ...]
    across: tuple[int, ...]  # chunks along each axis but the first
    is_chunked: bool

    def chunks_of(self, rows: Ints) -> Ints:
        """Return how many chunks things of so many rows have."""
        count: Ints = -(-rows // self.shape[0]) * math.prod(self.across)
        return count


def _cuts(
    template: DatasetPart, shapes: list[tuple[int, ...]], alike: Ints, lying: Lying
) -> Iterator[tuple[_Cut, Ints]]:
    """Yield those of one kind whose chunks have one shape."""
    numbers, index = lying.table["shape"][alike], template.chunk_index
    order = np.argsort(numbers, kind="stable")
    found, low = np.unique(numbers[order], return_index=True)
    for number, some in zip(found.tolist(), np.split(alike[order], low[1:]), strict=True):
        shape = shapes[number]
        if any(shape):
            across = tuple(-(-n // side) for n, side in zip(template.shape[1:], shape[1:], strict=True))
            yield _Cut(shape, across, is_chunked=True), some
        else:
            whole = max(1, int(lying.rows[some].max())), *index.chunk_shape[1:]
            yield _Cut(whole, index.grid[1:], is_chunked=False), some


def _together(template: DatasetPart, rows: Ints, chunks: Chunks, names: Names, cut: _Cut) -> tuple[DatasetPart, Ints]:
    """Put those of one kind one behind the other, as they lie in the file; gives where each begins, too."""
    owner, number, offset, nbytes, mask = chunks
    side, columns = cut.shape[0], math.prod(cut.across)
    begins = np.full(len(rows), np.iinfo(np.int64).max)
    np.minimum.at(begins, owner, offset)
    by_offset = np.argsort(begins, kind="stable")
    rank = np.empty_like(by_offset)
    rank[by_offset] = np.arange(len(by_offset))
    edges = np.append(0, np.cumsum(-(-rows[by_offset] // side)))
    if (number >= cut.chunks_of(rows)[owner]).any():
        raise ValueError(template.path)
    if not cut.is_chunked:
        nbytes = rows[owner] * (template.stored_element_nbytes * int(np.prod(template.shape[1:], dtype=object)))
    number = edges[rank[owner]] * columns + number
    order = np.argsort(number, kind="stable")
    found = ChunkIndex(
        shape=(int(edges[-1]) * side, *template.shape[1:]),
        chunk_shape=cut.shape,
        grid=(int(edges[-1]), *cut.across),
        numbers=number[order],
        offset=offset[order],
        nbytes=nbytes[order],
        filter_mask=mask[order].astype(np.uint32),
        has_gaps=True,
    )
    part = replace(
        template,
        rows=found.shape[0],
        chunk_rows=side,
        index=found,
        pieces=_pieces(template, found.chunk_shape),
        shape=found.shape,
        objects=names.taken(by_offset) if len(names) else names,
        object_edges=edges * side,
        object_rows=rows[by_offset],
    )
    return part, edges[:-1][rank] * side


def _pieces(template: DatasetPart, chunk_shape: tuple[int, ...]) -> tuple[ColumnPiece, ...]:
    """Return the chunks across a row that hold something asked for, in chunks of another shape than the template's."""
    if chunk_shape[1:] == template.grid_shape[1:]:
        return template.pieces
    return column_pieces(template.shape[1:], chunk_shape[1:], template.columns)


def part_alike(template: DatasetPart, lying: Lying, k: int, chunks: slice, **said: Any) -> DatasetPart | None:
    """Return one of many as a part of its own, by that of another of its kind; None where something was not written."""
    number, offset, nbytes, mask = (each[chunks] for each in lying.chunks[1:])
    side, shape = lying.shapes[lying.table["shape"][k]], (int(lying.rows[k]), *template.shape[1:])
    if not len(number):
        return None
    if not any(side):
        index = cut_extent(shape, int(offset[0]), template.stored_element_nbytes)
    else:
        grid = tuple(-(-n // each) for n, each in zip(shape, side, strict=True))
        index = ChunkIndex(
            shape=shape,
            chunk_shape=side,
            grid=grid,
            numbers=number,
            offset=offset,
            nbytes=nbytes,
            filter_mask=mask.astype(np.uint32),
        )
        if len(number) < math.prod(grid):
            return None
    return replace(
        template,
        chunk_rows=index.chunk_shape[0],
        index=index,
        pieces=_pieces(template, index.chunk_shape),
        shape=shape,
        **said,
    )


class ObjectValues(HeapValues):
    """Where things lie that are bytes; what is filtered, and so has no bytes of its own there, is `DOUBTFUL`.

    They are values of variable length whose bytes lie in the open instead of in a heap, so they land as such values do.
    """

    __slots__ = ()

    @property
    def room_nbytes(self) -> int:
        """Bytes to read into: none, since each object is read to where it goes."""
        return 1

    def read(
        self, source: ByteSource, chosen: Ints, targets: Ints, wanted: Ints, room: Any
    ) -> tuple[NDArray[np.bool_], tuple[int, int]]:
        """Read some objects to memory; see `HeapValues.read`."""
        address = self.address[chosen]
        order = np.argsort(address, kind="stable")
        some = order[(address[order] >= 0) & (wanted[order] > 0)]
        known = zip(wanted[some].tolist(), targets[some].tolist(), strict=True)
        memory: list[Any] = [(ctypes.c_uint8 * nbytes).from_address(at) for nbytes, at in known]
        source.read_many(address[some].tolist(), [memoryview(one).cast("B") for one in memory])
        return (address < 0) & (address != NOWHERE), (int(wanted[some].sum()), len(some))


def bytes_of_each(
    members: ObjectsOfFile, which: Ints, found: EachBytes, *, file: int, row_start: int, targets: Sequence[Target]
) -> DatasetPart:
    """Return objects of a file that are bytes as rows."""
    superblock, where, nbytes = members.within.superblock, found.table["where"], found.table["bytes"]
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
        heap=ObjectValues(
            superblock=superblock,
            base=np.dtype(np.uint8),
            is_text=False,
            address=where,
            index=np.zeros(len(names), dtype=np.uint32),
            length=nbytes.astype(np.uint32),
            row_nbytes=row_nbytes,
        ),
    )
