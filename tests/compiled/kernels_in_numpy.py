"""What the kernels do, in NumPy and plain Python: slow, short, and with memory in place of addresses.

A window is one array of bytes; `places` are where rows begin in it.
"""

from __future__ import annotations

import numpy as np


def scatter(memory, places, rows, lengths, source, stride, segments, row_nbytes):
    """Copy rows of a chunk, or spans of them, to their places in the memory."""
    for place, row, length in zip(places, rows, lengths, strict=True):
        for k in range(length):
            for first, into, count in segments:
                at, to = (row + k) * stride + first, place + k * row_nbytes + into
                memory[to : to + count] = source[at : at + count]


def elements_of_planes(source, planes, count):
    """Join byte planes to elements, one row of bytes for each."""
    return np.stack([source[begin : begin + count] for begin in planes], axis=1)


def random_words(state):
    """Yield the random numbers of xoshiro256**."""
    s, mask = [int(word) for word in state], 2**64 - 1

    def turned(word, bits):
        return (word << bits | word >> (64 - bits)) & mask

    while True:
        yield turned(s[1] * 5 & mask, 7) * 9 & mask
        shifted = s[1] << 17 & mask
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= shifted
        s[3] = turned(s[3], 45)


def shuffled(count, buckets, state):
    """Return ``0 .. count - 1``, dealt to buckets and each of these shuffled."""
    words, dealt = random_words(state), [[] for _ in range(buckets)]
    for number in range(count):
        dealt[next(words) % buckets if buckets > 1 else 0].append(number)
    for bucket in dealt:
        for k in range(len(bucket) - 1, 0, -1):
            product = (next(words) >> 32) * (k + 1)
            while product % 2**32 < 2**32 % (k + 1):
                product = (next(words) >> 32) * (k + 1)
            other = product >> 32
            bucket[k], bucket[other] = bucket[other], bucket[k]
    return [number for bucket in dealt for number in bucket]


def homes_of_groups(groups, edges, strata, samples, weights, by_size, total, lacks):
    """Give each group to the part that lacks most of what it has; an empty part takes one of the last."""
    homes, empty = {}, set(by_size)
    for place, group in enumerate(groups):
        its = slice(edges[group], edges[group + 1])
        free = [part for part in by_size if part in empty] if len(groups) - place <= len(empty) else by_size
        lack = [float(np.sum(samples[its] * weights[strata[its]] * lacks[strata[its], part])) for part in free]
        homes[group] = best = free[int(np.argmax(lack))]
        np.subtract.at(lacks[:, best], strata[its], samples[its] * total)
        empty.discard(best)
    return homes
