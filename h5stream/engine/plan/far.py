"""Reads of sources without a descriptor that a kernel could read from, such as objects in a store."""

from __future__ import annotations

import contextvars
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from queue import LifoQueue, SimpleQueue

import numpy as np
from numpy.typing import NDArray

from h5stream.base import limits
from h5stream.base.cancel import cancelled_on_exit, raise_if_stopped
from h5stream.compiled import _native as kernels
from h5stream.engine.counters import Tally, clock
from h5stream.engine.plan.failing import chunk_by_chunk
from h5stream.engine.plan.keeping import Keeping
from h5stream.engine.plan.tasks import TASK_NBYTES, Destination, Ints, Placement, Task, Tools, cut_by
from h5stream.engine.plan.unfiltered import UnfilteredRows
from h5stream.engine.slots import address_of
from h5stream.storage.decode.filters import DecodeScratch
from h5stream.storage.layout.index import MISSING
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.source.identity import ByteSource
from h5stream.storage.source.remote import READERS


class FarRows(UnfilteredRows):
    """Plans reads of rows that need no decoding where no kernel reads them, or where their chunks stay in memory."""

    def __init__(self, part: DatasetPart, source: ByteSource, keep: Keeping | None) -> None:
        super().__init__(part, source.gap_nbytes, source.has_descriptor)
        self._keep = keep

    def __call__(
        self, placement: Placement, task_nbytes: int, missing: NDArray[np.bool_] | None = None, /
    ) -> Iterator[Task]:
        """Cut rows of the part, ascending, into tasks of about as many bytes."""
        placement = self.cut(placement)
        if self._keep is not None and missing is not None:
            _, edges, chunks = placement.in_chunks(self.part)
            yield from self._keep.tasks(self._read_stretches, placement, edges, chunks, missing)
            return
        steps = self.rows_at_once(placement, task_nbytes)
        # What is far is asked for once: all places of a row are one task's.
        edges = placement.row_edges()
        begins = edges[np.searchsorted(edges, np.arange(0, len(placement), steps))]
        for low, high in itertools.pairwise(np.unique(np.append(begins, len(placement))).tolist()):
            span = placement[low:high]
            yield Task(shared=span, bring=self._read_stretches, apart=functools.partial(chunk_by_chunk, part=self.part))

    def _read_stretches(self, placement: Placement, destination: Destination, tools: Tools) -> None:
        """Read the wanted bytes of neighboring rows of a chunk together, and put them in their places."""
        part, index, table = self.part, self.part.chunk_index, self.table
        rows = placement.rows.astype(np.int64) - part.row_start
        chunk, inside = np.divmod(rows, part.chunk_rows)
        for extent in table.extents:
            across, begin, width = extent[:3].tolist()
            apart = (np.diff(chunk) != 0) | (np.diff(rows) > (table.gap_nbytes + width) // table.stride)
            edges = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(rows)]])
            low, high = edges[:-1], edges[1:]
            entry = index.find(chunk[low] * index.columns + across)
            written = entry != MISSING
            offsets = index.offset[entry[written]] + inside[low[written]] * table.stride + begin
            raise_if_stopped()
            room, places = tools.read(
                part.file, offsets, ((rows[high - 1] - rows[low]) * table.stride + width)[written]
            )
            tools.tally.used(room.nbytes, len(offsets))
            began = clock()
            if (high - low == 1).all():  # as objects are: all of them at once
                single, missing = placement[written], placement[~written]
                groups = [
                    (replace(spans, rows=np.arange(len(spans), dtype=spans.rows.dtype)), where, width)
                    for spans, where in ((single, address_of(room) - begin), (missing, 0))
                    if len(spans)
                ]
            else:
                at = np.zeros(len(low), dtype=np.int64)
                at[written] = address_of(room) + places - begin - (rows[low[written]] + part.row_start) * table.stride
                cuts = zip(low.tolist(), high.tolist(), at.tolist(), strict=True)
                groups = [(placement[first:last], where, table.stride) for first, last, where in cuts]
            for spans, where, stride in groups:
                begins, to = np.array([where], dtype=np.int64), destination.of_each(self.fields, spans)
                kernels.place_rows(begins, stride, extent[None], table.runs, table.fill_places, table.fill_nbytes, *to)
            tools.tally.scattered(began)


