"""The line of an epoch, all rows with whole blocks permuted, the run of it that a rank owns, and its cut into batches.

A run is cut into windows at block edges. Inside a window every row is sent to its *output place*; batches are
consecutive runs of output places and may cross windows.

Each rank that began an epoch has a run and has taken the first of its output places. What is left of all runs, one
behind the other, is a new line; it is cut into equal runs for the ranks that go on. They may be stopped in turn: a
line's pieces are always pieces of the first ranks' runs, so a place remains two numbers.

Batches of samples of unlike lengths take as many as fit into a number of rows, or such as are about as long. A rank's
line is cut into them from its beginning on, sample after sample, so where a batch begins is known only once all before
are cut: that is done once for an epoch, for all ranks, and takes 0.2 to 0.8 s for a million samples. What ranks share
out are these batches, at the beginning and when others go on: one is cut in two where a rank has fewer.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.permutation import BATCHES, BLOCKS, ROWS, permutation
from h5stream.order.places import Places, in_ranges, new_array, pieces, place_dtype
from h5stream.order.weights import interleaved
from h5stream.samples.space import Ints

POOL_BATCHES = 64
"""Batches whose samples are sorted by length together. More waste less padding, and mix less: of 64, those of one
length come from anywhere in the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimit:
    """How batches of samples of unlike lengths are cut."""

    rows: int | None = None  # rows that a batch may have; None for any number
    padded: bool = False  # whether each sample counts as many rows as the longest of its batch
    bucketed: bool = False  # whether samples of like lengths come together


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSettings:
    """What an epoch's order depends on, besides the blocks."""

    batch_size: int  # rows of a batch
    window_rows: int  # rows of a window; rounded up to whole blocks
    first_window_rows: int  # rows of the epoch's first window; the next ones double until they reach `window_rows`
    shuffle: bool = True  # false gives the rows in file order
    drop_last: bool = False  # leave out what does not fill a batch on every rank
    seed: int = 0  # seed, epoch: non-negative
    epoch: int = 0
    rank: int = 0  # rank, world_size: which run of the line is ours
    world_size: int = 1
    limit: BatchLimit | None = None  # how batches are cut by the blocks' lengths; None where each has `batch_size` rows

    def __post_init__(self) -> None:
        for name, least in (
            ("batch_size", 1), ("window_rows", 1), ("first_window_rows", 1), ("seed", 0), ("epoch", 0), ("rank", 0),
            ("world_size", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise OptionError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.rank >= self.world_size:
            raise OptionError(f"rank must be below world_size={self.world_size}, not {self.rank}")


class Line:
    """All rows of an epoch, whole blocks permuted."""

    def __init__(self, blocks: Blocks, settings: OrderSettings) -> None:
        self.blocks, self.settings = blocks, settings

    @functools.cached_property
    def permuted(self) -> Ints:
        """The blocks' numbers, in turn."""
        if not self.settings.shuffle:
            return np.arange(self.blocks.count, dtype=np.int64)
        permuted = permutation(self.blocks.count, self.settings.seed, self.settings.epoch, BLOCKS)
        strata = self.blocks.strata
        return permuted if strata is None else interleaved(permuted, np.diff(self.blocks.edges), strata)

    @functools.cached_property
    def edges(self) -> Ints:
        """Places of the permuted blocks' edges."""
        return np.append(0, np.cumsum(np.diff(self.blocks.edges)[self.permuted]))


class RankRun:
    """The places `start` to `stop` of a line, in windows of whole blocks."""

    def __init__(self, line: Line, start: int, stop: int) -> None:
        self.line, self.start, self.stop = line, start, stop

    @functools.cached_property
    def window_edges(self) -> Ints:
        """Output places where windows begin and end."""
        stop, line = self.stop, self.line.edges
        edges, size, most = [self.start], self.line.settings.first_window_rows, self.line.settings.window_rows
        # To the next block edge, so that no chunk is read for two windows.
        while edges[-1] < stop and (size < most or len(edges) == 1):
            nearest = np.searchsorted(line, min(edges[-1] + size, stop))
            edges.append(min(int(line[nearest]), stop))
            size = min(size * 2, most)
        if edges[-1] == stop:
            return np.array(edges, dtype=np.int64) - self.start
        # From here on windows are of one size, and there may be a million of them: where each could end, at once.
        after, places = np.searchsorted(line, np.minimum(line + most, stop)), [int(np.searchsorted(line, edges[-1]))]
        while line[places[-1]] < stop:
            places.append(int(after[places[-1]]))
        return np.append(edges, np.minimum(line[places[1:]], stop)) - self.start

    def window_ranges(self, window: int) -> tuple[Ints, Ints]:
        """Return a window's blocks as begins and ends of runs of rows, in file order; costs nothing per row.

        Places in the selection where the blocks hold one, else rows.
        """
        line, (start, stop) = self.line, (self.window_edges[window : window + 2] + self.start).tolist()
        first = int(np.searchsorted(line.edges, start, side="right")) - 1
        last = int(np.searchsorted(line.edges, stop, side="left"))
        begins, ends = (line.blocks.edges[line.permuted[first:last] + k] for k in (0, 1))
        # A rank's run may begin and end inside a block.
        begins[0] += start - line.edges[first]
        ends[-1] -= line.edges[last] - stop
        by_file = np.argsort(begins)
        return begins[by_file], ends[by_file]

    def places_of_window(self, window: int) -> Places:
        """Return the places of a window's rows in the selection, ascending."""
        begins, ends = self.window_ranges(window)
        blocks, counts = self.line.blocks, ends - begins
        if blocks.first is None or blocks.every is None:
            return in_ranges(begins, counts, dtype=place_dtype(int(ends[-1])))
        of = np.searchsorted(blocks.edges, begins, side="right") - 1  # turns of these blocks
        every = blocks.every[of]
        begins = blocks.first[of] + (begins - blocks.edges[of]) * every
        found = in_ranges(begins, counts, every, dtype=place_dtype(blocks.total_rows))
        found.sort()
        return found

    def rows_of_window(self, window: int) -> Places:
        """Return a window's rows, ascending."""
        return self.line.blocks.rows_at(self.places_of_window(window))

    def outputs_of_window(self, window: int) -> Places:
        """Return the output place of each of a window's rows."""
        start, stop = self.window_edges[window : window + 2].tolist()
        settings, dtype = self.line.settings, place_dtype(self.stop - self.start)
        if not settings.shuffle:
            return np.arange(start, stop, dtype=dtype)
        # The rows are ascending whatever the blocks' order was: a random place for each is all it takes.
        outputs = permutation(stop - start, settings.seed, settings.epoch, ROWS, start + self.start)
        outputs = outputs.astype(dtype, copy=False)
        outputs += start
        return outputs


# --- batches, and which of them each rank has ---


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A run of output places cut into batches: at `edges`, or each full but the last.

    Where the run would fill only ``batches - 1`` full ones (another rank has one row more), the last full batch gives
    its last row away, so that all ranks count alike.
    """

    rows: int
    batches: int
    size: int = 0  # rows of a full batch
    edges: Ints | None = None  # where each batch begins, and where the last ends

    @property
    def _last(self) -> int:
        return min((self.batches - 1) * self.size, self.rows - 1)

    def start_of(self, batch: int) -> int:
        """Return the first output place of a batch; behind the last batch, the end of all."""
        if batch >= self.batches:
            return self.rows
        if self.edges is not None:
            return int(self.edges[batch])
        return self._last if batch == self.batches - 1 else batch * self.size

    def batch_of(self, output: int) -> int:
        """Return the batch of one output place."""
        if self.edges is not None:
            return int(np.searchsorted(self.edges, output, side="right")) - 1
        return self.batches - 1 if output >= self._last else output // self.size

    def locate(self, output: Places) -> tuple[Places, Places]:
        """Return the batch of each output place, and its place in that."""
        batch, within = (new_array(len(output), output.dtype) for _ in range(2))
        size = min(self.size, self.rows)  # which may be more than the numbers' type can hold
        for piece in pieces(len(output)):
            if self.edges is not None:
                batch[piece] = np.searchsorted(self.edges, output[piece], side="right") - 1
                np.subtract(output[piece], self.edges[batch[piece]], out=within[piece], casting="same_kind")
            else:
                np.floor_divide(output[piece], size, out=batch[piece])
                np.subtract(output[piece], batch[piece] * size, out=within[piece])
        if self.edges is None and self._last < (self.batches - 1) * self.size:
            given_away = np.flatnonzero(output == self._last)
            batch[given_away], within[given_away] = self.batches - 1, 0
        return batch, within

    def of_run(self, begin: int, end: int, dtype: Any) -> tuple[Places, Places]:
        """Return the same for consecutive output places, without a division for each."""
        first, after = self.batch_of(begin), self.batch_of(end - 1) + 1
        starts = [self.start_of(batch) for batch in range(first, after)]
        sizes = np.diff([begin, *starts[1:], end])
        within = np.arange(begin, end, dtype=dtype) - np.repeat(np.array(starts, dtype=dtype), sizes)
        return np.repeat(np.arange(first, after, dtype=dtype), sizes), within


Taken = tuple[tuple[int, int], ...]
"""How far an epoch is: pairs of a number of ranks and of the batches that each of them took, in turn."""

Stretches = Ints
"""Output places of the ranks that began an epoch, one row each: which rank's, where they start, where they stop."""


Share = tuple[dict[int, RankRun], Stretches, Cut]
"""What one rank has of an epoch: runs of the ranks that began it, stretches of these, and how they become batches."""


def even_share(line: Line, settings: OrderSettings, taken: Taken) -> Share:
    """Return the share of a rank, where all batches are of one size."""
    rows, left, runs = line.blocks.total_rows, np.zeros((0, 3), dtype=np.int64), np.zeros(0, dtype=np.int64)
    for number, (ranks, took) in enumerate([*taken, (settings.world_size, 0)]):
        # The first ranks' line has lost what `drop_last` leaves out, and may not be counted anew.
        batches = _batches_left(rows, ranks, settings) if number else count_batches(rows, ranks, settings)
        edges = rank_edges(rows, ranks, settings, batches)
        if not number:
            runs, left = edges, np.stack([np.arange(ranks), np.zeros(ranks, dtype=np.int64), np.diff(edges)], axis=1)
        cuts = [Cut(rows=int(n), batches=batches, size=settings.batch_size) for n in np.diff(edges)]
        if number == len(taken):
            break
        if took > batches:
            raise OptionError(f"{ranks} ranks took {took:,} batches each, but had {batches:,}")
        pairs = zip(edges, edges[1:], cuts, strict=False)
        left = np.concatenate([_sliced(left, start + cut.start_of(took), stop) for start, stop, cut in pairs])
        rows = int((left[:, 2] - left[:, 1]).sum())
    stretches = _sliced(left, edges[settings.rank], edges[settings.rank + 1])
    found = {rank: RankRun(line, *runs[rank : rank + 2].tolist()) for rank in np.unique(stretches[:, 0]).tolist()}
    return found, stretches, cuts[settings.rank]


def count_batches(rows: int, ranks: int, settings: OrderSettings) -> int:
    """Return the batches that every rank has, by arithmetic alone."""
    size = settings.batch_size
    if settings.drop_last:
        batches = rows // (ranks * size)
        if batches == 0:
            raise OptionError(
                f"drop_last=True leaves no batch: {rows:,} rows for {ranks} rank(s) x batch_size={size:,}; "
                "take a smaller batch_size or drop_last=False"
            )
        return batches
    fewest, extra = divmod(rows, ranks)
    if fewest == 0:
        raise OptionError(f"{rows:,} rows cannot give each of {ranks} ranks one; use fewer ranks")
    batches = -(-(fewest + bool(extra)) // size)
    if fewest < batches:
        raise OptionError(
            f"{rows:,} rows do not give each of {ranks} ranks the same number of batches of {size}: pass drop_last=True"
        )
    return batches


def rank_edges(rows: int, ranks: int, settings: OrderSettings, batches: int) -> Ints:
    """Return the places of a line where each rank's own begin, and where the last rank's end."""
    every = np.arange(ranks + 1, dtype=np.int64)
    if settings.drop_last:
        return every * (batches * settings.batch_size)
    each, extra = divmod(rows, ranks)
    edges: Ints = every * each + np.minimum(every, extra)
    return edges


def _batches_left(rows: int, ranks: int, settings: OrderSettings) -> int:
    """Return the batches that every rank has of what is left; none may be left, unlike in a whole epoch."""
    if rows == 0 or (settings.drop_last and rows < ranks * settings.batch_size):
        return 0
    try:
        return count_batches(rows, ranks, settings)
    except OptionError as error:
        raise OptionError(
            f"what is left of epoch {settings.epoch} cannot be divided among {ranks} ranks: {error}. Or "
            f"begin the next epoch, with set_epoch({settings.epoch + 1})"
        ) from error


def _sliced(line: Stretches, start: int, stop: int) -> Stretches:
    """Return the places `start` to `stop` of a line."""
    rank, first, last = line.T
    begins = np.cumsum(last - first) - (last - first)
    found = np.stack([rank, first + np.maximum(start - begins, 0), np.minimum(last, first + stop - begins)], axis=1)
    return found[found[:, 1] < found[:, 2]]


# --- batches that are cut by the lengths of samples ---


def cut_by_rows(lengths: Ints, batch_size: int, limit: BatchLimit) -> Ints:
    """Cut samples that follow one another into batches, each with as many as may be."""
    count = len(lengths)
    if limit.rows is None:
        return np.append(np.arange(0, count, batch_size), count)
    ends, edges, start = np.cumsum(lengths), [0], 0
    while start < count:
        most = min(start + batch_size, count)
        if limit.padded:
            start = _padded_end(lengths, start, most, limit.rows)
        else:
            start = min(most, int(np.searchsorted(ends, ends[start] - lengths[start] + limit.rows, side="right")))
        edges.append(start)
    return np.array(edges, dtype=np.int64)


def _padded_end(lengths: Ints, start: int, most: int, rows: int) -> int:
    """Return the end of a batch of which each sample counts as many rows as the longest."""
    tried = 64
    while True:
        stop = min(start + tried, most)
        filled = np.maximum.accumulate(lengths[start:stop]) * np.arange(1, stop - start + 1)
        fitting = int(np.searchsorted(filled, rows, side="right"))
        if fitting < stop - start or stop == most:
            return start + fitting
        tried *= 2


def most_samples(lengths: Ints, batch_size: int, limit: BatchLimit) -> int:
    """Return the samples that a batch may have, whatever the order: the shortest of all."""
    if limit.rows is None:
        return min(batch_size, len(lengths))
    return min(batch_size, max(1, int(np.searchsorted(np.cumsum(np.sort(lengths)), limit.rows, side="right"))))


class SizedRun(RankRun):
    """A rank's run, with samples of like lengths side by side where that is asked for, and where its batches begin."""

    @property
    def _limit(self) -> BatchLimit:
        assert self.line.settings.limit is not None
        return self.line.settings.limit

    @functools.cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        """Where batches begin before they are shuffled, and the lengths of the last, which stays."""
        lengths = np.concatenate([self._in_turn(number)[1] for number in range(len(self.window_edges) - 1)])
        edges = cut_by_rows(lengths, self.line.settings.batch_size, self._limit)
        return edges, lengths[edges[-2] :].copy()

    @functools.cached_property
    def _moved(self) -> tuple[Ints, Ints]:
        """Where each of these batches begins in the end, and the edges of all in their order then.

        Those of a window are shuffled, but for what goes on from the window before or into the next, and the last of
        all, which may not be full.
        """
        edges, _ = self._sorted
        order = np.arange(len(edges) - 1)
        for low, high in itertools.pairwise(self.window_edges.tolist() if self._limit.bucketed else []):
            first = int(np.searchsorted(edges, low))
            after = min(int(np.searchsorted(edges, high, side="right")) - 1, len(order) - 1)
            if after > first:
                key = self.line.settings.seed, self.line.settings.epoch, BATCHES, low + self.start
                order[first:after] = first + permutation(after - first, *key)
        moved = np.append(0, np.cumsum(np.diff(edges)[order]))
        starts = np.empty_like(order)
        starts[order] = moved[:-1]
        return starts, moved

    @property
    def edges(self) -> Ints:
        """Output places where batches begin, and where the last ends."""
        return self._moved[1]

    @property
    def last_is_full(self) -> bool:
        """Whether the last batch would have no room for another sample, however short."""
        (_, ours), rows = self._sorted, self._limit.rows
        if rows is None or len(ours) == self.line.settings.batch_size:
            return len(ours) == self.line.settings.batch_size
        return bool(ours.max() * (len(ours) + 1) > rows if self._limit.padded else ours.sum() >= rows)

    def outputs_of_window(self, window: int) -> Places:
        """Return the output place on this rank of each of a window's rows."""
        outputs = super().outputs_of_window(window)
        if self._limit.bucketed:
            start = int(self.window_edges[window])
            place = np.arange(start, start + len(outputs))
            edges, _ = self._sorted
            batch = np.searchsorted(edges, place, side="right") - 1
            outputs[self._in_turn(window)[0]] = self._moved[0][batch] + (place - edges[batch])
        return outputs

    def _in_turn(self, window: int) -> tuple[Ints, Ints]:
        """Return which sample is at each place of a window before batches are shuffled, and the length of each.

        One pool after the other, up and down in turn: a batch that goes on in the next pool has like lengths too.
        """
        assert self.line.blocks.lengths is not None
        outputs = super().outputs_of_window(window)
        sample = np.empty(len(outputs), dtype=np.int64)
        sample[outputs - int(self.window_edges[window])] = np.arange(len(outputs))
        lengths = self.line.blocks.lengths[self.places_of_window(window)][sample]
        if self._limit.bucketed:
            first, after = self._pools[window : window + 2]
            edges = [len(sample) * k // (after - first) for k in range(after - first + 1)]
            for number, (low, high) in enumerate(itertools.pairwise(edges), first):
                ascending = low + np.argsort(lengths[low:high], kind="stable")
                turned = ascending if number % 2 == 0 else ascending[::-1]
                sample[low:high], lengths[low:high] = sample[turned], lengths[turned]
        return sample, lengths

    @functools.cached_property
    def _pools(self) -> list[int]:
        """The number of the first pool of each window, and behind the last."""
        assert self.line.blocks.lengths is not None
        rows, samples = self._limit.rows, self.line.settings.batch_size
        if rows is not None:
            samples = min(samples, max(1, int(rows / max(1.0, float(self.line.blocks.lengths.mean())))))
        pools = np.maximum(1, np.diff(self.window_edges) // (POOL_BATCHES * samples))
        counted: list[int] = np.append(0, np.cumsum(pools)).tolist()
        return counted


def sized_share(line: Line, settings: OrderSettings, taken: Taken) -> Share:
    """Return the share of a rank, where batches are cut by the lengths of samples."""
    worlds = [*(world for world, _ in taken), settings.world_size]
    runs, ranks = _first_shares(line, worlds[0], settings)
    for (world, count), after in zip(taken, worlds[1:], strict=True):
        if count > len(ranks[0]):
            raise OptionError(f"{world} ranks took {count:,} batches each, but had {len(ranks[0]):,}")
        left = np.concatenate([batches[count:] for batches in ranks])
        each, over = divmod(len(left), after)
        each += bool(over and not settings.drop_last)
        left = _made(left, each * after, after, settings.epoch)
        ranks = [left[each * rank : each * (rank + 1)] for rank in range(after)]
    rank, start, stop = ranks[settings.rank].T
    edges = np.append(0, np.cumsum(stop - start))
    # Batches that follow one another are one stretch.
    begins = np.flatnonzero(np.append(True, (rank[1:] != rank[:-1]) | (start[1:] != stop[:-1]))[: len(rank)])
    ends = np.append(begins[1:], len(rank))[: len(begins)] - 1
    stretches = np.stack([rank[begins], start[begins], stop[ends]], axis=1)
    cut = Cut(rows=int(edges[-1]), batches=len(rank), edges=edges)
    return {number: runs[number] for number in np.unique(rank).tolist()}, stretches, cut


def _first_shares(line: Line, world: int, settings: OrderSettings) -> tuple[list[SizedRun], list[Stretches]]:
    """Return the runs of the ranks that begin an epoch, and the batches of each, of which there are as many."""
    total = line.blocks.total_rows
    whole = replace(settings, drop_last=False, batch_size=max(settings.batch_size, total))
    edges = rank_edges(total, world, whole, count_batches(total, world, whole))
    runs = [SizedRun(line, *pair) for pair in itertools.pairwise(edges.tolist())]
    ranks = []
    for number, run in enumerate(runs):
        batches = np.stack([np.full(len(run.edges) - 1, number), run.edges[:-1], run.edges[1:]], axis=1)
        ranks.append(batches[: len(batches) - (settings.drop_last and not run.last_is_full)])
    if not settings.drop_last:
        most = max(map(len, ranks))
        return runs, [_made(batches, most, world, settings.epoch) for batches in ranks]
    fewest = min(map(len, ranks))
    if fewest == 0:
        raise OptionError(
            f"drop_last=True leaves no batch: {total:,} samples for {world} rank(s) do not fill one; take fewer rows="
        )
    return runs, [batches[:fewest] for batches in ranks]


def _made(batches: Stretches, count: int, ranks: int, epoch: int) -> Stretches:
    """Return so many batches, the largest cut in two until there are."""
    while len(batches) < count:
        sizes = batches[:, 2] - batches[:, 1]
        largest = np.argsort(-sizes, kind="stable")[: count - len(batches)]
        cut = np.sort(largest[sizes[largest] > 1])
        if not len(cut):
            raise OptionError(
                f"{int(sizes.sum()):,} samples do not give each of {ranks} ranks the same number of "
                "batches: use fewer ranks, or pass drop_last=True; or, where the others of this epoch were taken, "
                f"begin the next, with set_epoch({epoch + 1})"
            )
        halves, middle = batches[cut], (batches[cut, 1] + batches[cut, 2] + 1) // 2
        halves[:, 1] = batches[cut, 2] = middle
        batches = np.insert(batches, cut + 1, halves, axis=0)
    return batches
