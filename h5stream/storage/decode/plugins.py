"""HDF5 filter plugins called directly: outside HDF5's lock, with exactly libhdf5's bytes.

hdf5plugin ships each registered filter as a shared library that exports ``H5PLget_plugin_info()``; the
structure it returns holds the very function that libhdf5 would call. ctypes releases the GIL around it, so
threads decode side by side.

Source: ``H5Zdevelop.h`` of the HDF5 library (``H5Z_class2_t``, ``H5Z_func_t``).
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_REVERSE = 0x0100  # H5Z_FLAG_REVERSE: decode
_ZEROED_NBYTES = 4096
"""A length that is read behind the end is then zero, which every codec refuses."""

_Numbers, _Length, _Buffer = (ctypes.POINTER(kind) for kind in (ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p))
_FilterFunction = ctypes.CFUNCTYPE(
    # flags, number of cd_values, cd_values, valid bytes in the buffer; allocated bytes and the buffer, in and out
    ctypes.c_size_t,
    ctypes.c_uint,
    ctypes.c_size_t,
    _Numbers,
    ctypes.c_size_t,
    _Length,
    _Buffer,
)


class _FilterClass(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("version", "id", "encoder_present", "decoder_present")),
        ("name", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("can_apply", "set_local", "filter")),
    )


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


class PluginBuffer:
    """The memory that a filter left its output in; freed by `release` or when it is dropped.

    # Guarantees: owned by the one thread that decodes with it. A holder of the array from `decode` must
    # be done with it before the next `decode` into the same buffer.
    """

    _address: int | None = None

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Hand the memory back to the C library."""
        address, self._address = self._address, None
        if address:
            _libc.free(address)

    def decode(
        self,
        function: Callable[..., int],
        values: ctypes.Array[ctypes.c_uint],
        source: Bytes,
        *,
        most_nbytes: int,
        behind_nbytes: int = 0,
    ) -> Bytes:
        """Run a filter backwards over a copy of `source`, once `check_claims` took it; give a view of the result."""
        self.release()
        # The filter may free or reallocate its input, so it gets memory of the C allocator's own.
        buffer = ctypes.c_void_p(_libc.malloc(max(1, source.nbytes + behind_nbytes)))
        if not buffer.value:
            raise MemoryError(f"no memory for {source.nbytes} bytes of compressed data")
        ctypes.memmove(buffer, source.ctypes.data, source.nbytes)
        ctypes.memset(buffer.value + source.nbytes, 0, min(behind_nbytes, _ZEROED_NBYTES))
        allocated = ctypes.c_size_t(source.nbytes)
        count = function(_REVERSE, len(values), values, source.nbytes, ctypes.byref(allocated), ctypes.byref(buffer))
        self._address = buffer.value
        # The one for zstd hands on a negative error code as if it were a length, of the buffer too.
        if count == 0 or count > min(most_nbytes, allocated.value) or not buffer.value:
            raise ValueError("the filter refused the bytes")
        return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(buffer.value))


@functools.cache  # every chunk asks, so no lock: a fork while another thread held it would stop the child
def _functions() -> dict[int, Callable[..., int]]:
    """Load every plugin library; filter number -> its C function."""
    functions: dict[int, Callable[..., int]] = {}
    for path in sorted(Path(hdf5plugin.PLUGIN_PATH).glob("*.so")):
        try:
            library = ctypes.CDLL(str(path))
            get_info = library.H5PLget_plugin_info
        except (OSError, AttributeError):
            continue  # not loadable on this machine: the filter counts as missing, and says so where needed
        get_info.restype = ctypes.POINTER(_FilterClass)
        info = get_info().contents
        if info.version == 1 and info.decoder_present and info.filter:
            functions[info.id] = _FilterFunction(info.filter)
    return functions


def plugin_function(filter_id: int) -> Callable[..., int] | None:
    """Return the C function that decodes a registered filter, or None if hdf5plugin does not carry it."""
    return _functions().get(filter_id)


