"""What is read as one: files, groups of one file, or whole layouts, which must agree in the shape and type of rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldLengthError, OptionError
from h5stream.samples.columns import ValueColumn, look_up_each
from h5stream.samples.packing import Packing
from h5stream.samples.ragged import ARRAYS, DENSE, STACKED, changed
from h5stream.samples.space import Along, Space, joined_space
from h5stream.storage.decode.columns import column_pieces
from h5stream.storage.decode.elements import Meanings, held_dtype, joined_meanings, same_type
from h5stream.storage.decode.small_floats import shown
from h5stream.storage.file.meanings import warn_of_meanings, with_joint_packings, without_packings
from h5stream.storage.file.stored import part_moved
from h5stream.storage.layout.axis_names import moved, unlike_names
from h5stream.storage.layout.layout import VIA_H5PY, DatasetPart, FieldLayout, Lookup, SampleLayout, SparseEntry
from h5stream.storage.open.extents import Extents
from h5stream.storage.open.lookups import LookedUp, of_two_meanings, shared, unlike_lengths, unlike_widths
from h5stream.storage.source.identity import SourceIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class FileParts:
    """What one file holds of a sample."""

    rows: int  # its rows
    fields: tuple[FieldLayout, ...]  # the entries of a batch, as this file would give them
    parts: tuple[DatasetPart, ...]  # the datasets that they are read from
    entries: tuple[Any, ...]  # as in `SampleLayout.entries`
    volume: Extents | None = None  # what is known of that, where samples are parts of a volume
    once: tuple[tuple[int, Any], ...] = ()  # by field number, what all of its rows have
    packed: tuple[tuple[int, Packing], ...] = ()  # and how numbers among that become floats
    are_objects: bool = False  # whether its rows are objects; `once` then has an array or a list of a value for each
    # the row of each object, where these do not follow one another as they are asked for
    anchors: NDArray[np.int64] | None = None
    left_out: int = 0  # objects that lack a field


def check_alike(files: Sequence[FileParts], paths: Sequence[str], labels: Sequence[str]) -> None:
    """Refuse files whose rows differ in shape or type; `labels` says what each is called."""
    first = files[0]
    once = {number for number, _ in first.once}
    for other, path, label in zip(files[1:], paths[1:], labels[1:], strict=True):
        where = "" if label == repr(path) else f" in {label}"
        for number, (a, b) in enumerate(zip(first.fields, other.fields, strict=False)):
            if a is b:
                continue
            wrong = _difference(a, b, labels[0], where, is_once=number in once)
            wrong = wrong or unlike_names(a.axes, b.axes, b.name, (labels[0], label))
            if wrong:
                raise FieldLengthError(f"{path!r}: {wrong}", field=b.name, file=path)
        if len(other.fields) != len(first.fields) or other.entries != first.entries:
            raise FieldLengthError(f"{path!r}: its compound members are not those of {paths[0]!r}", file=path)


def with_all_meanings(files: Sequence[FileParts], paths: Sequence[str], labels: Sequence[str]) -> list[FileParts]:
    """Give enums the labels of all files; refuse numbers that stand for one thing in one and for another in another."""
    first, fields = files[0], list(files[0].fields)
    unlike = [k for k, file in enumerate(files) if file.fields is not first.fields]
    for number, field in enumerate(fields):
        places = dict[Meanings, int]()
        for k in (0, *unlike):
            places.setdefault(files[k].fields[number].meanings, k)
        meanings, why = joined_meanings((each, labels[k]) for each, k in places.items())
        if why:
            path = paths[max(places.values())]
            raise FieldLengthError(f"{path!r}: {of_two_meanings(field.name, why)}", field=field.name, file=path)
        fields[number] = replace(field, meanings=meanings)
    return [replace(first, fields=tuple(fields)), *files[1:]]


def _difference(a: FieldLayout, b: FieldLayout, first: str, where: str, *, is_once: bool) -> str:
    """Say in what a field differs from that of the first file; nothing where it does not."""
    if why := unlike_widths(a, b, where, f" in {first}"):
        return why
    is_like = (a.kind, a.unit, a.row_shape, a.cast) == (b.kind, b.unit, b.row_shape, b.cast)
    if not (is_like and same_type(a.dtype, b.dtype)):
        casts = ("" if one.cast is None else f" cast to {one.cast}" for one in (b, a))
        said, other = (f"{o.unit or shown(o.dtype)} {o.row_shape}{cast}" for o, cast in zip((b, a), casts, strict=True))
        way_out = ". What is there once is of one shape in all; Field(..., ragged='pad') takes attributes of any length"
        way_out += " (also 'list', 'packed', 'nested'; 'arrays' any shape). Else take it from memory, Values(...)"
        return (
            f"field {b.name!r} has rows of {said}{where}, but {a.name!r} in {first} has rows of {other}; what is read "
            f"as one must agree{way_out if is_once else _hint(a, b)}"
        )
    if a.categories != b.categories:
        said = f"the categories of {b.name!r} are not those of {first}, so a code would not mean the same"
        return f"{said}; name {b.name + '/codes'!r} to take them as numbers"
    mine, others = (np.asarray(None if one.ragged is None else one.ragged.places) for one in (a, b))
    is_like = a.ragged == b.ragged and np.array_equal(mine, others)
    agreed = (
        ("takes other rows of a sample", "take=", (a.steps, a.at, a.pad) == (b.steps, b.at, b.pad)),
        ("is normalized otherwise", "normalize=", a.normalize == b.normalize),
        ("takes other columns, or comes in another form", "columns= and ragged=", is_like),
    )
    for what, option, is_same in agreed:
        if not is_same:
            return f"field {b.name!r} {what}{where} than in {first}; what is read as one has the same ({option})"
    return ""


def _hint(a: FieldLayout, b: FieldLayout) -> str:
    """Name the axis along which rows of unlike length lie, if it is one."""
    if not same_type(a.dtype, b.dtype) or len(a.row_shape) != len(b.row_shape):
        return ""
    unlike = [axis for axis, (m, n) in enumerate(zip(a.row_shape, b.row_shape, strict=True), a.steps is None) if m != n]
    if len(unlike) != 1 or unlike[0] == 0:
        return ""
    return (
        f". They differ along axis {unlike[0]}: if that is time, Sequences(..., axis={unlike[0]}) makes samples along "
        "it; else Field(..., ragged='arrays') with samples=Rows(of=...) gives each row in its own shape"
    )


def with_room_for_all(files: Sequence[FileParts], labels: Sequence[str]) -> list[FileParts]:
    """Give fields of which each file's samples have a shape of their own room for the largest along each axis."""
    files = list(files)
    for number, field in enumerate(files[0].fields):
        if field.shapes is None:
            continue
        shapes = [file.fields[number].row_shape for file in files]
        unlike = next((k for k, shape in enumerate(shapes) if len(shape) != len(shapes[0])), None)
        if unlike is not None:
            said = f"{len(shapes[unlike])} axes in {labels[unlike]}, and {len(shapes[0])} in {labels[0]}"
            why = f"field {field.name!r} has {said}; ragged='arrays' takes arrays of as many axes, of any length each"
            raise FieldLengthError(why, field=field.name)
        room = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        for k, file in enumerate(files):
            fields = (replace(one, row_shape=room) if n == number else one for n, one in enumerate(file.fields))
            parts = (_roomy(one, room) if any(t.field == number for t in one.targets) else one for one in file.parts)
            files[k] = replace(file, fields=tuple(fields), parts=tuple(parts))
    return files


