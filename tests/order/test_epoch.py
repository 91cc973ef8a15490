"""The order: each row once an epoch over all ranks, resumable, a function of its inputs alone."""

import dataclasses
import itertools

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from listing import batches_of

from h5stream.errors import OptionError
from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder
from h5stream.order.line import OrderSettings, count_batches

GOLDEN = [16, 17, 6, 15, 11, 9, 10, 7, 8, 12, 1, 14, 5, 0, 2, 3, 4, 13, 19, 18]
FILES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=4)


@st.composite
def orders(draw, shuffle=None, drop_last=None, subset=None):
    """Draw blocks and settings, and give the orders of all ranks; cases that cannot be are left out."""
    files = draw(FILES)
    starts = tuple(np.cumsum([0, *(rows for rows, _ in files)]).tolist())
    rows = None
    if draw(st.booleans()) if subset is None else subset:
        mask = draw(st.integers(1, 2 ** starts[-1] - 1))
        rows = np.array([k for k in range(starts[-1]) if mask >> k & 1], dtype=np.int64)
    blocks = make_blocks(starts, tuple(size for _, size in files), rows)
    window = draw(st.integers(1, 2 * blocks.total_rows))
    chosen = OrderSettings(
        batch_size=draw(st.integers(1, 30)),
        window_rows=window,
        first_window_rows=draw(st.integers(1, window)),
        shuffle=draw(st.booleans()) if shuffle is None else shuffle,
        drop_last=draw(st.booleans()) if drop_last is None else drop_last,
        seed=draw(st.integers(0, 2**63)),
        epoch=draw(st.integers(0, 5)),
        world_size=draw(st.integers(1, 5)),
    )
    try:
        return [EpochOrder(blocks, dataclasses.replace(chosen, rank=rank)) for rank in range(chosen.world_size)]
    except OptionError:
        return []


def all_rows(order):
    return order.blocks.rows_at(np.arange(order.blocks.total_rows)).tolist()


@examples(300)
@given(orders(drop_last=False))
def test_each_row_comes_exactly_once_an_epoch_over_all_ranks(ranks):
    seen = sorted(row for order in ranks for rows in batches_of(order) for row in rows)
    assert not ranks or seen == all_rows(ranks[0])


@examples(200)
@given(orders(drop_last=True))
def test_with_drop_last_every_batch_of_every_rank_is_full_and_no_row_comes_twice(ranks):
    seen = []
    for order in ranks:
        for rows in batches_of(order):
            assert len(rows) == order.settings.batch_size
            seen += rows
    assert len(set(seen)) == len(seen)
    if ranks:
        left_out = len(all_rows(ranks[0])) - len(seen)
        assert 0 <= left_out < ranks[0].settings.batch_size * len(ranks)


@examples(300)
@given(orders())
def test_every_rank_has_as_many_batches_and_none_is_empty_or_too_large(ranks):
    assert len({order.batches for order in ranks}) <= 1
    for order in ranks:
        sizes = [order.batch_size_of(k) for k in range(order.batches)]
        assert sizes == [len(rows) for rows in batches_of(order)]
        assert sum(sizes) == order.rows
        assert all(1 <= size <= order.settings.batch_size for size in sizes)
        # Only where another rank has one row more does the last full batch give one away.
        full = [size == order.settings.batch_size for size in sizes[:-1]]
        assert all(full[:-1])
        assert all(full) or (sizes[-2:] == [order.settings.batch_size - 1, 1] and len(ranks) > 1)


@examples(200)
@given(orders(), st.integers(0, 200))
def test_resuming_at_a_batch_gives_the_tail_of_the_epoch(ranks, first):
    for order in ranks:
        first_batch = min(first, order.batches)
        assert batches_of(order, first_batch) == batches_of(order)[first_batch:]


@examples(200)
@given(orders(shuffle=False, drop_last=False))
def test_without_shuffling_the_rows_come_in_file_order(ranks):
    rows = [row for order in ranks for row in line_of(order)]
    assert not ranks or rows == all_rows(ranks[0])


@examples(200)
@given(orders())
def test_a_window_holds_whole_blocks_but_at_the_ends_of_a_ranks_run(ranks):
    for order in ranks:
        edges = order.blocks.edges
        places = {row: k for k, row in enumerate(all_rows(order))}
        for k in range(len(order.window_edges) - 1):
            rows, _ = order.outputs(k)
            held = {places[int(row)] for row in rows}
            cut = [
                block
                for block in np.unique(np.searchsorted(edges, sorted(held), side="right") - 1)
                if not set(range(edges[block], edges[block + 1])) <= held
            ]
            inner = 0 < k < len(order.window_edges) - 2
            assert len(cut) <= (0 if inner else 2)


@examples(100)
@given(orders())
def test_the_first_windows_double_until_they_have_the_size_that_was_asked_for(ranks):
    for order in ranks:
        chosen, longest = order.settings, int(np.diff(order.blocks.edges).max())
        size = chosen.first_window_rows
        for rows in np.diff(order.window_edges)[:-1]:
            assert size <= rows < size + longest
            size = min(2 * size, chosen.window_rows)


def order_of(rows, block, batch, window, **more):
    chosen = OrderSettings(batch_size=batch, window_rows=window, first_window_rows=more.pop("first", window), **more)
    return EpochOrder(make_blocks((0, rows), (block,)), chosen)


def line_of(order):
    return list(itertools.chain(*batches_of(order)))


def test_the_order_of_a_seed_never_changes():
    # Golden values: a checkpoint of last year must name the same rows.
    assert line_of(order_of(20, 3, 8, 8, seed=7, epoch=2)) == GOLDEN


def test_seed_and_epoch_each_change_the_order():
    lines = [line_of(order_of(200, 5, 8, 50, seed=s, epoch=e)) for s in (0, 1, 2**40) for e in (0, 1)]
    assert len({tuple(line) for line in lines}) == 6


def test_ranks_own_runs_of_the_line_so_that_a_block_is_read_by_two_at_most():
    ranks = [order_of(1000, 10, 16, 200, world_size=7, rank=r, seed=3) for r in range(7)]
    readers = {}
    for rank, order in enumerate(ranks):
        for row in line_of(order):
            readers.setdefault(row // 10, set()).add(rank)
    assert max(len(found) for found in readers.values()) <= 2
    assert sum(len(found) == 2 for found in readers.values()) <= 6


@pytest.mark.parametrize(
    ("rows", "options", "why"),
    [
        (5, {"batch_size": 8, "drop_last": True}, "drop_last=True leaves no batch: 5 rows"),
        (3, {"batch_size": 2, "world_size": 4}, "3 rows cannot give each of 4 ranks one"),
        (5, {"batch_size": 1, "world_size": 2}, "the same number of batches"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_with_the_numbers(rows, options, why):
    with pytest.raises(OptionError, match=why):
        count_batches(rows, options.get("world_size", 1), OrderSettings(window_rows=4, first_window_rows=4, **options))


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"window_rows": 0}, {"first_window_rows": 0}, {"seed": -1}, {"epoch": -1}, {"rank": 1}],
)
def test_settings_that_break_a_rule_are_named(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        OrderSettings(**{"batch_size": 4, "window_rows": 4, "first_window_rows": 4, **wrong})
