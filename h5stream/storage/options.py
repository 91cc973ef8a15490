"""Which options of a field go with which kind of field, and with which samples: one table, and one check of it."""

from __future__ import annotations

from typing import Any

from h5stream.errors import OptionError
from h5stream.samples.objects import Objects, Rows
from h5stream.samples.table import Table
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


def given_to(field: Field) -> dict[str, bool]:
    """Tell of each option of a field whether it was given."""
    ragged = field.ragged
    return {
        "steps": field.steps is not None,
        "at": bool(field.at),
        "pad": field.pad is not None,
        "axis": field.axis is not None,
        "scale": bool(field.scale),
        "columns": field.columns is not None,
        "members": bool(field.members),
        "repeat": field.repeat,
        "file": bool(field.file),
        "rows": field.rows is not None,
        "names": field.names is not None,
        "decode": bool(field.decode),
        "length": bool(field.length),
        "ragged": ragged is not None,
        "crop": ragged is not None and ragged.crop is not None,
        "pad_value": ragged is not None and ragged.pad_value != 0,
        "dtype": field.dtype is not None,
        "mean, std, factor and nan": field.normalise is not None,
    }


def check_options(kind: str, field: Field, samples: Any, path: str) -> None:
    """Refuse options that a kind of field does not take, and samples of several rows of what is one row."""
    wrong = [name for name, is_given in given_to(field).items() if is_given and name not in TAKEN[kind]]
    if wrong:
        raise OptionError(
            f"{path!r}: field {field.name!r}: {', '.join(f'{name}=' for name in wrong)} is not for {kind}, which "
            f"take{'s' if kind == ONCE else ''} {', '.join(TAKEN[kind])}; leave it out, and change the batch in "
            "batch_transform="
        )
    is_one = samples is None or field.is_looked_up or isinstance(samples, (Objects, Rows)) or _is_row_of_table(samples)
    if kind in _OF_ONE_ROW and not is_one:
        raise OptionError(
            f"{path!r}: field {field.name!r}: a sample of {type(samples).__name__}(...) has several rows, and {kind} "
            "come one a sample; samples of one row have them, such as Table(row=...) without length="
        )


def _is_row_of_table(samples: Any) -> bool:
    return isinstance(samples, Table) and samples.length is None and samples.axis is None
