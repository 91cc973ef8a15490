"""Samples that stay on a device: all of them cross once, and every epoch's batches are gathered there.

The first batch waits until all are there. From then on nothing is read, decoded or copied: the processor says which
samples a window's batches take, and the device does the rest. Order and batches are those of a loader that keeps none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from h5stream.device.backend import DeviceBackend
from h5stream.device.window import Fields, WindowFeed, check_fields, is_tensor
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.counters import RunCounters, clock
from h5stream.engine.running import Engine, Running, closed
from h5stream.errors import DeviceMemoryError, OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.epoch import Order
from h5stream.order.places import Places, is_ascending, narrowed
from h5stream.storage.layout import SampleLayout

FREE_SHARE = 2
"""What stays may take one part in so many of the device's free memory: the rest is for a model and its steps."""

NUMBERS_NBYTES = 8
"""Bytes for each sample besides: its number in two windows."""


class DeviceKeeping:
    """The samples of a dataset on a device, once all of them are there.

    # Guarantees: one feed fills it at a time, under `filling`; what is there is never written again.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.rows = blocks.total_rows
        self.fields: Fields | None = None
        self.filling = threading.Lock()
        self._numbers = rows = blocks.rows
        self._sorter = None if rows is None or is_ascending(rows) else np.argsort(rows, kind="stable")

    def places_of(self, numbers: Places) -> Places:
        """Return the places of samples by their numbers."""
        if self._numbers is None:
            return numbers
        found = np.searchsorted(self._numbers, numbers, sorter=self._sorter)
        return narrowed(found if self._sorter is None else self._sorter[found])


class KeptRun:
    """A pass whose samples are on a device, or are brought there first; see `h5stream.engine.running.Running`.

    The batches that it gives are slots of all samples, in their order; none where they are there.
    """

    def __init__(
        self,
        order: Order,
        keeping: DeviceKeeping,
        upload: Running | None,
        counters: RunCounters,
        at_end: Callable[[], None],
    ) -> None:
        self.order, self.keeping, self.counters = order, keeping, counters
        self._upload, self._at_end = upload, at_end
        self.left_out: set[int] = set()

    @property
    def ready(self) -> int:
        """Slots that are filled and wait."""
        return 0 if self._upload is None else self._upload.ready

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Wait for the next slot; None at the end."""
        if self._upload is None:  # and what was there is gone with its loader
            raise closed()
        return self._upload.next_batch(timeout_s)

    def next_if_ready(self) -> ReadyBatch | None:
        """Return the next slot if it is filled."""
        return None if self._upload is None else self._upload.next_if_ready()

    def left_to_hand_over(self) -> int | None:
        """Tell nothing: there is nothing to read ahead."""
        return None

    def allow(self, max_open_batches: int, passed_on: int = 0) -> None:
        """Change nothing."""

    def all_there(self) -> None:
        """Let go of what was read with, once all samples are on the device."""
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.stop()
            self.counters.tally().become(upload.counters.totals())
            self._at_end()

    def stop(self) -> None:
        """End it."""
        self.counters.end()
        if (upload := self._upload) is not None:
            upload.stop()


class KeptEngine:
    """Has an engine read all samples once, for a device where they stay; see `h5stream.engine.running.Engine`."""

    reads_ahead = False

    def __init__(
        self, engine: Engine, layout: SampleLayout, blocks: Blocks, upload: Callable[[], Order], threads: int
    ) -> None:
        self._engine, self._layout, self._blocks = engine, layout, blocks
        self._upload, self._threads = upload, threads
        self._keeping = DeviceKeeping(blocks)

    @property
    def held_nbytes(self) -> int:
        """Bytes of slots on the host."""
        return self._engine.held_nbytes

    def begin(self, order: Order, first_batch: int, *, max_open_batches: int, world_size: int = 1) -> KeptRun:
        """Begin a pass; reads only where the samples are not on the device yet."""
        row_nbytes, upload = self._layout.row_nbytes, None
        counters = RunCounters(threads=self._threads, ready_limit=max_open_batches, row_nbytes=row_nbytes)
        counters.device_bytes = self._keeping.rows * row_nbytes
        if self._keeping.fields is None:
            upload = self._engine.begin(self._upload(), 0, max_open_batches=max_open_batches)
        else:
            for files in self._layout.files:
                for file in files.each():
                    file.check_unchanged()
        return KeptRun(order, self._keeping, upload, counters, self._engine.close)

    def trim(self) -> None:
        """Let go of free slots."""
        self._engine.trim()

    def renew(self) -> None:
        """Make anew what a fork has left unusable, in the child."""
        self._keeping = DeviceKeeping(self._blocks)
        self._engine.renew()

    def close(self) -> None:
        """Let go of the samples, and of what reads."""
        self._keeping.fields = None
        self._engine.close()


