"""Two files compared dataset by dataset through h5py: the judge of a file that was written anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.repacking.raw import RawDataset
from h5stream.storage.check import read_raw_box
from h5stream.storage.values import holds_reference, is_fixed, same

SLAB_NBYTES = 32 * 1024 * 1024
"""Bytes that are compared at a time, or one row of chunks if that is more: no chunk is decoded twice."""

Order = NDArray[np.int64]
_FIRST_WORDS = 1 << 16


def difference(
    a: h5py.Dataset, b: h5py.Dataset, dataset: RawDataset, order: Order | None, progress: Callable[[int], None]
) -> str:
    """Say where two datasets differ; empty where they hold the same rows."""
    if (a.shape, a.id.get_type() == b.id.get_type()) != (b.shape, True):
        return f"{dataset.path}: its shape or type changed"
    if a.shape is None:
        return ""
    if not is_fixed(a.id.get_type()):
        return _objects(a, b, dataset, order, progress)
    if not a.shape:
        return "" if _scalar(a) == _scalar(b) else f"{dataset.path}: its value differs"
    return _rows(a, b, dataset, progress) if order is None else _permuted(a, b, dataset, order, progress)


def _scalar(dataset: Any) -> bytes:
    stored = dataset.id.get_type()
    value = np.zeros((), dtype=f"V{stored.get_size()}")
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, value, stored)
    return value.tobytes()


def _slabs(dataset: Any, row_nbytes: int) -> Iterator[tuple[int, int]]:
    rows = dataset.shape[0]
    together = max(1, SLAB_NBYTES // max(1, row_nbytes))
    if dataset.chunks:
        chunk = dataset.chunks[0]
        together = max(1, together // chunk) * chunk
    for start in range(0, rows, together):
        yield start, min(start + together, rows)


def read_rows(dataset: Any, start: int, stop: int) -> NDArray[np.void]:
    """Read rows as they are stored."""
    return read_raw_box(dataset, (start,) + (0,) * (dataset.ndim - 1), (stop - start, *dataset.shape[1:]))


def _bytes_of_rows(dataset: Any, start: int, stop: int) -> NDArray[np.uint8]:
    return read_rows(dataset, start, stop).reshape(-1).view(np.uint8).reshape(stop - start, -1)


def _rows(a: Any, b: Any, dataset: RawDataset, progress: Callable[[int], None]) -> str:
    if 0 in a.shape:
        return ""
    for start, stop in _slabs(a, dataset.row_nbytes):
        left, right = _bytes_of_rows(a, start, stop), _bytes_of_rows(b, start, stop)
        if not _equal(left, right):
            row = start + int(np.flatnonzero((left != right).any(axis=1))[0])
            return f"{dataset.path}: row {row} differs"
        progress(left.nbytes)
    return ""


def _equal(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> bool:
    left, right = a.reshape(-1), b.reshape(-1)
    words = left.nbytes // 8 * 8  # eight times as fast as byte by byte
    same = np.array_equal(left[:words].view(np.uint64), right[:words].view(np.uint64))
    return same and np.array_equal(left[words:], right[words:])


def _permuted(a: Any, b: Any, dataset: RawDataset, order: Order, progress: Callable[[int], None]) -> str:
    if 0 in a.shape:
        return ""
    sums = [np.empty(dataset.rows, dtype=np.uint64) for _ in range(2)]
    for out, each, tell in ((sums[0], a, progress), (sums[1], b, lambda nbytes: None)):
        for start, stop in _slabs(each, dataset.row_nbytes):
            rows = _bytes_of_rows(each, start, stop)
            out[start:stop] = row_sums(rows)
            tell(rows.nbytes)
    wrong = np.flatnonzero(sums[0][order] != sums[1])
    return f"{dataset.path}: row {wrong[0]} is not row {order[wrong[0]]} of the source" if len(wrong) else ""


def row_sums(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return a 64-bit sum of each row's bytes: words weighted by fixed random odd numbers.

    Two rows that differ in one word always differ in their sums; others do but for one case in 2**64.

    Examples
    --------
    >>> sums = row_sums(np.array([[1, 2, 3], [1, 2, 3], [3, 2, 1]], np.uint8))
    >>> bool(sums[0] == sums[1]), bool(sums[0] == sums[2])
    (True, False)
    """
    count, nbytes = rows.shape
    words = -(-nbytes // 8)
    if nbytes % 8:
        padded = np.zeros((count, words * 8), dtype=np.uint8)
        padded[:, :nbytes] = rows
        rows = padded
    numbers = np.ascontiguousarray(rows).view(np.uint64)
    weights = np.random.Philox(key=words).random_raw(words) | np.uint64(1)
    sums = np.zeros(count, dtype=np.uint64)
    for start in range(0, words, _FIRST_WORDS):  # in pieces that stay in the cache for long rows
        sums += numbers[:, start : start + _FIRST_WORDS] @ weights[start : start + _FIRST_WORDS]
    return sums


def _objects(a: Any, b: Any, dataset: RawDataset, order: Order | None, progress: Callable[[int], None]) -> str:
    if holds_reference(a.id.get_type()):
        return ""  # addresses differ by nature; what they lead to was looked up when they were translated
    if not a.shape:
        return "" if same(a[()], b[()]) else f"{dataset.path}: its value differs"
    right = None if order is None else b[()][np.argsort(order)]
    for start, stop in _slabs(a, dataset.row_nbytes):
        left = a[start:stop]
        other = b[start:stop] if right is None else right[start:stop]
        for k in range(stop - start):
            if not same(left[k], other[k]):
                return f"{dataset.path}: row {start + k} differs"
        progress((stop - start) * dataset.row_nbytes)
    return ""
