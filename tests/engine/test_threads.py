"""Reader threads, which stay while one pass follows another."""

import contextlib
import gc
import sys
import threading
import time
import weakref

import pytest
from support.inner import run_of, stream_all
from support.sample_files import eventually, gate, in_thread, one_epoch_at_a_time, reader_threads, write_sample

from h5stream import H5StreamLoader
from h5stream.engine.run import ReaderThreads, Run


@pytest.fixture
def sample(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    return write_sample(tmp_path, rows=4000)


def loader_of(sample, **options):
    given = {"batch_size": 50, "shuffle": True, "fields": ["x", "y"], "num_workers": 3, "window": 100, "seed": 0}
    return H5StreamLoader(sample.path, **{**given, **options})


@contextlib.contextmanager
def all_threads_held_up(sample, monkeypatch):
    """Give a loader, and a pass of it in which each of its threads hangs until the end of this."""
    loader = loader_of(sample)
    with gate(monkeypatch) as blocked:
        hanging = iter(loader)
        eventually(lambda: len(blocked.held) == 3)
        yield loader, hanging
    loader.close()
    eventually(lambda: reader_threads() == [])


def interrupted(*_, **__):
    raise KeyboardInterrupt


def samples_of(batches):
    return sorted(row for _, y in batches for row in y.tolist())


def test_the_same_threads_read_epoch_after_epoch(sample):
    began = []
    with loader_of(sample, worker_init_fn=lambda number: began.append((number, threading.get_ident()))) as loader:
        for _ in range(5):
            assert samples_of(loader) == list(range(4000))
        assert sorted(number for number, _ in began) == [0, 1, 2]
    assert reader_threads() == []


def test_threads_end_with_the_last_pass_and_others_begin_with_the_next(sample, monkeypatch):
    one_epoch_at_a_time(monkeypatch)
    began = []
    loader = loader_of(sample, worker_init_fn=began.append)
    for epoch in range(1, 4):
        assert samples_of(loader) == list(range(4000))
        eventually(lambda: reader_threads() == [])
        assert sorted(began) == sorted([0, 1, 2] * epoch)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_passes_that_take_turns_share_the_threads(sample, num_workers):
    with loader_of(sample, num_workers=num_workers, prefetch_factor=1) as loader:
        first, second = iter(loader), iter(loader)
        found = [], []
        for pair in zip(first, second, strict=True):
            for rows, (_, y) in zip(found, pair, strict=True):
                rows += y.tolist()
            assert len(reader_threads()) <= num_workers
        assert [sorted(rows) for rows in found] == [list(range(4000))] * 2
        assert found[0] != found[1]


def test_a_pass_that_is_closed_ends_no_thread_that_another_needs(sample):
    with loader_of(sample) as loader:
        first, second = iter(loader), iter(loader)
        next(first), next(second)
        run_of(first).stop()
        assert samples_of([*second]) != []
    assert reader_threads() == []


def test_threads_that_hang_in_a_pass_that_is_closed_are_not_missed_by_the_next(sample, monkeypatch):
    with all_threads_held_up(sample, monkeypatch) as (loader, hanging):
        monkeypatch.undo()
        hanging.close()
        assert samples_of(loader_of(sample)) == list(range(4000))
        assert samples_of(loader) == list(range(4000))  # with all of its own still held up


def test_passes_that_are_under_way_get_other_threads_for_those_that_hang(sample, monkeypatch):
    with all_threads_held_up(sample, monkeypatch) as (loader, hanging):
        waiting = iter(loader)
        monkeypatch.undo()
        run_of(hanging).stop()
        taken = in_thread(lambda: samples_of(waiting))
        assert taken.result(60) == list(range(4000))


@pytest.mark.parametrize("why", [KeyboardInterrupt, RuntimeError])
def test_passes_that_get_no_threads_for_those_that_hang_are_told_so(sample, monkeypatch, why):
    with all_threads_held_up(sample, monkeypatch) as (loader, hanging):
        waiting = iter(loader)
        monkeypatch.undo()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", lambda _: exec("raise why", {"why": why}))
            with pytest.raises(why):
                run_of(hanging).stop()
        with pytest.raises(why):
            list(waiting)


def test_ctrl_c_while_a_pass_that_hangs_is_closed_takes_no_threads_from_another(sample, monkeypatch):
    with all_threads_held_up(sample, monkeypatch) as (loader, hanging):
        waiting = iter(loader)
        monkeypatch.undo()
        with monkeypatch.context() as patch:
            patch.setattr(run_of(hanging)._batch_came, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run_of(hanging).stop()
        assert in_thread(lambda: samples_of(waiting)).result(60) == list(range(4000))


def test_ctrl_c_as_the_pool_gives_up_threads_that_hang_is_told_to_who_needs_them(sample, monkeypatch):
    with all_threads_held_up(sample, monkeypatch) as (loader, hanging):
        waiting = iter(loader)
        monkeypatch.undo()
        with monkeypatch.context() as patch:
            start = ReaderThreads.start
            patch.setattr(ReaderThreads, "start", lambda self, missing: start(self, lambda: interrupted(missing())))
            with pytest.raises(KeyboardInterrupt):
                run_of(hanging).stop()
        with pytest.raises(KeyboardInterrupt):
            list(waiting)
        assert in_thread(lambda: samples_of(loader)).result(60) == list(range(4000))


def test_a_thread_that_fails_as_a_pass_ends_is_told_to_the_others_and_replaced(sample, monkeypatch):
    loader = loader_of(sample, num_workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "left", lambda run: 1 / 0)
        with gate(patch) as blocked:
            ended = iter(loader)
            eventually(lambda: len(blocked.held) == 1)
            waiting = iter(loader)
            stopped = in_thread(run_of(ended).stop)
            eventually(lambda: run_of(ended)._stopped[0])
        stopped.result(60)
        with pytest.raises(ZeroDivisionError):
            in_thread(lambda: [*waiting]).result(60)
    assert in_thread(lambda: samples_of(loader)).result(60) == list(range(4000))
    loader.close()
    eventually(lambda: reader_threads() == [])


def test_ctrl_c_before_the_threads_of_a_pass_begin_takes_none_from_the_next(sample, monkeypatch):
    loader = loader_of(sample, timeout=30)
    with monkeypatch.context() as patch:
        patch.setattr(ReaderThreads, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
    assert samples_of(loader) == list(range(4000))
    loader.close()
    assert reader_threads() == []


def test_a_pass_whose_end_was_interrupted_ends_with_its_loader(sample, monkeypatch):
    loader = loader_of(sample)
    iterator = iter(loader)
    next(iterator)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_let_go", interrupted)
        patch.setattr(ReaderThreads, "wait", interrupted)
        patch.setattr(run_of(iterator).counters, "end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            iterator.close()
    assert len(reader_threads()) == 3
    loader.close()
    assert reader_threads() == []


def test_passes_of_two_loops_that_both_wait_share_one_thread(sample):
    with loader_of(sample, num_workers=1, batch_size=20, timeout=60) as loader:
        first, second = iter(loader), iter(loader)
        taken = in_thread(lambda: next(second))
        while not taken.done():
            next(first)
        assert len(taken.result()[1]) == 20


def test_an_error_between_two_jobs_ends_its_pass_and_no_thread(sample, monkeypatch):
    loader = loader_of(sample)
    iterator = iter(loader)
    next(iterator)
    with monkeypatch.context() as patch:
        patch.setattr(type(run_of(iterator)), "_take_job", lambda run: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(iterator)
    assert samples_of(loader) == list(range(4000))


def test_a_loop_that_never_waits_lets_threads_through(sample):
    """Nothing takes Python's lock from a loop that is busy here, but that it asks for batches."""
    given, interval = [], sys.getswitchinterval()
    with loader_of(sample) as loader:
        passing = iter(loader)
        run = run_of(passing)
        sys.setswitchinterval(1000)
        try:
            for _ in range(20_000):
                if (batch := run.next_if_ready()) is not None:
                    given.append(batch.rows)
                    batch.slot.give_back()
                step_ends = time.perf_counter() + 0.0001
                while sum(given) < 4000 and time.perf_counter() < step_ends:
                    pass
        finally:
            sys.setswitchinterval(interval)
    assert sum(given) == 4000


def test_no_thread_keeps_a_pass_that_ended(sample):

    with loader_of(sample) as loader:
        ended = []
        for _ in range(3):
            iterator = iter(loader)
            ended.append(weakref.ref(run_of(iterator)))
            assert len([*iterator]) == 80
            del iterator
        assert len(reader_threads()) == 3
        gc.collect()
        eventually(lambda: [run() for run in ended[:2]] == [None, None])
