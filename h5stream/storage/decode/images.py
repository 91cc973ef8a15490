"""Encoded images: their formats and sizes, and decoding without the GIL."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from h5stream.storage.decode.filters import DecodeError
from h5stream.storage.decode.plugins import Bytes

Format = Literal["auto", "jpeg", "png", "webp", "auto-rgb", "png-rgb"]
FORMATS = get_args(Format)

COLOURS = "-rgb"
"""Suffix of a format that returns palette PNGs in colours instead of palette indices."""

MOST_NBYTES = 1 << 30
"""Maximum bytes of a decoded image: a few bytes can claim many more."""

LOOKED_AT = 32
"""Images, spread over the data, that are decoded on opening to check that their sizes are equal."""

Pixels = NDArray[np.unsignedinteger]
"""A decoded image."""

_DECODERS: dict[str, Callable[..., Pixels]] = {
    "jpeg": imagecodecs.jpeg8_decode,
    "png": imagecodecs.png_decode,
    "webp": imagecodecs.webp_decode,
}
_INDEXED = 3
"""The colour type of a PNG with a palette."""
_EXPANDED = {1: 255, 2: 85, 4: 17}
"""The factor by which a decoder multiplies gray levels of some bits, so that white is 255."""
_END, _SCAN = b"\xff\xd9", b"\xff\xda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """The format and the decoded size of a field's images."""

    # `"jpeg"`, `"png"`, `"webp"`, or `"auto"` to detect it for each image; the suffix `COLOURS` expands palettes
    format: str
    mean_nbytes: float = 0.0  # mean_nbytes, most_nbytes: of the decoded sample, see `LOOKED_AT`
    most_nbytes: float = 0.0


class OtherShapeError(Exception):
    """An image has another size than the first ones."""


def decode_image(data: Bytes, wanted: str, out: Pixels | None = None) -> Pixels:
    """Decode an image, into `out` if given, which must fit."""
    head = bytes(data[:16])
    actual, kind = format_of(head), wanted.removesuffix(COLOURS)
    if not actual or kind not in ("auto", actual):
        begins = f"they begin with {head[:8]!r}" if head else "there are none"
        raise DecodeError(f"its bytes are no {'image' if kind == 'auto' else kind}: {begins}")
    if actual == "jpeg" and data[-2:].tobytes() != _END:
        end = (text := data.tobytes()).rfind(_END)
        if end < 0 or _SCAN in text[end:]:  # the end of an embedded preview
            raise DecodeError("its end is missing")  # libjpeg would fill the rest with grey
    if out is None:  # otherwise the decoder refuses an image that does not fit
        height, width = _size_of(data, actual)
        if not height or not width:
            raise DecodeError("it has no pixels")
        if height * width * 8 > MOST_NBYTES:
            raise DecodeError(f"it claims {height:,} x {width:,} pixels, more than are decoded")
    depth, in_colours = palette_bits(data), wanted.endswith(COLOURS)
    try:
        image: Pixels = _DECODERS[actual](_plain_png(data, in_colours=in_colours) if depth else data, out=out)
        if depth in _EXPANDED and not in_colours:
            np.floor_divide(image, _EXPANDED[depth], out=image)
    except ValueError:
        if out is None:
            raise DecodeError("it cannot be decoded") from None
        image = decode_image(data, wanted)
        raise OtherShapeError(f"{' x '.join(map(str, image.shape))} {image.dtype}") from None
    except (RuntimeError, TypeError) as error:  # imagecodecs' errors are RuntimeErrors
        raise DecodeError(str(error)) from error
    return image


def palette_bits(data: Bytes) -> int:
    """Return the bits per pixel of a palette PNG; 0 for all other images, and for a damaged header.

    Source: the PNG specification, third edition (IHDR, and the check value of a chunk).
    """
    head = data[:33].tobytes()
    is_palette = format_of(head) == "png" and len(head) == 33 and head[25] == _INDEXED and head[12:16] == b"IHDR"
    is_sound = is_palette and zlib.crc32(head[12:29]) == int.from_bytes(head[29:33], "big")
    return head[24] if is_sound and head[24] in (1, 2, 4, 8) else 0


def _plain_png(data: Bytes, *, in_colours: bool) -> NDArray[np.uint8]:
    """Return a palette PNG without transparency, or as a gray PNG whose levels are the palette indices."""
    text = data.tobytes()
    header = text[12:25] + (text[25:26] if in_colours else b"\0") + text[26:29]  # 0: the colour type of gray levels
    pieces, at = [text[:12], header, zlib.crc32(header).to_bytes(4, "big")], 33
    while at + 12 <= len(text):
        size, kind = int.from_bytes(text[at : at + 4], "big"), text[at + 4 : at + 8]
        if kind in (b"IDAT", b"IEND") or (in_colours and kind != b"tRNS"):
            pieces.append(text[at : at + 12 + size])
        at += 12 + size
        if kind == b"IEND":
            break
    return np.frombuffer(b"".join(pieces), dtype=np.uint8)


def format_of(head: bytes) -> str:
    """Return the format of an image by its first bytes; empty if unknown."""
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    return "webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else ""


def _size_of(data: Bytes, kind: str) -> tuple[int, int]:
    """Return the height and width in the header of an image.

    Sources: ITU-T T.81 (SOF markers), the PNG specification (IHDR), RFC 9649 (VP8, VP8L and VP8X chunks).
    """
    head = data[:32].tobytes().ljust(32, b"\0")
    if kind == "png":
        return int.from_bytes(head[20:24], "big"), int.from_bytes(head[16:20], "big")
    if kind == "webp":
        if head[12:16] == b"VP8X":
            return int.from_bytes(head[27:30], "little") + 1, int.from_bytes(head[24:27], "little") + 1
        if head[12:16] == b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
        return int.from_bytes(head[28:30], "little") & 0x3FFF, int.from_bytes(head[26:28], "little") & 0x3FFF
    at = 2
    while at + 9 <= len(data):
        marker = int(data[at + 1])
        if data[at] != 0xFF or marker == 0xFF:  # between segments any byte may be filled in
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            size = data[at + 5 : at + 9].tobytes()
            return int.from_bytes(size[:2], "big"), int.from_bytes(size[2:], "big")
        else:
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4].tobytes(), "big"))
    raise DecodeError("it has no frame")
