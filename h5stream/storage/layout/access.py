"""How the values of a dataset are reached: from its chunks, from the file's global heap, or through h5py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from h5stream.base.names import Ints
from h5stream.storage.layout.heap import HeapValues
from h5stream.storage.layout.index import ChunkIndex

DIRECT = "direct"
"""Stored without filters: bytes are read from the file straight into the batch."""
DECODED = "decoded"
"""Filters are undone by h5stream, outside HDF5's lock."""
VIA_H5PY = "h5py"
"""Rows are read through h5py, under its lock."""

HEAP = "heap"
"""Values of variable length, read from the file's global heap by h5stream, outside HDF5's lock."""

IS_VIRTUAL = "a virtual dataset: libhdf5 puts it together"
IN_EXTERNAL_FILES = "its bytes lie in external files"
"""Reasons for reading through h5py under which files that are not in the layout are read."""

VARIABLE_LENGTH = "variable length"
"""A reason for reading through h5py, unless the values can be read from the heap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked:
    """The chunks of a dataset, or the stretches that contiguous data are cut into; the engine reads their bytes."""

    index: ChunkIndex
    access: str  # `DECODED` if filters are undone or members are gathered before rows reach a batch, else `DIRECT`


@dataclass(frozen=True, slots=True)
class Heap:
    """Values of variable length, or objects that are byte strings; the engine reads them by their addresses."""

    access: ClassVar[str] = HEAP
    references: HeapValues


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughH5py:
    """Rows that libhdf5 reads."""

    access: ClassVar[str] = VIA_H5PY
    reason: str  # why h5stream does not read them itself
    behind: tuple[int, ...] = ()  # other files that libhdf5 reads them from, if these are watched for changes
    # the first element of a damaged chunk that contains references to values of variable length
    damaged: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """A dataset that stands for the rows of samples, although no field takes values from it."""

    access: str  # the access that its values would have


@dataclass(frozen=True, slots=True)
class ObjectsAsRows:
    """Objects that are one row each."""

    paths: Sequence[str]  # the dataset has the same path below each as below the first
    queried: int = 0  # objects that libhdf5 opened, because their headers were not understood


@dataclass(frozen=True, slots=True)
class RowsOfObjects:
    """Objects that have several rows each.

    Between an object's last row and the next one's first there may be rows that no sample has.
    """

    paths: Sequence[str]  # the paths of the datasets
    edges: Ints  # the first row of each object, and last the end of all
    rows: Ints  # the number of rows of each object