def _roomy(part: DatasetPart, room: tuple[int, ...]) -> DatasetPart:
    sizes = iter(room)
    along = (Along(range(next(sizes))) if one.is_whole else one for one in part.along)
    return replace(part, along=tuple(along))


def with_named_shapes(layout: SampleLayout, looked_up: Iterable[LookedUp]) -> SampleLayout:
    """Give fields of objects that samples name, each of its own shape, room for the largest, and say the shapes."""
    for known, lookup in zip(looked_up, layout.lookups, strict=True):
        if known.shapes:
            shapes, fields, datasets = np.array(known.shapes), list(layout.fields), list(layout.datasets)
            room = tuple(shapes.max(axis=0).tolist())
            fields[known.entry] = replace(fields[known.entry], row_shape=room)
            datasets[lookup.dataset] = tuple(_roomy(part, room) for part in datasets[lookup.dataset])
            columns = (*layout.columns, (known.entry + 1, ValueColumn(shapes[lookup.rows])))
            layout = replace(layout, fields=tuple(fields), datasets=tuple(datasets), columns=columns)
    return layout


def with_rows_of_values(layout: SampleLayout) -> SampleLayout:
    """Give ragged fields that are attributes the type and the shape that rows of all their values have."""
    fields, columns = list(layout.fields), list(layout.columns)
    for k, (number, column) in enumerate(columns):
        one = fields[number]
        if one.ragged is None or one.kind != "object":
            continue
        values = rows_of_values(column.values, one)
        if values and isinstance(values[0], np.ndarray):
            row_shape = () if one.ragged.form == ARRAYS else values[0].shape[1:]
            unit = str(values[0].dtype) if values[0].dtype.kind in "mM" else ""
            values = [value.view(held_dtype(value.dtype)) for value in values]
            fields[number] = replace(one, dtype=values[0].dtype, row_shape=row_shape, unit=unit)
        elif one.ragged.form != "list":
            why = "is of texts, or of values that are no numbers, which come in lists: ragged='list'"
            raise OptionError(f"field {one.name!r} {why}, and not {one.ragged.form!r}")
        columns[k] = number, replace(column, values=values)
    return replace(layout, fields=tuple(fields), columns=tuple(columns))


