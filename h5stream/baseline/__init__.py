"""What h5stream is measured against, and the sample file it is measured on.

Here stands the loader that people write today, and the same in a process of its own that can be stopped at any moment.
It reads through h5py on purpose; next to `storage` this is the only room that may.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import functools
import multiprocessing
import operator
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hdf5plugin  # noqa: F401  so that files with its filters open here as well
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from h5stream.errors import H5StreamError
from h5stream.storage.file.discovery import find_dataset
from h5stream.storage.file.external import Guard
from h5stream.storage.source.handles import open_file

TICK_S = 0.1  # between two looks at what the rival has done
START_S = 60.0  # that a new interpreter may take to import torch; they do not count
METHOD = "spawn"  # how its process is started: with nothing that ours has loaded or begun

_PR_SET_PDEATHSIG = 1

Progress = Callable[[int], None]
"""Takes the rows done so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a loader did."""

    name: str  # the loader
    rows: int
    batches: int
    nbytes: int  # what it delivered
    seconds: float  # from asking for the iterator to the last batch counted
    first_batch_s: float | None  # to the first batch; None if there was none in the time
    peak_nbytes: int  # growth of resident memory over the start, worker processes included
    stopped: bool = False  # whether its time was over before its epoch
    busy_s: float = 0.0  # in which the loop ran Python of its own

    @property
    def busy_share(self) -> float:
        """The share of the time in which the loop ran Python of its own."""
        return self.busy_s / self.seconds

    @property
    def rows_per_s(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def batches_per_s(self) -> float:
        """Batches a second."""
        return self.batches / self.seconds


class NaiveDataset(Dataset[Any]):
    """One row a ``__getitem__`` through h5py; files are opened lazily, members named after a colon.

    Where `starts` says where the rows of each file begin, and the last end, none is opened here: what has read an
    object in a store cannot be forked.
    """

    def __init__(self, path: str | Sequence[str], fields: Sequence[str], starts: Sequence[int] = ()) -> None:
        self.paths = (path,) if isinstance(path, str) else tuple(path)
        self.fields = tuple(fields)
        self._columns: dict[int, list[tuple[Any, tuple[str, ...]]]] = {}
        self._starts = [*starts] or [0]
        for one in () if starts else self.paths:
            with open_file(one) as file:
                self._starts.append(self._starts[-1] + int(self._named(file, 0)[0].shape[0]))

    def __len__(self) -> int:
        return self._starts[-1]

    def _open(self, number: int = 0) -> list[tuple[Any, tuple[str, ...]]]:
        if number not in self._columns:
            file = open_file(self.paths[number])
            self._columns[number] = [self._named(file, k) for k in range(len(self.fields))]
        return self._columns[number]

    def _named(self, file: Any, field: int) -> tuple[Any, tuple[str, ...]]:
        """Return the dataset of a field, and the member of it."""
        guard = Guard.for_paths(self.paths, allow_external=True)
        dataset, _, member = find_dataset(file, self.fields[field], file.filename, guard)
        return dataset, member

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        number = bisect.bisect_right(self._starts, index) - 1
        row = index - self._starts[number]
        return tuple(
            torch.as_tensor(np.asarray(functools.reduce(operator.getitem, member, dataset[row])))
            for dataset, member in self._open(number)
        )


def naive_loader(
    path: str | Sequence[str],
    fields: Sequence[str],
    batch_size: int,
    workers: int,
    starts: Sequence[int] = (),
    kind: Callable[..., Dataset[Any]] = NaiveDataset,
) -> DataLoader[Any]:
    """Return the usual loader: one row at a time, shuffled, worker processes."""
    return DataLoader(kind(path, fields, starts), batch_size=batch_size, shuffle=True, num_workers=workers)


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
        ("failed", ctypes.c_char * 300),  # why it ended early
    )


class _Counted(NaiveDataset):
    """Counts each worker's rows where the parent sees them, so that an unfinished batch counts as well."""

    def __init__(self, rows: Any, pids: Any, *given: Any) -> None:
        super().__init__(*given)
        self._rows, self._pids = rows, pids

    def __getitem__(self, index: int) -> Any:
        row = super().__getitem__(index)
        worker = getattr(get_worker_info(), "id", 0)
        self._rows[worker] += 1
        self._pids[worker] = os.getpid()
        return row


