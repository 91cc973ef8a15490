"""The filters that are undone without a plugin: each from stored bytes into a buffer that is reused."""

from __future__ import annotations

import bz2
import ctypes
import functools
import importlib
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET, LZF, LZ4 = 1, 2, 3, 4, 5, 6, 32000, 32004
BZIP2 = 307

_INT_MAX = 2**31 - 1
_HARDEST_DEFLATE = 9

FIRST_PLUGIN = 256
"""Filters below this number are libhdf5's own."""


class DecodeError(Exception):
    """Stored bytes do not decode; the caller adds where they came from."""


class NotAskedError(DecodeError):
    """Stored bytes do not decode, and libhdf5 is not to be asked about them.

    It would take whatever memory they claim, read behind the end of its buffer, or run the same plugin again.
    """


class TooShortError(NotAskedError):
    """Stored bytes decode to fewer than a chunk has; libhdf5 would read on behind the end of its buffer."""


def element_nbytes_of(values: tuple[int, ...]) -> int:
    """Return an element's bytes, of a shuffle's parameters; as libhdf5, which takes no other (``H5Zshuffle.c``)."""
    if len(values) != 1 or values[0] == 0:
        raise DecodeError(f"shuffle: its parameters are {values}, not the bytes of an element")
    return values[0]


def most_nbytes(raw_nbytes: int) -> int:
    """Return the bytes that a chunk may take at any point of its pipeline: codecs add little to what does not shrink.

    More is taken for damage, or for an attempt to fill the memory.
    """
    return 2 * raw_nbytes + 65536


def _undo_deflate(values: tuple[int, ...], data: Bytes, out: Bytes) -> Bytes:
    if len(values) != 1 or values[0] > _HARDEST_DEFLATE:
        # Not needed to decode, but libhdf5 refuses them, and what stands beside them may be damaged too.
        raise DecodeError(f"gzip: its parameters are {values}, not a level from 0 to {_HARDEST_DEFLATE}")
    try:
        return out[: len(imagecodecs.deflate_decode(data, out=out))]
    except RuntimeError:
        _check_inflated(data, most_nbytes(out.nbytes))
        raise


def _check_inflated(data: Bytes, most: int) -> None:
    """Refuse a stream that inflates to more than `most` bytes: libhdf5 would take memory for all of them."""
    stream = zlib.decompressobj()
    try:
        inflated = len(stream.decompress(data, most + 1))
    except zlib.error:
        return  # libhdf5 fails at the same byte
    if inflated > most:
        raise NotAskedError(f"gzip goes on after {most} bytes")


def _undone_by(decode: Callable[..., Any]) -> Callable[[tuple[int, ...], Bytes, Bytes], Bytes]:
    """Return what undoes a filter by a decoder that needs no parameters."""
    return lambda _values, data, out: out[: len(decode(data, out=out))]


def _undo_szip(values: tuple[int, ...], data: Bytes, out: Bytes) -> Bytes:
    if len(values) < 4 or data.nbytes < 4:
        raise NotAskedError("szip: its parameters are incomplete")
    mask, pixels_per_block, bits_per_pixel, pixels_per_scanline = values[:4]
    if max(values[:4]) > _INT_MAX:
        raise NotAskedError(f"szip: its parameters are {values[:4]}")
    promised = int(data[:4].view("<u4")[0])
    if promised > out.nbytes:
        raise NotAskedError(f"szip promises {promised} bytes where at most {out.nbytes} fit")
    out = out[:promised]
    # libaec stops without a word where the stream does not make sense, so marks in the last bytes tell whether it
    # came there; data that happens to look like one mark does not look like both.
    for mark in (0xA5, 0x5A):
        out[-8:] = mark
        imagecodecs.szip_decode(data, mask, pixels_per_block, bits_per_pixel, pixels_per_scanline, header=True, out=out)
        if not (out[-8:] == mark).all():
            return out
    raise NotAskedError("szip: its bytes end before the chunk is full")


def _undo_shuffle(values: tuple[int, ...], data: Bytes, out: Bytes) -> Bytes:
    return unshuffle(data, element_nbytes_of(values), out[: data.nbytes])


def _undo_fletcher32(values: tuple[int, ...], data: Bytes, out: Bytes) -> Bytes:
    if data.nbytes < 4:
        raise DecodeError("fletcher32: the chunk is shorter than its checksum")
    body, promised = data[:-4], int(data[-4:].view("<u4")[0])
    found = int(imagecodecs.h5checksum_fletcher32(body))
    # HDF5 before 1.6.3 wrote the sum with the bytes of each half swapped; libhdf5 accepts both.
    swapped = (found & 0x00FF00FF) << 8 | (found >> 8) & 0x00FF00FF
    if promised not in (found, swapped):
        raise DecodeError(f"fletcher32: the checksum is {found:#010x}, stored {promised:#010x}")
    return body


