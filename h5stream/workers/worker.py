"""The parent's side of a process that works for it: started, watched, spoken with, and ended."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from h5stream.engine.running import closed
from h5stream.workers.child import Parent, Work, inherited, prepare
from h5stream.workers.connection import Failure, death, frame, received
from h5stream.workers.memory import BorrowedMemory, create_file
from h5stream.workers.starting import END_S, check_main_guard, disown, main_module, see_out, start

LOOK_S = 0.25
"""Seconds between looks at a process that says nothing. Its end is seen at once, by the closed socket, unless a process
that it forked holds that open; then by this, so that an error comes within a second."""

DIRECT_NBYTES = 4096
"""Bytes up to which a message is written by the thread that says it: waking another takes longer than the writing."""


class Worker:
    """A process, from its start to its end.

    # Guarantees: two threads, which end with the process, read and write, so that Ctrl-C finds no half message. `post`
    # may be called by any thread, inside the garbage collector too, and `end` as well, twice, and in a forked child,
    # where it lets go of descriptors and leaves the process alone. What was borrowed of `memory` outlives the process.
    """

    def __init__(
        self,
        make: Callable[[Parent], Work],
        hear: Callable[[Worker, Any], None],
        *,
        whose: str,
        way_out: str,
        functions: bytes = b"",
        method: str = "spawn",
        files: Sequence[int] = (),
    ) -> None:
        check_main_guard(whose)
        self._owner_pid, self._hear, self._whose, self._way_out = os.getpid(), hear, whose, way_out
        file = create_file()
        self.memory = BorrowedMemory(file)
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                with inherited(make) if method == "fork" else contextlib.nullcontext(make) as sent:
                    self._tell([file, *files], functions, sent)
                    self._process = start(self._socket, theirs, method)
            except BaseException:
                self._socket.close()
                raise
        self._ended = False
        self.gone: BaseException | None = None
        """Why nothing more comes of it."""
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writing, self._is_direct = threading.Lock(), True
        self._threads = [
            threading.Thread(target=work, name=f"h5stream-worker-{self.pid}", daemon=True)
            for work in (self._listen, self._speak)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # Ctrl-C, or no more threads
            self.end()
            raise

    def _tell(self, files: Sequence[int], functions: bytes, make: Callable[[Parent], Work]) -> None:
        """Send files, the first is its memory, and what to do: in one too, as it reads nothing before it has torch."""
        seed, level = torch.initial_seed() % 2**63, logging.getLogger("h5stream").getEffectiveLevel()
        told = create_file()
        try:
            with os.fdopen(os.dup(told), "wb") as file:
                # First how it prepares itself: that may import what the rest needs.
                pickle.dump(functools.partial(prepare, main_module(functions), level, seed), file, protocol=5)
                pickle.dump(make, file, protocol=5)
            os.lseek(told, 0, os.SEEK_SET)
            socket.send_fds(self._socket, [b"!"], [told, *files])
        finally:
            os.close(told)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, and not one that this one was forked from."""
        return os.getpid() == self._owner_pid

    @property
    def usable(self) -> bool:
        """Whether it is there, as far as is known, and can be talked to."""
        return not self._ended and self.gone is None and self._process.poll() is None

    def post(self, message: Any) -> None:
        """Say something, and which loans ended; never waits, and says nothing to a process that is gone."""
        data = frame((message, self.memory.returned()))
        if self._is_direct and len(data) <= DIRECT_NBYTES and self._writing.acquire(blocking=False):
            try:
                self._socket.send(data, socket.MSG_DONTWAIT)  # all or nothing: so short a message is not cut
                return
            except OSError:  # no room; or the process is gone, which `_listen` finds out
                pass
            finally:
                self._writing.release()
        self._outgoing.put(data)
        self._is_direct = False  # what comes after it goes the same way, until all is written

    def _speak(self) -> None:
        while (data := self._outgoing.get()) is not None:
            with self._writing:
                try:
                    self._socket.sendall(data)
                except OSError:
                    return
                self._is_direct = self._outgoing.empty()

    def _listen(self) -> None:
        for message, log in received(self._socket, LOOK_S, lambda: self._process.poll() is None):
            for level, name, text in log:
                logging.getLogger(name).log(level, "%s", text)
            if isinstance(message, Failure):  # it could not begin
                self.gone = message.raised_here()
                break
            self._hear(self, message)
        exitcode = see_out(self._process)
        if self.gone is None:
            who = f"the child process {self.pid} of {self._whose}"
            self.gone = closed() if self._ended else death(who, exitcode, self._way_out)
        self._outgoing.put(None)
        self._hear(self, self.gone)

    def end(self) -> None:
        """End the process, and wait until it is gone."""
        if self._ended:
            return
        self._ended = True
        if not self.is_ours:
            disown(self._process)
        else:
            self.hang_up()
            for thread in self._threads:
                if thread.is_alive() and thread is not threading.current_thread():
                    thread.join(2 * END_S)
        self._socket.close()

    def hang_up(self) -> None:
        """Let the process know that nothing more comes, though a forked one may hold the socket too."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is gone
            return
