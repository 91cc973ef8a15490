"""The time to the first batch, predicted."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from inner import order_of

from h5stream import H5StreamLoader
from h5stream.advice import cost
from h5stream.advice.inspection import inspect_file


def predicted(path, monkeypatch, rate=1e9, **options):
    """Return what comes before the first batch where one thread undoes filters at a rate."""
    monkeypatch.setattr(cost, "decode_rate", lambda *part, seconds: rate)
    return inspect_file(path, batch_size=100, **options).sample.first_batch


def test_the_time_follows_from_threads_and_from_the_rate_of_decoding(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, rows in (("x", 20_000), ("few", 2000)):
            file.create_dataset(name, data=np.zeros((rows, 256), "f4"), chunks=(512, 256), compression="gzip")
    path, small = str(tmp_path / "a.h5"), {"fields": ["x"], "memory_budget": 12 << 20}
    kept = predicted(path, monkeypatch, threads=8, fields=["few"])
    assert kept.decoded_nbytes == pytest.approx(2000 * 1024, rel=0.05)  # in whole, and by one thread
    assert kept.seconds == pytest.approx((kept.decoded_nbytes + kept.read_nbytes) / 1e9)
    one, two = (predicted(path, monkeypatch, threads=threads, **small) for threads in (1, 2))
    assert one.seconds == pytest.approx((one.decoded_nbytes + one.read_nbytes) / 1e9)
    assert two.seconds == pytest.approx((two.decoded_nbytes + two.read_nbytes) / 2e9)
    slow = predicted(path, monkeypatch, rate=1e8, threads=1, **small)
    assert slow.seconds == pytest.approx(slow.decoded_nbytes / 1e8 + slow.read_nbytes / 1e9)


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
