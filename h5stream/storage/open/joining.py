"""Joins files, groups of one file, or whole layouts, after checking that their rows agree in shape and type."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.base.texts import counted
from h5stream.errors import FieldLengthError, OptionError
from h5stream.samples.columns import SampleColumn, look_up_each
from h5stream.samples.lookup import Lookup
from h5stream.samples.packing import Packing
from h5stream.samples.ragged import ARRAYS, DENSE, STACKED, Ragged, changed
from h5stream.samples.space import Along, Space, joined_space
from h5stream.storage.decode.elements import Meanings, batch_dtype, joined_meanings, same_type
from h5stream.storage.decode.small_floats import shown
from h5stream.storage.file.meanings import warn_of_meanings, with_joint_packings, without_packings
from h5stream.storage.file.stored import part_moved
from h5stream.storage.layout.access import Chunked, ThroughH5py
from h5stream.storage.layout.axis_names import moved, unlike_names
from h5stream.storage.layout.index import column_pieces
from h5stream.storage.layout.layout import Entry, FieldLayout, SampleLayout, SparseEntry
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.open.extents import Extents
from h5stream.storage.open.lookups import LookupBuilder, enum_mismatch, length_mismatch, share_arrays, width_mismatch
from h5stream.storage.source.identity import SourceIdentity

ValueRows = NDArray[np.generic] | list[object]
"""An attribute's value as rows of a ragged field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileParts:
    """The fields and datasets of one file, or of a group of it."""

    rows: int  # its rows
    fields: tuple[FieldLayout, ...]  # the fields of a batch, as this file alone would fill them
    parts: tuple[DatasetPart, ...]  # the datasets that they are read from
    entries: tuple[Entry, ...]  # as in `SampleLayout.entries`
    volume: Extents | None = None  # its size, if samples are parts of volumes
    constants: tuple[tuple[int, object], ...] = ()  # by field number, the value of all its rows
    packed: tuple[tuple[int, Packing], ...] = ()  # by field number, how constants are unpacked to floats
    are_objects: bool = False  # whether its rows are objects; a constant is then an array or a list of one value each
    anchors: NDArray[np.int64] | None = None  # the row of each object, if rows are in another order than the objects
    left_out: int = 0  # objects that lack a field


def joined_parts(files: Sequence[FileParts], paths: Sequence[str], labels: Sequence[str]) -> list[FileParts]:
    """Give several files, or groups, fields of one form; raise if their rows differ in shape or type."""
    files = with_largest_shapes(files, labels)
    check_consistent(files, paths, labels)
    return with_uniform_strings(with_joined_meanings(files, paths, labels))


def check_consistent(files: Sequence[FileParts], paths: Sequence[str], labels: Sequence[str]) -> None:
    """Raise if the rows of files differ in shape or type; `labels` are the files' names for messages."""
    first = files[0]
    constants = {number for number, _ in first.constants}
    for other, path, label in zip(files[1:], paths[1:], labels[1:], strict=True):
        where = "" if label == repr(path) else f" in {label}"
        for number, (a, b) in enumerate(zip(first.fields, other.fields, strict=False)):
            if a is b:
                continue
            wrong = _difference(a, b, labels[0], where, is_constant=number in constants)
            wrong = wrong or unlike_names(a.labels.axes, b.labels.axes, b.name, (labels[0], label))
            if wrong:
                raise FieldLengthError(f"{path!r}: {wrong}", field=b.name, file=path)
        if len(other.fields) != len(first.fields) or other.entries != first.entries:
            raise FieldLengthError(f"{path!r}: its compound members are not those of {paths[0]!r}", file=path)


def with_joined_meanings(files: Sequence[FileParts], paths: Sequence[str], labels: Sequence[str]) -> list[FileParts]:
    """Give enums the labels of all files; raise if a number has different labels in two files."""
    first, fields = files[0], list(files[0].fields)
    differing = [k for k, file in enumerate(files) if file.fields is not first.fields]
    for number, field in enumerate(fields):
        places = dict[Meanings, int]()
        for k in (0, *differing):
            places.setdefault(files[k].fields[number].labels.meanings, k)
        meanings, why = joined_meanings((enum, labels[k]) for enum, k in places.items())
        if why:
            path = paths[max(places.values())]
            raise FieldLengthError(f"{path!r}: {enum_mismatch(field.name, why)}", field=field.name, file=path)
        fields[number] = replace(field, labels=replace(field.labels, meanings=meanings))
    return [replace(first, fields=tuple(fields)), *files[1:]]


