"""Objects that are alike, read as rows of one dataset: of each, where its chunks lie, and what it has besides.

The first object is opened like any dataset, with every check. Of the others only what may differ is looked at: type,
shape, chunks, filters, and the addresses of their bytes. Together they are one dataset with an axis more, whose chunks
are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldLengthError, FieldNotFoundError
from h5stream.samples.objects import Objects
from h5stream.storage.agreement import FileParts
from h5stream.storage.extents import Extents
from h5stream.storage.field_reader import FieldReader
from h5stream.storage.fields import Field, SampleShape
from h5stream.storage.index import ChunkIndex
from h5stream.storage.layout import DECODED, DIRECT, DatasetPart
from h5stream.storage.lookups import LookedUp
from h5stream.storage.places import OpenFile
from h5stream.storage.rowbox import Columns, column_pieces

Ints = NDArray[np.int64]


def are_mergeable(first: FileParts, group: str) -> bool:
    """Tell whether objects may be read as rows of one dataset, by the first of them."""
    return all(
        part.access in (DIRECT, DECODED) and part.index is not None and _is_inside(part.path, group)
        for part in first.parts
    )


def _is_inside(path: str, group: str) -> bool:
    return path == group or path.startswith(f"{group}/") or not group


def merged(file: Any, first: FileParts, names: Sequence[str], row_start: int, size: int) -> FileParts:
    """Give the parts of objects of one file that are like the first of them.

    Parameters
    ----------
    file : h5py.File
        Open.
    first : FileParts
        What the first object gives.
    names : sequence of str
        The paths of all of them.
    row_start : int
        The number of the first.
    size : int
        Bytes of the file.

    Raises
    ------
    FieldNotFoundError
        If one lacks a dataset.
    FieldLengthError
        If one is unlike the first.
    """
    parts = []
    for part in first.parts:
        suffix = part.path[len(names[0]) :]
        index = _index_of(file, part, names, suffix, size)
        columns = _columns_of(part)
        parts.append(
            replace(
                part,
                path=f"{names[0]}{suffix}",
                rows=len(names),
                row_start=row_start,
                chunk_rows=1,
                index=index,
                columns=columns,
                pieces=column_pieces(part.shape, index.chunk_shape[1:], columns),
                shape=index.shape,
                along=(),
                objects=tuple(f"{name}{suffix}" for name in names),
            )
        )
    return replace(first, rows=len(names), parts=tuple(parts))


def _columns_of(part: DatasetPart) -> Columns:
    """Give what is wanted of an object along each of its axes; None for all of it."""
    wanted = tuple(list(along.offsets) for along in part.along)
    return None if wanted == tuple(list(range(count)) for count in part.shape) else wanted


def _index_of(file: Any, part: DatasetPart, names: Sequence[str], suffix: str, size: int) -> ChunkIndex:
    """Collect the chunks of one dataset of each object."""
    first = part.index
    assert first is not None
    whole = file[part.path]
    like = _Like(whole)
    across, cuts = first.chunks, np.arange(first.chunks, dtype=np.int64)
    row_nbytes = part.stored_element_nbytes * int(np.prod(first.shape[1:], dtype=object))
    cut_rows = np.minimum(first.chunk_shape[0], first.shape[0] - cuts * first.chunk_shape[0])  # contiguous: of axis 0
    numbers, offset, nbytes, mask = list[Ints](), list[Ints](), list[Ints](), list[Ints]()
    for k, name in enumerate(names):
        opened = _opened(file, f"{name}{suffix}")
        like.check(opened, f"{name}{suffix}", whole.name, file.filename)
        if like.chunks is None:
            where = opened.get_offset()
            if where is None:
                continue
            numbers.append(cuts + k * across)
            offset.append(where + cuts * (first.chunk_shape[0] * row_nbytes))
            nbytes.append(cut_rows * row_nbytes)
            mask.append(np.zeros(across, dtype=np.int64))
        else:
            some = np.array([_chunk(opened, j, like.grid, like.chunks) for j in range(opened.get_num_chunks())])
            some = some.reshape(-1, 4)[np.argsort(some.reshape(-1, 4)[:, 0])]
            numbers.append(some[:, 0] + k * across)
            offset.append(some[:, 1])
            nbytes.append(some[:, 2])
            mask.append(some[:, 3])
    none = [np.zeros(0, dtype=np.int64)]
    found = ChunkIndex(
        shape=(len(names), *first.shape),
        chunk_shape=(1, *first.chunk_shape),
        grid=(len(names), *first.grid),
        numbers=np.concatenate(numbers or none),
        offset=np.concatenate(offset or none),
        nbytes=np.concatenate(nbytes or none),
        filter_mask=np.concatenate(mask or none).astype(np.uint32),
    )
    beyond = np.flatnonzero((found.offset < 0) | (found.nbytes < 0) | (found.offset + found.nbytes > size))
    if len(beyond):
        name = names[int(found.numbers[beyond[0]]) // across]
        raise FieldLengthError(
            f"{file.filename!r}: the bytes of {name + suffix!r} are said to lie beyond the file's end", field=name
        )
    return found


class _Like:
    """What a dataset of every object has in common with the first's."""

    def __init__(self, whole: Any) -> None:
        self.type, self.shape = whole.id.get_type(), whole.shape
        creation = whole.id.get_create_plist()
        self.layout, self.chunks, self.filters = _stored_as(creation)
        self.grid = (
            None if self.chunks is None else tuple(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))
        )

    def check(self, opened: Any, name: str, first: str, path: str) -> None:
        """Refuse a dataset that is unlike the first."""
        if opened.shape != self.shape or not opened.get_type().equal(self.type):
            raise FieldLengthError(
                f"{path!r}: {name!r} holds {opened.dtype} {opened.shape}, and {first.strip('/')!r} {self.type.dtype} "
                f"{self.shape}; samples=Objects(...) are alike. Leave out what is not: Objects([...]) takes names",
                field=name,
                file=path,
            )
        if _stored_as(opened.get_create_plist()) != (self.layout, self.chunks, self.filters):
            raise UnlikeError(name)


