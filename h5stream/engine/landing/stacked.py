"""Small chunks are decoded one behind the other, and one kernel call scatters the whole stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.counters import clock
from h5stream.engine.landing.chunks import ChunkTask
from h5stream.engine.landing.programs import Program, dense_leaf
from h5stream.engine.plan import cut_by
from h5stream.engine.slots import address_of
from h5stream.engine.tasks import Destination, Tools
from h5stream.storage.codecs import DecodeError, most_nbytes
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DatasetPart

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

SMALL_CHUNK_NBYTES = 128 * 1024
"""Decoded chunks up to this many bytes are stacked: gzip chunks of 64 KiB take 0.91 of the processor time so, of 72
KiB 0.93, of 130 KiB as much as one by one, and of 256 KiB 1.04, since a stack of them leaves the core's cache."""

STACK_READ_NBYTES = 512 * 1024
"""Bytes that are read before they are decoded, at most about: as much as a core's own cache holds."""

ScatterStack = Callable[[Program, int, int, Ints, Destination], None]
"""Scatters some chunks to a field: given are the address of the first, the bytes to each next one, and their places in
the task."""


def is_small(part: DatasetPart) -> bool:
    """Tell whether a part's chunks are small enough to be stacked."""
    return part.chunk_nbytes <= SMALL_CHUNK_NBYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedTask(ChunkTask):
    """Small chunks of one dataset part."""

    def land(self, stored: Iterator[Bytes], destination: Destination, tools: Tools) -> None:
        """Decode the chunks into a stack, and scatter that."""
        land_stacked(self, self._scatter_stack, stored, destination, tools)

    def _scatter_stack(
        self, program: Program, source: int, stride: int, chosen: Ints, destination: Destination
    ) -> None:
        kernels.scatter_stack(
            source,
            stride,
            program.strides,
            program.all_segments,
            program.segment_edges,
            self.piece[chosen],
            self.low[chosen],
            self.high[chosen],
            *destination.of_spans(program.field, self.shared),
        )


def land_stacked(
    task: ChunkTask, scatter_stack: ScatterStack, stored: Iterator[Bytes], destination: Destination, tools: Tools
) -> None:
    """Decode the chunks of a task into a stack, and scatter that."""
    stack, tally, raw_nbytes = Stack(task, scatter_stack, destination, tools), tools.tally, task.part.chunk_nbytes
    task.fill_missing(destination, tools)
    began, before_ns, chunks = clock(), tally.read_ns, 0
    for start, stop, data, at in _read(task, stored, tools):
        chunks += stop - start
        stack.take(start, stop, data, at)
    # What was not reading was decoding: the clock is not read for every small chunk.
    since = tally.stacked(began, chunks, chunks * raw_nbytes, tally.read_ns - before_ns)
    stack.scatter()
    tally.scattered(since)


def _read(task: ChunkTask, stored: Iterator[Bytes], tools: Tools) -> Iterator[tuple[int, int, Bytes, Ints]]:
    """Return what was read of a task: the first of some chunks, the last (exclusive), and where each begins in it.

    Of a local file nothing was read yet, and many ranges are read by one call.
    """
    source, ranges = tools.sources[task.part.file], task.ranges()
    offsets, nbytes = np.array(ranges.offsets, dtype=np.int64), np.array(ranges.nbytes, dtype=np.int64)
    group = np.repeat(np.arange(len(offsets)), np.diff(task.edges))
    inside, first = task.offset[int(task.edges[0]) :] - offsets[group], int(task.edges[0])
    if source.concurrency or not source.has_descriptor:
        for start, stop, data in task.groups(stored):
            yield start, stop, data, inside[start - first : stop - first]
        return
    for some in cut_by(nbytes, STACK_READ_NBYTES) if len(offsets) else ():
        if tools.stopped():
            return
        began, places = clock(), np.cumsum(nbytes[some]) - nbytes[some]
        data = tools.scratch.buffer("read", int(nbytes[some].sum()))
        held, count = source.descriptor(), len(places)
        assert held is not None
        if count == 1 or kernels.read_each(held.number, offsets[some], nbytes[some], address_of(data)) < count:
            # In the ordinary way, which also says what is wrong, or gets over it.
            ends = zip(places.tolist(), (places + nbytes[some]).tolist(), strict=True)
            source.read_many(offsets[some].tolist(), [data[low:high].data for low, high in ends])
        tools.tally.read(began, data.nbytes, count)
        start, stop = int(task.edges[some.start]), int(task.edges[some.stop])
        ours = slice(start - first, stop - first)
        yield start, stop, data, inside[ours] + places[group[ours] - some.start]


