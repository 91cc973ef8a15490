"""Starting the engine, epoch by epoch: one run after the other, perhaps one ahead, and afresh after a fork."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

from h5stream.delivery import Delivery, Stream
from h5stream.engine.footprint import WindowSize
from h5stream.engine.running import Engine, Running
from h5stream.order.epoch import Order
from h5stream.orders import Start
from h5stream.state import Place


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    """An iteration that was begun before it was asked for; `unwatch` forgets that dropping `Epochs` must end it."""

    start: Start
    begun: Begun
    unwatch: Callable[[], object]


class Epochs:
    """Starts the runs of a loader.

    # Guarantees: used by the thread that iterates, but for `drop_ahead`, `trim` and `close`, which any thread may
    call, even inside the garbage collector: they share `_ahead` alone, whose `pop` needs no lock. A run that was
    started ahead and is never taken ends with this object.

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
        self._ahead: dict[int, _Ahead] = {}  # by epoch; at most one
        self._expected: Start | None = None
        self._follows = True

    def begin(self, start: Start) -> Begun:
        """Begin an iteration: with the run that was started ahead for it, or a new one."""
        # Where epochs do not follow one another, as with `set_epoch(0)` each time, reading ahead is work for nothing.
        self._follows = self._expected in (None, start)
        self._expected = replace(start, place=Place(epoch=start.place.epoch + 1))
        ahead = self._ahead.pop(start.place.epoch, None) if self._follows else None
        self.drop_ahead()
        if ahead is None or ahead.start != start:
            return self._begin(start, self._size.max_open_batches)
        ahead.unwatch()
        ahead.begun.run.allow(self._size.max_open_batches)
        return ahead.begun

    def _begin(self, start: Start, max_open_batches: int) -> Begun:
        order, first_batch = self._order_of(start)
        engine_order, first_slot = self.delivery.engine_order(order, first_batch)
        run = self.engine.begin(
            engine_order,
            first_slot,
            slots=self.delivery.slots,
            slot_format=self.delivery.slot_format,
            max_open_batches=max_open_batches,
            world_size=start.ranks.world_size,
        )
        return Begun(run=run, order=order, first_batch=first_batch)

    def stream(self, begun: Begun) -> Stream:
        """Give the stream of what was begun."""
        return self.delivery.stream(begun.run, begun.run.order, begun.first_batch)

    def resize(self, size: WindowSize) -> None:
        """Read so much together from the next iteration on, wherever that begins."""
        self.drop_ahead()
        self._size, self._expected = size, None

    def read_ahead(self, start: Start, taken: int) -> None:
        """Read the first window of an iteration while `taken` batches of the one before are to be consumed.

        No more than that: it is held until the iteration begins, which may be never.
        """
        size = self._size
        first = size.together or size.first_window_rows // self.delivery.slot_format.rows + 2
        needed = min(first, size.max_open_batches)
        if self._ahead or not self._follows or not self.engine.reads_ahead or taken + needed > size.max_open_batches:
            return
        with contextlib.suppress(Exception):  # what is wrong is said when the iteration begins
            begun = self._begin(start, needed)
            unwatch = weakref.finalize(self, begun.run.stop).detach
            self._ahead[start.place.epoch] = _Ahead(start=start, begun=begun, unwatch=unwatch)

    def drop_ahead(self, epoch: int | None = None) -> None:
        """End what was started ahead for an epoch, or for any."""
        for number in list(self._ahead) if epoch is None else [epoch]:
            if (ahead := self._ahead.pop(number, None)) is not None:
                ahead.unwatch()
                ahead.begun.run.stop()

    def renew_after_fork(self) -> bool:
        """In a forked child, make anew what the parent's threads may have held locked or be writing to."""
        if self._pid == os.getpid():
            return False
        self._pid, self._ahead = os.getpid(), {}
        self.engine.renew()
        self.delivery.renew()
        return True

    def trim(self) -> None:
        """End what was started ahead, and let go of free slots: those that it filled are free then."""
        self.drop_ahead()
        self.delivery.slots.trim()

    def close(self) -> None:
        """End what was started ahead, and let go of slots, files and processes."""
        self.trim()
        self.engine.close()
