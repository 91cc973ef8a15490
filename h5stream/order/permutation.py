"""Permutations that stay the same in every release of NumPy.

NumPy promises that the raw stream of a bit generator and ``SeedSequence`` never change, but not what
``Generator.permutation`` makes of them. A checkpoint from last year must still name the same rows, so only the
``SeedSequence`` is used here, and the random numbers and the shuffle are our own (``h5stream/compiled/order.h``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled._native import shuffled_into
from h5stream.order.places import Places, new_array, place_dtype
from h5stream.samples.space import mixed

VERSION = 2
"""Of the permutations: states that name rows by another are of no use inside of an epoch. 1 sorted random keys."""

BUCKET = 1 << 20
"""Numbers that are shuffled in one go, at most about: 4 MiB, of which a processor's caches hold most. Part of what is
given: with another number it would be another permutation."""

BLOCKS, ROWS, DRAWS, BATCHES, CROPS, SAMPLES, LOOKUPS = 1, 2, 3, 4, 5, 6, 7
"""What random numbers are for; keeps the streams of one (seed, epoch) apart."""
SPLITS = 15
"""That of splits, which know of no epoch."""


def fractions(samples: NDArray[np.integer[Any]], epoch: int, seed: int, stream: int = 0) -> NDArray[np.float64]:
    """Return a random fraction for each sample, for a function as ``lookup=`` of a field.

    A fraction depends on what is given here alone, not on the other samples, and so is the same for threads, ranks and
    a run that is resumed.

    Parameters
    ----------
    samples : array of int, shape (samples,)
        Their numbers.
    epoch : int
        The number of the epoch.
    seed : int
        That of the loader.
    stream : int
        Another number gives other fractions, for a function that needs several of each sample.

    Returns
    -------
    array of float64, shape (samples,)
        From 0 to less than 1.

    Examples
    --------
    >>> bool((fractions(np.arange(9), 0, 0)[3:5] == fractions(np.array([3, 4]), 0, 0)).all())
    True
    """
    return fractions_of(np.asarray(samples), seed, epoch, LOOKUPS, stream)


def random_words(count: int, *key: int) -> NDArray[np.uint64]:
    """Give random 64-bit numbers as a function of `key` alone; see `permutation`."""
    words: NDArray[np.uint64] = np.random.Philox(key=_seed(key).generate_state(2, np.uint64)).random_raw(count)
    return words


def fractions_of(numbers: Places, *key: int) -> NDArray[np.float64]:
    """Give each of some numbers a random fraction from 0 to less than 1, as a function of it and of `key` alone."""
    fractions: NDArray[np.float64] = np.multiply(words_of(numbers, *key) >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return fractions


def words_of(numbers: NDArray[np.integer[Any]], *key: int) -> NDArray[np.uint64]:
    """Give each of some numbers random 64 bits, as a function of it and of `key` alone; no two have the same."""
    words = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words += _seed(key).generate_state(1, np.uint64)
    return mixed(words)


def permutation(count: int, *key: int) -> Places:
    """Permute ``0 .. count - 1`` as a function of `key` alone."""
    found = new_array(count, place_dtype(count))
    buckets = 1 << (-(-count // BUCKET) - 1).bit_length() if count else 1
    shuffled_into(found, np.zeros(buckets + 1, dtype=np.int64), _seed(key).generate_state(4, np.uint64))
    return found


def _seed(key: tuple[int, ...]) -> np.random.SeedSequence:
    """Make a seed of all bits of the key, in which each number has its place.

    A number of 33 bits or more would become two words, and (2**32, 0) the same as (0, 1); the upper words
    therefore follow all the lower ones.
    """
    upper = tuple(number >> 32 for number in key)
    return np.random.SeedSequence(tuple(number & 0xFFFFFFFF for number in key), spawn_key=upper if any(upper) else ())
