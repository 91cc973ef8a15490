"""Shares of an epoch that are not even: the rest that other numbers of ranks left, and batches cut by lengths.

If ranks are stopped, the rest of their runs is concatenated to a new line, which is cut into equal parts for the ranks
that resume; they may be stopped in turn.

Batches of samples of different lengths are cut sample by sample, once per epoch for all ranks, in 0.2 to 0.8 s for a
million samples. Ranks share these batches; one is cut in two if a rank has fewer.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from h5stream.base.limits import cached_property
from h5stream.base.texts import counted
from h5stream.errors import OptionError
from h5stream.order.epoch import (
    BatchLimit,
    Cut,
    Line,
    OrderSettings,
    RankRun,
    Share,
    Stretches,
    TakenBatches,
    even_runs,
)
from h5stream.order.places import BATCHES, Places, permutation
from h5stream.samples.segments import Ints

POOL_BATCHES = 64
"""Batches whose samples are sorted by length together. More of them waste less padding and mix less: with 64, samples
of one length come from anywhere in the window."""


def share_of(line: Line, settings: OrderSettings, taken: TakenBatches) -> Share:
    """Return the share of a rank in the rest of an epoch, or in one whose batches are cut by lengths."""
    limit, lengths = settings.limit, line.blocks.lengths
    if limit is None or lengths is None:
        return _even_share(line, settings, taken)
    return _sized_share(line, settings, limit, lengths, taken)


def _even_share(line: Line, settings: OrderSettings, taken: TakenBatches) -> Share:
    """Return the share of a rank if all batches have one size."""
    rows = line.blocks.total_rows
    first_ranks = taken[0][0] if taken else settings.world_size
    batches, edges = even_runs(rows, first_ranks, settings)
    runs = [RankRun(line, *pair) for pair in itertools.pairwise(edges.tolist())]
    remaining = np.array([[0, rows]], dtype=np.int64)
    for stage, (ranks, took) in enumerate([*taken, (settings.world_size, 0)]):
        # The rows that `drop_last` left out of the first stage are gone: later stages count only the remaining ones.
        if stage:
            batches, edges = _remaining_runs(rows, ranks, settings)
        sizes = np.diff(edges)
        if took > batches:
            raise OptionError(f"{ranks} ranks took {took:,} batches each, but had {batches:,}")
        begins = edges[1:] if took == batches else edges[:-1] + np.minimum(took * settings.batch_size, sizes - 1)
        remaining, rank = _split_line(remaining, begins, edges[1:])
        rows = int((remaining[:, 1] - remaining[:, 0]).sum())
    cut = Cut(rows=int(sizes[settings.rank]), batches=batches, size=settings.batch_size)
    return runs, remaining[rank == settings.rank], cut


def _remaining_runs(rows: int, ranks: int, settings: OrderSettings) -> tuple[int, Ints]:
    """Return the number of batches that every rank has of the rest of an epoch, which may be 0, and the runs' edges."""
    if rows == 0 or (settings.drop_last and rows < ranks * settings.batch_size):
        return 0, np.zeros(ranks + 1, dtype=np.int64)
    try:
        return even_runs(rows, ranks, settings)
    except OptionError as error:
        raise OptionError(
            f"what is left of epoch {settings.epoch} cannot be divided among {ranks} ranks: {error}. Or "
            f"begin the next epoch, with set_epoch({settings.epoch + 1})"
        ) from error


def _split_line(line: Stretches, begins: Ints, ends: Ints) -> tuple[Stretches, Ints]:
    """Split a line of stretches among ranks by their begins and ends; return the pieces, and the rank of each."""
    edges = np.append(0, np.cumsum(line[:, 1] - line[:, 0]))
    every = np.unique(np.concatenate([edges, begins, ends]))
    rank = np.searchsorted(begins, every, side="right") - 1
    owned = np.flatnonzero((rank >= 0) & (every < ends[rank]))
    of = np.searchsorted(edges, every[owned], side="right") - 1
    shift = line[of, 0] - edges[of]
    return np.stack([every[owned] + shift, every[owned + 1] + shift], axis=1), rank[owned]


# --- batches that are cut by the lengths of samples ---


