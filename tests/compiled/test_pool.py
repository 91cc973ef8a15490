"""The pool carries plans out in threads that stay in C, and comes back to Python for what Python has to do."""

import sys
import threading
import time
import weakref

import numpy as np
import pytest

from h5stream.compiled import _native as native
from h5stream.engine.slots import address_of

LONGS = np.zeros(0, dtype=np.int64)


class Pass:
    """A queue in a pool, and what it counts."""

    def __init__(self, pool):
        self.stop, self.counts = np.zeros(1, dtype=np.int32), np.zeros(native.COUNTS, dtype=np.int64)
        self.queue = native.Queue(pool, self.stop, self.counts)

    def end(self):
        self.stop[0] = 1
        self.queue.end()


class Workers(Pass):
    """Threads in a pool with one pass, and what they come back with."""

    def __init__(self, threads):
        self.pool = native.Pool(threads, threads)
        super().__init__(self.pool)
        self.events, self._came = [], threading.Condition()
        self.threads = [threading.Thread(target=self._work, args=(ticket,)) for ticket in self.queue.begin("pass")]
        for thread in self.threads:
            thread.start()

    def _work(self, ticket):
        scratch, served, settled = native.Scratch(), None, 0
        while (event := self.pool.work(scratch, served, ticket, settled)) is not None:
            served, settled = event[0], event[-1]
            with self._came:
                self.events.append(event[2:5])
                self._came.notify_all()

    def wait_for(self, count):
        with self._came:
            assert self._came.wait_for(lambda: len(self.events) >= count, 60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
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
            workers.queue.add(k, [share(plan, target, [0, 300, 600, 999]), share(plan, target, [999, 1000], 3)])
        workers.wait_for(20)
        assert sorted(workers.events) == [(k, -1, 0) for k in range(20)]
        assert all((target == order).all() for _, target, order, _ in made)
    assert workers.counts[-1] == 20 * 1000 * 8


def test_a_call_is_not_lost_where_no_thread_waits_and_comes_before_parts():
    pool, scratch = native.Pool(2, 2), native.Scratch()
    one, (plan, target, *_) = Pass(pool), copies()
    one.queue.add("group", [share(plan, target, [0, 1000])])
    one.queue.call(1)
    ticket, other = one.queue.begin("pass")
    assert pool.work(scratch, None, ticket, 0) == (one.queue, "pass", None, -1, 0, 0)
    assert pool.work(scratch, one.queue, ticket, 0) == (one.queue, "pass", "group", -1, 0, 0)
    one.queue.call(99)  # no more than there are threads
    assert one.queue.serving == 1
    assert pool.work(native.Scratch(), None, other, 0)[2:4] == (None, -1)
    assert one.queue.serving == 2
    assert pool.work(scratch, one.queue, ticket, 0)[2:4] == (None, -1)
    one.end()
    assert pool.is_idle
    assert pool.work(scratch, one.queue, ticket, 0) is None  # another thread has something of it
    assert pool.work(scratch, one.queue, other, 0) == (None, "pass", None, -1, 0, 0)
    assert one.queue.serving == 0
    assert pool.work(scratch, None, other, 0) is None
    with pytest.raises(ValueError, match="ticket"):
        pool.work(scratch, None, 0, 0)
    with pytest.raises(TypeError, match="Queue of this Pool"):
        pool.work(scratch, Pass(native.Pool(1, 1)).queue, ticket, 0)


def test_a_pass_that_was_called_for_before_it_begins_wakes_a_thread():
    with Workers(2) as workers:
        workers.queue.call(2)
        workers.wait_for(2)  # all of them wait
        other = Pass(workers.pool)
        other.queue.call(1)
        assert other.queue.begin("another") == []
        workers.wait_for(3)
        other.end()


def test_threads_that_wait_for_pythons_lock_are_let_through_where_few_batches_are_ready():
    interval = sys.getswitchinterval()
    with Workers(1) as workers:
        for attempt in range(1, 100):  # on a busy machine the thread may not come within the 2 ms
            workers.queue.call(1)
            workers.wait_for(2 * attempt - 1)
            time.sleep(0.1)  # the thread goes back
            sys.setswitchinterval(60)  # nobody is given the lock but by who has it
            try:
                workers.queue.call(1)
                for ready in [8] * 20 + [7] * 200:
                    until = time.perf_counter() + 0.0002
                    while time.perf_counter() < until:
                        pass
                    workers.queue.let_through(ready)
                    if has_come := len(workers.events) == 2 * attempt:
                        break
            finally:
                sys.setswitchinterval(interval)
            assert ready == 7, "it was let through although many batches are ready"
            if has_come:
                return
            workers.wait_for(2 * attempt)
        pytest.fail("it was not let through")


def test_the_earlier_pass_is_carried_out_first_but_for_its_calls():
    pool, scratch = native.Pool(1, 2), native.Scratch()
    passes, made = [Pass(pool), Pass(pool)], [copies(seed=k) for k in range(2)]
    (ticket,) = passes[0].queue.begin(0)
    assert passes[1].queue.begin(1) == []
    for k in (1, 0):
        passes[k].queue.add("group", [share(*made[k][:2], [0, 1000])])
    passes[1].queue.call(1)
    events, served = [], None
    for _ in range(3):
        event = pool.work(scratch, served, ticket, 0)
        events.append(event[1:3])
        served = event[0]
    assert events == [(1, None), (0, "group"), (1, "group")]
    assert [one.counts[-1] for one in passes] == [8000, 8000]
    passes[0].end()
    assert not pool.is_idle
    passes[1].end()
    assert pool.is_idle


@pytest.mark.parametrize(
    ("awaited", "order", "gives_way"),
    [
        ([], "0call 0part 0part 0call 1call 1part 1part 1call", [0, 1, 4, 5]),
        ([0], "0call 0part 0part 0call 1call 1part 1part 1call", [0, 1, 4, 5]),
        ([1], "1call 1part 1part 1call 0call 0part 0part 0call", [0, 1, 4, 5]),
        ([0, 1], "0call 1part 0part 1part 0call 1call 1call 0part", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_passes_that_are_waited_for_come_first_and_take_turns(awaited, order, gives_way):
    """A thread without any other that comes back for parts has them before the next call."""
    pool, scratch = native.Pool(2, 2), native.Scratch()
    passes, made = [Pass(pool), Pass(pool)], [copies(seed=k) for k in range(4)]
    ticket, _ = passes[0].queue.begin(0)
    passes[1].queue.begin(1)
    for number, one in enumerate(passes):
        one.queue.call(2)
        for plan, target, *_ in made[2 * number : 2 * number + 2]:
            one.queue.add("group", [share(plan, target, [0, 1000])])
        one.queue.set_awaited(number in awaited)
    events, gave_way, served = [], [], None
    for k in range(8):
        served, owner, name, *_ = pool.work(scratch, served, ticket, 0)
        events.append((owner, name))
        gave_way += [k] * served.gives_way
    assert " ".join(f"{number}{'part' if name else 'call'}" for number, name in events) == order
    assert gave_way == gives_way
    for one in passes:
        one.end()


def test_a_thread_that_comes_back_for_parts_has_all_of_a_group_before_the_next_call():
    pool, scratch = native.Pool(1, 1), native.Scratch()
    one, (plan, target, *_) = Pass(pool), copies(seed=0)
    (ticket,) = one.queue.begin("pass")
    one.queue.call(1)
    served = pool.work(scratch, None, ticket, 0)[0]
    for name in ("first", "second"):
        one.queue.add(name, [share(plan, target, list(range(0, 1100, 100)))])
    assert one.queue.gives_way
    one.queue.call(1)
    names = []
    for _ in range(3):
        served, _, name, *_ = pool.work(scratch, served, ticket, 0)
        names.append(name)
    assert names == ["first", None, "second"]
    one.end()


def test_a_ticket_that_no_thread_came_with_is_given_anew_to_the_next_pass():
    pool = native.Pool(2, 2)
    one, other = Pass(pool), Pass(pool)
    tickets = one.queue.begin("a pass")
    one.end()
    again = other.queue.begin("another")
    assert sorted(ticket % 2 for ticket in again) == [0, 1]
    assert pool.work(native.Scratch(), None, tickets[0], 0) is None
    other.end()


def test_threads_that_never_came_are_lost_together_and_none_that_did():
    pool, scratch = native.Pool(3, 2), native.Scratch()
    one, other = Pass(pool), Pass(pool)
    one.queue.call(1)
    tickets = one.queue.begin("a pass")
    served, *_ = pool.work(scratch, None, tickets[1], 0)
    assert pool.lose(None) == ["a pass"]
    again = other.queue.begin("another")
    assert sorted(ticket % 3 for ticket in again) == sorted(ticket % 3 for ticket in (tickets[0], tickets[2]))
    one.queue.call(1)
    assert pool.work(scratch, None, tickets[0], 0) is None
    assert pool.work(scratch, served, tickets[1], 0)[1] == "a pass"
    for ticket in (0, -1):
        with pytest.raises(ValueError, match="ticket must be one that was given"):
            pool.lose(ticket)
    one.end(), other.end()


def test_a_pool_gives_a_ticket_for_each_thread_that_is_missing():
    pool = native.Pool(3, 2)
    passes = [Pass(pool) for _ in range(3)]
    assert pool.is_idle
    tickets = passes[0].queue.begin("a pass")
    assert sorted(ticket % 3 for ticket in tickets) == [0, 1, 2]
    assert passes[1].queue.begin("another") == []
    assert pool.lose(tickets[1]) == ["a pass", "another"]
    (again,) = passes[2].queue.begin("a third")
    assert again % 3 == tickets[1] % 3
    assert again not in tickets
    with pytest.raises(ValueError, match="begun before, or stopped"):
        passes[0].queue.begin("once more")
    for one in passes:
        assert not pool.is_idle
        one.queue.end()  # which is no end before it is stopped
        assert not pool.is_idle
        one.end()
    assert pool.is_idle
    with pytest.raises(ValueError, match="begun before, or stopped"):
        passes[0].queue.begin("once more")


def test_a_thread_that_was_given_up_ends_once_it_comes_back():
    pool, scratch = native.Pool(1, 2), native.Scratch()
    one, other = Pass(pool), Pass(pool)
    one.queue.call(1)
    (ticket,) = one.queue.begin("a pass")
    assert pool.work(scratch, None, ticket, 0)[1] == "a pass"
    one.end()
    assert one.queue.give_up() == []  # no pass is under way that would need others
    (instead,) = other.queue.begin("another")
    assert instead != ticket
    assert pool.work(scratch, one.queue, ticket, 0) == (None, "a pass", None, -1, 0, 0)
    assert pool.work(scratch, None, ticket, 0) is None
    other.queue.call(1)
    assert pool.work(scratch, None, instead, 0)[1] == "another"
    other.end()
    assert pool.work(scratch, other.queue, instead, 0)[:2] == (None, "another")


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
        workers.queue.add("rows", [share(plan, target, [0, 50, 100, 150, 200], 7, file.fileno())])
        workers.wait_for(3)
        assert sorted(workers.events, key=str) == [("rows", -1, 0), ("rows", 10, 150), ("rows", 9, 100)]
        assert workers.events[-1] == ("rows", -1, 0)


def test_nothing_is_carried_out_once_it_is_stopped():
    pool = native.Pool(1, 1)
    one, (plan, target, *_) = Pass(pool), copies()
    one.queue.add("group", [share(plan, target, [0, 1000])])
    one.queue.call(1)
    (ticket,) = one.queue.begin("pass")
    one.stop[0] = 1
    assert pool.work(native.Scratch(), None, ticket, 0) is None
    assert one.queue.running == 0
    assert not target.any()
    one.queue.end()
    one.queue.drop()


class Name:
    """What can be looked at from afar."""


@pytest.mark.parametrize("is_dropped", [True, False])
def test_what_was_added_is_kept_until_it_is_dropped_or_the_queue_is_gone(is_dropped):
    name, gone = Name(), threading.Event()
    weakref.finalize(name, gone.set)
    one, (plan, target, *_) = Pass(native.Pool(1, 1)), copies()
    one.queue.add(name, [share(plan, target, [0, 1000])])
    del name, plan, target
    assert not gone.is_set()
    if is_dropped:
        one.queue.drop()
    else:
        del one
    assert gone.is_set()


def test_an_owner_is_kept_from_the_beginning_to_the_end():
    owner, gone = Name(), threading.Event()
    weakref.finalize(owner, gone.set)
    one = Pass(native.Pool(1, 1))
    one.queue.begin(owner)
    del owner
    assert not gone.is_set()
    one.end()
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
    pool = native.Pool(1, 1)
    one, (plan, target, order, _) = Pass(pool), copies()
    good = share(plan, target, [0, 1000])
    where = np.zeros(slots, dtype=np.int64), np.zeros(fields, dtype=np.int64), np.full(fields, 8)
    with pytest.raises(ValueError, match=why):
        one.queue.add("bad", [good, (plan, np.array(edges), 0, descriptor, *where)])
    for wrong in ("text", [], [1], [(plan,)]):
        with pytest.raises(TypeError):
            one.queue.add("bad", wrong)
    one.queue.add("good", [good])
    (ticket,) = one.queue.begin("pass")
    assert pool.work(native.Scratch(), None, ticket, 0) == (one.queue, "pass", "good", -1, 0, 0)
    assert (target == order).all()
    one.end()


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
    pool = native.Pool(8, 1)
    one = Pass(pool)
    with pytest.raises(ValueError, match="positive"):
        native.Pool(8, 0)
    made = [copies(seed=k) for k in range(4)]
    for k, (plan, target, *_) in enumerate(made):
        one.queue.add(k, [share(plan, target, [*range(0, 1001, 100)])])
    ended = []

    def work(ticket):
        served = None
        while (event := pool.work(native.Scratch(), served, ticket, 0)) is not None:
            served = event[0]
            ended.append(event[2])
            if len(ended) == 4:
                one.end()

    threads = [threading.Thread(target=work, args=(ticket,)) for ticket in one.queue.begin("pass")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended[:4]) == [0, 1, 2, 3]
    assert all((target == order).all() for _, target, order, _ in made)
