"""An engine whose filled batches go through processes before they come: Python for each sample, beside the training."""

from __future__ import annotations

import collections
import functools
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from h5stream.engine.batches import ReadyBatch
from h5stream.engine.reader import RowReader
from h5stream.engine.run import STOP_S, Engine, Run, check_process, closed, timed_out
from h5stream.engine.slots import PAGE_NBYTES, Slot, SlotFormat, SlotRing
from h5stream.engine.statistics import clock
from h5stream.order.epoch import Order
from h5stream.workers.memory import SharedMemory, create_file, pack, unpack
from h5stream.workers.processes import check_function, main_module
from h5stream.workers.samples import SampleFunctions, warn_of_own_generators
from h5stream.workers.worker import Done, Job, Told, Worker, noted

AHEAD = 2
"""Batches that each worker has at a time, unless `prefetch_factor` says otherwise: as in DataLoader."""


class SampleEngine(Engine):
    """An engine, the workers that its batches go through, and the memory that they go to them in.

    # Guarantees: as of `Engine`. What feeds workers calls `deal`, under `_dealing`; what they say comes in a thread for
    each. They end with this object, with `close`, and with the process.

    `reader`, `slot_format` and the `options` are those of `Engine`; slots lie in memory that workers map.
    """

    def __init__(
        self,
        reader: RowReader,
        slot_format: SlotFormat,
        functions: SampleFunctions,
        *,
        count: int,
        method: str,  # how they are started; see `h5stream.workers.processes.checked_method`
        prefetch_factor: int | None,
        on_start: Callable[[int], None] | None,  # called with its number in each of them
        seed: int,  # of the loader
        whose: str,  # the arguments that ask for them, for errors
        spare_nbytes: int,  # what of the budget is left for batches that are made
        **options: Any,
    ) -> None:
        self.count, self.ahead = count, AHEAD if prefetch_factor is None else max(1, prefetch_factor)
        called = {
            "sample_transform": functions.sample_transform,
            "collate_fn": functions.collate_fn,
            "batch_transform": functions.transform,
        }
        self._method, self._pickled, self.spare_nbytes = method, b"", spare_nbytes
        if method != "fork":
            every, where = called | {"worker_init_fn": on_start}, f"the processes of {whose}"
            self._pickled = b"".join(check_function(name, function, where) for name, function in every.items())
        warn_of_own_generators(called, on_start, whose, stacklevel=6)
        self._told: Callable[..., Told] = functools.partial(
            Told, count=count, seed=seed, functions=functions, on_start=on_start, whose=whose
        )
        self.numbers = itertools.count(1)
        self._dealing = threading.Lock()
        super().__init__(reader, slot_format, self._beginning(slot_format), **options)

    def _beginning(self, slot_format: SlotFormat) -> Callable[[], SlotRing]:
        """Begin without workers, and with memory that none maps yet; return what makes slots in that."""
        self._workers: list[Worker] = []
        self._end: Callable[[], object] = lambda: None
        self.runs: dict[int, SampleRun] = {}
        self._descriptor = create_file()
        self.memory = SharedMemory(self._descriptor)
        weakref.finalize(self.memory, os.close, self._descriptor)
        self._board = self.memory.allocate(PAGE_NBYTES).view(np.int64)
        return functools.partial(SlotRing, slot_format.nbytes, self.memory.allocate)

    def renew(self) -> None:
        """In a forked child, leave all to the parent."""
        self._end_workers()
        self._new_slots = self._beginning(self.slot_format)
        super().renew()

    @property
    def _is_whole(self) -> bool:
        """Whether none of the workers is gone."""
        return all(worker.usable for worker in self._workers)

    @property
    def reads_ahead(self) -> bool:
        """Whether a pass reads by itself; not where a worker is gone, of which one under way is still to be told."""
        return super().reads_ahead and self._is_whole

    @property
    def pids(self) -> list[int]:
        """The workers' processes."""
        return [worker.pid for worker in self._workers]

    def begin(self, order: Order, first_batch: int, *, max_open_batches: int, world_size: int = 1) -> Any:
        """Begin a pass, a `SampleRun`; workers that are not there are started, before the threads that read."""
        if len(self._workers) < self.count or not self._is_whole:
            self._start()
        run = super().begin(order, first_batch, max_open_batches=max_open_batches, world_size=world_size)
        return SampleRun(run, self, first_batch, max_open_batches)

    def _start(self) -> None:
        self._end_workers()
        self._board[:] = 0
        self._end = weakref.finalize(self, _end_all, self._workers, self._board)
        main, hear = main_module(self._pickled), functools.partial(_hear, weakref.ref(self))
        for number in range(self.count):
            told = self._told(number=number, called_off=self.memory.lend(self._board.view(np.uint8)), main=main)
            self._workers.append(Worker(told, self._descriptor, self._method, hear))

    def deal(self) -> Worker:
        """Choose the worker that has least to do, and count a batch for it."""
        with self._dealing:
            worker = min(self._workers, key=lambda worker: worker.given)
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

    def trim(self) -> None:
        """Let go of free memory, also of what goes to workers and does not lie in slots."""
        super().trim()
        self.memory.trim()

    def _end_workers(self) -> None:
        """End the workers; in a forked process, only forget them."""
        self._end()
        self._workers, self._end = [], lambda: None

    def close(self) -> None:
        """Let go of slots, files and processes."""
        self._end_workers()
        super().close()


