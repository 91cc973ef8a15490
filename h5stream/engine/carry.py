"""Carrying out a task: read, decode, scatter.

One pass over memory after the decoder: byte planes, or the stored elements, go straight to their rows' places.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.plan import Task
from h5stream.engine.slots import SlotFormat, address_of
from h5stream.errors import CorruptChunkError
from h5stream.storage.elements import Leaf
from h5stream.storage.fallback import H5pyReader
from h5stream.storage.filters import DecodeError, DecodeScratch
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DECODED, VIA_H5PY, DatasetPart, SampleLayout, Target
from h5stream.storage.source import FileBytes

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

FUSE_ELEMENTS = 16
"""Shortest run of elements in a row for which unshuffling and scattering in one pass pays; below it the vector
loop is mostly overhead, and the chunk is unshuffled into cache first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where a window's rows go.

    Attributes
    ----------
    slots : ndarray of int64
        Address of each batch's slot, counted from the window's first batch.
    format : SlotFormat
        Where the fields begin in a slot.
    row_nbytes : tuple of int
        Bytes of one row, for each field.
    objects : list of dict
        For each batch, by field number, the list that its objects go into.
    """

    slots: Ints
    format: SlotFormat
    row_nbytes: tuple[int, ...]
    objects: Sequence[dict[int, list[Any]]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """What is worked out once for a target of a dataset part."""

    target: Target
    leaf: Leaf
    places: Ints
    """Bytes of the leaf inside a stored element, least significant first for a number."""
    planes: Ints
    """Where each of those bytes' planes begins in a shuffled chunk."""
    segments: tuple[Ints, ...]
    """For each piece, in elements."""
    segments_nbytes: tuple[Ints, ...]
    """For each piece, in bytes of the leaf."""
    fused: tuple[bool, ...]
    """For each piece, whether unshuffle and scatter run as one."""
    fill_rows: tuple[Bytes, ...]
    """For each piece, one row of the fill value."""


def _program(part: DatasetPart, target: Target) -> _Program:
    leaf = target.leaf
    assert leaf is not None
    assert part.index is not None
    places = np.array(
        [
            leaf.offset + unit * leaf.unit_nbytes + (leaf.unit_nbytes - 1 - k if leaf.swapped else k)
            for unit in range(leaf.units)
            for k in range(leaf.unit_nbytes)
        ],
        dtype=np.int64,
    )
    may_fuse = leaf.units == 1 and leaf.unit_nbytes in kernels.scatter_planes
    return _Program(
        target=target,
        leaf=leaf,
        places=places,
        planes=places * math.prod(part.index.chunk_shape),
        segments=tuple(piece.segments for piece in part.pieces),
        segments_nbytes=tuple(np.ascontiguousarray(piece.segments * leaf.nbytes) for piece in part.pieces),
        fused=tuple(may_fuse and int(piece.segments[:, 2].min()) >= FUSE_ELEMENTS for piece in part.pieces),
        fill_rows=tuple(np.tile(target.fill, piece.row_elements) for piece in part.pieces),
    )


class ThreadScratch:
    """Buffers of one reader thread.

    # Guarantees: used by the thread that made it, alone.
    """

    def __init__(self) -> None:
        self.decode = DecodeScratch()

    def buffer(self, role: str, nbytes: int) -> Bytes:
        """Give memory that keeps its content until the role is asked for again."""
        return self.decode.buffer(role, nbytes)


