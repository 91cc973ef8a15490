"""Rows that need no decoding, read as they lie: only the bytes that are wanted, and only of the wanted rows.

A filter makes the chunk the least that can be read. Without one any stretch of bytes can be: two channels of twenty,
eight rows of a chunk of 24 MiB. What is skipped must be worth a read of its own, so gaps that a source would rather
read along are read; everything larger is not.

Of a local file nothing is planned for each chunk or row: a task is a stretch of a window's rows, and one kernel
(`kernels.read_rows`) finds their bytes, reads them and puts them in their places, all without the GIL. Other sources
have no descriptor that a kernel could read from; for them each read is planned, and another kernel places what came.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.engine.plan import Ints, Placement
from h5stream.engine.slots import address_of
from h5stream.engine.statistics import clock
from h5stream.engine.tasks import Destination, Task, Tools, chunk_by_chunk
from h5stream.errors import SourceError
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DatasetPart, SampleLayout, Target
from h5stream.storage.source import LOCAL_GAP_NBYTES, ByteSource, FilesBytes

EXTENT_NBYTES = 512 * 1024
"""Bytes of a row that are read at once, at most, unless one element has more; and scratch of a reader thread.
As much as a core's own cache holds, so that rows are copied from there to their places."""

FILL_NBYTES = 4096
"""The fill value is laid out this often beforehand, so that filling a row is few copies."""

READ_COST_NBYTES = 8 * 1024
"""What another read costs, as bytes that could be read meanwhile: for cutting tasks that take alike."""

ATTEMPTS = 10
"""Times that a task is carried out where reads fail and then succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What is read of each row of a part; see `kernels.read_rows`."""

    stride: int  # bytes of a row in a chunk
    gap_nbytes: int  # bytes that are read along rather than skipped
    extents: Ints  # extents, runs: what is read at once, and what is wanted of it
    runs: Ints
    fields: tuple[int, ...]  # the field number of each target
    fills: tuple[NDArray[np.uint8], ...]  # for each target, its fill value, laid out often
    fill_places: Ints  # fill_places, fill_nbytes: their addresses and lengths
    fill_nbytes: Ints
    numbers: Ints  # numbers, offsets: the chunks
    offsets: Ints
    across: int  # chunks that a row crosses
    row_nbytes: int  # bytes that are read of a row, if each is read by itself
    scratch_nbytes: int  # bytes to read into
    most_rows: int  # consecutive rows that fit in there
    # rows from one of those chunks to the next: all of them where chunks lie one behind the other in the file
    chunk_rows: int
    # so many consecutive rows are read to their places without a copy; 0 where not all of each is wanted as it is
    whole_rows: int

    def nbytes_of(self, rows: int, stretches: int) -> int:
        """Return the bytes that are read for so many rows, which lie in so many stretches without gaps."""
        nbytes = self.extents[:, 2]
        along = self.stride - nbytes <= self.gap_nbytes
        return int(np.where(along, (rows - stretches) * self.stride + stretches * nbytes, rows * nbytes).sum())

    def place(self, source: int, stride: int, extents: Ints, rows: Placement, destination: Destination) -> None:
        """Put rows of which some extents were read to memory in their places; see `kernels.place_rows`."""
        begin, to = np.array([source], dtype=np.int64), destination.of_each(self.fields, rows)
        kernels.place_rows(begin, stride, extents, self.runs, self.fill_places, self.fill_nbytes, *to)


