"""`loader.stats()`: counts are exact, shares are shares, and nothing is counted twice."""

import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from support.amounts import crossed
from support.inner import around, around_reads, run_of, stream_all
from support.making import make_file
from support.recording import record_reads
from support.sample_files import carry_out_in_python, eventually, one_epoch_at_a_time

from h5stream import H5StreamLoader
from h5stream.engine.statistics import LoaderStatistics, combined
from h5stream.storage.file.h5py_reader import H5pyReader

ROWS, WIDTH = 4096, 64


@pytest.fixture
def reads(monkeypatch):
    """What the files were really asked for: a list of byte counts."""
    one_epoch_at_a_time(monkeypatch)  # what is read ahead is counted with the next
    carry_out_in_python(monkeypatch)
    return record_reads(monkeypatch)


def write(path, *, chunks=(256, WIDTH), dtype="f4", **filters):
    rows = np.random.default_rng(0).integers(0, 9, (ROWS, WIDTH)).astype(dtype)
    return make_file(path, "x", None, data=rows, chunks=chunks, **filters)


def epoch(path, reads=None, **options):
    """Stream an epoch and give its statistics."""
    with H5StreamLoader(path, **({"batch_size": 512, "shuffle": True, "fields": "x"} | options)) as loader:
        if reads is not None:
            reads.clear()  # opening compares the first chunk with h5py
        for _ in loader:
            pass
        return loader.stats()


KINDS = {
    "gzip": {"compression": "gzip"},
    "gzip and shuffle": {"compression": "gzip", "shuffle": True},
    "small chunks": {"compression": "gzip", "chunks": (8, WIDTH)},
    "side by side": {"compression": "gzip", "chunks": (1024, 16)},
    "no filter": {},
    "contiguous": {"chunks": None},
}


@pytest.mark.parametrize(("kind", "threads", "keep"), crossed(tuple(KINDS), (0, 2), (False, True)))
def test_what_is_counted_is_what_the_files_were_asked_for(tmp_path, reads, monkeypatch, kind, threads, keep):
    if not keep:
        stream_all(monkeypatch)
    path = write(tmp_path / "a.h5", **KINDS[kind])
    found = epoch(path, reads, num_workers=threads)
    assert (found.read_bytes, found.reads) == (sum(reads), len(reads))
    assert (found.rows, found.batches) == (ROWS, 8)
    assert found.delivered_bytes == found.decoded_bytes == ROWS * WIDTH * 4
    assert found.read_amplification == 1.0
    assert found.h5py_bytes == 0
    if kind.startswith(("gzip", "small")):  # one by one, also where they are stacked
        assert found.chunks == ROWS // KINDS[kind].get("chunks", (256,))[0]


