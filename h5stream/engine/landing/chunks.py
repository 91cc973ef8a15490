"""Chunks that are read, decoded and scattered one after the other.

Small ones differ only in how they are scattered: see `h5stream.engine.landing.stacked`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.counters import clock
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.landing.programs import Program, dense_leaf
from h5stream.engine.plan import Placement, cut_by
from h5stream.engine.slots import address_of
from h5stream.engine.tasks import Destination, Ranges, Tools
from h5stream.errors import CorruptChunkError
from h5stream.storage.codecs import DecodeError, NotAskedError
from h5stream.storage.index import MISSING, ChunkIndex
from h5stream.storage.layout import DatasetPart

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


FUSED_ROW_NBYTES = 1024
"""Bytes of a row from which on the rows of spans are unshuffled and copied one by one, in one pass. A guess, not
measured: shorter rows are cheaper to copy in runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    """Some chunks of one dataset part, neighbours in the file; those that were never written come first."""

    part: DatasetPart  # the dataset
    programs: tuple[Program, ...]  # its fields
    shared: Placement  # where the part's rows go, each with its number inside its chunk; one for all tasks of a window
    # number, piece, entry: (n,): for each chunk: its number, the piece of the row that it holds (in `part.pieces`), its
    # entry in the index (`MISSING` for the fill value)
    number: Ints
    piece: Ints
    entry: Ints
    low: Ints  # low, high: (n,): its rows, as a range of `shared`
    high: Ints
    offset: Ints  # offset, nbytes: (n,): what to read for it
    nbytes: Ints
    edges: Ints  # where the groups of chunks begin that one read brings, and where the last ends

    keeps = False

    @property
    def placement(self) -> Placement:
        """Its rows, each with its number inside its chunk, and where they go."""
        ranges = zip(self.low.tolist(), self.high.tolist(), strict=True)
        return self.shared[np.concatenate([np.arange(low, high) for low, high in ranges])]

    def rows_of(self, k: int) -> Placement:
        """Return the rows of one chunk."""
        return self.shared[int(self.low[k]) : int(self.high[k])]

    def ranges(self) -> Ranges:
        """Return a range for each group of chunks, from the first byte of the first to the last of the last."""
        begins, ends = self.edges[:-1], self.edges[1:] - 1
        offsets = self.offset[begins]
        spans = self.offset[ends] + self.nbytes[ends] - offsets
        return Ranges(file=self.part.file, offsets=offsets.tolist(), nbytes=spans.tolist())

    def split(self) -> Iterator[ChunkTask]:
        """Return one task for each chunk."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "edges"}
        of_each = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        for k in range(len(self.number)):
            one: dict[str, Any] = {name: value[k : k + 1] for name, value in of_each.items()}
            yield replace(self, edges=np.array([1] if self.entry[k] == MISSING else [0, 1]), **one)

    def land(self, stored: Iterator[Bytes], destination: Destination, tools: Tools) -> None:
        """Decode and scatter one chunk after the other."""
        self.fill_missing(destination, tools)
        for k, data, shuffled, since in self.decoded(stored, tools):
            self.scatter(k, data, shuffled, destination, tools)
            tools.tally.scattered(since)

    def decoded(self, stored: Iterator[Bytes], tools: Tools) -> Iterator[tuple[int, Bytes, int, int]]:
        """Decode one chunk after the other: its place, what `decode` gives of it, and when that was done."""
        for start, stop, group in self.groups(stored):
            for k in range(start, stop):
                since = clock()
                data, shuffled = self.decode(k, self.bytes_of(k, start, group), tools)
                yield k, data, shuffled, tools.tally.decoded(since, data.nbytes)

    def groups(self, stored: Iterator[Bytes]) -> Iterator[tuple[int, int, Bytes]]:
        """Return what was read together: first chunk, last (exclusive), and their bytes with the gaps between them."""
        for (start, stop), group in zip(itertools.pairwise(self.edges.tolist()), stored, strict=False):
            yield start, stop, group

    def bytes_of(self, k: int, start: int, group: Bytes) -> Bytes:
        """Return the stored bytes of chunk `k` of a group that begins with chunk `start`."""
        at = int(self.offset[k]) - int(self.offset[start])
        return group[at : at + int(self.nbytes[k])]

    def decode(self, k: int, stored: Bytes, tools: Tools) -> tuple[Bytes, int]:
        """Decode chunk `k`; return its bytes, and the element size of a byte shuffle still to be undone, or 0."""
        part, index = self.part, self.part.chunk_index
        mask = int(index.filter_mask[self.entry[k]])
        if stored.nbytes == part.chunk_nbytes and part.may_be_unfiltered(self.entry[k : k + 1])[0]:
            return tools.h5py.chunk(part, int(self.number[k])), 0
        try:
            return part.pipeline.decode(stored, filter_mask=mask, raw_nbytes=part.chunk_nbytes, scratch=tools.scratch)
        except DecodeError as error:
            return self.ask_h5py(k, error, tools), 0

    def ask_h5py(self, k: int, error: DecodeError, tools: Tools) -> Bytes:
        """Let libhdf5 judge bytes that do not decode here: it is the oracle, also of what is corrupt."""
        part, index = self.part, self.part.chunk_index
        number, entry = int(self.number[k]), int(self.entry[k])
        identity, offset = tools.sources[part.file].identity.at(int(index.offset[entry]))
        identity.check_unchanged()
        if not isinstance(error, NotAskedError):
            with contextlib.suppress(CorruptChunkError):
                return tools.h5py.chunk(part, number)
        nbytes = int(index.nbytes[entry])
        if part.objects:
            part, number = part.in_object(number)
            index = part.chunk_index
        chunk = index.coordinates(number)
        raise CorruptChunkError(
            f"{identity.path!r}, dataset {part.path!r}: chunk {chunk} at byte {offset} "
            f"({nbytes} bytes) is corrupt: {error}. Copy the file again from its source.",
            file=identity.path,
            field=part.path,
            chunk=chunk,
            byte_offset=offset,
        ) from error

    def scatter(self, k: int, data: Bytes, shuffled: int, destination: Destination, tools: Tools) -> None:
        """Scatter a decoded chunk to all fields that take of it; `shuffled` as `decode` gives it."""
        piece, rows = int(self.piece[k]), self.rows_of(k)
        for program in self.programs:
            # Spans of short rows are copied whole out of a chunk whose shuffle was undone before.
            fits = rows.counts is None or self.part.pieces[piece].row_elements * shuffled >= FUSED_ROW_NBYTES
            if shuffled and shuffled == program.leaf.stored_nbytes and program.fused[piece] and fits:
                kernels.scatter_planes(
                    data,
                    program.planes,
                    program.segments[piece],
                    self.part.pieces[piece].row_elements,
                    *destination.of(program.field, rows.each_row()),
                )
                continue
            dense = address_of(dense_leaf(program, data, shuffled, tools.scratch))
            stride, segments = int(program.strides[piece]), program.segments_nbytes[piece]
            destination.scatter(program.field, rows, dense, stride, segments)

    def fill_missing(self, destination: Destination, tools: Tools) -> None:
        """Scatter the fill value to the rows of chunks that were never written."""
        since = clock()
        for k in range(int(self.edges[0])):
            piece, rows = int(self.piece[k]), self.rows_of(k)
            for program in self.programs:
                fill = address_of(program.fill_rows[piece])
                destination.scatter(program.field, rows, fill, 0, program.segments_nbytes[piece])
        tools.tally.scattered(since)


class Chunks:
    """The chunks of a dataset part."""

    def __init__(
        self, part: DatasetPart, programs: tuple[Program, ...], kind: type[ChunkTask], gap_nbytes: int
    ) -> None:
        self._part, self._programs, self._kind, self._gap = part, programs, kind, gap_nbytes

    def plan(self, placement: Placement, task_nbytes: int) -> Iterator[ChunkTask]:
        """Cut rows of the part, ascending, into tasks of about as many decoded bytes, in the order of the file's."""
        shared, edges, numbers = placement.in_chunks(self._part)
        # Every row of chunks crosses the same pieces: one column of this table each.
        count = len(self._part.pieces)
        table = self._looked_up(numbers)
        table["low"], table["high"] = np.repeat(edges[:-1], count), np.repeat(edges[1:], count)
        by_offset = np.argsort(table["offset"], kind="stable")
        table = {name: values[by_offset] for name, values in table.items()}
        work = np.maximum(table["nbytes"], self._part.chunk_nbytes)
        # A gap that is read along costs as well: without it a task of tiny chunks could span gigabytes of the file.
        gap = _gaps(table["offset"], table["nbytes"])
        work[1:] += np.where((gap > 0) & (gap <= self._gap), gap, 0)
        for cut in cut_by(work, min(task_nbytes, TASK_NBYTES)):
            of_task: dict[str, Any] = {name: values[cut] for name, values in table.items()}
            of_task["edges"] = group_edges(of_task["offset"], of_task["nbytes"], self._gap)
            yield self._kind(part=self._part, programs=self._programs, shared=shared, **of_task)

    def _looked_up(self, numbers: Ints) -> dict[str, Ints]:
        """Find what to read for each piece of each row of chunks."""
        part, index = self._part, self._part.chunk_index
        piece = np.tile(np.arange(len(part.pieces), dtype=np.int64), len(numbers))
        across = np.array([each.number for each in part.pieces], dtype=np.int64)
        number = np.repeat(numbers, len(part.pieces)) * index.columns + across[piece]
        return {"piece": piece, **looked_up(index, number)}


def looked_up(index: ChunkIndex, number: Ints) -> dict[str, Ints]:
    """Find what to read for chunks, by their numbers."""
    entry = index.find(number)
    stored = entry != MISSING
    offset, nbytes = np.full(len(entry), MISSING), np.zeros(len(entry), dtype=np.int64)
    offset[stored], nbytes[stored] = index.offset[entry[stored]], index.nbytes[entry[stored]]
    return {"number": number, "entry": entry, "offset": offset, "nbytes": nbytes}


def group_edges(offset: Ints, nbytes: Ints, most_gap: int) -> Ints:
    """Group chunks that lie close together, so that one read brings them; those never written are left out."""
    first = int(np.searchsorted(offset, MISSING, side="right"))
    if first == len(offset):
        return np.array([first])
    gap = _gaps(offset, nbytes)[first:]
    apart = (gap < 0) | (gap > most_gap)
    return np.concatenate([[first], np.flatnonzero(apart) + first + 1, [len(offset)]])


def _gaps(offset: Ints, nbytes: Ints) -> Ints:
    """Return the bytes between each chunk and the next, -1 after one that has none in the file."""
    return np.where(offset[:-1] == MISSING, -1, offset[1:] - (offset[:-1] + nbytes[:-1]))
