"""Permutations that must stay the same in every release."""

from collections import Counter

import numpy as np
import pytest

from h5stream.compiled._native import shuffled_into
from h5stream.order.permutation import BUCKET, permutation


@pytest.mark.parametrize(
    ("key", "expected"), [((0,), [0, 8, 7, 5, 4, 3, 2, 1, 6, 9]), ((1, 2, 3), [1, 4, 3, 6, 8, 7, 9, 5, 2, 0])]
)
def test_permutations_are_those_of_every_release_before(key, expected):
    assert permutation(10, *key).tolist() == expected


def test_another_key_is_another_permutation():
    # A seed of 33 bits must not run into the epoch that follows it.
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2**32, 0), (2**32, 1), (1, 2**32), (2**40, 7)]
    assert len({tuple(permutation(50, *key)) for key in keys}) == len(keys)


def test_a_permutation_of_several_buckets_has_each_number_once_and_stays_the_same():
    count = 2 * BUCKET + 12345
    found = permutation(count, 3, 1)
    assert np.array_equal(np.sort(found), np.arange(count))
    assert found[[0, 1, 2, BUCKET, count - 1]].tolist() == [95191, 125389, 838185, 1835163, 377548]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_small_buckets_are_shuffled_evenly(kind):
    # All 24 permutations of 4, of two buckets: 6,000 draws are 250 of each with a standard deviation of 15.
    counts = Counter()
    for seed in range(6000):
        numbers, state = np.empty(4, kind), np.random.SeedSequence(seed).generate_state(4, np.uint64)
        shuffled_into(numbers, np.zeros(3, np.int64), state)
        counts[tuple(numbers.tolist())] += 1
    assert len(counts) == 24
    assert max(abs(count - 250) for count in counts.values()) < 5 * 15
