"""The line of an epoch: all rows with whole blocks permuted, the run of it that a rank owns, and its cut into batches.

A run is cut into windows at block edges. Inside a window every row is sent to its *output place*; batches are
consecutive output places and may cross windows. If ranks are stopped, the rest of their runs is concatenated to a new
line, which is cut into equal parts for the ranks that resume; they may be stopped in turn.

Batches of samples of different lengths are cut sample by sample, once per epoch for all ranks, in 0.2 to 0.8 s for a
million samples. Ranks share these batches; one is cut in two if a rank has fewer.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from h5stream.compiled import _native as kernels
from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.permutation import BATCHES, BLOCKS, ROWS, permutation
from h5stream.order.places import Places, in_ranges, new_array, place_dtype
from h5stream.order.weights import interleaved
from h5stream.samples.segments import Ints

POOL_BATCHES = 64
"""Batches whose samples are sorted by length together. More of them waste less padding and mix less: with 64, samples
of one length come from anywhere in the window."""


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


class Line:
    """All rows of an epoch with whole blocks permuted, addressed by their places in this line."""

    def __init__(self, blocks: Blocks, settings: OrderSettings) -> None:
        self.blocks, self.settings = blocks, settings

    @functools.cached_property
    def permuted(self) -> Ints:
        """The block numbers in the order of the line."""
        if not self.settings.shuffle:
            return np.arange(self.blocks.count, dtype=np.int64)
        permuted = permutation(self.blocks.count, self.settings.seed, self.settings.epoch, BLOCKS)
        strata = self.blocks.strata
        return permuted if strata is None else interleaved(permuted, np.diff(self.blocks.edges), strata)

    @functools.cached_property
    def edges(self) -> Ints:
        """The places of the permuted blocks' edges."""
        return np.append(0, np.cumsum(np.diff(self.blocks.edges)[self.permuted]))

    def ranges(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Return the rows between two places as begins and ends of row ranges, in file order, without listing the rows.

        These are places in the selection if the blocks have one, else rows.
        """
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        last = int(np.searchsorted(self.edges, stop, side="left"))
        begins, ends = (self.blocks.edges[self.permuted[first:last] + k] for k in (0, 1))
        # A rank's run may begin and end inside a block.
        begins[0] += start - self.edges[first]
        ends[-1] -= self.edges[last] - stop
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
        return self.blocks.rows_at(self.selected(start, stop))


class RankRun:
    """The places `start` to `stop` of a line, which one rank owns, in windows."""

    def __init__(self, line: Line, start: int, stop: int) -> None:
        self.line, self.start, self.stop = line, start, stop

    @functools.cached_property
    def windows(self) -> Ints:
        """The edges of windows: at block edges, so that no chunk is read for two windows."""
        stop, line, settings = self.stop, self.line.edges, self.line.settings
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
        batch, within = (new_array(len(output), output.dtype) for _ in range(2))
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


def even_share(line: Line, settings: OrderSettings, taken: TakenBatches) -> Share:
    """Return the share of a rank if all batches have one size."""
    rows, runs = line.blocks.total_rows, None
    remaining = np.array([[0, rows]], dtype=np.int64)
    for ranks, took in [*taken, (settings.world_size, 0)]:
        # The rows that `drop_last` left out of the first stage are gone: later stages count only the remaining ones.
        batches = (count_batches if runs is None else _remaining_batches)(rows, ranks, settings)
        edges = rank_edges(rows, ranks, settings, batches)
        runs, sizes = edges if runs is None else runs, np.diff(edges)
        if took > batches:
            raise OptionError(f"{ranks} ranks took {took:,} batches each, but had {batches:,}")
        begins = edges[1:] if took == batches else edges[:-1] + np.minimum(took * settings.batch_size, sizes - 1)
        remaining, rank = _split_line(remaining, begins, edges[1:])
        rows = int((remaining[:, 1] - remaining[:, 0]).sum())
    assert runs is not None
    cut = Cut(rows=int(sizes[settings.rank]), batches=batches, size=settings.batch_size)
    return [RankRun(line, *pair) for pair in itertools.pairwise(runs.tolist())], remaining[rank == settings.rank], cut


def count_batches(rows: int, ranks: int, settings: OrderSettings) -> int:
    """Compute the number of batches that every rank has."""
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
    """Return the places of the line at which the ranks' runs begin, and at which the last one ends."""
    every = np.arange(ranks + 1, dtype=np.int64)
    if settings.drop_last:
        return every * (batches * settings.batch_size)
    share, extra = divmod(rows, ranks)
    edges: Ints = every * share + np.minimum(every, extra)
    return edges


def _remaining_batches(rows: int, ranks: int, settings: OrderSettings) -> int:
    """Return the number of batches that every rank has of the rest of an epoch; it may be 0."""
    if rows == 0 or (settings.drop_last and rows < ranks * settings.batch_size):
        return 0
    try:
        return count_batches(rows, ranks, settings)
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

    def __init__(self, line: Line, start: int, stop: int) -> None:
        super().__init__(line, start, stop)
        assert line.settings.limit is not None
        self.limit = line.settings.limit
        lengths = np.concatenate([self._in_turn(number)[1] for number in range(len(self.windows) - 1)])
        self._cut = cut_by_rows(lengths, line.settings.batch_size, self.limit)  # before batches are shuffled
        self.last = lengths[self._cut[-2] :].copy()  # the lengths of the last batch, which stays the last
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
        assert self.line.blocks.lengths is not None
        bounds = self.windows[window : window + 2].tolist()
        outputs = super().outputs(*bounds)
        sample = np.empty(len(outputs), dtype=np.int64)
        sample[outputs] = np.arange(len(outputs))
        lengths = self.line.blocks.lengths[self.line.selected(*bounds)][sample]
        if self.limit.bucketed:
            first, after = self._pools[window : window + 2]
            edges = [len(sample) * k // (after - first) for k in range(after - first + 1)]
            for number, (low, high) in enumerate(itertools.pairwise(edges), first):
                ascending = low + np.argsort(lengths[low:high], kind="stable")
                turned = ascending if number % 2 == 0 else ascending[::-1]
                sample[low:high], lengths[low:high] = sample[turned], lengths[turned]
        return sample, lengths

    @functools.cached_property
    def _pools(self) -> list[int]:
        """The number of the first pool of each window, and the total."""
        assert self.line.blocks.lengths is not None
        rows, samples = self.limit.rows, self.line.settings.batch_size
        if rows is not None:
            samples = min(samples, max(1, int(rows / max(1.0, float(self.line.blocks.lengths.mean())))))
        pools = np.maximum(1, np.diff(self.windows) // (POOL_BATCHES * samples))
        counted: list[int] = np.append(0, np.cumsum(pools)).tolist()
        return counted


def sized_share(line: Line, settings: OrderSettings, taken: TakenBatches) -> Share:
    """Return the share of a rank if batches are cut by the lengths of samples."""
    worlds = [*(world for world, _ in taken), settings.world_size]
    runs, ranks = _first_shares(line, worlds[0], settings)
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


def _first_shares(line: Line, world: int, settings: OrderSettings) -> tuple[list[SizedRun], list[Stretches]]:
    """Return the runs of the ranks that begin an epoch, and their batches: the same number for each."""
    total = line.blocks.total_rows
    whole = replace(settings, drop_last=False, batch_size=max(settings.batch_size, total))
    edges = rank_edges(total, world, whole, count_batches(total, world, whole))
    runs, ranks = [SizedRun(line, *pair) for pair in itertools.pairwise(edges.tolist())], []
    for run in runs:
        batches = np.stack([run.edges[:-1], run.edges[1:]], axis=1)
        ranks.append(batches[: len(batches) - (settings.drop_last and not run.last_is_full)])
    if not settings.drop_last:
        most = max(map(len, ranks))
        return runs, [_split_largest(batches, most, world, settings.epoch) for batches in ranks]
    fewest = min(map(len, ranks))
    if fewest == 0:
        raise OptionError(
            f"drop_last=True leaves no batch: {total:,} samples for {world} rank(s) do not fill one; take fewer rows="
        )
    return runs, [batches[:fewest] for batches in ranks]


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
