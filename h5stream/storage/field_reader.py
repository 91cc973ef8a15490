"""The fields of a sample in one file: names become datasets, members, columns in memory, and what fills them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import CorruptChunkError, FieldLengthError, FieldNotFoundError, H5StreamError, OptionError
from h5stream.samples.columns import Given, Padding, Values
from h5stream.samples.kinds import Objects, Rows, Sequences
from h5stream.samples.ragged import DENSE, STACKED, Ragged, changed
from h5stream.samples.segments import Between, Bounds, Stretches, in_memory, names_of
from h5stream.samples.space import Along, Steps, steps_of
from h5stream.samples.table import Table
from h5stream.storage import elements
from h5stream.storage.discovery import (
    Thing,
    categories_of,
    check_has_numpy_type,
    did_you_mean,
    find_dataset,
    is_attribute,
    is_matrix,
    is_there,
    once_of,
    refusal,
    region_rows,
    shape_of,
    thing_at,
    why_not_opened,
)
from h5stream.storage.elements import as_samples_have_it
from h5stream.storage.extents import Extents, SampleKind
from h5stream.storage.fields import Field, SampleShape, Take, check_options, columns_wanted, not_ragged
from h5stream.storage.handles import DAMAGE
from h5stream.storage.images import Images
from h5stream.storage.joining import FileParts
from h5stream.storage.layout import DECODED, DIRECT, VIA_H5PY, DatasetPart, FieldLayout, SparseEntry, Target
from h5stream.storage.lookups import Key, LookedUp
from h5stream.storage.names import Names
from h5stream.storage.object_rows import bytes_of_each, row_of_each, rows_of_each
from h5stream.storage.parts import OpenFile, Place, part_of
from h5stream.storage.rowbox import ColumnPiece, selected_shape
from h5stream.storage.templates import NOWHERE
from h5stream.storage.units import EachBytes, Lying, ObjectsOfFile, UnlikeError, asked_of, find, inside_of
from h5stream.storage.whereabouts import RawFile


class _Taken(NamedTuple):
    """What a sample takes of a dataset: the shape of it, and the steps where it is rows."""

    asked: Field
    thing: Thing
    shape: tuple[int, ...]
    steps: Steps | None = None


class _Described(NamedTuple):
    """What a dataset gives to a batch: the number of its field, or a dict of numbers, and what fills which."""

    entry: Any
    layouts: list[FieldLayout]
    targets: list[Target]


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
    # how many rows each field says there are, and what looked up objects say where none does
    lengths: dict[str, int] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)
    # ragged fields, what datasets say of their rows, and where those of this part begin
    stretches: list[tuple[LookedUp, Stretches, list[Any], int]] = field(default_factory=list)
    # of the first field whose rows are objects with numbers in their names: its name, and these
    numbers: tuple[str, list[int]] | None = None
    # a dataset that says which rows samples have: its file, the path of that, and its name
    said_in: tuple[Any, str, str] | None = None
    # datasets of which samples take rows of their own, once for all fields that they fill
    read: dict[Any, tuple[Place, Field, tuple[Along, ...], list[Target]]] = field(default_factory=dict)
    parts: list[DatasetPart] = field(default_factory=list)  # objects that are bytes
    # what stands for the rows where none has a row a sample: the least, and the first of these
    bearers: list[tuple[int, DatasetPart]] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.opened.identity.path

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

    def add(self, **layout: Any) -> int:
        """Add what a field is in a batch; return its number."""
        self.fields.append(FieldLayout(**layout))
        return len(self.fields) - 1


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
    entries = tuple(_add(found, place, one) for place, one in enumerate(shape.fields))
    rows = _rows(found, shape)
    along = found.extents.elements if found.extents else {}
    places = along[0][0] if len(along) == 1 else rows  # or along the axis that samples lie along
    for known, said, values, first in found.stretches:
        known.add_stretches(said, values, places, first, repr(found.path))
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
        volume=extents,
    )


def _rows(found: _Found, shape: SampleShape) -> int:
    """Return the rows that fields agree in, or what is looked up says of them where no field has rows."""
    lengths = found.lengths
    if not lengths and found.stretches:
        known, said, values, _ = found.stretches[0]
        lengths = {known.name: len(values[0]) - isinstance(said, Bounds)}
    lengths = lengths or found.named or ({"the object": 1} if found.are_objects and found.once else {})
    if not lengths:
        raise OptionError(
            f"{found.path!r}: none of the fields {', '.join(map(repr, shape.keys))} says how many samples "
            f"there are; name at least one dataset with an axis of rows{_in_all_files(found)}"
        )
    if len(set(lengths.values())) > 1 and not found.cuts:
        listing = ", ".join(f"{name!r} has {rows:,}" for name, rows in lengths.items())
        raise FieldLengthError(
            f"{found.path!r}: the fields of a sample must agree in rows, but {listing}; name fields of one length; "
            "Field(..., take='all') is what a file or a group has once, and Sequences(..., lengths='shortest') leaves "
            "out rows that some lack. `h5stream inspect FILE` says what fits together",
            file=found.path,
        )
    return min(lengths.values())


def _in_all_files(found: _Found, named: tuple[str, ...] = ()) -> str:
    """Say how what is in memory is looked up in several files, where these are the source."""
    if named or found.opened.files.named == 1:
        return ""
    return (
        ". What lookup= has in memory is looked up in the first file of the source: give that alone, and all files as "
        "Field(..., file=[...]), or a list of an H5Dataset for each file"
    )


def _rows_alone(found: _Found, rows: int) -> Iterator[DatasetPart]:
    """Yield what says which rows samples have as a dataset of no field, where nothing else has a row a sample."""
    bearer = min(found.bearers, key=lambda one: one[0])[1] if found.bearers else None
    if found.said_in is not None:
        file, path, name = found.said_in
        thing = find_dataset(file, name, path, found.opened.guard)
        place = found.opened.place(thing.dataset, thing.path, path if path != found.path else "")
        bearer = part_of(found.opened, place, thing.path)
    elif bearer is None and found.are_objects:  # single values alone
        why, here = "nothing is read of it", found.opened.number
        bearer = DatasetPart(
            file=here, path="", rows=1, row_start=0, access=DIRECT, reason=why, chunk_rows=1, shape=(1,)
        )
    if bearer is not None:
        yield replace(bearer, row_start=found.row_start, rows=rows, pieces=(), targets=(), heap=None, along=())


# --- entries: what the user asked for, by what it is


def _add(found: _Found, place: int, asked: Field | Given) -> Any:
    """Add what one entry of a sample holds; return the number of its field, or a dict of numbers."""
    if not isinstance(asked, Field):
        return _add_column(found, asked)
    group = _group_named(found, asked)
    if is_matrix(group):
        return _add_matrix(found, place, asked, group)
    if (categories := categories_of(group)) is not None:
        entry = _add(found, place, changed(asked, name=f"{asked.name}/codes"))
        found.fields[entry] = replace(found.fields[entry], name=asked.name, categories=categories)
        return entry
    if asked.lookup is not None:
        return (_add_objects if asked.names_objects else _add_looked_up)(found, (place, ""), asked)
    if asked.is_numbered and not is_there(found.opened.file, asked.name, found.path):
        return _add_numbered(found, place, asked)
    if asked.decode and found.are_objects:
        return _add_bytes_of_object(found, asked)
    if asked.has_own_shape:
        return _add_arrays(found, place, asked)
    if asked.ragged is not None and not asked.decode:
        return _add_ragged(found, place, asked)
    if asked.repeat or is_attribute(found.opened.file, asked.name, found.path):
        return _add_once(found, asked)
    return _add_rows(found, asked)


def _add_rows(found: _Found, asked: Field) -> Any:
    """Add a field of which each sample takes its own row, or several, or a part of a volume."""
    ((file, path),) = _sources(found, asked)
    if found.extents is not None and found.extents.has_once(file.get(asked.name)):
        return _add_once(found, asked)
    thing = _thing(found, file, asked.name, path)
    name = asked.name if not asked.file else f"{asked.name} of {path}"
    found.lengths[name] = thing.dataset.shape[0] if found.extents is None else 1
    where, at = found.opened.place(thing.dataset, thing.path, asked.file and path), _at(found, asked)
    along: tuple[Along, ...] = ()
    if found.extents is None:
        taken = _rows_taken(found, thing, asked)
    else:
        along, sizes = found.extents.take(thing.dataset.shape, asked, path)
        taken = _Taken(asked, thing, sizes)
    new = _described(found, taken)
    found.fields += new.layouts
    columns = repr(asked.columns) if found.extents is None else ""
    key = (where.number, thing.path, columns, taken.steps, at, asked.take.pad, along, asked.decode, asked.length)
    found.read.setdefault(key, (where, asked, along, []))[-1].extend(new.targets)
    return new.entry


def _add_numbered(found: _Found, place: int, asked: Field) -> Any:
    """Add a field whose rows are objects with numbers in their names."""
    ((file, path),) = _sources(found, asked)
    numbers, names = _numbered(found, asked, file, path)
    known, found.lengths[asked.name] = None, 1 if found.are_objects else len(names)
    if found.are_objects and asked.ragged is not None and not (asked.decode or asked.has_own_shape):
        known = _known(found, (place, ""), asked)
    elif found.extents is not None or asked.repeat or asked.take.axis not in (None, 0) or asked.take.scale:
        why = "{} in a name makes objects the rows along axis 0, of Sequences, Rows(of=) or Table,"
        raise OptionError(f"{found.path!r}: field {asked.name!r}: {why} and with ragged= for Objects")
    elif asked.ragged is not None and not asked.decode:
        raise not_ragged(asked.name)
    other, others = found.numbers or ("", numbers)
    if known is None and any(a != b for a, b in zip(others, numbers, strict=False)):
        why = f": objects of {asked.name!r} have other numbers than those of {other!r}; name fields of the same numbers"
        raise refusal(path, asked.name, why, FieldLengthError)
    found.numbers = found.numbers or (asked.name, numbers)
    new, part = _rows_of_objects(found, asked, file, path, names, found.row_start if known is None else known.rows)
    found.fields += new.layouts
    if known is None:
        found.parts.append(part)
    else:
        known.add_part(part, new.entry, new.layouts, path)
        known.add_rows(np.array([part.row_start]), np.array([part.rows]))
        found.bearers.append((1, part))
    return new.entry


def _numbered(found: _Found, asked: Field, file: Any, path: str) -> tuple[list[int], list[str]]:
    """Return the numbers of objects that a name with {} in it names, ascending, and their paths."""
    before, _, behind = asked.name.partition(":")[0].strip("/").partition("{}")
    (above, _, stem), (tail, _, below) = before.rpartition("/"), behind.partition("/")
    found.opened.guard.check_links(file, above, path)
    group, like = file.get(above or "/"), re.compile(rf"{re.escape(stem)}(\d+){re.escape(tail)}", re.ASCII)
    every = [like.fullmatch(name) for name in group] if isinstance(group, h5py.Group) else []
    pairs = sorted((int(one[1]), one[0]) for one in every if one)
    if not pairs:
        why = f": nothing has a name such as {asked.name.replace('{}', '0')!r}; {{}} stands for a whole number."
        raise refusal(path, asked.name, why, FieldNotFoundError)
    names = [inside_of(inside_of(above, name), below) for _, name in pairs]
    return [number for number, _ in pairs], names


def _rows_of_objects(
    found: _Found, asked: Field, file: Any, path: str, names: list[str], start: int
) -> tuple[_Described, DatasetPart]:
    """Return objects of one shape as rows of a dataset, and what it gives to a batch."""
    opened, member = found.opened, asked.name.partition(":")[1:]
    first = find_dataset(file, "".join((names[0], *member)), path, opened.guard)
    if not first.dataset.shape and not asked.decode:
        why = f": {names[0]!r} is a single value, not a row; Objects(...) takes such, else write them as one dataset"
        raise refusal(path, asked.name, why)

    def described(thing: Thing) -> tuple[_Described, DatasetPart]:
        steps = None if asked.ragged is not None else steps_of(asked.take.steps, found.sequences, asked.name)
        along, shape = Extents.of(Objects("*")).take(thing.dataset.shape, changed(asked, take=Take()), path)
        new = _described(found, _Taken(asked, thing, shape if steps is None else (len(steps), *shape), steps))
        place = opened.place(thing.dataset, thing.path, asked.file and path)
        return new, part_of(opened, place, thing.path, None, along, new.targets, row_start=start)

    with RawFile(file, opened.guard) as raw:
        members = ObjectsOfFile(raw, Names.of(names, raw.addresses(names)))
        if asked.decode:
            return _images(found, asked, members, path, start)
        new, part = described(first)
        if part.access not in (DIRECT, DECODED):
            why = f", {part.reason}: rows that are objects are of numbers that h5stream reads without libhdf5"
            raise _unread(found, asked.name, why, part)
        try:
            lying = Lying("", len(names), asked_of(file, names[0]))
            which = find(members, [lying])
            part = row_of_each(members, which, lying, replace(part, path=names[0], objects=members.names))
        except UnlikeError as error:
            why = f": {str(error)!r} is not stored as {names[0]!r} is, and objects that are rows are stored alike"
            raise refusal(path, asked.name, why) from None
        lacking = np.bincount(part.chunk_index.numbers // part.chunk_index.columns, minlength=len(names))
        for row in np.flatnonzero(lacking < part.chunk_index.columns)[:1].tolist():
            one = find_dataset(file, "".join((names[row], *member)), path, opened.guard)
            part = replace(part, targets=described(one)[1].targets)
    return new, part


def _add_arrays(found: _Found, place: int, asked: Field) -> Any:
    """Add a field of which each sample has a shape of its own, and the shape that those of this part have."""
    kind = None if found.extents is None else found.extents.kind
    takes_points = kind is not None and kind.is_point and isinstance(found.samples, Rows)
    if not found.are_objects and not takes_points:
        raise OptionError(f"Field({asked.name!r}, ragged='arrays') is for samples=Objects(...), or Rows(of=...)")
    entry = _add(found, place, changed(asked, ragged=None))
    if not isinstance(entry, int) or found.fields[entry].kind != "array" or any(n == entry for n, _ in found.once):
        raise _no_array(found, asked)
    shape, number = np.array(found.fields[entry].row_shape, dtype=np.int64), len(found.fields)
    found.fields.append(_shape_of(found.fields[entry]))
    found.fields[entry] = replace(found.fields[entry], shapes=number)
    found.once.append((number, shape))
    return entry


def _shape_of(one: FieldLayout) -> FieldLayout:
    """Return the field that says which shape a sample has of a field of which each has its own."""
    axes = (len(one.row_shape),)
    return FieldLayout(name=f"shape of {one.name}", kind="array", dtype=np.dtype(np.int64), row_shape=axes)


def _no_array(found: _Found, asked: Field) -> H5StreamError:
    why = "takes numbers along axes, and no compounds, strings or single values; name a member, or leave it out"
    return refusal(found.path, asked.name, f": field {asked.name!r}: ragged='arrays' {why}")


def _add_column(found: _Found, given: Given) -> int:
    """Add a field that comes from no dataset; return its number."""
    if isinstance(given, Padding):
        if found.sequences is None:
            raise OptionError("Padding() tells what was padded of a sequence, so it needs samples=Sequences(...)")
        steps = steps_of(given.steps, found.sequences, "Padding()")
        assert steps is not None
        return found.add(name=given.name, kind="array", dtype=np.dtype(bool), row_shape=(len(steps),))
    if not isinstance(given, Values):
        return found.add(name=given.name, kind="array", dtype=np.dtype(np.int64), row_shape=())
    return _add_value(found, given.name, given.values, given.dtype, alone=False)


def _add_once(found: _Found, asked: Field) -> int:
    """Add a field that the whole part has once: an attribute, or a dataset without an axis of rows."""
    check_options("once", asked, found.samples, found.path)
    value = as_samples_have_it(once_of(found.opened.file, asked.name, found.path, found.opened.guard))
    number = _add_value(found, asked.name, value, asked.dtype)
    found.once.append((number, value))
    return number


def _add_value(found: _Found, name: str, value: Any, cast: Any, *, alone: bool = True) -> int:
    """Add a field of values in memory: one alone that all samples have, or one for each."""
    if not isinstance(value, np.ndarray):
        return found.add(name=name, kind="object", dtype=np.dtype(object), row_shape=(), cast=cast)
    shape, dtype = value.shape if alone else value.shape[1:], elements.held_dtype(value.dtype)
    return found.add(name=name, kind="array", dtype=dtype, row_shape=shape, cast=cast, unit=_unit(value.dtype))


def _add_matrix(found: _Found, place: int, asked: Field, group: Any) -> SparseEntry:
    """Add a sparse matrix: its values, and the column of each."""
    check_options("sparse", asked, found.samples, found.path)
    name, why = asked.name.strip("/"), ""
    form = None if asked.ragged is None else asked.ragged.form
    if found.are_objects:
        why = "whose rows are samples: samples=Rows(of=...) takes those of many groups"
    elif form not in ("packed", DENSE) or (asked.columns is not None and form != DENSE):
        why = (
            f"so write Field({asked.name!r}, ragged='dense'), rows of which columns= takes some, or ragged='packed', "
            "the values that are stored, with their columns"
        )
    if why:
        raise refusal(found.path, asked.name, f": {asked.name!r} is a sparse matrix, {why}")
    width = shape_of(group, name, found.path)[1]
    places = columns_wanted(asked, width) if form == DENSE else None
    plain = changed(asked, columns=None, normalise=None)
    values = changed(plain, name=f"{name}/data", ragged=changed(Ragged(form or "packed"), places=places))
    number = _add_looked_up(found, (place, "data"), values, f"{name}/indptr")
    indices = changed(plain, name=f"{name}/indices", dtype=None, ragged=changed(Ragged(), width=width))
    columns = _add_looked_up(found, (place, "indices"), indices, f"{name}/indptr")
    found.fields[number] = replace(found.fields[number], name=asked.name)
    if found.fields[columns].dtype.kind not in "iu" or not isinstance(number, int):
        why = f"whose columns are {found.fields[columns].dtype}, and not whole numbers"
        raise refusal(found.path, asked.name, f": {asked.name!r} is a sparse matrix {why}")
    return SparseEntry(values=number, columns=columns, width=width, is_dense=form == DENSE)


# --- what is looked up: rows of a dataset, of values of variable length, of objects


def _add_looked_up(found: _Found, key: Key, asked: Field, indptr: str = "") -> Any:
    """Add a field that is looked up: its dataset, here or in the files that it names, and the rows wanted of it.

    Of a sparse matrix `indptr` says beside the dataset which values each row has; `asked` may look rows up, or not.
    """
    said = asked.lookup
    is_named = said is None or isinstance(said, str) or (isinstance(said, Stretches) and not in_memory(said))
    known = _known(found, key, asked, given=None if is_named else said)
    layouts, is_first = known.layouts, not known.parts
    before = 0 if asked.file else sum(len(one) for one, *_ in known.tables) if indptr else known.rows
    if asked.ragged is not None and not (indptr or asked.decode or isinstance(said, Stretches)):
        raise not_ragged(asked.name)
    if not asked.file or said is None or is_first:
        for file, path in _sources(found, asked):
            first = known.rows
            layouts = _add_part(found, known, asked, file, path)
            if indptr:
                edges = np.asarray(once_of(file, indptr, path, found.opened.guard))
                known.add_stretches(Bounds(indptr), [edges], len(edges) - 1, first, repr(path))
                if said is None:
                    found.lengths[asked.name], found.said_in = len(edges) - 1, found.said_in or (file, path, indptr)
    found.fields += layouts
    if isinstance(said, str):
        known.add_chosen(_once(found, said), before, found.path)
    elif isinstance(said, Stretches) and is_named:
        found.stretches.append((known, *_stretches(found, known, asked), before))
        found.said_in = found.said_in or (found.opened.file, found.path, names_of(said)[0])
    elif said is not None and not callable(said) and is_first:
        # Of more files than one they do not say which has how many samples.
        found.named = found.named or {known.name: known.count}
        found.bearers.append((1, known.parts[0]))
    return known.entry


def _stretches(found: _Found, known: LookedUp, asked: Field) -> tuple[Stretches, list[Any]]:
    """Return what says which rows samples have, and its values; references to regions say where these begin and end."""
    names, (file, path) = names_of(asked.lookup), (found.opened.file, found.path)
    if isinstance(asked.lookup, Bounds) and not is_attribute(file, names[0], path):
        thing = find_dataset(file, names[0], path, found.opened.guard)
        if h5py.check_ref_dtype(_inner_dtype(thing)) is h5py.RegionReference:
            of = None if asked.file else thing_at(file, known.parts[-1].path, path)
            return Between(*names * 2), [*region_rows(thing, of, asked.name, path)]
    return asked.lookup, [_once(found, name) for name in names]


def _add_ragged(found: _Found, place: int, asked: Field) -> Any:
    """Add a ragged field whose rows are the items of values of variable length, or all those of an object's dataset."""
    check_options("objects" if found.are_objects else "values", asked, found.samples, found.path)
    known = _known(found, (place, ""), asked)
    thing = _thing(found, found.opened.file, asked.name, found.path)
    if not found.are_objects and elements.vlen_base(thing.dataset.dtype) is None:
        raise not_ragged(asked.name)
    found.fields += _add_part(found, known, asked, found.opened.file, found.path, thing)
    part = known.parts[-1]
    if found.are_objects:
        known.add_rows(np.array([part.row_start]), np.array([part.rows]))
        found.bearers.append((1, part))
    else:
        if part.heap is None or len(thing.dataset.shape) > 1:
            why = part.reason if part.heap is None else f"a row has {thing.dataset.shape[1:]} values"
            takes = "ragged= takes one value a row, of numbers, that h5stream reads without libhdf5"
            raise _unread(found, asked.name, f", {why}: {takes}; without it each sample is a list", part)
        known.add_values(part)
        found.bearers.append((0, part))
    found.lengths[asked.name] = 1 if found.are_objects else part.rows
    return known.entry


