"""Small files to mutate: every filter, every kind of chunk index, every layout; and where their structures lie."""

import functools
import re
import struct
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
    "fcidecomp": {**hdf5plugin.FciDecomp(), "dtype": "u2"},
    "htj2k": {**hdf5plugin.Htj2k(), "dtype": "u2"},
}

"""All but SZ, SZ3 and SPERR, which end the process on damaged bytes, under h5py as well."""

INDEXES = {
    "btree v1": {"libver": "earliest", "chunks": CHUNK},
    "single chunk": {"libver": "latest", "chunks": (ROWS, COLUMNS)},
    "fixed array": {"libver": "latest", "chunks": CHUNK},
    "extensible array": {"libver": "latest", "chunks": CHUNK, "maxshape": (None, COLUMNS)},
    "btree v2": {"libver": "latest", "chunks": CHUNK, "maxshape": (None, None)},
    "contiguous": {"libver": "earliest"},
    "compound": {"chunks": CHUNK, "dtype": [("a", "f4"), ("text", "S3"), ("inner", [("b", "i2", (2,))])]},
}


SIGNATURE = re.compile(rb"TREE|SNOD|HEAP|OHDR|OCHK|FAHD|FADB|EAHD|EAIB|EASB|EADB|BTHD|BTLF|BTIN|FRHP|FHDB|FHIB|GCOL")
OF_INDEXES = {b"TREE", b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EASB", b"EADB", b"BTHD", b"BTLF", b"BTIN"}
SUPERBLOCK_NBYTES = 96


@dataclass(frozen=True)
class Seed:
    """A file with fields ``x`` and ``y``, and the byte ranges of its chunks (``y`` is last); all else is structure."""

    name: str
    path: str
    size: int
    chunks: tuple[tuple[int, int], ...]

    @functools.cached_property
    def data(self) -> bytes:
        with open(self.path, "rb") as file:
            return file.read()

    @property
    def field_chunks(self) -> tuple[tuple[int, int], ...]:
        return self.chunks[:-1]

    @functools.cached_property
    def structures(self) -> dict[str, np.ndarray]:
        """The offsets of all bytes outside the chunks, by what they belong to: more or less, as signatures tell."""
        kind = np.full(self.size, 2)
        marks = list(SIGNATURE.finditer(self.data))
        for mark, end in zip(marks, [m.start() for m in marks[1:]] + [self.size], strict=True):
            kind[mark.start() : end] = 1 if mark.group() in OF_INDEXES else 2
        kind[:SUPERBLOCK_NBYTES] = 0
        for start, stop in self.chunks:
            kind[start:stop] = -1
        written = np.frombuffer(self.data, np.uint8) != 0
        names = ("superblock", "index", "headers")
        found = {name: np.flatnonzero((kind == k) & written) for k, name in enumerate(names)}
        return {**found, "zeros among them": np.flatnonzero((kind >= 0) & ~written)}

    @property
    def filter_message(self) -> np.ndarray:
        """The offsets of the filters' descriptions, and of the message's own head.

        Source: HDF5 File Format Specification, "Data Storage - Filter Pipeline Message", version 1.
        """
        with h5py.File(self.path) as file:
            creation = file["x"].id.get_create_plist()
            filters = [creation.get_filter(k) for k in range(creation.get_nfilters())]
        offsets: set[int] = set()
        for code, flags, values, _ in filters:
            head = re.compile(struct.pack("<H", code) + b"(..)" + struct.pack("<HH", flags, len(values)), re.DOTALL)
            found = head.search(self.data)
            name_nbytes = int.from_bytes(found.group(1), "little")
            offsets |= set(range(found.start() - 8, found.end() + name_nbytes + 4 * len(values)))
        return np.array(sorted(offsets))

    @property
    def edges(self) -> list[int]:
        """Where a run of nonzero structure begins or ends; and where chunks do, and their middles."""
        zero = np.frombuffer(self.data, np.uint8) == 0
        for start, stop in self.chunks:
            zero[start:stop] = False
        runs = np.flatnonzero(np.diff(zero.astype(np.int8))) + 1
        of_chunks = {place for start, stop in self.chunks for place in (start, (start + stop) // 2, stop)}
        return sorted({0, 1, self.size - 1, *of_chunks, *runs.tolist()} - {self.size})


def write_seed(folder, name) -> Seed:
    """Write the file of a filter or of a kind of index."""
    storage = dict(FILTERS[name]) if name in FILTERS else {"compression": "gzip", **INDEXES[name]}
    path, dtype = folder / f"{name}.h5", storage.pop("dtype", "f4")
    x = (np.arange(ROWS * COLUMNS) // 3).astype("f4").astype(dtype).reshape(ROWS, COLUMNS)
    with h5py.File(path, "w", libver=storage.pop("libver", "earliest")) as file:
        if name == "contiguous":
            file.create_dataset("x", data=x)
        else:
            file.create_dataset("x", data=x, **{"chunks": CHUNK, **storage})
        file.create_dataset("y", data=np.arange(ROWS))
    return Seed(name, str(path), path.stat().st_size, _extents(str(path)))


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
