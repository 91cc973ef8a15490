"""What a transform made, on its way to another process: tensors and arrays through shared memory, the rest pickled.

Bytes that lie in the batch's own slot stay there; all others are copied, once, into one slot of their own. Pickle
sees only shapes (its protocol 5 keeps buffers out of the stream).
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from h5stream.engine.footprint import FIELD_ALIGNMENT
from h5stream.engine.slots import Slot, address_of
from h5stream.isolation.memory import SharedRooms, leased, offset_in

IN_BAND_NBYTES = 1024
"""Bytes up to which a buffer travels in the message: less than what naming a place for it costs."""


class _Piece(NamedTuple):
    """Where a buffer lies: in which of the batch's slots, from which byte on, and how many."""

    in_own_slot: bool
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A structure whose buffers lie in slots.

    Attributes
    ----------
    stream : bytes
        The structure.
    pieces : tuple
        Where each buffer lies.
    made : Slot or None
        The slot that was filled here; None where nothing was copied.
    """

    stream: bytes
    pieces: tuple[_Piece, ...]
    made: Slot | None

    @property
    def uses_own_slot(self) -> bool:
        """Whether anything lies in the slot of the batch itself."""
        return any(piece.in_own_slot for piece in self.pieces)


def pack(value: Any, slot: Slot, rooms: SharedRooms) -> Packed:
    """Pack what was made of a slot.

    Raises
    ------
    Exception
        What pickle raises for what cannot be pickled.
    """
    buffers: list[np.ndarray[Any, Any]] = []
    stream = io.BytesIO()
    _Pickler(stream, slot, buffers).dump(value)
    pieces, end = [], 0
    copied: list[tuple[int, np.ndarray[Any, Any]]] = []
    for buffer in buffers:
        start = offset_in(slot, address_of(buffer), buffer.nbytes)
        if start is not None:
            pieces.append(_Piece(True, start, buffer.nbytes))
            continue
        pieces.append(_Piece(False, end, buffer.nbytes))
        copied.append((end, buffer))
        end += -(-buffer.nbytes // FIELD_ALIGNMENT) * FIELD_ALIGNMENT
    made = rooms.take(end) if copied else None
    for start, buffer in copied:
        assert made is not None
        # torch copies with several threads, and without the GIL.
        torch.from_numpy(made.memory[start : start + buffer.nbytes]).copy_(torch.from_numpy(buffer))
    return Packed(stream=stream.getvalue(), pieces=tuple(pieces), made=made)


def unpack(stream: bytes, pieces: Sequence[tuple[bool, int, int]], own: Slot | None, made: Slot | None) -> Any:
    """Give the structure; its tensors and arrays view the slots, which are lent until the last is dropped."""
    own_bytes = None if own is None else leased(own)
    made_bytes = None if made is None else leased(made)
    buffers = []
    for in_own_slot, start, nbytes in pieces:
        memory = own_bytes if in_own_slot else made_bytes
        assert memory is not None
        # Not a slice of the array, which NumPy lets refer to what the array stands on: the loan would end here.
        buffers.append(memoryview(memory)[start : start + nbytes])
    return pickle.loads(stream, buffers=buffers)


class _Pickler(pickle.Pickler):
    """Keeps the bytes of tensors and arrays out of the stream, as arrays of bytes in `buffers`."""

    def __init__(self, stream: io.BytesIO, slot: Slot, buffers: list[np.ndarray[Any, Any]]) -> None:
        # Not a method: the pickler would hold itself, and all that it saw, until the garbage collector comes.
        super().__init__(stream, protocol=5, buffer_callback=functools.partial(_keep, buffers))
        self._slot = slot

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        tensor = value.detach()
        if tensor.numel() == 0:
            return _empty, (tensor.dtype, tuple(tensor.shape), tensor.stride())
        # The elements from the first to the last that it views, so that its strides stay as they are.
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        nbytes = span * tensor.element_size()
        if offset_in(self._slot, tensor.data_ptr(), nbytes) is None and span > 2 * tensor.numel():
            tensor, span = tensor.contiguous(), tensor.numel()  # a few columns of a large tensor
        line = tensor.as_strided((span,), (1,)).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(line.data), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _keep(buffers: list[np.ndarray[Any, Any]], buffer: pickle.PickleBuffer) -> bool:
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