def rows_of_values(values: Sequence[Any], field: FieldLayout) -> list[Any]:
    """Return values as rows, of one type and shape: arrays, or lists; a single one is a row, an empty one has none."""
    assert field.ragged is not None
    crop, whole = field.ragged.crop, slice(None)
    if field.ragged.form == DENSE:
        raise OptionError(f"field {field.name!r}: ragged='dense' is for sparse matrices; 'pad' fills attributes up")
    if crop is not None and crop.at != "start":
        said = f"of attributes a crop takes the first items, at='start', not {crop.at!r}"
        raise OptionError(f"field {field.name!r}: {said}; crop the batch in batch_transform=")
    rows = [_as_rows(value) for value in values]
    like: Any = next((one for one in rows if _holds(one)), next(iter(rows), []))
    wanted, taken = _row_of(like, field), whole if crop is None else slice(crop.length)
    for k, one in enumerate(rows):
        if _holds(one):
            if (row := _row_of(one, field)) != wanted:
                said, other = (f"{dtype or 'texts'} {shape}" for dtype, shape in (row, wanted))
                why = f"has rows of {said} in number {k:,} of {len(rows):,}, and of {other} in another"
                way_out = "they agree in all but their number, or, with ragged='arrays', in the number of axes"
                raise FieldLengthError(f"field {field.name!r} {why}; {way_out}", field=field.name)
        elif isinstance(like, np.ndarray):
            shape = one.shape if isinstance(one, np.ndarray) and one.ndim == like.ndim else (0,) * like.ndim
            rows[k] = np.empty(shape if field.ragged.form == ARRAYS else (0, *like.shape[1:]), like.dtype)
        else:
            rows[k] = []
    return [one[taken] for one in rows]


def _holds(rows: Any) -> bool:
    return bool(rows.size if isinstance(rows, np.ndarray) else rows)


def _as_rows(value: Any) -> Any:
    """Return a value as an array of an axis or more, or as a list."""
    if isinstance(value, h5py.Empty):
        return np.empty(0, value.dtype) if value.dtype.kind in "biufcmM" else []
    if isinstance(value, np.ndarray):
        return np.atleast_1d(value)
    return value if isinstance(value, list) else [value]


def _row_of(rows: Any, field: FieldLayout) -> tuple[str, tuple[int, ...] | int]:
    """Return what rows of a field have in common: their type and shape; no type for what is no array."""
    if not isinstance(rows, np.ndarray):
        return "", 0
    is_any = field.ragged is not None and field.ragged.form == ARRAYS
    return shown(rows.dtype), rows.ndim if is_any else rows.shape[1:]


