"""Datasets as rows of stored bytes: what can be rewritten in other chunks without knowing what it means.

A number, a compound, a string of fixed length: each element is so many bytes in the file, and a copy of the
dataset in other chunks holds the same bytes. The engine reads them like any field, through a layout whose one
target is the whole stored element.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import H5StreamError
from h5stream.storage.check import fill_element
from h5stream.storage.discovery import datasets_of, default_fields, find_dataset, open_hdf5
from h5stream.storage.elements import Leaf
from h5stream.storage.external import Guard
from h5stream.storage.fields import SampleShape, sample_shape
from h5stream.storage.layout import FieldLayout, SampleLayout, Target
from h5stream.storage.opening import open_layout

MOST_ROW_NBYTES = 1 << 30
"""HDF5's chunks end at 4 GiB, and a row must fit into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawDataset:
    """One dataset of a file, and how its stored bytes are reached.

    Attributes
    ----------
    path : str
        Path inside the file, without the leading slash; the first one where hard links give it several.
    address : int
        Of its object in the file: what tells two datasets apart.
    shape : tuple of int
        Its shape; ``()`` for a single value or none.
    stored_nbytes : int
        What it takes in the file.
    element_nbytes : int
        Bytes of one stored element.
    layout : SampleLayout or None
        One field whose rows are the dataset's stored rows; None where only libhdf5 can read it.
    fill : ndarray of uint8
        One element, as stored: what unwritten chunks read as, or what stands beyond the data in the last chunk.
    reason : str
        Why there is no layout.
    """

    path: str
    address: int
    shape: tuple[int, ...]
    stored_nbytes: int
    element_nbytes: int
    layout: SampleLayout | None
    fill: NDArray[np.uint8]
    reason: str

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
    with open_hdf5(path) as file:
        names = list(datasets_of(file))  # each is opened anew: of many that are open, all are asked who writes to them
        return tuple(_raw(path, name, file[name]) for name in names)


def resolve_datasets(path: str, fields: tuple[str, ...] | None) -> tuple[int, ...]:
    """Return the addresses of the datasets that fields name; without names, those of the default fields."""
    with open_hdf5(path) as file:
        guard = Guard.for_paths((path,), allow_external=False)
        names = tuple(default_fields(file, path, guard)) if fields is None else fields
        found = [find_dataset(file, name, path, guard)[0] for name in names]
        return tuple(dict.fromkeys(address_of_object(dataset.id) for dataset in found))


def _raw(path: str, name: str, dataset: Any) -> RawDataset:
    layout, reason = _layout(path, name, dataset)
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


def _layout(path: str, name: str, dataset: Any) -> tuple[SampleLayout | None, str]:
    if not dataset.shape or 0 in dataset.shape:
        return None, "it has no rows"
    try:
        layout = open_layout(path, [name])
    except H5StreamError as error:
        return None, str(error).split(": ", 1)[-1]
    part = layout.datasets[0][0]
    if part.index is None:
        return None, part.reason
    if part.stored_row_nbytes > MOST_ROW_NBYTES:
        return None, f"a row of {part.stored_row_nbytes:,} bytes is more than a chunk should hold"
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
