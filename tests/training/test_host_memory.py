"""Host memory: the DataLoader's queue, and the loader's one budget."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5stream import H5StreamLoader
from h5stream.advice.inspection import inspect_file
from h5stream.errors import OptionError
from h5stream.training.arithmetic import dataloader_memory, loader_memory

sizes = st.integers(1, 1 << 20)


def test_eight_workers_by_sixteen_batches_queue_128_batches_which_is_about_a_gigabyte():
    memory = dataloader_memory(row_bytes=1024, batch_size=8192, workers=8, prefetch_factor=16)
    assert (memory.figures["queued_batches"], memory.figures["queued_bytes"]) == (128, 1 << 30)
    assert "8 workers x 16 batches = 128 batches x 8.00 MiB = 1.00 GiB" in memory.arithmetic[1]


def test_twelve_workers_take_about_six_gigabytes_by_themselves():
    assert dataloader_memory(row_bytes=1, batch_size=1, workers=12).figures["worker_bytes"] == 6 << 30


def test_too_little_memory_is_said():
    setting = {"row_bytes": 1024, "batch_size": 8192, "workers": 8, "prefetch_factor": 16}
    assert dataloader_memory(**setting, available_bytes=1 << 30).caveats[0].startswith("more than there is")
    assert dataloader_memory(**setting, available_bytes=1 << 40).caveats[0].startswith("fits")


def test_the_window_is_the_most_of_four_batches_1024_blocks_and_256_mib():
    def rows(row_bytes, batch_size, chunk_bytes, **budget):
        found = loader_memory(row_bytes=row_bytes, batch_size=batch_size, chunk_bytes=chunk_bytes, **budget)
        return found.figures["window_rows"]

    for budget in ({}, {"memory_budget": 1 << 45}):
        assert rows(1024, 8192, 1 << 19, **budget) == 1024 * 512
        assert rows(1024, 8192, 1024, **budget) == 256 * 1024
        assert rows(1 << 13, 12_000, 1 << 13, **budget) == 4 * 12_000
        assert rows(8, 64, 8, **budget) == 1 << 20
        assert 500 * 1024 < rows(1024, 8192, 1 << 20, **budget) < 1024 * 1024  # of which two fit 2 GiB


def test_more_threads_cost_their_scratch_and_no_queue():
    one, eight = (loader_memory(row_bytes=1024, batch_size=8192, threads=threads) for threads in (1, 8))
    assert eight.figures["scratch_bytes"] == 8 * one.figures["scratch_bytes"]
    assert eight.figures["window_rows"] == one.figures["window_rows"]


@given(
    row=sizes,
    batch=sizes,
    threads=st.integers(0, 64),
    chunk=sizes,
    rows=st.none() | st.integers(1, 1 << 24),
    budget=st.integers(1, 1 << 40),
)
def test_a_budget_is_kept_or_the_number_that_would_do_is_given(row, batch, threads, chunk, rows, budget):
    options = {"row_bytes": row, "batch_size": batch, "threads": threads, "chunk_bytes": chunk, "rows": rows}
    free = loader_memory(**options, memory_budget=1 << 80)
    memory = loader_memory(**options, memory_budget=budget)
    assert memory.figures["fits"] == (memory.figures["total_bytes"] <= budget)
    assert memory.figures["fits"] == (budget >= memory.figures["smallest_budget_bytes"])
    assert 1 <= memory.figures["window_rows"] <= free.figures["window_rows"]
    assert memory.figures["capped"] == (memory.figures["window_rows"] < free.figures["window_rows"])
    assert loader_memory(**options, memory_budget=memory.figures["smallest_budget_bytes"]).figures["fits"]
    if not memory.figures["fits"]:
        assert str(memory.figures["smallest_budget_bytes"]) in str(memory)


@pytest.mark.parametrize(("rows", "budget"), [(20_000, None), (20_000, 24 << 20), (300_000, 96 << 20)])
def test_suggest_inspect_and_the_loader_name_one_number(tmp_path, rows, budget):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        chunk = np.random.default_rng(0).integers(0, 256, (1024, 1024), "u1")
        x = file.create_dataset("x", (rows, 1024), "u1", chunks=(1024, 1024), compression="gzip", compression_opts=1)
        for start in range(0, min(rows, 20_000), 1024):
            x[start : start + 1024] = chunk[: min(1024, rows - start)]
    loader = H5StreamLoader(path, 2048, shuffle=True, num_workers=2, memory_budget=budget)
    sample = inspect_file(path, batch_size=2048, memory_budget=budget, threads=2).sample
    assert sample.memory_nbytes == loader.window_size.needed_nbytes
    assert sample.shuffle.window_rows <= loader.window_size.window_rows + 1024
    said = loader_memory(row_bytes=1024, batch_size=2048, threads=2, rows=rows, memory_budget=budget)
    fresh = H5StreamLoader(path, 2048, shuffle=True, num_workers=2, memory_budget=budget, keep="never")
    assert said.figures["total_bytes"] == pytest.approx(fresh.window_size.needed_nbytes, rel=0.02)
    assert abs(said.figures["window_rows"] - loader.window_size.window_rows) <= 1024


def test_a_capped_window_says_what_it_does_to_the_shuffle():
    memory = loader_memory(row_bytes=1024, batch_size=8192, memory_budget=512 << 20)
    assert memory.figures["capped"]
    assert any("blocks at a time instead of 736" in caveat for caveat in memory.caveats)


@pytest.mark.parametrize("bad", [{"row_bytes": 0}, {"batch_size": 0}, {"workers": -1}, {"prefetch_factor": 0}])
def test_a_number_that_cannot_be_is_refused_by_name(bad):
    good = {"row_bytes": 1, "batch_size": 1, "workers": 1, "prefetch_factor": 1}
    with pytest.raises(OptionError, match=f"{next(iter(bad))} must be at least"):
        dataloader_memory(**good | bad)
