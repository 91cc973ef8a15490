"""The engine whose reader threads belong to a child process; see `h5stream.engine.running` for the seam."""

from __future__ import annotations

import collections
import io
import logging
import os
import pickle
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from h5stream.engine.batches import ReadyBatch
from h5stream.engine.counters import RunCounters
from h5stream.engine.running import closed, made_before_fork, timed_out
from h5stream.engine.slots import Memory, Slot, SlotFormat
from h5stream.isolation.fed import Feeder
from h5stream.isolation.messages import Allow, Ended, Filled, Report
from h5stream.isolation.packing import unpack
from h5stream.isolation.parent import Child
from h5stream.isolation.setup import Setup, check_function, check_main_guard, main_module
from h5stream.order.blocks import Blocks
from h5stream.order.epoch import Order, UsersOrder
from h5stream.storage.layout import SampleLayout


@dataclass(slots=True)
class MadeBatch(ReadyBatch):
    """A batch of which the child's transform made something.

    Attributes
    ----------
    value : object
        What it made.
    """

    value: Any = None


def made_value(batch: ReadyBatch) -> Any:
    """Give what the child's transform made of a batch, for engines that were given one."""
    assert isinstance(batch, MadeBatch)
    return batch.value


class ProcessEngine:
    """Begins passes in a child process, which is started at the first and serves all of them.

    # Guarantees: used by the thread that iterates. The child ends with this object, with `close`, and with the
    # process.

    Parameters
    ----------
    layout : SampleLayout
        The fields and their files.
    kept : tuple of int
        Which small datasets are read once.
    blocks : Blocks
        What orders are made of.
    slot_format : SlotFormat
        How the slots are packed that the child fills.
    threads : int
        Reader threads; 0 is one, since the thread that asks is in another process.
    on_thread_start, transform : callable or None
        What the child is to call, at the start of each reader thread and with each batch.
    skip_corrupt : bool
        Leave out the rows of corrupt chunks.
    pin : callable, optional
        Called with each piece of shared memory that batches lie in.

    Raises
    ------
    OptionError
        If the child could not call a function.
    """

    def __init__(
        self,
        layout: SampleLayout,
        kept: tuple[int, ...],
        blocks: Blocks,
        slot_format: SlotFormat,
        *,
        threads: int,
        on_thread_start: Callable[[int], None] | None = None,
        transform: Callable[[Any], Any] | None = None,
        skip_corrupt: bool = False,
        pin: Callable[[Memory], object] | None = None,
    ) -> None:
        check_function("transform", transform)
        check_function("worker_init_fn", on_thread_start)
        self._layout, self._kept, self._blocks, self._format = layout, kept, blocks, slot_format
        self._threads, self._skip_corrupt, self._pin = max(1, threads), skip_corrupt, pin
        self._on_thread_start, self._transform = on_thread_start, transform
        self._child: Child | None = None
        self._end: Callable[[], object] = lambda: None

    @property
    def reads_ahead(self) -> bool:
        """Whether a pass reads by itself.

        Not where a transform runs there: it would mix two epochs' batches. Nor where the child is gone, of which the
        pass that is under way is still to be told: another would take its place.
        """
        return self._transform is None and (self._child is None or self._child.usable)

    @property
    def pid(self) -> int | None:
        """The child's process; None while there is none."""
        return None if self._child is None else self._child.pid

    @property
    def held_nbytes(self) -> int:
        """Slots are the child's, and not counted here."""
        return 0

    def begin(self, order: Order, first_batch: int, *, max_open_batches: int, world_size: int = 1) -> IsolatedRun:
        """Begin a pass over an order; the child is started if there is none."""
        if self._child is None or not self._child.usable:
            self._start()
        assert self._child is not None
        counters = RunCounters(
            threads=self._threads,
            ready_limit=max_open_batches,
            row_nbytes=sum(f.row_nbytes for f in self._layout.fields),
        )
        # The windows of a sampler, or of an order of the user's, are sent one by one: that code stays here.
        sent = None if isinstance(order, UsersOrder) else _pickled(order, self._blocks)
        return IsolatedRun(self._child, order, sent, counters, first_batch, max_open_batches, world_size)

    def _start(self) -> None:
        check_main_guard()
        self.close()
        functions = pickle.dumps((self._transform, self._on_thread_start))
        setup = Setup(
            layout=self._layout,
            kept=self._kept,
            slot_format=self._format,
            blocks=self._blocks,
            threads=self._threads,
            skip_corrupt=self._skip_corrupt,
            functions=functions,
            main=main_module(functions),
            log_level=logging.getLogger("h5stream").getEffectiveLevel(),
            seed=torch.initial_seed() % 2**63,
        )
        self._child = Child(setup, self._pin)
        self._end = weakref.finalize(self, self._child.end)

    def trim(self) -> None:
        """Do nothing: free slots are the child's."""

    def renew(self) -> None:
        """Leave the child to the process that this one was forked from; the next pass starts another."""
        self.close()

    def close(self) -> None:
        """End the child; in a forked process, only forget it."""
        self._end()
        self._child, self._end = None, lambda: None


