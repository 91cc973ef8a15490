"""Objects of a file, or files, that are a sample each, read as rows of one dataset a field.

The first is opened like any dataset, with every check. Of the others only what may differ is looked at: how they are
stored, and where. Where one is stored in another way, all are opened one by one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

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
from h5stream.storage.layout.fields import Field, SampleShape
from h5stream.storage.layout.index import fill_of
from h5stream.storage.layout.layout import DECODED, DIRECT, DatasetPart, Target
from h5stream.storage.many.members import (
    Column,
    EachBytes,
    FilesEach,
    Lying,
    Members,
    ObjectsOfFile,
    Once,
    UnlikeError,
    asked_of,
    find,
    from_bytes,
    inside_of,
    within,
)
from h5stream.storage.many.stacked import bytes_of_each, filled, part_alike, row_of_each, rows_of_each, with_meanings
from h5stream.storage.open.field_reader import read_fields
from h5stream.storage.open.joining import FileParts
from h5stream.storage.open.lookups import Key, LookedUp, counted, forget
from h5stream.storage.source.local import FilesIdentity

Described = tuple[FileParts, dict[Key, LookedUp]]
"""What one holds, and by their places its ragged fields."""


class _Wanted(NamedTuple):
    """Things, the fields that are wanted of each, and what opens one of them with every check."""

    members: Members
    shape: SampleShape
    describe: Callable[[int, SampleShape], Described]


def attributes_of(shape: SampleShape) -> tuple[str, ...]:
    """Return the attributes of the objects themselves that are fields, and those that say something of numbers."""
    every = (reading for f in shape.fields if isinstance(f, Field) for reading in readings(f.name))
    return *MEANINGS, *(one.rest[0] for one in every if one.mark == "@" and not within(one.path))


def kept_or_anew(
    catalogue: Catalogue, looked_up: dict[Key, LookedUp], find_all: Callable[[], FileParts]
) -> FileParts | None:
    """Return what is found of many by what the catalogue has, or else anew; None where they are read one by one."""
    if catalogue.is_kept:
        before = counted(looked_up)
        with contextlib.suppress(ValueError, LookupError, H5StreamError, UnlikeError):
            return find_all()
        catalogue.forget()
        forget(looked_up, before)
    try:
        found = find_all()
    except UnlikeError:
        return None
    if found.rows >= groups.MANY:
        catalogue.save(found.rows, max(one.asked for one in found.parts))
    return found


def objects_of(
    opened: OpenFile,
    raw: RawFile,
    shape: SampleShape,
    names: Sequence[str],
    samples: Objects,
    row_start: int,
    looked_up: dict[Key, LookedUp],
) -> FileParts:
    """Return the objects of a file as rows; raises `UnlikeError` where they have to be looked at one by one."""
    members = ObjectsOfFile(raw, names, samples.missing)

    def describe(k: int, shape: SampleShape) -> Described:
        own: dict[Key, LookedUp] = {}
        inside = shape.inside(names[k])
        found = read_fields(opened, inside, names[k], samples=samples, row_start=row_start, looked_up=own)
        parts = (*found.parts, *(part for known in own.values() for part in known.parts))
        # Named columns, which each object may have elsewhere, or data in other files, whatever their paths there.
        if opened.files.columns or any(part.file != opened.number for part in parts):
            raise UnlikeError(names[k])
        return found, own

    found = _together(_Wanted(members, shape, describe), row_start, looked_up)
    if len(names) >= groups.MANY and not raw.catalogue.is_kept:
        raw.catalogue.put("names", names)
    return found


def files_of(
    every: Files,
    identity: FilesIdentity,
    catalogue: Catalogue,
    shape: SampleShape,
    group: str,
    samples: Objects,
    guard: Guard,
    looked_up: dict[Key, LookedUp],
) -> FileParts:
    """Return files of which each is a sample as rows; raises `UnlikeError` where they are read one by one."""
    members = FilesEach(identity, catalogue, samples.missing, guard)

    def describe(k: int, shape: SampleShape) -> Described:
        own: dict[Key, LookedUp] = {}
        with open_hdf5(members.paths[k]) as file, contextlib.ExitStack() as linked:
            opened = OpenFile(file, k, every, guard, linked)
            found = read_fields(opened, shape, group, samples=samples, looked_up=own)
            if every.columns:  # named ones, which each file may have elsewhere
                raise UnlikeError(members.paths[k])
            for part in (*found.parts, *(part for known in own.values() for part in known.parts)):
                if part.file != k:
                    raise UnlikeError(members.paths[k])
                if part.path:
                    members.has(k, file, part.path)
        return found, own

    return _together(_Wanted(members, shape, describe), 0, looked_up)


def _together(wanted: _Wanted, row_start: int, looked_up: dict[Key, LookedUp]) -> FileParts:
    """Return all that have all fields as rows."""
    members, (first, own) = wanted.members, _first_of(wanted)
    columns, ragged = _columns(wanted, first, own)
    which = find(members, [*columns.values(), *ragged.values()])
    names, rows = members.names, which
    if len(which) < len(names) or not isinstance(names, Names):
        names = Names.of(names[k] for k in which.tolist())
    order = _by_address(first, columns) if isinstance(members, ObjectsOfFile) else None
    if order is not None:
        rows, names = which[order], names.taken(order)
        for place, one in columns.items():
            if place[0] == "part":
                one.only(order)
    parts = list[DatasetPart]()
    for number, part in enumerate(first.parts):
        part = replace(part, row_start=row_start, file=part.file if members.file is None else members.file)
        column = columns.get(("part", number))
        if isinstance(column, Lying):
            is_beside = column.path.startswith("/")
            part = replace(
                part,
                path=inside_of(names[0], column.path),
                objects=Names.of(inside_of(name, column.path) for name in names) if is_beside else names,
                asked=column.asked if len(members.names) >= groups.MANY else 0,
            )
            part = row_of_each(members, rows, column, part)
            part = replace(part, targets=_targets(wanted, rows, part, column.path, number))
            part = with_meanings(part, members, rows, column, np.arange(len(rows)))
        elif isinstance(column, EachBytes):
            assert isinstance(members, ObjectsOfFile)
            part = bytes_of_each(members, rows, column, file=part.file, row_start=row_start, targets=part.targets)
        else:  # nothing is read of it
            part = replace(part, rows=len(which), objects=names)
        parts.append(part)
    for key, lying in ragged.items():
        known = looked_up.setdefault(key, LookedUp(name=own[key].name, crop=own[key].crop))
        known.entry, known.is_given = own[key].entry, True
        _add_rows(wanted, which, lying, known, key[0])
    return replace(
        _with_values(first, columns),
        rows=len(which),
        left_out=len(members.names) - len(which),
        parts=tuple(parts),
        are_objects=True,
        anchors=None if order is None else np.argsort(order),
    )


def _with_values(first: FileParts, columns: dict[tuple[str, int], Column]) -> FileParts:
    """Return what the first has with the values that each has once, and the labels of all where these are enums."""
    once = {number: cast(Once, columns["once", number]) for number, _ in first.once}
    fields = (replace(one, meanings=once[k].meanings) if k in once else one for k, one in enumerate(first.fields))
    return replace(first, fields=tuple(fields), once=tuple((number, one.values) for number, one in once.items()))


def _add_rows(wanted: _Wanted, which: Ints, lying: Lying, known: LookedUp, number: int) -> None:
    """Add the rows that each has of the ragged field of a number."""
    members, shape = wanted.members, wanted.shape
    only = replace(shape, kind="dict", keys=(shape.keys[number],), fields=(shape.fields[number],))

    def described(k: int) -> DatasetPart:
        (one,) = wanted.describe(k, only)[1].values()
        with members.opened(k) as (file, name):
            known.check_alike(one.layouts, f"{file.filename}:{name}" if name else file.filename)
        return replace(one.parts[0].with_fields({one.entry: known.entry}), row_start=0)

    parts, begins = rows_of_each(members, which, lying, described, known.rows)
    known.parts += parts
    known.add_rows(begins, lying.rows)


def _first_of(wanted: _Wanted) -> Described:
    """Open the first that has all fields."""
    (members, shape, describe), lacking = wanted, None
    for k in range(len(members.names)):
        members.first = k
        with members.opened(k) as (file, name):
            if lacking and lacks(file, name, shape, file.filename, members.guard):
                continue
        try:
            return describe(k, shape)
        except FieldNotFoundError as error:
            lacking = lacking or error
            if members.missing == "error":
                break
    assert lacking is not None
    if members.missing == "skip":
        raise FieldNotFoundError(f"each of {len(members.names):,} objects lacks a field: {lacking}", field="")
    raise lacking


def lacks(file: Any, group: str, shape: SampleShape, path: str, guard: Guard) -> bool:
    """Tell whether one has nothing under a field's name; an error's words, of all that is there, take long."""
    for one in shape.inside(group).fields:
        if isinstance(one, Field) and not one.file and not set("@:{\\") & set(parted(one.name)[1]):
            guard.check_links(file, one.name, path)
            if not is_there(file, one.name, path):
                return True
    return False


def lacks_all(file: Any, group: str, shape: SampleShape, path: str, guard: Guard) -> bool:
    """Tell whether a file, or a group of it, has nothing of which each sample would have its own."""
    named = [
        one.name.strip("/")
        for one in shape.inside(group).fields
        if isinstance(one, Field) and not (one.file or one.repeat or set("@{") & set(one.name))
    ]
    for name in named:
        guard.check_links(file, name, path)
    return bool(named) and not any(is_there(file, one, path) for name in named for one in (name, name.split(":")[0]))


def _columns(
    wanted: _Wanted, first: FileParts, own: dict[Key, LookedUp]
) -> tuple[dict[tuple[str, int], Column], dict[Key, Lying]]:
    """Return what is looked for in each: by numbers of parts and of values, and of ragged fields by their places."""
    members, shape, _ = wanted
    columns, count, guard = dict[tuple[str, int], Column](), len(members.names), members.guard
    entries = zip(first.entries, shape.fields, strict=True)
    named = {number: (f, member) for entry, f in entries if isinstance(f, Field) for number, member in _numbered(entry)}
    with members.opened(members.first) as (file, name):
        ragged = {key: Lying(_path_in(name, known.parts[0], shape), count) for key, known in own.items()}
        for number, part in enumerate(first.parts):
            if not part.pieces:
                continue
            path = _path_in(name, part, shape)
            if part.heap is not None and part.objects:
                columns["part", number] = EachBytes(path, count, guard)
            elif part.access in (DIRECT, DECODED) and part.index is not None:
                columns["part", number] = Lying(path, count, asked_of(file, part.path))
            else:
                raise UnlikeError(part.path)
        for number, value in first.once:
            columns["once", number] = Once(*named[number], file, name, value, count, guard)
    return columns, ragged


def _numbered(entry: Any, member: tuple[str, ...] = ()) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the numbers of the fields that an entry holds, each with the member of a compound that it is."""
    if isinstance(entry, dict):
        for name, inner in entry.items():
            yield from _numbered(inner, (*member, name))
    elif isinstance(entry, int):
        yield entry, member


