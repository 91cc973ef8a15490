"""The fields of a sample in one file: names become datasets, members, columns in memory, and what fills them."""

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
from numpy.typing import NDArray

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
from h5stream.storage.decode.elements import as_samples_have_it, dtype_of
from h5stream.storage.decode.images import Images
from h5stream.storage.decode.small_floats import shown, widened_dtype
from h5stream.storage.file.discovery import (
    PARTS,
    Thing,
    categories_of,
    is_matrix,
    is_there,
    refusal,
    region_rows,
    shape_of,
    thing_at,
    why_not_opened,
)
from h5stream.storage.file.groups import ELSEWHERE, RawFile
from h5stream.storage.file.meanings import check_is_number, meaning_of, packing_of
from h5stream.storage.file.stored import OpenFile, Place, part_moved, part_of
from h5stream.storage.layout.axis_names import AxisNames, axis_names, chosen_by_name, moved, unlike_names
from h5stream.storage.layout.fields import Field, SampleShape, Take, check_options, columns_wanted, not_ragged
from h5stream.storage.layout.layout import DECODED, DIRECT, VIA_H5PY, DatasetPart, FieldLayout, SparseEntry, Target
from h5stream.storage.many.members import EachBytes, Lying, ObjectsOfFile, UnlikeError, asked_of, find, inside_of
from h5stream.storage.many.stacked import bytes_of_each, row_of_each, rows_of_each, with_meanings
from h5stream.storage.open.extents import Extents, SampleKind
from h5stream.storage.open.joining import FileParts
from h5stream.storage.open.lookups import Key, LookedUp, counted, unlike_widths
from h5stream.storage.source.handles import DAMAGE

Described = tuple[Any, list[FieldLayout], list[Target]]
"""What a dataset gives to a batch: the number of its field, or a dict of numbers; the fields, and what fills which."""


@dataclass(slots=True)
class _Found:
    """What has been found of the fields of a sample in one open file, or in a group of it."""

    opened: OpenFile
    row_start: int
    samples: SampleKind | None
    extents: Extents | None
    looked_up: dict[Key, LookedUp]
    fields: list[FieldLayout] = field(default_factory=list)
    once: list[tuple[int, Any]] = field(default_factory=list)
    packed: list[tuple[int, Packing]] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)  # how many rows each field says there are
    named: dict[str, int] = field(default_factory=dict)  # and what looked up objects say where none does
    # ragged fields, what datasets say of their rows, and where those of this part begin
    stretches: list[tuple[LookedUp, Stretches | RowLists, list[Any], int]] = field(default_factory=list)
    chosen: dict[Key, int] = field(default_factory=dict)  # how many rows datasets name of fields that are looked up
    is_doubtful: bool = False  # whether bounds say that, which may be starts or ends of one sample more
    numbers: tuple[str, list[int]] | None = None  # the first field with {} in its name, and the numbers of its objects
    said_in: tuple[OpenFile, str] | None = None  # a dataset that says which rows samples have: its file, its name
    # datasets of which samples take rows of their own, once for all fields that they fill
    read: dict[Any, tuple[Place, Field, tuple[Along, ...], list[Target]]] = field(default_factory=dict)
    parts: list[DatasetPart] = field(default_factory=list)  # objects that are bytes
    # what stands for the rows where none has a row a sample: the least, and the first of these
    bearers: list[tuple[int, DatasetPart]] = field(default_factory=list)

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
        """Whether fields are cut to as many rows as the shortest has."""
        samples = self.samples
        return isinstance(samples, Sequences) and samples.lengths == "shortest" and self.extents is None

    @property
    def counts(self) -> dict[str, int]:
        """How many samples datasets name a row for, one each."""
        return {self.looked_up[key].name: count for key, count in self.chosen.items() if self.extents is None}

    def add(self, *field: Any, **layout: Any) -> int:
        """Add a field that comes from no dataset; return its number."""
        self.fields.append(_field(*field, **layout))
        return len(self.fields) - 1


def _field(name: str, dtype: Any, row_shape: tuple[int, ...] = (), **layout: Any) -> FieldLayout:
    kind = "object" if dtype is object else "array"
    return FieldLayout(name=name, kind=kind, dtype=np.dtype(dtype), row_shape=row_shape, **layout)


def read_fields(
    opened: OpenFile,
    shape: SampleShape,
    group: str = "",
    samples: SampleKind | None = None,
    row_start: int = 0,
    looked_up: dict[Key, LookedUp] | None = None,
) -> FileParts:
    """Find all fields of a sample; of many groups, names say nothing of the one that they are found in."""
    extents = Extents.among(samples, shape.fields)
    found = _Found(opened, row_start, samples, extents, {} if looked_up is None else looked_up)
    entries = tuple(_add(found, (place, ""), one) for place, one in enumerate(shape.fields))
    rows = _rows(found, shape)
    along = found.extents.elements if found.extents else {}
    places = along[0][0] if len(along) == 1 else rows  # or along the axis that samples lie along
    for known in found.looked_up.values():
        known.is_alone = not (found.lengths or found.counts or (found.stretches and not found.is_doubtful))
    for known, said, values, first in found.stretches:
        known.add_stretches(said, values, places, first, repr(found.path))
    for key, count in found.chosen.items():
        if count != rows:
            found.looked_up[key].check_count(count, places, repr(found.path))
    parts = [*(_part(found, *each, start=row_start) for each in found.read.values()), *found.parts]
    if found.cuts:
        parts = [replace(part, rows=rows) for part in parts]
    shown = {one.name: one.shown for one in shape.fields if isinstance(one, Field) and one.shown != one.name}
    return FileParts(
        rows=rows,
        fields=tuple(
            replace(one, name=shown.get(one.name, one.name.removeprefix(f"{group}/"))) for one in found.fields
        ),
        parts=tuple(parts or _rows_alone(found, rows)),
        entries=entries,
        once=tuple(found.once),
        packed=tuple(found.packed),
        volume=extents,
    )


def _rows(found: _Found, shape: SampleShape) -> int:
    """Return the rows that fields agree in, or what is looked up says of them where no field has rows."""
    lengths = found.lengths or found.counts or found.named
    lengths = lengths or ({"the object": 1} if found.are_objects and found.once else {})
    if not lengths:
        said = f"none of the fields {', '.join(map(repr, shape.keys))} says how many samples there are"
        raise OptionError(
            f"{found.path!r}: {said}; name at least one dataset with an axis of rows{_in_all_files(found)}"
        )
    if len(set(lengths.values())) > 1 and not found.cuts:
        listing = ", ".join(f"{name!r} has {rows:,}" for name, rows in lengths.items())
        said = f"{found.path!r}: the fields of a sample must agree in rows, but {listing}; name fields of one length; "
        said += "Field(..., take='all') is what a file or a group has once, and Sequences(..., lengths='shortest') "
        said += f"leaves out rows that some lack. `h5stream inspect {shlex.quote(found.path)}` says what fits together"
        raise FieldLengthError(said, file=found.path)
    return min(lengths.values())


def _in_all_files(found: _Found, named: tuple[str, ...] = ()) -> str:
    """Say how what is in memory is looked up in several files, where these are the source."""
    if named or found.opened.files.named == 1:
        return ""
    said = ". What lookup= has in memory is looked up in the first file of the source: give that alone, and all files"
    return f"{said} as Field(..., file=[...]), or a list of an H5Dataset for each file"