def with_like_strings(files: list[FileParts]) -> list[FileParts]:
    """Let libhdf5 cut strings at their NUL where only some of the files hold strings that end there.

    A batch mixes rows of several files, so its strings can only be treated alike.
    """
    every = zip(*(file.fields for file in files), strict=True)
    unlike = {n for n, fields in enumerate(every) if len({one.cut_at_nul for one in fields}) > 1}
    why = "its strings end at a NUL, those of the other files do not"
    for k, file in enumerate(files if unlike else ()):
        cut, parts = {n for n in unlike if file.fields[n].cut_at_nul}, list(file.parts)
        for place, part in enumerate(parts):
            if part.index is not None and any(target.field in cut for target in part.targets):
                row_shape, targets = part.shape[1:], tuple(replace(target, leaf=None) for target in part.targets)
                pieces = column_pieces(row_shape, row_shape, part.columns)
                parts[place] = replace(part, access=VIA_H5PY, reason=why, index=None, pieces=pieces, targets=targets)
        fields = tuple(replace(one, cut_at_nul=False) if n in cut else one for n, one in enumerate(file.fields))
        files[k] = replace(file, fields=fields, parts=tuple(parts))
    return files


# --- whole layouts, one behind the other


def _with_like_columns(layouts: Sequence[SampleLayout]) -> Sequence[SampleLayout]:
    """Let the wanted columns of sparse matrices be those of the first, by their names, whatever their order in each."""
    for k in range(len(layouts[0].entries)):
        entries = [layout.entries[k] for layout in layouts if k < len(layout.entries)]
        if len(entries) < len(layouts) or not all(isinstance(one, SparseEntry) and one.is_dense for one in entries):
            continue
        if not all(layout.fields[one.values].axes for layout, one in zip(layouts, entries, strict=True)):
            continue  # nothing says whether they are the same
        every = [_places(layout, one) for layout, one in zip(layouts, entries, strict=True)]
        reference = every[0] if every[0][-1:] == -1 else np.append(every[0], np.int32(-1))
        is_one = all(np.array_equal(places, every[0]) for places in every)
        if not is_one and len({int(places.max(initial=-1)) for places in every}) == 1:
            layouts = [_with_places(layout, k, reference) for layout in layouts]
    return layouts


def _places(layout: SampleLayout, entry: SparseEntry) -> NDArray[np.int32]:
    """Return where each column of a matrix goes in a row of a batch."""
    ragged = layout.fields[entry.values].ragged
    assert ragged is not None
    assert ragged.places is not None
    return ragged.places


def _with_places(layout: SampleLayout, k: int, reference: NDArray[np.int32]) -> SampleLayout:
    """Return a layout whose entry `k`, a sparse matrix, has the columns of another one; the last is not wanted."""
    entry, fields, width = layout.entries[k], list(layout.fields), len(reference)
    if width > np.iinfo(fields[entry.columns].dtype).max:
        said = f"the columns of field {fields[entry.values].name!r} are {fields[entry.columns].dtype}, too narrow for"
        raise OptionError(f"{said} datasets that take other columns of theirs; write them as int32")
    table = moved(_places(layout, entry), reference)
    for number, change in ((entry.values, {"places": reference}), (entry.columns, {"width": width})):
        ragged = fields[number].ragged
        assert ragged is not None
        fields[number] = replace(fields[number], ragged=changed(ragged, **change))
    datasets = (
        tuple(part_moved(part, table) for part in parts)
        if [one.field for one in parts[0].targets] == [entry.columns]
        else parts
        for parts in layout.datasets
    )
    entries = (replace(one, width=width) if n == k else one for n, one in enumerate(layout.entries))
    return replace(layout, fields=tuple(fields), datasets=tuple(datasets), entries=tuple(entries))


