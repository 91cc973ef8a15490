"""A pass over an order: races and ends at certain moments, which no loader shows unless it is held up there."""

import threading
import time

import numpy as np
import pytest
import torch
from support import forking
from support.inner import around, around_decoding, change_of, give_up_at_once, stream_all
from support.making import corrupt_chunk, make_file, numbers, write_datasets
from support.sample_files import eventually, gate, in_thread, one_epoch_at_a_time, reader_threads, write_sample

from h5stream import H5StreamLoader
from h5stream.engine.counters import RunCounters
from h5stream.engine.plan.tasks import Placement, Tools
from h5stream.engine.reader import RowReader
from h5stream.engine.run import Run
from h5stream.engine.slots import Slot, SlotRing
from h5stream.errors import CorruptChunkError


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_of_several_errors_the_earliest_batch_has_its_own(sample, threads):
    for row in (640, 160, 320):
        corrupt_chunk(sample.path, (row, 0))
    iterator = iter(H5StreamLoader(sample.path, 32, num_workers=threads, window=64))
    assert [next(iterator)["y"][0].item() for _ in range(5)] == [0, 32, 64, 96, 128]
    with pytest.raises(CorruptChunkError, match=r"chunk \(160, 0\)"):
        next(iterator)


def test_a_window_is_not_handed_over_before_its_errors_are_known(tmp_path, monkeypatch):
    # One thread has failed and is about to say so while the other finishes the window.
    stream_all(monkeypatch)
    path = make_file(tmp_path / "a.h5", data=numbers(64, 4096), chunks=(32, 4096), compression="gzip")
    loader = H5StreamLoader(path, 64, fields="x", num_workers=2, keep="never")
    decoding, failing, handed_over = [], threading.Event(), threading.Event()
    first_batch = Placement.first_batch

    def slow_to_say(placement):
        if decoding and threading.get_ident() == decoding[0]:
            failing.set()
            handed_over.wait(0.2)  # as long as the other may need; it must not come to pass
        return first_batch.fget(placement)

    def decode(raw_nbytes):
        decoding.append(threading.get_ident())
        if decoding[0] == threading.get_ident():
            raise ZeroDivisionError
        assert failing.wait(30)

    monkeypatch.setattr(Placement, "first_batch", property(slow_to_say))
    around_decoding(monkeypatch, decode)
    around(monkeypatch, RunCounters, "gave", before=lambda *_: handed_over.set())
    with pytest.raises(ZeroDivisionError):
        next(iter(loader))
    assert len(decoding) == 2


def test_an_error_of_another_kind_while_chunks_are_read_once_more_has_its_batch_too(sample, monkeypatch):
    def no_memory(*_):
        raise MemoryError

    corrupt_chunk(sample.path, (640, 0))
    monkeypatch.setattr("h5stream.engine.run.first_failure", no_memory)
    iterator = iter(H5StreamLoader(sample.path, 32, num_workers=2, window=64))
    assert [next(iterator)["y"][0].item() for _ in range(20)] == list(range(0, 640, 32))
    with pytest.raises(MemoryError):
        next(iterator)


def test_chunks_side_by_side_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    """Scratch is counted for as many, and a window in file order has all that there are."""
    stream_all(monkeypatch)
    rows = np.random.default_rng(0).integers(0, 256, (64, 1 << 19), "u1")
    path = make_file(tmp_path / "a.h5", data=rows, chunks=(1, 1 << 19), compression="gzip")
    with H5StreamLoader(path, 64, fields="x", num_workers=1, keep="never") as loader:
        for batch in loader:
            assert np.array_equal(batch, rows)
        assert loader.stats().read_bytes / loader.stats().reads < 1 << 20


def test_no_memory_for_a_window_wakes_a_consumer_that_waits_already(sample, monkeypatch):
    entered = []

    def fail_once_the_consumer_waits(run, window):
        before = len(entered)
        while len(entered) == before:  # the lock is the worker's: once this is over, nothing wakes the consumer
            change_of(run).notify_all()
            change_of(run).wait(0.01)
        raise MemoryError("no slot")

    around(monkeypatch, Run, "_wait", before=lambda run, *_: entered.append(run))
    monkeypatch.setattr(Run, "_admit", fail_once_the_consumer_waits)
    with H5StreamLoader(sample.path, 50, num_workers=1) as loader:
        assert isinstance(in_thread(lambda: next(iter(loader))).exception(10), MemoryError)


