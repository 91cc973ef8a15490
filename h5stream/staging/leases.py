"""Who uses a staged file: process ids that cannot be mistaken for another process of the same number.

A process is named by its id and its start time, both as the kernel counts them, and by where that id is
valid: a host, since its last start, in one namespace of process ids. A lease of a process that cannot be
looked at from here (another container, another host) counts as alive; ``force`` is the way past it.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One use of a staged file by one process."""

    pid: int
    """Process id, as the process itself sees it."""
    started: int
    """Start of the process in clock ticks since the machine's start (field 22 of ``proc_pid_stat(5)``)."""
    host: str
    """Name of the host."""
    boot: str
    """The kernel's ``random/boot_id``: another one on the same host means that all its processes are gone."""
    namespace: str
    """Namespace of the process id, as ``/proc/self/ns/pid`` names it."""
    token: str
    """Tells apart the uses by one process; `StagedFiles.release` gives back its own only."""


def start_ticks(pid: int) -> int | None:
    """Give when a process started in clock ticks since the machine's start; None where there is none.

    A zombie counts as gone: it will never read again, and its parent may not look at it for hours.

    Examples
    --------
    >>> start_ticks(os.getpid()) > 0
    True
    """
    try:
        # The name of the program stands in brackets and may hold spaces and brackets itself.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def new_lease() -> Lease:
    """Give a lease for this process with a token of its own."""
    pid = os.getpid()
    return Lease(
        pid=pid,
        started=start_ticks(pid) or 0,
        host=os.uname().nodename,
        boot=_boot(),
        namespace=_namespace(),
        token=uuid.uuid4().hex[:12],
    )


def is_alive(lease: Lease) -> bool:
    """Say whether the process of a lease still runs, or may still run where it cannot be seen.

    Examples
    --------
    >>> is_alive(new_lease())
    True
    """
    if lease.host != os.uname().nodename:
        return True
    if lease.boot != _boot():
        return False
    if lease.namespace != _namespace():
        return True
    return start_ticks(lease.pid) == lease.started
