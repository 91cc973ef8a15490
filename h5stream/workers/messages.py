"""What the loader and its child say to each other.

From the parent: `Begin`, `NextWindow`, `Room` and `Stop`. From the child: `Filled`, and at last `Ended`. Each names the
pass that it is about.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from h5stream.order.epoch import Window
from h5stream.workers.failures import Failure
from h5stream.workers.memory import Loan
from h5stream.workers.packing import Packed


class Begin(NamedTuple):
    """Begin a pass."""

    run: int  # its number
    order: bytes | None  # the order, pickled; None if its windows are sent one by one
    first_batch: int  # first_batch, max_open_batches, world_size: as for `Engine.begin`
    max_open_batches: int
    world_size: int


class NextWindow(NamedTuple):
    """A window of a pass whose order only the parent knows, and the rows of its batches; None at the end."""

    run: int
    window: Window | None = None
    sizes: dict[int, int] | None = None


class Room(NamedTuple):
    """How much a pass may have open: `taken` batches were taken by the consumer, and `max_open_batches` are allowed."""

    run: int
    taken: int
    max_open_batches: int


class Stop(NamedTuple):
    """End a pass."""

    run: int


class Report(NamedTuple):
    """How a pass stands when a message about it is sent."""

    left: int | None  # batches that are open once nothing is left to read; None before that
    ready: int  # batches that are filled and wait in the child
    # what the child's readers counted, as `h5stream.engine.counters.RunCounters.totals` gives it
    totals: tuple[int, ...]
    skipped_rows: int  # rows left out so far
    skipped_chunks: list[str]  # corrupt chunks met since the last report


class Filled(NamedTuple):
    """A batch of a pass."""

    run: int  # run, number, rows: which, and how many rows it has
    number: int
    rows: int
    slot: Loan | None  # its slot; None if it was finished there
    objects: dict[int, list[Any]]  # by field number, lists of what does not live in a slot
    made: Packed | None  # the finished batch
    report: Report  # how the pass stands

    @property
    def loans(self) -> list[Loan]:
        """All that it lends."""
        return ([] if self.slot is None else [self.slot]) + ([] if self.made is None else self.made.loans)


class Ended(NamedTuple):
    """A pass is over: at its end, or by an error at the batch after the last that was sent."""

    run: int
    failure: Failure | None
    report: Report | None
