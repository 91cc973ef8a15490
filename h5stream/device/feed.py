"""Host slots to the device: one copy a batch beside the consumer's work, a few batches ahead.

For each batch, in order::

    side stream       copy host slot -> device memory, casts, transform, event `ready`
    consumer stream   waits for `ready`                       (its thread does not)
    host slot         goes back to the ring once `copied` is done
    device memory     is freed, or written again, once the consumer's queued work is done

The tests take each of these waits out, on a device that does everything as late as it may
(``tests/device/test_feed.py``).
"""

from __future__ import annotations

import abc
import collections
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

import torch

from h5stream.device.backend import DeviceBackend
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.changes import Change
from h5stream.engine.counters import Tally
from h5stream.engine.slots import Slot, SlotFormat, packed_closer
from h5stream.errors import DeviceMemoryError

Transform = Callable[[Any], Any]


class BatchSource(Protocol):
    """Where filled slots come from; `h5stream.engine.run.Run` is one."""

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Wait for the next; None at the end."""

    def next_if_ready(self) -> ReadyBatch | None:
        """Return the next if it needs no waiting."""


@dataclass(slots=True)
class FeedTotals:
    """What a feed has done."""

    copies: int = 0  # copies, nbytes: copies to the device, and their bytes. One copy a batch
    nbytes: int = 0


@dataclass(slots=True)
class _Flight:
    """A batch on its way."""

    batch: Any
    rows: int
    ready: Any
    held: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copying:
    """A copy that is under way, between two timed events; `host` keeps its bytes, where no slot does."""

    host: torch.Tensor
    slot: Slot | None
    began: Any
    copied: Any


class HostSlots:
    """Slots whose copy is under way; they go back once it is done.

    # Guarantees: used by the consumer's thread, and at the end by its finalizer. A slot is given back only
    # after its event is done, so that nobody fills it while the device still reads it.
    """

    def __init__(self, backend: DeviceBackend[Any, Any], totals: FeedTotals, tally: Tally) -> None:
        self._backend, self._totals, self._tally = backend, totals, tally
        self._side = backend.side_stream()
        self._copying: collections.deque[_Copying] = collections.deque()

    def send(self, slot: Slot, there: torch.Tensor) -> torch.Tensor:
        """Start the copy of a slot's first bytes to the device, and give those bytes on the host."""
        host = torch.from_numpy(slot.memory[: there.numel()])
        self._totals.copies += 1
        self._totals.nbytes += there.numel()
        self._send(host, there, slot)
        return host

    def send_beside(self, host: torch.Tensor, there: torch.Tensor) -> None:
        """Start a copy of bytes that belong to no slot; they are held until it is done."""
        self._send(host, there, None)

    def _send(self, host: torch.Tensor, there: torch.Tensor, slot: Slot | None) -> None:
        began = self._backend.record_event(self._side, timed=True)
        self._backend.copy_async(there, host, self._side)
        copied = self._backend.record_event(self._side, timed=True)
        self._copying.append(_Copying(host=host, slot=slot, began=began, copied=copied))

    @property
    def under_way(self) -> int:
        """Copies that are not known to be done."""
        return len(self._copying)

    def give_back_done(self, *, keep_at_most: int) -> None:
        """Give back the slots whose copies are done; wait for the oldest while there are too many."""
        while self._copying:
            copied = self._copying[0].copied
            if not self._backend.done(copied):
                if len(self._copying) <= keep_at_most:
                    return
                self._backend.synchronize(copied)
            self._let_go()

    def drain(self) -> None:
        """Wait for all copies and give the slots back."""
        while self._copying:
            self._backend.synchronize(self._copying[0].copied)
            self._let_go()

    def _let_go(self) -> None:
        done = self._copying.popleft()
        self._tally.copied(self._backend.elapsed_ns(done.began, done.copied))
        if done.slot is not None:
            done.slot.give_back()


