"""Processes that work for this one: how they are started, how their errors travel, and what ends with them.

The only home of `subprocess`. A file from elsewhere is looked at `in_child` first: libhdf5 can be made to crash by what
a file holds (a datatype that refers to itself uses up the stack), which would end this process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any, ParamSpec, TypeVar

from h5stream.errors import IsolatedProcessError, OptionError

_P = ParamSpec("_P")
_T = TypeVar("_T")

END_S = 1.0
"""Seconds that a process has to end by itself once its parent hung up."""

FOR_THE_PARENT = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that a terminal or a scheduler sends to all processes of a job: the parent decides what comes of them (a
last checkpoint, say, which needs batches), and the others end with it."""


def interpreter(program: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a new interpreter that finds the modules that this one finds; not a fork.

    For workers, which a user's script starts: children of `multiprocessing` import that script whether they need it or
    not, leave a resource tracker running, and are refused to the daemonic workers of others.
    """
    path = [p for p in sys.path if isinstance(p, str)]
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    executable = os.fsdecode(multiprocessing.spawn.get_executable())
    return subprocess.Popen([executable, *flags, "-c", f"import sys\nsys.path[:] = {path!r}\n{program}"], **options)


class _Multiprocessed:
    """A process of `multiprocessing`, shown as one of `subprocess`."""

    def __init__(self, process: Any) -> None:
        self._process, self.returncode = process, None
        process.start()
        self.pid, self.kill = process.pid, process.kill

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return status


Process = subprocess.Popen[bytes] | _Multiprocessed


def start(ours: socket.socket, theirs: socket.socket, method: str, inherited: Any) -> Process:
    """Start a worker at one end of a socket, whose other end is ours; a fork is given what is `inherited`."""
    # Blocked meanwhile: a child inherits that, and has its handlers before it lets signals come.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_PARENT)
    try:
        if method == "spawn":
            program = f"from h5stream.workers.worker import serve\nserve({theirs.fileno()}, {os.getpid()})"
            return interpreter(program, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        # The parent of one that a server forks is the server, which ends with this process.
        given = (theirs, os.getpid(), ours, inherited) if method == "fork" else (theirs, None, None, None)
        context: Any = multiprocessing.get_context(method)
        return _Multiprocessed(context.Process(target=_serve, args=given, daemon=True))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(theirs: socket.socket, parent: int | None, ours: socket.socket | None, inherited: Any) -> None:
    from h5stream.workers.worker import serve

    if ours is not None:
        ours.close()  # else the parent's end would stay open without it
    serve(theirs.detach(), os.getppid() if parent is None else parent, inherited)


def see_out(process: Process) -> int | None:
    """Wait for a process to end, and end it if it does not; return its status, None if it had to be ended."""
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def ignore_signals() -> None:
    """Leave signals to the parent, in the child.

    With handlers that do nothing, not SIG_IGN, which the programs that a user's function starts would inherit.
    """
    for number in FOR_THE_PARENT:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_PARENT)


def checked_method(context: Any) -> str:
    """Return the name of a way to start processes, or of a context's; "spawn" unless said.

    Not a fork by default: reader threads are alive, and what they hold locked would stay so in the child.
    """
    method = context.get_start_method() if hasattr(context, "get_start_method") else context or "spawn"
    if method not in multiprocessing.get_all_start_methods():
        raise OptionError(
            f"multiprocessing_context= takes 'spawn', 'forkserver' or 'fork', or a context of multiprocessing, not "
            f"{context!r}"
        )
    return str(method)


def check_function(name: str, function: Callable[..., Any] | None, where: str) -> bytes:
    """Refuse a function that a child could not call, and return it pickled."""
    way_out = ", or pass multiprocessing_context='fork'"
    try:
        data = pickle.dumps(function)
    except Exception as error:
        raise OptionError(
            f"{name}={function!r} cannot go to {where}, because it cannot be pickled ({error}); define it at the top "
            f"level of a module, where lambdas and inner functions are not{way_out}"
        ) from error
    main = main_module(data)
    if main and "init_main_from_name" not in main and not os.path.isfile(main.get("init_main_from_path", "")):
        raise OptionError(
            f"{name}={function!r} cannot go to {where}, because it was defined in a notebook, at a prompt or in a "
            f"script that was piped in, which another process cannot import; put it into a module that is "
            f"imported{way_out}"
        )
    return data


# --- The script that functions come from is imported in a child as multiprocessing does, so that the guard is the same.


def main_module(functions: bytes) -> dict[str, Any] | None:
    """Say how to import the parent's script, if pickled functions come from it.

    Else it is not imported: a script that reads a file needs no ``if __name__ == "__main__"`` for us.
    """
    if (b"__main__" not in functions and b"__mp_main__" not in functions) or is_being_imported():
        return None  # a script that is only imported may make a loader, and starts no child
    wanted = {"name", "sys_path", "sys_argv", "init_main_from_name", "init_main_from_path"}
    found = multiprocessing.spawn.get_preparation_data("h5stream")
    return {name: value for name, value in found.items() if name in wanted}


def import_main(main: dict[str, Any]) -> None:
    """Import the parent's script, in the child; what starts a process meanwhile is told about the missing guard."""
    here: Any = multiprocessing.current_process()
    here._inheriting = True
    try:
        multiprocessing.spawn.prepare(main)
    finally:
        del here._inheriting


def is_being_imported() -> bool:
    """Tell whether this process only imports its parent's script."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def check_main_guard(whose: str) -> None:
    """Refuse to start a process in a script that is only imported, by a child of its own."""
    if is_being_imported():
        raise OptionError(
            f"{whose} starts a process that imports this script, because a function it needs is defined "
            "here; what trains must not run then. Put it under `if __name__ == '__main__':`, or the function into a "
            "module of its own"
        )


# --- Errors on their way from a child to its parent, where they are raised with the child's traceback beneath.


EXITS = (
    "a function of yours, or this script, which it imports, called sys.exit(). Put what trains and exits under "
    "`if __name__ == '__main__':`"
)
"""Why a process that works for another one exits, and the way out."""


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
        """Return the error for the parent to raise, of the same type unless that would end the parent too."""
        error: object = None
        if self.error is not None:
            with contextlib.suppress(Exception):
                error = pickle.loads(self.error)
        if error is None:
            error = IsolatedProcessError(f"in the child process, and not to be pickled: {self.said}")
        if not isinstance(error, Exception):
            error = IsolatedProcessError(f"a child process of h5stream was ended by {self.said}; {EXITS}")
        error.__cause__ = RuntimeError(f"in the child process:\n{self.where}")
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


# --- A call that a child carries out, since what it looks at may end the process.


def ready_children(module: str) -> None:
    """Let the process that `in_child` forks begin to import a module, once for all calls."""
    multiprocessing.set_forkserver_preload([module])
    forkserver.ensure_running()


def in_child(what: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Return what a call returns that another process carries out."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, dict(os.environ), function, args, kwargs))
    with theirs:
        child.start()
    try:
        with ours:
            failure, value = ours.recv()
    except EOFError:
        child.join()
        status = child.exitcode or 0
        how = f"ended by {signal_name(-status)}" if status < 0 else f"gone with status {status}"
        raise IsolatedProcessError(
            f"{what}: the process that tried was {how}. What the file holds makes libhdf5 crash: it is damaged, or "
            "made to do that. Copy it again from its source, and do not open it in a process that you need",
            exitcode=status,
        ) from None
    finally:
        child.kill()
        child.join()
    if failure is not None:
        raise failure.raised_here()
    return value  # type: ignore[no-any-return]


def _answer(told: Any, environment: dict[str, str], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides, and ends this process
    os.dup2(2, 1)  # what libraries print goes where errors go
    os.environ |= environment
    try:
        came: tuple[Failure | None, Any] = (None, function(*args, **kwargs))
    except Exception as error:
        came = (Failure.of(error), None)
    told.send(came)
