"""Views of an order in other windows: a few batches at a time, spans in file order, slots for a device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from h5stream.order.epoch import EpochOrder, Window
from h5stream.order.places import Places, narrowed, place_dtype


class _View:
    """The batches of another order, in other windows."""

    def __init__(self, order: EpochOrder, batches_at_once: int | None = None) -> None:
        self._order, self._at_once = order, batches_at_once

    @property
    def batches(self) -> int:
        """Batches of this rank in this epoch."""
        return self._order.batches

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        return self._order.batch_size_of(batch)


class RegroupedOrder(_View):
    """The batches of an epoch, or of what is left of one, in windows of a few batches each.

    A window of the epoch's order holds all rows that are shuffled with one another, for an exact global shuffle
    all there are. Who reads rows one by one need not hold it: the permutation, eight bytes a row, is enough.
    """

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Return windows of a few batches, their rows in the order of the batches and not ascending."""
        order = self._order
        for number, begin, stop in order.windows_from(first_batch):
            rows, base = order.by_output(number, *order.outputs(number)), int(order.window_edges[number])
            for low, high in order.steps(begin, stop, self._at_once):
                batch, within = order.cut.of_run(low, high, place_dtype(max(high, self.batches)))
                yield Window(rows=rows[low - base : high - base], batch=batch, within=within, drawn=order.drawn)
            del rows

    def rows_of_windows(self, first_batch: int = 0) -> Iterator[Places]:
        """Return the rows of each of the order's own windows, ascending: those that are shuffled with one another."""
        return (self._order.rows_of_window(number) for number, _, _ in self._order.windows_from(first_batch))


class FileOrder(_View):
    """The batches of an epoch in file order, each a few spans of consecutive rows.

    A span ends where a batch or a block ends, so that it never lies in two files. Working it out costs nothing for
    each row.
    """

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Return the windows in order, without the rows of batches before `first_batch`."""
        for _, begin, stop in self._order.windows_from(first_batch):
            for low, high in self._order.steps(begin, stop, self._at_once):
                yield self._window(low, high)

    def _window(self, start: int, stop: int) -> Window:
        """Return output places `start` to `stop`: as many rows that follow one another, since nothing is shuffled."""
        order, cut, blocks, base = self._order, self._order.cut, self._order.blocks.edges, self._order.first_row or 0
        batches = [cut.start_of(batch) for batch in range(cut.batch_of(start) + 1, cut.batch_of(stop - 1) + 1)]
        low, high = np.searchsorted(blocks, [start + base, stop + base])
        edges = np.unique(np.concatenate([[start, stop], batches, blocks[low:high] - base]).astype(np.int64))
        batch, within = cut.locate(edges[:-1])
        rows, counts = narrowed(edges[:-1] + base), narrowed(np.diff(edges))
        return Window(rows=rows, batch=batch, within=within, counts=counts, drawn=order.drawn)


# --- For a device that does the shuffle's gather itself ------------------------------------------------


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