def unshuffle(data: Bytes, element_nbytes: int, out: Bytes) -> Bytes:
    """Undo a byte shuffle: byte planes of elements become elements; a tail of odd bytes stays as it is.

    Source: ``H5Zshuffle.c``: the bytes that do not fill an element are copied unchanged.
    """
    count = data.nbytes // element_nbytes if element_nbytes > 1 else 0
    if count <= 1 and element_nbytes <= 1:
        out[:] = data
        return out
    whole = count * element_nbytes
    out[:whole].reshape(count, element_nbytes)[:] = data[:whole].reshape(element_nbytes, count).T
    out[whole:] = data[whole:]
    return out


def _undo_bzip2(values: tuple[int, ...], data: Bytes, out: Bytes) -> Bytes:
    # The plugin's buffer would grow with the stream, of which 45 bytes can hold 45 MB; and imagecodecs stops
    # when `out` is full, before the checksum.
    stream = bz2.BZ2Decompressor()
    try:
        decoded = stream.decompress(data, most_nbytes(out.nbytes))
    except (OSError, EOFError) as error:
        raise DecodeError(f"bzip2: {error}") from error
    if not stream.eof:
        raise NotAskedError("bzip2: the stream has no end, or goes on for far more bytes than are promised")
    if len(decoded) > out.nbytes:
        raise DecodeError(f"bzip2 gave {len(decoded)} bytes where {out.nbytes} are promised")
    out[: len(decoded)] = np.frombuffer(decoded, np.uint8)
    return out[: len(decoded)]


UNDO: dict[int, Callable[[tuple[int, ...], Bytes, Bytes], Bytes]] = {
    DEFLATE: _undo_deflate,
    LZF: _undone_by(imagecodecs.lzf_decode),
    # The same format as the plugin's, a quarter faster: it writes into a buffer that is reused.
    LZ4: _undone_by(imagecodecs.lz4h5_decode),
    SZIP: _undo_szip,
    SHUFFLE: _undo_shuffle,
    FLETCHER32: _undo_fletcher32,
    BZIP2: _undo_bzip2,
}
"""What undoes each filter: of its parameters, stored bytes and a buffer, the part of the buffer that it wrote.

Memory of its own would not reach the batch.
"""


# --- libdeflate itself, for inner loops that inflate many small chunks without coming back to Python.
#
# imagecodecs carries the library and is the way to it for a chunk at a time. With chunks of a few KiB the call itself
# is what costs (a decompressor made and dropped, arguments taken apart, the GIL taken and given back), so the engine's
# kernels call the same function of the same library by its address. Where it cannot be found, everything goes the
# ordinary way.
#
# Source: ``libdeflate.h``: ``libdeflate_zlib_decompress`` with no place for the count of bytes succeeds only if the
# output is filled exactly; it returns 0 then.


_SELF_TEST = bytes(range(64)) * 4


class Decompressor:
    """A libdeflate decompressor, and the function that takes it.

    # Guarantees: belongs to one thread; its memory is freed when it is dropped.
    """

    def __init__(self, allocate: Any, free: Any, inflate: Any) -> None:
        self.address = int(allocate() or 0)  # the decompressor
        if not self.address:
            raise MemoryError("libdeflate has no memory for a decompressor")
        # `int (*)(decompressor, in, in_nbytes, out, out_nbytes, NULL)`; 0 says that `out_nbytes` bytes were written
        self.function = ctypes.cast(inflate, ctypes.c_void_p).value or 0
        weakref.finalize(self, free, self.address).atexit = False


def new_decompressor() -> Decompressor | None:
    """Make a decompressor for the calling thread; None where libdeflate cannot be called by address."""
    found = found_functions()
    return None if found is None else Decompressor(*found)


@functools.cache
def found_functions() -> tuple[Any, Any, Any] | None:
    """Find libdeflate behind imagecodecs' module: what makes a decompressor, frees one, and inflates with it.

    A symbol is looked up in what the module is linked with, too.
    """
    try:
        library = ctypes.CDLL(str(importlib.import_module("imagecodecs._deflate").__file__))
        allocate, free = library.libdeflate_alloc_decompressor, library.libdeflate_free_decompressor
        inflate = library.libdeflate_zlib_decompress
    except (ImportError, OSError, AttributeError):  # linked statically, or not there at all
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    allocate.restype, free.argtypes, free.restype = pointer, [pointer], None
    inflate.argtypes = [pointer, pointer, size, pointer, size, pointer]
    return (allocate, free, inflate) if _works(allocate, free, inflate) else None


def _works(allocate: Any, free: Any, inflate: Any) -> bool:
    """Inflate something known, so that a library with other ideas of its arguments is not used."""
    packed, out = zlib.compress(_SELF_TEST), ctypes.create_string_buffer(len(_SELF_TEST))
    decompressor = allocate()
    if not decompressor:
        return False
    status = inflate(decompressor, packed, len(packed), out, len(_SELF_TEST), None)
    short = inflate(decompressor, packed, len(packed), out, len(_SELF_TEST) - 1, None)
    free(decompressor)
    return bool(status == 0 and short != 0 and out.raw == _SELF_TEST)
