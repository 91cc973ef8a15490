"""Chunks that are read, decoded and copied to the batches, or read by h5py: large ones one by one, small ones together.

Small chunks are decoded one behind the other, and one kernel call scatters the whole stack.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.engine.plan.placement import Ints, Placement, cut_by
from h5stream.engine.plan.tasks import TASK_NBYTES, Bytes, Destination, Task, Tools, chunk_by_chunk
from h5stream.engine.slots import address_of
from h5stream.engine.statistics import clock
from h5stream.errors import CorruptChunkError
from h5stream.storage.decode.filters import DecodeError, DecodeScratch, NotAskedError, most_nbytes
from h5stream.storage.file.h5py_reader import chunk_box
from h5stream.storage.layout.index import MISSING, ChunkIndex
from h5stream.storage.layout.layout import DatasetPart, FieldLayout, Target
from h5stream.storage.source.stores import raise_if_stopped

FUSE_ELEMENTS = 16
"""Shortest run of elements in a row for which unshuffling and scattering in one pass pays; below it the vector
loop is mostly overhead, and the chunk is unshuffled into cache first."""


FUSED_NBYTES = (2, 4, 8)
"""Bytes of the elements whose shuffle `kernels.scatter_planes` undoes."""

FUSED_ROW_NBYTES = 1024
"""Bytes of a row from which on the rows of spans are unshuffled and copied one by one, in one pass. A guess, not
measured: shorter rows are cheaper to copy in runs."""

SMALL_CHUNK_NBYTES = 128 * 1024
"""Decoded chunks up to this many bytes are stacked: gzip chunks of 64 KiB take 0.91 of the processor time so, of 72
KiB 0.93, of 130 KiB as much as one by one, and of 256 KiB 1.04, since a stack of them leaves the core's cache."""

STACK_READ_NBYTES = 512 * 1024
"""Bytes that are read before they are decoded, at most about: as much as a core's own cache holds."""


class Program:
    """What is worked out once for a target of a dataset part."""

    def __init__(self, part: DatasetPart, target: Target) -> None:
        leaf = target.leaf
        assert leaf is not None
        self.field, self.leaf = target.field, leaf  # its number, and where its bytes lie in a stored element
        # Bytes of the leaf in a stored element, least significant first for a number; the plane of each in a chunk.
        self.bytes_in_element = leaf.places
        self.planes = leaf.places * math.prod(part.chunk_index.chunk_shape)
        # For each piece its stretches in elements; of all pieces those in bytes, and where each piece's begin.
        self.segments = [piece.segments for piece in part.pieces]
        self.all_segments = np.concatenate([np.ascontiguousarray(each * leaf.nbytes) for each in self.segments])
        self.segment_edges = np.cumsum([0] + [len(each) for each in self.segments], dtype=np.int64)
        # For each piece, bytes of one row of a chunk, once it holds this leaf alone.
        self.strides = np.array([piece.row_elements * leaf.nbytes for piece in part.pieces], dtype=np.int64)
        # For each piece, whether unshuffle and scatter are done as one, and one row of the fill value.
        may_fuse = leaf.units == 1 and leaf.unit_nbytes in FUSED_NBYTES
        self.moved = part.moved
        may_fuse = may_fuse and self.moved is None
        self.fused = [may_fuse and int(each[:, 2].min()) >= FUSE_ELEMENTS for each in self.segments]
        fill = renumbered(target.fill, leaf.dtype, self.moved)
        self.fill_rows = [np.tile(fill, piece.row_elements) for piece in part.pieces]


def programs_of(part: DatasetPart) -> tuple[Program, ...]:
    """Return the programs of a part's targets."""
    return tuple(Program(part, target) for target in part.targets)


def dense_leaf(program: Program, data: Bytes, shuffled: int, scratch: DecodeScratch, chunks: int = 1) -> Bytes:
    """Return a leaf's bytes of every element of chunks, one behind the other, as a batch has them."""
    dense = _dense_leaf(program, data, shuffled, scratch, chunks)
    if program.moved is None:
        return dense
    numbers = scratch.buffer("moved", dense.nbytes)  # which stays while its address is used
    numbers[:] = renumbered(dense, program.leaf.dtype, program.moved)
    return numbers


def renumbered(data: Bytes, dtype: np.dtype[Any], moved: Ints | None) -> Bytes:
    """Return column numbers of a sparse matrix with others in their place; those that it does not have stay wrong."""
    if moved is None:
        return data
    numbers = data.view(dtype)
    is_there = (numbers >= 0) & (numbers < len(moved))
    replaced = np.where(is_there, moved[np.where(is_there, numbers, 0)], np.iinfo(dtype).max).astype(dtype)
    return replaced.view(np.uint8)