# --- What compressed bytes claim to decode to, checked before a codec believes it.
#
# Plugins allocate what the first bytes of a chunk promise, and some read as far as lengths among those bytes say:
# a few damaged (or malicious) bytes would take all memory, or read beyond the buffer. So the claims are held
# against the chunk that the dataset promises first, and the input gets room for the reads that cannot be checked.


BLOSC, BITSHUFFLE, ZFP, ZSTD, SZ, SZ3, BLOSC2 = 32001, 32008, 32013, 32015, 32017, 32024, 32026

_WITH_LZ4, _WITH_ZSTD = 2, 3  # bitshuffle's fifth parameter
_ZSTD_MAGIC = 0xFD2FB528
_ZFP_MAGIC = int.from_bytes(b"zfp", "little")
_ZFP_VALUE_NBYTES = (4, 8, 4, 8)


_STORED = "it claims to be {:,} bytes long, but {:,} are stored"
_DECODED = "it claims to decode to {:,} bytes, where at most {:,} can be"

_HEADERS: dict[int, tuple[tuple[str, int, str], ...]] = {
    # C-Blosc's README_CHUNK_FORMAT; the decoder is told neither length, and believes both
    BLOSC: (("<I", 4, _DECODED), ("<I", 12, _STORED)),
    # C-Blosc2's README_CFRAME_FORMAT: offsets of the lengths in the header of a contiguous frame
    BLOSC2: ((">q", 16, _STORED), (">q", 30, _DECODED), (">i", 58, _DECODED)),
}
"""Numbers in headers: how and where they are stored, and what they claim."""


def check_claims(filter_id: int, values: Sequence[int], stored: Bytes, most_nbytes: int) -> int:
    """Hold what compressed bytes claim against what a chunk may be; return how much room is needed behind them."""
    for layout, offset, claim in _HEADERS.get(filter_id, ()):
        _check(_number(stored, layout, offset), most_nbytes if claim is _DECODED else stored.nbytes, claim)
    check = _CHECKS.get(filter_id)
    return 0 if check is None else check(values, stored, most_nbytes)


def _number(stored: Bytes, layout: str, offset: int) -> int:
    try:
        return int(struct.unpack_from(layout, stored.data, offset)[0])
    except struct.error:
        raise ValueError(f"{stored.nbytes} bytes are too few for its header") from None


def _check(claimed: int, most: int, claim: str) -> None:
    if not 0 <= claimed <= most:
        raise ValueError(claim.format(claimed, most))


def _zstd(values: Sequence[int], stored: Bytes, most_nbytes: int) -> int:
    """Source: RFC 8878, 3.1.1.1 "Frame_Header"."""
    if _number(stored, "<I", 0) != _ZSTD_MAGIC:
        raise ValueError("it is not a zstd frame")
    descriptor = _number(stored, "B", 4)
    single_segment, size_flag = descriptor >> 5 & 1, descriptor >> 6
    at = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if size_flag == 0 and not single_segment:
        raise ValueError("its zstd frame does not say how long it is")  # the plugin refuses it too
    claimed = _number(stored, ("B", "<H", "<I", "<Q")[size_flag], at) + (256 if size_flag == 1 else 0)
    _check(claimed, most_nbytes, _DECODED)
    return 0


def _sz3(values: Sequence[int], stored: Bytes, most_nbytes: int) -> int:
    """Look at the length that SZ3 puts before its zstd frame."""
    if not _is_zstd(stored[8:]):
        return 0
    _check(_number(stored, "<Q", 0), most_nbytes, _DECODED)
    return _zstd(values, stored[8:], most_nbytes)


def _is_zstd(stored: Bytes) -> bool:
    return stored.nbytes >= 4 and _number(stored, "<I", 0) == _ZSTD_MAGIC


