"""Starting the engine, epoch by epoch: one run after the other, perhaps one ahead, and afresh after a fork."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from h5stream.delivery import Delivery, Stream
from h5stream.engine.budget import WindowSize
from h5stream.engine.carry import Carrier
from h5stream.engine.executor import Run
from h5stream.engine.kept import KeptDatasets
from h5stream.order.epoch import Order
from h5stream.orders import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """An iteration that was begun.

    Attributes
    ----------
    run : Run
        The engine's part.
    order : Order
        The order of its batches.
    first_batch : int
        The batch that it begins with.
    """

    run: Run
    order: Order
    first_batch: int


class Epochs:
    """Starts the runs of a loader.

    # Guarantees: used by the thread that iterates. A run that was started ahead and is never taken ends with
    # this object.

    Parameters
    ----------
    carrier, kept : Carrier, KeptDatasets
        What reads.
    delivery : Delivery
        Where batches go.
    size : WindowSize
        How much may be read together.
    order_of : callable
        Gives the order of an iteration, and the batch to begin with.
    threads : int
        Reader threads.
    on_thread_start : callable or None
        Called in each of them.
    skip_corrupt : bool
        Leave out the rows of corrupt chunks.
    """

    def __init__(
        self,
        carrier: Carrier,
        kept: KeptDatasets,
        delivery: Delivery,
        size: WindowSize,
        order_of: Callable[[Start], tuple[Order, int]],
        *,
        threads: int,
        on_thread_start: Callable[[int], None] | None,
        skip_corrupt: bool = False,
    ) -> None:
        self.carrier, self._kept, self.delivery, self._size = carrier, kept, delivery, size
        self._order_of, self._threads, self._on_thread_start = order_of, threads, on_thread_start
        self._skip_corrupt = skip_corrupt
        self._pid = os.getpid()
        self._ahead: tuple[Start, Begun, Callable[[], Any]] | None = None

    def begin(self, start: Start) -> Begun:
        """Begin an iteration: with the run that was started ahead for it, or a new one."""
        return self._take_ahead(start) or self._begin(start)

    def _begin(self, start: Start, taken: int = 0) -> Begun:
        order, first_batch = self._order_of(start)
        engine_order, first_slot = self.delivery.engine_order(order, first_batch)
        run = Run(
            self.carrier,
            self._kept,
            engine_order,
            self.delivery.slots,
            self.delivery.slot_format,
            threads=self._threads,
            max_open_batches=self._size.max_open_batches - taken,
            first_batch=first_slot,
            on_thread_start=self._on_thread_start,
            skip_corrupt=self._skip_corrupt,
            world_size=start.ranks.world_size,
        )
        return Begun(run=run, order=order, first_batch=first_batch)

    def stream(self, begun: Begun) -> Stream:
        """Give the stream of what was begun."""
        return self.delivery.stream(begun.run, begun.run.order, begun.first_batch)

    def resize(self, size: WindowSize) -> None:
        """Read so much together from the next iteration on."""
        self._take_ahead(None)
        self._size = size

    def read_ahead(self, start: Start, taken: int) -> None:
        """Start an iteration whose first window is read while `taken` batches of the one before are to be consumed."""
        room = self._size.max_open_batches - taken
        first = self._size.together or self._size.first_window_rows // self.delivery.slot_format.rows + 2
        needed = min(first, room + taken)
        if self._ahead is None and self._threads and room >= needed:
            begun = self._begin(start, taken)
            self._ahead = start, begun, weakref.finalize(self, begun.run.stop).detach

    def _take_ahead(self, start: Start | None) -> Begun | None:
        """Give what was begun for this start, or end what was begun for another."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        ahead[2]()
        if ahead[0] != start:
            ahead[1].run.stop()
            return None
        ahead[1].run.allow(self._size.max_open_batches)
        return ahead[1]

    def renew_after_fork(self) -> bool:
        """In a forked child, make anew what the parent's threads may have held locked or be writing to."""
        if self._pid == os.getpid():
            return False
        self._pid, self._ahead = os.getpid(), None
        self.carrier = Carrier(self.carrier.layout)
        self._kept = KeptDatasets(self.carrier, self._kept.numbers)
        self.delivery.renew()
        return True

    def close(self) -> None:
        """End what was started ahead, and let go of slots and files."""
        self._take_ahead(None)
        self.delivery.slots.trim()
        self.carrier.close()