def cut_by_rows(lengths: Ints, batch_size: int, limit: BatchLimit) -> Ints:
    """Cut consecutive samples into batches, each with as many samples as fit."""
    count = len(lengths)
    if limit.rows is None:
        return np.append(np.arange(0, count, batch_size), count)
    ends, edges, start = np.cumsum(lengths), [0], 0
    while start < count:
        most = min(start + batch_size, count)
        if not limit.padded:
            start = min(most, int(np.searchsorted(ends, ends[start] - lengths[start] + limit.rows, side="right")))
        else:
            start = _padded_end(lengths, start, most, limit.rows)
        edges.append(start)
    return np.array(edges, dtype=np.int64)


def _padded_end(lengths: Ints, start: int, most: int, rows: int) -> int:
    """Return the end of a batch whose samples are all padded to the longest of them."""
    tried = 64
    while True:
        stop = min(start + tried, most)
        filled = np.maximum.accumulate(lengths[start:stop]) * np.arange(1, stop - start + 1)
        fitting = int(np.searchsorted(filled, rows, side="right"))
        if fitting < stop - start or stop == most:
            return start + fitting
        tried *= 2


def most_samples(lengths: Ints, batch_size: int, limit: BatchLimit) -> int:
    """Return the most samples that a batch can have in any order: as many of the shortest as fit."""
    if limit.rows is None:
        return min(batch_size, len(lengths))
    return min(batch_size, max(1, int(np.searchsorted(np.cumsum(np.sort(lengths)), limit.rows, side="right"))))


