"""The cells of the sweep: which files, and how each is read. Nothing here is timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np

MIB = 1 << 20

FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip-1 + shuffle": {"compression": "gzip", "compression_opts": 1, "shuffle": True},
    "gzip-4": {"compression": "gzip", "compression_opts": 4},
    "gzip-4 + shuffle": {"compression": "gzip", "compression_opts": 4, "shuffle": True},
    "gzip-9 + shuffle": {"compression": "gzip", "compression_opts": 9, "shuffle": True},
    "lzf": {"compression": "lzf"},
    "lz4": dict(hdf5plugin.LZ4()),
    "zstd": dict(hdf5plugin.Zstd()),
    "blosc": dict(hdf5plugin.Blosc()),
    "bitshuffle": dict(hdf5plugin.Bitshuffle()),
}

# Name -> into how many pieces a row's columns are cut; 0 leaves the shape of chunks to h5py.
SHAPES = {"whole rows": 1, "columns in 4": 4, "columns in 16": 16, "h5py's guess": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A file and how it is read.

    Attributes
    ----------
    row_nbytes, chunk_rows : int
        Of each field.
    shape : str
        One of `SHAPES`.
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
    shape: str = "whole rows"
    filter_name: str = "gzip-4 + shuffle"
    fields: int = 1
    batch_rows: int = 8192
    threads: int = 0
    window: int | str = "auto"
    cold: bool = False

    @property
    def file(self) -> str:
        """Name the file: cells that read the same one share it."""
        parts = (self.row_nbytes, self.chunk_rows, self.shape, self.filter_name, self.fields)
        return "".join(c if c.isalnum() else "-" for c in "_".join(map(str, parts))) + ".h5"

    @property
    def names(self) -> list[str]:
        """Name the fields."""
        return [f"f{k}" for k in range(self.fields)]

    @property
    def rivals_key(self) -> tuple[Any, ...]:
        """Give what the rivals depend on: they have neither our threads nor our window."""
        return self.file, self.batch_rows, self.cold


AXES: dict[str, list[Any]] = {
    "row_nbytes": [64, 256, 1024, 4096, 16_384, 65_536, 150_000],
    "chunk_rows": [1, 8, 64, 512, 4096, 65_536],
    "shape": list(SHAPES),
    "filter_name": list(FILTERS),
    "fields": [1, 4, 16, 64],
    "batch_rows": [256, 2048, 8192, 65_536],
    "threads": [1, 2, 4],
    "window": [1024, 16_384, "auto", "all"],
    "cold": [False, True],
}


def cells() -> Iterator[tuple[str, Any, Cell]]:
    """Give every cell: what is varied, its value, and the cell with what must go along.

    Examples
    --------
    >>> [cell.chunk_rows for axis, value, cell in cells() if (axis, value) == ("row_nbytes", 65536)]
    [16]
    """
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


def write(path: Path, cell: Cell, nbytes: int) -> None:
    """Write a cell's file; each field's attribute ``total`` is the sum of its rows as integers."""
    rows = max(2 * cell.chunk_rows, min(nbytes // (cell.row_nbytes * cell.fields), 1 << 20))
    if cell.chunk_rows == 1:
        rows = min(rows, 1 << 16)  # a chunk a row is slow to write, and to read
    width = max(1, cell.row_nbytes // 4)
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name in cell.names:
            values = rng.standard_normal((rows, width), dtype=np.float32).astype(np.float16).astype(np.float32)
            made = file.create_dataset(
                name, data=values, chunks=_chunks(cell, rows, width), **FILTERS[cell.filter_name]
            )
            made.attrs["total"] = int(values.view(np.int32).sum(dtype=np.int64))


def _chunks(cell: Cell, rows: int, width: int) -> Any:
    cuts = SHAPES[cell.shape]
    return True if cuts == 0 else (min(rows, cell.chunk_rows), -(-width // cuts))
