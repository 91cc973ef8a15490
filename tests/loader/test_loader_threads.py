"""The loader's threads: what waits, what ends them, what is left behind."""

import contextlib
import gc
import itertools
import threading
import weakref

import pytest
from support.inner import (
    ahead_of,
    around,
    around_decoding,
    around_reads,
    fail_in_call,
    iterations_of,
    open_batches,
    run_of,
    stream_all,
)
from support.making import corrupt_chunk
from support.sample_files import eventually, gate, in_thread, open_descriptors, reader_threads, write_sample

from h5stream import H5Dataset, H5StreamLoader, Sequences, Weighted
from h5stream.base.cancel import raise_if_stopped, stop_asked
from h5stream.engine.batches import PlannedWindow
from h5stream.engine.reader import RowReader
from h5stream.engine.run import Engine, Run
from h5stream.errors import CorruptChunkError, LoaderClosedError, LoaderTimeoutError
from h5stream.loader.epoch import Iterations, LoaderIterator
from h5stream.repacking.repack import repack


@pytest.fixture(autouse=True)
def streamed(request, monkeypatch):
    """Stream the small file too, but where a test's name says that it is kept in memory, as such files are."""
    if "kept" not in request.node.name:
        stream_all(monkeypatch)


@pytest.fixture
def sample(tmp_path):
    return write_sample(tmp_path, rows=4000)


KEPT = pytest.param({}, id="kept")


def loader_of(sample, **options):
    given = {"batch_size": 50, "shuffle": True, "fields": ["x", "y"], "num_workers": 2, "window": 100, "seed": 0}
    return H5StreamLoader(sample.path, **{**given, **options})


def says_that_it_waits(iterator, monkeypatch):
    """Give an event that is set once the consumer holds the lock, which it lets go of only to wait."""
    waiting = threading.Event()
    around(monkeypatch, run_of(iterator), "_try_next", before=waiting.set)
    return waiting


# --- ending -------------------------------------------------------------------------------------------------


def test_a_with_block_closes_the_loader_whatever_happens(sample):
    def train():
        with loader_of(sample) as loader:
            iterators.append(iter(loader))
            next(iterators[0])
            raise ZeroDivisionError

    iterators = []
    with pytest.raises(ZeroDivisionError):
        train()
    assert reader_threads() == []
    with pytest.raises(LoaderClosedError, match="closed after 1 of 80 batches"):
        next(iterators[0])


@pytest.fixture
def readers(monkeypatch):
    """Note what reads rows from here on, without keeping it."""
    made = []
    around(monkeypatch, RowReader, "__init__", before=lambda reader, *_, **options: made.append(weakref.ref(reader)))
    return made


def are_gone(watched):
    assert watched
    return [one() for one in watched] == [None] * len(watched)


@pytest.mark.parametrize(
    "options", [{}, KEPT, {"draw": Weighted("y", 500)}, {"samples": Sequences(4)}, {"keep": "never"}]
)
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("batches", [1, None])
def test_dropping_the_loader_lets_go_of_all_it_has(sample, uncollected, readers, options, threads, batches):
    before = open_descriptors()
    loader = loader_of(sample, num_workers=threads, **options)
    for _ in itertools.islice(loader, batches):
        pass
    watched = [weakref.ref(one) for one in (loader, iterations_of(loader).engine)]
    del loader, _
    assert are_gone(watched + readers)
    assert reader_threads() == []
    assert open_descriptors() == before


@pytest.mark.parametrize("where", ["plan", "read", "decode"])
def test_what_is_stopped_within_a_read_lets_go_of_all_it_has(sample, uncollected, readers, monkeypatch, where):
    def until_stopped(*_):
        reached.set()
        eventually(stop_asked.get())
        raise_if_stopped()

    reached, before = threading.Event(), open_descriptors()
    loader = loader_of(sample)
    if where == "plan":
        around(monkeypatch, RowReader, "plan", before=until_stopped)
    else:
        (around_reads if where == "read" else around_decoding)(monkeypatch, until_stopped)
    iterator = iter(loader)
    assert reached.wait(30)
    del loader, iterator
    assert are_gone(readers)
    assert reader_threads() == []
    assert open_descriptors() == before


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_that_was_told_keeps_nothing(sample, uncollected, readers, monkeypatch, threads):
    def broken(*_):
        raise ZeroDivisionError

    before = open_descriptors()
    loader = loader_of(sample, num_workers=threads)
    around_decoding(monkeypatch, broken)
    with pytest.raises(ZeroDivisionError) as told:
        next(iter(loader))
    del loader, told
    assert are_gone(readers)
    assert reader_threads() == []
    assert open_descriptors() == before


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_corrupt_chunks_that_were_told_keep_nothing(sample, uncollected, readers, threads, on_error):
    corrupt_chunk(sample.path, (640, 0))
    before = open_descriptors()
    loader = loader_of(sample, num_workers=threads, on_error=on_error)
    with pytest.raises(CorruptChunkError) if on_error == "raise" else contextlib.nullcontext() as told:
        assert sum(len(y) for _, y in loader) == 4000 - 32
    loader.close()
    del loader, told
    assert are_gone(readers)
    assert open_descriptors() == before


