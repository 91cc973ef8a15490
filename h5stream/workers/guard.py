"""A file from elsewhere is looked at by a child first: what ends that process would have ended this one.

Libhdf5 can be made to crash by what a file holds; a datatype that refers to itself uses up the stack when its dataset
is opened. No exception tells of that, so another process has to try.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from h5stream.errors import IsolatedProcessError
from h5stream.workers.failures import Failure, signal_name
from h5stream.workers.starting import interpreter

_P = ParamSpec("_P")
_T = TypeVar("_T")


class InChild(Generic[_T]):
    """A call that another process carries out: a new interpreter, which imports what the call needs and no more.

    As a context manager, it ends the child at the end, whatever it is doing.

    # Guarantees: used by one thread.
    """

    def __init__(self, what: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> None:
        self._what = what
        request = pickle.dumps((function, args, kwargs), protocol=5)
        program = "from h5stream.workers.guard import answer\nanswer()"
        self._child = interpreter(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._child.stdin as told:  # its death is told by `result`
            told.write(request)

    def __enter__(self) -> InChild[_T]:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._child.stdout is not None
        self._child.kill()
        self._child.stdout.close()
        self._child.wait()

    def result(self) -> _T:
        """Wait for the child and give what the function gave there."""
        assert self._child.stdout is not None
        data, status = self._child.stdout.read(), self._child.wait()
        if status != 0 or not data:
            how = f"ended by {signal_name(-status)}" if status < 0 else f"gone with status {status}"
            raise IsolatedProcessError(
                f"{self._what}: the process that tried was {how}. What the file holds makes libhdf5 crash: it is "
                "damaged, or made to do that. Copy it again from its source, and do not open it in a process that you "
                "need",
                exitcode=status,
            )
        failure, value = pickle.loads(data)
        if failure is not None:
            raise failure.raised_here()
        return value  # type: ignore[no-any-return]


def answer() -> None:
    """Carry out the call that the parent wrote to standard input, and write what came of it: the child's program."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides, and ends this process
    # What libraries print goes where errors go.
    with os.fdopen(os.dup(1), "wb") as told:
        os.dup2(2, 1)
        try:
            function, args, kwargs = pickle.load(sys.stdin.buffer)
            came: tuple[Failure | None, Any] = (None, function(*args, **kwargs))
        except Exception as error:
            came = (Failure.of(error), None)
        pickle.dump(came, told, protocol=5)
