"""The order of an epoch: its line of permuted blocks, the runs of it that ranks own, their windows, and their batches.

All rows form a line with whole blocks permuted, and each rank owns a run of it. A run is cut into windows at block
edges. Inside a window every row is sent to its *output place*; batches are consecutive output places and may cross
windows.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from h5stream.base.limits import cached_property
from h5stream.base.texts import counted
from h5stream.compiled import _native as kernels
from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.places import BLOCKS, ROWS, Places, in_ranges, narrowed, new_array, permutation, place_dtype
from h5stream.order.weights import DrawnBlocks, interleaved
from h5stream.order.window import Order, Window
from h5stream.samples.segments import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimit:
    """How batches of samples with different lengths are cut."""

    rows: int | None = None  # rows that a batch may have; None for any number
    padded: bool = False  # whether each sample counts as many rows as the longest of its batch
    bucketed: bool = False  # whether samples of similar lengths come together


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSettings:
    """The inputs of an epoch's order, besides the blocks."""

    batch_size: int  # rows of a batch
    window_rows: int  # rows of a window; rounded up to whole blocks
    first_window_rows: int  # rows of the epoch's first window; the next ones double until they reach `window_rows`
    shuffle: bool = True  # false gives the rows in file order
    drop_last: bool = False  # leave out what does not fill a batch on every rank
    seed: int = 0  # seed, epoch: non-negative
    epoch: int = 0
    rank: int = 0  # rank, world_size: which run of the line this process has
    world_size: int = 1
    limit: BatchLimit | None = None  # how batches are cut by the blocks' lengths; None if each has `batch_size` rows

    def __post_init__(self) -> None:
        for name in ("batch_size", "window_rows", "first_window_rows", "seed", "epoch", "rank", "world_size"):
            if getattr(self, name) < (least := int(name not in ("seed", "epoch", "rank"))):
                raise OptionError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.rank >= self.world_size:
            raise OptionError(f"rank must be below world_size={self.world_size}, not {self.rank}")


