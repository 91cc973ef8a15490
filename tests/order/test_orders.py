"""The order: each sample once an epoch over all ranks, from any batch on; a function of its inputs alone."""

import itertools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from listing import batches_of, taken_in_turn

from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks, listed_blocks, make_blocks
from h5stream.order.epoch import EpochOrder, RegroupedOrder, order_after
from h5stream.order.line import BatchLimit, OrderSettings, count_batches
from h5stream.order.sized import cut_by_rows, most_samples
from h5stream.order.weights import drawn_blocks

GOLDEN = [16, 17, 6, 15, 11, 9, 10, 7, 8, 12, 1, 14, 5, 0, 2, 3, 4, 13, 19, 18]


@dataclass(frozen=True)
class Case:
    """An epoch: its blocks, settings, the rows that must come, in file order, and where files begin."""

    blocks: Blocks
    chosen: OrderSettings
    rows: list[int]
    starts: tuple[int, ...]

    def of_ranks(self, world):
        """Give the order of each rank; none where so few rows cannot be shared out."""
        try:
            return [EpochOrder(self.blocks, replace(self.chosen, rank=k, world_size=world)) for k in range(world)]
        except OptionError:
            return []

    def check_size(self, rows, lengths):
        """Tell whether a batch is of a size that was asked for."""
        limit = self.chosen.limit
        assert 1 <= len(rows) <= self.chosen.batch_size
        if limit is None:
            return
        assert len(rows) <= most_samples(self.blocks.lengths, self.chosen.batch_size, limit)
        if limit.rows is not None:
            ours = [lengths[row] for row in rows]
            assert (max(ours) * len(ours) if limit.padded else sum(ours)) <= limit.rows


@st.composite
def cases(draw, kinds=("plain", "sized", "drawn"), shuffle=None):
    """Draw blocks of some files, of all their rows or of selected ones, as they are, with lengths, or drawn."""
    files, kind = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=4)), None
    starts = tuple(np.cumsum([0, *(rows for rows, _ in files)]).tolist())
    chosen = draw(st.none() | st.sets(st.integers(0, starts[-1] - 1), min_size=1))
    rows = None if chosen is None else np.array(sorted(chosen), dtype=np.int64)
    blocks = make_blocks(starts, tuple(size for _, size in files), rows)
    kind, window = draw(st.sampled_from(kinds)), draw(st.integers(1, 2 * blocks.total_rows))
    shuffle = draw(st.booleans()) if shuffle is None else shuffle
    settings = OrderSettings(
        batch_size=draw(st.integers(1, 30)),
        window_rows=window,
        first_window_rows=draw(st.integers(1, window)),
        shuffle=shuffle,
        drop_last=draw(st.booleans()),
        seed=draw(st.integers(0, 2**63)),
        epoch=draw(st.integers(0, 5)),
    )
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    if kind == "sized":
        blocks = replace(blocks, lengths=numbers.integers(0, draw(st.integers(1, 40)), blocks.total_rows))
        limited = draw(st.booleans())
        limit = BatchLimit(
            rows=draw(st.integers(max(1, int(blocks.lengths.max())), 200)) if limited else None,
            padded=draw(st.booleans()),
            bucketed=shuffle and (not limited or draw(st.booleans())),
        )
        settings = replace(settings, limit=limit)
    elif kind == "drawn":
        if draw(st.booleans()):
            blocks = replace(blocks, strata=np.arange(len(blocks.edges) - 1) % 3)
        times = numbers.integers(0, 8, blocks.total_rows)
        times[0] += 1
        places = np.repeat(np.arange(len(times)), times)
        expected = blocks.rows_at(places).tolist()
        blocks = drawn_blocks(blocks, places, shuffle=shuffle, window_rows=settings.first_window_rows)
        return Case(blocks, settings, expected, starts)
    return Case(blocks, settings, blocks.rows_at(np.arange(blocks.total_rows)).tolist(), starts)