def _rows_alone(found: _Found, rows: int) -> Iterator[DatasetPart]:
    """Yield what says which rows samples have as a dataset of no field, where nothing else has a row a sample."""
    bearer = min(found.bearers, key=lambda one: one[0])[1] if found.bearers else None
    if found.said_in is not None:
        there, name = found.said_in
        thing = there.find(name)
        bearer = part_of(there, there.place(thing), thing.path)
    elif bearer is None and found.are_objects:  # single values alone
        why, here = "nothing is read of it", found.opened.number
        bearer = DatasetPart(
            file=here, path="", rows=1, row_start=0, access=DIRECT, reason=why, chunk_rows=1, shape=(1,)
        )
    if bearer is not None:
        yield replace(bearer, row_start=found.row_start, rows=rows, pieces=(), targets=(), heap=None, along=())


# --- entries: what the user asked for, by what it is


def _add(found: _Found, key: Key, asked: Field | VirtualField) -> Any:
    """Add what one entry of a sample holds; return the number of its field, or a dict of numbers."""
    if not isinstance(asked, Field):
        return _add_column(found, asked)
    thing, where = _object_named(found, asked)
    if isinstance(thing, h5py.Group):
        _check_links_inside(found, asked, where)
    if is_matrix(thing):
        return _add_matrix(found, key, asked, thing, where)
    if isinstance(asked.columns, ColumnNames) and not (asked.file and asked.lookup is not None):
        asked = _with_columns(found, key, asked, next(_sources(found, asked)))
    if (categories := categories_of(thing)) is not None:
        entry = _add(found, key, changed(asked, name=Within(f"{where}/codes", "")))
        found.fields[entry] = replace(found.fields[entry], name=asked.name, categories=categories)
        return entry
    if asked.lookup is not None:
        return (_add_objects if asked.names_objects else _add_looked_up)(found, key, asked)
    if asked.is_numbered and found.opened.means(asked.name) is None:
        return _add_numbered(found, key, asked)
    if found.opened.is_attribute(asked.name):
        return _add_once(found, asked)
    if asked.decode and found.are_objects:
        return _add_bytes_of_object(found, asked)
    if asked.has_own_shape:
        return _add_arrays(found, key, asked)
    if asked.ragged is not None and not asked.decode:
        return _add_ragged(found, key, asked)
    if asked.repeat:
        return _add_once(found, asked)
    is_shared = asked.name.startswith("/") and not asked.file and isinstance(thing, h5py.Dataset) and thing.shape == ()
    if is_shared or (found.extents is not None and found.extents.has_once(thing)):
        return _add_once(found, asked)
    return _add_rows(found, asked)


def _with_columns(found: _Found, key: Key, asked: Field, there: OpenFile, width: int = 0) -> Field:
    """Return a field with the numbers of columns that a user names; a sparse matrix has so many columns."""
    wanted = asked.columns
    if not isinstance(wanted, ColumnNames):
        return asked
    if wanted.by_place:
        return changed(asked, columns=(Ellipsis,))
    thing = None if width or asked.names_objects or asked.is_numbered else there.find(asked.name)
    if not width and wanted.names and (thing is None or _inner_dtype(thing).names):  # they are members of a compound
        return changed(asked, columns=None, members=wanted.names)
    if asked.has_own_shape:
        why = ": ragged='arrays' takes whole arrays, and columns= names columns; the members of a compound can be named"
        raise _refused(there, asked, why, OptionError)
    where = axis_names(there.file, asked.name.strip("/") if thing is None else thing.path, there.identity, width)
    labels = [one for one in where if one.axis == 1]
    if not labels:
        why = ": columns= names columns, and the file has no names of them, as the index of var is in AnnData, or a "
        raise _refused(there, asked, f"{why}dimension scale of texts; columns=[0, 1] takes numbers", OptionError)
    names = [*map(str, labels[0].read().tolist())]
    first, _ = found.opened.files.columns.setdefault((key[0], "names"), (names, np.zeros(0, np.int32)))
    try:
        numbers = chosen_by_name(wanted, names, first)
    except OptionError as error:
        raise _refused(there, asked, f": {error}", OptionError) from None
    before = 0 if thing is None else _axes_before_columns(found, asked, there, thing.dataset.shape)
    return changed(asked, columns=(*[slice(None)] * before, numbers) if before else numbers)


def _axes_before_columns(found: _Found, asked: Field, there: OpenFile, shape: tuple[int, ...]) -> int:
    """Return how many axes a sample has before the one whose columns have names, which is axis 1 of the dataset."""
    if found.extents is None or asked.lookup is not None or (found.are_objects and asked.ragged is not None):
        return 0
    assert found.samples is not None
    along, _ = Extents.of(found.samples).take(shape, changed(asked, columns=None), there.path)
    kept = [axis for axis, one in enumerate(along) if one.origin is None]
    if 1 not in kept:
        why = ": columns= names columns, which are along axis 1 of the dataset, and so are the samples here; leave it "
        raise _refused(there, asked, f"{why}out, or take of the other axes by numbers, columns=[0, 1]", OptionError)
    return kept.index(1)


def _axes(
    found: _Found, asked: Field, thing: Thing, there: OpenFile, along: tuple[Along, ...]
) -> tuple[AxisNames, ...]:
    """Return where the columns that a field takes of a dataset have names; none of a field by place, and of objects."""
    if found.are_objects or asked.columns == (Ellipsis,) or thing.member or len(thing.dataset.shape) < 2:
        return ()
    named = axis_names(there.file, thing.path, there.identity, first=0 if along else 1)
    if along:
        return tuple(
            replace(one, taken=tuple(along[one.axis].offsets)) for one in named if along[one.axis].origin is None
        )
    if asked.columns is None or not named:
        return named
    taken = [tuple(numbers.tolist()) for numbers, _ in axes_taken(thing.dataset.shape[1:], asked.columns)]
    return tuple(replace(one, taken=taken[one.axis - 1]) for one in named)


def _add_rows(found: _Found, asked: Field) -> Any:
    """Add a field of which each sample takes its own row, or several, or a part of a volume."""
    (there,) = _sources(found, asked)
    thing = _thing(there, asked.name)
    name = asked.name if not asked.file else f"{asked.name} of {there.path}"
    found.lengths[name] = thing.dataset.shape[0] if found.extents is None else 1
    where, at = there.place(thing), _at(found, asked)
    along: tuple[Along, ...] = ()
    steps, columns = None, ""
    if found.extents is None:
        (shape, steps), columns = _rows_taken(found, thing, asked), repr(asked.columns)
    else:
        along, shape = found.extents.take(thing.dataset.shape, asked, there.path)
    entry, layouts, targets = _described(found, asked, thing, shape, steps)
    if len(layouts) == 1:
        layouts = [replace(layouts[0], axes=_axes(found, asked, thing, there, along))]
    found.fields += layouts
    for target, layout in zip(targets, layouts, strict=True):
        # Values of variable length lie elsewhere, those of each member by themselves.
        apart = target.field if layout.dtype.kind == "O" else None
        key = (where.number, thing.path, apart, columns, steps, at, asked.take.pad, along, asked.decode, asked.length)
        found.read.setdefault(key, (where, asked, along, []))[-1].append(target)
    return entry


