"""The parent's side of Python for each sample: an engine whose filled batches go through processes before they come."""

from __future__ import annotations

import collections
import functools
import itertools
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from h5stream.engine.batches import ReadyBatch
from h5stream.engine.counters import clock
from h5stream.engine.footprint import PAGE_NBYTES
from h5stream.engine.running import STOP_S, Engine, Running, check_process, closed, timed_out
from h5stream.engine.slots import Slot, SlotRing, Slots
from h5stream.order.epoch import Order
from h5stream.workers.generators import warn_of_own_generators
from h5stream.workers.memory import SharedMemory, create_file, pack, unpack
from h5stream.workers.samples import Done, Job, SampleFunctions, SampleWork, Told, noted
from h5stream.workers.starting import check_function
from h5stream.workers.worker import Worker

AHEAD = 2
"""Batches that each worker has at a time, unless `prefetch_factor` says otherwise: as in DataLoader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersAsked:
    """What a loader's arguments say of its workers."""

    count: int  # how many
    method: str  # how they are started; see `h5stream.workers.starting.checked_method`
    ahead: int  # batches that each has at a time, at most
    on_start: Callable[[int], None] | None  # called with its number in each of them
    seed: int  # of the loader
    whose: str  # the arguments that ask for them, for errors


class Pool:
    """The workers of a loader, and the memory that batches go to them in.

    # Guarantees: `start`, `renew` and `close` are called by the thread that iterates. `deal` and `post` by the threads
    that feed, under `_dealing`; what workers say comes in a thread for each. It ends with this object, with `close`,
    and with the process.
    """

    def __init__(self, functions: SampleFunctions, asked: WorkersAsked) -> None:
        self.asked, self._functions = asked, functions
        called = {
            "sample_transform": functions.sample_transform,
            "collate_fn": functions.collate_fn,
            "batch_transform": functions.transform,
            "worker_init_fn": asked.on_start,
        }
        if asked.method != "fork":
            for name, function in called.items():
                way_out = ", or pass multiprocessing_context='fork'"
                check_function(name, function, f"the processes of {asked.whose}", way_out)
            self._pickled = pickle.dumps(tuple(called.values()))
        else:
            self._pickled = b""
        on_start = called.pop("worker_init_fn")
        warn_of_own_generators(called, on_start, asked.whose, stacklevel=4)
        self.memory, self._board, self._descriptor = self._new_memory()
        self.runs: dict[int, SampleRun] = {}
        self.numbers = itertools.count(1)
        self.workers: list[Worker] = []
        self._given: dict[Worker, int] = {}
        self._dealing = threading.Lock()
        self._end: Callable[[], object] = lambda: None

    def _new_memory(self) -> tuple[SharedMemory, np.ndarray[tuple[int], np.dtype[np.int64]], int]:
        descriptor = create_file()
        memory = SharedMemory(descriptor)
        weakref.finalize(memory, os.close, descriptor)
        return memory, memory.allocate(PAGE_NBYTES).view(np.int64), descriptor

    def new_slots(self, nbytes: int) -> Slots:
        """Return the slots that readers fill: in memory that workers map."""
        return SlotRing(nbytes, self.memory.allocate)

    @property
    def is_whole(self) -> bool:
        """Whether none of the workers is gone."""
        return all(worker.usable for worker in self.workers)

    def start(self) -> None:
        """Start the workers that are not there."""
        if len(self.workers) == self.asked.count and self.is_whole:
            return
        self._end()
        self._board[:] = 0
        self.workers, self._given = [], {}
        self._end = weakref.finalize(self, _end_all, self.workers, self._board)
        for number in range(self.asked.count):
            worker = self._started(number)
            self._given[worker] = 0
            self.workers.append(worker)

    def _started(self, number: int) -> Worker:
        asked = self.asked
        told = Told(
            number=number,
            count=asked.count,
            seed=asked.seed,
            called_off=self.memory.lend(self._board.view(np.uint8)),
            on_start=asked.on_start,
            whose=asked.whose,
        )
        return Worker(
            functools.partial(SampleWork, self._functions, told),
            functools.partial(_hear, weakref.ref(self)),
            whose=asked.whose,
            way_out="Iterate again to start others",
            functions=self._pickled,
            method=asked.method,
            files=[self._descriptor],
        )

    def deal(self) -> Worker:
        """Choose the worker that has least to do, and count a batch for it."""
        with self._dealing:
            worker = min(self.workers, key=lambda worker: self._given[worker])
            self._given[worker] += 1
            return worker

    def answered(self, worker: Worker) -> None:
        """Count a batch that a worker is done with."""
        with self._dealing:
            if worker in self._given:
                self._given[worker] -= 1

    def call_off(self, run: int) -> None:
        """Let workers know that a pass is over."""
        noted(self._board, run)[0] = run

    def trim(self) -> None:
        """Let go of free memory."""
        self.memory.trim()

    def renew(self) -> None:
        """Leave all to the process that this one was forked from."""
        self.close()
        self.runs = {}
        self.memory, self._board, self._descriptor = self._new_memory()

    def close(self) -> None:
        """End the workers; in a forked process, only forget them."""
        self._end()
        self.workers, self._given, self._end = [], {}, lambda: None


