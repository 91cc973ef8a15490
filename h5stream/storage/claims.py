"""What compressed bytes claim to decode to, checked before a codec believes it.

Plugins allocate what the first bytes of a chunk promise, and some read as far as lengths among those bytes say:
a few damaged (or malicious) bytes would take all memory, or read beyond the buffer. So the claims are held
against the chunk that the dataset promises first, and the input gets room for the reads that cannot be checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

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


class ClaimError(ValueError):
    """Compressed bytes claim what cannot be; no codec is to see them."""


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
        raise ClaimError(f"{stored.nbytes} bytes are too few for its header") from None


def _check(claimed: int, most: int, claim: str) -> None:
    if not 0 <= claimed <= most:
        raise ClaimError(claim.format(claimed, most))


def _zstd(values: Sequence[int], stored: Bytes, most_nbytes: int) -> int:
    """Source: RFC 8878, 3.1.1.1 "Frame_Header"."""
    if _number(stored, "<I", 0) != _ZSTD_MAGIC:
        raise ClaimError("it is not a zstd frame")
    descriptor = _number(stored, "B", 4)
    single_segment, size_flag = descriptor >> 5 & 1, descriptor >> 6
    at = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if size_flag == 0 and not single_segment:
        raise ClaimError("its zstd frame does not say how long it is")  # the plugin refuses it too
    claimed = _number(stored, ("B", "<H", "<I", "<Q")[size_flag], at) + (256 if size_flag == 1 else 0)
    _check(claimed, most_nbytes, _DECODED)
    return 0


def _sz(values: Sequence[int], stored: Bytes, most_nbytes: int) -> int:
    """Look at SZ's own frame, which is zstd's; what is inside, only SZ can check, and does not."""
    return _zstd(values, stored, most_nbytes) if _is_zstd(stored) else 0


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
            raise ClaimError("its blocks end before all were there")
        at += 4 + read(stored.data, at)[0]
    _check(at + claimed % eight, stored.nbytes, _STORED)


def _zfp(values: Sequence[int], stored: Bytes, most_nbytes: int) -> int:
    """Source: zfp's ``zfp_field_metadata`` (52 bits), which H5Z-ZFP keeps in the filter's parameters."""
    if len(values) < 4:
        raise ClaimError("its parameters are incomplete")
    words = list(values[1:4])
    if words[0] & 0xFFFFFF != _ZFP_MAGIC:  # written on a machine of the other byte order
        words = [int.from_bytes(word.to_bytes(4, "little"), "big") for word in words]
    if words[0] & 0xFFFFFF != _ZFP_MAGIC:
        raise ClaimError("its parameters are not a zfp header")
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
    SZ: _sz,
    SZ3: _sz3,
}
