"""How many rows an automatic window has: by the data alone, so that whoever streams it again gets the same order."""

from __future__ import annotations

import itertools

from h5stream.errors import OptionError

AUTO_BLOCKS = 1024
"""Blocks of an automatic window, at least: what matters for learning is the number of distinct blocks in it."""

AUTO_BATCHES = 4
"""Batches of an automatic window, at least."""

AUTO_NBYTES = 256 * 1024 * 1024
AUTO_ROWS = 1024 * 1024
"""An automatic window takes this much where its blocks are small. 1,024 blocks of 32 or 128 rows, 3 or 12 % of a
sorted file, left a loss that ten seeds could tell from a full shuffle's (docs/shuffling-results.md)."""

FIRST_BLOCKS = 64
"""Blocks of an epoch's first window, at least; later windows double. At 1 MiB a block it is read in under 0.1 s."""

FIRST_NBYTES = 64 * 1024 * 1024
FIRST_ROWS = 1024 * 1024
"""An epoch's first window is this large where blocks are small: as quickly read, and better mixed."""


def wished_rows(window: int | str, *, rows: int, batch_size: int, block_rows: int, row_nbytes: int) -> int:
    """Return the rows of a window as it was asked for, whatever memory there is."""
    if window == "all":
        return rows
    if window == "auto":
        in_bytes = min(AUTO_ROWS, AUTO_NBYTES // max(1, row_nbytes))
        return min(rows, max(AUTO_BATCHES * batch_size, AUTO_BLOCKS * block_rows, in_bytes))
    check_window(window)
    return min(rows, int(window))


def check_window(window: object) -> None:
    """Refuse what is no size of a window."""
    number = isinstance(window, int) and not isinstance(window, bool) and window > 0
    if not number and window not in ("auto", "all"):
        raise OptionError(f"window= takes a positive number of rows, 'auto' or 'all', not {window!r}")


FILE_ORDER_NBYTES = 32 * 1024 * 1024
"""Bytes of a window that is not shuffled, at least: enough tasks to go round, and nothing is gained by more."""

SEAM_SHARE = 4
"""Such a window is this many times as long as the longest chunk that its edges cut, and that is decoded twice so."""


def file_order_rows(*, batch_size: int, block_rows: int, row_nbytes: int, seam_rows: int) -> int:
    """Return the rows of a window of an epoch in file order, which has no say in the order: a few batches."""
    in_bytes = min(FIRST_ROWS, FILE_ORDER_NBYTES // max(1, row_nbytes))
    return max(AUTO_BATCHES * batch_size, block_rows, in_bytes, SEAM_SHARE * seam_rows)


def first_rows(*, batch_size: int, block_rows: int, row_nbytes: int) -> int:
    """Return the rows of an epoch's first window, where windows are not smaller anyway."""
    in_bytes = min(FIRST_ROWS, FIRST_NBYTES // max(1, row_nbytes))
    return max(batch_size, FIRST_BLOCKS * block_rows, in_bytes)


def rows_of_two(*, window_rows: int, first_window_rows: int, rows: int) -> int:
    """Return the rows of two windows that follow one another, at most: of an epoch, and of its end and the next one."""
    sizes: list[int] = []
    left, size = rows, first_window_rows
    while left and sizes[-2:] != [window_rows] * 2:  # once they have grown, what is left are such windows, and a rest
        sizes.append(min(size, left))
        left, size = left - sizes[-1], min(2 * size, window_rows)
    return max(map(sum, itertools.pairwise([*sizes, min(first_window_rows, rows)])), default=rows)
