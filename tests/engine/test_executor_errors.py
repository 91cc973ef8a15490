"""`Run`: errors, and stopping in every state, on fakes that record."""

from __future__ import annotations

import threading
import traceback

import pytest
from inner import around, change_of, give_up_at_once
from run_fakes import Ring, Windows, failing_at, numbers, starting, until_error

from h5stream.engine.plan import Placement
from h5stream.engine.run import Run
from h5stream.engine.statistics import RunCounters
from h5stream.errors import LoaderClosedError, LoaderTimeoutError, SourceChangedError

THREADS = pytest.mark.parametrize("threads", [0, 1, 3])


def threads_at_work():
    return [thread for thread in threading.enumerate() if thread.name.startswith(("h5stream-reader", "h5stream-far"))]


@pytest.fixture
def start():
    with starting() as start:
        yield start


@THREADS
def test_an_error_arrives_at_the_batch_that_needed_the_data(start, threads):
    run = start(Windows(*(4,) * 6), hook=failing_at(13), threads=threads)
    arrived, error = until_error(run, ZeroDivisionError)
    assert arrived == [0, 1, 2]
    assert "hook" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@THREADS
def test_of_several_errors_the_earliest_batch_has_its_own(start, threads):
    run = start(Windows(*(4,) * 6), hook=failing_at(9, 17), threads=threads, max_open=8)
    assert until_error(run, ZeroDivisionError)[0] == [0, 1]


def test_inside_a_window_the_batches_before_the_error_come(start):
    run = start(Windows(24), hook=failing_at(13), reader_options={"tasks_of_a_window": 6})
    assert until_error(run, ZeroDivisionError)[0] == [0, 1, 2]


def test_an_error_comes_again_when_asked_again(start):
    run = start(Windows(4), hook=failing_at(0))
    for _ in range(2):
        assert until_error(run, ZeroDivisionError)[0] == []


def test_a_window_is_not_handed_over_before_its_errors_are_known(start, monkeypatch):
    # One thread has failed and is about to say so while the other finishes the window.
    failing, handed_over = threading.Event(), threading.Event()
    first_batch = Placement.first_batch

    def slow_to_say(placement):
        if placement.rows[0] == 0:
            failing.set()
            handed_over.wait(0.2)  # as long as the others may need; it must not come to pass
        return first_batch.fget(placement)

    def hook(task):
        if task.rows[0] == 0:
            raise ZeroDivisionError
        assert failing.wait(30)

    monkeypatch.setattr(Placement, "first_batch", property(slow_to_say))
    around(monkeypatch, RunCounters, "gave", before=lambda *_: handed_over.set())
    run = start(Windows(8), hook=hook, reader_options={"tasks_of_a_window": 2})
    assert until_error(run, ZeroDivisionError)[0] == []


@THREADS
def test_a_planning_error_arrives_after_the_batches_planned_before(start, threads):
    run = start(Windows(4, 4, 6, 4, error_after=3), threads=threads)
    assert until_error(run, ArithmeticError)[0] == [0, 1, 2]  # batch 3 has two rows of four


@THREADS
def test_an_error_of_the_first_plan_arrives_at_once(start, threads):
    run = start(Windows(4), threads=threads, reader_options={"load_error": MemoryError()})
    assert until_error(run, MemoryError)[0] == []


@THREADS
def test_no_memory_for_a_slot_is_an_error_and_not_a_hang(start, threads):
    class Full(Ring):
        def take(self):
            if self.taken == 2:
                raise MemoryError("no slot")
            return super().take()

    run = start(Windows(*(4,) * 5), threads=threads, ring=Full())
    assert until_error(run, MemoryError)[0] == [0, 1]