def groups_alike(
    opened: OpenFile,
    raw: RawFile,
    shape: SampleShape,
    names: Sequence[str],
    first: FileParts,
    number: int,
    *,
    cuts: bool,
) -> Callable[[int, int], FileParts | None]:
    """Return what describes a group by its number, the rows of its datasets from a row on, by one that was opened.

    It returns None for a group of which anything is unlike, or not known: that is opened like any dataset.
    """
    members, columns, alike = ObjectsOfFile(raw, names), list[Lying](), np.zeros(len(names), dtype=bool)
    members.first, once = number, list[tuple[int, Any, Once | None]]()
    simple = (
        part.index is not None and part.file == opened.number and part.lengths is None and not part.objects
        for part in first.parts
    )
    with contextlib.suppress(UnlikeError, H5StreamError):
        named = any(field.axes for field in first.fields)  # whose names may differ
        if all(simple) and not named and not any(part.along or not part.targets for part in first.parts):
            columns = [Lying(_path_in(names[number], part, None), len(names)) for part in first.parts]
            once = [*_once_of_groups(opened, shape, names[number], len(names), first)]
            from_bytes(members, [*columns, *(column for _, _, column in once if column is not None)])
            alike = np.logical_and.reduce([one.known & (one.kind == one.kind[number]) for one in columns])
    edges = [np.searchsorted(column.chunks[0], np.arange(len(names) + 1)).tolist() for column in columns]

    def value_of(k: int, value: Any, column: Once | None) -> Any:
        if column is None:
            return value
        if not column.known[k]:
            column.ask(k, opened.file, names[k])
        return column.values[k]

    def of(k: int, row_start: int) -> FileParts | None:
        rows = [int(column.rows[k]) for column in columns]
        if not alike[k] or not min(rows) or (len(set(rows)) > 1 and not cuts):
            return None
        parts, values = list[DatasetPart](), first.once
        with contextlib.suppress(H5StreamError):
            values = tuple((place, value_of(k, value, column)) for place, value, column in once)
        if once and values is first.once:  # opened like any other, it has the words
            return None
        for part, column, begins in zip(first.parts, columns, edges, strict=True):
            path, chunks = inside_of(names[k], column.path), slice(begins[k], begins[k + 1])
            said, targets = int(column.table["said"][k]), part.targets
            if said != column.table["said"][number]:
                targets = tuple(replace(each, meaning=column.meanings[said]) for each in targets)
            told = {"path": path, "rows": min(rows), "row_start": row_start, "targets": targets}
            one = part_alike(part, column, k, chunks, **told)
            if one is None:
                return None
            parts.append(one)
        return replace(first, rows=min(rows), parts=tuple(parts), once=values)

    return of