@dataclass(eq=False)
class Line:
    """All rows of an epoch with whole blocks permuted, addressed by their places in this line."""

    blocks: Blocks | DrawnBlocks
    settings: OrderSettings

    @cached_property
    def permuted(self) -> tuple[Ints, Ints]:
        """The block numbers in the order of the line, and the places of these blocks' edges."""
        sizes, settings = np.diff(self.blocks.edges), self.settings
        if settings.shuffle:
            numbers = permutation(len(sizes), settings.seed, settings.epoch, BLOCKS)
            if self.blocks.strata is not None:
                numbers = interleaved(numbers, sizes, self.blocks.strata)
        else:
            numbers = np.arange(len(sizes), dtype=np.int64)
        return numbers, np.append(0, np.cumsum(sizes[numbers]))

    def ranges(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Return the rows between two places as begins and ends of row ranges, in file order, without listing the rows.

        These are places in the selection if the blocks have one, else rows.
        """
        numbers, edges = self.permuted
        first = int(np.searchsorted(edges, start, side="right")) - 1
        last = int(np.searchsorted(edges, stop, side="left"))
        begins, ends = self.blocks.edges[numbers[first:last]], self.blocks.edges[numbers[first:last] + 1]
        # A rank's run may begin and end inside a block.
        begins[0] += start - edges[first]
        ends[-1] -= edges[last] - stop
        by_file = np.argsort(begins)
        return begins[by_file], ends[by_file]

    def selected(self, start: int, stop: int) -> Places:
        """Return the places in the selection of the rows between two places of the line, ascending."""
        begins, ends = self.ranges(start, stop)
        blocks, counts = self.blocks, ends - begins
        if blocks.first is None or blocks.every is None:
            return in_ranges(begins, counts, dtype=place_dtype(int(ends[-1])))
        of = np.searchsorted(blocks.edges, begins, side="right") - 1  # turns of these blocks
        every = blocks.every[of]
        begins = blocks.first[of] + (begins - blocks.edges[of]) * every
        places = in_ranges(begins, counts, every, dtype=place_dtype(blocks.total_rows))
        places.sort()
        return places

    def rows(self, start: int, stop: int) -> Places:
        """Return the rows of a window, ascending."""
        places = self.selected(start, stop)
        return places if self.blocks.rows is None else self.blocks.rows_at(places)


@dataclass(eq=False)
class RankRun:
    """The places `start` to `stop` of a line, which one rank owns, in windows."""

    line: Line
    start: int
    stop: int

    @cached_property
    def windows(self) -> Ints:
        """The edges of windows: at block edges, so that no chunk is read for two windows."""
        stop, line, settings = self.stop, self.line.permuted[1], self.line.settings
        edges, size, most = [self.start], settings.first_window_rows, settings.window_rows
        while edges[-1] < stop and (size < most or len(edges) == 1):
            nearest = np.searchsorted(line, min(edges[-1] + size, stop))
            edges.append(min(int(line[nearest]), stop))
            size = min(size * 2, most)
        if edges[-1] == stop:
            return np.array(edges, dtype=np.int64)
        # The remaining windows have one size, and there may be a million: compute all possible ends at once.
        after, places = np.searchsorted(line, np.minimum(line + most, stop)), [int(np.searchsorted(line, edges[-1]))]
        while line[places[-1]] < stop:
            places.append(int(after[places[-1]]))
        return np.append(edges, np.minimum(line[places[1:]], stop))

    def outputs(self, start: int, stop: int) -> Places:
        """Return a random output place within the window for each of its ascending rows."""
        settings = self.line.settings
        if not settings.shuffle:
            return np.arange(stop - start, dtype=place_dtype(stop - start))
        return permutation(stop - start, settings.seed, settings.epoch, ROWS, start)


# --- batches, and which of them each rank has ---

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A run of output places cut into batches: at `edges`, or each full but the last.

    If the run would fill only ``batches - 1`` full batches (another rank has one row more), the last full batch gives
    its last row away, so that all ranks have the same number of batches.
    """

    rows: int
    batches: int
    size: int = 0  # rows of a full batch
    edges: Ints | None = None  # where each batch begins, and where the last ends

    def start_of(self, batch: int) -> int:
        """Return the first output place of a batch; beyond the last batch, the end of the run."""
        if batch >= self.batches:
            return self.rows
        return min(batch * self.size, self.rows - 1) if self.edges is None else int(self.edges[batch])

    def size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        if self.edges is None and batch < self.batches - 2:  # the last two may be smaller
            return self.size
        return self.start_of(batch + 1) - self.start_of(batch)

    def batch_of(self, output: int) -> int:
        """Return the batch of one output place."""
        if self.edges is not None:
            return int(np.searchsorted(self.edges, output, side="right")) - 1
        return self.batches - 1 if output == self.rows - 1 else output // self.size

    def locate(self, output: Places) -> tuple[Places, Places]:
        """Return the batch of each output place, and the place in that batch."""
        batch, within = new_array(len(output), output.dtype), new_array(len(output), output.dtype)
        if len(output):
            last, edges = self.batches - 1, _NONE if self.edges is None else self.edges
            kernels.locate(output, edges, self.size, last, self.start_of(last), batch, within)
        return batch, within


TakenBatches = tuple[tuple[int, int], ...]
"""The progress of an epoch, stage by stage: pairs of a number of ranks and the batches that each of them took."""

Stretches = Ints
"""Parts of a line, one row each: where they start and stop. None spans the runs of two ranks."""


Share = tuple[Sequence[RankRun], Stretches, Cut]
"""One rank's share of an epoch: the runs of the ranks that began it, this rank's stretches of them, and their cut."""


def even_share(line: Line, settings: OrderSettings) -> Share:
    """Return the share of a rank in a whole epoch if all batches have one size."""
    batches, edges = even_runs(line.blocks.total_rows, settings.world_size, settings)
    start, stop = edges[settings.rank : settings.rank + 2].tolist()
    cut = Cut(rows=stop - start, batches=batches, size=settings.batch_size)
    return [RankRun(line, start, stop)], np.array([[start, stop]], dtype=np.int64), cut


def even_runs(rows: int, ranks: int, settings: OrderSettings) -> tuple[int, Ints]:
    """Cut a line of rows into runs of ranks that have the same number of batches; return it, and the runs' edges."""
    size = settings.batch_size
    if settings.drop_last:
        batches = rows // (ranks * size)
        if batches == 0:
            raise OptionError(
                f"drop_last=True leaves no batch: {counted(rows, 'row')} for {counted(ranks, 'rank')} x batch_size="
                f"{size:,}; take a smaller batch_size or drop_last=False"
            )
        return batches, np.arange(ranks + 1, dtype=np.int64) * (batches * size)
    fewest, extra = divmod(rows, ranks)
    if fewest == 0:
        raise OptionError(f"{counted(rows, 'row')} cannot give each of {ranks} ranks one; use fewer ranks")
    batches = -(-(fewest + bool(extra)) // size)
    if fewest < batches:
        raise OptionError(
            f"{rows:,} rows do not give each of {ranks} ranks the same number of batches of {size}: pass drop_last=True"
        )
    every = np.arange(ranks + 1, dtype=np.int64)  # there are no more than rows by now
    return batches, every * fewest + np.minimum(every, extra)


# --- the order ---


class EpochOrder:
    """The order of one rank in an epoch, or in what other numbers of ranks left of it.

    A window that holds rows of two ranks' runs is read by both; every row is still given once.
    """

    def __init__(self, blocks: Blocks | DrawnBlocks, settings: OrderSettings, taken: TakenBatches = ()) -> None:
        self.blocks, self.settings, self._line = blocks, settings, Line(blocks, settings)
        is_plain = settings.limit is None and not taken
        if is_plain:
            self._runs, self._stretches, self.cut = even_share(self._line, settings)
        else:
            from h5stream.order.shares import share_of  # imported here since most epochs are cut evenly

            self._runs, self._stretches, self.cut = share_of(self._line, settings, taken)
        self.drawn = settings.seed, settings.epoch  # determine all random draws for a sample
        self.batches, self.rows = self.cut.batches, self.cut.rows  # batches: the same on every rank
        self.batch_size_of = self.cut.size_of
        is_in_file_order = is_plain and not settings.shuffle and isinstance(blocks, Blocks) and blocks.rows is None
        self.first_row = int(self._stretches[0, 0]) if is_in_file_order else None  # None in any other order

    @cached_property
    def _windows(self) -> Ints:
        """One row per window: its start and stop in the line, those of this rank's part of it, and the run's number."""
        table = [np.zeros((0, 5), dtype=np.int64)]
        for start, stop in self._stretches.tolist():
            run = bisect.bisect_right(self._runs, start, key=operator.attrgetter("start")) - 1
            edges = self._runs[run].windows
            edges = edges[np.searchsorted(edges, start, side="right") - 1 : np.searchsorted(edges, stop) + 1]
            clipped, runs = np.clip(edges, start, stop), np.full(len(edges) - 1, run)
            table.append(np.stack([edges[:-1], edges[1:], clipped[:-1], clipped[1:], runs], axis=1))
        return np.concatenate(table)

    @cached_property
    def window_edges(self) -> Ints:
        """Output places at which windows begin and end."""
        return np.append(0, np.cumsum(self._windows[:, 3] - self._windows[:, 2]))

    def window_ranges(self, window: int) -> tuple[Ints, Ints]:
        """Return the blocks of a window of a whole epoch as begins and ends of row ranges, in file order."""
        return self._line.ranges(*self._windows[window, :2].tolist())

    def rows_of_windows(self, first_batch: int = 0) -> Iterator[Places]:
        """Yield the ascending rows of each window: the rows that are shuffled with one another."""
        for number, _, _ in self.windows_from(first_batch):
            start, stop, begin, end, _ = self._windows[number].tolist()
            yield self._line.rows(start, stop) if stop - start == end - begin else self.outputs(number)[0]

    def outputs(self, window: int) -> tuple[Places, Places]:
        """Return a window's rows, ascending, and the output place of each."""
        start, stop, begin, end, run = self._windows[window].tolist()
        outputs, keep = self._runs[run].outputs(start, stop), None  # first, since it needs the most memory
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
        self.is_gathered = order.first_row is None  # whether rows come in the order of their batches, not ascending

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
        kernels.in_turn(rows, outputs, base, in_turn)
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
