"""Decoding what stays in memory before a batch needs it, where batches are gathered from there."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from h5stream.engine.batches import PlannedWindow
from h5stream.engine.tasks import Task


class Filling:
    """Whether, and what, readers may decode while there is no room for more batches.

    The first batches of a shuffled window need almost all of its chunks, and are read with those; the others find them
    there. So that each is decoded once, nothing is planned while any is, and tasks look whether it is there by now.

    # Guarantees: `next_task` may be called by any thread; all else under the lock of the run.

    Parameters
    ----------
    tasks : iterator of Task or None
        What decodes all that stays, in the order in which it is needed; None where nothing is to be decoded ahead.

    Attributes
    ----------
    under_way : int
        Tasks that readers have begun.
    """

    def __init__(self, tasks: Iterator[Task] | None) -> None:
        self._tasks, self.under_way = tasks, 0
        self._choosing = threading.Lock()

    def is_under_way(self, active: Iterable[PlannedWindow]) -> bool:
        """Tell whether something is decoded, by itself or for a window, that the next one may need as well."""
        return self.under_way > 0 or (self._tasks is not None and any(window.fills for window in active))

    def begin(self, active: Iterable[PlannedWindow]) -> bool:
        """Tell whether a reader is to take a task now, and count it: no window that was admitted decodes anything."""
        if self._tasks is None or any(window.fills for window in active):
            return False
        self.under_way += 1
        return True

    def next_task(self) -> Task | None:
        """Give the next task; None once all has been decoded, or where that cannot be planned."""
        with self._choosing:
            return None if self._tasks is None else next(self._tasks, None)

    def end(self, task: Task | None) -> None:
        """Note that a reader is done with a task."""
        self.under_way -= 1
        if task is None:
            self._tasks = None