def _difference(a: FieldLayout, b: FieldLayout, first: str, where: str, *, is_constant: bool) -> str:
    """Describe how a field differs from that of the first file; empty if it does not."""
    if why := width_mismatch(a, b, where, f" in {first}"):
        return why
    is_like = (a.kind, a.labels.unit, a.row_shape, a.cast) == (b.kind, b.labels.unit, b.row_shape, b.cast)
    if not (is_like and same_type(a.dtype, b.dtype)):
        casts = ("" if one.cast is None else f" cast to {one.cast}" for one in (b, a))
        type_text, other = (
            f"{o.labels.unit or shown(o.dtype)} {o.row_shape}{cast}" for o, cast in zip((b, a), casts, strict=True)
        )
        way_out = ". What is there once is of one shape in all; Field(..., ragged='pad') takes attributes of any length"
        way_out += " (also 'list', 'packed', 'nested'; 'arrays' any shape). Else take it from memory, Values(...)"
        return (
            f"field {b.name!r} has rows of {type_text}{where}, but {a.name!r} in {first} has rows of {other}; what is "
            f"read as one must agree{way_out if is_constant else _hint(a, b)}"
        )
    if a.labels.categories != b.labels.categories:
        why = f"the categories of {b.name!r} are not those of {first}, so a code would not mean the same"
        return f"{why}; name {b.name + '/codes'!r} to take them as numbers"
    places, other_places = (np.asarray(None if one.ragged is None else one.ragged.places) for one in (a, b))
    is_like = a.ragged == b.ragged and np.array_equal(places, other_places)
    agreed = (
        ("takes other rows of a sample", "take=", a.take == b.take),
        ("is normalized otherwise", "normalize=", a.normalize == b.normalize),
        ("takes other columns, or comes in another form", "columns= and ragged=", is_like),
    )
    for difference, option, is_same in agreed:
        if not is_same:
            return f"field {b.name!r} {difference}{where} than in {first}; what is read as one has the same ({option})"
    return ""


def _hint(a: FieldLayout, b: FieldLayout) -> str:
    """Return a hint on the axis along which rows differ in length, if there is exactly one."""
    if not same_type(a.dtype, b.dtype) or len(a.row_shape) != len(b.row_shape):
        return ""
    lengths = zip(a.row_shape, b.row_shape, strict=True)
    axes = [axis for axis, (m, n) in enumerate(lengths, a.take.steps is None) if m != n]
    if len(axes) != 1 or axes[0] == 0:
        return ""
    return (
        f". They differ along axis {axes[0]}: Field(..., ragged='arrays') gives each in its own shape, rows with "
        f"samples=Rows(of=...); if that axis is time, Sequences(..., axis={axes[0]}) makes samples along it"
    )


def with_largest_shapes(files: Sequence[FileParts], labels: Sequence[str]) -> list[FileParts]:
    """Give fields of arrays of any shape room for the largest size along each axis, over all files."""
    files = list(files)
    for number, field in enumerate(files[0].fields):
        if field.shapes is None:
            continue
        shapes = [file.fields[number].row_shape for file in files]
        other = next((k for k, shape in enumerate(shapes) if len(shape) != len(shapes[0])), None)
        if other is not None:
            axes = counted(len(shapes[other]), "axis", "axes")
            why = f"has {axes} in {labels[other]}, and {len(shapes[0])} in {labels[0]}; "
            why += "ragged='arrays' takes arrays of as many axes, of any length each"
            raise FieldLengthError(f"field {field.name!r} {why}", field=field.name)
        room = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        for k, file in enumerate(files):
            fields = (replace(one, row_shape=room) if n == number else one for n, one in enumerate(file.fields))
            parts = (_resized(one, room) if any(t.field == number for t in one.targets) else one for one in file.parts)
            files[k] = replace(file, fields=tuple(fields), parts=tuple(parts))
    return files


def _resized(part: DatasetPart, room: tuple[int, ...]) -> DatasetPart:
    sizes = iter(room)
    along = (Along(range(next(sizes))) if one.is_whole else one for one in part.along)
    return replace(part, along=tuple(along))


