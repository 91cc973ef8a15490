"""The line of an epoch, all rows with whole blocks permuted, the run of it that a rank owns, and its cut into batches.

A run is cut into windows at block edges. Inside a window every row is sent to its *output place*; batches are
consecutive runs of output places and may cross windows.

Each rank that began an epoch has a run and has taken the first of its output places. What is left of all runs, one
behind the other, is a new line; it is cut into equal runs for the ranks that go on. They may be stopped in turn: a
line's pieces are always pieces of the first ranks' runs, so a place remains two numbers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.permutation import BLOCKS, ROWS, permutation
from h5stream.order.places import Places, in_ranges, new_array, pieces, place_dtype
from h5stream.order.weights import interleaved

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimit:
    """How batches of samples of unlike lengths are cut; see `h5stream.order.sized`."""

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
    def permuted(self) -> NDArray[np.int64]:
        """The blocks' numbers, in turn."""
        if not self.settings.shuffle:
            return np.arange(self.blocks.count, dtype=np.int64)
        permuted = permutation(self.blocks.count, self.settings.seed, self.settings.epoch, BLOCKS)
        strata = self.blocks.strata
        return permuted if strata is None else interleaved(permuted, np.diff(self.blocks.edges), strata)

    @functools.cached_property
    def edges(self) -> NDArray[np.int64]:
        """Places of the permuted blocks' edges."""
        return np.append(0, np.cumsum(np.diff(self.blocks.edges)[self.permuted]))


class RankRun:
    """The places `start` to `stop` of a line, in windows of whole blocks."""

    def __init__(self, line: Line, start: int, stop: int) -> None:
        self.line, self.start, self.stop = line, start, stop

    @functools.cached_property
    def window_edges(self) -> NDArray[np.int64]:
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

    def window_ranges(self, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
    edges: NDArray[np.int64] | None = None  # where each batch begins, and where the last ends

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


class Share(NamedTuple):
    """What one rank has of an epoch."""

    runs: dict[int, RankRun]  # by rank, of those that began the epoch
    stretches: Stretches  # of these runs, one behind the other
    cut: Cut  # how they become batches


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
    return Share(found, stretches, cuts[settings.rank])


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
