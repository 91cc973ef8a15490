"""Properties of CUDA as torch reports them. Nothing is queried before a function is called."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFacts:
    """Torch's view of CUDA."""

    torch_version: str  # version of torch
    built_for: str | None  # CUDA version that torch was built for, None in a CPU build
    available: bool  # whether torch can use a GPU here and now
    # whether CUDA had been started in this process before this query: if so, forked children cannot use it
    initialized: bool
    devices: tuple[str, ...] = ()  # names of the devices in CUDA's order


def cuda_facts() -> CudaFacts:
    """Return torch's view of CUDA. It may start CUDA, so it is for diagnostics only."""
    import torch

    initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    available = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if available else []
    return CudaFacts(
        torch_version=torch.__version__,
        built_for=torch.version.cuda,
        available=available,
        initialized=initialized,
        devices=tuple(names),
    )


def started_cuda_uuids() -> tuple[str, ...]:
    """Return the UUIDs of the devices in CUDA's order, without prefix; none if CUDA was not started here.

    This does not start CUDA, after which a process can no longer fork workers that use it.
    """
    cuda = _started_cuda()
    return () if cuda is None else tuple(str(cuda.get_device_properties(k).uuid) for k in range(cuda.device_count()))


def pin_error(size_bytes: int) -> str | None:
    """Allocate pinned memory once and free it; return the error message, or None if it works."""
    import torch

    try:
        torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


# --- memory of the device, and waiting for it; CUDA is never started for these --------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of the current CUDA device, as torch's allocator counts it."""

    device: int  # number of the device in CUDA's order
    allocated_bytes: int  # bytes in tensors now. Low compared to the device's memory: room for a larger batch
    peak_bytes: int  # the most bytes in tensors since the process began, or since somebody reset torch's peak


def device_memory() -> DeviceMemory | None:
    """Return the memory of the current device; None if this process has not started CUDA."""
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
    """Wait for all work queued on the current device; return whether there is a device.

    A step that has returned in Python is only queued on a GPU, so wait here before measuring its duration.
    """
    cuda = _started_cuda()
    if cuda is None:
        return False
    cuda.synchronize()
    return True


def _started_cuda() -> ModuleType | None:
    torch = sys.modules.get("torch")
    # Another thread may be importing torch right now, so the module may be incomplete.
    cuda = getattr(torch, "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    return cuda if is_initialized is not None and is_initialized() else None