def with_named_shapes(layout: SampleLayout, builders: Iterable[LookupBuilder]) -> SampleLayout:
    """Give looked-up fields of objects of any shape room for the largest, and a column of the shapes."""
    for builder, lookup in zip(builders, layout.lookups, strict=True):
        if builder.shapes:
            shapes, fields, datasets = np.array(builder.shapes), list(layout.fields), list(layout.datasets)
            room = tuple(shapes.max(axis=0).tolist())
            fields[builder.number] = replace(fields[builder.number], row_shape=room)
            datasets[lookup.dataset] = tuple(_resized(part, room) for part in datasets[lookup.dataset])
            columns = (*layout.columns, (builder.number + 1, SampleColumn(shapes[lookup.rows])))
            layout = replace(layout, fields=tuple(fields), datasets=tuple(datasets), columns=columns)
    return layout


def with_rows_of_values(layout: SampleLayout) -> SampleLayout:
    """Give ragged fields that are attributes the type and shape that the rows of all values share."""
    fields, columns = list(layout.fields), list(layout.columns)
    for k, (number, column) in enumerate(columns):
        field = fields[number]
        if field.ragged is None or field.kind != "object":
            continue
        values = rows_of_values(column.values, field.name, field.ragged)
        if values and isinstance(values[0], np.ndarray):
            row_shape = () if field.ragged.form == ARRAYS else values[0].shape[1:]
            unit = str(values[0].dtype) if values[0].dtype.kind in "mM" else ""
            labels = replace(field.labels, unit=unit)
            fields[number] = replace(field, dtype=batch_dtype(values[0].dtype), row_shape=row_shape, labels=labels)
            values = [value.view(batch_dtype(value.dtype)) for value in values if isinstance(value, np.ndarray)]
        elif field.ragged.form != "list":
            why = "is of texts, or of values that are no numbers, which come in lists: ragged='list'"
            raise OptionError(f"field {field.name!r} {why}, and not {field.ragged.form!r}")
        columns[k] = number, replace(column, values=values)
    return replace(layout, fields=tuple(fields), columns=tuple(columns))


def rows_of_values(values: Sequence[object], name: str, ragged: Ragged) -> list[ValueRows]:
    """Return values as arrays or lists of rows of one type and shape; a scalar is one row, an empty value has none."""
    crop, is_any_shape = ragged.crop, ragged.form == ARRAYS
    if ragged.form == DENSE:
        raise OptionError(f"field {name!r}: ragged='dense' is for sparse matrices; 'pad' fills attributes up")
    if crop is not None and crop.at != "start":
        message = f"of attributes a crop takes the first items, at='start', not {crop.at!r}"
        raise OptionError(f"field {name!r}: {message}; crop the batch in batch_transform=")
    rows = [_as_rows(value) for value in values]
    example = next((one for one in rows if _is_nonempty(one)), next(iter(rows), []))
    wanted, taken = _row_type(example, is_any_shape), slice(None if crop is None else crop.length)
    for k, one in enumerate(rows):
        if _is_nonempty(one):
            if (row := _row_type(one, is_any_shape)) != wanted:
                text, other = (f"{dtype or 'texts'} {shape}" for dtype, shape in (row, wanted))
                why = f"has rows of {text} in number {k:,} of {len(rows):,}, and of {other} in another"
                way_out = "they agree in all but their number, or, with ragged='arrays', in the number of axes"
                raise FieldLengthError(f"field {name!r} {why}; {way_out}", field=name)
        elif isinstance(example, np.ndarray):
            shape = one.shape if isinstance(one, np.ndarray) and one.ndim == example.ndim else (0,) * example.ndim
            rows[k] = np.empty(shape if is_any_shape else (0, *example.shape[1:]), example.dtype)
        else:
            rows[k] = []
    return [one[taken] for one in rows]


def _is_nonempty(rows: ValueRows) -> bool:
    return bool(rows.size if isinstance(rows, np.ndarray) else rows)


def _as_rows(value: object) -> ValueRows:
    """Return a value as an array of an axis or more, or as a list."""
    if isinstance(value, h5py.Empty):
        return np.empty(0, value.dtype) if value.dtype.kind in "biufcmM" else []
    if isinstance(value, np.ndarray):
        return np.atleast_1d(value)
    return value if isinstance(value, list) else [value]


def _row_type(rows: ValueRows, is_any_shape: bool) -> tuple[str, tuple[int, ...] | int]:
    """Return the type and the shape, or number of axes, that rows of a field must share; ("", 0) for lists."""
    if not isinstance(rows, np.ndarray):
        return "", 0
    return shown(rows.dtype), rows.ndim if is_any_shape else rows.shape[1:]


