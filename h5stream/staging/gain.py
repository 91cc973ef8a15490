"""Whether staging gains anything: files that memory holds already, and folders that are no faster.

`resident_bytes` asks the kernel; `little_gain` decides on the facts and is pure.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from h5stream.staging.space import (
    MEMORY_FILESYSTEMS,
    NETWORK_FILESYSTEMS,
    existing_parent,
    filesystem_type,
)
from h5stream.units import text_of_bytes

# From here on nearly every read is served from memory; the rest comes in with the first epoch.
RESIDENT_SHARE = 0.9
_SAMPLES = 64
_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What matters about where a file lies."""

    device: int
    """Number of the device, as ``st_dev``."""
    filesystem: str
    """Type of the file system; empty where it is not known."""
    rotates: bool | None
    """Whether it lies on a rotating disk; None where that is not known."""


def place_of(path: Path) -> Place:
    """Give where a file or folder lies; for what does not exist yet, where it would."""
    found = existing_parent(path)
    device = found.stat().st_dev
    return Place(device=device, filesystem=filesystem_type(found), rotates=_rotates(device))


def _rotates(device: int) -> bool | None:
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in (block / "queue", block / ".." / "queue"):  # a partition's queue is its disk's
        try:
            return (queue / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return None


def little_gain(name: str, size_bytes: int, resident: int | None, source: Place, target: Place) -> str:
    """Give why staging a file gains little, for people; an empty string where it may gain.

    Parameters
    ----------
    name : str
        The file, as the message is to call it.
    size_bytes : int
        Its size.
    resident : int or None
        Bytes of it that the page cache holds; None where that is not known.
    source, target : Place
        Where it lies and where it would go.
    """
    if source.filesystem in MEMORY_FILESYSTEMS:
        return f"staging {name} gains nothing: it lies in memory already ({source.filesystem})"
    if source.device == target.device:
        return f"staging {name} gains little: the folder is on the same file system and no faster"
    if target.filesystem in NETWORK_FILESYSTEMS:
        return f"staging {name} may gain nothing: the folder is on the network ({target.filesystem})"
    if target.rotates and source.rotates is False:
        return f"staging {name} may gain nothing: the folder is on a rotating disk"
    if resident is not None and size_bytes and resident >= RESIDENT_SHARE * size_bytes:
        return (
            f"staging {name} gains little as long as memory is plenty: {text_of_bytes(resident)} of its "
            f"{text_of_bytes(size_bytes)} are in the page cache already"
        )
    return ""


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return libc


def resident_bytes(path: Path) -> int | None:
    """Give about how many bytes of a file the page cache holds; None where the kernel does not tell.

    Reads nothing of the file. Up to 64 MiB every page counts; of a larger file, 64 samples of 1 MiB at even
    distances, because to ask about every page of a file in memory takes a twentieth of the time to copy it.

    Source: ``mincore(2)``. The kernel answers truthfully only to those who own the file or may write to it;
    to others every page looks resident.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        facts = os.fstat(descriptor)
        if os.geteuid() not in (0, facts.st_uid) and not os.access(path, os.W_OK):
            return None
        return _resident(descriptor, facts.st_size)
    finally:
        os.close(descriptor)


def _resident(descriptor: int, size_bytes: int) -> int | None:
    spread = max(_SAMPLE_BYTES, size_bytes // _SAMPLES // _SAMPLE_BYTES * _SAMPLE_BYTES)
    looked_at = resident = 0
    for offset in range(0, size_bytes, spread):
        length = min(_SAMPLE_BYTES, size_bytes - offset)
        pages = _resident_pages(descriptor, offset, length)
        if pages is None:
            return None
        looked_at += length
        resident += min(length, pages * mmap.PAGESIZE)
    return resident * size_bytes // looked_at if looked_at else 0


def _resident_pages(descriptor: int, offset: int, length: int) -> int | None:
    # Python's own mmap object hides the address of a read-only mapping.
    libc = _libc()
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, offset)
    if address is None or address == ctypes.c_void_p(-1).value:
        return None
    try:
        vector = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if libc.mincore(address, length, vector) != 0:
            return None
        # Only the lowest bit of each byte has a meaning.
        return sum(byte & 1 for byte in vector.raw)
    finally:
        libc.munmap(address, length)
