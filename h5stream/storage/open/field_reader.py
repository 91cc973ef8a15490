"""The fields of a sample in one file: resolves names to datasets, members of compounds and columns in memory."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from h5stream.base.names import Names, Within, parted, quoted, readings, templates
from h5stream.base.texts import did_you_mean
from h5stream.errors import (
    CorruptChunkError,
    FieldLengthError,
    FieldNotFoundError,
    H5StreamError,
    OptionError,
    UnsupportedFieldError,
)
from h5stream.samples.columns import Padding, Values, VirtualField
from h5stream.samples.kinds import Objects, Rows, Sequences
from h5stream.samples.packing import Packing
from h5stream.samples.ragged import DENSE, STACKED, Ragged, changed
from h5stream.samples.segments import Between, Bounds, RowLists, Stretches, in_memory, row_lists, samples_bounded
from h5stream.samples.space import Along, Steps, steps_of
from h5stream.samples.table import Table
from h5stream.storage.decode import elements
from h5stream.storage.decode.columns import ColumnNames, ColumnPiece, axes_taken, selected_shape
from h5stream.storage.decode.elements import dtype_of, sample_value
from h5stream.storage.decode.images import Images
from h5stream.storage.decode.small_floats import shown, widened_dtype
from h5stream.storage.file.discovery import (
    PARTS,
    FieldSource,
    categories_of,
    is_matrix,
    is_there,
    object_at,
    refusal,
    region_rows,
    shape_of,
    why_not_opened,
)
from h5stream.storage.file.groups import ELSEWHERE, RawFile
from h5stream.storage.file.meanings import check_is_number, meaning_of, packing_of
from h5stream.storage.file.stored import Location, OpenFile, part_moved, part_of
from h5stream.storage.layout.axis_names import AxisNames, axis_names, chosen_by_name, moved, unlike_names
from h5stream.storage.layout.field_options import Take, not_ragged
from h5stream.storage.layout.fields import Field, check_options, columns_wanted
from h5stream.storage.layout.layout import DECODED, DIRECT, VIA_H5PY, DatasetPart, FieldLayout, SparseEntry, Target
from h5stream.storage.layout.request import SampleShape
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
from h5stream.storage.open.extents import Extents, SampleKind
from h5stream.storage.open.joining import FileParts
from h5stream.storage.open.lookups import Key, LookupBuilder, LookupInMemory, snapshot, width_mismatch
from h5stream.storage.source.handles import DAMAGE

EntryLayout = tuple[Any, list[FieldLayout], list[Target]]
"""An entry of a sample: the number of its field, or a dict of numbers for a compound; its fields; their targets."""


@dataclass(slots=True)
class _PartBuilder:
    """Collects the fields of a sample in one open file, or in a group of it."""

    opened: OpenFile
    row_start: int
    samples: SampleKind | None
    extents: Extents | None
    lookups: dict[Key, LookupBuilder]
    fields: list[FieldLayout] = field(default_factory=list)
    constants: list[tuple[int, object]] = field(default_factory=list)  # as in `FileParts`
    packed: list[tuple[int, Packing]] = field(default_factory=list)  # as in `FileParts`
    lengths: dict[str, int] = field(default_factory=dict)  # rows by field name
    lookup_counts: dict[str, int] = field(default_factory=dict)  # the same from lookups, used if no field has rows
    # ragged fields: the ranges of their rows, the values of these, and the first row of this part
    stretches: list[tuple[LookupBuilder, Stretches | RowLists, list[Any], int]] = field(default_factory=list)
    chosen_counts: dict[Key, int] = field(default_factory=dict)  # the number of row numbers that a dataset holds
    is_uncertain: bool = False  # whether `lookup_counts` is from bounds that may be one more than the samples
    numbers: tuple[str, list[int]] | None = None  # the first field with {} in its name, and the numbers of its objects
    rows_dataset: tuple[OpenFile, str] | None = None  # the dataset that defines samples' rows: its file and name
    # datasets with rows for each sample, by what is read of them, with all fields that they fill
    datasets: dict[tuple[object, ...], tuple[Location, Field, tuple[Along, ...], list[Target]]] = field(
        default_factory=dict
    )
    parts: list[DatasetPart] = field(default_factory=list)  # parts that are complete: objects as rows
    # parts that stand for the rows if no dataset has one a sample, with their priority; the first of the lowest wins
    row_sources: list[tuple[int, DatasetPart]] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.opened.path

    @property
    def are_objects(self) -> bool:
        return isinstance(self.samples, Objects)

    @property
    def sequences(self) -> Sequences | Table | None:
        return self.samples if isinstance(self.samples, (Sequences, Table)) else None

    @property
    def cuts(self) -> bool:
        """Whether fields are cut to the rows of the shortest."""
        samples = self.samples
        return isinstance(samples, Sequences) and samples.lengths == "shortest" and self.extents is None

    @property
    def counts(self) -> dict[str, int]:
        """The number of samples according to each dataset that holds a row number for each."""
        return {self.lookups[key].name: count for key, count in self.chosen_counts.items() if self.extents is None}

    def add(self, layout: FieldLayout) -> int:
        """Add a field that is not read from a dataset; return its number."""
        self.fields.append(layout)
        return len(self.fields) - 1


def _field(name: str, dtype: DTypeLike, row_shape: tuple[int, ...] = (), **layout: Any) -> FieldLayout:
    kind = "object" if dtype is object else "array"
    return FieldLayout(name=name, kind=kind, dtype=np.dtype(dtype), row_shape=row_shape, **layout)


def read_fields(
    opened: OpenFile,
    shape: SampleShape,
    group: str = "",
    samples: SampleKind | None = None,
    row_start: int = 0,
    lookups: dict[Key, LookupBuilder] | None = None,
) -> FileParts:
    """Return all fields of a sample in a file, or a group of it; the group's path is left out of their names."""
    extents = Extents.for_fields(samples, shape.fields)
    builder = _PartBuilder(opened, row_start, samples, extents, {} if lookups is None else lookups)
    entries = tuple(_add_entry(builder, (place, ""), one) for place, one in enumerate(shape.fields))
    rows = _row_count(builder, shape)
    along = builder.extents.elements if builder.extents else {}
    places = along[0][0] if len(along) == 1 else rows  # or indices of the axis that samples run along
    for lookup in builder.lookups.values():
        lookup.is_alone = not (builder.lengths or builder.counts or (builder.stretches and not builder.is_uncertain))
    for lookup, ranges, values, first in builder.stretches:
        lookup.add_stretches(ranges, values, places, first, repr(builder.path))
    for key, count in builder.chosen_counts.items():
        if count != rows:
            builder.lookups[key].check_count(count, places, repr(builder.path))
    parts = [_dataset_part(builder, *dataset, start=row_start) for dataset in builder.datasets.values()]
    parts += builder.parts
    if builder.cuts:
        parts = [replace(part, rows=rows) for part in parts]
    shown = {one.name: one.shown for one in shape.fields if isinstance(one, Field) and one.shown != one.name}
    return FileParts(
        rows=rows,
        fields=tuple(
            replace(one, name=shown.get(one.name, one.name.removeprefix(f"{group}/"))) for one in builder.fields
        ),
        parts=tuple(parts or _placeholder_parts(builder, rows)),
        entries=entries,
        constants=tuple(builder.constants),
        packed=tuple(builder.packed),
        volume=extents,
    )