class KeptFeed(WindowFeed):
    """Yields batches that a device gathers from all samples, which stay there; the source is a `KeptRun`."""

    _source: KeptRun

    def next_batch(self, timeout_s: float = 0.0) -> tuple[Any, int] | None:
        """Return the next batch and its rows; see `h5stream.device.feed.Feed`."""
        counters = self._source.counters
        asked = counters.asked(int(self._source.keeping.fields is not None))
        if (given := super().next_batch(timeout_s)) is not None:
            counters.waited(asked)
            counters.gave(given[1])
            self._tally.memory_bytes += given[1] * self._assembler.layout.row_nbytes
        return given

    def _bring(self, place: int, timeout_s: float) -> None:
        if self._source.keeping.fields is None:
            with self._source.keeping.filling:
                if self._source.keeping.fields is None:
                    self._source.keeping.fields = self._filled(timeout_s)
        self._source.all_there()
        self._add_window(self._transfer.window_at(place))

    def _filled(self, timeout_s: float) -> Fields:
        """Bring all samples to the device."""
        fields, landed = super()._fields_for(self._source.keeping.rows), 0
        while (ready := self._source.next_batch(timeout_s)) is not None:
            self._lay(ready, fields, landed)
            landed += ready.rows
            self._host.give_back_done(keep_at_most=self._most_ahead)
        self._host.drain()
        self._landing = None
        return fields

    def _fill_ahead(self) -> None:
        """Say which samples the next window's batches take, while the device has work to do."""
        self._host.give_back_done(keep_at_most=self._most_ahead)
        if self._next_batch < self._cut.batches and len(self._windows) == 1:
            last = self._cut.start_of(self._next_batch) + self._cut.size_of(self._next_batch) - 1
            if (window := self._transfer.window_at(last)) > self._windows[0].number:
                self._add_window(window)

    def _add_window(self, number: int) -> None:
        began = clock()
        window = self._window_for(number)
        window.landed = window.rows
        self._tally.plan_ns += clock() - began

    def _sources_of(self, number: int) -> Places:
        return self._source.keeping.places_of(self._transfer.rows_by_output(number))

    def _fields_for(self, rows: int) -> Fields:
        if (fields := self._source.keeping.fields) is None:  # another thread closed the loader
            raise closed()
        return fields

    def _no_room_for(self, nbytes: int) -> str:
        return f"{nbytes:,} bytes: all samples stay there (keep='device'). Leave keep= out, pass fewer fields"


def device_nbytes(layout: SampleLayout, rows: int) -> int:
    """Return the bytes that so many samples take where they stay on a device; 0 where they cannot stay."""
    return rows * (layout.row_nbytes + NUMBERS_NBYTES) if all(map(is_tensor, layout.fields)) else 0


def check_keeping(layout: SampleLayout, rows: int, backend: DeviceBackend[Any, Any]) -> None:
    """Refuse samples that cannot stay on a device."""
    check_fields(layout, "keep='device'")
    if layout.draws is not None or any(one.spare is not None for one in layout.lookups):
        raise OptionError(
            "keep='device' keeps samples that are the same in each epoch, and some of these begin at random "
            "(starts='random', at='random' or Crop); leave keep= out"
        )
    needed, free = device_nbytes(layout, rows), backend.free_nbytes()
    if needed * FREE_SHARE > free:
        raise DeviceMemoryError(
            f"keep='device' takes {needed:,} bytes for {rows:,} samples, and may take half of what is free on "
            f"{backend.device}: {free // FREE_SHARE:,} of {free:,} bytes. Leave keep= out (window_device= keeps a "
            "window there), or pass fewer fields or a smaller dtype"
        )
