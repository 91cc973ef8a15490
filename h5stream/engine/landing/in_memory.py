"""Rows that are in memory as batches hold them, and how they come from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.counters import clock
from h5stream.engine.footprint import FIELD_ALIGNMENT
from h5stream.engine.plan import Placement
from h5stream.engine.slots import SlotFormat, address_of, map_memory
from h5stream.engine.tasks import Destination, LandingTask, Tools
from h5stream.order.places import is_ascending
from h5stream.storage.layout import DatasetPart, SampleLayout
from h5stream.storage.many_files import FilesIdentity

ASKED_FOR_NBYTES = 16
CACHED_NBYTES = 8 * 1024 * 1024
"""Rows of this many bytes are asked for ahead in any order, shorter ones where they are not ascending and all of them
take more than a cache holds. Rows of 8 bytes, two threads, 256 MiB, nanoseconds: ascending 4.8 in place of 2.5, in
random order 5.6 in place of 9.7; of 4 MiB in random order 2.6 in place of 1.4."""


def must_be_read(layout: SampleLayout, parts: tuple[DatasetPart, ...]) -> bool:
    """Tell whether a dataset may not stay in memory: that one of many small files has changed is seen by reading it."""
    return parts is layout.leading and any(isinstance(layout.files[part.file], FilesIdentity) for part in parts)


class RowsInMemory:
    """Rows of some datasets in memory, each field's one behind the other as batches hold them."""

    def __init__(self, layout: SampleLayout, rows: dict[int, int]) -> None:
        self._row_nbytes = _row_nbytes(layout, tuple(rows))
        # Packed as one batch of all rows, so that the ordinary plan fills it.
        self._format = format_of(layout, rows)
        self._memory: NDArray[np.uint8] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that there is room for."""
        return self._format.nbytes

    def map(self) -> None:
        """Map the memory; it takes none before it is written."""
        self._memory = map_memory(self._format.nbytes)

    def drop(self) -> None:
        """Let go of the memory."""
        self._memory = None

    @property
    def destination(self) -> Destination:
        """The memory as a batch that rows are brought to: its first, at the place of their number."""
        assert self._memory is not None
        slots = np.array([address_of(self._memory)], dtype=np.int64)
        return Destination(slots=slots, format=self._format, row_nbytes=self._row_nbytes)

    def nbytes_of(self, fields: Sequence[int]) -> int:
        """Return the bytes of a row of some fields."""
        return max(1, sum(self._row_nbytes[field] for field in fields))

    def _is_far(self, placement: Placement) -> bool:
        return self.nbytes > CACHED_NBYTES and not is_ascending(placement.rows)

    def copy(self, fields: Sequence[int], placement: Placement, destination: Destination) -> None:
        """Copy rows of some fields to their places."""
        assert self._memory is not None
        base = address_of(self._memory)
        for field in fields:
            nbytes = self._row_nbytes[field]
            if nbytes:
                whole = np.array([[0, 0, nbytes]], dtype=np.int64)
                source = base + self._format.offsets[field]
                if placement.counts is None and (nbytes >= ASKED_FOR_NBYTES or self._is_far(placement)):
                    # No cache holds rows that lie anywhere: they are asked for ahead, as those of a mapping are.
                    kernels.gather_any(source, *destination.of(field, placement))
                else:
                    destination.scatter(field, placement, source, nbytes, whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherTask(LandingTask):
    """Rows that are in memory, in any order."""

    memory: RowsInMemory  # where they are
    fields: tuple[int, ...]  # the fields that are brought
    placement: Placement  # the rows, and where they go

    def land(self, stored: Iterator[Any], destination: Destination, tools: Tools) -> None:
        """Copy the rows to their places."""
        since = clock()
        self.memory.copy(self.fields, self.placement, destination)
        counts = self.placement.counts
        rows = len(self.placement) if counts is None else int(counts.sum())
        tools.tally.gathered(since, rows * self.memory.nbytes_of(self.fields))


def fields_of(layout: SampleLayout, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the fields that some datasets fill."""
    return tuple(target.field for number in numbers for target in layout.datasets[number][0].targets)


def _row_nbytes(layout: SampleLayout, numbers: tuple[int, ...]) -> tuple[int, ...]:
    fields = fields_of(layout, numbers)
    return tuple(f.placed_nbytes if number in fields else 0 for number, f in enumerate(layout.fields))


def format_of(layout: SampleLayout, rows: Mapping[int, int]) -> SlotFormat:
    """Return how so many rows of some datasets are packed."""
    of_field = {target.field: rows[n] for n in rows for target in layout.datasets[n][0].targets}
    offsets, end = [], 0
    for field, nbytes in enumerate(_row_nbytes(layout, tuple(rows))):
        offsets.append(end)
        end += -(-nbytes * of_field.get(field, 0) // FIELD_ALIGNMENT) * FIELD_ALIGNMENT
    return SlotFormat(rows=layout.rows, offsets=tuple(offsets), nbytes=max(end, FIELD_ALIGNMENT))
