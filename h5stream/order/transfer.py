"""Windows in file order, cut into transfer slots: for a device that does the shuffle's gather itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from h5stream.order.epoch import EpochOrder, Window
from h5stream.order.places import Places, place_dtype

TRANSFER_NBYTES = 4 * 1024 * 1024
"""Bytes of a slot, at least: a copy, its events and its launches take the asking thread about as long as the bus takes
for so many."""


def transfer_rows(batch_rows: int, block_rows: int, row_nbytes: int, rows: int) -> int:
    """Return the rows of a slot: whole blocks, so that slots seldom cut a chunk, and no less than a batch."""
    wanted = max(batch_rows, -(-TRANSFER_NBYTES // max(1, row_nbytes)))
    return min(rows, -(-wanted // block_rows) * block_rows)


class TransferOrder:
    """The windows of an epoch, their rows ascending and unshuffled, in slots of `slot_rows` rows.

    To the engine it is an order whose batches are slots; a slot never holds rows of two windows.

    # Guarantees: `windows` may run in another thread than all else. What it works out for `sources` is handed over
    # by single operations on a dictionary.
    """

    def __init__(self, order: EpochOrder, *, slot_rows: int, slots_at_once: int) -> None:
        self.order = order
        self.slot_rows = slot_rows
        self._slots_at_once = slots_at_once
        self.window_rows: NDArray[np.int64] = np.diff(order.window_edges)
        self.slot_edges: NDArray[np.int64] = np.append(0, np.cumsum(-(-self.window_rows // slot_rows)))
        self._worked_out: dict[int, Places] = {}

    @property
    def batches(self) -> int:
        """Slots of the epoch."""
        return int(self.slot_edges[-1])

    def window_of(self, slot: int) -> int:
        """Return the window that a slot belongs to."""
        return int(np.searchsorted(self.slot_edges, slot, side="right")) - 1

    def first_slot(self, batch: int) -> int:
        """Return the first slot of the window that a batch begins in: the device needs that window whole."""
        if batch >= self.order.batches:
            return self.batches
        return int(self.slot_edges[self.order.window_at(self.order.cut.start_of(batch))])

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a slot."""
        window = self.window_of(batch)
        before = (batch - int(self.slot_edges[window])) * self.slot_rows
        return min(self.slot_rows, int(self.window_rows[window]) - before)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Return a few slots at a time, in file order within each window."""
        for number in range(max(0, self.window_of(first_batch)), len(self.window_rows)):
            # Here, where a reader plans, and not in the consumer's thread when the window's first slot is there.
            self._worked_out[number] = self._sources(number)
            rows, step = self.order.rows_of_window(number), self.slot_rows * self._slots_at_once
            before = max(0, first_batch - int(self.slot_edges[number])) * self.slot_rows
            for start in range(before, len(rows), step):
                part = rows[start : start + step]
                place = np.arange(start, start + len(part), dtype=np.int64)
                slot, within = np.divmod(place, self.slot_rows)
                slot += int(self.slot_edges[number])
                yield Window(rows=part, batch=slot, within=within, drawn=self.order.drawn)

    def sources(self, window: int) -> Places:
        """Return, for each output place of a window, the place in file order that its row comes from; asked once."""
        known = self._worked_out.pop(window, None)
        return self._sources(window) if known is None else known

    def rows_by_output(self, window: int) -> Places:
        """Return the row of each output place of a window."""
        return self.order.by_output(window, *self.order.outputs(window))

    def _sources(self, window: int) -> Places:
        outputs = self.order.outputs_of_window(window)
        # They cross to a device and stay there: half the bytes where that is enough.
        return self.order.by_output(window, np.arange(len(outputs), dtype=place_dtype(len(outputs))), outputs)
