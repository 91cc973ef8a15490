"""The engine whose reader threads belong to a child process; see `h5stream.engine.running` for the seam."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import queue
import weakref
from collections.abc import Callable

import numpy as np

from h5stream.engine.batches import ReadyBatch
from h5stream.engine.counters import RunCounters
from h5stream.engine.running import closed, made_before_fork, timed_out
from h5stream.engine.slots import Memory, Slot, Slots
from h5stream.engine.threads import ThreadEngine
from h5stream.order.blocks import Blocks
from h5stream.order.epoch import Order, UsersOrder
from h5stream.workers.importing import check_function
from h5stream.workers.messages import Begin, Ended, Filled, Report, Room, Stop
from h5stream.workers.orders import WindowSender, pickled
from h5stream.workers.packing import unpack
from h5stream.workers.passes import Finish, LoaderWork
from h5stream.workers.worker import Worker


class ProcessEngine:
    """Begins passes in a child process, which is started at the first and serves all of them.

    # Guarantees: used by the thread that iterates. The child ends with this object, with `close`, and with the
    # process.
    """

    def __init__(
        self,
        engine: Callable[[Callable[[], Slots]], ThreadEngine],
        slot_nbytes: int,
        finish: Finish | None,
        blocks: Blocks,
        *,
        threads: int,
        row_nbytes: int,
        on_thread_start: Callable[[int], None] | None = None,
        pin: Callable[[Memory], object] | None = None,
    ) -> None:
        transform = None if finish is None else finish.transform
        check_function("batch_transform", transform)
        check_function("worker_init_fn", on_thread_start)
        self._work = functools.partial(LoaderWork, engine, slot_nbytes, finish, blocks)
        self._functions, self._blocks = (transform, on_thread_start), blocks
        self._threads, self._row_nbytes, self._pin = threads, row_nbytes, pin
        self._passes: dict[int, ProcessRun] = {}
        self._numbers = itertools.count()
        self._child: Worker | None = None
        self._end: Callable[[], object] = lambda: None

    @property
    def reads_ahead(self) -> bool:
        """Whether a pass reads by itself.

        Not where a transform runs there: it would mix two epochs' batches. Nor where the child is gone, of which the
        pass that is under way is still to be told: another would take its place.
        """
        return self._functions[0] is None and (self._child is None or self._child.usable)

    @property
    def pid(self) -> int | None:
        """The child's process; None while there is none."""
        return None if self._child is None else self._child.pid

    @property
    def held_nbytes(self) -> int:
        """Slots are the child's, and not counted here."""
        return 0

    def begin(self, order: Order, first_batch: int, *, max_open_batches: int, world_size: int = 1) -> ProcessRun:
        """Begin a pass over an order; the child is started if there is none."""
        if self._child is None or not self._child.usable:
            self._start()
        assert self._child is not None
        counters = RunCounters(threads=self._threads, ready_limit=max_open_batches, row_nbytes=self._row_nbytes)
        # The windows of a sampler, or of an order of the user's, are sent one by one: that code stays here.
        sent = None if isinstance(order, UsersOrder) else pickled(order, self._blocks)
        begin = Begin(next(self._numbers), sent, first_batch, max_open_batches, world_size)
        return ProcessRun(self._child, self._passes, order, begin, counters)

    def _start(self) -> None:
        self.close()
        self._passes = {}
        self._child = Worker(
            self._work,
            functools.partial(_hear, self._passes),
            whose="isolation='process'",
            way_out="Iterate again to start another; isolation='thread' needs none",
            functions=pickle.dumps(self._functions),
            pin=self._pin,
        )
        self._end = weakref.finalize(self, self._child.end)

    def trim(self) -> None:
        """Do nothing: free slots are the child's."""

    def renew(self) -> None:
        """Leave the child to the process that this one was forked from; the next pass starts another."""
        self.close()

    def close(self) -> None:
        """End the child; in a forked process, only forget it."""
        self._end()
        self._child, self._end = None, lambda: None


_EMPTY = Slot(np.empty(0, dtype=np.uint8))


def _hear(passes: dict[int, ProcessRun], child: Worker, message: Filled | Ended | BaseException) -> None:
    """Hand a message to its pass, and the end of the child to all; what comes of one that was stopped is given back."""
    if isinstance(message, BaseException):
        for run in list(passes.values()):
            run.hear(message)
    elif (waiting := passes.get(message.run)) is not None:
        waiting.hear(message)
    elif isinstance(message, Filled):
        child.memory.give_back(message.loans)


