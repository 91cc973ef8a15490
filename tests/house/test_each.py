"""A check of many things fails for each that it fails for, and where there is nothing to check."""

import pytest
from support.each import for_each


def test_all_failures_are_told():
    @for_each([(1, 2), (2, 1), (3, 3)])
    def rises(one, other):
        assert one < other, "it does not"

    with pytest.raises(AssertionError, match=r"2 of 3:\n\(2, 1\): it does not[^(]*\(3, 3\): it does not"):
        rises()


def test_nothing_to_check_is_a_failure():
    with pytest.raises(AssertionError, match="nothing to check"):
        for_each([])(lambda thing: None)()