def _add_bytes_of_object(found: _Found, asked: Field) -> int:
    """Add an image whose bytes are a dataset of the object."""
    _, name, _ = find_dataset(found.opened.file, asked.name, found.path, found.opened.guard)
    with RawFile(found.opened.file, found.opened.guard) as raw:
        new, part = _images(found, asked, ObjectsOfFile(raw, [name]), found.path, found.row_start)
    found.parts.append(part)
    found.fields += new.layouts
    found.lengths[asked.name] = 1
    return int(new.entry)


def _add_objects(found: _Found, key: Key, asked: Field) -> Any:
    """Add a field of which each sample has an object that is named."""
    known, names = _known(found, key, asked), asked.lookup
    known.is_given = not isinstance(names, str)
    if isinstance(names, str):
        values = _once(found, names).reshape(-1)
        names = [one.decode() if isinstance(one, bytes) else str(one) for one in values.tolist()]
        if found.extents is None:
            found.lengths[asked.lookup] = len(names)
    elif known.tables or known.chosen:
        found.fields += known.layouts
        return known.entry
    unknown = [name for name in dict.fromkeys(names) if name not in known.objects]
    for file, path in _sources(found, asked):
        unknown = _add_some(found, known, asked, file, path, unknown)
    if unknown:
        raise _unknown(found, asked, unknown, len(set(names)), (file, path))
    if not known.parts:
        why = "so that nothing says what the field holds; leave out this file, or begin with one that has samples"
        why = f": lookup= of field {asked.name!r} names no object, {why}"
        raise refusal(found.path, asked.name, why, FieldLengthError)
    found.fields += known.layouts
    found.bearers.append((1, known.parts[0]))
    rows = np.array([known.objects[name] for name in names], dtype=np.int64).reshape(-1, 2)
    if asked.decode or asked.has_own_shape:  # is one row, whatever there is of it
        known.chosen.append(rows[:, 0])
    else:
        known.add_rows(*rows.T)
    found.named = found.named or {known.name: len(names)}
    return known.entry


