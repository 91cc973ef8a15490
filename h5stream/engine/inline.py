"""A pass over an order that is carried out by the thread that asks for batches: no locks, no queue, no hand-over."""

from __future__ import annotations

import os
import threading

from h5stream.engine.batches import OpenBatches, PlannedWindow, ReadyBatch
from h5stream.engine.counters import RunCounters, clock
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.landing.resident import ResidentDatasets
from h5stream.engine.plan import Placement
from h5stream.engine.reader import RowReader
from h5stream.engine.running import check_process, closed
from h5stream.engine.slots import SlotFormat, Slots
from h5stream.engine.tasks import Task
from h5stream.errors import H5StreamError
from h5stream.order.epoch import Order


class InlineRun:
    """One pass over an order, window by window, each brought when a batch of it is asked for.

    # Guarantees: used by one consumer at a time; `stop` may be called by any thread, and between two tasks it ends what
    is under way. What the consumer interrupts, with Ctrl-C for instance, is its own to handle, at once.

    Parameters are those of `h5stream.engine.executor.Run`, without threads.
    """

    def __init__(
        self,
        reader: RowReader,
        resident: ResidentDatasets,
        order: Order,
        ring: Slots,
        slot_format: SlotFormat,
        *,
        first_batch: int = 0,
        skip_corrupt: bool = False,
        world_size: int = 1,
    ) -> None:
        fields = reader.layout.fields
        self._reader, self._resident, self.order, self._ring = reader, resident, order, ring
        self._skip_corrupt, self._world_size = skip_corrupt, world_size
        self._pid, self._first_batch = os.getpid(), first_batch
        self._stopped = threading.Event()  # what tools look at: a function of this object would keep it alive
        self._windows = iter(order.windows(first_batch))
        self._exhausted = self._is_busy = False
        self._letting_go = threading.Lock()
        self._open = OpenBatches(fields, order, ring, slot_format, first_batch, reader.ragged_memory)
        self.left_out: set[int] = set()
        self.counters = RunCounters(threads=0, ready_limit=1, row_nbytes=sum(f.row_nbytes for f in fields))
        tally = self.counters.tally()
        self._tools = reader.tools(tally, self._stopped.is_set)

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Bring the next batch; None at the end. It takes as long as it takes: nothing else could be waited for.

        Raises
        ------
        LoaderClosedError
            After `stop`, or in a forked child.
        Exception
            Whatever went wrong while reading this batch's rows.
        """
        check_process(self._pid)
        asked = self.counters.asked(self._open.ready)
        while (batch := self._take_complete()) is None:
            if self._exhausted:
                self._open.check_ended()
                return None
            self._bring_window()
        self.counters.waited(asked)
        return batch

    def next_if_ready(self) -> ReadyBatch | None:
        """Give the next batch if it is there already."""
        return self._take_complete()

    def _take_complete(self) -> ReadyBatch | None:
        """Take the next batch if all of it is there; those of which nothing is left are passed over."""
        if self._stopped.is_set():
            raise closed()
        while (batch := self._open.first_full(self.counters)) is not None:
            if batch.rows == 0 and self._world_size > 1:
                raise batch.nothing_left(self._world_size)
            self._open.remove(batch)
            if batch.rows > 0:
                self.counters.gave(batch.rows)
                return batch
            self._ring.give_back(batch.slot)
            self.left_out.add(batch.number)
        return None

    def _bring_window(self) -> None:
        """Plan the next window and carry its tasks out; what goes wrong is noted at the first batch that needs it."""
        try:
            self.counters.add(self._resident.load())
            began = clock()
            window = self._planned()
            self._tools.tally.plan_ns += clock() - began
        except Exception as error:
            self._fail(self._open.first_lacking([]), error)
            return
        if window is None:
            self._exhausted = True
            return
        self._is_busy = True
        try:
            self._carry_out(window)
        finally:
            self._is_busy = False
            if self._stopped.is_set():
                self._let_go()

    def _carry_out(self, window: PlannedWindow) -> None:
        try:
            self._open.admit(window)
        except Exception as error:  # no memory for its slots
            self._fail(window.first_batch, error)
            return
        for task in window.tasks:
            if self._stopped.is_set():
                raise closed()
            self._land(window, task)
        if (changed := window.changed_file(self._reader.layout.files)) is not None:
            self._fail(window.first_batch, changed)
        self._open.complete(window)

    def _planned(self) -> PlannedWindow | None:
        window = next(self._windows, None)
        if window is None:
            return None
        first, placement = Placement.from_first(window)
        placement = self._reader.accepted(placement, self._stopped.is_set)
        tasks = list(self._reader.plan(placement, TASK_NBYTES, self._resident))
        return PlannedWindow(first, placement.rows_of_batches(), tasks, placement.files_of(self._reader.layout))

    def _land(self, window: PlannedWindow, task: Task) -> None:
        assert window.destination is not None
        try:
            task.land(self._tools.read(task.ranges()), window.destination, self._tools)
        except H5StreamError as error:
            drop = (lambda one, why: window.drop(one, why, self.counters)) if self._skip_corrupt else None
            if (failed := window.first_failure(task, error, self._reader.tools(), drop)) is not None:
                self._fail(*failed)
        except Exception as error:
            self._fail(window.first_batch + task.placement.first_batch, error)

    def _fail(self, batch: int, error: BaseException) -> None:
        self._open.fail(batch, error)
        self._exhausted = True

    def left_to_hand_over(self) -> int | None:
        """Give the batches that are there once nothing is left to bring; None before that."""
        return len(self._open) if self._exhausted else None

    @property
    def ready(self) -> int:
        """Batches that are there and wait."""
        return self._open.ready

    def allow(self, max_open_batches: int, passed_on: int = 0) -> None:
        """Change nothing: no more than a window is open."""

    def stop(self) -> None:
        """End it; safe to call twice, from any thread, and in a forked child."""
        if os.getpid() != self._pid or self._stopped.is_set():
            return
        self.counters.end()
        self._stopped.set()
        self._exhausted = True
        if not self._is_busy:  # else a task may be writing to them, and lets go of them when it ends
            self._let_go()

    def _let_go(self) -> None:
        with self._letting_go:
            batches = self._open.clear()
        for batch in batches:
            self._ring.give_back(batch.slot)