def _once_of_groups(
    opened: OpenFile, shape: SampleShape, name: str, count: int, first: FileParts
) -> Iterator[tuple[int, Any, Once | None]]:
    """Yield what groups have once: the field's number, the first's value, and what finds that of each; None for one."""
    entries = zip(first.entries, shape.fields, strict=True)
    named = {number: (f, member) for entry, f in entries for number, member in _numbered(entry)}
    for number, value in first.once:
        asked, member = named[number]
        assert isinstance(asked, Field)
        is_of_file = asked.name.startswith("/") and not asked.beside and asked.inside(name).name == asked.name
        if not is_of_file and asked.name.startswith("/") and not asked.beside:
            raise UnlikeError(asked.name)
        column = None if is_of_file else Once(asked, member, opened.file, name, value, count, opened.guard)
        yield number, value, column


def _path_in(name: str, part: DatasetPart, shape: SampleShape | None) -> str:
    """Return the path of a dataset inside of what is a sample, or beside it; elsewhere it is not like the others'."""
    known = (one.beside for one in (shape.fields if shape else ()) if isinstance(one, Field) and one.beside)
    if (found := next((path for path in known if inside_of(name, path) == part.path), None)) is not None:
        return found
    if name and part.path != name and not part.path.startswith(f"{name}/"):
        raise UnlikeError(part.path)
    return part.path[len(name) :].strip("/")


