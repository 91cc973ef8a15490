"""A batch on its way to another process: tensors and arrays through shared memory, the rest pickled.

Bytes that lie in shared memory already stay where they are; others are copied there, once. Pickle sees only shapes
(its protocol 5 keeps buffers out of the stream).
"""

from __future__ import annotations

import functools
import io
import pickle
from typing import Any, NamedTuple

import numpy as np
import torch

from h5stream.engine.slots import Memory
from h5stream.workers.memory import BorrowedMemory, Loan, SharedMemory

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
