"""Batches that functions of the user made, moved to a device one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from h5stream.device.cuda import is_cuda_available
from h5stream.device.pinning import pinned_copy
from h5stream.engine.running import Running
from h5stream.routes.host import HostRoute, HostStream
from h5stream.routes.route import Stream
from h5stream.structure import with_tensors


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
