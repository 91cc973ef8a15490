"""Encoded images: what their bytes say of them, and decoding them outside the GIL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import imagecodecs
from numpy.typing import NDArray

from h5stream.storage.filters import DecodeError
from h5stream.storage.plugins import Bytes

Format = Literal["auto", "jpeg", "png", "webp"]
FORMATS = get_args(Format)

MOST_NBYTES = 1 << 30
"""Bytes of a decoded image, at most: a few bytes can claim many more."""

LOOKED_AT = 32
"""Images that are decoded at opening, spread over the data, to see whether they are of one size."""

_DECODERS: dict[str, Any] = {
    "jpeg": imagecodecs.jpeg8_decode,
    "png": imagecodecs.png_decode,
    "webp": imagecodecs.webp_decode,
}
_END, _SCAN = b"\xff\xd9", b"\xff\xda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """How a field's bytes are images."""

    format: str  # `"jpeg"`, `"png"`, `"webp"`, or `"auto"` for whatever each begins like
    mean_nbytes: float = 0.0  # mean_nbytes, most_nbytes: of those that were looked at, decoded
    most_nbytes: float = 0.0


class OtherShapeError(Exception):
    """An image is of another size than the first ones."""


def decode_image(data: Bytes, wanted: str, out: Any = None) -> NDArray[Any]:
    """Decode an image."""
    head = bytes(data[:16])
    found = format_of(head)
    if not found or wanted not in ("auto", found):
        begins = f"they begin with {head[:8]!r}" if head else "there are none"
        raise DecodeError(f"its bytes are no {'image' if wanted == 'auto' else wanted}: {begins}")
    if found == "jpeg" and data[-2:].tobytes() != _END:
        end = (text := data.tobytes()).rfind(_END)
        if end < 0 or _SCAN in text[end:]:  # that of a preview inside
            raise DecodeError("its end is missing")  # of which libjpeg would make a grey rest
    if out is None:  # else its decoder refuses what does not fit there
        height, width = _size_of(data, found)
        if not height or not width:
            raise DecodeError("it has no pixels")
        if height * width * 8 > MOST_NBYTES:
            raise DecodeError(f"it claims {height:,} x {width:,} pixels, more than are decoded")
    try:
        image: NDArray[Any] = _DECODERS[found](data, out=out)
    except ValueError:
        if out is None:
            raise DecodeError("it cannot be decoded") from None
        image = decode_image(data, wanted)
        raise OtherShapeError(f"{' x '.join(map(str, image.shape))} {image.dtype}") from None
    except (RuntimeError, TypeError) as error:  # imagecodecs' errors are RuntimeErrors
        raise DecodeError(str(error)) from error
    return image


def format_of(head: bytes) -> str:
    """Name the format of an image that begins with these bytes; empty for anything else."""
    if head.startswith(b"\xff\xd8"):
        return "jpeg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    return "webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else ""


def _size_of(data: Bytes, kind: str) -> tuple[int, int]:
    """Return the rows and columns that the header of an image says.

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
