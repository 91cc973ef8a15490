"""Which bytes of a chunk belong to which bytes of a row: pure arithmetic.

A chunk may hold only some of a row's columns, reach beyond the data, or hold columns that were not asked
for. For every place that a chunk can take across the row this module gives its *segments*: runs of elements
that are neighbours both in the chunk and in the row of the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError

Columns = slice | list[int] | None

_MAX_ROW_ELEMENTS = 1 << 31

_MAX_PIECES = 1 << 16
_MAX_CUT_ELEMENTS = 1 << 28
"""Of a row that is cut along its chunks: each piece is an object, and each element has a place in a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPiece:
    """What the chunks at one place across the row contribute.

    Attributes
    ----------
    number : int
        The chunk's number within its row of chunks.
    row_elements : int
        Elements that one row takes inside the chunk.
    segments : ndarray of int64, shape (n, 3)
        For each run: first element inside the chunk's row, first element inside the batch's row, elements.
    """

    number: int
    row_elements: int
    segments: NDArray[np.int64]


def selected_shape(row_shape: tuple[int, ...], columns: Columns) -> tuple[int, ...]:
    """Return the shape of a row once `columns` of its first axis are taken.

    Raises
    ------
    OptionError
        If the rows have no columns, or a column is not there.

    Examples
    --------
    >>> selected_shape((10, 3), slice(0, 10, 2)), selected_shape((10, 3), [7, 1])
    ((5, 3), (2, 3))
    """
    if columns is None:
        return row_shape
    if not row_shape:
        raise OptionError("columns= needs rows with columns, but this field has one number a row; leave it out")
    return (len(_column_numbers(row_shape[0], columns)), *row_shape[1:])


def _column_numbers(count: int, columns: slice | list[int]) -> NDArray[np.int64]:
    if isinstance(columns, slice):
        return np.arange(count, dtype=np.int64)[columns]
    chosen = np.asarray(columns, dtype=np.int64).reshape(-1)
    wrong = chosen[(chosen < -count) | (chosen >= count)]
    if len(wrong):
        raise OptionError(f"columns={wrong[0]} is not there: the rows have {count} columns, 0 to {count - 1}")
    chosen = chosen % count if count else chosen
    if len(np.unique(chosen)) != len(chosen):
        raise OptionError("columns= names a column twice; name each once and index the batch")
    return chosen


def column_pieces(
    row_shape: tuple[int, ...], chunk_row_shape: tuple[int, ...], columns: Columns = None
) -> tuple[ColumnPiece, ...]:
    """Cut a row along the chunks that cross it.

    Parameters
    ----------
    row_shape : tuple of int
        Shape of a stored row: the dataset's shape without axis 0.
    chunk_row_shape : tuple of int
        The chunk's shape without axis 0.
    columns : slice or list of int, optional
        Columns (axis 1 of the dataset) to take, in that order.

    Returns
    -------
    tuple of ColumnPiece
        One for each place across the row that holds something asked for.

    Examples
    --------
    Rows of 10 numbers in chunks of 8 columns, of which columns 6 to 8 are wanted:

    >>> for piece in column_pieces((10,), (8,), slice(6, 9)):
    ...     print(piece.number, piece.segments.tolist())
    0 [[6, 0, 2]]
    1 [[0, 2, 1]]
    """
    elements = math.prod(row_shape)
    if elements > _MAX_ROW_ELEMENTS:
        raise OptionError(f"a row of {elements} elements is more than a batch can hold; take some of its columns=")
    if elements == 0:
        return ()
    if columns is None and row_shape == chunk_row_shape:
        return (ColumnPiece(number=0, row_elements=elements, segments=np.array([[0, 0, elements]])),)
    pieces = math.prod(-(-n // c) for n, c in zip(row_shape, chunk_row_shape, strict=True))
    if pieces > _MAX_PIECES or elements > _MAX_CUT_ELEMENTS:
        raise OptionError(
            f"a row of {elements:,} elements lies in {pieces:,} chunks, more than the {_MAX_PIECES:,} chunks and "
            f"{_MAX_CUT_ELEMENTS:,} elements that are followed; store the data in chunks that reach further across rows"
        )
    return _cut(row_shape, chunk_row_shape, _places_in_batch_row(row_shape, columns))


def _places_in_batch_row(row_shape: tuple[int, ...], columns: Columns) -> NDArray[np.int64]:
    """Return for each element of the stored row its place in the batch's row, -1 where it is not wanted."""
    if columns is None:
        return np.arange(math.prod(row_shape), dtype=np.int64).reshape(row_shape)
    chosen = _column_numbers(row_shape[0], columns)
    rest = row_shape[1:]
    places = np.full(row_shape, -1, dtype=np.int64)
    places[chosen] = np.arange(len(chosen) * math.prod(rest), dtype=np.int64).reshape(len(chosen), *rest)
    return places


def _cut(
    row_shape: tuple[int, ...], chunk_row_shape: tuple[int, ...], places: NDArray[np.int64]
) -> tuple[ColumnPiece, ...]:
    grid = tuple(-(-n // c) for n, c in zip(row_shape, chunk_row_shape, strict=True))
    pieces = []
    for number in range(math.prod(grid)):
        where = np.unravel_index(number, grid)
        starts = [int(i) * c for i, c in zip(where, chunk_row_shape, strict=True)]
        box = places[tuple(slice(s, s + c) for s, c in zip(starts, chunk_row_shape, strict=True))]
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
    breaks = np.flatnonzero((np.diff(wanted) != 1) | (np.diff(target) != 1)) + 1
    first = np.concatenate([[0], breaks])
    last = np.concatenate([breaks, [len(wanted)]])
    return np.stack([wanted[first], target[first], last - first], axis=1).astype(np.int64)
