"""An order that somebody else decided."""

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.order.users import ListedOrder

BATCHES = st.lists(st.lists(st.integers(-30, 29), min_size=1, max_size=9), max_size=12)


@examples(100)
@given(BATCHES, st.integers(1, 5), st.integers(0, 12))
def test_windows_put_every_row_where_the_sampler_said(batches, together, first_batch):
    order = ListedOrder(batches, together=together, total_rows=30)
    found = {}
    for window in order.windows(first_batch):
        assert (np.diff(window.rows) >= 0).all()
        for row, batch, within in zip(window.rows.tolist(), window.batch.tolist(), window.within.tolist(), strict=True):
            found[batch, within] = row
    assert found == {
        (k, i): row % 30 for k, batch in enumerate(batches) if k >= first_batch for i, row in enumerate(batch)
    }


def test_the_sampler_is_asked_no_further_than_the_window_that_is_needed():
    asked = []

    def sampler():
        for k in range(100):
            asked.append(k)
            yield [k]

    windows = ListedOrder(sampler(), together=4, total_rows=100).windows()
    next(windows)
    assert asked == [0, 1, 2, 3]


@pytest.mark.parametrize(("batch", "why"), [([30], "gave row 30"), ([-31], "gave row -31"), ([], "empty batch")])
def test_a_batch_that_cannot_be_read_is_refused_after_those_before_it(batch, why):
    windows = ListedOrder([[1], batch], together=2, total_rows=30).windows()
    assert next(windows).rows.tolist() == [1]
    with pytest.raises(OptionError, match=why):
        next(windows)
