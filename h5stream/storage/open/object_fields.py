"""Fields whose rows are objects: with numbers in their names, named by lookup=, or encoded images."""

from __future__ import annotations

import re
from dataclasses import replace

import h5py
import numpy as np

from h5stream.base.names import Names, Within, quoted, templates
from h5stream.base.texts import counted, did_you_mean
from h5stream.errors import FieldLengthError, FieldNotFoundError, H5StreamError, OptionError
from h5stream.samples.kinds import Objects
from h5stream.samples.ragged import changed
from h5stream.samples.space import steps_of
from h5stream.storage.file.discovery import FieldSource, is_there, refusal, why_not_opened
from h5stream.storage.file.groups import ELSEWHERE, RawFile
from h5stream.storage.file.stored import OpenFile, part_of
from h5stream.storage.layout.access import Chunked, ObjectsAsRows
from h5stream.storage.layout.field_options import Take, not_ragged
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.index import ColumnPiece
from h5stream.storage.layout.layout import Entry, FieldLayout
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.many.members import (
    BytesColumn,
    DatasetColumn,
    MixedStorageError,
    ObjectMembers,
    fill_columns,
    member_path,
    storage_of,
)
from h5stream.storage.many.stacked import concatenated_rows, stacked_bytes, stacked_rows, with_meanings
from h5stream.storage.open.extents import Extents
from h5stream.storage.open.lookup_fields import add_lookup_part, lookup_of
from h5stream.storage.open.lookups import Key, LookupBuilder
from h5stream.storage.open.rows import (
    EntryLayout,
    PartBuilder,
    dataset_with_rows,
    describe_field,
    describe_image,
    field_error,
    field_of,
    read_error,
    sources_of,
)


def add_numbered_objects(builder: PartBuilder, key: Key, spec: Field) -> Entry:
    """Add a field whose rows are objects with numbers in their names."""
    (source,) = sources_of(builder, spec)
    numbers, names = _numbered_objects(spec, source)
    lookup, builder.counts.of_fields[spec.name] = None, 1 if builder.are_objects else len(names)
    if builder.are_objects and spec.ragged is not None and not (spec.decode or spec.has_own_shape):
        lookup = lookup_of(builder, key, spec)
    elif builder.extents is not None or spec.repeat or spec.take.axis not in (None, 0) or spec.take.scale:
        why = ": {} in a name makes objects the rows along axis 0, of Sequences, Rows(of=) or Table, and with ragged="
        raise field_error(source, spec, f"{why} for Objects", OptionError)
    elif spec.ragged is not None and not spec.decode:
        raise not_ragged(spec.name)
    other, others = builder.numbers or ("", numbers)
    if lookup is None and any(a != b for a, b in zip(others, numbers, strict=False)):
        why = f": its objects have other numbers than those of {other!r}; name fields of the same numbers"
        raise field_error(source, spec, why, FieldLengthError)
    builder.numbers = builder.numbers or (spec.name, numbers)
    start = builder.row_start if lookup is None else lookup.rows
    (entry, layouts, _), part = _objects_as_rows(builder, spec, source, names, start)
    builder.fields += layouts
    if lookup is None:
        builder.parts.append(part)
    else:
        lookup.add_part(part, entry, layouts, source.path)
        lookup.add_rows(np.array([part.row_start]), np.array([part.rows]))
        builder.counts.parts.append((1, part))
    return entry


def _numbered_objects(spec: Field, source: OpenFile) -> tuple[list[int], list[Within]]:
    """Return the numbers and names of the objects that match a name with {}, in ascending order of the numbers."""
    for template in templates(spec.name):
        (above, _, stem), (tail, _, below) = template.before.lstrip("/").rpartition("/"), template.behind.partition("/")
        source.guard.check_links(source.file, above, source.path)
        group = source.file.get(above or "/")
        pattern = re.compile(rf"{re.escape(stem)}(\d+){re.escape(tail)}", re.ASCII)
        matches = [pattern.fullmatch(name) for name in group] if isinstance(group, h5py.Group) else []
        if pairs := sorted((int(one[1]), one[0]) for one in matches if one):
            paths = (member_path(member_path(above, name), below) for _, name in pairs)
            return [number for number, _ in pairs], [Within(path.strip("/"), template.rest) for path in paths]
    if "{}" not in spec.name.partition(":")[0]:  # the {} may be in a missing member
        source.find(spec.name)
    why = f": nothing has a name such as {spec.name.replace('{}', '0')!r}; {{}} stands for a whole number, and "
    why += f"{quoted(spec.name, '{')!r} is a name that has {{}} itself."
    raise field_error(source, spec, why, FieldNotFoundError)


