"""Batches of samples of unlike lengths: as many as fit into a number of rows, or such as are about as long.

A rank's line is cut into batches from its beginning on, sample after sample, so where a batch begins is known only once
all before it are cut: that is done once for an epoch, for all ranks, and takes 0.2 to 0.8 s for a million samples. What
ranks share out are these batches, at the beginning and when others go on: one is cut in two where a rank has fewer.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.order.cut import ListedCut
from h5stream.order.line import BatchLimit, Line, OrderSettings, RankRun
from h5stream.order.permutation import BATCHES, permutation
from h5stream.order.places import Places
from h5stream.order.shares import Share, Stretches, Taken, rank_run

Ints = NDArray[np.int64]

POOL_BATCHES = 64
"""Batches whose samples are sorted by length together. More waste less padding, and mix less: of 64, those of one
length come from anywhere in the window."""


def cut_by_rows(lengths: Ints, batch_size: int, limit: BatchLimit) -> Ints:
    """Cut samples that follow one another into batches, each with as many as may be."""
    count = len(lengths)
    if limit.rows is None:
        return np.append(np.arange(0, count, batch_size), count)
    ends, edges = np.cumsum(lengths), [0]
    while edges[-1] < count:
        start = edges[-1]
        most = min(start + batch_size, count)
        if limit.padded:
            edges.append(_padded_end(lengths, start, most, limit.rows))
        else:
            before = ends[start] - lengths[start]
            edges.append(min(most, int(np.searchsorted(ends, before + limit.rows, side="right"))))
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
    def _sorted_edges(self) -> Ints:
        """Where batches begin before they are shuffled."""
        windows = range(len(self.window_edges) - 1)
        lengths = np.concatenate([self._lengths_of(number)[self._by_place(number)] for number in windows])
        return cut_by_rows(lengths, self.line.settings.batch_size, self._limit)

    @functools.cached_property
    def _moved(self) -> tuple[Ints, Ints]:
        """Where each of these batches begins in the end, and the edges of all in their order then.

        Those of a window are shuffled, but for what goes on from the window before or into the next, and the last of
        all, which may not be full.
        """
        edges = self._sorted_edges
        order = np.arange(len(edges) - 1)
        if self._limit.bucketed:
            for low, high in itertools.pairwise(self.window_edges.tolist()):
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
        start, stop = self.edges[-2:].tolist()
        if stop - start == self.line.settings.batch_size:
            return True
        rows = self._limit.rows
        if rows is None:
            return False
        number, lengths = len(self.window_edges) - 2, np.zeros(0, dtype=np.int64)
        while len(lengths) < stop - start:  # from the last window backwards, until it is whole
            lengths = np.concatenate([self._lengths_of(number)[self._by_place(number)], lengths])
            number -= 1
        ours = lengths[start - stop :]
        return bool(ours.max() * (len(ours) + 1) > rows if self._limit.padded else ours.sum() >= rows)

    def outputs_of_window(self, window: int) -> Places:
        """Return the output place on this rank of each of a window's rows."""
        outputs = super().outputs_of_window(window)
        if not self._limit.bucketed:
            return outputs
        start = int(self.window_edges[window])
        place = np.arange(start, start + len(outputs))
        batch = np.searchsorted(self._sorted_edges, place, side="right") - 1
        by_place = self._by_place(window)
        outputs[by_place] = self._moved[0][batch] + (place - self._sorted_edges[batch])
        return outputs

    def _lengths_of(self, window: int) -> Ints:
        """Return the lengths of a window's samples, in the order of the file."""
        assert self.line.blocks.lengths is not None
        return self.line.blocks.lengths[self.places_of_window(window)]

    def _by_place(self, window: int) -> Ints:
        """Give, for each place of a window before batches are shuffled, which of its samples is there.

        One pool after the other, up and down in turn: a batch that goes on in the next pool has like lengths too.
        """
        start = int(self.window_edges[window])
        outputs = super().outputs_of_window(window)
        by_place = np.empty(len(outputs), dtype=np.int64)
        by_place[outputs - start] = np.arange(len(outputs))
        if not self._limit.bucketed:
            return by_place
        lengths, pools = self._lengths_of(window)[by_place], self._pools
        first, after = pools[window : window + 2]
        for number in range(first, after):
            low, high = ((number - first + k) * len(by_place) // (after - first) for k in (0, 1))
            ascending = np.argsort(lengths[low:high], kind="stable")
            by_place[low:high] = by_place[low:high][ascending if number % 2 == 0 else ascending[::-1]]
        return by_place

    @functools.cached_property
    def _pools(self) -> list[int]:
        """The number of the first pool of each window, and behind the last."""
        assert self.line.blocks.lengths is not None
        rows, mean = self._limit.rows, max(1.0, float(self.line.blocks.lengths.mean()))
        samples = (
            self.line.settings.batch_size
            if rows is None
            else min(self.line.settings.batch_size, max(1, int(rows / mean)))
        )
        pools = np.maximum(1, np.diff(self.window_edges) // (POOL_BATCHES * samples))
        counted: list[int] = np.append(0, np.cumsum(pools)).tolist()
        return counted


def sized_share(line: Line, settings: OrderSettings, taken: Taken) -> Share:
    """Return the share of a rank, where batches are cut by the lengths of samples."""
    first = dataclasses.replace(settings, rank=0, world_size=taken[0][0] if taken else settings.world_size)
    runs, ranks = _first_shares(line, first)
    worlds = [*(world for world, _ in taken[1:]), settings.world_size]
    for (world, count), after in zip(taken, worlds, strict=False):
        if count > len(ranks[0]):
            raise OptionError(f"{world} ranks took {count:,} batches each, but had {len(ranks[0]):,}")
        left, some = np.concatenate([batches[count:] for batches in ranks]), dataclasses.replace(settings, rank=0)
        each, over = divmod(len(left), after)
        each += bool(over and not settings.drop_last)
        left = _made(left, each * after, dataclasses.replace(some, world_size=after))
        ranks = [left[each * rank : each * (rank + 1)] for rank in range(after)]
    rank, start, stop = ranks[settings.rank].T
    cut = ListedCut(np.append(0, np.cumsum(stop - start)))
    # Batches that follow one another are one stretch.
    begins = np.flatnonzero(np.append(True, (rank[1:] != rank[:-1]) | (start[1:] != stop[:-1]))[: len(rank)])
    ends = np.append(begins[1:], len(rank))[: len(begins)] - 1
    stretches = np.stack([rank[begins], start[begins], stop[ends]], axis=1)
    return Share({number: runs[number] for number in np.unique(rank).tolist()}, stretches, cut)


def _first_shares(line: Line, settings: OrderSettings) -> tuple[list[SizedRun], list[Stretches]]:
    """Return the runs of the ranks that begin an epoch, and the batches of each, of which there are as many."""
    total, world = line.blocks.total_rows, settings.world_size
    whole = dataclasses.replace(settings, drop_last=False, batch_size=max(settings.batch_size, total))
    runs = [SizedRun(line, *rank_run(total, dataclasses.replace(whole, rank=rank))) for rank in range(world)]
    ranks = []
    for number, run in enumerate(runs):
        batches = np.stack([np.full(len(run.edges) - 1, number), run.edges[:-1], run.edges[1:]], axis=1)
        ranks.append(batches[: len(batches) - (settings.drop_last and not run.last_is_full)])
    if not settings.drop_last:
        most = max(map(len, ranks))
        return runs, [_made(batches, most, settings) for batches in ranks]
    fewest = min(map(len, ranks))
    if fewest == 0:
        raise OptionError(
            f"drop_last=True leaves no batch: {total:,} samples for {world} rank(s) do not fill one; take fewer rows= "
            "in Sized(...) or a smaller batch_size=, or drop_last=False"
        )
    return runs, [batches[:fewest] for batches in ranks]


def _made(batches: Stretches, count: int, settings: OrderSettings) -> Stretches:
    """Return so many batches, the largest cut in two until there are."""
    while len(batches) < count:
        sizes = batches[:, 2] - batches[:, 1]
        largest = np.argsort(-sizes, kind="stable")[: count - len(batches)]
        cut = np.sort(largest[sizes[largest] > 1])
        if not len(cut):
            raise OptionError(
                f"{int(sizes.sum()):,} samples do not give each of {settings.world_size} ranks the same number of "
                "batches: use fewer ranks, or pass drop_last=True; or, where the others of this epoch were taken, "
                f"begin the next, with set_epoch({settings.epoch + 1})"
            )
        halves, middle = batches[cut], (batches[cut, 1] + batches[cut, 2] + 1) // 2
        halves[:, 1] = middle
        batches = batches.copy()
        batches[cut, 2] = middle
        batches = np.insert(batches, cut + 1, halves, axis=0)
    return batches
