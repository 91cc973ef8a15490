"""Memory that two processes map: one file without a name, grown arena by arena, whose bytes one lends to the other.

A ``memfd`` is bound neither by the size of ``/dev/shm`` nor to a path: whatever dies, nothing stays behind. Its
pages go when neither side maps or opens it, so a batch outlives the process that filled it.

Source: ``memfd_create(2)``, ``mmap(2)``.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import ctypes
import functools
import io
import itertools
import mmap
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from h5stream.dropped import Lent
from h5stream.engine.footprint import PAGE_NBYTES
from h5stream.engine.slots import Memory, SlotRing, address_of

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MADV_REMOVE = 9  # of Linux, which Python's mmap does not name
_MAP_FAILED = ctypes.c_void_p(-1).value


class Arena(NamedTuple):
    """A piece of the file that is mapped together: where it begins in the file, and its bytes."""

    start: int
    nbytes: int


class Loan(NamedTuple):
    """Bytes that one process lends to the other."""

    number: int  # by which it is given back
    arena: Arena  # where it lies
    start: int  # start, nbytes: which bytes of that
    nbytes: int


def create_file() -> int:
    """Return the descriptor of an empty file without a name; it is not inherited by other programs."""
    return os.memfd_create("h5stream", os.MFD_CLOEXEC)


def map_shared(descriptor: int, arena: Arena, ended: Callable[[int], object] | None = None) -> Memory:
    """Map a piece of a file; it is unmapped when the last array over it is dropped.

    If `ended` is given, that is the end of its pages too, and `ended` is told the address that it was mapped at.

    Not through `mmap.mmap`, which keeps a descriptor for every mapping: a kept epoch would use them up.
    """
    flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
    address = _libc.mmap(None, arena.nbytes, *flags, descriptor, arena.start)
    if address in (None, _MAP_FAILED):
        raise MemoryError(f"no memory for {arena.nbytes:,} bytes of batches: {os.strerror(ctypes.get_errno())}")
    _libc.madvise(address, arena.nbytes, mmap.MADV_HUGEPAGE)  # only where the system gives huge pages to shared memory
    memory: Memory = np.frombuffer(memoryview((ctypes.c_uint8 * arena.nbytes).from_address(address)), dtype=np.uint8)
    # Slices of an array refer to it, not to what it stands on: it is dropped after the last of them.
    weakref.finalize(memory, _unmap, address, arena.nbytes, ended, os.getpid()).atexit = False
    return memory


def _unmap(address: int, nbytes: int, ended: Callable[[int], object] | None, owner_pid: int) -> None:
    if ended is not None and os.getpid() == owner_pid:  # a forked child has the same pages
        ended(address)  # first: something else may be mapped there then
        _libc.madvise(address, nbytes, _MADV_REMOVE)
    _libc.munmap(address, nbytes)


class SharedMemory:
    """The side that writes: grows the file, and lends what lies in it.

    # Guarantees: any thread may call; `_lock` makes it one arena after the other. What is lent is held here until it
    # comes back, and with it the slot that it lies in.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._end, self._lock = descriptor, 0, threading.Lock()
        self._addresses: list[int] = []
        self._arenas: list[Arena] = []  # in the order of their addresses
        self._ended: collections.deque[int] = collections.deque()
        self._rings: dict[int, SlotRing] = {}
        self._numbers = itertools.count()
        self._lent: dict[int, Memory] = {}

    def allocate(self, nbytes: int) -> Memory:
        """Return an arena of so many bytes, which stays until the last array over it is dropped."""
        with self._lock:
            self._forget_ended()
            try:
                os.ftruncate(self._descriptor, self._end + nbytes)
            except OSError as error:
                raise MemoryError(f"no memory for {nbytes:,} bytes of batches: {error}") from error
            arena = Arena(self._end, nbytes)
            memory = map_shared(self._descriptor, arena, self._ended.append)
            self._end += nbytes
            address = address_of(memory)
            place = bisect.bisect(self._addresses, address)
            self._addresses.insert(place, address)
            self._arenas.insert(place, arena)
            return memory

    def find(self, address: int, nbytes: int) -> tuple[Arena, int] | None:
        """Return the arena that bytes lie in, and where; None if they lie elsewhere."""
        with self._lock:
            self._forget_ended()
            place = bisect.bisect(self._addresses, address) - 1
            if place < 0:
                return None
            arena, start = self._arenas[place], address - self._addresses[place]
        return (arena, start) if start + nbytes <= arena.nbytes else None

    def _forget_ended(self) -> None:
        """Forget arenas whose last array was dropped: other memory may lie there by now. Called under the lock."""
        with contextlib.suppress(IndexError):  # an array may be dropped, and the garbage collected, at any time
            while True:
                place = self._addresses.index(self._ended.popleft())
                del self._addresses[place], self._arenas[place]

    def lend(self, memory: Memory) -> Loan:
        """Lend bytes; those that lie elsewhere are copied here first."""
        found = self.find(address_of(memory), memory.nbytes)
        if found is None:
            memory = self._copied(memory)
            found = self.find(address_of(memory), memory.nbytes)
            assert found is not None
        number = next(self._numbers)
        self._lent[number] = memory
        return Loan(number, *found, memory.nbytes)

    def take(self, nbytes: int) -> torch.Tensor:
        """Return so many bytes for a while: they are used again once the last tensor over them is dropped."""
        size = max(PAGE_NBYTES, 1 << (nbytes - 1).bit_length())
        with self._lock:
            ring = self._rings.get(size)
            if ring is None:
                ring = self._rings[size] = SlotRing(size, self.allocate)
        return ring.take().lease()[:nbytes]

    def _copied(self, memory: Memory) -> Memory:
        copy: Memory = self.take(memory.nbytes).numpy()
        np.copyto(copy, memory)  # torch's team of threads would wait for processors that the readers use
        return copy

    def trim(self) -> None:
        """Let go of what was taken and is free."""
        for ring in list(self._rings.values()):
            ring.trim()

    def come_back(self, numbers: Iterable[int]) -> None:
        """Let go of what was lent; the other side looks at it no more."""
        for number in numbers:
            self._lent.pop(number, None)


