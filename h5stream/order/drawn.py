"""Orders whose windows know their seed and epoch, where something is drawn for each sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.order.epoch import Order, UsersOrder, Window
from h5stream.order.permutation import SAMPLES, words_of


class DrawnOrder:
    """An order, its windows with seed and epoch."""

    def __init__(self, order: Order, seed: int, epoch: int) -> None:
        self._order, self._drawn = order, (seed, epoch)

    @property
    def batches(self) -> int | None:
        """How many batches."""
        return self._order.batches

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        return self._order.batch_size_of(batch)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Return the windows; the order is asked for them here, in the calling thread."""
        windows = self._order.windows(first_batch)
        return (replace(window, drawn=self._drawn) for window in windows)


class DrawnUsersOrder(DrawnOrder, UsersOrder):
    """The same of an order that the user's code decides."""


def drawn(order: Order, seed: int, epoch: int) -> Order:
    """Return the same order, its windows with seed and epoch."""
    kind = DrawnUsersOrder if isinstance(order, UsersOrder) else DrawnOrder
    return kind(order, seed, epoch)


@dataclass(frozen=True, slots=True)
class SeedsColumn:
    """A field of each sample's number, and a random seed for what is done to it; see `h5stream.samples.columns`."""

    def of(self, numbers: NDArray[np.int64], rows: NDArray[Any], drawn: tuple[int, int]) -> Any:
        """Return a row of both for each of some samples."""
        return np.stack([numbers, words_of(numbers, *drawn, SAMPLES).view(np.int64)], axis=1)
