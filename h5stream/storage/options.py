"""Which options of a field go with one another, with which kind of field, and with which samples: two tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from h5stream.errors import OptionError
from h5stream.samples.objects import Objects, Rows
from h5stream.samples.stretches import ARRAYS
from h5stream.samples.table import Table

if TYPE_CHECKING:
    from h5stream.storage.fields import Field

_COMMON = ("dtype=", "normalise=")

SPARSE = "rows of a sparse matrix"
VALUES = "values of variable length with ragged="
IMAGES = "encoded images"
OF_OBJECTS = "whole objects with ragged="
ONCE = "what is there once, an attribute or a single value"

TAKEN: dict[str, tuple[str, ...]] = {
    SPARSE: (*_COMMON, "columns=", "ragged="),
    VALUES: (*_COMMON, "ragged=", "Ragged(crop=)", "Ragged(pad_value=)"),
    IMAGES: ("normalise=", "decode=", "ragged=", "file=", "lookup="),
    OF_OBJECTS: (*_COMMON, "columns=", "members=", "ragged=", "Ragged(crop=)", "Ragged(pad_value=)"),
    ONCE: (*_COMMON, "take='all'"),
}
"""By kind of field, the options that it takes; all others are refused."""

_OF_ONE_ROW = (SPARSE, VALUES, IMAGES)
"""Kinds of which a sample takes one row, and never several."""

_PLACED = ("Take(steps=)", "Take(at=)", "Take(axis=)", "Take(scale=)", "Take(pad=)")
"""What `Take` has."""

CLASHES: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        ("decode=",),
        ("columns=", "members=", "Take(steps=)", "take='all'", "dtype="),
        "Field({0.name!r}, decode={0.decode!r}) takes whole images as they are, without columns=, members=, take= "
        "and dtype=",
    ),
    (
        ("lookup=",),
        ("take='all'", *_PLACED),
        "Field({0.name!r}): lookup= looks something up for each sample, without take=",
    ),
    (
        ("take='all'",),
        ("columns=", "members="),
        "Field({0.name!r}): take='all' takes the whole dataset, without columns= and members=",
    ),
    (
        (ARRAYS,),
        ("lookup=", "take='all'", "Ragged(crop=)", "a part of an axis", *_PLACED),
        "Field({0.name!r}, ragged='arrays') takes whole arrays, or one place of some axes, columns=(0, ...), without "
        "lookup=, a crop and take=",
    ),
)
"""Options, those that do not go with any of them, and the words in which that is said."""


def given_to(field: Field) -> set[str]:
    """Return which options a field was given."""
    ragged, take = field.ragged, field.take
    given = {
        "columns=": field.columns,
        "members=": field.members,
        "dtype=": field.dtype,
        "take='all'": field.repeat,
        "Take(steps=)": take.steps,
        "Take(at=)": take.at,
        "Take(axis=)": take.axis,
        "Take(scale=)": take.scale,
        "Take(pad=)": take.pad,
        "file=": field.file,
        "lookup=": field.rows is not None or field.names is not None,
        "ragged=": ragged,
        "Ragged(crop=)": ragged and ragged.crop,
        "Ragged(pad_value=)": ragged is not None and ragged.pad_value != 0,
        "decode=": field.decode,
        "normalise=": field.normalise,
    }
    return {name for name, value in given.items() if _is_given(value)}


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and not (isinstance(value, (str, tuple)) and not value)


def check_together(field: Field) -> None:
    """Refuse options of one field that do not go together."""
    taken = field.columns if isinstance(field.columns, tuple) else (field.columns,)
    in_part = any(isinstance(one, (slice, list)) for one in taken)
    given = given_to(field)
    given |= {name for name, applies in ((ARRAYS, field.has_own_shape), ("a part of an axis", in_part)) if applies}
    for names, refused, words in CLASHES:
        if not given.isdisjoint(names) and not given.isdisjoint(refused):
            raise OptionError(words.format(field))


def check_options(kind: str, field: Field, samples: Any, path: str) -> None:
    """Refuse options that a kind of field does not take, and samples of several rows of what is one row."""
    wrong = sorted(given_to(field) - set(TAKEN[kind]))
    if wrong:
        raise OptionError(
            f"{path!r}: field {field.name!r}: {', '.join(wrong)} is not for {kind}, which "
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
