"""Batches on the host: tensors over slots that are leased to the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from h5stream.device.backend import backend_for
from h5stream.device.cuda import is_cuda_available
from h5stream.device.pinned_slots import PinnedSlots
from h5stream.device.pinning import pinned_copy
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.counters import clock
from h5stream.engine.running import Running
from h5stream.engine.slots import SlotFormat, SlotRing, Slots
from h5stream.routes.route import END, Handover, Stream
from h5stream.structure import with_tensors
from h5stream.workers.samples import SampleFunctions

ToTensors = Callable[[ReadyBatch], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTensors:
    """Makes tensors over a batch's slot, which goes back when the last of them is dropped."""

    assembler: Assembler  # assembler, slot_format: how a slot becomes a batch
    slot_format: SlotFormat
    apart: bool = True  # see `Assembler.batch`

    def __call__(self, batch: ReadyBatch) -> Any:
        """Make them."""
        leased = batch.slot.lease()
        return self.assembler.batch(leased, self.slot_format, batch.rows, batch.objects, apart=self.apart)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRoute:
    """Gives batches in ordinary memory; see `h5stream.routes.route.Route`."""

    slot_format: SlotFormat  # how a slot is packed
    most_slots: int  # slots that are filled or waiting at a time, at most
    to_tensors: ToTensors  # makes tensors of a filled slot
    handover: Handover  # what is done to each batch
    functions: SampleFunctions | None = None  # what is done to each batch, where functions of the user make it

    def new_slots(self) -> Slots:
        """Return a ring of private memory."""
        return SlotRing(self.slot_format.nbytes, most_slots=self.most_slots)

    def stream(self, run: Running, first_batch: int) -> Stream:
        """Return the stream of an epoch."""
        return HostStream(run, self.to_tensors, self.handover)


@dataclass(slots=True)
class HostStream:
    """Leases slots to the user."""

    _run: Running
    _to_tensors: ToTensors
    _handover: Callable[[Any, int], Any]

    def next_batch(self, timeout_s: float) -> Any:
        """Wait for the next batch, and finish it."""
        batch = self._run.next_batch(timeout_s)
        if batch is None:
            return END
        began = clock()
        value = self._handover(self._to_tensors(batch), batch.rows)
        self._run.counters.finished(began)
        return value

    def close(self) -> None:
        """Do nothing: nothing is under way here."""


# --- Batches in pinned memory of the host, for copies to a GPU that the user makes ----------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRoute(HostRoute):
    """Gives batches in pinned memory; see `HostRoute`.

    What is not pinned is pinned behind all else, as DataLoader does behind its `collate_fn`: what `collate_fn`, a cast
    or a transform made, and slots of another process. Of tensors over pinned slots nothing is copied. torch knows
    nothing of copies from slots of another process, so its own pinned memory is what is given there.
    """

    def new_slots(self) -> Slots:
        """Give slots of torch's own pinned memory, unless functions of the user make other tensors of them."""
        if self.functions is not None:
            return HostRoute.new_slots(self)
        return PinnedSlots(backend_for("cuda"), self.slot_format.nbytes)

    def stream(self, run: Running, first_batch: int) -> Stream:
        """Return the stream of an epoch."""
        return HostStream(run, self.to_tensors, self._pinned)

    def _pinned(self, value: Any, rows: int) -> Any:
        return pinned_copy(self.handover(value, rows))


# --- Batches that functions of the user made, moved to a device one by one ------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRoute(HostRoute):
    """Gives batches on a device; see `HostRoute`.

    They are no slots, whose bytes could cross together: each tensor is pinned, and its copy queued on the consumer's
    stream, which the thread does not wait for.
    """

    device: torch.device  # where they are moved

    def stream(self, run: Running, first_batch: int) -> Stream:
        """Return the stream of an epoch."""
        return HostStream(run, self.to_tensors, self._moved)

    def _moved(self, value: Any, rows: int) -> Any:
        pinned = pinned_copy(value) if is_cuda_available() else value
        return self.handover(with_tensors(pinned, lambda tensor: tensor.to(self.device, non_blocking=True)), rows)
