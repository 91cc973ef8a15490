"""Rows that a user's function looks up for each sample, anew in each epoch: what it gives is checked. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError

Ints = NDArray[np.int64]

LookupFunction = Callable[[Ints, int, int], Any]
"""Gives a row for each of some samples, by their numbers, the epoch and the seed."""

ASKED = 64
"""Samples that a function is asked for twice when files are opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRows:
    """A function that says which row each sample has in an epoch.

    # Guarantees: any thread calls the function, also several at once, with any samples in any order.
    """

    name: str = field(compare=False)  # the field's, for messages
    function: LookupFunction
    rows: int  # how many there are

    def of(self, samples: NDArray[Any], seed: int, epoch: int) -> Ints:
        """Return the row of each of some samples."""
        given = self.function(samples.astype(np.int64), epoch, seed)
        found = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
        if found.shape != samples.shape or found.dtype.kind not in "iu":
            raise OptionError(
                f"field {self.name!r}: the function of lookup= was asked for {len(samples):,} samples and gave "
                f"{found.dtype} {found.shape}; it takes (samples, epoch, seed), samples as an array, and returns an "
                "array of a row number for each"
            )
        wrong = np.flatnonzero((found < 0) | (found >= self.rows))
        if len(wrong):
            raise OptionError(
                f"field {self.name!r}: the function of lookup= gave row {found[wrong[0]]} for sample "
                f"{samples[wrong[0]]:,}, and there are rows 0 to {self.rows - 1:,}; {len(wrong):,} of {len(samples):,} "
                "are not there"
            )
        return found.astype(np.int64)

    def check(self, samples: int) -> None:
        """Refuse a function whose answer for a sample depends on when it is asked, or on what others are asked for."""
        some = np.unique(np.linspace(0, samples - 1, ASKED).astype(np.int64))
        if (self.of(some, 0, 0) != self.of(some[::-1].copy(), 0, 0)[::-1]).any():
            raise OptionError(
                f"field {self.name!r}: the function of lookup= gave the same samples other rows when it was asked "
                "again, in another order. Threads and ranks ask it for any samples, so a row may depend on the "
                "sample's number, the epoch and the seed alone: h5stream.order.fractions(samples, epoch, seed) gives "
                "each sample a random fraction"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedFunctions:
    """Those of several datasets that are read as one: each is asked for its own samples."""

    draws: tuple[DrawnRows, ...]
    starts: tuple[int, ...]  # the first sample of each
    firsts: tuple[int, ...]  # the first row of what each looks up

    def __call__(self, samples: Ints, epoch: int, seed: int) -> Ints:
        """Return the row of each of some samples."""
        of, found = np.searchsorted(self.starts, samples, side="right") - 1, np.empty_like(samples)
        for k in np.unique(of).tolist():
            ours = of == k
            found[ours] = self.draws[k].of(samples[ours] - self.starts[k], seed, epoch) + self.firsts[k]
        return found
