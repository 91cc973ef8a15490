"""Host memory that a GPU can copy from by itself, and what to say where the system does not give it."""

from __future__ import annotations

import resource
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from h5stream.errors import OptionError


class PinningWarning(UserWarning):
    """Host memory could not be pinned; copies to the device take the slower way, and are correct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBuffer:
    """A host buffer that copies to a device start from."""

    tensor: torch.Tensor  # the bytes: one-dimensional, uint8, contiguous. Whoever holds it (or a view) keeps the memory
    pinned: bool  # true if the device copies from it by itself; False for pageable memory
    held_bytes: int  # what is really taken from the host: torch's pinned allocator rounds up to a power of two


def held_by_pinning(nbytes: int) -> int:
    """Return what torch's pinned allocator takes for a request, in bytes: the next power of two.

    Examples
    --------
    >>> held_by_pinning(8192 * 1024), held_by_pinning(8192 * 1025)
    (8388608, 16777216)
    """
    return 1 << (nbytes - 1).bit_length() if nbytes > 0 else 0


def check_size(nbytes: int) -> None:
    """Raise `OptionError` for a size that is no size."""
    if nbytes < 0:
        raise OptionError(f"a buffer needs 0 bytes or more, not {nbytes}")


def pageable(nbytes: int) -> HostBuffer:
    """Return an ordinary host buffer.

    Examples
    --------
    >>> pageable(10).pinned
    False
    """
    check_size(nbytes)
    return HostBuffer(tensor=torch.empty(nbytes, dtype=torch.uint8), pinned=False, held_bytes=nbytes)


def pinned_copy(batch: Any) -> Any:
    """Return a batch, whatever its structure, in torch's own pinned memory, as a stock DataLoader does."""
    return pin_memory(batch)  # type: ignore[no-untyped-call]


def memlock_text() -> str:
    """Say how much memory this process may lock, as the kernel limits it (``RLIMIT_MEMLOCK``)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return f"RLIMIT_MEMLOCK is {_limit(soft)} (soft), {_limit(hard)} (hard)"


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value} bytes"


def warn_not_pinned(nbytes: int, reason: BaseException, *, stacklevel: int = 3) -> None:
    """Say once, for the caller to count, that pinning failed, why, and what would help."""
    first_line = str(reason).split("\n", 1)[0] or type(reason).__name__
    warnings.warn(
        f"{nbytes} bytes of host memory could not be pinned ({first_line}); pageable memory is used from "
        "here on, from which copies are slower and hold up the thread that starts them. "
        f"{memlock_text()}: where that is the reason, raise it (ulimit -l unlimited; in a container "
        "--ulimit memlock=-1)",
        PinningWarning,
        stacklevel=stacklevel,
    )
