"""An order that only the parent can know, because its sampler lives there: windows are sent as they are needed."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from h5stream.isolation.messages import Feed
from h5stream.order.epoch import Order, Window


class FedOrder:
    """The child's end: an order whose windows come over the link.

    # Guarantees: `feed` is called by the thread that reads messages; `windows` waits in the one that plans.
    """

    def __init__(self) -> None:
        self._coming: queue.SimpleQueue[Feed | None] = queue.SimpleQueue()
        self._sizes: dict[int, int] = {}

    @property
    def batches(self) -> int | None:
        """Not known here."""
        return None

    def feed(self, message: Feed | None) -> None:
        """Take in a window; None or one without rows ends the order."""
        self._coming.put(message)

    def batch_size_of(self, batch: int) -> int:
        """Give the rows of a batch that a window has named."""
        return self._sizes.pop(batch)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Wait for each window; the first is that of `first_batch`, since the parent begins there."""
        while (message := self._coming.get()) is not None:
            if message.rows is None or message.batch is None or message.within is None:
                return
            self._sizes |= message.sizes or {}
            yield Window(rows=message.rows, batch=message.batch, within=message.within)


class Feeder:
    """The parent's end: asks the sampler, a little ahead of the reading.

    # Guarantees: used by the consumer's thread alone, which is where a stock DataLoader asks its sampler.

    Parameters
    ----------
    order : Order
        The order.
    run, first_batch : int
        The number of the pass, and the batch that it begins with.
    """

    def __init__(self, order: Order, run: int, first_batch: int) -> None:
        self._order, self._run, self._next = order, run, first_batch
        self._windows: Iterator[Window] | None = order.windows(first_batch)
        self.error: Exception | None = None
        """What the sampler raised; it belongs to the batch after the last that was fed."""

    def due(self, until: int) -> Iterator[Feed]:
        """Give the windows of the batches up to `until`, as far as they were not given; at the end, the end."""
        while self._windows is not None and self._next <= until:
            try:
                window = next(self._windows, None)
            except Exception as error:
                self.error, window = error, None
            if window is None:
                self._windows = None
                yield Feed(self._run)
                return
            last = int(window.batch.max())
            sizes = {number: self._order.batch_size_of(number) for number in range(self._next, last + 1)}
            self._next = last + 1
            yield Feed(self._run, window.rows, window.batch, window.within, sizes)
