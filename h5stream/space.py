"""Whether copies fit: the folder's free space, and for a file system in memory also the memory there is.

What decides (`refusal`, `what_fits`) is pure; what measures (`measure`) reads ``/proc`` and ``statvfs`` once.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from h5stream import allowance
from h5stream.errors import H5StreamError, NotEnoughSpaceError, StagingError
from h5stream.filesystem import existing_parent, mount_of
from h5stream.units import text_of_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)

# What stays free unless the caller says otherwise. A training process needs memory of its own and grows
# while it runs; the kernel starts to reclaim and to swap well before the last page is gone.
MEMORY_MARGIN_SHARE = 0.05
LEAST_MEMORY_MARGIN = 256 << 20
DISK_MARGIN_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a folder can take, at one moment."""

    folder: str
    filesystem: str  # its type, such as ``tmpfs`` or ``ext4``; empty where it is not known
    free_bytes: int | None  # what the file system says is free, for this user; None where it has no limit (ramfs)
    memory_bytes: int | None  # what can be taken, within the cgroup's limit; None where files are not in memory
    free_margin_bytes: int  # what is to stay free in the file system
    memory_margin_bytes: int  # what is to stay free of the memory

    @property
    def usable_bytes(self) -> int:
        """What copies may take: the tighter of the two limits, margins taken off."""
        limits = [1 << 62]
        if self.free_bytes is not None:
            limits.append(self.free_bytes - self.free_margin_bytes)
        if self.memory_bytes is not None:
            limits.append(self.memory_bytes - self.memory_margin_bytes)
        return max(0, min(limits))


def measure(folder: Path, margin_bytes: int | None = None, freed_bytes: int = 0) -> Space:
    """Return what a folder can take when so much is deleted there; `margin_bytes` replaces both margins."""
    place = existing_parent(folder)
    mount, facts = mount_of(place), os.statvfs(place)
    memory = allowance.memory_available_bytes() if mount.in_memory else None
    memory_margin = max(LEAST_MEMORY_MARGIN, int(MEMORY_MARGIN_SHARE * (memory or 0)))
    # The size of a tmpfs is a limit that was set on purpose: it may be used up. Nearly full disks grow
    # slow.
    free_margin = 0 if mount.in_memory else int(DISK_MARGIN_SHARE * facts.f_blocks * facts.f_frsize)
    return Space(
        folder=str(folder),
        filesystem=mount.kind,
        free_bytes=facts.f_bavail * facts.f_frsize + freed_bytes if facts.f_blocks else None,
        memory_bytes=None if memory is None else memory + freed_bytes,
        free_margin_bytes=free_margin if margin_bytes is None else margin_bytes,
        memory_margin_bytes=memory_margin if margin_bytes is None else margin_bytes,
    )


def check_fits(space: Space, sizes: Sequence[tuple[str, int]], promised_bytes: int = 0) -> None:
    """Raise `NotEnoughSpaceError` where files do not fit beside what other processes are still to write."""
    problem = refusal(space, sizes, promised_bytes)
    if problem:
        raise NotEnoughSpaceError(
            problem,
            file=sizes[0][0] if len(sizes) == 1 else "",
            folder=space.folder,
            needed=sum(pages(size) for _, size in sizes),
            available=max(0, space.usable_bytes - promised_bytes),
        )


@contextlib.contextmanager
def explained(source: str, folder: Path, how: str, needed: int) -> Iterator[None]:
    """Turn what the operating system or libhdf5 says of a file that is being ``"copied"`` into ours, with its name."""
    try:
        yield
    except H5StreamError:
        raise
    except (OSError, RuntimeError) as error:
        if is_full(error):
            raise NotEnoughSpaceError(
                f"{folder} filled up while {source} was {how} there. What was not finished is deleted; free space, or "
                "name another folder",
                file=source,
                folder=str(folder),
                needed=needed,
            ) from error
        raise StagingError(
            f"{source} cannot be {how} to {folder}: {getattr(error, 'strerror', None) or error}. What was not finished "
            "is deleted",
            file=source,
            folder=str(folder),
        ) from error


def is_full(error: BaseException) -> bool:
    """Tell whether an error of the operating system or of libhdf5 means that there is no space left."""
    told = any(f"errno = {number}," in str(error) for number in _FULL)
    return told or (isinstance(error, OSError) and error.errno in _FULL)


def pages(size_bytes: int, page_bytes: int = 4096) -> int:
    """Return what a file takes in whole pages, in bytes.

    Examples
    --------
    >>> pages(0), pages(1), pages(4097)
    (0, 4096, 8192)
    """
    return -(-size_bytes // page_bytes) * page_bytes


def what_fits(sizes: Sequence[tuple[str, int]], usable_bytes: int) -> list[str]:
    """Return the names that fit together: smallest first, so that most files are brought in.

    Examples
    --------
    >>> what_fits([("big", 100), ("small", 10), ("middle", 50)], 70)
    ['small', 'middle']
    """
    fitting, used = [], 0
    for name, size in sorted(sizes, key=lambda pair: pair[1]):
        if used + size > usable_bytes:
            break
        fitting.append(name)
        used += size
    return fitting


def refusal(space: Space, sizes: Sequence[tuple[str, int]], promised_bytes: int = 0) -> str:
    """Return why the files do not fit, with the numbers and what would fit; an empty string where they fit.

    Each file has a name and its bytes; what other processes are copying will still take `promised_bytes`.
    """
    needed = sum(pages(size) for _, size in sizes)
    usable = max(0, space.usable_bytes - promised_bytes)
    if needed <= usable:
        return ""
    limits = []
    if space.free_bytes is not None:
        limits.append(_limit("its free space", space.free_bytes, space.free_margin_bytes))
    if space.memory_bytes is not None:
        limits.append(_limit("the available memory", space.memory_bytes, space.memory_margin_bytes))
    if promised_bytes:
        limits.append(f"{text_of_bytes(promised_bytes)} are promised to copies under way")
    return (
        f"{len(sizes)} file(s) of {text_of_bytes(needed)} ({needed} bytes) do not fit into {space.folder}"
        f"{f' ({space.filesystem})' if space.filesystem else ''}, which can take {text_of_bytes(usable)} "
        f"({usable} bytes): {'; '.join(limits)}. {_way_out(what_fits(sizes, usable), len(sizes))}"
    )


def _limit(what: str, have_bytes: int, margin_bytes: int) -> str:
    margin = f" less a margin of {text_of_bytes(margin_bytes)}" if margin_bytes else ""
    return f"{what} is {text_of_bytes(have_bytes)}{margin}"


def _way_out(fitting: Sequence[str], asked: int) -> str:
    free = "free space with `h5stream stage --remove`, or name another folder"
    if not fitting:
        return f"None of them fits; {free}"
    names = ", ".join(fitting[:5]) + (", ..." if len(fitting) > 5 else "")
    return f"{len(fitting)} of {asked} would fit: {names}; or {free}"
