"""Moments and value counts: one-pass statistics of many numbers.

Floats are summed as float64 distances from their mean so far, batch by batch, and batches are merged as Chan, Golub and
LeVeque do (1979, "Updating formulae and a pairwise algorithm for computing sample variances"), so that a large offset
costs no digits. Whole numbers are summed exactly. If squares would leave the range of float64, numbers are divided by a
power of two first, which costs no digits either.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled._native import add_integers, add_moments, add_short_integers, count_bytes

_Number = TypeVar("_Number", bound=np.generic)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LANES = 1024
"""Columns of numbers that are summed side by side, about: enough to keep vector units busy."""

PIECE = 1 << 18
"""Numbers that are summed together: a megabyte or two, which stays in a core's cache for several passes."""

MOST_VALUES = 100
"""The most distinct values of a field that are counted one by one."""

PROBED = 4096
"""Numbers of a piece that are sampled before all of them are counted."""

_BITS = 22

_PLAIN_EXPONENT = 400
"""Numbers from 2**-400 to 2**400 are summed unscaled: the squares of their distances fit into float64."""

_NO_EXPONENT = -2000
"""The exponent of numbers that are all 0: below that of any other."""


class Moments:
    """Counts, sums and extremes of numbers, for each channel."""

    def __init__(self, dtype: np.dtype, channels: int) -> None:
        self.is_whole = dtype.kind in "biu"
        self.channels = channels
        self.count, self.nan, self.inf = (np.zeros(channels, dtype=np.int64) for _ in range(3))
        # The mean is relative to one of the numbers, which keeps its precision if all of them are large.
        self._base, self._mean, self._spread = (np.zeros(channels) for _ in range(3))
        # The three above are of numbers divided by this power of two.
        self._exponent = np.full(channels, _NO_EXPONENT)
        self._sum = self._squares = np.zeros(channels, dtype=object)  # of Python integers
        self.least: np.ndarray | None = None
        self.most: np.ndarray | None = None

    def add(self, values: np.ndarray) -> None:
        """Add numbers; the last axis of the array is the channels."""
        if values.dtype == bool:
            values = values.view(np.uint8)
        if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
            values = values.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
        values = values.reshape(-1, self.channels)
        fold = max(1, LANES // self.channels)
        whole = len(values) // fold * fold
        for part, lanes in ((values[:whole], fold * self.channels), (values[whole:], self.channels)):
            rows = part.reshape(-1, lanes)
            step = max(1, PIECE // lanes)
            for first in range(0, len(rows), step):
                self._add(rows[first : first + step])

    def _add(self, rows: np.ndarray) -> None:
        rows = np.require(rows, requirements=["C", "A"])  # required by the kernels
        if self.is_whole:
            self._add_whole(rows)
            self._see(rows.min(axis=0), rows.max(axis=0))
            return
        shift, lanes = self._shift(rows[0, : self.channels], rows), rows.shape[1] // self.channels
        sums, squares, least, most = _moments(rows, shift)
        exponent = self._exponents(least, most)
        are_plain = all(
            ((exponents == 0) | (exponents == _NO_EXPONENT)).all() for exponents in (exponent, self._exponent)
        )
        if not (are_plain and np.isfinite(sums).all() and np.isfinite(squares).all()):
            self._add_scaled(rows, lanes)
            return
        self._join_sums(np.full(self.channels, len(rows) * lanes), shift, sums, squares, exponent)
        self._see(least, most)

    def _add_scaled(self, rows: np.ndarray, lanes: int) -> None:
        """Add numbers that are not all finite, or whose squares leave the range of float64."""
        finite = np.isfinite(rows)
        self.nan += self._of_channels(np.isnan(rows).sum(axis=0))
        self.inf += self._of_channels(np.isinf(rows).sum(axis=0))
        least, most = np.where(finite, rows, np.inf).min(axis=0), np.where(finite, rows, -np.inf).max(axis=0)
        exponent = self._exponents(least, most)
        down = -np.tile(np.where(exponent == _NO_EXPONENT, 0, exponent), lanes)
        first = np.tile(self._first_finite(rows, finite), lanes).astype(np.float64)
        continues = np.tile((self.count > 0) & (exponent == self._exponent), lanes)
        shift = np.where(continues, np.tile(self._base + self._mean, lanes), np.ldexp(first, down))
        sums, squares, *_ = _moments(np.where(finite, np.ldexp(rows.astype(np.float64), down), shift), shift)
        self._join_sums(self._of_channels(finite.sum(axis=0)), shift, sums, squares, exponent)
        self._see(least, most)

    def _exponents(self, least: np.ndarray, most: np.ndarray) -> Ints:
        """Return the power of two by which each channel's numbers are divided, from the extremes of its lanes."""
        if least.dtype.itemsize < 8:
            return np.zeros(self.channels, dtype=np.int64)  # no square leaves the range
        largest = np.maximum(np.abs(least), np.abs(most)).reshape(-1, self.channels).astype(np.float64)
        largest = np.where(np.isfinite(largest), largest, 0).max(axis=0)
        exponent = np.frexp(largest)[1]
        return np.where(largest == 0, _NO_EXPONENT, np.where(np.abs(exponent) <= _PLAIN_EXPONENT, 0, exponent))

    def _join_sums(self, count: Ints, shift: Floats, sums: Floats, squares: Floats, exponent: Ints) -> None:
        """Merge numbers given by lane sums of their distances from a shift, and of the squares of these."""
        sums, squares = self._of_channels(sums), self._of_channels(squares)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            mean, spread = sums / count, np.maximum(squares - sums * sums / count, 0)
        self._join(count, shift[: self.channels], mean, spread, exponent)

    def merge(self, other: Moments) -> None:
        """Add the numbers of another instance with the same channels."""
        if other.least is None or other.most is None:
            return
        self.nan, self.inf = self.nan + other.nan, self.inf + other.inf
        if self.is_whole:
            self.count = self.count + other.count
            self._sum, self._squares = self._sum + other._sum, self._squares + other._squares
        else:
            self._join(other.count, other._base, other._mean, other._spread, other._exponent)
        self._see(other.least, other.most)

    def _join(self, count: Ints, base: Floats, mean: Floats, spread: Floats, exponent: Ints) -> None:
        """Merge numbers given by their mean relative to a base and their spread, divided by a power of two."""
        exponent = np.where(count > 0, exponent, _NO_EXPONENT)
        common = np.maximum(self._exponent, exponent)
        if (common != exponent).any() or (common != self._exponent).any():
            base, mean, spread = _divided(base, mean, spread, common - exponent)
            self._base, self._mean, self._spread = _divided(
                self._base, self._mean, self._spread, common - self._exponent
            )
            self._exponent = common
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            is_new, total = count > 0, self.count + count
            self._base = np.where(self.count > 0, self._base, base)
            mean = (base - self._base) + mean
            apart, share = mean - self._mean, count / total
            merged = np.where(self.count > 0, self._mean + apart * share, mean)
            self._spread = np.where(is_new, self._spread + spread + apart**2 * (self.count * share), self._spread)
            self._mean, self.count = np.where(is_new, merged, self._mean), total

    def _add_whole(self, rows: np.ndarray) -> None:
        lanes = rows.shape[1]
        if rows.dtype.itemsize <= 2:
            sums, squares = np.zeros((1, lanes), np.int64), np.zeros((1, lanes), np.int64)
            add_short_integers(rows, sums[0], squares[0])
        else:
            sums, squares = np.zeros((3, lanes), np.int64), np.zeros((5, lanes), np.int64)
            add_integers(rows, sums, squares)
        self._sum, self._squares = (
            so_far + sum(self._of_channels(limb).astype(object) << (_BITS * place) for place, limb in enumerate(limbs))
            for so_far, limbs in ((self._sum, sums), (self._squares, squares))
        )
        self.count += len(rows) * (lanes // self.channels)

    def _see(self, least: np.ndarray, most: np.ndarray) -> None:
        """Update the extremes from those of some lanes."""
        least, most = least.reshape(-1, self.channels), most.reshape(-1, self.channels)
        low, high = least.min(axis=0), most.max(axis=0)
        self.least = low if self.least is None else np.minimum(self.least, low)
        self.most = high if self.most is None else np.maximum(self.most, high)

    def _of_channels(self, of_lanes: NDArray[_Number]) -> NDArray[_Number]:
        summed: NDArray[_Number] = of_lanes.reshape(-1, self.channels).sum(axis=0)
        return summed

    def _shift(self, first: np.ndarray, rows: np.ndarray) -> Floats:
        """Return for each lane the current mean of its channel; the first number if there is none."""
        of_channels = np.where(self.count > 0, self._base + self._mean, first.astype(np.float64))
        return np.tile(of_channels, rows.shape[1] // self.channels)

    def _first_finite(self, rows: np.ndarray, finite: NDArray[np.bool_]) -> np.ndarray:
        """Return a finite number of each channel, or 0."""
        rows, finite = rows.reshape(-1, self.channels), finite.reshape(-1, self.channels)
        numbers = rows[finite.argmax(axis=0), np.arange(self.channels)]
        return np.where(finite.any(axis=0), numbers, 0)

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean of each channel; NaN if it has no numbers."""
        if self.is_whole:
            return np.array([s / n if n else np.nan for s, n in zip(self._sum, self.count.tolist(), strict=True)])
        return np.where(self.count > 0, np.ldexp(self._base + self._mean, self._exponent), np.nan)

    @property
    def std(self) -> NDArray[np.float64]:
        """The square root of each channel's mean squared distance from its mean."""
        if not self.is_whole:
            with np.errstate(invalid="ignore", divide="ignore"):
                deviation: NDArray[np.float64] = np.ldexp(np.sqrt(self._spread / self.count), self._exponent)
            return deviation
        every = zip(self._sum, self._squares, self.count.tolist(), strict=True)
        return np.array([((q * n - s * s) / (n * n)) ** 0.5 if n else np.nan for s, q, n in every])


def _divided(base: Floats, mean: Floats, spread: Floats, exponent: Ints) -> tuple[Floats, Floats, Floats]:
    """Divide a base, a mean relative to it, and a sum of squares by a power of two."""
    return np.ldexp(base, -exponent), np.ldexp(mean, -exponent), np.ldexp(spread, -2 * exponent)


def _moments(rows: np.ndarray, shift: Floats) -> tuple[Floats, Floats, np.ndarray, np.ndarray]:
    """Return the sums of distances from `shift` and of their squares for each lane, and its extremes."""
    sums, squares, least, most = np.zeros(rows.shape[1]), np.zeros(rows.shape[1]), rows[0].copy(), rows[0].copy()
    add_moments(rows, shift, sums, squares, least, most)
    return sums, squares, least, most


class ValueCounts:
    """Counts of each distinct value, while there are few."""

    def __init__(self) -> None:
        self.counts: Counter[Any] | None = Counter()  # by value; None once there were too many

    def add(self, values: np.ndarray | list[bytes | str]) -> None:
        """Add an array of numbers, or a list of strings."""
        if self.counts is None or not len(values):
            return
        if isinstance(values, list):
            self.counts.update(values)
        elif (counted := _counted(values.reshape(-1))) is None:
            self.counts = None
        else:
            self.counts.update(counted)
        self._stop_at_many()

    def merge(self, other: ValueCounts) -> None:
        """Add the counts of another instance."""
        if self.counts is None or other.counts is None:
            self.counts = None
            return
        self.counts.update(other.counts)
        self._stop_at_many()

    def _stop_at_many(self) -> None:
        if self.counts is not None and len(self.counts) > MOST_VALUES:
            self.counts = None


def _counted(flat: np.ndarray) -> dict[float, int] | None:
    """Return the counts of distinct numbers; None if there are many."""
    if flat.dtype.kind in "biu" and flat.dtype.itemsize == 1:
        counts = np.zeros(256, np.int64)
        count_bytes(np.ascontiguousarray(flat).view(np.uint8), counts)
        values = np.arange(256) > 0 if flat.dtype == bool else np.arange(256, dtype=np.uint8).view(flat.dtype)
        return dict(zip(values[counts > 0].tolist(), counts[counts > 0].tolist(), strict=True))
    low, high = (int(flat.min()), int(flat.max())) if flat.dtype.kind in "iu" else (0, PROBED)
    if high - low < PROBED:  # takes a sixth of the time of numpy.unique
        counts = np.bincount((flat - flat.dtype.type(low)).astype(np.intp))
        return {low + k: int(counts[k]) for k in np.flatnonzero(counts).tolist()}
    if len(np.unique(flat[:: max(1, len(flat) // PROBED)][:PROBED])) > MOST_VALUES:
        return None
    values, often = np.unique(flat[~np.isnan(flat)] if flat.dtype.kind == "f" else flat, return_counts=True)
    return dict(zip(values.tolist(), often.tolist(), strict=True))
