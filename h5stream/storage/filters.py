"""A filter pipeline becomes one decode function that runs outside HDF5's lock.

Filters ran in order when the chunk was written, so they are undone in reverse, leaving out those whose bit
is set in the chunk's filter mask. A byte shuffle that was applied first is *not* undone here: the engine
fuses it with the scatter, which saves a pass over memory.

Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message".
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from h5stream.storage.claims import check_claims
from h5stream.storage.codecs import (
    BZIP2,
    DEFLATE,
    FIRST_PLUGIN,
    FLETCHER32,
    LZ4,
    LZF,
    NBIT,
    SCALEOFFSET,
    SHUFFLE,
    SZIP,
    UNDO,
    Bytes,
    DecodeError,
    Decompressor,
    NotAskedError,
    TooShortError,
    element_nbytes_of,
    most_nbytes,
    new_decompressor,
)
from h5stream.storage.plugins import PluginBuffer, plugin_function

KNOWN_NAMES = {
    DEFLATE: "gzip",
    SHUFFLE: "shuffle",
    FLETCHER32: "fletcher32",
    SZIP: "szip",
    NBIT: "nbit",
    SCALEOFFSET: "scaleoffset",
    LZF: "lzf",
    LZ4: "lz4",
    305: "lzo",
    BZIP2: "bzip2",
    32001: "blosc",
    32008: "bitshuffle",
    32013: "zfp",
    32015: "zstd",
    32017: "sz",
    32018: "fcidecomp",
    32022: "bitgroom",
    32023: "granular-bitround",
    32024: "sz3",
    32026: "blosc2",
    32028: "sperr",
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
        self._decompressor: list[Decompressor | None] = []

    @property
    def decompressor(self) -> Decompressor | None:
        """The thread's own libdeflate; None where it cannot be called by address."""
        if not self._decompressor:
            self._decompressor.append(new_decompressor())
        return self._decompressor[0]

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
        """Tell whether chunks without a filter mask need inflating and nothing else, so that libdeflate can do it.

        The second value is what `decode` gives as `shuffled`.
        """
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
            data = self._undo(step, data, scratch, out)
        if data.nbytes != raw_nbytes:
            kind = TooShortError if data.nbytes < raw_nbytes else DecodeError
            raise kind(f"it decodes to {data.nbytes} bytes where {raw_nbytes} are promised")
        if out is not None and (not steps or not steps[-1].fills_out):
            out[:] = data
            data = out
        return data, shuffled

    def _compiled(self, filter_mask: int, raw_nbytes: int) -> tuple[tuple[_Step, ...], int]:
        """Work out the steps once for each filter mask; files with small chunks have millions of them."""
        key = (filter_mask, raw_nbytes)
        compiled = self._cache.get(key)
        if compiled is None:
            compiled = self._cache[key] = _compile(self.filters, filter_mask, raw_nbytes)
        return compiled

    def _undo(self, step: _Step, data: Bytes, scratch: DecodeScratch, out: Bytes | None) -> Bytes:
        code, values = step.filter.id, step.filter.values
        try:
            if step.function is not None:
                into = out if out is not None and step.fills_out else scratch.buffer(f"step{step.turn}", step.nbytes)
                undone = step.function(values, data, into)
            else:
                most, buffer = step.most_nbytes, scratch.plugins[step.turn]
                behind = check_claims(code, values, data, most)
                undone = buffer.decode(step.plugin, step.values, data, most_nbytes=most, behind_nbytes=behind)
        except (RuntimeError, ValueError, TypeError) as error:  # imagecodecs' errors are RuntimeErrors
            kind = NotAskedError if code >= FIRST_PLUGIN and code != LZF else DecodeError
            raise kind(f"{step.name}: {error}") from error
        if step.exact and undone.nbytes != step.nbytes:
            kind = TooShortError if undone.nbytes < step.nbytes else DecodeError
            raise kind(f"{step.name} gave {undone.nbytes} bytes where {step.nbytes} are promised")
        return undone


class _Step(NamedTuple):
    """One filter to undo, worked out: who does it, into which buffer, and how many bytes it must give."""

    filter: Filter
    name: str
    function: Callable[[tuple[int, ...], Bytes, Bytes], Bytes] | None
    plugin: Any  # the C function, where there is no function of ours
    values: Any  # the filter's parameters, as C has them
    turn: int
    nbytes: int  # what it gives: exactly, or at most
    exact: bool
    most_nbytes: int
    fills_out: bool = False


def _compile(filters: tuple[Filter, ...], filter_mask: int, raw_nbytes: int) -> tuple[tuple[_Step, ...], int]:
    steps: list[_Step] = []
    shuffled = turn = 0
    applied = [one for i, one in enumerate(filters) if not filter_mask >> i & 1]
    while applied:
        current = applied.pop()
        if current.id == SHUFFLE and not applied and raw_nbytes % element_nbytes_of(current.values) == 0:
            shuffled = element_nbytes_of(current.values)
            break
        steps.append(_step(current, applied, turn, raw_nbytes))
        turn ^= current.id != FLETCHER32  # which only looks, and leaves the data where it is
    if steps and steps[-1].function is not None and steps[-1].exact and steps[-1].filter.id != FLETCHER32:
        steps[-1] = steps[-1]._replace(fills_out=steps[-1].nbytes == raw_nbytes)
    return tuple(steps), shuffled if shuffled > 1 else 0


def _step(current: Filter, earlier: list[Filter], turn: int, raw_nbytes: int) -> _Step:
    name, function, most = KNOWN_NAMES.get(current.id) or current.name, UNDO.get(current.id), most_nbytes(raw_nbytes)
    plugin = None if function is not None else plugin_function(current.id)
    if function is None and plugin is None:
        raise DecodeError(f"filter {current.id} ({name}) is not available")
    values = (ctypes.c_uint * len(current.values))(*current.values)
    exact = all(one.id in (SHUFFLE, FLETCHER32) for one in earlier)
    nbytes = raw_nbytes + 4 * sum(one.id == FLETCHER32 for one in earlier) if exact else most
    return _Step(current, name, function, plugin, values, turn, nbytes, exact, most)


def pipeline_of(creation: Any) -> Pipeline:
    """Read the filter pipeline of an h5py dataset creation property list."""
    filters = []
    for i in range(creation.get_nfilters()):
        code, _flags, values, name = creation.get_filter(i)
        filters.append(Filter(id=code, values=tuple(int(v) for v in values), name=name.decode(errors="replace")))
    return Pipeline(filters=tuple(filters))