def _add_numbered(found: _Found, key: Key, asked: Field) -> Any:
    """Add a field whose rows are objects with numbers in their names."""
    (there,) = _sources(found, asked)
    numbers, names = _numbered(asked, there)
    known, found.lengths[asked.name] = None, 1 if found.are_objects else len(names)
    if found.are_objects and asked.ragged is not None and not (asked.decode or asked.has_own_shape):
        known = _known(found, key, asked)
    elif found.extents is not None or asked.repeat or asked.take.axis not in (None, 0) or asked.take.scale:
        why = ": {} in a name makes objects the rows along axis 0, of Sequences, Rows(of=) or Table, and with ragged="
        raise _refused(there, asked, f"{why} for Objects", OptionError)
    elif asked.ragged is not None and not asked.decode:
        raise not_ragged(asked.name)
    other, others = found.numbers or ("", numbers)
    if known is None and any(a != b for a, b in zip(others, numbers, strict=False)):
        why = f": its objects have other numbers than those of {other!r}; name fields of the same numbers"
        raise _refused(there, asked, why, FieldLengthError)
    found.numbers = found.numbers or (asked.name, numbers)
    start = found.row_start if known is None else known.rows
    (entry, layouts, _), part = _rows_of_objects(found, asked, there, names, start)
    found.fields += layouts
    if known is None:
        found.parts.append(part)
    else:
        known.add_part(part, entry, layouts, there.path)
        known.add_rows(np.array([part.row_start]), np.array([part.rows]))
        found.bearers.append((1, part))
    return entry


def _numbered(asked: Field, there: OpenFile) -> tuple[list[int], list[Within]]:
    """Return the numbers of objects that a name with {} in it names, ascending, and their names."""
    for template in templates(asked.name):
        (above, _, stem), (tail, _, below) = template.before.lstrip("/").rpartition("/"), template.behind.partition("/")
        there.guard.check_links(there.file, above, there.path)
        group, like = there.file.get(above or "/"), re.compile(rf"{re.escape(stem)}(\d+){re.escape(tail)}", re.ASCII)
        every = [like.fullmatch(name) for name in group] if isinstance(group, h5py.Group) else []
        if pairs := sorted((int(one[1]), one[0]) for one in every if one):
            paths = (inside_of(inside_of(above, name), below) for _, name in pairs)
            return [number for number, _ in pairs], [Within(path.strip("/"), template.rest) for path in paths]
    if "{}" not in asked.name.partition(":")[0]:  # they may be of a member that is not there
        there.find(asked.name)
    why = f": nothing has a name such as {asked.name.replace('{}', '0')!r}; {{}} stands for a whole number, and "
    why += f"{quoted(asked.name, '{')!r} is a name that has {{}} itself."
    raise _refused(there, asked, why, FieldNotFoundError)


