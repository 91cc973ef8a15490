"""Rows that need no decoding, read as they lie: only the bytes that are wanted, and only of the wanted rows.

A filter makes the chunk the least that can be read. Without one any run of bytes can be: two channels of twenty,
eight rows of a chunk of 24 MiB. What is skipped must be worth a read of its own, so gaps of up to
`MAX_GAP_NBYTES` are read along; everything larger is not read.

Nothing is planned for each chunk or row here: a task is a stretch of a window's rows, and one kernel
(`kernels.read_rows`) finds their bytes, reads them and puts them in their places, all without the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.counters import Tally, clock
from h5stream.engine.emit import Sink
from h5stream.engine.plan import MAX_GAP_NBYTES
from h5stream.engine.slots import address_of
from h5stream.errors import SourceError
from h5stream.order.epoch import Window
from h5stream.order.places import Places
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.layout import DIRECT, DatasetPart, SampleLayout, Target
from h5stream.storage.source import FileBytes

EXTENT_NBYTES = 512 * 1024
"""Bytes of a row that are read at once, at most, unless one element has more; and scratch of a reader thread.
As much as a core's own cache holds, so that rows are copied from there to their places."""

FILL_NBYTES = 4096
"""The fill value is laid out this often beforehand, so that filling a row is few copies."""

READ_COST_NBYTES = 8 * 1024
"""What another read costs, as bytes that could be read meanwhile: for cutting tasks that take alike."""