def _add_some(found: _Found, known: LookedUp, asked: Field, file: Any, path: str, names: list[str]) -> list[str]:
    """Add the rows of objects that a file has; return the names of those that it has not."""

    def describe(k: int) -> DatasetPart:
        thing = _thing(found, file, members.names[k], path)
        _add_part(found, known, asked, file, path, thing)
        return replace(known.parts.pop(), row_start=0)

    with RawFile(file, found.opened.guard) as raw:
        paths = [asked.name.replace("{}", name).strip("/") for name in names]
        addresses = raw.addresses(paths)
        there = np.flatnonzero(addresses != NOWHERE)
        members = ObjectsOfFile(raw, Names.of((paths[k] for k in there.tolist()), addresses[there]))
        named = [names[k] for k in there.tolist()]
        if named and asked.decode:
            new, part = _images(found, asked, members, path, known.rows)
            known.objects |= {name: (known.rows + row, 1) for row, name in enumerate(named)}
            known.add_part(part, new.entry, new.layouts, path)
        elif asked.has_own_shape:
            for name, inside in zip(named, members.names, strict=True):
                known.objects[name] = _add_array(found, known, asked, file, path, inside), 1
        elif named:
            lying = Lying("", len(named))
            parts, begins = rows_of_each(members, find(members, [lying]), lying, describe, known.rows)
            known.parts += parts
            known.objects |= dict(zip(named, zip(begins.tolist(), lying.rows.tolist(), strict=True), strict=True))
    return [name for name, address in zip(names, addresses.tolist(), strict=True) if address == NOWHERE]


