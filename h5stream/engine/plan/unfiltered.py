"""Rows that need no decoding: only the wanted bytes of the wanted rows are read.

A filter makes the chunk the least that can be read. Without one any stretch of bytes can be: two channels of twenty,
eight rows of a chunk of 24 MiB. What is skipped must be worth a read of its own, so gaps that a source would rather
read along are read; everything larger is not.

Of a local file nothing is planned for each chunk or row: a task is a stretch of a window's rows, and one kernel
(`kernels.plan_rows`) finds their bytes, reads them and puts them in their places, all without the GIL. Other sources
have no descriptor that a kernel could read from; for them each read is planned, and another kernel places what came.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.base.cancel import raise_if_stopped
from h5stream.compiled import _native as kernels
from h5stream.engine.plan.failing import chunk_by_chunk
from h5stream.engine.plan.tasks import NONE, Destination, Ints, Native, Placement, Task, Tools, descriptor_of
from h5stream.engine.slots import address_of
from h5stream.errors import SourceError
from h5stream.storage.layout.parts import DatasetPart, Target
from h5stream.storage.source.identity import ByteSource
from h5stream.storage.source.one_file import LOCAL_GAP_NBYTES

EXTENT_NBYTES = 512 * 1024
"""Bytes of a row that are read at once, at most, unless one element has more; and scratch of a reader thread.
As much as a core's own cache holds, so that rows are copied from there to their places."""

FILL_NBYTES = 4096
"""The fill value is laid out this often beforehand, so that filling a row is few copies."""

READ_COST_NBYTES = 8 * 1024
"""What another read costs, as bytes that could be read meanwhile: for cutting tasks that take alike."""


_FIELD, _NUMBER = operator.attrgetter("field"), operator.attrgetter("number")

ATTEMPTS = 10
"""Times that a task is carried out where reads fail and then succeed."""


