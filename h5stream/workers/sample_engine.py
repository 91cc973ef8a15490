"""An engine whose filled batches go through processes before they come: Python for each sample, beside the training."""

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

import numpy as np

from h5stream.engine.batches import ReadyBatch
from h5stream.engine.running import STOP_S, Engine, Running, check_process, closed, timed_out
from h5stream.engine.slots import PAGE_NBYTES, Slot, SlotRing, Slots
from h5stream.engine.statistics import clock
from h5stream.order.epoch import Order
from h5stream.workers.memory import SharedMemory, create_file, pack, unpack
from h5stream.workers.processes import check_function, main_module
from h5stream.workers.samples import SampleFunctions, warn_of_own_generators
from h5stream.workers.worker import Done, Job, Told, Worker, noted

AHEAD = 2
"""Batches that each worker has at a time, unless `prefetch_factor` says otherwise: as in DataLoader."""


class Pool:
    """The workers of a loader, and the memory that batches go to them in.

    # Guarantees: `start`, `renew` and `close` are called by the thread that iterates. `give` by the threads that feed,
    under `_dealing`; what workers say comes in a thread for each. It ends with this object, with `close`, and with the
    process.
    """

    def __init__(
        self,
        functions: SampleFunctions,
        *,
        count: int,
        method: str,  # how they are started; see `h5stream.workers.processes.checked_method`
        prefetch_factor: int | None,
        on_start: Callable[[int], None] | None,  # called with its number in each of them
        seed: int,  # of the loader
        whose: str,  # the arguments that ask for them, for errors
    ) -> None:
        self.count, self.ahead = count, AHEAD if prefetch_factor is None else max(1, prefetch_factor)
        called = {
            "sample_transform": functions.sample_transform,
            "collate_fn": functions.collate_fn,
            "batch_transform": functions.transform,
        }
        self._method, self._pickled = method, b""
        if method != "fork":
            every = called | {"worker_init_fn": on_start}
            for name, function in every.items():
                check_function(name, function, f"the processes of {whose}")
            self._pickled = pickle.dumps(tuple(every.values()))
        warn_of_own_generators(called, on_start, whose, stacklevel=5)
        self._told: Callable[..., Told] = functools.partial(
            Told, count=count, seed=seed, functions=functions, on_start=on_start, whose=whose
        )
        self.runs: dict[int, SampleRun] = {}
        self.numbers = itertools.count(1)
        self._dealing = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        """Begin with nothing: workers, and memory that they map."""
        self.workers: list[Worker] = []
        self._end: Callable[[], object] = lambda: None
        self._descriptor = create_file()
        self.memory = SharedMemory(self._descriptor)
        weakref.finalize(self.memory, os.close, self._descriptor)
        self._board = self.memory.allocate(PAGE_NBYTES).view(np.int64)

    def new_slots(self, nbytes: int) -> Slots:
        """Return the slots that readers fill: in memory that workers map."""
        return SlotRing(nbytes, self.memory.allocate)

    @property
    def is_whole(self) -> bool:
        """Whether none of the workers is gone."""
        return all(worker.usable for worker in self.workers)

    def start(self) -> None:
        """Start the workers that are not there."""
        if len(self.workers) == self.count and self.is_whole:
            return
        self.close()
        self._board[:] = 0
        self._end = weakref.finalize(self, _end_all, self.workers, self._board)
        main, hear = main_module(self._pickled), functools.partial(_hear, weakref.ref(self))
        for number in range(self.count):
            told = self._told(number=number, called_off=self.memory.lend(self._board.view(np.uint8)), main=main)
            self.workers.append(Worker(told, self._descriptor, self._method, hear))

    def deal(self) -> Worker:
        """Choose the worker that has least to do, and count a batch for it."""
        with self._dealing:
            worker = min(self.workers, key=lambda worker: worker.given)
            worker.given += 1
            return worker

    def heard(self, worker: Worker, done: Done) -> SampleRun | None:
        """Take in that a worker is done with a batch; return the pass that waits for it."""
        self.memory.come_back(done.returned)
        with self._dealing:
            worker.given -= 1
        return self.runs.get(done.run)

    def call_off(self, run: int) -> None:
        """Let workers know that a pass is over."""
        noted(self._board, run)[0] = run

    def renew(self) -> None:
        """Leave all to the process that this one was forked from."""
        self.close()
        self.runs = {}
        self._forget()

    def close(self) -> None:
        """End the workers; in a forked process, only forget them."""
        self._end()
        self.workers, self._end = [], lambda: None


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
    elif pool is not None and (waiting := pool.heard(worker, message)) is not None:
        waiting.hear(worker, message)
    else:
        _give_back(worker, message)


def _give_back(worker: Worker, done: Done) -> None:
    """Let a worker have back what it made of a batch that nobody wants."""
    if done.made is not None:
        worker.memory.give_back(done.made.loans)


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
        self._pool.memory.trim()

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
    consumer, and the threads that hear the workers share what is below `_changed`, under it; the feeder waits for
    `_room`, which has the same lock: a thread woken for nothing takes a processor from the workers. A filled batch
    counts as open until its worker is done with it, so that both together stay within the budget.
    """

    def __init__(self, run: Running, pool: Pool, first_batch: int, max_open_batches: int, spare_nbytes: int) -> None:
        self._run, self._pool, self._pid, self._coming = run, pool, os.getpid(), first_batch
        self.order, self.counters, self.left_out = run.order, run.counters, run.left_out
        self._max_open, self._spare_nbytes = max_open_batches, spare_nbytes
        self._most = pool.count * pool.ahead
        self._number = next(pool.numbers)
        lock = threading.RLock()
        self._changed, self._room = threading.Condition(lock), threading.Condition(lock)
        self._due: collections.deque[int] = collections.deque()
        self._with: dict[int, Worker] = {}
        self._made: dict[int, tuple[Worker, Done] | BaseException] = {}
        self._ended = self._stopped = False
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
            if self._changed.wait_for(self._is_decided, None if deadline is None else deadline - time.monotonic()):
                batch = self._next()
                self.counters.waited(since)
                return batch
            due = self._due[0] if self._due else self._coming
            worker = self._with.get(due)
        if worker is not None:
            worker.end()  # it may do what it does for ever
        raise timed_out(due, timeout_s, is_read=worker is not None)

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
                    fitting = max(self._pool.count + 1, self._spare_nbytes // nbytes)
                    self._most = min(self._most, fitting)
                if self._due[0] == done.number:
                    self._changed.notify_all()
            is_late = self._stopped
        if is_late:
            _give_back(worker, done)
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
            if isinstance(one, tuple):
                _give_back(*one)
        self._run.stop()
        if self._feeder is not threading.current_thread():
            self._feeder.join(STOP_S)
