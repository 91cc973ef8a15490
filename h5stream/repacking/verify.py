"""Two files compared dataset by dataset through h5py: the judge of a file that was written anew."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import H5StreamError, StagedFileDamagedError
from h5stream.repacking.survey import RawDataset, RewritePlan
from h5stream.storage.elements import holds_reference, is_fixed, same
from h5stream.storage.fallback import read_raw_box
from h5stream.storage.handles import open_file

SLAB_NBYTES = 32 * 1024 * 1024
"""Bytes that are compared at a time, or one row of chunks if that is more: no chunk is decoded twice."""

_FIRST_WORDS = 1 << 16

Tell = Callable[[int], None]


def verify(
    plan: RewritePlan,
    target: Path,
    places: dict[int, str],
    order: NDArray[np.int64] | None,
    tell: Callable[[RawDataset, int], None],
) -> list[str]:
    """Compare a new file with its source, by the places that datasets have in it; return what could not be compared."""
    notices = []
    # Not through `open_hdf5`: an error in here is about one dataset, and it is said which.
    with open_file(plan.source) as old, open_file(str(target)) as new:
        for dataset in plan.datasets:
            if dataset.address not in places:
                continue  # it could not be kept, and is among the notices
            try:
                both = old[dataset.path], new[places[dataset.address]]
                moved = order if dataset.shuffled else None
                problem = difference(*both, dataset, moved, functools.partial(tell, dataset))
            except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
                if dataset.rewritten or isinstance(error, H5StreamError):
                    raise
                # Libhdf5 copies stored chunks without decoding them, also those of filters that are not there.
                notices.append(f"{dataset.path} was copied as it is and not compared: {error}")
                continue
            if problem:
                raise StagedFileDamagedError(
                    f"what was written to {target} is not what {plan.source} holds: {dataset.path}: {problem}. The new "
                    "file was not kept; memory or storage at fault is likely, or else this is a defect of h5stream",
                    file=plan.source,
                )
    return notices


def difference(
    a: h5py.Dataset, b: h5py.Dataset, dataset: RawDataset, order: NDArray[np.int64] | None, tell: Tell
) -> str:
    """Say where two datasets differ; empty where they hold the same rows."""
    stored = a.id.get_type()
    if (a.shape, stored == b.id.get_type()) != (b.shape, True):
        return "its shape or type changed"
    if a.shape is None or 0 in a.shape or holds_reference(stored):
        return ""  # addresses differ by nature; what they lead to was looked up when they were translated
    if not a.shape:
        equal = _scalar(a) == _scalar(b) if is_fixed(stored) else same(a[()], b[()])
        return "" if equal else "its value differs"
    if not is_fixed(stored):
        return _values(a, b, dataset, order, tell)
    if order is not None:
        return _permuted(a, b, dataset, order, tell)
    for start, stop in _slabs(a, dataset.row_nbytes):
        left, right = read_rows(a, start, stop), read_rows(b, start, stop)
        if not _equal(left.reshape(-1), right.reshape(-1)):
            return f"row {start + int(np.flatnonzero((left != right).any(axis=1))[0])} differs"
        tell(left.nbytes)
    return ""


def _scalar(dataset: Any) -> bytes:
    stored = dataset.id.get_type()
    value = np.zeros((), dtype=f"V{stored.get_size()}")
    dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, value, stored)
    return value.tobytes()


def _slabs(dataset: Any, row_nbytes: int) -> Iterator[tuple[int, int]]:
    chunk = dataset.chunks[0] if dataset.chunks else 1
    together = max(1, SLAB_NBYTES // max(1, row_nbytes) // chunk) * chunk
    for start in range(0, dataset.shape[0], together):
        yield start, min(start + together, dataset.shape[0])


def read_rows(dataset: Any, start: int, stop: int) -> NDArray[np.uint8]:
    """Read the bytes of rows as they are stored."""
    box = read_raw_box(dataset, (start,) + (0,) * (dataset.ndim - 1), (stop - start, *dataset.shape[1:]))
    return box.reshape(-1).view(np.uint8).reshape(stop - start, -1)


def _equal(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> bool:
    words = left.nbytes // 8 * 8  # eight times as fast as byte by byte
    same_words = np.array_equal(left[:words].view(np.uint64), right[:words].view(np.uint64))
    return same_words and np.array_equal(left[words:], right[words:])


def _permuted(a: Any, b: Any, dataset: RawDataset, order: NDArray[np.int64], tell: Tell) -> str:
    sums = [np.empty(dataset.rows, dtype=np.uint64) for _ in range(2)]
    for out, each in zip(sums, (a, b), strict=True):
        for start, stop in _slabs(each, dataset.row_nbytes):
            out[start:stop] = row_sums(read_rows(each, start, stop))
            tell((stop - start) * dataset.row_nbytes if each is a else 0)
    wrong = np.flatnonzero(sums[0][order] != sums[1])
    return f"row {wrong[0]} is not row {order[wrong[0]]} of the source" if len(wrong) else ""


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


def _values(a: Any, b: Any, dataset: RawDataset, order: NDArray[np.int64] | None, tell: Tell) -> str:
    right = b if order is None else b[()][np.argsort(order)]
    for start, stop in _slabs(a, dataset.row_nbytes):
        for row, (left, other) in enumerate(zip(a[start:stop], right[start:stop], strict=True), start):
            if not same(left, other):
                return f"row {row} differs"
        tell((stop - start) * dataset.row_nbytes)
    return ""
