"""What is left of an epoch that another number of ranks began: their remaining output places, cut anew.

Each rank that began the epoch has a run of output places and has taken the first of them. What is left of all
runs, one behind the other, is a new line; it is cut into equal runs for the ranks that go on. They may be
stopped in turn: a line's pieces are always pieces of the first ranks' runs, so a place remains two numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.epoch import BatchCut, Cut, EpochOrder, OrderSettings, Window, count_batches, rank_run, windows_of
from h5stream.order.places import Places

Taken = tuple[tuple[int, int], ...]
"""How far an epoch is: pairs of a number of ranks and of the batches that each of them took, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Output places `start` to `stop` of one of the ranks that began the epoch."""

    rank: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The output places `start` to `stop` of one window of one of the ranks that began."""

    rank: int
    window: int
    start: int
    stop: int


class RestOrder:
    """The order of one rank in the rest of an epoch.

    A window that holds rows of two runs is read by two ranks; every row is still given once.

    Examples
    --------
    >>> from h5stream.order.blocks import make_blocks
    >>> blocks = make_blocks((0, 12), (2,))
    >>> settings = OrderSettings(batch_size=2, window_rows=6, first_window_rows=6, shuffle=False)
    >>> rest = RestOrder(blocks, settings, ((2, 1),))  # two ranks took a batch each: rows 0, 1 and 6, 7
    >>> [rest.batch_rows(k).tolist() for k in range(rest.batches)]
    [[2, 3], [4, 5], [8, 9], [10, 11]]
    """

    cut: Cut

    def __init__(self, blocks: Blocks, settings: OrderSettings, taken: Taken) -> None:
        self.blocks, self.settings = blocks, settings
        self._began = dataclasses.replace(settings, rank=0, world_size=taken[0][0])
        left = _left(blocks.total_rows, settings, taken)
        total = sum(stretch.stop - stretch.start for stretch in left)
        batches = _batches_left(total, settings)
        start, stop = rank_run(total, settings, batches)
        self._stretches = tuple(_sliced(left, start, stop))
        self.run = (0, stop - start)
        self.cut = BatchCut(rows=stop - start, batch_size=settings.batch_size, batches=batches)

    @property
    def batches(self) -> int:
        """Batches that are left for this rank; the same on every rank."""
        return self.cut.batches

    @property
    def rows(self) -> int:
        """Rows that are left for this rank."""
        return self.cut.rows

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        return self.cut.size_of(batch)

    @functools.cached_property
    def _orders(self) -> dict[int, EpochOrder]:
        """The orders of the ranks that began and whose rows are ours now."""
        ranks = {stretch.rank for stretch in self._stretches}
        return {rank: EpochOrder(self.blocks, dataclasses.replace(self._began, rank=rank)) for rank in ranks}

    @functools.cached_property
    def _parts(self) -> list[_Part]:
        return [part for stretch in self._stretches for part in _parts_of(stretch, self._orders[stretch.rank])]

    @functools.cached_property
    def window_edges(self) -> NDArray[np.int64]:
        """Places of this rank's rest where windows begin and end."""
        return np.cumsum([0] + [part.stop - part.start for part in self._parts], dtype=np.int64)

    def outputs(self, window: int) -> tuple[Places, Places]:
        """Return a window's rows, ascending, and the output place of each on this rank."""
        part = self._parts[window]
        rows, outputs = self._orders[part.rank].outputs(part.window)
        keep = (outputs >= part.start) & (outputs < part.stop)
        return rows[keep], outputs[keep] + (int(self.window_edges[window]) - part.start)

    def rows_of_window(self, window: int) -> Places:
        """Return a window's rows, ascending."""
        return self.outputs(window)[0]

    def outputs_of_window(self, window: int) -> Places:
        """Return the output place on this rank of each of a window's rows."""
        return self.outputs(window)[1]

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Return the windows in order, without the rows of batches before `first_batch`."""
        return windows_of(self, first_batch)

    def batch_rows(self, batch: int) -> NDArray[np.int64]:
        """Return the rows of one batch, in the batch's order."""
        found = np.empty(self.cut.size_of(batch), dtype=np.int64)
        for window in self.windows(batch):
            ours = window.batch == batch
            found[window.within[ours]] = window.rows[ours]
            if (window.batch > batch).all():
                break
        return found


