"""What torch says about CUDA here. Nothing is probed before it is asked for."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFacts:
    """Torch's view of CUDA."""

    torch_version: str  # version of torch
    built_for: str | None  # CUDA version that torch was built for, None in a CPU build
    available: bool  # whether torch can use a GPU here and now
    # whether CUDA had started in this process before the question was asked: after that, forked children cannot use it
    initialized: bool
    devices: tuple[str, ...] = ()  # names of the devices in CUDA's order


def cuda_facts() -> CudaFacts:
    """Give torch's view of CUDA. It may start CUDA, so it is for checks, not for libraries at work.

    Examples
    --------
    >>> cuda_facts().torch_version.count(".") >= 2
    True
    """
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
    """Return the UUIDs of the devices in CUDA's order, without prefix, if CUDA has started in this process.

    Empty otherwise: neither torch is imported nor CUDA started for the answer, because a process that has
    started CUDA can no longer fork workers that use it.
    """
    torch = sys.modules.get("torch")
    # Another thread may be importing torch just now: it is there, but not all of it.
    is_initialized = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    if torch is None or is_initialized is None or not is_initialized():
        return ()
    count = torch.cuda.device_count()
    return tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(count))


def pin_error(size_bytes: int) -> str | None:
    """Allocate pinned memory once and give it back: what went wrong, or None if it works."""
    import torch

    try:
        torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None
