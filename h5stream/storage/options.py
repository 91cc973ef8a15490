"""Which options of a field go with one another, with which kind of field, and with which samples: two tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from h5stream.errors import OptionError
from h5stream.samples.objects import Objects, Rows
from h5stream.samples.stretches import ARRAYS
from h5stream.samples.table import Table

if TYPE_CHECKING:
    from h5stream.storage.fields import Field

_COMMON = ("dtype", "mean, std, factor and nan")

SPARSE = "rows of a sparse matrix"
VALUES = "values of variable length with ragged="
IMAGES = "encoded images"
OF_OBJECTS = "whole objects with ragged="
ONCE = "what is there once, an attribute or a single value"

TAKEN: dict[str, tuple[str, ...]] = {
    SPARSE: (*_COMMON, "columns", "ragged"),
    VALUES: (*_COMMON, "ragged", "crop", "pad_value"),
    IMAGES: ("mean, std, factor and nan", "decode", "length", "ragged", "file", "rows", "names"),
    OF_OBJECTS: (*_COMMON, "columns", "members", "ragged", "crop", "pad_value"),
    ONCE: (*_COMMON, "repeat"),
}
"""By kind of field, the options that it takes; all others are refused."""

_OF_ONE_ROW = (SPARSE, VALUES, IMAGES)
"""Kinds of which a sample takes one row, and never several."""


_PLACED = ("steps", "at", "pad", "axis", "scale")

CLASHES: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        ("decode",),
        ("columns", "members", "steps", "repeat", "dtype"),
        "Field({0.name!r}, decode={0.decode!r}) takes whole images as they are, without columns=, members=, steps=, "
        "repeat= and dtype=",
    ),
    (
        ("rows", "names"),
        ("repeat", *_PLACED),
        "Field({0.name!r}): rows= and names= look something up for each sample, without repeat=, steps=, at=, pad=, "
        "axis=, scale=",
    ),
    (
        ("repeat",),
        (*_PLACED, "columns", "members"),
        "Field({0.name!r}): repeat=True takes the whole dataset, without columns=, members=, steps=, at=, pad=, axis= "
        "and scale=",
    ),
    (("names",), ("rows",), "Field({0.name!r}): names= takes whole objects, without rows="),
    (
        (ARRAYS,),
        ("rows", "names", "repeat", "crop", "a part of an axis", *_PLACED),
        "Field({0.name!r}, ragged='arrays') takes whole arrays, or one place of some axes, columns=(0, ...), without "
        "rows=, names=, repeat=, crop=, max_length=, steps=, at=, pad=, axis= and scale=",
    ),
)
"""Options, those that do not go with any of them, and the words in which that is said."""


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and not (isinstance(value, (str, tuple)) and not value)


def given_to(field: Field) -> dict[str, bool]:
    """Tell of each option of a field whether it was given."""
    names = (*_PLACED, "columns", "members", "repeat", "file", "rows", "names", "decode", "length", "ragged")
    ragged = field.ragged
    return {
        **{name: _is_given(getattr(field, name)) for name in names},
        "crop": ragged is not None and ragged.crop is not None,
        "pad_value": ragged is not None and ragged.pad_value != 0,
        "dtype": field.dtype is not None,
        "mean, std, factor and nan": field.normalise is not None,
    }


def check_together(field: Field) -> None:
    """Refuse options of one field that do not go together."""
    taken = field.columns if isinstance(field.columns, tuple) else (field.columns,)
    in_part = any(isinstance(one, (slice, list)) for one in taken)
    given = {name for name, is_given in given_to(field).items() if is_given}
    given |= {name for name, applies in ((ARRAYS, field.has_own_shape), ("a part of an axis", in_part)) if applies}
    for names, refused, words in CLASHES:
        if not given.isdisjoint(names) and not given.isdisjoint(refused):
            raise OptionError(words.format(field))


def check_options(kind: str, field: Field, samples: Any, path: str) -> None:
    """Refuse options that a kind of field does not take, and samples of several rows of what is one row."""
    wrong = [name for name, is_given in given_to(field).items() if is_given and name not in TAKEN[kind]]
    if wrong:
        raise OptionError(
            f"{path!r}: field {field.name!r}: {', '.join(f'{name}=' for name in wrong)} is not for {kind}, which "
            f"take{'s' if kind == ONCE else ''} {', '.join(TAKEN[kind])}; leave it out, and change the batch in "
            "batch_transform="
        )
    is_one = samples is None or field.is_looked_up or isinstance(samples, (Objects, Rows))
    is_one = is_one or (isinstance(samples, Table) and samples.length is None and samples.axis is None)
    if kind in _OF_ONE_ROW and not is_one:
        raise OptionError(
            f"{path!r}: field {field.name!r}: a sample of {type(samples).__name__}(...) has several rows, and {kind} "
            "come one a sample; samples of one row have them, such as Table(row=...) without length="
        )
