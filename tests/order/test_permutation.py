"""Permutations that must stay the same in every release."""

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream.order.permutation import permutation


@examples(100)
@given(st.integers(0, 3000), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
def test_a_permutation_has_each_number_once_and_depends_on_its_key_alone(count, key):
    first = permutation(count, *key)
    assert np.sort(first).tolist() == list(range(count))
    assert permutation(count, *key).tolist() == first.tolist()
    assert first.dtype == np.int32


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ((0,), [0, 8, 9, 3, 7, 5, 1, 2, 6, 4]),
        ((1, 2, 3), [1, 8, 2, 4, 6, 5, 0, 9, 7, 3]),
    ],
)
def test_permutations_are_those_of_every_release_before(key, expected):
    assert permutation(10, *key).tolist() == expected


def test_another_key_is_another_permutation():
    # A seed of 33 bits must not run into the epoch that follows it.
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2**32, 0), (2**32, 1), (1, 2**32), (2**40, 7)]
    assert len({tuple(permutation(50, *key)) for key in keys}) == len(keys)


def test_every_place_is_equally_likely():
    # 3,000 draws of 5: a count is 600 with a standard deviation of 22.
    counts = np.zeros((5, 5))
    for seed in range(3000):
        counts[np.arange(5), permutation(5, seed)] += 1
    assert abs(counts - 600).max() < 5 * 22
