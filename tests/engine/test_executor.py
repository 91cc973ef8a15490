"""`Run`: what no loader shows of it: back-pressure, errors and endings at certain moments, on fakes that record."""

import threading

import pytest
from inner import around, change_of, give_up_at_once
from run_fakes import Ring, Windows, failing_at, numbers, starting, until_error

from h5stream.engine.plan import Placement
from h5stream.engine.run import Run
from h5stream.engine.statistics import RunCounters
from h5stream.errors import LoaderClosedError


def threads_at_work():
    return [thread for thread in threading.enumerate() if thread.name.startswith(("h5stream-reader", "h5stream-far"))]


@pytest.fixture
def start():
    with starting() as start:
        yield start


def test_windows_may_finish_in_any_order(start):
    second_done = threading.Event()

    def first_window_last(task):
        if task.rows[0] == 0:
            assert second_done.wait(30)
        else:
            second_done.set()

    run = start(Windows(4, 4), hook=first_window_last, threads=2)
    assert numbers(run) == [(0, 4), (1, 4)]


def test_a_consumer_that_does_not_come_holds_the_reading_up(start):
    ring, order = Ring(), Windows(*(4,) * 50)
    admitted = threading.Semaphore(0)
    run = start(order, hook=lambda task: admitted.release(), max_open=3, ring=ring)
    for _ in range(3):
        assert admitted.acquire(timeout=30)
    assert ring.taken == 3
    assert order.given <= 4  # one more is planned, and waits
    run.next_batch(30)
    assert admitted.acquire(timeout=30)
    assert ring.taken == 4


def test_the_allowance_may_grow_while_it_runs(start):
    ring, carried = Ring(), threading.Semaphore(0)
    run = start(Windows(*(4,) * 9), hook=lambda task: carried.release(), max_open=1, ring=ring)
    assert carried.acquire(timeout=30)
    run.allow(3)
    assert all(carried.acquire(timeout=30) for _ in range(2))
    assert ring.taken == 3


@pytest.mark.parametrize("threads", [0, 1, 3])
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
