"""Measuring loaders on one file, and checking that ours gave every row once with h5py's bytes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hdf5plugin  # noqa: F401  so that files with its filters open here as well
import numpy as np
import torch
from numpy.typing import NDArray

from h5stream.baseline.rivals import naive_loader
from h5stream.dataset import H5Dataset
from h5stream.loader import H5StreamLoader
from h5stream.storage.handles import open_file

Progress = Callable[[int], None]

_SLAB_NBYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a loader did.

    Attributes
    ----------
    name : str
        The loader.
    rows, batches, nbytes : int
        What it delivered.
    seconds : float
        From asking for the iterator to the last batch counted.
    first_batch_s : float
        To the first batch.
    peak_nbytes : int
        Growth of resident memory over the start, worker processes included.
    """

    name: str
    rows: int
    batches: int
    nbytes: int
    seconds: float
    first_batch_s: float
    peak_nbytes: int

    @property
    def rows_per_s(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def batches_per_s(self) -> float:
        """Batches a second."""
        return self.batches / self.seconds

    @property
    def gigabytes_per_s(self) -> float:
        """Decoded bytes a second, in units of 10**9."""
        return self.nbytes / self.seconds / 1e9


def batches_of(loader: Any) -> Iterator[Any]:
    """Stream batches; those of several fields as tuples, which a list of strings or ragged rows cannot be taken for."""
    dataset = getattr(loader, "dataset", None)
    lists = isinstance(dataset, H5Dataset) and dataset.layout.shape.kind == "tuple"
    for batch in loader:
        yield tuple(batch) if lists else batch


def leaves(batch: Any) -> list[Any]:
    """List the tensors and lists of a batch, whatever structure it has."""
    if isinstance(batch, dict):
        return [leaf for value in batch.values() for leaf in leaves(value)]
    if isinstance(batch, tuple):
        return [leaf for value in batch for leaf in leaves(value)]
    return [batch]


def batch_nbytes(batch: Any) -> int:
    """Give the bytes of a batch's tensors and strings."""
    return sum(
        leaf.nbytes if isinstance(leaf, torch.Tensor) else sum(len(value) for value in leaf) for leaf in leaves(batch)
    )


def measure_epoch(name: str, loader: Any, *, progress: Progress = lambda rows: None) -> Measurement:
    """Stream one epoch and give its figures."""
    before = _reset_peak()
    start = time.perf_counter()
    rows = batches = nbytes = 0
    first = 0.0
    for batch in batches_of(loader):
        if batches == 0:
            first = time.perf_counter() - start
        rows += len(leaves(batch)[0])
        nbytes += batch_nbytes(batch)
        batches += 1
        progress(rows)
    seconds = time.perf_counter() - start
    return Measurement(
        name=name,
        rows=rows,
        batches=batches,
        nbytes=nbytes,
        seconds=seconds,
        first_batch_s=first,
        peak_nbytes=max(0, _peak_nbytes([os.getpid()]) - before),
    )


def measure_naive(
    path: str,
    fields: Sequence[str],
    *,
    batch_size: int,
    workers: int,
    seconds: float,
    row_nbytes: int,
    progress: Progress = lambda rows: None,
) -> Measurement:
    """Time the naive loader on as many batches as fit, at least one for each worker.

    Workers fill their first batches side by side, so stopping before each has delivered one would count
    work against the loader that is nearly done.
    """
    loader = naive_loader(path, fields, batch_size, workers)
    before = _reset_peak()
    start = time.perf_counter()
    rows = batches = 0
    first = elapsed = 0.0
    iterator = iter(loader)
    for batch in iterator:
        elapsed = time.perf_counter() - start
        first = first or elapsed
        rows += len(batch[0])
        batches += 1
        progress(rows)
        if elapsed >= seconds and batches >= workers:
            break
    children = [worker.pid for worker in getattr(iterator, "_workers", [])]
    peak = _peak_nbytes([os.getpid(), *children]) - before
    del iterator
    return Measurement(
        name=f"DataLoader, {workers} workers",
        rows=rows,
        batches=batches,
        nbytes=rows * row_nbytes,
        seconds=elapsed,
        first_batch_s=first,
        peak_nbytes=max(0, peak),
    )


def check_epoch(loader: H5StreamLoader, *, progress: Progress = lambda rows: None) -> str:
    """Stream an epoch again and compare every row with h5py.

    Each row of a batch is known by the order, which is arithmetic; each gets a 64-bit sum of its bytes, and
    h5py's reading of the file in file order must give the same sums.

    Returns
    -------
    str
        Empty if every row came once with h5py's bytes; else what is wrong.
    """
    layout, epoch = loader.dataset.layout, loader._orders.next_epoch
    total = layout.rows
    seen = np.zeros(total, dtype=np.int64)
    sums = np.zeros((len(layout.fields), total), dtype=np.uint64)
    expected_rows = _rows_of_batches(loader, epoch)
    for number, batch in enumerate(batches_of(loader)):
        rows = expected_rows[number]
        np.add.at(seen, rows, 1)
        for field, leaf in enumerate(leaves(batch)):
            sums[field, rows] = row_sums(leaf)
        progress(len(rows))
    wrong = np.flatnonzero(seen != 1)
    if len(wrong):
        return f"{len(wrong)} rows did not come exactly once, the first is row {wrong[0]}"
    return _compare_with_h5py(loader, sums)


def _rows_of_batches(loader: H5StreamLoader, epoch: int) -> list[NDArray[np.int64]]:
    order = loader._order(epoch)
    rows = [np.empty(order.batch_size_of(k), dtype=np.int64) for k in range(order.batches)]
    for window in order.windows():
        for k in np.unique(window.batch).tolist():
            ours = window.batch == k
            rows[k][window.within[ours]] = window.rows[ours]
    return rows


def _compare_with_h5py(loader: H5StreamLoader, sums: NDArray[np.uint64]) -> str:
    layout = loader.dataset.layout
    for number, start in enumerate(layout.file_starts[:-1]):
        for field, spec in enumerate(layout.fields):
            part = next(parts[number] for parts in layout.datasets if field in [t.field for t in parts[number].targets])
            target = next(t for t in part.targets if t.field == field)
            path = layout.files[part.file].path
            with open_file(path) as file:
                dataset = file[part.path]
                slab = max(1, _SLAB_NBYTES // max(1, part.stored_row_nbytes) // part.chunk_rows) * part.chunk_rows
                for row in range(0, part.rows, slab):
                    values = dataset[row : row + slab]
                    for name in target.member:
                        values = values[name]
                    values = values if part.columns is None else values[:, part.columns]
                    first = start + row
                    if (row_sums(values) != sums[field, first : first + len(values)]).any():
                        return f"field {spec.name!r}: rows from {first} on differ from h5py's in {path!r}"
    return ""


def row_sums(values: Any) -> NDArray[np.uint64]:
    """Give a 64-bit sum of each row's bytes, the same for a tensor, an array and a list.

    Examples
    --------
    >>> bool((row_sums(torch.arange(4)) == row_sums(np.arange(4))).all())
    True
    """
    if isinstance(values, list) or getattr(values, "dtype", None) == np.dtype(object):
        return np.array([_object_sum(value) for value in values], dtype=np.uint64)
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.dtype.kind == "S":
        return np.array([_object_sum(value) for value in array.tolist()], dtype=np.uint64)
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    raw = array.reshape(len(array), -1).view(np.uint8).reshape(len(array), -1) if array.size else None
    if raw is None:
        return np.zeros(len(array), dtype=np.uint64)
    padded = raw
    if raw.shape[1] % 8:
        padded = np.zeros((len(raw), -(-raw.shape[1] // 8) * 8), dtype=np.uint8)
        padded[:, : raw.shape[1]] = raw
    words = padded.view(np.uint64)
    weights = np.random.default_rng(words.shape[1]).integers(1, 2**63, words.shape[1], dtype=np.uint64) | np.uint64(1)
    sums: NDArray[np.uint64] = (words * weights).sum(axis=1, dtype=np.uint64)
    return sums


def _object_sum(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    raw = np.ascontiguousarray(value).tobytes() if not isinstance(value, bytes) else value
    return hash((raw, len(raw))) & 0xFFFFFFFFFFFFFFFF


def _reset_peak() -> int:
    """Forget the peak of resident memory, where the kernel lets us, and give the present one in bytes.

    Source: ``proc_pid_clear_refs(5)``: writing 5 resets VmHWM.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status_nbytes(os.getpid(), "VmRSS")


def _peak_nbytes(pids: Sequence[int]) -> int:
    return sum(_status_nbytes(pid, "VmHWM") for pid in pids)


def _status_nbytes(pid: int, key: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
