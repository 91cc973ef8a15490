"""Starting the engine, epoch by epoch: one run after the other, perhaps one ahead, and afresh after a fork."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from h5stream.delivery import Delivery
from h5stream.engine.budget import WindowSize
from h5stream.engine.carry import Carrier
from h5stream.engine.executor import Run
from h5stream.engine.kept import KeptDatasets
from h5stream.order.epoch import Order


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
        Gives the order of an epoch.
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
        order_of: Callable[[int], Order],
        *,
        threads: int,
        on_thread_start: Callable[[int], None] | None,
        skip_corrupt: bool = False,
    ) -> None:
        self.carrier, self._kept, self.delivery, self._size = carrier, kept, delivery, size
        self._order_of, self._threads, self._on_thread_start = order_of, threads, on_thread_start
        self._skip_corrupt = skip_corrupt
        self._pid = os.getpid()
        self._ahead: tuple[int, Run, Callable[[], Any]] | None = None

    def run(self, epoch: int) -> Run:
        """Give the run of an epoch: the one that was started ahead for it, or a new one."""
        return self._take_ahead(epoch) or self._start(epoch)

    def _start(self, epoch: int, taken: int = 0) -> Run:
        return Run(
            self.carrier,
            self._kept,
            self.delivery.engine_order(self._order_of(epoch)),
            self.delivery.slots,
            self.delivery.slot_format,
            threads=self._threads,
            max_open_batches=self._size.max_open_batches - taken,
            on_thread_start=self._on_thread_start,
            skip_corrupt=self._skip_corrupt,
        )

    def read_ahead(self, epoch: int, taken: int) -> None:
        """Start an epoch whose first window is read while `taken` batches of the one before are to be consumed."""
        room = self._size.max_open_batches - taken
        needed = min(self._size.first_window_rows // self.delivery.slot_format.rows + 2, room + taken)
        if self._ahead is None and self._threads and room >= needed:
            run = self._start(epoch, taken)
            self._ahead = epoch, run, weakref.finalize(self, run.stop).detach

    def _take_ahead(self, epoch: int | None) -> Run | None:
        """Give the run that was started for this epoch, or end the one that was started for another."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        ahead[2]()
        if ahead[0] != epoch:
            ahead[1].stop()
            return None
        ahead[1].allow(self._size.max_open_batches)
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
