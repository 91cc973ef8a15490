"""The other side: a process that prepares itself, does what its parent says, and ends with it."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import os
import pickle
import random
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import torch

from h5stream.workers.connection import Failure, frame, received
from h5stream.workers.memory import SharedMemory
from h5stream.workers.starting import ignore_signals, import_main

PARENT_LOOK_S = 1.0
"""How often a parent that says nothing is looked for."""

MOST_FILES = 8
"""Descriptors that a worker gets at its start, at most."""

_log = logging.getLogger("h5stream")


class Work(Protocol):
    """What a worker does. One thread calls, which must not be kept waiting."""

    def handle(self, message: Any) -> None:
        """Do what the parent says."""

    def close(self) -> None:
        """End everything, where the process goes on."""


class Parent:
    """The parent as its worker sees it: what is said to it, and the memory that both map.

    # Guarantees: `send` may be called by any thread; `_sending` keeps messages whole.
    """

    def __init__(self, end: socket.socket, memory: SharedMemory, files: Sequence[int] = ()) -> None:
        self._end, self._sending = end, threading.Lock()
        self.memory, self.files, self.log = memory, files, CollectedLog()

    def send(self, message: Any) -> None:
        """Say something, and what was logged; waits until the parent has read what came before, if that is much.

        To one that is gone nothing is said: this process ends.
        """
        data = frame((message, self.log.taken()))
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._end.sendall(data)


class CollectedLog(logging.Handler):
    """Keeps what is logged for the parent, whose handlers are the user's.

    # Guarantees: any thread may log; a deque's `append` and `popleft` need no lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._records: collections.deque[tuple[int, str, str]] = collections.deque(maxlen=1000)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self._records.append((record.levelno, record.name, record.getMessage()))

    def taken(self) -> list[tuple[int, str, str]]:
        """Return the records since the last call."""
        taken: list[tuple[int, str, str]] = []
        with contextlib.suppress(IndexError):  # all were taken, by another thread perhaps
            while True:
                taken.append(self._records.popleft())
        return taken


def serve(end: int, parent: int) -> NoReturn:
    """Be the worker of a process, until it hangs up or is gone; `end` is a descriptor."""
    ignore_signals()
    link, status = socket.socket(fileno=end), 0
    try:
        told, work = begin(link)
    except BaseException as error:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # another one failed first, and was told of
            link.sendall(frame((Failure.of(error), [])))
    else:
        try:
            listen(link, told, work, lambda: os.getppid() == parent)
        except BaseException as error:  # a function's sys.exit(), or a fault of ours
            status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Without waiting for threads: one may be inside a decoder, and nothing looks at what it writes.
    os._exit(status & 255)


def begin(end: socket.socket) -> tuple[Parent, Work]:
    """Learn what is to be done, and begin to."""
    _, (told, memory, *files), _, _ = socket.recv_fds(end, 1, MOST_FILES)
    parent = Parent(end, SharedMemory(memory), files)
    with os.fdopen(told, "rb") as file:
        pickle.load(file)(parent)  # `prepare`
        return parent, pickle.load(file)(parent)


_INHERITED: dict[int, Callable[[Parent], Work]] = {}


@contextlib.contextmanager
def inherited(make: Callable[[Parent], Work]) -> Iterator[Callable[[Parent], Work]]:
    """Return what stands for a function, and is that function in a process that is forked meanwhile."""
    _INHERITED[id(make)] = make
    try:
        yield functools.partial(_made_by_inherited, id(make))
    finally:
        del _INHERITED[id(make)]


def _made_by_inherited(key: int, parent: Parent) -> Work:
    return _INHERITED[key](parent)


def prepare(main: dict[str, Any] | None, log_level: int, seed: int, parent: Parent) -> None:
    """Make this process what its work expects."""
    _log.setLevel(log_level)
    _log.propagate, _log.handlers = False, [parent.log]
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if main is not None:
        import_main(main)


def listen(end: socket.socket, parent: Parent, work: Work, has_parent: Callable[[], bool]) -> None:
    """Do what the parent says, until it hangs up or is gone."""
    for message, returned in received(end, PARENT_LOOK_S, has_parent):
        parent.memory.come_back(returned)
        work.handle(message)
