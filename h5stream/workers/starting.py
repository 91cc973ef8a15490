"""How a process that works for this one is started, and whether the user's functions can go there."""

from __future__ import annotations

import multiprocessing
import multiprocessing.spawn
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from h5stream.errors import OptionError

END_S = 1.0
"""Seconds that a process has to end by itself once its parent hung up."""

FOR_THE_PARENT = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that a terminal or a scheduler sends to all processes of a job: the parent decides what comes of them (a
last checkpoint, say, which needs batches), and the others end with it."""


def interpreter(program: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a new interpreter that finds the modules that this one finds; not a fork.

    Not through `multiprocessing`, whose children import the parent's script whether they need it or not, leave a
    resource tracker running, and are refused to the daemonic workers of others.
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
    """Return the name of a way to start processes, of that or of a context of multiprocessing; "spawn" for None.

    Not a fork by default: reader threads are alive, and what they hold locked would stay so in the child.
    """
    method = context.get_start_method() if hasattr(context, "get_start_method") else context or "spawn"
    if method not in multiprocessing.get_all_start_methods():
        raise OptionError(
            f"multiprocessing_context= takes 'spawn', 'forkserver' or 'fork', or a context of multiprocessing, not "
            f"{context!r}"
        )
    return str(method)


def check_function(name: str, function: Callable[..., Any] | None, where: str) -> None:
    """Refuse a function that a child could not call."""
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


# --- The script that functions come from is imported in a child as multiprocessing does, so that the guard is the same.


def main_module(functions: bytes) -> dict[str, Any] | None:
    """Say how to import the parent's script, if pickled functions come from it.

    Else it is not imported: a script that reads a file needs no ``if __name__ == "__main__"`` for us.
    """
    if (b"__main__" not in functions and b"__mp_main__" not in functions) or _is_being_imported():
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


def _is_being_imported() -> bool:
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def check_main_guard(whose: str) -> None:
    """Refuse to start a process in a script that is only imported, by a child of its own."""
    if _is_being_imported():
        raise OptionError(
            f"{whose} starts a process that imports this script, because a function it needs is defined "
            "here; what trains must not run then. Put it under `if __name__ == '__main__':`, or the function into a "
            "module of its own"
        )
