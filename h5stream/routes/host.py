"""Batches on the host: tensors over slots that are leased to the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.counters import clock
from h5stream.engine.running import Running
from h5stream.engine.slots import SlotFormat, SlotRing, Slots
from h5stream.routes.route import END, Handover, Stream
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
