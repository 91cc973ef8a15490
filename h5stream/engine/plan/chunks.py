"""Chunks that are read, decoded and copied to the batches in one call, or read by h5py."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.base.cancel import raise_if_stopped
from h5stream.compiled import _native as kernels
from h5stream.engine.counters import clock
from h5stream.engine.plan.decoding import decoded, kind_of, renumbered
from h5stream.engine.plan.far import read_chunks
from h5stream.engine.plan.keeping import Keeping
from h5stream.engine.plan.tasks import (
    NONE,
    Destination,
    Ints,
    Native,
    Placement,
    Task,
    Tools,
)
from h5stream.engine.slots import address_of
from h5stream.storage.layout.access import DIRECT
from h5stream.storage.layout.index import MISSING, ColumnPiece
from h5stream.storage.layout.parts import DatasetPart

FUSED_NBYTES = (2, 4, 8)
"""Bytes of the elements whose shuffle is undone while their rows are copied."""

MOST_MASKS = 16
"""Filter masks whose chunks are undone in C; a file has a few, for chunks that did not shrink."""

FILL_NBYTES = 4096
"""The fill value is laid out this often beforehand, so that filling a row is few copies."""


class ChunkFields:
    """The filters of a dataset part's chunks, and the bytes that each field takes from them.

    With `pieces` these in place of those of the part.
    """

    def __init__(self, part: DatasetPart, pieces: Sequence[ColumnPiece] | None = None) -> None:
        pieces = part.pieces if pieces is None else pieces
        # For each filter mask that is undone in C what does so; their addresses are used as long as this lives.
        self._pipelines: dict[int, kernels.Pipeline] = {}
        index, moved = part.chunk_index, part.targets[0].moved
        self.has_masks = bool(index.filter_mask.any())  # whether any chunk was left out by some filter
        masks = np.unique(index.filter_mask)[:MOST_MASKS].tolist() if self.has_masks else [0]
        for mask in masks if part.access != DIRECT else ():
            if (pipeline := part.pipeline.native(mask, part.chunk_nbytes)) is not None:
                self._pipelines[mask] = pipeline
        self.masks, self.fields = tuple(self._pipelines), tuple[int, ...]()
        programs, places, fills, fill_ends = [], [], [], [0]
        for target in part.targets:
            if (leaf := target.leaf) is None:
                continue
            self.fields += (target.field,)
            # Whether unshuffling a field and scattering it can be one.
            may_fuse = leaf.nbytes == leaf.unit_nbytes in FUSED_NBYTES and moved is None
            fill = target.fill if moved is None else renumbered(target.fill, leaf.dtype, moved)
            fills.append(np.tile(fill, max(1, FILL_NBYTES // max(1, fill.nbytes))))
            fill_ends.append(fill_ends[-1] + fills[-1].nbytes)
            programs.append((leaf.nbytes, leaf.is_whole, may_fuse, 0 if moved is None else kind_of(leaf.dtype)))
            places.append(np.arange(leaf.nbytes) if leaf.is_whole else leaf.places)
        segments, ends, row_elements = [], [0], []
        for piece in pieces:
            segments.append(np.ascontiguousarray(piece.segments))
            ends.append(ends[-1] + len(piece.segments))
            row_elements.append(piece.row_elements)
        self.made = kernels.chunk_fields(
            np.array([*map(_ADDRESS, self._pipelines.values())], dtype=np.int64),
            part.chunk_nbytes,
            part.chunk_rows,
            part.stored_element_nbytes,
            np.array(programs, dtype=np.int64).reshape(-1, 4),
            np.concatenate(places),
            np.concatenate(segments),
            np.array(ends, dtype=np.int64),
            np.array(row_elements, dtype=np.int64),
            np.concatenate(fills),
            np.array(fill_ends, dtype=np.int64),
            NONE if moved is None else moved,
        )


_ADDRESS, _NUMBER = operator.attrgetter("address"), operator.attrgetter("number")

_NO_AXES = np.zeros((0, 0), dtype=np.int64)


class BoxesInChunks(NamedTuple):
    """The range of each chunk that boxes take, along each axis."""

    # begin, chunk_shape, shape: (chunks, axes): the first element of each chunk in its dataset, its elements along each
    # axis, and those of the dataset
    begin: Ints
    chunk_shape: Ints
    shape: Ints
    skipped: Ints  # (chunks,): bytes at the beginning of each that are not read, since no box needs them
    origins: Ints  # (boxes, axes)
    offsets: Ints  # offsets, sizes, follow, mode: as `kernels.place_boxes` has them
    sizes: Ints
    follow: Ints
    mode: int


NO_KEEPING = (NONE, NONE, NONE, 0, np.zeros(0, dtype=np.bool_))
"""Of chunks that stay nowhere."""

NO_BOXES = BoxesInChunks(_NO_AXES, _NO_AXES, _NO_AXES, NONE, _NO_AXES, _NO_AXES, NONE, NONE, 0)


class ChunkTable(NamedTuple):
    """Some chunks of one dataset part: those that were never written come first, then those of the file in order."""

    number: Ints  # (n,): of each chunk its number,
    piece: Ints  # the piece of the row that it holds,
    entry: Ints  # its entry in the index (`MISSING` for the fill value),
    offset: Ints  # what to read for it,
    nbytes: Ints
    low: Ints  # and its rows, as a range of those that are placed
    high: Ints

    def some(self, chosen: slice | Ints) -> ChunkTable:
        """Return some of the chunks."""
        return ChunkTable(*(column[chosen] for column in self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlan:
    """A task's plan: the chunks of a dataset part, and the places of their rows or boxes.

    # Guarantees: immutable; any thread may land any range of the chunks, and more than once.
    """

    part: DatasetPart
    fields: ChunkFields
    table: ChunkTable
    shared: Placement  # where the rows go, each with its number inside its chunk
    most_gap: int
    pipelines: NDArray[np.int8]  # which of the fields' undoes the filters of each chunk; -1 if none does
    made: kernels.Plan
    keep: Keeping | None = None  # where all rows of the chunks stay

    @classmethod
    def of(
        cls,
        part: DatasetPart,
        fields: ChunkFields,
        table: ChunkTable,
        shared: Placement,
        most_gap: int,
        boxes: BoxesInChunks = NO_BOXES,
        keep: Keeping | None = None,
    ) -> ChunkPlan:
        """Plan chunks of one part, or of several parts of one file if they need no decoding."""
        pipelines = pipelines_of(part, fields, table)
        made = kernels.plan_chunks(
            fields.made,
            table.offset,
            table.nbytes,
            table.piece,
            table.low,
            table.high,
            pipelines,
            most_gap,
            shared.rows,
            shared.lengths,
            shared.batch,
            shared.within,
            *boxes,
            *(NO_KEEPING if keep is None else _kept(fields, table, keep)),
        )
        return cls(
            part=part,
            fields=fields,
            table=table,
            shared=shared,
            most_gap=most_gap,
            pipelines=pipelines,
            made=made,
            keep=keep,
        )

    def task(self, first: int, last: int) -> Task:
        """Return the task that brings some of the chunks."""
        table, native = self.table, None
        if (self.pipelines[first:last] >= 0).any():
            native = Native(self.made, first, last, self.fields.fields, self.part.file)
        return Task(
            shared=self.shared,
            own=(table.low[first:last], table.high[first:last]),
            bring=functools.partial(self._land, first, last),
            apart=lambda _: (self.task(k, k + 1) for k in range(first, last)),
            native=native,
            rest=lambda k: self.task(k, last),
            kept=None if self.keep is None else functools.partial(self._note, self.keep, first, last),
        )

    def _note(self, keep: Keeping, first: int, last: int, until: int | None) -> None:
        """Say that some chunks are there, where they stay."""
        last = last if until is None else until
        chunks, pieces = self.table.number[first:last] // self.part.chunk_index.columns, self.table.piece[first:last]
        keep.note(chunks, pieces)

    def _land(self, first: int, last: int, _: Placement, destination: Destination, tools: Tools) -> None:
        """Land some chunks: one call, which is begun anew behind each chunk that it cannot bring."""
        descriptor = tools.sources[self.part.file].descriptor()
        if descriptor is None:
            offset, nbytes = self.table.offset[first:last], self.table.nbytes[first:last]
            for start, stop, at in read_chunks(self.part.file, offset, nbytes, self.most_gap, tools):
                self._land_range(first + start, first + stop, -1, at, destination, tools)
            return
        self._land_range(first, last, descriptor.number, NONE, destination, tools)

    def _land_range(
        self, first: int, last: int, descriptor: int, at: Ints, destination: Destination, tools: Tools
    ) -> None:
        """Land chunks of a file, or chunks at addresses in memory."""
        k = first
        while k < last:
            part = Native(self.made, k, last, self.fields.fields, self.part.file)
            k = tools.land(part, at[k - first :], descriptor, destination)
            if k < last:
                raise_if_stopped()
                self._land_one(k, descriptor >= 0, destination, tools)
                k += 1

    def _land_one(self, k: int, may_be_readable: bool, destination: Destination, tools: Tools) -> None:
        """Land a chunk that a kernel did not bring, or raise the error of the chunk or the file."""
        table, number = self.table, slice(k, k + 1)
        stored, _ = tools.read(self.part.file, table.offset[number], table.nbytes[number])
        if may_be_readable and self.pipelines[k] >= 0:  # it may be the read alone that failed
            part = Native(self.made, k, k + 1, self.fields.fields, self.part.file)
            if tools.land(part, np.array([address_of(stored)]), -1, destination) > k:
                return
            raise_if_stopped()
        since = clock()
        data, shuffled = decoded(self.part, int(table.number[k]), int(table.entry[k]), stored, tools)
        since = tools.tally.decoded(since, data.nbytes)
        where = destination.of_fields(self.fields.fields)
        kernels.land_decoded(self.made, k, data, shuffled, *where, tools.decoding.native.address)
        tools.tally.scattered(since)


def _kept(fields: ChunkFields, table: ChunkTable, keep: Keeping) -> tuple[Ints, Ints, Ints, int, NDArray[np.bool_]]:
    """Return where all rows of chunks stay, as `kernels.plan_chunks` has it."""
    slots, offsets, _ = keep.destination.of_fields(fields.fields)
    chunks = table.number // keep.part.chunk_index.columns
    return slots + offsets, chunks, keep.rows_of(chunks)[1], keep.part.row_start, keep.filled


def pipelines_of(part: DatasetPart, fields: ChunkFields, table: ChunkTable) -> NDArray[np.int8]:
    """Return which of the fields' pipelines undoes each chunk's filters; -1 if none does."""
    pipelines = np.zeros(len(table.entry), dtype=np.int8)
    if part.access == DIRECT:
        return pipelines
    is_raw = table.nbytes == part.chunk_nbytes
    if fields.masks == (0,) and not fields.has_masks and part.pipeline.filters and not is_raw.any():
        pipelines[table.entry == MISSING] = -1
        return pipelines
    pipelines[table.entry == MISSING] = -1
    entries = np.maximum(table.entry, 0)
    masks = part.chunk_index.filter_mask[entries] if len(part.chunk_index.numbers) else pipelines
    if fields.masks != (0,) or masks.any():
        pipelines[:] = -1
        for number, mask in enumerate(fields.masks):
            pipelines[(masks == mask) & (table.entry != MISSING)] = number
    if not part.pipeline.filters:
        pipelines[~is_raw] = -1
    elif is_raw.any():  # an edge chunk that was left unfiltered, perhaps
        pipelines[is_raw & part.may_be_unfiltered(entries)] = -1
    return pipelines


def plan_chunks(
    part: DatasetPart,
    fields: ChunkFields,
    most_gap: int,
    keep: Keeping | None,
    placement: Placement,
    task_nbytes: int,
    missing: NDArray[np.bool_] | None = None,
) -> Iterator[Task]:
    """Cut rows of a part, ascending, into tasks of about as many decoded bytes, in the order of the file's."""
    shared, edges, numbers = placement.in_chunks(part)
    low, high = edges[:-1], edges[1:]
    if missing is not None:
        low, high, numbers = low[missing], high[missing], numbers[missing]
    index, across = part.chunk_index, np.array([*map(_NUMBER, part.pieces)], dtype=np.int64)
    most = len(numbers) * len(across)
    columns, cuts = np.empty((7, most), dtype=np.int64), np.empty(most + 1, dtype=np.int64)
    # A gap that is read along costs as well: without it a task of tiny chunks could span gigabytes of the file.
    count = kernels.lay_chunks(
        index.numbers,
        index.offset,
        index.nbytes,
        index.chunks,
        numbers,
        low,
        high,
        across,
        index.columns,
        part.chunk_nbytes,
        most_gap,
        task_nbytes,
        columns,
        cuts,
    )
    plan = ChunkPlan.of(part, fields, ChunkTable(*columns), shared, most_gap, keep=keep)
    for first, last in itertools.pairwise(cuts[: count + 1].tolist()):
        yield plan.task(first, last)
