"""Run a measurement in a process of its own, with a time limit, and watch its memory."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.tree_memory import tree_nbytes

ROOT = Path(__file__).resolve().parent.parent
_LOOK_EVERY_S = 0.2


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a child.

    Attributes
    ----------
    result : dict
        The JSON object that it printed last; empty if it failed.
    error : str
        Why it failed, in a line; empty if it did not.
    peak_nbytes : int
        The most memory that it and its children took above the base that it told, up to where it said that
        the timed part was over.
    """

    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    peak_nbytes: int = 0


def run_child(arguments: list[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Outcome:
    """Run ``python -m`` with arguments, perhaps with more variables, and give the JSON that it printed last."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | dict(environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watch = _Watch(process.pid)
    printed: list[dict[str, Any]] = []
    errors: list[str] = []
    readers = [
        threading.Thread(target=_read_json, args=(process.stdout, printed, watch)),
        threading.Thread(target=lambda: errors.extend(process.stderr or [])),
    ]
    for thread in (watch, *readers):
        thread.start()
    error = ""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        error = f"stopped after {timeout_s:.0f} s"
    finally:
        watch.over.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # workers that outlived it too: the session is its own
        process.wait()
    for thread in (watch, *readers):
        thread.join(timeout=5)
    if not error and process.returncode != 0:  # once all that it said is read
        error = _last_line(errors, process.returncode)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    if error or not printed:
        return Outcome(error=error or "it printed no result")
    base = next((one["base"] for one in printed if "base" in one), 0)
    last = max((one.get("last", 0) for one in printed), default=0)
    return Outcome(result=printed[-1], peak_nbytes=max(0, max(watch.peak, last) - base))


class _Watch(threading.Thread):
    """Notes the highest memory of a process tree until told that it is over."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.over = pid, 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(_LOOK_EVERY_S):
            found = tree_nbytes(self.pid)
            if not self.over.is_set():
                self.peak = max(self.peak, found)


def _read_json(stream: Any, into: list[dict[str, Any]], watch: _Watch) -> None:
    for line in stream:
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(line)
            if isinstance(found, dict):
                into.append(found)
                if found.get("timed"):
                    watch.over.set()


def _last_line(errors: list[str], code: int) -> str:
    said = [line.strip() for line in errors if line.strip()]
    return said[-1][:300] if said else f"ended with status {code}"


def disk_nbytes(path: Path) -> int:
    """Give the bytes of a file, or of all files under a folder."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)


def warm(path: Path) -> None:
    """Bring files into the page cache."""
    for one in [path] if path.is_file() else sorted(path.rglob("*")):
        if one.is_file():
            with one.open("rb") as stream:
                while stream.read(1 << 24):
                    pass


def warm_memory(nbytes: int = 2 << 30) -> None:
    """Touch memory and release it, so that what follows gets pages that a virtual machine has already.

    A host gives pages more slowly than the system clears them, and takes those that are free back after two seconds:
    what held a little more than the process before it took up to twice as long for a first epoch.
    """
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mapped:
        mapped.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(mapped, dtype=np.uint8)[::4096] = 1