def read_chunks(file: int, offset: Ints, nbytes: Ints, most_gap: int, tools: Tools) -> Iterator[tuple[int, int, Ints]]:
    """Read chunks, those that were never written first; yield ranges of their numbers with the address of each.

    No address outlasts the next read.
    """
    edges = group_edges(offset, nbytes, most_gap)
    begins, ends, start = edges[:-1], edges[1:] - 1, int(edges[0])
    if start:  # never written
        yield 0, start, np.zeros(start, dtype=np.int64)
    offsets = offset[begins]
    lengths = offset[ends] + nbytes[ends] - offsets
    group = np.repeat(np.arange(len(ends)), ends + 1 - begins)
    inside = offset[start:] - offsets[group]
    for groups in cut_by(lengths, TASK_NBYTES) if len(ends) else ():
        raise_if_stopped()
        data, places = tools.read(file, offsets[groups], lengths[groups])
        low, high = int(edges[groups.start]), int(edges[groups.stop])
        here = slice(low - start, high - start)
        yield low, high, address_of(data) + inside[here] + places[group[here] - groups.start]


def group_edges(offset: Ints, nbytes: Ints, most_gap: int) -> Ints:
    """Group neighboring chunks so that one read brings them; chunks that were never written are left out.

    No group has many more bytes than scratch is counted for, however many chunks lie side by side.
    """
    first = int(np.searchsorted(offset, MISSING, side="right"))
    if first == len(offset):
        return np.array([first])
    gap = _gaps(offset, nbytes)[first:]
    apart = (gap < 0) | (gap > most_gap)
    span = nbytes[first:] + np.append(0, np.where(apart, 0, gap))
    apart[[cut.start - 1 for cut in cut_by(span, TASK_NBYTES)][1:]] = True
    return np.concatenate([[first], np.flatnonzero(apart) + first + 1, [len(offset)]])


def _gaps(offset: Ints, nbytes: Ints) -> Ints:
    """Return the bytes between each chunk and the next, -1 after one that has none in the file."""
    return np.where(offset[:-1] == MISSING, -1, offset[1:] - (offset[:-1] + nbytes[:-1]))


# --- threads that wait for a store ------------------------------------------------------------------------------


def decoding_scratch() -> LifoQueue[DecodeScratch]:
    """Return scratch to be shared by decoding threads, most of which wait for a store.

    The last one that came back goes first: few threads fill few of them.
    """
    lent: LifoQueue[DecodeScratch] = LifoQueue()
    for _ in range(limits.cpus()):
        lent.put(DecodeScratch())
    return lent


def land_together(
    tasks: Sequence[Task], destination: Destination, new_tools: Callable[[], Tools], tally: Tally | None
) -> None:
    """Carry tasks out in threads, which all end with the first error; each has tools of its own."""
    waiting, ended, failed = iter(tasks), SimpleQueue[Tally | None](), list[BaseException]()

    def land() -> None:
        tools = new_tools()
        try:
            for task in waiting:
                raise_if_stopped()
                task.land(destination, tools)
            ended.put(tools.tally)
        except BaseException as error:
            failed.append(error)
            ended.put(None)

    # Not of `concurrent.futures`, whose threads Python's exit waits for before it stops those that read.
    threads = list[threading.Thread]()
    try:
        with cancelled_on_exit():
            for _ in tasks[:READERS]:
                carry = contextvars.copy_context().run
                threads.append(threading.Thread(target=carry, args=(land,), name="h5stream-far", daemon=True))
                threads[-1].start()
            for _ in threads:
                if (one := ended.get()) is None:
                    raise failed[0]
                if tally is not None:
                    tally.add(one)
    finally:
        for thread in threads:
            if thread.is_alive():  # not all are, after Ctrl-C
                thread.join()
        failed.clear()  # each knows the frames it came through, and those know all of them
