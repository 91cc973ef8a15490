"""The order: each sample once an epoch over all ranks, from any batch on; a function of its inputs alone."""

import itertools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.amounts import examples

from h5stream.compiled._native import shuffled_into
from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks, listed_blocks, make_blocks
from h5stream.order.epoch import BatchLimit, EpochOrder, OrderSettings, RegroupedOrder
from h5stream.order.places import BUCKET, permutation
from h5stream.order.quality import forecast
from h5stream.order.shares import cut_by_rows, most_samples
from h5stream.order.weights import class_draws, distinct_draws, drawn_blocks, source_draws, weighted_draws

GOLDEN = [16, 17, 6, 15, 11, 9, 10, 7, 8, 12, 1, 14, 5, 0, 2, 3, 4, 13, 19, 18]


def batches_of(order, first_batch=0):
    """List the rows of each batch from one on; each place is filled once, and none is left empty."""
    found = [{} for _ in range(first_batch, order.batches)]
    for window in order.windows(first_batch):
        counts = [1] * len(window.rows) if window.counts is None else window.counts.tolist()
        where = (window.rows.tolist(), counts, window.batch.tolist(), window.within.tolist())
        for row, count, batch, within in zip(*where, strict=True):
            assert count > 0
            for k in range(count):
                assert within + k not in found[batch - first_batch]
                found[batch - first_batch][within + k] = row + k
    return [[rows[k] for k in range(len(rows))] for rows in found]


def taken_in_turn(blocks, chosen, worlds, until):
    """Give the batches that some numbers of ranks take of an epoch in turn, and whether that was all of it.

    `until` says after how many batches, of those from one to another, all but the last of them are stopped. It ends
    before where so little is left that no equal number of batches exists.
    """
    taken, seen = (), []
    for turn, world in enumerate(worlds, 1):
        try:
            before, first = (taken[:-1], taken[-1][1]) if taken and taken[-1][0] == world else (taken, 0)
            ranks = [EpochOrder(blocks, replace(chosen, rank=r, world_size=world), before) for r in range(world)]
        except OptionError:
            return seen, False
        assert len({order.batches for order in ranks}) == 1
        batches = ranks[0].batches
        last = batches if turn == len(worlds) else until(first, batches)
        seen += [rows for order in ranks for rows in batches_of(RegroupedOrder(order, turn), first)[: last - first]]
        taken = (*before, (world, last)) if last else before
    return seen, True


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


# --- a function of its inputs ------------------------------------------------------------------------------------


def chosen_of(batch, window, **more):
    return OrderSettings(batch_size=batch, window_rows=window, **{"first_window_rows": window, **more})


def test_the_order_of_a_seed_never_changes():
    # Golden values: a checkpoint of last year must name the same rows.
    order = EpochOrder(make_blocks((0, 20), (3,)), chosen_of(8, 8, seed=7, epoch=2))
    assert [*itertools.chain(*batches_of(order))] == GOLDEN


def test_places_in_a_window_may_need_more_bits_than_those_of_what_is_left(monkeypatch):
    monkeypatch.setattr("h5stream.order.epoch.place_dtype", lambda n: np.int8 if n <= 127 else np.int64)
    settings = OrderSettings(batch_size=50, window_rows=400, first_window_rows=400, world_size=2)
    blocks = make_blocks((0, 300), (300,))
    orders = [EpochOrder(blocks, replace(settings, rank=rank), taken=((1, 2),)) for rank in (0, 1)]
    assert [len(np.unique(batch)) for order in orders for batch in batches_of(order)] == [50, 50] * 2


def test_batches_of_padded_samples_look_at_few_lengths_that_do_not_fit():
    looked = []

    class Lengths(np.ndarray):
        def __getitem__(self, index):
            looked.append(index.stop - index.start if isinstance(index, slice) else 1)
            return super().__getitem__(index)

    lengths = np.where(np.arange(10_000) % 4, 500, 0).view(Lengths)
    edges = cut_by_rows(lengths, 5_000, BatchLimit(rows=1000, padded=True))
    assert max(np.diff(edges)) == 2
    assert max(looked) <= 64


