"""An order read a few batches at a time, where rows cost the same wherever they lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from h5stream.order.epoch import CutOrder, Window
from h5stream.order.places import Places, new_array, place_dtype


class RegroupedOrder:
    """The batches of an epoch, or of what is left of one, in windows of a few batches each.

    A window of the epoch's order holds all rows that are shuffled with one another, for an exact global shuffle
    all there are. Who reads rows one by one need not hold it: the permutation, eight bytes a row, is enough.

    Examples
    --------
    >>> from h5stream.order.blocks import make_blocks
    >>> from h5stream.order.epoch import EpochOrder, OrderSettings
    >>> settings = OrderSettings(batch_size=4, window_rows=10, first_window_rows=10, seed=1)
    >>> order = RegroupedOrder(EpochOrder(make_blocks((0, 10), (2,)), settings), batches_at_once=1)
    >>> [window.rows.tolist() for window in order.windows()]
    [[2, 5, 6, 9], [0, 1, 7, 3], [8, 4]]
    """

    def __init__(self, order: CutOrder, batches_at_once: int) -> None:
        self._order, self._at_once = order, batches_at_once

    @property
    def batches(self) -> int:
        """Batches of this rank in this epoch."""
        return self._order.cut.batches

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        return self._order.batch_size_of(batch)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Give windows of a few batches, their rows in the order of the batches and not ascending."""
        begin = self._begin_of(first_batch)
        for number, start, stop in self._windows_behind(begin):
            yield from self._cut(self._by_output(number, start), start, max(start, begin), stop)

    def rows_of_windows(self, first_batch: int = 0) -> Iterator[Places]:
        """Return the rows of each of the order's own windows, ascending: those that are shuffled with one another."""
        for number, _, _ in self._windows_behind(self._begin_of(first_batch)):
            yield self._order.rows_of_window(number)

    def _begin_of(self, first_batch: int) -> int:
        cut = self._order.cut
        return cut.start_of(first_batch) if first_batch < self.batches else cut.rows

    def _windows_behind(self, begin: int) -> Iterator[tuple[int, int, int]]:
        """Return the number of each window that ends behind a place, and the places where it begins and ends."""
        edges = (self._order.window_edges - self._order.run[0]).tolist()
        for number, (start, stop) in enumerate(itertools.pairwise(edges)):
            if stop > begin:
                yield number, start, stop

    def _by_output(self, number: int, start: int) -> Places:
        """Return a window's rows in the order of their output places."""
        rows, output = self._order.outputs(number)
        by_output: Places = new_array(len(rows), rows.dtype)
        output -= start
        by_output[output] = rows
        return by_output

    def _cut(self, by_output: Places, base: int, begin: int, stop: int) -> Iterator[Window]:
        order = self._order
        while begin < stop:
            first = order.cut.batch_of(begin)
            after = first + self._at_once
            end = min(stop, order.cut.start_of(after) if after < self.batches else order.cut.rows)
            batch, within = self._places(begin, end, first)
            yield Window(rows=by_output[begin - base : end - base], batch=batch, within=within)
            begin = end

    def _places(self, begin: int, end: int, batch: int) -> tuple[Places, Places]:
        """Give batch and place in it for consecutive output places, without a division for each."""
        base, dtype = begin, place_dtype(max(end, self.batches))
        batches, within = (np.empty(end - begin, dtype=dtype) for _ in range(2))
        while begin < end:
            start = self._order.cut.start_of(batch)
            stop = min(end, start + self._order.cut.size_of(batch))
            ours = slice(begin - base, stop - base)
            batches[ours], within[ours] = batch, np.arange(begin - start, stop - start, dtype=dtype)
            begin, batch = stop, batch + 1
        return batches, within
