"""Fields that come from no dataset: values in memory, numbers of samples, masks of padding, what a part has once. Pure.

Each gives its values for samples by their numbers and by the rows that they begin at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.samples.sequences import checked_steps
from h5stream.samples.space import Ints, Space, Steps


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """A field of values in memory: one for each sample.

    Parameters
    ----------
    values : array-like, torch.Tensor, or list of str, bytes or objects
        Value ``k`` belongs to sample ``k`` of the whole dataset, whatever ``rows=`` or a subset choose of it. Numbers
        come as a tensor, all else as a list.
    name : str, optional
        What the field is called where fields have no keys.
    dtype : torch.dtype, optional
        What the batch is cast to.

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
        What the field is called where fields have no keys.

    Examples
    --------
    >>> SampleNumber().name
    'sample_number'
    """

    name: str = "sample_number"


@dataclass(frozen=True, slots=True)
class SourceNumber:
    """A field that is the number of the source of a `Mixture` that the sample is of: an int64; elsewhere 0.

    Parameters
    ----------
    name : str, optional
        What the field is called where fields have no keys.

    Examples
    --------
    >>> SourceNumber().name
    'source'
    """

    name: str = "source"


@dataclass(frozen=True, slots=True)
class Padding:
    """A field that tells which steps of a sequence lie outside of its segment: True where something was padded.

    Parameters
    ----------
    steps : range or sequence of int, optional
        The steps that it tells of, as those of a `Field`; by default those of `Sequences`.
    name : str, optional
        What the field is called where fields have no keys.

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


class Column(Protocol):
    """The values of a field that comes from no dataset: an array, or a list. Any thread may ask.

    Samples are named by their numbers, and by the rows that they begin at; `drawn` are seed and epoch, of which what is
    drawn for a sample is a function.
    """

    def __call__(self, numbers: Ints, rows: NDArray[Any], drawn: tuple[int, int]) -> Any:
        """Return the values of some samples."""


@dataclass(frozen=True, slots=True, eq=False)
class ValuesColumn:
    """Values by the numbers of samples."""

    values: Any  # one for each

    def __call__(self, numbers: Ints, rows: NDArray[Any], drawn: tuple[int, int]) -> Any:
        """Return the values of some samples."""
        return _chosen(self.values, numbers)


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """The numbers themselves."""

    def __call__(self, numbers: Ints, rows: NDArray[Any], drawn: tuple[int, int]) -> Any:
        """Return the values of some samples."""
        return numbers


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """Which of several sources each sample is of."""

    starts: tuple[int, ...] = (0,)  # the number of each source's first sample

    def __call__(self, numbers: Ints, rows: NDArray[Any], drawn: tuple[int, int]) -> Any:
        """Return the values of some samples."""
        return np.searchsorted(self.starts, numbers, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class PaddingColumn:
    """Which steps of each sample lie outside of its segment."""

    steps: Steps
    space: Space  # the samples

    def __call__(self, numbers: Ints, rows: NDArray[Any], drawn: tuple[int, int]) -> Any:
        """Return the values of some samples."""
        return self.space.outside(numbers, self.steps)


@dataclass(frozen=True, slots=True, eq=False)
class PartColumn:
    """What each part of the data, a file or a group, has once."""

    starts: tuple[int, ...]  # the number of each part's first row
    values: Any  # one for each part

    def __call__(self, numbers: Ints, rows: NDArray[Any], drawn: tuple[int, int]) -> Any:
        """Return the values of some samples."""
        return _chosen(self.values, np.searchsorted(self.starts, rows, side="right") - 1)


def _chosen(values: Any, places: Ints) -> Any:
    return values[places] if isinstance(values, np.ndarray) else [values[place] for place in places.tolist()]


def _in_memory(values: Any) -> Any:
    """Turn what a user gave into an array of numbers, else into a list."""
    if hasattr(values, "detach"):  # a tensor: this room knows no torch
        values = values.detach().cpu().numpy()
    if isinstance(values, Sequence) and any(isinstance(value, (str, bytes)) for value in values[:1]):
        return list(values)
    try:
        found = np.asarray(values)
    except ValueError:  # lists of unlike length
        return list(values)
    if found.ndim == 0:
        raise OptionError(f"Values takes an array, a tensor or a list with a value for each sample, not {values!r}")
    return found if found.dtype.kind in "biufc" else found.tolist()
