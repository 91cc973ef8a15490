"""What parent and child say to each other.

From the parent: `Begin`, `Feed`, `Took`, `Allow` and `Stop`. From the child: `Filled`, and at last `Ended`; or
`SetupFailed`. But for the last, each names the pass that it is about.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from h5stream.isolation.failures import Failure
from h5stream.isolation.memory import Place


class Begin(NamedTuple):
    """Begin a pass.

    Attributes
    ----------
    run : int
        Its number.
    order : bytes or None
        The order, pickled; None if its windows will be fed.
    first_batch, max_open_batches, world_size : int
        As for `Run`.
    """

    run: int
    order: bytes | None
    first_batch: int
    max_open_batches: int
    world_size: int


class Feed(NamedTuple):
    """A window of a pass whose order only the parent knows; without rows there are no more.

    Attributes
    ----------
    rows, batch, within : ndarray of int64
        As in `h5stream.order.epoch.Window`.
    sizes : dict
        Rows of each of its batches.
    """

    run: int
    rows: NDArray[Any] | None = None
    batch: NDArray[Any] | None = None
    within: NDArray[Any] | None = None
    sizes: dict[int, int] | None = None


class Took(NamedTuple):
    """The consumer took `batches` more of pass `run`, and nobody looks at the slots `returned` any more."""

    run: int
    batches: int
    returned: list[Place]


class Allow(NamedTuple):
    """So many batches may be open in pass `run`."""

    run: int
    max_open_batches: int


class Stop(NamedTuple):
    """End pass `run`."""

    run: int


class Report(NamedTuple):
    """How a pass stands when a message about it is sent.

    Attributes
    ----------
    left : int or None
        Batches that are open once nothing is left to read; None before that.
    ready : int
        Batches that are filled and wait in the child.
    totals : tuple of int
        What the child's readers counted, as `h5stream.engine.counters.RunCounters.totals` gives it.
    skipped_rows : int
        Rows left out so far.
    skipped_chunks : list of str
        Corrupt chunks met since the last report.
    log : list
        Level, logger and text of what was logged since the last report of any pass.
    """

    left: int | None
    ready: int
    totals: tuple[int, ...]
    skipped_rows: int
    skipped_chunks: list[str]
    log: list[tuple[int, str, str]]


Made = tuple[bytes, tuple[tuple[bool, int, int], ...], Place | None]
"""What a transform made: the pickled structure, where each buffer lies, and the slot that was filled for it."""


class Filled(NamedTuple):
    """A batch.

    Attributes
    ----------
    run, number, rows : int
        Which.
    place : Place or None
        Its slot; None if nothing lies there any more.
    objects : dict
        By field number, lists of what does not live in a slot.
    made : Made or None
        What a transform made of it.
    report : Report
        How the pass stands.
    """

    run: int
    number: int
    rows: int
    place: Place | None
    objects: dict[int, list[Any]]
    made: Made | None
    report: Report

    @property
    def places(self) -> list[Place]:
        """The slots that it lends."""
        return [p for p in (self.place, None if self.made is None else self.made[2]) if p is not None]


class Ended(NamedTuple):
    """A pass is over: at its end, or by an error at the batch after the last that was sent."""

    run: int
    failure: Failure | None
    report: Report | None


class SetupFailed(NamedTuple):
    """The child could not begin to work."""

    failure: Failure
