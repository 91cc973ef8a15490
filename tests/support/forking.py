"""Python processes that begin with everything imported: forks of one parent, where each would import torch for seconds.

`Forked` is used like ``subprocess.Popen([sys.executable, "-c", code, ...], text=True)`` with pipes at all its ends. At
its end threads are waited for and ``atexit`` is called, but modules are not taken apart, which takes ten times as long
as the fork: `whole_end` asks for that too. What is told of a start needs a fresh start.
"""

# ruff: noqa: SIM115 (what is opened lives as long as the process)
import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import io
import json
import multiprocessing
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import warnings
import weakref
from pathlib import Path

OPTIMIZERS = ("torch._dynamo",)
"""What the first optimizer of a process imports, for two seconds."""

SERVED = multiprocessing.get_context("forkserver")
SERVED.set_forkserver_preload(["h5stream.loader.loader", "h5stream.staging"])
"""Like the context that spawns, of processes that are forks of one which has imported what takes them seconds."""

end_now = os._exit
"""Ends a process without what Python does at its end: for forks, which have that of their parent."""

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
REQUEST_NBYTES = 1 << 17
MOST_ENDS = 16
ABOVE_ALL = 500


def python_path(*folders):
    """Join these folders and what is on ``PYTHONPATH`` already, where some machines have their packages."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))


class Forked:
    """A process that runs some code as ``__main__``; `path` is the file that the code says it is of.

    With `binary` pipes, its errors go where ours do. What it `imports` its parent has imported, once.
    """

    def __init__(self, code, *arguments, environment=None, path=None, binary=False, whole_end=False, imports=()):
        pipes = [os.pipe() for _ in range(4)]
        if binary:
            os.dup2(2, pipes[2][1])
        ours, theirs = zip(pipes[0][::-1], *pipes[1:], strict=True)
        try:
            self.pid = _ask(
                theirs,
                code=code,
                arguments=[str(path or "-c"), *map(str, arguments)],
                environment={**os.environ, **(environment or {})},
                path=path and str(path),
                whole_end=whole_end,
                imports=imports,
            )
        finally:
            for end in theirs:
                os.close(end)
        mode = "b" if binary else ""
        self.stdin, self.stdout, self.stderr = (open(end, way + mode) for end, way in zip(ours, "wrr", strict=False))
        if binary:
            self.stderr.close()
        self._ended = open(ours[3])
        self.returncode = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()
        self.wait()

    def poll(self):
        return self.wait(0)

    def wait(self, timeout=PATIENCE_S):
        """Give the exit status, negative for a signal; None if it still runs then."""
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = int(self._ended.read())
            self._ended.close()
        return self.returncode

    def communicate(self, timeout=PATIENCE_S):
        """Give what it says on both ends until it ends; it is killed if that takes too long."""
        hang = threading.Timer(timeout, self.kill)
        hang.start()
        if self.stdout.closed:
            return "", ""
        said = []
        listener = threading.Thread(target=lambda: said.append(self.stderr.read()))
        listener.start()
        self.stdin.close()
        out = self.stdout.read()
        listener.join()
        self.__exit__()
        hang.cancel()
        return out, said[0]

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its parent is about to tell
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def run(code, *arguments, **options):
    """Run some code to its end, like ``subprocess.run``."""
    process = Forked(code, *arguments, **options)
    out, err = process.communicate()
    return subprocess.CompletedProcess(code, process.returncode, out, err)


def guards_are_forks(monkeypatch):
    """Let the processes that look at files first be forks; tests/workers/test_guard.py has real ones."""
    from h5stream.workers import processes

    monkeypatch.setattr(processes, "interpreter", lambda program, **_: Forked(program, binary=True))


def in_forked_child(work, limit_s=PATIENCE_S):
    """Run `work` in a forked child; give what it returned, or fail with its traceback."""

    def answer(_):
        try:
            return pickle.dumps((True, work())).hex()
        except BaseException:
            return pickle.dumps((False, traceback.format_exc())).hex()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads alive is what is tested
        child = Standing(answer)
    killer = threading.Timer(limit_s, os.kill, (child.pid, 9))  # a deadlock in the child must not hang the tests
    killer.start()
    said = child.ask("")
    killer.cancel()
    killer.join()
    child.end()
    assert said, "the child hung and was killed"
    well, answer = pickle.loads(bytes.fromhex(said))
    assert well, answer
    return answer


class Standing:
    """A fork of this process that answers lines with `answer`, each in turn, until it is ended or dies of one."""

    def __init__(self, answer):
        theirs, self._questions = os.pipe()
        ours, answers = os.pipe()
        self.asked, self.pid = 0, os.fork()
        if self.pid == 0:
            try:
                os.close(self._questions)
                os.close(ours)
                with open(theirs) as asked, open(answers, "w", buffering=1) as said:
                    for line in asked:
                        said.write(answer(line) + "\n")
                end_now(0)
            except BaseException:
                traceback.print_exc()
            finally:
                end_now(1)
        os.close(theirs)
        os.close(answers)
        self._said = open(ours)

    def ask(self, line):
        """Give the line that it answers, None if it died instead."""
        self.asked += 1
        with contextlib.suppress(BrokenPipeError):
            os.write(self._questions, line.rstrip("\n").encode() + b"\n")
        said = self._said.readline()
        return said.rstrip("\n") if said.endswith("\n") else None

    def end(self):
        """Let it end, and give its exit status, negative for a signal."""
        os.close(self._questions)
        self._said.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _ask(ends, **request):
    link = _link()
    request["folder"] = os.getcwd()
    socket.send_fds(link, [json.dumps(request).encode()], list(ends))
    return int(link.recv(64))


@functools.cache
def _link():
    """Start the parent, once; it ends when its link does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        code = f"import sys; sys.path[:] = {sys.path!r}; from support import forking; forking.serve({theirs.fileno()})"
        command = [sys.executable, "-W", "ignore", "-c", code]
        parent = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    atexit.register(lambda: (ours.close(), parent.wait(PATIENCE_S)))
    return ours


