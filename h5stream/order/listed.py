"""An order that somebody else decided: the indices of a sampler, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from h5stream.errors import OptionError
from h5stream.order.epoch import Window


class ListedOrder:
    """Batches of given rows; consecutive batches are read together.

    Parameters
    ----------
    batches : iterable of sequence of int
        The rows of each batch; consumed lazily, once.
    together : int
        Batches that are read as one window: chunks that they share are decoded once.
    total_rows : int
        Rows there are; an index outside is an error.
    count : int, optional
        How many batches, where known.

    Examples
    --------
    >>> order = ListedOrder([[4, 0], [1]], together=2, total_rows=5)
    >>> window = next(order.windows())
    >>> window.rows.tolist(), window.batch.tolist(), window.within.tolist()
    ([0, 1, 4], [0, 1, 0], [1, 0, 0])
    """

    def __init__(
        self, batches: Iterable[Sequence[int]], *, together: int, total_rows: int, count: int | None = None
    ) -> None:
        self._batches = batches
        self._together = together
        self._total_rows = total_rows
        self._count = count
        self._sizes: dict[int, int] = {}

    @property
    def batches(self) -> int | None:
        """How many batches, where the sampler could tell."""
        return self._count

    def batch_size_of(self, batch: int) -> int:
        """Give the rows of a batch that a window has named."""
        return self._sizes.pop(batch)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Give windows of `together` batches each."""
        held: list[np.ndarray] = []
        number = 0
        for batch in self._batches:
            held.append(self._checked(batch))
            if len(held) == self._together:
                yield self._window(held, number, first_batch)
                number, held = number + len(held), []
        if held:
            yield self._window(held, number, first_batch)

    def _checked(self, batch: Sequence[int]) -> np.ndarray:
        rows = np.asarray(batch, dtype=np.int64).reshape(-1)
        wrong = rows[(rows < -self._total_rows) | (rows >= self._total_rows)]
        if len(wrong):
            raise OptionError(f"the sampler gave row {wrong[0]}, but there are {self._total_rows:,} rows")
        if len(rows) == 0:
            raise OptionError("the sampler gave an empty batch; every batch needs at least one row")
        return np.where(rows < 0, rows + self._total_rows, rows)

    def _window(self, held: list[np.ndarray], number: int, first_batch: int) -> Window:
        self._sizes.update({number + i: len(rows) for i, rows in enumerate(held)})
        rows = np.concatenate(held)
        sizes = [len(r) for r in held]
        batch = np.repeat(np.arange(number, number + len(held), dtype=np.int64), sizes)
        within = np.concatenate([np.arange(n, dtype=np.int64) for n in sizes])
        by_row = np.argsort(rows, kind="stable")
        by_row = by_row[batch[by_row] >= first_batch]
        return Window(rows=rows[by_row], batch=batch[by_row], within=within[by_row])
