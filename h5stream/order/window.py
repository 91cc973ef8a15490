"""The `Order` protocol, for orders of your own too: the rows of an epoch in windows, and the batch of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from h5stream.order.places import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows that are in memory together, with the batch and the place of each; in 32-bit numbers if these are enough.

    Attributes
    ----------
    rows : ndarray of int, shape (n,)
        Row numbers; ascending, the fastest order to read files in, unless rows cost the same in any order.
    batch : ndarray of int, shape (n,)
        The batch that each row belongs to.
    within : ndarray of int, shape (n,)
        Its place in that batch.
    counts : ndarray of int, shape (n,), optional
        If given, each row begins a span of that many consecutive rows, which go to consecutive places.
    drawn : tuple of int
        Seed and epoch, which determine all random draws for a sample.
    """

    rows: Places
    batch: Places
    within: Places
    counts: Places | None = None
    drawn: tuple[int, int] = (0, 0)

    @classmethod
    def of_batches(cls, first_batch: int, rows: Sequence[NDArray[np.integer]]) -> Window:
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
        sizes = [len(batch_rows) for batch_rows in rows]
        numbers = np.concatenate(rows)
        batch = np.repeat(np.arange(first_batch, first_batch + len(rows), dtype=np.int64), sizes)
        within = np.concatenate([np.arange(size, dtype=np.int64) for size in sizes])
        by_row = np.argsort(numbers, kind="stable")
        return cls(rows=numbers[by_row], batch=batch[by_row], within=within[by_row])


class Order(Protocol):
    """An order: yields the rows of an epoch in windows, batch by batch. Functions passed as ``draw=`` return one.

    Implementations are immutable or used by one thread at a time, any thread; `windows` may be called again at any
    time and yields the same windows. An order that depends only on the epoch and the ranks can be resumed. Every rank
    must have the same number of batches, since ranks wait for one another.

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
        """The number of batches; None if it is not known beforehand."""
        ...

    def batch_size_of(self, batch: int) -> int:
        """Return the number of rows of a batch; called only after `windows` has yielded rows of it.

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
