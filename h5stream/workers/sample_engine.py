"""An engine whose filled batches pass through worker processes, which run Python beside the training."""

from __future__ import annotations

import collections
import functools
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from h5stream.base.hints import WORKERS, hint
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.counters import clock
from h5stream.engine.reader import RowReader
from h5stream.engine.run import STOP_S, Engine, Run, check_process
from h5stream.engine.slots import PAGE_NBYTES, Slot, SlotFormat, SlotRing
from h5stream.errors import LoaderClosedError, LoaderTimeoutError
from h5stream.order.window import Order
from h5stream.workers.memory import SharedMemory, create_file, pack, unpack
from h5stream.workers.processes import check_function, is_being_imported, main_module
from h5stream.workers.samples import SampleFunctions, warn_of_own_generators
from h5stream.workers.worker import Done, Job, Worker, WorkerConfig, cancelled_entry

SILENT_S = 3.0
"""Seconds without a first batch, after which it is logged that processes are starting."""

AHEAD = 2
"""Batches that each worker has at a time, unless `prefetch_factor` sets another number, as in DataLoader."""


class SampleEngine(Engine):
    """An engine with worker processes, which send batches through shared memory.

    # Guarantees: those of `Engine`. Workers end with this object, with `close`, and with the process.

    `reader`, `slot_format` and the `options` are those of `Engine`; slots are in memory that workers map.
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
        on_start: Callable[[int], None] | None,  # called in each worker with its number
        seed: int,  # of the loader
        option: str,  # the argument that requests workers, for errors
        spare_nbytes: int,  # the rest of the budget, for results of the functions
        **options: Any,
    ) -> None:
        self.count, self.ahead = count, AHEAD if prefetch_factor is None else max(1, prefetch_factor)
        called = {
            "sample_transform": functions.sample_transform,
            "collate_fn": functions.collate_fn,
            "batch_transform": functions.transform,
        }
        self._method, self._pickled, self.spare_nbytes, self.option = method, b"", spare_nbytes, option
        if method != "fork":
            every, where = called | {"worker_init_fn": on_start}, f"the processes of {option}"
            self._pickled = b"".join(check_function(name, function, where) for name, function in every.items())
        warn_of_own_generators(called, on_start, option)
        self._config: Callable[..., WorkerConfig] = functools.partial(
            WorkerConfig, count=count, seed=seed, functions=functions, on_start=on_start, option=option
        )
        self.numbers, self.has_made = itertools.count(1), False
        super().__init__(reader, slot_format, self._beginning(slot_format), **options)
        if method == "spawn" and not is_being_imported():  # they import torch while the script goes on
            self._start()

    def _beginning(self, slot_format: SlotFormat) -> Callable[[], SlotRing]:
        """Reset to no workers and new shared memory; return a maker of slots in this memory."""
        self.workers: list[Worker] = []
        self._end: Callable[[], object] = lambda: None
        self._descriptor = create_file()
        self.memory = SharedMemory(self._descriptor)
        weakref.finalize(self.memory, os.close, self._descriptor)
        self._board = self.memory.allocate(PAGE_NBYTES).view(np.int64)
        return functools.partial(SlotRing, slot_format.nbytes, self.memory.allocate)

    def renew(self) -> None:
        """In a forked child, leave workers and memory to the parent."""
        self._end_workers()
        self._new_slots = self._beginning(self.slot_format)
        super().renew()

    @property
    def _is_whole(self) -> bool:
        """Whether all workers are alive."""
        return all(worker.usable for worker in self.workers)

    @property
    def reads_ahead(self) -> bool:
        """Whether runs read ahead; not after a worker died, which the run in progress must report first."""
        return super().reads_ahead and self._is_whole

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self.workers]

    def begin(self, order: Order, first_batch: int, *, max_open_batches: int, world_size: int = 1) -> Any:
        """Begin a pass, a `SampleRun`; missing workers are started before the threads that read."""
        if len(self.workers) < self.count or not self._is_whole:
            self._start()
        run = super().begin(order, first_batch, max_open_batches=max_open_batches, world_size=world_size)
        return SampleRun(run, self, first_batch, max_open_batches)

    def _start(self) -> None:
        self._end_workers()
        self._board[:] = 0
        self._end = weakref.finalize(self, _end_all, self.workers, self._board)
        main = main_module(self._pickled)
        for number in range(self.count):
            config = self._config(number=number, cancelled=self.memory.lend(self._board.view(np.uint8)), main=main)
            self.workers.append(Worker(config, self._descriptor, self._method, self.memory.end_loans))

    def cancel(self, run: int) -> None:
        """Tell workers that a pass is over."""
        cancelled_entry(self._board, run)[0] = run

    def trim(self) -> None:
        """Free unused memory, also that of data for workers that is not in slots."""
        super().trim()
        self.memory.trim()

    def _end_workers(self) -> None:
        """End the workers; in a forked process, only forget them."""
        self._end()
        self.workers, self._end = [], lambda: None

    def close(self) -> None:
        """Release slots, files and processes."""
        self._end_workers()
        super().close()


def _end_all(workers: list[Worker], board: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """End workers: notify all before waiting for any. In a forked process they belong to the parent."""
    if workers and workers[0].is_ours:
        board[0] = 1
        for worker in workers:
            worker.hang_up()
    for worker in workers:
        worker.end()


def _give_back(worker: Worker, future: Future[Done]) -> None:
    """Return the memory of an unwanted result to its worker."""
    if future.exception() is None and (packed := future.result().packed) is not None:
        worker.memory.give_back(packed.loans)


def _receive(run_ref: weakref.ref[SampleRun], future: Future[Done]) -> None:
    if (run := run_ref()) is not None:
        run.receive(future)


_EMPTY = Slot(np.empty(0, dtype=np.uint8))


class SampleRun:
    """One pass whose batches go through workers, with the interface that an epoch needs of a `Run`.

    # Guarantees: a thread of its own takes filled batches and gives them to workers, and ends with the pass. It, the
    consumer, and the threads that listen to workers share the attributes below `_changed`, under its lock; the feeder
    waits for `_room`, which has the same lock: a thread woken for nothing takes a processor from the workers. A filled
    batch counts as open until its worker is done with it, so that both together stay within the budget. Batches in
    progress refer to this object weakly, so that a slow function keeps no engine alive.
    """

    def __init__(self, run: Run, engine: SampleEngine, first_batch: int, max_open_batches: int) -> None:
        self._run, self._engine, self._pid, self._coming = run, engine, os.getpid(), first_batch
        self.counters, self.left_out = run.counters, run.left_out
        self._max_open, self._taken, self._most = max_open_batches, 0, engine.count * engine.ahead
        self._number = next(engine.numbers)
        lock = threading.RLock()
        self._changed, self._room = threading.Condition(lock), threading.Condition(lock)
        # Batches that are not handed over yet: the number, the worker and the result of each.
        self._due: collections.deque[tuple[int, Worker, Future[Done]]] = collections.deque()
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        self._on_done = functools.partial(_receive, weakref.ref(self))
        self._feeder = threading.Thread(target=self._feed, name="h5stream-feeder", daemon=True)
        self._feeder.start()

    # --- the consumer's side ------------------------------------------------------------------------------

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Wait for the next batch; None at the end. Raises as `Run.next_batch` does."""
        check_process(self._pid)
        deadline = time.monotonic() + timeout_s if timeout_s else None
        since = clock()
        with self._changed:
            if self._wait(deadline):
                batch = self._next()
                self.counters.waited(since)
                return batch
            number, worker = self._due[0][:2] if self._due else (self._coming, None)
        if worker is not None:
            worker.end()  # it may never finish
        raise LoaderTimeoutError.of_batch(number, timeout_s, is_read=worker is not None)

    def _wait(self, deadline: float | None) -> bool:
        """Wait until the next batch is decided, or the deadline; called under the lock."""
        limit_s = SILENT_S if deadline is None else min(SILENT_S, deadline - time.monotonic())
        if not self._engine.has_made and not self._changed.wait_for(self._is_decided, limit_s) and limit_s == SILENT_S:
            hint(
                f"the first batch waits for the processes of {self._engine.option}, each of which imports torch and "
                "the module of your function first",
                WORKERS,
            )
        return self._changed.wait_for(self._is_decided, None if deadline is None else deadline - time.monotonic())

    def _is_decided(self) -> bool:
        """Return whether the next batch, an error or the end has come; called under the lock."""
        return self._stopped or (self._due[0][2].done() if self._due else self._ended)

    def _next(self) -> ReadyBatch | None:
        if self._stopped:
            raise LoaderClosedError.of_iterator()
        if not self._due:
            if self._error is not None:
                raise self._error
            return None
        number, worker, future = self._due[0]
        done = future.result()
        if done.failure is not None:
            raise done.failure.to_raise()
        if done.packed is None:  # cancelled, which only `stop` does
            raise LoaderClosedError.of_iterator()
        self._engine.has_made = True
        self._due.popleft()
        self._coming = number + 1
        self._room.notify()
        return ReadyBatch(number, done.rows, _EMPTY, {}, value=unpack(done.packed, worker.memory))

    # --- other threads ------------------------------------------------------------------------------------

    def _feed(self) -> None:
        error: BaseException | None = None
        try:
            while self._has_room() and (batch := self._run.next_batch()) is not None:
                self._give(batch)
        except BaseException as caught:  # a silent end of this thread would let the consumer wait forever
            error = caught
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def _has_room(self) -> bool:
        with self._changed:
            self._room.wait_for(lambda: self._stopped or len(self._due) < self._most)
            return not self._stopped

    def _give(self, batch: ReadyBatch) -> None:
        filled = pack((batch.slot.lease(), batch.objects), self._engine.memory)
        worker = min(self._engine.workers, key=lambda worker: (worker.gone is not None, len(worker.due)))
        future = worker.post(Job(self._number, batch.number, batch.rows, filled))
        with self._changed:
            is_late = self._stopped
            if not is_late:
                self._due.append((batch.number, worker, future))
        # Only after it is in `_due`: it may be done already.
        future.add_done_callback(functools.partial(_give_back, worker) if is_late else self._on_done)
        self._count_passed_on()

    def _count_passed_on(self) -> None:
        with self._changed:
            passed_on = sum(not future.done() for _, _, future in self._due)
        self._run.allow(self._max_open, self._taken + passed_on)

    def receive(self, future: Future[Done]) -> None:
        """Process the result of a batch, or the end of its worker."""
        packed = None if future.exception() is not None else future.result().packed
        with self._changed:
            if packed is not None and (nbytes := sum(loan.nbytes for loan in packed.loans)):
                # The size of results is known now: limit their number to the room for them.
                fitting = max(self._engine.count + 1, self._engine.spare_nbytes // nbytes)
                self._most = min(self._most, fitting)
            if self._due and self._due[0][2] is future:
                self._changed.notify_all()
        self._count_passed_on()

    @property
    def has_planned_all(self) -> bool:
        """Whether all windows are planned and admitted."""
        return self._run.has_planned_all

    @property
    def waits(self) -> bool:
        """Whether it reads nothing until it is allowed to."""
        return self._run.waits

    def take(self) -> None:
        """Record that somebody will end the run."""
        self._run.take()

    def left_to_hand_over(self) -> int | None:
        """Return the number of open batches once all is read; None before that."""
        remaining = self._run.left_to_hand_over()
        with self._changed:
            return None if remaining is None else remaining + len(self._due)

    def allow(self, max_open_batches: int, passed_on: int = 0) -> None:
        """Change how many batches may be open, including `passed_on` batches of the previous pass."""
        self._max_open, self._taken = max_open_batches, passed_on
        self._count_passed_on()

    def stop(self) -> None:
        """End the pass; workers are notified, and the memory of their results is returned."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._stopped = True
            due, self._due = self._due, collections.deque()
            self._changed.notify_all()
            self._room.notify_all()
        self._engine.cancel(self._number)
        for _, worker, future in due:
            future.add_done_callback(functools.partial(_give_back, worker))
        self._run.stop()
        if self._feeder is not threading.current_thread():
            self._feeder.join(STOP_S)
