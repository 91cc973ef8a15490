"""The engine whose reader threads are this process's own."""

from __future__ import annotations

from collections.abc import Callable

from h5stream.engine.executor import Run
from h5stream.engine.landing.resident import ResidentDatasets
from h5stream.engine.reader import RowReader
from h5stream.engine.slots import SlotFormat, Slots
from h5stream.order.epoch import Order


class ThreadEngine:
    """Begins runs; see `h5stream.engine.running.Engine`.

    Parameters
    ----------
    reader, kept : RowReader, ResidentDatasets
        What reads.
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
        *,
        threads: int,
        on_thread_start: Callable[[int], None] | None = None,
        skip_corrupt: bool = False,
    ) -> None:
        self.reader, self._kept = reader, kept
        self._threads, self._on_thread_start, self._skip_corrupt = threads, on_thread_start, skip_corrupt

    @property
    def reads_ahead(self) -> bool:
        """Whether a pass reads by itself."""
        return self._readers > 0

    @property
    def _readers(self) -> int:
        # What the user wants called in reader threads needs them.
        return 0 if self._kept.needs_no_reader and self._on_thread_start is None else self._threads

    def begin(
        self,
        order: Order,
        first_batch: int,
        *,
        slots: Slots,
        slot_format: SlotFormat,
        max_open_batches: int,
        world_size: int = 1,
    ) -> Run:
        """Begin a pass over an order."""
        return Run(
            self.reader,
            self._kept,
            order,
            slots,
            slot_format,
            threads=self._readers,
            max_open_batches=max_open_batches,
            first_batch=first_batch,
            on_thread_start=self._on_thread_start,
            skip_corrupt=self._skip_corrupt,
            world_size=world_size,
        )

    def renew(self) -> None:
        """Make anew what the parent's threads may have held locked."""
        self.reader = RowReader(self.reader.layout)
        self._kept = ResidentDatasets(self.reader, self._kept.numbers)

    def close(self) -> None:
        """Close the files."""
        self.reader.close()
