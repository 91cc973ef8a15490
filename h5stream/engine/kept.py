"""Small datasets, such as labels, are read once and kept: their chunks rarely line up with the blocks."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.carry import Carrier
from h5stream.engine.counters import Tally
from h5stream.engine.emit import Sink
from h5stream.engine.plan import counted_from, plan_window
from h5stream.engine.slots import FIELD_ALIGNMENT, SlotFormat, address_of, map_memory
from h5stream.errors import H5StreamError
from h5stream.order.epoch import Window
from h5stream.order.places import Places
from h5stream.storage.layout import SampleLayout

KEEP_NBYTES = 8 * 1024 * 1024
"""Largest dataset that is kept, in bytes as the batches hold it: a million int64 labels."""

KEEP_SHARE = 8
"""Kept datasets take at most one part in this many of the memory budget."""

ROWS_TOGETHER = 65_536
"""Rows of one task over kept data."""


def datasets_to_keep(layout: SampleLayout, memory_budget: int) -> tuple[int, ...]:
    """Choose the datasets that are read once, smallest first while they fit."""
    sizes = []
    for number, parts in enumerate(layout.datasets):
        fields = [layout.fields[target.field] for target in parts[0].targets]
        if all(field.kind != "object" for field in fields):
            sizes.append((layout.rows * sum(field.row_nbytes for field in fields), number))
    kept, left = [], memory_budget // KEEP_SHARE
    for nbytes, number in sorted(sizes):
        if nbytes > min(KEEP_NBYTES, left):
            break
        kept.append(number)
        left -= nbytes
    return tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTask:
    """Rows of the kept datasets and where they go; shaped like a `Task` where the executor looks."""

    rows: Places
    batch: Places
    within: Places

    @property
    def first_batch(self) -> int:
        """The earliest batch that needs it, counted from the window's first."""
        return int(self.batch.min())


class KeptDatasets:
    """The rows of small datasets, in memory, as the batches hold them.

    # Guarantees: `load` reads once, under `_lock`, whoever calls first; afterwards everything is read-only.

    Parameters
    ----------
    carrier : Carrier
        Reads them.
    numbers : tuple of int
        Which datasets of its layout.
    """

    def __init__(self, carrier: Carrier, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        self._carrier = carrier
        self._lock = threading.Lock()
        self._memory: NDArray[np.uint8] | None = None
        self._fields = _fields_of(carrier.layout, numbers)
        self._row_nbytes = _row_nbytes(carrier.layout, numbers)
        # Packed as one batch of all rows, so that the ordinary plan fills it.
        self._format = kept_format(carrier.layout, numbers)

    def load(self) -> Tally | None:
        """Read the rows, once; gives what that took, and None once they are there.

        What cannot be read in whole is not kept but streamed, so that an error finds the batches it concerns.
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
        layout = self._carrier.layout
        memory = map_memory(self._format.nbytes)
        rows = np.arange(layout.rows, dtype=np.int64)
        window = Window(rows=rows, batch=np.zeros_like(rows), within=rows)
        sink = Sink(
            slots=np.array([address_of(memory)], dtype=np.int64),
            format=self._format,
            row_nbytes=self._row_nbytes,
        )
        for task in plan_window(tuple(layout.datasets[n] for n in self.numbers), window, first_batch=0):
            self._carrier.carry(task, sink, tally=tally)
        return memory

    def plan(self, window: Window, first_batch: int) -> list[KeptTask]:
        """Cut a window's rows into tasks."""
        if not self.numbers:
            return []
        window = counted_from(window, first_batch)
        return [
            KeptTask(rows=window.rows[k:stop], batch=window.batch[k:stop], within=window.within[k:stop])
            for k in range(0, len(window.rows), ROWS_TOGETHER)
            for stop in (k + ROWS_TOGETHER,)
        ]

    def carry(self, task: KeptTask, sink: Sink) -> None:
        """Copy kept rows to their places."""
        assert self._memory is not None
        base = address_of(self._memory)
        for field in self._fields:
            nbytes = self._row_nbytes[field]
            if nbytes:
                kernels.scatter(
                    base + self._format.offsets[field],
                    nbytes,
                    np.array([[0, 0, nbytes]], dtype=np.int64),
                    task.rows,
                    task.batch,
                    task.within,
                    sink.slots,
                    sink.format.offsets[field],
                    sink.row_nbytes[field],
                )


def _fields_of(layout: SampleLayout, numbers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(target.field for number in numbers for target in layout.datasets[number][0].targets)


def _row_nbytes(layout: SampleLayout, numbers: tuple[int, ...]) -> tuple[int, ...]:
    fields = _fields_of(layout, numbers)
    return tuple(f.row_nbytes if number in fields else 0 for number, f in enumerate(layout.fields))


def kept_format(layout: SampleLayout, numbers: tuple[int, ...]) -> SlotFormat:
    """Give how all rows of some datasets are packed."""
    offsets, end = [], 0
    for nbytes in _row_nbytes(layout, numbers):
        offsets.append(end)
        end += -(-nbytes * layout.rows // FIELD_ALIGNMENT) * FIELD_ALIGNMENT
    return SlotFormat(rows=layout.rows, offsets=tuple(offsets), nbytes=max(end, FIELD_ALIGNMENT))
