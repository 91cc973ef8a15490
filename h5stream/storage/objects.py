"""Objects of a file, or files, that are a sample each, read as rows of one dataset a field.

The first is opened like any dataset, with every check. Of the others only what may differ is looked at: how they are
stored, and where. Where one is stored in another way, all are opened one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldNotFoundError, H5StreamError
from h5stream.samples.objects import Objects
from h5stream.storage import whereabouts
from h5stream.storage.agreement import FileParts
from h5stream.storage.catalogue import Catalogue
from h5stream.storage.discovery import is_there, open_hdf5
from h5stream.storage.external import Guard
from h5stream.storage.field_reader import read_fields
from h5stream.storage.fields import Field, SampleShape
from h5stream.storage.index import fill_of
from h5stream.storage.layout import DECODED, DIRECT, DatasetPart, Target
from h5stream.storage.lookups import Key, LookedUp
from h5stream.storage.names import Names
from h5stream.storage.object_rows import bytes_of_each, row_of_each, rows_of_each
from h5stream.storage.places import Files, OpenFile
from h5stream.storage.source import FilesIdentity
from h5stream.storage.units import (
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
    inside_of,
)
from h5stream.storage.whereabouts import RawFile

Ints = NDArray[np.int64]
Described = tuple[FileParts, dict[Key, LookedUp]]
"""What one holds, and by their places its ragged fields."""


def attributes_of(shape: SampleShape) -> tuple[str, ...]:
    """Return the attributes of the objects themselves that are fields."""
    named = (f.name.rpartition("@") for f in shape.fields if isinstance(f, Field))
    return tuple(attribute for inner, at, attribute in named if at and not inner.strip("/."))


def objects_of(
    opened: OpenFile,
    raw: RawFile,
    shape: SampleShape,
    names: Sequence[str],
    samples: Objects,
    row_start: int,
    looked_up: dict[Key, LookedUp],
) -> FileParts | None:
    """Return the objects of a file as rows; None where they have to be looked at one by one."""
    if not names or any(isinstance(f, Field) and f.is_looked_up for f in shape.fields):
        return None
    members = ObjectsOfFile(raw, names, samples.missing)

    def describe(k: int, shape: SampleShape) -> Described:
        own: dict[Key, LookedUp] = {}
        inside = shape.inside(names[k])
        return read_fields(opened, inside, names[k], samples=samples, row_start=row_start, looked_up=own), own

    try:
        found = _together(members, shape, describe, opened.guard, row_start, looked_up)
    except UnlikeError:
        return None
    if len(names) >= whereabouts.MANY and not raw.catalogue.is_kept:
        raw.catalogue.put_texts("names", names)
    return _by_address(found)


def files_of(
    every: Files,
    shape: SampleShape,
    group: str,
    samples: Objects,
    guard: Guard,
    words: Sequence[str],
    looked_up: dict[Key, LookedUp],
) -> tuple[FileParts, FilesIdentity] | None:
    """Return files of which each is a sample as rows, and what they are; None where they are read one by one."""
    if any(isinstance(f, Field) and (f.is_looked_up or f.decode) for f in shape.fields):
        return None
    identity = FilesIdentity.of(every.identities[: every.named])  # type: ignore[arg-type]
    catalogue = Catalogue(identity, *words)
    members = FilesEach(identity, catalogue, samples.missing)

    def describe(k: int, shape: SampleShape) -> Described:
        own: dict[Key, LookedUp] = {}
        with open_hdf5(members.paths[k]) as file, contextlib.ExitStack() as linked:
            opened = OpenFile(file, k, every, guard, linked)
            found = read_fields(opened, shape, group, samples=samples, looked_up=own)
            parts = (*found.parts, *(part for known in own.values() for part in known.parts))
            if any(part.file != k for part in parts):
                raise UnlikeError(members.paths[k])
            for part in parts:
                if part.path:
                    members.check(k, file, part.path)
        return found, own

    def together() -> FileParts:
        return _together(members, shape, describe, guard, 0, looked_up)

    try:
        found: FileParts | None = None
        if catalogue.is_kept:
            with contextlib.suppress(ValueError, LookupError, H5StreamError, UnlikeError):
                found = together()
            if found is None:
                catalogue.forget()
                looked_up.clear()
        found = found or together()
    except UnlikeError:
        return None
    if not catalogue.is_kept and len(members) >= whereabouts.MANY:
        catalogue.save(len(members), max(part.asked for part in found.parts))
    return found, identity


def _together(
    members: Members,
    shape: SampleShape,
    describe: Callable[[int, SampleShape], Described],
    guard: Guard,
    row_start: int,
    looked_up: dict[Key, LookedUp],
) -> FileParts:
    """Return all that have all fields as rows; `describe` opens one of them with every check."""
    first, own = _first_of(members, shape, guard, describe)
    columns, ragged = _columns(members, first, own, shape, guard)
    which = find(members, [*columns.values(), *ragged.values()])
    names = Names.of(members.names[k] for k in which.tolist()) if len(which) < len(members) else members.names
    names = names if isinstance(names, Names) else Names.of(names)
    parts = list[DatasetPart]()
    for number, part in enumerate(first.parts):
        part = replace(part, row_start=row_start, file=part.file if members.file is None else members.file)
        column = columns.get(("part", number))
        if isinstance(column, Lying):
            asked = column.asked if len(members) >= whereabouts.MANY else 0
            part = replace(part, path=inside_of(names[0], column.path), objects=names, asked=asked)
            part = row_of_each(members, which, column, part)
            parts.append(replace(part, targets=_targets(members, which, part, number, shape, describe)))
        elif isinstance(column, EachBytes):
            assert isinstance(members, ObjectsOfFile)
            where = {"file": part.file, "row_start": row_start}
            parts.append(bytes_of_each(members, which, column, **where, targets=part.targets))
        else:  # nothing is read of it
            parts.append(replace(part, rows=len(which), objects=names))
    for key, lying in ragged.items():
        one = shape.fields[key[0]]
        field = SampleShape(kind="dict", keys=(one.name,), fields=(one,))
        known = looked_up.setdefault(key, LookedUp(name=own[key].name, crop=own[key].crop))
        known.entry, known.is_given = own[key].entry, True

        def described(k: int, field: SampleShape = field, known: LookedUp = known) -> DatasetPart:
            (one,) = describe(k, field)[1].values()
            with members.opened(k) as (file, name):
                known.check_alike(one.layouts, f"{file.filename}:{name}" if name else file.filename)
            return replace(one.parts[0].with_fields({one.entry: known.entry}), row_start=0)

        known.add_rows(*known.add_objects(rows_of_each(members, which, lying, described)))
    values = tuple((number, cast(Once, columns["once", number]).values) for number, _ in first.once)
    return replace(first, rows=len(which), parts=tuple(parts), once=values, are_objects=True)


def _first_of(
    members: Members, shape: SampleShape, guard: Guard, describe: Callable[[int, SampleShape], Described]
) -> Described:
    """Open the first that has all fields."""
    lacking: FieldNotFoundError | None = None
    for k in range(len(members)):
        members.first = k
        with members.opened(members.first) as (file, name):
            if lacking and lacks(file, name, shape, file.filename, guard):
                continue
        try:
            return describe(members.first, shape)
        except FieldNotFoundError as error:
            lacking = lacking or error
            if members.missing == "error":
                break
    assert lacking is not None
    if members.missing == "skip":
        raise FieldNotFoundError(f"each of {len(members):,} objects lacks a field: {lacking}", field="")
    raise lacking


def lacks(file: Any, group: str, shape: SampleShape, path: str, guard: Guard) -> bool:
    """Tell whether one has nothing under a field's name; an error's words, of all that is there, take long."""
    for one in shape.inside(group).fields:
        if isinstance(one, Field) and not one.file and one.names is None and not set("@:") & set(one.name):
            guard.check_links(file, one.name, path)
            if not is_there(file, one.name, path):
                return True
    return False


def _columns(
    members: Members, first: FileParts, own: dict[Key, LookedUp], shape: SampleShape, guard: Guard
) -> tuple[dict[tuple[str, int], Column], dict[Key, Lying]]:
    """Return what is looked for in each: by numbers of parts and of values, and of ragged fields by their places."""
    columns, count = dict[tuple[str, int], Column](), len(members)
    named = {entry: f for entry, f in zip(first.entries, shape.fields, strict=True) if type(entry) is int}
    with members.opened(members.first) as (file, name):
        ragged = {key: Lying(_path_in(name, known.parts[0]), count) for key, known in own.items()}
        for number, part in enumerate(first.parts):
            if not part.pieces:
                continue
            path = _path_in(name, part)
            if part.heap is not None and part.objects:
                columns["part", number] = EachBytes(path, count, guard)
            elif part.access in (DIRECT, DECODED) and part.index is not None:
                columns["part", number] = Lying(path, count, asked_of(file, part.path))
            else:
                raise UnlikeError(part.path)
        for number, value in first.once:
            columns["once", number] = Once(named[number], file, name, value, count, guard)
    return columns, ragged


def _path_in(name: str, part: DatasetPart) -> str:
    """Return the path of a dataset inside of what is a sample; one that lies elsewhere is not like the others'."""
    if name and part.path != name and not part.path.startswith(f"{name}/"):
        raise UnlikeError(part.path)
    return part.path[len(name) :].strip("/")


