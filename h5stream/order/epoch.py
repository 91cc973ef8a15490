"""The loader's own order: a rank's stretches of a line, in windows, cut into batches."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from h5stream.order.blocks import Blocks
from h5stream.order.line import Line, OrderSettings, RankRun, TakenBatches, even_share, sized_share
from h5stream.order.places import Places, narrowed, new_array, place_dtype
from h5stream.order.window import Order, Window


class EpochOrder:
    """The order of one rank in an epoch, or in what other numbers of ranks left of it.

    A window that holds rows of two ranks' runs is read by both; every row is still given once.
    """

    def __init__(self, blocks: Blocks, settings: OrderSettings, taken: TakenBatches = ()) -> None:
        self.blocks, self.settings, self._line = blocks, settings, Line(blocks, settings)
        share_of = even_share if settings.limit is None else sized_share
        self._runs, self._stretches, self.cut = share_of(self._line, settings, taken)
        self._is_plain = settings.limit is None and not taken
        self.drawn = settings.seed, settings.epoch  # determine all random draws for a sample
        self.batches, self.rows = self.cut.batches, self.cut.rows  # batches: the same on every rank

    @functools.cached_property
    def first_row(self) -> int | None:
        """The first row if all rows come in file order; otherwise None."""
        is_in_file_order = self._is_plain and not self.settings.shuffle and self.blocks.rows is None
        return int(self._stretches[0, 0]) if is_in_file_order else None

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        return self.cut.size_of(batch)

    @functools.cached_property
    def _windows(self) -> NDArray[np.int64]:
        """One row per window: its start and stop in the line, and the start and stop of this rank's part of it."""
        table = [np.zeros((0, 4), dtype=np.int64)]
        for start, stop in self._stretches.tolist():
            edges = self._run_at(start).windows
            edges = edges[np.searchsorted(edges, start, side="right") - 1 : np.searchsorted(edges, stop) + 1]
            clipped = np.clip(edges, start, stop)
            table.append(np.stack([edges[:-1], edges[1:], clipped[:-1], clipped[1:]], axis=1))
        return np.concatenate(table)

    def _run_at(self, place: int) -> RankRun:
        """Return the run that contains a place of the line."""
        return self._runs[bisect.bisect_right(self._runs, place, key=lambda run: run.start) - 1]

    @functools.cached_property
    def window_edges(self) -> NDArray[np.int64]:
        """Output places at which windows begin and end."""
        return np.append(0, np.cumsum(self._windows[:, 3] - self._windows[:, 2]))

    def window_ranges(self, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks of a window of a whole epoch as begins and ends of row ranges, in file order."""
        return self._line.ranges(*self._windows[window, :2].tolist())

    def rows_of_windows(self, first_batch: int = 0) -> Iterator[Places]:
        """Yield the ascending rows of each window: the rows that are shuffled with one another."""
        for number, _, _ in self.windows_from(first_batch):
            start, stop, begin, end = self._windows[number].tolist()
            yield self._line.rows(start, stop) if stop - start == end - begin else self.outputs(number)[0]

    def outputs(self, window: int) -> tuple[Places, Places]:
        """Return a window's rows, ascending, and the output place of each."""
        start, stop, begin, end = self._windows[window].tolist()
        outputs, keep = self._run_at(start).outputs(start, stop), None  # first, since it needs the most memory
        if stop - start > end - begin:
            keep = (outputs >= begin - start) & (outputs < end - start)
            outputs = outputs[keep]
        outputs = outputs.astype(place_dtype(max(self.rows, stop - start)), copy=False)
        outputs += int(self.window_edges[window]) - (begin - start)
        rows = self._line.rows(start, stop)
        return rows if keep is None else rows[keep], outputs

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Yield the windows in order, without the rows of batches before `first_batch`."""
        for number, begin, _ in self.windows_from(first_batch):
            # Without a local name: it would keep this window in memory beside the next.
            yield self._window(number, begin)

    def windows_from(self, batch: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each window that has rows of `batch` or later ones, and the output places of these."""
        begin, edges = self.cut.start_of(batch), self.window_edges
        for number in range(int(np.searchsorted(edges, begin, side="right")) - 1, len(edges) - 1):
            yield number, max(begin, int(edges[number])), int(edges[number + 1])

    def as_filled(self, batches_at_once: int) -> Order:
        """Return the order in which an engine fills slots: whole windows if `batches_at_once` is 0."""
        if self.first_row is None and not batches_at_once:
            return self
        return RegroupedOrder(self, batches_at_once or None)

    def _window(self, number: int, begin: int) -> Window:
        rows, output = self.outputs(number)
        if self.window_edges[number] < begin:
            keep = output >= begin
            rows, output = rows[keep], output[keep]
        batch, within = self.cut.locate(output)
        return Window(rows=rows, batch=batch, within=within, drawn=self.drawn)


class RegroupedOrder:
    """An epoch's remaining batches in windows of a few batches each, for rows that are read one by one.

    Rows in file order come as spans that begin at each batch or block, at no cost per row.
    """

    def __init__(self, order: EpochOrder, batches_at_once: int | None = None) -> None:
        self.whole, self._at_once = order, batches_at_once  # None for all of a window, in file order
        self.batches, self.batch_size_of = order.batches, order.batch_size_of

    @property
    def is_gathered(self) -> bool:
        """Whether rows come in the order of their batches instead of ascending."""
        return self.whole.first_row is None

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Yield the windows in order, without the rows of batches before `first_batch`."""
        for number, begin, stop in self.whole.windows_from(first_batch):
            if self.is_gathered:
                yield from self._gathered(number, begin, stop)
            else:
                yield from (self._in_spans(*step) for step in self._steps(begin, stop))

    def _steps(self, begin: int, stop: int) -> Iterator[tuple[int, int]]:
        """Cut output places into steps of `_at_once` batches, or into one step if it is None."""
        cut, at_once = self.whole.cut, self._at_once
        while begin < stop:
            end = stop if at_once is None else min(stop, cut.start_of(cut.batch_of(begin) + at_once))
            yield begin, end
            begin = end

    def _gathered(self, number: int, begin: int, stop: int) -> Iterator[Window]:
        order = self.whole
        rows, outputs = order.outputs(number)
        base, in_turn = int(order.window_edges[number]), new_array(len(rows), rows.dtype)
        in_turn[outputs - base] = rows
        del rows, outputs
        for low, high in self._steps(begin, stop):
            batch, within = order.cut.locate(np.arange(low, high, dtype=place_dtype(max(high, self.batches))))
            yield Window(rows=in_turn[low - base : high - base], batch=batch, within=within, drawn=order.drawn)

    def _in_spans(self, start: int, stop: int) -> Window:
        """Return output places `start` to `stop` as spans of consecutive rows, none of which crosses files."""
        order, cut, blocks, base = self.whole, self.whole.cut, self.whole.blocks.edges, self.whole.first_row or 0
        batches = [cut.start_of(batch) for batch in range(cut.batch_of(start) + 1, cut.batch_of(stop - 1) + 1)]
        low, high = np.searchsorted(blocks, [start + base, stop + base])
        edges = np.unique(np.concatenate([[start, stop], batches, blocks[low:high] - base]).astype(np.int64))
        batch, within = cut.locate(edges[:-1])
        rows, counts = narrowed(edges[:-1] + base), narrowed(np.diff(edges))
        return Window(rows=rows, batch=batch, within=within, counts=counts, drawn=order.drawn)