@pytest.mark.parametrize("name", ["Run._may_admit", "OpenBatches.complete", "Run._plan_next"])
def test_a_reader_that_breaks_anywhere_is_an_error_and_not_a_hang(sample, monkeypatch, name):
    def broken(*given):
        raise ZeroDivisionError("a defect of ours")

    monkeypatch.setattr(f"h5stream.engine.run.{name}", broken)
    with pytest.raises(ZeroDivisionError):
        next(iter(H5StreamLoader(sample.path, 50, num_workers=2, window=100, timeout=20)))


def test_a_reader_that_cannot_begin_to_serve_is_an_error_and_not_a_hang(sample, monkeypatch):
    counted = RunCounters.tally

    def broken(counters):
        if threading.current_thread().name.startswith("h5stream-reader"):
            raise MemoryError("no memory for counters")
        return counted(counters)

    monkeypatch.setattr(RunCounters, "tally", broken)
    with pytest.raises(MemoryError, match="no memory for counters"):
        next(iter(H5StreamLoader(sample.path, 50, num_workers=2, timeout=20)))


def test_a_slot_that_is_still_written_to_is_not_returned(sample, monkeypatch):
    returned = []
    around(monkeypatch, Slot, "give_back", before=lambda *_: returned.append(True))
    loader = H5StreamLoader(sample.path, 50, num_workers=1)
    with gate(monkeypatch) as blocked:
        give_up_at_once(monkeypatch)
        iterator = iter(loader)
        assert blocked.reached.wait(60)
        loader.close()
        assert iterator.is_closed
        assert not returned
    eventually(lambda: not reader_threads())
    assert returned


@pytest.mark.parametrize("filters", [{}, {"compression": "gzip", "shuffle": True}])
def test_readers_need_no_python_for_what_is_data_alone(tmp_path, monkeypatch, filters):
    x = {"data": np.arange(64_000.0).reshape(4000, 16), "chunks": (100, 16), **filters}
    path = write_datasets(tmp_path / "a.h5", x=x)
    stream_all(monkeypatch)
    landed = []
    around(monkeypatch, Tools, "land", before=lambda *_: landed.append(threading.current_thread().name))
    for workers, keep in ((2, "never"), (0, "never"), (2, "auto")):
        landed.clear()
        with H5StreamLoader(path, 100, shuffle=True, num_workers=workers, keep=keep, fields=["x"]) as loader:
            for _ in range(2):
                assert sum(float(x.sum(dtype=torch.float64)) for (x,) in loader) == 63_999 * 64_000 / 2
                if keep == "auto":
                    landed.clear()  # the first epoch keeps what it decodes
        assert (landed == []) == (workers > 0)


def test_what_a_user_kept_and_dropped_is_not_kept_for_ever():
    ring = SlotRing(4096, most_slots=4)
    kept = [ring.take().lease() for _ in range(100)]
    kept.clear()
    assert ring.free_slots == 100
    ring.take()
    assert ring.free_slots == 7


def test_readers_are_stopped_before_the_requests_that_they_wait_for():
    code = "from h5stream.engine import run; from h5stream.storage.source import event_loop; "
    code += "one = lambda: None; one.stop, one.end = lambda _: print('readers'), lambda: print('requests')"
    ended = forking.run(f"{code}; run._running.add(one); event_loop._started.append(one)")
    assert ended.stdout.split() == ["readers", "requests"], ended.stderr


def test_readers_without_work_do_not_search_rows_in_memory_for_more(tmp_path, monkeypatch):
    """What is there is planned once an epoch; each further time keeps Python from the thread that hands over."""
    one_epoch_at_a_time(monkeypatch)
    stream_all(monkeypatch)
    sample, planned = write_sample(tmp_path, rows=20_000, columns=256, chunk_rows=500), []
    with H5StreamLoader(sample.path, 500, shuffle=True, num_workers=3, fields=["x"]) as loader:
        list(loader)
        around(monkeypatch, RowReader, "plan", before=lambda reader, placement, *_: planned.append(len(placement)))
        for _batch in loader:
            time.sleep(0.0005)  # so that there is no room, and nothing to do
    assert sum(planned) == len(sample.x)