def joined_layout(layouts: Sequence[SampleLayout]) -> SampleLayout:
    """Return the layout of the rows of all layouts, in turn; they must give samples of one form.

    A field keeps the name that it has in the first: in groups of one file its path differs from group to group.
    """
    packed = _with_like_columns(layouts)
    layouts = [without_packings(layout) for layout in packed]
    first, files = layouts[0], dict[SourceIdentity, int]()
    for number, other in enumerate(layouts[1:], 1):
        _check_structure(first, other, number)
    if len({_beside(layout) for layout in layouts}) > 1:
        why = "one that is looked up (lookup=), in memory (Values) or an attribute in one of them must be so in all"
        raise OptionError(f"datasets that are read as one must have the same kinds of fields: {why}")
    moved = [_moved(layout, [files.setdefault(one, len(files)) for one in layout.files]) for layout in layouts]
    firsts = [_part_of(layout, 0, 0) for layout in layouts]
    paths = [layout.files[layout.datasets[0][0].file].path for layout in layouts]
    labels = [*map(repr, paths)]
    firsts = with_room_for_all(firsts, labels)
    check_alike(firsts, paths, labels)
    first = replace(first, fields=with_all_meanings(firsts, paths, labels)[0].fields)
    is_grouped = len({tuple(tuple(t.field for t in part.targets) for part in one.parts) for one in firsts}) == 1
    parts, starts, of = list[FileParts](), [0], list[str]()
    for layout, label in zip(moved, labels, strict=True):
        for k in range(len(layout.file_starts) - 1):
            part = _part_of(layout, k, starts[-1])
            if not is_grouped:  # elsewhere some fields come from other datasets together
                alone = {t.field: replace(one, targets=(t,)) for one in part.parts for t in one.targets}
                part = replace(part, parts=tuple(alone[field] for field in sorted(alone)))
            parts.append(part)
            starts.append(starts[-1] + part.rows)
            of.append(label)
    parts = with_like_strings(with_room_for_all(parts, of))
    aligned = tuple(zip(*(part.parts for part in parts), strict=True))
    space = _joined_space(layouts)
    looked_up = [_joined_lookup(moved, k, len(aligned)) for k in range(len(first.lookups))]
    layout = replace(
        first,
        files=tuple(files),
        file_starts=tuple(starts),
        left_out=sum(layout.left_out for layout in layouts),
        fields=parts[0].fields,
        datasets=(*aligned, *(dataset for dataset, _ in looked_up)),
        lookups=shared([one for _, one in looked_up]),
        columns=tuple(_joined_column(layouts, k, tuple(starts), space) for k in range(len(first.columns))),
        space=space,
    )
    warn_of_meanings(layout := with_joint_packings(layout, packed))
    return layout


def _beside(layout: SampleLayout) -> tuple[Any, ...]:
    """Return what of a layout comes from elsewhere than its own rows: looked up, and in memory."""
    fields = (target.field for one in layout.lookups for target in layout.datasets[one.dataset][0].targets)
    looked_up = tuple(
        (one.counts is None, one.listed is None, one.spare is None, one.draw is None) for one in layout.lookups
    )
    strings = tuple((number, layout.fields[number].cut_at_nul) for number in fields)
    return looked_up, strings, tuple((number, column.steps) for number, column in layout.columns)


def _moved(layout: SampleLayout, numbers: Sequence[int]) -> SampleLayout:
    """Return a layout whose files have other numbers."""
    datasets = (tuple(replace(part, file=numbers[part.file]) for part in parts) for parts in layout.datasets)
    return replace(layout, datasets=tuple(datasets))


def _part_of(layout: SampleLayout, k: int, start: int) -> FileParts:
    """Return part `k` of each dataset of a layout, beginning at a row of the whole."""
    parts = tuple(replace(dataset[k], row_start=start) for dataset in layout.aligned)
    rows = layout.file_starts[k + 1] - layout.file_starts[k]
    return FileParts(rows=rows, fields=layout.fields, parts=parts, entries=layout.entries)


def _joined_lookup(layouts: Sequence[SampleLayout], k: int, number: int) -> tuple[tuple[DatasetPart, ...], Lookup]:
    """Return a dataset that all layouts look up, its parts in turn, and the rows that all samples have of it."""
    parts, rows, listed = list[DatasetPart](), list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    given = [layout.lookups[k] for layout in layouts]
    draws = tuple(one.draw for one in given if one.draw is not None)
    if any(one.paces is not None for one in given):
        given = [
            replace(one, paces=np.full(len(one.rows), one.length) if one.paces is None else one.paces) for one in given
        ]
    for layout, one in zip(layouts, given, strict=True):
        before = sum(part.rows for part in parts)
        if one.listed is None:
            rows.append(one.rows + before)
        else:
            rows.append(one.rows + sum(map(len, listed)))
            listed.append(one.listed + before)
        parts += [replace(part, row_start=part.row_start + before) for part in layout.datasets[one.dataset]]
    _check_stacked(layouts, given)
    others = {name: _concatenated([getattr(one, name) for one in given]) for name in ("counts", "spare", "paces")}
    others |= {"listed": np.concatenate(listed)} if listed else {}
    draw = None
    if draws:  # a function that asks each dataset's own for its samples
        counted = [layout.samples for layout in layouts], [one.rows for one in draws]
        starts, ends = ((0, *np.cumsum(counts).tolist()) for counts in counted)
        function = partial(look_up_each, draws, starts[:-1], ends[:-1])
        draw = replace(draws[0], function=function, rows=ends[-1])
    return tuple(parts), replace(given[0], dataset=number + k, rows=np.concatenate(rows), draw=draw, **others)


