"""An epoch a few batches at a time, in file order as spans: the same batches as in whole windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from listing import batches_of

from h5stream.errors import OptionError
from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder, RegroupedOrder, order_after
from h5stream.order.line import OrderSettings


@st.composite
def orders(draw):
    """Draw the order of a rank over some files, of all their rows or of selected ones; None where there is none."""
    starts = tuple(np.cumsum([0, *draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))]).tolist())
    chosen = draw(st.none() | st.sets(st.integers(0, starts[-1] - 1), min_size=1))
    rows = None if chosen is None else np.array(sorted(chosen))
    blocks = make_blocks(starts, tuple(draw(st.integers(1, 15)) for _ in starts[1:]), rows)
    world, window = draw(st.integers(1, 3)), draw(st.integers(1, 250))
    settings = OrderSettings(
        batch_size=draw(st.integers(2, 40)),
        window_rows=window,
        first_window_rows=draw(st.integers(1, window)),
        shuffle=draw(st.booleans()),
        drop_last=draw(st.booleans()),
        seed=3,
        rank=draw(st.integers(0, world - 1)),
        world_size=world,
    )
    try:
        return EpochOrder(blocks, settings), starts
    except OptionError:  # not enough rows for these ranks
        return None


@given(made=orders(), at_once=st.integers(1, 6), data=st.data())
def test_the_batches_are_those_of_the_order_from_any_one_on(made, at_once, data):
    if made is None:
        return
    order, starts = made
    ours, first = RegroupedOrder(order, at_once), data.draw(st.integers(0, order.batches))
    assert batches_of(ours, first) == batches_of(order)[first:]
    assert [ours.batch_size_of(k) for k in range(ours.batches)] == list(map(len, batches_of(order)))
    for window in ours.windows(first):
        assert len(set(window.batch.tolist())) <= at_once
        if window.counts is not None:  # no span goes on in another file
            ends = window.rows + window.counts - 1
            files = [np.searchsorted(starts, rows, side="right").tolist() for rows in (window.rows, ends)]
            assert files[0] == files[1]


def test_all_rows_in_file_order_are_spans_and_not_a_number_for_each():
    settings = OrderSettings(batch_size=10, window_rows=1000, first_window_rows=1000, shuffle=False)
    for at_once in (None, 7):
        windows = list(RegroupedOrder(EpochOrder(make_blocks((0, 1000), (1000,)), settings), at_once).windows())
        assert sum(len(window.rows) for window in windows) == 100


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_other_ranks_left_of_an_epoch_is_regrouped_as_well(ranks):
    blocks = make_blocks((0, 1000), (50,))
    settings = OrderSettings(batch_size=10, window_rows=1000, first_window_rows=1000, rank=ranks - 1, world_size=ranks)
    order, first = order_after(blocks, settings, ((5, 3),))
    assert batches_of(RegroupedOrder(order, 4), first) == batches_of(order)[first:]
    assert max(len(window.rows) for window in RegroupedOrder(order, 4).windows(first)) <= 40
