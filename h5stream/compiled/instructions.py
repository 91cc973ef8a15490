"""The instructions that numba has no words for: raw copies, stores past the cache, a fence, a call by address.

Only kernels use them: `h5stream.engine.kernels`, and those of `h5stream.storage` that read headers.
"""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE = 64
STREAM_NBYTES = 256
"""Shortest run of bytes that is written past the cache; shorter ones would leave lines half full."""

_BYTE, _WORD = ir.IntType(8), ir.IntType(64)


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes between two addresses with the C library's memcpy."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _BYTE.as_pointer()
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(pointer, [pointer, pointer, _WORD]), "memcpy"
        )
        builder.call(function, [builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer), args[2]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _store_past_cache(builder: Any, value: Any, address: Any) -> None:
    store = builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=LINE)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))


@intrinsic
def stream_line(typingctx: Any, target: Any, source: Any) -> Any:
    """Copy one cache line to an aligned address, past the cache."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line = ir.VectorType(_BYTE, LINE)
        value = builder.load(builder.inttoptr(args[1], line.as_pointer()))
        value.align = 1
        _store_past_cache(builder, value, args[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def copy_16(typingctx: Any, target: Any, source: Any) -> Any:
    """Copy 16 bytes between two addresses of any alignment."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.VectorType(_BYTE, 16).as_pointer()
        value = builder.load(builder.inttoptr(args[1], pointer))
        value.align = 1
        store = builder.store(value, builder.inttoptr(args[0], pointer))
        store.align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def stream_line_of_16(typingctx: Any, target: Any, source: Any, stride: Any) -> Any:
    """Copy four runs of 16 bytes, so far from one another, to one cache line at an aligned address, past the cache."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        run, number = ir.VectorType(_BYTE, 16), ir.IntType(32)
        runs, address = [], args[1]
        for _ in range(4):
            value = builder.load(builder.inttoptr(address, run.as_pointer()))
            value.align = 1
            runs.append(value)
            address = builder.add(address, args[2])
        first, last = (
            builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(number, 32), [*range(32)]))
            for one, other in (runs[:2], runs[2:])
        )
        line = builder.shuffle_vector(first, last, ir.Constant(ir.VectorType(number, LINE), [*range(LINE)]))
        _store_past_cache(builder, line, args[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at an address; one that is not mapped is ignored."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, word = _BYTE.as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer, word, word, word]), "llvm.prefetch.p0i8"
        )
        # To read, to be kept in every cache, data.
        builder.call(function, [builder.inttoptr(args[0], pointer), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def fence(typingctx: Any) -> Any:
    """Make stores past the cache visible to other threads before whatever follows."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _line_of_planes(width: int) -> Any:
    """Make the intrinsic that joins byte planes to one cache line of elements of `width` bytes."""
    lanes = LINE // width
    element = ir.IntType(8 * width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bytes_type, line = ir.VectorType(_BYTE, lanes), ir.VectorType(element, lanes)
        joined = None
        for k in range(width):
            plane = builder.load(builder.inttoptr(args[1 + k], bytes_type.as_pointer()))
            plane.align = 1
            wide = builder.zext(plane, line)
            if joined is None:
                joined = wide
            else:
                joined = builder.or_(joined, builder.shl(wide, ir.Constant(line, [8 * k] * lanes)))
        _store_past_cache(builder, joined, args[0])
        return context.get_dummy_value()

    return types.void(*[types.int64] * (1 + width)), generate


@intrinsic
def stream_planes_2(typingctx: Any, target: Any, a: Any, b: Any) -> Any:
    return _line_of_planes(2)


@intrinsic
def stream_planes_4(typingctx: Any, target: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return _line_of_planes(4)


@intrinsic
def stream_planes_8(typingctx: Any, target: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    return _line_of_planes(8)


def _typed_pointer(item: Any) -> Any:
    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(item)(types.int64), generate

    return at


u8_at, u16_at = _typed_pointer(types.uint8), _typed_pointer(types.uint16)
u32_at, u64_at = _typed_pointer(types.uint32), _typed_pointer(types.uint64)


@intrinsic
def word_at(typingctx: Any, address: Any) -> Any:
    """Load 8 bytes from an address of any alignment."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(builder.inttoptr(args[0], _WORD.as_pointer()))
        value.align = 1
        return value

    return types.int64(types.int64), generate


@intrinsic
def read_at(typingctx: Any, descriptor: Any, target: Any, count: Any, offset: Any) -> Any:
    """Call the C library's pread; gives the bytes that it read, 0 at the file's end, -1 for an error."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, pointer = ir.IntType(32), _BYTE.as_pointer()
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_WORD, [number, pointer, _WORD, _WORD]), "pread"
        )
        given = [builder.trunc(args[0], number), builder.inttoptr(args[1], pointer), args[2], args[3]]
        return builder.call(function, given)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def now_ns(typingctx: Any) -> Any:
    """Read the clock that `time.perf_counter_ns` reads."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, time = ir.IntType(32), ir.LiteralStructType([_WORD, _WORD])
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(number, [number, time.as_pointer()]), "clock_gettime"
        )
        place = cgutils.alloca_once(builder, time)
        builder.call(function, [number(1), place])  # CLOCK_MONOTONIC
        seconds, ns = (builder.load(cgutils.gep_inbounds(builder, place, 0, k)) for k in (0, 1))
        return builder.add(builder.mul(seconds, _WORD(1_000_000_000)), ns)

    return types.int64(), generate


@intrinsic
def inflate_by_address(
    typingctx: Any, function: Any, decompressor: Any, source: Any, nbytes: Any, target: Any, room: Any
) -> Any:
    """Call libdeflate's function at an address (`h5stream.storage.libdeflate`); 0 says that `room` bytes are there."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, status = _BYTE.as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(status, [pointer, pointer, _WORD, pointer, _WORD, pointer])
        called = builder.inttoptr(args[0], kind.as_pointer())
        given = builder.call(
            called,
            [
                builder.inttoptr(args[1], pointer),
                builder.inttoptr(args[2], pointer),
                args[3],
                builder.inttoptr(args[4], pointer),
                args[5],
                ir.Constant(pointer, None),
            ],
        )
        return builder.sext(given, _WORD)

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def open_at(typingctx: Any, path: Any) -> Any:
    """Call the C library's open, for reading, with the address of a path that ends in a null; -1 for an error."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, pointer = ir.IntType(32), _BYTE.as_pointer()
        kind = ir.FunctionType(number, [pointer, number], var_arg=True)
        function = cgutils.get_or_insert_function(builder.module, kind, "open")
        flags = number(os.O_RDONLY | os.O_CLOEXEC)
        return builder.sext(builder.call(function, [builder.inttoptr(args[0], pointer), flags]), _WORD)

    return types.int64(types.int64), generate


@intrinsic
def close_descriptor(typingctx: Any, descriptor: Any) -> Any:
    """Call the C library's close."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = ir.IntType(32)
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(number, [number]), "close")
        builder.call(function, [builder.trunc(args[0], number)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def statx_by_address(typingctx: Any, function: Any, descriptor: Any, nothing: Any, target: Any) -> Any:
    """Call Linux's statx at an address with a descriptor and an empty path; 0 says that 256 bytes are there."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, pointer = ir.IntType(32), _BYTE.as_pointer()
        kind = ir.FunctionType(number, [number, pointer, number, number, pointer])
        given = [
            builder.trunc(args[1], number),
            builder.inttoptr(args[2], pointer),
            number(0x1000),  # AT_EMPTY_PATH
            number(0x340),  # time of modification, inode, size
            builder.inttoptr(args[3], pointer),
        ]
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), given), _WORD)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate
