"""Rows that h5stream cannot decode are read through h5py, under its lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.counters import clock
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.plan import Placement, cut_by
from h5stream.engine.slots import address_of
from h5stream.engine.tasks import Destination, LandingTask, Tools
from h5stream.storage.layout import DatasetPart, FieldLayout, Target

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class H5pyTask(LandingTask):
    """Rows of some chunks of one dataset part, ascending."""

    part: DatasetPart  # the dataset
    fields: tuple[FieldLayout, ...]  # all fields of a batch
    placement: Placement  # the rows, each with its number inside its chunk, and where they go
    number: Ints  # (n,): the chunks that they lie in
    edges: Ints  # (n + 1,): where the rows of each chunk begin in the placement, and where the last end

    def split(self) -> Iterator[H5pyTask]:
        """Return one task for each chunk."""
        for k in range(len(self.number)):
            low, high = self.edges[k : k + 2].tolist()
            rows = self.placement[low:high]
            yield replace(self, placement=rows, number=self.number[k : k + 1], edges=np.array([0, high - low]))

    def land(self, stored: Iterator[Any], destination: Destination, tools: Tools) -> None:
        """Read the rows of one chunk after the other, from the first that is wanted to the last, and scatter them."""
        for k, number in enumerate(self.number.tolist()):
            if tools.stopped():
                return
            wanted = self.placement[int(self.edges[k]) : int(self.edges[k + 1])]
            first, last = int(wanted.rows[0]), int(wanted.rows[-1])
            since = clock()
            rows = tools.h5py.rows(self.part, number * self.part.chunk_rows + first, last - first + 1)
            since = tools.tally.via_h5py(since, rows.nbytes)
            for target in self.part.targets:
                self._scatter(target, rows, first, wanted, destination)
            tools.tally.scattered(since)

    def _scatter(self, target: Target, rows: Any, first: int, wanted: Placement, destination: Destination) -> None:
        """Put a field of rows, of which the first is row `first` of its chunk, in their places."""
        layout = self.fields[target.field]
        if layout.kind == "object":
            destination.put(target.field, wanted, (rows[row - first] for row in wanted.rows.tolist()))
            return
        dense = np.ascontiguousarray(target.taken(rows), dtype=layout.dtype).reshape(-1).view(np.uint8)
        if dense.nbytes == 0:
            return
        stride = layout.placed_nbytes
        whole = np.array([[0, 0, stride]], dtype=np.int64)
        kernels.scatter(address_of(dense) - first * stride, stride, whole, *destination.of(target.field, wanted))


class RowsThroughH5py:
    """The rows of a dataset part that h5py reads."""

    def __init__(self, part: DatasetPart, fields: tuple[FieldLayout, ...]) -> None:
        self._part, self._fields = part, fields

    def plan(self, placement: Placement, task_nbytes: int) -> Iterator[H5pyTask]:
        """Cut rows of the part, ascending, into tasks of whole chunks and about as many bytes."""
        placement, edges, numbers = placement.each_row().ascending().in_chunks(self._part)
        spans = placement.rows[edges[1:] - 1].astype(np.int64) - placement.rows[edges[:-1]] + 1
        for cut in cut_by(np.maximum(1, spans * self._part.stored_row_nbytes), min(task_nbytes, TASK_NBYTES)):
            low, high = int(edges[cut.start]), int(edges[cut.stop])
            yield H5pyTask(
                part=self._part,
                fields=self._fields,
                placement=placement[low:high],
                number=numbers[cut],
                edges=edges[cut.start : cut.stop + 1] - low,
            )
