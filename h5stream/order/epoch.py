"""The two-level shuffle: blocks are permuted and cut into windows, rows are permuted inside each window.

The *line* is the sequence of all rows with whole blocks permuted. A rank owns a consecutive run of it, cut
into windows at block edges. Inside a window every row is sent to its *output place*; batches are consecutive
runs of output places and may cross windows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.permutation import BLOCKS, ROWS, permutation
from h5stream.order.places import Places, in_ranges, new_array, pieces, place_dtype
from h5stream.order.weights import interleaved


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows that are in memory together, and where each goes; 32-bit numbers where these are enough.

    Attributes
    ----------
    rows : ndarray of int, shape (n,)
        Row numbers; ascending, the order in which files like to be read, unless rows cost the same wherever
        they lie (`h5stream.order.regrouped`).
    batch : ndarray of int, shape (n,)
        The batch that each row belongs to.
    within : ndarray of int, shape (n,)
        Its place in that batch.
    counts : ndarray of int, shape (n,), optional
        Where each is a span of that many consecutive rows, which go to consecutive places.
    drawn : tuple of int
        Seed and epoch, of which what is drawn for each sample is a function; see `h5stream.order.drawn`.
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
        sizes = [len(some) for some in rows]
        numbers = np.concatenate(rows)
        batch = np.repeat(np.arange(first_batch, first_batch + len(rows), dtype=np.int64), sizes)
        within = np.concatenate([np.arange(size, dtype=np.int64) for size in sizes])
        by_row = np.argsort(numbers, kind="stable")
        return cls(rows=numbers[by_row], batch=batch[by_row], within=within[by_row])


class Order(Protocol):
    """Which rows come when: windows of rows, batch by batch; what a function as ``draw=`` returns.

    Implementations are immutable or used by one thread at a time, any thread; `windows` may be called again at any
    time, and gives the same. An order that depends on nothing but the epoch and the ranks can be resumed, and gives
    each rank its part; every rank must have as many batches, since they wait for one another.

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
        """How many batches, None where that is not known beforehand."""
        ...

    def batch_size_of(self, batch: int) -> int:
        """Say how many rows a batch has; asked only once a window with rows of that batch was given.

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


class UsersOrder:
    """An order that the user's code decides, batch by batch: it stays in the process where that code is."""


class CutOrder(Order, Protocol):
    """An order that is a line of output places, filled window by window and cut into batches."""

    run: tuple[int, int]  # where on the line this rank's places begin and end

    @property
    def cut(self) -> Cut:
        """How they are cut into batches."""
        ...

    @property
    def window_edges(self) -> NDArray[np.int64]:
        """Places on the line where this rank's windows begin and end."""
        ...

    def rows_of_window(self, window: int) -> Places:
        """Return a window's rows, ascending."""
        ...

    def outputs_of_window(self, window: int) -> Places:
        """Return the output place on this rank of each of a window's rows."""
        ...

    def outputs(self, window: int) -> tuple[Places, Places]:
        """Give both."""
        ...


