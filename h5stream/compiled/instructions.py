"""The instructions that numba has no words for: raw copies and loads, calls of the C library.

Only the kernels of `h5stream.storage` that read headers use them.
"""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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