def _runs(part: DatasetPart, number: int, target: Target) -> Ints:
    """Return the runs of bytes that a target takes from a row: piece, and the columns of `kernels.plan_rows`."""
    leaf = target.leaf
    assert leaf is not None
    stored, unit = leaf.stored_nbytes, leaf.unit_nbytes if leaf.swapped else 1
    dense = leaf.run_nbytes == stored
    most = max(1, EXTENT_NBYTES // stored)
    every = []
    for number_of_piece, piece in enumerate(part.pieces):
        first, into, elements = piece.segments.T
        if (elements > most).any():  # cut into runs of at most so many
            counts = -(-elements // most)
            first, into, elements = np.repeat(piece.segments, counts, axis=0).T
            done = (np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)) * most
            first, into, elements = first + done, into + done, np.minimum(most, elements - done)
        width, repeat = (elements * stored, np.ones_like(elements)) if dense else (leaf.run_nbytes, elements)
        # Of several runs each row has one element (`opening`), so that none is to be put between another's.
        for run, offset in enumerate(leaf.offsets):
            begin, to = first * stored + offset, into * leaf.nbytes + run * leaf.run_nbytes
            columns = (number_of_piece, begin, to, width, repeat, stored, unit, number)
            runs = np.empty((len(first), len(columns)), dtype=np.int64)
            for column, values in enumerate(columns):
                runs[:, column] = values
            every.append(runs)
    return np.concatenate(every)


def read_until_sound(
    part: Native,
    source: ByteSource,
    destination: Destination,
    tools: Tools,
    refuse: Callable[[int], None] | None = None,
) -> None:
    """Repeat a read from a file until it succeeds; `refuse` raises the error of a matrix's column."""
    counts = tools.tally.native
    for _ in range(ATTEMPTS):
        descriptor = descriptor_of(source)
        counts[3:5] = 0
        if tools.land(part, NONE, descriptor.number, destination) == part.last:
            return
        raise_if_stopped()
        # Once more in the ordinary way, which says what is wrong; or gets over it, with a fresh descriptor.
        offset, nbytes = counts[3:5].tolist()
        if refuse is not None and nbytes == kernels.A_COLUMN:
            refuse(offset)
        source.read_many((offset,), (tools.scratch.buffer("read", nbytes).data,))
    path = source.identity.path
    raise SourceError(
        f"{path!r}: reads keep failing, the last one of {nbytes} bytes at byte {offset}, and succeed when they are "
        "repeated; check the storage",
        file=path,
    )


def _extents_of(part: DatasetPart, gap_nbytes: int) -> tuple[Ints, Ints]:
    """Return the pieces of a row that are read at once, and the wanted runs in them."""
    runs = np.concatenate([_runs(part, number, target) for number, target in enumerate(part.targets)])
    runs = runs[np.lexsort((runs[:, 1], runs[:, 0]))]
    piece, begins = runs[:, 0], runs[:, 1]
    ends = begins + (runs[:, 4] - 1) * runs[:, 5] + runs[:, 3]
    shift = piece * (int(ends.max(initial=0)) + 1)  # so that the farthest end so far is one of the same piece
    farthest = np.maximum.accumulate(ends + shift) - shift
    apart = (np.diff(piece) != 0) | (begins[1:] - farthest[:-1] > gap_nbytes)
    apart |= np.diff(begins // EXTENT_NBYTES) != 0
    edges = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(runs)]])
    first, last = edges[:-1], edges[1:]
    nbytes = np.maximum.reduceat(ends, first) - begins[first]
    across = np.array([*map(_NUMBER, part.pieces)], dtype=np.int64)[piece[first]]
    extents = np.stack([across, begins[first], nbytes, first, last], axis=1)
    return np.ascontiguousarray(extents), np.ascontiguousarray(runs[:, 1:])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTable:
    """The chunks of a dataset part that needs no decoding, and the bytes that are read of each row."""

    # as `kernels.plan_rows` has them; one chunk stands for all if they follow one another in the file
    numbers: Ints
    offsets: Ints
    across: int
    chunk_rows: int
    row_start: int
    stride: int  # bytes from one row to the next in a chunk
    extents: Ints
    runs: Ints
    fill_places: Ints
    fill_nbytes: Ints
    room: int  # bytes to read into
    gap_nbytes: int
    whole_rows: int  # as many consecutive rows are read to their places without a copy; 0 if rows are not wanted whole
    fills: list[NDArray[np.uint8]]  # the memory that `fill_places` are addresses in

    @classmethod
    def of(cls, part: DatasetPart, gap_nbytes: int = LOCAL_GAP_NBYTES) -> RowTable:
        """Return the table of a part."""
        index, stride = part.chunk_index, part.pieces[0].row_elements * part.stored_element_nbytes
        extents, runs = _extents_of(part, gap_nbytes)
        fills, places = [], np.empty((2, len(part.targets)), dtype=np.int64)
        for k, target in enumerate(part.targets):
            fills.append(np.tile(target.fill, max(1, FILL_NBYTES // max(1, target.fill.nbytes))))
            places[:, k] = address_of(fills[k]), fills[k].nbytes
        written = len(index.numbers) == index.chunks
        is_one = written and index.columns == 1 and bool((np.diff(index.offset) == part.chunk_rows * stride).all())
        is_whole = len(runs) == 1 and runs[0, [0, 1, 2, 3, 5]].tolist() == [0, 0, stride, 1, 1]
        return cls(
            numbers=index.numbers[:0] if written else index.numbers,
            offsets=index.offset[:1] if is_one else index.offset,
            across=index.columns,
            chunk_rows=max(1, part.rows) if is_one else part.chunk_rows,
            row_start=part.row_start,
            stride=stride,
            extents=extents,
            runs=runs,
            fill_places=places[0],
            fill_nbytes=places[1],
            room=max(EXTENT_NBYTES, int(extents[:, 2].max())),
            gap_nbytes=gap_nbytes,
            whole_rows=-(-kernels.UNCOPIED_NBYTES // stride) if is_whole else 0,
            fills=fills,
        )

    @property
    def row_nbytes(self) -> int:
        """Bytes that are read of a row by itself."""
        return int(self.extents[:, 2].sum())

    def plan(self, placement: Placement) -> kernels.Plan:
        """Return the native plan of rows."""
        where = placement.rows, placement.lengths, placement.batch, placement.within
        columns = self.numbers, self.offsets, self.across, self.chunk_rows, self.row_start, self.stride
        fills = self.fill_places, self.fill_nbytes
        return kernels.plan_rows(
            *columns, self.extents, self.runs, *fills, self.room, self.gap_nbytes, self.whole_rows, *where
        )

    def nbytes_of(self, rows: int, stretches: int) -> int:
        """Return the bytes that are read for rows in so many contiguous stretches."""
        nbytes = self.extents[:, 2]
        along = self.stride - nbytes <= self.gap_nbytes
        return int(np.where(along, (rows - stretches) * self.stride + stretches * nbytes, rows * nbytes).sum())


class UnfilteredRows:
    """Plans reads of rows that need no decoding."""

    def __init__(
        self,
        part: DatasetPart,
        gap_nbytes: int = LOCAL_GAP_NBYTES,
        has_descriptor: bool = True,
    ) -> None:
        self.table = table = RowTable.of(part, gap_nbytes)
        self.part = part
        self.fields = tuple(map(_FIELD, part.targets))
        # Bytes that are read of a row by itself, and consecutive rows that fit in the room to read into.
        nbytes = table.extents[:, 2]
        most, room = int(nbytes.max()), kernels.room_of_each(len(nbytes), int(nbytes.max()), table.room)
        self._row_nbytes, self.most_rows = int(nbytes.sum()), (room - most) // table.stride + 1
        # If so few bytes of each row are wanted that rows are read one by one, spans are of no use.
        self.takes_spans = has_descriptor and gap_nbytes + int(table.extents[:, 2].min()) >= table.stride

    def __call__(
        self, placement: Placement, task_nbytes: int, missing: NDArray[np.bool_] | None = None, /
    ) -> Iterator[Task]:
        """Cut rows of the part, ascending, into tasks of about as many bytes."""
        placement = self.cut(placement)
        plan, step = self.table.plan(placement), placement.step_of(self.rows_at_once(placement, task_nbytes))
        for low in range(0, len(placement), step):
            yield self._part(plan, placement, low, min(low + step, len(placement)))

    def rows_at_once(self, placement: Placement, task_nbytes: int) -> int:
        """Return how many rows take about as long as so many bytes; those that are skipped, and reads, cost as well."""
        table = self.table
        reads, skipped = kernels.count_reads(placement.rows, placement.lengths, table.gap_nbytes // table.stride)
        more = skipped * table.stride + reads * len(table.extents) * READ_COST_NBYTES
        cost = self._row_nbytes + more // placement.total_rows
        return max(1, task_nbytes // max(1, cost))

    def task(self, placement: Placement) -> Task:
        """Return one task for some rows of the part, ascending."""
        placement = self.cut(placement)
        return self._part(self.table.plan(placement), placement, 0, len(placement))

    def cut(self, placement: Placement) -> Placement:
        """Cut spans at the edges of chunks, and to the size of the buffer unless they are read to their places."""
        if not self.takes_spans:
            return placement.each_row().ascending()
        cut = placement.cut_every(self.table.chunk_rows, self.part.row_start)
        return cut if self.table.whole_rows else cut.cut_every(self.most_rows, self.part.row_start)

    def _part(self, plan: kernels.Plan, placement: Placement, low: int, high: int) -> Task:
        part = Native(plan, low, high, self.fields, self.part.file)
        return Task(
            shared=placement,
            own=(np.array([low]), np.array([high])),
            bring=functools.partial(self._read, part),
            apart=self._chunk_by_chunk,
            native=part,
            rest=lambda _: self._part(plan, placement, low, high),
        )

    def _chunk_by_chunk(self, task: Task) -> Iterator[Task]:
        """Return one task for each chunk that has some of a task's rows."""
        return (self.task(one.shared) for one in chunk_by_chunk(task, self.part))

    def _read(self, part: Native, _: Placement, destination: Destination, tools: Tools) -> None:
        """Read rows and put them in their places."""
        read_until_sound(part, tools.sources[self.part.file], destination, tools)