class Cut(Protocol):
    """How a run of output places becomes batches. Immutable."""

    @property
    def rows(self) -> int:
        """Output places."""
        ...

    @property
    def batches(self) -> int:
        """How many batches."""
        ...

    def start_of(self, batch: int) -> int:
        """Return the first output place of a batch."""

    def size_of(self, batch: int) -> int:
        """Return the rows of a batch."""

    def batch_of(self, output: int) -> int:
        """Return the batch of one output place."""

    def locate(self, output: Places) -> tuple[Places, Places]:
        """Give batch and place in it for output places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCut:
    """A run of `rows` output places cut into exactly `batches` batches.

    Every batch is full but the last. Where the run would fill only ``batches - 1`` of them (another rank has
    one row more), the last full batch gives its last row away, so that all ranks count alike.
    """

    rows: int
    batch_size: int
    batches: int

    @property
    def _last_start(self) -> int:
        return min((self.batches - 1) * self.batch_size, self.rows - 1)

    def start_of(self, batch: int) -> int:
        """Return the first output place of a batch."""
        return self._last_start if batch == self.batches - 1 else min(batch * self.batch_size, self.rows)

    def size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        stop = self.rows if batch == self.batches - 1 else self.start_of(batch + 1)
        return stop - self.start_of(batch)

    def batch_of(self, output: int) -> int:
        """Return the batch of one output place."""
        last = self.batches - 1
        return last if output >= self._last_start else output // min(self.batch_size, self.rows)

    def locate(self, output: Places) -> tuple[Places, Places]:
        """Give batch and place in it for output places."""
        size = min(self.batch_size, self.rows)  # which may be more than the numbers' type can hold
        batch, within = (new_array(len(output), output.dtype) for _ in range(2))
        for piece in pieces(len(output)):
            np.floor_divide(output[piece], max(1, size), out=batch[piece])
            np.subtract(output[piece], batch[piece] * size, out=within[piece])
        if self._last_start < (self.batches - 1) * self.batch_size:
            given_away = np.flatnonzero(output == self._last_start)
            batch[given_away], within[given_away] = self.batches - 1, 0
        return batch, within


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


class EpochOrder:
    """The order of one epoch on one rank.

    Examples
    --------
    >>> from h5stream.order.blocks import make_blocks
    >>> settings = OrderSettings(batch_size=4, window_rows=6, first_window_rows=6, seed=1)
    >>> order = EpochOrder(make_blocks((0, 10), (2,)), settings)
    >>> order.batches, order.batch_rows(0).tolist()
    (3, [1, 2, 5, 3])
    """

    def __init__(self, blocks: Blocks, settings: OrderSettings) -> None:
        self.blocks = blocks
        self.settings = settings
        batches = count_batches(blocks.total_rows, settings)
        self.run = rank_run(blocks.total_rows, settings, batches)
        self.cut = BatchCut(rows=self.run[1] - self.run[0], batch_size=settings.batch_size, batches=batches)

    @property
    def batches(self) -> int:
        """Batches of this rank in this epoch; the same on every rank."""
        return self.cut.batches

    @property
    def rows(self) -> int:
        """Rows of this rank in this epoch."""
        return self.cut.rows

    @property
    def is_in_file_order(self) -> bool:
        """Whether all rows come as the files have them."""
        return not self.settings.shuffle and self.blocks.rows is None

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        return self.cut.size_of(batch)

    @functools.cached_property
    def _permuted(self) -> NDArray[np.int64]:
        if not self.settings.shuffle:
            return np.arange(self.blocks.count, dtype=np.int64)
        permuted = permutation(self.blocks.count, self.settings.seed, self.settings.epoch, BLOCKS)
        strata = self.blocks.strata
        return permuted if strata is None else interleaved(permuted, np.diff(self.blocks.edges), strata)

    @functools.cached_property
    def _line_edges(self) -> NDArray[np.int64]:
        """Places of the permuted blocks' edges on the line."""
        return np.append(0, np.cumsum(np.diff(self.blocks.edges)[self._permuted]))

    @functools.cached_property
    def window_edges(self) -> NDArray[np.int64]:
        """Places on the line where this rank's windows begin and end."""
        (start, stop), line, most = self.run, self._line_edges, self.settings.window_rows
        edges, size = [start], self.settings.first_window_rows
        # To the next block edge, so that no chunk is read for two windows.
        while edges[-1] < stop and (size < most or len(edges) == 1):
            nearest = np.searchsorted(line, min(edges[-1] + size, stop))
            edges.append(min(int(line[nearest]), stop))
            size = min(size * 2, most)
        if edges[-1] == stop:
            return np.array(edges, dtype=np.int64)
        # From here on windows are of one size, and there may be a million of them: where each could end, at once.
        after, places = np.searchsorted(line, np.minimum(line + most, stop)), [int(np.searchsorted(line, edges[-1]))]
        while line[places[-1]] < stop:
            places.append(int(after[places[-1]]))
        return np.append(edges, np.minimum(line[places[1:]], stop))

    def rows_of_window(self, window: int) -> Places:
        """Return a window's rows, ascending."""
        return self.blocks.rows_at(self.places_of_window(window))

    def places_of_window(self, window: int) -> Places:
        """Return the places of a window's rows in the selection, ascending."""
        ranges = self.window_ranges(window)
        if self.blocks.first is not None:
            return self.blocks.in_turns(*ranges)
        begins, ends = ranges
        return in_ranges(begins, ends - begins, dtype=place_dtype(int(ends[-1])))

    def outputs_of_window(self, window: int) -> Places:
        """Return the output place on this rank of each of a window's rows."""
        start, stop = int(self.window_edges[window]), int(self.window_edges[window + 1])
        base, dtype = start - self.run[0], place_dtype(self.rows)
        if not self.settings.shuffle:
            return np.arange(base, base + stop - start, dtype=dtype)
        # The rows are ascending whatever the blocks' order was: a random place for each is all it takes.
        outputs = permutation(stop - start, self.settings.seed, self.settings.epoch, ROWS, start)
        outputs = outputs.astype(dtype, copy=False)
        outputs += base
        return outputs

    def outputs(self, window: int) -> tuple[Places, Places]:
        """Return a window's rows, ascending, and the output place of each on this rank."""
        outputs = self.outputs_of_window(window)  # first, because more is needed on the way to it
        return self.rows_of_window(window), outputs

    def window_ranges(self, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a window's blocks as begins and ends of runs of rows, in file order; costs nothing per row.

        Places in the selection where the blocks hold one, else rows.

        Examples
        --------
        >>> from h5stream.order.blocks import make_blocks
        >>> settings = OrderSettings(batch_size=4, window_rows=6, first_window_rows=6, seed=1)
        >>> begins, ends = EpochOrder(make_blocks((0, 10), (2,)), settings).window_ranges(0)
        >>> begins.tolist(), ends.tolist()
        ([0, 2, 4], [2, 4, 6])
        """
        return self._ranges_between(int(self.window_edges[window]), int(self.window_edges[window + 1]))

    def _ranges_between(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        first = int(np.searchsorted(self._line_edges, start, side="right")) - 1
        last = int(np.searchsorted(self._line_edges, stop, side="left"))
        numbers = self._permuted[first:last]
        begins = self.blocks.edges[numbers].copy()
        ends = self.blocks.edges[numbers + 1].copy()
        # A rank's run may begin and end inside a block.
        begins[0] += start - self._line_edges[first]
        ends[-1] -= self._line_edges[last] - stop
        by_file = np.argsort(begins)
        return begins[by_file], ends[by_file]

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Return the windows in order, without the rows of batches before `first_batch`."""
        return windows_of(self, first_batch)

    def batch_rows(self, batch: int) -> NDArray[np.int64]:
        """Return the rows of one batch, in the batch's order, without replaying what came before."""
        start = self.cut.start_of(batch)
        stop = start + self.cut.size_of(batch)
        edges = self.window_edges - self.run[0]
        found = np.empty(stop - start, dtype=np.int64)
        first = int(np.searchsorted(edges, start, side="right")) - 1
        last = int(np.searchsorted(edges, stop, side="left"))
        for number in range(first, last):
            rows, output = self.outputs(number)
            ours = (output >= start) & (output < stop)
            found[output[ours] - start] = rows[ours]
        return found


def windows_of(order: CutOrder, first_batch: int) -> Iterator[Window]:
    """Return the windows of an order, without the rows of batches before `first_batch`."""
    first_output = order.cut.start_of(first_batch) if first_batch < order.cut.batches else order.cut.rows
    for number in range(len(order.window_edges) - 1):
        if order.window_edges[number + 1] - order.run[0] <= first_output:
            continue
        # Not by a name: what this generator knows stays in memory beside the next window.
        yield _window_of(order, number, first_output)


def _window_of(order: CutOrder, number: int, first_output: int) -> Window:
    rows, output = order.outputs(number)
    if order.window_edges[number] - order.run[0] < first_output:
        keep = output >= first_output
        rows, output = rows[keep], output[keep]
    batch, within = order.cut.locate(output)
    return Window(rows=rows, batch=batch, within=within)


def count_batches(rows: int, settings: OrderSettings) -> int:
    """Return the batches that every rank has, by arithmetic alone.

    Examples
    --------
    >>> count_batches(100, OrderSettings(batch_size=8, window_rows=8, first_window_rows=8))
    13
    """
    ranks, size = settings.world_size, settings.batch_size
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
            f"{rows:,} rows in batches of {size} do not give each of {ranks} ranks the same number of batches; "
            "pass drop_last=True or a batch_size of at least 2"
        )
    return batches


def rank_run(rows: int, settings: OrderSettings, batches: int | None = None) -> tuple[int, int]:
    """Return the places of a line that are a rank's own, where each rank has so many batches."""
    batches = count_batches(rows, settings) if batches is None else batches
    if settings.drop_last:
        length = batches * settings.batch_size
        return settings.rank * length, (settings.rank + 1) * length
    each, extra = divmod(rows, settings.world_size)
    start = settings.rank * each + min(settings.rank, extra)
    return start, start + each + (settings.rank < extra)
