"""Permutations that stay the same in every release of NumPy.

NumPy promises that the raw stream of a bit generator and ``SeedSequence`` never change, but not what
``Generator.permutation`` makes of them. A checkpoint from last year must still name the same rows, so only the
``SeedSequence`` is used here, and the random numbers and the shuffle are our own (``h5stream/compiled/order.h``).
"""

from __future__ import annotations

import numpy as np

from h5stream.compiled._native import shuffled_into
from h5stream.order.places import Places, new_array, place_dtype

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
    shuffled_into(permuted, np.zeros(buckets + 1, dtype=np.int64), seed_of(key).generate_state(4, np.uint64))
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
