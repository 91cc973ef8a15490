"""Decoded chunks become rows at their places: byte planes and stored elements, one pass over memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.plan import Task
from h5stream.engine.slots import SlotFormat, address_of
from h5stream.storage.elements import Leaf
from h5stream.storage.filters import DecodeScratch
from h5stream.storage.layout import DatasetPart, SampleLayout, Target

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
class Program:
    """What is worked out once for a target of a dataset part.

    Attributes
    ----------
    target, leaf : Target, Leaf
        The field and where its bytes lie in a stored element.
    places : ndarray of int64
        Bytes of the leaf inside a stored element, least significant first for a number.
    planes : ndarray of int64
        Where each of those bytes' planes begins in a shuffled chunk.
    segments, segments_nbytes : tuple of ndarray
        For each piece, its runs in elements, and in bytes of the leaf.
    fused : tuple of bool
        For each piece, whether unshuffle and scatter run as one.
    all_segments, segment_edges : ndarray of int64
        The runs of all pieces in bytes, one after the other, and where each piece's begin.
    strides : ndarray of int64
        For each piece, bytes of one row of a chunk, once it holds this leaf alone.
    beside : tuple of bool
        For each piece, whether it goes on where the piece before it ends, with a run of the same length.
    fill_rows : tuple of ndarray of uint8
        For each piece, one row of the fill value.
    """

    target: Target
    leaf: Leaf
    places: Ints
    planes: Ints
    segments: tuple[Ints, ...]
    segments_nbytes: tuple[Ints, ...]
    all_segments: Ints
    segment_edges: Ints
    strides: Ints
    fused: tuple[bool, ...]
    beside: tuple[bool, ...]
    fill_rows: tuple[Bytes, ...]


def _program(part: DatasetPart, target: Target) -> Program:
    leaf = target.leaf
    assert leaf is not None
    assert part.index is not None
    places = leaf.places
    may_fuse = leaf.units == 1 and leaf.unit_nbytes in kernels.scatter_planes
    segments = tuple(piece.segments for piece in part.pieces)
    in_bytes = tuple(np.ascontiguousarray(runs * leaf.nbytes) for runs in segments)
    return Program(
        target=target,
        leaf=leaf,
        places=places,
        planes=places * math.prod(part.index.chunk_shape),
        segments=segments,
        segments_nbytes=in_bytes,
        all_segments=np.concatenate(in_bytes),
        segment_edges=np.cumsum([0] + [len(runs) for runs in segments], dtype=np.int64),
        strides=np.array([piece.row_elements * leaf.nbytes for piece in part.pieces], dtype=np.int64),
        fused=tuple(may_fuse and int(runs[:, 2].min()) >= FUSE_ELEMENTS for runs in segments),
        beside=tuple(k > 0 and _goes_on(segments[k - 1], segments[k]) for k in range(len(segments))),
        fill_rows=tuple(np.tile(target.fill, piece.row_elements) for piece in part.pieces),
    )


def _goes_on(before: Ints, after: Ints) -> bool:
    if len(before) != 1 or len(after) != 1:
        return False
    (from_a, into_a, count_a), (from_b, into_b, count_b) = before[0].tolist(), after[0].tolist()
    return bool(from_a == from_b and count_a == count_b and into_b == into_a + count_a)


class Emitter:
    """Scatters decoded chunks.

    # Guarantees: immutable but for a cache of programs, which any thread may fill with the same content.
    """

    def __init__(self, layout: SampleLayout) -> None:
        self._layout = layout
        self._programs: dict[int, tuple[Program, ...]] = {}

    def programs_of(self, part: DatasetPart) -> tuple[Program, ...]:
        """Give the programs of a part's targets."""
        programs = self._programs.get(id(part))
        if programs is None:
            programs = self._programs[id(part)] = tuple(_program(part, target) for target in part.targets)
        return programs

    def emit(self, task: Task, sink: Sink, k: int, data: Bytes, shuffled: int, scratch: DecodeScratch) -> None:
        """Scatter chunk `k` of a task to all fields that are filled from it.

        Parameters
        ----------
        data : ndarray of uint8
            The decoded chunk.
        shuffled : int
            Element size of a byte shuffle that is still to be undone, or 0.
        """
        piece = int(task.piece[k])
        for program in self.programs_of(task.part):
            if shuffled and shuffled == program.leaf.stored_nbytes and program.fused[piece]:
                self._scatter_planes(task, sink, k, program, data)
                continue
            dense = dense_leaf(program, data, shuffled, scratch)
            stride = task.part.pieces[piece].row_elements * program.leaf.nbytes
            source = address_of(dense) - int(task.first_row[k]) * stride
            self._scatter(task, sink, k, program.target.field, source, stride, program.segments_nbytes[piece])

    def emit_fill(self, task: Task, sink: Sink, k: int) -> None:
        """Scatter the fill value to the rows of a chunk that was never written."""
        piece = int(task.piece[k])
        for program in self.programs_of(task.part):
            row = program.fill_rows[piece]
            self._scatter(task, sink, k, program.target.field, address_of(row), 0, program.segments_nbytes[piece])

    def emit_rows(self, task: Task, sink: Sink, k: int, rows: Any, first: int) -> None:
        """Scatter rows that h5py read, of which the first is row `first` of its chunk."""
        for target in task.part.targets:
            if self._layout.fields[target.field].kind == "object":
                self._place_objects(task, sink, k, target, rows, first)
            else:
                self._scatter_rows(task, sink, k, target, rows, first)

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

    def _scatter_planes(self, task: Task, sink: Sink, k: int, program: Program, data: Bytes) -> None:
        low, high, placement = int(task.low[k]), int(task.high[k]), task.placement
        piece, number = int(task.piece[k]), program.target.field
        kernels.scatter_planes[program.leaf.unit_nbytes](
            data,
            address_of(data),
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

    def _scatter_rows(self, task: Task, sink: Sink, k: int, target: Target, rows: Any, first: int) -> None:
        layout = self._layout.fields[target.field]
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


def dense_leaf(program: Program, data: Bytes, shuffled: int, scratch: DecodeScratch, out: Bytes | None = None) -> Bytes:
    """Give a leaf's bytes of every element of a chunk, one after the other, in native byte order.

    Parameters
    ----------
    out : ndarray of uint8, optional
        Where to put them; without it they may be `data` itself, or lie in scratch.
    """
    leaf = program.leaf
    if shuffled and shuffled != leaf.stored_nbytes:  # its elements are not the dataset's own
        data, shuffled = _unshuffled(data, shuffled, scratch), 0
    if not shuffled and leaf.is_whole:
        if out is None:
            return data
        out[:] = data
        return out
    count = data.nbytes // leaf.stored_nbytes
    dense = scratch.buffer("dense", leaf.nbytes * count) if out is None else out
    if shuffled:
        kernels.gather_planes(data, program.planes, count, dense)
    else:
        kernels.gather_leaf(data, leaf.stored_nbytes, program.places, count, dense)
    return dense


def _unshuffled(data: Bytes, width: int, scratch: DecodeScratch) -> Bytes:
    count = data.nbytes // width
    out = scratch.buffer("unshuffled", data.nbytes)
    kernels.gather_planes(data, np.arange(width, dtype=np.int64) * count, count, out)
    return out
