"""Fields that come from no dataset, and padding."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.plan.tasks import Destination, Placement, Task, copying
from h5stream.order.draws import words_of
from h5stream.order.places import SAMPLES
from h5stream.samples.space import number_outside
from h5stream.storage.decode.small_floats import held_as
from h5stream.storage.layout.layout import FieldLayout, SampleLayout

TASK_SAMPLES = 65_536
"""Samples of one task that brings fields which come from no dataset."""


def plan_columns(layout: SampleLayout, placement: Placement) -> Iterator[Task]:
    """Cut samples into tasks that bring fields which come from no dataset: values in memory, numbers of samples."""
    for step in placement.in_steps(TASK_SAMPLES) if layout.columns else ():
        yield copying(step, functools.partial(_copy_columns, layout))


def _copy_columns(layout: SampleLayout, placement: Placement, destination: Destination) -> None:
    """Put the values of samples in their places."""
    placement = placement.each_row()
    numbers = placement.rows.astype(np.int64)
    rows = layout.anchors_of(numbers)
    counted = replace(placement, rows=np.arange(len(placement), dtype=placement.rows.dtype))
    for number, column in layout.columns:
        field, values = layout.fields[number], column.of(numbers, rows)
        if column.has_seeds:
            values = np.stack([values, words_of(values, *placement.drawn, SAMPLES).view(np.int64)], axis=1)
        if field.kind == "object":
            destination.put(number, placement, values)
            continue
        dense = np.ascontiguousarray(values, dtype=field.dtype).reshape(-1).view(np.uint8)
        destination.scatter_whole(number, counted, dense, field.row_nbytes)


def padding(layout: SampleLayout, placement: Placement, fields: Sequence[int]) -> Task:
    """Return the task that fills places of some fields that no stored row goes to."""
    are_objects = {number: layout.fields[number].kind == "object" for number in fields}
    rows = [(number, _padding_row(layout, number)) for number in fields if not are_objects[number]]
    values = [(number, _padding_value(layout.fields[number])) for number in fields if are_objects[number]]

    def fill(placement: Placement, destination: Destination) -> None:
        for number, row in rows:
            destination.scatter_whole(number, placement, row, 0)
        for number, value in values:
            destination.put(number, placement, itertools.repeat(value, len(placement)))

    return copying(placement, fill)


def _padding_value(field: FieldLayout) -> bytes | np.ndarray:
    """Return what stands outside of a segment in a row of values of variable length: a value of none, an empty text."""
    empty, shape = b"" if field.items is None else np.empty(0, field.items), field.row_shape[1:]
    if not shape:
        return empty
    row = np.empty(shape, dtype=object)
    for where in np.ndindex(shape):
        row[where] = empty
    return row


def _padding_row(layout: SampleLayout, number: int) -> NDArray[np.uint8]:
    """Return the padding outside of a segment, for each element of a row; empty if it is no number."""
    field = layout.fields[number]
    value = number_outside(layout.pad_of(field))
    if value is None:
        return np.zeros(0, dtype=np.uint8)
    count = math.prod(field.row_shape) // field.places
    if field.kind != "array":
        return np.zeros(count * field.dtype.itemsize, dtype=np.uint8)
    return np.full(count, held_as(value, field.dtype)).view(np.uint8)
