"""Workers: processes that apply functions to batches. The parent's side starts, watches and ends them.

Messages are short pickles on a socket; the bytes of batches are in memory that both sides map.
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
from h5stream.engine.slots import Slot
from h5stream.errors import LoaderClosedError, OptionError
from h5stream.workers.memory import BorrowedMemory, Loan, PackedBatch, SharedMemory, create_file, pack, unpack
from h5stream.workers.processes import (
    END_S,
    Failure,
    check_main_guard,
    exit_error,
    ignore_signals,
    import_main,
    start,
    wait_or_kill,
)
from h5stream.workers.samples import Collator, SampleFunctions, WorkCancelledError, seed_all

LOOK_S = 0.25
"""Seconds between checks of a silent process. Its end is noticed at once by the closed socket, unless a process that it
forked keeps that open; then by this check, so that an error comes within a second."""

PARENT_LOOK_S = 1.0
"""Seconds between checks whether a silent parent is alive."""


class Job(NamedTuple):
    """A batch for a worker."""

    run: int  # run, number, rows: the pass, the batch, its samples
    number: int
    rows: int
    filled: PackedBatch  # the slot and the objects


class Done(NamedTuple):
    """The result of a job: a batch, an error, or neither if it was cancelled."""

    rows: int
    packed: PackedBatch | None
    failure: Failure | None
    returned: Sequence[int]  # the loans that ended in the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The configuration that a worker gets at its start."""

    # number, count, seed: its number among `count` workers, and its seed, as in `torch.utils.data.get_worker_info()`
    number: int
    count: int
    seed: int
    functions: SampleFunctions
    on_start: Callable[[int], None] | None  # the user's `worker_init_fn`
    cancelled: Loan  # where the parent records passes that are over; see `cancelled_entry`
    option: str  # the argument that requests workers, for errors
    main: dict[str, object] | None  # how to import the parent's script, if a function comes from it


def cancelled_entry(board: NDArray[np.int64], run: int) -> NDArray[np.int64]:
    """Return the entry of a board that equals `run` once it is cancelled; the first of the board cancels all."""
    return board[1 + run % (len(board) - 1) :][:1]


def _send(link: Connection, *message: object) -> None:
    """Send a message; if the process is gone, its listener notices."""
    with contextlib.suppress(OSError):
        link.send_bytes(pickle.dumps(message, protocol=5))  # Connection.send makes a new pickler for each message


