"""Fields that are not stored in a dataset: values in memory, sample numbers, padding, and lookup functions. Pure."""

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
"""Returns a row for each sample, from the sample numbers, the epoch and the seed."""

PROBED = 64
"""Samples for which a lookup function is called twice when files are opened."""


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """A field of values in memory: one for each sample.

    Parameters
    ----------
    values : array-like, torch.Tensor, or list of str, bytes or objects
        Value ``k`` belongs to sample ``k`` of the whole dataset, whatever part ``rows=`` or a subset chooses. Numbers
        come as a tensor, and so do bfloat16 and the float8 types that torch has, also of ml_dtypes; all else as a list.
    name : str, optional
        The name of the field if fields have no keys.
    dtype : torch.dtype or str, optional
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
        values = self.values
        name = str(getattr(values, "dtype", "")).removeprefix("torch.")
        if name in _OF_TORCH:  # an array of ml_dtypes, or a tensor: NumPy has none of them
            values = values.float() if hasattr(values, "detach") else values.astype(np.float32)
            object.__setattr__(self, "dtype", self.dtype or name)
        object.__setattr__(self, "values", _in_memory(values))


_OF_TORCH = {"bfloat16", *(f"float8_{form}" for form in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu"))}
"""Floats that torch has and NumPy has not."""


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
    """A field that is the number of the sample's source in a `Mixture`: an int64; 0 without a mixture.

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
    """A field that marks the steps of a sequence outside of its segment: True for each step that was padded.

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


VirtualField = Values | SampleNumber | SourceNumber | Padding
FROM_NO_FILE = (Values, SampleNumber, SourceNumber, Padding)


@dataclass(frozen=True, slots=True, eq=False)
class SampleColumn:
    """The values of a field that is not stored in a dataset: an array, or a list. Thread-safe."""

    values: Any = None  # one per sample, or per part; None stands for their numbers
    starts: tuple[int, ...] = ()  # the first sample of each part, if samples of a part share a value
    by_rows: bool = False  # whether `starts` are rows of the files instead of samples
    has_seeds: bool = False  # whether each number comes with a random seed for the sample's transforms
    steps: Steps = ()  # steps, space: set if the column marks the steps outside of a sample's segment
    space: Space | None = None

    def of(self, numbers: Ints, rows: NDArray[np.integer]) -> Any:
        """Return the values of some samples, from their numbers and the rows that they begin at."""
        if self.space is not None:
            return self.space.outside(numbers, self.steps)
        places = rows if self.by_rows else numbers
        if self.starts:
            places = np.searchsorted(self.starts, places, side="right") - 1
        if self.values is None or isinstance(self.values, np.ndarray):
            return places if self.values is None else self.values[places]
        return [self.values[place] for place in places.tolist()]


def _in_memory(values: Any) -> NDArray[np.generic] | list[Any]:
    """Convert a user's values to an array if they are numbers, else to a list."""
    check_ordered("Values", values)
    if isinstance(values, Sequence) and any(isinstance(value, (str, bytes)) for value in values[:1]):
        return list(values)
    try:
        array = as_array(values)
    except ValueError:  # lists of different lengths
        if hasattr(values, "detach"):
            raise
        return list(values)
    if array.ndim == 0:
        raise OptionError(f"Values takes an array, a tensor or a list with a value for each sample, not {values!r}")
    return array if array.dtype.kind in "biufc" else array.tolist()


# --- rows that a function looks up, anew in each epoch: what it gives is checked ------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRows:
    """A function that returns each sample's row in an epoch.

    # Guarantees: any thread calls the function, also several at once, with any samples in any order.
    """

    name: str = field(compare=False)  # the name of the field, for messages
    function: LookupFunction
    rows: int  # the number of rows to choose from

    def of(self, samples: NDArray[np.integer], seed: int, epoch: int) -> Ints:
        """Return the row of each sample; raise if the function returned something else."""
        rows = as_array(self.function(samples.astype(np.int64), epoch, seed))
        if rows.shape != samples.shape or rows.dtype.kind not in "iu":
            raise OptionError(
                f"field {self.name!r}: the function of lookup= was asked for {len(samples):,} samples and gave "
                f"{rows.dtype} {rows.shape}; it takes (samples, epoch, seed), and returns an array of row numbers"
            )
        wrong = np.flatnonzero((rows < 0) | (rows >= self.rows))
        if len(wrong):
            raise OptionError(
                f"field {self.name!r}: the function of lookup= gave row {rows[wrong[0]]} for sample "
                f"{samples[wrong[0]]:,}, and there are rows 0 to {self.rows - 1:,}; {len(wrong):,} of {len(samples):,} "
                "are not there"
            )
        return rows.astype(np.int64)

    def check(self, samples: int) -> None:
        """Raise if the function's result for a sample depends on the other samples of a call, or on earlier calls."""
        probes = np.unique(np.linspace(0, samples - 1, PROBED).astype(np.int64))
        if (self.of(probes, 0, 0) != self.of(probes[::-1].copy(), 0, 0)[::-1]).any():
            raise OptionError(
                f"field {self.name!r}: the function of lookup= gave the same samples other rows when asked again, in "
                "another order. A row depends on the sample's number, the epoch and the seed alone, as what "
                "h5stream.order.fractions(samples, epoch, seed) gives"
            )


def look_up_each(
    draws: Sequence[DrawnRows], starts: Sequence[int], firsts: Sequence[int], samples: Ints, epoch: int, seed: int
) -> Ints:
    """Call the function of each of several datasets, given its first sample and the first row that it looks up."""
    dataset, rows = np.searchsorted(starts, samples, side="right") - 1, np.empty_like(samples)
    for k in np.unique(dataset).tolist():
        mask = dataset == k
        rows[mask] = draws[k].of(samples[mask] - starts[k], seed, epoch) + firsts[k]
    return rows
