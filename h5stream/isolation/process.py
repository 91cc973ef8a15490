"""Starting the child, and seeing it out."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import spawn

from h5stream.isolation.memory import create_file
from h5stream.isolation.setup import Setup

END_S = 1.0
"""Seconds that a child has to end by itself once its parent hung up."""

FOR_THE_PARENT = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that a terminal or a scheduler sends to all processes of a job: the parent decides what comes of them (a
last checkpoint, say, which needs batches), and the child ends with it."""

_PROGRAM = """\
import sys
sys.path[:] = {path!r}
from h5stream.isolation.child import serve
serve({link}, {setup}, {memory}, {parent})
"""


def start(setup: Setup, child_end: socket.socket, memory: int) -> subprocess.Popen[bytes]:
    """Start a child that serves at one end of a socket and writes into a file; a new interpreter, not a fork.

    Not through `multiprocessing`, whose children import the parent's script whether they need it or not, leave a
    resource tracker running, and are refused to the daemonic workers of others.
    """
    told = create_file()
    try:
        with os.fdopen(os.dup(told), "wb") as file:
            pickle.dump(setup, file, protocol=5)
        os.lseek(told, 0, os.SEEK_SET)
        given = {"link": child_end.fileno(), "setup": told, "memory": memory}
        program = _PROGRAM.format(path=[p for p in sys.path if isinstance(p, str)], parent=os.getpid(), **given)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with _held_back(FOR_THE_PARENT):
            return subprocess.Popen(
                [os.fsdecode(spawn.get_executable()), *flags, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=tuple(given.values()),
            )
    finally:
        os.close(told)


@contextlib.contextmanager
def _held_back(signals: frozenset[signal.Signals]) -> Iterator[None]:
    """Block signals meanwhile: a child inherits that, and has its handlers before it lets them come."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """Leave signals to the parent, in the child.

    With handlers that do nothing, not SIG_IGN, which the programs that a transform starts would inherit.
    """
    for number in FOR_THE_PARENT:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_PARENT)


def see_out(process: subprocess.Popen[bytes], wait_s: float = END_S) -> int | None:
    """Wait for a child to end, and end it if it does not; gives its status, None if it had to be ended."""
    try:
        return process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def disown(process: subprocess.Popen[bytes]) -> None:
    """Forget the parent's child, in a process that was forked from the parent."""
    process.returncode = 0  # else it would be waited for when dropped
