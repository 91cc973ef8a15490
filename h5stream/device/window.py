"""The device window: decoded rows go to the device in file order, and the device does the shuffle's gather.

The processor then only reads and decodes, and a window may be as large as the device's memory. Slots cross in
one copy each, are laid into a window (one matrix of bytes a field), and a batch is gathered from the window by
the row numbers that the order gives: the same order and bytes as on the host.

Everything that touches a window runs on the side stream, so windows need no events of their own; the consumer
waits for its batch alone.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from h5stream.device.backend import DeviceBackend
from h5stream.device.feed import BatchSource, Feed, Transform
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.counters import RunCounters, Tally, clock
from h5stream.engine.running import Engine, Running, closed
from h5stream.engine.slots import SlotFormat
from h5stream.errors import DeviceMemoryError, OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.epoch import Order
from h5stream.order.places import Places, is_ascending, narrowed
from h5stream.order.regrouped import TransferOrder
from h5stream.storage.layout import FieldLayout, SampleLayout

AHEAD = 4
"""Batches' worth of slots that may be sent for each batch that is taken. Over 2, because an epoch's first windows
double; not many, because what is sent ahead goes over the same stream as the next batch's gather."""


Fields = list[torch.Tensor | None]
"""For each field a matrix of bytes, a row each; None where rows have none."""


@dataclass(slots=True)
class _Window:
    """Rows on the device, in file order."""

    number: int
    first_output: int
    rows: int
    fields: Fields
    sources: torch.Tensor
    landed: int = 0


@dataclass(slots=True)
class _Output:
    """A batch that is being gathered."""

    packed: torch.Tensor
    rows: int
    filled: int = 0
    held: list[torch.Tensor] = field(default_factory=list)