ATTEMPTS = 10
"""Times that a task is carried out where reads fail and then succeed."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTask:
    """Some rows of one dataset part, ascending, read by one thread.

    Attributes
    ----------
    part : DatasetPart
        The dataset.
    rows, batch, within : ndarray of int32, or of int64 where that is too small
        Row numbers of the whole sample sequence, and where each goes, batches counted from the window's first.
    """

    part: DatasetPart
    rows: Places
    batch: Places
    within: Places

    @property
    def first_batch(self) -> int:
        """The earliest batch, counted from the window's first, that needs this task."""
        return int(self.batch.min())

    def split(self) -> Iterator[RowsTask]:
        """Give one task for each chunk."""
        chunk = (self.rows - self.part.row_start) // self.part.chunk_rows
        edges = np.flatnonzero(np.diff(chunk)) + 1
        cuts = [np.split(each, edges) for each in (self.rows, self.batch, self.within)]
        for rows, batch, within in zip(*cuts, strict=True):
            yield RowsTask(part=self.part, rows=rows, batch=batch, within=within)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What is read of each row of a part; see `kernels.read_rows`.

    Attributes
    ----------
    stride : int
        Bytes of a row in a chunk.
    extents, runs : ndarray of int64
        What is read at once, and what is wanted of it.
    fields : tuple of int
        The field number of each target.
    fills : tuple of ndarray of uint8
        For each target, its fill value, laid out often.
    fill_places, fill_nbytes : ndarray of int64
        Their addresses and lengths.
    numbers, offsets : ndarray of int64
        The chunks.
    across : int
        Chunks that a row crosses.
    row_nbytes : int
        Bytes that are read of a row, if each is read by itself.
    scratch_nbytes : int
        Bytes to read into.
    """

    stride: int
    extents: Ints
    runs: Ints
    fields: tuple[int, ...]
    fills: tuple[NDArray[np.uint8], ...]
    fill_places: Ints
    fill_nbytes: Ints
    numbers: Ints
    offsets: Ints
    across: int
    row_nbytes: int
    scratch_nbytes: int

    def nbytes_of(self, rows: int, stretches: int) -> int:
        """Give the bytes that are read for so many rows, which lie in so many stretches without gaps."""
        spans = self.extents[:, 2]
        along = self.stride - spans <= MAX_GAP_NBYTES
        return int(np.where(along, (rows - stretches) * self.stride + stretches * spans, rows * spans).sum())


def reach_of(part: DatasetPart) -> Reach:
    """Work out what is read of each row of a part that nothing has to be decoded of."""
    index = part.index
    assert index is not None
    runs = np.concatenate([_runs(part, number, target) for number, target in enumerate(part.targets)])
    by_place = np.lexsort((runs[:, 1], runs[:, 0]))
    runs = runs[by_place]
    piece, begins = runs[:, 0], runs[:, 1]
    ends = begins + (runs[:, 4] - 1) * runs[:, 5] + runs[:, 3]
    shift = piece * (int(ends.max(initial=0)) + 1)  # so that the farthest end so far is one of the same piece
    farthest = np.maximum.accumulate(ends + shift) - shift
    apart = (np.diff(piece) != 0) | (begins[1:] - farthest[:-1] > MAX_GAP_NBYTES)
    apart |= np.diff(begins // EXTENT_NBYTES) != 0
    edges = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(runs)]])
    first, last = edges[:-1], edges[1:]
    across = np.array([each.number for each in part.pieces], dtype=np.int64)[piece[first]]
    spans = np.maximum.reduceat(ends, first) - begins[first]
    whole = len(index.numbers) == index.chunks
    fills = tuple(np.tile(target.fill, max(1, FILL_NBYTES // max(1, target.fill.nbytes))) for target in part.targets)
    return Reach(
        stride=part.pieces[0].row_elements * part.stored_element_nbytes,
        extents=np.ascontiguousarray(np.stack([across, begins[first], spans, first, last], axis=1)),
        runs=np.ascontiguousarray(runs[:, 1:]),
        fields=tuple(target.field for target in part.targets),
        fills=fills,
        fill_places=np.array([address_of(fill) for fill in fills], dtype=np.int64),
        fill_nbytes=np.array([fill.nbytes for fill in fills], dtype=np.int64),
        numbers=index.numbers[:0] if whole else index.numbers,
        offsets=index.offset,
        across=index.columns,
        row_nbytes=int(spans.sum()),
        scratch_nbytes=max(EXTENT_NBYTES, int(spans.max())),
    )


def _runs(part: DatasetPart, number: int, target: Target) -> Ints:
    """Give what a target wants of a row: piece, and the columns of `kernels.read_rows`' runs."""
    leaf = target.leaf
    assert leaf is not None
    stored, unit = leaf.stored_nbytes, leaf.unit_nbytes if leaf.swapped else 1
    dense = leaf.nbytes == stored
    most = max(1, EXTENT_NBYTES // stored)
    found = []
    for piece, each in enumerate(part.pieces):
        for first, into, elements in _cut(each.segments, most):
            width, repeat = (elements * stored, np.ones_like(elements)) if dense else (leaf.nbytes, elements)
            columns = (piece, first * stored + leaf.offset, into * leaf.nbytes, width, repeat, stored, unit, number)
            found.append(np.stack(np.broadcast_arrays(*columns), axis=1))
    return np.concatenate(found).astype(np.int64)


def _cut(segments: Ints, most: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Cut runs of elements into ones of at most so many; gives columns."""
    counts = -(-segments[:, 2] // most)
    first, into, elements = np.repeat(segments, counts, axis=0).T
    done = (np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)) * most
    yield first + done, into + done, np.minimum(most, elements - done)


class UnfilteredDatasets:
    """The datasets of a layout that nothing has to be decoded of.

    # Guarantees: any thread may plan and carry. What is worked out for a part may be worked out twice, with the
    same content; scratch belongs to the calling thread.

    Parameters
    ----------
    layout : SampleLayout
        The fields and their files.
    sources : tuple of FileBytes
        The files' bytes.
    """

    def __init__(self, layout: SampleLayout, sources: tuple[FileBytes, ...]) -> None:
        self._layout, self._sources = layout, sources
        self._reaches: dict[int, Reach] = {}
        self.has_all = all(part.access == DIRECT for parts in layout.datasets for part in parts)

    def reach(self, part: DatasetPart) -> Reach:
        """Give what is read of each row of a part."""
        reach = self._reaches.get(id(part))
        if reach is None:
            reach = self._reaches[id(part)] = reach_of(part)
        return reach

    def plan(self, part: DatasetPart, window: Window, task_nbytes: int) -> Iterator[RowsTask]:
        """Cut rows of a part, ascending, into tasks; their batches count from the window's first."""
        reach, rows = self.reach(part), window.rows
        between = max(0, int(rows[-1] - rows[0]) * reach.stride // len(rows) - reach.row_nbytes)
        along = between <= MAX_GAP_NBYTES
        cost = reach.row_nbytes + (between if along else len(reach.extents) * READ_COST_NBYTES)
        together = max(1, task_nbytes // max(1, cost))
        for low in range(0, len(rows), together):
            cut = slice(low, low + together)
            yield RowsTask(part=part, rows=rows[cut], batch=window.batch[cut], within=window.within[cut])

    def carry(self, task: RowsTask, sink: Sink, scratch: DecodeScratch, tally: Tally) -> None:
        """Read the rows and put them in their places.

        Raises
        ------
        TruncatedFileError, SourceChangedError, SourceError
            Named by file and byte.
        """
        began, counts = clock(), np.zeros(5, dtype=np.int64)
        source = self._sources[task.part.file]
        for _ in range(ATTEMPTS):
            if self._read(task, sink, source, scratch, counts):
                tally.read_in_part(began, *counts[:3].tolist())
                return
            # Once more in the ordinary way, which says what is wrong; or gets over it, with a fresh descriptor.
            offset, nbytes = counts[3:].tolist()
            source.read_into(offset, scratch.buffer("read", nbytes).data)
        raise SourceError(
            f"{source.identity.path!r}: reads fail again and again, the last time of {nbytes} bytes at byte {offset}, "
            "and succeed when they are done once more; see whether the storage is sound",
            file=source.identity.path,
        )

    def _read(self, task: RowsTask, sink: Sink, source: FileBytes, scratch: DecodeScratch, counts: Ints) -> bool:
        part, reach = task.part, self.reach(task.part)
        room = reach.scratch_nbytes
        descriptor = source.descriptor()
        return bool(
            kernels.read_rows(
                descriptor.number,
                reach.numbers,
                reach.offsets,
                reach.across,
                part.chunk_rows,
                part.row_start,
                reach.stride,
                reach.extents,
                reach.runs,
                reach.fill_places,
                reach.fill_nbytes,
                task.rows,
                task.batch,
                task.within,
                sink.slots,
                np.array([sink.format.offsets[field] for field in reach.fields], dtype=np.int64),
                np.array([sink.row_nbytes[field] for field in reach.fields], dtype=np.int64),
                address_of(scratch.buffer("read", room)),
                room,
                MAX_GAP_NBYTES,
                counts,
            )
        )
