"""The engine whose reader threads are this process's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from h5stream.dropped import Living
from h5stream.engine.reader import RowReader
from h5stream.engine.run import Run
from h5stream.engine.slots import SlotFormat, Slots
from h5stream.order.epoch import Order, RegroupedOrder
from h5stream.storage.layout import SampleLayout


class ThreadEngine:
    """Begins runs; see `h5stream.engine.running.Engine`.

    The small datasets `kept` are read once, and of some so many rows stay in memory once they are decoded: `kept_rows`.
    `new_slots` is asked again in a forked child. `threads` of 0 read in the thread that asks for batches; otherwise
    `on_thread_start` is called with the number of each. `skip_corrupt` leaves out the rows of corrupt chunks.
    """

    def __init__(
        self,
        layout: SampleLayout,
        kept: tuple[int, ...],
        kept_rows: Mapping[int, int] | None,
        slot_format: SlotFormat,
        new_slots: Callable[[], Slots],
        *,
        threads: int,
        on_thread_start: Callable[[int], None] | None = None,
        skip_corrupt: bool = False,
    ) -> None:
        self._format, self._new_slots, self._threads = slot_format, new_slots, threads
        self._on_thread_start, self._skip_corrupt = on_thread_start, skip_corrupt
        self._renew(layout, kept, kept_rows)

    def _renew(self, layout: SampleLayout, kept: tuple[int, ...], kept_rows: Mapping[int, int] | None) -> None:
        self.reader, self.slots = RowReader(layout, kept_rows, kept), self._new_slots()
        self._runs, self._pid = Living[Run](), os.getpid()

    @property
    def reads_ahead(self) -> bool:
        """Whether a pass reads by itself."""
        return self._readers > 0

    @property
    def _readers(self) -> int:
        # What the user wants called in reader threads needs them.
        return 0 if self.reader.needs_no_thread and self._on_thread_start is None else self._threads

    @property
    def held_nbytes(self) -> int:
        """Bytes of the slots, filled or free."""
        return self.slots.held_nbytes + self.reader.kept_nbytes

    def begin(self, order: Order, first_batch: int, *, max_open_batches: int, world_size: int = 1) -> Run:
        """Begin a pass over an order."""
        self.reader.keep()
        run = Run(
            self.reader,
            order,
            self.slots,
            self._format,
            threads=self._readers,
            max_open_batches=max_open_batches,
            first_batch=first_batch,
            on_thread_start=self._on_thread_start,
            skip_corrupt=self._skip_corrupt,
            world_size=world_size,
        )
        self._runs.add(run)
        return run

    def trim(self) -> None:
        """Let go of free slots, of the free memory of ragged rows, and of decoded rows that no pass gathers."""
        self.slots.trim()
        # A forked child has none of these, and their locks may be held for ever there.
        runs: Iterable[Run] = self._runs if os.getpid() == self._pid else ()
        gathering = (run for run in runs if isinstance(run.order, RegroupedOrder) and run.order.is_gathered)
        self.reader.trim(decoded=all(run.left_to_hand_over() is not None for run in gathering))

    def renew(self) -> None:
        """Make anew what the parent's threads may have held locked or be writing to."""
        self._renew(self.reader.layout, self.reader.small, self.reader.kept_rows)

    def close(self) -> None:
        """Let go of free slots, and close the files."""
        self.trim()
        self.reader.close()
