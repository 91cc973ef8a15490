"""Errors on their way from a child to its parent, where they are raised with the child's traceback beneath."""

from __future__ import annotations

import contextlib
import pickle
import signal
import traceback
from dataclasses import dataclass

from h5stream.errors import IsolatedProcessError

EXITS = (
    "a function of yours, or this script, which it imports, called sys.exit(). Put what trains and exits under "
    "`if __name__ == '__main__':`"
)
"""Why a process that works for another one exits, and the way out."""


class ChildTraceback(Exception):  # noqa: N818  it is the cause of an error, and none by itself
    """The traceback of an error in the child; the `__cause__` of what is raised in the parent."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error, in a form that always travels."""

    error: bytes | None  # it, pickled; None if it does not survive that
    said: str  # its type and message
    where: str  # its traceback, with those of its causes

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Take an error as it was caught."""
        where = "".join(traceback.format_exception(error))
        lines = traceback.format_exception_only(error)
        said = lines[-1 if isinstance(error, SyntaxError) else 0].strip()  # notes come last
        try:
            data = pickle.dumps(error)
            pickle.loads(data)  # many can be pickled and not made again
        except Exception:
            return cls(error=None, said=said, where=where)
        return cls(error=data, said=said, where=where)

    def raised_here(self) -> Exception:
        """Return the error for the parent to raise: of the same type, where it can be pickled and is an `Exception`.

        Another one, such as a `SystemExit`, would end the parent too, in silence.
        """
        error: object = None
        if self.error is not None:
            with contextlib.suppress(Exception):
                error = pickle.loads(self.error)
        if error is None:
            error = IsolatedProcessError(f"in the child process, and not to be pickled: {self.said}")
        if not isinstance(error, Exception):
            error = IsolatedProcessError(f"a child process of h5stream was ended by {self.said}; {EXITS}")
        error.__cause__ = ChildTraceback(self.where)
        return error


def death(who: str, exitcode: int | None, way_out: str) -> IsolatedProcessError:
    """Say that a process is gone, how, and what to do."""
    if exitcode is not None and exitcode < 0:
        name = signal_name(-exitcode)
        reasons: dict[int, str] = {
            signal.SIGKILL: "it was killed, most likely by the kernel for want of memory: lower memory_budget=",
            signal.SIGBUS: "memory ran out, or a mapped file was cut off",
            signal.SIGSEGV: "a codec or batch_transform= crashed; `python -X faulthandler` shows where",
        }
        why = reasons.get(-exitcode, "a codec or batch_transform= ended it")
        return IsolatedProcessError(f"{who} was ended by {name} ({why}). {way_out}", exitcode=exitcode)
    how = "does not answer and was ended" if exitcode is None else f"ended with status {exitcode}"
    said = "what it had to say is on standard error"
    if exitcode in (0, 1):
        said += f". If that is nothing, {EXITS}"
    return IsolatedProcessError(f"{who} {how}; {said}. {way_out}", exitcode=exitcode)


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
