"""Decoders of other libraries by address: what the kernels in C call without coming back to Python.

imagecodecs brings the libraries, and hdf5plugin's plugins have copies of some. A call of either package for a chunk
costs more than a small chunk takes to decode, and the plugin for C-Blosc holds a lock meanwhile. Each function decodes
something known before it is used, so that a library with other ideas of its arguments is not.

Source: ``libdeflate.h``, ``lz4.h``, ``zstd.h``, ``blosc.h``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import hdf5plugin
import imagecodecs

_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class Decoder(NamedTuple):
    """Addresses of a library's functions."""

    decode: int
    make: int = 0  # make, drop: of the context that a thread decodes with, 0 if there is none
    drop: int = 0


_KNOWN = bytes(range(64)) * 8
_BLOSC_CODECS = {b"blosclz", b"lz4", b"lz4hc", b"snappy", b"zlib", b"zstd"}
"""Those that the plugin has: a library with fewer could not stand in for it."""


def _libraries(module: str, plugin: str) -> Iterator[ctypes.CDLL]:
    """Load a module of imagecodecs, with what it is linked with, and then a plugin."""
    with contextlib.suppress(ImportError, OSError):  # a build of imagecodecs without it
        yield ctypes.CDLL(str(importlib.import_module(module).__file__))
    with contextlib.suppress(OSError):
        if plugin:
            yield ctypes.CDLL(str(Path(hdf5plugin.PLUGIN_PATH) / plugin))


def _at(library: ctypes.CDLL, *names: str) -> Decoder:
    """Return the addresses of a library's functions, as they are called in `Decoder`'s order."""
    return Decoder(*(ctypes.cast(library[name], _pointer).value or 0 for name in names))


def _libdeflate_in(library: ctypes.CDLL) -> Decoder | None:
    make, drop = library.libdeflate_alloc_decompressor, library.libdeflate_free_decompressor
    inflate, count = library.libdeflate_zlib_decompress, _size()
    make.restype, drop.argtypes, drop.restype = _pointer, [_pointer], None
    inflate.argtypes = [_pointer, _pointer, _size, _pointer, _size, _pointer]
    packed, out = zlib.compress(_KNOWN), ctypes.create_string_buffer(len(_KNOWN) + 1)
    if not (context := make()):
        return None
    whole = inflate(context, packed, len(packed), out, len(_KNOWN) + 1, ctypes.byref(count))
    short = inflate(context, packed, len(packed), out, len(_KNOWN) - 1, ctypes.byref(_size()))
    drop(context)
    works = (whole, short, count.value) == (0, 3, len(_KNOWN)) and out.raw[:-1] == _KNOWN
    return (
        _at(library, "libdeflate_zlib_decompress", "libdeflate_alloc_decompressor", "libdeflate_free_decompressor")
        if works
        else None
    )


def _lz4_in(library: ctypes.CDLL) -> Decoder | None:
    decode, out = library.LZ4_decompress_safe, ctypes.create_string_buffer(len(_KNOWN))
    decode.argtypes, decode.restype = [_pointer, _pointer, _int, _int], _int
    packed = imagecodecs.lz4_encode(_KNOWN)
    short, count = (decode(packed, out, len(packed), len(_KNOWN) - less) for less in (1, 0))
    works = count == len(_KNOWN) and short < 0 and out.raw == _KNOWN
    return _at(library, "LZ4_decompress_safe") if works else None


def _zstd_in(library: ctypes.CDLL) -> Decoder | None:
    make, drop, decode = library.ZSTD_createDCtx, library.ZSTD_freeDCtx, library.ZSTD_decompressDCtx
    make.restype, drop.argtypes, drop.restype = _pointer, [_pointer], _size
    decode.argtypes, decode.restype = [_pointer, _pointer, _size, _pointer, _size], _size
    packed, out = imagecodecs.zstd_encode(_KNOWN), ctypes.create_string_buffer(len(_KNOWN))
    if not (context := make()):
        return None
    short, count = (decode(context, out, len(_KNOWN) - less, packed, len(packed)) for less in (1, 0))
    drop(context)
    works = count == len(_KNOWN) and short > 1 << 63 and out.raw == _KNOWN
    return _at(library, "ZSTD_decompressDCtx", "ZSTD_createDCtx", "ZSTD_freeDCtx") if works else None


def _blosc_in(library: ctypes.CDLL) -> Decoder | None:
    decode, codecs = library.blosc_decompress_ctx, library.blosc_list_compressors
    out = ctypes.create_string_buffer(len(_KNOWN))
    decode.argtypes, decode.restype, codecs.restype = [_pointer, _pointer, _size, _int], _int, ctypes.c_char_p
    packed = imagecodecs.blosc_encode(_KNOWN, typesize=4, shuffle=1)
    short, count = (decode(packed, out, len(_KNOWN) - less, 1) for less in (1, 0))
    works = count == len(_KNOWN) and short < 0 and out.raw == _KNOWN
    return _at(library, "blosc_decompress_ctx") if works and {*codecs().split(b",")} >= _BLOSC_CODECS else None


_LOOKS: dict[int, tuple[str, str, Callable[[ctypes.CDLL], Decoder | None]]] = {
    1: ("imagecodecs._deflate", "", _libdeflate_in),
    32001: ("imagecodecs._blosc", "", _blosc_in),
    32004: ("imagecodecs._lz4", "libh5lz4.so", _lz4_in),
    32015: ("imagecodecs._zstd", "libh5zstd.so", _zstd_in),
}
"""By a filter's number: where its library may be, and what looks for the functions there."""


@functools.cache  # without a lock, as `plugins._functions`
def decoder_of(filter_id: int) -> Decoder | None:
    """Return the functions that decode what a filter wrote, of the first library in which they work."""
    if filter_id not in _LOOKS:
        return None
    module, plugin, look = _LOOKS[filter_id]
    for library in _libraries(module, plugin):
        with contextlib.suppress(AttributeError):  # it is not exported
            if (decoder := look(library)) is not None:
                return decoder
    return None
