"""Pinned slots: for the feed's own copies, and for batches that the user copies himself."""

from __future__ import annotations

from typing import Any

from h5stream.device.backend import DeviceBackend
from h5stream.device.pinning import held_by_pinning
from h5stream.engine.footprint import PAGE_NBYTES
from h5stream.engine.slots import Memory, Slot, SlotRing

PINNED_ARENA_NBYTES = 128 * 1024 * 1024
"""Bytes that are pinned together. torch's pinned allocator rounds up to a power of two; in a large arena the
slots fill it better."""


class PinnedRing(SlotRing):
    """A ring whose arenas are pinned, once; for slots that only the feed copies from."""

    def __init__(self, backend: DeviceBackend[Any, Any], slot_nbytes: int, *, most_slots: int | None = None) -> None:
        self._backend = backend
        self.really_held_nbytes = 0  # what pinning takes of the host's memory, with torch's rounding
        super().__init__(slot_nbytes, self._pin, arena_nbytes=PINNED_ARENA_NBYTES, most_slots=most_slots)

    def _pin(self, nbytes: int) -> Memory:
        buffer = self._backend.allocate_pinned(nbytes)
        self.really_held_nbytes += buffer.held_bytes
        memory: Memory = buffer.tensor.numpy()
        return memory


def pinned_cost_nbytes(slot_nbytes: int) -> int:
    """Return what a pinned slot really takes of the host's memory, with torch's rounding.

    Examples
    --------
    >>> round(pinned_cost_nbytes(8192 * 1032) / (8192 * 1032), 2)
    1.06
    """
    slot = -(-slot_nbytes // PAGE_NBYTES) * PAGE_NBYTES
    count = max(1, PINNED_ARENA_NBYTES // slot)
    return held_by_pinning(count * slot) // count


class PinnedSlots:
    """Pinned slots for batches that the user copies to a GPU himself (``pin_memory=True`` without ``device``).

    The user's copy may still be running when he drops the batch, and only torch's own allocator knows: it
    notes every non_blocking copy from its memory and reuses it when they are done. So each slot is a tensor of
    that allocator, and is dropped rather than kept. It rounds each slot up to a power of two.

    # Guarantees: any thread may call; the allocator has its own lock.
    """

    held_nbytes = 0

    def __init__(self, backend: DeviceBackend[Any, Any], slot_nbytes: int) -> None:
        self.slot_nbytes = slot_nbytes
        self._backend = backend

    def take(self) -> Slot:
        """Take memory from the allocator, which has kept what was dropped."""
        tensor = self._backend.allocate_pinned(self.slot_nbytes).tensor
        return Slot(tensor.numpy(), tensor=tensor)

    def trim(self) -> None:
        """Do nothing: nothing is held here."""
