"""Batches by size and of like lengths: each sample once, none too large, as many on every rank, from any batch on."""

import dataclasses
import itertools

import numpy as np
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from listing import batches_of, taken_in_turn

from h5stream.errors import OptionError
from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder, RegroupedOrder
from h5stream.order.line import BatchLimit, OrderSettings
from h5stream.order.sized import cut_by_rows, most_samples


@st.composite
def epochs(draw):
    """Draw blocks with lengths, some selected rows, and how they are to be cut."""
    rows = draw(st.integers(1, 300))
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    lengths = numbers.integers(0, draw(st.integers(1, 40)), rows)
    selected = np.sort(numbers.choice(rows, draw(st.integers(1, rows)), replace=False)) if draw(st.booleans()) else None
    blocks = make_blocks((0, rows), (draw(st.integers(1, 20)),), selected)
    blocks = dataclasses.replace(blocks, lengths=lengths if selected is None else lengths[selected])
    window = draw(st.integers(1, 2 * rows))
    limited = draw(st.booleans())
    shuffle = draw(st.booleans())
    chosen = OrderSettings(
        batch_size=draw(st.integers(1, 20)),
        window_rows=window,
        first_window_rows=draw(st.integers(1, window)),
        shuffle=shuffle,
        drop_last=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
        epoch=draw(st.integers(0, 3)),
        limit=BatchLimit(
            rows=draw(st.integers(max(1, int(lengths.max())), 200)) if limited else None,
            padded=draw(st.booleans()),
            bucketed=shuffle and (not limited or draw(st.booleans())),
        ),
    )
    return blocks, chosen, lengths


def check_size(rows, lengths, chosen):
    assert 1 <= len(rows) <= chosen.batch_size
    assert len(rows) <= most_samples(lengths, chosen.batch_size, chosen.limit)
    if chosen.limit.rows is not None:
        ours = lengths[rows]
        assert (ours.max() * len(ours) if chosen.limit.padded else ours.sum()) <= chosen.limit.rows


@examples(300)
@given(epochs(), st.integers(0, 5), st.integers(1, 4))
def test_each_sample_comes_once_and_windows_say_what_batches_have(case, first_batch, at_once):
    blocks, chosen, lengths = case
    try:
        order = EpochOrder(blocks, chosen)
    except OptionError:
        assert chosen.drop_last
        return
    batches = batches_of(order)
    assert [order.batch_size_of(k) for k in range(order.batches)] == list(map(len, batches))
    seen = list(itertools.chain(*batches))
    every = (np.arange(blocks.total_rows) if blocks.rows is None else blocks.rows).tolist()
    if chosen.drop_last:
        assert len(set(seen)) == len(seen)
        assert len(every) - len(seen) <= chosen.batch_size
    else:
        assert sorted(seen) == every
    if not chosen.shuffle:
        assert seen == every[: len(seen)]
    for rows in batches:
        check_size(rows, lengths, chosen)
    first_batch = min(first_batch, order.batches)
    for some in (order, RegroupedOrder(order, at_once)):
        assert batches_of(some, first_batch) == batches[first_batch:]


@examples(300)
@given(epochs(), st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_ranks_have_as_many_batches_however_often_their_number_changes(case, worlds, random):
    blocks, chosen, lengths = case
    batches, is_over = taken_in_turn(blocks, chosen, worlds, random.randint)
    for rows in batches:
        check_size(rows, lengths, chosen)
    seen = list(itertools.chain(*batches))
    assert len(set(seen)) == len(seen)
    assert not is_over or chosen.drop_last or len(seen) == blocks.total_rows


def test_batches_of_like_lengths_waste_little_and_are_others_in_each_epoch():
    lengths = np.random.default_rng(0).integers(1, 1000, 20_000)
    blocks = dataclasses.replace(make_blocks((0, 20_000), (10,)), lengths=lengths)

    def orders(epoch, **limit):
        chosen = OrderSettings(batch_size=32, window_rows=8192, first_window_rows=4096, epoch=epoch)
        return EpochOrder(blocks, dataclasses.replace(chosen, limit=BatchLimit(**limit)))

    def padding(order):
        batches = [lengths[rows] for rows in batches_of(order)[::7]]
        return 1 - sum(each.sum() for each in batches) / sum(each.max() * len(each) for each in batches)

    assert padding(orders(0, rows=16_000)) > 0.4
    assert padding(orders(0, bucketed=True)) < 0.03
    assert padding(orders(0, rows=16_000, padded=True, bucketed=True)) < 0.03
    bucketed = orders(0, bucketed=True)
    assert {bucketed.batch_size_of(k) for k in range(bucketed.batches)} == {32}
    means = [lengths[rows].mean() for rows in batches_of(bucketed)[:200]]
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.4  # long and short ones take turns
    first, second = (frozenset(batches_of(orders(epoch, bucketed=True))[5]) for epoch in (0, 1))
    assert len(first & second) < 8


def test_a_batch_has_as_many_samples_as_fit():
    lengths = np.random.default_rng(0).integers(0, 50, 1000)
    edges = cut_by_rows(lengths, 64, BatchLimit(rows=300))
    for start, stop in itertools.pairwise(edges.tolist()):
        assert stop == 1000 or stop - start == 64 or lengths[start : stop + 1].sum() > 300
    edges = cut_by_rows(lengths, 200, BatchLimit(rows=9000, padded=True))
    for start, stop in itertools.pairwise(edges.tolist()):
        assert stop == 1000 or stop - start == 200 or lengths[start : stop + 1].max() * (stop + 1 - start) > 9000
