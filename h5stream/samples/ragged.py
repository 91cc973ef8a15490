"""Formats of fields in a batch: ragged fields, whose samples have different numbers of rows, and normalized fields."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.samples.kinds import integer, one_of
from h5stream.samples.segments import as_array

Option = TypeVar("Option")

ARRAYS = "arrays"
"""The form of objects, or rows of groups, with individual shapes: a list of tensors."""

Form = Literal["packed", "nested", "pad", "list", "arrays", "dense"]
FORMS = ("packed", "nested", "pad", "list", ARRAYS)

DENSE: Literal["dense"] = "dense"
"""The form of sparse matrices whose rows come as rows of a dense one."""

STACKED: Literal["stacked"] = "stacked"
"""The form of a field whose samples turn out to have the same number of rows: one tensor."""

Place = Literal["random", "start", "center"]

_NORMALIZED_BY = {"mean", "std", "factor", "nan"}


@dataclass(frozen=True, slots=True)
class Crop:
    """A part of each sample of a ragged field: `length` consecutive rows, or all rows if there are fewer.

    A random crop begins at another row in each epoch, which depends only on seed, epoch and sample, so a resumed run
    gets the same crops. A single sample, ``dataset[i]``, is that of seed 0 and epoch 0; see `H5Dataset.set_epoch`.

    Crops of several fields of a sample begin at the same time. Their lengths say how the rates compare: with
    ``Crop(100)`` of frames, ``Crop(16_000)`` of audio has 160 rows per frame, and if the frames begin at row k, the
    audio begins at row ``k * 160``; ``Crop(250)`` begins at ``k * 250 // 100``, the nearest row before. A field may
    have up to four frames more or fewer than that; crops then begin only where each field has all of its rows. Fields
    that differ by more have no common time: each crop begins at the same fraction of the rows that it leaves out.

    Parameters
    ----------
    length : int
        The most rows of a crop.
    at : str
        Where a crop begins: ``"random"``, the default; ``"start"``, at the sample's first row; or ``"center"``, in the
        middle of the sample.

    Raises
    ------
    OptionError
        If an argument is none of these, or no number of rows.

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
        one_of("Crop", "at", self.at, get_args(Place))


@dataclass(frozen=True, slots=True)
class Ragged:
    """How batches hold a field whose samples have different numbers of rows.

    Parameters
    ----------
    form : str
        ``"packed"``, ``"nested"``, ``"pad"``, ``"list"``, ``"arrays"`` or ``"dense"``; see `Field`.
    crop : Crop, optional, keyword-only
        A part of each sample: ``Crop(100)`` is a random part in each epoch, ``Crop(100, at="start")`` the first rows.
    pad_value : number, optional, keyword-only
        What fills the rows after a sample with ``"pad"``.

    Raises
    ------
    OptionError
        If an argument is none of these.

    Examples
    --------
    >>> Ragged("pad", crop=Crop(100), pad_value=-1)
    Ragged(form='pad', crop=Crop(length=100, at='random'), pad_value=-1)
    """

    form: Form | Literal["stacked"] = "packed"
    _: KW_ONLY
    crop: Crop | None = None
    pad_value: float = 0
    # the number of columns if the field is a sparse matrix, else 0
    width: int = field(default=0, init=False, repr=False)
    # for a dense field, the place of each column in a row of the batch; -1 for columns that are left out
    places: NDArray[np.int32] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.form not in (*FORMS, STACKED, DENSE):
            raise OptionError(f"ragged= is {', '.join(map(repr, (*FORMS, DENSE)))}, not {self.form!r}")
        if not (self.crop is None or isinstance(self.crop, Crop)):
            raise OptionError(f"Ragged: crop= takes a Crop, such as Crop(100), not {self.crop!r}")
        if self.pad_value != 0 and self.form != "pad":
            raise OptionError(f"Ragged: pad_value={self.pad_value!r} is for 'pad', not {self.form!r}")

    @property
    def matrix_width(self) -> int:
        """The number of columns of the field's sparse matrix; 0 if it has none."""
        return self.width if self.places is None else len(self.places)

    @property
    def wanted(self) -> int:
        """The number of columns in a row of a dense field."""
        return 0 if self.places is None else int(self.places.max(initial=-1)) + 1


def changed(one: Option, **values: object) -> Option:
    """Return a copy of a field, or of its form, with other values of some attributes."""
    other = copy.copy(one)
    for name, value in values.items():
        object.__setattr__(other, name, value)
    return other


# --- normalization: what is done to the numbers of a field before a batch has them -----------------------

NestedFloats: TypeAlias = "float | tuple[NestedFloats, ...]"
"""One number, or an array of numbers as nested tuples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """Normalization of numbers to ``(x * factor - mean) / std``; NaN is then replaced by `nan`."""

    factor: float = 1.0  # multiplied first
    mean: NestedFloats = 0.0  # mean, std: one number, or arrays that fit a sample
    std: NestedFloats = 1.0
    nan: float | None = None  # replaces NaN; None keeps it

    @property
    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation as arrays."""
        return np.array(self.mean), np.array(self.std)

    def misfit(self, shape: tuple[int, ...]) -> str:
        """Return why it does not fit the numbers of one sample; empty if it fits."""
        for name, array in zip(("mean", "std"), self.arrays, strict=True):
            try:
                fits = np.broadcast_shapes(array.shape, shape) == shape
            except ValueError:
                fits = False
            if not fits:
                first = shape[:1] == array.shape and len(shape) > 1
                hint = f"; numpy.reshape({name}, {(*shape[:1], *[1] * (len(shape) - 1))}) does" if first else ""
                problem = f"{name!r} of normalize=, of the shape {array.shape}, does not fit a sample of {shape}"
                return f"{problem} as NumPy broadcasts{hint}"
        return ""


def normalization(name: str, options: Mapping[str, object] | None) -> Normalization | None:
    """Validate ``normalize=`` of a field; None if there is nothing to do."""
    if options is None or options == {}:
        return None
    wrong = sorted(options.keys() - _NORMALIZED_BY) if isinstance(options, Mapping) else [options]
    if wrong:
        raise OptionError(
            f"Field({name!r}): normalize= takes {{'mean': ..., 'std': ...}}, also 'factor' and 'nan', not {wrong[0]!r}"
        )
    return Normalization(**{key: _numbers(name, key, one) for key, one in options.items() if one is not None})


def _numbers(name: str, key: str, value: object) -> Any:
    """Validate numbers of ``normalize=`` and return them as nested tuples, which can be compared."""
    is_one = key in ("factor", "nan")
    try:
        numbers = as_array(value)
        if not numbers.size or numbers.dtype.kind in "SUMmc" or (is_one and numbers.ndim):
            raise TypeError
        numbers = numbers.astype(np.float64)
    except (TypeError, ValueError):
        rule = "takes a real number" if is_one else "takes a real number or an array of them"
        raise OptionError(f"Field({name!r}): {key!r} of normalize= {rule}, not {value!r}") from None
    if key != "nan" and not np.isfinite(numbers).all():
        raise OptionError(f"Field({name!r}): {key!r} of normalize= is to be finite everywhere, and is not: {value!r}")
    if (key == "std" and not (numbers > 0).all()) or (key == "factor" and numbers == 0):
        rule = "is other than 0" if key == "factor" else "is above 0 everywhere: 1 leaves values as they are"
        raise OptionError(f"Field({name!r}): {key!r} of normalize= {rule}, not {value!r}")
    return _tuples(numbers.tolist())


def _tuples(value: Any) -> NestedFloats:
    """Return nested lists as nested tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
