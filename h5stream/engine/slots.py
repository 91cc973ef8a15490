"""Reusable batch buffers, leased to the consumer.

A slot holds one batch, all fields packed at aligned offsets. A batch's tensors view it; it goes back to the
ring when the last of them is dropped, not before. Whoever keeps a batch keeps its memory, and nothing is
copied to make that safe.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.base.leases import Lent
from h5stream.order.places import mapped
from h5stream.storage.layout.layout import FieldLayout

FIELD_ALIGNMENT = 128
"""Bytes: two cache lines, so that neither rows of two fields nor a GPU's transactions straddle."""

PAGE_NBYTES = 4096

ARENA_NBYTES = 32 * 1024 * 1024
"""Bytes that are mapped together. Slots in one large mapping sit on huge pages, without which scattering over
a large window loses a quarter or more to address translation."""

Memory = NDArray[np.uint8]
Allocate = Callable[[int], Memory]


def packed(nbytes: Iterable[int]) -> tuple[tuple[int, ...], int]:
    """Return where stretches of so many bytes begin, one behind the other and aligned, and the bytes of all."""
    begins, end = [], 0
    for length in nbytes:
        begins.append(end)
        end += -(-length // FIELD_ALIGNMENT) * FIELD_ALIGNMENT
    return tuple(begins), max(end, FIELD_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class SlotFormat:
    """How a batch is packed."""

    rows: int  # that fit
    offsets: tuple[int, ...]  # where each field begins, in bytes
    nbytes: int
    """Bytes of a slot, a multiple of the alignment."""

    @classmethod
    def for_rows(cls, fields: Sequence[FieldLayout], rows: int) -> SlotFormat:
        """Pack `rows` rows of the fields, in their order, each at an aligned offset."""
        return cls(rows, *packed([field.row_nbytes * rows for field in fields]))


def packed_closer(memory: Memory, fields: Sequence[FieldLayout], slot_format: SlotFormat, rows: int) -> SlotFormat:
    """Move the fields of a batch together that takes less than half of its slot, and return how it is packed then."""
    if 2 * rows > slot_format.rows:
        return slot_format
    closer = SlotFormat.for_rows(fields, rows)
    for field, old, new in zip(fields, slot_format.offsets, closer.offsets, strict=True):
        memory[new : new + rows * field.row_nbytes] = memory[old : old + rows * field.row_nbytes]
    return closer


def address_of(memory: NDArray[np.uint8]) -> int:
    """Return the address of an array's first byte (four times faster than ``.ctypes.data``)."""
    return int(memory.__array_interface__["data"][0])


def map_memory(nbytes: int) -> Memory:
    """Map zeroed memory; it is unmapped when the last array over it is dropped."""
    return np.frombuffer(mapped(nbytes, "batches"), dtype=np.uint8)


class Slot:
    """Memory for one batch, as the kernels see it and as tensors view it, and the ring that it goes back to, once.

    Without a ring its memory goes back by itself; batches are views of `tensor` then, if an allocator has to know.
    A ring has the same objects again and again: each new one brings the garbage collector's next full pass closer.
    """

    __slots__ = ("address", "memory", "ring", "tensor")

    def __init__(
        self,
        memory: Memory,
        address: int | None = None,
        tensor: torch.Tensor | None = None,
    ) -> None:
        self.memory, self.tensor = memory, tensor
        self.ring: SlotRing | None = None  # that it was taken from
        self.address = address_of(memory) if address is None else address

    def give_back(self) -> None:
        """Let it be filled again: nothing looks at it any more."""
        ring, self.ring = self.ring, None  # or each would keep the other
        if ring is not None:
            ring.free.append(self)

    def lease(self) -> Memory:
        """Return its bytes; it goes back when these, and the last array or tensor over them, are dropped."""
        ring, self.ring = self.ring, None
        if ring is None:
            return self.memory
        # Over a memoryview: of an array over another array NumPy keeps the other one alone, and this must be kept.
        leased = np.frombuffer(self.memory.data, dtype=np.uint8)
        ring.lent.lend(self, until_dropped=leased)
        return leased


class SlotRing:
    """Slots of one size, reused.

    # Guarantees: any thread may take and give back. A slot's last tensor may be dropped by any thread, even
    # inside the garbage collector while `_lock` is held; giving back is therefore a single `deque.append`,
    # which needs no lock. Taking never waits: if no slot is free another arena is mapped, and how much the
    # engine may hold is the run's business.

    `arena_nbytes` are allocated together, as far as whole slots fill them. An engine has at most `most_slots`: no arena
    is larger, and no more are kept free. A user who kept a whole epoch for a while gets its memory back.
    """

    def __init__(
        self,
        slot_nbytes: int,
        allocate: Allocate = map_memory,
        *,
        arena_nbytes: int = ARENA_NBYTES,
        most_slots: int | None = None,
    ) -> None:
        self.slot_nbytes = -(-slot_nbytes // PAGE_NBYTES) * PAGE_NBYTES
        self._allocate = allocate
        self.free: collections.deque[Slot] = collections.deque()
        self.lent: Lent[Slot] = Lent()
        self._lock = threading.Lock()
        self._arena_slots = min(max(1, arena_nbytes // self.slot_nbytes), 64, most_slots or 64)
        self._most_free = None if most_slots is None else most_slots + self._arena_slots
        self.held_nbytes = 0
        """Bytes mapped in the ring's lifetime and not yet unmapped by `trim`."""

    def take(self) -> Slot:
        """Take the slot that came back last: it is the warmest, and fewer are ever touched."""
        self.free.extend(self.lent.returned())
        while self._most_free is not None and len(self.free) > self._most_free:
            with contextlib.suppress(IndexError):  # another thread takes as well
                self.free.popleft()
        while True:
            try:
                slot = self.free.pop()
                slot.ring = self
                return slot
            except IndexError:
                with self._lock:
                    if not self.free:
                        self._map_arena()

    def _map_arena(self) -> None:
        arena = self._allocate(self._arena_slots * self.slot_nbytes)
        self.held_nbytes += arena.nbytes
        for begin in range(0, self._arena_slots * self.slot_nbytes, self.slot_nbytes):
            self.free.append(Slot(arena[begin : begin + self.slot_nbytes], address_of(arena) + begin))

    @property
    def free_slots(self) -> int:
        """Slots that wait to be taken."""
        self.free.extend(self.lent.returned())
        return len(self.free)

    def trim(self) -> None:
        """Release all free slots; an arena is unmapped once none of its slots is leased."""
        self.lent.returned()
        self.free.clear()
        self.held_nbytes = 0