def _row_count(builder: _PartBuilder, shape: SampleShape) -> int:
    """Return the number of rows that all fields have, or that lookups imply if no field has rows."""
    lengths = builder.lengths or builder.counts or builder.lookup_counts
    lengths = lengths or ({"the object": 1} if builder.are_objects and builder.constants else {})
    if not lengths:
        message = f"none of the fields {', '.join(map(repr, shape.keys))} says how many samples there are"
        raise OptionError(
            f"{builder.path!r}: {message}; name at least one dataset with an axis of rows{_files_hint(builder)}"
        )
    if len(set(lengths.values())) > 1 and not builder.cuts:
        listing = ", ".join(f"{name!r} has {rows:,}" for name, rows in lengths.items())
        message = (
            f"{builder.path!r}: the fields of a sample must agree in rows, but {listing}; name fields of one length; "
        )
        message += "Field(..., take='all') is what a file or a group has once, and Sequences(..., lengths='shortest') "
        message += (
            f"leaves out rows that some lack. `h5stream inspect {shlex.quote(builder.path)}` says what fits together"
        )
        raise FieldLengthError(message, file=builder.path)
    return min(lengths.values())


def _files_hint(builder: _PartBuilder, named: tuple[str, ...] = ()) -> str:
    """Return a hint on lookup= in memory if the source is several files; else empty."""
    if named or builder.opened.files.named == 1:
        return ""
    hint = ". What lookup= has in memory is looked up in the first file of the source: give that alone, and all files"
    return f"{hint} as Field(..., file=[...]), or a list of an H5Dataset for each file"


def _placeholder_parts(builder: _PartBuilder, rows: int) -> Iterator[DatasetPart]:
    """Yield a part that fills no field and stands for the rows of samples, if no other part has them."""
    placeholder = min(builder.row_sources, key=lambda one: one[0])[1] if builder.row_sources else None
    if builder.rows_dataset is not None:
        source, name = builder.rows_dataset
        node = source.find(name)
        placeholder = part_of(source, source.place(node), node.path)
    elif placeholder is None and builder.are_objects:  # single values alone
        why, number = "nothing is read of it", builder.opened.number
        placeholder = DatasetPart(
            file=number, path="", rows=1, row_start=0, access=DIRECT, reason=why, chunk_rows=1, shape=(1,)
        )
    if placeholder is not None:
        yield replace(placeholder, row_start=builder.row_start, rows=rows, pieces=(), targets=(), heap=None, along=())


# --- entries: one for each field that the user asked for, by its kind


def _add_entry(builder: _PartBuilder, key: Key, spec: Field | VirtualField) -> Any:
    """Add the fields of one entry of a sample; return the number of its field, or a dict of numbers."""
    if not isinstance(spec, Field):
        return _add_column(builder, spec)
    obj, path = _named_object(builder, spec)
    if isinstance(obj, h5py.Group):
        _check_links_inside(builder, spec, path)
    if is_matrix(obj):
        return _add_matrix(builder, key, spec, obj, path)
    if isinstance(spec.columns, ColumnNames) and not (spec.file and spec.lookup is not None):
        spec = _with_columns(builder, key, spec, next(_sources(builder, spec)))
    if (categories := categories_of(obj)) is not None:
        entry = _add_entry(builder, key, changed(spec, name=Within(f"{path}/codes", "")))
        builder.fields[entry] = replace(builder.fields[entry], name=spec.name, categories=categories)
        return entry
    if spec.lookup is not None:
        return (_add_named_objects if spec.names_objects else _add_lookup)(builder, key, spec)
    if spec.is_numbered and builder.opened.means(spec.name) is None:
        return _add_numbered_objects(builder, key, spec)
    if builder.opened.is_attribute(spec.name):
        return _add_constant(builder, spec)
    if spec.decode and builder.are_objects:
        return _add_bytes_of_object(builder, spec)
    if spec.has_own_shape:
        return _add_arrays(builder, key, spec)
    if spec.ragged is not None and not spec.decode:
        return _add_ragged(builder, key, spec)
    if spec.repeat:
        return _add_constant(builder, spec)
    is_shared = spec.name.startswith("/") and not spec.file and isinstance(obj, h5py.Dataset) and obj.shape == ()
    if is_shared or (builder.extents is not None and builder.extents.is_value(obj)):
        return _add_constant(builder, spec)
    return _add_rows(builder, spec)


def _with_columns(builder: _PartBuilder, key: Key, spec: Field, source: OpenFile, width: int = 0) -> Field:
    """Return a field with its columns= of names resolved to numbers; `width` is the columns of a sparse matrix."""
    wanted = spec.columns
    if not isinstance(wanted, ColumnNames):
        return spec
    if wanted.by_place:
        return changed(spec, columns=(Ellipsis,))
    node = None if width or spec.names_objects or spec.is_numbered else source.find(spec.name)
    if not width and wanted.names and (node is None or _inner_dtype(node).names):  # they are members of a compound
        return changed(spec, columns=None, members=wanted.names)
    if spec.has_own_shape:
        why = ": ragged='arrays' takes whole arrays, and columns= names columns; the members of a compound can be named"
        raise _field_error(source, spec, why, OptionError)
    axes = axis_names(source.file, spec.name.strip("/") if node is None else node.path, source.identity, width)
    labels = [one for one in axes if one.axis == 1]
    if not labels:
        why = ": columns= names columns, and the file has no names of them, as the index of var is in AnnData, or a "
        raise _field_error(source, spec, f"{why}dimension scale of texts; columns=[0, 1] takes numbers", OptionError)
    names = [*map(str, labels[0].read().tolist())]
    first, _ = builder.opened.files.columns.setdefault((key[0], "names"), (names, np.zeros(0, np.int32)))
    try:
        numbers = chosen_by_name(wanted, names, first)
    except OptionError as error:
        raise _field_error(source, spec, f": {error}", OptionError) from None
    axes_before = 0 if node is None else _axes_before_columns(builder, spec, source, node.dataset.shape)
    return changed(spec, columns=(*[slice(None)] * axes_before, numbers) if axes_before else numbers)


def _axes_before_columns(builder: _PartBuilder, spec: Field, source: OpenFile, shape: tuple[int, ...]) -> int:
    """Return the number of a sample's axes before the named columns, which are axis 1 of the dataset."""
    if builder.extents is None or spec.lookup is not None or (builder.are_objects and spec.ragged is not None):
        return 0
    along, _ = Extents.of(builder.extents.samples).take(shape, changed(spec, columns=None), source.path)
    kept = [axis for axis, one in enumerate(along) if one.origin is None]
    if 1 not in kept:
        why = ": columns= names columns, which are along axis 1 of the dataset, and so are the samples here; leave it "
        raise _field_error(source, spec, f"{why}out, or take of the other axes by numbers, columns=[0, 1]", OptionError)
    return kept.index(1)


def _named_axes(
    builder: _PartBuilder, spec: Field, node: FieldSource, source: OpenFile, along: tuple[Along, ...]
) -> tuple[AxisNames, ...]:
    """Return the names of the columns that a field takes; empty for objects, and for columns taken by position."""
    if builder.are_objects or spec.columns == (Ellipsis,) or node.member or len(node.dataset.shape) < 2:
        return ()
    named = axis_names(source.file, node.path, source.identity, first=0 if along else 1)
    if along:
        return tuple(
            replace(one, taken=tuple(along[one.axis].offsets)) for one in named if along[one.axis].origin is None
        )
    if spec.columns is None or not named:
        return named
    taken = [tuple(numbers.tolist()) for numbers, _ in axes_taken(node.dataset.shape[1:], spec.columns)]
    return tuple(replace(one, taken=taken[one.axis - 1]) for one in named)


