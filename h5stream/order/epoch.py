"""The `Order` protocol, and the loader's own order: a rank's stretches of a line, in windows, cut into batches."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from h5stream.order.blocks import Blocks
from h5stream.order.line import Line, OrderSettings, RankRun, TakenBatches, even_share, sized_share
from h5stream.order.places import Places, narrowed, new_array, place_dtype

FEW_BLOCKS = 100
"""With fewer distinct blocks per window, batches of a sorted file see few kinds of rows: with 64 the worst mean loss
was 1.05 of a full shuffle's, with 16 1.08, with 4 1.84 (docs/shuffling-results.md)."""

_NEARLY_ALL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows that are in memory together, with the batch and the place of each; in 32-bit numbers if these are enough.

    Attributes
    ----------
    rows : ndarray of int, shape (n,)
        Row numbers; ascending, the fastest order to read files in, unless rows cost the same in any order.
    batch : ndarray of int, shape (n,)
        The batch that each row belongs to.
    within : ndarray of int, shape (n,)
        Its place in that batch.
    counts : ndarray of int, shape (n,), optional
        If given, each row begins a span of that many consecutive rows, which go to consecutive places.
    drawn : tuple of int
        Seed and epoch, which determine all random draws for a sample.
    """

    rows: Places
    batch: Places
    within: Places
    counts: Places | None = None
    drawn: tuple[int, int] = (0, 0)

    @classmethod
    def of_batches(cls, first_batch: int, rows: Sequence[NDArray[np.integer[Any]]]) -> Window:
        """Make the window of whole batches that follow one another.

        Parameters
        ----------
        first_batch : int
            The number of the first of them.
        rows : sequence of ndarray of int
            The rows of each, in its order.

        Returns
        -------
        Window
            Its rows ascend; a row that is named twice comes twice.

        Examples
        --------
        >>> window = Window.of_batches(3, [np.array([7, 2]), np.array([5])])
        >>> window.rows.tolist(), window.batch.tolist(), window.within.tolist()
        ([2, 5, 7], [3, 4, 3], [1, 0, 0])
        """
        sizes = [len(batch_rows) for batch_rows in rows]
        numbers = np.concatenate(rows)
        batch = np.repeat(np.arange(first_batch, first_batch + len(rows), dtype=np.int64), sizes)
        within = np.concatenate([np.arange(size, dtype=np.int64) for size in sizes])
        by_row = np.argsort(numbers, kind="stable")
        return cls(rows=numbers[by_row], batch=batch[by_row], within=within[by_row])


class Order(Protocol):
    """An order: yields the rows of an epoch in windows, batch by batch. Functions passed as ``draw=`` return one.

    Implementations are immutable or used by one thread at a time, any thread; `windows` may be called again at any
    time and yields the same windows. An order that depends only on the epoch and the ranks can be resumed. Every rank
    must have the same number of batches, since ranks wait for one another.

    Examples
    --------
    A curriculum, hardest samples last, each rank with a share of the easy and the hard ones:

    >>> import h5py, tempfile, os
    >>> from h5stream import H5StreamLoader
    >>> from h5stream.order import Window
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"] = np.arange(12)
    >>> class Curriculum:
    ...     def __init__(self, score, batch_size):
    ...         self.rows, self.batch_size = np.argsort(score, kind="stable"), batch_size
    ...         self.batches = len(self.rows) // batch_size
    ...     def batch_size_of(self, batch):
    ...         return self.batch_size
    ...     def rows_of(self, batch):
    ...         return self.rows[batch * self.batch_size : (batch + 1) * self.batch_size]
    ...     def windows(self, first_batch=0):  # a few batches at a time: rows that share a chunk are read together
    ...         for first in range(first_batch, self.batches, 2):
    ...             few = range(first, min(first + 2, self.batches))
    ...             yield Window.of_batches(first, [self.rows_of(batch) for batch in few])
    >>> score = np.array([5, 1, 9, 3, 7, 2, 8, 0, 6, 4, 11, 10])
    >>> def hardest_last(blocks, epoch, ranks):
    ...     order = Curriculum(score, 4)
    ...     order.rows = order.rows[ranks.rank :: ranks.world_size]
    ...     order.batches = blocks.total_rows // ranks.world_size // 4
    ...     return order
    >>> [batch.tolist() for batch in H5StreamLoader(path, 4, draw=hardest_last)]
    [[7, 1, 5, 3], [9, 0, 8, 4], [6, 2, 11, 10]]
    """

    @property
    def batches(self) -> int | None:
        """The number of batches; None if it is not known beforehand."""
        ...

    def batch_size_of(self, batch: int) -> int:
        """Return the number of rows of a batch; called only after `windows` has yielded rows of it.

        Parameters
        ----------
        batch : int
            Its number in the epoch, from 0.

        Returns
        -------
        int
            Its rows, 1 or more.
        """
        ...

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Yield the windows in order.

        Parameters
        ----------
        first_batch : int, default 0
            Rows of batches before this one are left out: an epoch that is resumed begins there.

        Yields
        ------
        Window
            Rows that are in memory together, and where each goes.
        """
        ...


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


