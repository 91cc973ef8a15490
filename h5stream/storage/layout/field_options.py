"""Values of options of `Field`: `Take`, columns, lookups and formats, and options under their former names."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import reprlib
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from fractions import Fraction
from types import EllipsisType
from typing import Any, Literal

import numpy as np

from h5stream.base.names import braces_in
from h5stream.base.texts import check_ordered, names_in
from h5stream.errors import OptionError
from h5stream.samples.boxes import ROWS
from h5stream.samples.kinds import Pad, checked_pad, checked_steps, integer
from h5stream.samples.ragged import STACKED, Form, Ragged
from h5stream.samples.segments import RowLists, Stretches, as_array, in_memory, row_lists
from h5stream.samples.space import fraction_of
from h5stream.samples.table import ROW
from h5stream.storage.decode.columns import ColumnNames, Columns, Mask
from h5stream.storage.decode.images import FORMATS
from h5stream.storage.layout.sources import is_array

TAKE_OPTIONS = ("steps", "at", "axis", "scale", "pad")

WAY_OUTS = {
    "steps": "write take=STEPS, or take=Take(STEPS, ...)",
    **{name: f"write take=Take({name}=...)" for name in ("at", "pad", "axis", "scale")},
    **{name: f"write normalize={{{name!r}: ...}}" for name in ("mean", "std", "factor", "nan")},
    "normalise": "write normalize=...",
    "members": "write columns=[NAMES]",
    "repeat": "write take='all'",
    "rows": "write lookup=...",
    "names": "write lookup=...",
    "max_length": "write ragged=Ragged(FORM, crop=Crop(ROWS, at='start'))",
    "crop": "write ragged=Ragged(FORM, crop=Crop(...))",
    "pad_value": "write ragged=Ragged('pad', pad_value=...)",
    "length": "write decode=(FORMAT, LENGTH)",
}
"""What to write in place of arguments that `Field` had up to 0.3."""


def _scales(scale: object) -> tuple[Fraction, ...]:
    """Return scales as fractions."""
    if scale is None:
        return ()
    check_ordered("Take: scale=", scale)
    try:
        every = tuple(scale) if isinstance(scale, Iterable) else (scale,)
        scales = tuple(fraction_of(value) for value in every)
    except (TypeError, ValueError, OverflowError):
        scales = ()
    if not scales or min(scales) <= 0:
        raise OptionError(f"Take: scale= is a number above 0, or one for each axis of a box, not {scale!r}")
    return scales


@dataclass(frozen=True, slots=True)
class Take:
    """The part of a dataset that a sample takes, if it differs from ``samples=``.

    Parameters
    ----------
    steps : range or sequence of int, optional
        For ``samples=Sequences(...)`` or ``Table(...)``: the rows to take, counted from the row at which a sample
        begins. The field then has one more axis, that of the steps.
    at : str, optional, keyword-only
        For ``samples=Table(...)``: the column with the row that `steps` count from, instead of ``"row"``.
    axis : int or "rows", optional, keyword-only
        The axis of this dataset that samples lie along, if it is not the one of ``samples=``. ``"rows"`` takes the
        whole row of axis 0 that a sample belongs to, for example the parameters of a simulation.
    scale : number, fraction, or one for each axis of a box, optional, keyword-only
        Elements of this dataset per element of the other fields: 0.5 for a label of half the resolution, 1 / 3000 for a
        label every 30 seconds beside a recording of 100 values per second. Fractions and whole numbers are exact. A
        float stands for the ratio of small whole numbers that it is the nearest float to, as 1 / 3000 and 0.1 are, or,
        if there is none, for its own value.
    pad : str or number, optional, keyword-only
        What fills steps or boxes outside of the data, if it is not what ``samples=`` says, which must have a ``pad=``
        too: ``"edge"``, ``"zeros"`` or a number, for example ``"edge"`` for an image, -100 for its label.

    Raises
    ------
    OptionError
        If an argument is none of these.

    Examples
    --------
    >>> Take(range(-1, 3), pad="edge").steps
    (-1, 0, 1, 2)
    """

    steps: Any = None
    _: dataclasses.KW_ONLY
    at: str = ""
    axis: int | Literal["rows"] | None = None
    scale: Any = None
    pad: Pad = None

    def __post_init__(self) -> None:
        checked = {
            "steps": None if self.steps is None else checked_steps(self.steps),
            "at": "" if self.at == ROW else self.at,
            "axis": self.axis if self.axis is None or self.axis == ROWS else integer(self.axis, "axis"),
            "scale": _scales(self.scale),
            "pad": checked_pad("Take", self.pad),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


AS_SAMPLES = Take()
"""Takes what ``samples=`` says: the default."""


def checked_lookup(name: str, lookup: Any) -> Any:
    """Check `lookup`, and return it in its normal form."""
    if lookup is None or (isinstance(lookup, str) and not braces_in(name)):
        return lookup
    values = lookup.names[0] if in_memory(lookup) else lookup
    if isinstance(values, Sized) and getattr(values, "ndim", None) != 0 and not len(values):
        rule = (
            "lookup= is empty and so names no sample, and there is nothing to read: leave this field, or this dataset"
        )
        raise OptionError(f"Field({name!r}): {rule}, out")
    is_named, why, itself = braces_in(name) > 0, "", r"; \{} is a {} of the name itself"
    if callable(lookup) or isinstance(lookup, Stretches):
        if is_named:
            what = "a function as" if callable(lookup) else f"{type(lookup).__name__}(...) as"
            why = f"{what} lookup= gives rows of one dataset, and {{}} takes names{itself}"
    elif is_named:
        lookup = lookup if isinstance(lookup, str) else [*names_in(f"Field({name!r}): lookup=", lookup)]
        wrong = [one for one in lookup if not isinstance(one, str) or not one]
        if wrong:
            why = f"lookup= takes a name for each sample, or a dataset of them, not {wrong[0]!r}: {{}} takes names"
            why += itself
    elif (lists := row_lists(lookup, f"Field({name!r})")) is not None:
        return lists
    else:
        lookup = as_array(lookup)
        if lookup.ndim != 1 or (lookup.size and lookup.dtype.kind not in "iu"):
            why = "lookup= takes a dataset's name, or one row number for each sample, or a list of them, not "
            why += f"{lookup.dtype} {lookup.shape}. "
            why += "Names of objects need {} in the field's name: 'images/{}'"
        else:
            lookup = lookup.astype(np.int64)
    if why:
        raise OptionError(f"Field({name!r}): {why}")
    return lookup


def ragged_by_default(lookup: object) -> Form | Literal["stacked"] | None:
    """Return the default form of the rows that `lookup` gives a sample; None if a sample is one row."""
    if isinstance(lookup, RowLists):
        return STACKED if lookup.are_even else "packed"
    return "packed" if isinstance(lookup, Stretches) else None


def checked_format(name: str, decode: object, length: str, ragged: str | Ragged | None) -> str:
    """Return the format of images; raise if it is unknown, or does not go with `ragged`."""
    if decode and decode not in FORMATS:
        raise OptionError(f"Field({name!r}): decode= is {', '.join(map(repr, FORMATS))}, not {decode!r}")
    if length and not decode:
        raise OptionError(f"Field({name!r}): decode= is a format, or (format, {length!r}), where that says how long")
    if decode and isinstance(ragged, str) and ragged != "list":
        raise OptionError(f"Field({name!r}, decode={decode!r}): ragged= is 'list' for images, not {ragged!r}")
    return str(decode)


def not_ragged(name: str) -> OptionError:
    """Return the error for ragged options of other fields."""
    kinds = "which lookup=Bounds(...), Lengths(...), Between(...) or lists of rows say, for whole objects, "
    kinds += "samples=Objects(...), and"
    kinds = f"samples of unlike lengths, {kinds} for numbers of variable length"
    return OptionError(f"Field({name!r}): ragged= is for {kinds}")


BY_NAME, BY_PLACE = "by name", "by place"


def parsed_columns(columns: object) -> Columns:
    """Parse the argument `columns` of `Field`."""
    if isinstance(columns, str) and columns in (BY_NAME, BY_PLACE):
        return ColumnNames(by_place=columns == BY_PLACE)
    if not isinstance(columns, (str, bytes, tuple, slice, dict)) and (names := _column_names(columns)):
        if len(set(names)) < len(names):
            raise OptionError(f"columns= names a column twice, of {reprlib.repr(names)}; name each once")
        return ColumnNames(names)
    if not isinstance(columns, tuple):
        return columns if columns is None else _axis_index(columns)
    if columns and all(isinstance(index, (int, np.integer)) for index in columns):
        numbers = ", ".join(map(str, columns))
        meanings = f"columns=[{numbers}] takes these columns, and columns=({numbers}, ...) what x[i, {numbers}] is"
        raise OptionError(f"columns={columns!r} is a tuple of numbers, which may mean two things: {meanings}")
    return tuple(_axis_index(index, is_one=True) for index in columns)


def columns_argument(columns: Columns) -> object:
    """Return columns in the form of the argument."""
    if not isinstance(columns, ColumnNames):
        return columns
    return BY_PLACE if columns.by_place else [*columns.names] or BY_NAME


def _column_names(columns: Any) -> tuple[str, ...]:
    """Return the names in a list of column names; nothing for numbers or anything else."""
    if not isinstance(columns, Iterable) and not is_array(columns):
        return ()
    check_ordered("columns=", columns)
    if isinstance(columns, Iterator):
        return ()
    names = names_in("columns=", columns) if np.ndim(columns) == 1 or not is_array(columns) else ()
    if (
        wrong := [one for one in names if not isinstance(one, str)]
        if any(isinstance(one, str) for one in names)
        else []
    ):
        raise OptionError(f"columns= takes names alone, or numbers alone, not {wrong[0]!r} among names")
    return () if names and not isinstance(names[0], str) else names


def _axis_index(index: Any, *, is_one: bool = False) -> Any:
    """Parse an index of one axis: a slice, numbers, a mask, or if it `is_one` of several axes, a single number."""
    check_ordered("columns=", index)
    if isinstance(index, (slice, EllipsisType)):
        return index
    with contextlib.suppress(ValueError, TypeError):  # rows of different lengths, or no numbers
        flat = np.asarray(index)
        if flat.dtype == bool and flat.ndim == 1 and len(flat):
            return Mask(flat)
        if is_one and flat.ndim == 0 and flat.dtype != bool:
            return operator.index(index)
        if not any(isinstance(one, (bool, np.bool_)) for one in index):
            return [operator.index(one) for one in index]
    rule = (
        "one column is [3], or (3, ...) without its axis, and a tuple has an index for each axis of a row. A list of "
    )
    rule += "texts names columns; 'by name' lines those of several files up, and 'by place' takes them as they are"
    raise OptionError(f"columns= takes a slice or column numbers, not {reprlib.repr(index)}; {rule}")


# Open h5py objects are accepted as well, in place of their names; h5py has no types to annotate that.


def is_given(value: object) -> bool:
    """Return whether an option has a value other than its default."""
    return value is not None and value is not False and not (isinstance(value, (str, tuple)) and not value)
