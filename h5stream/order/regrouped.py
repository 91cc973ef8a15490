"""Views of an order in other windows: a few batches at a time, spans in file order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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
