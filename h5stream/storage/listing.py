"""What a file holds: every dataset, how it is stored, and how h5stream reaches its bytes."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from h5stream.errors import FieldLengthError, H5StreamError
from h5stream.storage.clues import SOME_ALIKE, Clues, GroupEntry, dataset_clues, group_clues, some_of
from h5stream.storage.codecs import DecodeError
from h5stream.storage.discovery import datasets_of, default_fields, is_bookkeeping, open_hdf5
from h5stream.storage.elements import plain_dtype
from h5stream.storage.external import Guard
from h5stream.storage.fields import Field
from h5stream.storage.filters import DecodeScratch, pipeline_of
from h5stream.storage.layout import DECODED, DatasetPart
from h5stream.storage.opening import open_layout
from h5stream.storage.source import FileIdentity, SourceIdentity

REFUSED = "refused"
"""h5stream does not read it; the reason says why. Stands beside `DIRECT`, `DECODED` and `VIA_H5PY`."""

DAMAGED = "damaged"
"""The layout of what is there and cannot be opened: a dataset, or a group with all that is in it."""

MOST_DATASETS = 2000
"""Datasets that are looked at unless all are asked for: some two seconds."""

_LAYOUTS = {
    h5py.h5d.COMPACT: "compact",
    h5py.h5d.CONTIGUOUS: "contiguous",
    h5py.h5d.CHUNKED: "chunked",
    h5py.h5d.VIRTUAL: "virtual",
}

# What h5py raises on datasets that it cannot make sense of, whatever is wrong with them.
_UNREADABLE = (OSError, RuntimeError, ValueError, TypeError, KeyError, NotImplementedError, MemoryError)


INDEX, DIMENSION, CELL = "index", "dimension", "cell"
"""Roles of datasets that are no samples: what PyTables keeps to find rows of its tables, dimensions of netCDF without
values of their own, and what cells of MATLAB refer to."""

# Values of the attribute CLASS with which PyTables marks parts of an index.
_INDEX_CLASSES = (b"INDEXARRAY", b"CACHEARRAY", b"LASTROWARRAY")
_NO_VALUES = b"This is a netCDF dimension but not a netCDF variable"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEntry:
    """One member of a compound.

    Attributes
    ----------
    name : str
        As it is asked for as a field: ``"obs:bulk_labels"``, and ``"obs:at:x"`` for a compound inside it.
    dtype : str
        Its type as people write it.
    """

    name: str
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEntry:
    """One dataset of a file.

    Attributes
    ----------
    path : str
        Without the leading slash.
    shape : tuple of int or None
        None for a null dataspace.
    dtype : str
        The type of an element as people write it.
    element_nbytes : int
        Bytes of one stored element.
    variable_length : bool
        Whether elements lie in the file's heap: strings and sequences of no fixed length.
    layout : str
        ``"compact"``, ``"contiguous"``, ``"chunked"``, ``"virtual"`` or `DAMAGED`.
    chunk_shape : tuple of int or None
        None where the data is not chunked.
    filters : str
        As people write them: ``"shuffle + gzip-4"``; empty without.
    stored_nbytes : int
        Bytes that its data takes in the file, without the index; the heap is not counted.
    stored_chunks : int or None
        Chunks that were ever written; None where that is not known.
    cache_nbytes, cache_chunks : int
        Bytes and chunks that h5py's own chunk cache holds for it at most.
    access : str
        `DIRECT`, `DECODED`, `VIA_H5PY` or `REFUSED`.
    reason : str
        Why.
    members : tuple of MemberEntry
        Of a compound, those of compounds inside it in their place; empty for other types.
    role : str
        `INDEX`, `DIMENSION` or `CELL` where it is no data of its own; else empty.
    matlab_class : str
        The class that MATLAB gave it; empty where MATLAB did not write it.
    clues : Clues
        Of what it is for.
    """

    path: str
    shape: tuple[int, ...] | None
    dtype: str
    element_nbytes: int
    variable_length: bool
    layout: str
    chunk_shape: tuple[int, ...] | None
    filters: str
    stored_nbytes: int
    stored_chunks: int | None
    cache_nbytes: int
    cache_chunks: int
    access: str
    reason: str
    members: tuple[MemberEntry, ...] = ()
    role: str = ""
    matlab_class: str = ""
    clues: Clues = field(default_factory=Clues)

    @property
    def rows(self) -> int | None:
        """Elements along axis 0; None where there is no such axis."""
        return self.shape[0] if self.shape else None

    @property
    def is_numbers_of_any_length(self) -> bool:
        """Whether each value is a sequence of numbers, which ``ragged=`` takes."""
        return self.variable_length and re.match(r"sequence of (bool|float|u?int)\d*$", self.dtype) is not None

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row, without filters."""
        return math.prod(self.shape[1:]) * self.element_nbytes if self.shape else 0

    @property
    def raw_nbytes(self) -> int:
        """Bytes of all elements, without filters."""
        return 0 if self.shape is None else math.prod(self.shape) * self.element_nbytes

    @property
    def chunk_rows(self) -> int | None:
        """Rows that one chunk reaches over; None where the data is not chunked."""
        return self.chunk_shape[0] if self.chunk_shape else None

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a chunk once decoded; 0 where the data is not chunked."""
        return math.prod(self.chunk_shape) * self.element_nbytes if self.chunk_shape else 0

    @property
    def chunks_across(self) -> int:
        """Chunks that one row lies in."""
        if not self.chunk_shape or not self.shape:
            return 1
        return math.prod(-(-n // c) for n, c in zip(self.shape[1:], self.chunk_shape[1:], strict=True))

    @property
    def chunks(self) -> int:
        """Chunks that the data takes, stored or not; 0 where it is not chunked."""
        if not self.chunk_shape or not self.shape:
            return 0
        return -(-self.shape[0] // self.chunk_shape[0]) * self.chunks_across

    @property
    def written_nbytes(self) -> float:
        """Bytes of the elements that were ever written, without filters; the others are the fill value."""
        if self.stored_chunks is None or not self.chunks:
            return float(self.raw_nbytes if self.stored_nbytes else 0)
        return self.raw_nbytes * self.stored_chunks / self.chunks

    @property
    def ratio(self) -> float | None:
        """How many times smaller the written data is in the file; None where nothing is stored."""
        return self.written_nbytes / self.stored_nbytes if self.stored_nbytes and self.written_nbytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a file holds.

    Attributes
    ----------
    entries : tuple of DatasetEntry
        The datasets that were looked at, in the file's order.
    left_out : int
        Datasets, and links in groups of very many, that were not looked at.
    groups : dict of str to GroupEntry
        The groups, by path; the root's is empty.
    """

    entries: tuple[DatasetEntry, ...]
    left_out: int = 0
    groups: dict[str, GroupEntry] = field(default_factory=dict)


