"""The backend without a device: every piece of work is done when it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from h5stream import allowance
from h5stream.device.pinning import HostBuffer, check_size, pageable
from h5stream.engine.slots import map_memory

HUGE_NBYTES = 32 << 20
"""Bytes from which memory is mapped on huge pages: from there the C library never reuses any, and the system takes
longer to hand a window out in small pages than it takes to fill."""


class CpuStream:
    """A stream that is always empty."""

    __slots__ = ()


class CpuEvent:
    """An event that is always done."""

    __slots__ = ("at_ns",)

    def __init__(self, at_ns: int = 0) -> None:
        self.at_ns = at_ns  # when it was recorded, if it was to be timed; else 0


class CpuBackend:
    """Host memory on both sides: a copy is done when `copy_async` returns, and there is nothing to wait for.

    See `h5stream.device.backend.DeviceBackend` for what each method promises. Stateless, so free for all
    threads.

    Examples
    --------
    >>> backend = CpuBackend()
    >>> stream = backend.side_stream()
    >>> slot = backend.allocate_pinned(3).tensor.fill_(7)
    >>> there = backend.allocate_device(3, stream)
    >>> backend.copy_async(there, slot, stream)
    >>> there.tolist(), backend.done(backend.record_event(stream))
    ([7, 7, 7], True)
    """

    __slots__ = ()

    _STREAM = CpuStream()
    _EVENT = CpuEvent()

    @property
    def device(self) -> torch.device:
        """The host."""
        return torch.device("cpu")

    def allocate_pinned(self, nbytes: int) -> HostBuffer:
        """Give pageable memory, without a warning: nothing here would gain from pinning."""
        return pageable(nbytes)

    def allocate_device(self, nbytes: int, stream: CpuStream) -> torch.Tensor:
        """Give host memory, on huge pages where there is much of it: a window is written once from end to end."""
        check_size(nbytes)
        if nbytes >= HUGE_NBYTES:
            return torch.from_numpy(map_memory(nbytes))
        return torch.empty(nbytes, dtype=torch.uint8)

    def current_stream(self) -> CpuStream:
        """Return the one stream."""
        return self._STREAM

    def side_stream(self) -> CpuStream:
        """Return the one stream."""
        return self._STREAM

    def copy_async(self, destination: torch.Tensor, source: torch.Tensor, stream: CpuStream) -> None:
        """Copy now, in this thread: a team of torch's threads would wait for processors that the readers use."""
        np.copyto(destination.numpy(), source.numpy())

    def launch(self, stream: CpuStream, kernel: Callable[..., Any], *tensors: torch.Tensor) -> None:
        """Run the kernel now."""
        kernel(*tensors)

    def call(self, stream: CpuStream, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call it."""
        return function(argument)

    def total_nbytes(self) -> int:
        """Return the memory that the machine has, or the cgroup may use."""
        return allowance.memory_total_bytes()

    def free_nbytes(self) -> int:
        """Return the memory that is free."""
        return allowance.memory_available_bytes()

    def record_event(self, stream: CpuStream, *, timed: bool = False) -> CpuEvent:
        """Return an event that is done."""
        return CpuEvent(time.perf_counter_ns()) if timed else self._EVENT

    def elapsed_ns(self, began: CpuEvent, ended: CpuEvent) -> int:
        """Return what the clock says."""
        return ended.at_ns - began.at_ns

    def wait(self, stream: CpuStream, event: CpuEvent) -> None:
        """Do nothing: everything before has run."""

    def done(self, event: CpuEvent) -> bool:
        """Tell that everything before has run."""
        return True

    def synchronize(self, event: CpuEvent) -> None:
        """Do nothing: everything before has run."""

    def hold(self, tensor: torch.Tensor, stream: CpuStream) -> None:
        """Do nothing: no work is left that could use the memory."""
