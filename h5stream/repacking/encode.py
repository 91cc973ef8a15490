"""Chunks are compressed outside HDF5's lock, into exactly the bytes that HDF5's filters would have stored.

The writer hands them over with ``write_direct_chunk``, so that any number of threads compress side by side.

Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message"; the registered filters 32004
(LZ4) and 32015 (Zstandard).
"""

from __future__ import annotations

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from h5stream.storage.codecs import DEFLATE, LZ4, SHUFFLE
from h5stream.storage.filters import Filter

Bytes = NDArray[np.uint8]

ZSTD = 32015
# The widths whose byte shuffle the loader undoes in vector instructions while it scatters. What is shuffled is smaller:
# float32 of 11 significant bits lz4 0.96 -> 0.63, zstd 0.59 -> 0.46, gzip 0.59 -> 0.45.
_SHUFFLED_NBYTES = frozenset({2, 4, 8})
_CODECS = {
    "lz4": Filter(id=LZ4, values=(0,), name="lz4"),  # 0: the plugin's own size of blocks
    "zstd": Filter(id=ZSTD, values=(3,), name="zstd"),  # a level, as gzip's
    "gzip": Filter(id=DEFLATE, values=(4,), name="gzip"),
}


def filters_for(compress: str, element_nbytes: int) -> tuple[Filter, ...]:
    """Return the filters of chunks of such elements, in the order in which they are applied.

    Examples
    --------
    >>> [f.name for f in filters_for("gzip", 4)], filters_for("none", 4)
    (['shuffle', 'gzip'], ())
    """
    if compress == "none":
        return ()
    shuffle = Filter(id=SHUFFLE, values=(element_nbytes,), name="shuffle")
    return (*((shuffle,) if element_nbytes in _SHUFFLED_NBYTES else ()), _CODECS[compress])


def encode(filters: tuple[Filter, ...], chunk: Bytes) -> tuple[Bytes, int]:
    """Return the bytes to store and the filter mask that goes with them.

    A chunk that does not get smaller is stored as it is, with every filter's bit set. Any thread may call, and the GIL
    is not held while it compresses.
    """
    data = chunk
    for each in filters:
        if each.id == SHUFFLE:  # a chunk holds whole elements only
            data = np.ascontiguousarray(data.reshape(-1, each.values[0]).T).reshape(-1)
        elif each.id == LZ4:
            data = np.frombuffer(imagecodecs.lz4h5_encode(data), dtype=np.uint8)
        elif each.id == ZSTD:
            data = np.frombuffer(imagecodecs.zstd_encode(data, level=each.values[0]), dtype=np.uint8)
        else:
            data = np.frombuffer(imagecodecs.deflate_encode(data, level=each.values[0]), dtype=np.uint8)
    return (data, 0) if not filters or data.nbytes < chunk.nbytes else (chunk, (1 << len(filters)) - 1)