def test_no_memory_for_a_window_wakes_a_consumer_that_waits_already(start, monkeypatch):
    entered = []

    def fail_once_the_consumer_waits(run, window):
        before = len(entered)
        while len(entered) == before:  # the lock is the worker's: once this is over, nothing wakes the consumer
            change_of(run).notify_all()
            change_of(run).wait(0.01)
        raise MemoryError("no slot")

    around(monkeypatch, Run, "_wait", before=lambda run, *_: entered.append(run))
    monkeypatch.setattr(Run, "_admit", fail_once_the_consumer_waits)
    run, got = start(Windows(4), threads=1), []

    def consume():
        try:
            run.next_batch()
        except (MemoryError, LoaderClosedError) as error:
            got.append(type(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    consumer.join(10)
    run.stop()
    consumer.join()
    assert got == [MemoryError]


@pytest.mark.parametrize("name", ["Run._may_admit", "OpenBatches.complete", "Run._plan_next"])
def test_a_reader_that_breaks_anywhere_is_an_error_and_not_a_hang(start, monkeypatch, name):
    def broken(*given):
        raise ZeroDivisionError("a defect of ours")

    monkeypatch.setattr(f"h5stream.engine.run.{name}", broken)
    with pytest.raises(ZeroDivisionError):
        start(Windows(4, 4), threads=2).next_batch(20)


@THREADS
def test_a_file_that_changed_meanwhile_spoils_the_window_that_was_read(start, threads):
    def change_at_second(task):
        if task.rows[0] == 8:
            run.test_reader.file.changed = True

    ready = threading.Event()

    def hook(task):
        assert ready.wait(30)
        change_at_second(task)

    run = start(Windows(8, 8), hook=hook, threads=threads, max_open=2)
    ready.set()
    assert until_error(run, SourceChangedError)[0] == [0, 1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_in_the_callers_thread_ctrl_c_is_not_kept_for_a_later_batch(start, error):
    run = start(Windows(40), threads=0, hook=failing_at(39, error=error), reader_options={"tasks_of_a_window": 10})
    with pytest.raises(error):
        run.next_batch()


def test_a_thread_that_fails_to_start_work_is_reported(start):
    def fail(number):
        raise ZeroDivisionError(number)

    run = start(Windows(4), threads=3, on_thread_start=fail)
    assert until_error(run, ZeroDivisionError)[0] == []


# --- stopping -----------------------------------------------------------------------------------------------


def stopped_while_new(start):
    return start(Windows(4), threads=0)


def stopped_while_full(start):
    run = start(Windows(*(4,) * 50))
    run.next_batch(30)
    return run


def stopped_at_the_end(start):
    run = start(Windows(4))
    numbers(run)
    return run


def stopped_after_an_error(start):
    run = start(Windows(4), hook=failing_at(0))
    until_error(run, ZeroDivisionError)
    return run


@pytest.mark.parametrize(
    "state",
    [stopped_while_new, stopped_while_full, stopped_at_the_end, stopped_after_an_error],
    ids=lambda f: f.__name__,
)
def test_a_run_can_be_stopped_in_every_state_and_twice(start, state):
    run = state(start)
    for _ in range(2):
        run.stop()
    assert threads_at_work() == []
    with pytest.raises(LoaderClosedError, match="make a new iterator"):
        run.next_batch()


def test_stopping_returns_the_slots_that_nobody_got(start):
    ring = Ring()
    run = start(Windows(*(4,) * 50), ring=ring, max_open=6)
    run.next_batch(30)
    run.stop()
    assert ring.returned == ring.taken - 1


def test_a_slot_that_is_still_written_to_is_not_returned(start, monkeypatch):
    give_up_at_once(monkeypatch)
    ring, inside, leave = Ring(), threading.Event(), threading.Event()

    def hang(task):
        inside.set()
        assert leave.wait(30)

    run = start(Windows(4, 4), hook=hang, threads=1, ring=ring)
    assert inside.wait(30)
    run.stop()
    assert ring.returned == 0
    leave.set()
    for thread in threads_at_work():
        thread.join(30)
    assert threads_at_work() == []


def test_a_wait_ends_with_the_timeout(start):
    leave = threading.Event()
    run = start(Windows(4), hook=lambda task: leave.wait(30), threads=1)
    with pytest.raises(LoaderTimeoutError, match=r"no batch within timeout=0\.01 s \(batch 0\)"):
        run.next_batch(0.01)
    leave.set()
    assert run.next_batch(30).number == 0
