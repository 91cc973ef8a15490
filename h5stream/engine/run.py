"""A pass over an order: windows are planned, admitted, carried out by threads or by who asks, and handed over."""

from __future__ import annotations

import atexit
import collections
import contextlib
import copy
import functools
import os
import threading
import time
from collections.abc import Callable, Iterable

import numpy as np

from h5stream.base import limits
from h5stream.base.cancel import stop_asked
from h5stream.base.leases import Living
from h5stream.base.limits import return_freed_memory
from h5stream.compiled import _native as kernels
from h5stream.engine.batches import CacheFill, OpenBatches, PlannedWindow, ReadyBatch, Windows
from h5stream.engine.counters import RunCounters, Tally, clock
from h5stream.engine.plan.failing import first_failure, nothing_left
from h5stream.engine.plan.tasks import Destination, Task
from h5stream.engine.reader import RowReader
from h5stream.engine.slots import SlotFormat, SlotRing
from h5stream.errors import H5StreamError, LoaderClosedError, LoaderTimeoutError
from h5stream.order.epoch import RegroupedOrder
from h5stream.order.window import Order
from h5stream.storage.source.stores import asked_by

STOP_S = 1.0
"""Seconds that ending an epoch waits for its threads; one held up longer, by a file system that hangs, ends later."""

EXIT_S = 10.0
"""Seconds that the interpreter's exit waits for reader threads at most, which would take it down inside a decoder."""