def _rows_of_objects(
    found: _Found, asked: Field, there: OpenFile, named: list[Within], start: int
) -> tuple[Described, DatasetPart]:
    """Return objects of one shape as rows of a dataset, and what it gives to a batch."""
    first, names = there.find(named[0]), [one.literal for one in named]
    if not first.dataset.shape and not asked.decode:
        why = f": {names[0]!r} is a single value, not a row; Objects(...) takes such, else write them as one dataset"
        raise _refused(there, asked, why)

    def described(thing: Thing) -> tuple[Described, DatasetPart]:
        steps = None if asked.ragged is not None else steps_of(asked.take.steps, found.sequences, asked.name)
        along, shape = Extents.of(Objects("*")).take(thing.dataset.shape, changed(asked, take=Take()), there.path)
        new = _described(found, asked, thing, shape if steps is None else (len(steps), *shape), steps)
        return new, part_of(there, there.place(thing), thing.path, None, along, new[-1], row_start=start)

    with RawFile(there.file, there.guard) as raw:
        members = ObjectsOfFile(raw, Names.of(names, raw.addresses(names)))
        if asked.decode:
            return _images(found, asked, members, there, start)
        new, part = described(first)
        if part.access not in (DIRECT, DECODED):
            why = f", {part.reason}: rows that are objects are of numbers that h5stream reads without libhdf5"
            raise _unread(there, asked, why, part)
        try:
            lying = Lying("", len(names), asked_of(there.file, names[0]))
            which = find(members, [lying])
            part = row_of_each(members, which, lying, replace(part, path=names[0], objects=members.names))
        except UnlikeError as error:
            if raw.behind(str(error)) == ELSEWHERE:
                raise _not_in_file(there, str(error), "a name with {}") from None
            why = f": {str(error)!r} is not stored as {names[0]!r} is, and objects that are rows are stored alike"
            raise _refused(there, asked, why) from None
        lacking = np.bincount(part.chunk_index.numbers // part.chunk_index.columns, minlength=len(names))
        for row in np.flatnonzero(lacking < part.chunk_index.columns)[:1].tolist():
            one = there.find(named[row])
            part = replace(part, targets=described(one)[1].targets)
        part = with_meanings(part, members, which, lying, np.arange(len(which)))
    return new, part


def _add_arrays(found: _Found, key: Key, asked: Field) -> Any:
    """Add a field of which each sample has a shape of its own, and the shape that those of this part have."""
    kind = None if found.extents is None else found.extents.kind
    takes_points = kind is not None and kind.is_point and isinstance(found.samples, Rows)
    if not found.are_objects and not takes_points:
        raise OptionError(f"Field({asked.name!r}, ragged='arrays') is for samples=Objects(...), or Rows(of=...)")
    entry = _add(found, key, changed(asked, ragged=None))
    if not isinstance(entry, int) or found.fields[entry].kind != "array" or any(n == entry for n, _ in found.once):
        raise _no_array(found, asked)
    one = found.fields[entry]
    found.fields[entry] = replace(one, shapes=len(found.fields))
    found.once.append((len(found.fields), np.array(one.row_shape, dtype=np.int64)))
    found.fields.append(_shape_of(one))
    return entry


def _shape_of(one: FieldLayout) -> FieldLayout:
    """Return the field that says which shape a sample has of a field of which each has its own."""
    return _field(f"shape of {one.name}", np.int64, (len(one.row_shape),))


def _no_array(found: _Found, asked: Field) -> H5StreamError:
    why = "takes numbers along axes, and no compounds, strings or single values; name a member, or leave it out"
    return _refused(found.opened, asked, f": ragged='arrays' {why}")


def _add_column(found: _Found, given: VirtualField) -> int:
    """Add a field that comes from no dataset; return its number."""
    if isinstance(given, Padding):
        if found.sequences is None:
            raise OptionError("Padding() tells what was padded of a sequence, so it needs samples=Sequences(...)")
        steps = steps_of(given.steps, found.sequences, "Padding()")
        assert steps is not None
        return found.add(given.name, bool, (len(steps),))
    if not isinstance(given, Values):
        return found.add(given.name, np.int64)
    return _add_value(found, given.name, given.values, given.dtype, alone=False)


def _add_once(found: _Found, asked: Field) -> Any:
    """Add a field that the whole part has once: an attribute, or a dataset without an axis of rows."""
    check_options("once" if asked.ragged is None else "attributes", asked, found.samples, found.path)
    if asked.ragged is not None:  # of what type and shape the values are is found out once all are known
        number = found.add(asked.name, object, cast=asked.dtype, ragged=asked.ragged)
        found.once.append(
            (number, as_samples_have_it(elements.value_as_asked(found.opened.once(asked.name), asked.dtype)))
        )
        return number
    thing = found.opened.find(asked.name) if asked.missing and not found.opened.is_attribute(asked.name) else None
    if asked.missing and (thing is None or found.are_objects):
        why = ": missing= is for datasets, not for attributes or single values of objects; leave it out, and change the"
        raise _refused(found.opened, asked, f"{why} batch in batch_transform=", OptionError)
    value, stored = elements.value_as_asked(found.opened.once(asked.name), asked.dtype), None
    first, dtype = len(found.fields), elements.compound_of(value)
    for member, kind in _leaves_of(dtype, ()) if dtype is not None else [((), None)]:
        if kind is not None and kind.subdtype is not None and kind.subdtype[0].fields is not None:
            why = "an array of compounds inside a compound has no tensor form"
            raise _refused(found.opened, asked, f" is a compound, and of its member {':'.join(member)!r}: {why}")
        one = as_samples_have_it(elements.member_of(value, member))
        number = _add_value(found, ":".join((asked.name, *member)), one, asked.dtype)
        found.once.append((number, one))
        if isinstance(one, np.ndarray) and one.dtype.kind in "iu":
            stored = found.opened.once_type(asked.name) if stored is None else stored
            meanings = elements.meanings_of(elements.member_type(stored, member))
            found.fields[number] = replace(found.fields[number], meanings=meanings)
        if thing is not None:
            check_is_number(found.fields[number])
            named = (*thing.member, *member), found.fields[number].dtype
            found.packed.append((number, packing_of(thing.dataset, *named, asked.missing, found.path)))
    return first if dtype is None else _entry_of(dtype, itertools.count(first))


def _add_value(found: _Found, name: str, value: Any, cast: Any, *, alone: bool = True) -> int:
    """Add a field of values in memory: one alone that all samples have, or one for each."""
    if not isinstance(value, np.ndarray):
        return found.add(name, object, cast=cast)
    shape, dtype = value.shape if alone else value.shape[1:], elements.held_dtype(value.dtype)
    return found.add(name, dtype, shape, cast=cast, unit=_unit(value.dtype))


def _add_matrix(found: _Found, key: Key, asked: Field, group: Any, where: str) -> SparseEntry:
    """Add a sparse matrix: its values, and the column of each."""
    check_options("sparse", asked, found.samples, found.path)
    name, why = asked.name.strip("/"), ""
    data, indices, indptr = (Within(f"{where}/{part}", "") for part in ("data", "indices", "indptr"))
    form = None if asked.ragged is None else asked.ragged.form
    if found.are_objects:
        why = "whose rows are samples: samples=Rows(of=...) takes those of many groups"
    elif form not in ("packed", DENSE) or not (
        asked.columns is None or form == DENSE or isinstance(asked.columns, ColumnNames)
    ):
        why = f"so write Field({asked.name!r}, ragged='dense'), rows of which columns= takes some, or ragged='packed'"
    if why:
        raise _refused(found.opened, asked, f" is a sparse matrix, {why}")
    is_dense, is_named = form == DENSE, isinstance(asked.columns, ColumnNames) and not asked.columns.by_place
    sources = [(there, shape_of(there.file[where], name, there.path)[1]) for there in _sources(found, asked)]
    width, moves, axes = sources[0][1], list[NDArray[np.int64] | None](), tuple[AxisNames, ...]()
    places = columns_wanted(_with_columns(found, key, asked, *sources[0]), width) if is_dense or is_named else None
    if is_named:
        places, moves = _lined_up(found, key, asked, sources, is_dense=is_dense)
        width = len(places)
    if not (isinstance(asked.columns, ColumnNames) and asked.columns.by_place):
        axes = _axes_of_matrix(found, key, asked, sources, where)
    plain = changed(asked, columns=None, normalize=None)
    of_values = changed(Ragged(form or "packed"), places=places if is_dense else None)
    before = counted(found.looked_up).get((key[0], "indices"), (0,))[0]
    number = _add_looked_up(found, (key[0], "data"), changed(plain, name=data, ragged=of_values), indptr)
    others = changed(plain, name=indices, dtype=None, ragged=changed(Ragged(), width=width))
    columns = _add_looked_up(found, (key[0], "indices"), others, indptr)
    if not is_named:
        _check_widths(found, asked, found.fields[columns], where)
    found.fields[number] = replace(found.fields[number], name=asked.name, axes=axes)
    parts = found.looked_up[key[0], "indices"].parts
    for k, table in enumerate(moves[: len(parts) - before], before):
        parts[k] = part_moved(parts[k], table)
    if is_named and found.fields[columns].dtype.kind in "iu" and width > np.iinfo(found.fields[columns].dtype).max:
        why = f"whose columns are {found.fields[columns].dtype}, too narrow to be named; write them as int32"
        raise _refused(found.opened, asked, f" is a sparse matrix {why}")
    if widened_dtype(found.fields[columns].dtype).kind not in "iu" or not isinstance(number, int):
        why = f"whose columns are {shown(found.fields[columns].dtype)}, and not whole numbers"
        raise _refused(found.opened, asked, f" is a sparse matrix {why}")
    if form == DENSE and (kind := found.fields[number].dtype).str[1:] in ("f2", "f16", "c32"):
        raise _refused(found.opened, asked, f" is a sparse matrix of {kind}, which ragged='packed' gives, 'dense' not")
    width -= is_named
    return SparseEntry(
        values=number, columns=columns, width=width, is_dense=is_dense, is_renumbered=is_named and not is_dense
    )


def _lined_up(
    found: _Found, key: Key, asked: Field, sources: list[tuple[OpenFile, int]], *, is_dense: bool
) -> tuple[NDArray[np.int32], list[NDArray[np.int64] | None]]:
    """Return the place in a row of each column of the first file, and by what to replace the columns of these files.

    A last column without a place stands for all that are not wanted. Packed rows have the places for columns.
    """
    known, moves, place = found.opened.files.columns, list[NDArray[np.int64] | None](), (key[0], "places")
    for there, width in sources:
        own = columns_wanted(_with_columns(found, key, asked, there, width), width)
        first = own if is_dense else np.arange(own.max(initial=-1) + 1, dtype=np.int32)
        _, reference = known.setdefault(place, ([], np.append(first, np.int32(-1))))
        moves.append(moved(own, reference))
    return reference, moves


def _axes_of_matrix(
    found: _Found, key: Key, asked: Field, sources: list[tuple[OpenFile, int]], where: str
) -> tuple[AxisNames, ...]:
    """Return where the wanted columns of a sparse matrix have names; refuse files in which these differ."""
    every = list[tuple[AxisNames, ...]]()
    for there, width in sources:
        own = columns_wanted(_with_columns(found, key, asked, there, width), width)
        taken = (
            None
            if asked.columns is None
            else tuple(np.argsort(np.where(own < 0, width, own), kind="stable")[: own.max(initial=-1) + 1].tolist())
        )
        every.append(tuple(replace(one, taken=taken) for one in axis_names(there.file, where, there.identity, width)))
        if why := unlike_names(every[0], every[-1], asked.name, (repr(sources[0][0].path), repr(there.path))):
            raise _refused(there, asked, f": {why}", FieldLengthError)
    return every[0]


def _check_widths(found: _Found, asked: Field, columns: FieldLayout, where: str) -> None:
    """Refuse a matrix that has other columns in a further one of its own files."""
    assert columns.ragged is not None
    for there in itertools.islice(_sources(found, asked), 1, None):
        group = there.file.get(where)
        width = shape_of(group, asked.name, there.path)[1] if is_matrix(group) else columns.ragged.width
        if why := unlike_widths(columns, replace(columns, ragged=changed(columns.ragged, width=width))):
            raise refusal(there.path, asked.name, f": {why}", FieldLengthError)


# --- what is looked up: rows of a dataset, of values of variable length, of objects


def _add_looked_up(found: _Found, key: Key, asked: Field, indptr: str = "") -> Any:
    """Add a field that is looked up: its dataset, here or in the files that it names, and the rows wanted of it.

    Of a sparse matrix `indptr` says beside the dataset which values each row has; `asked` may look rows up, or not.
    """
    said = asked.lookup
    values: Any = found.opened.numbers(said) if isinstance(said, str) else []
    asked, lists = _with_lists(found, asked, values, is_matrix=bool(indptr))
    is_named = said is None or isinstance(said, str) or (isinstance(said, Stretches) and not in_memory(said))
    known = _known(found, key, asked, given=None if is_named else said)
    is_first = not known.parts
    before = 0 if asked.file else sum(len(one) for one, *_ in known.tables) if indptr else known.rows
    if asked.ragged is not None and lists is None and not (indptr or asked.decode or isinstance(said, Stretches)):
        raise _of_one_row(found, asked)
    if not asked.file or said is None or is_first:
        for there in _sources(found, asked):
            first = known.rows
            _add_part(found, known, _with_columns(found, key, asked, there), there)
            if indptr:
                edges = np.asarray(there.numbers(indptr))
                bounds = Bounds(indptr, holds="bounds")
                known.add_stretches(bounds, [edges], len(edges) - 1, first, repr(there.path))
                if said is None:
                    found.lengths[asked.name], found.said_in = len(edges) - 1, found.said_in or (there, indptr)
    found.fields += known.layouts
    if isinstance(said, str) and lists is None:
        among = sum(len(one) for one, *_ in known.tables) if indptr else known.rows
        known.add_chosen(values, before, among - before, found.path)
        found.chosen[key] = len(known.chosen[-1])
        _stand_for_rows(found, known, said)
    elif said is not None and is_named:
        which, values = _stretches(found, known, asked) if lists is None else (lists, [])
        is_plain = isinstance(which, Bounds) and not which.holds  # others say without doubt how many samples there are
        if not found.stretches or (found.is_doubtful and not is_plain):  # of this part alone, which others say of all
            count = len(np.asarray(values[0]).reshape(-1)) if lists is None else len(lists)
            found.named = {known.name: samples_bounded(which, count) if isinstance(which, Bounds) else count}
            found.is_doubtful = is_plain
        found.stretches.append((known, which, values, before))
        _stand_for_rows(found, known, said if isinstance(said, str) else said.names[0])
    elif said is not None and not callable(said) and is_first:
        # Of more files than one they do not say which has how many samples.
        found.named = found.named or {known.name: known.count}
        found.bearers.append((1, known.parts[0]))
    return known.entry


def _stand_for_rows(found: _Found, known: LookedUp, name: str) -> None:
    """Note what says the rows of samples: a dataset; of an attribute, the dataset that it looks rows up in."""
    if found.opened.is_attribute(name):
        found.bearers.append((1, known.parts[-1]))
    else:
        found.said_in = found.said_in or (found.opened, name)


def _of_one_row(found: _Found, asked: Field) -> H5StreamError:
    """Return the error for options of ragged fields that a field has of which each sample has one row."""
    there = next(iter(_sources(found, asked)))
    if elements.vlen_base(_inner_dtype(_thing(there, asked.name))) is None:
        return not_ragged(asked.name)
    assert asked.ragged is not None
    why = ": lookup= names one row for each sample, whose values of variable length come as a list, not ragged="
    why += (
        f"{asked.ragged.form!r}; leave ragged= out, or write lookup=rows[:, None] and ragged='list' for lists of them"
    )
    return _refused(there, asked, why, OptionError)


def _with_lists(found: _Found, asked: Field, named: Any, *, is_matrix: bool) -> tuple[Field, RowLists | None]:
    """Return the rows that each sample lists, and the field with how they come; None where a sample has one, or none.

    A dataset of one column names a row for each sample.
    """
    lists = asked.lookup if isinstance(asked.lookup, RowLists) else None
    if isinstance(asked.lookup, str):
        values = np.asarray(named)
        is_one = values.ndim == 2 and values.shape[1] == 1
        lists = None if is_one else row_lists(values, f"{found.path!r}: field {asked.name!r}")
        if lists is not None and asked.ragged is None:
            asked = changed(asked, ragged=Ragged("packed" if values.dtype.kind == "O" else STACKED))
    if lists is not None and (is_matrix or asked.decode):
        what = "a sparse matrix" if is_matrix else "images of decode="
        why = f": lookup= lists rows for each sample, and of {what} it takes one row a sample"
        raise _refused(found.opened, asked, f"{why}, lookup=rows[:, 0] of an array; make a field for each", OptionError)
    return asked, lists


def _stretches(found: _Found, known: LookedUp, asked: Field) -> tuple[Stretches, list[Any]]:
    """Return what says which rows samples have, and its values; references to regions say where these begin and end."""
    names, opened = asked.lookup.names, found.opened
    if isinstance(asked.lookup, Bounds) and not opened.is_attribute(names[0]):
        thing = opened.find(names[0])
        if h5py.check_ref_dtype(_inner_dtype(thing)) is h5py.RegionReference:
            of = None if asked.file else thing_at(opened.file, known.parts[-1].path, opened.path)
            return Between(*names * 2), [*region_rows(thing, of, asked.name, opened.path)]
    return asked.lookup, [np.asarray(opened.numbers(name)).reshape(-1) for name in names]


def _add_ragged(found: _Found, key: Key, asked: Field) -> Any:
    """Add a ragged field whose rows are the items of values of variable length, or all those of an object's dataset."""
    check_options("objects" if found.are_objects else "values", asked, found.samples, found.path)
    known, opened = _known(found, key, asked), found.opened
    thing = _thing(opened, asked.name)
    if not found.are_objects and elements.vlen_base(_inner_dtype(thing)) is None:
        raise not_ragged(asked.name)
    _add_part(found, known, asked, opened, thing)
    found.fields += known.layouts
    part = known.parts[-1]
    if found.are_objects:
        known.add_rows(np.array([part.row_start]), np.array([part.rows]))
        found.bearers.append((1, part))
    else:
        if part.heap is None or len(thing.dataset.shape) > 1:
            why = part.reason if part.heap is None else f"a row has {thing.dataset.shape[1:]} values"
            takes = "ragged= takes one value a row, of numbers, that h5stream reads without libhdf5"
            raise _unread(opened, asked, f", {why}: {takes}; without it each sample is a list", part)
        known.add_values(part)
        found.bearers.append((0, part))
    found.lengths[asked.name] = 1 if found.are_objects else part.rows
    return known.entry


def _add_bytes_of_object(found: _Found, asked: Field) -> int:
    """Add an image whose bytes are a dataset of the object."""
    opened = found.opened
    with RawFile(opened.file, opened.guard) as raw:
        members = ObjectsOfFile(raw, [opened.find(asked.name).path])
        (entry, layouts, _), part = _images(found, asked, members, opened, found.row_start)
    found.parts.append(part)
    found.fields += layouts
    found.lengths[asked.name] = 1
    return int(entry)


def _add_objects(found: _Found, key: Key, asked: Field) -> Any:
    """Add a field of which each sample has an object that is named."""
    known, names = _known(found, key, asked), asked.lookup
    known.is_given = not isinstance(names, str)
    if isinstance(names, str):
        values = np.asarray(found.opened.numbers(names)).reshape(-1)
        names = [one.decode() if isinstance(one, bytes) else str(one) for one in values.tolist()]
        if found.extents is None:
            found.lengths[asked.lookup] = len(names)
    elif known.tables or known.chosen:
        found.fields += known.layouts
        return known.entry
    unknown = [name for name in dict.fromkeys(names) if name not in known.objects]
    for there in _sources(found, asked):
        unknown = _add_some(found, known, asked, there, unknown)
    if unknown:
        raise _unknown(found, asked, unknown, len(set(names)), there)
    if not known.parts:
        why = "so that nothing says what the field holds; leave out this file, or begin with one that has samples"
        raise _refused(found.opened, asked, f": lookup= names no object, {why}", FieldLengthError)
    found.fields += known.layouts
    found.bearers.append((1, known.parts[0]))
    rows = np.array([known.objects[name] for name in names], dtype=np.int64).reshape(-1, 2)
    if asked.decode or asked.has_own_shape:  # is one row, whatever there is of it
        known.chosen.append(rows[:, 0])
    else:
        known.add_rows(*rows.T)
    found.named = found.named or {known.name: len(names)}
    return known.entry


def _add_some(found: _Found, known: LookedUp, asked: Field, there: OpenFile, names: list[str]) -> list[str]:
    """Add the rows of objects that a file has; return the names of those that it has not."""
    with RawFile(there.file, there.guard) as raw:
        for template in templates(asked.name):
            every = [template.put(name) for name in names]
            addresses = raw.addresses([one.literal for one in every])
            is_here = addresses >= 0
            here = [(names[k], every[k]) for k in np.flatnonzero(is_here).tolist()]
            members = ObjectsOfFile(raw, Names.of((one.literal for _, one in here), addresses[is_here]))
            if here:
                _add_named(found, known, asked, there, here, members)
            for k in np.flatnonzero(addresses == ELSEWHERE).tolist():
                if is_there(there.file, every[k].literal, there.path):
                    _add_elsewhere(found, known, asked, there, names[k], every[k])
                    is_here[k] = True
            names = [names[k] for k in np.flatnonzero(~is_here).tolist()]
    return names


def _add_elsewhere(found: _Found, known: LookedUp, asked: Field, there: OpenFile, name: str, path: Within) -> None:
    """Add the rows of an object that a link of a file leads to, in another file."""
    if asked.decode:
        raise _not_in_file(there, path, "decode=")
    if asked.has_own_shape:
        known.objects[name] = _add_array(found, known, asked, there, path), 1
        return
    _add_part(found, known, asked, there, _thing(there, path))
    known.objects[name] = known.parts[-1].row_start, known.parts[-1].rows


def _add_named(
    found: _Found,
    known: LookedUp,
    asked: Field,
    there: OpenFile,
    here: list[tuple[str, Within]],
    members: ObjectsOfFile,
) -> None:
    """Add the rows of objects of a file, by the names that `lookup` has for them and by their own."""

    def describe(k: int) -> DatasetPart:
        _add_part(found, known, asked, there, _thing(there, here[k][1]))
        return replace(known.parts.pop(), row_start=0)

    if asked.decode:
        if (member := next((one for _, one in here if one != one.literal), None)) is not None:
            why = f": {member!r} is a member of a compound, and decode= takes objects that are bytes themselves"
            raise _refused(there, asked, why)
        (entry, layouts, _), part = _images(found, asked, members, there, known.rows)
        known.objects |= {name: (known.rows + row, 1) for row, (name, _) in enumerate(here)}
        known.add_part(part, entry, layouts, there.path)
    elif asked.has_own_shape:
        for name, one in here:
            known.objects[name] = _add_array(found, known, asked, there, one), 1
    else:
        lying = Lying("", len(here))
        parts, begins = rows_of_each(members, find(members, [lying]), lying, describe, known.rows)
        known.parts += parts
        rows = zip(begins.tolist(), lying.rows.tolist(), strict=True)
        known.objects |= dict(zip((name for name, _ in here), rows, strict=True))


def _add_array(found: _Found, known: LookedUp, asked: Field, there: OpenFile, name: str) -> int:
    """Add an object of a shape of its own as a row of what is looked up; return its number."""
    thing, plain = _thing(there, name), changed(asked, ragged=None)
    along, shape = Extents.of(Objects("*")).take(thing.dataset.shape, changed(plain, name=name), there.path)
    entry, layouts, targets = _described(found, plain, thing, (1,) * len(shape))
    if not isinstance(entry, int) or layouts[0].kind != "array":
        raise _no_array(found, asked)
    if known.shapes and len(shape) != len(known.shapes[0]):
        why = f": {name!r} has {len(shape)} axes, and another object {len(known.shapes[0])}; ragged='arrays' takes one"
        raise _refused(there, asked, why, FieldLengthError)
    part = part_of(there, there.place(thing), name, None, along, targets, row_start=known.rows)
    count = int(np.prod(part.shape, dtype=object))
    whole = ColumnPiece(number=0, row_elements=count, segments=np.array([[0, 0, count]]))
    layouts = [replace(layouts[0], shapes=entry + 1), _shape_of(layouts[0])]
    known.add_part(replace(part, rows=1, chunk_rows=1, pieces=(whole,)), entry, layouts, there.path)
    known.shapes.append(shape)
    return len(known.shapes) - 1


def _unknown(found: _Found, asked: Field, unknown: list[str], count: int, last: OpenFile) -> H5StreamError:
    """Return the error for names of which there is no object; one that is damaged is told here."""
    missing = next(templates(asked.name)).put(unknown[0])
    why_not_opened(last.file, missing.strip("/"), last.path)  # says so if it is there, and damaged
    above, _, below = asked.name.rpartition("{}")
    beside = last.file.get(above.rpartition("/")[0] or "/") if not below else None
    hint = did_you_mean(unknown[0].strip(), beside) if isinstance(beside, h5py.Group) else ""
    if asked.name.strip("/") in last.file:  # a name in a file is else taken as it is
        hint = f" {quoted(asked.name, '{')!r} is the name that has {{}} itself."
    why = (
        f": there is no {missing!r}, which lookup= has.{hint} {len(unknown):,} of {count:,} names are of nothing that "
    )
    why += f"is there{_in_all_files(found, asked.file)}. Leave out samples without an object: H5Dataset(...).subset()"
    return refusal(last.path, asked.name, why, FieldNotFoundError)


def _known(found: _Found, key: Key, asked: Field, **said: Any) -> LookedUp:
    """Return what is known from the files before of a field that is looked up."""
    crop = None if asked.ragged is None else asked.ragged.crop
    return found.looked_up.setdefault(key, LookedUp(name=asked.name, crop=crop, **said))


def _add_part(found: _Found, known: LookedUp, asked: Field, there: OpenFile, thing: Thing | None = None) -> None:
    """Add a file's share of a dataset that is looked up."""
    thing = thing or _thing(there, asked.name)
    entry, layouts, targets = _described(found, asked, thing, *_rows_taken(found, thing, asked))
    if asked.ragged is not None and isinstance(entry, dict):
        why = f"each member of a ragged one is a field of its own, {f'{asked.name}:{next(iter(entry))}'!r}"
        raise _refused(there, asked, f" is a compound, and {why}, or columns=[NAMES] makes one matrix")
    if len(targets) > 1 and any(layout.dtype.kind == "O" for layout in layouts):
        why = f"one that is looked up is a field of its own, {f'{asked.name}:{next(iter(entry))}'!r}"
        raise _refused(there, asked, f" is a compound with members of variable length, and each of {why}")
    if len(layouts) == 1:
        layouts = [replace(layouts[0], axes=_axes(found, asked, thing, there, ()))]
    part = _part(found, there.place(thing), asked, (), targets, start=known.rows)
    known.add_part(part, entry, layouts, there.path)


# --- where things are


def _sources(found: _Found, asked: Field) -> Iterator[OpenFile]:
    """Yield the files that a field is in: this one, or others of its own.

    What is looked up may be in any of these, and all else is in the one that stands beside this file.
    """
    paths, named = asked.file, found.opened.files.named
    if not paths:
        yield found.opened
    elif asked.lookup is None:
        if len(paths) != named:
            said = f"{len(paths)} files stand beside {named}; name one for each, or look rows up with lookup="
            raise OptionError(f"Field({asked.name!r}, file=): {said}")
        paths = (paths[found.opened.number],)
    for path in paths:
        yield found.opened.beside(path)


def _thing(there: OpenFile, name: str) -> Thing:
    """Find a dataset that has an axis of rows."""
    thing = there.find(name)
    if not thing.dataset.shape:
        what = "empty (a null dataspace)" if thing.dataset.shape is None else "a single value"
        why = f": {name!r} is {what}, so it has no rows; a field's first axis are the samples"
        once = f"; Field({parted(name)[1]!r}, take='all') gives it to each row of its file, or group"
        why += once * (what == "a single value")
        raise refusal(there.path, name, why)
    return thing


def _object_named(found: _Found, asked: Field) -> tuple[Any, str]:
    """Return the object that a name leads to in its file, and its path; None for what is no object."""
    if asked.name in ("", "/") or asked.names_objects or isinstance(asked.lookup, Stretches):
        return None, ""
    there = next(_sources(found, asked))
    for reading in readings(asked.name):
        with contextlib.suppress(*DAMAGE):
            # Asked for its kind alone (`get(getclass=True)`), a damaged object crashes libhdf5, which opening refuses.
            if not reading.mark and reading.path:
                thing = there.file[reading.path]
                there.guard.check_links(there.file, reading.path, there.path)
                return thing, reading.path
    return None, ""


def _check_links_inside(found: _Found, asked: Field, where: str) -> None:
    """Refuse a group whose datasets lead out of the opened files, where they may be the parts of one field."""
    for there in _sources(found, asked):
        for part in PARTS:
            there.guard.check_links(there.file, f"{where}/{part}", there.path)


def _at(found: _Found, asked: Field) -> str:
    """Return the column of a table that a field's rows count from; empty for the one that samples begin at."""
    columns = found.samples.columns if isinstance(found.samples, Table) else {}
    if asked.take.at and not isinstance(columns.get(asked.take.at), np.ndarray):
        numbers = [name for name, values in columns.items() if isinstance(values, np.ndarray)]
        there = f"which has {', '.join(map(repr, numbers))}" if columns else "and there is no Table"
        why = f"(at={asked.take.at!r}): at= names a column of row numbers of Table(...), {there}"
        raise OptionError(f"Field({asked.name!r}, take=Take{why})")
    return asked.take.at


# --- parts: datasets with what they fill


def _part(
    found: _Found, where: Place, asked: Field, along: tuple[Along, ...], targets: list[Target], *, start: int
) -> DatasetPart:
    """Return the part of a dataset; of images with how long each is, where a dataset says so."""
    part = part_of(found.opened, where, asked.name, asked.columns, along, targets, row_start=start)
    if not asked.decode:
        return part
    of_bytes = targets[0].leaf is not None
    if part.heap is None and (not of_bytes or (part.access == VIA_H5PY and part.dtype_text != "uint8")):
        why = f": decode= takes bytes that h5stream reads without libhdf5, not these: {part.reason}"
        raise _unread(found.opened, asked, why, part)
    if not (of_bytes and asked.length):
        return part
    lengths = np.asarray(found.opened.numbers(asked.length)).reshape(-1)
    most = int(np.prod(part.shape[1:])) * part.stored_element_nbytes
    if lengths.dtype.kind not in "iu" or len(lengths) != part.rows or ((lengths < 0) | (lengths > most)).any():
        why = f": {asked.length!r} of decode= has {len(lengths):,} values of {lengths.dtype}, and it takes a number of "
        raise _refused(
            found.opened, asked, f"{why}bytes from 0 to {most:,} for each of {part.rows:,} rows", OptionError
        )
    return replace(part, lengths=lengths.astype(np.int64))


def _images(
    found: _Found, asked: Field, members: ObjectsOfFile, there: OpenFile, start: int
) -> tuple[Described, DatasetPart]:
    """Return objects that are images as rows, of this part or of what is looked up, and what they give to a batch."""
    new, each = _image(found, asked, None), EachBytes("", len(members.names), there.guard)
    try:
        which = find(members, [each])
    except UnlikeError as error:
        raise _not_in_file(there, str(error), "decode=") from None
    return new, bytes_of_each(members, which, each, file=there.number, row_start=start, targets=new[-1])


def _not_in_file(there: OpenFile, name: str, what: str) -> H5StreamError:
    """Return the error for an object that a link leads to, in another file."""
    other = there.file[name].file.filename
    why = f": {name!r} is in another file, {other!r}, and {what} takes objects of the file itself; name that file"
    return refusal(there.path, name, f"{why} as the source, or as Field(..., file=)")


def _rows_taken(found: _Found, thing: Thing, asked: Field) -> tuple[tuple[int, ...], Steps | None]:
    """Return the shape of what a sample that is a row, or several, takes, and its steps where it is several."""
    steps = None if asked.lookup is not None else steps_of(asked.take.steps, found.sequences, asked.name)
    if asked.take.axis not in (None, 0) or asked.take.scale:
        why = "a sample is a row of axis 0 here, or several; Take(axis=) and Take(scale=) are for other samples"
        raise OptionError(f"Field({asked.name!r}): {why}, such as Sequences(axis=1) and Boxes")
    shape = thing.dataset.shape[1:]
    try:
        row_shape = selected_shape(shape, asked.columns)
    except OptionError as error:
        inner = _inner_dtype(thing)
        inside = not shape and (inner.subdtype or inner.fields)
        why = "columns= chooses among a dataset's axes, not inside a member; take it whole and index the batch"
        raise _refused(found.opened, asked, f": {why if inside else error}", OptionError) from None
    return row_shape if steps is None else (len(steps), *row_shape), steps


# --- what a dataset gives to a batch


def _described(
    found: _Found, asked: Field, thing: Thing, shape: tuple[int, ...], steps: Steps | None = None
) -> Described:
    """Return the field of a dataset, or one for each member of a compound, of which samples take a shape."""
    layouts, targets = list[FieldLayout](), list[Target]()
    whole: Any = elements.as_asked(_inner_dtype(thing), asked.dtype)
    if asked.decode:
        return _image(found, asked, _bytes_of_image(found, asked, thing, whole), steps, thing.member)
    if asked.members:
        _check_names(found, asked, whole)
        whole = np.dtype((whole.fields[asked.members[0]][0], (len(asked.members),)))

    first, meaning = len(found.fields), meaning_of(thing.dataset)
    for number, (member, dtype) in enumerate(_leaves_of(whole, thing.member), first):
        layout, leaf = _layout(found, asked, thing._replace(member=member), dtype, shape, steps)
        layouts.append(layout)
        targets.append(replace(_target(number, leaf, member, asked.members), meaning=meaning))
    return _entry_of(whole, itertools.count(first)), layouts, targets


def _leaves_of(dtype: Any, member: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the members of a compound that are no compounds, with their types; any other type itself."""
    if dtype.fields is None:
        yield member, dtype
    for name in dtype.names or ():
        yield from _leaves_of(dtype[name], (*member, name))


def _entry_of(dtype: Any, numbers: Iterator[int]) -> Any:
    """Return the number of a type's field, or of a compound a dict of those of its members."""
    return next(numbers) if dtype.fields is None else {name: _entry_of(dtype[name], numbers) for name in dtype.names}


def _target(
    number: int, leaf: elements.Leaf | None, member: tuple[str, ...] = (), stacked: tuple[str, ...] = ()
) -> Target:
    """Return a field to be filled, with zeros for what was never written, as far as is known."""
    fill = np.zeros(leaf.nbytes if leaf else 0, np.uint8)
    return Target(field=number, member=member, leaf=leaf, fill=fill, stacked=stacked)


def _layout(
    found: _Found, asked: Field, thing: Thing, dtype: np.dtype[Any], shape: tuple[int, ...], steps: Steps | None
) -> tuple[FieldLayout, elements.Leaf | None]:
    """Return the field of elements of one type that is no compound, and where its bytes lie in an element."""
    (dataset, path, member), ragged = thing, asked.ragged
    name = ":".join((path, *member)) if member else asked.name
    is_value = ragged is not None and asked.lookup is None and not found.are_objects
    items = elements.vlen_base(dtype) if is_value else None
    whole = elements.stored_as(dataset)
    lying = elements.as_asked(elements.plain_dtype(dtype_of(dataset)) if whole.is_whole else whole.dtype, asked.dtype)
    dtype, stored = (dtype, lying) if items is None else (items, items)
    base, inner_shape = dtype.subdtype or (dtype, ())
    kind = {"O": "object", "S": "bytes"}.get(base.kind, "array")
    if ragged is not None and base.kind != "V" and (ragged.form in ("list", STACKED) or base.kind not in "OS"):
        kind = "ragged"
    why = _why_refused(asked, dtype, kind, member, steps is None)
    if found.extents is not None and kind not in ("array", "ragged") and asked.lookup is None:
        why = why or "samples that are parts of volumes are of numbers"
    if why:
        raise refusal(found.path, name, f": field {name!r} is {shown(dtype)}: {why}")
    layout = FieldLayout(
        name=name,
        kind=kind,
        dtype=np.dtype(object) if base.kind == "O" else elements.held_dtype(base),
        row_shape=(*shape, *inner_shape),
        steps=steps,
        at=asked.take.at,
        pad=asked.take.pad,
        cast=asked.dtype,
        ragged=ragged,
        unit=_unit(base),
        meanings=elements.meanings_of(base),
        items=elements.vlen_base(base),
        cut_at_nul=base.kind == "S" and elements.ends_at_nul(dataset.id.get_type(), member),
    )
    inside = member if items is None else ()
    return layout, elements.leaf_of(stored, inside, asked.members) if base.kind != "O" else None


def _why_refused(asked: Field, dtype: np.dtype[Any], kind: str, member: tuple[str, ...], is_one: bool) -> str:
    """Say why a batch cannot hold a field of a type, or not as it asks; empty where it can."""
    if why := elements.refusal(dtype):
        return why
    if dtype.subdtype is not None and dtype.subdtype[0].fields is not None:
        return "an array of compounds inside a compound has no tensor form"
    if kind == "ragged" and not is_one:
        return "ragged rows are for samples of one row"
    if asked.ragged is not None and asked.ragged.form == DENSE and asked.ragged.places is None:
        return "ragged='dense' is for sparse matrices"
    if asked.ragged is None or kind == "ragged":
        return ""
    return "ragged rows are of numbers, or with ragged='list' of texts and of values of variable length"


def _bytes_of_image(found: _Found, asked: Field, thing: Thing, dtype: np.dtype[Any]) -> elements.Leaf | None:
    """Return where an image lies in a row of bytes; None for a value of variable length."""
    shape, leaf = thing.dataset.shape, elements.bytes_leaf(dtype)
    rows, are_rows = shape[1:], found.extents is None
    if are_rows and not rows and (elements.is_byte(elements.vlen_base(dtype)) or elements.is_text(dtype)):
        if asked.length:
            why = "a length in decode= is for rows of bytes that are filled up, not for values of variable length"
            raise _refused(found.opened, asked, f": {why}; leave it out", OptionError)
        return None
    if thing.member or len(rows) != (dtype.itemsize == 1) or leaf is None or not are_rows:
        why = "decode= takes images as values of variable length (of uint8), or as rows of bytes"
        raise _refused(found.opened, asked, f" is {shown(dtype)} {shape}: {why}")
    return leaf


def _image(
    found: _Found, asked: Field, leaf: elements.Leaf | None, steps: Steps | None = None, member: tuple[str, ...] = ()
) -> Described:
    """Return a field of images; of what size they are is found out once all files are open."""
    check_options("images", asked, found.samples, found.path)
    said: dict[str, Any] = {"steps": steps, "at": asked.take.at, "pad": asked.take.pad, "ragged": asked.ragged}
    layout = _field(asked.name, object, images=Images(format=asked.decode), **said)
    return len(found.fields), [layout], [_target(len(found.fields), leaf, member)]


def _check_names(found: _Found, asked: Field, dtype: np.dtype[Any]) -> None:
    """Decide what names in columns= stand for, members of a compound; refuse others, and such as make no matrix."""
    if dtype.names is None:
        why = f": columns={[*asked.members]!r} names members of a compound, and its elements are {dtype}, no compounds"
        why += "; columns of an array are numbers"
        if asked.names_objects:
            why += " here, as in columns=[0, 1]: names from a dimension scale are taken of objects that samples="
            why += "Objects(...) names, and of one dataset, and not of objects that lookup= names"
        raise _refused(found.opened, asked, why, FieldNotFoundError)
    if lacking := next((name for name in asked.members if name not in dtype.names), ""):
        has = f"it has {', '.join(map(repr, dtype.names))}{did_you_mean(lacking, list(dtype.names))}"
        raise _refused(
            found.opened, asked, f" has no member {lacking!r}, which columns= names; {has}", FieldNotFoundError
        )
    kinds = {name: dtype[name] for name in asked.members}
    first = kinds[asked.members[0]]
    if not all(elements.same_type(kind, first) for kind in kinds.values()) or first.kind not in "biufc":
        listing = ", ".join(f"{name!r} is {shown(kind)}" for name, kind in kinds.items())
        why = f": columns= of names makes one tensor of numbers of one type, but {listing}; make a field for each type"
        raise _refused(found.opened, asked, why)
    why = elements.joined_meanings((elements.meanings_of(kind), repr(name)) for name, kind in kinds.items())[1]
    if why:
        why = f": columns= of names makes one tensor of these enums, and {why}, so a code would not mean the same; "
        raise _refused(found.opened, asked, f"{why}make a field for each")


def _inner_dtype(thing: Thing) -> Any:
    """Return the type of a member of a dataset's elements."""
    dtype: Any = elements.plain_dtype(dtype_of(thing.dataset))
    for part in thing.member:
        dtype = dtype[part]
    return dtype


def _unit(dtype: np.dtype[Any]) -> str:
    """Return what a batch's whole numbers count, where they are dates or times."""
    return str(dtype.newbyteorder("=")) if dtype.kind in "mM" else ""


def _refused(there: OpenFile, asked: Field, why: str, kind: Any = UnsupportedFieldError, **facts: Any) -> H5StreamError:
    """Return the error for a field that cannot be had of a file."""
    return refusal(there.path, asked.name, f": field {asked.name!r}{why}", kind, **facts)


def _unread(there: OpenFile, asked: Field, why: str, part: DatasetPart) -> H5StreamError:
    """Return the error for a field that cannot be had since a chunk is damaged, or else for what is said."""
    if part.damaged is None:
        return _refused(there, asked, why)
    return _refused(there, asked, f": {part.reason}", CorruptChunkError, chunk=part.damaged)
