"""A shuffle that stays in a core's cache, by random numbers that will never be others.

Source: xoshiro256** 1.0 (prng.di.unimi.it), Lemire's bounded numbers (arXiv:1805.10941), the shuffle by Fisher and
Yates, and by Rao and Sandelius: numbers go to random buckets, and each bucket is shuffled.
"""

from __future__ import annotations

import numpy as np

from h5stream.compiled.jit import jit, jit_inner

BUCKET = 1 << 20
"""Numbers that are shuffled in one go, at most about: 4 MiB, of which a processor's caches hold most. Part of what is
given: with another number it would be another permutation."""


@jit_inner
def _turned(word, bits):
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@jit_inner
def _next(state):
    """Give the next random number of 64 bits."""
    word = _turned(state[1] * np.uint64(5), 7) * np.uint64(9)
    shifted = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= shifted
    state[3] = _turned(state[3], 45)
    return word


@jit_inner
def _below(state, count):
    """Give a random number below `count`, each as likely as any other; `count` has at most 32 bits."""
    count = np.uint64(count)
    product = (_next(state) >> np.uint64(32)) * count
    low = product & np.uint64(0xFFFFFFFF)
    if low < count:
        least = (np.uint64(1 << 32) - count) % count
        while low < least:
            product = (_next(state) >> np.uint64(32)) * count
            low = product & np.uint64(0xFFFFFFFF)
    return np.int64(product >> np.uint64(32))


@jit_inner
def _shuffle_some(numbers, first, last, state):
    for k in range(last - 1, first, -1):
        other = first + _below(state, k + 1 - first)
        numbers[k], numbers[other] = numbers[other], numbers[k]


@jit
def shuffled_into(numbers, edges, state):
    """Fill with ``0 .. numbers.size - 1``, shuffled.

    Parameters
    ----------
    numbers : int32 or int64 array
        Where they go.
    edges : int64 array
        One more than there are buckets, which are a power of two.
    state : uint64 array, shape (4,)
        Of the random numbers, not all 0; afterwards it is another.
    """
    count, buckets = numbers.size, edges.size - 1
    if buckets == 1:
        for k in range(count):
            numbers[k] = k
        _shuffle_some(numbers, 0, count, state)
        return
    mask, again = np.uint64(buckets - 1), state.copy()
    edges[:] = 0
    for _ in range(count):
        edges[np.int64(_next(again) & mask)] += 1
    total = np.int64(0)
    for bucket in range(buckets + 1):
        inside = edges[bucket]
        edges[bucket] = total
        total += inside
    for k in range(count):
        into = np.int64(_next(state) & mask)
        numbers[edges[into]] = k
        edges[into] += 1
    first = 0
    for bucket in range(buckets):
        _shuffle_some(numbers, first, edges[bucket], state)
        first = edges[bucket]
