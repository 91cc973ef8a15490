"""Batches that a device gathers from its own memory: from a window there, or from all samples."""

from __future__ import annotations

from dataclasses import dataclass

from h5stream.device.window import WindowFeed
from h5stream.engine.running import Running
from h5stream.engine.slots import SlotFormat
from h5stream.order.transfer import TransferOrder
from h5stream.routes.device import DeviceStream, ToDevice
from h5stream.routes.route import Stream


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
