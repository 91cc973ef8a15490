"""Small files to mutate: every filter, every kind of chunk index, every layout; and where their structures lie."""

from __future__ import annotations

from dataclasses import dataclass

import h5py
import hdf5plugin
import numpy as np

ROWS, COLUMNS, CHUNK = 60, 8, (16, 8)

FILTERS = {
    "no filter": {},
    "gzip": {"compression": "gzip"},
    "shuffle gzip": {"compression": "gzip", "shuffle": True},
    "gzip fletcher32": {"compression": "gzip", "fletcher32": True},
    "fletcher32": {"fletcher32": True},
    "lzf": {"compression": "lzf"},
    "szip": {"compression": "szip"},
    "scaleoffset": {"scaleoffset": 3},
    "lz4": hdf5plugin.LZ4(),
    "zstd": hdf5plugin.Zstd(),
    "blosc": hdf5plugin.Blosc(),
    "blosc zstd": hdf5plugin.Blosc(cname="zstd"),
    "blosc2": hdf5plugin.Blosc2(),
    "bitshuffle lz4": hdf5plugin.Bitshuffle(),
    "bitshuffle zstd": hdf5plugin.Bitshuffle(cname="zstd"),
    "bzip2": hdf5plugin.BZip2(),
    "zfp": hdf5plugin.Zfp(reversible=True),
    "sz3": hdf5plugin.SZ3(absolute=0.01),
}

INDEXES = {
    "btree v1": {"libver": "earliest", "chunks": CHUNK},
    "single chunk": {"libver": "latest", "chunks": (ROWS, COLUMNS)},
    "fixed array": {"libver": "latest", "chunks": CHUNK},
    "extensible array": {"libver": "latest", "chunks": CHUNK, "maxshape": (None, COLUMNS)},
    "btree v2": {"libver": "latest", "chunks": CHUNK, "maxshape": (None, None)},
    "contiguous": {"libver": "earliest"},
}


@dataclass(frozen=True)
class Seed:
    """A file with fields ``x`` and ``y``, and the byte ranges of its chunks; all else is structure."""

    path: str
    size: int
    chunks: tuple[tuple[int, int], ...]

    @property
    def structure(self) -> np.ndarray:
        """The offsets of all bytes outside the chunks: headers, heaps, indexes."""
        inside = np.zeros(self.size, dtype=bool)
        for start, stop in self.chunks:
            inside[start:stop] = True
        return np.flatnonzero(~inside)

    @property
    def edges(self) -> list[int]:
        """Where a run of nonzero structure begins or ends, and the chunks' edges: cuts there are the likely ones."""
        with open(self.path, "rb") as file:
            zero = np.frombuffer(file.read(), np.uint8) == 0
        runs = np.flatnonzero(np.diff(zero.astype(np.int8))) + 1
        return sorted({0, 1, self.size - 1, *(e for pair in self.chunks for e in pair), *runs.tolist()} - {self.size})


def write_seed(path, *, libver="earliest", chunks=CHUNK, maxshape=None, **storage) -> Seed:
    x = (np.arange(ROWS * COLUMNS) // 3).astype("f4").reshape(ROWS, COLUMNS)
    with h5py.File(path, "w", libver=libver) as file:
        if libver == "earliest" and "chunks" not in storage and maxshape is None and chunks is None:
            file.create_dataset("x", data=x)
        else:
            file.create_dataset("x", data=x, chunks=chunks, maxshape=maxshape, **storage)
        file.create_dataset("y", data=np.arange(ROWS))
    return Seed(str(path), path.stat().st_size, _extents(str(path)))


def _extents(path: str) -> tuple[tuple[int, int], ...]:
    found = []
    with h5py.File(path) as file:
        for dataset in file.values():
            if dataset.chunks is None:
                start = dataset.id.get_offset()
                found.append((start, start + dataset.id.get_storage_size()))
            else:
                dataset.id.chunk_iter(lambda info: found.append((info.byte_offset, info.byte_offset + info.size)))
    return tuple(found)


def in_chunks(seed: Seed, count: int, rng: np.random.Generator):
    """Give mutations of the field's chunks; half of them in the first bytes, where codecs keep their sizes."""
    for k in range(count):
        start, stop = seed.chunks[rng.integers(len(seed.chunks) - 1)]
        offset = start + int(rng.integers(min(48, stop - start) if k % 2 else stop - start))
        yield _change(seed, offset, rng)


def in_structure(seed: Seed, count: int, rng: np.random.Generator):
    """Give mutations of everything but chunks; half of them where there is something but zeros."""
    with open(seed.path, "rb") as file:
        data = np.frombuffer(file.read(), np.uint8)
    places = seed.structure
    written = places[data[places] != 0]
    for k in range(count):
        yield _change(seed, int(rng.choice(written if k % 2 else places)), rng)


def _change(seed: Seed, offset: int, rng: np.random.Generator):
    with open(seed.path, "rb") as file:
        file.seek(offset)
        old = file.read(8)
    kind = rng.integers(4)
    if kind == 0:
        new = bytes([old[0] ^ 1 << int(rng.integers(8))])
    elif kind == 1:
        new = bytes([rng.choice([b for b in (0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))) if b != old[0]])])
    else:  # a size that is huge, negative or off by one, in either byte order
        value = int(rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x10000000, 0x00FFFFFF]))
        width = 4 if kind == 2 else 8
        value = value << 32 | value if width == 8 and rng.integers(2) else value
        new = value.to_bytes(width, str(rng.choice(["little", "big"])))[: len(old)]
    return ["put", offset, new.hex()]


def cuts(seed: Seed, count: int | None, rng: np.random.Generator):
    """Give truncations at the edges of structures: all, or `count` of them."""
    edges = seed.edges
    chosen = edges if count is None or count >= len(edges) else rng.choice(edges, count, replace=False).tolist()
    return [["cut", int(size)] for size in chosen]