def whole_or_rest(blocks: Blocks, settings: OrderSettings, taken: Taken) -> EpochOrder | RestOrder:
    """Return the order of an epoch, or of what other numbers of ranks left of it."""
    return RestOrder(blocks, settings, taken) if taken else EpochOrder(blocks, settings)


def order_after(
    blocks: Blocks,
    settings: OrderSettings,
    taken: Taken,
    order_of: Callable[[Blocks, OrderSettings, Taken], EpochOrder | RestOrder] = whole_or_rest,
) -> tuple[EpochOrder | RestOrder, int]:
    """Return the order of an epoch of which some was taken, and the batch to go on with; `order_of` makes orders.

    Examples
    --------
    >>> from h5stream.order.blocks import make_blocks
    >>> settings = OrderSettings(batch_size=2, window_rows=6, first_window_rows=6, world_size=2)
    >>> order, first_batch = order_after(make_blocks((0, 12), (2,)), settings, ((4, 1), (2, 1)))
    >>> type(order).__name__, order.batches, first_batch
    ('RestOrder', 1, 1)
    """
    before, first_batch = taken, 0
    if taken and taken[-1][0] == settings.world_size:
        before, first_batch = taken[:-1], taken[-1][1]
    order = order_of(blocks, settings, before)
    if first_batch > order.batches:
        raise OptionError(f"{first_batch:,} batches were taken, but there are {order.batches:,}")
    return order, first_batch


def _left(rows: int, settings: OrderSettings, taken: Taken) -> list[Stretch]:
    """Return what is left of the runs of the ranks that began, one behind the other."""
    first = dataclasses.replace(settings, rank=0, world_size=taken[0][0])
    runs = [rank_run(rows, dataclasses.replace(first, rank=rank)) for rank in range(first.world_size)]
    line = [Stretch(rank=rank, start=0, stop=stop - start) for rank, (start, stop) in enumerate(runs)]
    for number, (ranks, batches_taken) in enumerate(taken):
        some = dataclasses.replace(settings, rank=0, world_size=ranks)
        total = sum(stretch.stop - stretch.start for stretch in line)
        # The first ranks' line has lost what `drop_last` leaves out, and may not be counted anew.
        batches = count_batches(rows, some) if number == 0 else _batches_left(total, some)
        if batches_taken > batches:
            raise OptionError(f"{ranks} ranks took {batches_taken:,} batches each, but had {batches:,}")
        line = [
            stretch for rank in range(ranks) for stretch in _left_of(line, total, rank, some, batches, batches_taken)
        ]
    return line


def _left_of(
    line: list[Stretch], total: int, rank: int, settings: OrderSettings, batches: int, taken: int
) -> Iterator[Stretch]:
    """Return what one rank has left of its run of a line."""
    start, stop = rank_run(total, dataclasses.replace(settings, rank=rank), batches)
    cut = BatchCut(rows=stop - start, batch_size=settings.batch_size, batches=batches)
    return _sliced(line, start + (cut.start_of(taken) if taken < batches else cut.rows), stop)


def _batches_left(rows: int, settings: OrderSettings) -> int:
    """Return the batches that every rank has of what is left; none may be left, unlike in a whole epoch."""
    if rows == 0 or (settings.drop_last and rows < settings.world_size * settings.batch_size):
        return 0
    try:
        return count_batches(rows, settings)
    except OptionError as error:
        raise OptionError(
            f"what is left of epoch {settings.epoch} cannot be cut for {settings.world_size} ranks: {error}. Or begin "
            f"the next epoch, with set_epoch({settings.epoch + 1})"
        ) from error


def _sliced(line: Iterable[Stretch], start: int, stop: int) -> Iterator[Stretch]:
    """Return the places `start` to `stop` of a line."""
    place = 0
    for stretch in line:
        after = place + stretch.stop - stretch.start
        if after > start and place < stop:
            yield dataclasses.replace(
                stretch, start=stretch.start + max(0, start - place), stop=stretch.stop - max(0, after - stop)
            )
        place = after


def _parts_of(stretch: Stretch, order: EpochOrder) -> Iterator[_Part]:
    edges = (order.window_edges - order.run[0]).tolist()
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        if end > stretch.start and begin < stretch.stop:
            yield _Part(rank=stretch.rank, window=number, start=max(begin, stretch.start), stop=min(end, stretch.stop))