class SizedRun(RankRun):
    """A rank's run cut into batches by the lengths of samples, with similar lengths together if `limit` asks for it."""

    def __init__(self, line: Line, start: int, stop: int, limit: BatchLimit, lengths: Ints) -> None:
        super().__init__(line, start, stop)
        self.limit, self._lengths = limit, lengths  # lengths: by places of the blocks
        in_turn = np.concatenate([self._in_turn(number)[1] for number in range(len(self.windows) - 1)])
        self._cut = cut_by_rows(in_turn, line.settings.batch_size, limit)  # before batches are shuffled
        self.last = in_turn[self._cut[-2] :].copy()  # the lengths of the last batch, which stays the last
        self._cut += start
        self._starts, self.edges = self._shuffle_batches()

    def _shuffle_batches(self) -> tuple[Ints, Ints]:
        """Shuffle the batches within each window; return where each begins then, and the edges of all.

        Batches that cross the edges of a window stay in place, and so does the very last, which may not be full.
        """
        edges, settings = self._cut, self.line.settings
        order = np.arange(len(edges) - 1)
        for low, high in itertools.pairwise(self.windows.tolist() if self.limit.bucketed else []):
            first = int(np.searchsorted(edges, low))
            after = min(int(np.searchsorted(edges, high, side="right")) - 1, len(order) - 1)
            if after > first:
                order[first:after] = first + permutation(after - first, settings.seed, settings.epoch, BATCHES, low)
        moved = edges[0] + np.append(0, np.cumsum(np.diff(edges)[order]))
        starts = np.empty_like(order)
        starts[order] = moved[:-1]
        return starts, moved

    @property
    def last_is_full(self) -> bool:
        """Whether the last batch has no room for another sample, however short."""
        lengths, rows = self.last, self.limit.rows
        if rows is None or len(lengths) == self.line.settings.batch_size:
            return len(lengths) == self.line.settings.batch_size
        return bool(lengths.max() * (len(lengths) + 1) > rows if self.limit.padded else lengths.sum() >= rows)

    def outputs(self, start: int, stop: int) -> Places:
        """Return a window-relative output place for each of a window's rows."""
        outputs = super().outputs(start, stop)
        if self.limit.bucketed:
            place = np.arange(start, stop)
            batch = np.searchsorted(self._cut, place, side="right") - 1
            in_turn = self._in_turn(int(np.searchsorted(self.windows, start)))[0]
            outputs[in_turn] = self._starts[batch] + (place - self._cut[batch]) - start
        return outputs

    def _in_turn(self, window: int) -> tuple[Ints, Ints]:
        """Return the sample at each place of a window before batches are shuffled, and their lengths.

        Pools are sorted up and down in turn, so a batch that crosses into the next pool has similar lengths too.
        """
        bounds = self.windows[window : window + 2].tolist()
        outputs = super().outputs(*bounds)
        sample = np.empty(len(outputs), dtype=np.int64)
        sample[outputs] = np.arange(len(outputs))
        lengths = self._lengths[self.line.selected(*bounds)][sample]
        if self.limit.bucketed:
            first, after = self._pools[window : window + 2]
            edges = [len(sample) * k // (after - first) for k in range(after - first + 1)]
            for number, (low, high) in enumerate(itertools.pairwise(edges), first):
                ascending = low + np.argsort(lengths[low:high], kind="stable")
                turned = ascending if number % 2 == 0 else ascending[::-1]
                sample[low:high], lengths[low:high] = sample[turned], lengths[turned]
        return sample, lengths

    @cached_property
    def _pools(self) -> list[int]:
        """The number of the first pool of each window, and the total."""
        rows, samples = self.limit.rows, self.line.settings.batch_size
        if rows is not None:
            samples = min(samples, max(1, int(rows / max(1.0, float(self._lengths.mean())))))
        pools = np.maximum(1, np.diff(self.windows) // (POOL_BATCHES * samples))
        edges: list[int] = np.append(0, np.cumsum(pools)).tolist()
        return edges


def _sized_share(line: Line, settings: OrderSettings, limit: BatchLimit, lengths: Ints, taken: TakenBatches) -> Share:
    """Return the share of a rank if batches are cut by the lengths of samples."""
    worlds = [*(world for world, _ in taken), settings.world_size]
    total = line.blocks.total_rows
    whole = replace(settings, drop_last=False, batch_size=max(settings.batch_size, total))
    _, edges = even_runs(total, worlds[0], whole)
    runs = [SizedRun(line, start, stop, limit, lengths) for start, stop in itertools.pairwise(edges.tolist())]
    ranks = _first_shares(runs, total, settings)
    for (world, count), after in zip(taken, worlds[1:], strict=True):
        if count > len(ranks[0]):
            raise OptionError(f"{world} ranks took {count:,} batches each, but had {len(ranks[0]):,}")
        remaining = np.concatenate([batches[count:] for batches in ranks])
        count_each, over = divmod(len(remaining), after)
        count_each += bool(over and not settings.drop_last)
        remaining = _split_largest(remaining, count_each * after, after, settings.epoch)
        ranks = [remaining[count_each * rank : count_each * (rank + 1)] for rank in range(after)]
    start, stop = ranks[settings.rank].T
    edges = np.append(0, np.cumsum(stop - start))
    # Batches of a run that follow one another are one stretch.
    is_other = (start[1:] != stop[:-1]) | np.isin(start[1:], [run.start for run in runs])
    begins = np.flatnonzero(np.append(True, is_other)[: len(start)])
    ends = np.append(begins[1:], len(start))[: len(begins)] - 1
    stretches = np.stack([start[begins], stop[ends]], axis=1)
    return runs, stretches, Cut(rows=int(edges[-1]), batches=len(start), edges=edges)


def _first_shares(runs: list[SizedRun], total: int, settings: OrderSettings) -> list[Stretches]:
    """Return the batches of the ranks that begin an epoch: the same number for each."""
    ranks = []
    for run in runs:
        batches = np.stack([run.edges[:-1], run.edges[1:]], axis=1)
        ranks.append(batches[: len(batches) - (settings.drop_last and not run.last_is_full)])
    if not settings.drop_last:
        most = max(map(len, ranks))
        return [_split_largest(batches, most, len(runs), settings.epoch) for batches in ranks]
    fewest = min(map(len, ranks))
    if fewest == 0:
        raise OptionError(
            f"drop_last=True leaves no batch of {counted(total, 'sample')} for {counted(len(runs), 'rank')}: take "
            "fewer rows="
        )
    return [batches[:fewest] for batches in ranks]


def _split_largest(batches: Stretches, count: int, ranks: int, epoch: int) -> Stretches:
    """Cut the largest batches in two until there are `count`."""
    while len(batches) < count:
        sizes = batches[:, 1] - batches[:, 0]
        largest = np.argsort(-sizes, kind="stable")[: count - len(batches)]
        cut = np.sort(largest[sizes[largest] > 1])
        if not len(cut):
            raise OptionError(
                f"{int(sizes.sum()):,} samples do not give each of {ranks} ranks the same number of "
                "batches: use fewer ranks, or pass drop_last=True; or, where the others of this epoch were taken, "
                f"begin the next, with set_epoch({epoch + 1})"
            )
        halves, middle = batches[cut], (batches[cut].sum(axis=1) + 1) // 2
        halves[:, 0] = batches[cut, 1] = middle
        batches = np.insert(batches, cut + 1, halves, axis=0)
    return batches