def _dense_leaf(program: Program, data: Bytes, shuffled: int, scratch: DecodeScratch, chunks: int) -> Bytes:
    """Return a leaf's bytes of every element, as the file has them, in native byte order."""
    leaf, nbytes = program.leaf, data.nbytes // chunks
    if shuffled and shuffled != leaf.stored_nbytes:  # its elements are not the dataset's own
        planes = np.arange(shuffled, dtype=np.int64) * (nbytes // shuffled)
        unshuffled = scratch.buffer("unshuffled", data.nbytes)
        kernels.gather_planes_stack(data, planes, nbytes // shuffled, nbytes, chunks, unshuffled)
        data, shuffled = unshuffled, 0
    if not shuffled and leaf.is_whole:
        return data
    count = nbytes // leaf.stored_nbytes
    dense = scratch.buffer("dense", leaf.nbytes * count * chunks)
    if shuffled:
        kernels.gather_planes_stack(data, program.planes, count, nbytes, chunks, dense)
    else:
        kernels.gather_leaf(data, leaf.stored_nbytes, program.bytes_in_element, count * chunks, dense)
    return dense


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
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

    @property
    def task(self) -> Task:
        """The task that brings them."""
        return Task(shared=self.shared, own=(self.low, self.high), bring=self.land, apart=self.apart)

    def rows_of(self, k: int) -> Placement:
        """Return the rows of one chunk."""
        return self.shared[int(self.low[k]) : int(self.high[k])]

    def apart(self, _: Task) -> Iterator[Task]:
        """Return one task for each chunk."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "edges"}
        of_each = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        for k in range(len(self.number)):
            one: dict[str, Any] = {name: value[k : k + 1] for name, value in of_each.items()}
            yield replace(self, edges=np.array([1] if self.entry[k] == MISSING else [0, 1]), **one).task

    def land(self, _: Placement, destination: Destination, tools: Tools) -> None:
        """Decode and scatter one chunk after the other, or all of a stack."""
        self.fill_missing(destination, tools)
        if self.part.chunk_nbytes <= SMALL_CHUNK_NBYTES:
            self._land_stacked(destination, tools)
            return
        for start, stop, data, at in self.read(tools):
            for k, begin in zip(range(start, stop), at.tolist(), strict=True):
                since = clock()
                chunk, shuffled = self.decode(k, data[begin : begin + int(self.nbytes[k])], tools)
                since = tools.tally.decoded(since, chunk.nbytes)
                self.scatter(k, chunk, shuffled, destination, tools)
                tools.tally.scattered(since)

    def _land_stacked(self, destination: Destination, tools: Tools) -> None:
        """Decode all chunks one behind the other, and scatter them with one call a field."""
        easy, left_shuffled = self._inflatable(tools.scratch)
        for start, stop, data, at in self.read(tools):
            since, shuffled = clock(), 0
            held: list[int] = []
            stack = tools.decoding.buffer("stack", (stop - start) * self.part.chunk_nbytes)
            some, left = easy[start:stop], np.arange(start, stop)
            if self._inflate(left[some], data, at[some], stack, tools.decoding):
                held += left[some].tolist()
                left, shuffled = left[~some], left_shuffled
            for k in left.tolist():
                begin, top = int(at[k - start]), stack[len(held) * self.part.chunk_nbytes :][: self.part.chunk_nbytes]
                decoded, own_shuffled = self.decode(k, data[begin : begin + int(self.nbytes[k])], tools, top)
                if held and own_shuffled != shuffled:
                    self.scatter(k, decoded, own_shuffled, destination, tools)
                    continue
                if decoded is not top:
                    top[:] = decoded
                shuffled = own_shuffled
                held.append(k)
            # The clock is not read for every small chunk.
            since = tools.tally.decoded(since, (stop - start) * self.part.chunk_nbytes, stop - start)
            if held:
                self._scatter_stack(held, stack, shuffled, destination, tools)
            tools.tally.scattered(since)

    def _inflatable(self, scratch: DecodeScratch) -> tuple[NDArray[np.bool_], int]:
        """Tell which chunks need inflating and nothing else, and the shuffle that is then still to be undone."""
        part, index = self.part, self.part.chunk_index
        alone, shuffled = part.pipeline.only_inflates(part.chunk_nbytes)
        if not alone or not len(index.numbers) or scratch.inflater is None:
            return np.zeros(len(self.number), dtype=np.bool_), 0
        # One that is as long as a decoded chunk may be an edge chunk that was left unfiltered.
        plausible = (self.nbytes != part.chunk_nbytes) & (self.nbytes <= most_nbytes(part.chunk_nbytes))
        return plausible & (self.entry != MISSING) & (index.filter_mask[self.entry] == 0), shuffled

    def _inflate(self, chosen: Ints, data: Bytes, at: Ints, top: Bytes, scratch: DecodeScratch) -> bool:
        """Inflate some chunks; what does not inflate is found out one by one."""
        inflater = scratch.inflater if len(chosen) else None
        return inflater is not None and len(chosen) == kernels.inflate_each(
            *inflater,
            address_of(data),
            at,
            self.nbytes[chosen],
            address_of(top),
            self.part.chunk_nbytes,
        )

    def _scatter_stack(
        self, held: list[int], stack: Bytes, shuffled: int, destination: Destination, tools: Tools
    ) -> None:
        chosen, nbytes = np.array(held, dtype=np.int64), self.part.chunk_nbytes
        for program in self.programs:
            dense = dense_leaf(program, stack[: len(held) * nbytes], shuffled, tools.decoding, len(held))
            stride = nbytes // program.leaf.stored_nbytes * program.leaf.nbytes
            self.place(program, address_of(dense), stride, chosen, destination)

    def read(self, tools: Tools) -> Iterator[tuple[int, int, Bytes, Ints]]:
        """Return what is read at once: the first chunk, the last (exclusive), bytes, and where each begins in them.

        Of a local file it is no more than a core's cache holds, or one group of chunks. Ends early if it is to stop.
        """
        begins, ends, first = self.edges[:-1], self.edges[1:] - 1, int(self.edges[0])
        offsets = self.offset[begins]
        nbytes = self.offset[ends] + self.nbytes[ends] - offsets
        group = np.repeat(np.arange(len(ends)), ends + 1 - begins)
        inside = self.offset[first:] - offsets[group]
        most = STACK_READ_NBYTES if tools.sources[self.part.file].has_descriptor else TASK_NBYTES
        for some in cut_by(nbytes, most) if len(ends) else ():
            raise_if_stopped()
            data, places = tools.read(self.part.file, offsets[some], nbytes[some])
            start, stop = int(self.edges[some.start]), int(self.edges[some.stop])
            ours = slice(start - first, stop - first)
            yield start, stop, data, inside[ours] + places[group[ours] - some.start]

    def decode(self, k: int, stored: Bytes, tools: Tools, out: Bytes | None = None) -> tuple[Bytes, int]:
        """Decode chunk `k`; return its bytes, and the element size of a byte shuffle still to be undone, or 0."""
        part, mask = self.part, int(self.part.chunk_index.filter_mask[self.entry[k]])
        if stored.nbytes == part.chunk_nbytes and part.may_be_unfiltered(self.entry[k : k + 1])[0]:
            return tools.h5py.chunk(part, int(self.number[k])), 0
        if not part.pipeline.filters and stored.nbytes == self._there(k) < part.chunk_nbytes:  # the end of an extent
            whole = tools.decoding.buffer("whole", part.chunk_nbytes) if out is None else out
            whole[: stored.nbytes], whole[stored.nbytes :] = stored, 0
            return whole, 0
        try:
            data, shuffled = part.pipeline.decode(
                stored, filter_mask=mask, raw_nbytes=part.chunk_nbytes, scratch=tools.decoding, out=out
            )
        except DecodeError as error:
            return self.ask_h5py(k, error, tools), 0
        return data if out is None else out, shuffled

    def _there(self, k: int) -> int:
        """Return the bytes that a chunk has of the dataset's elements."""
        part, number = self.part, int(self.number[k])
        if part.objects:
            part, number = part.in_object(number)
        index = part.chunk_index
        count = chunk_box(index.shape, index.chunk_shape, index.coordinates(number))
        return math.prod(count) * part.stored_element_nbytes

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
            source = address_of(dense_leaf(program, data, shuffled, tools.decoding))
            self.place(program, source, 0, np.array([k]), destination)

    def place(self, program: Program, source: int, stride: int, chosen: Ints, destination: Destination) -> None:
        """Copy some chunks to a field: the first lies at an address, each next one `stride` bytes behind."""
        rows, *to = destination.of(program.field, self.shared)
        kernels.scatter_stack(
            source,
            stride,
            program.strides,
            program.all_segments,
            program.segment_edges,
            self.piece[chosen],
            self.low[chosen],
            self.high[chosen],
            rows,
            self.shared.lengths,
            *to,
        )

    def fill_missing(self, destination: Destination, tools: Tools) -> None:
        """Scatter the fill value to the rows of chunks that were never written."""
        since = clock()
        for k in range(int(self.edges[0])):
            piece, rows = int(self.piece[k]), self.rows_of(k)
            for program in self.programs:
                fill = address_of(program.fill_rows[piece])
                destination.scatter(program.field, rows, fill, 0, program.segments[piece] * program.leaf.nbytes)
        tools.tally.scattered(since)


def plan_chunks(
    part: DatasetPart, programs: tuple[Program, ...], most_gap: int, placement: Placement, task_nbytes: int
) -> Iterator[Task]:
    """Cut rows of a part, ascending, into tasks of about as many decoded bytes, in the order of the file's."""
    shared, edges, numbers = placement.in_chunks(part)
    # Every row of chunks crosses the same pieces: one column of this table each.
    count, across = len(part.pieces), np.array([each.number for each in part.pieces], dtype=np.int64)
    piece = np.tile(np.arange(count, dtype=np.int64), len(numbers))
    number = np.repeat(numbers, count) * part.chunk_index.columns + across[piece]
    table = {"piece": piece, **looked_up(part.chunk_index, number)}
    table["low"], table["high"] = np.repeat(edges[:-1], count), np.repeat(edges[1:], count)
    by_offset = np.argsort(table["offset"], kind="stable")
    table = {name: values[by_offset] for name, values in table.items()}
    work = np.maximum(table["nbytes"], part.chunk_nbytes)
    # A gap that is read along costs as well: without it a task of tiny chunks could span gigabytes of the file.
    gap = _gaps(table["offset"], table["nbytes"])
    work[1:] += np.where((gap > 0) & (gap <= most_gap), gap, 0)
    # Chunks that are decoded one by one need no more memory where a task has more of them.
    for cut in cut_by(work, min(task_nbytes, TASK_NBYTES) if part.chunk_nbytes <= SMALL_CHUNK_NBYTES else task_nbytes):
        of_task: dict[str, Any] = {name: values[cut] for name, values in table.items()}
        of_task["edges"] = group_edges(of_task["offset"], of_task["nbytes"], most_gap)
        yield ChunkTable(part=part, programs=programs, shared=shared, **of_task).task


def looked_up(index: ChunkIndex, number: Ints) -> dict[str, Ints]:
    """Find what to read for chunks, by their numbers."""
    entry = index.find(number)
    stored = entry != MISSING
    offset, nbytes = np.full(len(entry), MISSING), np.zeros(len(entry), dtype=np.int64)
    offset[stored], nbytes[stored] = index.offset[entry[stored]], index.nbytes[entry[stored]]
    return {"number": number, "entry": entry, "offset": offset, "nbytes": nbytes}


def group_edges(offset: Ints, nbytes: Ints, most_gap: int) -> Ints:
    """Group chunks that lie close together, so that one read brings them; those never written are left out.

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


# --- what h5stream cannot decode is read through h5py, under its lock -------------------------------------------


def plan_through_h5py(
    part: DatasetPart, fields: tuple[FieldLayout, ...], placement: Placement, task_nbytes: int
) -> Iterator[Task]:
    """Cut rows of a part that h5py reads, ascending, into tasks of whole chunks and about as many bytes."""

    def read(placement: Placement, destination: Destination, tools: Tools) -> None:
        """Read the rows of one chunk after the other, from the first that is wanted to the last, and scatter them."""
        _, edges, _ = placement.in_chunks(part)
        for low, high in itertools.pairwise(edges.tolist()):
            raise_if_stopped()
            wanted = placement[low:high]
            first, last = int(wanted.rows[0]), int(wanted.rows[-1])
            since = clock()
            rows = tools.h5py.rows(part, first - part.row_start, last - first + 1)
            since = tools.tally.via_h5py(since, rows.nbytes)
            for target in part.targets:
                layout, values = fields[target.field], target.taken(rows)
                if layout.dtype.kind == "O":
                    destination.put(target.field, wanted, (values[row - first] for row in wanted.rows.tolist()))
                    continue
                dense = np.ascontiguousarray(values, dtype=layout.dtype).reshape(-1).view(np.uint8)
                dense = renumbered(dense, layout.dtype, part.moved)
                there = replace(wanted, rows=wanted.rows - first)
                destination.scatter_whole(target.field, there, dense, layout.placed_nbytes)
            tools.tally.scattered(since)

    placement = placement.each_row().ascending()
    _, edges, _ = placement.in_chunks(part)
    spans = placement.rows[edges[1:] - 1].astype(np.int64) - placement.rows[edges[:-1]] + 1
    for cut in cut_by(np.maximum(1, spans * part.stored_row_nbytes), min(task_nbytes, TASK_NBYTES)):
        some = placement[int(edges[cut.start]) : int(edges[cut.stop])]
        yield Task(shared=some, bring=read, apart=functools.partial(chunk_by_chunk, part=part))
