"""Fields that come from no dataset: values in memory, numbers of samples, padding, what a part has once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.samples.kinds import checked_steps
from h5stream.samples.space import Ints, Space, Steps


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
        The steps to report, as those of a `Field`; by default those of `Sequences`.
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