def _add_array(found: _Found, known: LookedUp, asked: Field, file: Any, path: str, name: str) -> int:
    """Add an object of a shape of its own as a row of what is looked up; return its number."""
    thing, plain = _thing(found, file, name, path), changed(asked, ragged=None)
    along, shape = Extents.of(Objects("*")).take(thing.dataset.shape, changed(plain, name=name), path)
    new = _described(found, _Taken(plain, thing, (1,) * len(shape)))
    if not isinstance(new.entry, int) or new.layouts[0].kind != "array":
        raise _no_array(found, asked)
    if known.shapes and len(shape) != len(known.shapes[0]):
        why = f": {name!r} has {len(shape)} axes, and another object {len(known.shapes[0])}; ragged='arrays' takes one"
        raise refusal(path, asked.name, why, FieldLengthError)
    where = found.opened.place(thing.dataset, thing.path, asked.file and path)
    part = part_of(found.opened, where, name, None, along, new.targets, row_start=known.rows)
    elements = int(np.prod(part.shape, dtype=object))
    whole = ColumnPiece(number=0, row_elements=elements, segments=np.array([[0, 0, elements]]))
    layouts = [replace(new.layouts[0], shapes=new.entry + 1), _shape_of(new.layouts[0])]
    known.add_part(replace(part, rows=1, chunk_rows=1, pieces=(whole,)), new.entry, layouts, path)
    known.shapes.append(shape)
    return len(known.shapes) - 1


