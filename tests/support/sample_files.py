"""Files that the tests of the loader stream, and what watches its threads."""

import contextlib
import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from support.making import write_datasets

from h5stream.compiled import _native as kernels
from h5stream.engine.batches import PlannedWindow
from h5stream.loader.epoch import Iterations
from h5stream.storage.source.one_file import FileBytes


@dataclass(frozen=True)
class Sample:
    """A file with a field ``x`` that says in every element which row it is of, and a label ``y``: the row."""

    path: str
    x: np.ndarray
    y: np.ndarray

    def matches(self, x, y) -> bool:
        """Tell whether `x` holds the rows that `y` names, byte for byte."""
        return x.numpy().tobytes() == self.x[y.numpy()].tobytes()


def plain(batch):
    """Return lists and numbers where a batch has tensors and arrays."""
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [plain(value) for value in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def write_sample(folder, name="sample.h5", rows=1000, columns=4, chunk_rows=32, first=0, **storage) -> Sample:
    x = (np.arange(first, first + rows)[:, None] + np.arange(columns) / 8).astype("f4")
    y = np.arange(rows, dtype="i8")
    storage = storage or {"compression": "gzip", "shuffle": True}
    path = write_datasets(folder / name, x={"data": x, "chunks": (chunk_rows, columns), **storage}, y=y)
    return Sample(path, x, y)


def one_epoch_at_a_time(monkeypatch) -> None:
    """Read nothing of the next epoch: for tests that look at what one epoch alone does."""
    monkeypatch.setattr(Iterations, "read_ahead", lambda *_: None)


def reader_threads() -> list[str]:
    gc.collect()
    return [thread.name for thread in threading.enumerate() if "h5stream-reader" in thread.name]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def in_thread(work, *arguments):
    """Run `work` in a thread of its own; give its future."""
    return ThreadPoolExecutor(1, "consumer").submit(work, *arguments)


def eventually(holds, limit_s=30):
    """Wait until something holds that another thread or process brings about."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        threading.Event().wait(0.01)


def carry_out_in_python(monkeypatch):
    """Let Python carry out what kernels would alone, so that a test can reach into it."""
    monkeypatch.setattr(PlannedWindow, "take_native", lambda *_: None)


@contextlib.contextmanager
def gate(monkeypatch):
    """Make every read of a file wait until `open` is called, or the end; `reached` is the event that one waits.

    `held` has an entry for each read that has waited so far.
    """
    reached, opened, held = threading.Event(), threading.Event(), []

    def behind(read):
        def read_behind_gate(*arguments):
            held.append(read)
            reached.set()
            assert opened.wait(60), "the gate was never opened"
            return read(*arguments)

        return read_behind_gate

    carry_out_in_python(monkeypatch)
    for owner, name in ((FileBytes, "read_into"), (kernels, "land")):
        monkeypatch.setattr(owner, name, behind(getattr(owner, name)))
    try:
        yield SimpleNamespace(reached=reached, held=held, open=opened.set)
    finally:
        opened.set()


def settle(path):
    """Let a file seem to have been written long ago."""
    os.utime(path, (1e9, 1e9))
    return str(path)
