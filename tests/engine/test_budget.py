"""One number of bytes bounds what a loader holds, and a refusal names the number that would do."""

import numpy as np
import pytest
from support.inner import memory_available, processors
from support.making import make_file, vlen, write_datasets

from h5stream import H5StreamLoader
from h5stream.engine import sizing
from h5stream.errors import BudgetError


@pytest.fixture
def small_tasks(monkeypatch):
    """Scratch of a few KiB, so that slots and windows are what budgets are about."""
    monkeypatch.setattr(sizing, "TASK_NBYTES", 1024)


def test_a_window_that_a_budget_has_no_room_for_is_smaller_and_that_is_said(tmp_path, caplog, small_tasks):
    make_file(tmp_path / "a.h5", "x", None, data=np.arange(4000.0), chunks=(10,))
    given = {"batch_size": 10, "shuffle": True, "keep": "never", "num_workers": 1}
    size = H5StreamLoader(tmp_path / "a.h5", memory_budget="1GiB", **given).window_size
    assert (size.window_rows, size.notice, caplog.text) == (4000, "", "")
    small = H5StreamLoader(tmp_path / "a.h5", memory_budget=200_000, **given).window_size
    assert small.window_rows < 4000
    assert small.notice in caplog.text
    assert f"window: {small.window_rows:,} rows instead of 4,000" in small.notice
    assert (
        "memory_budget=200,000 bytes. Rows come in another order than with memory_budget=2147483648; " in small.notice
    )


def test_lists_count_with_the_arrays_and_tensors_that_they_are(tmp_path, small_tasks):
    rows, batch_size = 4000, 500
    write_datasets(tmp_path / "a.h5", x=vlen("f4", [np.arange(3)] * rows))
    with H5StreamLoader(tmp_path / "a.h5", batch_size, shuffle=True, window="all", num_workers=1) as loader:
        arrays, tensors = rows * (12 + 136), 2 * batch_size * 800  # resident memory, measured
        assert loader.window_size.needed_nbytes > arrays + tensors


@pytest.mark.parametrize("window", ["auto", "all", 500])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_the_number_that_a_loader_names_does(tmp_path, small_tasks, window, num_workers):
    # Kept datasets grow with the budget: the number must do with what it brings along, too.
    x = {"data": np.zeros((5000, 64), "f4"), "chunks": (1000, 64), "compression": "gzip"}
    write_datasets(tmp_path / "a.h5", x=x, **{f"y{k}": np.arange(5000) for k in range(20)})

    def make(memory_budget):
        return H5StreamLoader(
            tmp_path / "a.h5", 100, True, window=window, num_workers=num_workers, memory_budget=memory_budget
        )

    with pytest.raises(
        BudgetError, match=r"memory_budget=1,000 bytes is too small .*Pass memory_budget=\d+ or more"
    ) as e:
        make(1000)
    loader = make(e.value.needed)
    assert loader.window_size.needed_nbytes <= e.value.needed
    assert window == "auto" or loader.window_size.window_rows == (5000 if window == "all" else window)
    rows = np.concatenate([batch["y3"].numpy() for batch in loader])
    assert sorted(rows) == list(range(5000))
    with pytest.raises(BudgetError):
        make(e.value.needed - 1)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file of which an automatic window is not the whole, by any budget here."""
    path = str(tmp_path_factory.mktemp("large") / "a.h5")
    make_file(path, "x", None, shape=(4_000_000, 64), dtype="f4", chunks=(256, 64), compression="gzip")
    return path


def test_neither_threads_nor_what_is_free_choose_an_automatic_window(large, monkeypatch):
    sizes = set()
    for threads in (0, 1, 7, 64):
        for free in (0, 1 << 20, 1 << 40):
            memory_available(monkeypatch, free)
            loader = H5StreamLoader(large, 512, True, num_workers=threads, fields="x")
            sizes.add((loader.window_size.window_rows, loader.window_size.first_window_rows))
    assert len(sizes) == 1


def test_threads_that_nobody_chose_share_the_scratch_there_is(large, monkeypatch):
    processors(monkeypatch, 192)
    loader = H5StreamLoader(large, 512, True, memory_budget=64 << 20, fields="x")
    assert 1 <= loader.num_workers < 192


@pytest.mark.parametrize("window", ["auto", 100_000])
def test_threads_that_do_not_fit_are_left_out_with_a_notice_and_the_order_stays(large, window, caplog):
    def made(num_workers):
        return H5StreamLoader(
            large, 512, True, memory_budget=128 << 20, num_workers=num_workers, fields="x", window=window
        )

    few, many = made(1), made(1000)
    assert "num_workers=1000: " in caplog.text
    assert 1 <= many.num_workers < 1000
    assert few.window_size.window_rows == many.window_size.window_rows
    assert many.window_size.needed_nbytes <= 128 << 20
    assert next(iter(many)).shape == (512, 64)
