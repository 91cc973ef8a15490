"""The HDF5 file that every peer starts from, and what each of its rows must be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench.peers.protocol import CHUNK_ROWS
from h5stream.baseline.measure import ROW_FLOATS, row_sums, sample_rows

FILTERS: dict[str, dict[str, Any]] = {
    "gzip4_shuffle": {"compression": "gzip", "compression_opts": 4, "shuffle": True},
    "unfiltered": {},
}
_SLAB_ROWS = 64 * CHUNK_ROWS


def write_source(path: Path, rows: int, kind: str) -> None:
    """Write the rows of the main job, with the number of the row as label, and beside them a sum of each row.

    The label names the row wherever a shuffle puts it, so that bytes can be checked row by row in an epoch that
    is cut off.
    """
    rng = np.random.default_rng(0)
    sums = np.empty(rows, dtype=np.uint64)
    partial = path.with_suffix(".partial")
    with h5py.File(partial, "w") as file:
        x = file.create_dataset(
            "x", (rows, ROW_FLOATS), "f4", chunks=(min(rows, CHUNK_ROWS), ROW_FLOATS), **FILTERS[kind]
        )
        file.create_dataset("y", data=np.arange(rows, dtype=np.int64), chunks=(min(rows, 8192),))
        for start in range(0, rows, _SLAB_ROWS):
            values = sample_rows(rng, min(_SLAB_ROWS, rows - start))
            x[start : start + len(values)] = values
            sums[start : start + len(values)] = row_sums(values)
    np.save(sums_path(path), sums)
    partial.rename(path)


def sums_path(source: Path) -> Path:
    """Give where the sums of a source's rows are."""
    return source.with_suffix(".sums.npy")


def slabs(source: Path, rows: int = _SLAB_ROWS) -> Iterator[tuple[int, Any, Any]]:
    """Give the source in order, a slab at a time: the first row, ``x`` and ``y``. What conversions read."""
    with h5py.File(source, "r") as file:
        for start in range(0, len(file["x"]), rows):
            yield start, file["x"][start : start + rows], file["y"][start : start + rows]


def length(source: Path) -> int:
    """Count the rows of a source."""
    with h5py.File(source, "r") as file:
        return len(file["x"])