def _received(link: Connection, look_s: float, is_there: Callable[[], bool]) -> Iterator[Any]:
    """Yield the messages that arrive, until the other end is closed, or a check finds it gone."""
    poller = select.poll()  # Connection makes a new one for each message
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
    """A worker process, from its start to its end.

    # Guarantees: a thread reads, and ends with the process. `post` and `end` may be called by any thread, `end` twice,
    and in a forked child, where it closes descriptors and leaves the process alone. Memory borrowed from `memory`
    outlives the process. Jobs are done in the order of `post`; `_sending` keeps `due` in the same order.

    `end_loans` is called with the loans that ended in the worker.
    """

    def __init__(
        self, config: WorkerConfig, slots: int, method: str, end_loans: Callable[[Sequence[int]], None]
    ) -> None:
        check_main_guard(config.option)
        self._owner_pid, self._end_loans, self._option = os.getpid(), end_loans, config.option
        self.due: collections.deque[Future[Done]] = collections.deque()
        file = create_file()
        try:
            self.memory = BorrowedMemory(file)
            self._socket, child_end = socket.socketpair()
            try:
                with child_end:
                    self._tell([file, slots], config, method)
                    self._process = start(self._socket, child_end, method, config)
                self._link = Connection(os.dup(self._socket.fileno()))
            except BaseException:
                self._socket.close()
                raise
        finally:
            os.close(file)
        self.pid, self._ended, self._sending = self._process.pid, False, threading.Lock()
        self.gone: BaseException | None = None  # why it yields no more results
        self._listener = threading.Thread(target=self._listen, name=f"h5stream-worker-{self.pid}", daemon=True)
        try:
            self._listener.start()
        except BaseException:  # Ctrl-C, or no more threads
            self.end()
            raise

    def _tell(self, files: list[int], config: WorkerConfig, method: str) -> None:
        """Send descriptors, the first of a file with the configuration: a single message, before torch is imported."""
        file = create_file()
        try:
            with os.fdopen(os.dup(file), "wb") as writing:
                # First the script to import, which unpickling the rest needs; a fork has the rest.
                pickle.dump((config.main, logging.getLogger("h5stream").getEffectiveLevel()), writing, protocol=5)
                pickle.dump(None if method == "fork" else config, writing, protocol=5)
            os.lseek(file, 0, os.SEEK_SET)
            socket.send_fds(self._socket, [b"!"], [file, *files])
        finally:
            os.close(file)

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, rather than a process that this one was forked from."""
        return os.getpid() == self._owner_pid

    @property
    def usable(self) -> bool:
        """Whether it is alive, as far as is known."""
        return not self._ended and self.gone is None and self._process.poll() is None

    def post(self, job: Job) -> Future[Done]:
        """Send a job, and the loans that ended; return a future of the result."""
        future = Future[Done]()
        with self._sending:
            if (gone := self.gone) is None:
                self.due.append(future)
                _send(self._link, job, self.memory.returned())
        if gone is not None:
            future.set_exception(gone)
        return future

    def _listen(self) -> None:
        for message, log in _received(self._link, LOOK_S, lambda: self._process.poll() is None):
            for record in log:
                if (logger := logging.getLogger(record.name)).isEnabledFor(record.levelno):
                    logger.handle(record)
            if isinstance(message, Failure):  # it could not start
                gone: BaseException = message.to_raise()
                wait_or_kill(self._process)
                break
            self._end_loans(message.returned)
            self.due.popleft().set_result(message)
        else:
            who, exitcode = f"the child process {self.pid} of {self._option}", wait_or_kill(self._process)
            gone = (
                LoaderClosedError.of_iterator()
                if self._ended
                else exit_error(who, exitcode, "Iterate again to start others")
            )
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
            self._process.returncode = 0  # otherwise dropping it would wait for it
        self._socket.close()
        self._link.close()

    def hang_up(self) -> None:
        """Shut the socket down, so that the process ends even if a fork of it holds the socket too."""
        with contextlib.suppress(OSError):  # the process is gone
            self._socket.shutdown(socket.SHUT_RDWR)


# --- the worker's side ----------------------------------------------------------------------------------------


def serve(end: int, parent: int, config: WorkerConfig | None = None) -> NoReturn:
    """Run the worker of a process until it hangs up or is gone; `end` is a descriptor."""
    ignore_signals()
    link, status = Connection(end), 0
    try:
        work = _Work(link, config)
    except BaseException as error:
        _send(link, Failure.of(error), [])
    else:
        try:
            for job, returned in _received(link, PARENT_LOOK_S, lambda: os.getppid() == parent):
                work.memory.end_loans(returned)
                work.do(job)
        except BaseException as error:  # a function's sys.exit(), or an internal error
            status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Without waiting for threads: one may be inside a decoder, whose output is no longer needed.
    os._exit(status & 255)


class _Work:
    """Applies the user's functions to batches, one after the other."""

    def __init__(self, link: Connection, config: WorkerConfig | None) -> None:
        """Receive the configuration, and start."""
        with socket.socket(fileno=os.dup(link.fileno())) as end:
            _, (file, memory, slots), _, _ = socket.recv_fds(end, 1, 3)
        self._link, self._log = link, queue.SimpleQueue[logging.LogRecord]()
        with os.fdopen(file, "rb") as reading:
            main, level = pickle.load(reading)
            logger = logging.getLogger("h5stream")
            logger.setLevel(level)
            logger.propagate, logger.handlers = False, [logging.handlers.QueueHandler(self._log)]
            if main is not None:
                import_main(main)
            self._config = config = config or pickle.load(reading)
        self.memory, self._incoming = SharedMemory(memory), BorrowedMemory(slots)
        self._board = np.frombuffer(self._incoming.borrow(config.cancelled), dtype=np.int64)
        threading.Thread(target=_end_with, args=(os.getppid(),), name="h5stream-watch", daemon=True).start()
        torch.set_num_threads(1)  # there are as many processes as processors
        seed = (config.seed + config.number) % 2**64
        info: Any = torch_worker.WorkerInfo
        torch_worker._worker_info = info(id=config.number, num_workers=config.count, seed=seed, dataset=None)
        seed_all(seed)
        if config.on_start is not None:
            config.on_start(config.number)

    def do(self, job: Job) -> None:
        """Apply the functions to a batch, and send the result and the log records."""
        packed = failure = None
        try:
            packed = self._apply(job)
        except WorkCancelledError:
            pass
        except Exception as error:
            failure = Failure.of(error)
        # After the user's functions, so that loans which they did not keep are included.
        done = Done(job.rows, packed, failure, self._incoming.returned())
        _send(self._link, done, [self._log.get() for _ in range(self._log.qsize())])

    def _apply(self, job: Job) -> PackedBatch:
        over, all_over, run = cancelled_entry(self._board, job.run).data, self._board.data, job.run
        slot, objects = unpack(job.filled, self._incoming)
        batch = ReadyBatch(job.number, job.rows, Slot(slot), objects, missing=0)
        collate = Collator(job.rows, self.memory.take)
        value = self._config.functions.apply(batch, collate, lambda: bool(over[0] == run or all_over[0]))
        try:
            return pack(value, self.memory)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise OptionError(
                f"what was made of batch {job.number} cannot leave the process of {self._config.option}, because it "
                f"cannot be pickled: {error}"
            ) from error


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, whatever the user's function is doing."""
    while os.getppid() == parent:
        threading.Event().wait(PARENT_LOOK_S)
    os._exit(0)
