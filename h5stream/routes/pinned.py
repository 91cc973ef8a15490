"""Batches in pinned memory of the host, for copies to a GPU that the user makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h5stream.device.backend import backend_for
from h5stream.device.pinned_slots import PinnedSlots
from h5stream.device.pinning import pinned_copy
from h5stream.engine.running import Running
from h5stream.engine.slots import Slots
from h5stream.routes.host import HostRoute, HostStream
from h5stream.routes.route import Stream


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
