"""Starting the engine, epoch by epoch: one run after the other, perhaps one ahead, and afresh after a fork."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from h5stream.delivery import Delivery, Stream
from h5stream.engine.footprint import WindowSize
from h5stream.engine.running import Engine, Running
from h5stream.order.epoch import Order
from h5stream.orders import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """An iteration that was begun.

    Attributes
    ----------
    run : Running
        The engine's part.
    order : Order
        The order of its batches.
    first_batch : int
        The batch that it begins with.
    """

    run: Running
    order: Order
    first_batch: int


class Epochs:
    """Starts the runs of a loader.

    # Guarantees: used by the thread that iterates. A run that was started ahead and is never taken ends with
    # this object.

    Parameters
    ----------
    engine : Engine
        What reads.
    delivery : Delivery
        Where batches go.
    size : WindowSize
        How much may be read together.
    order_of : callable
        Gives the order of an iteration, and the batch to begin with.
    """

    def __init__(
        self,
        engine: Engine,
        delivery: Delivery,
        size: WindowSize,
        order_of: Callable[[Start], tuple[Order, int]],
    ) -> None:
        self.engine, self.delivery, self._size, self._order_of = engine, delivery, size, order_of
        self._pid = os.getpid()
        self._ahead: tuple[Start, Begun, Callable[[], Any]] | None = None

    def begin(self, start: Start) -> Begun:
        """Begin an iteration: with the run that was started ahead for it, or a new one."""
        return self._take_ahead(start) or self._begin(start)

    def _begin(self, start: Start, taken: int = 0) -> Begun:
        order, first_batch = self._order_of(start)
        engine_order, first_slot = self.delivery.engine_order(order, first_batch)
        run = self.engine.begin(
            engine_order,
            first_slot,
            slots=self.delivery.slots,
            slot_format=self.delivery.slot_format,
            max_open_batches=self._size.max_open_batches - taken,
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
        if self._ahead is None and self.engine.reads_ahead and room >= needed:
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
        self.engine.renew()
        self.delivery.renew()
        return True

    def close(self) -> None:
        """End what was started ahead, and let go of slots, files and processes."""
        self._take_ahead(None)
        self.delivery.slots.trim()
        self.engine.close()
