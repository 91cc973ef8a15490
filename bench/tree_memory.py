"""Memory of a process and all its children, with shared pages counted once."""

from __future__ import annotations

from pathlib import Path

import psutil


def tree_nbytes(pid: int | None = None) -> int:
    """Give the proportional set size of a process and its children, in bytes.

    A page that n processes map counts 1/n in each, so that workers that were forked do not count the parent's
    memory again. Mapped files count as well. Source: ``proc_pid_smaps(5)``.

    Examples
    --------
    >>> tree_nbytes() > 1_000_000
    True
    """
    try:
        process = psutil.Process(pid)
        pids = [process.pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0
    return sum(_pss_nbytes(one) for one in pids)


def _pss_nbytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it ended meanwhile
        pass
    return 0