def list_datasets(
    path: str, *, most: int | None = None, allow_external: bool = False
) -> tuple[tuple[DatasetEntry, ...], int]:
    """List the datasets that hard links lead to, in the file's order.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     _ = f.create_dataset("x", (1000, 4), "f4", chunks=(100, 4), compression="gzip", shuffle=True)
    >>> (entry,), left_out = list_datasets(path)
    >>> entry.chunk_nbytes, entry.chunks, entry.filters, entry.access
    (1600, 10, 'shuffle + gzip-4', 'decoded')
    """
    found = list_file(path, most=most, allow_external=allow_external, some=lambda names: names)
    return found.entries, found.left_out


def list_file(
    path: str,
    *,
    most: int | None = None,
    allow_external: bool = False,
    some: Callable[[Sequence[str]], Sequence[str]] = some_of,
) -> Listing:
    """List the datasets and groups that hard links lead to: of very many that are named alike, some."""
    FileIdentity.of(path)
    groups: dict[str, GroupEntry] = {}

    def chosen(where: str, group: Any, names: list[str]) -> list[str]:
        wanted = names if most is None else [*some(names)]
        groups[where] = group_clues(where, group, len(names), wanted)
        return wanted

    # The file stays open meanwhile, so that opening it again for each dataset finds libhdf5's own copy.
    with open_hdf5(path) as file:
        # Names only: each dataset that stays open makes every closing of the file slower.
        damaged: dict[str, str] = {}
        found = list(datasets_of(file, damaged, chosen))
        entries = [_entry(path, name, file[name], allow_external) for name in found[:most]]
    left_out = len(found) - len(entries) + sum(group.links - group.looked_at for group in groups.values())
    return Listing(
        entries=(*entries, *(_damaged_entry(name, said) for name, said in damaged.items())),
        left_out=left_out,
        groups=groups,
    )