def with_uniform_strings(files: list[FileParts]) -> list[FileParts]:
    """Let libhdf5 cut strings at their NUL if only some of the files hold NUL-terminated strings.

    A batch mixes rows of several files, so its strings must all be treated the same.
    """
    every = zip(*(file.fields for file in files), strict=True)
    differing = {n for n, fields in enumerate(every) if len({one.cut_at_nul for one in fields}) > 1}
    why = "its strings end at a NUL, those of the other files do not"
    for k, file in enumerate(files if differing else ()):
        cut, parts = {n for n in differing if file.fields[n].cut_at_nul}, list(file.parts)
        for place, part in enumerate(parts):
            if isinstance(part.via, Chunked) and any(target.field in cut for target in part.targets):
                row_shape, targets = part.shape[1:], tuple(replace(target, leaf=None) for target in part.targets)
                pieces = column_pieces(row_shape, row_shape, part.columns)
                parts[place] = replace(part, via=ThroughH5py(reason=why), pieces=pieces, targets=targets)
        fields = tuple(replace(one, cut_at_nul=False) if n in cut else one for n, one in enumerate(file.fields))
        files[k] = replace(file, fields=fields, parts=tuple(parts))
    return files


# --- joining whole layouts


def _with_same_columns(layouts: Sequence[SampleLayout]) -> Sequence[SampleLayout]:
    """Reorder the wanted columns of sparse matrices as in the first layout, by name."""
    for k in range(len(layouts[0].entries)):
        entries = [layout.entries[k] for layout in layouts if k < len(layout.entries)]
        matrices = [one for one in entries if isinstance(one, SparseEntry) and one.is_dense]
        if len(matrices) < len(layouts):
            continue
        if not all(layout.fields[one.values].labels.axes for layout, one in zip(layouts, matrices, strict=True)):
            continue  # without names, the columns cannot be matched
        ragged = [layout.fields[one.values].ragged for layout, one in zip(layouts, matrices, strict=True)]
        # the position of each column in a row of a batch
        every = [one.places for one in ragged if one is not None and one.places is not None]
        reference = every[0] if every[0][-1:] == -1 else np.append(every[0], np.int32(-1))
        is_one = all(np.array_equal(places, every[0]) for places in every)
        if not is_one and len({int(places.max(initial=-1)) for places in every}) == 1:
            layouts = [
                _with_places(layout, k, places, reference) for layout, places in zip(layouts, every, strict=True)
            ]
    return layouts


def _with_places(layout: SampleLayout, k: int, places: NDArray[np.int32], reference: NDArray[np.int32]) -> SampleLayout:
    """Return a layout whose entry `k`, a sparse matrix, has the columns of `reference`; the last, -1, is unwanted."""
    entry, fields, width = layout.entries[k], list(layout.fields), len(reference)
    if not isinstance(entry, SparseEntry):
        raise TypeError(f"entry {k} is no sparse matrix")
    if width > np.iinfo(fields[entry.columns].dtype).max:
        message = (
            f"the columns of field {fields[entry.values].name!r} are {fields[entry.columns].dtype}, too narrow for"
        )
        raise OptionError(f"{message} datasets that take other columns of theirs; write them as int32")
    table = moved(places, reference)
    for number, change in ((entry.values, {"places": reference}), (entry.columns, {"width": width})):
        if (ragged := fields[number].ragged) is not None:
            fields[number] = replace(fields[number], ragged=changed(ragged, **change))
    datasets = (
        tuple(part_moved(part, table) for part in parts)
        if [one.field for one in parts[0].targets] == [entry.columns]
        else parts
        for parts in layout.datasets
    )
    entries = (replace(entry, width=width) if n == k else one for n, one in enumerate(layout.entries))
    return replace(layout, fields=tuple(fields), datasets=tuple(datasets), entries=tuple(entries))


