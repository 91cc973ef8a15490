"""Processors, memory and disks of the machine and of one process, through psutil: its only home.

Guarantees:
    Readers keep the counters of their last reading and belong to one thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any

import psutil

from h5stream import allowance
from h5stream.monitor.sample import HostSample, ProcessSample

# Stacked and memory-backed devices: what they read is counted again below them, or is no disk at all.
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")


@dataclass(frozen=True, slots=True)
class _Counters:
    """Counters at one moment; a rate is the difference of two, over the time between."""

    at_s: float
    busy_s: float
    total_s: float
    disk_bytes: int | None


class HostReader:
    """Reads the machine. The first reading has no rates: they are means since the reading before.

    Examples
    --------
    >>> first = HostReader().read()
    >>> first.cpu_ratio is None and first.ram_ratio > 0
    True
    """

    def __init__(self) -> None:
        self._before: _Counters | None = None

    def read(self) -> HostSample:
        """Read processors, memory and disks."""
        now, before = _count(), self._before
        self._before = now
        used, total = memory()
        return HostSample(
            cpu_ratio=None if before is None else _busy_ratio(before, now),
            ram_used_bytes=used,
            ram_total_bytes=total,
            disk_read_bytes_per_s=None if before is None else _disk_rate(before, now),
        )


def memory() -> tuple[int, int]:
    """Give memory used and memory there is, in bytes, within the cgroup's limit where that is the smaller."""
    machine = psutil.virtual_memory()
    limit, used = allowance.memory_limit_bytes(), allowance.memory_in_use_bytes()
    if limit is not None and used is not None and limit < machine.total:
        return used, limit
    return machine.total - machine.available, machine.total


def process_exists(pid: int) -> bool:
    """Say whether there is a process of that number."""
    return bool(psutil.pid_exists(pid))


def _count() -> _Counters:
    times = psutil.cpu_times()
    # The kernel counts guests' time in user time as well; waiting for a disk is not being busy.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    return _Counters(time.monotonic(), total - idle, total, _disk_bytes())


def _disk_bytes() -> int | None:
    """Return the bytes read from whole, physical disks since boot."""
    try:
        disks = psutil.disk_io_counters(perdisk=True)
    except (OSError, ValueError, NotImplementedError):  # neither /proc/diskstats nor /sys/block, or a new format
        return None
    whole = {name for name in disks if not name.startswith(_NOT_DISKS) and _is_whole_disk(name)}
    return sum(disks[name].read_bytes for name in whole) if whole else None


def _is_whole_disk(name: str) -> bool:
    return os.path.exists(f"/sys/block/{name}")


def _busy_ratio(before: _Counters, now: _Counters) -> float | None:
    if now.total_s <= before.total_s:
        return None
    return min(1.0, max(0.0, (now.busy_s - before.busy_s) / (now.total_s - before.total_s)))


def _disk_rate(before: _Counters, now: _Counters) -> float | None:
    if before.disk_bytes is None or now.disk_bytes is None or now.disk_bytes < before.disk_bytes:
        return None  # A disk that was taken out takes its count with it.
    return (now.disk_bytes - before.disk_bytes) / max(now.at_s - before.at_s, 1e-9)


class ProcessReader:
    """Reads one process, by default this one, and its children; `ProcessLookupError` if there is none."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = os.getpid() if pid is None else pid
        try:
            self._process = psutil.Process(self._pid)
        except psutil.NoSuchProcess:
            raise ProcessLookupError(f"there is no process {self._pid}") from None
        self._before: dict[tuple[int, float], tuple[float, int | None]] = {}
        self._at_s: float | None = None
        self._children: list[Any] = []
        self._look_again_s = 0.0

    def environment(self) -> dict[str, str]:
        """Return the process's environment, as it was when the process began; empty if it may not be read."""
        try:
            return dict(self._process.environ())
        except (psutil.Error, OSError):
            return {}

    def read(self) -> ProcessSample | None:
        """Read the process and its children; None once it has ended."""
        now_s = time.monotonic()
        try:
            if not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE:
                return None
            self._find_children(now_s)
        except psutil.Error:
            return None
        counts, memory = {}, {}
        for one in (self._process, *self._children):
            with contextlib.suppress(psutil.Error):  # A child may end while it is looked at.
                key = (one.pid, one.create_time())
                counts[key], memory[key] = _read_one(one)
        return self._sample(now_s, counts, memory)

    def _find_children(self, now_s: float) -> None:
        """Look for new children, which reads every process of the machine: at most 0.2 % of the time."""
        if now_s < self._look_again_s:
            return
        self._children = self._process.children(recursive=True)
        self._look_again_s = now_s + 500 * (time.monotonic() - now_s)

    def _sample(
        self,
        now_s: float,
        counts: dict[tuple[int, float], tuple[float, int | None]],
        memory: dict[tuple[int, float], int],
    ) -> ProcessSample:
        seconds = 0.0 if self._at_s is None else now_s - self._at_s
        before, self._before, self._at_s = self._before, counts, now_s
        own = [key for key in memory if key[0] == self._pid]
        return ProcessSample(
            pid=self._pid,
            processes=len(counts),
            cpu_cores=_grown(0, before, counts) / seconds if seconds else None,
            cpus_allowed=allowance.cpus(),
            memory_bytes=memory[own[0]] if own else None,
            children_memory_bytes=sum(memory[key] for key in memory if key not in own),
            disk_read_bytes_per_s=_fetch_rate(before, counts, seconds),
        )


def _read_one(process: Any) -> tuple[tuple[float, int | None], int]:
    with process.oneshot():
        times = process.cpu_times()
        resident = process.memory_info().rss
        read_bytes: int | None = None
        with contextlib.suppress(psutil.Error, OSError, AttributeError):  # another user's, or no such kernel file
            read_bytes = process.io_counters().read_bytes
    return (times.user + times.system, read_bytes), resident


def _grown(part: int, before: dict[Any, Any], now: dict[Any, Any]) -> float:
    """Add up how much a counter grew; a process that was not there before began at 0."""
    known = [(before.get(key, (0.0, 0))[part], value[part]) for key, value in now.items()]
    return float(sum(max(0, b - a) for a, b in known if a is not None and b is not None))


def _fetch_rate(before: dict[Any, Any], now: dict[Any, Any], seconds: float) -> float | None:
    if not seconds or all(value[1] is None for value in now.values()):
        return None
    return _grown(1, before, now) / seconds
