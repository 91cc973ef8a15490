"""Which samples an epoch takes and how often: the distributions, over 200 epochs and more, and their blocks."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder
from h5stream.order.line import OrderSettings
from h5stream.order.weights import (
    SourceShares,
    class_draws,
    distinct_draws,
    drawn_blocks,
    shared_out,
    source_draws,
    weighted_draws,
)

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


@given(st.integers(0, 10**6), st.lists(st.floats(0.01, 1), min_size=1, max_size=9))
def test_shares_of_a_number_add_up_to_it(total, shares):
    shares = np.array(shares) / sum(shares)
    found = shared_out(total, shares)
    assert sum(found) == total
    assert all(abs(count - total * share) <= 1 for count, share in zip(found, shares, strict=True))


@pytest.mark.parametrize("turns", [1, 3])
def test_blocks_of_several_sources_are_parted(turns):
    rows = np.array([0, 5, 1, 6, 2, 7] * turns)
    blocks = replace(make_blocks((0, len(rows)), (3,)), rows=rows)
    found = SourceShares(names=("a", "b"), starts=(0, 5), shares=(0.5, 0.5), stop="all").stratified(blocks)
    assert sorted(found.rows.tolist()) == sorted(rows.tolist())
    for low, high, source in zip(found.edges[:-1], found.edges[1:], found.strata, strict=True):
        assert ((found.rows[low:high] >= 5) == source).all()
