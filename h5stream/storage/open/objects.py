"""Objects of a file, or whole files, that are a sample each, read as the rows of one dataset for each field.

The first is opened like any dataset, with every check. For the others, only their storage is compared with it. If one
is stored in another way, all are opened one by one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import h5py
import numpy as np

from h5stream.base.names import Ints, Names, parted, readings
from h5stream.errors import FieldNotFoundError, H5StreamError
from h5stream.samples.kinds import Objects
from h5stream.samples.packing import MEANINGS
from h5stream.storage.file import groups
from h5stream.storage.file.catalogue import Catalogue
from h5stream.storage.file.discovery import is_there
from h5stream.storage.file.external import Guard
from h5stream.storage.file.groups import RawFile
from h5stream.storage.file.stored import Files, OpenFile, open_hdf5
from h5stream.storage.layout.access import Chunked, ObjectsAsRows
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.index import fill_of
from h5stream.storage.layout.layout import Entry
from h5stream.storage.layout.parts import DatasetPart, Target
from h5stream.storage.layout.request import SampleShape
from h5stream.storage.many.members import (
    BytesColumn,
    DatasetColumn,
    FileMembers,
    MemberColumn,
    Members,
    MixedStorageError,
    ObjectMembers,
    ValueColumn,
    fill_columns,
    fill_from_headers,
    member_path,
    relative_path,
    storage_of,
)
from h5stream.storage.many.stacked import (
    concatenated_rows,
    part_of_member,
    stacked_bytes,
    stacked_rows,
    targets_with_fill,
    with_meanings,
)
from h5stream.storage.open.field_reader import read_fields
from h5stream.storage.open.joining import FileParts
from h5stream.storage.open.lookups import Key, LookupBuilder, restore, snapshot
from h5stream.storage.source.local import FilesIdentity

MemberParts = tuple[FileParts, dict[Key, LookupBuilder]]
"""The fields and datasets of one member, and its ragged fields."""


class _Query(NamedTuple):
    """Members, the fields that each must have, and a function that opens one with every check."""

    members: Members
    shape: SampleShape
    describe: Callable[[int, SampleShape], MemberParts]


def attributes_of(shape: SampleShape) -> tuple[str, ...]:
    """Return the attributes of objects that are fields, and those that give numbers a meaning."""
    every = (reading for f in shape.fields if isinstance(f, Field) for reading in readings(f.name))
    return *MEANINGS, *(one.rest[0] for one in every if one.mark == "@" and not relative_path(one.path))


def load_or_find(
    catalogue: Catalogue, lookups: dict[Key, LookupBuilder], find_all: Callable[[], FileParts]
) -> FileParts:
    """Return the members as rows, from the catalogue if it is valid; `MixedStorageError` if storage differs."""
    if catalogue.is_kept:
        before = snapshot(lookups)
        with contextlib.suppress(ValueError, LookupError, H5StreamError, MixedStorageError):
            return find_all()
        catalogue.forget()
        restore(lookups, before)
    part = find_all()
    if part.rows >= groups.MANY:
        catalogue.save(part.rows, max(one.queried for one in part.parts))
    return part


def object_rows(
    opened: OpenFile,
    raw: RawFile,
    shape: SampleShape,
    names: Sequence[str],
    samples: Objects,
    row_start: int,
    lookups: dict[Key, LookupBuilder],
) -> FileParts:
    """Return the objects of a file as rows; raise `MixedStorageError` if they must be read one by one."""
    members = ObjectMembers(raw, names, samples.missing)

    def describe(k: int, shape: SampleShape) -> MemberParts:
        own: dict[Key, LookupBuilder] = {}
        inside = shape.inside(names[k])
        described = read_fields(opened, inside, names[k], samples=samples, row_start=row_start, lookups=own)
        parts = (*described.parts, *(part for lookup in own.values() for part in lookup.parts))
        # Named columns may have other positions in each object, and data in other files may have any path.
        if opened.files.columns or any(part.file != opened.number for part in parts):
            raise MixedStorageError(names[k])
        return described, own

    part = _stacked(_Query(members, shape, describe), row_start, lookups)
    if len(names) >= groups.MANY and not raw.catalogue.is_kept:
        raw.catalogue.put("names", names)
    return part


def file_rows(
    files: Files,
    identity: FilesIdentity,
    catalogue: Catalogue,
    shape: SampleShape,
    group: str,
    samples: Objects,
    guard: Guard,
    lookups: dict[Key, LookupBuilder],
) -> FileParts:
    """Return files that are a sample each as rows; raise `MixedStorageError` if they must be read one by one."""
    members = FileMembers(identity, catalogue, samples.missing, guard)

    def describe(k: int, shape: SampleShape) -> MemberParts:
        own: dict[Key, LookupBuilder] = {}
        with open_hdf5(members.paths[k]) as file, contextlib.ExitStack() as linked:
            opened = OpenFile(file, k, files, guard, linked)
            described = read_fields(opened, shape, group, samples=samples, lookups=own)
            if files.columns:  # named columns, which may have other positions in each file
                raise MixedStorageError(members.paths[k])
            for part in (*described.parts, *(part for lookup in own.values() for part in lookup.parts)):
                if part.file != k:
                    raise MixedStorageError(members.paths[k])
                if part.path:
                    members.has(k, file, part.path)
        return described, own

    return _stacked(_Query(members, shape, describe), 0, lookups)


def _stacked(query: _Query, row_start: int, lookups: dict[Key, LookupBuilder]) -> FileParts:
    """Return the members that have all fields as rows."""
    members, (first, own) = query.members, _describe_first(query)
    columns, ragged = _columns(query, first, own)
    which = fill_columns(members, [*columns.values(), *ragged.values()])
    names, rows = members.names, which
    if len(which) < len(names) or not isinstance(names, Names):
        names = Names.of(names[k] for k in which.tolist())
    order = _address_order(first, columns) if isinstance(members, ObjectMembers) else None
    if order is not None:
        rows, names = which[order], names.taken(order)
        for (kind, _), column_of_part in columns.items():
            if kind == "part":
                column_of_part.select(order)
    parts = list[DatasetPart]()
    for number, part in enumerate(first.parts):
        part = replace(part, row_start=row_start, file=part.file if members.file is None else members.file)
        column = columns.get(("part", number))
        if isinstance(column, DatasetColumn):
            is_beside = column.path.startswith("/")
            paths = Names.of(member_path(name, column.path) for name in names) if is_beside else names
            part = replace(
                part,
                path=member_path(names[0], column.path),
                objects=ObjectsAsRows(paths, column.queried if len(members.names) >= groups.MANY else 0),
            )
            part = stacked_rows(members, rows, column, part)
            part = replace(part, targets=_filled_targets(query, rows, part, column.path, number))
            part = with_meanings(part, members, rows, column, np.arange(len(rows)))
        elif isinstance(column, BytesColumn):
            assert isinstance(members, ObjectMembers)
            part = stacked_bytes(members, rows, column, file=part.file, row_start=row_start, targets=part.targets)
        else:  # a placeholder, from which nothing is read
            part = replace(part, rows=len(which), objects=ObjectsAsRows(names))
        parts.append(part)
    for key, rows_column in ragged.items():
        lookup = lookups.setdefault(key, LookupBuilder(name=own[key].name, crop=own[key].crop))
        lookup.entry, lookup.is_per_sample = own[key].entry, True
        _add_ragged_rows(query, which, rows_column, lookup, key[0])
    return replace(
        _with_values(first, columns),
        rows=len(which),
        left_out=len(members.names) - len(which),
        parts=tuple(parts),
        are_objects=True,
        anchors=None if order is None else np.argsort(order),
    )


def _with_values(first: FileParts, columns: dict[tuple[str, int], MemberColumn]) -> FileParts:
    """Return the first member's parts with the constants of all members, and all labels of enums."""
    columns_of = {number: cast(ValueColumn, columns["constant", number]) for number, _ in first.constants}
    fields = (
        replace(one, labels=replace(one.labels, meanings=columns_of[k].meanings)) if k in columns_of else one
        for k, one in enumerate(first.fields)
    )
    return replace(
        first, fields=tuple(fields), constants=tuple((number, one.values) for number, one in columns_of.items())
    )