class Stack:
    """Decoded chunks of one task, one behind the other, until they are scattered with one call a field."""

    def __init__(self, task: ChunkTask, scatter_stack: ScatterStack, destination: Destination, tools: Tools) -> None:
        self._task, self._scatter_stack, self._destination, self._tools = task, scatter_stack, destination, tools
        self._chunk_nbytes = task.part.chunk_nbytes
        self._region = tools.scratch.buffer("stack", len(task.number) * self._chunk_nbytes)
        self._held: list[int] = []
        self._shuffled = 0
        self._inflatable, self._address = _inflatable(task), address_of(self._region)
        self._all_easy = self._inflatable is not None and bool(self._inflatable[0].all())
        self._nbytes = task.nbytes.tolist()
        index = task.part.chunk_index
        # The mask of a missing chunk is never looked at; a dataset of which nothing was written has none at all.
        self._masks = index.filter_mask[task.entry].tolist() if len(index.numbers) else []

    def take(self, start: int, stop: int, data: Bytes, at: Ints) -> None:
        """Decode the chunks `start` to `stop`, each of which begins somewhere in what was read."""
        for k in self._not_inflated(start, stop, data, at):
            begin = int(at[k - start])
            stored = data[begin : begin + self._nbytes[k]]
            if len(stored) == self._chunk_nbytes:  # perhaps an edge chunk that was left unfiltered
                self._add(k, *self._task.decode(k, stored, self._tools))
                continue
            try:
                _, shuffled = self._task.part.pipeline.decode(
                    stored,
                    filter_mask=self._masks[k],
                    raw_nbytes=self._chunk_nbytes,
                    scratch=self._tools.scratch,
                    out=self._top(),
                )
            except DecodeError as error:
                self._add(k, self._task.ask_h5py(k, error, self._tools), 0)
            else:
                self._hold(k, shuffled)

    def _not_inflated(self, start: int, stop: int, data: Bytes, at: Ints) -> Sequence[int]:
        """Inflate those of the chunks `start` to `stop` that need nothing else, with one call; give the others.

        Also given are all chunks if one of them does not inflate: what is wrong with it is found out one by one.
        """
        all_of_them = range(start, stop)
        decompressor = self._tools.scratch.decompressor if self._inflatable is not None else None
        if self._inflatable is None or decompressor is None:
            return all_of_them
        easy, shuffled = self._inflatable
        chosen: Any = slice(None) if self._all_easy else np.flatnonzero(easy[start:stop])
        at = at[chosen]
        if self._held and shuffled != self._shuffled:
            self.scatter()
        right = kernels.inflate_each(
            decompressor.function,
            decompressor.address,
            address_of(data),
            at,
            self._task.nbytes[start:stop][chosen],
            self._address + len(self._held) * self._chunk_nbytes,
            self._chunk_nbytes,
        )
        if right < len(at):
            return all_of_them
        self._shuffled = shuffled
        self._held += all_of_them if self._all_easy else (chosen + start).tolist()
        return () if self._all_easy else [k for k in all_of_them if not easy[k]]

    def _top(self) -> Bytes:
        """Return the memory that the next chunk is decoded into."""
        at = len(self._held) * self._chunk_nbytes
        return self._region[at : at + self._chunk_nbytes]

    def _hold(self, k: int, shuffled: int) -> None:
        """Hold chunk `k`, which lies on top; scatters first what is shuffled unlike it."""
        if self._held and shuffled != self._shuffled:
            last = self._top().copy()
            self.scatter()
            self._top()[:] = last
        self._shuffled = shuffled
        self._held.append(k)

    def _add(self, k: int, data: Bytes, shuffled: int) -> None:
        """Hold chunk `k`, which was decoded elsewhere."""
        self._top()[:] = data
        self._hold(k, shuffled)

    def scatter(self) -> None:
        """Scatter what is held."""
        held, self._held = self._held, []
        if not held:
            return
        task, chosen = self._task, np.array(held, dtype=np.int64)
        data = self._region[: len(held) * self._chunk_nbytes]
        for program in task.programs:
            source = address_of(self._dense(program, data, len(held)))
            stride = self._chunk_nbytes // program.leaf.stored_nbytes * program.leaf.nbytes
            self._scatter_stack(program, source, stride, chosen, self._destination)

    def _dense(self, program: Program, data: Bytes, chunks: int) -> Bytes:
        leaf, shuffled, scratch = program.leaf, self._shuffled, self._tools.scratch
        if not shuffled:
            return dense_leaf(program, data, 0, scratch)
        count = self._chunk_nbytes // shuffled
        if shuffled == leaf.stored_nbytes:
            out = scratch.buffer("dense", chunks * count * leaf.nbytes)
            kernels.gather_planes_stack(data, program.planes, count, self._chunk_nbytes, chunks, out)
            return out
        planes = np.arange(shuffled, dtype=np.int64) * count
        unshuffled = scratch.buffer("unshuffled", data.nbytes)
        kernels.gather_planes_stack(data, planes, count, self._chunk_nbytes, chunks, unshuffled)
        return dense_leaf(program, unshuffled, 0, scratch)


def _inflatable(task: ChunkTask) -> tuple[NDArray[np.bool_], int] | None:
    """Tell which chunks of a task need inflating and nothing else, and the shuffle that is then still to be undone."""
    part, index = task.part, task.part.chunk_index
    alone, shuffled = part.pipeline.only_inflates(part.chunk_nbytes)
    if not alone or not len(index.numbers):
        return None
    # One that is as long as a decoded chunk may be an edge chunk that was left unfiltered.
    plausible = (task.nbytes != part.chunk_nbytes) & (task.nbytes <= most_nbytes(part.chunk_nbytes))
    return plausible & (task.entry != MISSING) & (index.filter_mask[task.entry] == 0), shuffled
