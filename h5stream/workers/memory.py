"""Memory that two processes map: one file without a name, whose bytes the one that writes lends to the other.

A ``memfd`` is bound neither by the size of ``/dev/shm`` nor to a path: whatever dies, nothing stays behind. It is
sparse and mapped whole, so that where bytes lie in it is their address less the mapping's. Pages go when what lies
there is dropped, or when neither side maps it any more, so a batch outlives the process that filled it.

Source: ``memfd_create(2)``, ``mmap(2)``, ``madvise(2)``.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import itertools
import mmap
import os
import pickle
import resource
import threading
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from h5stream.base.leases import Lent
from h5stream.engine.slots import PAGE_NBYTES, Memory, SlotRing, address_of
from h5stream.workers.samples import is_plain

FILE_NBYTES = 1 << 38
"""Length of a file: addresses, which cost nothing; more than any process keeps of batches, and 500 of them fit."""

LIMITED_SHARE = 16
"""One part in so many of the addresses is a file's length where they are limited (``ulimit -v``)."""

_MADV_REMOVE = 9  # of Linux, which Python's mmap does not name


class Loan(NamedTuple):
    """Bytes that one process lends to the other."""

    number: int  # by which it is given back
    start: int  # start, nbytes: which bytes of the file
    nbytes: int