def _add_ragged_rows(query: _Query, which: Ints, column: DatasetColumn, lookup: LookupBuilder, number: int) -> None:
    """Add the rows of all members to ragged field `number`."""
    members, shape = query.members, query.shape
    field_shape = replace(shape, kind="dict", keys=(shape.keys[number],), fields=(shape.fields[number],))

    def described(k: int) -> DatasetPart:
        (one,) = query.describe(k, field_shape)[1].values()
        with members.opened(k) as (file, name):
            lookup.check_layouts(one.layouts, f"{file.filename}:{name}" if name else file.filename)
        return replace(one.parts[0].with_fields({one.number: lookup.number}), row_start=0)

    parts, begins = concatenated_rows(members, which, column, described, lookup.rows)
    lookup.parts += parts
    lookup.add_rows(begins, column.rows)


def _describe_first(query: _Query) -> MemberParts:
    """Open the first member that has all fields."""
    (members, shape, describe), lacking = query, None
    for k in range(len(members.names)):
        members.first = k
        with members.opened(k) as (file, name):
            if lacking and lacks_field(file, name, shape, file.filename, members.guard):
                continue
        try:
            return describe(k, shape)
        except FieldNotFoundError as error:
            lacking = lacking or error
            if members.missing == "error":
                break
    if lacking is None or members.missing == "skip":
        raise FieldNotFoundError(f"each of {len(members.names):,} objects lacks a field: {lacking}", field="")
    raise lacking


