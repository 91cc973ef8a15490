"""Processors and memory available to this process, within its CPU affinity and cgroups.

``os.cpu_count()`` and the machine's total memory are shared with the neighbours of a container. And `cached_property`,
which no forked process waits for.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    def cached_property(function: Callable[..., object]) -> functools.cached_property[object]:
        """Return a property without the lock that Python 3.11 has for all objects of a class.

        A process that is forked while another thread holds it would wait for it for ever.
        """
        made = functools.cached_property(function)
        made.lock = contextlib.nullcontext()
        return made


ROOT = Path("/")
"""The folder of ``proc`` and ``sys``; read at each call."""


_CGROUP = "sys/fs/cgroup"


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def cgroup_folders() -> list[Path]:
    """Return the cgroup v2 folder of this process and its parents, innermost first."""
    folders = [ROOT / _CGROUP]
    for line in (_read_text(ROOT / "proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            for name in Path(line[3:].lstrip("/")).parts:
                folders.append(folders[-1] / name)
            break
    return folders[::-1]


def cpus() -> int:
    """Return how many processors the affinity mask and the cgroup's quota allow, rounded up, and at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in cgroup_folders():
        quota, _, period = (_read_text(folder / "cpu.max") or "max").partition(" ")
        if quota != "max" and period:
            allowed = min(allowed, math.ceil(int(quota) / int(period)))
    quota_v1 = _read_text(ROOT / _CGROUP / "cpu/cpu.cfs_quota_us")
    period_v1 = _read_text(ROOT / _CGROUP / "cpu/cpu.cfs_period_us")
    if quota_v1 and period_v1 and int(quota_v1) > 0:
        allowed = min(allowed, math.ceil(int(quota_v1) / int(period_v1)))
    return max(1, allowed)


def memory_limit_bytes() -> int | None:
    """Return the tightest cgroup memory limit over this process in bytes, or None if there is none."""
    tightest = 1 << 60
    for limit, _ in _limits_and_uses():
        tightest = min(tightest, limit)
    return tightest if tightest < 1 << 60 else None


def memory_total_bytes() -> int:
    """Return the machine's memory in bytes, or the cgroup's limit if lower; it is the same from run to run."""
    limit = memory_limit_bytes()
    total = _meminfo_bytes("MemTotal")
    return total if limit is None else min(total, limit)


def memory_available_bytes() -> int:
    """Return the bytes that can be allocated now without swapping: the kernel's estimate, within the cgroup."""
    available = _meminfo_bytes("MemAvailable")
    for limit, used in _limits_and_uses():
        if used is not None:
            available = min(available, max(0, limit - used))
    return available


def _limits_and_uses() -> list[tuple[int, int | None]]:
    """Return the memory limit of each cgroup over this process, and its use without the page cache, in bytes."""
    limits: list[tuple[int, int | None]] = []
    v1 = ROOT / _CGROUP / "memory"
    for folder in (*cgroup_folders(), v1):
        limit = _read_text(folder / ("memory.limit_in_bytes" if folder == v1 else "memory.max"))
        if not limit or limit == "max":
            continue
        used = _read_text(folder / ("memory.usage_in_bytes" if folder == v1 else "memory.current"))
        prefix, cached = "total_" if folder == v1 else "", 0
        for line in (_read_text(folder / "memory.stat") or "").splitlines():
            kind, nbytes = line.split()
            if kind in (f"{prefix}inactive_file", f"{prefix}active_file"):
                cached += int(nbytes)
        limits.append((int(limit), None if used is None else max(0, int(used) - cached)))
    return limits


def _meminfo_bytes(name: str) -> int:
    for line in (_read_text(ROOT / "proc/meminfo") or "").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 1 << 62


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def return_freed_memory() -> None:
    """Release freed memory to the system; glibc would keep the peak of each thread's arena."""
    if _malloc_trim is not None:
        _malloc_trim(0)
