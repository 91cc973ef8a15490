"""Blocks: runs of rows that are read together."""

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.order.blocks import listed_blocks, make_blocks

FILES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 50)), min_size=1, max_size=5).filter(
    lambda files: sum(rows for rows, _ in files) > 0
)


@examples(100)
@given(FILES, st.data())
def test_blocks_never_cross_files_and_none_is_empty(files, data):
    starts = tuple(np.cumsum([0, *(rows for rows, _ in files)]).tolist())
    sizes = tuple(size for _, size in files)
    chosen = data.draw(st.one_of(st.none(), st.sets(st.integers(0, starts[-1] - 1), min_size=1)))
    rows = None if chosen is None else np.array(sorted(chosen))
    blocks = make_blocks(starts, sizes, rows)
    assert (np.diff(blocks.edges) > 0).all()
    assert blocks.total_rows == (starts[-1] if rows is None else len(rows))
    for start, stop in zip(blocks.edges[:-1], blocks.edges[1:], strict=True):
        held = blocks.rows_at(np.arange(start, stop))
        file = int(np.searchsorted(starts, held[0], side="right")) - 1
        assert held[-1] < starts[file + 1]
        # All from one chunk's worth of rows.
        assert (held[0] - starts[file]) // sizes[file] == (held[-1] - starts[file]) // sizes[file]


def test_rows_beyond_32_bits_may_stand_anywhere_in_a_list():
    rows = np.array([5, 2**31 + 7, 2**40, 3])
    assert listed_blocks(rows, 2).rows_at(np.arange(4)).tolist() == rows.tolist()


def test_too_many_blocks_are_refused_before_they_are_made():
    with pytest.raises(OptionError, match="make 1,000,000,000 blocks"):
        make_blocks((0, 10**9), (1,))