@examples(600)
@given(cases(), st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_each_sample_comes_as_often_as_it_should_however_often_the_number_of_ranks_changes(case, worlds, random):
    lengths = dict(zip(case.rows, case.blocks.lengths.tolist(), strict=True)) if case.chosen.limit else {}
    batches, is_over = taken_in_turn(case.blocks, case.chosen, worlds, random.randint)
    for rows in batches:
        case.check_size(rows, lengths)
    lost, extra = Counter(case.rows), Counter(itertools.chain(*batches))
    assert not extra - lost
    if not case.chosen.drop_last:
        assert not is_over or not lost - extra
    elif case.chosen.limit is None:
        assert {len(rows) for rows in batches} <= {case.chosen.batch_size}
        most = sum(world * case.chosen.batch_size - 1 for world in worlds)
        assert not is_over or (lost - extra).total() <= most


@examples(400)
@given(cases(), st.integers(1, 5), st.integers(0, 200), st.integers(1, 6))
def test_ranks_have_as_many_batches_of_the_sizes_that_they_say_from_any_batch_on(case, world, first, at_once):
    ranks, size = case.of_ranks(world), case.chosen.batch_size
    every = [batches_of(order) for order in ranks]
    assert len(set(map(len, every))) <= 1
    for order, batches in zip(ranks, every, strict=True):
        sizes = [order.batch_size_of(k) for k in range(order.batches)]
        assert sizes == [len(rows) for rows in batches]
        if case.chosen.limit is None:  # only where another rank has one row more does the last full one give one away
            full = [one == size for one in sizes[:-1]]
            assert all(full[:-1])
            assert all(full) or (sizes[-2:] == [size - 1, 1] and world > 1)
        begin = min(first, order.batches)
        for some in (order, RegroupedOrder(order, at_once)):
            assert batches_of(some, begin) == batches[begin:]
        for window in RegroupedOrder(order, at_once).windows(begin):
            assert len(set(window.batch.tolist())) <= at_once
            if window.counts is not None:  # no span goes on in another file
                ends = window.rows + window.counts - 1
                files = [np.searchsorted(case.starts, rows, side="right").tolist() for rows in (window.rows, ends)]
                assert files[0] == files[1]
    if ranks and not case.chosen.shuffle:
        line = list(itertools.chain(*itertools.chain(*every)))
        assert world > 1 or line == case.rows[: len(line)]
        assert case.chosen.drop_last or line == case.rows


@examples(200)
@given(cases(("plain",)), st.integers(1, 5))
def test_windows_double_to_their_size_and_hold_whole_blocks_but_at_the_ends_of_a_ranks_run(case, world):
    edges, places = case.blocks.edges, {row: k for k, row in enumerate(case.rows)}
    for order in case.of_ranks(world):
        longest, size = int(np.diff(edges).max()), case.chosen.first_window_rows
        for rows in np.diff(order.window_edges)[:-1]:
            assert size <= rows < size + longest
            size = min(2 * size, case.chosen.window_rows)
        for k in range(len(order.window_edges) - 1):
            held = {places[int(row)] for row in order.outputs(k)[0]}
            blocks = np.unique(np.searchsorted(edges, sorted(held), side="right") - 1)
            cut = [block for block in blocks if not set(range(edges[block], edges[block + 1])) <= held]
            assert len(cut) <= (0 if 0 < k < len(order.window_edges) - 2 else 2)


# --- a function of its inputs ------------------------------------------------------------------------------------


def chosen_of(batch, window, **more):
    return OrderSettings(batch_size=batch, window_rows=window, **{"first_window_rows": window, **more})


def test_the_order_of_a_seed_never_changes():
    # Golden values: a checkpoint of last year must name the same rows.
    order = EpochOrder(make_blocks((0, 20), (3,)), chosen_of(8, 8, seed=7, epoch=2))
    assert [*itertools.chain(*batches_of(order))] == GOLDEN


def test_what_cannot_be_shared_out_is_refused_with_the_numbers():
    with pytest.raises(OptionError, match="the same number of batches"):
        count_batches(5, 2, chosen_of(1, 4, world_size=2))


def test_rows_beyond_32_bits_may_stand_anywhere_in_a_list():
    rows = np.array([5, 2**31 + 7, 2**40, 3])
    assert listed_blocks(rows, 2).rows_at(np.arange(4)).tolist() == rows.tolist()


def test_too_many_blocks_are_refused_before_they_are_made():
    with pytest.raises(OptionError, match="make 1,000,000,000 blocks"):
        make_blocks((0, 10**9), (1,))


# --- what other ranks left ---------------------------------------------------------------------------------------


def test_a_rest_that_cannot_be_cut_names_the_way_out_and_one_too_small_for_full_batches_is_empty():
    blocks, chosen = make_blocks((0, 100), (7,)), chosen_of(8, 30, first_window_rows=10, world_size=8, epoch=4)
    with pytest.raises(OptionError, match=r"left of epoch 4 .* 8 ranks: 4 rows .* set_epoch\(5\)"):
        order_after(blocks, chosen, ((2, 6),))
    order, first_batch = order_after(blocks, replace(chosen, drop_last=True), ((2, 5),))
    assert (order.batches, first_batch, list(order.windows())) == (0, 0, [])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_other_ranks_left_of_an_epoch_is_read_a_few_batches_at_a_time_as_well(ranks):
    chosen = chosen_of(10, 1000, rank=ranks - 1, world_size=ranks)
    order, first = order_after(make_blocks((0, 1000), (50,)), chosen, ((5, 3),))
    assert batches_of(RegroupedOrder(order, 4), first) == batches_of(order)[first:]
    assert max(len(window.rows) for window in RegroupedOrder(order, 4).windows(first)) <= 40


def test_all_rows_in_file_order_are_spans_and_not_a_number_for_each():
    chosen = chosen_of(10, 1000, shuffle=False)
    for at_once in (None, 7):
        windows = list(RegroupedOrder(EpochOrder(make_blocks((0, 1000), (1000,)), chosen), at_once).windows())
        assert sum(len(window.rows) for window in windows) == 100


# --- batches by size ---------------------------------------------------------------------------------------------


def test_batches_of_like_lengths_waste_little_and_are_others_in_each_epoch():
    lengths = np.random.default_rng(0).integers(1, 1000, 20_000)
    blocks = replace(make_blocks((0, 20_000), (10,)), lengths=lengths)

    def orders(epoch, **limit):
        return EpochOrder(blocks, chosen_of(32, 8192, first_window_rows=4096, epoch=epoch, limit=BatchLimit(**limit)))

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


@pytest.mark.parametrize(("most", "limit"), [(64, BatchLimit(rows=300)), (200, BatchLimit(rows=9000, padded=True))])
def test_a_batch_has_as_many_samples_as_fit(most, limit):
    lengths = np.random.default_rng(0).integers(0, 50, 1000)
    for start, stop in itertools.pairwise(cut_by_rows(lengths, most, limit).tolist()):
        one_more = lengths[start : stop + 1]
        size = one_more.max() * len(one_more) if limit.padded else one_more.sum()
        assert stop == 1000 or stop - start == most or size > limit.rows
