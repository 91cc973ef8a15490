"""Worker processes: starting them, passing on their errors, and ending them.

The only module that uses `subprocess`. Files from elsewhere are opened `in_child` first: a crafted file can crash
libhdf5 (a datatype that refers to itself exhausts the stack), which would end this process.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from h5stream.errors import IsolatedProcessError, OptionError

if TYPE_CHECKING:
    from h5stream.workers.worker import WorkerConfig

_P = ParamSpec("_P")
_T = TypeVar("_T")

END_S = 1.0
"""Seconds that a process has to end by itself once its parent has closed the socket."""

FOR_THE_PARENT = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that a terminal or a scheduler sends to all processes of a job: the parent decides how to react (a last
checkpoint, say, which needs batches), and the others end with it."""


def interpreter(program: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a new interpreter with the module search path of this one; not a fork.

    For workers that a user's script starts: children of `multiprocessing` always import that script, leave a resource
    tracker running, and cannot be started by daemonic workers.
    """
    path = [p for p in sys.path if isinstance(p, str)]
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    executable = os.fsdecode(multiprocessing.spawn.get_executable())
    return subprocess.Popen([executable, *flags, "-c", f"import sys\nsys.path[:] = {path!r}\n{program}"], **options)


class _Multiprocessed:
    """A process of `multiprocessing` with the interface of `subprocess.Popen`."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        self.returncode: int | None = None
        process.start()
        self.pid, self.kill = process.pid or 0, process.kill  # it has one once it is started

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


def start(parent_end: socket.socket, child_end: socket.socket, method: str, inherited: WorkerConfig | None) -> Process:
    """Start a worker at the end `theirs` of a socket pair; a fork also gets `inherited`."""
    # Blocked meanwhile: a child inherits the mask, and installs its handlers before it unblocks signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_PARENT)
    try:
        if method == "spawn":
            program = f"from h5stream.workers.worker import serve\nserve({child_end.fileno()}, {os.getpid()})"
            return interpreter(program, stdin=subprocess.DEVNULL, pass_fds=(child_end.fileno(),))
        # The parent of a process from a fork server is the server, which ends with this process.
        args = (child_end, os.getpid(), parent_end, inherited) if method == "fork" else (child_end, None, None, None)
        context: Any = multiprocessing.get_context(method)
        return _Multiprocessed(context.Process(target=_serve, args=args, daemon=True))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    child_end: socket.socket, parent: int | None, parent_end: socket.socket | None, inherited: WorkerConfig | None
) -> None:
    from h5stream.workers.worker import serve

    if parent_end is not None:
        parent_end.close()  # otherwise it would stay open without the parent
    serve(child_end.detach(), os.getppid() if parent is None else parent, inherited)


def wait_or_kill(process: Process) -> int | None:
    """Wait for a process to end, and kill it after a while; return its status, None if it was killed."""
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def ignore_signals() -> None:
    """Leave signals to the parent, in the child.

    Handlers that do nothing are used instead of SIG_IGN, which programs started by a user's function would inherit.
    """
    for number in FOR_THE_PARENT:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_PARENT)


def checked_method(context: object) -> str:
    """Return the start method of a context, or a method itself; "spawn" by default.

    Not "fork" by default: locks that reader threads hold would stay locked in the child.
    """
    method = context.get_start_method() if hasattr(context, "get_start_method") else context or "spawn"
    if method not in multiprocessing.get_all_start_methods():
        raise OptionError(
            f"multiprocessing_context= takes 'spawn', 'forkserver' or 'fork', or a context of multiprocessing, not "
            f"{context!r}"
        )
    return str(method)


def check_function(name: str, function: Callable[..., object] | None, where: str) -> bytes:
    """Raise if a child could not call a function; return it pickled."""
    way_out = ", or pass multiprocessing_context='fork'"
    try:
        data = pickle.dumps(function)
    except Exception as error:
        raise OptionError(
            f"{name}={function!r} cannot go to {where}, because it cannot be pickled ({error}); define it at the top "
            f"level of a module, where lambdas and inner functions are not{way_out}"
        ) from error
    main = main_module(data)
    if main and "init_main_from_name" not in main and not os.path.isfile(str(main.get("init_main_from_path", ""))):
        raise OptionError(
            f"{name}={function!r} cannot go to {where}, because it was defined in a notebook, at a prompt or in a "
            f"script that was piped in, which another process cannot import; put it into a module that is "
            f"imported{way_out}"
        )
    return data


