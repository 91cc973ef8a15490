"""Numbers of rows and places, one for each row of a window: as few bytes as they need, and worked on piece by piece."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels

Places = NDArray[np.signedinteger[Any]]

_MOST_32 = (1 << 31) - 1

MAPPED_NBYTES = 2 * 1024 * 1024
"""Arrays from this size on have memory of their own."""

PIECE = 1 << 18
"""Numbers that are worked on at a time: what is only needed on the way then stays in a core's cache."""


def place_dtype(count: int) -> type[np.int32] | type[np.int64]:
    """Return the type of numbers below `count`."""
    return np.int32 if count <= _MOST_32 else np.int64


def place_nbytes(count: int) -> int:
    """Return the bytes that one number below `count` takes."""
    return np.dtype(place_dtype(count)).itemsize


def pieces(count: int) -> Iterator[slice]:
    """Cut `count` numbers into pieces."""
    for start in range(0, count, PIECE):
        yield slice(start, min(start + PIECE, count))


def new_array(count: int, dtype: Any) -> NDArray[Any]:
    """Return an array of numbers to be filled; a large one goes back to the system the moment it is dropped.

    What the C library allocates it may keep, each thread's share apart: freed plans were still resident while the next
    was made. Source: ``mallopt(3)``, M_MMAP_THRESHOLD, which grows to 32 MiB.
    """
    nbytes = count * np.dtype(dtype).itemsize
    if nbytes < MAPPED_NBYTES:
        return np.empty(count, dtype=dtype)
    return np.frombuffer(mapped(nbytes, "a plan"), dtype=dtype)


def mapped(nbytes: int, what: str) -> mmap.mmap:
    """Map zeroed memory for something, on huge pages where the system has them.

    Source: ``madvise(2)``, MADV_HUGEPAGE.
    """
    # Private: shared pages would be written by a forked child under its parent's eyes, and never be huge.
    try:
        found = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"no memory for {nbytes:,} bytes of {what}: {error}") from error
    if nbytes >= MAPPED_NBYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages: slower, not wrong
            found.madvise(mmap.MADV_HUGEPAGE)
    return found


def in_ranges(begins: NDArray[np.int64], counts: NDArray[np.int64], every: Any = 1, *, dtype: Any) -> Places:
    """Return the numbers of ranges, one behind the other: so many of each from where it begins, and so many apart."""
    numbers: Places = new_array(int(counts.sum()), dtype)
    kernels.in_ranges(begins, counts, np.atleast_1d(np.asarray(every, dtype=np.int64)), numbers)
    return numbers


def is_ascending(numbers: NDArray[Any]) -> bool:
    """Tell whether no number is less than the one before it; of most that are not, the first few say so."""
    some = (slice(0, min(64, len(numbers) - 1)), *pieces(len(numbers) - 1))
    return all(bool((numbers[piece] <= numbers[piece.start + 1 : piece.stop + 1]).all()) for piece in some)


def less(numbers: NDArray[Any], amount: int) -> Places:
    """Return numbers less an amount, in 32 bits where that is enough."""
    _, most = kernels.range_of(numbers)
    result: Places = new_array(len(numbers), place_dtype(most - amount + 1))
    kernels.subtract(numbers, amount, result)
    return result


def narrowed(numbers: NDArray[Any]) -> Places:
    """Return non-negative numbers as 32-bit ones where these are enough; without a copy where they are already."""
    if numbers.dtype == np.int32 or (len(numbers) and int(numbers.max()) >= _MOST_32):
        return numbers
    return numbers.astype(np.int32)


def sought(places: Places, numbers: Any) -> NDArray[np.int64]:
    """Find where numbers would stand among ascending places, as `numpy.searchsorted` does, without widening these."""
    found: NDArray[np.int64] = np.searchsorted(
        places, np.minimum(numbers, np.iinfo(places.dtype).max).astype(places.dtype)
    )
    return found
