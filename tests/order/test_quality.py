"""The quality of an order: sensible at both ends, and in between."""

import numpy as np
import pytest

from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder
from h5stream.order.line import OrderSettings
from h5stream.order.quality import measure


def quality(window, *, shuffle=True, rows=8000, block=50, batch=100):
    settings = OrderSettings(batch_size=batch, window_rows=window, first_window_rows=window, shuffle=shuffle)
    return measure(EpochOrder(make_blocks((0, rows), (block,)), settings))


def test_a_full_shuffle_scores_about_one_and_meets_as_many_blocks_as_it_should():
    found = quality(8000)
    assert found.score > 0.6
    assert found.blocks_per_batch == pytest.approx(found.blocks_per_batch_full, rel=0.05)
    assert found.blocks_per_window == 160


def test_file_order_scores_about_nothing():
    found = quality(8000, shuffle=False)
    assert found.score < 0.01
    assert found.blocks_per_batch == 2


def test_a_larger_window_mixes_better():
    scores = [quality(window) for window in (50, 400, 2000, 8000)]
    assert all(np.diff([q.blocks_per_batch for q in scores]) > 0)
    assert all(np.diff([q.blocks_per_window for q in scores]) > 0)
    assert scores[0].score < scores[2].score


def test_a_single_batch_cannot_mix_badly():
    assert quality(8000, batch=8000).score == 1.0


def test_a_subset_counts_its_own_blocks():
    rows = np.arange(0, 8000, 10)
    settings = OrderSettings(batch_size=80, window_rows=800, first_window_rows=800)
    found = measure(EpochOrder(make_blocks((0, 8000), (50,), rows), settings))
    assert found.blocks_per_window == 160
