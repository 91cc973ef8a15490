"""Memory that two processes map: an unnamed file, whose bytes the writer lends to the reader.

A ``memfd`` is not limited by the size of ``/dev/shm`` and has no path, so no crash leaves it behind. It is sparse and
mapped whole, so the offset of bytes is their address minus that of the mapping. Pages are freed when their arrays are
dropped, or when neither side maps the file any more, so a batch outlives the process that filled it.

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
"""The length of a file, in addresses, which cost nothing: more than any process holds of batches, and 500 files fit."""

LIMITED_SHARE = 16
"""If the address space is limited (``ulimit -v``), a file is this fraction (1 / 16) of it."""

_MADV_REMOVE = 9  # Linux; Python's mmap has no name for it


class Loan(NamedTuple):
    """Bytes that one process lends to the other."""

    number: int  # identifies the loan when it is returned
    start: int  # start, nbytes: the bytes of the file
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
    with contextlib.suppress(OSError, AttributeError):  # only if the system has huge pages for shared memory
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def _part(mapped: mmap.mmap, start: int, nbytes: int) -> Memory:
    """Return part of a mapping as an independent array: slices refer to this array, not to the mapping."""
    memory: Memory = np.frombuffer(memoryview(mapped)[start : start + nbytes], dtype=np.uint8)
    return memory


class SharedMemory:
    """The writing side of the memory, which lends bytes.

    # Guarantees: any thread may call; `_lock` allocates each place once. Lent bytes, and so the slot that contains
    them, are held until the loan is returned.
    """

    def __init__(self, descriptor: int) -> None:
        self._map, self._end, self._lock = _mapped(descriptor), 0, threading.Lock()
        self._base = address_of(np.frombuffer(self._map, dtype=np.uint8))
        self._free: dict[int, collections.deque[int]] = {}  # offsets of freed places, by size
        self._rings: dict[int, SlotRing] = {}
        self._numbers = itertools.count()
        self._lent: dict[int, Memory] = {}

    def allocate(self, nbytes: int) -> Memory:
        """Return `nbytes` bytes, which are freed with the last array over them."""
        with self._lock:
            free = self._free.setdefault(nbytes, collections.deque())
            start = free.popleft() if free else self._end
            if start == self._end:
                if start + nbytes > len(self._map):
                    raise MemoryError(f"no memory for {nbytes:,} bytes of batches: {start:,} bytes are in use")
                self._end += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = _part(self._map, start, nbytes)
        weakref.finalize(memory, _free_pages, self._map, start, nbytes, free, os.getpid()).atexit = False
        return memory

    def find(self, address: int, nbytes: int) -> int | None:
        """Return the offset of bytes in the file; None if they are in other memory."""
        start = address - self._base
        return start if start >= 0 and start + nbytes <= self._end else None

    def lend(self, memory: Memory) -> Loan:
        """Lend bytes; copy them into the shared memory first if they are not in it."""
        start = self.find(address_of(memory), memory.nbytes)
        if start is None:
            copy: Memory = self.take(memory.nbytes).numpy()
            np.copyto(copy, memory)  # torch's team of threads would wait for processors that the readers use
            memory, start = copy, address_of(copy) - self._base
        number = next(self._numbers)
        self._lent[number] = memory
        return Loan(number, start, memory.nbytes)

    def take(self, nbytes: int) -> torch.Tensor:
        """Return `nbytes` bytes of a reusable buffer: it is reused once the last tensor over it is dropped."""
        size = max(PAGE_NBYTES, 1 << (nbytes - 1).bit_length())
        if (ring := self._rings.get(size)) is None:
            ring = self._rings.setdefault(size, SlotRing(size, self.allocate))
        return torch.from_numpy(ring.take().lease()[:nbytes])

    def trim(self) -> None:
        """Free buffers of `take` that are not in use."""
        for ring in list(self._rings.values()):
            ring.trim()

    def end_loans(self, numbers: Iterable[int]) -> None:
        """Release lent bytes that the other side no longer uses."""
        for number in numbers:
            self._lent.pop(number, None)


def _free_pages(mapped: mmap.mmap, start: int, nbytes: int, free: collections.deque[int], owner_pid: int) -> None:
    if os.getpid() == owner_pid:  # a forked child has the same pages
        mapped.madvise(_MADV_REMOVE, start, nbytes)
        free.append(start)


class BorrowedMemory:
    """The reading side of the memory, which borrows bytes.

    # Guarantees: any thread may call. A loan ends by one append, since that may happen inside the garbage collector.
    """

    def __init__(self, descriptor: int) -> None:
        self._map = _mapped(descriptor)
        self._loans: Lent[int] = Lent()
        self.returned = self._loans.returned
        """Returns the numbers of the loans that ended since the last call."""

    def borrow(self, loan: Loan) -> memoryview:
        """Return lent bytes; the loan ends when the last array or tensor over them is dropped."""
        view = _part(self._map, loan.start, loan.nbytes)
        self._loans.lend(loan.number, until_dropped=view)
        # Not the array: NumPy would make arrays from it that refer to the file instead, and the loan would end at once.
        return view.data

    def give_back(self, loans: Iterable[Loan]) -> None:
        """End loans that were never used."""
        for loan in loans:
            self.borrow(loan)


# --- Batches sent to another process: tensors and arrays in shared memory, the rest pickled.
#
# Bytes that are in shared memory already are not copied; others are, once. Pickle sees only shapes (its protocol 5
# keeps buffers out of the stream).


IN_BAND_NBYTES = 1024
"""Buffers up to this size travel in the message, which costs less than lending them."""

MESSAGE_NBYTES = 16 * 1024
"""Pickled data up to this size travels in the message: it fits into a socket's buffer, so that no one waits."""