class Run:
    """One pass over an order, carried out by threads or by who asks.

    # Guarantees: everything below `_lock` is read and written under it. What is data alone (`Task.native`) the engine's
    # threads carry out in the pool, without Python. They come back for jobs, do those without the lock and report back;
    # without threads the consumer does, whenever the next batch is not there, and what interrupts it then (Ctrl-C) is
    # its own to handle, at once. Only `next_batch` hands batches over, in order, to one consumer. Nobody touches a slot
    # after its window is complete, and slots go back once nothing is carried out any more, so stopping early frees
    # nothing too soon. `stop` may be called by any thread, twice, inside the garbage collector, and in a forked child,
    # where it does nothing.
    # Which thread changes what there is to do asks for a job next, or calls as many threads as there are jobs. A call
    # is not lost if none waits, and a thread that comes for one goes on until no job is left, or it is another pass's
    # turn. One that comes for nothing holds up all that run Python. The consumer admits windows itself: a thread would
    # have to wait for it.
    # Before the consumer takes a batch, it lets threads through that wait for Python's lock, to plan: whenever a busy
    # loop releases it for a moment, as freeing a tensor does, the 5 ms of those who wait begin anew.
    # Where all rows stay in memory once they are decoded, the first batches of a shuffled window need almost all of its
    # chunks, and are read with those; while there is no room for more batches readers decode the rest. So that each
    # chunk is decoded once, nothing is planned while any is; who carries it out looks whether it is there.

    At most `max_open_batches` are filled or waiting, unless one window needs more; with 0 the first window is planned,
    and nothing is read before `allow`. Where several ranks (`world_size`) count on as many batches from each other, a
    batch of which nothing is left is an error.
    """

    def __init__(self, engine: Engine, order: Order, first_batch: int, max_open_batches: int, world_size: int) -> None:
        reader, threads = engine.reader, engine.readers
        self._reader, self.order, self._world_size = reader, order, world_size
        self._skip_corrupt = engine.skip_corrupt
        # Nothing ends a job in silence: the consumer would wait for ever.
        self._caught = BaseException if threads else Exception
        self._pid = os.getpid()
        self._lock = threading.RLock()  # that of the condition: quicker to take by itself
        self._batch_came = threading.Condition(self._lock)
        self._windows = Windows(iter(order.windows(first_batch)), reader, threads)
        self._fill = CacheFill(reader.filling(order, first_batch) if threads and reader.kept_rows else None)
        self._jobs: collections.deque[tuple[PlannedWindow, Task]] = collections.deque()
        self._running = 0
        self._active: list[PlannedWindow] = []
        fields, ragged = reader.layout.fields, reader.ragged_memory
        take = None if ragged is None else ragged.take
        self._open = OpenBatches(order, first_batch, engine.slots, engine.slot_format, fields, take, max_open_batches)
        self._stopped = stopped = np.zeros(1, dtype=np.int32)  # which kernels look at, too
        # No method: tasks of asyncio keep what they look at, and by it the run.
        self._is_stopped = lambda: bool(stopped[0])
        self.left_out: set[int] = set()  # batches of which nothing was left, as far as they were passed over
        ready_limit = max_open_batches if threads else 1
        self.counters = RunCounters(
            threads=threads, ready_limit=ready_limit, row_nbytes=reader.row_nbytes, from_stores=reader.is_far
        )
        # The consumer's without threads; of each thread once it serves.
        self._tallies: dict[int, Tally] = {} if threads else {0: self.counters.tally()}
        self._threads, self._count = engine.threads, threads
        self._queue = kernels.Queue(engine.threads.pool, stopped, self.counters.tally().native)
        self._queue.call(1)  # to plan
        self.is_taken = False
        engine.runs.add(self)
        _running.add(self)
        if threads:
            try:
                self._threads.start(functools.partial(self._queue.begin, self))
            except BaseException:  # Ctrl-C, or no more threads: nobody will have this run to stop it
                self.stop(0)
                raise

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Wait for the next batch, or without threads bring it, however long that takes; None at the end.

        Raises `LoaderTimeoutError` if none was ready in time (0 is no limit), `LoaderClosedError` after `stop` or in a
        forked child, and whatever went wrong while reading this batch's rows.
        """
        check_process(self._pid)
        deadline = time.monotonic() + timeout_s if timeout_s else None
        since = self.counters.asked(self._open.ready)
        self._queue.let_through(self._open.ready)
        while True:
            with self._lock:
                done, batch = self._try_next()
                if done:
                    self._tell_of_room()
                    if batch is not None:
                        self.counters.waited(since)
                    return batch
                if self._count:
                    self._wait(deadline, timeout_s)
                    continue
                job = self._take_job()
            try:
                if job is not None:
                    self._carry_out(job, self._tallies[0])
            except BaseException:  # what was interrupted writes no more
                self._running = 0
                raise

    def next_if_ready(self) -> ReadyBatch | None:
        """Return the next batch if that needs no waiting; None at the end as well."""
        self._queue.let_through(self._open.ready)
        with self._lock:
            _, batch = self._try_next()
            if batch is not None:
                self._tell_of_room()
            return batch

    def _tell_of_room(self) -> None:
        """Use the room that a batch leaves; call a thread only if there is work for Python."""
        if not self._count:
            return
        if self._admit_planned() or (self._open.has_ragged and self._open.by_number):  # there may be one to arrange
            self._queue.call(1)

    def _try_next(self) -> tuple[bool, ReadyBatch | None]:
        """Take the next batch if it is complete; return whether no waiting is needed. Empty batches are skipped."""
        if self._stopped[0]:
            raise LoaderClosedError.of_iterator()
        while (batch := self._open.first_full(self.counters)) is not None:
            if batch.rows == 0 and self._world_size > 1 and batch.corrupt is not None:
                self._fail(batch.number, nothing_left(batch.number, batch.corrupt, self._world_size))
                continue  # which is raised now
            self._open.remove(batch)
            if batch.rows > 0:
                self.counters.gave(batch.rows)
                return True, batch
            batch.slot.give_back()
            self.left_out.add(batch.number)
            self._tell_of_room()  # although nothing is handed over
        if not self._windows.are_exhausted:
            return False, None
        is_open = self._open.next in self._open.by_number
        if is_open and not self._active:
            self._open.check_ended()
        return not is_open, None

    @property
    def has_planned_all(self) -> bool:
        """Whether all windows are planned and admitted; read without the lock."""
        return self._windows.remaining is None and self._windows.planned is None

    def left_to_hand_over(self) -> int | None:
        """Return the batches that are open once nothing is left to plan or carry out; None before that."""
        if self._windows.remaining is not None:  # true for most batches, and needs no lock
            return None
        with self._lock:
            return len(self._open.by_number) if self._windows.are_exhausted and self.is_at_rest else None

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is planned or carried out, or waits for a thread; asked under the lock."""
        return not self._active and self._running == 0 and not self._windows.is_planning

    @property
    def ready(self) -> int:
        """Batches that are filled and wait; one number, read without the lock."""
        return self._open.ready

    def allow(self, max_open_batches: int, passed_on: int = 0) -> None:
        """Change how many batches may be open; `passed_on` were handed over and count until they are released."""
        with self._lock:
            self._open.most, self._open.passed_on = max_open_batches, passed_on
            self._tell_of_room()

    @property
    def waits(self) -> bool:
        """Whether it reads nothing until it is allowed to."""
        return not self._open.most

    def take(self) -> None:
        """Note that somebody sees to it that it ends."""
        self.is_taken = True

    def _wait(self, deadline: float | None, timeout_s: float) -> None:
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise LoaderTimeoutError.of_batch(self._open.next, timeout_s)
        self._queue.set_awaited(True)
        try:
            self._batch_came.wait(left_s)
        finally:
            self._queue.set_awaited(False)

    def stop(self, wait_s: float | None = None) -> None:
        """End it, and wait until no thread has anything of it."""
        if _process[0] != self._pid:
            return
        self.counters.end()
        with self._lock:
            self._stopped[0] = 1
            self._windows.end()
            self._jobs.clear()
            self._batch_came.notify_all()
            self._queue.end()
        if self._count:
            self._threads.wait(self._queue, self._batch_came, STOP_S if wait_s is None else wait_s)
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        """Release slots and files once a run is stopped and nobody uses them; called under the lock."""
        if self._stopped[0] and not self._running and not self._queue.running:
            self._queue.drop()
            self._active.clear()  # each window keeps its files open
            for batch in self._open.clear():
                batch.slot.give_back()

    def serve(self, number: int, window: PlannedWindow | None, part: int, unit: int, settled: int) -> None:
        """Handle a thread's return from the pool, and then all other work for Python."""
        try:
            if (tally := self._tallies.get(number)) is None:
                tally = self._tallies[number] = self.counters.tally()
            if window is not None and settled:
                self._bring_rest(window, part, unit, tally)
                return
            if window is not None:
                self._settle(window)
            while (job := self._take_job()) is not None:
                self._carry_out(job, tally)
                if self._queue.gives_way:
                    self._queue.call(1)
                    return
        except BaseException as error:  # nothing ends in silence: the consumer would wait for ever
            with self._lock:
                self._fail(self._open.next, error)

    def left(self) -> None:
        """Note that it ended, and no thread has anything of it."""
        with self._lock:
            self._let_go()
            self._batch_came.notify_all()

    def fail_start(self, error: BaseException) -> None:
        """Note that a thread could not start; complete batches come first."""
        with self._lock:
            self._windows.is_planning = False
            self._fail(self._open.first_lacking(self._active), error)

    def _carry_out(self, job: Callable[[Tally], None], tally: Tally) -> None:
        """Do a job, whose reads end once the run is stopped."""
        tokens = stop_asked.set(self._is_stopped), asked_by.set(self.counters.of_stores)
        try:
            job(tally)
        finally:
            stop_asked.reset(tokens[0])
            asked_by.reset(tokens[1])

    def _take_job(self) -> Callable[[Tally], None] | None:
        """Choose what Python has to do next; None if there is nothing at the moment, or nothing more will come."""
        with self._lock:
            if self._stopped[0]:
                return None
            self._admit_planned()
            windows = self._windows
            if self._count and self._open.has_ragged and (batch := self._open.to_arrange()) is not None:
                self._running += 1
                self._queue.call(1)  # there may be another
                return functools.partial(self._arrange, batch)
            fills = self._fill.is_left and any(window.fills for window in self._active)
            # The next window is planned while others carry this one's tasks; one thread alone carries them first. What
            # is being decoded would be decoded once more for it.
            is_busy = self._count <= 1 and bool(self._jobs or self._active)
            may_plan = windows.remaining is not None and windows.planned is None and not windows.is_planning
            if may_plan and not (fills or self._fill.running or is_busy):
                windows.is_planning = True
                return self._plan_next
            if self._jobs:
                self._running += 1
                return functools.partial(self._bring, *self._jobs.popleft())
            if self._fill.is_left and not fills and windows.planned is not None and not self._may_admit():
                self._fill.running += 1
                return self._decode_ahead
            return None

    def _admit_planned(self) -> bool:
        """Admit the planned window if there is room; return whether it was admitted. Called under the lock."""
        window = self._windows.planned
        if window is None or not self._may_admit() or (window.fills and self._fill.running):
            return False
        self._windows.planned = None
        try:
            self._admit(window)
        except self._caught as error:  # no memory for its slots: that is the consumer's to know
            self._fail(window.numbers.start, error)
        return True

    def _may_admit(self) -> bool:
        if not self._count or self._windows.planned_adds <= self._open.room:
            return True
        if not self._open.most:  # until it is allowed to
            return False
        # Never wait for room that only this window can make: it may complete a batch that is open already.
        nothing_coming = self.is_at_rest and not self._open.passed_on
        return nothing_coming and not self._open.any_waits

    def _admit(self, window: PlannedWindow) -> None:
        """Assign slots to the window and queue its tasks; called under the lock."""
        self._open.admit(window)
        if not window.pending:  # rows without elements: nothing is to be done for them
            self._complete(window)
            return
        self._active.append(window)
        for task in window.tasks:
            self._jobs.append((window, task))
        if window.native:
            self._queue.add(window, window.shares())
        self._queue.call(len(window.tasks))

    def _complete(self, window: PlannedWindow) -> None:
        """Count a window's rows as brought; called under the lock."""
        self._open.complete(window)
        self._batch_came.notify_all()
        if self._fill.is_left:
            self._queue.call(self._count)

    def _plan_next(self, tally: Tally) -> None:
        self._queue.set_brief(True)
        try:
            self._reader.load(tally)
            began = clock()
            planned = self._windows.plan()
            tally.plan_ns += clock() - began
            if self._reader.is_far:
                return_freed_memory()
        except self._caught as error:
            self.fail_start(error)
            return
        with self._lock:
            if not self._windows.put(planned, self._open):
                self._batch_came.notify_all()
            if self._fill.is_left:
                self._queue.call(self._count)

    def _bring(self, window: PlannedWindow, task: Task, tally: Tally, settles: bool = True) -> None:
        """Bring a task of a window, or note at which batch it failed, and why.

        The window waits for it if it `settles`; else for what it is the rest of.
        """
        failed: tuple[int, BaseException] | None = None
        self._queue.set_brief(False)
        try:
            try:
                task.land(window.destination, self._reader.tools(tally, self._stopped))
            except H5StreamError as error:
                # With counters that nothing looks at: the task was counted once.
                skipping = self.counters if self._skip_corrupt else None
                failed = first_failure(window, task, error, self._reader.tools(), skipping)
        except self._caught as error:
            failed = window.numbers.start + task.placement.first_batch, error
        with self._lock:
            self._running -= 1
            # Before it is counted: what completes the window must know of every error in it.
            if failed is not None:
                self._fail(*failed)
        failed = None  # it knows this frame, and both would keep all that the run has
        if settles:
            self._settle(window)

    def _settle(self, window: PlannedWindow) -> None:
        """Count one of the things that a window waits for; the last one completes it."""
        with self._lock:
            window.pending -= 1
            if window.pending:
                self._let_go()
                return
        changed = window.changed_file(self._reader.layout.files)
        if changed is None and window.fills:
            window.note_kept()
        with self._lock:
            if self._stopped[0]:  # it may be gone
                self._let_go()
                return
            if changed is not None:
                self._fail(window.numbers.start, changed)
            self._active.remove(window)
            self._complete(window)

    def _bring_rest(self, window: PlannedWindow, part: int, unit: int, tally: Tally) -> None:
        """Bring the rest of a task that the pool could not carry out, or note its error."""
        task = window.native[part]
        rest = task if task.rest is None else task.rest(unit)
        window.in_part.add(part)
        if task.kept is not None:
            task.kept(unit)
        with self._lock:
            if self._stopped[0]:
                return
            self._running += 1
        self._carry_out(functools.partial(self._bring, window, rest, settles=False), tally)

    def _decode_ahead(self, tally: Tally) -> None:
        """Decode some rows for the cache ahead of the batches that need them, and which report their errors."""
        self._queue.set_brief(False)
        task = self._fill.next()
        if task is not None:
            with contextlib.suppress(Exception):
                task.land(Destination.nowhere(self._reader.layout.fields), self._reader.tools(tally, self._stopped))
        with self._lock:
            if self._fill.done(task):
                self._queue.call(self._count)

    def _arrange(self, batch: ReadyBatch, tally: Tally) -> None:
        began = clock()
        failed: BaseException | None = None
        self._queue.set_brief(False)
        try:
            batch.arrange()
        except BaseException as error:
            failed = error
        tally.scattered(began)
        with self._lock:
            self._running -= 1
            batch.arranging = False
            if failed is not None:
                self._fail(batch.number, failed)
            self._let_go()
            self._batch_came.notify_all()
        failed = None  # as in `_bring`

    def _fail(self, batch: int, error: BaseException) -> None:
        """Note an error at the first batch that needed the data; nothing after it is planned. Called under the lock."""
        if not self._stopped[0]:  # else nobody asks, and the error knows the frames it came through, and they the run
            self._open.fail(batch, error)
        self._windows.end()
        self._queue.call(self._count)
        self._batch_came.notify_all()


