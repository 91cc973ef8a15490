"""Copies of host slots to the device: one copy per batch, beside the consumer's work, a few batches ahead.

For each batch, in order::

    side stream       copy host slot -> device memory, casts, transform, event `ready`
    consumer stream   waits for `ready`                       (its thread does not)
    host slot         goes back to the ring once `copied` is done
    device memory     is freed, or written again, once the consumer's queued work is done
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import cuda

from h5stream.device.cuda import CudaBackend
from h5stream.engine.assemble import Assembler
from h5stream.engine.batches import ReadyBatch
from h5stream.engine.changes import Change
from h5stream.engine.counters import Tally
from h5stream.engine.run import Run
from h5stream.engine.slots import Memory, Slot, SlotFormat, SlotRing, packed_closer
from h5stream.errors import DeviceMemoryError

PINNED_ARENA_NBYTES = 128 * 1024 * 1024
"""Bytes that are pinned together. torch's pinned allocator rounds up to a power of two, which slots fill better in a
large arena."""


def pinned_ring(backend: CudaBackend, slot_nbytes: int, most_slots: int | None = None) -> SlotRing:
    """Return a ring of slots that are pinned once, for memory that only the feed copies from."""

    def allocate(nbytes: int) -> Memory:
        return backend.allocate_pinned(nbytes).numpy()

    return SlotRing(slot_nbytes, allocate, arena_nbytes=PINNED_ARENA_NBYTES, most_slots=most_slots)


Copying = collections.deque[tuple[Slot, cuda.Event, cuda.Event]]
"""Slots with copies in progress, each between two timed events."""


class DeviceFeed:
    """Yields batches on a device, each copied in one piece; `value` is ready for the consumer's current stream.

    # Guarantees: used by one thread, the consumer's. `close` only waits for copies in progress. A slot is released
    only after the event that follows its copy, so that nobody fills it while the device still reads it.
    """

    def __init__(
        self,
        backend: CudaBackend,
        source: Run,
        assembler: Assembler,
        slot_format: SlotFormat,
        *,
        depth: int,
        transform: Callable[[Any], Any] | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._backend, self._source, self._assembler, self._transform = backend, source, assembler, transform
        self._format, self._depth = slot_format, depth
        self._side, self._tally = backend.side_stream(), tally or Tally()
        self._copying: Copying = collections.deque()
        # Batches in transfer, the event after each, and its device memory.
        self._transfers: collections.deque[tuple[ReadyBatch, cuda.Event, list[torch.Tensor]]] = collections.deque()
        self._exhausted = False
        # Dropping the feed must not release a slot that is still being read.
        self._drain = weakref.finalize(self, _give_back_done, backend, self._tally, self._copying, 0)

    def next_batch(self, timeout_s: float = 0.0) -> ReadyBatch | None:
        """Return the next batch; None at the end."""
        if not self._transfers and not self._exhausted:
            self._send(self._source.next_batch(timeout_s))
        while len(self._transfers) < self._depth and not self._exhausted:
            try:
                ready = self._source.next_if_ready()
            except Exception:
                break  # the source raises it again when this batch is requested
            if ready is None:
                break
            self._send(ready)
        _give_back_done(self._backend, self._tally, self._copying, self._depth + 1)
        if not self._transfers:
            return None
        batch, is_ready, tensors = self._transfers.popleft()
        consumer = self._backend.current_stream()
        self._backend.wait(consumer, is_ready)
        for tensor in tensors:  # its memory is not reused until the consumer's work is done
            self._backend.hold(tensor, consumer)
        return batch

    def _send(self, ready: ReadyBatch | None) -> None:
        """Start the transfer of a slot."""
        if ready is None:
            self._exhausted = True
            return
        packed = packed_closer(ready.slot.memory, self._assembler.layout.fields, self._format, ready.rows)
        view = self._allocate(packed.nbytes)
        tensors = [view]
        host = torch.from_numpy(ready.slot.memory[: packed.nbytes])
        began = self._backend.record_event(self._side, timed=True)
        self._backend.copy_async(view, host, self._side)
        copied = self._backend.record_event(self._side, timed=True)
        self._copying.append((ready.slot, began, copied))

        def changed(change: Change, raw: torch.Tensor, which: torch.Tensor | None) -> torch.Tensor:
            """Unpack, normalize and cast on the device, after the copy of the raw bytes, which usually are fewer."""
            nbytes = raw.numel() * change.dtype.itemsize
            tensors.append(self._allocate(nbytes).view(change.dtype).view(raw.shape))
            self._backend.launch(self._side, change.into, tensors[-1], raw, *([] if which is None else [which]))
            return tensors[-1]

        value = self._assembler.batch(
            ready.slot.memory, packed, ready.rows, ready.objects, within=view, changed=changed
        )
        if self._transform is not None:
            value = self._backend.call(self._side, self._transform, value)
            tensors += device_tensors(value, self._backend.device)
        ready.value = value
        self._transfers.append((ready, self._backend.record_event(self._side), tensors))

    def _allocate(self, nbytes: int) -> torch.Tensor:
        try:
            return self._backend.allocate_device(nbytes, self._side)
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(
                f"{self._backend.device} has no room for another batch of {nbytes:,} bytes: "
                f"prefetch_factor={self._depth} batches are held ready there. Lower prefetch_factor= or batch_size=, "
                f"or free memory ({str(error).splitlines()[0]})"
            ) from error

    def close(self) -> None:
        """Wait for copies in progress and release their slots."""
        self._exhausted = True
        self._transfers.clear()
        self._drain()


def _give_back_done(backend: CudaBackend, tally: Tally, copying: Copying, keep_at_most: int) -> None:
    """Release the slots whose copies are done; wait for the oldest while more than `keep_at_most` are left."""
    while copying:
        slot, began, copied = copying[0]
        if not backend.done(copied):
            if len(copying) <= keep_at_most:
                return
            backend.synchronize(copied)
        copying.popleft()
        tally.copy_ns += backend.elapsed_ns(began, copied)
        slot.give_back()


def device_tensors(batch: object, device: torch.device) -> list[torch.Tensor]:
    """Return the tensors of a batch that are on the device, in mappings, sequences and attributes of its parts."""
    tensors: list[torch.Tensor] = []
    seen: set[int] = set()
    pending = [batch]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            tensors += [value] if value.device == device else []
        elif id(value) not in seen and not isinstance(value, (str, bytes, type, ModuleType)):
            seen.add(id(value))
            if isinstance(value, Mapping):
                pending += value.values()
            elif isinstance(value, (list, tuple, set, frozenset)):
                pending += value
            else:  # a batch class of the user's
                pending += getattr(value, "__dict__", {}).values()
                pending += [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    return tensors