# --- The script that defines functions is imported in a child as multiprocessing does, with the same guard.


def main_module(functions: bytes) -> dict[str, object] | None:
    """Return how to import the parent's script if pickled functions come from it, else None.

    Otherwise it is not imported: a script that only reads a file then needs no ``if __name__ == "__main__"``.
    """
    if (b"__main__" not in functions and b"__mp_main__" not in functions) or is_being_imported():
        return None  # a script that is only imported may make a loader, but starts no child
    wanted = {"name", "sys_path", "sys_argv", "init_main_from_name", "init_main_from_path"}
    preparation = multiprocessing.spawn.get_preparation_data("h5stream")
    return {name: value for name, value in preparation.items() if name in wanted}


def import_main(main: dict[str, object]) -> None:
    """Import the parent's script, in the child; starting a process meanwhile raises the error of the missing guard."""
    current: Any = multiprocessing.current_process()
    current._inheriting = True
    try:
        multiprocessing.spawn.prepare(main)
    finally:
        del current._inheriting


def is_being_imported() -> bool:
    """Return whether this process is only importing its parent's script."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def check_main_guard(option: str) -> None:
    """Raise if a process is started by a script that a child is only importing."""
    if is_being_imported():
        raise OptionError(
            f"{option} starts a process that imports this script, because a function it needs is defined "
            "here; what trains must not run then. Put it under `if __name__ == '__main__':`, or the function into a "
            "module of its own"
        )


# --- Errors that travel from a child to its parent, which raises them with the child's traceback as cause.


EXITS = (
    "a function of yours, or this script, which it imports, called sys.exit(). Put what trains and exits under "
    "`if __name__ == '__main__':`"
)
"""Why a worker process exits, and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error in a form that can always be sent."""

    error: bytes | None  # the pickled error; None if it cannot be pickled
    message: str  # its type and message
    traceback: str  # with those of its causes

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Make it from a caught error."""
        text = "".join(traceback.format_exception(error))
        lines = traceback.format_exception_only(error)
        message = lines[-1 if isinstance(error, SyntaxError) else 0].strip()  # notes follow the message
        try:
            data = pickle.dumps(error)
            pickle.loads(data)  # many can be pickled but not unpickled
        except Exception:
            return cls(error=None, message=message, traceback=text)
        return cls(error=data, message=message, traceback=text)

    def to_raise(self) -> Exception:
        """Return the error for the parent to raise, of the same type unless that would end the parent too."""
        error: object = None
        if self.error is not None:
            with contextlib.suppress(Exception):
                error = pickle.loads(self.error)
        if error is None:
            error = IsolatedProcessError(f"in the child process, and not to be pickled: {self.message}")
        if not isinstance(error, Exception):
            error = IsolatedProcessError(f"a child process of h5stream was ended by {self.message}; {EXITS}")
        error.__cause__ = RuntimeError(f"in the child process:\n{self.traceback}")
        return error


def exit_error(who: str, exitcode: int | None, way_out: str) -> IsolatedProcessError:
    """Return the error for a process that has ended: how it ended, and the way out."""
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
    hint = "what it had to say is on standard error"
    if exitcode in (0, 1):
        hint += f". If that is nothing, {EXITS}"
    return IsolatedProcessError(f"{who} {how}; {hint}. {way_out}", exitcode=exitcode)


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- Calls in a child process, for files that may crash it.


def ready_children(module: str) -> None:
    """Let the process that `in_child` forks import a module in advance, once for all calls."""
    multiprocessing.set_forkserver_preload([module])
    forkserver.ensure_running()


def in_child(what: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function in another process and return its result."""
    context = multiprocessing.get_context("forkserver")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sending, dict(os.environ), function, args, kwargs))
    with sending:
        child.start()
    try:
        with receiving:
            failure, value = receiving.recv()
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
        raise failure.to_raise()
    return value  # type: ignore[no-any-return]


def _answer(
    link: Connection,
    environment: dict[str, str],
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides, and ends this process
    os.dup2(2, 1)  # output of libraries goes to standard error
    os.environ |= environment
    try:
        reply: tuple[Failure | None, object] = (None, function(*args, **kwargs))
    except Exception as error:
        reply = (Failure.of(error), None)
    link.send(reply)
