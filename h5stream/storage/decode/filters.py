"""Filters: their numbers and names, the functions that undo them, the steps that do so, and errors of decoding.

Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message"; ``libdeflate.h``, ``lz4.h``,
``zstd.h``, ``blosc.h``.
"""

from __future__ import annotations

import bz2
import contextlib
import ctypes
import functools
import importlib
import itertools
import operator
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import hdf5plugin
import imagecodecs
import numpy as np

from h5stream.compiled import _native as kernels
from h5stream.storage.decode.plugins import FILTER_NAMES, Bytes, plugin_function

CHECKSUM_NBYTES = 4
DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET, LZF, LZ4 = 1, 2, 3, 4, 5, 6, 32000, 32004
BZIP2, ZSTD = 307, 32015

KNOWN_NAMES = FILTER_NAMES | {
    DEFLATE: "gzip",
    305: "lzo",
    32008: "bitshuffle",
    32022: "bitgroom",
    32023: "granular-bitround",
    32033: "htj2k",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """One filter of a pipeline."""

    id: int  # registered filter number
    values: tuple[int, ...] = ()  # its client data values in the file
    name: str = ""  # the field's word for it (`gzip`, `zstd` ...), or the name in the file

    @property
    def decodable(self) -> bool:
        """Whether `Pipeline.decode` undoes it without libhdf5."""
        return self.id in UNDO or function_of(self.id) is not None

    @property
    def word(self) -> str:
        """The field's word for it, or else the name in the file."""
        return KNOWN_NAMES.get(self.id) or self.name


class Decoder(NamedTuple):
    """Addresses of a library's functions."""

    decode: int
    make: int = 0  # make, drop: create and free the context of a thread; 0 if the library needs none
    drop: int = 0


def function_of(filter_id: int) -> tuple[bool, Decoder] | None:
    """Return whether C undoes a filter through a plugin, and the functions to call; None if C cannot undo it."""
    if filter_id in (SHUFFLE, FLETCHER32, LZF):
        return False, Decoder(0)
    if (decoder := decoder_of(filter_id)) is not None:
        return False, decoder
    # The LZ4 plugin trusts lengths in its input without checking them.
    plugin = None if filter_id in UNDO or filter_id == LZ4 else plugin_function(filter_id)
    return None if plugin is None else (True, Decoder(plugin))


# --- decoders in other libraries, which the kernels in C call by their addresses, without returning to Python.
#
# imagecodecs ships the libraries, and hdf5plugin's plugins contain copies of some. A call of either package for a
# chunk costs more than decoding a small chunk, and the C-Blosc plugin holds a lock meanwhile. Each function is tested
# on known data first, so that a library with another signature is never used.

_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


_TEST_DATA = bytes(range(64)) * 8
_BLOSC_CODECS = {b"blosclz", b"lz4", b"lz4hc", b"snappy", b"zlib", b"zstd"}
"""The codecs of the plugin: a library with fewer cannot replace it."""


def _address(function: object) -> int:
    """Return the address of a library's function."""
    return ctypes.cast(function, _pointer).value or 0


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


# --- errors of decoding

FIRST_PLUGIN = 256
"""The lowest number of a registered filter; lower ones are libhdf5's own."""

HARDEST_DEFLATE = 9


_AEC_MSB, _AEC_PREPROCESS = 4, 8
"""Options of libaec, for the bits of szip's mask that say the same."""


def is_szip_short(values: Sequence[int], data: Bytes, most_nbytes: int) -> bool:
    """Return whether a chunk of szip decodes to fewer pixels than it promises; the rest would be what the memory held.

    Values of four or eight bytes are stored byte by byte, and lines of pixels in whole blocks. False for blocks of
    fewer than 8 pixels, which imagecodecs does not read by themselves, and for what is no stream at all. Source:
    libaec's ``sz_compat.c``.
    """
    mask, block, bits, line = values[:4]
    promised = int(data[:4].view("<u4")[0])
    if block < 8 or not line or promised > most_nbytes:
        return False
    bits = 8 if bits in (32, 64) else bits
    pixel, blocks = 4 if bits > 16 else 2 if bits > 8 else 1, -(-line // block)
    padded = blocks * block * pixel
    lines, rest = divmod(promised, line * pixel)
    flags = _AEC_MSB * bool(mask & 16) + _AEC_PREPROCESS * bool(mask & 32)
    room = (lines + bool(rest)) * padded
    try:
        pixels = imagecodecs.aec_decode(
            data[4:].tobytes(), bitspersample=bits, flags=flags, blocksize=block, rsi=blocks, out=room
        )
    except (RuntimeError, ValueError):  # an error of the stream, which decoding has too, or more than there is room for
        return False
    return len(pixels) < lines * padded + rest


def is_packing(one: Filter) -> bool:
    """Return whether a filter packs the bits of elements, which libhdf5 alone undoes."""
    return one.id in (NBIT, SCALEOFFSET)


def check_packed(one: Filter, data: Bytes, raw_nbytes: int) -> None:
    """Raise `NotAskedError` if packed bits end before the last element: libhdf5 would read on behind them.

    Source: ``H5Znbit.c``, ``H5Zscaleoffset.c``.
    """
    try:
        packed = _nbit_nbytes(one.values, raw_nbytes) if one.id == NBIT else _scaleoffset_nbytes(one.values, data)
    except (StopIteration, ValueError, ZeroDivisionError, RecursionError):
        raise NotAskedError(f"{one.word}: its parameters are damaged") from None
    if data.nbytes < packed:
        raise NotAskedError(f"{one.word}: it has {data.nbytes:,} bytes, and its elements take {packed:,}")


_SCALEOFFSET_HEADER_NBYTES = 21


def _scaleoffset_nbytes(values: tuple[int, ...], data: Bytes) -> int:
    """Return the bytes of elements packed by scaleoffset, each in as many bits as the first four bytes say."""
    _scale, _factor, elements, _kind, nbytes, *_ = values
    bits = int.from_bytes(data[:4].tobytes(), "little")
    return _SCALEOFFSET_HEADER_NBYTES + -(-elements * min(bits, 8 * nbytes) // 8)


_ATOMIC, _ARRAY, _COMPOUND = 1, 2, 3
"""Types in the parameters of nbit; any other is copied as it is."""


def _nbit_nbytes(values: tuple[int, ...], raw_nbytes: int) -> int:
    """Return the bytes of elements packed by nbit."""
    _count, is_copied, elements, *types = values
    return raw_nbytes if is_copied else -(-elements * _nbit_bits(iter(types))[1] // 8)


def _nbit_bits(values: Iterator[int]) -> tuple[int, int]:
    """Return the bytes of an element of the next type, and the bits that nbit packs it into."""
    kind, nbytes = next(values), next(values)
    bits = 8 * nbytes
    if kind == _ATOMIC:
        _order, bits, _offset = itertools.islice(values, 3)
    elif kind == _ARRAY:
        inner_nbytes, inner = _nbit_bits(values)
        bits = nbytes // inner_nbytes * inner
    elif kind == _COMPOUND:
        bits = 0
        for _ in range(next(values)):
            next(values)  # where the member begins
            bits += _nbit_bits(values)[1]
    return nbytes, bits


class DecodeError(Exception):
    """Stored bytes do not decode; the caller adds the file and the chunk."""


class NotAskedError(DecodeError):
    """Stored bytes do not decode, and libhdf5 must not be tried on them.

    It would allocate whatever memory they claim, run the same plugin again, or read beyond the end of its buffer, for
    instance if they decode to fewer bytes than a chunk has.
    """


_REASONS = (
    "no memory for {first} bytes",
    "it takes {first} bytes, where {second} are promised once decoded",
    "it decodes to {first} bytes where {second} are promised",
    "{name} gave {first} bytes where {second} are promised",
    "{name}: its parameters are damaged",
    "{name} goes on after {first} bytes",
    "{name}: its bytes are damaged",
    "{name}: the chunk is shorter than its checksum",
    "{name}: the checksum is {first:#010x}, stored {second:#010x}",
    "{name}: the filter refused the bytes",
    "{name}: {first} bytes are too few for its header",
    "{name}: it claims to be {first:,} bytes long, but {second:,} are stored",
    "{name}: it claims to decode to {first:,} bytes, where at most {second:,} can be",
    "{name}: it is not a zstd frame",
    "{name}: its zstd frame does not say how long it is",
    "{name}: its blocks end before all were read",
    "{name}: its parameters are incomplete",
    "{name}: its parameters are not a zfp header",
)
"""Messages by reason, in the order of `compiled/filters.h`."""

NO_ROOM, TAKES_MORE, DECODES_TO, GAVE, PARAMETERS, GOES_ON, DAMAGED, NO_CHECKSUM = range(8)


def decoding_error(step: Sequence[Filter], reason: int, first: int, second: int) -> Exception:
    """Return the exception for a failed step, or for the whole pipeline without a step."""
    name, filter_id = (step[0].word, step[0].id) if step else ("", FIRST_PLUGIN)
    if reason == NO_ROOM:
        return MemoryError(_REASONS[reason].format(first=first))
    if reason == PARAMETERS:
        return DecodeError(_wrong_parameters(filter_id, step[0].values))
    # h5py's lzf, asked for a chunk of no bytes, may not come back.
    is_own = filter_id < FIRST_PLUGIN
    is_asked = first > second if reason in (DECODES_TO, GAVE) else is_own and reason not in (GOES_ON, NO_CHECKSUM)
    kind = DecodeError if is_asked else NotAskedError
    return kind(_REASONS[reason].format(name=name, first=first, second=second))


def _wrong_parameters(filter_id: int, values: tuple[int, ...]) -> str:
    """Return the message for parameters that libhdf5 refuses."""
    if filter_id == SHUFFLE:
        return f"shuffle: its parameters are {values}, not the bytes of an element"
    return f"gzip: its parameters are {values}, not a level from 0 to {HARDEST_DEFLATE}"


def element_nbytes_of(values: tuple[int, ...]) -> int:
    """Return the element bytes in a shuffle's parameters, refusing those that libhdf5 refuses (``H5Zshuffle.c``)."""
    if len(values) != 1 or values[0] == 0:
        raise DecodeError(_wrong_parameters(SHUFFLE, values))
    return values[0]


def most_nbytes(raw_nbytes: int) -> int:
    """Return the most bytes that a chunk may take at any point of its pipeline; more mean damage, or an attack."""
    return 2 * raw_nbytes + 65536


# --- filters that are undone in Python, each into a reused buffer

_INT_MAX = 2**31 - 1


def _undo_deflate(values: tuple[int, ...], data: Bytes, out: Bytes) -> Bytes:
    """Inflate with zlib, if the build of imagecodecs lacks libdeflate."""
    if len(values) != 1 or values[0] > HARDEST_DEFLATE:
        raise DecodeError(_wrong_parameters(DEFLATE, values))
    stream, most = zlib.decompressobj(), most_nbytes(out.nbytes)
    try:
        inflated = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise DecodeError(f"gzip: {error}") from error
    if len(inflated) > most:
        raise NotAskedError(f"gzip goes on after {most} bytes")
    if not stream.eof:
        raise DecodeError("gzip: the stream has no end")
    if len(inflated) > out.nbytes:
        raise DecodeError(f"gzip gave {len(inflated)} bytes where {out.nbytes} are promised")
    out[: len(inflated)] = np.frombuffer(inflated, np.uint8)
    return out[: len(inflated)]


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
    if is_szip_short(values, data, out.nbytes):
        raise NotAskedError("szip: its bytes end before the chunk is full")
    # libaec stops silently at an invalid stream, so marks in the last bytes show whether it got
    # there; data that happen to equal one mark do not equal both.
    for mark in (0xA5, 0x5A):
        out[-8:] = mark
        imagecodecs.szip_decode(data, mask, pixels_per_block, bits_per_pixel, pixels_per_scanline, header=True, out=out)
        if not (out[-8:] == mark).all():
            return out
    raise NotAskedError("szip: its bytes end before the chunk is full")


def _undo_bzip2(values: tuple[int, ...], data: Bytes, out: Bytes) -> Bytes:
    # The plugin's buffer would grow with the stream, and 45 bytes can hold 45 MB; imagecodecs stops
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
    SZIP: _undo_szip,
    BZIP2: _undo_bzip2,
}
"""Functions for filters that C does not undo: they take parameters, stored bytes and a buffer, and return the part of
the buffer that they wrote. Memory of their own would not reach the batch."""


# --- the steps that undo the filters of a chunk


@dataclass(slots=True, eq=False)
class DecodeScratch:
    """Buffers that one thread reuses for all chunks.

    # Guarantees: belongs to one thread. A result of `Pipeline.decode` is valid until its next call.
    """

    native: kernels.Scratch = field(default_factory=kernels.Scratch)
    _buffers: dict[str, Bytes] = field(default_factory=dict)

    def buffer(self, role: str, nbytes: int) -> Bytes:
        """Return a buffer of `nbytes`, valid until the next call for this role."""
        buffer = self._buffers.get(role)
        if buffer is None or buffer.nbytes < nbytes:
            buffer = self._buffers[role] = np.empty(nbytes, dtype=np.uint8)
        return buffer[:nbytes]


class DecodingPlan(NamedTuple):
    """The steps that decode the chunks of a dataset that have one filter mask."""

    steps: tuple[StepsInC | StepInPython, ...]
    shuffled: int  # element bytes of a shuffle that was applied first, and is left to the scatter; or 0

    @staticmethod
    def of(filters: Sequence[Filter], filter_mask: int, raw_nbytes: int, *, is_whole: bool = True) -> DecodingPlan:
        """Plan Python steps, and runs of C steps between them; raise `DecodeError` if a filter cannot be undone.

        With `is_whole` False, other filters were applied before these, and any number of bytes may come.
        """
        # The filters in the order in which they are undone, each with the bytes that it must produce for those after
        # it, or -1 if these take any number.
        undone, shuffled, exact = list[tuple[Filter, int]](), 0, raw_nbytes if is_whole else -1
        for i, one in enumerate(filters):
            if filter_mask >> i & 1:
                continue
            is_first = one.id == SHUFFLE and is_whole and not undone and not shuffled
            if is_first and raw_nbytes % (width := element_nbytes_of(one.values)) == 0:
                shuffled = width
                continue
            undone.insert(0, (one, exact))
            exact = (
                exact + CHECKSUM_NBYTES * (one.id == FLETCHER32)
                if exact >= 0 and one.id in (SHUFFLE, FLETCHER32)
                else -1
            )
        left_shuffled = shuffled if shuffled > 1 else 0
        steps, run = list[StepsInC | StepInPython](), list[tuple[Filter, int]]()
        for k, (one, exact) in enumerate(undone):
            if function_of(one.id) is not None:
                run.append((one, exact))
                continue
            if one.id not in UNDO:
                raise DecodeError(f"filter {one.id} ({one.word}) is not available")
            if run:
                steps.append(StepsInC.of(run, raw_nbytes, left_shuffled))
                run = []
            steps.append(StepInPython(one, exact, raw_nbytes, role=f"step {k % 2}"))
        if run or not undone:
            steps.append(StepsInC.of(run, raw_nbytes, left_shuffled))
        return DecodingPlan(tuple(steps), left_shuffled)


class StepInPython(NamedTuple):
    """A filter that Python undoes."""

    filter: Filter
    exact: int  # bytes that it must produce, or -1 for any number
    raw_nbytes: int
    role: str  # of its buffer

    def undo(self, data: Bytes, scratch: DecodeScratch, out: Bytes | None) -> Bytes:
        """Undo the filter for one chunk."""
        name, most = self.filter.word, most_nbytes(self.raw_nbytes)
        if data.nbytes > most:
            raise decoding_error((), TAKES_MORE, data.nbytes, self.raw_nbytes)
        if out is None:
            out = scratch.buffer(self.role, most if self.exact < 0 else self.exact)
        try:
            undone = UNDO[self.filter.id](self.filter.values, data, out)
        except (RuntimeError, ValueError, TypeError) as error:  # imagecodecs' errors are RuntimeErrors
            raise DecodeError(f"{name}: {error}") from error
        if self.exact >= 0 and undone.nbytes != self.exact:
            raise decoding_error((self.filter,), GAVE, undone.nbytes, self.exact)
        return undone


class StepsInC(NamedTuple):
    """Consecutive filters that one call undoes without the GIL."""

    filters: tuple[Filter, ...]
    native: kernels.Pipeline

    @staticmethod
    def of(steps: Sequence[tuple[Filter, int]], raw_nbytes: int, shuffled: int) -> StepsInC:
        """Return the steps of filters, each with the bytes that it must produce or -1, before a shuffle that stays."""
        rows, values = np.zeros((len(steps), 7), dtype=np.int64), list[int]()
        for row, (one, exact) in zip(rows, steps, strict=True):
            is_plugin, decoder = function_of(one.id) or (False, Decoder(0))
            row[:] = (one.id, is_plugin, exact, *decoder, len(one.values))
            values += one.values
        parameters = np.array(values, dtype=np.uint32)
        native = kernels.Pipeline(rows, parameters, raw_nbytes, most_nbytes(raw_nbytes), shuffled)
        return StepsInC(tuple(map(operator.itemgetter(0), steps)), native)

    def undo(self, data: Bytes, scratch: DecodeScratch, out: Bytes | None) -> Bytes:
        """Undo the filters for one chunk."""
        undone = self.native.decode(data, out, scratch.native)
        if isinstance(undone, tuple):
            step, reason, first, second = undone
            raise decoding_error(self.filters[step : step + 1] if step >= 0 else (), reason, first, second)
        return np.frombuffer(undone, np.uint8) if isinstance(undone, memoryview) else undone
