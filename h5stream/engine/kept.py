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
from h5stream.engine.footprint import FIELD_ALIGNMENT, TASK_NBYTES
from h5stream.engine.plan import counted_from
from h5stream.engine.slots import SlotFormat, address_of, map_memory
from h5stream.errors import H5StreamError
from h5stream.order.epoch import Window
from h5stream.order.places import Places
from h5stream.storage.layout import SampleLayout

KEEP_NBYTES = 16 * 1024 * 1024
"""Largest dataset that is kept, in bytes as the batches hold it: two million int64 labels, or a small file in whole."""

KEEP_SHARE = 8
"""Kept datasets take at most one part in this many of the memory budget."""

ROWS_TOGETHER = 65_536
"""Rows of one task over kept data."""

KEPT_TOGETHER_NBYTES = 1024 * 1024
"""Bytes of batches that are gathered together where all data is kept: enough to share the cost of a window, few enough
to come at once and to stay in the cache until they are used."""

ASKING_ROWS = 65_536
"""Rows of an epoch that the asking thread gathers by itself where all data is kept: waking another costs more. The
order of more rows takes milliseconds, which readers work out ahead."""


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

    @property
    def whole(self) -> bool:
        """Whether nothing but kept rows is ever read."""
        return len(self.numbers) == len(self._carrier.layout.datasets)

    @property
    def needs_no_reader(self) -> bool:
        """Whether all is in memory already, and is so little that a batch is gathered faster than a thread is woken."""
        return self._memory is not None and self.whole and self._format.rows <= ASKING_ROWS

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
        others = tuple(n for n in range(len(layout.datasets)) if n not in self.numbers)
        for task in self._carrier.plan(window, 0, others, TASK_NBYTES):
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
