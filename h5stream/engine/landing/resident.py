"""Small datasets, such as labels, are read once and stay in memory: their chunks rarely line up with the blocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled.instructions import STREAM_NBYTES
from h5stream.engine import kernels
from h5stream.engine.counters import Tally, clock
from h5stream.engine.footprint import FIELD_ALIGNMENT, TASK_NBYTES
from h5stream.engine.plan import Placement
from h5stream.engine.reader import RowReader
from h5stream.engine.slots import SlotFormat, address_of, map_memory
from h5stream.engine.tasks import NOTHING, Destination, Ranges, Tools
from h5stream.errors import H5StreamError
from h5stream.order.epoch import Window
from h5stream.samples.box_space import BoxSpace
from h5stream.storage.layout import SampleLayout

KEEP_NBYTES = 16 * 1024 * 1024
"""Largest dataset that stays in memory, in bytes as the batches hold it: two million int64 labels, or a small file in
whole."""

KEEP_SHARE = 8
"""Such datasets take at most one part in this many of the memory budget."""

TASK_ROWS = 65_536
"""Rows of one task."""

GATHERED_NBYTES = 4 * 1024 * 1024
"""Bytes of batches that are gathered at a time where all data is in memory: enough to share the cost of a window, few
enough to come at once. Batches of 256 rows of 1 KiB: 161 us each over an epoch with 1 MiB, 112 with 2, 108 with 4; the
first comes after 1.3, 1.3 and 1.9 ms, and those behind it after 140, 90 and 70 us."""

ASKING_ROWS = 65_536
"""Rows of an epoch that the asking thread gathers by itself where all data is in memory: waking another costs more. The
order of more rows takes milliseconds, which readers work out ahead."""


def datasets_to_keep(layout: SampleLayout, memory_budget: int) -> tuple[int, ...]:
    """Choose the datasets that are read once, smallest first while they fit."""
    if isinstance(layout.space, BoxSpace):
        return ()
    sizes = []
    for number, parts in enumerate(layout.datasets):
        fields = [layout.fields[target.field] for target in parts[0].targets]
        if all(field.kind not in ("object", "ragged") for field in fields):
            sizes.append((layout.rows_of(number) * sum(field.placed_nbytes for field in fields), number))
    chosen, left = [], memory_budget // KEEP_SHARE
    for nbytes, number in sorted(sizes):
        if nbytes > min(KEEP_NBYTES, left):
            break
        chosen.append(number)
        left -= nbytes
    return tuple(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentTask:
    """Rows of the datasets in memory, in any order.

    Attributes
    ----------
    datasets : ResidentDatasets
        Where they are.
    fields : tuple of int
        The fields that are brought.
    placement : Placement
        The rows, and where they go.
    """

    datasets: ResidentDatasets
    fields: tuple[int, ...]
    placement: Placement

    def ranges(self) -> Ranges:
        """Give nothing: the rows are in memory."""
        return NOTHING

    def split(self) -> Iterator[ResidentTask]:
        """Give itself: nothing in it can fail alone."""
        yield self

    def land(self, stored: Iterator[Any], destination: Destination, tools: Tools) -> None:
        """Copy the rows to their places."""
        since = clock()
        self.datasets.copy(self.fields, self.placement, destination)
        tools.tally.scattered(since)


class ResidentDatasets:
    """The rows of small datasets, in memory, as the batches hold them.

    # Guarantees: `load` reads once, under `_lock`, by whichever thread calls first; afterwards everything is read-only.

    Parameters
    ----------
    reader : RowReader
        Reads them.
    numbers : tuple of int
        Which datasets of its layout.
    """

    def __init__(self, reader: RowReader, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        self._reader = reader
        self._lock = threading.Lock()
        self._memory: NDArray[np.uint8] | None = None
        self._row_nbytes = _row_nbytes(reader.layout, numbers)
        # Packed as one batch of all rows, so that the ordinary plan fills it.
        self._format = resident_format(reader.layout, numbers)

    @property
    def whole(self) -> bool:
        """Whether nothing else is ever read."""
        return len(self.numbers) == len(self._reader.layout.datasets)

    @property
    def needs_no_reader(self) -> bool:
        """Whether all is in memory already, and is so little that a batch is gathered faster than a thread is woken."""
        return self._memory is not None and self.whole and self._format.rows <= ASKING_ROWS

    def load(self) -> Tally | None:
        """Read the rows, once; gives what that took, and None once they are there.

        What cannot be read in whole is streamed instead, so that an error finds the batches it concerns.
        """
        with self._lock:
            if self._memory is not None or not self.numbers:
                return None
            tally = Tally()
            try:
                self._memory = self._read(tally)
            except H5StreamError:
                self.numbers = ()
            return tally

    def _read(self, tally: Tally) -> NDArray[np.uint8]:
        layout = self._reader.layout
        memory = map_memory(self._format.nbytes)
        destination = Destination(
            slots=np.array([address_of(memory)], dtype=np.int64),
            format=self._format,
            row_nbytes=self._row_nbytes,
        )
        tools = self._reader.tools(tally)
        for number in self.numbers:
            rows = np.arange(layout.rows_of(number), dtype=np.int64)
            placement = Placement.of(Window(rows=rows, batch=np.zeros_like(rows), within=rows))
            for task in self._reader.plan_rows(placement, TASK_NBYTES, [number]):
                task.land(tools.read(task.ranges()), destination, tools)
        return memory

    def plan(self, placement: Placement, numbers: Sequence[int]) -> Iterator[ResidentTask]:
        """Cut rows of some of the datasets into tasks."""
        if fields := _fields_of(self._reader.layout, numbers):
            for some in placement.in_steps(TASK_ROWS):
                yield ResidentTask(datasets=self, fields=fields, placement=some)

    def copy(self, fields: Sequence[int], placement: Placement, destination: Destination) -> None:
        """Copy rows of some fields to their places."""
        assert self._memory is not None
        base = address_of(self._memory)
        for field in fields:
            nbytes = self._row_nbytes[field]
            if nbytes:
                whole = np.array([[0, 0, nbytes]], dtype=np.int64)
                source = base + self._format.offsets[field]
                if placement.counts is None and nbytes >= STREAM_NBYTES:
                    # No cache holds rows that lie anywhere: they are asked for ahead, as those of a mapping are.
                    one, rows = np.zeros(1, dtype=np.int64), self._format.rows
                    kernels.gather(source, one, rows, 0, nbytes, 0, whole, *destination.of(field, placement))
                else:
                    destination.scatter(field, placement, source, nbytes, whole)


def _fields_of(layout: SampleLayout, numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(target.field for number in numbers for target in layout.datasets[number][0].targets)


def _row_nbytes(layout: SampleLayout, numbers: tuple[int, ...]) -> tuple[int, ...]:
    fields = _fields_of(layout, numbers)
    return tuple(f.placed_nbytes if number in fields else 0 for number, f in enumerate(layout.fields))


def resident_format(layout: SampleLayout, numbers: tuple[int, ...]) -> SlotFormat:
    """Give how all rows of some datasets are packed."""
    rows = {target.field: layout.rows_of(n) for n in numbers for target in layout.datasets[n][0].targets}
    offsets, end = [], 0
    for field, nbytes in enumerate(_row_nbytes(layout, numbers)):
        offsets.append(end)
        end += -(-nbytes * rows.get(field, 0) // FIELD_ALIGNMENT) * FIELD_ALIGNMENT
    return SlotFormat(rows=layout.rows, offsets=tuple(offsets), nbytes=max(end, FIELD_ALIGNMENT))
