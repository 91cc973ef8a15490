"""The line of an epoch, all rows with whole blocks permuted, and the run of it that a rank owns, in windows.

A run is cut into windows at block edges. Inside a window every row is sent to its *output place*; batches are
consecutive runs of output places and may cross windows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.permutation import BLOCKS, ROWS, permutation
from h5stream.order.places import Places, in_ranges, place_dtype
from h5stream.order.weights import interleaved


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

    def ranges(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks of some places as begins and ends of runs of rows, in file order."""
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        last = int(np.searchsorted(self.edges, stop, side="left"))
        begins, ends = (self.blocks.edges[self.permuted[first:last] + k] for k in (0, 1))
        # A rank's run may begin and end inside a block.
        begins[0] += start - self.edges[first]
        ends[-1] -= self.edges[last] - stop
        by_file = np.argsort(begins)
        return begins[by_file], ends[by_file]


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
        start, stop = self.window_edges[window : window + 2].tolist()
        return self.line.ranges(start + self.start, stop + self.start)

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
