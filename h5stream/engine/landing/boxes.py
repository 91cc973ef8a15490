"""Boxes of volumes: of each chunk, what lies in some boxes is copied to its place in each of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.counters import clock
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.landing.chunks import ChunkTask, group_edges, looked_up
from h5stream.engine.landing.programs import Program, dense_leaf, programs_of
from h5stream.engine.plan import Placement, cut_by
from h5stream.engine.slots import address_of
from h5stream.engine.tasks import Destination, LandingTask, Tools
from h5stream.samples.box_space import BoxSpace, number_outside
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DIRECT, VIA_H5PY, DatasetPart, FieldLayout

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

PLAIN, EDGE, REFLECT = 0, 1, 2
"""What an index outside of a volume stands for: nothing, the nearest inside, or the one mirrored at the edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxed:
    """Boxes of one dataset.

    Attributes
    ----------
    offsets : ndarray of int64, shape (axes, most elements)
        The elements that a box takes along each axis of the dataset, counted from its origin.
    sizes, follow : ndarray of int64, shape (axes,)
        How many these are, and whether each is the next of the one before.
    mode : int
        What stands outside: `PLAIN`, `EDGE` or `REFLECT`.
    origins : ndarray of int64, shape (n, axes)
        The origin of each box; may lie outside.
    """

    offsets: Ints
    sizes: Ints
    follow: Ints
    mode: int
    origins: Ints

    def place(
        self, chosen: slice, source: int, strides: Ints, low: Ints, high: Ints, shape: Ints, element: int, *where: Any
    ) -> None:
        """Copy what lies in some of the boxes of a region that is in memory; see `kernels.place_boxes`."""
        kernels.place_boxes(
            source, strides, low, high, shape, self.offsets, self.sizes, self.follow, self.mode, element,
            self.origins[chosen], *where,
        )  # fmt: skip

    @property
    def ends(self) -> tuple[Ints, Ints]:
        """The first and the last element that each box takes along each axis."""
        taken = np.arange(self.offsets.shape[1]) < self.sizes[:, None]
        least = np.where(taken, self.offsets, np.iinfo(np.int64).max).min(axis=1)
        most = np.where(taken, self.offsets, np.iinfo(np.int64).min).max(axis=1)
        return self.origins + least, self.origins + most


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxTask(ChunkTask):
    """Some chunks of one dataset; the rows of `shared` are boxes, each as often as chunks touch it.

    Attributes
    ----------
    boxed : Boxed
        Which boxes those are.
    skipped : ndarray of int64, shape (n,)
        For each chunk, the bytes at its beginning that are not read, since no box needs them.
    """

    boxed: Boxed
    skipped: Ints

    def decode(self, k: int, stored: Bytes, tools: Tools) -> tuple[Bytes, int]:
        """Decode chunk `k`; of one that has no filter, as much as was read is all that is needed."""
        return (stored, 0) if self.part.access == DIRECT else ChunkTask.decode(self, k, stored, tools)

    def scatter(self, k: int, data: Bytes, shuffled: int, destination: Destination, tools: Tools) -> None:
        """Copy what boxes take of a chunk to all fields."""
        for program in self.programs:
            leaf = program.leaf
            if self.part.access == DIRECT and not leaf.is_whole:
                whole = data[: data.nbytes // leaf.stored_nbytes * leaf.stored_nbytes]
                dense = dense_leaf(program, whole, 0, tools.scratch)
            else:
                dense = dense_leaf(program, data, shuffled, tools.scratch)
            source = address_of(dense) - int(self.skipped[k]) // leaf.stored_nbytes * leaf.nbytes
            self._place(k, program, source, _strides(self._chunk_shape, leaf.nbytes), destination)

    def fill_missing(self, destination: Destination, tools: Tools) -> None:
        """Copy the fill value where chunks were never written."""
        since = clock()
        for k in range(int(self.edges[0])):
            for program in self.programs:
                fill = np.tile(_fill_of(self.part, program), self._chunk_shape[-1])
                strides = np.zeros(len(self._chunk_shape), dtype=np.int64)
                strides[-1] = program.leaf.nbytes
                self._place(k, program, address_of(fill), strides, destination)
        tools.tally.scattered(since)

    @property
    def _chunk_shape(self) -> tuple[int, ...]:
        assert self.part.index is not None
        return self.part.index.chunk_shape

    def _place(self, k: int, program: Program, source: int, strides: Ints, destination: Destination) -> None:
        index = self.part.index
        assert index is not None
        chosen = slice(int(self.low[k]), int(self.high[k]))
        shape, low = np.array(index.shape), np.array(index.coordinates(int(self.number[k])))
        high = np.minimum(low + index.chunk_shape, shape)
        _, *where = destination.of(program.field, self.rows_of(k))
        self.boxed.place(chosen, source, strides, low, high, shape, program.leaf.nbytes, *where)


@dataclass(frozen=True, slots=True, kw_only=True)
class H5pyBoxTask(LandingTask):
    """One box of a dataset, which h5py reads.

    Attributes
    ----------
    part : DatasetPart
        The dataset.
    fields : tuple of FieldLayout
        All fields of a batch.
    placement : Placement
        The box's sample, and where it goes.
    boxed : Boxed
        The box.
    """

    part: DatasetPart
    fields: tuple[FieldLayout, ...]
    placement: Placement
    boxed: Boxed

    def land(self, stored: Iterator[Any], destination: Destination, tools: Tools) -> None:
        """Read the box, and copy it to its place."""
        shape = np.array(self.part.shape)
        low, high = (each[0] for each in _spans(self.boxed, shape))
        since = clock()
        values = tools.h5py.box(self.part, tuple(low.tolist()), tuple((high - low).tolist()))
        since = tools.tally.via_h5py(since, values.nbytes)
        for target in self.part.targets:
            dense = np.ascontiguousarray(target.taken(values), dtype=self.fields[target.field].dtype)
            element = dense.nbytes // max(1, math.prod(values.shape))
            strides = _strides(values.shape, element)
            _, *where = destination.of(target.field, self.placement)
            address = address_of(dense.reshape(-1).view(np.uint8))
            self.boxed.place(slice(None), address, strides, low, high, shape, element, *where)
        tools.tally.scattered(since)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideTask(LandingTask):
    """What stands outside of volumes, in boxes that lead out of them, where that is a number.

    Attributes
    ----------
    part : DatasetPart
        The dataset.
    rows : tuple of (int, ndarray of uint8)
        For each field of it, some elements of that number.
    placement : Placement
        The boxes' samples, and where they go.
    boxed : Boxed
        The boxes.
    """

    part: DatasetPart
    rows: tuple[tuple[int, Bytes], ...]
    placement: Placement
    boxed: Boxed

    def land(self, stored: Iterator[Any], destination: Destination, tools: Tools) -> None:
        """Write the number wherever a box leads out."""
        since = clock()
        for field, row in self.rows:
            _, *where = destination.of(field, self.placement)
            boxed, element = self.boxed, row.nbytes // int(self.boxed.sizes[-1])
            shape = np.array(self.part.shape)
            kernels.fill_outside(address_of(row), shape, boxed.offsets, boxed.sizes, element, boxed.origins, *where)
        tools.tally.scattered(since)


class BoxesOfPart:
    """The boxes of one dataset of one volume.

    # Guarantees: immutable; any thread may plan.

    Parameters
    ----------
    part : DatasetPart
        The dataset.
    layout_fields : tuple of FieldLayout
        All fields of a batch.
    space : BoxSpace
        All boxes.
    gap_nbytes : int
        Bytes between two chunks that are read along rather than skipped.
    """

    def __init__(
        self, part: DatasetPart, layout_fields: tuple[FieldLayout, ...], space: BoxSpace, gap_nbytes: int
    ) -> None:
        self._part, self._fields, self._gap = part, layout_fields, gap_nbytes
        self._sizes = np.array([len(along.offsets) for along in part.along], dtype=np.int64)
        self._offsets = np.zeros((len(part.along), int(self._sizes.max())), dtype=np.int64)
        for axis, along in enumerate(part.along):
            self._offsets[axis, : len(along.offsets)] = along.offsets
        apart = [(np.diff(along.offsets) != 1).any() for along in part.along]
        self._follow = np.array([not each for each in apart], dtype=np.int64)
        own = layout_fields[part.targets[0].field].pad
        pad = space.pad if own is None else own
        self._mode = {"edge": EDGE, "reflect": REFLECT}.get(str(pad), PLAIN)
        self._outside = number_outside(pad)
        self._programs = programs_of(part) if part.index is not None else ()

    def plan(self, placement: Placement, origins: Ints, task_nbytes: int) -> Iterator[Any]:
        """Cut boxes into tasks.

        Parameters
        ----------
        placement : Placement
            The samples, and where they go.
        origins : ndarray of int64
            The origin of each of them.
        task_nbytes : int
            Decoded bytes of one task, about.
        """
        begins = np.zeros((len(origins), len(self._part.along)), dtype=np.int64)
        for axis, along in enumerate(self._part.along):
            begins[:, axis] = along.begins(origins)
        boxed = Boxed(offsets=self._offsets, sizes=self._sizes, follow=self._follow, mode=self._mode, origins=begins)
        shape = np.array(self._part.shape)
        if self._outside is not None:
            first, last = boxed.ends
            out = np.flatnonzero(((first < 0) | (last >= shape)).any(axis=1))
            if len(out):
                rows = tuple((target.field, self._row_of(target.field)) for target in self._part.targets)
                some = replace(boxed, origins=boxed.origins[out])
                yield OutsideTask(part=self._part, rows=rows, placement=placement[out], boxed=some)
        if self._part.access == VIA_H5PY:
            for k in range(len(placement)):
                yield H5pyBoxTask(
                    part=self._part,
                    fields=self._fields,
                    placement=placement[k : k + 1],
                    boxed=replace(boxed, origins=boxed.origins[k : k + 1]),
                )
            return
        yield from self._plan_chunks(placement, boxed, shape, task_nbytes)

    def _row_of(self, field: int) -> Bytes:
        layout = self._fields[field]
        inner = math.prod(layout.row_shape) // math.prod(self._sizes.tolist())
        assert self._outside is not None
        return np.full(int(self._sizes[-1]) * inner, self._outside, dtype=layout.dtype).view(np.uint8)

    def _plan_chunks(self, placement: Placement, boxed: Boxed, shape: Ints, task_nbytes: int) -> Iterator[BoxTask]:
        index = self._part.index
        assert index is not None
        low, high = _spans(boxed, shape)
        number, box = _touched(low, high, np.array(index.chunk_shape), index.grid)
        if not self._follow.all():
            needed = self._needed(boxed, number, box, shape)
            number, box = number[needed], box[needed]
        by_chunk = np.argsort(number, kind="stable")
        number, box = number[by_chunk], box[by_chunk]
        first = np.flatnonzero(np.diff(number, prepend=-1))
        table = looked_up(index, number[first])
        table["low"], table["high"] = first, np.append(first[1:], len(number))
        table["piece"], table["skipped"] = np.zeros_like(first), np.zeros_like(first)
        if self._part.access == DIRECT:
            self._leave_out(table, low[box], high[box])
        order = np.argsort(table["offset"], kind="stable")
        table = {name: values[order] for name, values in table.items()}
        shared, ours = placement[box], replace(boxed, origins=boxed.origins[box])
        for cut in cut_by(np.maximum(table["nbytes"], self._part.chunk_nbytes), min(task_nbytes, TASK_NBYTES)):
            of_task: dict[str, Any] = {name: values[cut] for name, values in table.items()}
            of_task["edges"] = group_edges(of_task["offset"], of_task["nbytes"], self._gap)
            yield BoxTask(part=self._part, programs=self._programs, shared=shared, boxed=ours, **of_task)

    def _needed(self, boxed: Boxed, number: Ints, box: Ints, shape: Ints) -> NDArray[np.bool_]:
        """Tell which chunks hold an element that the box takes, where these do not follow one another."""
        index = self._part.index
        assert index is not None
        begins = np.stack(np.unravel_index(number, index.grid), axis=1) * index.chunk_shape
        first, last = boxed.ends
        needed = np.ones(len(number), dtype=bool)
        for axis in np.flatnonzero(self._follow == 0).tolist():
            taken = np.sort(self._offsets[axis, : self._sizes[axis]])
            from_origin = begins[:, axis] - boxed.origins[box, axis]
            ends = from_origin + index.chunk_shape[axis]
            inside = np.searchsorted(taken, from_origin) < np.searchsorted(taken, ends)
            leads_out = (first[box, axis] < 0) | (last[box, axis] >= shape[axis])
            needed &= inside | leads_out
        return needed

    def _leave_out(self, table: dict[str, Ints], low: Ints, high: Ints) -> None:
        """Read of chunks that nothing has to be decoded of only from the first element to the last that boxes need."""
        index = self._part.index
        assert index is not None
        begins = np.stack(np.unravel_index(table["number"], index.grid), axis=1) * index.chunk_shape
        least = np.minimum.reduceat(low, table["low"], axis=0) - begins
        most = np.maximum.reduceat(high, table["low"], axis=0) - 1 - begins
        strides = _strides(index.chunk_shape, self._part.stored_element_nbytes)
        least, most = np.maximum(least, 0), np.minimum(most, np.array(index.chunk_shape) - 1)
        begin, end = least @ strides, most @ strides + self._part.stored_element_nbytes
        stored = table["entry"] != MISSING
        table["skipped"] = np.where(stored, begin, 0)
        table["offset"] = np.where(stored, table["offset"] + begin, MISSING)
        table["nbytes"] = np.where(stored, end - begin, 0)


def _spans(boxed: Boxed, shape: Ints) -> tuple[Ints, Ints]:
    """Give the first element inside of a volume that each box needs along each axis, and the one behind the last."""
    first, last = boxed.ends
    low, high = np.clip(first, 0, shape - 1), np.clip(last, 0, shape - 1)
    if boxed.mode == REFLECT:
        low = np.minimum(low, np.where(last >= shape, 2 * (shape - 1) - last, low))
        high = np.maximum(high, np.where(first < 0, -first, high))
        far = (first <= -shape) | (last >= 2 * shape - 1)  # mirrored more than once
        low, high = np.where(far, 0, low), np.where(far, shape - 1, high)
    return np.maximum(low, 0), np.minimum(high, shape - 1) + 1


def _touched(low: Ints, high: Ints, chunk_shape: Ints, grid: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Give the number of each chunk that each box touches, and that box."""
    first, counts = low // chunk_shape, (high - 1) // chunk_shape - low // chunk_shape + 1
    touches = counts.prod(axis=1)
    box = np.repeat(np.arange(len(low)), touches)
    left = np.arange(len(box)) - np.repeat(np.cumsum(touches) - touches, touches)
    where = np.empty((len(box), len(chunk_shape)), dtype=np.int64)
    for axis in reversed(range(len(chunk_shape))):
        left, where[:, axis] = np.divmod(left, counts[box, axis])
    return np.ravel_multi_index(tuple((first[box] + where).T), grid).astype(np.int64), box


def _strides(shape: tuple[int, ...], element_nbytes: int) -> Ints:
    """Give the bytes from one element to the next along each axis of an array."""
    sizes = [element_nbytes, *reversed(shape[1:])]
    return np.array(list(itertools.accumulate(sizes, lambda a, b: a * b)), dtype=np.int64)[::-1].copy()


def _fill_of(part: DatasetPart, program: Program) -> Bytes:
    return next(target.fill for target in part.targets if target.field == program.field)
