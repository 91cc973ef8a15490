"""The exact global shuffle a few batches at a time: the same batches as in one window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5stream.order.blocks import make_blocks, select_rows
from h5stream.order.epoch import EpochOrder, order_after
from h5stream.order.line import OrderSettings
from h5stream.order.regrouped import RegroupedOrder


def batches_of(order, first_batch=0):
    """Give the rows of each batch, as the windows place them."""
    found = {}
    for window in order.windows(first_batch):
        for row, batch, within in zip(window.rows.tolist(), window.batch.tolist(), window.within.tolist(), strict=True):
            assert found.setdefault(batch, {}).setdefault(within, row) == row
    return {batch: [rows[k] for k in range(len(rows))] for batch, rows in found.items()}


@given(
    rows=st.integers(1, 200),
    block=st.integers(1, 30),
    batch=st.integers(2, 40),
    window=st.integers(1, 250),
    together=st.integers(1, 6),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    world=st.integers(1, 3),
    data=st.data(),
)
def test_the_batches_are_those_of_the_order(rows, block, batch, window, together, shuffle, drop_last, world, data):
    if rows < world * (batch if drop_last else 1):
        return
    chosen = select_rows(sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=rows))), rows)
    settings = OrderSettings(
        batch_size=batch,
        window_rows=window,
        first_window_rows=min(window, 10),
        shuffle=shuffle,
        drop_last=drop_last,
        seed=3,
        epoch=2,
        rank=data.draw(st.integers(0, world - 1)),
        world_size=world,
    )
    order = EpochOrder(make_blocks((0, rows), (block,), chosen), settings)
    again = RegroupedOrder(order, together)
    first = data.draw(st.integers(0, order.batches))
    assert batches_of(again, first) == batches_of(order, first)
    sizes = {k: len(rows) for k, rows in batches_of(order).items()}
    assert {k: again.batch_size_of(k) for k in range(again.batches)} == sizes


@pytest.mark.parametrize("together", [1, 4])
def test_a_window_holds_a_few_batches_only(together):
    settings = OrderSettings(batch_size=10, window_rows=1000, first_window_rows=1000)
    order = RegroupedOrder(EpochOrder(make_blocks((0, 1000), (50,)), settings), together)
    windows = list(order.windows())
    assert [len(window.rows) for window in windows] == [10 * together] * (100 // together)
    assert sorted(np.concatenate([window.rows for window in windows]).tolist()) == list(range(1000))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_other_ranks_left_of_an_epoch_is_regrouped_as_well(ranks):
    blocks = make_blocks((0, 1000), (50,))
    settings = OrderSettings(batch_size=10, window_rows=1000, first_window_rows=1000, rank=ranks - 1, world_size=ranks)
    order, first = order_after(blocks, settings, ((5, 3),))
    assert batches_of(RegroupedOrder(order, 4), first) == batches_of(order, first)
    windows = list(RegroupedOrder(order, 4).windows(first))
    assert max(len(window.rows) for window in windows) <= 40
