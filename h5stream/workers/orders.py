"""Orders on their way to a child: whole, or window by window where only the parent knows them."""

from __future__ import annotations

import io
import pickle
import queue
from collections.abc import Iterator
from typing import Any

from h5stream.order.blocks import Blocks
from h5stream.order.epoch import Order, Window
from h5stream.workers.messages import NextWindow


class _Pickler(pickle.Pickler):
    """Leaves out the blocks, which the child has."""

    def __init__(self, stream: io.BytesIO, blocks: Blocks) -> None:
        super().__init__(stream, protocol=5)
        self._blocks = blocks

    def persistent_id(self, value: Any) -> str | None:
        return "blocks" if value is self._blocks else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, blocks: Blocks) -> None:
        super().__init__(stream)
        self._blocks = blocks

    def persistent_load(self, name: Any) -> Any:
        return self._blocks


def pickled(order: Order, blocks: Blocks) -> bytes:
    """Return an order as bytes, without its blocks."""
    stream = io.BytesIO()
    _Pickler(stream, blocks).dump(order)
    return stream.getvalue()


def unpickled(data: bytes, blocks: Blocks) -> Order:
    """Return the order that `pickled` made bytes of."""
    order: Order = _Unpickler(io.BytesIO(data), blocks).load()
    return order


class ReceivedOrder:
    """In the child: an order whose windows come one by one.

    # Guarantees: `receive` is called by the thread that reads messages; `windows` waits in the one that plans.
    """

    batches = None

    def __init__(self) -> None:
        self._coming: queue.SimpleQueue[Window | None] = queue.SimpleQueue()
        self._sizes: dict[int, int] = {}

    def receive(self, window: Window | None, sizes: dict[int, int] | None = None) -> None:
        """Take in a window, and the rows of its batches; None ends the order."""
        self._sizes |= sizes or {}
        self._coming.put(window)

    def batch_size_of(self, batch: int) -> int:
        """Return the rows of a batch that a window has named."""
        return self._sizes.pop(batch)

    def windows(self, first_batch: int = 0) -> Iterator[Window]:
        """Wait for each window; the first is that of `first_batch`, since the parent begins there."""
        return iter(self._coming.get, None)


class WindowSender:
    """In the parent: asks an order of the user's for its windows, a little ahead of the reading.

    # Guarantees: used by the consumer's thread alone, which is where a stock DataLoader asks its sampler.
    """

    def __init__(self, order: Order, run: int, first_batch: int) -> None:
        self._order, self._run, self._next = order, run, first_batch
        self._windows: Iterator[Window] | None = order.windows(first_batch)
        self.error: Exception | None = None
        """What the sampler raised; it belongs to the batch after the last that was sent."""

    def due(self, until: int) -> Iterator[NextWindow]:
        """Return the windows of the batches up to `until`, as far as they were not given; at the end, the end."""
        while self._windows is not None and self._next <= until:
            try:
                window = next(self._windows, None)
            except Exception as error:
                self.error, window = error, None
            if window is None:
                self._windows = None
                yield NextWindow(self._run)
                return
            last = int(window.batch.max())
            sizes = {number: self._order.batch_size_of(number) for number in range(self._next, last + 1)}
            self._next = last + 1
            yield NextWindow(self._run, window, sizes)
