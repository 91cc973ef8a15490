"""An order that is not shuffled, told as spans of rows instead of row by row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from h5stream.order.epoch import EpochOrder, Window
from h5stream.order.places import narrowed


class FileOrder:
    """The batches of an epoch in file order, each a few spans of consecutive rows.

    A span ends where a batch or a block ends, so that it never lies in two files. Working it out costs nothing for
    each row.

    Examples
    --------
    >>> from h5stream.order.blocks import make_blocks
    >>> from h5stream.order.epoch import OrderSettings
    >>> settings = OrderSettings(batch_size=4, window_rows=8, first_window_rows=8, shuffle=False)
    >>> order = FileOrder(EpochOrder(make_blocks((0, 10), (6,)), settings))
    >>> window = next(order.windows())
    >>> window.rows.tolist(), window.counts.tolist(), window.batch.tolist(), window.within.tolist()
    ([0, 4, 6, 8], [4, 2, 2, 2], [0, 1, 1, 2], [0, 0, 2, 0])
    """

    def __init__(self, order: EpochOrder, batches_at_once: int | None = None) -> None:
        self._order, self._at_once = order, batches_at_once

    @property
    def batches(self) -> int:
        """Batches of this rank in this epoch."""
        return self._order.batches

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        return self._order.batch_size_of(batch)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Return the windows in order, without the rows of batches before `first_batch`."""
        order, cut = self._order, self._order.cut
        begin = cut.start_of(first_batch) if first_batch < self.batches else cut.rows
        places = order.window_edges  # millions, perhaps
        number = max(0, int(np.searchsorted(places, begin + order.run[0], side="right")) - 1)
        for window in range(number, len(places) - 1):
            start, stop = (int(place) - order.run[0] for place in places[window : window + 2])
            edges = [max(start, begin), stop]
            if self._at_once is not None and edges[0] < stop:
                first, last = cut.batch_of(edges[0]), cut.batch_of(stop - 1)
                edges[1:1] = [cut.start_of(batch) for batch in range(first + self._at_once, last + 1, self._at_once)]
            for low, high in itertools.pairwise(edges):
                if low < high:
                    yield self._window(low, high)

    def _window(self, start: int, stop: int) -> Window:
        """Give output places `start` to `stop`: as many rows that follow one another, since nothing is shuffled."""
        cut, base, blocks = self._order.cut, self._order.run[0], self._order.blocks.edges
        first, last = cut.batch_of(start), cut.batch_of(stop - 1)
        batches = [cut.start_of(batch) for batch in range(first + 1, last + 1)]
        low, high = np.searchsorted(blocks, [start + base, stop + base])
        edges = np.unique(np.concatenate([[start, stop], batches, blocks[low:high] - base]).astype(np.int64))
        batch, within = cut.locate(edges[:-1])
        return Window(rows=narrowed(edges[:-1] + base), batch=batch, within=within, counts=narrowed(np.diff(edges)))
