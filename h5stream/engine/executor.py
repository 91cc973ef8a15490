"""Running an epoch: windows are planned, admitted, carried out by threads, and handed over batch by batch."""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Iterator

from h5stream.engine.batches import PlannedWindow, ReadyBatch, rows_of_batches, sink_of, will_complete
from h5stream.engine.blame import changed_file, first_failure
from h5stream.engine.carry import Carrier, FileTask
from h5stream.engine.counters import RunCounters, Tally, clock
from h5stream.engine.footprint import TASK_NBYTES
from h5stream.engine.kept import KeptDatasets, KeptTask
from h5stream.engine.leaving import check_process, stop_at_exit
from h5stream.engine.plan import counted_from
from h5stream.engine.running import STOP_S, closed, timed_out
from h5stream.engine.skipping import close_gaps, drop_rows, hand_down, nothing_left
from h5stream.engine.slots import SlotFormat, Slots
from h5stream.errors import H5StreamError
from h5stream.order.epoch import Order, Window


class Run:
    """One pass over an order.

    # Guarantees: everything below `_changed` is read and written under it. Threads take jobs, carry them out
    # without the lock, and report back. Only `next_batch` hands batches over, in order, to one consumer. A
    # worker never touches a slot after its window is complete. Memory that a worker may still write to is
    # referenced by its job until the job ends, so stopping early frees nothing too soon.

    Parameters
    ----------
    carrier : Carrier
        Carries tasks out.
    kept : KeptDatasets
        The small datasets.
    order : Order
        The windows.
    ring : Slots
        Where slots come from and go back to.
    slot_format : SlotFormat
        How a batch is packed.
    threads : int
        Reader threads; 0 reads in the thread that asks for batches.
    max_open_batches : int
        Batches that may be filled or waiting at a time; exceeded only where one window needs more.
    first_batch : int
        The batch to begin with.
    on_thread_start : callable, optional
        Called with the thread's number in each reader thread before its first job.
    skip_corrupt : bool
        Leave the rows of corrupt chunks out, and batches of which nothing is left; `left_out` has their numbers.
    world_size : int
        Ranks that count on as many batches from each other: with several, such a batch is an error instead.
    """

    def __init__(
        self,
        carrier: Carrier,
        kept: KeptDatasets,
        order: Order,
        ring: Slots,
        slot_format: SlotFormat,
        *,
        threads: int,
        max_open_batches: int,
        first_batch: int = 0,
        on_thread_start: Callable[[int], None] | None = None,
        skip_corrupt: bool = False,
        world_size: int = 1,
    ) -> None:
        self._carrier, self._kept, self.order, self._ring = carrier, kept, order, ring
        self._format = slot_format
        self._row_nbytes = tuple(f.row_nbytes for f in carrier.layout.fields)
        self._max_open, self._passed_on = max_open_batches, 0
        self._on_thread_start, self._skip_corrupt, self._world_size = on_thread_start, skip_corrupt, world_size
        # In the caller's own thread Ctrl-C is the caller's, at once; in ours everything is reported.
        self._caught: type[BaseException] = BaseException if threads else Exception
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._windows: Iterator[Window] | None = order.windows(first_batch)
        self._planning = False
        self._planned: PlannedWindow | None = None
        self._jobs: collections.deque[tuple[PlannedWindow, FileTask | KeptTask]] = collections.deque()
        self._running = 0
        self._active: list[PlannedWindow] = []
        self._open: dict[int, ReadyBatch] = {}
        self._next = first_batch
        self._error_at: dict[int, BaseException] = {}
        self._stopped = False
        self._ready = 0
        self.left_out: set[int] = set()
        self.counters = RunCounters(threads=threads, ready_limit=max_open_batches, row_nbytes=sum(self._row_nbytes))
        self._consumer_tally = self.counters.tally()
        self._threads = [
            threading.Thread(target=self._work, args=(k,), name=f"h5stream-reader-{k}", daemon=True)
            for k in range(threads)
        ]
        if self._threads:
            stop_at_exit(self)
        for thread in self._threads:
            thread.start()

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Wait for the next batch; None at the end.

        Parameters
        ----------
        timeout_s : float
            Seconds to wait at most; 0 waits until there is a batch, an error, or `stop`.

        Raises
        ------
        LoaderTimeoutError
            If no batch was ready in time.
        LoaderClosedError
            After `stop`, or in a forked child.
        Exception
            Whatever went wrong while reading this batch's rows.
        """
        check_process(self._pid)
        deadline = time.monotonic() + timeout_s if timeout_s else None
        asked = self.counters.asked(self.ready)
        while True:
            with self._changed:
                done, batch = self._try_next()
                if done:
                    self._changed.notify_all()  # room for another window
                    if batch is not None:
                        self.counters.waited(asked)
                    return batch
                job = None if self._threads else self._take_job()
                if job is None:
                    if self._threads or self._planning or self._running:  # readers, or another thread that asks
                        self._wait(deadline, timeout_s)
                    continue  # else what was to be done failed, which is known now
            job(self._consumer_tally)

    def next_if_ready(self) -> ReadyBatch | None:
        """Give the next batch if that needs no waiting; None at the end as well."""
        with self._changed:
            _, batch = self._try_next()
            if batch is not None:
                self._changed.notify_all()
            return batch

    def _try_next(self) -> tuple[bool, ReadyBatch | None]:
        if self._stopped:
            raise closed()
        batch = self._take_complete()
        if batch is not None:
            self.counters.gave(batch.rows)
            return True, batch
        batch = self._open.get(self._next)
        if self._exhausted and not self._active and batch is not None:
            raise AssertionError(f"batch {self._next} lacks {batch.missing} rows that no window will bring")
        return self._exhausted and batch is None, None

    def _take_complete(self) -> ReadyBatch | None:
        """Take the next batch if all of it is there; those of which nothing is left are passed over."""
        while True:
            if self._next in self._error_at:
                raise self._error_at[self._next]
            batch = self._open.get(self._next)
            if batch is None or batch.missing > 0:
                return None
            if batch.dropped:
                self.counters.skipped_rows += close_gaps(batch, self._format, self._row_nbytes)
            if batch.rows == 0 and self._world_size > 1:
                self._fail(self._next, nothing_left(batch, self._world_size))
                continue
            del self._open[self._next]
            self._next, self._ready = self._next + 1, self._ready - 1
            if batch.rows > 0:
                return batch
            self._ring.give_back(batch.slot)
            self.left_out.add(batch.number)
            self._changed.notify_all()  # there is room now, although nothing is handed over

    @property
    def _exhausted(self) -> bool:
        return self._windows is None and self._planned is None and not self._planning

    def left_to_hand_over(self) -> int | None:
        """Give the batches that are open once nothing is left to plan or carry out; None before that."""
        with self._changed:
            return len(self._open) if self._exhausted and not self._jobs and self._running == 0 else None

    @property
    def ready(self) -> int:
        """Batches that are filled and wait; one number, read without the lock."""
        return self._ready

    def allow(self, max_open_batches: int, passed_on: int = 0) -> None:
        """Change how many batches may be open; `passed_on` were handed over and count until they are let go."""
        with self._changed:
            self._max_open, self._passed_on = max_open_batches, passed_on
            self._changed.notify_all()

    def _wait(self, deadline: float | None, timeout_s: float) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise timed_out(self._next, timeout_s)
        self._changed.wait(left)

    def stop(self, wait_s: float | None = None) -> None:
        """End the threads; safe to call twice, from any thread, and in a forked child."""
        if os.getpid() != self._pid:
            return
        self.counters.end()
        with self._changed:
            self._stopped = True
            self._windows, self._planned = None, None
            self._jobs.clear()
            self._changed.notify_all()
        deadline = time.monotonic() + (STOP_S if wait_s is None else wait_s)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, deadline - time.monotonic()))
        with self._changed:
            batches, self._open = list(self._open.values()), {}
            # Whoever still carries a job (a thread that hangs, or the consumer itself) may yet write to them.
            unused = batches if self._running == 0 else []
        for batch in unused:
            self._ring.give_back(batch.slot)

    def _work(self, number: int) -> None:
        if self._on_thread_start is not None:
            try:
                self._on_thread_start(number)
            except BaseException as error:
                self._fail_planning(error)
                return
        try:
            self._carry_jobs(self.counters.tally())
        except BaseException as error:  # nothing ends a reader in silence: the consumer would wait for ever
            with self._changed:
                self._fail(self._next, error)

    def _carry_jobs(self, tally: Tally) -> None:
        while True:
            with self._changed:
                while (job := self._take_job()) is None:
                    if self._stopped or (self._exhausted and not self._jobs):
                        return
                    self._changed.wait()
            job(tally)

    def _take_job(self) -> Callable[[Tally], None] | None:
        """Choose what to do next; called under the lock."""
        if self._stopped:
            return None
        if self._planned is not None and self._may_admit(self._planned):
            window, self._planned = self._planned, None
            try:
                self._admit(window)
            except self._caught as error:  # no memory for its slots: that is the consumer's to know
                self._fail(window.first_batch, error)
        may_plan = self._planned is None and not self._planning and self._windows is not None
        if may_plan and (len(self._threads) > 1 or not self._jobs):
            # The next window is planned while others carry this one's tasks; one thread alone carries them first.
            self._planning = True
            return self._plan_next
        if self._jobs:
            window, task = self._jobs.popleft()
            self._running += 1
            return lambda tally: self._carry(window, task, tally)
        return None

    def _may_admit(self, window: PlannedWindow) -> bool:
        new = sum(window.first_batch + k not in self._open for k in range(len(window.rows_of_batch)))
        if len(self._open) + self._passed_on + new <= self._max_open:
            return True
        # Never wait for room that only this window can make: it may complete a batch that is open already.
        nothing_coming = not self._jobs and self._running == 0 and not self._passed_on
        return nothing_coming and not any(batch.missing == 0 for batch in self._open.values())

    def _admit(self, window: PlannedWindow) -> None:
        """Give the window its slots and queue its tasks; called under the lock."""
        for k, rows in enumerate(window.rows_of_batch.tolist()):
            number = window.first_batch + k
            batch = self._open.get(number)
            if batch is None:
                size = self.order.batch_size_of(number)
                batch = self._open[number] = ReadyBatch(
                    number=number,
                    rows=size,
                    slot=self._ring.take(),
                    objects={
                        f: [None] * size
                        for f, layout in enumerate(self._carrier.layout.fields)
                        if layout.kind == "object"
                    },
                    missing=size,
                )
            window.batches.append(batch)
            assert rows <= batch.missing
        window.sink = sink_of(window.batches, self._format, self._row_nbytes)
        window.pending = len(window.tasks)
        self._active.append(window)
        self._jobs.extend((window, task) for task in window.tasks)
        self._changed.notify_all()

    def _plan_next(self, tally: Tally) -> None:
        windows = self._windows
        try:
            self.counters.add(self._kept.load())
            began = clock()
            planned = None if windows is None else self._plan(windows)
            tally.plan_ns += clock() - began
        except self._caught as error:
            self._fail_planning(error)
            return
        with self._changed:
            self._planning = False
            self._planned = planned
            if planned is None:
                self._windows = None
            self._changed.notify_all()

    def _plan(self, windows: Iterator[Window]) -> PlannedWindow | None:
        window = next(windows, None)
        if window is None:
            return None
        first = int(window.batch.min())
        window = counted_from(window, first)
        tasks: list[FileTask | KeptTask] = list(
            self._carrier.plan(window, 0, self._kept.numbers, self._task_nbytes(window))
        )
        # Kept rows too must be those of the file that is there: all files that the window's rows lie in.
        files = self._carrier.layout.files_of(window.rows)
        tasks += self._kept.plan(window, 0)
        return PlannedWindow(first_batch=first, rows_of_batch=rows_of_batches(window.batch), tasks=tasks, files=files)

    def _task_nbytes(self, window: Window) -> int:
        """Cut small windows finely enough that every thread gets a share."""
        share = len(window.rows) * sum(self._row_nbytes) // (4 * max(1, len(self._threads)))
        return max(64 * 1024, min(TASK_NBYTES, share))

    def _carry(self, window: PlannedWindow, task: FileTask | KeptTask, tally: Tally) -> None:
        assert window.sink is not None
        failed: tuple[int, BaseException] | None = None
        try:
            if isinstance(task, KeptTask):
                began = clock()
                self._kept.carry(task, window.sink)
                tally.scattered(began)
            else:
                self._carrier.carry(task, window.sink, stopped=lambda: self._stopped, tally=tally)
        except H5StreamError as error:
            drop = (lambda one, why: drop_rows(window, one, why, self.counters)) if self._skip_corrupt else None
            failed = first_failure(self._carrier, task, window.sink, error, drop)
        except self._caught as error:
            failed = task.first_batch, error
        with self._changed:
            # In one step with the count: whoever completes the window must know of every error in it.
            if failed is not None:
                self._fail(window.first_batch + failed[0], failed[1])
            window.pending -= 1
            last = window.pending == 0
        changed = changed_file(self._carrier.layout.files, window.files) if last else None
        with self._changed:
            self._running -= 1
            if changed is not None:
                self._fail(window.first_batch, changed)
            if last:
                self._complete(window)
            self._changed.notify_all()

    def _complete(self, window: PlannedWindow) -> None:
        self._active.remove(window)
        hand_down(window)
        for batch, rows in zip(window.batches, window.rows_of_batch.tolist(), strict=True):
            batch.missing -= rows
            self._ready += batch.missing == 0

    def _fail(self, batch: int, error: BaseException) -> None:
        """Note an error at the first batch that needed the data; nothing after it is planned. Called under the lock."""
        earliest = min(self._error_at, default=batch)
        if batch <= earliest:
            self._error_at = {max(batch, self._next): error}
        self._windows = None
        self._planned = None
        self._changed.notify_all()

    def _fail_planning(self, error: BaseException) -> None:
        with self._changed:
            self._planning = False
            incomplete = [number for number, batch in self._open.items() if not will_complete(batch, self._active)]
            self._fail(min(incomplete, default=max(self._open, default=self._next - 1) + 1), error)