def lacks_field(file: h5py.File, group: str, shape: SampleShape, path: str, guard: Guard) -> bool:
    """Return whether a group lacks a field; faster than opening it, as an error would list the whole file."""
    for one in shape.inside(group).fields:
        if isinstance(one, Field) and not one.file and not set("@:{\\") & set(parted(one.name)[1]):
            guard.check_links(file, one.name, path)
            if not is_there(file, one.name, path):
                return True
    return False


def lacks_all_fields(file: h5py.File, group: str, shape: SampleShape, path: str, guard: Guard) -> bool:
    """Return whether a file, or a group of it, has none of the fields that differ between samples."""
    named = [
        one.name.strip("/")
        for one in shape.inside(group).fields
        if isinstance(one, Field) and not (one.file or one.repeat or set("@{") & set(one.name))
    ]
    for name in named:
        guard.check_links(file, name, path)
    return bool(named) and not any(is_there(file, one, path) for name in named for one in (name, name.split(":")[0]))


def _columns(
    query: _Query, first: FileParts, own: dict[Key, LookupBuilder]
) -> tuple[dict[tuple[str, int], MemberColumn], dict[Key, DatasetColumn]]:
    """Return the columns to fill, by the number of their part or constant, and those of ragged fields, by their key."""
    members, shape, _ = query
    columns, count, guard = dict[tuple[str, int], MemberColumn](), len(members.names), members.guard
    named = _requested_fields(first, shape)
    with members.opened(members.first) as (file, name):
        ragged = {key: DatasetColumn(_path_inside(name, lookup.parts[0], shape), count) for key, lookup in own.items()}
        for number, part in enumerate(first.parts):
            if not part.pieces:
                continue
            path = _path_inside(name, part, shape)
            if part.heap is not None and part.objects is not None:
                columns["part", number] = BytesColumn(path, count, guard)
            elif isinstance(part.via, Chunked):
                columns["part", number] = DatasetColumn(path, count, storage_of(file, part.path))
            else:
                raise MixedStorageError(part.path)
        for number, value in first.constants:
            columns["constant", number] = ValueColumn(*named[number], file, name, value, count, guard)
    return columns, ragged


def _requested_fields(first: FileParts, shape: SampleShape) -> dict[int, tuple[Field, tuple[str, ...]]]:
    """Return the requested field of each field number, and its member path in a compound."""
    requested = dict[int, tuple[Field, tuple[str, ...]]]()
    for entry, one in zip(first.entries, shape.fields, strict=True):
        if isinstance(one, Field):
            requested |= {number: (one, member) for number, member in _field_numbers(entry)}
    return requested


def _field_numbers(entry: Entry, member: tuple[str, ...] = ()) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the numbers of an entry's fields, each with its member path in a compound."""
    if isinstance(entry, dict):
        for name, inner in entry.items():
            yield from _field_numbers(inner, (*member, name))
    elif isinstance(entry, int):
        yield entry, member


def similar_group_parts(
    opened: OpenFile,
    raw: RawFile,
    shape: SampleShape,
    names: Sequence[str],
    first: FileParts,
    number: int,
    *,
    cuts: bool,
) -> Callable[[int, int], FileParts | None]:
    """Return a function that makes the parts of group `k`, from a row on, like those of the opened group `number`.

    It returns None for a group that differs in any way, or is not understood: that is opened like any dataset.
    """
    members, columns, is_similar = ObjectMembers(raw, names), list[DatasetColumn](), np.zeros(len(names), dtype=bool)
    members.first, values_of_groups = number, list[tuple[int, object, ValueColumn | None]]()
    simple = (
        isinstance(part.via, Chunked)
        and part.file == opened.number
        and part.objects is None
        and all(target.lengths is None for target in part.targets)
        for part in first.parts
    )
    with contextlib.suppress(MixedStorageError, H5StreamError):
        named = any(field.labels.axes for field in first.fields)  # columns with names, which may differ
        if all(simple) and not named and not any(part.along or not part.targets for part in first.parts):
            columns = [DatasetColumn(_path_inside(names[number], part, None), len(names)) for part in first.parts]
            values_of_groups = [*_group_value_columns(opened, shape, names[number], len(names), first)]
            fill_from_headers(members, [*columns, *(column for _, _, column in values_of_groups if column is not None)])
            is_similar = np.logical_and.reduce([one.valid & (one.kind == one.kind[number]) for one in columns])
    edges = [np.searchsorted(column.chunks[0], np.arange(len(names) + 1)).tolist() for column in columns]

    def value_of(k: int, value: object, column: ValueColumn | None) -> object:
        if column is None:
            return value
        if not column.valid[k]:
            column.query(k, opened.file, names[k])
        return column.values[k]

    def part_of_group(k: int, row_start: int) -> FileParts | None:
        rows = [int(column.rows[k]) for column in columns]
        if not is_similar[k] or not min(rows) or (len(set(rows)) > 1 and not cuts):
            return None
        parts, values = list[DatasetPart](), first.constants
        with contextlib.suppress(H5StreamError):
            values = tuple((place, value_of(k, value, column)) for place, value, column in values_of_groups)
        if values_of_groups and values is first.constants:  # opening the group raises the proper error
            return None
        for part, column, begins in zip(first.parts, columns, edges, strict=True):
            path, chunks = member_path(names[k], column.path), slice(begins[k], begins[k + 1])
            meaning, targets = int(column.meaning_numbers[k]), part.targets
            if meaning != column.meaning_numbers[number]:
                targets = tuple(replace(target, meaning=column.meanings[meaning]) for target in targets)
            options = {"path": path, "rows": min(rows), "row_start": row_start, "targets": targets}
            one = part_of_member(part, column, k, chunks, **options)
            if one is None:
                return None
            parts.append(one)
        return replace(first, rows=min(rows), parts=tuple(parts), constants=values)

    return part_of_group


