"""What stands where the steps of a sequence lead out of its segment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.counters import clock
from h5stream.engine.plan import Placement
from h5stream.engine.slots import address_of
from h5stream.engine.tasks import Destination, LandingTask, Tools
from h5stream.storage.layout import FieldLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingTask(LandingTask):
    """Places of some fields that no stored row goes to."""

    padding: Padding  # what stands there
    fields: tuple[int, ...]  # the fields
    placement: Placement  # the places

    def land(self, stored: Iterator[Any], destination: Destination, tools: Tools) -> None:
        """Write the number to the places."""
        since = clock()
        for field in self.fields:
            row = self.padding.rows[field]
            if row.nbytes:
                whole = np.array([[0, 0, row.nbytes]], dtype=np.int64)
                destination.scatter(field, self.placement, address_of(row), 0, whole)
        tools.tally.scattered(since)


class Padding:
    """A row of the padding number for each field that has one.

    Parameters
    ----------
    fields : sequence of FieldLayout
        The fields.
    numbers : sequence of float or None
        What stands in every element of each.
    """

    def __init__(self, fields: Sequence[FieldLayout], numbers: Sequence[float | None]) -> None:
        self.rows = [
            np.zeros(0, dtype=np.uint8) if number is None else _row_of(field, number)
            for field, number in zip(fields, numbers, strict=True)
        ]

    def plan(self, placement: Placement, fields: Sequence[int]) -> Iterator[PaddingTask]:
        """Return the task that fills places of some fields."""
        yield PaddingTask(padding=self, fields=tuple(fields), placement=placement)


def _row_of(field: FieldLayout, number: float) -> NDArray[np.uint8]:
    count = math.prod(field.row_shape) // len(field.steps or (0,))
    if field.kind != "array":
        return np.zeros(count * field.dtype.itemsize, dtype=np.uint8)
    return np.full(count, number, dtype=field.dtype).view(np.uint8)
