"""Messages between two processes: pickles on a socket, each behind its length."""

from __future__ import annotations

import pickle
import select
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

_HEAD = struct.Struct("<Q")
_READ_NBYTES = 1 << 16


def frame(message: Any) -> bytes:
    """Return a message as it goes over the socket."""
    data = pickle.dumps(message, protocol=5)
    return _HEAD.pack(len(data)) + data


def received(end: socket.socket, look_s: float, is_there: Callable[[], bool]) -> Iterator[Any]:
    """Yield the messages that come, until the other end is closed.

    Every `look_s` seconds in which nothing comes, `is_there` is asked: a process that the other side forked may hold
    the socket open without it.
    """
    poller, incoming = select.poll(), bytearray()
    poller.register(end, select.POLLIN)
    while True:
        if not poller.poll(1000 * look_s):
            if not is_there():
                return
            continue
        try:
            data = end.recv(_READ_NBYTES)
        except OSError:
            return
        if not data:
            return
        incoming += data
        yield from _whole(incoming)


def _whole(incoming: bytearray) -> Iterator[Any]:
    """Take out the messages of which all has come."""
    while len(incoming) >= _HEAD.size:
        end = _HEAD.size + _HEAD.unpack_from(incoming)[0]
        if len(incoming) < end:
            return
        data = bytes(memoryview(incoming)[_HEAD.size : end])
        del incoming[:end]
        yield pickle.loads(data)
