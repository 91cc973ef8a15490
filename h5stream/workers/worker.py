"""A process that applies functions to batches: started, watched, spoken with and ended by its parent; and its own side.

What they say to each other are pickles on a socket, each short: the bytes of batches lie in memory that both map.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import logging.handlers
import os
import pickle
import queue
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data._utils import worker as torch_worker

from h5stream.engine.batches import ReadyBatch
from h5stream.engine.run import closed
from h5stream.engine.slots import Slot
from h5stream.errors import OptionError
from h5stream.workers.memory import BorrowedMemory, Loan, Packed, SharedMemory, create_file, pack, unpack
from h5stream.workers.processes import (
    END_S,
    Failure,
    check_main_guard,
    death,
    ignore_signals,
    import_main,
    see_out,
    start,
)
from h5stream.workers.samples import CalledOffError, Collating, SampleFunctions, seed_all

LOOK_S = 0.25
"""Seconds between looks at a process that says nothing. Its end is seen at once, by the closed socket, unless a process
that it forked holds that open; then by this, so that an error comes within a second."""

PARENT_LOOK_S = 1.0
"""How often a parent that says nothing is looked for."""


class Job(NamedTuple):
    """A batch for a worker."""

    run: int  # of which pass, which batch, how many samples
    number: int
    rows: int
    filled: Packed  # its slot and objects


class Done(NamedTuple):
    """What came of a batch: it, or an error, or neither where it was called off."""

    rows: int
    made: Packed | None
    failure: Failure | None
    returned: Sequence[int]  # the loans that ended there


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a worker is told at its start."""

    # number, count, seed: which it is, of how many, and its own seed: what `torch.utils.data.get_worker_info()` gives
    # there
    number: int
    count: int
    seed: int
    functions: SampleFunctions
    on_start: Callable[[int], None] | None  # the user's `worker_init_fn`
    called_off: Loan  # where the parent notes the passes that are over; see `noted`
    whose: str  # the arguments that asked for it, for errors
    main: dict[str, Any] | None  # the parent's script, where a function comes from it


def noted(board: NDArray[np.int64], run: int) -> NDArray[np.int64]:
    """Return the place where a pass is noted that is over; its number stands there. All are, if the first is not 0."""
    return board[1 + run % (len(board) - 1) :][:1]


def _send(link: Connection, *message: Any) -> None:
    """Say something; nothing to a process that is gone, which whoever listens finds out."""
    with contextlib.suppress(OSError):
        link.send_bytes(pickle.dumps(message, protocol=5))  # its own pickler is made anew for each message


def _received(link: Connection, look_s: float, is_there: Callable[[], bool]) -> Iterator[Any]:
    """Yield the messages that come, until the other end is closed, or is not there at a look."""
    poller = select.poll()  # once, which the connection makes for each message
    poller.register(link, select.POLLIN)
    while True:
        try:
            if poller.poll(1000 * look_s):
                data = link.recv_bytes()
            elif is_there():
                continue
            else:
                return
        except (EOFError, OSError):
            return
        yield pickle.loads(data)


# --- the parent's side ----------------------------------------------------------------------------------------


