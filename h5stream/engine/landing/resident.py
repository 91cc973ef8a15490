"""Small datasets, such as labels, are read once and stay in memory: their chunks rarely line up with the blocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from h5stream.engine.counters import Tally
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.landing.in_memory import GatherTask, RowsInMemory, fields_of, format_of, must_be_read
from h5stream.engine.plan import Placement
from h5stream.engine.reader import RowReader
from h5stream.engine.slots import SlotFormat
from h5stream.errors import H5StreamError
from h5stream.order.places import PIECE, Places, place_dtype
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
        if must_be_read(layout, parts):
            continue
        if all(field.kind not in ("object", "ragged") for field in fields):
            sizes.append((layout.rows_of(number) * sum(field.placed_nbytes for field in fields), number))
    chosen, left = [], memory_budget // KEEP_SHARE
    for nbytes, number in sorted(sizes):
        if nbytes > min(KEEP_NBYTES, left):
            break
        chosen.append(number)
        left -= nbytes
    return tuple(chosen)


class ResidentDatasets(RowsInMemory):
    """The rows of small datasets, in memory, as the batches hold them.

    # Guarantees: `load` reads once, under `_lock`, by whichever thread calls first; afterwards everything is read-only.
    """

    def __init__(self, reader: RowReader, numbers: tuple[int, ...]) -> None:
        super().__init__(reader.layout, {number: reader.layout.rows_of(number) for number in numbers})
        self.numbers = numbers
        self._reader = reader
        self._lock, self._is_read = threading.Lock(), False

    @property
    def whole(self) -> bool:
        """Whether nothing else is ever read."""
        return len(self.numbers) == len(self._reader.layout.datasets)

    @property
    def needs_no_reader(self) -> bool:
        """Whether all is in memory already, and is so little that a batch is gathered faster than a thread is woken."""
        return self._is_read and self.whole and self._format.rows <= ASKING_ROWS

    def load(self) -> Tally | None:
        """Read the rows, once; gives what that took, and None once they are there.

        What cannot be read in whole is streamed instead, so that an error finds the batches it concerns.
        """
        with self._lock:
            if self._is_read or not self.numbers:
                return None
            tally = Tally()
            try:
                self._read(tally)
                self._is_read = True
            except H5StreamError:
                self.numbers = ()
                self.drop()
            return tally

    def _read(self, tally: Tally) -> None:
        self.map()
        tools, destination = self._reader.tools(tally), self.destination
        for number in self.numbers:
            # As spans of one part each: numbers of all rows may take more than the rows.
            spans = [
                (first, min(PIECE, part.row_start + part.rows - first))
                for part in self._reader.layout.datasets[number]
                for first in range(part.row_start, part.row_start + part.rows, PIECE)
            ]
            kind = place_dtype(self._reader.layout.rows_of(number))
            table = np.array(spans, dtype=np.int64).reshape(-1, 2)
            rows: Places = table[:, 0].astype(kind)
            counts: Places = table[:, 1].astype(kind)
            placement = Placement(rows=rows, batch=np.zeros_like(rows), within=rows, counts=counts)
            for task in self._reader.plan_rows(placement, TASK_NBYTES, [number]):
                task.land(tools.read(task.ranges()), destination, tools)

    def plan(self, placement: Placement, numbers: Sequence[int]) -> Iterator[GatherTask]:
        """Cut rows of some of the datasets into tasks."""
        if fields := fields_of(self._reader.layout, numbers):
            for some in placement.in_steps(TASK_ROWS):
                yield GatherTask(memory=self, fields=fields, placement=some)


def resident_format(layout: SampleLayout, numbers: tuple[int, ...]) -> SlotFormat:
    """Return how all rows of some datasets are packed."""
    return format_of(layout, {number: layout.rows_of(number) for number in numbers})
