"""Rows that stay in memory once they are decoded: the same samples, each chunk decoded once, within the budget."""

import time

import h5py
import numpy as np
import pytest
from support.inner import stream_all
from support.making import corrupt_chunk
from support.sample_files import eventually, plain, write_sample

from h5stream import H5Dataset, H5StreamLoader
from h5stream.errors import CorruptChunkError

BUDGET = 64 << 20


@pytest.fixture(autouse=True)
def nothing_is_resident(monkeypatch):
    stream_all(monkeypatch)


def make(path, batch_size=48, **options):
    given = {"shuffle": True, "seed": 5, "window": 200, "memory_budget": BUDGET, "num_workers": 2, "fields": ["x", "y"]}
    return H5StreamLoader(path, batch_size, **{**given, **options})


def epochs(loader, count=3):
    return [[plain(batch) for batch in loader] for _ in range(count)]


def decoded(loader):
    """The bytes that each of three epochs decodes."""
    found = []
    for _ in range(3):
        list(loader)
        found.append(loader.stats().decoded_bytes)
    return found


def test_each_chunk_is_decoded_once(tmp_path):
    sample = write_sample(tmp_path, rows=4000)
    loader = make(sample.path, fields="x")
    assert decoded(loader) == [4000 * 16, 0, 0]
    assert loader.stats().memory_bytes == 4000 * 16  # as all of the newest epoch
    assert decoded(make(sample.path, fields="x", keep="never")) == [4000 * 16] * 3


def test_what_stays_is_decoded_while_a_slow_loop_holds_a_batch(tmp_path):
    sample = write_sample(tmp_path, rows=200_000, columns=64)
    loader = make(sample.path, fields="x", window=40_000, memory_budget=128 << 20)
    batches = iter(loader)
    next(batches)
    eventually(lambda: loader.stats().decoded_bytes == 200_000 * 256)  # of five windows, one of which was asked for
    assert loader.window_size.max_open_batches < len(loader) // 2
    assert len(list(batches)) == len(loader) - 1
    assert loader.stats().decoded_bytes == 200_000 * 256


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_corrupt_chunk_that_is_decoded_ahead_fails_the_batch_that_needs_it(tmp_path, workers):
    sample = write_sample(tmp_path, rows=4000)
    corrupt_chunk(sample.path, 100)
    options = {"fields": "x", "window": 400, "num_workers": workers}
    found = {}
    for keep in ("auto", "never"):
        loader, found[keep] = make(sample.path, keep=keep, **options), []
        batches = iter(loader)
        with pytest.raises(CorruptChunkError, match=r"chunk \(3200, 0\)"):
            found[keep].extend(plain(batch) for batch in batches if time.sleep(0.005) is None)
    assert 0 < len(found["auto"]) < 83
    shared = min(map(len, found.values()))  # a few before it may be lost, with either
    assert found["auto"][:shared] == found["never"][:shared]


def test_of_what_does_not_fit_a_part_is_kept(tmp_path):
    sample = write_sample(tmp_path, rows=20_000, columns=64)
    needed = make(sample.path, fields="x", keep="never").window_size.needed_nbytes
    part = make(sample.path, fields="x", memory_budget=needed + 10_000 * 256)
    first, second, third = decoded(part)
    assert first == 20_000 * 256
    assert second == third == (20_000 - 10_000 // 32 * 32) * 256


def test_a_smaller_automatic_window_leaves_room_for_all_that_is_decoded(tmp_path):
    """Where something is not decoded, and so read for each window, all of one is in memory beside what stays there."""
    with h5py.File(write_sample(tmp_path, rows=200_000, columns=64, compression="lzf").path, "r+") as file:
        file.create_dataset("plain", data=np.ones((200_000, 2), "f4"), chunks=(32, 2))
        path = file.filename
    options = {"fields": ["x", "plain"], "window": "auto", "batch_size": 1000, "memory_budget": 72 << 20}
    kept, fresh = make(path, **options), make(path, keep="never", **options)
    assert [nbytes - 200_000 * 8 for nbytes in decoded(kept)] == [200_000 * 256, 0, 0]
    assert fresh.window_size.window_rows // 4 <= kept.window_size.window_rows < fresh.window_size.window_rows
    assert kept.window_size.needed_nbytes <= options["memory_budget"]
    options["memory_budget"] = 60 << 20  # of which windows would have too little
    kept, fresh = make(path, **options), make(path, keep="never", **options)
    assert kept.window_size.window_rows == fresh.window_size.window_rows


def test_kept_rows_count_in_what_is_held_and_go_with_close(tmp_path):
    sample = write_sample(tmp_path)
    # One thread needs the same slots each time; of several, the faster take fewer.
    loader, fresh = (make(sample.path, keep=keep, num_workers=0) for keep in ("auto", "never"))
    for each in (loader, fresh):
        list(each)
    assert loader.held_nbytes - fresh.held_nbytes >= 1000 * 16
    loader.close()
    assert loader.held_nbytes == 0
    assert epochs(loader, 1) == epochs(fresh, 1)  # begins anew


def test_few_rows_of_a_file_are_not_kept(tmp_path):
    sample = write_sample(tmp_path)
    assert not make(H5Dataset(sample.path, ["x", "y"], rows=range(0, 1000, 3)), fields=None).window_size.kept_rows
    assert make(H5Dataset(sample.path, ["x", "y"], rows=range(900)), fields=None).window_size.kept_rows


def test_loaders_of_the_same_fields_share_what_is_kept(tmp_path):
    sample = write_sample(tmp_path, rows=4000)
    train, val = H5Dataset(sample.path, "x").split(0.9, seed=1)
    again = H5Dataset(sample.path, "x", rows=range(10))
    loader = make(train, fields=None)
    list(loader)
    for other in (val, again):
        one, fresh = make(other, fields=None, seed=1), make(other, fields=None, seed=1, keep="never")
        assert epochs(one, 1) == epochs(fresh, 1)
        assert (one.stats().decoded_bytes, fresh.stats().decoded_bytes > 0) == (0, True)
    wider = make(H5Dataset(sample.path, ["x", "y"]), fields=None)
    list(wider)
    assert wider.stats().decoded_bytes > 0
    for each in (loader, one):
        each.close()
    assert decoded(make(val, fields=None))[0] > 0  # no loader has it any more