class Worker:
    """A process, from its start to its end.

    # Guarantees: a thread reads, and ends with the process. `post` and `end` may be called by any thread, `end` twice,
    and in a forked child, where it lets go of descriptors and leaves the process alone. What was borrowed of `memory`
    outlives the process. Jobs are done in the order in which they were posted; `_sending` keeps that of `due`.

    `come_back` is told which loans ended there.
    """

    def __init__(self, told: Told, slots: int, method: str, come_back: Callable[[Sequence[int]], None]) -> None:
        check_main_guard(told.whose)
        self._owner_pid, self._come_back, self._whose = os.getpid(), come_back, told.whose
        self.due: collections.deque[Future[Done]] = collections.deque()
        file = create_file()
        try:
            self.memory = BorrowedMemory(file)
            self._socket, theirs = socket.socketpair()
            try:
                with theirs:
                    self._tell([file, slots], told, method)
                    self._process = start(self._socket, theirs, method, told)
                self._link = Connection(os.dup(self._socket.fileno()))
            except BaseException:
                self._socket.close()
                raise
        finally:
            os.close(file)
        self.pid, self._ended, self._sending = self._process.pid, False, threading.Lock()
        self.gone: BaseException | None = None  # why nothing more comes of it
        self._listener = threading.Thread(target=self._listen, name=f"h5stream-worker-{self.pid}", daemon=True)
        try:
            self._listener.start()
        except BaseException:  # Ctrl-C, or no more threads
            self.end()
            raise

    def _tell(self, files: list[int], told: Told, method: str) -> None:
        """Send files, the first of which says what to do: in one, as the process reads nothing before it has torch."""
        file = create_file()
        try:
            with os.fdopen(os.dup(file), "wb") as writing:
                # First what may import what the rest needs; a fork has the rest.
                pickle.dump((told.main, logging.getLogger("h5stream").getEffectiveLevel()), writing, protocol=5)
                pickle.dump(None if method == "fork" else told, writing, protocol=5)
            os.lseek(file, 0, os.SEEK_SET)
            socket.send_fds(self._socket, [b"!"], [file, *files])
        finally:
            os.close(file)

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, and not one that this one was forked from."""
        return os.getpid() == self._owner_pid

    @property
    def usable(self) -> bool:
        """Whether it is there, as far as is known, and can be talked to."""
        return not self._ended and self.gone is None and self._process.poll() is None

    def post(self, job: Job) -> Future[Done]:
        """Give it a batch, and say which loans ended; return what will come of it."""
        made = Future[Done]()
        with self._sending:
            if (gone := self.gone) is None:
                self.due.append(made)
                _send(self._link, job, self.memory.returned())
        if gone is not None:
            made.set_exception(gone)
        return made

    def _listen(self) -> None:
        for message, log in _received(self._link, LOOK_S, lambda: self._process.poll() is None):
            for record in log:
                if (ours := logging.getLogger(record.name)).isEnabledFor(record.levelno):
                    ours.handle(record)
            if isinstance(message, Failure):  # it could not begin
                gone: BaseException = message.raised_here()
                see_out(self._process)
                break
            self._come_back(message.returned)
            self.due.popleft().set_result(message)
        else:
            who, exitcode = f"the child process {self.pid} of {self._whose}", see_out(self._process)
            gone = closed() if self._ended else death(who, exitcode, "Iterate again to start others")
        with self._sending:
            self.gone = gone
        while self.due:
            self.due.popleft().set_exception(gone)

    def end(self) -> None:
        """End the process, and wait until it is gone."""
        if self._ended:
            return
        self._ended = True
        if self.is_ours:
            self.hang_up()
            if self._listener.is_alive() and self._listener is not threading.current_thread():
                self._listener.join(2 * END_S)
        else:
            self._process.returncode = 0  # else it would be waited for when dropped
        self._socket.close()
        self._link.close()

    def hang_up(self) -> None:
        """Let the process know that nothing more comes, though a forked one may hold the socket too."""
        with contextlib.suppress(OSError):  # it is gone
            self._socket.shutdown(socket.SHUT_RDWR)


# --- the other side -------------------------------------------------------------------------------------------


def serve(end: int, parent: int, told: Told | None = None) -> NoReturn:
    """Be the worker of a process, until it hangs up or is gone; `end` is a descriptor."""
    ignore_signals()
    link, status = Connection(end), 0
    try:
        work = _Work(link, told)
    except BaseException as error:
        _send(link, Failure.of(error), [])
    else:
        try:
            for job, returned in _received(link, PARENT_LOOK_S, lambda: os.getppid() == parent):
                work.memory.come_back(returned)
                work.do(job)
        except BaseException as error:  # a function's sys.exit(), or a fault of ours
            status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Without waiting for threads: one may be inside a decoder, and nothing looks at what it writes.
    os._exit(status & 255)


class _Work:
    """Applies the user's functions to batches, one after the other."""

    def __init__(self, link: Connection, told: Told | None) -> None:
        """Learn what is to be done, and begin to."""
        with socket.socket(fileno=os.dup(link.fileno())) as end:
            _, (file, memory, slots), _, _ = socket.recv_fds(end, 1, 3)
        self._link, self._log = link, queue.SimpleQueue[logging.LogRecord]()
        with os.fdopen(file, "rb") as reading:
            main, level = pickle.load(reading)
            ours = logging.getLogger("h5stream")
            ours.setLevel(level)
            ours.propagate, ours.handlers = False, [logging.handlers.QueueHandler(self._log)]
            if main is not None:
                import_main(main)
            self._told = told = told or pickle.load(reading)
        self.memory, self._incoming = SharedMemory(memory), BorrowedMemory(slots)
        self._board = np.frombuffer(self._incoming.borrow(told.called_off), dtype=np.int64)
        threading.Thread(target=_end_with, args=(os.getppid(),), name="h5stream-watch", daemon=True).start()
        torch.set_num_threads(1)  # as many processes as processors
        seed = (told.seed + told.number) % 2**64
        info: Any = torch_worker.WorkerInfo
        torch_worker._worker_info = info(id=told.number, num_workers=told.count, seed=seed, dataset=None)
        seed_all(seed)
        if told.on_start is not None:
            told.on_start(told.number)

    def do(self, job: Job) -> None:
        """Do what is done to a batch, and send what came of it, and what was logged."""
        made = failure = None
        try:
            made = self._made(job)
        except CalledOffError:
            pass
        except Exception as error:
            failure = Failure.of(error)
        # Behind the user's functions, so that what they did not keep is told of.
        done = Done(job.rows, made, failure, self._incoming.returned())
        _send(self._link, done, [self._log.get() for _ in range(self._log.qsize())])

    def _made(self, job: Job) -> Packed:
        over, every, run = noted(self._board, job.run).data, self._board.data, job.run
        slot, objects = unpack(job.filled, self._incoming)
        batch = ReadyBatch(job.number, job.rows, Slot(slot), objects, missing=0)
        collating = Collating(job.rows, self.memory.take)
        value = self._told.functions.made(batch, collating, lambda: bool(over[0] == run or every[0]))
        try:
            return pack(value, self.memory)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise OptionError(
                f"what was made of batch {job.number} cannot leave the process of {self._told.whose}, because it "
                f"cannot be pickled: {error}"
            ) from error


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, whatever the user's function is doing."""
    while os.getppid() == parent:
        threading.Event().wait(PARENT_LOOK_S)
    os._exit(0)