class WindowFeed(Feed):
    """Yields batches that a device gathers from windows in its own memory.

    # Guarantees: at most two windows are on the device: the one that batches are taken from and the one that fills.
    """

    def __init__(
        self,
        backend: DeviceBackend[Any, Any],
        source: BatchSource,
        assembler: Assembler,
        transfer: TransferOrder,
        slot_format: SlotFormat,
        batch_format: SlotFormat,
        *,
        first_batch: int = 0,
        transform: Transform | None = None,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(backend, source, assembler, transform=transform, tally=tally)
        self._transfer, self._cut = transfer, transfer.order.cut
        self._slot_format, self._batch_format = slot_format, batch_format
        self._windows: collections.deque[_Window] = collections.deque()
        self._next_slot, self._next_batch = transfer.first_slot(first_batch), first_batch
        self._landing: torch.Tensor | None = None
        self._most_ahead = max(AHEAD, -(-AHEAD * batch_format.rows // slot_format.rows))

    def next_batch(self, timeout_s: float = 0.0) -> tuple[Any, int] | None:
        """Return the next batch and its rows; see `h5stream.device.feed.Feed`."""
        if self._next_batch == self._cut.batches:
            self._host.drain()
            return None
        number = self._next_batch
        output = self._start_output(number)
        while output.filled < output.rows:
            self._gather(number, output, self._window_with(number, output, timeout_s))
        self._next_batch += 1
        handed = self._hand_over(output)
        self._fill_ahead()  # after the batch's event, or the consumer would wait for these copies as well
        return handed

    # --- filling windows --------------------------------------------------------------------------------

    def _window_with(self, number: int, output: _Output, timeout_s: float) -> _Window:
        """Return the landed window that holds the next rows of a batch, and let go of those before it."""
        place = self._cut.start_of(number) + output.filled
        while self._windows and self._windows[0].first_output + self._windows[0].rows <= place:
            self._windows.popleft()
        while not self._windows or self._windows[0].landed < self._windows[0].rows:
            self._bring(place, timeout_s)
        return self._windows[0]

    def _bring(self, place: int, timeout_s: float) -> None:
        """Send the next slot of the window that fills an output place."""
        self._land(self._source.next_batch(timeout_s))
        # Here and not once the window is full: it may be far larger than what the host may hold.
        self._host.give_back_done(keep_at_most=self._most_ahead)

    def _fill_ahead(self) -> None:
        """Send slots of the next window that are ready, while this one's batches are taken.

        No more than fills it faster than the other is emptied, and none while so many copies are queued: the
        consumer waits for neither.
        """
        for _ in range(self._most_ahead):
            self._host.give_back_done(keep_at_most=2 * self._most_ahead)
            if self._next_slot >= self._transfer.batches or self._host.under_way >= self._most_ahead:
                return
            window = self._transfer.window_of(self._next_slot)
            if self._windows and window > self._windows[0].number + 1:
                return
            try:
                ready = self._source.next_if_ready()
            except Exception:
                return  # it waits there until its own rows are asked for
            if ready is None:
                return
            self._land(ready)

    def _land(self, ready: ReadyBatch | None) -> None:
        """Send a slot across and lay its rows into its window."""
        assert ready is not None, "the source ended before the windows were full"
        window = self._window_for(self._transfer.window_of(ready.number))
        self._lay(ready, window.fields, window.landed)
        window.landed += ready.rows
        self._next_slot = ready.number + 1

    def _lay(self, ready: ReadyBatch, fields: Fields, before: int) -> None:
        """Send a slot across and lay its rows behind those that are there."""
        if self._landing is None:
            self._landing = self._allocate(self._slot_format.nbytes)
        self._host.send(ready.slot, self._landing)
        pairs: list[torch.Tensor] = []
        for number, rows in enumerate(fields):
            if rows is not None:
                start, landed = self._slot_format.offsets[number], rows[before : before + ready.rows].view(-1)
                pairs += landed, self._landing[start : start + len(landed)]
        self._backend.launch(self._side, _copy_each, *pairs)

    def _window_for(self, number: int) -> _Window:
        for window in self._windows:
            if window.number == number:
                return window
        order = self._transfer.order
        rows = int(self._transfer.window_rows[number])
        sources = torch.from_numpy(self._sources_of(number))
        there = self._allocate(sources.nbytes)
        self._host.send_beside(sources.view(torch.uint8), there)
        window = _Window(
            number=number,
            first_output=int(order.window_edges[number]),
            rows=rows,
            fields=self._fields_for(rows),
            sources=there.view(sources.dtype),
        )
        self._windows.append(window)
        return window

    def _sources_of(self, number: int) -> Places:
        """Give, for each output place of a window, the place of its row among the window's."""
        return self._transfer.sources(number)

    def _fields_for(self, rows: int) -> Fields:
        """Give room for so many rows of each field."""
        return [
            self._allocate(rows * f.row_nbytes).view(rows, f.row_nbytes) if f.row_nbytes else None
            for f in self._assembler.layout.fields
        ]

    # --- gathering batches ------------------------------------------------------------------------------

    def _start_output(self, number: int) -> _Output:
        packed = self._allocate(self._batch_format.nbytes)
        return _Output(packed=packed, rows=self._cut.size_of(number), held=[packed])

    def _gather(self, number: int, output: _Output, window: _Window) -> None:
        """Take the rows that a window has for a batch."""
        first = self._cut.start_of(number) + output.filled - window.first_output
        count = min(output.rows - output.filled, window.rows - first)
        chosen = window.sources[first : first + count]
        pairs: list[torch.Tensor] = []
        for field_number, rows in enumerate(window.fields):
            if rows is None:
                continue
            start = self._batch_format.offsets[field_number] + output.filled * rows.shape[1]
            out = output.packed[start : start + count * rows.shape[1]].view(count, rows.shape[1])
            pairs += [out, rows]
        self._backend.launch(self._side, _take_each, chosen, *pairs)
        output.filled += count

    def _hand_over(self, output: _Output) -> tuple[Any, int]:
        batch = self._batch_over(output.packed, self._batch_format, output.rows, output.held, {})
        self._wait_and_hold(self._backend.record_event(self._side), output.held)
        return batch, output.rows

    def _no_room_for(self, nbytes: int) -> str:
        return (
            f"{nbytes:,} bytes of the device window: two windows of window= rows are held there. Pass a smaller window="
        )

    def close(self) -> None:
        """Wait for the copies under way and give their slots back."""
        self._next_batch = self._cut.batches
        self._windows.clear()
        super().close()


def is_tensor(f: FieldLayout) -> bool:
    """Tell whether a batch has a field as one tensor, whose rows a device can gather."""
    return f.kind == "array" and f.shapes is None


_KINDS = {"bytes": "a list of strings", "object": "a list of objects", "ragged": "ragged: of no fixed number of rows"}


def check_fields(layout: SampleLayout, asked: str) -> None:
    """Refuse fields that cannot live on a device, as an argument asks for."""
    for f in layout.fields:
        if not is_tensor(f):
            is_what = _KINDS.get(f.kind, "of another shape in each sample")
            raise OptionError(
                f"{asked} holds tensors, and field {f.name!r} is {is_what}; leave {asked} or the field out"
            )


def _copy_each(*pairs: torch.Tensor) -> None:
    # All fields in one call: to make a device and a stream current costs the thread more than a launch.
    for out, raw in zip(pairs[::2], pairs[1::2], strict=True):
        out.copy_(raw)


def _take_each(chosen: torch.Tensor, *pairs: torch.Tensor) -> None:
    for out, rows in zip(pairs[::2], pairs[1::2], strict=True):
        _take_rows(out, rows, chosen)


def _take_rows(out: torch.Tensor, rows: torch.Tensor, chosen: torch.Tensor) -> None:
    """Gather rows of bytes, in the widest words that they consist of: a byte at a time is an eighth as fast."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        aligned = out.storage_offset() % dtype.itemsize == 0 and rows.storage_offset() % dtype.itemsize == 0
        if rows.shape[1] % dtype.itemsize == 0 and aligned:
            out, rows = out.view(dtype), rows.view(dtype)
            break
    torch.index_select(rows, 0, chosen, out=out)


# --- Samples that stay on a device: all of them cross once, and every epoch's batches are gathered there.
#
# The first batch waits until all are there. From then on nothing is read, decoded or copied: the processor says which
# samples a window's batches take, and the device does the rest. Order and batches are those of a loader that keeps
# none.


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
        self._add_window(self._transfer.order.window_at(place))

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
            if (window := self._transfer.order.window_at(last)) > self._windows[0].number:
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
