"""Stretches: the rows of a ragged field that each sample has, from what a file says of them."""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.samples.segments import Bounds, Lengths, whole_numbers
from h5stream.samples.sequences import integer

Ints = NDArray[np.int64]
Option = TypeVar("Option")

ARRAYS = "arrays"
"""The form of objects, or rows of groups, of which each has a shape of its own: a list of tensors."""

Form = Literal["packed", "nested", "pad", "list", "arrays", "dense"]
FORMS = ("packed", "nested", "pad", "list", ARRAYS)

DENSE: Literal["dense"] = "dense"
"""The form of the values of a sparse matrix that come as rows of a dense one."""

STACKED: Literal["stacked"] = "stacked"
"""The form of a field of which each sample turns out to have as many rows: one tensor."""

Place = Literal["random", "start", "center"]
PLACES = get_args(Place)


@dataclass(frozen=True, slots=True)
class Between:
    """Stretches whose first and last rows two datasets hold; a first row of -1 says that a sample has none.

    Parameters
    ----------
    first, last : str
        The datasets, of one row number a sample.
    inclusive : bool, keyword-only
        Whether the last row belongs to the stretch.

    Examples
    --------
    >>> Between("img_to_first_box", "img_to_last_box", inclusive=True).names
    ('img_to_first_box', 'img_to_last_box')
    """

    first: str
    last: str
    _: KW_ONLY
    inclusive: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The datasets that say it."""
        return (self.first, self.last)


Stretches = Bounds | Lengths | Between


@dataclass(frozen=True, slots=True)
class Crop:
    """A part of each sample of a ragged field: `length` rows that follow one another, or all where there are fewer.

    A random one begins at another row in each epoch, by seed, epoch and sample alone: a state that is resumed goes on
    with the same. A single sample, ``dataset[i]``, is that of seed 0 and epoch 0; see `H5Dataset.set_epoch`.

    Crops of several fields of a sample begin at the same time. Their lengths say how the rates compare: beside
    ``Crop(100)`` of frames, ``Crop(16_000)`` of audio has 160 rows per frame, and where the frames begin at row k, the
    audio begins at row ``k * 160``; ``Crop(250)`` begins at ``k * 250 // 100``, the nearest row before. A field may
    have up to four frames more or fewer than these; crops then begin only where each field has all of its rows. Fields
    that differ by more have no time in common: each begins at the same fraction of the rows that its crop leaves over.

    Parameters
    ----------
    length : int
        Rows, at most.
    at : str
        ``"random"``, ``"start"`` or ``"center"``.

    Raises
    ------
    OptionError
        If it is none of these, or no number of rows.

    Examples
    --------
    >>> Crop(100, at="center")
    Crop(length=100, at='center')
    """

    length: int
    at: Place = "random"

    def __post_init__(self) -> None:
        if integer(self.length, "length") < 1:
            raise OptionError(f"Crop takes a row or more, not {self.length!r}")
        if self.at not in PLACES:
            raise OptionError(f"Crop: at= is {', '.join(map(repr, PLACES))}, not {self.at!r}")


@dataclass(frozen=True, slots=True)
class Ragged:
    """How a field that has another number of rows in each sample comes in a batch.

    Parameters
    ----------
    form : str
        ``"packed"``, ``"nested"``, ``"pad"``, ``"list"``, ``"arrays"`` or ``"dense"``; see `Field`.
    crop : Crop, optional, keyword-only
        A part of each sample, such as a random one in each epoch, or its first rows, ``Crop(100, at="start")``.
    pad_value : number, optional, keyword-only
        What stands behind the rows of a sample with ``"pad"``.

    Raises
    ------
    OptionError
        If one of them is none of these.

    Examples
    --------
    >>> Ragged("pad", crop=Crop(100), pad_value=-1)
    Ragged(form='pad', crop=Crop(length=100, at='random'), pad_value=-1)
    """

    form: Form | Literal["stacked"] = "packed"
    _: KW_ONLY
    crop: Crop | None = None
    pad_value: float = 0
    # where they are columns of a sparse matrix, how many it has; 0 for anything else
    width: int = field(default=0, init=False, repr=False)
    # of a dense field the place that each of these has in a row of the batch; -1 for those that are not wanted
    places: NDArray[np.int32] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.form not in (*FORMS, STACKED, DENSE):
            raise OptionError(f"ragged= is {', '.join(map(repr, FORMS))}, not {self.form!r}")
        if not (self.crop is None or isinstance(self.crop, Crop)):
            raise OptionError(f"Ragged: crop= takes a Crop, such as Crop(100), not {self.crop!r}")
        if self.pad_value != 0 and self.form != "pad":
            raise OptionError(f"Ragged: pad_value={self.pad_value!r} is for 'pad', not {self.form!r}")

    @property
    def wanted(self) -> int:
        """The columns that a row of a dense field has."""
        return 0 if self.places is None else int(self.places.max(initial=-1)) + 1


def changed(one: Option, **values: Any) -> Option:
    """Return the same field, or its form, of which some attributes have other values."""
    other = copy.copy(one)
    for name, value in values.items():
        object.__setattr__(other, name, value)
    return other


def names_of(said: Stretches) -> tuple[str, ...]:
    """Return the datasets that say which rows samples have."""
    return said.names if isinstance(said, Between) else (said.name,)


def inside(said: Stretches, group: str) -> Stretches:
    """Look its datasets up in a group, unless their names begin with a slash."""
    names = [name if name.startswith("/") else f"{group}/{name}" for name in names_of(said)]
    if isinstance(said, Between):
        return Between(*names, inclusive=said.inclusive)
    return type(said)(*names)


def samples_said(said: Stretches, values: list[NDArray[Any]]) -> int:
    """Return how many samples the values of such datasets are for, if nothing else says so."""
    return len(values[0]) - isinstance(said, Bounds)


def stretches_of(said: Stretches, values: list[NDArray[Any]], samples: int, rows: int) -> tuple[Ints, Ints]:
    """Return the first row of each sample, and how many it has."""
    found = [whole_numbers(each, name) for name, each in zip(names_of(said), values, strict=True)]
    if isinstance(said, Bounds):
        bounds = _all_bounds(said, found[0], samples, rows)
        first, count = bounds[:-1], np.diff(bounds)
    else:
        for name, numbers in zip(names_of(said), found, strict=True):
            if len(numbers) != samples:
                raise OptionError(f"{name!r} has {len(numbers):,} numbers, and there are {samples:,} samples")
        if isinstance(said, Lengths):
            count = found[0]
            first = np.cumsum(count) - count
        else:
            first = np.maximum(found[0], 0)
            count = np.where(found[0] < 0, 0, found[1] + said.inclusive - first)
    wrong = np.flatnonzero((count < 0) | (first < 0) | (first + count > rows))
    if len(wrong):
        one = wrong[0]
        raise OptionError(
            f"{' and '.join(map(repr, names_of(said)))}: sample {one:,} is said to have rows {first[one]:,} to "
            f"{first[one] + count[one]:,} (exclusive), and there are {rows:,} rows; {len(wrong):,} of {samples:,} "
            "samples go backwards or beyond. See whether these numbers are of this dataset"
        )
    return first, count


def _all_bounds(said: Bounds, bounds: Ints, samples: int, rows: int) -> Ints:
    """Return where each sample begins, and where the last ends."""
    if len(bounds) == samples:
        if samples and bounds[0] == 0 and bounds[-1] == rows:
            raise OptionError(
                f"{said.name!r} has one number for each of {samples:,} samples, from 0 to {rows:,}, so it may say "
                "where they begin or where they end; Lengths or Between say it without doubt"
            )
        bounds = np.append(bounds, rows) if samples and bounds[0] == 0 else np.append(0, bounds)
    if len(bounds) != samples + 1:
        raise OptionError(
            f"{said.name!r} has {len(bounds):,} bounds, and {samples:,} samples need {samples + 1:,}: where each "
            "begins, and where the last ends"
        )
    return bounds
