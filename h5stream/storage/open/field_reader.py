"""The fields of a sample in one file: each by its kind, from datasets, attributes and columns in memory."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Iterator
from dataclasses import replace

import h5py
import numpy as np

from h5stream.base.names import Within, readings
from h5stream.errors import FieldLengthError, H5StreamError, OptionError
from h5stream.samples.columns import Padding, Values, VirtualField
from h5stream.samples.kinds import Objects, Rows, Sequences
from h5stream.samples.ragged import changed
from h5stream.samples.segments import Stretches
from h5stream.samples.space import steps_of
from h5stream.samples.table import Table
from h5stream.storage.decode import elements
from h5stream.storage.decode.columns import ColumnNames
from h5stream.storage.decode.elements import sample_value
from h5stream.storage.file.discovery import (
    PARTS,
    categories_of,
    is_matrix,
)
from h5stream.storage.file.meanings import check_is_number, packing_of
from h5stream.storage.file.stored import OpenFile, part_of
from h5stream.storage.layout.access import DIRECT, HEAP, Heap, Unread
from h5stream.storage.layout.fields import Field, check_options
from h5stream.storage.layout.layout import Entry, FieldLayout, Labels
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.layout.request import SampleShape
from h5stream.storage.open.extents import Extents, SampleKind
from h5stream.storage.open.joining import FileParts
from h5stream.storage.open.lookup_fields import add_lookup, add_matrix, add_ragged, with_columns
from h5stream.storage.open.lookups import Key, LookupBuilder
from h5stream.storage.open.object_fields import (
    add_bytes_of_object,
    add_named_objects,
    add_numbered_objects,
    files_hint,
    not_an_array,
    shape_field,
)
from h5stream.storage.open.rows import (
    PartBuilder,
    add_rows,
    dataset_part,
    entry_of,
    field_error,
    field_of,
    members_of,
    sources_of,
)
from h5stream.storage.source.handles import DAMAGE


def read_fields(
    opened: OpenFile,
    shape: SampleShape,
    group: str = "",
    samples: SampleKind | None = None,
    row_start: int = 0,
    lookups: dict[Key, LookupBuilder] | None = None,
) -> FileParts:
    """Return all fields of a sample in a file, or a group of it; the group's path is left out of their names."""
    lookups = {} if lookups is None else lookups
    builder = PartBuilder(
        opened=opened,
        row_start=row_start,
        samples=samples,
        are_objects=isinstance(samples, Objects),
        sequences=samples if isinstance(samples, (Sequences, Table)) else None,
        extents=None if samples is None else Extents.for_fields(samples, shape.fields),
        lookups=lookups,
    )
    entries, written = list[Entry](), dict[str, str]()
    for place, one in enumerate(shape.fields):
        entries.append(_add_entry(builder, (place, ""), one))
        if isinstance(one, Field) and one.shown != one.name:
            written[one.name] = one.shown

    # The number of rows that all fields have, or that lookups imply if no field has rows.
    counts, extents, chosen = builder.counts, builder.extents, dict[str, int]()
    if extents is None:
        for key, count in counts.of_chosen.items():
            chosen[lookups[key].name] = count
    lengths = counts.of_fields or chosen or counts.of_lookups
    if not lengths and builder.are_objects and builder.constants:
        lengths = {"the object": 1}
    is_cut = isinstance(samples, Sequences) and samples.lengths == "shortest" and extents is None
    if not lengths or (len({*lengths.values()}) > 1 and not is_cut):
        raise _row_count_error(builder, shape, lengths)
    rows = min(lengths.values())

    along = extents.elements if extents else {}
    places = along[0][0] if len(along) == 1 else rows  # or indices of the axis that samples run along
    for lookup in lookups.values():
        lookup.is_alone = not (counts.of_fields or chosen or (builder.stretches and not counts.is_uncertain))
    for lookup, ranges, values, first_row in builder.stretches:
        lookup.add_stretches(ranges, values, places, first_row, repr(opened.path))
    for key, count in counts.of_chosen.items():
        if count != rows:
            lookups[key].check_count(count, places, repr(opened.path))

    fields, parts = list[FieldLayout](), list[DatasetPart]()
    for layout in builder.fields:
        fields.append(replace(layout, name=written.get(layout.name, layout.name.removeprefix(f"{group}/"))))
    for dataset in builder.datasets.values():
        parts.append(dataset_part(builder, *dataset, start=row_start))
    parts += builder.parts
    if is_cut:
        parts = [replace(part, rows=rows) for part in parts]
    return FileParts(
        rows=rows,
        fields=tuple(fields),
        parts=tuple(parts or _placeholder_parts(builder, rows)),
        entries=tuple(entries),
        constants=tuple(builder.constants),
        packed=tuple(builder.packed),
        volume=extents,
    )


