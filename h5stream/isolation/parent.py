"""The parent's side of a child: its process, its messages, and the memory that both map."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

from h5stream.engine.running import closed
from h5stream.engine.slots import Memory
from h5stream.errors import IsolatedProcessError
from h5stream.isolation.failures import death
from h5stream.isolation.link import Link
from h5stream.isolation.memory import Arenas, create_file
from h5stream.isolation.messages import Begin, Ended, Filled, Report, SetupFailed, Stop, Took
from h5stream.isolation.process import disown, see_out, start
from h5stream.isolation.setup import Setup

LOOK_S = 0.25
"""Seconds between looks at a child that says nothing. Its end is seen at once, by the closed link, unless a process
that it forked holds that open; then by this, so that an error comes within a second."""


class Listener(Protocol):
    """Whom a child's messages are for: one pass."""

    def hear(self, message: Filled | Ended) -> None:
        """Take in a message."""


class Child:
    """A child process, from its start to its end.

    # Guarantees: any number of consumers, each in a thread of its own, may `wait`: one of them reads the link and
    # hands messages to whom they concern, the others wait for that one. `forget` and `post` may be called by any
    # thread, inside the garbage collector too. `end` may be called by any thread, twice, and in a forked child,
    # where it lets go of descriptors and leaves the process alone.

    Parameters
    ----------
    setup : Setup
        What it is told.
    pin : callable, optional
        Called with each piece of shared memory.
    """

    def __init__(self, setup: Setup, pin: Callable[[Memory], object] | None) -> None:
        self._pid = os.getpid()
        self._memory = create_file()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = start(setup, theirs, self._memory)
            except BaseException:
                ours.close()
                os.close(self._memory)
                raise
        self._link, self._arenas = Link(ours), Arenas(self._memory, pin)
        self._listeners: dict[int, Listener] = {}
        self._numbers = itertools.count()
        self._gone: BaseException | None = None
        self._ended = False

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it is there, as far as is known, and can be talked to."""
        return not (self._ended or self._gone or self._link.broken) and self._process.poll() is None

    @property
    def arenas(self) -> Arenas:
        """The memory."""
        return self._arenas

    # --- talking ----------------------------------------------------------------------------------------

    def begin(
        self, listener: Listener, order: bytes | None, first_batch: int, max_open_batches: int, world_size: int
    ) -> int:
        """Begin a pass, and give its number."""
        number = next(self._numbers)
        self._listeners[number] = listener
        self.post(Begin(number, order, first_batch, max_open_batches, world_size))
        return number

    def post(self, message: Any) -> None:
        """Say something; never waits."""
        self._link.post(message)

    def took(self, number: int, batches: int) -> None:
        """Say that batches were taken, and which slots came back meanwhile."""
        returned = []
        while self._arenas.returned:
            returned.append(self._arenas.returned.popleft())
        self.post(Took(number, batches, returned))

    def forget(self, number: int) -> None:
        """End a pass; what still comes of it is given back."""
        if self._listeners.pop(number, None) is not None:
            self.post(Stop(number))

    # --- listening --------------------------------------------------------------------------------------

    def hear(self) -> None:
        """Hand on what has come, without waiting."""
        if self._link.reading.acquire(blocking=False):
            try:
                self._hear()
            finally:
                self._link.reading.release()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until something may have come, at most `timeout_s` seconds or a quarter of one.

        Raises
        ------
        IsolatedProcessError
            If the child is gone.
        LoaderClosedError
            If it was ended here.
        """
        if self._gone is not None:
            raise self._gone
        limit_s = LOOK_S if timeout_s is None else min(LOOK_S, timeout_s)
        began = time.monotonic()
        if not self._link.reading.acquire(timeout=min(limit_s, 0.02)):
            return  # somebody else reads, and may have read what is ours
        try:
            if self._hear() == 0:
                self._link.wait(max(0.0, limit_s - (time.monotonic() - began)))
                self._hear()
        finally:
            self._link.reading.release()

    def _hear(self) -> int:
        """Hand on what has come; called under the lock of those who read. Gives how many messages."""
        if self._gone is not None:
            return 0
        if self._link.broken:
            self._gone = IsolatedProcessError(
                "an exception (Ctrl-C, perhaps) came between two words of the child process of isolation='process', "
                "which cannot be understood any more; iterate again to start another"
            )
            return 0
        try:
            with self._link.whole():
                messages = self._link.receive()
                for message in messages:
                    self._hand_on(message)
        except EOFError:
            self._notice_end()
            return 0
        if not messages and self._process.poll() is not None:
            self._notice_end()
        return len(messages)

    def _hand_on(self, message: Filled | Ended | SetupFailed) -> None:
        if isinstance(message, SetupFailed):
            self._gone = message.failure.raised_here()
            return
        if message.report is not None:
            _log_again(message.report)
        listener = self._listeners.get(message.run)
        if listener is not None:
            listener.hear(message)
        elif isinstance(message, Filled):
            self._arenas.returned.extend(message.places)

    def _notice_end(self) -> None:
        """Learn how the child ended; what came before that is still good."""
        if self._gone is None:
            exitcode = see_out(self._process)
            self._gone = closed() if self._ended else death(self.pid, exitcode)

    # --- the end ----------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the process, and wait until it is gone; slots that are leased stay as they are."""
        if self._ended:
            return
        self._ended = True
        if os.getpid() == self._pid:
            self._link.shut()
            see_out(self._process)
        else:
            disown(self._process)
        if self._gone is None:
            self._gone = closed()
        self._link.close()
        os.close(self._memory)


def _log_again(report: Report) -> None:
    for level, name, text in report.log:
        logging.getLogger(name).log(level, "%s", text)
