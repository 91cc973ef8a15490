"""Map the elements of chunks to the elements of rows: pure arithmetic.

A chunk may hold only some of a row's columns, reach beyond the data, or hold columns that were not selected.
For each position of a chunk across the row this module computes *segments*: runs of elements that are neighbours both
in the chunk and in the row of the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError

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


_MAX_ROW_ELEMENTS = 1 << 31

_MAX_PIECES = 1 << 16
_MAX_CUT_ELEMENTS = 1 << 28
"""Limits of a row that is cut along its chunks: each piece is an object, each element an entry of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPiece:
    """The contribution of the chunks at one position across the row."""

    number: int  # the chunk's number within its row of chunks
    row_elements: int  # elements that one row takes inside the chunk
    # (n, 3), for each run: first element within the chunk's row, first element within the batch's row, elements
    segments: NDArray[np.int64]


def selected_shape(row_shape: tuple[int, ...], columns: Columns) -> tuple[int, ...]:
    """Return the shape of a row after selecting `columns`."""
    if columns is None:
        return row_shape
    return tuple(len(numbers) for numbers, stays in axes_taken(row_shape, columns) if stays)


def columns_of(rows: NDArray[Any], columns: Columns, axes: int | None = None) -> NDArray[Any]:
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
        problem = f"names {named} axes, and rows have {len(row_shape)}, of shape {row_shape}"
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
        raise OptionError(f"columns= is a mask of {columns.of:,} columns, and there are {count:,}")
    chosen = np.asarray(columns).reshape(-1)  # dtype object if one is too large for any integer type
    wrong = chosen[(chosen < -count) | (chosen >= count)]
    chosen = chosen[:0] if len(wrong) else chosen.astype(np.int64)
    if len(wrong):
        raise OptionError(f"columns={wrong[0]} is not there: the rows have {count} columns, 0 to {count - 1}")
    chosen = chosen % count if count else chosen
    if len(np.unique(chosen)) != len(chosen):
        advice = "name each once and index the batch, or one of each axis: (0, 0, ...)"
        raise OptionError(f"columns= names a column twice; {advice}")
    return chosen


def column_pieces(
    row_shape: tuple[int, ...], chunk_row_shape: tuple[int, ...], columns: Columns = None
) -> tuple[ColumnPiece, ...]:
    """Divide a row among the chunks that cross it."""
    elements = math.prod(row_shape)
    if elements > _MAX_ROW_ELEMENTS:
        raise OptionError(f"a row of {elements} elements is more than a batch can hold; take some of its columns=")
    if elements == 0:
        return ()
    if columns is None and row_shape == chunk_row_shape:
        return (ColumnPiece(number=0, row_elements=elements, segments=np.array([[0, 0, elements]])),)
    pieces = math.prod(-(-n // c) for n, c in zip(row_shape, chunk_row_shape, strict=True))
    if pieces > _MAX_PIECES or elements > _MAX_CUT_ELEMENTS:
        most = f"more than the {_MAX_PIECES:,} chunks and {_MAX_CUT_ELEMENTS:,} elements that are followed"
        problem = f"a row of {elements:,} elements lies in {pieces:,} chunks, {most}"
        raise OptionError(f"{problem}; store the data in chunks that reach further across rows")
    if columns is None:
        return _divide(chunk_row_shape, np.arange(elements, dtype=np.int64).reshape(row_shape))
    taken = [numbers for numbers, _ in axes_taken(row_shape, columns)]
    lengths = [len(numbers) for numbers in taken]
    places = np.full(row_shape, -1, dtype=np.int64)  # of each element in the batch's row; -1 if not selected
    places[np.ix_(*taken)] = np.arange(math.prod(lengths)).reshape(lengths)
    return _divide(chunk_row_shape, places)


def _divide(chunk_row_shape: tuple[int, ...], places: NDArray[np.int64]) -> tuple[ColumnPiece, ...]:
    """Divide the places of a row's elements among its chunks, leaving out chunks without a selected element."""
    pieces, grid = [], (-(-n // c) for n, c in zip(places.shape, chunk_row_shape, strict=True))
    for number, where in enumerate(np.ndindex(*grid)):
        box = places[tuple(slice(i * c, (i + 1) * c) for i, c in zip(where, chunk_row_shape, strict=True))]
        if not (box >= 0).any():
            continue
        whole = box
        if box.shape != chunk_row_shape:  # an edge chunk is stored whole; elements beyond the data are not selected
            whole = np.full(chunk_row_shape, -1, dtype=np.int64)
            whole[tuple(slice(0, n) for n in box.shape)] = box
        pieces.append(ColumnPiece(number=number, row_elements=whole.size, segments=_runs(whole.reshape(-1))))
    return tuple(pieces)


def _runs(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the runs of elements that are consecutive both in the chunk and in the row."""
    wanted = np.flatnonzero(places >= 0)
    target = places[wanted]
    first = np.append(0, np.flatnonzero((np.diff(wanted) != 1) | (np.diff(target) != 1)) + 1)
    lengths = np.diff(first, append=len(wanted))
    return np.stack([wanted[first], target[first], lengths], axis=1).astype(np.int64)