def _unknown(found: _Found, asked: Field, unknown: list[str], count: int, last: tuple[Any, str]) -> H5StreamError:
    """Return the error for names of which there is no object; one that is damaged is told here."""
    (file, path), missing = last, asked.name.replace("{}", unknown[0])
    why_not_opened(file, missing.strip("/"), path)  # says so if it is there, and damaged
    above, _, below = asked.name.rpartition("{}")
    beside = file.get(above.rpartition("/")[0] or "/") if not below else None
    hint = did_you_mean(unknown[0].strip(), beside) if isinstance(beside, h5py.Group) else ""
    why = (
        f": there is no {missing!r}, which lookup= has.{hint} {len(unknown):,} of {count:,} names are of nothing that "
        f"is there{_in_all_files(found, asked.file)}. Leave out samples without an object: H5Dataset(...).subset("
        "indices), or rows= of it"
    )
    return refusal(path, asked.name, why, FieldNotFoundError)


def _known(found: _Found, key: Key, asked: Field, **said: Any) -> LookedUp:
    """Return what is known from the files before of a field that is looked up."""
    crop = None if asked.ragged is None else asked.ragged.crop
    return found.looked_up.setdefault(key, LookedUp(name=asked.name, crop=crop, **said))


def _add_part(
    found: _Found, known: LookedUp, asked: Field, file: Any, path: str, thing: Thing | None = None
) -> list[FieldLayout]:
    """Add a file's share of a dataset that is looked up; return what it gives to a batch."""
    thing = thing or _thing(found, file, asked.name, path)
    new = _described(found, _rows_taken(found, thing, asked))
    if asked.ragged is not None and isinstance(new.entry, dict):
        why = f": field {asked.name!r} is a compound, and each member of a ragged one is a field of its own: "
        member = f"{asked.name}:{next(iter(new.entry))}"
        raise refusal(path, asked.name, f"{why}Field({member!r}, lookup=...), or members=[...] for one matrix")
    where = found.opened.place(thing.dataset, thing.path, asked.file and path)
    part = _part(found, where, asked, (), new.targets, start=known.rows)
    known.add_part(part, new.entry, new.layouts, path)
    return new.layouts


