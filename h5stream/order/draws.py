"""Random numbers that depend on nothing but their own arguments: one for each sample, or as many as are needed.

Streams of the same seed and epoch are kept apart by their purpose; see `h5stream.order.places`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from h5stream.order.places import LOOKUPS, seed_of
from h5stream.samples.space import mixed


def fractions(samples: NDArray[np.integer], epoch: int, seed: int, stream: int = 0) -> NDArray[np.float64]:
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
    """Return random 64-bit numbers as a function of `key` alone; see `h5stream.order.places`."""
    words: NDArray[np.uint64] = np.random.Philox(key=seed_of(key).generate_state(2, np.uint64)).random_raw(count)
    return words


def fractions_of(numbers: NDArray[np.integer], *key: int) -> NDArray[np.float64]:
    """Return a random fraction from 0 to less than 1 for each number, as a function of it and of `key` alone."""
    fractions: NDArray[np.float64] = np.multiply(words_of(numbers, *key) >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return fractions


def words_of(numbers: NDArray[np.integer], *key: int) -> NDArray[np.uint64]:
    """Return 64 random bits for each number, as a function of it and of `key` alone; distinct for distinct numbers."""
    words = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words += seed_of(key).generate_state(1, np.uint64)
    return mixed(words)
