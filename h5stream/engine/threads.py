"""The threads that carry an engine's passes out: there while a pass is under way, and the same ones for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from h5stream.base import limits
from h5stream.compiled import _native as kernels
from h5stream.engine.batches import PlannedWindow
from h5stream.engine.reader import RowReader


class Served(Protocol):
    """A pass as its threads see it.

    # Guarantees: threads call all of these at any time, several of them at once; what one raises would be lost.
    """

    def serve(self, number: int, window: PlannedWindow | None, part: int, unit: int, settled: int) -> None:
        """Do what `kernels.Pool.work` came back for, in the thread of that number."""

    def left(self) -> None:
        """Note that no thread has anything of it, after it ended."""

    def fail_start(self, error: BaseException) -> None:
        """Note that a thread could not start."""


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

    def begin(self, queue: kernels.Queue, of: Served) -> None:
        """Serve a pass from now on; whatever is raised, the pass is to be ended."""
        self._start(queue.begin(of))

    def _start(self, tickets: Iterable[int]) -> None:
        pending = [*tickets]
        try:
            while pending:
                number = pending[0] % self._count
                name = f"h5stream-reader-{number}"
                thread = threading.Thread(target=self._work, args=(pending[0],), name=name, daemon=True)
                self._threads[number] = thread
                thread.start()
                del pending[0]
        except BaseException as error:  # Ctrl-C, or there may be no more threads
            for ticket in pending:
                self._lose(ticket, error)
            raise

    def _lose(self, ticket: int, error: BaseException) -> None:
        """Say that a thread did not start, and why."""
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
                self._start(queue.give_up())
        if self.pool.is_idle and not queue.serving:
            for thread in [*self._threads.values()]:
                if thread.is_alive():  # not all are, after Ctrl-C
                    thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self, ticket: int) -> None:
        number = ticket % self._count
        try:
            if self._on_start is not None:
                self._on_start(number)
            scratch = self._reader.scratch.native
        except BaseException as error:
            self._lose(ticket, error)
            return
        served, settled = None, 0
        while (event := self.pool.work(scratch, served, ticket, settled)) is not None:
            served, run, window, part, unit, settled = event
            del event
            if served is None:
                run.left()
            else:
                run.serve(number, window, part, unit, settled)
            del run, window  # while it waits it keeps nothing
