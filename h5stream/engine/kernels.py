"""The inner loops: byte planes and stored elements become rows at their places in the slots.

Every kernel runs without the GIL and knows rows only as (slot, place in it), so that one call scatters a
chunk over any number of batches. Slots are named by address: they are separate allocations, and an array of
arrays would cost more to pass than a small chunk takes to copy.

# Guarantees: kernels write only to ``slots[batch] + field_offset + within * row_nbytes`` and the next
# ``row_nbytes`` bytes; the planner promises that these are inside the slot and written by one task only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def _copy_bytes(typingctx: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes between two addresses with the C library's memcpy."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(64)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(pointer, [pointer, pointer, word]), "memcpy"
        )
        builder.call(function, [builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer), args[2]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _typed_pointer(item: Any) -> Any:
    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(item)(types.int64), generate

    return at


_u8_at, _u16_at = _typed_pointer(types.uint8), _typed_pointer(types.uint16)
_u32_at, _u64_at = _typed_pointer(types.uint32), _typed_pointer(types.uint64)

_jit = njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")


@_jit
def _join_2(source, planes, first, count, out):
    a, b = (
        source[planes[0] + first : planes[0] + first + count],
        source[planes[1] + first : planes[1] + first + count],
    )
    for j in range(count):
        out[j] = np.uint16(a[j]) | np.uint16(b[j]) << np.uint16(8)


@_jit
def _join_4(source, planes, first, count, out):
    a, b = (
        source[planes[0] + first : planes[0] + first + count],
        source[planes[1] + first : planes[1] + first + count],
    )
    c, d = (
        source[planes[2] + first : planes[2] + first + count],
        source[planes[3] + first : planes[3] + first + count],
    )
    for j in range(count):
        low = np.uint32(a[j]) | np.uint32(b[j]) << np.uint32(8)
        out[j] = low | np.uint32(c[j]) << np.uint32(16) | np.uint32(d[j]) << np.uint32(24)


@_jit
def _join_8(source, planes, first, count, out):
    a, b = (
        source[planes[0] + first : planes[0] + first + count],
        source[planes[1] + first : planes[1] + first + count],
    )
    c, d = (
        source[planes[2] + first : planes[2] + first + count],
        source[planes[3] + first : planes[3] + first + count],
    )
    e, f = (
        source[planes[4] + first : planes[4] + first + count],
        source[planes[5] + first : planes[5] + first + count],
    )
    g, h = (
        source[planes[6] + first : planes[6] + first + count],
        source[planes[7] + first : planes[7] + first + count],
    )
    for j in range(count):
        low = np.uint64(a[j]) | np.uint64(b[j]) << np.uint64(8)
        low |= np.uint64(c[j]) << np.uint64(16) | np.uint64(d[j]) << np.uint64(24)
        high = np.uint64(e[j]) | np.uint64(f[j]) << np.uint64(8)
        high |= np.uint64(g[j]) << np.uint64(16) | np.uint64(h[j]) << np.uint64(24)
        out[j] = low | high << np.uint64(32)


@_jit
def scatter(source, source_stride, segments, in_rows, batch, within, slots, field_offset, row_nbytes):
    """Copy rows of a decoded chunk to their places.

    Parameters
    ----------
    source : int
        Address of the chunk's first row.
    source_stride : int
        Bytes from one of its rows to the next.
    segments : int64 array, shape (n, 3)
        Runs of bytes: from within the chunk's row, to within the batch's row, bytes.
    in_rows : int64 array, shape (m,)
        Rows of the chunk to copy.
    batch, within : int64 arrays, shape (m,)
        Where each goes.
    slots : int64 array
        Addresses, by batch number.
    field_offset, row_nbytes : int
        Where the field begins in a slot; bytes of one of its rows.
    """
    if segments.shape[0] == 1:
        first, into, count = segments[0, 0], segments[0, 1], segments[0, 2]
        base, target = source + first, field_offset + into
        if count == 4 and (base | source_stride | target | row_nbytes) & 3 == 0:
            for i in range(in_rows.shape[0]):
                value = carray(_u32_at(base + in_rows[i] * source_stride), 1)[0]
                carray(_u32_at(slots[batch[i]] + target + within[i] * row_nbytes), 1)[0] = value
        elif count == 8 and (base | source_stride | target | row_nbytes) & 7 == 0:
            for i in range(in_rows.shape[0]):
                value = carray(_u64_at(base + in_rows[i] * source_stride), 1)[0]
                carray(_u64_at(slots[batch[i]] + target + within[i] * row_nbytes), 1)[0] = value
        elif count == 1:
            for i in range(in_rows.shape[0]):
                value = carray(_u8_at(base + in_rows[i] * source_stride), 1)[0]
                carray(_u8_at(slots[batch[i]] + target + within[i] * row_nbytes), 1)[0] = value
        else:
            for i in range(in_rows.shape[0]):
                _copy_bytes(
                    slots[batch[i]] + target + within[i] * row_nbytes,
                    base + in_rows[i] * source_stride,
                    count,
                )
        return
    for i in range(in_rows.shape[0]):
        row = source + in_rows[i] * source_stride
        place = slots[batch[i]] + field_offset + within[i] * row_nbytes
        for s in range(segments.shape[0]):
            _copy_bytes(place + segments[s, 1], row + segments[s, 0], segments[s, 2])


# The fused kernels below: undo a byte shuffle and scatter, in one pass. The inner loop runs over a slice of one
# row, so that it compiles to vector instructions; one function a width, because a loop over planes would not.
# ``planes`` holds where each byte plane of the wanted number begins in ``source``, least significant first: a
# foreign byte order, or a member inside a compound, is another order of planes at no cost. Segments count
# elements, ``row_elements`` those of one row in the chunk.


@_jit
def _scatter_planes_2(source, planes, segments, row_elements, in_rows, batch, within, slots, offset, row_nbytes):
    for i in range(in_rows.shape[0]):
        place = slots[batch[i]] + offset + within[i] * row_nbytes
        for s in range(segments.shape[0]):
            first, count = in_rows[i] * row_elements + segments[s, 0], segments[s, 2]
            out = carray(_u16_at(place + segments[s, 1] * 2), count)
            _join_2(source, planes, first, count, out)


@_jit
def _scatter_planes_4(source, planes, segments, row_elements, in_rows, batch, within, slots, offset, row_nbytes):
    for i in range(in_rows.shape[0]):
        place = slots[batch[i]] + offset + within[i] * row_nbytes
        for s in range(segments.shape[0]):
            first, count = in_rows[i] * row_elements + segments[s, 0], segments[s, 2]
            out = carray(_u32_at(place + segments[s, 1] * 4), count)
            _join_4(source, planes, first, count, out)


@_jit
def _scatter_planes_8(source, planes, segments, row_elements, in_rows, batch, within, slots, offset, row_nbytes):
    for i in range(in_rows.shape[0]):
        place = slots[batch[i]] + offset + within[i] * row_nbytes
        for s in range(segments.shape[0]):
            first, count = in_rows[i] * row_elements + segments[s, 0], segments[s, 2]
            out = carray(_u64_at(place + segments[s, 1] * 8), count)
            _join_8(source, planes, first, count, out)


scatter_planes = {2: _scatter_planes_2, 4: _scatter_planes_4, 8: _scatter_planes_8}
"""Element size in bytes -> the kernel that undoes a byte shuffle and scatters in one pass."""


@_jit
def gather_planes(source, planes, count, out):
    """Undo a byte shuffle: byte ``k`` of element ``i`` comes from ``source[planes[k] + i]``."""
    width = planes.shape[0]
    if width == 2:
        _join_2(source, planes, 0, count, out.view(np.uint16))
    elif width == 4:
        _join_4(source, planes, 0, count, out.view(np.uint32))
    elif width == 8:
        _join_8(source, planes, 0, count, out.view(np.uint64))
    else:
        for k in range(width):
            plane = source[planes[k] : planes[k] + count]
            for i in range(count):
                out[i * width + k] = plane[i]


@_jit
def gather_leaf(source, stride, places, count, out):
    """Take the bytes of one member out of stored elements: byte ``k`` comes from ``places[k]`` in each."""
    width = places.shape[0]
    for i in range(count):
        base = i * stride
        for k in range(width):
            out[i * width + k] = source[base + places[k]]


def warm_up() -> None:
    """Compile, or load from the cache, every kernel; the first batch need not wait for it then."""
    data = np.zeros(64, dtype=np.uint8)
    target = np.zeros(64, dtype=np.uint8)
    slots = np.array([target.ctypes.data], dtype=np.int64)
    one, zero = np.array([[0, 0, 1]], dtype=np.int64), np.zeros(1, dtype=np.int64)
    scatter(data.ctypes.data, 8, one, zero, zero, zero, slots, 0, 8)
    for width, kernel in scatter_planes.items():
        kernel(data, np.arange(width, dtype=np.int64), one, 1, zero, zero, zero, slots, 0, 8)
    gather_planes(data, np.arange(4, dtype=np.int64), 1, target)
    gather_leaf(data, 8, np.arange(4, dtype=np.int64), 1, target)
