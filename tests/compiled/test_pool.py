"""The pool carries plans out in threads that stay in C, and comes back to Python for what Python has to do."""

import threading
import weakref

import numpy as np
import pytest

from h5stream.compiled import _native as native
from h5stream.engine.slots import address_of

LONGS = np.zeros(0, dtype=np.int64)


class Workers:
    """Threads in a pool, and what they come back with."""

    def __init__(self, threads, settle=lambda event: None):
        self.stop = np.zeros(1, dtype=np.int32)
        self.pool = native.Pool(self.stop, threads, threads)
        self.events, self._settle, self._came = [], settle, threading.Condition()
        self.counts = [np.zeros(native.COUNTS, dtype=np.int64) for _ in range(threads)]
        self.threads = [threading.Thread(target=self._work, args=(counts,)) for counts in self.counts]
        for thread in self.threads:
            thread.start()

    def _work(self, counts):
        scratch, settled = native.Scratch(), 0
        while (event := self.pool.work(scratch, counts, settled)) is not None:
            settled = event[-1]
            self._settle(event)
            with self._came:
                self.events.append(event[:3])
                self._came.notify_all()

    def wait_for(self, count):
        with self._came:
            assert self._came.wait_for(lambda: len(self.events) >= count, 60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pool.end()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


def copies(rows=1000, seed=0):
    """Plan copies of 64-bit numbers in a drawn order; gives the plan, where they go, and what must be there then."""
    source, target = np.arange(rows), np.zeros(rows, dtype=np.int64)
    order = np.random.default_rng(seed).permutation(rows)
    fields = np.array([address_of(source.view(np.uint8))]), np.array([8]), np.array([0])
    zeros, numbers = np.zeros(rows, dtype=np.int64), np.arange(rows)
    plan = native.plan_memory(*fields, rows, order, LONGS, zeros, numbers)
    return plan, target, order, source


def share(plan, target, edges, first_part=0, descriptor=-1):
    slots = np.array([address_of(target.view(np.uint8))])
    return plan, np.array(edges), first_part, descriptor, slots, np.array([0]), np.array([8])


def test_all_parts_are_carried_out_before_their_group_is_complete():
    with Workers(4) as workers:
        made = [copies(seed=k) for k in range(20)]
        for k, (plan, target, *_) in enumerate(made):
            workers.pool.add(k, [share(plan, target, [0, 300, 600, 999]), share(plan, target, [999, 1000], 3)])
        workers.wait_for(20)
        assert sorted(workers.events) == [(k, -1, 0) for k in range(20)]
        assert all((target == order).all() for _, target, order, _ in made)
    assert sum(workers.counts)[-1] == 20 * 1000 * 8


def test_a_call_is_not_lost_where_no_thread_waits_and_comes_before_parts():
    stop = np.zeros(1, dtype=np.int32)
    pool, counts = native.Pool(stop, 2, 2), np.zeros(native.COUNTS, dtype=np.int64)
    plan, target, *_ = copies()
    pool.add("group", [share(plan, target, [0, 1000])])
    pool.call(1)
    assert pool.work(native.Scratch(), counts, 0) == (None, -1, 0, 0)
    assert pool.work(native.Scratch(), counts, 0) == ("group", -1, 0, 0)
    pool.call(99)  # no more than there are threads
    assert [pool.work(native.Scratch(), counts, 0) for _ in range(2)] == [(None, -1, 0, 0)] * 2
    pool.end()
    assert pool.work(native.Scratch(), counts, 0) is None


def test_what_cannot_be_read_comes_back_and_its_group_is_complete_once_it_is_settled(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(bytes(800))
    target, rows = np.zeros(200, dtype=np.int64), np.arange(200)
    run = np.array([[0, 0, 8, 1, 8, 1, 0]])
    fill = np.zeros(8, dtype=np.uint8)
    fills = np.array([address_of(fill)]), np.array([8])
    where = rows, LONGS, np.zeros_like(rows), rows
    # 200 rows of 8 bytes, of which the file has 100.
    plan = native.plan_rows(
        LONGS, np.array([0]), 1, 200, 0, 8, np.array([[0, 0, 8, 0, 1]]), run, *fills, 65536, 0, 0, *where
    )
    with path.open("rb") as file, Workers(2) as workers:
        workers.pool.add("rows", [share(plan, target, [0, 50, 100, 150, 200], 7, file.fileno())])
        workers.wait_for(3)
    assert sorted(workers.events, key=str) == [("rows", -1, 0), ("rows", 10, 150), ("rows", 9, 100)]
    assert workers.events[-1] == ("rows", -1, 0)


def test_nothing_is_carried_out_once_it_is_stopped():
    stop = np.zeros(1, dtype=np.int32)
    pool, counts = native.Pool(stop, 1, 1), np.zeros(native.COUNTS, dtype=np.int64)
    plan, target, *_ = copies()
    pool.add("group", [share(plan, target, [0, 1000])])
    pool.call(1)
    stop[0] = 1
    assert pool.work(native.Scratch(), counts, 0) is None
    assert pool.running == 0
    assert not target.any()
    pool.drop()


class Name:
    """What can be looked at from afar."""


@pytest.mark.parametrize("is_dropped", [True, False])
def test_what_was_added_is_kept_until_it_is_dropped_or_the_pool_is_gone(is_dropped):
    name, gone = Name(), threading.Event()
    weakref.finalize(name, gone.set)
    pool, (plan, target, *_) = native.Pool(np.zeros(1, dtype=np.int32), 1, 1), copies()
    pool.add(name, [share(plan, target, [0, 1000])])
    del name, plan, target
    assert not gone.is_set()
    if is_dropped:
        pool.drop()
    else:
        del pool
    assert gone.is_set()


@pytest.mark.parametrize(
    ("edges", "descriptor", "slots", "fields", "why"),
    [
        ([0, 1001], -1, 1, 1, "edges must be those of parts"),
        ([-1, 5], -1, 1, 1, "edges must be those of parts"),
        ([0], -1, 1, 1, "edges must be those of parts"),
        ([0, 5, 5], -1, 1, 1, "edges must ascend"),
        ([0, 5], -1, 0, 1, "slots must be those of all batches"),
        ([0, 5], -1, 1, 2, "slots must be those of all batches and fields"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_pool_goes_on(edges, descriptor, slots, fields, why):
    stop = np.zeros(1, dtype=np.int32)
    pool, counts = native.Pool(stop, 1, 1), np.zeros(native.COUNTS, dtype=np.int64)
    plan, target, order, _ = copies()
    good = share(plan, target, [0, 1000])
    where = np.zeros(slots, dtype=np.int64), np.zeros(fields, dtype=np.int64), np.full(fields, 8)
    with pytest.raises(ValueError, match=why):
        pool.add("bad", [good, (plan, np.array(edges), 0, descriptor, *where)])
    for wrong in ("text", [], [1], [(plan,)]):
        with pytest.raises(TypeError):
            pool.add("bad", wrong)
    pool.add("good", [good])
    assert pool.work(native.Scratch(), counts, 0) == ("good", -1, 0, 0)
    assert (target == order).all()


def test_a_plan_refuses_rows_and_places_that_there_are_not():
    source, one = np.zeros(10, dtype=np.int64), np.array([0])
    fields = np.array([address_of(source.view(np.uint8))]), np.array([8]), np.array([0])
    for row, batch, within in ((10, 0, 0), (-1, 0, 0), (0, -1, 0), (0, 0, -1)):
        with pytest.raises(ValueError, match="rows lie outside"):
            native.plan_memory(*fields, 10, one + row, LONGS, one + batch, one + within)
    with pytest.raises(ValueError, match="rows lie outside"):
        native.plan_memory(*fields, 10, one + 8, one + 3, one, one)


def test_copies_are_no_more_at_a_time_than_they_may_be():
    """The others wait for what is to be read, and take it."""
    stop = np.zeros(1, dtype=np.int32)
    pool, counts = native.Pool(stop, 8, 1), np.zeros(native.COUNTS, dtype=np.int64)
    with pytest.raises(ValueError, match="positive"):
        native.Pool(stop, 8, 0)
    made = [copies(seed=k) for k in range(4)]
    for k, (plan, target, *_) in enumerate(made):
        pool.add(k, [share(plan, target, [*range(0, 1001, 100)])])
    ended = []

    def work():
        while pool.work(native.Scratch(), counts, 0) is not None:
            ended.append(1)
            if len(ended) == 4:
                pool.end()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ended) == 4
    assert all((target == order).all() for _, target, order, _ in made)