class PackedBatch(NamedTuple):
    """A structure packed for another process."""

    stream: bytes  # pickled; empty if it is long, and then in the last loan
    loans: list[Loan]  # the buffers


def pack(value: object, memory: SharedMemory) -> PackedBatch:
    """Pack a structure for the other side."""
    buffers: list[Memory] = []
    stream = io.BytesIO()
    _Pickler(stream, memory, buffers).dump(value)
    pickled = stream.getvalue()
    if len(pickled) > MESSAGE_NBYTES:
        buffers.append(np.frombuffer(pickled, dtype=np.uint8))
        pickled = b""
    return PackedBatch(pickled, [memory.lend(buffer) for buffer in buffers])


def unpack(packed: PackedBatch, memory: BorrowedMemory) -> Any:
    """Return the structure; the memory of its tensors and arrays is borrowed until the last of them is dropped."""
    buffers = [memory.borrow(loan) for loan in packed.loans]
    return pickle.loads(packed.stream or buffers.pop(), buffers=buffers)


class _Pickler(pickle.Pickler):
    """Pickler that keeps the bytes of tensors and arrays out of the stream, as byte arrays in `buffers`."""

    def __init__(self, stream: io.BytesIO, memory: SharedMemory, buffers: list[Memory]) -> None:
        # Not a bound method: the pickler would keep itself, and all that it pickled, alive until garbage collection.
        super().__init__(stream, protocol=5, buffer_callback=functools.partial(_keep, buffers))
        self._memory = memory

    def reducer_override(self, value: object) -> Any:
        if type(value) is not torch.Tensor or not is_plain(value):
            return NotImplemented
        tensor = value.detach()
        if tensor.numel() == 0:
            return _empty, (tensor.dtype, tuple(tensor.shape), tensor.stride())
        # All elements from the first to the last that the tensor views, so that its strides do not change.
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        is_outside = self._memory.find(tensor.data_ptr(), span * tensor.element_size()) is None
        if is_outside and span > 2 * tensor.numel():
            tensor, span = tensor.contiguous(), tensor.numel()  # a few columns of a large tensor
        line = tensor.as_strided((span,), (1,)).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(line.data), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _keep(buffers: list[Memory], buffer: pickle.PickleBuffer) -> bool:
    """Keep a large buffer out of the stream; return whether pickle should write it there after all."""
    raw = buffer.raw()
    if raw.nbytes <= IN_BAND_NBYTES or raw.readonly:  # read-only bytes would come back writable
        return True
    buffers.append(np.frombuffer(raw, dtype=np.uint8))
    return False


def _empty(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


def _tensor(
    buffer: bytes | bytearray | Memory, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    flat = torch.from_numpy(np.frombuffer(buffer, dtype=np.uint8))
    return flat.view(dtype).as_strided(shape, strides)