def _row_count_error(builder: PartBuilder, shape: SampleShape, lengths: dict[str, int]) -> H5StreamError:
    """Return the error for fields that differ in their number of rows, or that have no rows."""
    path = builder.path
    if not lengths:
        message = f"none of the fields {', '.join(map(repr, shape.keys))} says how many samples there are"
        message += f"; name at least one dataset with an axis of rows{files_hint(builder)}"
        return OptionError(f"{path!r}: {message}")
    listing = ", ".join(f"{name!r} has {rows:,}" for name, rows in lengths.items())
    message = f"{path!r}: the fields of a sample must agree in rows, but {listing}; name fields of one length; "
    message += "Field(..., take='all') is what a file or a group has once, and Sequences(..., lengths='shortest') "
    message += "leaves out rows that some lack"
    if 2 * min(lengths.values()) <= max(lengths.values()):  # such as labels of trials
        message += "; Field(NAME, lookup=IDS) takes row IDS[i] of a label for each trial"
    message += f". `h5stream inspect {shlex.quote(path)}` says what fits together"
    return FieldLengthError(message, file=path)


def _placeholder_parts(builder: PartBuilder, rows: int) -> Iterator[DatasetPart]:
    """Yield a part that fills no field and stands for the rows of samples, if no other part has them."""
    placeholder = min(builder.counts.parts, key=lambda one: one[0])[1] if builder.counts.parts else None
    if builder.counts.dataset is not None:
        source, name = builder.counts.dataset
        node = source.find(name)
        placeholder = part_of(source, source.place(node), node.path)
    elif placeholder is None and builder.are_objects:  # single values alone
        number = builder.opened.number
        placeholder = DatasetPart(
            file=number, path="", rows=1, row_start=0, via=Unread(DIRECT), chunk_rows=1, shape=(1,)
        )
    if placeholder is not None:
        via = Unread(HEAP) if isinstance(placeholder.via, Heap) else placeholder.via
        yield replace(placeholder, row_start=builder.row_start, rows=rows, via=via, pieces=(), targets=(), along=())


# --- entries: one for each field that the user asked for, by its kind


def _add_entry(builder: PartBuilder, key: Key, spec: Field | VirtualField) -> Entry:
    """Add the fields of one entry of a sample; return the number of its field, or a dict of numbers."""
    if not isinstance(spec, Field):
        return _add_column(builder, spec)
    obj, path = _named_object(builder, spec)
    if isinstance(obj, h5py.Group):
        _check_links_inside(builder, spec, path)
        if is_matrix(obj):
            return add_matrix(builder, key, spec, obj, path)
    if isinstance(spec.columns, ColumnNames) and not (spec.file and spec.lookup is not None):
        spec = with_columns(builder, key, spec, next(sources_of(builder, spec)))
    if isinstance(obj, h5py.Group) and (categories := categories_of(obj)) is not None:
        entry = _add_entry(builder, key, changed(spec, name=Within(f"{path}/codes", "")))
        if isinstance(entry, int):
            field = builder.fields[entry]
            labels = replace(field.labels, categories=categories)
            builder.fields[entry] = replace(field, name=spec.name, labels=labels)
        return entry
    if spec.lookup is not None:
        return (add_named_objects if spec.names_objects else add_lookup)(builder, key, spec)
    if spec.is_numbered and builder.opened.means(spec.name) is None:
        return add_numbered_objects(builder, key, spec)
    if builder.opened.is_attribute(spec.name):
        return _add_constant(builder, spec)
    if spec.decode and builder.are_objects:
        return add_bytes_of_object(builder, spec)
    if spec.has_own_shape:
        return _add_arrays(builder, key, spec)
    if spec.ragged is not None and not spec.decode:
        return add_ragged(builder, key, spec)
    if spec.repeat:
        return _add_constant(builder, spec)
    is_shared = spec.name.startswith("/") and not spec.file and isinstance(obj, h5py.Dataset) and obj.shape == ()
    if is_shared or (builder.extents is not None and builder.extents.is_value(obj)):
        return _add_constant(builder, spec)
    return add_rows(builder, spec)


def _named_object(builder: PartBuilder, spec: Field) -> tuple[h5py.HLObject | None, str]:
    """Return the HDF5 object that a field names, and its path; None if the name means no object."""
    if spec.name in ("", "/") or spec.names_objects or isinstance(spec.lookup, Stretches):
        return None, ""
    source = next(sources_of(builder, spec)) if spec.file else builder.opened
    for reading in readings(spec.name):
        with contextlib.suppress(*DAMAGE):
            # `get(getclass=True)` of a damaged object crashes libhdf5; opening it raises.
            if not reading.mark and reading.path:
                obj = source.file[reading.path]
                source.guard.check_links(source.file, reading.path, source.path)
                return obj, reading.path
    return None, ""


