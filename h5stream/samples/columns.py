"""What no dataset says of samples: values in memory, their numbers, padding, rows that a function looks up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.base.texts import check_ordered
from h5stream.errors import OptionError
from h5stream.samples.kinds import checked_steps
from h5stream.samples.segments import Ints, as_array
from h5stream.samples.space import Space, Steps

LookupFunction = Callable[[Ints, int, int], Any]
"""Gives a row for each of some samples, by their numbers, the epoch and the seed."""

ASKED = 64
"""Samples that a function is asked for twice when files are opened."""


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """A field of values in memory: one for each sample.

    Parameters
    ----------
    values : array-like, torch.Tensor, or list of str, bytes or objects
        Value ``k`` belongs to sample ``k`` of the whole dataset, whatever part ``rows=`` or a subset chooses. Numbers
        come as a tensor, everything else as a list.
    name : str, optional
        The name of the field if fields have no keys.
    dtype : torch.dtype, optional
        The type that the batch is cast to.

    Raises
    ------
    OptionError
        If there is no first axis.

    Examples
    --------
    >>> Values([0, 1, 1]).values
    array([0, 1, 1])
    """

    values: Any
    _: KW_ONLY
    name: str = "values"
    dtype: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _in_memory(self.values))


@dataclass(frozen=True, slots=True)
class SampleNumber:
    """A field that is the number of the sample in the whole dataset: an int64.

    Parameters
    ----------
    name : str, optional
        The name of the field if fields have no keys.

    Examples
    --------
    >>> SampleNumber().name
    'sample_number'
    """

    name: str = "sample_number"


@dataclass(frozen=True, slots=True)
class SourceNumber:
    """A field that is the number of the source of a `Mixture` from which the sample comes: an int64; elsewhere 0.

    Parameters
    ----------
    name : str, optional
        The name of the field if fields have no keys.

    Examples
    --------
    >>> SourceNumber().name
    'source'
    """

    name: str = "source"


@dataclass(frozen=True, slots=True)
class Padding:
    """A field that says which steps of a sequence are outside of its segment: True for each step that was padded.

    Parameters
    ----------
    steps : range or sequence of int, optional
        The steps to report, as ``take=`` of a `Field`; by default those of `Sequences`.
    name : str, optional
        The name of the field if fields have no keys.

    Raises
    ------
    OptionError
        If `steps` are not integers.

    Examples
    --------
    >>> Padding(range(-1, 2)).steps
    (-1, 0, 1)
    """

    steps: Any = None
    _: KW_ONLY
    name: str = "padding"

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", None if self.steps is None else checked_steps(self.steps))


Given = Values | SampleNumber | SourceNumber | Padding
FROM_NO_FILE = (Values, SampleNumber, SourceNumber, Padding)


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The values of a field that comes from no dataset: an array, or a list. Any thread may ask."""

    values: Any = None  # one for each sample, or each part; None for their numbers
    starts: tuple[int, ...] = ()  # the first sample of each part, where samples of one share a value
    by_rows: bool = False  # whether parts are of rows of the files: `starts` are numbers of these then
    has_seeds: bool = False  # whether each number comes with a random one for what is done to the sample
    steps: Steps = ()  # steps, space: where it tells which steps of a sample lie outside of its segment
    space: Space | None = None

    def of(self, numbers: Ints, rows: NDArray[Any]) -> Any:
        """Return the values of some samples, by their numbers and by the rows that they begin at."""
        if self.space is not None:
            return self.space.outside(numbers, self.steps)
        places = rows if self.by_rows else numbers
        if self.starts:
            places = np.searchsorted(self.starts, places, side="right") - 1
        if self.values is None or isinstance(self.values, np.ndarray):
            return places if self.values is None else self.values[places]
        return [self.values[place] for place in places.tolist()]


def _in_memory(values: Any) -> Any:
    """Turn what a user gave into an array of numbers, else into a list."""
    check_ordered("Values", values)
    if isinstance(values, Sequence) and any(isinstance(value, (str, bytes)) for value in values[:1]):
        return list(values)
    try:
        found = as_array(values)
    except ValueError:  # lists of unlike length
        if hasattr(values, "detach"):
            raise
        return list(values)
    if found.ndim == 0:
        raise OptionError(f"Values takes an array, a tensor or a list with a value for each sample, not {values!r}")
    return found if found.dtype.kind in "biufc" else found.tolist()


# --- rows that a function looks up, anew in each epoch: what it gives is checked ------------------------


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
        found = as_array(self.function(samples.astype(np.int64), epoch, seed))
        if found.shape != samples.shape or found.dtype.kind not in "iu":
            raise OptionError(
                f"field {self.name!r}: the function of lookup= was asked for {len(samples):,} samples and gave "
                f"{found.dtype} {found.shape}; it takes (samples, epoch, seed), and returns an array of row numbers"
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
                f"field {self.name!r}: the function of lookup= gave the same samples other rows when asked again, in "
                "another order. A row depends on the sample's number, the epoch and the seed alone, as what "
                "h5stream.order.fractions(samples, epoch, seed) gives"
            )


def asked_of_each(
    draws: Sequence[DrawnRows], starts: Sequence[int], firsts: Sequence[int], samples: Ints, epoch: int, seed: int
) -> Ints:
    """Ask the function of each of several datasets, by its first sample and the first row that it looks up."""
    of, found = np.searchsorted(starts, samples, side="right") - 1, np.empty_like(samples)
    for k in np.unique(of).tolist():
        ours = of == k
        found[ours] = draws[k].of(samples[ours] - starts[k], seed, epoch) + firsts[k]
    return found
