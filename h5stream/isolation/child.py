"""The child: reads what the parent asks for, makes of it what the transform says, and ends with its parent."""

from __future__ import annotations

import collections
import contextlib
import io
import logging
import os
import pickle
import random
import select
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch

from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.executor import Run
from h5stream.engine.landing.resident import ResidentDatasets
from h5stream.engine.reader import RowReader
from h5stream.errors import LoaderClosedError, OptionError
from h5stream.isolation.failures import Failure
from h5stream.isolation.fed import FedOrder
from h5stream.isolation.link import Frames, frame
from h5stream.isolation.memory import Place, SharedFile, SharedRing, SharedRooms, place_of
from h5stream.isolation.messages import Allow, Begin, Ended, Feed, Filled, Made, Report, SetupFailed, Stop, Took
from h5stream.isolation.packing import Packed, pack
from h5stream.isolation.process import ignore_signals
from h5stream.isolation.setup import Setup, import_main
from h5stream.order.epoch import Order

PARENT_LOOK_MS = 1000
"""How often the child looks whether its parent is there; a closed link says so at once, unless a process that the
parent forked holds it open."""

SENT_AHEAD = 4
"""Batches that are sent before the consumer asks: transformed, and without a trip to the child to be had."""

_log = logging.getLogger("h5stream")


class Serving:
    """What all passes of a child share.

    # Guarantees: `send` may be called by any thread; `_sending` keeps messages whole. The rest is written once.
    """

    def __init__(self, end: socket.socket, setup: Setup, file: SharedFile) -> None:
        self._end, self._sending = end, threading.Lock()
        self.setup, self.file = setup, file
        self.carrier = RowReader(setup.layout)
        self.kept = ResidentDatasets(self.carrier, setup.kept)
        self.slots = SharedRing(file, setup.slot_format.nbytes)
        self.rooms = SharedRooms(file)
        self.assembler = Assembler(setup.layout, gives_lists=True)  # transforms get what the parent would give them
        self.log = CollectedLog()
        self.transform: Callable[[Any], Any] | None
        self.on_thread_start: Callable[[int], None] | None
        self.transform, self.on_thread_start = pickle.loads(setup.functions)

    def send(self, message: Any) -> None:
        """Send a message; waits until the parent has read what came before, if that is much."""
        data = frame(message)
        with self._sending:
            self._end.sendall(data)


class Pass:
    """One pass over an order; its own thread takes what the engine fills, and sends it.

    # Guarantees: `_in_hand`, `_max_open` and `_stopped` are read and written under `_changed`. The thread sends
    # only while fewer than `SENT_AHEAD` batches are on their way, and the engine counts those as open, so that
    # both together stay within what the parent allowed.
    """

    def __init__(self, serving: Serving, message: Begin) -> None:
        self._serving, self._begin = serving, message
        self._changed = threading.Condition()
        self._max_open, self._in_hand, self._stopped = message.max_open_batches, 0, False
        self._run: Run | None = None
        self._named: set[str] = set()
        self.fed = FedOrder() if message.order is None else None
        threading.Thread(target=self._serve, name=f"h5stream-pass-{message.run}", daemon=True).start()

    # --- called by the thread that reads messages -------------------------------------------------------

    def took(self, batches: int) -> None:
        """Learn that the consumer took batches."""
        with self._changed:
            self._in_hand -= batches
            self._tell()

    def allow(self, max_open_batches: int) -> None:
        """Change how many batches may be open, here and on their way."""
        with self._changed:
            self._max_open = max_open_batches
            self._tell()

    def stop(self) -> None:
        """End it; nothing more is sent, but perhaps the batch that is being sent."""
        with self._changed:
            self._stopped, run = True, self._run
            self._changed.notify_all()
        if self.fed is not None:
            self.fed.feed(None)
        if run is not None:
            run.stop()

    def _tell(self) -> None:
        """Let the engine and the sending thread know what changed; called under the lock."""
        if self._run is not None:
            self._run.allow(self._max_open, self._in_hand)
        self._changed.notify_all()

    # --- the pass's own thread --------------------------------------------------------------------------

    def _serve(self) -> None:
        failure: Failure | None = None
        try:
            run = self._start()
            while self._may_send() and (batch := run.next_batch()) is not None:
                self._send(run, batch)
        except LoaderClosedError:
            return
        except OSError as error:
            if isinstance(error, BrokenPipeError | ConnectionResetError):  # the parent is gone
                return
            failure = Failure.of(error)
        except BaseException as error:
            failure = Failure.of(error)
        if not self._stopped:
            report = None if self._run is None else self._report(self._run)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone
                self._serving.send(Ended(self._begin.run, failure, report))

    def _start(self) -> Run:
        serving, message = self._serving, self._begin
        order: Order = self.fed if self.fed is not None else _order(message.order or b"", serving.setup)
        run = Run(
            serving.carrier,
            serving.kept,
            order,
            serving.slots,
            serving.setup.slot_format,
            threads=serving.setup.threads,
            max_open_batches=message.max_open_batches,
            first_batch=message.first_batch,
            on_thread_start=serving.on_thread_start,
            skip_corrupt=serving.setup.skip_corrupt,
            world_size=message.world_size,
        )
        with self._changed:
            self._run = run
            self._tell()
            stopped = self._stopped
        if stopped:
            run.stop()
        return run

    def _may_send(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._in_hand < SENT_AHEAD)
            return not self._stopped

    def _send(self, run: Run, batch: ReadyBatch) -> None:
        with self._changed:
            self._in_hand += 1
            self._tell()
        place: Place | None = place_of(batch.slot)
        made: Made | None = None
        objects = batch.objects
        if self._serving.transform is not None:
            packed, objects = self._transformed(batch), {}
            made = packed.stream, packed.pieces, None if packed.made is None else place_of(packed.made)
            if not packed.uses_own_slot:
                self._serving.slots.give_back(batch.slot)
                place = None
        report = self._report(run)
        self._serving.send(Filled(self._begin.run, batch.number, batch.rows, place, objects, made, report))

    def _transformed(self, batch: ReadyBatch) -> Packed:
        serving = self._serving
        assert serving.transform is not None
        try:
            leased = serving.slots.lease(batch.slot)
            given = serving.assembler.batch(leased, serving.setup.slot_format, batch.rows, batch.objects, apart=False)
            return self._packed(serving.transform(given), batch)
        except BaseException:
            serving.slots.give_back(batch.slot)
            raise

    def _packed(self, value: Any, batch: ReadyBatch) -> Packed:
        try:
            return pack(value, batch.slot, self._serving.rooms)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise OptionError(
                f"what transform= made of batch {batch.number} cannot leave the child process of isolation='process', "
                f"because it cannot be pickled: {error}"
            ) from error

    def _report(self, run: Run) -> Report:
        counters = run.counters
        new = [name for name in counters.skipped_chunks if name not in self._named]
        self._named.update(new)
        return Report(
            left=run.left_to_hand_over(),
            ready=run.ready,
            totals=counters.totals(),
            skipped_rows=counters.skipped_rows,
            skipped_chunks=new,
            log=self._serving.log.taken(),
        )


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, setup: Setup) -> None:
        super().__init__(io.BytesIO(data))
        self._setup = setup

    def persistent_load(self, name: Any) -> Any:
        assert name == "blocks"
        return self._setup.blocks


