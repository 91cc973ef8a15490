"""Reference loaders to compare h5stream with, and the sample file for measurements.

The reference is the loader that people usually write, also in a process of its own that can be stopped at any time. It
reads through h5py on purpose; besides `storage` this is the only folder that may.
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
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, TypeAlias

import h5py
import hdf5plugin  # noqa: F401  so that files with its filters open here as well
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from h5stream.errors import H5StreamError
from h5stream.storage.file.discovery import find_dataset
from h5stream.storage.file.external import Guard
from h5stream.storage.source.handles import open_file

TICK_S = 0.1  # between two checks of the rival's progress
START_S = 60.0  # the time for a new interpreter to import torch, which is not counted
METHOD: Final = "spawn"  # the start method of its process, without anything loaded here

NO_TENSORS: Final = "torch has no tensors of such values, as texts or compounds are"

_PR_SET_PDEATHSIG = 1

Progress = Callable[[int], None]
"""Called with the rows done so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measured work of a loader."""

    name: str  # the loader
    rows: int
    batches: int
    nbytes: int  # delivered bytes
    seconds: float  # from creating the iterator to the last counted batch
    first_batch_s: float | None  # to the first batch; None if there was none in time
    peak_nbytes: int  # growth of resident memory over the start, worker processes included
    stopped: bool = False  # whether time ran out before the end of its epoch
    busy_s: float = 0.0  # time in which the loop ran Python code of its own

    @property
    def busy_share(self) -> float:
        """The share of time in which the loop ran Python code of its own."""
        return self.busy_s / self.seconds

    @property
    def rows_per_s(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds

    @property
    def batches_per_s(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds


_Column: TypeAlias = "tuple[h5py.Dataset, tuple[str, ...]]"
"""The dataset of a field, and its member."""


class NaiveDataset(Dataset[tuple[torch.Tensor, ...]]):
    """A dataset that reads one row per ``__getitem__`` through h5py; files are opened lazily, members follow a colon.

    If `starts` has the first row of each file, and the end of the last, no file is opened here: a process that has read
    an object in a store cannot be forked.
    """

    def __init__(self, path: str | Sequence[str], fields: Sequence[str], starts: Sequence[int] = ()) -> None:
        self.paths = (path,) if isinstance(path, str) else tuple(path)
        self.fields = tuple(fields)
        self._columns: dict[int, list[_Column]] = {}
        self._starts = [*starts] or [0]
        for one in () if starts else self.paths:
            with open_file(one) as file:
                self._starts.append(self._starts[-1] + int(self._named(file, 0)[0].shape[0]))

    def __len__(self) -> int:
        return self._starts[-1]

    def _open(self, number: int = 0) -> list[_Column]:
        if number not in self._columns:
            file = open_file(self.paths[number])
            self._columns[number] = [self._named(file, k) for k in range(len(self.fields))]
        return self._columns[number]

    def _named(self, file: h5py.File, field: int) -> _Column:
        """Return the dataset of a field, and its member."""
        guard = Guard.for_paths(self.paths, allow_external=True)
        dataset, _, member = find_dataset(file, self.fields[field], file.filename, guard)
        return dataset, member

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
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
    kind: Callable[..., NaiveDataset] = NaiveDataset,
) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return the usual loader: one row at a time, shuffled, in worker processes."""
    return DataLoader(kind(path, fields, starts), batch_size=batch_size, shuffle=True, num_workers=workers)


class RivalError(H5StreamError):
    """The reference loader cannot read the file; the message has the reason."""


class _SharedProgress(ctypes.Structure):
    """The rival's progress in shared memory; times are of the clock that all processes share."""

    _fields_ = (
        ("started_s", ctypes.c_double),
        ("first_s", ctypes.c_double),
        ("ended_s", ctypes.c_double),
        ("batches", ctypes.c_int64),
        ("rss_before", ctypes.c_int64),
        ("failed", ctypes.c_char * 300),  # the reason for an early end
    )
    started_s: float
    first_s: float
    ended_s: float
    batches: int
    rss_before: int
    failed: bytes


_Numbers: TypeAlias = "ctypes.Array[ctypes.c_int64]"
"""A number for each worker, in shared memory."""