def _check_stacked(layouts: Sequence[SampleLayout], lookups: Sequence[Lookup]) -> None:
    """Refuse samples of unlike numbers of rows of a field of which each has as many."""
    field = layouts[0].fields[layouts[0].datasets[lookups[0].dataset][0].targets[0].field]
    if field.ragged is None or field.ragged.form != STACKED:
        return
    lengths = {int(rows) for one in lookups if one.counts is not None for rows in np.unique(one.counts)}
    if len(lengths) > 1:
        why = unlike_lengths(lengths, "samples of datasets that are read as one have different numbers of rows")
        raise FieldLengthError(f"field {field.name!r}: {why}", field=field.name)


def _joined_column(
    layouts: Sequence[SampleLayout], k: int, starts: tuple[int, ...], space: Space | None
) -> tuple[int, ValueColumn]:
    """Return a field that comes from no dataset, for the samples of all layouts."""
    number, first = layouts[0].columns[k]
    if first.space is not None:
        return number, replace(first, space=space)
    values = _concatenated([layout.columns[k][1].values for layout in layouts])
    return number, replace(
        first, values=values, starts=starts if first.by_rows else ()
    ) if values is not None else first


def _concatenated(several: Sequence[Any]) -> Any:
    """Put arrays, or lists, one behind the other; None for none."""
    if several[0] is None:
        return None
    return np.concatenate(several) if isinstance(several[0], np.ndarray) else [*itertools.chain(*several)]


def _joined_space(layouts: Sequence[SampleLayout]) -> Space | None:
    spaces = [layout.space for layout in layouts if layout.space is not None]
    if not spaces:
        return None
    first, why = spaces[0], ""
    if len(spaces) < len(layouts) or len({_form_of(layout) for layout in layouts}) > 1:
        why = "must have samples= of one kind, padded alike, along like axes, with one stride= and one accept=, and "
        why += "like columns of a Table; for objects that are stored in different ways"
    elif any(space.draws != first.draws for space in spaces) or (first.draws and first.draws.per_epoch is not None):
        why = "take one random start of each segment, or all starts; for per_epoch="
    if why:
        raise OptionError(f"datasets that are read as one {why} give one H5Dataset all files")
    return joined_space(spaces, np.cumsum([0] + [layout.rows for layout in layouts[:-1]]).tolist())


def _form_of(layout: SampleLayout) -> Any:
    """Return what of a space must agree for it to be read as one with others."""
    space = layout.space
    if space is None or space.edges is not None:
        return space and (space.pad, space.columns)
    along = tuple(tuple(one.origin for one in parts[0].along) for parts in layout.aligned)
    return space.pad, along, getattr(space.starts, "stride", None), space.volumes.shape[1], space.accept


def _check_structure(first: SampleLayout, other: SampleLayout, number: int) -> None:
    """Refuse datasets that give samples of unlike structure."""
    ours, theirs = first.shape, other.shape
    unlike_keys = ours.kind == "dict" and ours.keys != theirs.keys
    one, another = repr(first.files[0].path), repr(other.files[0].path)
    if ours.kind != theirs.kind or len(ours.keys) != len(theirs.keys) or unlike_keys:
        raise OptionError(
            f"datasets that are read as one must give samples of one structure: number {number} ({another}) gives "
            f"{_words(other)}, but number 0 ({one}) gives {_words(first)}; name the same fields="
        )
    if first.allow_external != other.allow_external:
        said = f"number 0 ({one}) has {first.allow_external} and number {number} ({another}) {other.allow_external}"
        raise OptionError(f"datasets that are read as one must agree in allow_external=: {said}")


def _words(layout: SampleLayout) -> str:
    names = ", ".join(repr(key) for key in layout.shape.keys)
    return {"one": "only ", "tuple": "a tuple of ", "dict": "a dict of "}[layout.shape.kind] + names