@pytest.mark.parametrize("begun", [1, 2])
def test_what_ctrl_c_left_begun_before_anybody_had_it_ends(sample, monkeypatch, begun):
    """The first that begins is that of the iterator, the second the one that is read ahead."""

    def interrupt(*_):
        calls.append(1)
        if len(calls) == begun:
            raise KeyboardInterrupt

    calls, loader = [], loader_of(sample)
    around(monkeypatch, Iterations, "_begun", after=interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    assert reader_threads() == []
    assert not ahead_of(loader)
    assert sum(len(y) for _, y in loader) == 4000
    loader.close()


@pytest.mark.parametrize("use", ["statistics", "repack"])
def test_what_ctrl_c_left_begun_of_a_pass_over_the_file_ends(sample, tmp_path, monkeypatch, use):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    around(monkeypatch, Engine, "begin", after=interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        H5Dataset(sample.path, "x").statistics() if use == "statistics" else repack(sample.path, tmp_path / "b.h5")
    assert caught.traceback  # it keeps the frames, and so the pass, which ended all the same
    assert reader_threads() == []


def test_an_epoch_that_cannot_begin_leaves_another_one_as_it_was(sample, monkeypatch):
    loader = loader_of(sample)
    iterator = iter(loader)
    next(iterator)
    with monkeypatch.context() as broken:
        fail_in_call(broken, LoaderIterator, "__init__", 0, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
    assert len(list(iterator)) == 79
    loader.close()


def test_a_closed_loader_has_no_file_open_although_its_iterator_lives(sample, monkeypatch):
    loader = loader_of(sample, keep="never")
    next(iter(loader))
    loader.close()
    before = open_descriptors()
    monkeypatch.setattr(Run, "_settle", lambda *_: None)  # so that a window is under way, whenever it is looked at
    iterator = iter(loader)
    eventually(lambda: open_batches(run_of(iterator)))
    assert open_descriptors() > before
    loader.close()
    assert open_descriptors() == before
    assert iterator.is_closed


def test_readers_that_wait_keep_no_plan_of_a_window_that_is_there(sample, uncollected):
    loader = loader_of(sample, num_workers=4)
    iterator = iter(loader)
    run = run_of(iterator)
    for _ in range(8):
        next(iterator)
    eventually(lambda: run.ready and run.is_at_rest)
    windows = [one for one in gc.get_objects() if isinstance(one, PlannedWindow)]
    assert sum(bool(window.native or window.tasks) for window in windows) <= 1  # the one that waits for room
    loader.close()


# --- close, in the middle ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["loader", "iterator"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"sampler": range(4000), "shuffle": None}, KEPT])
def test_close_inside_a_loop_is_an_error_at_the_next_batch(sample, options, what):
    loader = loader_of(sample, **options)
    iterator, given = iter(loader), 0

    def train():
        nonlocal given
        for _ in iterator:
            given += 1
            if given == 3:
                (loader if what == "loader" else iterator).close()

    with pytest.raises(LoaderClosedError, match=r"closed after 3 of 80 batches .* leave the loop with break"):
        train()
    assert given == 3
    with pytest.raises(LoaderClosedError):  # not once only: whoever asks again is told again
        next(iterator)
    assert reader_threads() == []
    assert len(list(loader)) == 80
    loader.close()


def test_close_at_the_last_batch_is_the_end_of_the_epoch(sample):
    loader = loader_of(sample)
    given = 0
    for _ in loader:
        given += 1
        if given == 80:
            loader.close()
    assert given == 80
    assert loader.state_dict()["epoch"] == 1


def test_close_by_another_thread_wakes_all_who_wait(sample, monkeypatch):
    loader = loader_of(sample)
    with gate(monkeypatch) as blocked:
        iterator = iter(loader)
        waiting = says_that_it_waits(iterator, monkeypatch)
        waits = [in_thread(lambda: next(iterator)) for _ in range(4)]
        assert waiting.wait(60)
        closing = in_thread(loader.close)
        found = [wait.exception(60) for wait in waits]
        blocked.open()
        assert closing.result(60) is None
    assert all(isinstance(error, LoaderClosedError) for error in found)
    assert all("after 0 of 80 batches" in str(error) for error in found)
    assert reader_threads() == []


# --- one iterator, many threads ------------------------------------------------------------------------------


FORMS = [{}, KEPT, {"num_workers": 0}, {"device": "cpu"}, {"sampler": range(4000), "shuffle": None}, {"window": "all"}]


@pytest.mark.parametrize("options", [*FORMS, {"batch_transform": lambda batch: batch}])
def test_threads_that_share_an_iterator_get_each_batch_once_and_all_see_the_end(sample, options):
    loader = loader_of(sample, **options)
    for _ in range(3):
        iterator = iter(loader)
        waits = [in_thread(lambda batches=iterator: [y.tolist() for _, y in batches]) for _ in range(4)]
        found = [wait.result(60) for wait in waits]
        assert sum(map(len, found)) == len(loader)
        assert sorted(row for batches in found for batch in batches for row in batch) == list(range(4000))
        assert next(iterator, None) is None
    assert loader.state_dict()["epoch"] == 3
    loader.close()
    assert reader_threads() == []


# --- reading ahead ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"window": "all"}, {"window": "auto"}, {"device": "cpu"}])
def test_the_next_epoch_is_read_before_it_is_asked_for(sample, options):
    with loader_of(sample, **options) as loader:
        for _ in loader:
            pass
        ((run, *_),) = ahead_of(loader).values()
        assert list(ahead_of(loader)) == [1]
        assert run.next_batch(60).number == 0  # it comes without anybody calling iter


def test_nothing_is_read_ahead_after_a_break(sample):
    loader = loader_of(sample)
    for number, _ in enumerate(loader):
        if number == 78 or ahead_of(loader):  # in the last window the next epoch is under way
            break
    assert ahead_of(loader) == {}
    assert reader_threads() == []
    assert sum(len(y) for _, y in loader) == 4000
    loader.close()


def test_nothing_is_read_ahead_after_an_error_or_close(sample):
    def fail_at_the_last(batch):
        seen.append(1)
        if len(seen) == 80:
            raise BoomError
        return batch

    seen = []
    loader = loader_of(sample, batch_transform=fail_at_the_last)
    with pytest.raises(BoomError):
        list(loader)
    assert ahead_of(loader) == {}
    iterator = iter(loader)
    for _ in range(79):
        next(iterator)
    iterator.close()
    assert ahead_of(loader) == {}
    assert reader_threads() == []


def test_an_error_in_reading_ahead_belongs_to_the_epoch_that_begins_there(sample, monkeypatch):
    loader = loader_of(sample)
    iterator = iter(loader)
    with monkeypatch.context() as patch:
        around(patch, iterations_of(loader).engine, "begin", before=fail)
        assert len(list(iterator)) == 80
        with pytest.raises(BoomError):
            iter(loader)
    assert len(list(loader)) == 80


# --- waiting ------------------------------------------------------------------------------------------------


def test_a_source_that_hangs_runs_into_the_timeout(sample, monkeypatch):
    loader = loader_of(sample, timeout=0.1)
    with gate(monkeypatch) as blocked:
        iterator = iter(loader)
        with pytest.raises(LoaderTimeoutError, match=r"no batch within timeout=0\.1 s \(batch 0\); .* raise it, or 0"):
            next(iterator)
        blocked.open()
    run_of(iterator).stop()
    assert reader_threads() == []


# --- errors -------------------------------------------------------------------------------------------------


class BoomError(Exception):
    pass


def fail(*_, **__):
    raise BoomError("on purpose")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("what", ["batch_transform", "collate_fn"])
def test_an_error_in_what_is_done_with_batches_arrives(sample, what, num_workers):
    iterator = iter(loader_of(sample, num_workers=num_workers, **{what: fail}))
    with pytest.raises(BoomError):
        next(iterator)
    assert reader_threads() == []
    assert next(iterator, None) is None

    def stop(batch):
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):  # which does not pass for the end
        list(loader_of(sample, num_workers=num_workers, **{what: stop}))


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_error_in_a_sampler_arrives_after_the_batches_before_it(sample, num_workers):
    class Failing:
        def __iter__(self):
            yield from range(500)
            raise BoomError("sampler")

    iterator = iter(loader_of(sample, shuffle=None, sampler=Failing(), num_workers=num_workers))
    assert [next(iterator)[1].tolist() for _ in range(10)] == [list(range(k, k + 50)) for k in range(0, 500, 50)]
    with pytest.raises(BoomError):
        next(iterator)
    assert reader_threads() == []


def test_worker_init_fn_gets_each_threads_number_before_it_reads_and_its_errors_arrive(sample):
    numbers, names = [], []

    def note(number):
        numbers.append(number)
        names.append(threading.current_thread().name)

    next(iter(loader_of(sample, worker_init_fn=note, num_workers=3)))
    assert sorted(numbers) == [0, 1, 2]
    assert sorted(names) == [f"h5stream-reader-{k}" for k in range(3)]

    def fail_in_the_third(number):
        if number == 2:
            raise BoomError

    with pytest.raises(BoomError):
        list(loader_of(sample, worker_init_fn=fail_in_the_third, num_workers=4))
    complete = threading.Event()
    iterator = iter(loader_of(sample, worker_init_fn=lambda n: n and (complete.wait(60), fail(n)), num_workers=2))
    eventually(lambda: run_of(iterator).ready)
    complete.set()
    eventually(lambda: "h5stream-reader-1" not in reader_threads())
    next(iterator)  # complete batches come first
    iterator = iter(loader_of(sample, worker_init_fn=fail, num_workers=0))
    next(iterator)  # with zero workers there is no thread
    assert reader_threads() == []