# --- where things are


def _sources(found: _Found, asked: Field) -> Iterator[tuple[Any, str]]:
    """Yield the files that a field is in, open, with their paths: this one, or others of its own.

    What is looked up may be in any of these, and all else is in the one that stands beside this file.
    """
    paths, named = asked.file, found.opened.files.named
    if not paths:
        yield found.opened.file, found.path
    elif asked.lookup is None:
        if len(paths) != named:
            said = f"Field({asked.name!r}, file=): {len(paths)} files stand beside {named}"
            raise OptionError(f"{said}; name one for each file of the source, or look rows up with lookup=")
        paths = (paths[found.opened.number],)
    for path in paths:
        yield found.opened.opened(path), path


def _thing(found: _Found, file: Any, name: str, path: str) -> Thing:
    """Find a dataset that has an axis of rows."""
    thing = find_dataset(file, name, path, found.opened.guard)
    check_has_numpy_type(thing.dataset, name, path)
    if not thing.dataset.shape:
        what = "empty (a null dataspace)" if thing.dataset.shape is None else "a single value"
        raise refusal(path, name, f": {name!r} is {what}, so it has no rows; a field's first axis are the samples")
    return thing


def _group_named(found: _Found, asked: Field) -> Any:
    """Return the group that a name leads to in its file; None for anything else."""
    name, guard = asked.name.strip("/"), found.opened.guard
    if not name or asked.names_objects or isinstance(asked.lookup, Stretches):
        return None
    file, path = next(_sources(found, asked))
    with contextlib.suppress(*DAMAGE):
        # Asked for its kind alone (`get(getclass=True)`), a damaged object crashes libhdf5, which opening refuses.
        if isinstance(group := file[name], h5py.Group):
            guard.check_links(file, name, path)
            return group
    return None


def _once(found: _Found, name: str) -> NDArray[Any]:
    """Return what the file, or the group, has once under a name, or a whole dataset of numbers."""
    return np.asarray(once_of(found.opened.file, name, found.path, found.opened.guard))