def joined_layout(layouts: Sequence[SampleLayout]) -> SampleLayout:
    """Return the layout of the rows of all layouts, in turn; they must give samples of one form.

    A field keeps the name that it has in the first: in groups of one file its path differs from group to group.
    """
    packed = _with_same_columns(layouts)
    layouts = [without_packings(layout) for layout in packed]
    first, files = layouts[0], dict[SourceIdentity, int]()
    for number, other in enumerate(layouts[1:], 1):
        _check_structure(first, other, number)
    if len({_column_forms(layout) for layout in layouts}) > 1:
        why = "one that is looked up (lookup=), in memory (Values) or an attribute in one of them must be so in all"
        raise OptionError(f"datasets that are read as one must have the same kinds of fields: {why}")
    renumbered = [
        _renumbered(layout, [files.setdefault(one, len(files)) for one in layout.files]) for layout in layouts
    ]
    firsts = [_file_parts(layout, 0, 0) for layout in layouts]
    paths = [layout.files[layout.datasets[0][0].file].path for layout in layouts]
    labels = [*map(repr, paths)]
    firsts = with_largest_shapes(firsts, labels)
    check_consistent(firsts, paths, labels)
    first = replace(first, fields=with_joined_meanings(firsts, paths, labels)[0].fields)
    is_grouped = len({tuple(tuple(t.field for t in part.targets) for part in one.parts) for one in firsts}) == 1
    parts, starts, of = list[FileParts](), [0], list[str]()
    for layout, label in zip(renumbered, labels, strict=True):
        for k in range(len(layout.file_starts) - 1):
            part = _file_parts(layout, k, starts[-1])
            if not is_grouped:  # in other files, other fields share a dataset
                alone = {t.field: replace(one, targets=(t,)) for one in part.parts for t in one.targets}
                part = replace(part, parts=tuple(alone[field] for field in sorted(alone)))
            parts.append(part)
            starts.append(starts[-1] + part.rows)
            of.append(label)
    parts = with_uniform_strings(with_largest_shapes(parts, of))
    aligned = tuple(zip(*(part.parts for part in parts), strict=True))
    space = _joined_space(layouts)
    lookups = [_joined_lookup(renumbered, k, len(aligned), parts[0].fields) for k in range(len(first.lookups))]
    layout = replace(
        first,
        files=tuple(files),
        file_starts=tuple(starts),
        left_out=sum(layout.left_out for layout in layouts),
        fields=parts[0].fields,
        datasets=(*aligned, *(dataset for dataset, _ in lookups)),
        lookups=share_arrays([one for _, one in lookups]),
        columns=tuple(_joined_column(layouts, k, tuple(starts), space) for k in range(len(first.columns))),
        space=space,
    )
    warn_of_meanings(layout := with_joint_packings(layout, packed))
    return layout


def _column_forms(layout: SampleLayout) -> tuple[object, ...]:
    """Return the forms of a layout's lookups and of its columns in memory, which joined layouts must share."""
    fields = (target.field for one in layout.lookups for target in layout.datasets[one.dataset][0].targets)
    lookup_forms = tuple(
        (one.counts is None, one.listed is None, one.spare is None, one.draw is None) for one in layout.lookups
    )
    strings = tuple((number, layout.fields[number].cut_at_nul) for number in fields)
    return lookup_forms, strings, tuple((number, column.steps) for number, column in layout.columns)


def _renumbered(layout: SampleLayout, numbers: Sequence[int]) -> SampleLayout:
    """Return a layout with other numbers for its files."""
    datasets = (tuple(replace(part, file=numbers[part.file]) for part in parts) for parts in layout.datasets)
    return replace(layout, datasets=tuple(datasets))


def _file_parts(layout: SampleLayout, k: int, start: int) -> FileParts:
    """Return part `k` of each dataset of a layout, which begins at row `start`."""
    parts = tuple(replace(dataset[k], row_start=start) for dataset in layout.aligned)
    rows = layout.file_starts[k + 1] - layout.file_starts[k]
    return FileParts(rows=rows, fields=layout.fields, parts=parts, entries=layout.entries)


def _joined_lookup(
    layouts: Sequence[SampleLayout], k: int, number: int, fields: Sequence[FieldLayout]
) -> tuple[tuple[DatasetPart, ...], Lookup]:
    """Return the joined parts of lookup `k` of all layouts, and the joined lookup with dataset `number + k`.

    `fields` are those of the joined layout: objects of any shape have room for the largest of all.
    """
    parts, rows, listed = list[DatasetPart](), list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    lookups = [layout.lookups[k] for layout in layouts]
    draws = tuple(one.draw for one in lookups if one.draw is not None)
    if any(one.paces is not None for one in lookups):
        lookups = [
            replace(one, paces=np.full(len(one.rows), one.length) if one.paces is None else one.paces)
            for one in lookups
        ]
    for layout, one in zip(layouts, lookups, strict=True):
        before = sum(part.rows for part in parts)
        if one.listed is None:
            rows.append(one.rows + before)
        else:
            rows.append(one.rows + sum(map(len, listed)))
            listed.append(one.listed + before)
        parts += [replace(part, row_start=part.row_start + before) for part in layout.datasets[one.dataset]]
    _check_stacked(layouts, lookups)
    if (field := fields[parts[0].targets[0].field]).shapes is not None:
        parts = [_resized(part, field.row_shape) for part in parts]
    others = {name: _concatenated([getattr(one, name) for one in lookups]) for name in ("counts", "spare", "paces")}
    others |= {"listed": np.concatenate(listed)} if listed else {}
    draw = None
    if draws:  # one function that calls each dataset's own for its samples
        counted = [layout.samples for layout in layouts], [one.rows for one in draws]
        starts, ends = ((0, *np.cumsum(counts).tolist()) for counts in counted)
        function = partial(look_up_each, draws, starts[:-1], ends[:-1])
        draw = replace(draws[0], function=function, rows=ends[-1])
    return tuple(parts), replace(lookups[0], dataset=number + k, rows=np.concatenate(rows), draw=draw, **others)


