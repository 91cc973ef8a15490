"""Cancellation: whether a thread's read is still needed, asked where it waits or works for long."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator

stop_asked: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("stop_asked", default=lambda: False)
"""A function that returns whether the current thread's read is no longer needed."""


class StoppedError(Exception):
    """A read was abandoned because its result is no longer needed.

    It is not a `SourceError`, which is recorded, reported or retried; users never see it.
    """


def raise_if_stopped() -> None:
    """Raise `StoppedError` if this thread's read is no longer needed."""
    if stop_asked.get()():
        raise StoppedError("nobody waits for these bytes any more")


@contextlib.contextmanager
def cancelled_on_exit() -> Iterator[None]:
    """Stop reads that other threads started for a block when the block ends, however it ends."""
    finished, stopped = threading.Event(), stop_asked.get()

    def is_over() -> bool:
        return finished.is_set() or stopped()

    token = stop_asked.set(is_over)
    try:
        yield
    finally:
        finished.set()
        stop_asked.reset(token)
