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
from h5stream.order.line import (
    BatchLimit,
    Cut,
    Line,
    OrderSettings,
    RankRun,
    Share,
    Stretches,
    Taken,
    count_batches,
    rank_edges,
)
from h5stream.order.permutation import BATCHES, permutation
from h5stream.order.places import Places

Ints = NDArray[np.int64]

POOL_BATCHES = 64
"""Batches whose samples are sorted by length together. More waste less padding, and mix less: of 64, those of one
length come from anywhere in the window."""


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
    def _sorted_edges(self) -> Ints:
        """Where batches begin before they are shuffled."""
        lengths = np.concatenate([self._in_turn(number)[1] for number in range(len(self.window_edges) - 1)])
        return cut_by_rows(lengths, self.line.settings.batch_size, self._limit)

    @functools.cached_property
    def _moved(self) -> tuple[Ints, Ints]:
        """Where each of these batches begins in the end, and the edges of all in their order then.

        Those of a window are shuffled, but for what goes on from the window before or into the next, and the last of
        all, which may not be full.
        """
        edges = self._sorted_edges
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
        start, stop = self.edges[-2:].tolist()
        if stop - start == self.line.settings.batch_size:
            return True
        if (rows := self._limit.rows) is None:
            return False
        number, lengths = len(self.window_edges) - 2, np.zeros(0, dtype=np.int64)
        while len(lengths) < stop - start:  # from the last window backwards, until it is whole
            lengths = np.concatenate([self._in_turn(number)[1], lengths])
            number -= 1
        ours = lengths[start - stop :]
        return bool(ours.max() * (len(ours) + 1) > rows if self._limit.padded else ours.sum() >= rows)

    def outputs_of_window(self, window: int) -> Places:
        """Return the output place on this rank of each of a window's rows."""
        outputs = super().outputs_of_window(window)
        if self._limit.bucketed:
            start = int(self.window_edges[window])
            place = np.arange(start, start + len(outputs))
            batch = np.searchsorted(self._sorted_edges, place, side="right") - 1
            outputs[self._in_turn(window)[0]] = self._moved[0][batch] + (place - self._sorted_edges[batch])
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
    return Share({number: runs[number] for number in np.unique(rank).tolist()}, stretches, cut)


def _first_shares(line: Line, world: int, settings: OrderSettings) -> tuple[list[SizedRun], list[Stretches]]:
    """Return the runs of the ranks that begin an epoch, and the batches of each, of which there are as many."""
    total = line.blocks.total_rows
    whole = dataclasses.replace(settings, drop_last=False, batch_size=max(settings.batch_size, total))
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