def create_file() -> int:
    """Return the descriptor of a file without a name; it is not inherited by other programs."""
    descriptor = os.memfd_create("h5stream", os.MFD_CLOEXEC)
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_free = most == resource.RLIM_INFINITY
    os.ftruncate(descriptor, FILE_NBYTES if is_free else most // LIMITED_SHARE // PAGE_NBYTES * PAGE_NBYTES)
    return descriptor


def _mapped(descriptor: int) -> mmap.mmap:
    mapped = mmap.mmap(descriptor, 0)
    with contextlib.suppress(OSError, AttributeError):  # only where the system gives huge pages to shared memory
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _part(mapped: mmap.mmap, start: int, nbytes: int) -> Memory:
    """Return bytes as an array of their own: slices of it refer to it, not to what it stands on."""
    memory: Memory = np.frombuffer(memoryview(mapped)[start : start + nbytes], dtype=np.uint8)
    return memory


class SharedMemory:
    """The side that writes, and lends what lies there.

    # Guarantees: any thread may call; `_lock` gives each place once. What is lent is held here until it comes back, and
    with it the slot that it lies in.
    """

    def __init__(self, descriptor: int) -> None:
        self._map, self._end, self._lock = _mapped(descriptor), 0, threading.Lock()
        self._base = address_of(np.frombuffer(self._map, dtype=np.uint8))
        self._free: dict[int, collections.deque[int]] = {}  # where nothing lies any more, by size
        self._rings: dict[int, SlotRing] = {}
        self._numbers = itertools.count()
        self._lent: dict[int, Memory] = {}

    def allocate(self, nbytes: int) -> Memory:
        """Return so many bytes, which stay until the last array over them is dropped."""
        with self._lock:
            free = self._free.setdefault(nbytes, collections.deque())
            start = free.popleft() if free else self._end
            if start == self._end:
                if start + nbytes > len(self._map):
                    raise MemoryError(f"no memory for {nbytes:,} bytes of batches: {start:,} bytes are in use")
                self._end += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = _part(self._map, start, nbytes)
        weakref.finalize(memory, _let_go, self._map, start, nbytes, free, os.getpid()).atexit = False
        return memory

    def find(self, address: int, nbytes: int) -> int | None:
        """Return where bytes lie in the file; None if they lie elsewhere."""
        start = address - self._base
        return start if start >= 0 and start + nbytes <= self._end else None

    def lend(self, memory: Memory) -> Loan:
        """Lend bytes; those that lie elsewhere are copied here first."""
        start = self.find(address_of(memory), memory.nbytes)
        if start is None:
            copy: Memory = self.take(memory.nbytes).numpy()
            np.copyto(copy, memory)  # torch's team of threads would wait for processors that the readers use
            memory, start = copy, address_of(copy) - self._base
        number = next(self._numbers)
        self._lent[number] = memory
        return Loan(number, start, memory.nbytes)

    def take(self, nbytes: int) -> torch.Tensor:
        """Return so many bytes for a while: they are used again once the last tensor over them is dropped."""
        size = max(PAGE_NBYTES, 1 << (nbytes - 1).bit_length())
        if (ring := self._rings.get(size)) is None:
            ring = self._rings.setdefault(size, SlotRing(size, self.allocate))
        return torch.from_numpy(ring.take().lease()[:nbytes])

    def trim(self) -> None:
        """Let go of what was taken and is free."""
        for ring in list(self._rings.values()):
            ring.trim()

    def come_back(self, numbers: Iterable[int]) -> None:
        """Let go of what was lent; the other side looks at it no more."""
        for number in numbers:
            self._lent.pop(number, None)


def _let_go(mapped: mmap.mmap, start: int, nbytes: int, free: collections.deque[int], owner_pid: int) -> None:
    if os.getpid() == owner_pid:  # a forked child has the same pages
        mapped.madvise(_MADV_REMOVE, start, nbytes)
        free.append(start)


class BorrowedMemory:
    """The side that reads.

    # Guarantees: any thread may call. A loan ends by one append, since that may happen inside the garbage collector.
    """

    def __init__(self, descriptor: int) -> None:
        self._map = _mapped(descriptor)
        self._loans: Lent[int] = Lent()
        self.returned = self._loans.returned
        """Returns the numbers of the loans that ended since the last call."""

    def borrow(self, loan: Loan) -> memoryview:
        """Return what was lent; it goes back when the last array or tensor over it is dropped."""
        view = _part(self._map, loan.start, loan.nbytes)
        self._loans.lend(loan.number, until_dropped=view)
        # Not the array, of which NumPy would make arrays that refer to the file instead: the loan would end at once.
        return view.data

    def give_back(self, loans: Iterable[Loan]) -> None:
        """End loans that were never looked at."""
        for loan in loans:
            self.borrow(loan)


# --- A batch on its way to another process: tensors and arrays through shared memory, the rest pickled.
#
# Bytes that lie in shared memory already stay where they are; others are copied there, once. Pickle sees only shapes
# (its protocol 5 keeps buffers out of the stream).


IN_BAND_NBYTES = 1024
"""Bytes up to which a buffer travels in the message: less than what lending it costs."""

MESSAGE_NBYTES = 16 * 1024
"""Bytes up to which what is pickled travels in the message: a socket has room for some, so that no one waits for it."""


class Packed(NamedTuple):
    """A structure on its way."""

    stream: bytes  # pickled; empty if that is long, and the last of the loans
    loans: list[Loan]  # its buffers


def pack(value: Any, memory: SharedMemory) -> Packed:
    """Pack a structure for the other side."""
    buffers: list[Memory] = []
    stream = io.BytesIO()
    _Pickler(stream, memory, buffers).dump(value)
    pickled = stream.getvalue()
    if len(pickled) > MESSAGE_NBYTES:
        buffers.append(np.frombuffer(pickled, dtype=np.uint8))
        pickled = b""
    return Packed(pickled, [memory.lend(buffer) for buffer in buffers])


def unpack(packed: Packed, memory: BorrowedMemory) -> Any:
    """Return the structure; what its tensors and arrays view is lent until the last of them is dropped."""
    buffers = [memory.borrow(loan) for loan in packed.loans]
    return pickle.loads(packed.stream or buffers.pop(), buffers=buffers)


class _Pickler(pickle.Pickler):
    """Keeps the bytes of tensors and arrays out of the stream, as arrays of bytes in `buffers`."""

    def __init__(self, stream: io.BytesIO, memory: SharedMemory, buffers: list[Memory]) -> None:
        # Not a method: the pickler would hold itself, and all that it saw, until the garbage collector comes.
        super().__init__(stream, protocol=5, buffer_callback=functools.partial(_keep, buffers))
        self._memory = memory

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not is_plain(value):
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


def _empty(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    flat = torch.from_numpy(np.frombuffer(buffer, dtype=np.uint8))
    return flat.view(dtype).as_strided(shape, strides)
