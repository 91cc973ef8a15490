"""A filter pipeline becomes one decode function that runs outside HDF5's lock.

Filters ran in order when the chunk was written, so they are undone in reverse, leaving out those whose bit
is set in the chunk's filter mask. A byte shuffle that was applied first is *not* undone here: the engine
fuses it with the scatter, which saves a pass over memory.

Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message".
"""

from __future__ import annotations

import bz2
import ctypes
import functools
import importlib
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import imagecodecs
import numpy as np

from h5stream.storage.decode.plugins import FILTER_NAMES, Bytes, PluginBuffer, check_claims, plugin_function

DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET, LZF, LZ4 = 1, 2, 3, 4, 5, 6, 32000, 32004
BZIP2 = 307

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
    values: tuple[int, ...] = ()  # its client data, as stored in the file
    name: str = ""  # the field's word for it (`gzip`, `zstd` ...), or the name in the file

    @property
    def decodable(self) -> bool:
        """Whether `Pipeline.decode` undoes it without libhdf5."""
        return self.id in UNDO or plugin_function(self.id) is not None


class DecodeScratch:
    """Buffers that one thread reuses from chunk to chunk.

    # Guarantees: belongs to one thread. What `Pipeline.decode` returned is valid until its next call.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Bytes] = {}
        # Two of each, so that a step never overwrites what it reads.
        self.plugins = (PluginBuffer(), PluginBuffer())

    @functools.cached_property
    def inflater(self) -> tuple[int, int] | None:
        """The addresses of what inflates, and of the thread's own decompressor; None where libdeflate is not found."""
        if (found := found_functions()) is None:
            return None
        allocate, free, inflate = found
        if not (decompressor := allocate()):
            raise MemoryError("libdeflate has no memory for a decompressor")
        weakref.finalize(self, free, decompressor).atexit = False
        return ctypes.cast(inflate, ctypes.c_void_p).value or 0, decompressor

    def buffer(self, role: str, nbytes: int) -> Bytes:
        """Return `nbytes` of memory that keeps its content until the role is asked for again."""
        held = self._buffers.get(role)
        if held is None or held.nbytes < nbytes:
            held = self._buffers[role] = np.empty(nbytes, dtype=np.uint8)
        return held[:nbytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The filters of a dataset, in the order in which they were applied when writing."""

    filters: tuple[Filter, ...] = ()  # empty for unfiltered data
    _cache: dict[tuple[int, int], Any] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by `__getstate__`: dataclasses of Python 3.11.0 to 3.11.3 put their own in its place.
        return functools.partial(Pipeline, filters=self.filters), ()

    def describe(self) -> str:
        """Return the filters' names, joined as people write them: ``shuffle + gzip-4``."""
        names = []
        for f in self.filters:
            name = KNOWN_NAMES.get(f.id) or f.name or f"filter {f.id}"
            names.append(f"{name}-{f.values[0]}" if f.id == DEFLATE and f.values else name)
        return " + ".join(names)

    def only_inflates(self, raw_nbytes: int) -> tuple[bool, int]:
        """Tell whether chunks without a filter mask need inflating alone; gives the `shuffled` of `decode`, too."""
        if tuple(f.id for f in self.filters) not in ((DEFLATE,), (SHUFFLE, DEFLATE)):
            return False, 0
        try:
            steps, shuffled = self._compiled(0, raw_nbytes)
        except DecodeError:  # damaged parameters, which decoding says of each chunk
            return False, 0
        return len(steps) == 1, shuffled

    def decode(
        self, stored: Bytes, *, filter_mask: int, raw_nbytes: int, scratch: DecodeScratch, out: Bytes | None = None
    ) -> tuple[Bytes, int]:
        """Undo the filters of one chunk."""
        if stored.nbytes > most_nbytes(raw_nbytes):
            raise NotAskedError(f"it takes {stored.nbytes} bytes, where {raw_nbytes} are promised once decoded")
        steps, shuffled = self._compiled(filter_mask, raw_nbytes)
        data = stored
        for step in steps:
            data = step(data, scratch, out)
        if data.nbytes != raw_nbytes:
            kind = NotAskedError if data.nbytes < raw_nbytes else DecodeError
            raise kind(f"it decodes to {data.nbytes} bytes where {raw_nbytes} are promised")
        if out is not None and data is not out:
            out[:] = data
            data = out
        return data, shuffled

    def _compiled(self, filter_mask: int, raw_nbytes: int) -> tuple[tuple[Step, ...], int]:
        """Work out the steps once for each filter mask; files with small chunks have millions of them."""
        key = (filter_mask, raw_nbytes)
        compiled = self._cache.get(key)
        if compiled is None:
            compiled = self._cache[key] = _compile(self.filters, filter_mask, raw_nbytes)
        return compiled


Step = Callable[[Bytes, DecodeScratch, Bytes | None], Bytes]
"""Undoes one filter, with a thread's buffers; the last one may give its bytes in the memory that is meant for them."""


def _compile(filters: tuple[Filter, ...], filter_mask: int, raw_nbytes: int) -> tuple[tuple[Step, ...], int]:
    applied = [one for i, one in enumerate(filters) if not filter_mask >> i & 1]
    shuffled, turn, steps = 0, 0, list[Step]()
    if applied and applied[0].id == SHUFFLE and raw_nbytes % element_nbytes_of(applied[0].values) == 0:
        shuffled = element_nbytes_of(applied.pop(0).values)
    while applied:
        current = applied.pop()
        steps.append(_step(current, applied, turn, raw_nbytes))
        turn ^= current.id != FLETCHER32  # which only looks, and leaves the data where it is
    return tuple(steps), shuffled if shuffled > 1 else 0


def _step(current: Filter, earlier: list[Filter], turn: int, raw_nbytes: int) -> Step:
    """Return what undoes one filter, before those that were applied earlier, into the buffer whose turn it is."""
    name, most = KNOWN_NAMES.get(current.id) or current.name, most_nbytes(raw_nbytes)
    undo = UNDO.get(current.id)
    plugin = plugin_function(current.id) if undo is None else None
    if undo is None and plugin is None:
        raise DecodeError(f"filter {current.id} ({name}) is not available")
    values, c_values = current.values, (ctypes.c_uint * len(current.values))(*current.values)
    is_exact = all(one.id in (SHUFFLE, FLETCHER32) for one in earlier)
    nbytes = raw_nbytes + 4 * sum(one.id == FLETCHER32 for one in earlier) if is_exact else most
    failed = NotAskedError if current.id >= FIRST_PLUGIN and current.id != LZF else DecodeError
    fills_out = undo is not None and not earlier and current.id != FLETCHER32

    def step(data: Bytes, scratch: DecodeScratch, out: Bytes | None) -> Bytes:
        try:
            if undo is not None:
                into = out if fills_out and out is not None else scratch.buffer(f"step{turn}", nbytes)
                undone = undo(values, data, into)
            else:
                behind = check_claims(current.id, values, data, most)
                undone = scratch.plugins[turn].decode(plugin, c_values, data, most_nbytes=most, behind_nbytes=behind)
        except (RuntimeError, ValueError, TypeError) as error:  # imagecodecs' errors are RuntimeErrors
            raise failed(f"{name}: {error}") from error
        if is_exact and undone.nbytes != nbytes:
            kind = NotAskedError if undone.nbytes < nbytes else DecodeError
            raise kind(f"{name} gave {undone.nbytes} bytes where {nbytes} are promised")
        return out if fills_out and out is not None else undone

    return step


def pipeline_of(creation: Any) -> Pipeline:
    """Read the filter pipeline of an h5py dataset creation property list."""
    filters = []
    for i in range(creation.get_nfilters()):
        code, _flags, values, name = creation.get_filter(i)
        filters.append(Filter(id=code, values=tuple(int(v) for v in values), name=name.decode(errors="replace")))
    return Pipeline(filters=tuple(filters))


# --- the filters that are undone without a plugin: each from stored bytes into a buffer that is reused

_INT_MAX = 2**31 - 1
_HARDEST_DEFLATE = 9

FIRST_PLUGIN = 256
"""Filters below this number are libhdf5's own."""


class DecodeError(Exception):
    """Stored bytes do not decode; the caller adds where they came from."""


class NotAskedError(DecodeError):
    """Stored bytes do not decode, and libhdf5 is not to be asked about them.

    It would take whatever memory they claim, run the same plugin again, or read behind the end of its buffer, such as
    where they decode to fewer than a chunk has.
    """


def element_nbytes_of(values: tuple[int, ...]) -> int:
    """Return an element's bytes, of a shuffle's parameters; as libhdf5, which takes no other (``H5Zshuffle.c``)."""
    if len(values) != 1 or values[0] == 0:
        raise DecodeError(f"shuffle: its parameters are {values}, not the bytes of an element")
    return values[0]


def most_nbytes(raw_nbytes: int) -> int:
    """Return the bytes that a chunk may take at any point of its pipeline; more are damage, or to fill the memory."""
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


def _undo_fletcher32(values: tuple[int, ...], data: Bytes, out: Bytes) -> Bytes:
    if data.nbytes < 4:
        raise NotAskedError("fletcher32: the chunk is shorter than its checksum")
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
    count = data.nbytes // element_nbytes
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
    SHUFFLE: lambda values, data, out: unshuffle(data, element_nbytes_of(values), out[: data.nbytes]),
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


@functools.cache
def found_functions() -> tuple[Any, Any, Any] | None:
    """Find libdeflate, which imagecodecs is linked with: what makes a decompressor, frees one, and inflates with it."""
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
    known = bytes(range(64)) * 4
    packed, out, decompressor = zlib.compress(known), ctypes.create_string_buffer(len(known)), allocate()
    if not decompressor:
        return False
    status = inflate(decompressor, packed, len(packed), out, len(known), None)
    short = inflate(decompressor, packed, len(packed), out, len(known) - 1, None)
    free(decompressor)
    return bool(status == 0 and short != 0 and out.raw == known)