def _targets(
    members: Members,
    which: Ints,
    part: DatasetPart,
    number: int,
    shape: SampleShape,
    describe: Callable[[int, SampleShape], Described],
) -> tuple[Target, ...]:
    """Return what a part fills, with the value that stands for what was never written.

    One of which something was not is opened for it; where none is there, the first one's type says it.
    """
    index = part.chunk_index
    for row in np.flatnonzero(np.bincount(index.numbers // index.columns, minlength=len(which)) < index.columns):
        with contextlib.suppress(FieldNotFoundError):
            lacking = describe(int(which[row]), shape)[0].parts[number]
            if lacking.access != part.access:  # h5py has to read it
                raise UnlikeError(lacking.path)
            return lacking.targets
        with members.opened(members.first) as (file, name):
            element = np.frombuffer(
                fill_of(file[inside_of(name, part.path[len(part.objects[0]) :].strip("/"))].id)[2], np.uint8
            )
        return tuple(
            target if target.leaf is None or not len(element) else replace(target, fill=element[target.leaf.places])
            for target in part.targets
        )
    return part.targets


def _by_address(found: FileParts) -> FileParts:
    """Let rows follow one another as their objects lie in the file, so that neighbours are read together."""
    lead = max(found.parts, key=lambda part: part.stored_row_nbytes)
    index = lead.index
    if not lead.pieces or index is None or not len(index.numbers):
        return found
    chunks = np.arange(found.rows) * index.columns
    stored = np.minimum(np.searchsorted(index.numbers, chunks), len(index.numbers) - 1)
    order = np.argsort(index.offset[stored], kind="stable")
    if (np.diff(order) > 0).all():
        return found
    row = np.empty_like(order)
    row[order] = np.arange(found.rows)
    names = cast(Names, lead.objects).taken(order)
    parts = [_with_rows(part, row, order, names) for part in found.parts]
    return replace(found, parts=tuple(parts), anchors=row)


def _with_rows(part: DatasetPart, row: Ints, by_row: Ints, names: Names) -> DatasetPart:
    """Give each object of a part another row; `by_row` are the objects in turn."""
    if not part.pieces or part.index is None:
        return replace(part, objects=names)
    index, suffix = part.index, part.path[len(part.objects[0]) :]
    of, inner = np.divmod(index.numbers, index.columns)
    numbers = row[of] * index.columns + inner
    is_plain = index.columns == 1 and len(numbers) == len(row)
    order = by_row if is_plain else np.argsort(numbers, kind="stable")
    columns = {name: getattr(index, name)[order] for name in ("offset", "nbytes", "filter_mask")}
    return replace(
        part, path=f"{names[0]}{suffix}", objects=names, index=replace(index, numbers=numbers[order], **columns)
    )
