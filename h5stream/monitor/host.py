"""Processors, memory and disks of the machine and of one process, through psutil: its only home.

Guarantees:
    Readers keep the counters of their last reading and belong to one thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, NamedTuple

import psutil

from h5stream import allowance
from h5stream.monitor.sample import HostSample, ProcessSample

# Stacked and memory-backed devices: what they read is counted again below them, or is no disk at all.
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")

process_exists = psutil.pid_exists


class HostReader:
    """Reads the machine. The first reading has no rates: they are means since the reading before."""

    def __init__(self) -> None:
        self._before: tuple[float, int | None] | None = None

    def read(self) -> HostSample:
        """Read processors, memory and disks."""
        total = allowance.memory_total_bytes()  # both within the cgroup's limit, where that is the smaller
        used = max(0, total - allowance.memory_available_bytes())
        # Since this thread's last call; waiting for a disk is not being busy, and a sandbox may not tell.
        busy = psutil.cpu_percent() / 100 if any(psutil.cpu_times()) else None
        now_s, nbytes = time.monotonic(), _disk_bytes()
        before, self._before = self._before, (now_s, nbytes)
        if before is None:
            return HostSample(ram_used_bytes=used, ram_total_bytes=total)
        rate = None
        if nbytes is not None and before[1] is not None and nbytes >= before[1]:  # else a disk was taken out
            rate = (nbytes - before[1]) / max(now_s - before[0], 1e-9)
        return HostSample(cpu_ratio=busy, ram_used_bytes=used, ram_total_bytes=total, disk_read_bytes_per_s=rate)


def _disk_bytes() -> int | None:
    """Return the bytes read from whole, physical disks since boot."""
    try:
        disks = psutil.disk_io_counters(perdisk=True)
    except (OSError, ValueError, NotImplementedError):  # neither /proc/diskstats nor /sys/block, or a new format
        return None
    whole = [name for name in disks if not name.startswith(_NOT_DISKS) and os.path.exists(f"/sys/block/{name}")]
    return sum(disks[name].read_bytes for name in whole) if whole else None


class _Counts(NamedTuple):
    """What one process used so far, and its memory now."""

    cpu_s: float = 0.0
    read_bytes: int | None = 0  # None where it may not be read
    resident: int = 0


class ProcessReader:
    """Reads one process, by default this one, and its children."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._process = psutil.Process(self._pid)
        self._before: dict[tuple[int, float], _Counts] = {}
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
            if now_s >= self._look_again_s:  # This reads every process of the machine: at most 0.2 % of the time.
                self._children = self._process.children(recursive=True)
                self._look_again_s = now_s + 500 * (time.monotonic() - now_s)
        except psutil.Error:
            return None
        counts: dict[tuple[int, float], _Counts] = {}
        for one in (self._process, *self._children):
            with contextlib.suppress(psutil.Error):  # A child may end while it is looked at.
                counts[one.pid, one.create_time()] = _counted(one)
        seconds = 0.0 if self._at_s is None else now_s - self._at_s
        grown = [(self._before.get(key, _Counts()), now) for key, now in counts.items()]  # one that is new began at 0
        self._before, self._at_s = counts, now_s
        known = [(then.read_bytes, now.read_bytes) for then, now in grown]
        fetched = [max(0, after - before) for before, after in known if before is not None and after is not None]
        own = [one.resident for key, one in counts.items() if key[0] == self._pid]
        return ProcessSample(
            pid=self._pid,
            processes=len(counts),
            cpu_cores=sum(max(0.0, now.cpu_s - then.cpu_s) for then, now in grown) / seconds if seconds else None,
            cpus_allowed=allowance.cpus(),
            memory_bytes=own[0] if own else None,
            children_memory_bytes=sum(one.resident for key, one in counts.items() if key[0] != self._pid),
            disk_read_bytes_per_s=sum(fetched) / seconds if seconds and fetched else None,
        )


def _counted(process: Any) -> _Counts:
    with process.oneshot():
        times, read_bytes = process.cpu_times(), None
        with contextlib.suppress(psutil.Error, OSError, AttributeError):  # another user's, or no such kernel file
            read_bytes = process.io_counters().read_bytes
        return _Counts(times.user + times.system, read_bytes, process.memory_info().rss)