# --- how well an order mixes: what a batch and a window hold, against a full shuffle ---------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How well an order mixes."""

    # distinct blocks in a batch, the mean over batches. High is good; it cannot exceed the rows of a batch
    blocks_per_batch: float
    blocks_per_batch_full: float  # what a full shuffle would give on average
    blocks_per_window: float  # distinct blocks in a window, the mean over windows: the number that matters for learning
    # 1 if batch means of the row number scatter no more than under a full shuffle, towards 0 if each batch sees one
    # stretch of the file only. A low score harms where neighbouring rows resemble each other
    score: float


def is_weak(window_blocks: int, blocks: int) -> bool:
    """Return whether windows of so many blocks mix too little of data with so many blocks."""
    return window_blocks < min(FEW_BLOCKS, _NEARLY_ALL * blocks)


def distinct(blocks: int, drawn: int) -> float:
    """Return the expected number of distinct blocks among `drawn` independently drawn rows."""
    return blocks * (1 - (1 - 1 / blocks) ** drawn)


def forecast(order: EpochOrder) -> Quality:
    """Return the expected quality of an order from its blocks alone, which must not select rows.

    The variance of batch means is that of the windows' means plus that of a sample of a window without replacement.
    """
    batch, windows = order.settings.batch_size, []
    for number in range(len(order.window_edges) - 1):
        begins, ends = order.window_ranges(number)
        sizes, middles = ends - begins, (begins + ends - 1) / 2
        rows, mean = int(sizes.sum()), float(np.average(middles, weights=sizes))
        # A run of n rows has the variance (n^2 - 1) / 12 around its middle.
        variance = np.average((middles - mean) ** 2 + (sizes.astype(np.float64) ** 2 - 1) / 12, weights=sizes)
        distinct_blocks = (1 - (1 - sizes / rows) ** min(batch, rows)).sum()  # distinct blocks among a batch's rows
        sampled = variance * _without_replacement(min(batch, rows), rows)
        windows.append((rows, mean, variance, distinct_blocks, len(sizes), sampled))
    weights, means, variances, distincts, counts, samples = np.array(windows, dtype=np.float64).T
    apart, total = (means - np.average(means, weights=weights)) ** 2, int(weights.sum())
    everything = float(np.average(apart + variances, weights=weights))
    expected = everything * _without_replacement(min(batch, total), total)
    scattered = float(np.average(apart + samples, weights=weights))
    share = np.diff(order.blocks.edges) / order.blocks.total_rows
    return Quality(
        blocks_per_batch=float(np.average(distincts, weights=weights)),
        blocks_per_batch_full=float((1 - (1 - share) ** batch).sum()),
        blocks_per_window=float(np.mean(counts)),
        score=1.0 if scattered <= expected else expected / scattered,
    )


def _without_replacement(drawn: int, rows: int) -> float:
    """Return the variance of a sample mean as a fraction of the population variance, drawing without replacement."""
    return (rows - drawn) / max(1, rows - 1) / drawn
