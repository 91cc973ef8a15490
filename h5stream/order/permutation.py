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
"""Version of the permutations: a state of another version cannot resume inside an epoch. 1 sorted random keys."""

BUCKET = 1 << 20
"""Numbers that are shuffled in one go, at most about: 4 MiB, most of which fits into a processor's caches. It is part
of the definition: another number makes another permutation."""

BLOCKS, ROWS, DRAWS, BATCHES, CROPS, SAMPLES, LOOKUPS = 1, 2, 3, 4, 5, 6, 7
"""The purpose of random numbers; keeps the streams of one (seed, epoch) apart."""
SPLITS = 15
"""The stream of splits, which have no epoch."""


def fractions(samples: NDArray[np.integer[Any]], epoch: int, seed: int, stream: int = 0) -> NDArray[np.float64]:
    """Return a random fraction for each sample, for a function as ``lookup=`` of a field.

    A fraction depends only on these arguments, not on the other samples, so it is the same for all threads and ranks,
    and in a run that is resumed.

    Parameters
    ----------
    samples : array of int, shape (samples,)
        Their numbers.
    epoch : int
        The number of the epoch.
    seed : int
        The seed of the loader.
    stream : int
        Another number gives other fractions, for a function that needs several for each sample.

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
    """Return random 64-bit numbers as a function of `key` alone; see `permutation`."""
    words: NDArray[np.uint64] = np.random.Philox(key=_seed(key).generate_state(2, np.uint64)).random_raw(count)
    return words


def fractions_of(numbers: Places, *key: int) -> NDArray[np.float64]:
    """Return a random fraction from 0 to less than 1 for each number, as a function of it and of `key` alone."""
    fractions: NDArray[np.float64] = np.multiply(words_of(numbers, *key) >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return fractions


def words_of(numbers: NDArray[np.integer[Any]], *key: int) -> NDArray[np.uint64]:
    """Return 64 random bits for each number, as a function of it and of `key` alone; distinct for distinct numbers."""
    words = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words += _seed(key).generate_state(1, np.uint64)
    return mixed(words)


def permutation(count: int, *key: int) -> Places:
    """Permute ``0 .. count - 1`` as a function of `key` alone."""
    permuted = new_array(count, place_dtype(count))
    buckets = 1 << (-(-count // BUCKET) - 1).bit_length() if count else 1
    shuffled_into(permuted, np.zeros(buckets + 1, dtype=np.int64), _seed(key).generate_state(4, np.uint64))
    return permuted


def _seed(key: tuple[int, ...]) -> np.random.SeedSequence:
    """Make a seed from all bits of the key, with separate words for each of its numbers.

    A number of 33 bits or more would become two words, and (2**32, 0) the same as (0, 1); the upper words
    therefore follow all the lower ones.
    """
    lower, upper = [], []
    for number in key:
        lower.append(number & 0xFFFFFFFF)
        upper.append(number >> 32)
    return np.random.SeedSequence(lower, spawn_key=upper if any(upper) else ())
