"""Where a run ends: in a forked child, and with the interpreter.

The interpreter's exit waits for reader threads: one that is ended inside a decoder would take the process down.
"""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from typing import Protocol

from h5stream.engine.running import made_before_fork

EXIT_S = 10.0
"""Seconds that the exit waits at most; a thread that a file system holds up longer is left behind."""


class Stoppable(Protocol):
    """What is stopped; see `h5stream.engine.executor.Run.stop`."""

    def stop(self, wait_s: float | None = None) -> None:
        """End the threads."""


_running: weakref.WeakSet[Stoppable] = weakref.WeakSet()


def stop_at_exit(run: Stoppable) -> None:
    """Stop a run before the interpreter ends, if it lives that long."""
    _register()
    _running.add(run)


@functools.cache
def _register() -> None:
    """Register once, however many runs; what is unregistered keeps its place in CPython's list for ever."""
    atexit.register(_stop_all)


def _stop_all() -> None:
    for run in list(_running):
        run.stop(EXIT_S)


def check_process(pid: int) -> None:
    """Refuse to go on in another process than the one that threads were started in."""
    if os.getpid() != pid:
        raise made_before_fork()
