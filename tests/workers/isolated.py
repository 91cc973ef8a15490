"""What the tests of workers share: functions that a child can import, and a child that is a thread.

A real child takes seconds to import torch. What is said over the socket, and what both sides make of it, is the same
where the other side is a thread; what concerns processes is tested with processes.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from forking import end_now, guards_are_forks
from inner import iterations_of

from h5stream.workers import child, worker


def prepare(*_):
    """Prepare nothing: the process is the parent's."""


class ThreadChild:
    """Stands for `subprocess.Popen`; "killing" it closes its end of the socket."""

    pid = 0

    def __init__(self, theirs):
        self.end = socket.socket(fileno=os.dup(theirs.fileno()))
        parent, work = child.begin(self.end)
        self.memory, self.engine = parent.memory, work.engine
        self.returncode, self._thread = None, threading.Thread(target=self._work, args=(parent, work), daemon=True)
        self._thread.start()

    def _work(self, parent, work):
        child.listen(self.end, parent, work, lambda: True)
        work.close()
        self.end.close()
        self.returncode = 0

    @property
    def slots_out(self):
        """How many slots are filled, or lent."""
        ring = self.engine.slots
        return ring.held_nbytes // ring.slot_nbytes - ring.free_slots

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("child", timeout)
        return self.returncode

    def kill(self):
        self.end.shutdown(socket.SHUT_RDWR)


def children_are_threads(monkeypatch):
    """Let loaders start threads for children; gives the list of them, the newest last."""
    started = []

    def start(ours, theirs, method):
        started.append(ThreadChild(theirs))
        return started[-1]

    monkeypatch.setattr(worker, "start", start)
    monkeypatch.setattr(worker, "prepare", prepare)
    guards_are_forks(monkeypatch)
    return started


def same(a, b):
    """Tell whether two batches are alike: structure, types, shapes, strides and bytes."""
    if isinstance(a, torch.Tensor):
        alike = isinstance(b, torch.Tensor) and (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        return alike and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert same(a, b), f"batch {number} differs"


def eventually(holds, limit_s=30):
    """Wait until something holds that another process brings about."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        threading.Event().wait(0.01)


def child_of(loader):
    return iterations_of(loader).engine.pid


# --- functions that a child imports -------------------------------------------------------------------------


@dataclass
class Made:
    """A structure of the user's own."""

    x: torch.Tensor
    names: list


def as_it_is(batch):
    return batch


def copied(batch):
    return batch.clone()


def with_pid(batch):
    return batch, os.getpid()


def with_pid_and_program(batch):
    """Also give how a program ends that gets SIGTERM."""
    return batch, os.getpid(), subprocess.run(["sh", "-c", "kill -TERM $$; echo not at all"], check=False).returncode


def rows_and_more(batch):
    """Make views of the slot, new tensors, odd strides, small and empty ones, arrays, and a class of our own."""
    x, y = batch["x"], batch["y"]
    return {
        "view": x,
        "column": x[:, 1],
        "flipped": x.t(),
        "new": x * 2,
        "new flipped": (x * 3).t(),
        "expanded": torch.ones(1, 5000).expand(300, 5000),
        "empty": x[:0],
        "scalar": y.sum(),
        "half": x.to(torch.bfloat16),
        "flags": x > 1,
        "array": x.numpy(),
        "new array": x.numpy() + 1,
        "own": Made(x=y + 1, names=["a", b"b"]),
        "number": 7,
    }


def column_of_a_large_one(batch):
    return torch.arange(1_000_000.0).view(1000, 1000)[:, 3]


KEPT = []


def keeping(batch):
    """Keep all that was given, as a transform may that mixes batches."""
    KEPT.append(batch)
    return batch["x"], KEPT[0]["x"]


def failing_at_100(batch):
    if 100 in batch["y"].tolist():
        raise ZeroDivisionError("in the user's code")
    return batch


class OddError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def failing_oddly(batch):
    raise OddError("one", "two")


def giving_a_lambda(batch):
    return lambda: batch


def stopping(batch):
    raise StopIteration


def hung_up(batch):
    raise BrokenPipeError("its own")


def hanging(batch):
    threading.Event().wait()


def hanging_while(folder, batch):
    """Say that we are there, and hang until the file `go` lies beside."""
    (Path(folder) / "reached").touch()
    while not (Path(folder) / "go").exists():
        threading.Event().wait(0.01)
    return batch


def crashing(batch):
    ctypes.string_at(0)


def random_numbers(batch):
    return torch.rand(3)


def marking(folder, number):
    (Path(folder) / f"thread {number} of {os.getpid()}").touch()


def failing_init(number):
    raise ZeroDivisionError(f"thread {number}")


def ending_the_process(batch):
    end_now(7)
