"""The loader in a child: an ordinary engine fills slots there, and finished batches leave it."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from h5stream.engine.batches import ReadyBatch
from h5stream.engine.running import Running
from h5stream.engine.slots import SlotRing, Slots
from h5stream.engine.threads import ThreadEngine
from h5stream.errors import LoaderClosedError, OptionError
from h5stream.order.blocks import Blocks
from h5stream.workers.child import Parent
from h5stream.workers.failures import Failure
from h5stream.workers.messages import Begin, Ended, Filled, NextWindow, Report, Room, Stop
from h5stream.workers.orders import ReceivedOrder, unpickled
from h5stream.workers.packing import Packed, pack

SENT_AHEAD = 4
"""Batches that are sent before the consumer asks: finished, and without a trip to the child to be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Makes the user's batch of a filled slot, in the process that filled it."""

    to_tensors: Callable[[ReadyBatch], Any]  # makes its tensors
    transform: Callable[[Any], Any]  # the user's function

    def __call__(self, batch: ReadyBatch) -> Any:
        """Make it."""
        return self.transform(self.to_tensors(batch))


class LoaderWork:
    """Runs passes for the parent; see `h5stream.workers.child.Work`."""

    def __init__(
        self,
        engine: Callable[[Callable[[], Slots]], ThreadEngine],
        slot_nbytes: int,
        finish: Finish | None,
        blocks: Blocks,
        parent: Parent,
    ) -> None:
        self.parent, self.finish, self.blocks = parent, finish, blocks
        self.engine = engine(functools.partial(SlotRing, slot_nbytes, parent.memory.allocate))
        self._passes: dict[int, Pass] = {}

    def handle(self, message: Begin | NextWindow | Room | Stop) -> None:
        """Do what the parent says; of passes that are over it may not know yet."""
        if isinstance(message, Begin):
            self._passes[message.run] = Pass(self, message)
        elif isinstance(message, Stop):
            self._passes.pop(message.run).stop()
        else:
            self._passes[message.run].handle(message)

    def close(self) -> None:
        """End all passes."""
        while self._passes:
            self._passes.popitem()[1].stop()


class Pass:
    """One pass over an order; its own thread takes what the engine fills, finishes and sends it.

    # Guarantees: `_room`, `_sent` and `_stopped` are read and written under `_changed`. The thread sends only while
    fewer than `SENT_AHEAD` batches are on their way, and the engine counts those as open, so that both together stay
    within what the parent allowed.
    """

    def __init__(self, work: LoaderWork, message: Begin) -> None:
        self._work, self._number = work, message.run
        self._changed = threading.Condition()
        self._room, self._sent = Room(message.run, 0, message.max_open_batches), 0
        self._stopped = False
        self._run: Running | None = None
        self._named: set[str] = set()
        self._received = ReceivedOrder() if message.order is None else None
        name = f"h5stream-pass-{message.run}"
        threading.Thread(target=self._serve, args=(message,), name=name, daemon=True).start()

    # --- called by the thread that reads messages -------------------------------------------------------

    def handle(self, message: NextWindow | Room) -> None:
        """Take in a window, or what may be open."""
        if isinstance(message, NextWindow):
            assert self._received is not None
            self._received.receive(message.window, message.sizes)
            return
        with self._changed:
            self._room = message
            self._tell()

    def stop(self) -> None:
        """End it; nothing more is sent, but perhaps the batch that is being sent."""
        with self._changed:
            self._stopped, run = True, self._run
            self._changed.notify_all()
        if self._received is not None:
            self._received.receive(None)
        if run is not None:
            run.stop()

    def _tell(self) -> None:
        """Let the engine and the sending thread know what changed; called under the lock."""
        if self._run is not None:
            self._run.allow(self._room.max_open_batches, self._sent - self._room.taken)
        self._changed.notify_all()

    # --- the pass's own thread --------------------------------------------------------------------------

    def _serve(self, message: Begin) -> None:
        failure: Failure | None = None
        try:
            run = self._begin(message)
            while self._may_send() and (batch := run.next_batch()) is not None:
                self._send(run, batch)
        except LoaderClosedError:
            return
        except BaseException as error:
            failure = Failure.of(error)
        if not self._stopped:
            report = None if self._run is None else self._report(self._run)
            self._work.parent.send(Ended(self._number, failure, report))

    def _begin(self, message: Begin) -> Running:
        order = self._received or unpickled(message.order or b"", self._work.blocks)
        run = self._work.engine.begin(
            order, message.first_batch, max_open_batches=message.max_open_batches, world_size=message.world_size
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
            self._changed.wait_for(lambda: self._stopped or self._sent - self._room.taken < SENT_AHEAD)
            return not self._stopped

    def _send(self, run: Running, batch: ReadyBatch) -> None:
        with self._changed:
            self._sent += 1
            self._tell()
        memory, finish = self._work.parent.memory, self._work.finish
        slot = made = None
        if finish is None:
            slot, objects = memory.lend(batch.slot.lease().numpy()), batch.objects
        else:
            made, objects = self._made(finish, batch), {}
        report = self._report(run)
        self._work.parent.send(Filled(self._number, batch.number, batch.rows, slot, objects, made, report))

    def _made(self, finish: Finish, batch: ReadyBatch) -> Packed:
        value = finish(batch)
        try:
            return pack(value, self._work.parent.memory)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise OptionError(
                f"what batch_transform= made of batch {batch.number} cannot leave the child process of "
                f"isolation='process', because it cannot be pickled: {error}"
            ) from error

    def _report(self, run: Running) -> Report:
        counters = run.counters
        new = [name for name in counters.skipped_chunks if name not in self._named]
        self._named.update(new)
        return Report(
            left=run.left_to_hand_over(),
            ready=run.ready,
            totals=counters.totals(),
            skipped_rows=counters.skipped_rows,
            skipped_chunks=new,
        )