class Feed(abc.ABC):
    """What feeds have in common: copies that are under way, and batches over device memory.

    # Guarantees: used by one thread, the consumer's. `close` waits for copies that are under way, no longer.
    """

    def __init__(
        self,
        backend: DeviceBackend[Any, Any],
        source: BatchSource,
        assembler: Assembler,
        *,
        transform: Transform | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._backend, self._source, self._assembler, self._transform = backend, source, assembler, transform
        self._side = backend.side_stream()
        self.totals = FeedTotals()
        self._tally = Tally() if tally is None else tally
        self._host = HostSlots(backend, self.totals, self._tally)
        # Dropping the feed must not let a slot be filled again that is still being read.
        self._finalizer = weakref.finalize(self, self._host.drain)

    @abc.abstractmethod
    def next_batch(self, timeout_s: float = 0.0) -> tuple[Any, int] | None:
        """Return the next batch and its rows, ready for the consumer's current stream; None at the end."""

    def _batch_over(
        self,
        packed: torch.Tensor,
        packed_as: SlotFormat,
        rows: int,
        held: list[torch.Tensor],
        objects: dict[int, list[Any]],
        host: torch.Tensor | None = None,
    ) -> Any:
        """Return the batch that lies in device memory, cast and transformed; what it stands on is added to `held`."""
        batch = self._assembler.batch(
            packed,
            packed_as,
            rows,
            objects,
            host=host,
            changed=lambda raw, change: self._changed(raw, change, held),
            apart=False,
        )
        if self._transform is not None:
            batch = self._backend.call(self._side, self._transform, batch)
            held += device_tensors(batch, self._backend.device)
        return batch

    def _changed(self, raw: torch.Tensor, change: Change, held: list[torch.Tensor]) -> torch.Tensor:
        """Cast and normalise on the device, after the raw bytes have crossed: they are fewer, as a rule."""
        out = self._allocate(raw.numel() * change.dtype.itemsize).view(change.dtype).view(raw.shape)
        self._backend.launch(self._side, change.into, out, raw)
        held.append(out)
        return out

    def _allocate(self, nbytes: int) -> torch.Tensor:
        try:
            return self._backend.allocate_device(nbytes, self._side)
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(
                f"{self._backend.device} has no room for {self._no_room_for(nbytes)}, or free memory "
                f"({str(error).splitlines()[0]})"
            ) from error

    @abc.abstractmethod
    def _no_room_for(self, nbytes: int) -> str:
        """Say what so many bytes were for, and which argument makes them fewer."""

    def _wait_and_hold(self, ready: Any, held: list[torch.Tensor]) -> None:
        """Let the consumer's stream wait for an event, and keep memory from reuse until its work is done."""
        consumer = self._backend.current_stream()
        self._backend.wait(consumer, ready)
        for tensor in held:
            self._backend.hold(tensor, consumer)

    def close(self) -> None:
        """Wait for the copies under way and give their slots back."""
        self._finalizer()


class DeviceFeed(Feed):
    """Yields batches on a device, each in one copy."""

    def __init__(
        self,
        backend: DeviceBackend[Any, Any],
        source: BatchSource,
        assembler: Assembler,
        slot_format: SlotFormat,
        *,
        depth: int,
        reuse_buffers: bool = False,
        transform: Transform | None = None,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(backend, source, assembler, transform=transform, tally=tally)
        self._format, self._depth = slot_format, depth
        self._flights: collections.deque[_Flight] = collections.deque()
        self._exhausted = False
        self._reused = _ReusedBuffers(backend, depth + 1) if reuse_buffers else None

    def next_batch(self, timeout_s: float = 0.0) -> tuple[Any, int] | None:
        """Return the next batch and its rows; see `Feed`."""
        if self._reused is not None:
            self._reused.consumed()
        if not self._flights and not self._exhausted:
            self._send(self._source.next_batch(timeout_s))
        while len(self._flights) < self._depth and not self._exhausted:
            ready = self._ready_ahead()
            if ready is None:
                break
            self._send(ready)
        self._host.give_back_done(keep_at_most=self._depth + 1)
        if not self._flights:
            return None
        return self._hand_over(self._flights.popleft())

    def _ready_ahead(self) -> ReadyBatch | None:
        """Look for the next slot; an error waits there until its own batch is asked for."""
        try:
            return self._source.next_if_ready()
        except Exception:
            return None

    def _hand_over(self, flight: _Flight) -> tuple[Any, int]:
        self._wait_and_hold(flight.ready, flight.held)
        if self._reused is not None:
            self._reused.hand_over()
        return flight.batch, flight.rows

    def _send(self, ready: ReadyBatch | None) -> None:
        """Start a slot on its way."""
        if ready is None:
            self._exhausted = True
            return
        packed = packed_closer(ready.slot.memory, self._assembler.layout.fields, self._format, ready.rows)
        there = self._memory_for(packed.nbytes)
        host = self._host.send(ready.slot, there)
        held = [there]  # what is reused as well: it is dropped with the feed, when the epoch is over
        batch = self._batch_over(there, packed, ready.rows, held, ready.objects, host)
        event = self._backend.record_event(self._side)
        self._flights.append(_Flight(batch=batch, rows=ready.rows, ready=event, held=held))

    def _memory_for(self, nbytes: int) -> torch.Tensor:
        if self._reused is not None:
            return self._reused.take(self._format.nbytes, self._side)[:nbytes]
        return self._allocate(nbytes)

    def _no_room_for(self, nbytes: int) -> str:
        return (
            f"another batch of {nbytes:,} bytes: prefetch_factor={self._depth} batches are held ready there. Lower "
            "prefetch_factor= or batch_size="
        )

    def close(self) -> None:
        """Wait for the copies under way and give their slots back."""
        self._exhausted = True
        self._flights.clear()
        super().close()


class _ReusedBuffers:
    """Device buffers that are written in turn, each once the consumer's work on it is done.

    # Guarantees: used by the consumer's thread. A buffer is written only after the side stream has waited for
    # the event that the consumer's stream passed when the *next* batch was asked for.
    """

    def __init__(self, backend: DeviceBackend[Any, Any], count: int) -> None:
        self._backend, self._count = backend, count
        self._buffers: list[torch.Tensor] = []
        self._events: list[Any] = []
        self._next_taken = self._next_handed = 0
        self._in_use: int | None = None

    def take(self, nbytes: int, side: Any) -> torch.Tensor:
        place = self._next_taken % self._count
        self._next_taken += 1
        if place == len(self._buffers):
            self._buffers.append(self._backend.allocate_device(nbytes, side))
            self._events.append(None)
        if self._events[place] is not None:
            self._backend.wait(side, self._events[place])
        return self._buffers[place]

    def hand_over(self) -> None:
        self._in_use = self._next_handed % self._count
        self._next_handed += 1

    def consumed(self) -> None:
        """Mark the end of what the consumer has queued on the batch that it got last."""
        if self._in_use is not None:
            self._events[self._in_use] = self._backend.record_event(self._backend.current_stream())
            self._in_use = None


def device_tensors(batch: Any, device: torch.device) -> list[torch.Tensor]:
    """List the tensors of a batch that live on the device: in mappings, sequences and attributes of what it is made of.

    Examples
    --------
    >>> len(device_tensors({"x": torch.zeros(2), "more": [torch.ones(1), "text"]}, torch.device("cpu")))
    2
    """
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    left = [batch]
    while left:
        value = left.pop()
        if isinstance(value, torch.Tensor):
            found += [value] if value.device == device else []
        elif id(value) not in seen and not isinstance(value, (str, bytes, type, ModuleType)):
            seen.add(id(value))
            left += _parts_of(value)
    return found


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    slots = [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *slots]  # a batch class of the user's
