"""An order that a sampler of the user's decides: its indices, batch by batch."""

from __future__ import annotations

import itertools
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError, StateError
from h5stream.order.epoch import Window

Rows = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOrder:
    """The batches that a sampler decides."""

    sampler: Any  # sampler, batch_sampler: as for DataLoader; one of them is None
    batch_sampler: Any
    batch_size: int | None  # rows of a batch that a sampler's indices are gathered into; None takes them as they come
    drop_last: bool  # leave out the last batch if it is not full
    rows: Any = None  # the file's row for each index, where that is not the index itself
    room: int = 0  # rows that a slot holds where the sampler does not say; as many as the memory budget has room for

    @property
    def source(self) -> Any:
        """The sampler of the two that was given."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def gives_samples(self) -> bool:
        """Whether each index gives one sample, without an axis of rows."""
        return self.batch_sampler is None and self.batch_size is None and not hasattr(self.sampler, "batch_size")

    @property
    def said_rows(self) -> int | None:
        """Rows of a batch, at most: as asked for, or as the sampler says by its attribute; None if it does not."""
        if self.batch_sampler is None and (self.batch_size is not None or self.gives_samples):
            return self.batch_size or 1
        if isinstance(self.source, (list, tuple)):
            return max((1, *(len(batch) if hasattr(batch, "__len__") else 1 for batch in self.source)))
        said = getattr(self.source, "batch_size", None)
        return said if isinstance(said, int) and said > 0 else None

    @property
    def most_rows(self) -> int:
        """Rows that a slot must hold."""
        return self.said_rows or self.room

    def __len__(self) -> int:
        count = len(self.source)
        if self.batch_sampler is not None or self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    @property
    def count(self) -> int | None:
        """Batches of an epoch, where the sampler can tell."""
        try:
            return len(self)
        except TypeError:
            return None

    def batches(self) -> Iterator[Any]:
        """Return the indices of each batch."""
        if self.batch_sampler is not None:
            return iter(self.batch_sampler)
        if self.batch_size is None:
            return ([index] if np.ndim(index) == 0 else index for index in self.sampler)
        return _batched(iter(self.sampler), self.batch_size, self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler, if it wants to know."""
        for sampler in (self.sampler, self.batch_sampler):
            if (move := getattr(sampler, "set_epoch", None)) is not None:
                move(epoch)


def _batched(indices: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[int]]:
    while batch := list(itertools.islice(indices, size)):
        if len(batch) == size or not drop_last:
            yield batch


class ListedOrder:
    """Batches of given rows; consecutive batches are read together."""

    def __init__(
        self,
        batches: Iterable[Rows],
        *,
        together: int,
        total_rows: int,
        count: int | None = None,
        most_rows: int | None = None,
        rows: NDArray[np.int64] | None = None,
        checksum: int = 0,
        drawn: tuple[int, int] = (0, 0),
    ) -> None:
        self._batches, self._together, self._most_rows, self._drawn = batches, together, most_rows, drawn
        self._rows, self._total_rows = rows, total_rows if rows is None else len(rows)
        self.batches = count
        """How many batches, where the sampler could tell."""
        self._expected, self._checksum = checksum, 0
        self._sizes: dict[int, int] = {}
        self._checksums: dict[int, int] = {}

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch that a window has named."""
        return self._sizes.pop(batch)

    def take_checksum(self, batches: int) -> int:
        """Return the checksum of the indices of the first `batches` batches; once, after a window named the last."""
        return self._checksums.pop(batches)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Return windows of `together` batches each; the batches before the first are asked for, but not read.

        The first is asked for in the calling thread, the user's: there most samplers draw from torch's generator. What
        goes wrong is kept for whoever takes the windows.
        """
        batches, begun, failure = iter(self._batches), [], None
        try:
            self._skip(batches, first_batch)
            begun = [next(batches)]
        except StopIteration:
            batches = iter(())
        except Exception as error:
            batches, failure = iter(()), error
        return self._windows(itertools.chain(begun, batches), first_batch, failure)

    def _windows(self, batches: Iterator[Rows], number: int, failure: Exception | None) -> Iterator[Window]:
        held: list[NDArray[np.int64]] = []
        while failure is None:
            try:
                held.append(self._checked(next(batches)))
            except StopIteration:
                break
            except Exception as error:  # the batches before it are good
                failure = error
            if len(held) == self._together:
                yield self._window(held, number)
                number, held = number + len(held), []
        if held:
            yield self._window(held, number)
        if failure is not None:
            raise failure

    def _skip(self, batches: Iterator[Rows], count: int) -> None:
        self._checksum = 0
        for batch in itertools.islice(batches, count):
            self._add_to_checksum(self._checked(batch))
        if self._expected not in (0, self._checksum):
            raise StateError(
                f"the sampler gives other indices than when the state was saved, {count:,} batches into its epoch; "
                "rows would be repeated and others left out. Give it the same seed (generator=), or a set_epoch"
            )

    def _add_to_checksum(self, rows: NDArray[np.int64]) -> int:
        # Never 0, which stands for any.
        self._checksum = zlib.crc32(rows.tobytes(), self._checksum) or 1
        return self._checksum

    def _checked(self, batch: Rows) -> NDArray[np.int64]:
        try:
            given = np.asarray(batch if hasattr(batch, "__array__") else list(batch)).reshape(-1)
        except (TypeError, ValueError):
            raise OptionError(
                f"the sampler gave {reprlib.repr(batch)} for a batch; sampler= gives row numbers one by one, and "
                "batch_sampler= lists of them"
            ) from None
        if len(given) == 0:
            raise OptionError("the sampler gave an empty batch; every batch needs at least one row")
        if not np.issubdtype(given.dtype, np.integer):
            raise OptionError(f"the sampler gave {given[0]!r}; rows are named by integers")
        if self._most_rows is not None and len(given) > self._most_rows:
            raise OptionError(
                f"the sampler gave a batch of {len(given):,} rows, but there is room for {self._most_rows:,}; "
                "let its attribute batch_size say how many rows a batch has at most, or raise memory_budget="
            )
        rows = given.astype(np.int64)
        wrong = rows[(rows < -self._total_rows) | (rows >= self._total_rows)]
        if len(wrong):
            raise OptionError(f"the sampler gave row {wrong[0]}, but there are {self._total_rows:,} rows")
        rows = np.where(rows < 0, rows + self._total_rows, rows)
        return rows if self._rows is None else self._rows[rows]

    def _window(self, held: list[NDArray[np.int64]], number: int) -> Window:
        for k, rows in enumerate(held, number):
            self._sizes[k] = len(rows)
            self._checksums[k + 1] = self._add_to_checksum(rows)
        return replace(Window.of_batches(number, held), drawn=self._drawn)