def _at(found: _Found, asked: Field) -> str:
    """Return the column of a table that a field's rows count from; empty for the one that samples begin at."""
    columns = found.samples.columns if isinstance(found.samples, Table) else {}
    if asked.take.at and not isinstance(columns.get(asked.take.at), np.ndarray):
        numbers = [name for name, values in columns.items() if isinstance(values, np.ndarray)]
        raise OptionError(
            f"Field({asked.name!r}, take=Take(at={asked.take.at!r})): at= names a column of row numbers of Table(...), "
            + (f"which has {', '.join(map(repr, numbers))}" if columns else "and there is no Table")
        )
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
        raise _unread(found, asked.name, why, part)
    if not (of_bytes and asked.length):
        return part
    lengths = _once(found, asked.length).reshape(-1)
    most = int(np.prod(part.shape[1:])) * part.stored_element_nbytes
    if lengths.dtype.kind not in "iu" or len(lengths) != part.rows or ((lengths < 0) | (lengths > most)).any():
        raise OptionError(
            f"{found.path!r}: field {asked.name!r}: {asked.length!r} of decode= has {len(lengths):,} values of "
            f"{lengths.dtype}, and it takes a number of bytes from 0 to {most:,} for each of {part.rows:,} rows"
        )
    return replace(part, lengths=lengths.astype(np.int64))


def _images(
    found: _Found, asked: Field, members: ObjectsOfFile, path: str, start: int
) -> tuple[_Described, DatasetPart]:
    """Return objects that are images as rows, of this part or of what is looked up, and what they give to a batch."""
    new, each = _image(found, asked, None), EachBytes("", len(members), found.opened.guard)
    number = found.opened.files.number_of(path) if asked.file else found.opened.number
    try:
        which = find(members, [each])
    except UnlikeError as error:
        why = f": {str(error)!r} lies in another file, and decode= takes objects that lie in the file itself"
        raise refusal(found.path, str(error), why) from None
    return new, bytes_of_each(members, which, each, file=number, row_start=start, targets=new.targets)


def _rows_taken(found: _Found, thing: Thing, asked: Field) -> _Taken:
    """Return what a sample that is a row, or several, takes."""
    steps = None if asked.lookup is not None else steps_of(asked.take.steps, found.sequences, asked.name)
    if asked.take.axis not in (None, 0) or asked.take.scale:
        raise OptionError(
            f"Field({asked.name!r}): a sample is a row of axis 0 here, or several. Take(axis=) and Take(scale=) are "
            "for samples along another axis, Sequences(axis=1), and for Boxes"
        )
    shape = thing.dataset.shape[1:]
    try:
        row_shape = selected_shape(shape, asked.columns)
    except OptionError as error:
        inner = _inner_dtype(thing)
        inside = not shape and (inner.subdtype or inner.fields)
        why = "columns= chooses among a dataset's axes, not inside a member; take it whole and index the batch"
        raise OptionError(f"{found.path!r}: field {asked.name!r}: {why if inside else error}") from None
    return _Taken(asked, thing, row_shape if steps is None else (len(steps), *row_shape), steps)


# --- what a dataset gives to a batch


def _described(found: _Found, taken: _Taken) -> _Described:
    """Return the field of a dataset, or one for each member of a compound."""
    asked, dtype = taken.asked, _inner_dtype(taken.thing)
    if asked.decode:
        return _image(found, asked, _bytes_of_image(found, taken, dtype), taken.steps)
    if asked.members:
        _check_members(found, asked, dtype)
        dtype = np.dtype((dtype.fields[asked.members[0]][0], (len(asked.members),)))
    new = _Described(None, [], [])
    return new._replace(entry=_entry_of(found, taken, dtype, new))


def _entry_of(found: _Found, taken: _Taken, dtype: Any, new: _Described) -> Any:
    """Add the field of a type to those that are new, or one for each member; return its number, or theirs by name."""
    member, stacked = taken.thing.member, taken.asked.members
    if dtype.fields is not None and not stacked:
        inner = ((name, taken._replace(thing=taken.thing._replace(member=(*member, name)))) for name in dtype.names)
        return {name: _entry_of(found, one, dtype[name], new) for name, one in inner}
    layout, leaf = _layout(found, taken, dtype)
    number, fill = len(found.fields) + len(new.layouts), np.zeros(leaf.nbytes if leaf else 0, np.uint8)
    new.layouts.append(layout)
    new.targets.append(Target(field=number, member=member, leaf=leaf, fill=fill, stacked=stacked))
    return number


def _layout(found: _Found, taken: _Taken, dtype: np.dtype[Any]) -> tuple[FieldLayout, elements.Leaf | None]:
    """Return the field of elements of one type that is no compound, and where its bytes lie in an element."""
    asked, (dataset, path, member), is_ragged = taken.asked, taken.thing, taken.asked.ragged is not None
    name = ":".join((path, *member)) if member else asked.name
    is_value = is_ragged and asked.lookup is None and not found.are_objects
    items = elements.vlen_base(dtype) if is_value else None
    dtype, stored = (dtype, elements.plain_dtype(dataset.dtype)) if items is None else (items, items)
    base, inner_shape = dtype.subdtype or (dtype, ())
    kind = {"O": "object", "S": "bytes"}.get(base.kind, "array")
    are_lists = is_ragged and asked.ragged is not None and asked.ragged.form in ("list", STACKED)
    kind = "ragged" if is_ragged and base.kind != "V" and (are_lists or base.kind not in "OS") else kind
    why = _why_refused(asked, dtype, kind, member, taken.steps is None)
    if found.extents is not None and kind not in ("array", "ragged") and asked.lookup is None:
        why = why or "samples that are parts of volumes are of numbers"
    if why:
        raise refusal(found.path, name, f": field {name!r} is {dtype}: {why}")
    layout = FieldLayout(
        name=name,
        kind=kind,
        dtype=np.dtype(object) if base.kind == "O" else elements.held_dtype(base),
        row_shape=(*taken.shape, *inner_shape),
        steps=taken.steps,
        at=asked.take.at,
        pad=asked.take.pad,
        cast=asked.dtype,
        ragged=asked.ragged,
        unit=_unit(base),
        cut_at_nul=base.kind == "S" and elements.ends_at_nul(dataset.id.get_type(), member),
    )
    return layout, elements.leaf_of(stored, member, asked.members) if base.kind != "O" else None