def _add_rows(builder: _PartBuilder, spec: Field) -> Any:
    """Add a field that has a row, several rows, or a part of a volume for each sample."""
    (source,) = _sources(builder, spec)
    node = _dataset_with_rows(source, spec.name)
    name = spec.name if not spec.file else f"{spec.name} of {source.path}"
    builder.lengths[name] = node.dataset.shape[0] if builder.extents is None else 1
    place, at = source.place(node), _origin_column(builder, spec)
    along: tuple[Along, ...] = ()
    steps, columns = None, ""
    if builder.extents is None:
        (shape, steps), columns = _row_selection(builder, node, spec), repr(spec.columns)
    else:
        along, shape = builder.extents.take(node.dataset.shape, spec, source.path)
    entry, layouts, targets = _describe(builder, spec, node, shape, steps)
    if len(layouts) == 1:
        layouts = [replace(layouts[0], axes=_named_axes(builder, spec, node, source, along))]
    builder.fields += layouts
    for target, layout in zip(targets, layouts, strict=True):
        # Values of variable length are stored in the heap, separately for each member.
        apart = target.field if layout.dtype.kind == "O" else None
        key = (place.number, node.path, apart, columns, steps, at, spec.take.pad, along, spec.decode, spec.length)
        builder.datasets.setdefault(key, (place, spec, along, []))[-1].append(target)
    return entry


def _add_numbered_objects(builder: _PartBuilder, key: Key, spec: Field) -> Any:
    """Add a field whose rows are objects with numbers in their names."""
    (source,) = _sources(builder, spec)
    numbers, names = _numbered_objects(spec, source)
    lookup, builder.lengths[spec.name] = None, 1 if builder.are_objects else len(names)
    if builder.are_objects and spec.ragged is not None and not (spec.decode or spec.has_own_shape):
        lookup = _lookup_of(builder, key, spec)
    elif builder.extents is not None or spec.repeat or spec.take.axis not in (None, 0) or spec.take.scale:
        why = ": {} in a name makes objects the rows along axis 0, of Sequences, Rows(of=) or Table, and with ragged="
        raise _field_error(source, spec, f"{why} for Objects", OptionError)
    elif spec.ragged is not None and not spec.decode:
        raise not_ragged(spec.name)
    other, others = builder.numbers or ("", numbers)
    if lookup is None and any(a != b for a, b in zip(others, numbers, strict=False)):
        why = f": its objects have other numbers than those of {other!r}; name fields of the same numbers"
        raise _field_error(source, spec, why, FieldLengthError)
    builder.numbers = builder.numbers or (spec.name, numbers)
    start = builder.row_start if lookup is None else lookup.rows
    (entry, layouts, _), part = _objects_as_rows(builder, spec, source, names, start)
    builder.fields += layouts
    if lookup is None:
        builder.parts.append(part)
    else:
        lookup.add_part(part, entry, layouts, source.path)
        lookup.add_rows(np.array([part.row_start]), np.array([part.rows]))
        builder.row_sources.append((1, part))
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
    raise _field_error(source, spec, why, FieldNotFoundError)


