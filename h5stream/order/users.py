"""Orders that functions of the user's make: a function as ``draw=``, and what it gives is checked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.epoch import Order, Window
from h5stream.order.places import is_ascending, narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """A rank among others.

    Attributes
    ----------
    rank : int
        From 0.
    world_size : int
        How many ranks there are.
    """

    rank: int = 0
    world_size: int = 1


OrderFactory = Callable[[Blocks, int, Ranks], Order]
"""Makes the order of an epoch on a rank, of the blocks, the number of the epoch, and the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimit:
    """What an order may ask to be in memory together."""

    batch_rows: int  # rows of a batch, at most
    window_rows: int  # window_rows, window_batches: rows of a window, and batches that these belong to, at most
    window_batches: int


class CheckedOrder:
    """An order of the user's, each window of which is checked as it comes and put into the files' row numbers."""

    def __init__(self, order: Any, blocks: Blocks, limit: WindowLimit, drawn: tuple[int, int] = (0, 0)) -> None:
        missing = [name for name in ("batches", "batch_size_of", "windows") if not hasattr(order, name)]
        if missing:
            raise OptionError(
                f"draw= gave {_short(order)}, which has no {', '.join(missing)}: its function returns an "
                "h5stream.order.Order"
            )
        if not _is_count(order.batches):
            raise OptionError(f"draw= gave an order with batches={order.batches!r}: it says how many, 0 or more")
        self._order, self._blocks, self._limit, self._drawn = order, blocks, limit, drawn

    @property
    def batches(self) -> int:
        """How many batches."""
        return int(self._order.batches)

    def of_places(self) -> CheckedOrder:
        """Return the same order of the rows' places, whatever rows of the files these are."""
        return CheckedOrder(self._order, replace(self._blocks, rows=None), self._limit)

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        size = self._order.batch_size_of(batch)
        if not _is_count(size) or not 1 <= size <= self._limit.batch_rows:
            raise OptionError(
                f"draw= says that batch {batch} has {size!r} rows; a batch has 1 to batch_size={self._limit.batch_rows}"
            )
        return int(size)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Return the windows as the engine wants them, without the rows of batches before `first_batch`.

        Each place of each batch is given once, and every batch is complete in the end.
        """
        filled: dict[int, NDArray[np.bool_]] = {}  # which places, of batches from the first on that is not complete
        complete = first_batch
        for given in self._order.windows(first_batch):
            rows, batch, within = self._checked(given, first_batch)
            if not len(rows):
                continue
            by_batch = np.argsort(batch, kind="stable")
            numbers, starts = np.unique(batch[by_batch], return_index=True)
            for number, places in zip(numbers.tolist(), np.split(within[by_batch], starts[1:]), strict=True):
                self._fill(filled, complete, number, places)
            while complete in filled and filled[complete].all():
                del filled[complete]
                complete += 1
            yield self._of_files(rows, batch, within)
        if complete < self.batches:
            size, have = self.batch_size_of(complete), int(np.count_nonzero(filled.get(complete, ())))
            raise OptionError(
                f"draw= says that there are {self.batches} batches and that batch {complete} has {size} rows, "
                f"but its windows gave {have} of them"
            )

    def _fill(self, filled: dict[int, NDArray[np.bool_]], complete: int, number: int, places: NDArray[Any]) -> None:
        """Note the places of a batch that a window fills."""
        size = self.batch_size_of(number)
        wrong = places[(places < 0) | (places >= size)]
        if len(wrong):
            raise OptionError(
                f"draw= says that batch {number} has {size} rows, and gave it a row at place {wrong[0]}; places are 0 "
                f"to {size - 1}"
            )
        ours = filled.setdefault(number, np.zeros(size, dtype=np.bool_))
        before = int(np.count_nonzero(ours))
        ours[places] = True
        if number < complete or int(np.count_nonzero(ours)) - before != len(places):
            raise OptionError(f"draw= gave two rows for one place of batch {number}; each place has one")

    def _checked(self, window: Any, first_batch: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return what of a window was not taken before: rows, batches and places in these."""
        if not isinstance(window, Window):
            raise OptionError(f"draw= gave {_short(window)} for a window; its windows are h5stream.order.Window")
        rows, batch, within = (_numbers(window, name) for name in ("rows", "batch", "within"))
        if not len(rows) == len(batch) == len(within):
            raise OptionError(
                f"draw= gave a window of {len(rows)} rows, {len(batch)} batches and {len(within)} places in these; it "
                "has as many of each"
            )
        _check_range(rows, self._blocks.total_rows, "row", "rows")
        _check_range(batch, self.batches, "a row of batch", "batches")
        keep = batch >= first_batch
        if not keep.all():
            rows, batch, within = rows[keep], batch[keep], within[keep]
        batches, limit = int(np.ptp(batch)) + 1 if len(batch) else 0, self._limit
        if len(rows) > limit.window_rows or batches > limit.window_batches:
            raise OptionError(
                f"draw= gave a window of {len(rows):,} rows of {batches:,} batches, and there is room for "
                f"{limit.window_rows:,} rows of {limit.window_batches:,}: give smaller windows, or the rows of the "
                "largest as window=, or more memory_budget="
            )
        return rows, batch, within

    def _of_files(self, places: NDArray[Any], batch: NDArray[Any], within: NDArray[Any]) -> Window:
        rows = narrowed(self._blocks.rows_at(places))
        if not is_ascending(rows):
            by_row = np.argsort(rows, kind="stable")
            rows, batch, within = rows[by_row], batch[by_row], within[by_row]
        return Window(rows=rows, batch=batch, within=within, drawn=self._drawn)


def _numbers(window: Window, name: str) -> NDArray[Any]:
    numbers = np.asarray(getattr(window, name))
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise OptionError(
            f"draw= gave a window whose {name} are {numbers.dtype} of shape {numbers.shape}; they are one-dimensional "
            "arrays of integers"
        )
    return numbers.astype(np.int64, copy=False)


def _check_range(numbers: NDArray[Any], count: int, what: str, all_of_them: str) -> None:
    wrong = numbers[(numbers < 0) | (numbers >= count)]
    if len(wrong):
        raise OptionError(f"draw= gave {what} {wrong[0]}, but there are {count:,} {all_of_them}, 0 to {count - 1:,}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