def _targets(wanted: _Wanted, which: Ints, part: DatasetPart, path: str, number: int) -> tuple[Target, ...]:
    """Return what a part fills, with the value of what was never written, by one of which something was not."""
    members, shape, describe = wanted
    index = part.chunk_index
    lacking = np.flatnonzero(np.bincount(index.numbers // index.columns, minlength=len(which)) < index.columns)
    for place, k in zip(lacking.tolist(), which[lacking].tolist(), strict=True):
        with members.opened(k) as (file, _):
            if not members.has(k, file, path):  # the error of what is not there goes through the whole file
                continue
        with contextlib.suppress(FieldNotFoundError):
            one = describe(k, shape)[0].parts[number]
            if one.access != part.access:  # h5py has to read it
                raise UnlikeError(one.path)
            numbers = index.numbers[index.numbers // index.columns == place] % index.columns
            return filled(members, k, numbers, path, one)
    if not len(lacking):
        return part.targets
    with members.opened(members.first) as (file, name):
        element = np.frombuffer(fill_of(file[inside_of(name, path)].id)[2], np.uint8)
    return tuple(
        target if target.leaf is None or not len(element) else replace(target, fill=element[target.leaf.places])
        for target in part.targets
    )


def _by_address(first: FileParts, columns: dict[tuple[str, int], Column]) -> Ints | None:
    """Return the objects as they lie in the file, so that neighbours are read together; None where they do already."""
    nbytes = (math.prod(one.shape) * one.stored_element_nbytes for one in first.parts)
    sizes = [one.heap.row_nbytes if one.heap else size for one, size in zip(first.parts, nbytes, strict=True)]
    lead = columns.get(("part", int(np.argmax(sizes))))
    if not isinstance(lead, Lying) or not lead.chunks.size:
        return None
    owner, _, offset, *_ = lead.chunks
    begins = offset[np.minimum(np.searchsorted(owner, np.arange(len(lead.rows))), len(owner) - 1)]
    order = np.argsort(begins, kind="stable")
    return None if (np.diff(order) > 0).all() else order
