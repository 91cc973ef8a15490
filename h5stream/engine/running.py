"""What an epoch needs of an engine: the seam between those who fill slots and those who hand batches to the user."""

from __future__ import annotations

import os
from typing import Protocol

from h5stream.engine.batches import ReadyBatch
from h5stream.engine.statistics import RunCounters
from h5stream.errors import LoaderClosedError, LoaderTimeoutError
from h5stream.order.epoch import Order

STOP_S = 1.0
"""Seconds that ending an epoch waits for its threads; one held up longer, by a file system that hangs, ends later."""


class Running(Protocol):
    """One pass over an order that is under way.

    Threads or none: `h5stream.engine.run.Run`; through workers: `h5stream.workers.sample_engine.SampleRun`.

    # Guarantees: one consumer asks for batches; `stop` may be called by any thread, twice, inside the garbage
    # collector, and in a forked child, where it does nothing.
    """

    order: Order
    counters: RunCounters
    left_out: set[int]
    """Numbers of the batches of which nothing was left, as far as they were passed over."""

    @property
    def ready(self) -> int:
        """Batches that are filled and wait."""

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Wait for the next batch; None at the end. A `timeout_s` of 0 waits as long as it takes."""

    def next_if_ready(self) -> ReadyBatch | None:
        """Return the next batch if that needs no waiting; None at the end as well."""

    def left_to_hand_over(self) -> int | None:
        """Return the batches that are open once nothing is left to plan or carry out; None before that."""

    def allow(self, max_open_batches: int, passed_on: int = 0) -> None:
        """Change how many batches may be open; `passed_on` were handed over and count until they are let go."""

    def stop(self) -> None:
        """End it."""


class Engine(Protocol):
    """Fills slots, which are its own, with the batches of orders; a batch's slot knows the way back.

    # Guarantees: used by the thread that iterates, but for `trim`, which any thread may call.
    """

    @property
    def held_nbytes(self) -> int:
        """Bytes of its slots here, filled or free; without those that were given back."""
        ...

    @property
    def reads_ahead(self) -> bool:
        """Whether a pass that was begun reads by itself, before a batch is asked for."""
        ...

    def begin(self, order: Order, first_batch: int, *, max_open_batches: int, world_size: int = 1) -> Running:
        """Begin a pass over an order at a batch.

        `max_open_batches` is how many may be filled or waiting at a time, and `world_size` how many ranks count on as
        many batches from each other.
        """

    def trim(self) -> None:
        """Let go of the memory of free slots."""

    def renew(self) -> None:
        """Make anew what a fork has left unusable, in the child."""

    def close(self) -> None:
        """Let go of free slots, files and processes; a later pass takes, opens or starts them again."""


def timed_out(batch: int, timeout_s: float, *, is_read: bool = False) -> LoaderTimeoutError:
    """Say that a batch did not come in time: from the source, or once it is read, of the user's functions."""
    why = (
        "it is read, and the worker that was to apply your functions to it was ended: they may hang, or need longer "
        "than that for a batch, or it was still starting: raise it"
        if is_read
        else "the source may hang, or timeout is too short for the first window: raise it"
    )
    return LoaderTimeoutError(
        f"no batch within timeout={timeout_s} s (batch {batch}); {why}, or 0 waits for as long as it takes"
    )


def closed() -> LoaderClosedError:
    """Say that an iterator was used after it had been stopped."""
    return LoaderClosedError("the loader was closed; make a new iterator with iter(loader)")


def check_process(pid: int) -> None:
    """Refuse to go on in another process than the one that a pass was begun in."""
    if os.getpid() != pid:
        raise LoaderClosedError(
            "this iterator was made before a fork, and its reader threads stayed in the parent; "
            "call iter(loader) again in the child"
        )
