"""What other numbers of ranks left of an epoch: each row once, in equal numbers of batches, from any batch on."""

import dataclasses

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from listing import batches_of, taken_in_turn

from h5stream.errors import OptionError
from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder, order_after
from h5stream.order.line import BatchLimit, OrderSettings


@st.composite
def stopped_epochs(draw):
    """Draw an epoch that several numbers of ranks took in turn, and the settings of the last."""
    rows = draw(st.integers(1, 400))
    blocks = make_blocks((0, rows), (draw(st.integers(1, 20)),))
    window = draw(st.integers(1, 2 * rows))
    chosen = OrderSettings(
        batch_size=draw(st.integers(1, 20)),
        window_rows=window,
        first_window_rows=draw(st.integers(1, window)),
        shuffle=draw(st.booleans()),
        drop_last=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
        epoch=draw(st.integers(0, 3)),
    )
    worlds = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=2, max_size=4))
    return blocks, chosen, worlds, draw(st.randoms(use_true_random=False))


@examples(300)
@given(stopped_epochs())
def test_every_row_is_given_once_however_often_the_number_of_ranks_changes(case):
    blocks, chosen, worlds, random = case
    batches, is_over = taken_in_turn(blocks, chosen, worlds, random.randint)
    seen = [row for rows in batches for row in rows]
    assert len(set(seen)) == len(seen)
    most = sum(world * chosen.batch_size - 1 for world in worlds) if chosen.drop_last else 0
    assert not is_over or 0 <= blocks.total_rows - len(seen) <= most


@examples(150)
@given(stopped_epochs(), st.integers(0, 5), st.integers(0, 9))
def test_a_rest_may_begin_with_any_batch(case, took, first_batch):
    blocks, chosen, worlds, _ = case
    try:
        order = EpochOrder(blocks, dataclasses.replace(chosen, world_size=worlds[1]), ((worlds[0], took),))
    except OptionError:
        return
    first_batch = min(first_batch, order.batches)
    assert batches_of(order, first_batch) == batches_of(order)[first_batch:]


def test_the_same_number_of_ranks_goes_on_in_the_very_order():
    blocks = make_blocks((0, 100), (7,))
    chosen = OrderSettings(batch_size=8, window_rows=30, first_window_rows=10, world_size=2, rank=1)
    order, first_batch = order_after(blocks, chosen, ((2, 3),))
    assert isinstance(order, EpochOrder)
    assert first_batch == 3
    assert batches_of(order)[3] == batches_of(EpochOrder(blocks, chosen))[3]


@pytest.mark.parametrize("limit", [None, BatchLimit(rows=5)])
@pytest.mark.parametrize("taken", [((4, 99),), ((1, 999),), ((2, 1), (1, 999))])
def test_more_batches_than_there_are_cannot_have_been_taken(taken, limit):
    blocks = dataclasses.replace(make_blocks((0, 100), (7,)), lengths=np.ones(100, dtype=np.int64))
    chosen = OrderSettings(batch_size=8, window_rows=30, first_window_rows=10, limit=limit)
    with pytest.raises(OptionError, match=r"taken|took"):
        order_after(blocks, chosen, taken)


def test_a_rest_that_cannot_be_cut_names_the_way_out():
    chosen = OrderSettings(batch_size=8, window_rows=30, first_window_rows=10, world_size=8, epoch=4)
    with pytest.raises(OptionError, match=r"left of epoch 4 .* 8 ranks: 4 rows .* set_epoch\(5\)"):
        order_after(make_blocks((0, 100), (7,)), chosen, ((2, 6),))


def test_a_rest_too_small_for_full_batches_is_empty():
    chosen = OrderSettings(batch_size=8, window_rows=30, first_window_rows=10, world_size=8, drop_last=True)
    order, first_batch = order_after(make_blocks((0, 100), (7,)), chosen, ((2, 5),))
    assert (order.batches, first_batch, list(order.windows())) == (0, 0, [])
