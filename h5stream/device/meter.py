"""What torch holds on the device, and waiting for it; CUDA is never started to answer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of the current CUDA device, as torch's allocator counts it."""

    device: int  # number of the device in CUDA's order
    allocated_bytes: int  # bytes in tensors now. Low beside the device's memory: room for a larger batch
    peak_bytes: int  # the most bytes in tensors since the process began, or since somebody reset torch's peak


def device_memory() -> DeviceMemory | None:
    """Return the memory of the current device; None where this process has not started CUDA.

    Examples
    --------
    >>> device_memory() is None or device_memory().allocated_bytes >= 0
    True
    """
    cuda = _started_cuda()
    if cuda is None:
        return None
    index = int(cuda.current_device())
    return DeviceMemory(
        device=index,
        allocated_bytes=int(cuda.memory_allocated(index)),
        peak_bytes=int(cuda.max_memory_allocated(index)),
    )


def synchronize() -> bool:
    """Wait for all work that was queued on the current device; tell whether there is a device.

    A step that ends in Python has only been queued on a GPU. Whoever measures it waits here first.

    Examples
    --------
    >>> synchronize() in (True, False)
    True
    """
    cuda = _started_cuda()
    if cuda is None:
        return False
    cuda.synchronize()
    return True


def _started_cuda() -> Any:
    torch = sys.modules.get("torch")
    # Another thread may be importing torch just now: it is there, but not all of it.
    cuda = getattr(torch, "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    return cuda if is_initialized is not None and is_initialized() else None