def _check_stacked(layouts: Sequence[SampleLayout], lookups: Sequence[Lookup]) -> None:
    """Raise if a field that needs the same number of rows for each sample has different ones."""
    field = layouts[0].fields[layouts[0].datasets[lookups[0].dataset][0].targets[0].field]
    if field.ragged is None or field.ragged.form != STACKED:
        return
    lengths = {int(rows) for one in lookups if one.counts is not None for rows in np.unique(one.counts)}
    if len(lengths) > 1:
        why = length_mismatch(lengths, "samples of datasets that are read as one have different numbers of rows")
        raise FieldLengthError(f"field {field.name!r}: {why}", field=field.name)


def _joined_column(
    layouts: Sequence[SampleLayout], k: int, starts: tuple[int, ...], space: Space | None
) -> tuple[int, SampleColumn]:
    """Return the field number and the column in memory for the samples of all layouts."""
    number, first = layouts[0].columns[k]
    if first.space is not None:
        return number, replace(first, space=space)
    values = _concatenated([layout.columns[k][1].values for layout in layouts])
    return number, replace(
        first, values=values, starts=starts if first.by_rows else ()
    ) if values is not None else first


def _concatenated(several: Sequence[Any]) -> Any:
    """Concatenate arrays, or lists; None if they are None."""
    if several[0] is None:
        return None
    return np.concatenate(several) if isinstance(several[0], np.ndarray) else [*itertools.chain(*several)]


def _joined_space(layouts: Sequence[SampleLayout]) -> Space | None:
    spaces = [layout.space for layout in layouts if layout.space is not None]
    if not spaces:
        return None
    first, why = spaces[0], ""
    if len(spaces) < len(layouts) or len({_space_form(layout) for layout in layouts}) > 1:
        why = "must have samples= of one kind, padded alike, along like axes, with one stride= and one accept=, and "
        why += "like columns of a Table; for objects that are stored in different ways"
    elif any(space.draws != first.draws for space in spaces) or (first.draws and first.draws.per_epoch is not None):
        why = "take one random start of each segment, or all starts; for per_epoch="
    if why:
        raise OptionError(f"datasets that are read as one {why} give one H5Dataset all files")
    return joined_space(spaces, np.cumsum([0] + [layout.rows for layout in layouts[:-1]]).tolist())


def _space_form(layout: SampleLayout) -> object:
    """Return the properties of a layout's space that joined layouts must share."""
    space = layout.space
    if space is None or space.edges is not None:
        return space and (space.pad, space.columns)
    along = tuple(tuple(one.origin for one in parts[0].along) for parts in layout.aligned)
    return space.pad, along, getattr(space.starts, "stride", None), space.volumes.shape[1], space.accept


def _check_structure(first: SampleLayout, other: SampleLayout, number: int) -> None:
    """Raise if two layouts have samples of different structure."""
    expected, theirs = first.shape, other.shape
    unlike_keys = expected.kind == "dict" and expected.keys != theirs.keys
    one, another = repr(first.files[0].path), repr(other.files[0].path)
    if expected.kind != theirs.kind or len(expected.keys) != len(theirs.keys) or unlike_keys:
        raise OptionError(
            f"datasets that are read as one must give samples of one structure: number {number} ({another}) gives "
            f"{_structure_text(other)}, but number 0 ({one}) gives {_structure_text(first)}; name the same fields="
        )
    if first.allow_external != other.allow_external:
        message = f"number 0 ({one}) has {first.allow_external} and number {number} ({another}) {other.allow_external}"
        raise OptionError(f"datasets that are read as one must agree in allow_external=: {message}")


def _structure_text(layout: SampleLayout) -> str:
    names = ", ".join(repr(key) for key in layout.shape.keys)
    return {"one": "only ", "tuple": "a tuple of ", "dict": "a dict of "}[layout.shape.kind] + names