class ProcessRun:
    """One pass over an order, read by a child; see `h5stream.engine.running.Running`.

    # Guarantees: `hear` is called by the thread that listens to the child, and `stop` by any; they and the consumer
    # share `_inbox`. That thread alone writes `_heard` and what was counted, and the consumer the rest.
    """

    def __init__(
        self, child: Worker, passes: dict[int, ProcessRun], order: Order, begin: Begin, counters: RunCounters
    ) -> None:
        self.order, self.counters = order, counters
        self.left_out: set[int] = set()
        self._child, self._passes, self._pid = child, passes, os.getpid()
        self._inbox: queue.SimpleQueue[Filled | Ended | BaseException] = queue.SimpleQueue()
        self._report: Report | None = None
        self._tally = counters.tally()
        self._room, self._heard = Room(begin.run, 0, begin.max_open_batches), 0
        self._next, self._stopped = begin.first_batch, False
        passes[begin.run] = self
        child.post(begin)
        if child.gone is not None:  # perhaps before it could know of this pass
            self.hear(child.gone)
        self._sender = WindowSender(order, begin.run, begin.first_batch) if begin.order is None else None
        try:
            self._send_windows()
        except BaseException:  # Ctrl-C, in the user's sampler
            self.stop()
            raise

    def hear(self, message: Filled | Ended | BaseException) -> None:
        """Take in a message; what comes after `stop` is given back."""
        if not isinstance(message, BaseException):
            # In this order: what is counted twice meanwhile is read too late, and not beyond the budget.
            self._heard += isinstance(message, Filled)
            if message.report is not None:
                self._take_over(message.report)
        self._inbox.put(message)
        if self._stopped:
            self._empty()

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Wait for the next batch; None at the end. What it raises is that of `Run.next_batch`."""
        self._check()
        asked = self.counters.asked(self.ready)
        try:
            message = self._inbox.get(timeout=timeout_s or None)
        except queue.Empty:
            raise timed_out(self._next, timeout_s) from None
        batch = self._taken(message)
        if batch is not None:
            self.counters.waited(asked)
        return batch

    def next_if_ready(self) -> ReadyBatch | None:
        """Return the next batch if that needs no waiting; None at the end as well."""
        self._check()
        return None if self._inbox.empty() else self._taken(self._inbox.get())

    @property
    def ready(self) -> int:
        """Batches that are here, and those behind them; one that must come first is not ready."""
        here = self._inbox.qsize()
        return here + (self._report.ready if self._report is not None else 0) if here else 0

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise made_before_fork()
        if self._stopped:
            raise closed()

    def _taken(self, message: Filled | Ended | BaseException) -> ReadyBatch | None:
        """Return the batch of a message; None at the end."""
        if self._stopped:
            self.hear(message)  # gives it back
            raise closed()
        if not isinstance(message, Filled):
            self._inbox.put(message)  # nothing comes behind it; what asks again is told again
            self._check_end(message)
            return None
        self.left_out.update(range(self._next, message.number))
        self._next = message.number + 1
        self._tell(self._room._replace(taken=self._room.taken + 1))
        try:
            self._send_windows()
        except BaseException:
            self._child.memory.give_back(message.loans)
            raise
        memory, slot, value = self._child.memory, _EMPTY, None
        if message.slot is not None:
            slot = Slot(np.frombuffer(memory.borrow(message.slot), dtype=np.uint8))
        elif message.made is not None:
            value = unpack(message.made, memory)
        self.counters.gave(message.rows)
        return ReadyBatch(message.number, message.rows, slot, message.objects, missing=0, value=value)

    def _check_end(self, message: Ended | BaseException) -> None:
        """Raise what ended the pass, if anything did."""
        if isinstance(message, BaseException):
            raise message
        if message.failure is not None:
            raise message.failure.raised_here()
        if self._sender is not None and self._sender.error is not None:
            raise self._sender.error

    def _take_over(self, report: Report) -> None:
        self._report = report
        self._tally.become(report.totals)
        self.counters.skipped_rows = report.skipped_rows
        for name in report.skipped_chunks:
            self.counters.skip(name)

    def _tell(self, room: Room) -> None:
        self._room = room
        self._child.post(room)

    def _send_windows(self) -> None:
        """Send windows as far as the child may read."""
        if self._sender is not None:
            for window in self._sender.due(self._next + self._room.max_open_batches):
                self._child.post(window)

    def left_to_hand_over(self) -> int | None:
        """Return the batches that are open once nothing is left to read; None before that, as far as is known here."""
        if self._report is None or self._report.left is None:
            return None
        return self._report.left + self._heard - self._room.taken

    def allow(self, max_open_batches: int, passed_on: int = 0) -> None:
        """Change how many batches may be open; those that were passed on do not count here."""
        if max_open_batches != self._room.max_open_batches:
            self._tell(self._room._replace(max_open_batches=max_open_batches))

    def stop(self) -> None:
        """End the pass; the child ends its threads, and what it sent meanwhile is given back."""
        if os.getpid() != self._pid:
            return
        self.counters.end()
        self._stopped = True
        if self._passes.pop(self._room.run, None) is not None:
            self._child.post(Stop(self._room.run))
        self._empty()
        self._inbox.put(closed())  # for a consumer that waits

    def _empty(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._inbox.get_nowait()
                if isinstance(message, Filled):
                    self._child.memory.give_back(message.loans)
