"""Blocks: runs of rows that are read together."""

import numpy as np
import pytest

from h5stream.errors import OptionError
from h5stream.order.blocks import listed_blocks, make_blocks

def test_rows_beyond_32_bits_may_stand_anywhere_in_a_list():
    rows = np.array([5, 2**31 + 7, 2**40, 3])
    assert listed_blocks(rows, 2).rows_at(np.arange(4)).tolist() == rows.tolist()


def test_too_many_blocks_are_refused_before_they_are_made():
    with pytest.raises(OptionError, match="make 1,000,000,000 blocks"):
        make_blocks((0, 10**9), (1,))
