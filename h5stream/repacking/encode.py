"""Chunks are compressed outside HDF5's lock, into exactly the bytes that HDF5's filters would have stored.

The writer hands them over with ``write_direct_chunk``, so that any number of threads compress side by side.

Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message"; the registered filters 32004
(LZ4) and 32015 (Zstandard).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from h5stream.storage.codecs import DEFLATE, LZ4, SHUFFLE
from h5stream.storage.filters import Filter

Bytes = NDArray[np.uint8]

ZSTD = 32015
_GZIP_LEVEL, _ZSTD_LEVEL = 4, 3
# The widths whose byte shuffle the loader undoes in vector instructions while it scatters.
_SHUFFLED_NBYTES = frozenset({2, 4, 8})


class Compression(StrEnum):
    """How repacked chunks are compressed.

    With numbers of 2, 4 or 8 bytes a byte shuffle comes first: the loader undoes it for nothing, and what is
    shuffled is smaller (float32 of 11 significant bits: lz4 0.96 -> 0.63, zstd 0.59 -> 0.46, gzip 0.59 -> 0.45).
    """

    NONE = "none"
    """Not at all: rows are read one by one, and an exact global shuffle costs no more than a window."""
    LZ4 = "lz4"
    """Fast to read, compresses little; needs hdf5plugin wherever h5py reads it."""
    ZSTD = "zstd"
    """Smaller, and still faster to read than gzip; needs hdf5plugin wherever h5py reads it."""
    GZIP = "gzip"
    """Every HDF5 library reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Compresses the chunks of one dataset.

    # Guarantees: immutable; any thread may call, and the GIL is not held while it compresses.
    """

    filters: tuple[Filter, ...]  # the pipeline, in the order in which it is applied; empty where nothing is compressed

    def encode(self, chunk: Bytes) -> tuple[Bytes, int]:
        """Return the bytes to store and the filter mask that goes with them.

        A chunk that does not get smaller is stored as it is, with every filter's bit set.
        """
        if not self.filters:
            return chunk, 0
        data = chunk
        for each in self.filters:
            data = _APPLY[each.id](each, data)
        if data.nbytes >= chunk.nbytes:
            return chunk, (1 << len(self.filters)) - 1
        return data, 0


def encoder_for(compression: Compression, element_nbytes: int) -> Encoder:
    """Return the encoder for elements of that many bytes.

    Examples
    --------
    >>> [f.name for f in encoder_for(Compression.GZIP, 4).filters]
    ['shuffle', 'gzip']
    >>> encoder_for(Compression.NONE, 4).filters
    ()
    """
    if compression is Compression.NONE:
        return Encoder(filters=())
    shuffle = Filter(id=SHUFFLE, values=(element_nbytes,), name="shuffle")
    before = (shuffle,) if element_nbytes in _SHUFFLED_NBYTES else ()
    return Encoder(filters=(*before, _CODECS[compression]))


_CODECS = {
    Compression.LZ4: Filter(id=LZ4, values=(0,), name="lz4"),  # 0: the plugin's own size of blocks
    Compression.ZSTD: Filter(id=ZSTD, values=(_ZSTD_LEVEL,), name="zstd"),
    Compression.GZIP: Filter(id=DEFLATE, values=(_GZIP_LEVEL,), name="gzip"),
}


def _shuffle(applied: Filter, data: Bytes) -> Bytes:
    # A chunk holds whole elements only.
    return np.ascontiguousarray(data.reshape(-1, applied.values[0]).T).reshape(-1)


def _lz4(applied: Filter, data: Bytes) -> Bytes:
    return _as_array(imagecodecs.lz4h5_encode(data))


def _zstd(applied: Filter, data: Bytes) -> Bytes:
    return _as_array(imagecodecs.zstd_encode(data, level=applied.values[0]))


def _deflate(applied: Filter, data: Bytes) -> Bytes:
    return _as_array(imagecodecs.deflate_encode(data, level=applied.values[0]))


def _as_array(data: bytes) -> Bytes:
    return np.frombuffer(data, dtype=np.uint8)


_APPLY = {SHUFFLE: _shuffle, LZ4: _lz4, ZSTD: _zstd, DEFLATE: _deflate}
