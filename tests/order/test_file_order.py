"""`FileOrder`: the batches of an order that is not shuffled, told as spans."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder
from h5stream.order.line import OrderSettings
from h5stream.order.regrouped import FileOrder


@st.composite
def orders(draw):
    files = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    starts = tuple(np.cumsum([0, *files]).tolist())
    blocks = make_blocks(starts, tuple(draw(st.integers(1, 15)) for _ in files))
    ranks = draw(st.integers(1, min(3, starts[-1])))
    window = draw(st.integers(1, 60))
    settings = OrderSettings(
        batch_size=draw(st.integers(2, 20)),
        window_rows=window,
        first_window_rows=draw(st.integers(1, window)),
        shuffle=False,
        drop_last=draw(st.booleans()),
        rank=draw(st.integers(0, ranks - 1)),
        world_size=ranks,
    )
    return blocks, starts, settings


@given(made=orders(), at_once=st.none() | st.integers(1, 4), data=st.data())
def test_its_spans_are_the_rows_of_the_order_from_any_batch_on(made, at_once, data):
    blocks, starts, settings = made
    try:
        order = EpochOrder(blocks, settings)
    except ValueError:  # not enough rows for these ranks
        return
    ours, first = FileOrder(order, at_once), data.draw(st.integers(0, order.batches))
    found = {}
    for window in ours.windows(first):
        batches = set(window.batch.tolist())
        assert at_once is None or len(batches) <= at_once
        for row, count, batch, within in zip(
            window.rows.tolist(), window.counts.tolist(), window.batch.tolist(), window.within.tolist(), strict=True
        ):
            assert count > 0
            last = row + count - 1
            assert np.searchsorted(starts, row, side="right") == np.searchsorted(starts, last, side="right")
            for k in range(count):
                assert found.setdefault((batch, within + k), row + k) == row + k
    expected = {
        (batch, within): row
        for batch in range(first, order.batches)
        for within, row in enumerate(order.batch_rows(batch).tolist())
    }
    assert found == expected
    assert [ours.batch_size_of(batch) for batch in range(order.batches)] == [
        order.batch_size_of(batch) for batch in range(order.batches)
    ]
