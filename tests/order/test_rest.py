"""What other numbers of ranks left of an epoch: each row once, in equal numbers of batches, from any batch on."""

import dataclasses

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream.errors import OptionError
from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder, order_after
from h5stream.order.line import OrderSettings
from h5stream.order.regrouped import TransferOrder


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


def taken_rows(order, first, last):
    return [row for k in range(first, last) for row in order.batch_rows(k).tolist()]


def orders_of(blocks, chosen, world, taken):
    return [order_after(blocks, dataclasses.replace(chosen, rank=r, world_size=world), taken) for r in range(world)]


@examples(300)
@given(stopped_epochs())
def test_every_row_is_given_once_however_often_the_number_of_ranks_changes(case):
    blocks, chosen, worlds, random = case
    taken, seen = (), []
    for turn, world in enumerate(worlds):
        try:
            ranks = orders_of(blocks, chosen, world, taken)
        except OptionError:
            return  # so few rows that no equal number of batches exists
        assert len({(order.batches, first) for order, first in ranks}) == 1
        batches, first = ranks[0][0].batches, ranks[0][1]
        last = batches if turn == len(worlds) - 1 else random.randint(first, batches)
        seen += [row for order, _ in ranks for row in taken_rows(order, first, last)]
        before = taken[:-1] if first else taken
        taken = (*before, (world, last)) if last else before
    assert len(set(seen)) == len(seen)
    left_out = blocks.total_rows - len(seen)
    most = sum(world * chosen.batch_size - 1 for world in worlds) if chosen.drop_last else 0
    assert 0 <= left_out <= most


@examples(150)
@given(stopped_epochs(), st.integers(0, 5), st.integers(0, 9))
def test_windows_and_batch_rows_and_device_windows_agree(case, took, first_batch):
    blocks, chosen, worlds, _ = case
    try:
        order = EpochOrder(blocks, dataclasses.replace(chosen, world_size=worlds[1]), ((worlds[0], took),))
    except OptionError:
        return
    found = {}
    for window in order.windows(first_batch):
        assert (np.diff(window.rows) > 0).all()
        for row, batch, within in zip(window.rows.tolist(), window.batch.tolist(), window.within.tolist(), strict=True):
            assert (batch, within) not in found
            found[batch, within] = row
    expected = {
        (k, i): row for k in range(first_batch, order.batches) for i, row in enumerate(order.batch_rows(k).tolist())
    }
    assert found == expected
    transfer = TransferOrder(order, slot_rows=chosen.batch_size, slots_at_once=2)
    by_place = {}
    for number in range(len(order.window_edges) - 1):
        rows = order.rows_of_window(number)[transfer.sources(number)]
        by_place.update(enumerate(rows.tolist(), int(order.window_edges[number])))
    flat = [row for k in range(order.batches) for row in order.batch_rows(k).tolist()]
    assert [by_place[place] for place in range(len(flat))] == flat


def test_a_device_begins_with_the_window_of_the_first_batch():
    chosen = OrderSettings(batch_size=8, window_rows=40, first_window_rows=10)
    order = EpochOrder(make_blocks((0, 200), (5,)), chosen)
    transfer = TransferOrder(order, slot_rows=8, slots_at_once=2)
    for batch in range(order.batches):
        slot = transfer.first_slot(batch)
        window = transfer.window_of(slot)
        start = order.cut.start_of(batch)
        assert order.window_edges[window] <= start < order.window_edges[window + 1]
        assert slot == transfer.slot_edges[window]
    assert transfer.first_slot(order.batches) == transfer.batches


def test_the_same_number_of_ranks_goes_on_in_the_very_order():
    blocks = make_blocks((0, 100), (7,))
    chosen = OrderSettings(batch_size=8, window_rows=30, first_window_rows=10, world_size=2, rank=1)
    order, first_batch = order_after(blocks, chosen, ((2, 3),))
    assert isinstance(order, EpochOrder)
    assert first_batch == 3
    assert order.batch_rows(3).tolist() == EpochOrder(blocks, chosen).batch_rows(3).tolist()


@pytest.mark.parametrize("taken", [((4, 99),), ((1, 14),), ((2, 1), (1, 99))])
def test_more_batches_than_there_are_cannot_have_been_taken(taken):
    chosen = OrderSettings(batch_size=8, window_rows=30, first_window_rows=10)
    with pytest.raises(OptionError, match=r"taken|took"):
        order_after(make_blocks((0, 100), (7,)), chosen, taken)


def test_a_rest_that_cannot_be_cut_names_the_way_out():
    chosen = OrderSettings(batch_size=8, window_rows=30, first_window_rows=10, world_size=8, epoch=4)
    with pytest.raises(OptionError, match=r"left of epoch 4 .* 8 ranks: 4 rows .* set_epoch\(5\)"):
        order_after(make_blocks((0, 100), (7,)), chosen, ((2, 6),))


def test_a_rest_too_small_for_full_batches_is_empty():
    chosen = OrderSettings(batch_size=8, window_rows=30, first_window_rows=10, world_size=8, drop_last=True)
    order, first_batch = order_after(make_blocks((0, 100), (7,)), chosen, ((2, 5),))
    assert (order.batches, first_batch, list(order.windows())) == (0, 0, [])