def test_rows_beyond_32_bits_may_stand_anywhere_in_a_list():
    rows = np.array([5, 2**31 + 7, 2**40, 3])
    assert listed_blocks(rows, 2).rows_at(np.arange(4)).tolist() == rows.tolist()


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


# --- what is expected of an order --------------------------------------------------------------------------------


def measured(order):
    """Return distinct blocks of a batch and of a window, and by how much batch means scatter less than they do."""
    batches = [np.array(rows) for rows in batches_of(order)]
    windows = [order.outputs(k)[0] for k in range(len(order.window_edges) - 1)]
    held = [
        [len(np.unique(np.searchsorted(order.blocks.edges, r, side="right"))) for r in s] for s in (batches, windows)
    ]
    size, total = len(batches[0]), order.rows
    full = [rows.mean() for rows in batches if len(rows) == size]
    expected = np.arange(total).var() / size * (total - size) / (total - 1)
    return {
        "blocks_per_batch": np.mean(held[0]),
        "blocks_per_window": np.mean(held[1]),
        "score": min(1.0, expected / np.var(full)),
    }


@pytest.mark.parametrize(
    ("rows", "block", "batch", "window", "first"),
    [(50_000, 100, 500, 10_000, 5_000), (20_000, 10, 100, 1_000, 1_000), (30_000, 10, 256, 30_000, 640)],
)
def test_the_forecast_is_what_measuring_gives_on_average(rows, block, batch, window, first):
    orders = [
        EpochOrder(
            make_blocks((0, rows), (block,)),
            OrderSettings(batch_size=batch, window_rows=window, first_window_rows=first, seed=seed),
        )
        for seed in range(5)
    ]
    done, expected = [measured(o) for o in orders], [forecast(o) for o in orders]
    for name, tolerance in (("blocks_per_batch", 0.06), ("blocks_per_window", 1e-9), ("score", 0.2)):
        a = np.mean([q[name] for q in done])
        b = np.mean([getattr(q, name) for q in expected])
        assert a == pytest.approx(b, rel=tolerance), name


# --- permutations ------------------------------------------------------------------------------------------------


def test_another_key_is_another_permutation():
    # A seed of 33 bits must not run into the epoch that follows it.
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2**32, 0), (2**32, 1), (1, 2**32), (2**40, 7)]
    assert len({tuple(permutation(50, *key)) for key in keys}) == len(keys)


def test_a_permutation_of_several_buckets_has_each_number_once_and_stays_the_same():
    count = 2 * BUCKET + 12345
    found = permutation(count, 3, 1)
    assert np.array_equal(np.sort(found), np.arange(count))
    assert found[[0, 1, 2, BUCKET, count - 1]].tolist() == [95191, 125389, 838185, 1835163, 377548]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_small_buckets_are_shuffled_evenly(kind):
    # All 24 permutations of 4, of two buckets: 6,000 draws are 250 of each with a standard deviation of 15.
    counts = Counter()
    for seed in range(6000):
        numbers, state = np.empty(4, kind), np.random.SeedSequence(seed).generate_state(4, np.uint64)
        shuffled_into(numbers, np.zeros(3, np.int64), state)
        counts[tuple(numbers.tolist())] += 1
    assert len(counts) == 24
    assert max(abs(count - 250) for count in counts.values()) < 5 * 15


# --- which samples an epoch takes and how often: distributions over 200 epochs and more --------------------------


EPOCHS = 200


def check_chi_square(seen, expected):
    """Hold a sum of squares to what chance gives: neither too far from what is expected, nor suspiciously near."""
    seen, expected = np.asarray(seen, float), np.asarray(expected, float)
    assert seen[expected == 0].sum() == 0
    some = expected > 0
    freedom = some.sum() - 1
    found = ((seen[some] - expected[some]) ** 2 / expected[some]).sum()
    assert abs(found - freedom) < 4 * np.sqrt(2 * freedom), (found, freedom)


