"""Measuring loaders on one file, and checking that ours gave every row once with h5py's bytes."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.baseline import Measurement, Progress, status_nbytes
from h5stream.dataset import H5Dataset
from h5stream.loader import H5StreamLoader
from h5stream.repacking.survey import row_sums as raw_sums
from h5stream.storage.handles import open_file
from h5stream.storage.rowbox import columns_of
from h5stream.structure import RAGGED, leaves, rows_of, tensors_of

_SLAB_NBYTES = 32 * 1024 * 1024


def batches_of(loader: Any) -> Iterator[Any]:
    """Stream batches; those of several fields as tuples, which a list of strings or ragged rows cannot be taken for."""
    dataset = getattr(loader, "dataset", None)
    lists = isinstance(dataset, H5Dataset) and dataset.layout.shape.kind == "tuple"
    for batch in loader:
        yield tuple(batch) if lists else batch


def batch_nbytes(batch: Any) -> int:
    """Return the bytes of a batch's tensors and strings."""
    texts = [leaf for leaf in leaves(batch) if isinstance(leaf, list) and leaf and isinstance(leaf[0], (str, bytes))]
    return sum(map(len, itertools.chain(*texts))) + sum(tensor.nbytes for tensor in tensors_of(batch))


def measure_epoch(
    name: str, loader: Any, *, seconds: float = math.inf, progress: Progress = lambda rows: None
) -> Measurement:
    """Stream one epoch, or of a long one what comes within so many seconds, and return its figures."""
    with contextlib.suppress(OSError):  # ``proc_pid_clear_refs(5)``: writing 5 resets VmHWM, where the kernel lets us
        Path("/proc/self/clear_refs").write_text("5")
    before = status_nbytes(os.getpid(), "VmRSS")
    start = time.perf_counter()
    rows = batches = nbytes = 0
    first, stopped = None, False
    for batch in batches_of(loader):
        if first is None:
            first = time.perf_counter() - start
        rows += rows_of(batch) or 0
        nbytes += batch_nbytes(batch)
        batches += 1
        progress(rows)
        if stopped := time.perf_counter() - start >= seconds:
            break
    taken = time.perf_counter() - start
    return Measurement(
        name=name,
        rows=rows,
        batches=batches,
        nbytes=nbytes,
        seconds=taken,
        first_batch_s=first,
        peak_nbytes=max(0, status_nbytes(os.getpid(), "VmHWM") - before),
        stopped=stopped,
    )


def check_epoch(
    loader: H5StreamLoader, *, seconds: float = math.inf, progress: Progress = lambda rows: None
) -> tuple[int, str]:
    """Stream an epoch again, or what comes in time, and compare a sum of each row's bytes with h5py's.

    Return how many rows were compared in every field, and what is wrong; else nothing.
    """
    layout, total = loader.dataset.layout, loader.dataset.layout.rows
    # Of a long file only the pages of rows that came are ever touched.
    seen = np.zeros(total, dtype=np.uint8)
    sums = np.zeros((len(layout.fields), total), dtype=np.uint64)
    until = time.perf_counter() + seconds
    done, stopped, order = 0, False, iter(loader.batch_sampler)
    for batch in batches_of(loader):
        rows = next(order, None)
        if rows is None:
            return 0, "more batches came than the epoch has"
        np.add.at(seen, rows, 1)
        for field, leaf in enumerate(leaves(batch)):
            sums[field, rows] = row_sums(leaf)
        done += len(rows)
        progress(done)
        if stopped := time.perf_counter() >= until:
            break
    wrong = np.flatnonzero(seen > 1 if stopped else seen != 1)
    if len(wrong):
        return 0, f"{len(wrong)} rows did not come exactly once, the first is row {wrong[0]}"
    return _compare_with_h5py(loader, sums, seen.astype(bool), seconds)


def _compare_with_h5py(
    loader: H5StreamLoader, sums: NDArray[np.uint64], seen: NDArray[np.bool_], seconds: float
) -> tuple[int, str]:
    layout, compared, until = loader.dataset.layout, 0, time.perf_counter() + seconds
    for number, start in enumerate(layout.file_starts[:-1]):
        parts = [parts[number] for parts in layout.datasets]
        # Stretches of whole chunks of the field with the most bytes.
        lead, row_nbytes = max(parts, key=lambda part: part.stored_row_nbytes), sum(p.stored_row_nbytes for p in parts)
        step = max(1, _SLAB_NBYTES // max(1, row_nbytes) // lead.chunk_rows) * lead.chunk_rows
        with contextlib.ExitStack() as opened:
            files = {path: opened.enter_context(open_file(path)) for path in {layout.files[p.file].path for p in parts}}
            for first in range(0, lead.rows, step):
                rows = slice(start + first, start + min(first + step, lead.rows))
                came = seen[rows]
                for target, part in ((one, its) for its in parts for one in its.targets if came.any()):
                    path, name = layout.files[part.file].path, layout.fields[target.field].name
                    read = columns_of(files[path][part.path][first : rows.stop - start], part.columns)
                    if (row_sums(target.taken(read)) != sums[target.field, rows])[came].any():
                        return compared, f"field {name!r}: rows from {rows.start} on differ from h5py's in {path!r}"
                compared += int(np.count_nonzero(came))
                if time.perf_counter() >= until:
                    return compared, ""
    return compared, ""


def row_sums(values: Any) -> NDArray[np.uint64]:
    """Return a 64-bit sum of each row's bytes, the same for a tensor, an array and a list."""
    if isinstance(values, RAGGED):
        values = [values.sample(k) for k in range(rows_of(values) or 0)]
    elif isinstance(values, torch.Tensor):
        values = list(values.unbind()) if values.is_nested else values.numpy()
    if isinstance(values, list) or values.dtype.kind in "OS":
        every = (value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes() for value in values)
        return np.array([hash((raw, len(raw))) & 0xFFFFFFFFFFFFFFFF for raw in every], dtype=np.uint64)
    if not values.size:
        return np.zeros(len(values), dtype=np.uint64)
    array = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    return raw_sums(array.reshape(len(array), -1).view(np.uint8))


def fresh_rates(paths: Sequence[str], fields: Sequence[str], *, rounds: int = 5, seconds: float = 3.0) -> list[float]:
    """Return each file's best rate in rows a second, opening included, the files in turns."""
    best = [0.0] * len(paths)
    for number, path in list(enumerate(paths)) * rounds:
        start = time.perf_counter()
        with H5StreamLoader(path, shuffle=True, seed=0, fields=list(fields)) as loader:
            rows = measure_epoch(path, loader, seconds=seconds).rows
            best[number] = max(best[number], rows / (time.perf_counter() - start))
    return best


# --- the sample file: plain numbers, gzip and shuffle, chunks of 1 MiB, a label --------------------------


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