def _objects_as_rows(
    builder: _PartBuilder, spec: Field, source: OpenFile, named: list[Within], start: int
) -> tuple[EntryLayout, DatasetPart]:
    """Return the entry and the part of objects of one shape, read as rows of one dataset."""
    first, names = source.find(named[0]), [one.literal for one in named]
    if not first.dataset.shape and not spec.decode:
        why = f": {names[0]!r} is a single value, not a row; Objects(...) takes such, else write them as one dataset"
        raise _field_error(source, spec, why)

    def describe(node: FieldSource) -> tuple[EntryLayout, DatasetPart]:
        steps = None if spec.ragged is not None else steps_of(spec.take.steps, builder.sequences, spec.name)
        along, shape = Extents.of(Objects("*")).take(node.dataset.shape, changed(spec, take=Take()), source.path)
        entry = _describe(builder, spec, node, shape if steps is None else (len(steps), *shape), steps)
        return entry, part_of(source, source.place(node), node.path, None, along, entry[-1], row_start=start)

    with RawFile(source.file, source.guard) as raw:
        members = ObjectMembers(raw, Names.of(names, raw.addresses(names)))
        if spec.decode:
            return _image_rows(builder, spec, members, source, start)
        entry, part = describe(first)
        if part.access not in (DIRECT, DECODED):
            why = f", {part.reason}: rows that are objects are of numbers that h5stream reads without libhdf5"
            raise _read_error(source, spec, why, part)
        try:
            column = DatasetColumn("", len(names), storage_of(source.file, names[0]))
            which = fill_columns(members, [column])
            part = stacked_rows(members, which, column, replace(part, path=names[0], objects=members.names))
        except MixedStorageError as error:
            if raw.behind(str(error)) == ELSEWHERE:
                raise _other_file_error(source, str(error), "a name with {}") from None
            why = f": {str(error)!r} is not stored as {names[0]!r} is, and objects that are rows are stored alike"
            raise _field_error(source, spec, why) from None
        lacking = np.bincount(part.chunk_index.numbers // part.chunk_index.columns, minlength=len(names))
        for row in np.flatnonzero(lacking < part.chunk_index.columns)[:1].tolist():
            one = source.find(named[row])
            part = replace(part, targets=describe(one)[1].targets)
        part = with_meanings(part, members, which, column, np.arange(len(which)))
    return entry, part


def _add_arrays(builder: _PartBuilder, key: Key, spec: Field) -> Any:
    """Add a field of arrays whose shape differs from sample to sample, and a field of these shapes."""
    kind = None if builder.extents is None else builder.extents.kind
    takes_points = kind is not None and kind.is_point and isinstance(builder.samples, Rows)
    if not builder.are_objects and not takes_points:
        raise OptionError(f"Field({spec.name!r}, ragged='arrays') is for samples=Objects(...), or Rows(of=...)")
    entry = _add_entry(builder, key, changed(spec, ragged=None))
    is_constant = any(number == entry for number, _ in builder.constants)
    if not isinstance(entry, int) or builder.fields[entry].kind != "array" or is_constant:
        raise _not_an_array(builder, spec)
    one = builder.fields[entry]
    builder.fields[entry] = replace(one, shapes=len(builder.fields))
    builder.constants.append((len(builder.fields), np.array(one.row_shape, dtype=np.int64)))
    builder.fields.append(_shape_field(one))
    return entry


def _shape_field(one: FieldLayout) -> FieldLayout:
    """Return the field that holds the shapes of a field of arrays of any shape."""
    return _field(f"shape of {one.name}", np.int64, (len(one.row_shape),))


def _not_an_array(builder: _PartBuilder, spec: Field) -> H5StreamError:
    why = "takes numbers along axes, and no compounds, strings or single values; name a member, or leave it out"
    return _field_error(builder.opened, spec, f": ragged='arrays' {why}")


def _add_column(builder: _PartBuilder, column: VirtualField) -> int:
    """Add a field that is not read from a dataset; return its number."""
    if isinstance(column, Padding):
        if builder.sequences is None:
            raise OptionError("Padding() tells what was padded of a sequence, so it needs samples=Sequences(...)")
        steps = steps_of(column.steps, builder.sequences, "Padding()") or ()
        return builder.add(_field(column.name, bool, (len(steps),)))
    if not isinstance(column, Values):
        return builder.add(_field(column.name, np.int64))
    return _add_value(builder, column.name, column.values, column.dtype, is_single=False)


def _add_constant(builder: _PartBuilder, spec: Field) -> Any:
    """Add a field that has one value for the whole part: an attribute, or a dataset without an axis of rows."""
    check_options("once" if spec.ragged is None else "attributes", spec, builder.samples, builder.path)
    if spec.ragged is not None:  # type and shape follow once all values are read
        number = builder.add(_field(spec.name, object, cast=spec.dtype, ragged=spec.ragged))
        builder.constants.append(
            (number, sample_value(elements.value_as_torch_bits(builder.opened.once(spec.name), spec.dtype)))
        )
        return number
    node = builder.opened.find(spec.name) if spec.missing and not builder.opened.is_attribute(spec.name) else None
    if spec.missing and (node is None or builder.are_objects):
        why = ": missing= is for datasets, not for attributes or single values of objects; leave it out, and change the"
        raise _field_error(builder.opened, spec, f"{why} batch in batch_transform=", OptionError)
    value, stored = elements.value_as_torch_bits(builder.opened.once(spec.name), spec.dtype), None
    first, dtype = len(builder.fields), elements.compound_of(value)
    for member, kind in _leaves_of(dtype, ()) if dtype is not None else [((), None)]:
        if kind is not None and kind.subdtype is not None and kind.subdtype[0].fields is not None:
            why = "an array of compounds inside a compound has no tensor form"
            raise _field_error(builder.opened, spec, f" is a compound, and of its member {':'.join(member)!r}: {why}")
        one = sample_value(elements.member_of(value, member))
        number = _add_value(builder, ":".join((spec.name, *member)), one, spec.dtype)
        builder.constants.append((number, one))
        if isinstance(one, np.ndarray) and one.dtype.kind in "iu":
            stored = builder.opened.once_type(spec.name) if stored is None else stored
            meanings = elements.meanings_of(elements.member_type(stored, member))
            builder.fields[number] = replace(builder.fields[number], meanings=meanings)
        if node is not None:
            check_is_number(builder.fields[number])
            named = (*node.member, *member), builder.fields[number].dtype
            builder.packed.append((number, packing_of(node.dataset, *named, spec.missing, builder.path)))
    return first if dtype is None else _entry_of(dtype, itertools.count(first))


def _add_value(builder: _PartBuilder, name: str, values: Any, cast: Any, *, is_single: bool = True) -> int:
    """Add a field of values in memory: a single one for all samples, or one for each."""
    if not isinstance(values, np.ndarray):
        return builder.add(_field(name, object, cast=cast))
    shape, dtype = values.shape if is_single else values.shape[1:], elements.batch_dtype(values.dtype)
    return builder.add(_field(name, dtype, shape, cast=cast, unit=_time_unit(values.dtype)))


def _add_matrix(builder: _PartBuilder, key: Key, spec: Field, group: h5py.Group, path: str) -> SparseEntry:
    """Add a sparse matrix: a field of its values, and one of their columns."""
    check_options("sparse", spec, builder.samples, builder.path)
    name, why = spec.name.strip("/"), ""
    data, indices, indptr = (Within(f"{path}/{part}", "") for part in ("data", "indices", "indptr"))
    form = None if spec.ragged is None else spec.ragged.form
    if builder.are_objects:
        why = "whose rows are samples: samples=Rows(of=...) takes those of many groups"
    elif form != DENSE and (form != "packed" or not isinstance(spec.columns, ColumnNames | None)):
        why = f"so write Field({spec.name!r}, ragged='dense'), rows of which columns= takes some, or ragged='packed'"
    if why:
        raise _field_error(builder.opened, spec, f" is a sparse matrix, {why}")
    is_dense, is_named = form == DENSE, isinstance(spec.columns, ColumnNames) and not spec.columns.by_place
    sources = [(source, shape_of(source.file[path], name, source.path)[1]) for source in _sources(builder, spec)]
    width, moves, axes = sources[0][1], list[NDArray[np.int64] | None](), tuple[AxisNames, ...]()
    places = columns_wanted(_with_columns(builder, key, spec, *sources[0]), width) if is_dense or is_named else None
    if is_named:
        places, moves = _aligned_columns(builder, key, spec, sources, is_dense=is_dense)
        width = len(places)
    if not (isinstance(spec.columns, ColumnNames) and spec.columns.by_place):
        axes = _axes_of_matrix(builder, key, spec, sources, path)
    plain = changed(spec, columns=None, normalize=None)
    of_values = changed(Ragged(form or "packed"), places=places if is_dense else None)
    before = snapshot(builder.lookups).get((key[0], "indices"), (0,))[0]
    number = _add_lookup(builder, (key[0], "data"), changed(plain, name=data, ragged=of_values), indptr)
    others = changed(plain, name=indices, dtype=None, ragged=changed(Ragged(), width=width))
    columns = _add_lookup(builder, (key[0], "indices"), others, indptr)
    if not is_named:
        _check_widths(builder, spec, builder.fields[columns], path)
    builder.fields[number] = replace(builder.fields[number], name=spec.name, axes=axes)
    parts = builder.lookups[key[0], "indices"].parts
    for k, table in enumerate(moves[: len(parts) - before], before):
        parts[k] = part_moved(parts[k], table)
    index_dtype = builder.fields[columns].dtype
    if is_named and index_dtype.kind in "iu" and width > np.iinfo(index_dtype).max:
        why = f"whose columns are {index_dtype}, too narrow to be named; write them as int32"
    elif widened_dtype(index_dtype).kind not in "iu" or not isinstance(number, int):
        why = f"whose columns are {shown(index_dtype)}, and not whole numbers"
    elif form == DENSE and (dtype := builder.fields[number].dtype).str[1:] in ("f2", "f16", "c32"):
        why = f"of {dtype}, which ragged='packed' gives, 'dense' not"
    if why:
        raise _field_error(builder.opened, spec, f" is a sparse matrix {why}")
    width -= is_named
    return SparseEntry(
        values=number, columns=columns, width=width, is_dense=is_dense, is_renumbered=is_named and not is_dense
    )


def _aligned_columns(
    builder: _PartBuilder, key: Key, spec: Field, sources: list[tuple[OpenFile, int]], *, is_dense: bool
) -> tuple[NDArray[np.int32], list[NDArray[np.int64] | None]]:
    """Return the position in a row of each column of the first file, and a table that renumbers each file's columns.

    The last entry, -1, stands for all columns that are not wanted. In packed rows, positions replace columns.
    """
    columns, moves, key_of_places = builder.opened.files.columns, list[NDArray[np.int64] | None](), (key[0], "places")
    for source, width in sources:
        own = columns_wanted(_with_columns(builder, key, spec, source, width), width)
        first = own if is_dense else np.arange(own.max(initial=-1) + 1, dtype=np.int32)
        _, reference = columns.setdefault(key_of_places, ([], np.append(first, np.int32(-1))))
        moves.append(moved(own, reference))
    return reference, moves


def _axes_of_matrix(
    builder: _PartBuilder, key: Key, spec: Field, sources: list[tuple[OpenFile, int]], path: str
) -> tuple[AxisNames, ...]:
    """Return the names of the wanted columns of a sparse matrix; raise if they differ between files."""
    first: tuple[AxisNames, ...] | None = None
    for source, width in sources:
        own = columns_wanted(_with_columns(builder, key, spec, source, width), width)
        taken = (
            None
            if spec.columns is None
            else tuple(np.argsort(np.where(own < 0, width, own), kind="stable")[: own.max(initial=-1) + 1].tolist())
        )
        axes = tuple(replace(one, taken=taken) for one in axis_names(source.file, path, source.identity, width))
        first = axes if first is None else first
        if why := unlike_names(first, axes, spec.name, (repr(sources[0][0].path), repr(source.path))):
            raise _field_error(source, spec, f": {why}", FieldLengthError)
    return first or ()


def _check_widths(builder: _PartBuilder, spec: Field, columns: FieldLayout, path: str) -> None:
    """Raise if the other files of a sparse matrix have another number of columns."""
    assert columns.ragged is not None
    for source in itertools.islice(_sources(builder, spec), 1, None):
        group = source.file.get(path)
        width = shape_of(group, spec.name, source.path)[1] if is_matrix(group) else columns.ragged.width
        if why := width_mismatch(columns, replace(columns, ragged=changed(columns.ragged, width=width))):
            raise refusal(source.path, spec.name, f": {why}", FieldLengthError)


# --- lookups: rows of a dataset, of values of variable length, of objects


def _add_lookup(builder: _PartBuilder, key: Key, spec: Field, indptr: str = "") -> Any:
    """Add a looked-up field: its dataset, in this file or in those of its file=, and the rows of samples.

    For a sparse matrix, `indptr` names the dataset of its row bounds, and `spec` need not have a lookup=.
    """
    selector = spec.lookup
    values: ArrayLike = builder.opened.numbers(selector) if isinstance(selector, str) else []
    spec, lists = _with_row_lists(builder, spec, values, is_matrix=bool(indptr))
    is_named = isinstance(selector, str | None) or (isinstance(selector, Stretches) and not in_memory(selector))
    lookup = _lookup_of(builder, key, spec, from_user=None if is_named else selector)
    is_first = not lookup.parts
    before = 0 if spec.file else sum(len(one) for one, *_ in lookup.ranges) if indptr else lookup.rows
    if spec.ragged is not None and lists is None and not (indptr or spec.decode or isinstance(selector, Stretches)):
        raise _single_row_error(builder, spec, spec.ragged)
    if not spec.file or selector is None or is_first:
        for source in _sources(builder, spec):
            first = lookup.rows
            _add_lookup_part(builder, lookup, _with_columns(builder, key, spec, source), source)
            if indptr:
                edges = np.asarray(source.numbers(indptr))
                of_rows = Bounds(indptr, holds="bounds")
                lookup.add_stretches(of_rows, [edges], len(edges) - 1, first, repr(source.path))
                if selector is None:
                    builder.lengths[spec.name] = len(edges) - 1
                    builder.rows_dataset = builder.rows_dataset or (source, indptr)
    builder.fields += lookup.layouts
    if isinstance(selector, str) and lists is None:
        among = sum(len(one) for one, *_ in lookup.ranges) if indptr else lookup.rows
        lookup.add_chosen(values, before, among - before, builder.path)
        builder.chosen_counts[key] = len(lookup.chosen[-1])
        _note_row_source(builder, lookup, selector)
    elif selector is not None and is_named:
        which, bounds = _stretches(builder, lookup, spec) if lists is None else (lists, [])
        is_plain = isinstance(which, Bounds) and not which.holds  # only these leave the number of samples uncertain
        if not builder.stretches or (builder.is_uncertain and not is_plain):  # a count of this part replaces any of all
            count = len(np.asarray(bounds[0]).reshape(-1)) if lists is None else len(lists)
            builder.lookup_counts = {lookup.name: samples_bounded(which, count) if isinstance(which, Bounds) else count}
            builder.is_uncertain = is_plain
        builder.stretches.append((lookup, which, bounds, before))
        _note_row_source(builder, lookup, selector if isinstance(selector, str) else selector.names[0])
    elif selector is not None and not callable(selector) and is_first:
        # With more than one file, they do not say which file has how many samples.
        builder.lookup_counts = builder.lookup_counts or {lookup.name: lookup.count}
        builder.row_sources.append((1, lookup.parts[0]))
    return lookup.entry


def _note_row_source(builder: _PartBuilder, lookup: LookupBuilder, name: str) -> None:
    """Note the dataset that defines the rows of samples; for an attribute, the part that it looks rows up in."""
    if builder.opened.is_attribute(name):
        builder.row_sources.append((1, lookup.parts[-1]))
    else:
        builder.rows_dataset = builder.rows_dataset or (builder.opened, name)


def _single_row_error(builder: _PartBuilder, spec: Field, ragged: Ragged) -> H5StreamError:
    """Return the error for ragged= of a field that has one row for each sample."""
    source = next(iter(_sources(builder, spec)))
    if elements.vlen_base(_inner_dtype(_dataset_with_rows(source, spec.name))) is None:
        return not_ragged(spec.name)
    why = ": lookup= names one row for each sample, whose values of variable length come as a list, not ragged="
    why += f"{ragged.form!r}; leave ragged= out, or write lookup=rows[:, None] and ragged='list' for lists of them"
    return _field_error(source, spec, why, OptionError)


def _with_row_lists(
    builder: _PartBuilder, spec: Field, row_numbers: ArrayLike, *, is_matrix: bool
) -> tuple[Field, RowLists | None]:
    """Return the field with its ragged form, and the rows that each sample lists; None if lookup= is not of lists.

    A dataset of one column names one row for each sample.
    """
    lists = spec.lookup if isinstance(spec.lookup, RowLists) else None
    if isinstance(spec.lookup, str):
        values = np.asarray(row_numbers)
        is_one = values.ndim == 2 and values.shape[1] == 1
        lists = None if is_one else row_lists(values, f"{builder.path!r}: field {spec.name!r}")
        if lists is not None and spec.ragged is None:
            spec = changed(spec, ragged=Ragged("packed" if values.dtype.kind == "O" else STACKED))
    if lists is not None and (is_matrix or spec.decode):
        what = "a sparse matrix" if is_matrix else "images of decode="
        why = f": lookup= lists rows for each sample, and of {what} it takes one row a sample"
        raise _field_error(
            builder.opened, spec, f"{why}, lookup=rows[:, 0] of an array; make a field for each", OptionError
        )
    return spec, lists


def _stretches(builder: _PartBuilder, lookup: LookupBuilder, spec: Field) -> tuple[Stretches, list[Any]]:
    """Return the ranges of samples' rows and their values; region references become starts and ends."""
    names, opened = spec.lookup.names, builder.opened
    if isinstance(spec.lookup, Bounds) and not opened.is_attribute(names[0]):
        node = opened.find(names[0])
        if h5py.check_ref_dtype(_inner_dtype(node)) is h5py.RegionReference:
            of = None if spec.file else object_at(opened.file, lookup.parts[-1].path, opened.path)
            return Between(*names * 2), [*region_rows(node, of, spec.name, opened.path)]
    return spec.lookup, [np.asarray(opened.numbers(name)).reshape(-1) for name in names]


def _add_ragged(builder: _PartBuilder, key: Key, spec: Field) -> Any:
    """Add a ragged field: the items of variable-length values, or all rows of an object's dataset."""
    check_options("objects" if builder.are_objects else "values", spec, builder.samples, builder.path)
    lookup, opened = _lookup_of(builder, key, spec), builder.opened
    node = _dataset_with_rows(opened, spec.name)
    if not builder.are_objects and elements.vlen_base(_inner_dtype(node)) is None:
        raise not_ragged(spec.name)
    _add_lookup_part(builder, lookup, spec, opened, node)
    builder.fields += lookup.layouts
    part = lookup.parts[-1]
    if builder.are_objects:
        lookup.add_rows(np.array([part.row_start]), np.array([part.rows]))
        builder.row_sources.append((1, part))
    else:
        if part.heap is None or len(node.dataset.shape) > 1:
            why = part.reason if part.heap is None else f"a row has {node.dataset.shape[1:]} values"
            takes = "ragged= takes one value a row, of numbers, that h5stream reads without libhdf5"
            raise _read_error(opened, spec, f", {why}: {takes}; without it each sample is a list", part)
        lookup.add_values(part, part.heap.length)
        builder.row_sources.append((0, part))
    builder.lengths[spec.name] = 1 if builder.are_objects else part.rows
    return lookup.entry


def _add_bytes_of_object(builder: _PartBuilder, spec: Field) -> int:
    """Add a field of encoded images, each a dataset of bytes in its object."""
    opened = builder.opened
    with RawFile(opened.file, opened.guard) as raw:
        members = ObjectMembers(raw, [opened.find(spec.name).path])
        (entry, layouts, _), part = _image_rows(builder, spec, members, opened, builder.row_start)
    builder.parts.append(part)
    builder.fields += layouts
    builder.lengths[spec.name] = 1
    return int(entry)


def _add_named_objects(builder: _PartBuilder, key: Key, spec: Field) -> Any:
    """Add a field whose lookup= names an object for each sample."""
    lookup, names = _lookup_of(builder, key, spec), spec.lookup
    lookup.is_per_sample = not isinstance(names, str)
    if isinstance(names, str):
        values = np.asarray(builder.opened.numbers(names)).reshape(-1)
        names = [one.decode() if isinstance(one, bytes) else str(one) for one in values.tolist()]
        if builder.extents is None:
            builder.lengths[spec.lookup] = len(names)
    elif lookup.ranges or lookup.chosen:
        builder.fields += lookup.layouts
        return lookup.entry
    unknown = [name for name in dict.fromkeys(names) if name not in lookup.objects]
    for source in _sources(builder, spec):
        unknown = _add_objects_of_file(builder, lookup, spec, source, unknown)
    if unknown:
        raise _missing_objects_error(builder, spec, unknown, len(set(names)), source)
    if not lookup.parts:
        why = "so that nothing says what the field holds; leave out this file, or begin with one that has samples"
        raise _field_error(builder.opened, spec, f": lookup= names no object, {why}", FieldLengthError)
    builder.fields += lookup.layouts
    builder.row_sources.append((1, lookup.parts[0]))
    rows = np.array([lookup.objects[name] for name in names], dtype=np.int64).reshape(-1, 2)
    if spec.decode or spec.has_own_shape:  # an object is one row
        lookup.chosen.append(rows[:, 0])
    else:
        lookup.add_rows(*rows.T)
    builder.lookup_counts = builder.lookup_counts or {lookup.name: len(names)}
    return lookup.entry


def _add_objects_of_file(
    builder: _PartBuilder, lookup: LookupBuilder, spec: Field, source: OpenFile, names: list[str]
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
    builder: _PartBuilder, lookup: LookupBuilder, spec: Field, source: OpenFile, name: str, path: Within
) -> None:
    """Add an object of another file that a link leads to."""
    if spec.decode:
        raise _other_file_error(source, path, "decode=")
    if spec.has_own_shape:
        lookup.objects[name] = _add_object_array(builder, lookup, spec, source, path), 1
        return
    _add_lookup_part(builder, lookup, spec, source, _dataset_with_rows(source, path))
    lookup.objects[name] = lookup.parts[-1].row_start, lookup.parts[-1].rows


def _add_members(
    builder: _PartBuilder,
    lookup: LookupBuilder,
    spec: Field,
    source: OpenFile,
    objects: list[tuple[str, Within]],
    members: ObjectMembers,
) -> None:
    """Add objects of a file; `objects` has the name of each in lookup=, and its path."""

    def describe(k: int) -> DatasetPart:
        _add_lookup_part(builder, lookup, spec, source, _dataset_with_rows(source, objects[k][1]))
        return replace(lookup.parts.pop(), row_start=0)

    if spec.decode:
        if (member := next((one for _, one in objects if one != one.literal), None)) is not None:
            why = f": {member!r} is a member of a compound, and decode= takes objects that are bytes themselves"
            raise _field_error(source, spec, why)
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


def _add_object_array(builder: _PartBuilder, lookup: LookupBuilder, spec: Field, source: OpenFile, name: str) -> int:
    """Add an object of any shape as one row of a lookup; return the row's number."""
    node, plain = _dataset_with_rows(source, name), changed(spec, ragged=None)
    along, shape = Extents.of(Objects("*")).take(node.dataset.shape, changed(plain, name=name), source.path)
    entry, layouts, targets = _describe(builder, plain, node, (1,) * len(shape))
    if not isinstance(entry, int) or layouts[0].kind != "array":
        raise _not_an_array(builder, spec)
    if lookup.shapes and len(shape) != len(lookup.shapes[0]):
        why = f": {name!r} has {len(shape)} axes, and another object {len(lookup.shapes[0])}; ragged='arrays' takes one"
        raise _field_error(source, spec, why, FieldLengthError)
    part = part_of(source, source.place(node), name, None, along, targets, row_start=lookup.rows)
    count = int(np.prod(part.shape, dtype=object))
    whole = ColumnPiece(number=0, row_elements=count, segments=np.array([[0, 0, count]]))
    layouts = [replace(layouts[0], shapes=entry + 1), _shape_field(layouts[0])]
    lookup.add_part(replace(part, rows=1, chunk_rows=1, pieces=(whole,)), entry, layouts, source.path)
    lookup.shapes.append(shape)
    return len(lookup.shapes) - 1


def _missing_objects_error(
    builder: _PartBuilder, spec: Field, unknown: list[str], count: int, last: OpenFile
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
    why += f"is there{_files_hint(builder, spec.file)}. Leave out samples without an object: H5Dataset(...).subset()"
    return refusal(last.path, spec.name, why, FieldNotFoundError)


def _lookup_of(builder: _PartBuilder, key: Key, spec: Field, from_user: LookupInMemory = None) -> LookupBuilder:
    """Return the builder of a looked-up field, which earlier files may have made."""
    crop = None if spec.ragged is None else spec.ragged.crop
    return builder.lookups.setdefault(key, LookupBuilder(name=spec.name, crop=crop, from_user=from_user))


def _add_lookup_part(
    builder: _PartBuilder, lookup: LookupBuilder, spec: Field, source: OpenFile, node: FieldSource | None = None
) -> None:
    """Add a file's part of a looked-up dataset."""
    node = node or _dataset_with_rows(source, spec.name)
    entry, layouts, targets = _describe(builder, spec, node, *_row_selection(builder, node, spec))
    if spec.ragged is not None and isinstance(entry, dict):
        why = f"each member of a ragged one is a field of its own, {f'{spec.name}:{next(iter(entry))}'!r}"
        raise _field_error(source, spec, f" is a compound, and {why}, or columns=[NAMES] makes one matrix")
    if len(targets) > 1 and any(layout.dtype.kind == "O" for layout in layouts):
        why = f"one that is looked up is a field of its own, {f'{spec.name}:{next(iter(entry))}'!r}"
        raise _field_error(source, spec, f" is a compound with members of variable length, and each of {why}")
    if len(layouts) == 1:
        layouts = [replace(layouts[0], axes=_named_axes(builder, spec, node, source, ()))]
    part = _dataset_part(builder, source.place(node), spec, (), targets, start=lookup.rows)
    lookup.add_part(part, entry, layouts, source.path)


# --- where fields are


def _sources(builder: _PartBuilder, spec: Field) -> Iterator[OpenFile]:
    """Yield the files of a field: this one, or those of its file=.

    With lookup=, rows may be in any of them; without, each file of the source has one file of file= beside it.
    """
    paths, named = spec.file, builder.opened.files.named
    if not paths:
        yield builder.opened
    elif spec.lookup is None:
        if len(paths) != named:
            message = f"{len(paths)} files stand beside {named}; name one for each, or look rows up with lookup="
            raise OptionError(f"Field({spec.name!r}, file=): {message}")
        paths = (paths[builder.opened.number],)
    for path in paths:
        yield builder.opened.beside(path)


def _dataset_with_rows(source: OpenFile, name: str) -> FieldSource:
    """Return a dataset, or a member of it; raise if it has no axis of rows."""
    node = source.find(name)
    if not node.dataset.shape:
        what = "empty (a null dataspace)" if node.dataset.shape is None else "a single value"
        why = f": {name!r} is {what}, so it has no rows; a field's first axis are the samples"
        once = f"; Field({parted(name)[1]!r}, take='all') gives it to each row of its file, or group"
        why += once * (what == "a single value")
        raise refusal(source.path, name, why)
    return node


def _named_object(builder: _PartBuilder, spec: Field) -> tuple[h5py.HLObject | None, str]:
    """Return the HDF5 object that a field names, and its path; None if the name means no object."""
    if spec.name in ("", "/") or spec.names_objects or isinstance(spec.lookup, Stretches):
        return None, ""
    source = next(_sources(builder, spec))
    for reading in readings(spec.name):
        with contextlib.suppress(*DAMAGE):
            # `get(getclass=True)` of a damaged object crashes libhdf5; opening it raises.
            if not reading.mark and reading.path:
                obj = source.file[reading.path]
                source.guard.check_links(source.file, reading.path, source.path)
                return obj, reading.path
    return None, ""


def _check_links_inside(builder: _PartBuilder, spec: Field, path: str) -> None:
    """Raise if a dataset of a group that may be one field is a link out of the opened files."""
    for source in _sources(builder, spec):
        for part in PARTS:
            source.guard.check_links(source.file, f"{path}/{part}", source.path)


def _origin_column(builder: _PartBuilder, spec: Field) -> str:
    """Return the table column that a field's rows count from; empty for the start of the sample."""
    columns = builder.samples.columns if isinstance(builder.samples, Table) else {}
    if spec.take.at and not isinstance(columns.get(spec.take.at), np.ndarray):
        numbers = [name for name, values in columns.items() if isinstance(values, np.ndarray)]
        available = f"which has {', '.join(map(repr, numbers))}" if columns else "and there is no Table"
        why = f"(at={spec.take.at!r}): at= names a column of row numbers of Table(...), {available}"
        raise OptionError(f"Field({spec.name!r}, take=Take{why})")
    return spec.take.at


# --- parts: datasets and the fields that they fill


def _dataset_part(
    builder: _PartBuilder, place: Location, spec: Field, along: tuple[Along, ...], targets: list[Target], *, start: int
) -> DatasetPart:
    """Return the part of a dataset; for images, with their lengths if another dataset holds these."""
    part = part_of(builder.opened, place, spec.name, spec.columns, along, targets, row_start=start)
    if not spec.decode:
        return part
    of_bytes = targets[0].leaf is not None
    if part.heap is None and (not of_bytes or (part.access == VIA_H5PY and part.dtype_text != "uint8")):
        why = f": decode= takes bytes that h5stream reads without libhdf5, not these: {part.reason}"
        raise _read_error(builder.opened, spec, why, part)
    if not (of_bytes and spec.length):
        return part
    lengths = np.asarray(builder.opened.numbers(spec.length)).reshape(-1)
    most = int(np.prod(part.shape[1:])) * part.stored_element_nbytes
    if lengths.dtype.kind not in "iu" or len(lengths) != part.rows or ((lengths < 0) | (lengths > most)).any():
        why = f": {spec.length!r} of decode= has {len(lengths):,} values of {lengths.dtype}, and it takes a number of "
        raise _field_error(
            builder.opened, spec, f"{why}bytes from 0 to {most:,} for each of {part.rows:,} rows", OptionError
        )
    return replace(part, lengths=lengths.astype(np.int64))


def _image_rows(
    builder: _PartBuilder, spec: Field, members: ObjectMembers, source: OpenFile, start: int
) -> tuple[EntryLayout, DatasetPart]:
    """Return the entry and the part of objects that are encoded images, read as rows."""
    entry, column = _describe_image(builder, spec, None), BytesColumn("", len(members.names), source.guard)
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


def _row_selection(builder: _PartBuilder, node: FieldSource, spec: Field) -> tuple[tuple[int, ...], Steps | None]:
    """Return the shape that a sample of one or several rows has of a dataset, and its steps; None for one row."""
    steps = None if spec.lookup is not None else steps_of(spec.take.steps, builder.sequences, spec.name)
    if spec.take.axis not in (None, 0) or spec.take.scale:
        why = "a sample is a row of axis 0 here, or several; Take(axis=) and Take(scale=) are for other samples"
        raise OptionError(f"Field({spec.name!r}): {why}, such as Sequences(axis=1) and Boxes")
    shape = node.dataset.shape[1:]
    try:
        row_shape = selected_shape(shape, spec.columns)
    except OptionError as error:
        inner = _inner_dtype(node)
        inside = not shape and (inner.subdtype or inner.fields)
        why = "columns= chooses among a dataset's axes, not inside a member; take it whole and index the batch"
        raise _field_error(builder.opened, spec, f": {why if inside else error}", OptionError) from None
    return row_shape if steps is None else (len(steps), *row_shape), steps


# --- the fields of a batch that a dataset fills


def _describe(
    builder: _PartBuilder, spec: Field, node: FieldSource, shape: tuple[int, ...], steps: Steps | None = None
) -> EntryLayout:
    """Return the entry of a dataset: its field, or one for each member of a compound, with the samples' shape."""
    layouts, targets = list[FieldLayout](), list[Target]()
    whole: Any = elements.as_torch_bits(_inner_dtype(node), spec.dtype)
    if spec.decode:
        return _describe_image(builder, spec, _image_leaf(builder, spec, node, whole), steps, node.member)
    if spec.members:
        _check_members(builder, spec, whole)
        whole = np.dtype((whole.fields[spec.members[0]][0], (len(spec.members),)))

    first, meaning = len(builder.fields), meaning_of(node.dataset)
    for number, (member, dtype) in enumerate(_leaves_of(whole, node.member), first):
        layout, leaf = _field_layout(builder, spec, node._replace(member=member), dtype, shape, steps)
        layouts.append(layout)
        targets.append(replace(_target(number, leaf, member, spec.members), meaning=meaning))
    return _entry_of(whole, itertools.count(first)), layouts, targets


def _leaves_of(dtype: Any, member: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the paths and types of a compound's innermost members; any other type yields itself."""
    if dtype.fields is None:
        yield member, dtype
    for name in dtype.names or ():
        yield from _leaves_of(dtype[name], (*member, name))


def _entry_of(dtype: Any, numbers: Iterator[int]) -> Any:
    """Return the number of a type's field, or for a compound a dict of its members' numbers."""
    return next(numbers) if dtype.fields is None else {name: _entry_of(dtype[name], numbers) for name in dtype.names}


def _target(
    number: int, leaf: elements.Leaf | None, member: tuple[str, ...] = (), stacked: tuple[str, ...] = ()
) -> Target:
    """Return the target of a field, with a fill value of zeros for now."""
    fill = np.zeros(leaf.nbytes if leaf else 0, np.uint8)
    return Target(field=number, member=member, leaf=leaf, fill=fill, stacked=stacked)


def _field_layout(
    builder: _PartBuilder,
    spec: Field,
    node: FieldSource,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    steps: Steps | None,
) -> tuple[FieldLayout, elements.Leaf | None]:
    """Return the field of elements of a type other than a compound, and the position of its bytes in an element."""
    (dataset, path, member), ragged = node, spec.ragged
    name = ":".join((path, *member)) if member else spec.name
    is_value = ragged is not None and spec.lookup is None and not builder.are_objects
    items = elements.vlen_base(dtype) if is_value else None
    whole = elements.stored_as(dataset)
    stored_dtype = elements.as_torch_bits(
        elements.plain_dtype(dtype_of(dataset)) if whole.is_whole else whole.dtype, spec.dtype
    )
    dtype, stored = (dtype, stored_dtype) if items is None else (items, items)
    base, inner_shape = dtype.subdtype or (dtype, ())
    kind = {"O": "object", "S": "bytes"}.get(base.kind, "array")
    if ragged is not None and base.kind != "V" and (ragged.form in ("list", STACKED) or base.kind not in "OS"):
        kind = "ragged"
    why = _unsupported_reason(spec, dtype, kind, member, steps is None)
    if builder.extents is not None and kind not in ("array", "ragged") and spec.lookup is None:
        why = why or "samples that are parts of volumes are of numbers"
    if why:
        raise refusal(builder.path, name, f": field {name!r} is {shown(dtype)}: {why}")
    layout = FieldLayout(
        name=name,
        kind=kind,
        dtype=np.dtype(object) if base.kind == "O" else elements.batch_dtype(base),
        row_shape=(*shape, *inner_shape),
        steps=steps,
        at=spec.take.at,
        pad=spec.take.pad,
        cast=spec.dtype,
        ragged=ragged,
        unit=_time_unit(base),
        meanings=elements.meanings_of(base),
        items=elements.vlen_base(base),
        cut_at_nul=base.kind == "S" and elements.ends_at_nul(dataset.id.get_type(), member),
    )
    inside = member if items is None else ()
    return layout, elements.leaf_of(stored, inside, spec.members) if base.kind != "O" else None


def _unsupported_reason(spec: Field, dtype: np.dtype[Any], kind: str, member: tuple[str, ...], is_one: bool) -> str:
    """Return why a batch cannot hold a field of this type; empty if it can."""
    if why := elements.refusal(dtype):
        return why
    if dtype.subdtype is not None and dtype.subdtype[0].fields is not None:
        return "an array of compounds inside a compound has no tensor form"
    if kind == "ragged" and not is_one:
        return "ragged rows are for samples of one row"
    if spec.ragged is not None and spec.ragged.form == DENSE and spec.ragged.places is None:
        return "ragged='dense' is for sparse matrices"
    if spec.ragged is None or kind == "ragged":
        return ""
    return "ragged rows are of numbers, or with ragged='list' of texts and of values of variable length"


def _image_leaf(builder: _PartBuilder, spec: Field, node: FieldSource, dtype: np.dtype[Any]) -> elements.Leaf | None:
    """Return the position of an image in a row of bytes; None if images are values of variable length."""
    shape, leaf = node.dataset.shape, elements.bytes_leaf(dtype)
    rows, are_rows = shape[1:], builder.extents is None
    if are_rows and not rows and (elements.is_byte(elements.vlen_base(dtype)) or elements.is_text(dtype)):
        if spec.length:
            why = "a length in decode= is for rows of bytes that are filled up, not for values of variable length"
            raise _field_error(builder.opened, spec, f": {why}; leave it out", OptionError)
        return None
    if node.member or len(rows) != (dtype.itemsize == 1) or leaf is None or not are_rows:
        why = "decode= takes images as values of variable length (of uint8), or as rows of bytes"
        raise _field_error(builder.opened, spec, f" is {shown(dtype)} {shape}: {why}")
    return leaf


def _describe_image(
    builder: _PartBuilder,
    spec: Field,
    leaf: elements.Leaf | None,
    steps: Steps | None = None,
    member: tuple[str, ...] = (),
) -> EntryLayout:
    """Return the entry of a field of images; their size is determined once all files are open."""
    check_options("images", spec, builder.samples, builder.path)
    images, take = Images(format=spec.decode), spec.take
    layout = _field(spec.name, object, images=images, steps=steps, at=take.at, pad=take.pad, ragged=spec.ragged)
    return len(builder.fields), [layout], [_target(len(builder.fields), leaf, member)]


def _check_members(builder: _PartBuilder, spec: Field, dtype: np.dtype[Any]) -> None:
    """Raise if names in columns= are not members of a compound, or if the members do not make a matrix."""
    if dtype.names is None:
        why = f": columns={[*spec.members]!r} names members of a compound, and its elements are {dtype}, no compounds"
        why += "; columns of an array are numbers"
        if spec.names_objects:
            why += " here, as in columns=[0, 1]: names from a dimension scale are taken of objects that samples="
            why += "Objects(...) names, and of one dataset, and not of objects that lookup= names"
        raise _field_error(builder.opened, spec, why, FieldNotFoundError)
    if lacking := next((name for name in spec.members if name not in dtype.names), ""):
        has = f"it has {', '.join(map(repr, dtype.names))}{did_you_mean(lacking, list(dtype.names))}"
        raise _field_error(
            builder.opened, spec, f" has no member {lacking!r}, which columns= names; {has}", FieldNotFoundError
        )
    kinds = {name: dtype[name] for name in spec.members}
    first = kinds[spec.members[0]]
    if not all(elements.same_type(kind, first) for kind in kinds.values()) or first.kind not in "biufc":
        listing = ", ".join(f"{name!r} is {shown(kind)}" for name, kind in kinds.items())
        why = f": columns= of names makes one tensor of numbers of one type, but {listing}; make a field for each type"
        raise _field_error(builder.opened, spec, why)
    why = elements.joined_meanings((elements.meanings_of(kind), repr(name)) for name, kind in kinds.items())[1]
    if why:
        why = f": columns= of names makes one tensor of these enums, and {why}, so a code would not mean the same; "
        raise _field_error(builder.opened, spec, f"{why}make a field for each")


def _inner_dtype(node: FieldSource) -> Any:
    """Return the type of the elements of a dataset, or of their member."""
    dtype: Any = elements.plain_dtype(dtype_of(node.dataset))
    for part in node.member:
        dtype = dtype[part]
    return dtype


def _time_unit(dtype: np.dtype[Any]) -> str:
    """Return the unit of dates and times, such as "datetime64[ns]"; empty for other types."""
    return str(dtype.newbyteorder("=")) if dtype.kind in "mM" else ""


def _field_error(
    source: OpenFile, spec: Field, why: str, kind: type[H5StreamError] = UnsupportedFieldError, **facts: Any
) -> H5StreamError:
    """Return the error for a field that a file does not provide."""
    return refusal(source.path, spec.name, f": field {spec.name!r}{why}", kind, **facts)


def _read_error(source: OpenFile, spec: Field, why: str, part: DatasetPart) -> H5StreamError:
    """Return the error for a field that cannot be read: a damaged chunk if there is one, or else `why`."""
    if part.damaged is None:
        return _field_error(source, spec, why)
    return _field_error(source, spec, f": {part.reason}", CorruptChunkError, chunk=part.damaged)