def _why_refused(asked: Field, dtype: np.dtype[Any], kind: str, member: tuple[str, ...], is_one: bool) -> str:
    """Say why a batch cannot hold a field of a type, or not as it asks; empty where it can."""
    if why := elements.refusal(dtype):
        return why
    if dtype.subdtype is not None and dtype.subdtype[0].fields is not None:
        return "an array of compounds inside a compound has no tensor form"
    if dtype.base.kind == "O" and member:
        return "a member of variable length, which only whole datasets may have"
    if kind in ("object", "ragged") and not is_one:
        return "values of variable length make no tensor of several rows; leave it out, or store it with a fixed length"
    if asked.ragged is not None and asked.ragged.form == DENSE and asked.ragged.places is None:
        return "ragged='dense' is for sparse matrices, groups of data, indices and indptr"
    if asked.ragged is None or kind == "ragged":
        return ""
    return "ragged rows are of numbers, or with ragged='list' of texts"


def _bytes_of_image(found: _Found, taken: _Taken, dtype: np.dtype[Any]) -> elements.Leaf | None:
    """Return where an image lies in a row of bytes; None for a value of variable length."""
    asked, (dataset, _, member) = taken.asked, taken.thing
    rows, leaf = dataset.shape[1:], elements.bytes_leaf(dtype)
    if found.extents is None and not rows and (elements.vlen_base(dtype) == np.uint8 or elements.is_text(dtype)):
        if asked.length:
            why = "a length in decode= is for rows of bytes that are filled up, not for values of variable length"
            raise OptionError(f"{found.path!r}: field {asked.name!r}: {why}; leave it out")
        return None
    if member or len(rows) != (dtype.itemsize == 1) or leaf is None or found.extents is not None:
        why = "decode= takes images as values of variable length (of uint8), or as rows of bytes"
        raise refusal(found.path, asked.name, f": field {asked.name!r} is {dtype} {dataset.shape}: {why}")
    return leaf


def _image(found: _Found, asked: Field, leaf: elements.Leaf | None, steps: Steps | None = None) -> _Described:
    """Return a field of images; of what size they are is found out once all files are open."""
    check_options("images", asked, found.samples, found.path)
    number, take = len(found.fields), asked.take
    layout = FieldLayout(
        name=asked.name,
        kind="object",
        dtype=np.dtype(object),
        row_shape=(),
        steps=steps,
        at=take.at,
        pad=take.pad,
        ragged=asked.ragged,
        images=Images(format=asked.decode),
    )
    fill = np.zeros(leaf.nbytes if leaf else 0, np.uint8)
    return _Described(number, [layout], [Target(field=number, member=(), leaf=leaf, fill=fill)])


def _check_members(found: _Found, asked: Field, dtype: np.dtype[Any]) -> None:
    """Refuse members that are not there, or make no matrix."""
    known = dtype.names or ()
    if lacking := next((name for name in asked.members if name not in known), ""):
        there = f"it has {', '.join(map(repr, known))}" if known else f"its elements are {dtype}, no compounds"
        why = f"has no member {lacking!r}, which members= names; {there}{did_you_mean(lacking, list(known))}"
        raise refusal(found.path, asked.name, f": field {asked.name!r} {why}", FieldNotFoundError)
    kinds = {name: dtype[name] for name in asked.members}
    first = kinds[asked.members[0]]
    if any(kind != first for kind in kinds.values()) or first.kind not in "biufc":
        listing = ", ".join(f"{name!r} is {kind}" for name, kind in kinds.items())
        why = f": members= makes one tensor of numbers of one type, but {listing}; make a field for each type"
        raise refusal(found.path, asked.name, why)


def _inner_dtype(thing: Thing) -> Any:
    """Return the type of a member of a dataset's elements."""
    dtype: Any = elements.plain_dtype(thing.dataset.dtype)
    for part in thing.member:
        dtype = dtype.fields[part][0]
    return dtype


def _unit(dtype: np.dtype[Any]) -> str:
    """Return what a batch's whole numbers count, where they are dates or times."""
    return str(dtype.newbyteorder("=")) if dtype.kind in "mM" else ""


def _unread(found: _Found, name: str, why: str, part: DatasetPart) -> H5StreamError:
    """Return the error for a field that cannot be had since a chunk is damaged, or else for what is said."""
    if part.damaged is None:
        return refusal(found.path, name, f": field {name!r}{why}")
    return refusal(found.path, name, f": field {name!r}: {part.reason}", CorruptChunkError, chunk=part.damaged)