def _end_all(workers: list[Worker], board: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """End workers: all are told before any is waited for. In a forked process they are its parent's."""
    if workers and workers[0].is_ours:
        board[0] = 1
        for worker in workers:
            worker.hang_up()
    for worker in workers:
        worker.end()


def _hear(pool_ref: weakref.ref[Pool], worker: Worker, message: Done | BaseException) -> None:
    """Hand what a worker says to its pass, and its end to all of them."""
    pool = pool_ref()
    if isinstance(message, BaseException):
        for run in [] if pool is None else list(pool.runs.values()):
            run.lose(worker, message)
        return
    if pool is not None:
        pool.memory.come_back(message.returned)
        pool.answered(worker)
        if (waiting := pool.runs.get(message.run)) is not None:
            waiting.hear(worker, message)
            return
    if message.made is not None:
        worker.memory.give_back(message.made.loans)


class SampleEngine:
    """An engine, and workers that its batches go through; see `h5stream.engine.running.Engine`."""

    def __init__(self, engine: Engine, pool: Pool, spare_nbytes: int) -> None:
        self._engine, self._pool, self._spare_nbytes = engine, pool, spare_nbytes

    @property
    def held_nbytes(self) -> int:
        """Bytes of the slots, filled or free."""
        return self._engine.held_nbytes

    @property
    def reads_ahead(self) -> bool:
        """Whether a pass reads by itself; not where a worker is gone, of which one under way is still to be told."""
        return self._engine.reads_ahead and self._pool.is_whole

    @property
    def pids(self) -> list[int]:
        """The workers' processes."""
        return [worker.pid for worker in self._pool.workers]

    def begin(self, order: Order, first_batch: int, *, max_open_batches: int, world_size: int = 1) -> SampleRun:
        """Begin a pass; workers that are not there are started, before the threads that read."""
        self._pool.start()
        run = self._engine.begin(order, first_batch, max_open_batches=max_open_batches, world_size=world_size)
        return SampleRun(run, self._pool, first_batch, max_open_batches, self._spare_nbytes)

    def trim(self) -> None:
        """Let go of the memory of free slots."""
        self._engine.trim()
        self._pool.trim()

    def renew(self) -> None:
        """In a forked child, make anew what is the parent's."""
        self._pool.renew()
        self._engine.renew()

    def close(self) -> None:
        """Let go of slots, files and processes."""
        self._pool.close()
        self._engine.close()


_EMPTY = Slot(np.empty(0, dtype=np.uint8))


class SampleRun:
    """One pass whose batches go through workers; see `h5stream.engine.running.Running`.

    # Guarantees: a thread of its own takes what is filled and gives it to workers, and ends with the pass. It, the
    # consumer, and the threads that hear the workers share what is below `_changed`, under it; the feeder waits for
    # `_room`, which has the same lock: a thread woken for nothing takes a processor from the workers. A filled batch
    # counts as open until its worker is done with it, so that both together stay within the budget.
    """

    def __init__(self, run: Running, pool: Pool, first_batch: int, max_open_batches: int, spare_nbytes: int) -> None:
        self._run, self._pool, self._pid, self._coming = run, pool, os.getpid(), first_batch
        self.order, self.counters, self.left_out = run.order, run.counters, run.left_out
        self._max_open, self._spare_nbytes = max_open_batches, spare_nbytes
        self._most = pool.asked.count * pool.asked.ahead
        self._number = next(pool.numbers)
        lock = threading.RLock()
        self._changed, self._room = threading.Condition(lock), threading.Condition(lock)
        self._due: collections.deque[int] = collections.deque()
        self._with: dict[int, Worker] = {}
        self._made: dict[int, tuple[Worker, Done] | BaseException] = {}
        self._ended = self._stopped = self._asked_for = False
        self._error: BaseException | None = None
        pool.runs[self._number] = self
        self._feeder = threading.Thread(target=self._feed, name="h5stream-feeder", daemon=True)
        self._feeder.start()

    # --- the consumer's side ------------------------------------------------------------------------------

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Wait for the next batch; None at the end. What it raises is that of `Run.next_batch`."""
        check_process(self._pid)
        deadline = time.monotonic() + timeout_s if timeout_s else None
        since = clock()
        with self._changed:
            while not self._is_decided():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            else:
                batch = self._next()
                self.counters.waited(since)
                return batch
        due, is_read = self._give_up()
        raise timed_out(due, timeout_s, is_read=is_read)

    def next_if_ready(self) -> ReadyBatch | None:
        """Return the next batch if that needs no waiting; None at the end as well."""
        with self._changed:
            return self._next() if self._is_decided() else None

    @property
    def ready(self) -> int:
        """Batches that are made and wait."""
        with self._changed:
            return sum(1 for _ in itertools.takewhile(self._made.__contains__, self._due))

    def _is_decided(self) -> bool:
        """Tell whether the next batch, an error or the end has come; called under the lock."""
        return self._stopped or (self._due[0] in self._made if self._due else self._ended)

    def _next(self) -> ReadyBatch | None:
        if self._stopped:
            raise closed()
        if not self._due:
            if self._error is not None:
                raise self._error
            return None
        made = self._made[self._due[0]]
        if isinstance(made, BaseException):
            raise made
        worker, done = made
        if done.failure is not None:
            raise done.failure.raised_here()
        assert done.made is not None
        del self._made[self._due.popleft()]
        self._coming = done.number + 1
        self._room.notify()
        value = unpack(done.made, worker.memory)
        return ReadyBatch(done.number, done.rows, _EMPTY, {}, missing=0, value=value)

    def _give_up(self) -> tuple[int, bool]:
        """End the worker that the next batch is waited for from: it may do what it does for ever.

        Gives the batch, and whether there was such a worker.
        """
        with self._changed:
            due = self._due[0] if self._due else self._coming
            worker = self._with.get(due)
        if worker is not None:
            worker.end()
        return due, worker is not None

    # --- other threads ------------------------------------------------------------------------------------

    def _feed(self) -> None:
        error: BaseException | None = None
        try:
            while self._has_room() and (batch := self._run.next_batch()) is not None:
                self._give(batch)
        except BaseException as found:  # nothing ends this thread in silence: the consumer would wait for ever
            error = found
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def _has_room(self) -> bool:
        with self._changed:
            self._room.wait_for(lambda: self._stopped or len(self._due) < self._most)
            return not self._stopped

    def _give(self, batch: ReadyBatch) -> None:
        filled = pack((batch.slot.lease().numpy(), batch.objects), self._pool.memory)
        worker = self._pool.deal()
        with self._changed:
            self._due.append(batch.number)
            self._with[batch.number] = worker
        self._count_passed_on()
        worker.post(Job(self._number, batch.number, batch.rows, filled))
        if worker.gone is not None:  # perhaps before it could know of this batch
            self.lose(worker, worker.gone)

    def _count_passed_on(self) -> None:
        with self._changed:
            passed_on = len(self._with)
        self._run.allow(self._max_open, passed_on)

    def hear(self, worker: Worker, done: Done) -> None:
        """Take in what came of a batch; what comes after `stop` is given back."""
        nbytes = 0 if done.made is None else sum(loan.nbytes for loan in done.made.loans)
        with self._changed:
            self._with.pop(done.number, None)
            if not self._stopped:
                self._made[done.number] = worker, done
                if nbytes:  # what results take is known by now: no more of them at a time than there is room for
                    fitting = max(self._pool.asked.count + 1, self._spare_nbytes // nbytes)
                    self._most = min(self._most, fitting)
                if self._due[0] == done.number:
                    self._changed.notify_all()
                done = done._replace(made=None)
        if done.made is not None:
            worker.memory.give_back(done.made.loans)
        self._count_passed_on()

    def lose(self, worker: Worker, error: BaseException) -> None:
        """Take in that a worker is gone: what it had will not come."""
        with self._changed:
            for number in [number for number, one in self._with.items() if one is worker]:
                del self._with[number]
                self._made[number] = error
            self._changed.notify_all()

    def left_to_hand_over(self) -> int | None:
        """Return the batches that are open once nothing is left to read; None before that."""
        left = self._run.left_to_hand_over()
        with self._changed:
            return None if left is None else left + len(self._due)

    def allow(self, max_open_batches: int, passed_on: int = 0) -> None:
        """Change how many batches may be open."""
        self._max_open = max_open_batches
        self._count_passed_on()

    def stop(self) -> None:
        """End the pass; workers are told, and what they made is given back."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._stopped = True
            made, self._made = self._made, {}
            self._changed.notify_all()
            self._room.notify_all()
        self._pool.runs.pop(self._number, None)
        self._pool.call_off(self._number)
        for one in made.values():
            if isinstance(one, tuple) and one[1].made is not None:
                one[0].memory.give_back(one[1].made.loans)
        self._run.stop()
        if self._feeder is not threading.current_thread():
            self._feeder.join(STOP_S)