class IsolatedRun:
    """One pass over an order, read by a child; see `h5stream.engine.running.Running`.

    # Guarantees: `hear` is called by whoever reads the child's messages, and `stop` by anybody; they and the
    # consumer share `_inbox`, whose `append` and `popleft` need no lock. The consumer alone writes the rest.
    """

    def __init__(
        self,
        child: Child,
        order: Order,
        sent: bytes | None,
        counters: RunCounters,
        first_batch: int,
        max_open_batches: int,
        world_size: int = 1,
    ) -> None:
        self.order, self.counters = order, counters
        self.left_out: set[int] = set()
        self._child, self._pid = child, os.getpid()
        self._inbox: collections.deque[Filled | Ended] = collections.deque()
        self._report: Report | None = None
        self._tally = counters.tally()
        self._next, self._ended, self._stopped = first_batch, False, False
        self._max_open = max_open_batches
        self._number = child.begin(self, sent, first_batch, max_open_batches, world_size)
        self._feeder = Feeder(order, self._number, first_batch) if sent is None else None
        try:
            self._feed()
        except BaseException:  # Ctrl-C, in the user's sampler
            self.stop()
            raise

    def hear(self, message: Filled | Ended) -> None:
        """Take in a message; what comes after `stop` is given back."""
        if message.report is not None:
            self._take_in(message.report)
        self._inbox.append(message)
        if self._stopped:
            self._empty()

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Wait for the next batch; None at the end. What it raises is that of `Run.next_batch`.

        Raises
        ------
        IsolatedProcessError
            If the child is gone, and what it sent before is used up.
        """
        self._check()
        self._child.hear()
        asked = self.counters.asked(self._ready)
        deadline = time.monotonic() + timeout_s if timeout_s else None
        while not self._inbox and not self._ended:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise timed_out(self._next, timeout_s)
            self._child.wait(left_s)
            self._check()
        batch = self._take()
        if batch is not None:
            self.counters.waited(asked)
        return batch

    def next_if_ready(self) -> ReadyBatch | None:
        """Give the next batch if that needs no waiting; None at the end as well."""
        self._check()
        self._child.hear()
        return self._take() if self._inbox else None

    @property
    def _ready(self) -> int:
        """Batches that are here, and those behind them; one that must come first is not ready."""
        here = len(self._inbox)
        return here + (self._report.ready if self._report is not None else 0) if here else 0

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise made_before_fork()
        if self._stopped:
            raise closed()

    def _take(self) -> ReadyBatch | None:
        """Take the first message of the inbox, which is not empty unless the end was met."""
        message = None if self._ended else self._inbox.popleft()
        if message is None:
            return None
        if isinstance(message, Ended):
            self._end_with(message)
            return None
        try:
            self.left_out.update(range(self._next, message.number))
            self._next = message.number + 1
            self._child.took(self._number, 1)
            self.counters.gave(message.rows)
            self._feed()
        except BaseException:
            self._inbox.appendleft(message)  # `stop` gives it back
            raise
        return self._batch(message)

    def _end_with(self, message: Ended) -> None:
        if message.failure is not None:
            self._inbox.appendleft(message)  # who asks again is told again
            raise message.failure.raised_here()
        self._ended = True
        if self._feeder is not None and self._feeder.error is not None:
            raise self._feeder.error

    def _batch(self, message: Filled) -> ReadyBatch:
        own = None if message.place is None else self._child.arenas.slot(message.place)
        if message.made is None:
            assert own is not None
            return ReadyBatch(message.number, message.rows, own, message.objects, missing=0)
        stream, pieces, place = message.made
        made = None if place is None else self._child.arenas.slot(place)
        value = unpack(stream, pieces, own, made)
        return MadeBatch(message.number, message.rows, Slot(_NOTHING), {}, missing=0, value=value)

    def _take_in(self, report: Report) -> None:
        self._report = report
        self._tally.become(report.totals)
        self.counters.skipped_rows = report.skipped_rows
        for name in report.skipped_chunks:
            self.counters.skip(name)

    def _feed(self) -> None:
        """Send windows as far as the child may read."""
        if self._feeder is not None:
            for window in self._feeder.due(self._next + self._max_open):
                self._child.post(window)

    def left_to_hand_over(self) -> int | None:
        """Give the batches that are open once nothing is left to read; None before that, as far as is known here."""
        if self._report is None or self._report.left is None:
            return None
        return self._report.left + sum(isinstance(message, Filled) for message in self._inbox.copy())

    def allow(self, max_open_batches: int) -> None:
        """Change how many batches may be open."""
        self._max_open = max_open_batches
        self._child.post(Allow(self._number, max_open_batches))

    def stop(self) -> None:
        """End the pass; the child ends its threads, and what it sent meanwhile is given back."""
        if os.getpid() != self._pid:
            return
        self.counters.end()
        self._stopped = True
        self._child.forget(self._number)
        self._empty()

    def _empty(self) -> None:
        while self._inbox:
            try:
                message = self._inbox.popleft()
            except IndexError:  # another thread was faster
                return
            if isinstance(message, Filled):
                self._child.arenas.returned.extend(message.places)


_NOTHING: Memory = np.empty(0, dtype=np.uint8)


class _Pickler(pickle.Pickler):
    """Leaves out the blocks, which the child has."""

    def __init__(self, stream: io.BytesIO, blocks: Blocks) -> None:
        super().__init__(stream, protocol=5)
        self._blocks = blocks

    def persistent_id(self, value: Any) -> str | None:
        return "blocks" if value is self._blocks else None


def _pickled(order: Order, blocks: Blocks) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, blocks).dump(order)
    return stream.getvalue()
