"""Rows become blocks: runs of consecutive rows that are read together."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.order.places import Places, is_ascending, new_array, pieces, place_dtype

_MAX_BLOCKS = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks of a sequence of rows, in file order.

    Attributes
    ----------
    edges : ndarray of int64, shape (blocks + 1,)
        Block ``k`` holds the places ``edges[k]`` to ``edges[k + 1]`` of the selected rows; none is empty.
    rows : ndarray of int or None
        The selected rows, ascending, or as the user lists them for an epoch that is not shuffled; a row that is
        selected several times has several places. None where all rows are selected, and a row is its place.
    lengths : ndarray of int64 or None
        The length of each place, where batches are cut by it: the rows that the sample has of a ragged field.
    strata : ndarray of int64 or None
        The source of each block, where each is to have its share of every window.
    first, every : ndarray of int64 or None
        Where blocks are *turns* of others: each holds places from its first one on, so many apart, and the edges say
        only how many.
    """

    edges: NDArray[np.int64]
    rows: Places | None = None
    lengths: NDArray[np.int64] | None = None
    strata: NDArray[np.int64] | None = None
    first: NDArray[np.int64] | None = None
    every: NDArray[np.int64] | None = None
    _largest: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        if self.rows is not None:  # in an order of the user's own it may be any of them
            object.__setattr__(self, "_largest", int(self.rows.max(initial=0)))

    @property
    def count(self) -> int:
        """How many blocks."""
        return len(self.edges) - 1

    @property
    def total_rows(self) -> int:
        """How many rows they hold together."""
        return int(self.edges[-1])

    def rows_at(self, places: Places) -> Places:
        """Look up the rows at places of the selection.

        Parameters
        ----------
        places : ndarray of int
            Places, each from 0 to less than `total_rows`.

        Returns
        -------
        ndarray of int
            The row of the files at each of them.
        """
        if self.rows is None:
            return places
        rows = new_array(len(places), place_dtype(self._largest + 1))
        for piece in pieces(len(places)):
            rows[piece] = self.rows[places[piece]]
        return rows


Stretch = tuple[NDArray[np.int64], Places | None]
"""Consecutive blocks, to be sent elsewhere: their edges among all, and their rows; None where these are all between."""


