"""Messages between parent and child: frames on a socket, which the parent never waits to write."""

from __future__ import annotations

import collections
import contextlib
import pickle
import select
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

_HEAD = struct.Struct("<Q")
_READ_NBYTES = 1 << 20


class Frames:
    """Cuts what came over a socket into messages."""

    def __init__(self) -> None:
        self._incoming = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Take in bytes, and give the messages that are whole."""
        self._incoming += data
        messages, at = [], 0
        while len(self._incoming) - at >= _HEAD.size:
            (nbytes,) = _HEAD.unpack_from(self._incoming, at)
            end = at + _HEAD.size + nbytes
            if len(self._incoming) < end:
                break
            messages.append(pickle.loads(memoryview(self._incoming)[at + _HEAD.size : end].toreadonly()))
            at = end
        if at:
            del self._incoming[:at]
        return messages


def frame(message: Any) -> bytes:
    """Give a message as it goes over the socket."""
    data = pickle.dumps(message, protocol=5)
    return _HEAD.pack(len(data)) + data


class Link:
    """The parent's end.

    # Guarantees: `post` may be called by any thread, inside the garbage collector too: it appends, and writes
    # only if nobody else is writing; whoever writes looks again when done. `receive` has one caller at a time,
    # under `reading`. An exception in the middle of either (Ctrl-C) may leave half a message behind: the link is
    # `broken` then, and so of no more use.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket, self._frames = end, Frames()
        self._outgoing: collections.deque[bytes] = collections.deque()
        self._partial = memoryview(b"")
        self._writing, self.reading = threading.Lock(), threading.Lock()
        self.broken = False

    def post(self, message: Any) -> None:
        """Send a message, now or as soon as there is room; one to a process that is gone is dropped."""
        self._outgoing.append(frame(message))
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes."""
        while self._outgoing or self._partial:
            if not self._writing.acquire(blocking=False):
                return
            try:
                with self.whole():
                    room = self._write()
            finally:
                self._writing.release()
            if not room:
                return

    def _write(self) -> bool:
        """Write until all is written, or the socket is full; tells which."""
        try:
            while self._partial or self._outgoing:
                if not self._partial:
                    self._partial = memoryview(self._outgoing.popleft())
                self._partial = self._partial[self._socket.send(self._partial) :]
        except BlockingIOError:
            return False
        except OSError:  # nobody is there: whoever reads finds out
            self._outgoing.clear()
            self._partial = memoryview(b"")
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until something came, or there is room for what waits to be written."""
        poller = select.poll()
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile, by another thread
            poller.register(self._socket, select.POLLIN | (select.POLLOUT if self._partial else 0))
            poller.poll(1000 * timeout_s)
        self.flush()

    def receive(self) -> list[Any]:
        """Give the messages that came; waits for none.

        Raises
        ------
        EOFError
            If the other end is closed.
        """
        with self.whole():
            try:
                data = self._socket.recv(_READ_NBYTES)
            except BlockingIOError:
                return []
            except OSError:
                data = b""
            if data:
                return self._frames.feed(data)
        raise EOFError

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Let an exception that comes meanwhile break the link."""
        try:
            yield
        except BaseException:
            self.broken = True
            raise

    def shut(self) -> None:
        """Let the other end know that nothing more comes, though a forked process may hold this one too."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the descriptor."""
        self._socket.close()
