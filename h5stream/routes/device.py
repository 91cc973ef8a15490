"""Batches on a device: each slot crosses in one copy, some batches ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h5stream.device.backend import DeviceBackend
from h5stream.device.feed import DeviceFeed, Feed
from h5stream.device.pinned_slots import PinnedRing
from h5stream.device.window import WindowFeed
from h5stream.engine.assemble import Assembler
from h5stream.engine.counters import clock
from h5stream.engine.running import Running
from h5stream.engine.slots import SlotFormat, Slots
from h5stream.order.regrouped import TransferOrder
from h5stream.routes.route import END, Function, Handover, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDevice:
    """What the ways onto a device have in common."""

    backend: DeviceBackend[Any, Any]  # the device
    assembler: Assembler  # assembler, slot_format: how packed bytes become a batch, and how a slot is packed
    slot_format: SlotFormat
    most_slots: int  # slots that are filled or waiting at a time, at most
    on_side_stream: Function | None  # what is done to each batch beside the consumer's work
    handover: Handover  # what is done to it then

    @property
    def functions(self) -> None:
        """Nothing: what functions of the user make is no slot, and goes by `h5stream.routes.host`."""

    def new_slots(self) -> Slots:
        """Return a ring of pinned memory."""
        return PinnedRing(self.backend, self.slot_format.nbytes, most_slots=self.most_slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRoute(ToDevice):
    """Gives batches on a device, `depth` of them ahead; see `h5stream.routes.route.Route`."""

    depth: int  # batches ahead
    reuse_buffers: bool  # write into the same device buffers in turn

    def stream(self, run: Running, first_batch: int) -> Stream:
        """Return the stream of an epoch."""
        feed = DeviceFeed(
            self.backend,
            run,
            self.assembler,
            self.slot_format,
            depth=self.depth,
            reuse_buffers=self.reuse_buffers,
            transform=self.on_side_stream,
            tally=run.counters.tally(),
        )
        return DeviceStream(feed, run, self.handover)


@dataclass(slots=True)
class DeviceStream:
    """Batches of a feed, handed over."""

    _feed: Feed
    _run: Running
    _handover: Handover

    def next_batch(self, timeout_s: float) -> Any:
        """Wait for the next batch, and finish it."""
        given = self._feed.next_batch(timeout_s)
        if given is None:
            return END
        began = clock()
        value = self._handover(*given)
        self._run.counters.finished(began)
        return value

    def close(self) -> None:
        """Wait for the copies under way."""
        self._feed.close()


# --- Batches that a device gathers from its own memory: from a window there, or from all samples.


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWindowRoute(ToDevice):
    """Gives batches that a device gathers; see `h5stream.routes.route.Route`. Slots hold rows as the file has them."""

    batch_format: SlotFormat  # how a batch is packed
    feed: type[WindowFeed] = WindowFeed  # what gathers them

    def stream(self, run: Running, first_batch: int) -> Stream:
        """Return the stream of an epoch."""
        assert isinstance(run.order, TransferOrder)
        feed = self.feed(
            self.backend,
            run,
            self.assembler,
            run.order,
            self.slot_format,
            self.batch_format,
            first_batch=first_batch,
            transform=self.on_side_stream,
            tally=run.counters.tally(),
        )
        return DeviceStream(feed, run, self.handover)
