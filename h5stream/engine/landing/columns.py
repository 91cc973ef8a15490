"""Fields that come from no dataset: values in memory, numbers of samples, what a part has once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5stream.engine.counters import clock
from h5stream.engine.plan import Placement
from h5stream.engine.slots import address_of
from h5stream.engine.tasks import Destination, LandingTask, Tools
from h5stream.samples.columns import Column
from h5stream.storage.layout import FieldLayout, SampleLayout

TASK_SAMPLES = 65_536
"""Samples of one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsTask(LandingTask):
    """Some samples of the fields that come from no dataset."""

    columns: Columns  # the fields
    placement: Placement  # the samples, and where they go

    def land(self, stored: Iterator[Any], destination: Destination, tools: Tools) -> None:
        """Work the values out, and copy them to their places."""
        since = clock()
        self.columns.copy(self.placement.each_row(), destination)
        tools.tally.scattered(since)


class Columns:
    """The fields of a layout that come from no dataset.

    # Guarantees: immutable; any thread may plan and copy.
    """

    def __init__(self, layout: SampleLayout) -> None:
        self._columns: list[tuple[int, FieldLayout, Column]] = [
            (number, layout.fields[number], column) for number, column in layout.columns
        ]
        self._anchors_of = layout.anchors_of

    def plan(self, placement: Placement) -> Iterator[ColumnsTask]:
        """Cut samples into tasks."""
        if self._columns:
            for some in placement.in_steps(TASK_SAMPLES):
                yield ColumnsTask(columns=self, placement=some)

    def copy(self, placement: Placement, destination: Destination) -> None:
        """Put the values of samples in their places."""
        numbers = placement.rows.astype(np.int64)
        rows = self._anchors_of(numbers)
        for field, layout, column in self._columns:
            values = column.of(numbers, rows, placement.drawn)
            if layout.kind == "object":
                destination.put(field, placement, values)
                continue
            dense = np.ascontiguousarray(values, dtype=layout.dtype).reshape(-1).view(np.uint8)
            nbytes = layout.row_nbytes
            if nbytes:
                counted = Placement(
                    rows=np.arange(len(placement), dtype=placement.rows.dtype),
                    batch=placement.batch,
                    within=placement.within,
                )
                whole = np.array([[0, 0, nbytes]], dtype=np.int64)
                destination.scatter(field, counted, address_of(dense), nbytes, whole)
