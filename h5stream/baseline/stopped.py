"""The naive loader in a process of its own: it can be stopped at any moment, inside a batch as well."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from h5stream.baseline.rivals import naive_loader
from h5stream.errors import H5StreamError

TICK_S = 0.1
"""Seconds between two looks at what the rival has done."""

START_S = 60.0
"""Seconds that a new interpreter may take to import torch; they do not count."""

METHOD = "spawn"
"""How its process is started: with nothing that ours has loaded or begun."""

_PR_SET_PDEATHSIG = 1


class RivalError(H5StreamError):
    """The loader that ours is compared with cannot read the file; the message says why."""


class _Told(ctypes.Structure):
    """What the rival tells while it works; times are of the clock that all processes share."""

    _fields_ = (
        ("started_s", ctypes.c_double),
        ("first_s", ctypes.c_double),
        ("ended_s", ctypes.c_double),
        ("batches", ctypes.c_int64),
        ("rss_before", ctypes.c_int64),
    )


class _Counted(Dataset[Any]):
    """Counts each worker's rows where the parent sees them, so that an unfinished batch counts as well."""

    def __init__(self, inner: Any, rows: Any, pids: Any) -> None:
        self._inner, self._rows, self._pids = inner, rows, pids

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        row = self._inner[index]
        info = get_worker_info()
        worker = info.id if info is not None else 0
        self._rows[worker] += 1
        self._pids[worker] = os.getpid()
        return row


class Rival:
    """The naive loader at work.

    # Guarantees: `rows`, `batches` and the times are written by the rival's processes alone, each number by one of
    # them, and only read here. The rival leads a process group that `stop` kills, so no worker outlives it; the
    # kernel kills it when its parent dies.
    """

    def __init__(self, paths: Sequence[str], fields: Sequence[str], batch_size: int, workers: int) -> None:
        started: Any = multiprocessing.get_context(METHOD)  # all contexts have what is made of one here
        self._told: Any = started.RawValue(_Told)
        self._rows: Any = started.RawArray(ctypes.c_int64, max(1, workers))
        self._pids: Any = started.RawArray(ctypes.c_int64, max(1, workers))
        self._ours, theirs = started.Pipe(duplex=False)
        self._process: Any = started.Process(
            target=_work,
            args=(tuple(paths), tuple(fields), batch_size, workers, self._told, self._rows, self._pids, theirs),
            name="h5stream-rival",
        )
        self._process.start()
        theirs.close()

    @property
    def rows(self) -> int:
        """Rows read so far, also of batches that are not complete."""
        return sum(self._rows)

    @property
    def batches(self) -> int:
        """Batches delivered so far."""
        return int(self._told.batches)

    @property
    def first_batch_s(self) -> float | None:
        """Seconds to the first batch; None before it."""
        return self._told.first_s - self._told.started_s if self._told.first_s else None

    def run(self, seconds: float, progress: Callable[[int], None]) -> float:
        """Let it work for at most so many seconds, and give how many it took; `RivalError` if it fails."""
        asked = time.perf_counter()
        while True:
            self._process.join(TICK_S)
            now, started = time.perf_counter(), self._told.started_s
            if self._told.ended_s:
                return float(self._told.ended_s - started)
            if self._process.exitcode is not None:
                raise RivalError(f"the naive loader failed: {self._complaint()}")
            if started and now - started >= seconds:
                return float(now - started)
            if not started and now - asked >= START_S:
                raise RivalError(f"the naive loader's process did not start within {START_S:.0f} s")
            progress(self.rows)

    def _complaint(self) -> str:
        with contextlib.suppress(EOFError, OSError):
            if self._ours.poll():
                return str(self._ours.recv())
        return f"its process ended with status {self._process.exitcode}"

    def peak_nbytes(self) -> int:
        """Return the growth of resident memory, of its worker processes too."""
        pids = {self._process.pid, *(pid for pid in self._pids if pid)}
        return max(0, sum(status_nbytes(pid, "VmHWM") for pid in pids) - int(self._told.rss_before))

    def stop(self) -> None:
        """Kill it, its workers included."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(self._process.pid) == self._process.pid:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._ours.close()


def _work(
    paths: Sequence[str],
    fields: Sequence[str],
    batch_size: int,
    workers: int,
    told: Any,
    rows: Any,
    pids: Any,
    end: Connection,
) -> None:
    """Stream an epoch, in the rival's process."""
    os.setsid()  # Ctrl-C is the parent's, who stops the whole group.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    warnings.simplefilter("ignore")
    multiprocessing.set_start_method(None, force=True)  # Not this process's own: workers start as in any program.
    told.rss_before = status_nbytes(os.getpid(), "VmRSS")
    try:
        told.started_s = time.perf_counter()
        loader = naive_loader(paths, fields, batch_size, workers, wrapped=lambda inner: _Counted(inner, rows, pids))
        for _ in loader:
            told.batches += 1
            told.first_s = told.first_s or time.perf_counter()
        told.ended_s = time.perf_counter()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        end.send(f"{type(error).__name__}: {lines[-1]}")
        raise SystemExit(1) from None


def status_nbytes(pid: int, key: str) -> int:
    """Return a size of ``/proc/PID/status`` in bytes, 0 where there is none."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
