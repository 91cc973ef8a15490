"""Copies past the cache are copies, wherever they begin and end."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from h5stream.compiled._native import copy_past_cache


@given(st.integers(0, 130), st.integers(0, 130), st.integers(0, 1000))
def test_any_bytes_are_copied_and_none_beside_them(start, place, count):
    source = np.arange(1200, dtype="u2").view("u1")
    target = np.zeros(1300, "u1")
    copy_past_cache(target.ctypes.data + place, source.ctypes.data + start, count)
    expected = np.zeros(1300, "u1")
    expected[place : place + count] = source[start : start + count]
    assert np.array_equal(target, expected)