def _order(data: bytes, setup: Setup) -> Order:
    order: Order = _Unpickler(data, setup).load()
    return order


class CollectedLog(logging.Handler):
    """Keeps what is logged for the parent, whose handlers are the user's.

    # Guarantees: any thread may log; a deque's `append` and `popleft` need no lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._records: collections.deque[tuple[int, str, str]] = collections.deque(maxlen=1000)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self._records.append((record.levelno, record.name, record.getMessage()))

    def taken(self) -> list[tuple[int, str, str]]:
        """Give the records since the last call."""
        taken = []
        while self._records:
            taken.append(self._records.popleft())
        return taken


class Desk:
    """Reads the parent's messages; never sends, so that neither side can wait for the other to read."""

    def __init__(self, serving: Serving) -> None:
        self._serving, self._passes = serving, dict[int, Pass]()

    def handle(self, message: Any) -> None:
        """Do what a message says."""
        if isinstance(message, Begin):
            self._passes[message.run] = Pass(self._serving, message)
            return
        if isinstance(message, Took):
            self._serving.file.come_back(message.returned)
        served = self._passes.get(message.run)
        if served is None:
            return
        if isinstance(message, Took):
            served.took(message.batches)
        elif isinstance(message, Feed):
            if served.fed is not None:
                served.fed.feed(message)
        elif isinstance(message, Allow):
            served.allow(message.max_open_batches)
        elif isinstance(message, Stop):
            self._passes.pop(message.run).stop()

    def close(self) -> None:
        """End all passes, where the process goes on without them."""
        while self._passes:
            self._passes.popitem()[1].stop()


def serve(link: int, setup: int, memory: int, parent: int) -> NoReturn:
    """Be the child of `parent`, until it hangs up; the others are descriptors."""
    ignore_signals()
    end = socket.socket(fileno=link)
    try:
        with os.fdopen(setup, "rb") as file:
            told: Setup = pickle.load(file)
        _prepare(told)
        serving = Serving(end, told, SharedFile(memory))
        _log.addHandler(serving.log)
    except BaseException as error:
        end.sendall(frame(SetupFailed(Failure.of(error))))
        _leave()
    listen(end, Desk(serving), lambda: os.getppid() == parent)
    _leave()


def _prepare(setup: Setup) -> None:
    """Make this process what its functions expect."""
    _log.setLevel(setup.log_level)
    _log.propagate = False
    random.seed(setup.seed)
    np.random.seed(setup.seed % 2**32)
    torch.manual_seed(setup.seed)
    if setup.main is not None:
        import_main(setup.main)


def listen(end: socket.socket, desk: Desk, has_parent: Callable[[], bool]) -> None:
    """Do what the parent says, until it hangs up or is gone."""
    frames, poller = Frames(), select.poll()
    poller.register(end, select.POLLIN)
    while has_parent():
        if not poller.poll(PARENT_LOOK_MS):
            continue
        try:
            data = end.recv(1 << 20)
        except OSError:
            return
        if not data:
            return
        for message in frames.feed(data):
            desk.handle(message)


def _leave() -> NoReturn:
    """End without waiting for threads: one may be inside a decoder, and what it writes to nobody looks at."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)
