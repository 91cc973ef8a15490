"""Bytes in and out: what people write is understood, what is printed can be typed back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5stream.base.texts import as_bytes, count_text, counted, names_text, text_of_bytes
from h5stream.errors import OptionError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("4GB", 4 * 10**9),
        ("512M", 512 << 20),
        ("1.5g", 3 << 29),
        (".5k", 512),
        ("2TB", 2 * 10**12),
        ("1_000", 1000),
        (" 8 MiB ", 8 << 20),
        (np.int64(7), 7),
        (0, 0),
    ],
)
def test_what_people_write_is_understood(text, nbytes):
    assert as_bytes(text, name="x=") == nbytes


@pytest.mark.parametrize(
    "value", ["", "GiB", "4 Gi B", "-1", "4X", "1e9GB", "nan", -1, True, None, 1.5, [], "inf", "4,5G"]
)
def test_anything_else_is_refused_with_the_options_name_and_an_example(value):
    with pytest.raises(OptionError, match=r'--memory-budget takes bytes.*"4GiB"'):
        as_bytes(value, name="--memory-budget")


@given(st.integers(0, 1 << 60))
def test_what_is_printed_is_short_and_can_be_typed_back_to_three_digits(nbytes):
    assert len(text_of_bytes(nbytes)) <= len("1023 KiB")
    assert as_bytes(text_of_bytes(nbytes), name="x=") == pytest.approx(nbytes, rel=0.006)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (text_of_bytes(999), "999 B"),
        (text_of_bytes(1536), "1.50 KiB"),
        (text_of_bytes(512 << 20), "512 MiB"),
        (text_of_bytes((1 << 30) - 1, "/s"), "1.00 GiB/s"),
        (text_of_bytes(-2048), "-2.00 KiB"),
        (text_of_bytes(None), "n/a"),
        (count_text(1024), "1,024"),
        (count_text(1.5), "1.5"),
        (count_text(0.004), "0.004"),
        (counted(1, "row"), "1 row"),
        (counted(1024, "row"), "1,024 rows"),
        (names_text(["a", "b"]), "a, b"),
        (names_text(list("abcdef")), "a, b, c and 3 more"),
    ],
)
def test_numbers_and_names_are_printed_as_people_read_them(shown, text):
    assert shown == text
