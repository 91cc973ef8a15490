"""Decoded rows that stay in memory: what fits is decoded once, and later epochs gather it from there.

A chunk that is decoded for the first time lands in memory whole, as batches hold its rows, and from there in the
batches that want some of them. Where not all of a dataset fits, its first rows are kept, of which each window has its
share. Loaders of one process that read the same share it: of the rows that one validates with, those chunks are there
already that the training loader decoded.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.counters import clock
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.landing.in_memory import GatherTask, RowsInMemory, fields_of, must_be_read
from h5stream.engine.plan import Placement
from h5stream.engine.tasks import NOTHING, Destination, Ranges, Task, Tools, Way
from h5stream.order.places import Places, pieces, place_dtype
from h5stream.samples.box_space import BoxSpace
from h5stream.storage.layout import DECODED, VIA_H5PY, DatasetPart, SampleLayout

LEAST_SHARE = 8
"""A dataset is kept in part only if one part in so many of it fits."""


def rows_to_keep(layout: SampleLayout, numbers: tuple[int, ...], nbytes: int) -> dict[int, int]:
    """Choose how many rows of which datasets stay in memory once they are decoded, smallest first while they fit."""
    if isinstance(layout.space, BoxSpace):
        return {}
    sizes = []
    for number, parts in enumerate(layout.datasets):
        fields = [layout.fields[target.field] for target in parts[0].targets]
        row_nbytes = sum(field.placed_nbytes for field in fields)
        if must_be_read(layout, parts):
            continue
        is_plain = all(field.kind != "object" and field.images is None for field in fields)
        if number not in numbers and is_plain and row_nbytes and any(is_decoded(part) for part in parts):
            sizes.append((layout.rows_of(number) * row_nbytes, row_nbytes, number))
    chosen = {}
    for wanted, row_nbytes, number in sorted(sizes):
        fitting = min(wanted, nbytes)
        if fitting and fitting * LEAST_SHARE >= wanted:
            chosen[number] = fitting // row_nbytes
            nbytes -= fitting
    return chosen


def keeping_of(layout: SampleLayout, rows: Mapping[int, int]) -> Keeping | None:
    """Return what stays in memory of some datasets: what another loader of this process has, or memory of its own.

    # Guarantees: called by any thread; two that begin at once may keep the same rows each.
    """
    key = os.getpid(), _named(layout)
    known = _SHARED.get(key)
    keeping = None if known is None else known()
    if keeping is not None and all(keeping.rows.get(number, 0) >= count for number, count in rows.items()):
        return keeping
    if rows:
        keeping = Keeping(layout, rows)
        for gone in [one for one, kept in list(_SHARED.items()) if kept() is None]:
            _SHARED.pop(gone, None)
        _SHARED[key] = weakref.ref(keeping)
        return keeping
    return None


_SHARED: dict[tuple[int, Hashable], weakref.ref[Keeping]] = {}


def _named(layout: SampleLayout) -> Hashable:
    """Name datasets and fields, so that what is read of them is the same where the name is."""
    parts = [part for every in layout.datasets for part in every]
    if any(len(part.objects) or part.object_edges is not None for part in parts):
        return id(layout.datasets)
    return layout.files, tuple(
        (
            (part.file, part.path, part.rows, part.row_start, part.chunk_rows, str(part.columns)),
            tuple((t.field, t.member, t.stacked, str(layout.fields[t.field].dtype)) for t in part.targets),
        )
        for part in parts
    )


def is_decoded(part: DatasetPart) -> bool:
    """Tell whether rows of a part cost more than a copy."""
    return part.access in (DECODED, VIA_H5PY) and part.heap is None and part.chunk_rows > 0 and part.rows > 0


class Keeping(RowsInMemory):
    """What stays in memory of some datasets, and which of their chunks are there.

    # Guarantees: any thread may fill, ask and copy. Who fills a chunk writes the bytes that any other would write, and
    says so when all of it is there. Memory is touched as it is filled.
    """

    def __init__(self, layout: SampleLayout, rows: Mapping[int, int]) -> None:
        super().__init__(layout, dict(rows))
        self.rows = rows
        self._layout = layout  # by whose datasets it may be named
        self.map()
        self.filled: dict[tuple[int, int], NDArray[np.bool_]] = {}
        self._chunks = {number: self._chunks_of(number, layout.datasets[number]) for number in rows}

    def _chunks_of(self, number: int, parts: tuple[DatasetPart, ...]) -> _Chunks:
        counts = [max(0, _whole_chunks(part, self.rows[number])) if is_decoded(part) else 0 for part in parts]
        edges = np.append(0, np.cumsum(counts))
        filled = np.zeros(edges[-1], dtype=bool)
        self.filled |= {
            (number, k): filled[low:high]
            for k, (part, (low, high)) in enumerate(zip(parts, itertools.pairwise(edges.tolist()), strict=True))
            if is_decoded(part)
        }
        return _Chunks(
            filled=filled,
            first=edges[:-1],
            count=np.array(counts),
            chunk_rows=np.array([max(1, part.chunk_rows) for part in parts]),
            row_start=np.array([part.row_start for part in parts]),
            is_all=all(n * max(1, part.chunk_rows) >= part.rows for n, part in zip(counts, parts, strict=True)),
        )

    def has(self, number: int, placement: Placement) -> bool:
        """Tell whether rows of a dataset, in any order, are all there; spans only where all of the dataset is."""
        chunks = self._chunks.get(number)
        if chunks is None:
            return False
        if chunks.is_all and chunks.filled.all():
            return True
        return placement.counts is None and chunks.have(placement.rows)

    def gathered(self, numbers: Sequence[int], placement: Placement, task_nbytes: int) -> Iterator[Task]:
        """Cut rows of datasets that are there, in any order, into tasks of about as many bytes."""
        fields = fields_of(self._layout, numbers)
        for some in placement.in_steps(max(1, task_nbytes // self.nbytes_of(fields))):
            yield GatherTask(memory=self, fields=fields, placement=some)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunks:
    """Which chunks of a dataset are there, those of one part behind those of the other."""

    filled: NDArray[np.bool_]  # whether each is
    first: NDArray[np.int64]  # first, count: for each part, its first chunk in `filled`, and how many there is room for
    count: NDArray[np.int64]
    chunk_rows: NDArray[np.int64]  # chunk_rows, row_start: for each part, the rows of a chunk, and its first row
    row_start: NDArray[np.int64]
    is_all: bool  # whether there is room for all rows

    def have(self, rows: Places) -> bool:
        """Tell whether the chunks of all these rows are there."""
        for some in pieces(len(rows)):
            of = np.searchsorted(self.row_start, rows[some], side="right") - 1 if len(self.first) > 1 else 0
            chunk = (rows[some] - self.row_start[of]) // self.chunk_rows[of]
            if not ((chunk < self.count[of]).all() and self.filled[self.first[of] + chunk].all()):
                return False
        return True


def _whole_chunks(part: DatasetPart, rows: int) -> int:
    """Return how many of a part's chunks lie within the first rows of a dataset."""
    inside = min(part.rows, rows - part.row_start)
    return -(-inside // part.chunk_rows) if inside == part.rows else inside // part.chunk_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FillTask:
    """Rows of chunks that are decoded into memory first, whole."""

    kept: KeptRows  # the part
    keeping: Keeping  # the memory
    tasks: tuple[Task, ...]  # what brings the chunks there
    chunks: NDArray[np.int64]  # their numbers
    placement: Placement  # the rows that the window wants of them, and where they go

    def ranges(self) -> Ranges:
        """Return what is read, where that is known for all of it at once."""
        return self.tasks[0].ranges() if len(self.tasks) == 1 else NOTHING

    def split(self) -> Iterator[Task]:
        """Give tasks that keep nothing: one for each chunk."""
        for task in self.kept.way.plan(self.placement, TASK_NBYTES):
            yield from task.split()

    def land(self, stored: Iterator[Any], destination: Destination, tools: Tools) -> None:
        """Bring the chunks to memory, and the wanted rows to their places."""
        filled = self.keeping.filled[self.kept.key]
        for task in self.tasks if not filled[self.chunks].all() else ():
            task.land(stored if len(self.tasks) == 1 else tools.read(task.ranges()), self.keeping.destination, tools)
        if tools.stopped():  # perhaps not all is there
            return
        since = clock()
        filled[self.chunks] = True
        if len(self.placement):
            self.keeping.copy(self.kept.fields, self.placement, destination)
        tools.tally.scattered(since)


class KeptRows:
    """The rows of a dataset part, of which those of chunks that were decoded before are in memory."""

    def __init__(self, way: Way, part: DatasetPart, key: tuple[int, int], keeping: Keeping) -> None:
        self.way, self.part, self.key, self._keeping = way, part, key, keeping
        self.fields = tuple(target.field for target in part.targets)

    def plan(self, placement: Placement, task_nbytes: int) -> Iterator[Task]:
        """Cut rows of the part, ascending, into tasks of about as many bytes."""
        part, filled = self.part, self._keeping.filled[self.key]
        placement = placement.cut_every(part.chunk_rows, part.row_start).ascending()
        _, edges, chunks = placement.in_chunks(part)
        kept = int(np.searchsorted(chunks, len(filled)))  # what lies behind is not kept
        is_there = filled[chunks[:kept]]
        # As they lie, not picked out: copies of the rows would take as much memory as the plan.
        cuts = np.concatenate([[0], np.flatnonzero(np.diff(is_there)) + 1, [kept]]).tolist()
        for low, high in itertools.pairwise(cuts):
            if low == high:
                continue
            if is_there[low]:
                yield from self._keeping.gathered(self.key[:1], placement[edges[low] : edges[high]], task_nbytes)
            else:
                yield from self._filled(placement, chunks[low:high], edges[low : high + 1])
        if kept < len(chunks):
            yield from self.way.plan(placement[edges[kept] :], task_nbytes)

    def _filled(self, placement: Placement, chunks: NDArray[np.int64], edges: NDArray[np.int64]) -> Iterator[Task]:
        part = self.part
        at_once = max(1, TASK_NBYTES // max(1, part.chunk_rows * part.stored_row_nbytes))
        for low in range(0, len(chunks), at_once):
            some = chunks[low : low + at_once]
            first = part.row_start + some * part.chunk_rows
            counts = np.minimum(part.chunk_rows, part.row_start + part.rows - first)
            kind = place_dtype(int(first[-1] + counts[-1]))
            rows: Places = first.astype(kind)
            whole = Placement(rows=rows, batch=np.zeros_like(rows), within=rows, counts=counts.astype(kind))
            yield FillTask(
                kept=self,
                keeping=self._keeping,
                tasks=tuple(self.way.plan(whole, TASK_NBYTES)),
                chunks=some,
                placement=placement[int(edges[low]) : int(edges[min(low + at_once, len(chunks))])],
            )
