"""Orders that users define: values of ``draw=``, functions whose windows are checked, and samplers."""

from __future__ import annotations

import itertools
import reprlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.base.texts import check_ordered, checked_number, whole_number
from h5stream.errors import OptionError, StateError
from h5stream.order.blocks import Blocks
from h5stream.order.places import is_ascending, narrowed
from h5stream.order.window import Order, Window
from h5stream.samples.segments import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The rank of this process among others.

    Attributes
    ----------
    rank : int
        From 0.
    world_size : int
        The number of ranks.
    """

    rank: int = 0
    world_size: int = 1


OrderFactory = Callable[[Blocks, int, Ranks], Order]
"""Makes the order of an epoch on a rank from the blocks, the number of the epoch and the ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class CheckedOrder:
    """A user's order: checks each window as it arrives, and translates it to row numbers of the files."""

    order: Any
    blocks: Blocks
    batch_rows: int  # at most, in a batch
    window_rows: int  # at most, in memory together
    drawn: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        missing = [name for name in ("batches", "batch_size_of", "windows") if not hasattr(self.order, name)]
        if missing:
            raise OptionError(
                f"draw= gave {self.order!r:.100}, which has no {', '.join(missing)}: return an h5stream.order.Order"
            )
        if whole_number(self.order.batches) is None or self.order.batches < 0:
            raise OptionError(f"draw= gave an order with batches={self.order.batches!r}: it says how many, 0 or more")

    @property
    def batches(self) -> int:
        """The number of batches."""
        return int(self.order.batches)

    def of_places(self) -> CheckedOrder:
        """Return the same order in places of the selection instead of rows of the files."""
        return replace(self, blocks=replace(self.blocks, rows=None))

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch."""
        size = self.order.batch_size_of(batch)
        if whole_number(size) is None or not 1 <= size <= self.batch_rows:
            raise OptionError(
                f"draw= says that batch {batch} has {size!r} rows; a batch has 1 to batch_size={self.batch_rows}"
            )
        return int(size)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Yield checked windows from a batch on; raise if a place is given twice, or stays empty."""
        complete, filled = first_batch, np.zeros(0, dtype=np.int64)  # places of batches that are not complete
        for window in self.order.windows(first_batch):
            rows, batch, within = self._checked(window, first_batch)
            if not len(rows):
                continue
            filled = np.sort(np.append(filled, batch * self.batch_rows + within))
            twice = filled[1:][filled[1:] == filled[:-1]]
            if len(twice) or batch.min() < complete:
                number = twice[0] // self.batch_rows if len(twice) else batch.min()
                raise OptionError(f"draw= gave two rows for one place of batch {number}; each place has one")
            while (count := self._rows_of(filled, complete)) and count == self.batch_size_of(complete):
                filled, complete = filled[count:], complete + 1
            yield self._of_files(rows, batch, within)
        if complete < self.batches:
            size, count = self.batch_size_of(complete), self._rows_of(filled, complete)
            raise OptionError(f"draw= says that batch {complete} has {size} rows, but its windows gave {count} of them")

    def _rows_of(self, filled: NDArray[np.int64], batch: int) -> int:
        """Count the filled places that belong to a batch, the first in `filled`."""
        return int(np.searchsorted(filled, (batch + 1) * self.batch_rows))

    def _checked(self, window: object, first_batch: int) -> tuple[Ints, Ints, Ints]:
        """Check a window; return the rows, batches and places of those that were not taken before."""
        if not isinstance(window, Window):
            raise OptionError(f"draw= gave {window!r:.100} for a window; its windows are h5stream.order.Window")
        rows, batch, within = (_numbers(window, name) for name in ("rows", "batch", "within"))
        if not len(rows) == len(batch) == len(within):
            raise OptionError(
                f"draw= gave a window of {len(rows)} rows, {len(batch)} batches and {len(within)} places, not as many"
            )
        _check_range(rows, self.blocks.total_rows, "row", "rows")
        _check_range(batch, self.batches, "a row of batch", "batches")
        keep = batch >= first_batch
        rows, batch, within = rows[keep], batch[keep], within[keep]
        batches, most = int(np.ptp(batch)) + 1 if len(batch) else 0, -(-self.window_rows // self.batch_rows) + 1
        if len(rows) > self.window_rows or batches > most:
            raise OptionError(
                f"draw= gave a window of {len(rows):,} rows of {batches:,} batches, and there is room for "
                f"{self.window_rows:,} rows of {most:,}: give smaller windows, or the rows of the "
                "largest as window=, or more memory_budget="
            )
        numbers, batch_index = np.unique(batch, return_inverse=True)
        sizes = np.array([self.batch_size_of(number) for number in numbers.tolist()], dtype=np.int64)
        wrong = np.flatnonzero((within < 0) | (within >= sizes[batch_index]))
        if len(wrong):
            number, size = batch[wrong[0]], sizes[batch_index[wrong[0]]]
            raise OptionError(
                f"draw= says that batch {number} has {size} rows, and gave it a row at place {within[wrong[0]]}; "
                f"places are 0 to {size - 1}"
            )
        return rows, batch, within

    def _of_files(self, places: Ints, batch: Ints, within: Ints) -> Window:
        rows = narrowed(self.blocks.rows_at(places))
        if not is_ascending(rows):
            by_row = np.argsort(rows, kind="stable")
            rows, batch, within = rows[by_row], batch[by_row], within[by_row]
        return Window(rows=rows, batch=batch, within=within, drawn=self.drawn)


def _numbers(window: Window, name: str) -> Ints:
    numbers = np.asarray(getattr(window, name))
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise OptionError(
            f"draw= gave a window whose {name} are {numbers.dtype} of shape {numbers.shape}, not integers of one axis"
        )
    return numbers.astype(np.int64, copy=False)


def _check_range(numbers: Ints, count: int, what: str, all_of_them: str) -> None:
    wrong = numbers[(numbers < 0) | (numbers >= count)]
    if len(wrong):
        raise OptionError(f"draw= gave {what} {wrong[0]}, but there are {count:,} {all_of_them}, 0 to {count - 1:,}")


# --- Which samples an epoch takes, how often, and how batches of them are cut ---------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """Epochs whose samples are drawn at random, each with a probability in proportion to its weight.

    Parameters
    ----------
    weights : array-like or str, optional
        The weight of each sample, 0 or more, in any unit: an array, or the name of a field. With None, the default, all
        weights are the same.
    count : int, optional
        Samples of an epoch, of all ranks together. By default as many as there are.
    replacement : bool
        Whether an epoch may have a sample more than once. False draws from the samples that are left, and with
        `weights` needs `count`.

    Raises
    ------
    OptionError
        If an argument breaks a rule.

    Examples
    --------
    >>> import h5py, tempfile, os, numpy as np
    >>> from h5stream import H5StreamLoader, Weighted
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"], f["w"] = np.arange(4), [0.0, 1.0, 0.0, 3.0]
    >>> [sorted(x.tolist()) for x in H5StreamLoader(path, 8, fields="x", seed=0, draw=Weighted("w", count=8))]
    [[1, 1, 1, 1, 3, 3, 3, 3]]
    """

    weights: Any = None
    count: int | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        _check_drawn(self)


@dataclass(frozen=True, slots=True, eq=False)
class Balanced:
    """Epochs with the same number of samples of each class; in a class, counts of samples differ by at most one.

    Parameters
    ----------
    by : str or array-like
        The classes: the name of a field of few values, numbers or texts, or an array with one value per sample.
    shares : mapping, optional
        The share of each class in an epoch, relative to the sum of shares. Every class of the data needs one, and every
        key must occur in the data; 0 leaves the samples of a class out. Keys are the values of `by`, or the names of
        AnnData's categories. By default all shares are the same.
    count : int, optional
        Samples of an epoch, of all ranks together. By default as many as there are.
    replacement : bool
        Whether an epoch may have a sample more than once. With False and no `count`, each class comes as often as the
        rarest class has samples.

    Raises
    ------
    OptionError
        If an argument breaks a rule.

    Examples
    --------
    >>> import h5py, tempfile, os, numpy as np
    >>> from h5stream import Balanced, H5StreamLoader
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"], f["y"] = np.arange(6), [0, 0, 0, 0, 0, 1]
    >>> [sorted(y.tolist()) for y in H5StreamLoader(path, 6, fields="y", draw=Balanced("y"))]
    [[0, 0, 0, 1, 1, 1]]
    >>> [sorted(y.tolist()) for y in H5StreamLoader(path, 6, fields="y", draw=Balanced("y", shares={0: 2, 1: 1}))]
    [[0, 0, 0, 0, 1, 1]]
    """

    by: Any
    shares: Any = None
    count: int | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        _check_drawn(self)


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """Batches with a limited number of rows of a ragged field, such as tokens, instead of a number of samples.

    Each sample still comes once per epoch, or as often as `draw` says. The number of batches differs between epochs.

    Parameters
    ----------
    rows : int, optional
        The most rows of a batch: it takes as many samples as fit, but no more than `batch_size` of the loader. If the
        field is padded, each sample counts as long as the longest of its batch. None sets no limit.
    field : str, optional
        The ragged field; by default the one with the most rows.
    bucket : bool
        Whether to make batches of samples of similar lengths, so that little is padded; needs ``shuffle=True``.
    draw : Weighted, Balanced or int, optional
        Which samples an epoch takes, as for `draw` of the loader. By default each once.

    Raises
    ------
    OptionError
        If an argument breaks a rule.

    Examples
    --------
    >>> import h5py, tempfile, os, numpy as np
    >>> from h5stream import Bounds, Field, H5StreamLoader, Sized
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["token"], f["bounds"] = np.arange(9), [0, 3, 4, 6, 9]
    >>> field = Field("token", lookup=Bounds("bounds"), ragged="list")
    >>> [[len(tokens) for tokens in batch] for batch in H5StreamLoader(path, fields=field, draw=Sized(5))]
    [[3, 1], [2, 3]]
    """

    rows: int | None = None
    field: str | None = None
    bucket: bool = False
    draw: Weighted | Balanced | int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            object.__setattr__(self, "rows", checked_number("Sized: rows=", self.rows, 1, "a positive number of rows"))
        if self.field is not None and (not isinstance(self.field, str) or not self.field):
            raise OptionError(f"Sized: field= takes the name of a ragged field, not {self.field!r}")
        if not isinstance(self.bucket, bool):
            raise OptionError(f"Sized: bucket= takes True or False, not {self.bucket!r}; field= names the field")
        if self.rows is None and not self.bucket:
            raise OptionError("Sized takes rows= (the most that a batch may have), bucket=True or both")
        object.__setattr__(self, "draw", checked_drawn(self.draw, "Sized: draw="))


def checked_drawn(
    draw: object, what: str, kinds: str = "Weighted(...), Balanced(...)"
) -> Weighted | Balanced | int | None:
    """Validate which samples an epoch takes: an integer becomes an int, other types are refused."""
    if draw is None or isinstance(draw, Weighted | Balanced):
        return draw
    return checked_number(what, draw, 1, f"{kinds} or a positive number of samples")


def _check_drawn(draw: Weighted | Balanced) -> None:
    name = type(draw).__name__
    if draw.count is not None:
        object.__setattr__(
            draw, "count", checked_number(f"{name}: count=", draw.count, 1, "a positive number of samples")
        )
    if not isinstance(draw.replacement, bool):
        raise OptionError(f"{name}: replacement= takes True or False, not {draw.replacement!r}")


# --- Orders that samplers decide: their indices, batch by batch ----------------------------------------


Rows = Sequence[int] | NDArray[np.int64]
_Listed = tuple[NDArray[np.int64], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOrder:
    """The batches that a user's sampler decides."""

    source: object  # the user's sampler
    batched: Any  # yields the indices of each batch: `source` itself, or torch's BatchSampler over it
    is_single: bool  # whether an index may stand for a batch, of a sample without an axis of rows
    rows: NDArray[np.int64] | None = None  # the file's row for each index; None if these are the same

    @property
    def batch_rows(self) -> int | None:
        """The most rows of a batch, from the sampler's lists or its `batch_size`; None if unknown."""
        if self.is_single and not hasattr(self.source, "batch_size"):
            return 1
        if isinstance(self.batched, (list, tuple)):
            return max((1, *(len(batch) if hasattr(batch, "__len__") else 1 for batch in self.batched)))
        size = getattr(self.batched, "batch_size", None)
        return size if isinstance(size, int) and size > 0 else None

    @property
    def count(self) -> int | None:
        """The number of batches of an epoch, if the sampler has a length."""
        try:
            return len(self.batched)
        except TypeError:
            return None

    def batches(self) -> Iterator[Any]:
        """Return an iterator over the indices of each batch."""
        if self.is_single:
            return ([index] if np.ndim(index) == 0 else index for index in self.batched)
        return iter(self.batched)

    def set_epoch(self, epoch: int) -> None:
        """Call the sampler's `set_epoch`, if it has one."""
        if (move := getattr(self.source, "set_epoch", None)) is not None:
            move(epoch)


@dataclass(kw_only=True, eq=False)
class ListedOrder:
    """Batches of listed rows; consecutive batches are read together."""

    listed: Iterable[Rows]
    together: int  # batches of a window
    total_rows: int  # rows that the lists may name, if `rows` is None
    batches: int | None = None  # how many, if the sampler has a length
    most_rows: int | None = None  # at most, in a batch
    rows: NDArray[np.int64] | None = None  # the file's row for each listed one
    checksum: int = 0  # of the indices of batches taken before a resume; 0 accepts any
    drawn: tuple[int, int] = (0, 0)
    _sizes: dict[int, int] = field(default_factory=dict)
    _checksums: dict[int, int] = field(default_factory=dict)

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch that a window has named; once per batch."""
        return self._sizes.pop(batch)

    def take_checksum(self, batches: int) -> int:
        """Return, once, the checksum of the indices of the first `batches` batches, once windows named them all."""
        return self._checksums.pop(batches)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Yield windows of `together` batches each; earlier batches are requested from the sampler, but not read.

        The first batch is requested in the calling thread, the user's, since most samplers draw from torch's generator
        there. An exception is raised when the windows are iterated.
        """
        batches, begun, failure = self._from(first_batch), [], None
        try:
            begun = [*itertools.islice(batches, 1)]
        except Exception as error:
            failure = error
        return self._windows(itertools.chain(begun, batches), first_batch, failure)

    def _windows(self, batches: Iterator[_Listed], number: int, failure: Exception | None) -> Iterator[Window]:
        pending: list[_Listed] = []
        while failure is None:
            try:
                pending.append(next(batches))
            except StopIteration:
                break
            except Exception as error:  # the batches before it are good
                failure = error
            if len(pending) == self.together:
                yield self._window(pending, number)
                number, pending = number + len(pending), []
        if pending:
            yield self._window(pending, number)
        if failure is not None:
            raise failure

    def _from(self, first_batch: int) -> Iterator[_Listed]:
        """Yield the rows of batches from `first_batch` on, each with the checksum of all indices so far."""
        batches, checksum = map(self._checked, self.listed), 0
        for rows in itertools.islice(batches, first_batch):
            checksum = _checksum(rows, checksum)
        if self.checksum not in (0, checksum):
            raise StateError(
                f"the sampler gives other indices than when the state was saved, {first_batch:,} batches into its "
                "epoch; rows would be repeated and others left out. Give it the same seed (generator=), or a set_epoch"
            )
        for rows in batches:
            checksum = _checksum(rows, checksum)
            yield rows, checksum

    def _checked(self, batch: Rows) -> NDArray[np.int64]:
        check_ordered("a batch of the sampler", batch)
        try:
            indices = np.asarray(batch if hasattr(batch, "__array__") else list(batch)).reshape(-1)
        except (TypeError, ValueError):
            raise OptionError(
                f"the sampler gave {reprlib.repr(batch)} for a batch; sampler= gives row numbers one by one, and "
                "batch_sampler= lists of them"
            ) from None
        if len(indices) == 0:
            raise OptionError("the sampler gave an empty batch; every batch needs at least one row")
        if not np.issubdtype(indices.dtype, np.integer):
            raise OptionError(f"the sampler gave {indices[0]!r}; rows are named by integers")
        if self.most_rows is not None and len(indices) > self.most_rows:
            raise OptionError(
                f"the sampler gave a batch of {len(indices):,} rows, but there is room for {self.most_rows:,}; "
                "let its attribute batch_size say how many rows a batch has at most, or raise memory_budget="
            )
        rows, total = indices.astype(np.int64), self.total_rows if self.rows is None else len(self.rows)
        wrong = rows[(rows < -total) | (rows >= total)]
        if len(wrong):
            raise OptionError(f"the sampler gave row {wrong[0]}, but there are {total:,} rows")
        rows[rows < 0] += total
        return rows if self.rows is None else self.rows[rows]

    def _window(self, listed: list[_Listed], number: int) -> Window:
        for k, (rows, checksum) in enumerate(listed, number):
            self._sizes[k], self._checksums[k + 1] = len(rows), checksum
        return replace(Window.of_batches(number, [rows for rows, _ in listed]), drawn=self.drawn)


def _checksum(rows: NDArray[np.int64], before: int) -> int:
    return zlib.crc32(rows.tobytes(), before) or 1  # never 0, which stands for any
