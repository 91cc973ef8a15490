"""The time to the first batch, predicted."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from inner import order_of

from h5stream import H5StreamLoader
from h5stream.advice.cost import DatasetCost, predict_first_batch
from h5stream.advice.inspection import inspect_file
from h5stream.order.blocks import make_blocks
from h5stream.order.epoch import EpochOrder
from h5stream.order.line import OrderSettings


def cost(**given):
    return DatasetCost(
        **{"path": "x", "chunks": 10, "times_read": 1.0, "read_nbytes": 1e9, "decoded_nbytes": 0.0, **given}
    )


def predicted(*costs, rates=None, window_rows=10, threads=1):
    settings = OrderSettings(batch_size=2, window_rows=window_rows, first_window_rows=window_rows)
    order = EpochOrder(make_blocks((0, 100), (5,)), settings)
    return predict_first_batch(costs, rates or [None] * len(costs), order, threads)


def test_twice_the_threads_take_half_the_time():
    assert predicted(cost(), threads=2).seconds == pytest.approx(predicted(cost()).seconds / 2)


def test_what_is_kept_is_read_in_whole_and_by_one_thread():
    kept = predicted(cost(kept=True), threads=8)
    assert (kept.read_nbytes, kept.seconds) == (1e9, predicted(cost(), window_rows=100).seconds)


def test_a_measured_rate_takes_the_place_of_the_assumed():
    slow = predicted(cost(decoded_nbytes=1e9), rates=[1e8])
    assert slow.seconds == pytest.approx(0.1 + 1.0)
    assert predicted(cost(decoded_nbytes=1e9)).seconds == pytest.approx(0.1 + 0.1)


def test_inspect_names_the_first_window_that_the_loader_reads(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros((200_000, 256), "f4"), chunks=(512, 256), compression="gzip")
    found = inspect_file(path, batch_size=1000, memory_budget=1 << 30, threads=2).sample.first_batch
    loader = H5StreamLoader(path, 1000, shuffle=True, memory_budget=1 << 30)
    window = next(order_of(loader, 0).windows())
    assert found.window_rows == len(window.rows) < 200_000
    assert found.decoded_nbytes == pytest.approx(len(window.rows) * 1024, rel=0.02)
    assert found.seconds > 0


@pytest.mark.parametrize("fits", [True, False])
def test_an_automatic_window_begins_small_also_where_it_is_the_whole_file(tmp_path, fits):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (300_000, 256), "f4", chunks=(512, 256), compression="gzip")
    loader = H5StreamLoader(path, 1000, shuffle=True, seed=0, memory_budget=(2 << 30) if fits else (256 << 20))
    assert (loader.window_size.window_rows == 300_000) == fits
    first, second, *_ = (len(window.rows) for window in order_of(loader, 0).windows())
    assert first <= 66_000
    assert second <= 2 * first + 512  # a window goes on to a block's edge