def counts_of(draws, places, seed=0):
    """Give how often each place came in each of 200 epochs."""
    return np.stack([np.bincount(draws.places(seed, epoch), minlength=places) for epoch in range(EPOCHS)])


@pytest.mark.parametrize("power", [0, 1, 8, 60])
def test_counts_with_replacement_are_multinomial(power):
    weights = np.random.default_rng(power).random(300) ** power
    weights[7:20] = 0
    draws = weighted_draws(weights * 1e-200, 2000)
    seen = counts_of(draws, 300)
    assert (seen.sum(axis=1) == 2000).all()
    share = weights / weights.sum()
    wanted = 2000 * EPOCHS * share
    often = wanted >= 5
    check_chi_square(np.append(seen.sum(axis=0)[often], seen.sum(axis=0)[~often].sum()),
                     np.append(wanted[often], wanted[~often].sum()))  # fmt: skip
    # Epochs are independent, and so are draws: the spread of each count is a binomial's.
    spread = seen.var(axis=0, ddof=1)[often] / (2000 * share * (1 - share))[often]
    assert abs(spread.mean() - 1) < 0.1


def test_without_replacement_sets_are_as_likely_as_drawing_one_after_the_other():
    weights = np.array([1.0, 2.0, 3.0, 0.0, 4.0, 0.5])
    draws, wanted = distinct_draws(weights, 3), {}
    for drawn in itertools.permutations([0, 1, 2, 4, 5], 3):
        likely, left = 1.0, weights.sum()
        for place in drawn:
            likely *= weights[place] / left
            left -= weights[place]
        wanted[tuple(sorted(drawn))] = wanted.get(tuple(sorted(drawn)), 0) + likely
    sets = [tuple(draws.places(1, epoch).tolist()) for epoch in range(4000)]
    check_chi_square([sets.count(each) for each in wanted], [4000 * likely for likely in wanted.values()])


def test_classes_come_as_often_as_said_and_their_samples_alike():
    classes = np.random.default_rng(1).choice(3, 400, p=[0.9, 0.08, 0.02])
    seen = counts_of(class_draws(classes, [90, 100, 110]), 400)
    for number, count in enumerate([90, 100, 110]):
        ours = seen[:, classes == number]
        assert (ours.sum(axis=1) == count).all()
        few, many = divmod(count, ours.shape[1])[0], -(-count // ours.shape[1])
        assert set(np.unique(ours).tolist()) <= {few, many}
        size, over = ours.shape[1], count % ours.shape[1]
        # Without replacement counts stray less than a multinomial's, by (size - over) / (size - 1).
        chosen = (ours - few).sum(axis=0)
        expected = EPOCHS * over / size
        found = ((chosen - expected) ** 2 / expected).sum() / ((size - over) / size)
        assert abs(found - (size - 1)) < 4 * np.sqrt(2 * (size - 1))


def test_which_blocks_of_a_source_an_epoch_takes_is_chance():
    blocks = replace(make_blocks((0, 100), (10,)), strata=np.zeros(10, dtype=np.int64))
    seen = sum(np.bincount(source_draws(blocks, [20]).places(seed, 0), minlength=100) for seed in range(1000))
    assert (seen.reshape(10, 10) == seen[::10, None]).all()  # whole blocks
    check_chi_square(seen[::10] / 0.8, np.full(10, 200) / 0.8)  # of 10 two are chosen, never the same one


def test_copies_of_a_block_that_was_drawn_often_are_spread_over_the_epoch():
    blocks = make_blocks((0, 100_000), (100,))
    classes = (np.arange(100_000) < 1000).astype(int)  # 10 of 1,000 blocks
    places = class_draws(classes, [50_000, 50_000]).places(0, 0)
    drawn = drawn_blocks(blocks, places, shuffle=True, window_rows=20_000)
    order = EpochOrder(drawn, OrderSettings(batch_size=100, window_rows=20_000, first_window_rows=20_000))
    for window in order.windows():
        assert 0.35 < (window.rows < 1000).mean() < 0.65
