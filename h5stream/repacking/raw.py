"""Datasets as rows of stored bytes: what can be rewritten in other chunks without knowing what it means.

A number, a compound, a string of fixed length: each element is so many bytes in the file, and a copy of the
dataset in other chunks holds the same bytes. The engine reads them like any field, through a layout whose one
target is the whole stored element.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import H5StreamError
from h5stream.storage.discovery import datasets_of, default_fields, find_dataset, open_hdf5
from h5stream.storage.elements import Leaf
from h5stream.storage.external import Guard
from h5stream.storage.fallback import fill_element, read_raw_box
from h5stream.storage.field_reader import FieldReader
from h5stream.storage.fields import SampleShape, sample_shape
from h5stream.storage.layout import FieldLayout, SampleLayout, Target
from h5stream.storage.places import Files, OpenFile
from h5stream.storage.values import holds_reference, is_fixed, same

MOST_ROW_NBYTES = 1 << 30
"""HDF5's chunks end at 4 GiB, and a row must fit into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawDataset:
    """One dataset of a file, and how its stored bytes are reached."""

    path: str  # path inside the file, without the leading slash; the first one where hard links give it several
    address: int  # of its object in the file: what tells two datasets apart
    shape: tuple[int, ...]  # its shape; `()` for a single value or none
    stored_nbytes: int  # what it takes in the file
    element_nbytes: int  # bytes of one stored element
    # one field whose rows are the dataset's stored rows; None where only libhdf5 can read it
    layout: SampleLayout | None
    # one element, as stored: what unwritten chunks read as, or what stands beyond the data in the last chunk
    fill: NDArray[np.uint8]
    reason: str  # why there is no layout

    @property
    def rows(self) -> int:
        """Rows, 0 where it has no first axis."""
        return self.shape[0] if self.shape else 0

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row, decoded."""
        return math.prod(self.shape[1:]) * self.element_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, decoded."""
        return self.rows * self.row_nbytes

    @property
    def is_sparse(self) -> bool:
        """Whether chunks were never written, so that they read as the fill value and take no space."""
        index = self.layout.datasets[0][0].index if self.layout is not None else None
        return index is not None and len(index.numbers) < index.chunks


def address_of_object(thing: Any) -> int:
    """Return the address of an open h5py object inside its file."""
    return int(h5py.h5o.get_info(thing).addr)


def survey(path: str) -> tuple[RawDataset, ...]:
    """List every dataset of a file that hard links lead to, each once."""
    every, guard = Files((path,)), Guard.for_paths((path,), allow_external=False)
    with open_hdf5(path) as file, contextlib.ExitStack() as linked:
        opened = OpenFile(file, 0, every, guard, linked)
        return tuple(_raw(opened, name, dataset) for name, dataset in datasets_of(file).items())


def resolve_datasets(path: str, fields: tuple[str, ...] | None) -> tuple[int, ...]:
    """Return the addresses of the datasets that fields name; without names, those of the default fields."""
    with open_hdf5(path) as file:
        guard = Guard.for_paths((path,), allow_external=False)
        names = tuple(default_fields(file, path, guard)) if fields is None else fields
        found = [find_dataset(file, name, path, guard)[0] for name in names]
        return tuple(dict.fromkeys(address_of_object(dataset.id) for dataset in found))


def _raw(opened: OpenFile, name: str, dataset: Any) -> RawDataset:
    layout, reason = _layout(opened, name, dataset)
    fill = np.zeros(0, dtype=np.uint8)
    if layout is not None:
        fill = _fill(dataset, layout)
        layout = _whole_elements(layout, fill)
    return RawDataset(
        path=name,
        address=address_of_object(dataset.id),
        shape=dataset.shape or (),
        stored_nbytes=int(dataset.id.get_storage_size()),
        element_nbytes=int(dataset.id.get_type().get_size()),
        layout=layout,
        fill=fill,
        reason=reason,
    )


def _layout(opened: OpenFile, name: str, dataset: Any) -> tuple[SampleLayout | None, str]:
    if not dataset.shape or 0 in dataset.shape:
        return None, "it has no rows"
    shape = sample_shape(name)
    try:
        found = FieldReader(opened, 0, None, None, {}).read(shape)
    except H5StreamError as error:
        return None, str(error).split(": ", 1)[-1]
    part = found.parts[0]
    if part.index is None:
        return None, part.reason
    if part.stored_row_nbytes > MOST_ROW_NBYTES:
        return None, f"a row of {part.stored_row_nbytes:,} bytes is more than a chunk should hold"
    layout = SampleLayout(
        files=tuple(opened.files.identities),
        file_starts=(0, found.rows),
        fields=found.fields,
        datasets=((part,),),
        shape=shape,
        entries=found.entries,
        allow_external=False,
    )
    return layout, ""


def _fill(dataset: Any, layout: SampleLayout) -> NDArray[np.uint8]:
    index = layout.datasets[0][0].chunk_index
    read = fill_element(dataset, index)
    if read is not None:
        return read
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        return np.frombuffer(np.asarray(dataset.fillvalue, dtype=dataset.dtype).tobytes(), dtype=np.uint8)
    return np.zeros(dataset.id.get_type().get_size(), dtype=np.uint8)


def _whole_elements(layout: SampleLayout, fill: NDArray[np.uint8]) -> SampleLayout:
    """Return the layout with one field: the stored elements, as bytes."""
    part = layout.datasets[0][0]
    count = part.stored_element_nbytes
    unit, units = (count, 1) if count in (2, 4, 8) else (1, count)
    leaf = Leaf(
        stored_nbytes=count,
        offsets=(0,),
        unit_nbytes=unit,
        units=units,
        swapped=False,
        dtype=np.dtype(np.uint8),
        shape=(count,),
    )
    index = part.chunk_index
    row_nbytes = math.prod(index.shape[1:]) * count
    field = FieldLayout(name=part.path, kind="array", dtype=np.dtype(np.uint8), row_shape=(row_nbytes,))
    shape: SampleShape = sample_shape(part.path)
    target = Target(field=0, member=(), leaf=leaf, fill=fill)
    return replace(layout, fields=(field,), datasets=((replace(part, targets=(target,)),),), shape=shape, entries=(0,))


# --- Two files compared dataset by dataset through h5py: the judge of a file that was written anew.


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