def _end_all(workers: list[Worker], board: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """End workers: all are told before any is waited for. In a forked process they are its parent's."""
    if workers and workers[0].is_ours:
        board[0] = 1
        for worker in workers:
            worker.hang_up()
    for worker in workers:
        worker.end()


def _hear(engine_ref: weakref.ref[SampleEngine], worker: Worker, message: Done | BaseException) -> None:
    """Hand what a worker says to its pass, and its end to all of them."""
    engine = engine_ref()
    if isinstance(message, BaseException):
        for run in [] if engine is None else list(engine.runs.values()):
            run.lose(worker, message)
    elif engine is not None and (waiting := engine.heard(worker, message)) is not None:
        waiting.hear(worker, message)
    else:
        _give_back(worker, message)


def _give_back(worker: Worker, done: Done) -> None:
    """Let a worker have back what it made of a batch that nobody wants."""
    if done.made is not None:
        worker.memory.give_back(done.made.loans)


_EMPTY = Slot(np.empty(0, dtype=np.uint8))


class SampleRun:
    """One pass whose batches go through workers; it has what an epoch needs of a `Run`.

    # Guarantees: a thread of its own takes what is filled and gives it to workers, and ends with the pass. It, the
    consumer, and the threads that hear the workers share what is below `_changed`, under it; the feeder waits for
    `_room`, which has the same lock: a thread woken for nothing takes a processor from the workers. A filled batch
    counts as open until its worker is done with it, so that both together stay within the budget.
    """

    def __init__(self, run: Run, engine: SampleEngine, first_batch: int, max_open_batches: int) -> None:
        self._run, self._engine, self._pid, self._coming = run, engine, os.getpid(), first_batch
        self.order, self.counters, self.left_out = run.order, run.counters, run.left_out
        self._max_open, self._most = max_open_batches, engine.count * engine.ahead
        self._number = next(engine.numbers)
        lock = threading.RLock()
        self._changed, self._room = threading.Condition(lock), threading.Condition(lock)
        self._due: collections.deque[int] = collections.deque()
        self._with: dict[int, Worker] = {}
        self._made: dict[int, tuple[Worker, Done] | BaseException] = {}
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        engine.runs[self._number] = self
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
        filled = pack((batch.slot.lease().numpy(), batch.objects), self._engine.memory)
        worker = self._engine.deal()
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
                    fitting = max(self._engine.count + 1, self._engine.spare_nbytes // nbytes)
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
        self._engine.runs.pop(self._number, None)
        self._engine.call_off(self._number)
        for one in made.values():
            if isinstance(one, tuple):
                _give_back(*one)
        self._run.stop()
        if self._feeder is not threading.current_thread():
            self._feeder.join(STOP_S)