class ReaderThreads:
    """Threads of Python that spend their time in a pool of C, and come back from it for what Python has to do.

    # Guarantees: any thread may call, also one of these. They begin with the first of the passes that are under way,
    and end with the last. One that a file system holds up when its pass ends is given up: it ends once it comes back,
    and another begins in its place. `on_start` is called in each thread, with its number, and an error of it is that of
    the passes that are under way. A forked child needs others.
    """

    def __init__(self, reader: RowReader, threads: int, on_start: Callable[[int], None] | None) -> None:
        self._reader, self._on_start, self._count = reader, on_start, max(1, threads)
        self.pool = kernels.Pool(self._count, limits.cpus())
        self._threads: dict[int, threading.Thread] = {}

    def start(self, missing: Callable[[], list[int]]) -> None:
        """Start a thread for each ticket that `missing` gives; whatever is raised, the pass is to be ended."""
        try:
            for ticket in missing():
                number = ticket % self._count
                name = f"h5stream-reader-{number}"
                thread = threading.Thread(target=self._work, args=(ticket,), name=name, daemon=True)
                self._threads[number] = thread
                thread.start()
        except BaseException as error:  # Ctrl-C, also as `missing` returns, or there may be no more threads
            self._lose(None, error)
            raise

    def _lose(self, ticket: int | None, error: BaseException) -> None:
        """Tell the passes why a thread failed, or why threads did not start."""
        for run in self.pool.lose(ticket):
            run.fail_start(error)

    def wait(self, queue: kernels.Queue, is_left: threading.Condition, wait_s: float) -> None:
        """Wait until no thread has anything of a pass that ended; nor longer than so many seconds."""
        if threading.current_thread() in self._threads.values():  # the garbage collector came by
            return
        deadline = time.monotonic() + wait_s
        try:
            with is_left:
                while queue.serving and (left_s := deadline - time.monotonic()) > 0:
                    is_left.wait(left_s)
        finally:  # also where Ctrl-C came
            if queue.serving:
                self.start(queue.give_up)
        if self.pool.is_idle and not queue.serving:
            for thread in [*self._threads.values()]:
                if thread.is_alive():  # not all are, after Ctrl-C
                    thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self, ticket: int) -> None:
        number = ticket % self._count
        try:
            if self._on_start is not None:
                self._on_start(number)
            scratch = self._reader.own.scratch.native
            served, settled = None, 0
            while (event := self.pool.work(scratch, served, ticket, settled)) is not None:
                served, run, window, part, unit, settled = event
                del event
                if served is None:
                    run.left()
                else:
                    run.serve(number, window, part, unit, settled)
                del run, window  # while it waits it keeps nothing
        except BaseException as error:
            self._lose(ticket, error)


