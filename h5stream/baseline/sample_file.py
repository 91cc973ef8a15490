"""The sample file of ``h5stream bench``: plain numbers, gzip and shuffle, chunks of 1 MiB, a label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ROW_FLOATS = 256
CHUNK_ROWS = 1024
CLASSES = 10
_ROWS_AT_ONCE = 64 * CHUNK_ROWS


def sample_rows(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw rows: normal float32 with 11 significant bits."""
    return rng.standard_normal((count, ROW_FLOATS), dtype=np.float32).astype(np.float16).astype(np.float32)


def write_sample_file(
    path: Path | str,
    rows: int = 524_288,
    *,
    filters: dict[str, Any] | None = None,
    chunks: tuple[int, int] | bool | None = (CHUNK_ROWS, ROW_FLOATS),
    progress: Callable[[int], None] = lambda rows: None,
) -> Path:
    """Write rows of 256 float32 with 11 significant bits in ``x``, and an int64 label in ``y``."""
    chosen = {"compression": "gzip", "compression_opts": 4, "shuffle": True} if filters is None else filters
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (rows, ROW_FLOATS), "f4", chunks=chunks, **chosen)
        y = file.create_dataset("y", (rows,), "i8", chunks=(min(rows, 8192),))
        for start in range(0, rows, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, rows)
            x[start:stop] = sample_rows(rng, stop - start)
            y[start:stop] = rng.integers(0, CLASSES, stop - start)
            progress(stop)
    return Path(path)