def reach_of(part: DatasetPart, gap_nbytes: int = LOCAL_GAP_NBYTES) -> Reach:
    """Work out what is read of each row of a part that nothing has to be decoded of."""
    index = part.chunk_index
    runs = np.concatenate([_runs(part, number, target) for number, target in enumerate(part.targets)])
    by_place = np.lexsort((runs[:, 1], runs[:, 0]))
    runs = runs[by_place]
    piece, begins = runs[:, 0], runs[:, 1]
    ends = begins + (runs[:, 4] - 1) * runs[:, 5] + runs[:, 3]
    shift = piece * (int(ends.max(initial=0)) + 1)  # so that the farthest end so far is one of the same piece
    farthest = np.maximum.accumulate(ends + shift) - shift
    apart = (np.diff(piece) != 0) | (begins[1:] - farthest[:-1] > gap_nbytes)
    apart |= np.diff(begins // EXTENT_NBYTES) != 0
    edges = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(runs)]])
    first, last = edges[:-1], edges[1:]
    across = np.array([each.number for each in part.pieces], dtype=np.int64)[piece[first]]
    nbytes = np.maximum.reduceat(ends, first) - begins[first]
    stride = part.pieces[0].row_elements * part.stored_element_nbytes
    room = max(EXTENT_NBYTES, int(nbytes.max()))
    written = len(index.numbers) == index.chunks
    one_behind_the_other = (
        written and index.columns == 1 and bool((np.diff(index.offset) == part.chunk_rows * stride).all())
    )
    whole = len(runs) == 1 and runs[0, [1, 2, 3, 4, 6]].tolist() == [0, 0, stride, 1, 1]
    fills = tuple(np.tile(target.fill, max(1, FILL_NBYTES // max(1, target.fill.nbytes))) for target in part.targets)
    return Reach(
        stride=stride,
        gap_nbytes=gap_nbytes,
        extents=np.ascontiguousarray(np.stack([across, begins[first], nbytes, first, last], axis=1)),
        runs=np.ascontiguousarray(runs[:, 1:]),
        fields=tuple(target.field for target in part.targets),
        fills=fills,
        fill_places=np.array([address_of(fill) for fill in fills], dtype=np.int64),
        fill_nbytes=np.array([fill.nbytes for fill in fills], dtype=np.int64),
        numbers=index.numbers[:0] if written else index.numbers,
        offsets=index.offset[:1] if one_behind_the_other else index.offset,
        across=index.columns,
        row_nbytes=int(nbytes.sum()),
        scratch_nbytes=room,
        most_rows=(kernels.room_of_each(len(first), int(nbytes.max()), room) - int(nbytes.max())) // stride + 1,
        chunk_rows=max(1, part.rows) if one_behind_the_other else part.chunk_rows,
        whole_rows=-(-kernels.UNCOPIED_NBYTES // stride) if whole else 0,
    )


def _runs(part: DatasetPart, number: int, target: Target) -> Ints:
    """Return what a target wants of a row: piece, and the columns of `kernels.read_rows`' runs."""
    leaf = target.leaf
    assert leaf is not None
    stored, unit = leaf.stored_nbytes, leaf.unit_nbytes if leaf.swapped else 1
    dense = leaf.run_nbytes == stored
    most = max(1, EXTENT_NBYTES // stored)
    found = []
    for piece, each in enumerate(part.pieces):
        for first, into, elements in _cut(each.segments, most):
            width, repeat = (elements * stored, np.ones_like(elements)) if dense else (leaf.run_nbytes, elements)
            # Of several runs each row has one element (`opening`), so that none is to be put between another's.
            for run, offset in enumerate(leaf.offsets):
                begin, to = first * stored + offset, into * leaf.nbytes + run * leaf.run_nbytes
                columns = (piece, begin, to, width, repeat, stored, unit, number)
                runs = np.empty((len(first), len(columns)), dtype=np.int64)
                for column, each_run in enumerate(columns):
                    runs[:, column] = each_run
                found.append(runs)
    return np.concatenate(found)


def _cut(segments: Ints, most: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Cut runs of elements into ones of at most so many; gives columns."""
    if (segments[:, 2] <= most).all():
        first, into, elements = segments.T
        yield first, into, elements
        return
    counts = -(-segments[:, 2] // most)
    first, into, elements = np.repeat(segments, counts, axis=0).T
    done = (np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)) * most
    yield first + done, into + done, np.minimum(most, elements - done)


def read_until_sound(read: Callable[[], bool], source: ByteSource, tools: Tools, counts: Ints) -> None:
    """Let a kernel read until nothing fails."""
    for _ in range(ATTEMPTS):
        if read():
            return
        # Once more in the ordinary way, which says what is wrong; or gets over it, with a fresh descriptor.
        offset, nbytes = counts[3:].tolist()
        source.read_many((offset,), (tools.scratch.buffer("read", nbytes).data,))
        counts[3:] = 0
    path = source.identity.path
    raise SourceError(
        f"{path!r}: reads keep failing, the last one of {nbytes} bytes at byte {offset}, and succeed when they are "
        "repeated; check the storage",
        file=path,
    )


class UnfilteredRows:
    """Plans the rows of a dataset part that nothing has to be decoded of."""

    def __init__(self, part: DatasetPart, source: ByteSource) -> None:
        self.part, self.reach = part, reach_of(part, source.gap_nbytes)
        self._has_descriptor = source.has_descriptor
        # Where so few bytes of each row are wanted that rows are read one by one, there is nothing to keep together.
        reads_along = self.reach.gap_nbytes + int(self.reach.extents[:, 2].min()) >= self.reach.stride
        self._takes_spans = source.has_descriptor and reads_along
        self._offsets: Any = memoryview(self.reach.offsets)  # type: ignore[arg-type]  # quicker to look into
        # Of a row that is one run of chunks that are all there: the chunk across it, its first byte, its bytes.
        extents, runs = self.reach.extents, self.reach.runs
        is_plain = len(runs) == 1 and runs[0, 3] == runs[0, 5] == 1 and not len(self.reach.numbers)
        self._run = tuple(extents[0, :3].tolist()) if is_plain and len(self.reach.offsets) else None

    def __call__(self, placement: Placement, task_nbytes: int) -> Iterator[Task]:
        """Cut rows of the part, ascending, into tasks of about as many bytes."""
        reach, placement = self.reach, self._cut(placement)
        reads, skipped = kernels.count_reads(placement.rows, placement.lengths, reach.gap_nbytes // reach.stride)
        more = skipped * reach.stride + reads * len(reach.extents) * READ_COST_NBYTES
        cost = reach.row_nbytes + more // placement.total_rows
        steps = max(1, task_nbytes // max(1, cost))
        if self._has_descriptor:
            yield from map(self._task, placement.in_steps(steps))
            return
        # What is far is asked for once: all places of a row are one task's.
        edges = placement.row_edges()
        begins = edges[np.searchsorted(edges, np.arange(0, len(placement), steps))]
        for low, high in itertools.pairwise(np.unique(np.append(begins, len(placement))).tolist()):
            yield self._task(placement[low:high])

    def task(self, placement: Placement) -> Task:
        """Return one task for some rows of the part, ascending."""
        return self._task(self._cut(placement))

    def _cut(self, placement: Placement) -> Placement:
        """Cut spans so that each lies in one chunk, and fits where it is read to unless that is its place."""
        if not self._takes_spans:
            return placement.each_row().ascending()
        reach, first = self.reach, self.part.row_start
        cut = placement.cut_every(reach.chunk_rows, first)
        return cut if reach.whole_rows else cut.cut_every(reach.most_rows, first)

    def _task(self, placement: Placement) -> Task:
        bring = self._read if self._has_descriptor else self._read_stretches
        return Task(shared=placement, bring=bring, apart=functools.partial(chunk_by_chunk, part=self.part))

    def _read(self, placement: Placement, destination: Destination, tools: Tools) -> None:
        """Read rows and put them in their places."""
        began, counts = clock(), np.zeros(5, dtype=np.int64)
        source, to = tools.sources[self.part.file], destination.of_each(self.reach.fields, placement)
        read_until_sound(lambda: self._let_read(source, tools.scratch, counts, to), source, tools, counts)
        tools.tally.read_in_part(began, *counts[:3].tolist())

    def _let_read(self, source: ByteSource, scratch: DecodeScratch, counts: Ints, to: tuple[Any, ...]) -> bool:
        """Let a kernel read rows to where they go; tell whether all of it was read."""
        reach, room, descriptor = self.reach, self.reach.scratch_nbytes, source.descriptor()
        assert descriptor is not None  # else the rows were planned otherwise
        return bool(
            kernels.read_rows(
                descriptor.number,
                reach.numbers,
                reach.offsets,
                reach.across,
                reach.chunk_rows,
                self.part.row_start,
                reach.stride,
                reach.extents,
                reach.runs,
                reach.fill_places,
                reach.fill_nbytes,
                address_of(scratch.buffer("read", room)),
                room,
                reach.gap_nbytes,
                reach.whole_rows,
                counts,
                *to,
            )
        )

    def read(self, first: int, values: Sequence[Any], source: ByteSource, own: Any) -> bool:
        """Read consecutive rows to an array for each field of the layout; tell whether all of it was read."""
        reach, value, done = self.reach, values[self.reach.fields[0]], 0
        count, held = len(value), source.descriptor()
        assert held is not None  # else the rows were planned otherwise
        chunk, inside = divmod(first - self.part.row_start, reach.chunk_rows)
        if self._run is None or (count > 1 and not reach.whole_rows):
            return self._read_spans(first, count, values, source, own.scratch)
        across, begin, nbytes = self._run
        while done < count:
            some = min(count - done, reach.chunk_rows - inside)
            at = self._offsets[chunk * reach.across + across] + inside * reach.stride + begin
            if os.preadv(held.number, [value[done : done + some]], at) != some * nbytes:
                return False
            chunk, inside, done = chunk + 1, 0, done + some
        return True

    def _read_spans(
        self, first: int, count: int, values: Sequence[Any], source: ByteSource, scratch: DecodeScratch
    ) -> bool:
        rows, lengths, zero = np.array([first]), np.array([count]), np.zeros(1, dtype=np.int64)
        to: tuple[Any, ...] = (rows, lengths, zero, zero)
        is_one = (first - self.part.row_start) % self.reach.chunk_rows + count <= self.reach.chunk_rows
        if not (is_one and self._takes_spans and (self.reach.whole_rows or count <= self.reach.most_rows)):
            cut = self._cut(Placement(rows=rows, counts=lengths, batch=zero, within=zero))
            cut = replace(cut, within=cut.rows - first)
            to = cut.rows, cut.lengths, cut.batch, cut.within
        offsets = np.array([address_of(values[field]) for field in self.reach.fields])
        row_nbytes = np.array([values[field].nbytes // count for field in self.reach.fields])
        return self._let_read(source, scratch, np.zeros(5, dtype=np.int64), (*to, zero, offsets, row_nbytes))

    def _read_stretches(self, placement: Placement, destination: Destination, tools: Tools) -> None:
        """Read of neighbours in a chunk together what is wanted at once, and put all of that in its places."""
        part, reach, index, source = self.part, self.reach, self.part.chunk_index, tools.sources[self.part.file]
        rows = placement.rows.astype(np.int64) - part.row_start
        chunk, inside = np.divmod(rows, part.chunk_rows)
        for extent in reach.extents:
            across, begin, width = extent[:3].tolist()
            apart = (np.diff(chunk) != 0) | (np.diff(rows) > (reach.gap_nbytes + width) // reach.stride)
            edges = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(rows)]])
            low, high = edges[:-1], edges[1:]
            entry = index.find(chunk[low] * index.columns + across)
            there = entry != MISSING
            nbytes = np.where(there, (rows[high - 1] - rows[low]) * reach.stride + width, 0)
            places, room = np.cumsum(nbytes) - nbytes, tools.scratch.buffer("read", int(nbytes.sum()))
            offsets, began = index.offset[entry[there]] + inside[low[there]] * reach.stride + begin, clock()
            if tools.stopped():
                return
            if isinstance(source, FilesBytes) and len(offsets):
                source.read_each(offsets, nbytes[there], address_of(room) + places[there])
            elif len(offsets):
                ends = zip(places[there].tolist(), (places + nbytes)[there].tolist(), strict=True)
                source.read_many(offsets.tolist(), [room[first:last].data for first, last in ends])
            tools.tally.read(began, room.nbytes, len(offsets))
            tools.tally.used(room.nbytes, len(offsets))
            began = clock()
            if (high - low == 1).all():  # as objects are: all of them at once
                single, missing = placement[there], placement[~there]
                groups = [(single, address_of(room) - begin, width), (missing, 0, width)]
                groups = [(replace(p, rows=np.arange(len(p), dtype=p.rows.dtype)), *to) for p, *to in groups if len(p)]
            else:
                at = np.where(there, address_of(room) + places - begin - (rows[low] + part.row_start) * reach.stride, 0)
                cuts = zip(low.tolist(), high.tolist(), at.tolist(), strict=True)
                groups = [(placement[first:last], where, reach.stride) for first, last, where in cuts]
            for some, where, stride in groups:
                reach.place(where, stride, extent[None], some, destination)
            tools.tally.scattered(began)


# --- single rows: a plan, a slot and a batch around one cost ten times what reading it does ---


class OwnScratch(threading.local):
    """Buffers of each thread."""

    def __init__(self) -> None:
        self.scratch = DecodeScratch()


class SingleRows:
    """Reads single rows, and consecutive ones, of data that need no decoding.

    # Guarantees: immutable; any thread may read.
    """

    def __init__(
        self,
        layout: SampleLayout,
        sources: Sequence[ByteSource],
        rows_of: Callable[[int, int], UnfilteredRows] | None,
        own: OwnScratch,
    ) -> None:
        self._layout, self._sources, self._own = layout, sources, own
        self._forms = [(field.row_shape, field.dtype) for field in layout.fields]
        are_simple = (field.kind == "array" and field.cast is field.normalise is None for field in layout.fields)
        self._ways: list[list[UnfilteredRows]] = []  # by part, of each dataset
        if rows_of is not None and all(are_simple) and all(part.pieces for parts in layout.datasets for part in parts):
            places, datasets = range(len(layout.datasets[0])), range(len(layout.datasets))
            self._ways = [[rows_of(dataset, place) for dataset in datasets] for place in places]
            self._files = [[layout.files[n] for n in {way.part.file for way in ways}] for ways in self._ways]

    def read(self, first: int, count: int = 0) -> list[torch.Tensor] | None:
        """Read a row, or `count` of them, a tensor for each field; None where it is not that simple, or fails."""
        place = bisect.bisect_right(self._layout.file_starts, first) - 1
        if not self._ways or (count and first + count > self._layout.file_starts[place + 1]):
            return None
        values = [np.empty((count or 1, *shape), dtype) for shape, dtype in self._forms]
        for way in self._ways[place]:
            try:
                if not way.read(first, values, self._sources[way.part.file], self._own):
                    return None  # the ordinary way says why, or gets over it
            except OSError:
                return None
        for identity in self._files[place]:
            identity.check_unchanged()
        return [torch.from_numpy(value if count else value.reshape(value.shape[1:])) for value in values]