class BorrowedMemory:
    """The side that reads: maps arenas as it learns of them.

    # Guarantees: any thread may call; `_lock` maps each arena once. A loan ends by one append, since that may happen
    # inside the garbage collector.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()
        weakref.finalize(self, os.close, descriptor)
        self._mapped: dict[int, Memory] = {}
        self._returned: collections.deque[int] = collections.deque()
        self._loans: Lent[int] = Lent()

    def borrow(self, loan: Loan) -> memoryview:
        """Return what was lent; it goes back when the last array or tensor over it is dropped."""
        with self._lock:
            memory = self._mapped.get(loan.arena.start)
            if memory is None:
                memory = self._mapped[loan.arena.start] = map_shared(self._descriptor, loan.arena)
        view = memory[loan.start : loan.start + loan.nbytes]
        self._loans.lend(loan.number, until_dropped=view)
        # Not the array, of which NumPy would make arrays that refer to the arena instead: the loan would end at once.
        return view.data

    def give_back(self, loans: Iterable[Loan]) -> None:
        """End loans that were never looked at."""
        self._returned.extend(loan.number for loan in loans)

    def returned(self) -> list[int]:
        """Return the numbers of the loans that ended since the last call."""
        numbers = self._loans.returned()
        with contextlib.suppress(IndexError):  # all were taken, by another thread perhaps
            while True:
                numbers.append(self._returned.popleft())
        return numbers


# --- A batch on its way to another process: tensors and arrays through shared memory, the rest pickled.
#
# Bytes that lie in shared memory already stay where they are; others are copied there, once. Pickle sees only shapes
# (its protocol 5 keeps buffers out of the stream).


IN_BAND_NBYTES = 1024
"""Bytes up to which a buffer travels in the message: less than what lending it costs."""


class Packed(NamedTuple):
    """A structure on its way.

    Attributes
    ----------
    stream : bytes
        The structure, pickled.
    loans : list of Loan
        Its buffers.
    """

    stream: bytes
    loans: list[Loan]


def pack(value: Any, memory: SharedMemory) -> Packed:
    """Pack a structure for the other side."""
    buffers: list[Memory] = []
    stream = io.BytesIO()
    _Pickler(stream, memory, buffers).dump(value)
    return Packed(stream.getvalue(), [memory.lend(buffer) for buffer in buffers])


def unpack(packed: Packed, memory: BorrowedMemory) -> Any:
    """Return the structure; what its tensors and arrays view is lent until the last of them is dropped."""
    return pickle.loads(packed.stream, buffers=[memory.borrow(loan) for loan in packed.loans])


class _Pickler(pickle.Pickler):
    """Keeps the bytes of tensors and arrays out of the stream, as arrays of bytes in `buffers`."""

    def __init__(self, stream: io.BytesIO, memory: SharedMemory, buffers: list[Memory]) -> None:
        # Not a method: the pickler would hold itself, and all that it saw, until the garbage collector comes.
        super().__init__(stream, protocol=5, buffer_callback=functools.partial(_keep, buffers))
        self._memory = memory

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        tensor = value.detach()
        if tensor.numel() == 0:
            return _empty, (tensor.dtype, tuple(tensor.shape), tensor.stride())
        # The elements from the first to the last that it views, so that its strides stay as they are.
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        lies_elsewhere = self._memory.find(tensor.data_ptr(), span * tensor.element_size()) is None
        if lies_elsewhere and span > 2 * tensor.numel():
            tensor, span = tensor.contiguous(), tensor.numel()  # a few columns of a large tensor
        line = tensor.as_strided((span,), (1,)).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(line.data), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _keep(buffers: list[Memory], buffer: pickle.PickleBuffer) -> bool:
    """Keep a buffer out of the stream; tells pickle whether to put it there after all."""
    raw = buffer.raw()
    if raw.nbytes <= IN_BAND_NBYTES or raw.readonly:  # read-only bytes would come back writable
        return True
    buffers.append(np.frombuffer(raw, dtype=np.uint8))
    return False


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _empty(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    flat = torch.from_numpy(np.frombuffer(buffer, dtype=np.uint8))
    return flat.view(dtype).as_strided(shape, strides)
