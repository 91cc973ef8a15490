"""The experiment on learning: its orders are what they are called, and seeds do not mix."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("bench.learning", reason="bench/ belongs to a checkout, not to an installed package")

from bench import learning  # noqa: E402
from bench.learning_data import Data  # noqa: E402
from h5stream import H5StreamLoader  # noqa: E402
from h5stream.order.blocks import make_blocks  # noqa: E402


def layout(rows=1000, block=10, batch=50, row_nbytes=1 << 16):
    blocks = make_blocks((0, rows), (block,))
    return learning.Layout(blocks=blocks, block_rows=block, batch_rows=batch, row_nbytes=row_nbytes)


def toy():
    rng = np.random.default_rng(0)
    y = np.sort(rng.integers(0, 3, 600))
    x = (np.eye(3)[y] * 2 + rng.normal(0, 1, (600, 3))).astype(np.float32)
    return Data(x=x, y=y, session=y, test_x=x[::5], test_y=y[::5], batch_rows=50, epochs=1, small_block=5,
                large_block=200, row_nbytes=12)  # fmt: skip


@pytest.mark.parametrize("order", list(learning.ORDERS))
def test_every_order_gives_each_row_once(order):
    assert sorted(learning.line_of(layout().epoch(order, 3, 1)).tolist()) == list(range(1000))


def test_blocks_only_keeps_rows_of_a_block_together_and_none_keeps_all():
    line = learning.line_of(layout().epoch("blocks only", 0, 0)) // 10
    assert (line.reshape(100, 10) == line[::10, None]).all()
    assert learning.line_of(layout().epoch("none", 0, 0)).tolist() == list(range(1000))


def test_an_automatic_window_is_the_loaders_rule():
    assert layout(rows=100_000, block=10, batch=50).window_rows("auto") == 10_240
    assert layout(rows=100_000, block=10, batch=8192).window_rows("auto") == 32_768
    assert layout().window_rows("auto") == 1000
    assert layout(rows=10**6, row_nbytes=1024).window_rows("auto") == 262_144


def test_an_automatic_window_is_the_one_of_a_loader_over_such_a_file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (50_000, 16), "f4", chunks=(32, 16))
        file.create_dataset("y", (50_000,), "i8", chunks=(32,))
    with H5StreamLoader(tmp_path / "a.h5", 1024, shuffle=True, fields=["x", "y"]) as loader:
        ours = layout(rows=50_000, block=32, batch=1024, row_nbytes=72)
        assert loader.window_size.window_rows == ours.window_rows("auto") == 50_000
    with h5py.File(tmp_path / "wide.h5", "w") as file:
        file.create_dataset("x", (50_000, 4096), "f4", chunks=(32, 4096))
    with H5StreamLoader(tmp_path / "wide.h5", 1024, shuffle=True) as loader:
        ours = layout(rows=50_000, block=32, batch=1024, row_nbytes=4 * 4096)
        assert loader.window_size.window_rows == ours.window_rows("auto") == 32_768


def test_a_first_window_that_is_small_has_64_blocks_and_the_next_ones_double():
    ours = layout(rows=100_000, block=10, batch=50, row_nbytes=1 << 20)
    edges = np.asarray(ours.epoch("auto, first small", 0, 0).window_edges)
    assert np.diff(edges).tolist()[:6] == [640, 1280, 2560, 5120, 10_240, 10_240]


def test_the_first_epoch_alone_begins_with_8_blocks():
    ours = layout(rows=600, block=10)
    edges = [np.diff(ours.epoch("auto, first 8 once", 0, epoch).window_edges).tolist() for epoch in (0, 1)]
    assert edges == [[80, 160, 320, 40], [600]]


def test_orders_are_left_out_only_where_that_is_written():
    assert "auto, first small" not in learning.orders_of("digits")
    assert set(learning.ORDERS) - set(learning.orders_of("many blocks")) == {"16 blocks", "auto, first 8 once"}


def test_the_placebo_is_a_full_shuffle_with_other_rows_first():
    one, other = (learning.line_of(layout().epoch(name, 0, 0)) for name in ("full", "full, other seeds"))
    assert one.tolist() != other.tolist()


def test_training_in_file_order_harms_a_sorted_file_and_the_score_says_so():
    data, where = toy(), layout(rows=600, block=200)
    full, none = (
        learning.train("logistic regression", data, data.x, data.y, learning.lines_of(where, order, data.epochs))[0]
        for order in ("full", "none")
    )
    assert np.mean(none) > np.mean(full) * 1.1
    assert learning.score_of(where, "none") < 0.2 < learning.score_of(where, "full")


def test_training_twice_gives_the_same_losses():
    data, where = toy(), layout(rows=600, block=5)
    lines = learning.lines_of(where, "auto", data.epochs)
    assert learning.train("MLP", data, data.x, data.y, lines) == learning.train("MLP", data, data.x, data.y, lines)