_Arguments: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], int, int, tuple[int, ...]]
"""The arguments of `naive_loader`: paths, fields, rows of a batch, workers, and the first row of each file."""


class _Counted(NaiveDataset):
    """Counts each worker's rows in shared memory, so that unfinished batches count as well."""

    def __init__(
        self, rows: _Numbers, pids: _Numbers, path: Sequence[str], fields: Sequence[str], starts: Sequence[int]
    ) -> None:
        super().__init__(path, fields, starts)
        self._rows, self._pids = rows, pids

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
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
    """Run the naive loader for at most `seconds`, and return its measurement; raise `RivalError` if it fails.

    # Guarantees: rows and progress are only written by the rival's processes, each number by one of them, and only read
    here. The rival leads a process group that is killed at the end, so no worker outlives it; the kernel kills it when
    its parent dies.
    """
    started = multiprocessing.get_context(METHOD)
    shared = started.RawValue(_SharedProgress)
    rows, pids = (started.RawArray(ctypes.c_int64, max(1, workers)) for _ in range(2))
    args = (tuple(paths), tuple(fields), batch_size, workers, tuple(starts))
    process = started.Process(target=_work, args=(args, shared, rows, pids), name="h5stream-rival")
    try:
        with _interrupted_later():
            process.start()
        taken = _wait_for(process, shared, seconds, lambda: progress(sum(rows)))
        peak = sum(status_nbytes(pid, "VmHWM") for pid in {process.pid, *pids} - {0})
        return Measurement(
            name="naive",
            rows=(done := sum(rows)),  # including those of incomplete batches
            batches=shared.batches,
            nbytes=done * row_nbytes,
            seconds=taken,
            first_batch_s=shared.first_s - shared.started_s if shared.first_s else None,
            peak_nbytes=max(0, peak - shared.rss_before),
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
    """Delay Ctrl-C while a process starts: a process that is interrupted then ends with a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if signals:
        signal.raise_signal(signal.SIGINT)


def _wait_for(process: BaseProcess, shared: _SharedProgress, seconds: float, progress: Callable[[], None]) -> float:
    """Wait until the rival is done or time is over; return the seconds that it worked."""
    begun = time.perf_counter()
    while True:
        process.join(TICK_S)
        now, started = time.perf_counter(), shared.started_s
        if shared.ended_s:
            return float(shared.ended_s - started)
        if process.exitcode is not None:
            ended = f"its process ended with status {process.exitcode}"
            raise RivalError(f"naive not measured: {shared.failed.decode('utf-8', 'ignore') or ended}")
        if started and now - started >= seconds:
            return float(now - started)
        if not started and now - begun >= START_S:
            raise RivalError(f"the naive loader's process did not start within {START_S:.0f} s")
        progress()


def _work(args: _Arguments, shared: _SharedProgress, rows: _Numbers, pids: _Numbers) -> None:
    """Stream an epoch, in the rival's process."""
    os.setsid()  # Ctrl-C goes to the parent, which stops the whole group.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    warnings.simplefilter("ignore")
    multiprocessing.set_start_method(
        None, force=True
    )  # Reset the method of this process: workers start as in any program.
    shared.rss_before = status_nbytes(os.getpid(), "VmRSS")
    try:
        paths, fields, batch_size, workers, starts = args
        shared.started_s = time.perf_counter()
        for _ in naive_loader(paths, fields, batch_size, workers, starts, functools.partial(_Counted, rows, pids)):
            shared.batches += 1
            shared.first_s = shared.first_s or time.perf_counter()
        shared.ended_s = time.perf_counter()
    except Exception as error:
        shared.failed = _why(error).encode()[:299]
        raise SystemExit(1) from None


def _why(error: Exception) -> str:
    """Return why torch's loader failed; a worker's error has its traceback, whose last line names the type."""
    text = (str(error).strip().splitlines() or [""])[-1]
    if "not resizable" in text or "stack expects each tensor to be equal size" in text:
        return "torch cannot stack arrays of different shapes"
    if "can't convert np.ndarray" in text:
        return NO_TENSORS
    name = type(error).__name__
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"


def status_nbytes(pid: int, key: str) -> int:
    """Return a size from ``/proc/PID/status`` in bytes, 0 if there is none."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0
