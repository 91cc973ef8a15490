"""Fields that come from no dataset: values in memory, numbers of samples, what a part has once; and padding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.plan import Placement
from h5stream.engine.tasks import Destination, Task, copying
from h5stream.order.permutation import SAMPLES, words_of
from h5stream.samples.columns import Column
from h5stream.samples.space import number_outside
from h5stream.storage.layout import FieldLayout, SampleLayout

TASK_SAMPLES = 65_536
"""Samples of one task."""


class Columns:
    """The fields of a layout that come from no dataset, and what stands where no stored row goes.

    # Guarantees: immutable; any thread may plan and copy.
    """

    def __init__(self, layout: SampleLayout) -> None:
        self._columns: list[tuple[int, FieldLayout, Column]] = [
            (number, layout.fields[number], column) for number, column in layout.columns
        ]
        self._anchors_of = layout.anchors_of
        self._padding = [_padding_row(field, number_outside(layout.pad_of(field))) for field in layout.fields]

    def plan(self, placement: Placement) -> Iterator[Task]:
        """Cut samples into tasks."""
        if self._columns:
            for some in placement.in_steps(TASK_SAMPLES):
                yield copying(some, self._copy)

    def _copy(self, placement: Placement, destination: Destination) -> None:
        """Put the values of samples in their places."""
        placement = placement.each_row()
        numbers = placement.rows.astype(np.int64)
        rows = self._anchors_of(numbers)
        counted = replace(placement, rows=np.arange(len(placement), dtype=placement.rows.dtype))
        for field, layout, column in self._columns:
            values = column.of(numbers, rows)
            if column.has_seeds:
                values = np.stack([values, words_of(values, *placement.drawn, SAMPLES).view(np.int64)], axis=1)
            if layout.kind == "object":
                destination.put(field, placement, values)
                continue
            dense = np.ascontiguousarray(values, dtype=layout.dtype).reshape(-1).view(np.uint8)
            destination.scatter_whole(field, counted, dense, layout.row_nbytes)

    def padding(self, placement: Placement, fields: Sequence[int]) -> Task:
        """Return the task that fills places of some fields that no stored row goes to."""

        def fill(placement: Placement, destination: Destination) -> None:
            for field in fields:
                destination.scatter_whole(field, placement, self._padding[field], 0)

        return copying(placement, fill)


def _padding_row(field: FieldLayout, number: float | None) -> NDArray[np.uint8]:
    """Return what stands outside of a segment, in each element of a row; nothing where that is no number."""
    if number is None:
        return np.zeros(0, dtype=np.uint8)
    count = math.prod(field.row_shape) // len(field.steps or (0,))
    if field.kind != "array":
        return np.zeros(count * field.dtype.itemsize, dtype=np.uint8)
    return np.full(count, number, dtype=field.dtype).view(np.uint8)