class Engine:
    """Fills slots, which are its own, with the batches of orders; a batch's slot knows the way back.

    # Guarantees: used by the thread that iterates, but for `trim`, which any thread may call.

    `new_slots` is asked again in a forked child. `threads` carry tasks out, and `on_thread_start` is called with the
    number of each; 0 leaves all to the thread that asks for batches, a window at a time. `skip_corrupt` leaves out the
    rows of corrupt chunks, and batches of which nothing is left.
    """

    def __init__(
        self,
        reader: RowReader,
        slot_format: SlotFormat,
        new_slots: Callable[[], SlotRing],
        *,
        threads: int,
        on_thread_start: Callable[[int], None] | None = None,
        skip_corrupt: bool = False,
    ) -> None:
        self.reader, self.slot_format, self._new_slots, self._most_threads = reader, slot_format, new_slots, threads
        self._on_thread_start, self.skip_corrupt = on_thread_start, skip_corrupt
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.slots, self.runs, self._pid = self._new_slots(), Living[Run](), os.getpid()
        self.threads = ReaderThreads(self.reader, self._most_threads, self._on_thread_start)

    @property
    def reads_ahead(self) -> bool:
        """Whether a pass that was begun reads by itself, before a batch is asked for."""
        return self.readers > 0

    @property
    def readers(self) -> int:
        """Threads of a pass that begins now; a function of the user that is called in them needs them all."""
        return 0 if self.reader.needs_no_thread and self._on_thread_start is None else self._most_threads

    @property
    def held_nbytes(self) -> int:
        """Bytes of the slots here, filled or free; without those that were given back."""
        return self.slots.held_nbytes + self.reader.kept_nbytes

    def begin(self, order: Order, first_batch: int, *, max_open_batches: int, world_size: int = 1) -> Run:
        """Begin a pass over an order at a batch; the parameters are those of `Run`."""
        self.reader.keep()
        return Run(self, order, first_batch, max_open_batches, world_size)

    def stop_lost(self) -> None:
        """End passes that nobody took, since Ctrl-C or an error came before that."""
        for run in self.runs:
            if not run.is_taken:
                run.stop()

    def trim(self) -> None:
        """Release free slots, free memory of ragged rows, and cached rows that no pass gathers."""
        self.slots.trim()
        # A forked child has none of these, and their locks may be held for ever there.
        runs: Iterable[Run] = self.runs if os.getpid() == self._pid else ()
        gathering = (run for run in runs if isinstance(run.order, RegroupedOrder) and run.order.is_gathered)
        self.reader.trim(decoded=all(run.left_to_hand_over() is not None for run in gathering))

    def renew(self) -> None:
        """Replace everything that the parent's threads may have locked or be writing to."""
        self.reader = copy.copy(self.reader)
        self._begin_anew()

    def close(self) -> None:
        """End all passes, release free slots, and close the files."""
        for run in self.runs:  # one whose end Ctrl-C cut short
            run.stop()
        self.trim()
        self.reader.close()


_process = [os.getpid()]
"""The number of this process, which `os.getpid` asks the kernel for, each time anew."""

os.register_at_fork(after_in_child=lambda: _process.__setitem__(0, os.getpid()))


def check_process(pid: int) -> None:
    """Refuse to go on in another process than the one that a pass was begun in."""
    if _process[0] != pid:
        raise LoaderClosedError(
            "this iterator was made before a fork, and its reader threads stayed in the parent; "
            "call iter(loader) again in the child"
        )


_running: Living[Run] = Living()


@atexit.register
def _stop_all() -> None:
    for run in _running:
        run.stop(EXIT_S)
