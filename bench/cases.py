"""The case table: which files, which contenders, and what the project asks of their ratios."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import hdf5plugin
import imagecodecs
import numpy as np

from bench.rivals import ram_loader, tuned_loader
from h5stream import H5StreamLoader
from h5stream.base import limits
from h5stream.baseline import naive_loader
from h5stream.baseline.measure import sample_rows, write_sample_file
from h5stream.storage.decode.filters import SHUFFLE
from h5stream.storage.open.opening import open_layout
from h5stream.storage.source.one_file import FileBytes

ROWS = 524_288
BATCH = 8192
FIELDS = ("x", "y")
THREADS = limits.cpus()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """A file: how it is written, how many rows, and what the naive loader is given to do on it."""

    write: Callable[[Path], object]
    rows: int = ROWS
    naive_batches: int = 2


def _one_row_per_chunk(path: Path) -> None:
    rows = 65_536
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        x = np.concatenate([sample_rows(rng, rows), sample_rows(rng, rows)], axis=1)
        file.create_dataset("x", data=x, chunks=(1, 512), compression="gzip", compression_opts=4)
        file.create_dataset("y", data=rng.integers(0, 10, rows), chunks=(8192,))


FILES = {
    "gzip4_shuffle": FileKind(write=lambda p: write_sample_file(p, ROWS)),
    "unfiltered": FileKind(write=lambda p: write_sample_file(p, ROWS, filters={})),
    "guessed_gzip": FileKind(
        write=lambda p: write_sample_file(
            p, ROWS, chunks=(8192, 4), filters={"compression": "gzip", "compression_opts": 4}
        ),
    ),
    "zstd": FileKind(write=lambda p: write_sample_file(p, ROWS, filters=dict(hdf5plugin.Zstd()))),
    "lz4": FileKind(write=lambda p: write_sample_file(p, ROWS, filters=dict(hdf5plugin.LZ4()))),
    "one_row_per_chunk": FileKind(write=_one_row_per_chunk, rows=65_536, naive_batches=4),
}


def stream(loader: object, batches: int | None = None) -> int:
    """Take batches from a loader and give the rows; all of them, or so many."""
    rows = 0
    for number, batch in enumerate(loader, start=1):
        rows += len(batch[1])
        if number == batches:
            break
    return rows


def naive(path: str, kind: FileKind) -> Callable[[], int]:
    return lambda: stream(naive_loader(path, FIELDS, BATCH, 2), kind.naive_batches)


def tuned(path: str, kind: FileKind) -> Callable[[], int]:
    return lambda: stream(tuned_loader(path, FIELDS, BATCH, 2), 4)


def ours(path: str, kind: FileKind) -> Callable[[], int]:
    loader = H5StreamLoader(path, BATCH, shuffle=True, fields=list(FIELDS), keep="never")
    return lambda: stream(loader)


def kept(path: str, kind: FileKind) -> Callable[[], int]:
    """Epochs 2 on of a file that fits `memory_budget`, as a loader has it by default."""
    loader = H5StreamLoader(path, BATCH, shuffle=True, fields=list(FIELDS))
    return lambda: stream(loader)


def in_ram(path: str, kind: FileKind) -> Callable[[], int]:
    with h5py.File(path) as file:
        arrays = [file["x"][:], file["y"][:]]
    loader = ram_loader(arrays, BATCH)
    return lambda: stream(loader)


def sequential_h5py(path: str, kind: FileKind) -> Callable[[], int]:
    def read() -> int:
        with h5py.File(path) as file:
            for start in range(0, kind.rows, BATCH):
                _ = file["x"][start : start + BATCH], file["y"][start : start + BATCH]
        return kind.rows

    return read


def in_threads(work: Callable[[int], None], rows: int) -> int:
    """Call `work` with its number in as many threads as there are processors; give the rows that they worked on."""
    threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows


def decode_limit(path: str, kind: FileKind) -> Callable[[], int]:
    """The same number of threads only reading and inflating the same chunks, into buffers that they reuse."""
    layout = open_layout(path, "x")
    part = layout.datasets[0][0]
    index = part.index
    shuffled = part.pipeline.filters[0].id == SHUFFLE
    assert len(part.pipeline.filters) == 1 + shuffled, "the limit is for gzip, with or without shuffle"
    source = FileBytes(layout.files[0])

    def work(first: int) -> None:
        stored = np.empty(int(index.nbytes.max()), dtype=np.uint8)
        out = np.empty(part.chunk_nbytes, dtype=np.uint8)
        for k in range(first, len(index.offset), THREADS):
            count = int(index.nbytes[k])
            source.read_into(int(index.offset[k]), stored[:count].data)
            imagecodecs.deflate_decode(stored[:count], out=out)

    return lambda: in_threads(work, kind.rows)


def threaded_copy(path: str, kind: FileKind) -> Callable[[], int]:
    """The same number of threads only copying as many bytes from memory to memory that has been touched."""
    source = np.fromfile(path, dtype=np.uint8)
    target, piece = np.zeros_like(source), 1 << 20

    def work(first: int) -> None:
        for start in range(first * piece, len(source), THREADS * piece):
            target[start : start + piece] = source[start : start + piece]

    return lambda: in_threads(work, kind.rows)


CONTENDERS = {
    "naive": naive,
    "tuned": tuned,
    "ours": ours,
    "kept": kept,
    "in_ram": in_ram,
    "decode_limit": decode_limit,
    "threaded_copy": threaded_copy,
    "sequential_h5py": sequential_h5py,
}

# file kind -> contenders; those that take a minute a run are run once.
CASES = {
    "gzip4_shuffle": ("naive", "tuned", "ours", "kept", "in_ram", "decode_limit", "sequential_h5py"),
    "unfiltered": ("naive", "tuned", "ours", "kept", "in_ram", "threaded_copy", "sequential_h5py"),
    "guessed_gzip": ("ours", "kept", "decode_limit", "sequential_h5py"),
    "zstd": ("ours", "kept", "sequential_h5py"),
    "lz4": ("ours", "kept", "sequential_h5py"),
    "one_row_per_chunk": ("naive", "tuned", "ours", "kept", "sequential_h5py"),
}
ROUNDS = {
    "naive": 1,
    "tuned": 1,
    "ours": 9,
    "kept": 9,
    "in_ram": 5,
    "decode_limit": 9,
    "threaded_copy": 9,
    "sequential_h5py": 3,
}
WARMUP = {"ours": 1, "kept": 1, "in_ram": 1, "decode_limit": 1, "threaded_copy": 1}

# (file kind, contender) -> what the ratio of ours to it must be at least.
TARGETS = {
    ("gzip4_shuffle", "naive"): 2000.0,
    ("gzip4_shuffle", "tuned"): 150.0,
    ("gzip4_shuffle", "decode_limit"): 0.85,
    ("gzip4_shuffle", "in_ram"): 1.0,
    ("unfiltered", "naive"): 300.0,
    ("unfiltered", "in_ram"): 3.0,
    ("unfiltered", "threaded_copy"): 0.6,
    ("guessed_gzip", "decode_limit"): 0.80,
    ("zstd", "sequential_h5py"): 3.0,
    ("lz4", "sequential_h5py"): 3.0,
    ("one_row_per_chunk", "naive"): 5.0,
}


def seconds_of(action: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