class Carrier:
    """Carries tasks out, for any number of threads.

    # Guarantees: `carry` may run in many threads at once. The layout and the programs are immutable;
    # scratch belongs to the calling thread. Pickling carries the layout only.

    Parameters
    ----------
    layout : SampleLayout
        The fields and their files.
    """

    def __init__(self, layout: SampleLayout) -> None:
        self.layout = layout
        self.sources = tuple(FileBytes(identity) for identity in layout.files)
        self.fallback = H5pyReader(layout)
        self._programs: dict[int, tuple[_Program, ...]] = {}
        self._thread = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self.layout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["layout"])  # type: ignore[misc]

    def close(self) -> None:
        """Close the files; a later task opens them again."""
        for source in self.sources:
            source.close()
        self.fallback.close()

    @property
    def scratch(self) -> ThreadScratch:
        """The calling thread's buffers."""
        try:
            return self._thread.scratch  # type: ignore[no-any-return]
        except AttributeError:
            self._thread.scratch = ThreadScratch()
            return self._thread.scratch  # type: ignore[no-any-return]

    def carry(self, task: Task, sink: Sink, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Read, decode and scatter the chunks of a task.

        Parameters
        ----------
        task : Task
            The chunks.
        sink : Sink
            Where their rows go.
        stopped : callable, optional
            Asked between chunks; once it says True the rest is left undone.

        Raises
        ------
        CorruptChunkError, TruncatedFileError, SourceChangedError, SourceError
            Named by file, dataset, chunk and byte.
        """
        if task.part.access == VIA_H5PY:
            self._carry_via_h5py(task, sink, stopped)
            return
        edges = task.run.tolist()
        for start, stop in itertools.pairwise(edges):
            if stopped():
                return
            self._carry_run(task, sink, start, stop)

    # --- chunks read from the file ----------------------------------------------------------------------

    def _carry_run(self, task: Task, sink: Sink, start: int, stop: int) -> None:
        """Fetch neighbouring chunks with one read and scatter each."""
        if task.place[start] == MISSING:
            for k in range(start, stop):
                self._emit_fill(task, sink, k)
            return
        scratch = self.scratch
        base = int(task.offset[start])
        fetched = scratch.buffer("read", int(task.offset[stop - 1] + task.nbytes[stop - 1]) - base)
        self.sources[task.part.file].read_into(base, fetched.data)
        for k in range(start, stop):
            at = int(task.offset[k]) - base
            self._carry_chunk(task, sink, k, fetched[at : at + int(task.nbytes[k])])

    def _carry_chunk(self, task: Task, sink: Sink, k: int, stored: Bytes) -> None:
        part = task.part
        data, shuffled = (stored, 0) if part.access != DECODED else self._decode(task, k, stored)
        for program in self._programs_of(part):
            self._emit(task, sink, k, program, data, shuffled)

    def _decode(self, task: Task, k: int, stored: Bytes) -> tuple[Bytes, int]:
        part, index = task.part, task.part.index
        assert index is not None
        mask = int(index.filter_mask[task.place[k]])
        if mask == 0 and stored.nbytes == part.chunk_nbytes and bool(index.is_edge(task.number[k : k + 1])[0]):
            # It may have been left unfiltered because it is an edge chunk, which the index does not tell.
            return self.fallback.chunk(part, int(task.number[k])), 0
        try:
            return part.pipeline.decode(
                stored, filter_mask=mask, raw_nbytes=part.chunk_nbytes, scratch=self.scratch.decode
            )
        except DecodeError as error:
            return self._ask_h5py(task, k, error), 0

    def _ask_h5py(self, task: Task, k: int, error: DecodeError) -> Bytes:
        """Let libhdf5 judge bytes that do not decode here: it is the oracle, also of what is corrupt."""
        part, index = task.part, task.part.index
        assert index is not None
        identity = self.layout.files[part.file]
        identity.check_unchanged()
        number = int(task.number[k])
        try:
            return self.fallback.chunk(part, number)
        except CorruptChunkError:
            chunk, offset = index.coordinates(number), int(index.offset[task.place[k]])
            raise CorruptChunkError(
                f"{identity.path!r}, dataset {part.path!r}: chunk {chunk} at byte {offset} "
                f"({int(index.nbytes[task.place[k]])} bytes) is corrupt: {error}. Copy the file again from its source.",
                file=identity.path,
                field=part.path,
                chunk=chunk,
                byte_offset=offset,
            ) from error

    # --- decoded bytes to rows --------------------------------------------------------------------------

    def _programs_of(self, part: DatasetPart) -> tuple[_Program, ...]:
        programs = self._programs.get(id(part))
        if programs is None:
            programs = self._programs[id(part)] = tuple(_program(part, target) for target in part.targets)
        return programs

    def _emit(self, task: Task, sink: Sink, k: int, program: _Program, data: Bytes, shuffled: int) -> None:
        leaf, part, piece = program.leaf, task.part, int(task.piece[k])
        rows = part.pieces[piece].row_elements
        if shuffled and shuffled == leaf.stored_nbytes:
            if program.fused[piece]:
                self._scatter_planes(task, sink, k, program, data)
                return
            dense = self.scratch.buffer("dense", leaf.nbytes * (data.nbytes // shuffled))
            kernels.gather_planes(data, program.planes, data.nbytes // shuffled, dense)
        else:
            if shuffled:
                data = self._unshuffle(data, shuffled)
            dense = data
            if not leaf.is_whole:
                count = data.nbytes // leaf.stored_nbytes
                dense = self.scratch.buffer("dense", leaf.nbytes * count)
                kernels.gather_leaf(data, leaf.stored_nbytes, program.places, count, dense)
        stride = rows * leaf.nbytes
        source = address_of(dense) - int(task.first_row[k]) * stride
        self._scatter(task, sink, k, program.target.field, source, stride, program.segments_nbytes[piece])

    def _unshuffle(self, data: Bytes, width: int) -> Bytes:
        """Undo a shuffle whose elements are not the dataset's own."""
        count = data.nbytes // width
        out = self.scratch.buffer("unshuffled", data.nbytes)
        kernels.gather_planes(data, np.arange(width, dtype=np.int64) * count, count, out)
        return out

    def _emit_fill(self, task: Task, sink: Sink, k: int) -> None:
        piece = int(task.piece[k])
        for program in self._programs_of(task.part):
            row = program.fill_rows[piece]
            self._scatter(task, sink, k, program.target.field, address_of(row), 0, program.segments_nbytes[piece])

    def _scatter(self, task: Task, sink: Sink, k: int, number: int, source: int, stride: int, segments: Ints) -> None:
        low, high, placement = int(task.low[k]), int(task.high[k]), task.placement
        kernels.scatter(
            source,
            stride,
            segments,
            placement.in_rows[low:high],
            placement.batch[low:high],
            placement.within[low:high],
            sink.slots,
            sink.format.offsets[number],
            sink.row_nbytes[number],
        )

    def _scatter_planes(self, task: Task, sink: Sink, k: int, program: _Program, data: Bytes) -> None:
        low, high, placement = int(task.low[k]), int(task.high[k]), task.placement
        piece, number = int(task.piece[k]), program.target.field
        kernels.scatter_planes[program.leaf.unit_nbytes](
            data,
            program.planes,
            program.segments[piece],
            task.part.pieces[piece].row_elements,
            placement.in_rows[low:high],
            placement.batch[low:high],
            placement.within[low:high],
            sink.slots,
            sink.format.offsets[number],
            sink.row_nbytes[number],
        )

    # --- rows read through h5py -------------------------------------------------------------------------

    def _carry_via_h5py(self, task: Task, sink: Sink, stopped: Callable[[], bool]) -> None:
        part, placement = task.part, task.placement
        for k in range(len(task.number)):
            if stopped():
                return
            low, high = int(task.low[k]), int(task.high[k])
            first, last = int(placement.in_rows[low]), int(placement.in_rows[high - 1])
            start = int(task.number[k]) * part.chunk_rows + first
            rows = self.fallback.rows(part, start, last - first + 1)
            for target in part.targets:
                if self.layout.fields[target.field].kind == "object":
                    self._place_objects(task, sink, k, target, rows, first)
                else:
                    self._scatter_rows(task, sink, k, target, rows, first)

    def _scatter_rows(self, task: Task, sink: Sink, k: int, target: Target, rows: Any, first: int) -> None:
        layout = self.layout.fields[target.field]
        column = functools.reduce(lambda array, name: array[name], target.member, rows)
        dense = np.ascontiguousarray(column, dtype=layout.dtype).reshape(-1).view(np.uint8)
        if dense.nbytes == 0:
            return
        stride = layout.row_nbytes
        whole = np.array([[0, 0, stride]], dtype=np.int64)
        self._scatter(task, sink, k, target.field, address_of(dense) - first * stride, stride, whole)

    def _place_objects(self, task: Task, sink: Sink, k: int, target: Target, rows: Any, first: int) -> None:
        low, high, placement = int(task.low[k]), int(task.high[k]), task.placement
        for i in range(low, high):
            values = sink.objects[int(placement.batch[i])][target.field]
            values[int(placement.within[i])] = rows[int(placement.in_rows[i]) - first]
