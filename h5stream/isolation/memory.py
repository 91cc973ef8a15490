"""Memory that two processes map: one file without a name, grown arena by arena, and the slots in it.

A ``memfd`` is bound neither by the size of ``/dev/shm`` nor to a path: whatever dies, nothing stays behind. Its
pages go when both sides have unmapped them, so a batch outlives the process that filled it.

Source: ``memfd_create(2)``, ``mmap(2)``.
"""

from __future__ import annotations

import collections
import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from h5stream.engine.footprint import PAGE_NBYTES
from h5stream.engine.slots import ARENA_NBYTES, Memory, Slot, address_of

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MAP_FAILED = ctypes.c_void_p(-1).value


class Place(NamedTuple):
    """A slot, as both processes name it: all in bytes from the beginning of the file.

    Attributes
    ----------
    arena, arena_nbytes : int
        The piece of the file that is mapped together.
    start, nbytes : int
        The slot in it.
    """

    arena: int
    arena_nbytes: int
    start: int
    nbytes: int


def create_file() -> int:
    """Give the descriptor of an empty file without a name; it is not inherited by other programs."""
    return os.memfd_create("h5stream", os.MFD_CLOEXEC)


def map_shared(descriptor: int, start: int, nbytes: int) -> Memory:
    """Map a piece of a file; it is unmapped when the last array over it is dropped.

    Not through `mmap.mmap`, which keeps a descriptor for every mapping: a kept epoch would use them up.
    """
    flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
    address = _libc.mmap(None, nbytes, *flags, descriptor, start)
    if address in (None, _MAP_FAILED):
        raise MemoryError(f"no memory for {nbytes:,} bytes of batches: {os.strerror(ctypes.get_errno())}")
    _libc.madvise(address, nbytes, mmap.MADV_HUGEPAGE)  # only where the system gives huge pages to shared memory
    memory: Memory = np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)), dtype=np.uint8)
    # Slices of an array refer to it, not to what it stands on: it is dropped after the last of them.
    weakref.finalize(memory, _libc.munmap, address, nbytes).atexit = False
    return memory


class SharedFile:
    """The child's side: grows the file.

    # Guarantees: any thread may call; `_lock` makes it one piece after the other.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._end, self._lock = descriptor, 0, threading.Lock()
        self._rings: dict[int, SharedRing] = {}

    def grow(self, nbytes: int, ring: SharedRing) -> tuple[int, Memory]:
        """Give a ring a new piece: where it begins, and its memory."""
        with self._lock:
            try:
                os.ftruncate(self._descriptor, self._end + nbytes)
            except OSError as error:
                raise MemoryError(f"no memory for {nbytes:,} bytes of batches: {error}") from error
            memory = map_shared(self._descriptor, self._end, nbytes)
            start, self._end = self._end, self._end + nbytes
            self._rings[start] = ring
            return start, memory

    def come_back(self, places: list[Place]) -> None:
        """Note that the parent let go of slots."""
        for place in places:
            self._rings[place.arena].come_back(place)


class SharedRing:
    """Slots of one size in shared memory, reused: the child's side of `h5stream.engine.slots.Slots`.

    # Guarantees: any thread may call. A slot is free once all who hold it let go: the engine or the parent (one
    # after the other, so they count as one), and tensors that a transform got and kept. Letting go is one
    # `deque.append`, since it may happen inside the garbage collector while `_lock` is held; `take` counts.
    """

    def __init__(self, file: SharedFile, slot_nbytes: int) -> None:
        self.slot_nbytes, self.held_nbytes = -(-slot_nbytes // PAGE_NBYTES) * PAGE_NBYTES, 0
        self._file, self._lock = file, threading.Lock()
        self._arena_slots = max(1, min(ARENA_NBYTES, 64 * self.slot_nbytes) // self.slot_nbytes)
        self._free: list[Slot] = []
        self._taken: dict[int, tuple[Slot, int]] = {}
        self._let_go: collections.deque[int] = collections.deque()

    def take(self) -> Slot:
        """Take the slot that came back last; its `owner` is its `Place`."""
        with self._lock:
            self._count()
            if not self._free:
                self._map_arena()
            slot = self._free.pop()
            self._taken[place_of(slot).start] = slot, 1
            return slot

    def give_back(self, slot: Slot) -> None:
        """Return a slot that nobody looks at any more."""
        self.come_back(place_of(slot))

    def come_back(self, place: Place) -> None:
        """Note that the parent let go of a slot."""
        self._let_go.append(place.start)

    def lease(self, slot: Slot) -> torch.Tensor:
        """Give a slot's bytes as a tensor, which holds the slot as well until the last tensor over it is dropped."""
        start = place_of(slot).start
        with self._lock:
            self._count()
            self._taken[start] = slot, self._taken[start][1] + 1
        view = slot.memory.view()
        weakref.finalize(view, self._let_go.append, start).atexit = False
        return torch.from_numpy(view)

    def trim(self) -> None:
        """Do nothing: the memory goes with the process."""

    def _count(self) -> None:
        while self._let_go:
            start = self._let_go.popleft()
            slot, holders = self._taken.pop(start)
            if holders > 1:
                self._taken[start] = slot, holders - 1
            else:
                self._free.append(slot)

    def _map_arena(self) -> None:
        size = self.slot_nbytes
        arena, memory = self._file.grow(self._arena_slots * size, self)
        for k in range(self._arena_slots):
            place = Place(arena, memory.nbytes, arena + k * size, size)
            self._free.append(Slot(memory[k * size : (k + 1) * size], self, place))


