"""Which bytes of a chunk belong to which bytes of a row: pure arithmetic.

A chunk may hold only some of a row's columns, reach beyond the data, or hold columns that were not asked
for. For every place that a chunk can take across the row this module gives its *segments*: runs of elements
that are neighbours both in the chunk and in the row of the batch.
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
"""What is taken of one axis; an integer takes the axis away, and ``...`` stands for all axes that are not named."""


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Columns that a user names; without names all, in the order of the first file, or by their places."""

    names: tuple[str, ...] = ()
    by_place: bool = False


Columns = slice | list[int] | tuple[Part, ...] | ColumnNames | None
"""Of the first axis of a row, or for several axes of it."""


class Mask(list[int]):
    """Columns that a mask names: their numbers, and how many columns it is of."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        super().__init__(np.flatnonzero(mask).tolist())
        self.of = len(mask)


_MAX_ROW_ELEMENTS = 1 << 31

_MAX_PIECES = 1 << 16
_MAX_CUT_ELEMENTS = 1 << 28
"""Of a row that is cut along its chunks: each piece is an object, and each element has a place in a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPiece:
    """What the chunks at one place across the row contribute."""

    number: int  # the chunk's number within its row of chunks
    row_elements: int  # elements that one row takes inside the chunk
    # (n, 3): for each run: first element inside the chunk's row, first element inside the batch's row, elements
    segments: NDArray[np.int64]


def selected_shape(row_shape: tuple[int, ...], columns: Columns) -> tuple[int, ...]:
    """Return the shape of a row once `columns` of it are taken."""
    if columns is None:
        return row_shape
    return tuple(len(numbers) for numbers, stays in axes_taken(row_shape, columns) if stays)


def columns_of(rows: NDArray[Any], columns: Columns, axes: int | None = None) -> NDArray[Any]:
    """Take the columns of rows that are there whole; `axes` are those of a row, if elements have more behind these."""
    if columns is None:
        return rows
    inner = rows.shape[rows.ndim if axes is None else 1 + axes :]
    taken = axes_taken(rows.shape[1 : rows.ndim - len(inner)], columns)
    chosen: Any = (slice(None), *np.ix_(*(numbers for numbers, _ in taken)))
    found: NDArray[Any] = rows[chosen].reshape(len(rows), *(len(numbers) for numbers, stays in taken if stays), *inner)
    return found


def axes_taken(row_shape: tuple[int, ...], columns: Columns) -> list[tuple[NDArray[np.int64], bool]]:
    """Return for each axis of a row which of it is taken, and whether the axis stays."""
    assert not isinstance(columns, ColumnNames)  # those are numbers by now
    parts: list[Any] = list(columns) if isinstance(columns, tuple) else [columns]
    if not row_shape:
        raise OptionError("columns= needs rows with columns, but this field has one number a row; leave it out")
    named = sum(part is not Ellipsis for part in parts)
    if named > len(row_shape) or len(parts) - named > 1:
        said = f"names {named} axes, and rows have {len(row_shape)}, of shape {row_shape}"
        raise OptionError(f"columns={columns!r} {said}; '...' may stand once, for all that are not named")
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
    chosen = np.asarray(columns).reshape(-1)  # of objects if one is too large for any type of numbers
    wrong = chosen[(chosen < -count) | (chosen >= count)]
    chosen = chosen[:0] if len(wrong) else chosen.astype(np.int64)
    if len(wrong):
        raise OptionError(f"columns={wrong[0]} is not there: the rows have {count} columns, 0 to {count - 1}")
    chosen = chosen % count if count else chosen
    if len(np.unique(chosen)) != len(chosen):
        said = "name each once and index the batch, or one of each axis: (0, 0, ...)"
        raise OptionError(f"columns= names a column twice; {said}")
    return chosen


def column_pieces(
    row_shape: tuple[int, ...], chunk_row_shape: tuple[int, ...], columns: Columns = None
) -> tuple[ColumnPiece, ...]:
    """Cut a row along the chunks that cross it."""
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
        said = f"a row of {elements:,} elements lies in {pieces:,} chunks, {most}"
        raise OptionError(f"{said}; store the data in chunks that reach further across rows")
    if columns is None:
        return _cut(chunk_row_shape, np.arange(elements, dtype=np.int64).reshape(row_shape))
    taken = [numbers for numbers, _ in axes_taken(row_shape, columns)]
    lengths = [len(numbers) for numbers in taken]
    places = np.full(row_shape, -1, dtype=np.int64)  # of each element in the batch's row; -1 where it is not wanted
    places[np.ix_(*taken)] = np.arange(math.prod(lengths)).reshape(lengths)
    return _cut(chunk_row_shape, places)


def _cut(chunk_row_shape: tuple[int, ...], places: NDArray[np.int64]) -> tuple[ColumnPiece, ...]:
    """Cut the places of a row's elements along its chunks; those without any that is wanted are left out."""
    pieces, grid = [], (-(-n // c) for n, c in zip(places.shape, chunk_row_shape, strict=True))
    for number, where in enumerate(np.ndindex(*grid)):
        box = places[tuple(slice(i * c, (i + 1) * c) for i, c in zip(where, chunk_row_shape, strict=True))]
        if not (box >= 0).any():
            continue
        whole = box
        if box.shape != chunk_row_shape:  # an edge chunk is stored whole; what lies beyond the data is not wanted
            whole = np.full(chunk_row_shape, -1, dtype=np.int64)
            whole[tuple(slice(0, n) for n in box.shape)] = box
        pieces.append(ColumnPiece(number=number, row_elements=whole.size, segments=_runs(whole.reshape(-1))))
    return tuple(pieces)


def _runs(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Collect runs in which both sides go up by one."""
    wanted = np.flatnonzero(places >= 0)
    target = places[wanted]
    first = np.append(0, np.flatnonzero((np.diff(wanted) != 1) | (np.diff(target) != 1)) + 1)
    lengths = np.diff(first, append=len(wanted))
    return np.stack([wanted[first], target[first], lengths], axis=1).astype(np.int64)
