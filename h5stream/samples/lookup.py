"""Rows that samples look up: those of a dataset whose rows are not the rows of the samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.samples.columns import DrawnRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The rows that samples take from a dataset whose rows are not those of the samples."""

    dataset: int  # its number
    rows: NDArray[np.int64]  # the row of each sample, or its first; empty if only `draw` defines it
    counts: NDArray[np.int64] | None = None  # the number of consecutive rows of each sample; None for one row each
    # rows of the dataset in any order, into which `rows` and `counts` point, if samples list their rows
    listed: NDArray[np.int64] | None = None
    # the range of a random crop's first row, in rows of the leading crop; None if a crop takes all rows, or always the
    # same
    spare: NDArray[np.int64] | None = None
    # the length of the leading crop of each sample, if that is another field's
    paces: NDArray[np.int64] | None = None
    length: int = 0  # the length of its own crop
    # draws the row of each sample anew in each epoch; with `counts`, its index in `counts` and `rows`
    draw: DrawnRows | None = None

    def stretches(self, samples: np.ndarray, drawn: tuple[int, int]) -> tuple[np.ndarray, NDArray[np.int64]]:
        """Return the first row and the number of rows of each sample; `drawn` are seed and epoch."""
        of = samples if self.draw is None else self.draw.of(samples, *drawn)
        return self.rows[of], self.lengths[of]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of consecutive rows of each sample; raises TypeError if each has one row."""
        if self.counts is None:
            raise TypeError("each sample has one row")
        return self.counts

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays = self.rows, self.counts, self.listed, self.spare, self.paces
        return sum(array.nbytes for array in arrays if array is not None)

    @property
    def first_rows(self) -> NDArray[np.int64]:
        """The first row of each sample in the dataset; for an empty list any row, or 0 if all lists are empty."""
        if self.listed is None:
            return self.rows
        return self.listed[np.minimum(self.rows, len(self.listed) - 1)] if len(self.listed) else self.rows * 0

    @property
    def mean_rows(self) -> float:
        """Rows of a sample, on average."""
        return 1.0 if self.counts is None else float(self.counts.mean())