def _objects_as_rows(
    builder: PartBuilder, spec: Field, source: OpenFile, named: list[Within], start: int
) -> tuple[EntryLayout, DatasetPart]:
    """Return the entry and the part of objects of one shape, read as rows of one dataset."""
    first, names = source.find(named[0]), [one.literal for one in named]
    if not first.dataset.shape and not spec.decode:
        why = f": {names[0]!r} is a single value, not a row; Objects(...) takes such, else write them as one dataset"
        raise field_error(source, spec, why)

    def describe(node: FieldSource) -> tuple[EntryLayout, DatasetPart]:
        steps = None if spec.ragged is not None else steps_of(spec.take.steps, builder.sequences, spec.name)
        along, shape = Extents.of(Objects("*")).take(node.dataset.shape, changed(spec, take=Take()), source.path)
        entry = describe_field(builder, spec, node, shape if steps is None else (len(steps), *shape), steps)
        return entry, part_of(source, source.place(node), node.path, None, along, entry[-1], row_start=start)

    with RawFile(source.file, source.guard) as raw:
        members = ObjectMembers(raw, Names.of(names, raw.addresses(names)))
        if spec.decode:
            return _image_rows(builder, spec, members, source, start)
        entry, part = describe(first)
        if not isinstance(part.via, Chunked):
            why = f", {part.reason}: rows that are objects are of numbers that h5stream reads without libhdf5"
            raise read_error(source, spec, why, part)
        try:
            column = DatasetColumn("", len(names), storage_of(source.file, names[0]))
            which = fill_columns(members, [column])
            part = replace(part, path=names[0], objects=ObjectsAsRows(members.names))
            part = stacked_rows(members, which, column, part)
        except MixedStorageError as error:
            if raw.behind(str(error)) == ELSEWHERE:
                raise _other_file_error(source, str(error), "a name with {}") from None
            why = f": {str(error)!r} is not stored as {names[0]!r} is, and objects that are rows are stored alike"
            raise field_error(source, spec, why) from None
        lacking = np.bincount(part.chunk_index.numbers // part.chunk_index.columns, minlength=len(names))
        for row in np.flatnonzero(lacking < part.chunk_index.columns)[:1].tolist():
            one = source.find(named[row])
            part = replace(part, targets=describe(one)[1].targets)
        part = with_meanings(part, members, which, column, np.arange(len(which)))
    return entry, part


# --- objects that lookup= names


def add_named_objects(builder: PartBuilder, key: Key, spec: Field) -> Entry:
    """Add a field whose lookup= names an object for each sample."""
    lookup, names = lookup_of(builder, key, spec), spec.lookup
    lookup.is_per_sample = not isinstance(names, str)
    if isinstance(names, str):
        values = np.asarray(builder.opened.numbers(names)).reshape(-1)
        names = [one.decode() if isinstance(one, bytes) else str(one) for one in values.tolist()]
        if builder.extents is None:
            builder.counts.of_fields[spec.lookup] = len(names)
    elif lookup.ranges or lookup.chosen:
        builder.fields += lookup.layouts
        return lookup.entry
    unknown = [name for name in dict.fromkeys(names) if name not in lookup.objects]
    for source in sources_of(builder, spec):
        unknown = _add_objects_of_file(builder, lookup, spec, source, unknown)
    if unknown:
        raise _missing_objects_error(builder, spec, unknown, len(set(names)), source)
    if not lookup.parts:
        why = "so that nothing says what the field holds; leave out this file, or begin with one that has samples"
        raise field_error(builder.opened, spec, f": lookup= names no object, {why}", FieldLengthError)
    builder.fields += lookup.layouts
    builder.counts.parts.append((1, lookup.parts[0]))
    rows = np.array([lookup.objects[name] for name in names], dtype=np.int64).reshape(-1, 2)
    if spec.decode or spec.has_own_shape:  # an object is one row
        lookup.chosen.append(rows[:, 0])
    else:
        lookup.add_rows(*rows.T)
    builder.counts.of_lookups = builder.counts.of_lookups or {lookup.name: len(names)}
    return lookup.entry


def _add_objects_of_file(
    builder: PartBuilder, lookup: LookupBuilder, spec: Field, source: OpenFile, names: list[str]
) -> list[str]:
    """Add the named objects that a file has; return the names that it lacks."""
    with RawFile(source.file, source.guard) as raw:
        for template in templates(spec.name):
            paths = [template.put(name) for name in names]
            addresses = raw.addresses([one.literal for one in paths])
            is_here = addresses >= 0
            present = [(names[k], paths[k]) for k in np.flatnonzero(is_here).tolist()]
            members = ObjectMembers(raw, Names.of((one.literal for _, one in present), addresses[is_here]))
            if present:
                _add_members(builder, lookup, spec, source, present, members)
            for k in np.flatnonzero(addresses == ELSEWHERE).tolist():
                if is_there(source.file, paths[k].literal, source.path):
                    _add_linked_object(builder, lookup, spec, source, names[k], paths[k])
                    is_here[k] = True
            names = [names[k] for k in np.flatnonzero(~is_here).tolist()]
    return names


def _add_linked_object(
    builder: PartBuilder, lookup: LookupBuilder, spec: Field, source: OpenFile, name: str, path: Within
) -> None:
    """Add an object of another file that a link leads to."""
    if spec.decode:
        raise _other_file_error(source, path, "decode=")
    if spec.has_own_shape:
        lookup.objects[name] = _add_object_array(builder, lookup, spec, source, path), 1
        return
    add_lookup_part(builder, lookup, spec, source, dataset_with_rows(source, path))
    lookup.objects[name] = lookup.parts[-1].row_start, lookup.parts[-1].rows


def _add_members(
    builder: PartBuilder,
    lookup: LookupBuilder,
    spec: Field,
    source: OpenFile,
    objects: list[tuple[str, Within]],
    members: ObjectMembers,
) -> None:
    """Add objects of a file; `objects` has the name of each in lookup=, and its path."""

    def describe(k: int) -> DatasetPart:
        add_lookup_part(builder, lookup, spec, source, dataset_with_rows(source, objects[k][1]))
        return replace(lookup.parts.pop(), row_start=0)

    if spec.decode:
        if (member := next((one for _, one in objects if one != one.literal), None)) is not None:
            why = f": {member!r} is a member of a compound, and decode= takes objects that are bytes themselves"
            raise field_error(source, spec, why)
        (entry, layouts, _), part = _image_rows(builder, spec, members, source, lookup.rows)
        lookup.objects |= {name: (lookup.rows + row, 1) for row, (name, _) in enumerate(objects)}
        lookup.add_part(part, entry, layouts, source.path)
    elif spec.has_own_shape:
        for name, one in objects:
            lookup.objects[name] = _add_object_array(builder, lookup, spec, source, one), 1
    else:
        column = DatasetColumn("", len(objects))
        parts, begins = concatenated_rows(members, fill_columns(members, [column]), column, describe, lookup.rows)
        lookup.parts += parts
        rows = zip(begins.tolist(), column.rows.tolist(), strict=True)
        lookup.objects |= dict(zip((name for name, _ in objects), rows, strict=True))


def _add_object_array(builder: PartBuilder, lookup: LookupBuilder, spec: Field, source: OpenFile, name: str) -> int:
    """Add an object of any shape as one row of a lookup; return the row's number."""
    node, plain = dataset_with_rows(source, name), changed(spec, ragged=None)
    along, shape = Extents.of(Objects("*")).take(node.dataset.shape, changed(plain, name=name), source.path)
    entry, layouts, targets = describe_field(builder, plain, node, (1,) * len(shape))
    if not isinstance(entry, int) or layouts[0].kind != "array":
        raise not_an_array(builder, spec)
    if lookup.shapes and len(shape) != len(lookup.shapes[0]):
        why = f": {name!r} has {counted(len(shape), 'axis', 'axes')}, and another object {len(lookup.shapes[0])}; "
        why += "ragged='arrays' takes one"
        raise field_error(source, spec, why, FieldLengthError)
    part = part_of(source, source.place(node), name, None, along, targets, row_start=lookup.rows)
    count = int(np.prod(part.shape, dtype=object))
    whole = ColumnPiece(number=0, row_elements=count, segments=np.array([[0, 0, count]]))
    layouts = [replace(layouts[0], shapes=entry + 1), shape_field(layouts[0])]
    lookup.add_part(replace(part, rows=1, chunk_rows=1, pieces=(whole,)), entry, layouts, source.path)
    lookup.shapes.append(shape)
    return len(lookup.shapes) - 1


def _missing_objects_error(
    builder: PartBuilder, spec: Field, unknown: list[str], count: int, last: OpenFile
) -> H5StreamError:
    """Return the error for names without an object; raises another if the object exists and is damaged."""
    path = next(templates(spec.name)).put(unknown[0])
    why_not_opened(last.file, path.strip("/"), last.path)  # raises if it exists and is damaged
    above, _, below = spec.name.rpartition("{}")
    group = last.file.get(above.rpartition("/")[0] or "/") if not below else None
    hint = did_you_mean(unknown[0].strip(), group) if isinstance(group, h5py.Group) else ""
    if spec.name.strip("/") in last.file:  # elsewhere, a name that exists is taken literally
        hint = f" {quoted(spec.name, '{')!r} is the name that has {{}} itself."
    why = f": there is no {path!r}, which lookup= has.{hint} {len(unknown):,} of {count:,} names are of nothing that "
    why += f"is there{files_hint(builder, spec.file)}. Leave out samples without an object: H5Dataset(...).subset()"
    return refusal(last.path, spec.name, why, FieldNotFoundError)


def files_hint(builder: PartBuilder, named: tuple[str, ...] = ()) -> str:
    """Return a hint on lookup= in memory if the source is several files; else empty."""
    if named or builder.opened.files.named == 1:
        return ""
    hint = ". What lookup= has in memory is looked up in the first file of the source: give that alone, and all files"
    return f"{hint} as Field(..., file=[...]), or a list of an H5Dataset for each file"


# --- arrays of any shape, and images


def shape_field(one: FieldLayout) -> FieldLayout:
    """Return the field that holds the shapes of a field of arrays of any shape."""
    return field_of(f"shape of {one.name}", np.int64, (len(one.row_shape),))


def not_an_array(builder: PartBuilder, spec: Field) -> H5StreamError:
    """Return the error for a field with ragged='arrays' that is not of numbers along axes."""
    why = "takes numbers along axes, and no compounds, strings or single values; name a member, or leave it out"
    return field_error(builder.opened, spec, f": ragged='arrays' {why}")


def add_bytes_of_object(builder: PartBuilder, spec: Field) -> Entry:
    """Add a field of encoded images, each a dataset of bytes in its object."""
    opened = builder.opened
    with RawFile(opened.file, opened.guard) as raw:
        members = ObjectMembers(raw, [opened.find(spec.name).path])
        (entry, layouts, _), part = _image_rows(builder, spec, members, opened, builder.row_start)
    builder.parts.append(part)
    builder.fields += layouts
    builder.counts.of_fields[spec.name] = 1
    return entry


def _image_rows(
    builder: PartBuilder, spec: Field, members: ObjectMembers, source: OpenFile, start: int
) -> tuple[EntryLayout, DatasetPart]:
    """Return the entry and the part of objects that are encoded images, read as rows."""
    entry, column = describe_image(builder, spec, None), BytesColumn("", len(members.names), source.guard)
    try:
        which = fill_columns(members, [column])
    except MixedStorageError as error:
        raise _other_file_error(source, str(error), "decode=") from None
    return entry, stacked_bytes(members, which, column, file=source.number, row_start=start, targets=entry[-1])


def _other_file_error(source: OpenFile, name: str, what: str) -> H5StreamError:
    """Return the error for an object that is a link to another file."""
    other = source.file[name].file.filename
    why = f": {name!r} is in another file, {other!r}, and {what} takes objects of the file itself; name that file"
    return refusal(source.path, name, f"{why} as the source, or as Field(..., file=)")
