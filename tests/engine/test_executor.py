"""`Run`: admission, order and back-pressure, on fakes that record."""

from __future__ import annotations

import threading

import pytest
from inner import watch_admissions
from run_fakes import BATCH, Ring, Windows, numbers, starting

THREADS = pytest.mark.parametrize("threads", [0, 1, 3])


@pytest.fixture
def start():
    with starting() as start:
        yield start


# --- order --------------------------------------------------------------------------------------------------


@THREADS
@pytest.mark.parametrize("lengths", [(4, 4, 4), (1,), (10,), (3, 3, 3, 3), (2, 9, 1, 5), (1,) * 9, (30, 1)])
def test_batches_come_in_order_whatever_the_windows(start, threads, lengths):
    order = Windows(*lengths)
    run = start(order, threads=threads)
    assert numbers(run) == [(k, order.batch_size_of(k)) for k in range(order.batches)]
    assert run.next_batch() is None
    assert sum(len(task.rows) for task in run.test_reader.carried) == order.rows


@THREADS
def test_a_run_may_begin_with_any_batch(start, threads):
    run = start(Windows(6, 6, 6), threads=threads, first_batch=2)
    assert numbers(run) == [(2, 4), (3, 4), (4, 2)]


def test_windows_may_finish_in_any_order(start):
    second_done = threading.Event()

    def first_window_last(task):
        if task.rows[0] == 0:
            assert second_done.wait(30)
        else:
            second_done.set()

    run = start(Windows(4, 4), hook=first_window_last, threads=2)
    assert numbers(run) == [(0, 4), (1, 4)]


# --- back-pressure ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_open", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [4, 6, 8])
def test_no_more_batches_are_open_than_allowed_unless_a_window_needs_them(start, monkeypatch, max_open, length):
    widest = -(-length // BATCH) + 1
    most = watch_admissions(monkeypatch)
    run = start(Windows(*(length,) * 12), max_open=max_open)
    assert len(numbers(run)) == run.order.batches
    assert max(most) <= max(max_open, widest)


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


def test_what_is_left_to_hand_over_is_told_once_all_is_read(start):
    run = start(Windows(4, 4, 4), threads=0, max_open=8)
    assert run.left_to_hand_over() is None
    assert run.next_batch().number == 0
    numbers(run)
    assert run.left_to_hand_over() == 0
