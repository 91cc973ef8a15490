"""The columns that a user selects of rows: their numbers along each axis."""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from h5stream.base.texts import counted
from h5stream.errors import OptionError

_Scalar = TypeVar("_Scalar", bound=np.generic)

Part = slice | int | list[int] | EllipsisType
"""An index of one axis; an integer removes the axis, and ``...`` stands for all axes without an index."""


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Columns selected by name; without names all, in the first file's order, or by position."""

    names: tuple[str, ...] = ()
    by_place: bool = False


Columns = slice | list[int] | tuple[Part, ...] | ColumnNames | None
"""A selection along the first axis of a row, or along several axes."""


class Mask(list[int]):
    """Columns selected by a boolean mask: their numbers, and the mask's length."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        super().__init__(np.flatnonzero(mask).tolist())
        self.of = len(mask)


def selected_shape(row_shape: tuple[int, ...], columns: Columns) -> tuple[int, ...]:
    """Return the shape of a row after selecting `columns`."""
    if columns is None:
        return row_shape
    return tuple(len(numbers) for numbers, stays in axes_taken(row_shape, columns) if stays)


def columns_of(rows: NDArray[_Scalar], columns: Columns, axes: int | None = None) -> NDArray[_Scalar]:
    """Select columns of whole rows; `axes` is the number of a row's axes, if its elements have axes of their own."""
    if columns is None:
        return rows
    inner = rows.shape[rows.ndim if axes is None else 1 + axes :]
    taken = axes_taken(rows.shape[1 : rows.ndim - len(inner)], columns)
    index: tuple[slice | NDArray[np.int64], ...] = (slice(None), *np.ix_(*(numbers for numbers, _ in taken)))
    kept = (len(numbers) for numbers, stays in taken if stays)
    return rows[index].reshape(len(rows), *kept, *inner)


def axes_taken(row_shape: tuple[int, ...], columns: Columns) -> list[tuple[NDArray[np.int64], bool]]:
    """Return the selected indices of each axis of a row, and whether the axis is kept."""
    assert not isinstance(columns, ColumnNames)  # those are numbers by now
    parts: list[Any] = list(columns) if isinstance(columns, tuple) else [columns]
    if not row_shape:
        raise OptionError("columns= needs rows with columns, but this field has one number a row; leave it out")
    named = sum(part is not Ellipsis for part in parts)
    if named > len(row_shape) or len(parts) - named > 1:
        problem = f"names {counted(named, 'axis', 'axes')}, and rows have {len(row_shape)}, of shape {row_shape}"
        raise OptionError(f"columns={columns!r} {problem}; '...' may stand once, for all that are not named")
    rest = [slice(None)] * (len(row_shape) - named)
    at = parts.index(Ellipsis) if len(parts) > named else len(parts)
    every = [*parts[:at], *rest, *parts[at + 1 :]]
    return [
        (_column_numbers(count, [part] if isinstance(part, int) else part), not isinstance(part, int))
        for count, part in zip(row_shape, every, strict=True)
    ]


def _column_numbers(count: int, columns: slice | list[int]) -> NDArray[np.int64]:
    if isinstance(columns, slice):
        return np.arange(count, dtype=np.int64)[columns]
    if isinstance(columns, Mask) and columns.of != count:
        raise OptionError(f"columns= is a mask of {counted(columns.of, 'column')}, and there are {count:,}")
    chosen = np.asarray(columns).reshape(-1)  # dtype object if one is too large for any integer type
    wrong = chosen[(chosen < -count) | (chosen >= count)]
    chosen = chosen[:0] if len(wrong) else chosen.astype(np.int64)
    if len(wrong):
        which = f", 0 to {count - 1}" if count > 1 else ", 0" * count
        raise OptionError(f"columns={wrong[0]} is not there: the rows have {counted(count, 'column')}{which}")
    chosen = chosen % count if count else chosen
    if len(np.unique(chosen)) != len(chosen):
        advice = "name each once and index the batch, or one of each axis: (0, 0, ...)"
        raise OptionError(f"columns= names a column twice; {advice}")
    return chosen