def _check_links_inside(builder: PartBuilder, spec: Field, path: str) -> None:
    """Raise if a dataset of a group that may be one field is a link out of the opened files."""
    for source in sources_of(builder, spec):
        for part in PARTS:
            source.guard.check_links(source.file, f"{path}/{part}", source.path)


def _add_arrays(builder: PartBuilder, key: Key, spec: Field) -> Entry:
    """Add a field of arrays whose shape differs from sample to sample, and a field of these shapes."""
    kind = None if builder.extents is None else builder.extents.kind
    takes_points = kind is not None and kind.is_point and isinstance(builder.samples, Rows)
    if not builder.are_objects and not takes_points:
        raise OptionError(f"Field({spec.name!r}, ragged='arrays') is for samples=Objects(...), or Rows(of=...)")
    entry = _add_entry(builder, key, changed(spec, ragged=None))
    is_constant = any(number == entry for number, _ in builder.constants)
    if not isinstance(entry, int) or builder.fields[entry].kind != "array" or is_constant:
        raise not_an_array(builder, spec)
    one = builder.fields[entry]
    builder.fields[entry] = replace(one, shapes=len(builder.fields))
    builder.constants.append((len(builder.fields), np.array(one.row_shape, dtype=np.int64)))
    builder.fields.append(shape_field(one))
    return entry


def _add_column(builder: PartBuilder, column: VirtualField) -> int:
    """Add a field that is not read from a dataset; return its number."""
    if isinstance(column, Padding):
        if builder.sequences is None:
            raise OptionError("Padding() tells what was padded of a sequence, so it needs samples=Sequences(...)")
        steps = steps_of(column.steps, builder.sequences, "Padding()") or ()
        return builder.add(field_of(column.name, bool, (len(steps),)))
    if not isinstance(column, Values):
        return builder.add(field_of(column.name, np.int64))
    return _add_value(builder, column.name, column.values, column.dtype, is_single=False)


def _add_constant(builder: PartBuilder, spec: Field) -> Entry:
    """Add a field that has one value for the whole part: an attribute, or a dataset without an axis of rows."""
    check_options("once" if spec.ragged is None else "attributes", spec, builder.samples, builder.path)
    if spec.ragged is not None:  # type and shape follow once all values are read
        number = builder.add(replace(field_of(spec.name, object), cast=spec.dtype, ragged=spec.ragged))
        builder.constants.append(
            (number, sample_value(elements.value_as_torch_bits(builder.opened.once(spec.name), spec.dtype)))
        )
        return number
    node = builder.opened.find(spec.name) if spec.missing and not builder.opened.is_attribute(spec.name) else None
    if spec.missing and (node is None or builder.are_objects):
        why = ": missing= is for datasets, not for attributes or single values of objects; leave it out, and change the"
        raise field_error(builder.opened, spec, f"{why} batch in batch_transform=", OptionError)
    value, stored = elements.value_as_torch_bits(builder.opened.once(spec.name), spec.dtype), None
    first, dtype = len(builder.fields), elements.compound_of(value)
    for member, kind in members_of(dtype, ()) if dtype is not None else [((), None)]:
        if kind is not None and kind.subdtype is not None and kind.subdtype[0].fields is not None:
            why = "an array of compounds inside a compound has no tensor form"
            raise field_error(builder.opened, spec, f" is a compound, and of its member {':'.join(member)!r}: {why}")
        one = sample_value(elements.member_of(value, member))
        number = _add_value(builder, ":".join((spec.name, *member)), one, spec.dtype)
        builder.constants.append((number, one))
        if isinstance(one, np.ndarray) and one.dtype.kind in "iu":
            stored = builder.opened.once_type(spec.name) if stored is None else stored
            meanings = elements.meanings_of(elements.member_type(stored, member))
            field = builder.fields[number]
            builder.fields[number] = replace(field, labels=replace(field.labels, meanings=meanings))
        if node is not None:
            check_is_number(builder.fields[number])
            named = (*node.member, *member), builder.fields[number].dtype
            builder.packed.append((number, packing_of(node.dataset, *named, spec.missing, builder.path)))
    return first if dtype is None else entry_of(dtype, itertools.count(first))


def _add_value(builder: PartBuilder, name: str, values: object, cast: object, *, is_single: bool = True) -> int:
    """Add a field of values in memory: a single one for all samples, or one for each."""
    if not isinstance(values, np.ndarray):
        return builder.add(replace(field_of(name, object), cast=cast))
    shape, dtype = values.shape if is_single else values.shape[1:], elements.batch_dtype(values.dtype)
    unit = str(values.dtype.newbyteorder("=")) if values.dtype.kind in "mM" else ""
    return builder.add(replace(field_of(name, dtype, shape), cast=cast, labels=Labels(unit=unit)))