class SharedRooms:
    """Slots of any size, for what a transform makes: a ring for each power of two of bytes.

    # Guarantees: any thread may call.
    """

    def __init__(self, file: SharedFile) -> None:
        self._file, self._rings, self._lock = file, dict[int, SharedRing](), threading.Lock()

    def take(self, nbytes: int) -> Slot:
        """Take a slot of at least so many bytes."""
        size = max(PAGE_NBYTES, 1 << (nbytes - 1).bit_length())
        with self._lock:
            ring = self._rings.get(size)
            if ring is None:
                ring = self._rings[size] = SharedRing(self._file, size)
        return ring.take()


class Loan(NamedTuple):
    """A slot that the child gave to the parent, which may outlive the child; ending it is one append.

    # Guarantees: so any thread may end it, at any time.
    """

    place: Place
    returned: collections.deque[Place]

    def give_back(self, slot: Slot) -> None:
        """Let the child fill the slot again."""
        self.returned.append(self.place)

    def lease(self, slot: Slot) -> torch.Tensor:
        """Give the slot's bytes as a tensor; the child may fill it again when the last tensor over it is dropped."""
        return torch.from_numpy(leased(slot))


def leased(slot: Slot) -> Memory:
    """Give a slot's bytes; it goes back when the last array or tensor over them is dropped."""
    view = slot.memory.view()
    weakref.finalize(view, slot.give_back).atexit = False
    return view


class Arenas:
    """The parent's side: maps pieces of the file as it learns of them.

    # Guarantees: any thread may call; `_lock` maps each piece once. `returned` needs none.

    Parameters
    ----------
    descriptor : int
        The file; the caller's to close.
    pin : callable, optional
        Called with each piece once it is mapped.
    """

    def __init__(self, descriptor: int, pin: Callable[[Memory], object] | None = None) -> None:
        self._descriptor, self._pin = descriptor, pin
        self._mapped: dict[int, Memory] = {}
        self._lock = threading.Lock()
        self.returned: collections.deque[Place] = collections.deque()

    def slot(self, place: Place) -> Slot:
        """Give the slot at a place, as a loan."""
        with self._lock:
            memory = self._mapped.get(place.arena)
            if memory is None:
                memory = map_shared(self._descriptor, place.arena, place.arena_nbytes)
                if self._pin is not None:
                    self._pin(memory)
                self._mapped[place.arena] = memory
        start = place.start - place.arena
        return Slot(memory[start : start + place.nbytes], Loan(place, self.returned))


def place_of(slot: Slot) -> Place:
    """Give the place of a slot of the child's."""
    assert isinstance(slot.owner, Place)
    return slot.owner


def offset_in(slot: Slot, address: int, nbytes: int) -> int | None:
    """Give where bytes lie in a slot, or None if they do not.

    Examples
    --------
    >>> memory = np.zeros(64, np.uint8)
    >>> offset_in(Slot(memory), address_of(memory[16:]), 48), offset_in(Slot(memory), address_of(memory), 65)
    (16, None)
    """
    offset = address - address_of(slot.memory)
    return offset if offset >= 0 and offset + nbytes <= slot.memory.nbytes else None
