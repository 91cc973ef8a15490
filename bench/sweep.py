"""Ours beside the naive loader, one thing varied at a time, each cell in a process of its own.

python -m bench.sweep --quick --out bench/results/sweep-quick.json

The naive loader is given more than it has: its rate in one process times the number of processors, as if workers
cost nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from torch.utils.data import DataLoader

from bench.child import run_child, warm
from bench.machine import describe
from h5stream import H5StreamLoader, allowance
from h5stream.baseline.rivals import NaiveDataset

MIB = 1 << 20
NBYTES = {"quick": 32 * MIB, "full": 128 * MIB}
SECONDS = {"quick": 1.5, "full": 4.0}
LIMIT_S = 100.0
NAIVE_BATCH = 32
"""Rows; small, so that a slow cell can be stopped in time. What the naive loader does is by the row."""

FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip-1 + shuffle": {"compression": "gzip", "compression_opts": 1, "shuffle": True},
    "gzip-4 + shuffle": {"compression": "gzip", "compression_opts": 4, "shuffle": True},
    "gzip-9 + shuffle": {"compression": "gzip", "compression_opts": 9, "shuffle": True},
    "lzf": {"compression": "lzf"},
    "lz4": dict(hdf5plugin.LZ4()),
    "zstd": dict(hdf5plugin.Zstd()),
    "blosc": dict(hdf5plugin.Blosc()),
    "bitshuffle": dict(hdf5plugin.Bitshuffle()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A file and how it is read.

    Attributes
    ----------
    row_nbytes, chunk_rows : int
        Of each field.
    filter_name : str
        One of `FILTERS`.
    fields, batch_rows : int
        How many.
    threads : int
        Reader threads; 0 is as many as there are processors.
    window : int or str
        As the loader takes it.
    cold : bool
        Drop the file from the page cache before each epoch.
    """

    row_nbytes: int = 1024
    chunk_rows: int = 1024
    filter_name: str = "gzip-4 + shuffle"
    fields: int = 1
    batch_rows: int = 8192
    threads: int = 0
    window: int | str = "auto"
    cold: bool = False


AXES: dict[str, list[Any]] = {
    "row_nbytes": [64, 256, 1024, 4096, 16_384, 65_536, 150_000],
    "chunk_rows": [1, 8, 64, 512, 4096, 65_536],
    "filter_name": list(FILTERS),
    "fields": [1, 4, 16, 64],
    "batch_rows": [256, 2048, 8192, 65_536],
    "threads": [1, 2, 4],
    "window": [1024, 16_384, "auto", "all"],
    "cold": [False, True],
}


def cells() -> Iterator[tuple[str, Any, Cell]]:
    """Give every cell: what is varied, its value, and the cell with what must go along."""
    for axis, values in AXES.items():
        for value in values:
            cell = replace(Cell(), **{axis: value})
            if axis == "row_nbytes":  # 1 MiB a chunk, and batches that fit the budget
                cell = replace(cell, chunk_rows=max(1, MIB // value), batch_rows=min(8192, 64 * MIB // value))
            if axis == "chunk_rows":  # the largest chunk is then 16 MiB
                cell = replace(cell, row_nbytes=256)
            if axis == "fields":
                cell = replace(cell, row_nbytes=max(16, 1024 // value))
            yield axis, value, cell


def write(path: Path, cell: Cell, nbytes: int) -> int:
    """Write a cell's file and give its rows."""
    rows = max(2 * cell.chunk_rows, min(nbytes // (cell.row_nbytes * cell.fields), 1 << 20))
    if cell.chunk_rows == 1:
        rows = min(rows, 1 << 16)  # a chunk a row is slow to write, and to read
    width = max(1, cell.row_nbytes // 4)
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number in range(cell.fields):
            values = rng.standard_normal((rows, width), dtype=np.float32).astype(np.float16).astype(np.float32)
            chunks = (min(rows, cell.chunk_rows), width)
            file.create_dataset(f"f{number}", data=values, chunks=chunks, **FILTERS[cell.filter_name])
    return rows


def _drop(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def ours(path: Path, cell: Cell, seconds: float) -> float:
    """Give rows a second: the median of the epochs after the first, or the first where there is no time for more."""
    loader = H5StreamLoader(
        path,
        cell.batch_rows,
        shuffle=True,
        fields=[f"f{k}" for k in range(cell.fields)],
        num_workers=cell.threads or None,
        window=cell.window,
    )
    rates: list[float] = []
    over = time.perf_counter() + seconds
    with loader:
        while len(rates) < 2 or (time.perf_counter() < over and len(rates) < 50):
            if cell.cold:
                _drop(path)
            start = time.perf_counter()
            rows = sum(len(batch[0]) for batch in loader)
            rates.append(rows / (time.perf_counter() - start))
            if time.perf_counter() > over + 10 * seconds:
                break
    return float(np.median(rates[1:] or rates))


def naive(path: Path, cell: Cell, seconds: float) -> float:
    """Give rows a second of one process times the processors."""
    data = NaiveDataset(str(path), [f"f{k}" for k in range(cell.fields)])
    if cell.cold:
        _drop(path)
    rows, start = 0, time.perf_counter()
    for batch in DataLoader(data, batch_size=NAIVE_BATCH, shuffle=True):
        rows += len(batch[0])
        if time.perf_counter() - start > seconds:
            break
    return rows / (time.perf_counter() - start) * allowance.cpus()


def measure_cell(cell: Cell, size: str, folder: Path) -> dict[str, Any]:
    """Write, time both, clear away."""
    path = folder / "cell.h5"
    try:
        rows = write(path, cell, NBYTES[size])
        if not cell.cold:
            warm(path)
        fast = ours(path, cell, SECONDS[size])
        return {"rows": rows, "ours": round(fast), "naive": round(naive(path, cell, SECONDS[size]))}
    finally:
        path.unlink(missing_ok=True)


def main() -> int:
    """Run all cells, or with --cell one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cell", help="JSON; used by the runner itself")
    parser.add_argument("--axis", choices=list(AXES), action="append")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    size = "quick" if given.quick else "full"
    if given.cell:
        print(json.dumps(measure_cell(Cell(**json.loads(given.cell)), size, given.folder)))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="h5stream-sweep-", dir=given.folder))
    results = []
    try:
        for axis, value, cell in cells():
            if given.axis and axis not in given.axis:
                continue
            options = ["--cell", json.dumps(asdict(cell)), "--folder", str(folder)] + ["--quick"] * given.quick
            found = run_child(["bench.sweep", *options], LIMIT_S)
            result = {"error": found.error} if found.error else found.result
            results.append({"axis": axis, "value": value} | result)
            print(results[-1], flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(describe() | {"base": asdict(Cell()), "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
