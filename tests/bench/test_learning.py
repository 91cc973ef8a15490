"""The experiment on learning: its orders are what they are called, and its windows those of a loader."""

import sys
from pathlib import Path

import h5py
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("bench.learning", reason="bench/ belongs to a checkout, not to an installed package")

from bench import learning  # noqa: E402
from h5stream import H5StreamLoader  # noqa: E402
from h5stream.order.blocks import make_blocks  # noqa: E402


def layout(rows=1000, block=10, batch=50, row_nbytes=1 << 16):
    blocks = make_blocks((0, rows), (block,))
    return learning.Layout(blocks=blocks, block_rows=block, batch_rows=batch, row_nbytes=row_nbytes)


@pytest.mark.parametrize("order", list(learning.ORDERS))
def test_every_order_gives_each_row_once(order):
    assert sorted(learning.line_of(layout().epoch(order, 3, 1)).tolist()) == list(range(1000))


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
