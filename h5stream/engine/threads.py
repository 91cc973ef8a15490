"""The engine whose reader threads are this process's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from h5stream.dropped import Living
from h5stream.engine.executor import Run
from h5stream.engine.inline import InlineRun
from h5stream.engine.landing.resident import ResidentDatasets
from h5stream.engine.reader import RowReader
from h5stream.engine.running import Running
from h5stream.engine.slots import SlotFormat, Slots
from h5stream.order.epoch import Order
from h5stream.order.regrouped import RegroupedOrder
from h5stream.storage.layout import SampleLayout


class ThreadEngine:
    """Begins runs; see `h5stream.engine.running.Engine`.

    Parameters
    ----------
    reader, kept : RowReader, ResidentDatasets
        What reads.
    slot_format : SlotFormat
        How slots are packed.
    new_slots : callable
        Gives the slots to fill; asked again in a forked child.
    threads : int
        Reader threads; 0 reads in the thread that asks for batches.
    on_thread_start : callable or None
        Called with the thread's number in each of them.
    skip_corrupt : bool
        Leave out the rows of corrupt chunks.
    """

    def __init__(
        self,
        reader: RowReader,
        kept: ResidentDatasets,
        slot_format: SlotFormat,
        new_slots: Callable[[], Slots],
        *,
        threads: int,
        on_thread_start: Callable[[int], None] | None = None,
        skip_corrupt: bool = False,
    ) -> None:
        self.reader, self._kept, self._format = reader, kept, slot_format
        self.slots, self._new_slots = new_slots(), new_slots
        self._threads, self._on_thread_start, self._skip_corrupt = threads, on_thread_start, skip_corrupt
        self._runs, self._pid = Living[Running](), os.getpid()

    @classmethod
    def over(
        cls,
        layout: SampleLayout,
        kept: tuple[int, ...],
        kept_rows: Mapping[int, int] | None,
        slot_format: SlotFormat,
        new_slots: Callable[[], Slots],
        **given: Any,
    ) -> ThreadEngine:
        """Make one over a layout, of which the small datasets `kept` are read once; the rest is as for the engine.

        Of some datasets so many rows stay in memory once they are decoded: `kept_rows`.
        """
        reader = RowReader(layout, kept_rows)
        return cls(reader, ResidentDatasets(reader, kept), slot_format, new_slots, **given)

    @property
    def reads_ahead(self) -> bool:
        """Whether a pass reads by itself."""
        return self._readers > 0

    @property
    def _readers(self) -> int:
        # What the user wants called in reader threads needs them.
        return 0 if self._kept.needs_no_reader and self._on_thread_start is None else self._threads

    @property
    def held_nbytes(self) -> int:
        """Bytes of the slots, filled or free."""
        return self.slots.held_nbytes + self.reader.kept_nbytes

    def begin(self, order: Order, first_batch: int, *, max_open_batches: int, world_size: int = 1) -> Running:
        """Begin a pass over an order."""
        self.reader.keep()
        what = self.reader, self._kept, order, self.slots, self._format
        given: dict[str, Any] = {"first_batch": first_batch, "world_size": world_size}
        given["skip_corrupt"] = self._skip_corrupt
        if self._readers == 0:
            run: Running = InlineRun(*what, **given)
        else:
            given |= {"threads": self._readers, "on_thread_start": self._on_thread_start}
            run = Run(*what, max_open_batches=max_open_batches, **given)
        self._runs.add(run)
        return run

    def trim(self) -> None:
        """Let go of free slots, of the free memory of ragged rows, and of decoded rows that no pass gathers."""
        self.slots.trim()
        # A forked child has none of these, and their locks may be held for ever there.
        runs: Iterable[Running] = self._runs if os.getpid() == self._pid else ()
        gathering = [run for run in runs if isinstance(run.order, RegroupedOrder)]
        self.reader.trim(decoded=all(run.left_to_hand_over() is not None for run in gathering))

    def renew(self) -> None:
        """Make anew what the parent's threads may have held locked or be writing to."""
        self._runs, self._pid = Living(), os.getpid()
        self.slots = self._new_slots()
        self.reader = RowReader(self.reader.layout, self.reader.kept_rows)
        self._kept = ResidentDatasets(self.reader, self._kept.numbers)

    def close(self) -> None:
        """Let go of free slots, and close the files."""
        self.trim()
        self.reader.close()
