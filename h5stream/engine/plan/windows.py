"""The windows of a pass: planned one after the other, each while the one before it is read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from h5stream.engine.batches import OpenBatches, PlannedWindow
from h5stream.engine.plan.placement import Placement
from h5stream.engine.plan.tasks import COPIED_TASK_NBYTES, Task
from h5stream.engine.reader import RowReader
from h5stream.order.window import Window
from h5stream.storage.source.remote import REQUEST_NBYTES

FINEST_TASK_NBYTES, FINEST_FAR_TASK_NBYTES = 64 * 1024, 512 * 1024
"""Bytes of a task at the least, so that all threads have one of a small window. What one requests of a store is under
way together: with tasks of one frame, 32 readers had half of a line whose answers take 100 ms.
"""


class Windows:
    """The windows of a pass that are still to be planned, and the next one, once it is planned.

    # Guarantees: used under the lock of the run, but for `plan`, which one thread calls while `is_planning`.
    """

    def __init__(self, windows: Iterator[Window], reader: RowReader, threads: int) -> None:
        self._windows: Iterator[Window] | None = windows
        self._reader, self._threads = reader, threads
        self.is_planning = False
        self.planned: PlannedWindow | None = None
        self.planned_adds = 0  # batches that it opens: none of its batches is handed over before it is admitted

    @property
    def may_be_planned(self) -> bool:
        """Whether a thread may plan the next one now."""
        return self.planned is None and not self.is_planning and self._windows is not None

    @property
    def are_planned(self) -> bool:
        """Whether none is left to be planned; read without the lock, too."""
        return self._windows is None

    @property
    def are_admitted(self) -> bool:
        """Whether none is left to be planned or admitted; read without the lock, too."""
        return self._windows is None and self.planned is None

    @property
    def are_exhausted(self) -> bool:
        """Whether no other one will come."""
        return self.are_admitted and not self.is_planning

    def plan(self) -> PlannedWindow | None:
        """Plan the next one; None at the end."""
        windows = self._windows
        window = None if windows is None else next(windows, None)
        if window is None:
            return None
        first = int(window.batch.min())
        placement = self._reader.accepted(Placement.of(window, first))
        del window  # its batch numbers are as much memory as those of the placement
        # Small windows are cut finely enough that every thread gets a share.
        share = placement.total_rows * self._reader.row_nbytes // (4 * max(1, self._threads))
        most = REQUEST_NBYTES if self._reader.is_far else COPIED_TASK_NBYTES
        least = FINEST_FAR_TASK_NBYTES if self._reader.is_far else FINEST_TASK_NBYTES
        task_nbytes = max(least, min(most, share)) if self._threads else most
        tasks: list[Task] = [*self._reader.plan(placement, task_nbytes)]
        files = self._reader.layout.files_of(placement.rows)
        fills = any(task.kept is not None for task in tasks)
        planned = PlannedWindow(first, placement.rows_of_batches(), tasks, files, fills)
        if self._threads:
            planned.take_native(self._reader.sources)
        return planned

    def put(self, planned: PlannedWindow | None, open_batches: OpenBatches) -> bool:
        """Note what `plan` returned; return whether there is a window to be admitted.

        One that was planned while the pass was stopped, or failed, is dropped: it would be read, or kept for ever.
        """
        self.is_planning = False
        self.planned = None if self._windows is None else planned
        if self.planned is None:
            self._windows = None
            return False
        self.planned_adds = sum(number not in open_batches for number in self.planned.numbers)
        return True

    def end(self) -> None:
        """Plan and admit no others."""
        self._windows = self.planned = None


class CacheFill:
    """Tasks that decode rows for the cache before a batch needs them.

    # Guarantees: any thread may call `next`; all else is used under the lock of the run.
    """

    def __init__(self, tasks: Iterator[Task] | None) -> None:
        self._tasks, self._choosing = tasks, threading.Lock()
        self.running = 0  # tasks that threads carry out

    @property
    def is_left(self) -> bool:
        """Whether any may be left."""
        return self._tasks is not None

    def next(self) -> Task | None:
        """Return another task; None if none is left."""
        with self._choosing, contextlib.suppress(Exception):  # batches report what is wrong
            return None if self._tasks is None else next(self._tasks, None)
        return None

    def done(self, task: Task | None) -> bool:
        """Note that a task ended, or that none was left; return whether threads may go on with something else."""
        self.running -= 1
        if task is None:
            self._tasks = None
        return not self.running or task is None