def list_files(paths: Sequence[str], *, allow_external: bool = False) -> dict[str, Listing]:
    """List some of several files, spread over them."""
    some = [paths[k] for k in _spread(len(paths), min(SOME_ALIKE, len(paths)))]
    return {path: list_file(path, most=MOST_DATASETS // SOME_ALIKE, allow_external=allow_external) for path in some}


def describe_dataset(path: str, name: str, *, allow_external: bool = False) -> DatasetEntry:
    """Describe one dataset, also one that only a soft link leads to."""
    with open_hdf5(path) as file:
        return _entry(path, name, file[name], allow_external)


def root_fields(path: str, *, allow_external: bool = False) -> list[str]:
    """Return the names of the root's datasets, links followed, if they agree in length; else nothing."""
    with open_hdf5(path) as file, contextlib.suppress(FieldLengthError, *_UNREADABLE):
        return default_fields(file, path, Guard.for_paths((path,), allow_external=allow_external))
    return []


def _entry(path: str, name: str, dataset: Any, allow_external: bool) -> DatasetEntry:
    clues = dataset_clues(dataset)
    access, reason, stored_chunks = _access(path, name, allow_external, clues.image)
    creation = dataset.id.get_create_plist()
    chunks, nbytes, _ = dataset.id.get_access_plist().get_chunk_cache()
    dtype = _or_none(lambda: plain_dtype(dataset.dtype))
    return DatasetEntry(
        path=name,
        shape=dataset.shape,
        dtype="a type that h5py cannot read" if dtype is None else dtype_text(dtype),
        element_nbytes=int(dataset.id.get_type().get_size()),
        variable_length=dtype is not None and dtype.kind == "O" and h5py.check_ref_dtype(dtype) is None,
        layout=_LAYOUTS.get(creation.get_layout(), "unknown"),
        chunk_shape=dataset.chunks,
        filters=pipeline_of(creation).describe(),
        stored_nbytes=int(_or_none(dataset.id.get_storage_size) or 0),
        stored_chunks=stored_chunks,
        cache_nbytes=int(nbytes),
        cache_chunks=int(chunks),
        access=access,
        reason=reason,
        members=() if dtype is None else tuple(_members(name, dtype)),
        role=_role(dataset, name),
        matlab_class=_attribute(dataset, "MATLAB_class").decode("ascii", "replace"),
        clues=clues,
    )


def _damaged_entry(name: str, said: str) -> DatasetEntry:
    return DatasetEntry(
        path=name,
        shape=None,
        dtype="unknown",
        element_nbytes=0,
        variable_length=False,
        layout=DAMAGED,
        chunk_shape=None,
        filters="",
        stored_nbytes=0,
        stored_chunks=None,
        cache_nbytes=0,
        cache_chunks=0,
        access=REFUSED,
        reason=f"it is there, but libhdf5 cannot open it: {said}",
    )


def _members(name: str, dtype: np.dtype[Any]) -> Iterator[MemberEntry]:
    for member in dtype.names or ():
        inner, full = dtype[member], f"{name}:{member}"
        if inner.names:
            yield from _members(full, inner)
        else:
            yield MemberEntry(name=full, dtype=dtype_text(inner))


def _role(dataset: Any, name: str) -> str:
    if is_bookkeeping(name) or _attribute(dataset, "CLASS") in _INDEX_CLASSES:
        return INDEX
    if name.startswith("#refs#/"):
        return CELL
    return DIMENSION if _attribute(dataset, "NAME").startswith(_NO_VALUES) else ""


def _attribute(dataset: Any, name: str) -> bytes:
    """Return a text attribute as bytes; empty where there is none, or where it is something else."""
    value = _or_none(lambda: dataset.attrs.get(name, b""))
    return value.encode() if isinstance(value, str) else bytes(value) if isinstance(value, bytes) else b""


def _or_none(ask: Any) -> Any:
    try:
        return ask()
    except _UNREADABLE:
        return None


def _access(path: str, name: str, allow_external: bool, image: Any = "") -> tuple[str, str, int | None]:
    """Ask the opening itself, so that the answer is what a loader would do."""
    try:
        part = open_layout(path, name, allow_external=allow_external).datasets[0][0]
    except H5StreamError as error:
        with contextlib.suppress(H5StreamError, *_UNREADABLE):
            if image:  # which opaque values are as images alone
                part = open_layout(path, Field(name, decode=image), allow_external=allow_external).datasets[0][0]
                return part.access, part.reason, None if part.index is None else len(part.index.numbers)
        return REFUSED, _without_place(str(error), path, name), None
    except _UNREADABLE as error:
        return REFUSED, f"h5py cannot read it: {error}", None
    return part.access, part.reason, None if part.index is None else len(part.index.numbers)


def _without_place(message: str, path: str, name: str) -> str:
    """Leave out what the listing says anyway: which file and which dataset."""
    for opening in (f"{path!r}", ":", ",", " ", "field ", "dataset ", f"{name!r}", ":", " "):
        message = message.removeprefix(opening)
    return message


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Name a type as people write it.

    Examples
    --------
    >>> dtype_text(np.dtype(">f4")), dtype_text(np.dtype("S10")), dtype_text(h5py.string_dtype())
    ('float32 big-endian', 'S10', 'string of any length')
    >>> dtype_text(np.dtype([("x", "f8"), ("y", "i2", (3,))]))
    '{x: float64, y: int16[3]}'
    """
    if dtype.names:
        return "{" + ", ".join(f"{name}: {dtype_text(dtype[name])}" for name in dtype.names) + "}"
    if dtype.subdtype is not None:
        return f"{dtype_text(dtype.subdtype[0])}[{','.join(map(str, dtype.subdtype[1]))}]"
    if dtype.kind == "O":
        return _object_text(dtype)
    if dtype.kind in "SV":
        return f"S{dtype.itemsize}" if dtype.kind == "S" else f"opaque of {dtype.itemsize} bytes"
    text = dtype.name
    if h5py.check_enum_dtype(dtype) is not None:
        text = f"enum of {text}"
    swapped = dtype.newbyteorder("=") != dtype
    return f"{text} big-endian" if swapped and dtype.byteorder == ">" else text


def _object_text(dtype: np.dtype[Any]) -> str:
    if h5py.check_ref_dtype(dtype) is not None:
        return "reference"
    inside = h5py.check_vlen_dtype(dtype)
    if isinstance(inside, np.dtype):
        return f"sequence of {dtype_text(inside)}"
    return "string of any length"


def decode_rate(part: DatasetPart, identity: SourceIdentity, *, chunks: int = 8, seconds: float = 0.05) -> float | None:
    """Time how fast one thread undoes the filters of a dataset, on some of its own chunks."""
    index = part.index
    if part.access != DECODED or index is None or len(index.numbers) == 0:
        return None
    source, scratch = identity.open(), DecodeScratch()
    spent = done = 0.0
    try:
        # The first is not timed: a running epoch has its buffers and its code in place.
        for turn, place in enumerate([0, *_spread(len(index.numbers), chunks)]):
            # This thread's own time: what else runs here says nothing about the file.
            begin = time.thread_time()
            stored = scratch.buffer("read", int(index.nbytes[place]))
            source.read_many((int(index.offset[place]),), (stored.data,))
            mask = int(index.filter_mask[place])
            part.pipeline.decode(stored, filter_mask=mask, raw_nbytes=part.chunk_nbytes, scratch=scratch)
            if turn:
                done += part.chunk_nbytes
                spent += time.thread_time() - begin
            if spent > seconds:
                break
    except (DecodeError, H5StreamError):
        return None
    finally:
        source.close()
    return done / spent if spent else None


def _spread(count: int, wanted: int) -> list[int]:
    return sorted({k * count // wanted for k in range(wanted)})