def _bitshuffle(values: Sequence[int], stored: Bytes, most_nbytes: int) -> int:
    """Source: ``bshuf_h5filter.c``; its decoder is not told where its input ends."""
    codec = values[4] if len(values) > 4 else 0
    if codec not in (_WITH_LZ4, _WITH_ZSTD):
        return 0
    claimed = _number(stored, ">Q", 0)
    _check(claimed, most_nbytes, _DECODED)
    block_nbytes = _number(stored, ">I", 8)
    if codec == _WITH_LZ4:
        # A block must use up exactly what it claims, and LZ4 reads little more than it may write. So this much
        # behind the input is enough, and nothing has to follow the blocks in Python.
        return claimed + claimed // 16 + 64 * (2 + claimed // max(64, block_nbytes)) + 4096
    _follow_blocks(stored, claimed, block_nbytes, max(1, values[2]))
    return 64


def _follow_blocks(stored: Bytes, claimed: int, block_nbytes: int, element_nbytes: int) -> None:
    """Follow the blocks of a bitshuffled chunk from length to length."""
    eight = 8 * element_nbytes
    block_nbytes = block_nbytes // eight * eight or eight
    blocks = claimed // block_nbytes + (claimed % block_nbytes >= eight)
    at, end, read = 12, stored.nbytes, struct.Struct(">I").unpack_from
    for _ in range(blocks):
        if at + 4 > end:
            raise ValueError("its blocks end before all were there")
        at += 4 + read(stored.data, at)[0]
    _check(at + claimed % eight, stored.nbytes, _STORED)


def _zfp(values: Sequence[int], stored: Bytes, most_nbytes: int) -> int:
    """Source: zfp's ``zfp_field_metadata`` (52 bits), which H5Z-ZFP keeps in the filter's parameters."""
    if len(values) < 4:
        raise ValueError("its parameters are incomplete")
    words = list(values[1:4])
    if words[0] & 0xFFFFFF != _ZFP_MAGIC:  # written on a machine of the other byte order
        words = [int.from_bytes(word.to_bytes(4, "little"), "big") for word in words]
    if words[0] & 0xFFFFFF != _ZFP_MAGIC:
        raise ValueError("its parameters are not a zfp header")
    meta = words[1] | words[2] << 32
    axes = (meta >> 2 & 3) + 1
    width = 48 // axes
    claimed = _ZFP_VALUE_NBYTES[meta & 3]
    for axis in range(axes):
        claimed *= (meta >> 4 + axis * width & (1 << width) - 1) + 1
    _check(claimed, most_nbytes, _DECODED)
    # The decoder has no notion of an end of input: a block of 4 values an axis takes what its bits say.
    return 4 * claimed + 64 * 1024


_CHECKS: dict[int, Callable[[Sequence[int], Bytes, int], int]] = {
    BITSHUFFLE: _bitshuffle,
    ZFP: _zfp,
    ZSTD: _zstd,
    # SZ's own frame, which is zstd's; what is inside, only SZ can check, and does not
    SZ: lambda values, stored, most_nbytes: _zstd(values, stored, most_nbytes) if _is_zstd(stored) else 0,
    SZ3: _sz3,
}


# --- Which HDF5 this is and which filters it can decode -------------------------------------------


FILTER_NAMES = {1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
FILTER_NAMES |= {number: name for name, number in hdf5plugin.FILTERS.items()}
"""Filters of libhdf5 and h5py themselves, and those that come with hdf5plugin, by number."""


class StorageVersions(NamedTuple):
    """Versions of what reads HDF5 here."""

    hdf5: str  # hdf5, h5py, hdf5plugin: versions of the C library and of the two packages
    h5py: str
    hdf5plugin: str
    filters: dict[int, tuple[str, bool]]  # of all three: name, and whether this libhdf5 can decode it


def storage_versions() -> StorageVersions:
    """Return the versions, and ask libhdf5 for every filter."""
    filters = {number: (name, bool(h5py.h5z.filter_avail(number))) for number, name in sorted(FILTER_NAMES.items())}
    return StorageVersions(h5py.version.hdf5_version, h5py.version.version, hdf5plugin.version, filters)
