"""Addresses of decoders in other libraries, which the kernels in C call without returning to Python.

imagecodecs ships the libraries, and hdf5plugin's plugins contain copies of some. A call of either package for a chunk
costs more than decoding a small chunk, and the C-Blosc plugin holds a lock meanwhile. Each function is tested on known
data first, so that a library with another signature is never used.

Source: ``libdeflate.h``, ``lz4.h``, ``zstd.h``, ``blosc.h``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import hdf5plugin
import imagecodecs

_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class Decoder(NamedTuple):
    """Addresses of a library's functions."""

    decode: int
    make: int = 0  # make, drop: create and free the context of a thread; 0 if the library needs none
    drop: int = 0


_TEST_DATA = bytes(range(64)) * 8
_BLOSC_CODECS = {b"blosclz", b"lz4", b"lz4hc", b"snappy", b"zlib", b"zstd"}
"""The codecs of the plugin: a library with fewer cannot replace it."""


def _address(function: object) -> int:
    """Return the address of a library's function."""
    return ctypes.cast(function, _pointer).value or 0  # type: ignore[arg-type]


def _libdeflate_in(library: ctypes.CDLL) -> Decoder | None:
    make, drop = library.libdeflate_alloc_decompressor, library.libdeflate_free_decompressor
    inflate, count = library.libdeflate_zlib_decompress, _size()
    make.restype, drop.argtypes, drop.restype = _pointer, [_pointer], None
    inflate.argtypes = [_pointer, _pointer, _size, _pointer, _size, _pointer]
    packed, out = zlib.compress(_TEST_DATA), ctypes.create_string_buffer(len(_TEST_DATA) + 1)
    if not (context := make()):
        return None
    whole = inflate(context, packed, len(packed), out, len(_TEST_DATA) + 1, ctypes.byref(count))
    short = inflate(context, packed, len(packed), out, len(_TEST_DATA) - 1, ctypes.byref(_size()))
    drop(context)
    works = (whole, short, count.value) == (0, 3, len(_TEST_DATA)) and out.raw[:-1] == _TEST_DATA
    return Decoder(_address(inflate), _address(make), _address(drop)) if works else None


def _lz4_in(library: ctypes.CDLL) -> Decoder | None:
    decode, out = library.LZ4_decompress_safe, ctypes.create_string_buffer(len(_TEST_DATA))
    decode.argtypes, decode.restype = [_pointer, _pointer, _int, _int], _int
    packed = imagecodecs.lz4_encode(_TEST_DATA)
    short, count = (decode(packed, out, len(packed), len(_TEST_DATA) - less) for less in (1, 0))
    works = count == len(_TEST_DATA) and short < 0 and out.raw == _TEST_DATA
    return Decoder(_address(decode)) if works else None


def _zstd_in(library: ctypes.CDLL) -> Decoder | None:
    make, drop, decode = library.ZSTD_createDCtx, library.ZSTD_freeDCtx, library.ZSTD_decompressDCtx
    make.restype, drop.argtypes, drop.restype = _pointer, [_pointer], _size
    decode.argtypes, decode.restype = [_pointer, _pointer, _size, _pointer, _size], _size
    packed, out = imagecodecs.zstd_encode(_TEST_DATA), ctypes.create_string_buffer(len(_TEST_DATA))
    if not (context := make()):
        return None
    short, count = (decode(context, out, len(_TEST_DATA) - less, packed, len(packed)) for less in (1, 0))
    drop(context)
    works = count == len(_TEST_DATA) and short > 1 << 63 and out.raw == _TEST_DATA
    return Decoder(_address(decode), _address(make), _address(drop)) if works else None


def _blosc_in(library: ctypes.CDLL) -> Decoder | None:
    decode, codecs = library.blosc_decompress_ctx, library.blosc_list_compressors
    out = ctypes.create_string_buffer(len(_TEST_DATA))
    decode.argtypes, decode.restype, codecs.restype = [_pointer, _pointer, _size, _int], _int, ctypes.c_char_p
    packed = imagecodecs.blosc_encode(_TEST_DATA, typesize=4, shuffle=1)
    short, count = (decode(packed, out, len(_TEST_DATA) - less, 1) for less in (1, 0))
    works = count == len(_TEST_DATA) and short < 0 and out.raw == _TEST_DATA
    return Decoder(_address(decode)) if works and {*codecs().split(b",")} >= _BLOSC_CODECS else None


_CANDIDATES: dict[int, tuple[str, str, Callable[[ctypes.CDLL], Decoder | None]]] = {
    1: ("imagecodecs._deflate", "", _libdeflate_in),
    32001: ("imagecodecs._blosc", "", _blosc_in),
    32004: ("imagecodecs._lz4", "libh5lz4.so", _lz4_in),
    32015: ("imagecodecs._zstd", "libh5zstd.so", _zstd_in),
}
"""By filter number: the module and the plugin that may contain its library, and the function that checks it."""


@functools.cache  # without a lock, as `plugins._functions`
def decoder_of(filter_id: int) -> Decoder | None:
    """Return the functions that undo a filter, from the first library that passes the check; None if none does."""
    if filter_id not in _CANDIDATES:
        return None
    module, plugin, decoder_in = _CANDIDATES[filter_id]
    paths = [str(Path(hdf5plugin.PLUGIN_PATH) / plugin)] if plugin else []
    with contextlib.suppress(ImportError, OSError):  # a build of imagecodecs without it
        paths.insert(0, str(importlib.import_module(module).__file__))
    for path in paths:
        # A module that cannot be loaded is no library, and neither is one that does not export a function.
        with contextlib.suppress(OSError, AttributeError):
            if (decoder := decoder_in(ctypes.CDLL(path))) is not None:
                return decoder
    return None