def _group_value_columns(
    opened: OpenFile, shape: SampleShape, name: str, count: int, first: FileParts
) -> Iterator[tuple[int, object, ValueColumn | None]]:
    """Yield the number of each constant field, the first group's value, and its column; None if all groups share it."""
    named = _requested_fields(first, shape)
    for number, value in first.constants:
        spec, member = named[number]
        is_of_file = spec.name.startswith("/") and not spec.beside and spec.inside(name).name == spec.name
        if not is_of_file and spec.name.startswith("/") and not spec.beside:
            raise MixedStorageError(spec.name)
        column = None if is_of_file else ValueColumn(spec, member, opened.file, name, value, count, opened.guard)
        yield number, value, column


def _path_inside(name: str, part: DatasetPart, shape: SampleShape | None) -> str:
    """Return a dataset's path relative to its sample, or beside it; raise `MixedStorageError` if it is elsewhere."""
    beside = (one.beside for one in (shape.fields if shape else ()) if isinstance(one, Field) and one.beside)
    if (relative := next((path for path in beside if member_path(name, path) == part.path), None)) is not None:
        return relative
    if name and part.path != name and not part.path.startswith(f"{name}/"):
        raise MixedStorageError(part.path)
    return part.path[len(name) :].strip("/")


def _filled_targets(query: _Query, which: Ints, part: DatasetPart, path: str, number: int) -> tuple[Target, ...]:
    """Return a part's targets with the fill value of a member that is incomplete, if there is one."""
    members, shape, describe = query
    index = part.chunk_index
    lacking = np.flatnonzero(np.bincount(index.numbers // index.columns, minlength=len(which)) < index.columns)
    for place, k in zip(lacking.tolist(), which[lacking].tolist(), strict=True):
        with members.opened(k) as (file, _):
            if not members.has(k, file, path):  # faster than the error of `describe`, which lists the whole file
                continue
        with contextlib.suppress(FieldNotFoundError):
            one = describe(k, shape)[0].parts[number]
            if one.access != part.access:  # h5py has to read it
                raise MixedStorageError(one.path)
            numbers = index.numbers[index.numbers // index.columns == place] % index.columns
            return targets_with_fill(members, k, numbers, path, one)
    if not len(lacking):
        return part.targets
    with members.opened(members.first) as (file, name):
        element = np.frombuffer(fill_of(file[member_path(name, path)].id)[2], np.uint8)
    return tuple(
        target if target.leaf is None or not len(element) else replace(target, fill=element[target.leaf.places])
        for target in part.targets
    )


def _address_order(first: FileParts, columns: dict[tuple[str, int], MemberColumn]) -> Ints | None:
    """Return the order of objects by their addresses in the file; None if they are in that order already."""
    nbytes = (math.prod(one.shape) * one.stored_element_nbytes for one in first.parts)
    sizes = [one.heap.row_nbytes if one.heap else size for one, size in zip(first.parts, nbytes, strict=True)]
    lead = columns.get(("part", int(np.argmax(sizes))))
    if not isinstance(lead, DatasetColumn) or not lead.chunks.size:
        return None
    owner, _, offset, *_ = lead.chunks
    begins = offset[np.minimum(np.searchsorted(owner, np.arange(len(lead.rows))), len(owner) - 1)]
    order = np.argsort(begins, kind="stable")
    return None if (np.diff(order) > 0).all() else order