def stretches(blocks: Blocks, count: int) -> list[Stretch]:
    """Cut blocks into so many stretches, or fewer, of about as many rows each."""
    ends = np.searchsorted(blocks.edges, blocks.total_rows * np.arange(1, count) // count)
    cuts = np.unique([0, *ends, blocks.count]).tolist()
    edges = [blocks.edges[first : last + 1] for first, last in itertools.pairwise(cuts)]
    return [(each, None if blocks.rows is None else blocks.rows[each[0] : each[-1]]) for each in edges]


def blocks_in(stretch: Stretch) -> Blocks:
    """Return the blocks of a stretch."""
    edges, rows = stretch
    if rows is None and edges[0]:
        rows = np.arange(edges[0], edges[-1])
    return Blocks(edges=edges - edges[0], rows=rows)


def make_blocks(
    file_starts: tuple[int, ...], block_rows: tuple[int, ...], rows: NDArray[np.int64] | None = None
) -> Blocks:
    """Cut each file's rows into blocks; a block never crosses from one file into the next."""
    spans = list(zip(file_starts[:-1], file_starts[1:], block_rows, strict=True))
    count = sum(-(-(stop - start) // size) for start, stop, size in spans)
    if count > _MAX_BLOCKS:
        raise OptionError(
            f"the rows make {count:,} blocks, more than {_MAX_BLOCKS:,}: take some by rows=, or store larger chunks"
        )
    starts = [np.arange(start, stop, size, dtype=np.int64) for start, stop, size in spans]
    edges = np.append(np.concatenate(starts), file_starts[-1])
    return Blocks(edges=edges if rows is None else np.unique(np.searchsorted(rows, edges)), rows=rows)


def blocks_by(
    keys: NDArray[np.int64], rows: NDArray[np.int64] | None = None, begins: NDArray[np.int64] | None = None
) -> Blocks:
    """Make blocks of rows, or of samples, that have one key: the chunk that each of them begins in or looks up."""
    begins = keys if begins is None else begins
    if not is_ascending(begins):
        by_key = np.argsort(begins, kind="stable")
        keys, rows = keys[by_key], by_key if rows is None else rows[by_key]
    edges = np.flatnonzero(np.diff(keys)) + 1
    return Blocks(edges=np.concatenate([[0], edges, [len(keys)]]), rows=rows)


def block_numbers(
    file_starts: tuple[int, ...], block_rows: tuple[int, ...], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of the block that each of some rows lies in; see `make_blocks`."""
    starts, sizes = np.array(file_starts[:-1]), np.array(block_rows)
    counts = -(-np.diff(file_starts) // sizes)
    file = np.searchsorted(starts, rows, side="right") - 1
    numbers: NDArray[np.int64] = (np.cumsum(counts) - counts)[file] + (rows - starts[file]) // sizes[file]
    return numbers


def listed_blocks(rows: NDArray[np.int64], block_rows: int) -> Blocks:
    """Cut rows in an order of the user's into stretches: what an epoch that is not shuffled goes through."""
    return Blocks(edges=np.append(np.arange(0, len(rows), block_rows, dtype=np.int64), len(rows)), rows=rows)


def select_rows(selection: Any, total: int) -> NDArray[np.int64] | None:
    """Turn indices or a boolean mask into ascending row numbers."""
    if selection is None:
        return None
    rows = row_numbers(selection, total)
    if not is_ascending(rows):
        rows.sort()
    for piece in pieces(len(rows) - 1):
        after = rows[piece.start + 1 : piece.stop + 1]
        if len(twice := after[after == rows[piece]]):
            raise OptionError(
                f"the selection names row {twice[0]} more than once; only a torch.utils.data.Subset may repeat rows"
            )
    return rows


def numbers(index: Any, count: int, *, axis: int) -> NDArray[np.int64]:
    """Return the numbers that a slice, a list, an array or a mask names along an axis of `count` places; unchecked.

    Examples
    --------
    >>> numbers(slice(None, None, -2), 5, axis=0).tolist(), numbers([True, False, True], 3, axis=0).tolist()
    ([4, 2, 0], [0, 2])
    """
    what = "rows are" if axis == 0 else f"places on axis {axis} are"
    if isinstance(index, slice):
        return np.arange(*index.indices(count), dtype=np.int64)
    try:
        chosen = np.asarray(index)
    except ValueError as error:
        raise OptionError(f"{what} named by integers, a slice or a mask, not {index!r}: {error}") from None
    if chosen.dtype == bool:
        if chosen.shape != (count,):
            unit = "a row" if axis == 0 else f"a place on axis {axis}"
            raise OptionError(
                f"a mask needs one value {unit}: {count:,} {'rows' if axis == 0 else 'places'}, shape {chosen.shape}"
            )
        return np.flatnonzero(chosen)
    if not np.issubdtype(chosen.dtype, np.integer) and chosen.shape != (0,):
        raise OptionError(
            f"{what} named by integers, a slice or a mask, not {chosen.dtype if chosen.ndim else repr(index)}"
        )
    if chosen.ndim != 1:
        raise OptionError(
            f"{what} named by integers, a slice, a mask or one list, not an array of shape {chosen.shape}; reshape(-1)"
        )
    return chosen.astype(np.int64)


def row_numbers(selection: Any, total: int) -> NDArray[np.int64]:
    """Turn indices, a slice or a boolean mask into row numbers in the order given, as often as they are named."""
    chosen: Any = selection if isinstance(selection, slice) else np.asarray(selection)
    is_list = not isinstance(selection, slice) and chosen.dtype != bool
    rows = numbers(chosen.reshape(-1) if is_list else chosen, total, axis=0)
    if len(rows) == 0:
        raise OptionError("the selection names no rows")
    if rows.min() < -total or rows.max() >= total:
        wrong = rows[(rows < -total) | (rows >= total)]
        raise OptionError(f"the selection names row {wrong[0]}, but there are {total:,} rows, 0 to {total - 1:,}")
    rows[rows < 0] += total
    return rows
