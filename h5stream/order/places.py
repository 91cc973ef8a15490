"""Arrays of row numbers and places, one entry per row of a window: in the smallest type, processed piece by piece.

Permutations stay the same in every release of NumPy. It promises that the raw stream of a bit generator and
``SeedSequence`` never change, but not what ``Generator.permutation`` makes of them. A checkpoint from last year must
still name the same rows, so only the ``SeedSequence`` is used here, and the random numbers and the shuffle are our own
(``h5stream/compiled/order.h``).
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from h5stream.compiled import _native as kernels

Places = NDArray[np.signedinteger]

_MOST_32 = (1 << 31) - 1

MAPPED_NBYTES = 2 * 1024 * 1024
"""Arrays of at least this size get their own memory mapping."""

PIECE = 1 << 18
"""Numbers that are processed at a time, so that temporaries stay in a core's cache."""


def place_dtype(count: int) -> type[np.int32] | type[np.int64]:
    """Return the smallest signed type for numbers below `count`."""
    return np.int32 if count <= _MOST_32 else np.int64


def place_nbytes(count: int) -> int:
    """Return the size in bytes of a number below `count`."""
    return np.dtype(place_dtype(count)).itemsize


def pieces(count: int) -> Iterator[slice]:
    """Yield slices that cut `count` numbers into pieces."""
    for start in range(0, count, PIECE):
        yield slice(start, min(start + PIECE, count))


def new_array(count: int, dtype: DTypeLike) -> np.ndarray:
    """Return an uninitialized array; a large one returns to the system as soon as it is released.

    The C library may keep freed memory, separately for each thread: freed plans were still resident while the next was
    made. Source: ``mallopt(3)``, M_MMAP_THRESHOLD, which grows to 32 MiB.
    """
    nbytes = count * np.dtype(dtype).itemsize
    if nbytes < MAPPED_NBYTES:
        return np.empty(count, dtype=dtype)
    return np.frombuffer(mapped(nbytes, "a plan"), dtype=dtype)


def mapped(nbytes: int, what: str) -> mmap.mmap:
    """Map zeroed memory, on huge pages if the system has them; `what` names its purpose in errors.

    Source: ``madvise(2)``, MADV_HUGEPAGE.
    """
    # Private: a forked child would write into its parent's shared pages, and these are never huge.
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"no memory for {nbytes:,} bytes of {what}: {error}") from error
    if nbytes >= MAPPED_NBYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages: slower, not wrong
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def in_ranges(
    begins: NDArray[np.int64], counts: NDArray[np.int64], every: ArrayLike = 1, *, dtype: DTypeLike
) -> Places:
    """Return the numbers of several ranges, concatenated: `counts` numbers from `begins` on, `every` apart."""
    numbers: Places = new_array(int(counts.sum()), dtype)
    kernels.in_ranges(begins, counts, np.atleast_1d(np.asarray(every, dtype=np.int64)), numbers)
    return numbers


def is_ascending(numbers: NDArray[np.number]) -> bool:
    """Return whether no number is less than the one before it; checks the first few first."""
    for piece in (slice(0, min(64, len(numbers) - 1)), *pieces(len(numbers) - 1)):
        if not (numbers[piece] <= numbers[piece.start + 1 : piece.stop + 1]).all():
            return False
    return True


def less(numbers: Places, amount: int) -> Places:
    """Return numbers minus an amount, in 32 bits if that is enough."""
    _, most = kernels.range_of(numbers)
    result: Places = new_array(len(numbers), place_dtype(most - amount + 1))
    kernels.subtract(numbers, amount, result)
    return result


def narrowed(numbers: Places) -> Places:
    """Return non-negative numbers in 32 bits if these are enough, without copying what already is."""
    if numbers.dtype == np.int32 or (len(numbers) and int(numbers.max()) >= _MOST_32):
        return numbers
    return numbers.astype(np.int32)


def sought(places: Places, numbers: ArrayLike) -> NDArray[np.int64]:
    """Find insertion points in ascending places, as `numpy.searchsorted` does, without widening the places."""
    points: NDArray[np.int64] = np.searchsorted(
        places, np.minimum(numbers, np.iinfo(places.dtype).max).astype(places.dtype)
    )
    return points


# --- permutations

VERSION = 2
"""Version of the permutations: a state of another version cannot resume inside an epoch. 1 sorted random keys."""

BUCKET = 1 << 20
"""Numbers that are shuffled in one go, at most about: 4 MiB, most of which fits into a processor's caches. It is part
of the definition: another number makes another permutation."""

BLOCKS, ROWS, DRAWS, BATCHES, CROPS, SAMPLES, LOOKUPS = 1, 2, 3, 4, 5, 6, 7
"""The purpose of random numbers; keeps the streams of one (seed, epoch) apart."""
SPLITS = 15
"""The stream of splits, which have no epoch."""


def permutation(count: int, *key: int) -> Places:
    """Permute ``0 .. count - 1`` as a function of `key` alone."""
    permuted = new_array(count, place_dtype(count))
    buckets = 1 << (-(-count // BUCKET) - 1).bit_length() if count else 1
    kernels.shuffled_into(permuted, np.zeros(buckets + 1, dtype=np.int64), seed_of(key).generate_state(4, np.uint64))
    return permuted


def seed_of(key: tuple[int, ...]) -> np.random.SeedSequence:
    """Make a seed from all bits of the key, with separate words for each of its numbers.

    A number of 33 bits or more would become two words, and (2**32, 0) the same as (0, 1); the upper words
    therefore follow all the lower ones.
    """
    lower, upper = [], []
    for number in key:
        lower.append(number & 0xFFFFFFFF)
        upper.append(number >> 32)
    return np.random.SeedSequence(lower, spawn_key=upper if any(upper) else ())