def test_an_order_that_tears_chunks_apart_shows_as_amplification(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    path = write(tmp_path / "a.h5", compression="gzip")
    rows = np.arange(ROWS).reshape(256, 16).T.reshape(-1).tolist()  # each batch has one row of every 16
    found = epoch(path, batch_size=64, shuffle=None, sampler=rows, keep="never")
    assert found.read_amplification == 16.0


def test_rows_through_h5py_are_counted_apart(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    path = write(tmp_path / "a.h5", dtype="i4", scaleoffset=0)
    entered = []
    around(monkeypatch, H5pyReader, "rows", before=lambda *given: entered.append(given))
    found = epoch(path)
    assert entered
    assert (found.h5py_bytes, found.decoded_bytes, found.read_bytes) == (ROWS * WIDTH * 4, 0, 0)
    assert found.h5py_s > 0
    assert found.decode_s == 0


def test_chunks_that_were_never_written_cost_nothing_to_read(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    made = {"shape": (ROWS, WIDTH), "dtype": "f4", "chunks": (256, WIDTH), "compression": "gzip"}
    found = epoch(make_file(tmp_path / "a.h5", "x", None, **made))
    assert (found.rows, found.read_bytes, found.decoded_bytes) == (ROWS, 0, 0)
    assert found.scatter_s > 0


def test_time_goes_to_the_work_that_takes_it(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    never = threading.Event()
    path = write(tmp_path / "a.h5", compression="gzip")
    with H5StreamLoader(path, 512, fields="x", num_workers=1, keep="never") as loader:
        around_reads(monkeypatch, lambda target: never.wait(0.02))
        list(loader)  # what it takes is compiled by now, and the next epoch is not begun ahead of the waiting reads
        loader.set_epoch(0)
        list(loader)
        found = loader.stats()
    assert found.read_s >= 0.02 * found.reads
    assert found.read_busy > 0.5 > found.decode_busy
    assert found.wait_s > 0.5 * found.elapsed_s
    assert found.copy_busy == 0


def test_the_transform_is_told_apart_from_the_wait(tmp_path):
    never = threading.Event()
    found = epoch(write(tmp_path / "a.h5"), batch_transform=lambda batch: (never.wait(0.01), batch)[1])
    assert found.transform_s >= 8 * 0.01
    assert f"tensors, batch_transform and collate_fn: {found.transform_s:.2f} s, " in str(found)
    assert "collate_fn" not in str(replace(found, transform_s=0.001 * found.elapsed_s))
    assert found.wait_share > 0.5


def test_without_an_iteration_there_is_nothing_and_nothing_fails(tmp_path):
    with H5StreamLoader(write(tmp_path / "a.h5"), 512) as loader:
        found = loader.stats()
    assert found == LoaderStatistics()
    assert (found.rows_per_s, found.wait_mean_s, found.wait_share, found.read_busy) == (0, 0, 0, 0)
    assert (found.read_amplification, found.first_batch_s, found.read_bytes_per_s) == (None, None, None)
    assert str(found)


def test_a_new_iteration_begins_at_zero_and_an_ended_one_stands_still(tmp_path):
    with H5StreamLoader(write(tmp_path / "a.h5"), 512) as loader:
        for _ in loader:
            break
        assert loader.stats().batches == 1
        assert loader.stats() == loader.stats()
        for _ in loader:
            pass
        assert loader.stats().batches == 8


def test_batches_that_were_ready_are_counted_when_asked_for(tmp_path):
    with H5StreamLoader(write(tmp_path / "a.h5"), 512) as loader:
        iterator = iter(loader)
        next(iterator)
        eventually(lambda: run_of(iterator).left_to_hand_over() is not None)
        for _ in iterator:
            pass
        found = loader.stats()
    # Asked 9 times: for the first, which may have been ready, then 7, 6 ... 0 at the end.
    assert found.ready_mean * 9 >= 7 + 6 + 5 + 4 + 3 + 2 + 1
    assert 1 / 9 <= found.starved_share <= 2 / 9
    assert found.ready_limit >= 8


def test_epochs_add_up(tmp_path):
    path = write(tmp_path / "a.h5")
    one, two = epoch(path), epoch(path)
    both = combined([one, two])
    assert (both.rows, both.batches, both.read_bytes) == (2 * ROWS, 16, one.read_bytes + two.read_bytes)
    assert both.elapsed_s == one.elapsed_s + two.elapsed_s
    assert both.read_busy == pytest.approx((one.read_s + two.read_s) / (2 * (one.running_s + two.running_s)), rel=1)
    assert both.wait_max_s == max(one.wait_max_s, two.wait_max_s)
    assert (both.epochs, combined([both, one]).epochs) == (2, 3)
    assert both.first_batch_s == pytest.approx((one.first_batch_s + two.first_batch_s) / 2)
    assert combined([both, one]).first_batch_s == pytest.approx((2 * one.first_batch_s + two.first_batch_s) / 3)
    assert combined([one, LoaderStatistics()]).first_batch_s == one.first_batch_s
    assert re.search(r"; first batch [\d.]+ ms, the mean of 2 epochs\n", str(both))
    assert re.search(r"; first batch [\d.]+ ms\n", str(one))