def serve(descriptor):
    """Be the parent; in each child, come back and be what was asked for."""
    import h5stream

    for name in h5stream.__all__:
        getattr(h5stream, name)
    gc.collect()
    gc.freeze()
    link, running = socket.socket(fileno=descriptor), {}

    def count(*_):
        while running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # a signal in between, and this function within itself, took the last
                return
            if pid == 0:
                return
            with open(running.pop(pid), "w") as end:
                end.write(str(os.waitstatus_to_exitcode(status)))

    signal.signal(signal.SIGCHLD, count)
    while True:
        request, ends, *_ = socket.recv_fds(link, REQUEST_NBYTES, MOST_ENDS)
        if not request:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # none ends before it is written down
        asked = json.loads(request)
        for module in asked.get("imports", ()):
            importlib.import_module(module)
        _keep_what_is_there()
        child = os.fork()
        if child == 0:
            for end in (*running.values(), ends.pop()):
                os.close(end)
            link.close()
            _become(asked, ends)
            return
        running[child] = ends.pop()
        for end in ends:
            os.close(end)
        link.send(str(child).encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _keep_what_is_there():
    """Let no fork take apart at its end what it has of its parent: torch's modules alone would take it tens of ms."""
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False


def _become(request, ends):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD, ABOVE_ALL) for end in ends]  # out of the way of the numbers they get
    for end in ends:
        os.close(end)
    for number, end in enumerate(moved):
        os.dup2(end, number)
        os.close(end)
    # Those that are there believe that they write to what the parent wrote to.
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(open(number, mode, closefd=False), line_buffering=number == 2, errors=errors)
        for number, mode, errors in ((0, "rb", "strict"), (1, "wb", "strict"), (2, "wb", "backslashreplace"))
    )
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    if request.get("path"):
        main.__file__ = request["path"]
        sys.path.insert(0, str(Path(request["path"]).parent))
    code = compile(request["code"], request.get("path") or "<string>", "exec")
    if request.get("whole_end"):
        exec(code, main.__dict__)
    else:
        _end(lambda: exec(code, main.__dict__))


def _end(work):
    status = 0
    try:
        work()
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        sys.excepthook(type(error), error, error.__traceback__.tb_next.tb_next)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    end_now(status)