def measure_naive(
    paths: Sequence[str],
    fields: Sequence[str],
    *,
    batch_size: int,
    workers: int,
    seconds: float,
    row_nbytes: int,
    starts: Sequence[int] = (),
    progress: Progress = lambda rows: None,
) -> Measurement:
    """Let the naive loader work for at most so many seconds, and return what it did; `RivalError` if it fails.

    # Guarantees: rows and what is told are written by the rival's processes alone, each number by one of
    them, and only read here. The rival leads a process group that is killed at the end, so no worker outlives it; the
    kernel kills it when its parent dies.
    """
    started: Any = multiprocessing.get_context(METHOD)  # all contexts have what is made of one here
    told: Any = started.RawValue(_Told)
    rows, pids = (started.RawArray(ctypes.c_int64, max(1, workers)) for _ in range(2))
    given = (tuple(paths), tuple(fields), batch_size, workers, tuple(starts))
    process: Any = started.Process(target=_work, args=(given, told, rows, pids), name="h5stream-rival")
    try:
        with _interrupted_later():
            process.start()
        taken = _watched(process, told, seconds, lambda: progress(sum(rows)))
        peak = sum(status_nbytes(pid, "VmHWM") for pid in {process.pid, *pids} - {0})
        return Measurement(
            name="naive",
            rows=(done := sum(rows)),  # also of batches that are not complete
            batches=told.batches,
            nbytes=done * row_nbytes,
            seconds=taken,
            first_batch_s=told.first_s - told.started_s if told.first_s else None,
            peak_nbytes=max(0, peak - told.rss_before),
            stopped=taken >= seconds,
        )
    finally:
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(process.pid) == process.pid:
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Hold Ctrl-C back while a process starts: one that is not told what to do ends with a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _watched(process: Any, told: Any, seconds: float, progress: Callable[[], None]) -> float:
    """Return how many seconds it worked, when it is done or they are over."""
    asked = time.perf_counter()
    while True:
        process.join(TICK_S)
        now, started = time.perf_counter(), told.started_s
        if told.ended_s:
            return float(told.ended_s - started)
        if process.exitcode is not None:
            ended = f"its process ended with status {process.exitcode}"
            raise RivalError(f"naive not measured: {told.failed.decode('utf-8', 'ignore') or ended}")
        if started and now - started >= seconds:
            return float(now - started)
        if not started and now - asked >= START_S:
            raise RivalError(f"the naive loader's process did not start within {START_S:.0f} s")
        progress()


def _work(given: tuple[Any, ...], told: Any, rows: Any, pids: Any) -> None:
    """Stream an epoch, in the rival's process."""
    os.setsid()  # Ctrl-C is the parent's, who stops the whole group.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    warnings.simplefilter("ignore")
    multiprocessing.set_start_method(None, force=True)  # Not this process's own: workers start as in any program.
    told.rss_before = status_nbytes(os.getpid(), "VmRSS")
    try:
        paths, fields, batch_size, workers, starts = given
        told.started_s = time.perf_counter()
        for _ in naive_loader(paths, fields, batch_size, workers, starts, functools.partial(_Counted, rows, pids)):
            told.batches += 1
            told.first_s = told.first_s or time.perf_counter()
        told.ended_s = time.perf_counter()
    except Exception as error:
        told.failed = _why(error).encode()[:299]
        raise SystemExit(1) from None


def _why(error: Exception) -> str:
    """Say why torch's loader failed; a worker's error comes with its traceback, whose last line names its type."""
    text = (str(error).strip().splitlines() or [""])[-1]
    if "not resizable" in text or "stack expects each tensor to be equal size" in text:
        return "torch cannot stack arrays of different shapes"
    if "can't convert np.ndarray" in text:
        return "torch has no tensors of such values, as texts or compounds are"
    name = type(error).__name__
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"


def status_nbytes(pid: int, key: str) -> int:
    """Return a size of ``/proc/PID/status`` in bytes, 0 where there is none."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0
