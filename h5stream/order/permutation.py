"""Permutations that stay the same in every release of NumPy.

NumPy promises that the raw stream of a bit generator and ``SeedSequence`` never change, but not what
``Generator.permutation`` makes of them. A checkpoint from last year must still name the same rows, so only the
raw stream is used here: each index gets random high bits, and sorting the distinct integers does the rest.
NumPy sorts integers with vector instructions, which makes this as fast as a Fisher-Yates shuffle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from h5stream.order.places import Places, new_array, pieces, place_dtype

BLOCKS, ROWS, DRAWS, BATCHES, CROPS = 1, 2, 3, 4, 5
"""What random numbers are for; keeps the streams of one (seed, epoch) apart."""


def random_words(count: int, *key: int) -> NDArray[np.uint64]:
    """Give random 64-bit numbers as a function of `key` alone; see `permutation`.

    Examples
    --------
    >>> random_words(2, 1, 2).tolist() == random_words(3, 1, 2)[:2].tolist()
    True
    """
    words: NDArray[np.uint64] = np.random.Philox(key=_seed(key).generate_state(2, np.uint64)).random_raw(count)
    return words


def fractions_of(numbers: Places, *key: int) -> NDArray[np.float64]:
    """Give each of some numbers a random fraction from 0 to less than 1, as a function of it and of `key` alone.

    SplitMix64's mixing, whose every step is a bijection. Source: prng.di.unimi.it/splitmix64.c.

    Examples
    --------
    >>> fractions_of(np.array([7, 5, 7]), 1, 2).round(3).tolist()
    [0.107, 0.654, 0.107]
    """
    words = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words += _seed(key).generate_state(1, np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    words ^= words >> np.uint64(31)
    fractions: NDArray[np.float64] = np.multiply(words >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return fractions


def permutation(count: int, *key: int) -> Places:
    """Permute ``0 .. count - 1`` as a function of `key` alone.

    Parameters
    ----------
    count : int
        At most 2**32.
    *key : int
        At most four non-negative numbers below 2**64, for instance seed, epoch, purpose and position.

    Returns
    -------
    ndarray of int32, or of int64 where that is too small, shape (count,)

    Notes
    -----
    Two indices tie in their random bits with a probability below ``count**2 / 2**(64 - log2(count))``; a tie
    is settled by the index, so the result is a permutation in any case. It takes 12 bytes an index while it is made.

    Examples
    --------
    >>> permutation(8, 1, 2).tolist()
    [7, 1, 3, 0, 4, 2, 6, 5]
    """
    index_bits = np.uint64(max(1, int(count - 1).bit_length()))
    words = _seed(key).generate_state(2, np.uint64)
    bits, keys = np.random.Philox(key=words), new_array(count, np.uint64)
    for piece in pieces(count):
        some = bits.random_raw(piece.stop - piece.start)
        some >>= index_bits
        some <<= index_bits
        np.bitwise_or(some, np.arange(piece.start, piece.stop, dtype=np.uint64), out=keys[piece])
    keys.sort()
    found = new_array(count, place_dtype(count))
    for piece in pieces(count):
        found[piece] = keys[piece] & ((np.uint64(1) << index_bits) - np.uint64(1))
    return found


def _seed(key: tuple[int, ...]) -> np.random.SeedSequence:
    """Make a seed of all bits of the key, in which each number has its place.

    A number of 33 bits or more would become two words, and (2**32, 0) the same as (0, 1); the upper words
    therefore follow all the lower ones.
    """
    upper = tuple(number >> 32 for number in key)
    return np.random.SeedSequence(tuple(number & 0xFFFFFFFF for number in key), spawn_key=upper if any(upper) else ())