class UnlikeError(Exception):
    """Objects that are stored in another way than the first: they are read one by one."""


def _stored_as(creation: Any) -> tuple[int, Any, tuple[Any, ...]]:
    layout = creation.get_layout()
    if layout not in (h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED) or creation.get_external_count():
        return layout, "elsewhere", ()
    chunks = creation.get_chunk() if layout == h5py.h5d.CHUNKED else None
    return layout, chunks, tuple(creation.get_filter(k) for k in range(creation.get_nfilters()))


def _opened(file: Any, name: str) -> Any:
    try:
        return h5py.h5d.open(file.id, name.encode())
    except (KeyError, ValueError, OSError) as error:
        raise FieldNotFoundError(
            f"{file.filename!r}: there is no dataset {name!r}: {error}. Objects(..., missing='skip') leaves out "
            "objects that lack a field",
            field=name,
            file=file.filename,
        ) from None


def _chunk(opened: Any, place: int, grid: Any, chunks: Any) -> tuple[int, int, int, int]:
    info = opened.get_chunk_info(place)
    number = 0
    for first, size, count in zip(info.chunk_offset, chunks, grid, strict=True):
        number = number * count + first // size
    return number, info.byte_offset, info.size, info.filter_mask


def are_hard_links(file: Any, names: Sequence[str], suffixes: Sequence[str]) -> bool:
    """Tell whether hard links alone lead to objects and their datasets; what others lead to is looked at one by one."""
    known: set[str] = {""}
    for name in names:
        for suffix in suffixes:
            path = ""
            for step in f"{name}{suffix}".split("/"):
                inner = f"{path}/{step}" if path else step
                if inner not in known:
                    parent = file[path] if path else file
                    try:
                        info = parent.id.links.get_info(step.encode())
                    except (KeyError, RuntimeError):
                        return False
                    if info.type != h5py.h5l.TYPE_HARD:
                        return False
                    if inner != f"{name}{suffix}":
                        known.add(inner)
                path = inner
    return True


def objects_of(
    opened: OpenFile,
    shape: SampleShape,
    names: list[str],
    samples: Objects,
    row_start: int,
    looked_up: dict[int, LookedUp],
) -> FileParts | None:
    """Give the objects of a file as rows; None where they have to be looked at one by one.

    Parameters
    ----------
    opened : OpenFile
        The file.
    shape : SampleShape
        The fields.
    names : list of str
        The paths of the objects.
    samples : Objects
        As the user asked.
    row_start : int
        The number of the first.
    looked_up : dict
        See `FieldReader`.

    Raises
    ------
    FieldNotFoundError, FieldLengthError
        If an object lacks a field, or is unlike the first.
    """
    file = opened.file
    if samples.missing == "skip":
        wanted = [f.name for f in shape.fields if isinstance(f, Field) and "@" not in f.name and not f.is_itself]
        names = [name for name in names if all(f"{name}/{suffix}" in file for suffix in wanted)]
    if not names or any(isinstance(f, Field) and (f.file or f.rows is not None) for f in shape.fields):
        return None
    first = FieldReader(opened, row_start, samples, Extents.of(samples), looked_up).read(
        shape.inside(names[0]), names[0]
    )
    suffixes = [part.path[len(names[0]) :] for part in first.parts]
    if not are_mergeable(first, names[0]) or not are_hard_links(file, names, suffixes):
        return None
    try:
        together = merged(file, first, names, row_start, opened.identity.size)
    except UnlikeError:
        return None
    by_number = dict(zip(first.entries, shape.fields, strict=True))
    once = []
    for number, value in first.once:
        given = by_number[number]
        assert isinstance(given, Field)
        is_attribute = "@" in given.name and given.inside(names[0]).name not in file
        values = [_value(file, given.inside(name).name, is_attribute) for name in names]
        once.append((number, np.stack(values).astype(value.dtype) if isinstance(value, np.ndarray) else values))
    return replace(together, once=tuple(once), are_objects=True)


def _value(file: Any, name: str, is_attribute: bool) -> Any:
    """Give an attribute, or a dataset that is a value."""
    owner, _, attribute = name.rpartition("@")
    try:
        if is_attribute:
            opened = h5py.h5a.open(h5py.h5o.open(file.id, owner.strip("/").encode() or b"."), attribute.encode())
        else:
            opened = h5py.h5d.open(file.id, name.encode())
        if opened.dtype.kind in "biufc" and opened.shape is not None:
            numbers = np.empty(opened.shape, opened.dtype)
            if is_attribute:
                opened.read(numbers)
            else:
                opened.read(h5py.h5s.ALL, h5py.h5s.ALL, numbers)
            return numbers
        value = file[owner.strip("/") or "/"].attrs[attribute] if is_attribute else file[name][()]
    except KeyError as error:
        raise FieldNotFoundError(
            f"{file.filename!r}: there is no {name!r}: {error}", field=name, file=file.filename
        ) from None
    return np.asarray(value).astype(object).tolist()
