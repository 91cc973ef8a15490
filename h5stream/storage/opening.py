"""Opening: files and field names become a `SampleLayout`, with every rule checked and nothing left open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import (
    FieldLengthError,
    FieldNotFoundError,
    H5StreamError,
    MissingFilterError,
    OptionError,
    UnsupportedFieldError,
)
from h5stream.samples.axes import ROWS
from h5stream.samples.box_space import Along
from h5stream.samples.columns import (
    Column,
    Given,
    NumberColumn,
    Padding,
    PaddingColumn,
    PartColumn,
    SampleNumber,
    Values,
    ValuesColumn,
)
from h5stream.samples.sequences import Sequences
from h5stream.samples.space import Space, sequence_space, steps_of
from h5stream.samples.table import ROW, Table, groups_in, table_space
from h5stream.storage import elements, filters
from h5stream.storage.agreement import FileParts, check_alike, with_like_strings
from h5stream.storage.check import fill_element, why_not_decoded_here
from h5stream.storage.codecs import NBIT, SCALEOFFSET
from h5stream.storage.discovery import check_has_rows, default_fields, find_dataset, open_hdf5
from h5stream.storage.extents import Extents, SampleKind, Volume, has_extents, with_names
from h5stream.storage.external import Guard, without_soft_links
from h5stream.storage.fields import Asked, Field, Fields, SampleShape, Source, read_request, sample_shape
from h5stream.storage.groups import edges_in, groups_of
from h5stream.storage.index import ChunkIndex, build_index, one_extent
from h5stream.storage.layout import (
    DECODED,
    DIRECT,
    IN_EXTERNAL_FILES,
    IS_VIRTUAL,
    VIA_H5PY,
    DatasetPart,
    FieldLayout,
    SampleLayout,
    Target,
)
from h5stream.storage.lookups import LookedUp
from h5stream.storage.nearest import did_you_mean
from h5stream.storage.once import once_of
from h5stream.storage.references import files_behind
from h5stream.storage.rowbox import ColumnPiece, Columns, column_pieces, selected_shape
from h5stream.storage.source import SourceIdentity, identity_of

WATCHED_FILES = 100
"""Files behind a virtual dataset that are looked at for changes: one look costs a microsecond or two, at each read."""

READ_TOGETHER_NBYTES = 256 * 1024
"""Bytes of unchunked data that count as one block.

Small enough that a window holds many blocks, large enough that a read costs more than its system call."""


def open_layout(
    source: Source, fields: Fields = None, *, samples: SampleKind | None = None, allow_external: bool = False
) -> SampleLayout:
    """Open files, find the fields in each, and give the layout of a sample.

    Parameters
    ----------
    source : path, pattern, or several
        Several files follow one another in the order given, patterns by name.
    fields : name, Field, sequence or mapping of them, optional
        By default the datasets at the root of the first file, if they agree in length.
    samples : Sequences, Rows, Table or Boxes, optional
        What a sample is; a row by default.
    allow_external : bool
        Whether external links, external storage and virtual sources may lead out of the opened files.

    Raises
    ------
    H5StreamError
        One of its kinds for each rule; see `h5stream.errors`.
    """
    _check_samples(samples)
    asked = read_request(source, fields)
    every = _Files(asked.paths)
    looked_up: dict[int, LookedUp] = {}
    parts, shape = _parts_of(asked, every, samples, looked_up, allow_external)
    check_alike(parts.files, tuple(every.identities[number] for number, _ in parts.names))
    files = with_like_strings(parts.files)
    if parts.rows == 0:
        raise FieldLengthError(
            f"{_named(asked.paths)} has zero rows in {', '.join(shape.keys)}; there is nothing to stream",
            file=asked.paths[0],
        )
    space = _space(samples, parts, asked.paths, shape, files[0].fields)
    layout = SampleLayout(
        files=tuple(every.identities),
        file_starts=tuple(parts.starts),
        fields=files[0].fields,
        datasets=(*zip(*(file.parts for file in files), strict=True), *(tuple(e.parts) for e in looked_up.values())),
        shape=shape,
        entries=files[0].entries,
        allow_external=allow_external,
        space=space,
    )
    tables = (each.table(layout.rows, space) for each in looked_up.values())
    lookups = tuple(enumerate(tables, len(files[0].parts)))
    return replace(layout, columns=tuple(_columns(layout, shape, files, samples)), lookups=lookups)


@dataclass(slots=True)
class _Parts:
    """What the files, or groups of them, hold, one behind the other.

    `names` says of each the number of its file and the name of its group, and `starts` where its rows begin; `edges`
    has the edges of its segments, `volumes` what is known of those that samples are parts of.
    """

    files: list[FileParts] = field(default_factory=list)
    names: list[tuple[int, str]] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    volumes: list[Volume] = field(default_factory=list)
    edges: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.starts[-1]


def _parts_of(
    asked: Asked, every: _Files, samples: SampleKind | None, looked_up: dict[int, LookedUp], allow_external: bool
) -> tuple[_Parts, SampleShape]:
    """Open one file after the other and find the fields in it; give the shape of a sample too."""
    found, shape = _Parts(), asked.shape
    others = () if shape is None else tuple(path for f in shape.fields if isinstance(f, Field) for path in f.file)
    guard = Guard.for_paths((*asked.paths, *others), allow_external=allow_external)
    for number, path in enumerate(asked.paths):
        with open_hdf5(path) as file, contextlib.ExitStack() as linked:
            for group, name in _groups(file, asked, samples, number, guard):
                if shape is None:
                    shape = _default_shape(file, group, path, guard)
                extents = Extents.of(samples) if samples and has_extents(samples, shape.fields) else None
                reader = _FileReader(file, number, every, found.rows, guard, linked, samples, extents, looked_up)
                part = reader.read(shape.inside(group), group if samples else "")
                if isinstance(samples, Sequences) and extents is None:
                    found.edges.append(edges_in(file, group, samples.of, part.rows, path, guard) + found.rows)
                found.files.append(part)
                found.names.append((number, name))
                found.volumes.append(reader.volume)
                found.starts.append(found.rows + part.rows)
    assert shape is not None
    return found, shape


def _groups(
    file: Any, asked: Asked, samples: SampleKind | None, number: int, guard: Guard
) -> Iterator[tuple[str, str]]:
    """Give the groups of a file that hold rows: their paths, and the names that a table has for them."""
    path, root = asked.paths[number], asked.group
    given = () if asked.shape is None else asked.shape.fields
    kind = h5py.Dataset if any(isinstance(one, Field) and one.is_itself for one in given) else h5py.Group
    named = groups_in(samples, number, asked.paths) if isinstance(samples, Table) else None
    if named is not None:
        yield from zip(groups_of(file, root, named, path, guard, kind) if named else [], named, strict=True)
        return
    of = None if samples is None or isinstance(samples, Table) or samples.of == ROWS else samples.of
    for group in groups_of(file, root, of, path, guard, kind):
        yield group, ""


def _columns(
    layout: SampleLayout, shape: SampleShape, files: list[FileParts], samples: SampleKind | None
) -> Iterator[tuple[int, Column]]:
    """Give the fields that come from no dataset, by their numbers."""
    for number, given in zip(layout.entries, shape.fields, strict=True):
        if isinstance(given, SampleNumber):
            yield number, NumberColumn()
        elif isinstance(given, Padding):
            assert isinstance(samples, (Sequences, Table))
            assert layout.space is not None
            steps = steps_of(given.steps, samples, "Padding()")
            assert steps is not None
            yield number, PaddingColumn(steps, layout.space)
        elif isinstance(given, Values):
            if len(given.values) != layout.samples:
                raise FieldLengthError(
                    f"{given.name!r} in memory has {len(given.values):,} values, and there are "
                    f"{layout.samples:,} samples in the files: it needs one for each, "
                    "also for those that rows= leaves out"
                )
            yield number, ValuesColumn(given.values)
    for place, (number, first) in enumerate(files[0].once):
        every = [file.once[place][1] for file in files]
        yield number, PartColumn(layout.file_starts, np.stack(every) if isinstance(first, np.ndarray) else every)


def _space(
    samples: SampleKind | None,
    parts: _Parts,
    paths: tuple[str, ...],
    shape: SampleShape,
    fields: tuple[FieldLayout, ...],
) -> Space | None:
    """Find all samples; None where a sample is a row."""
    numbers = {name: number for number, name in enumerate(parts.names)}
    if samples is not None and has_extents(samples, shape.fields):
        groups = [paths[number] + (f":{name}" if name else "") for number, name in parts.names]
        return Extents.of(samples).space(parts.volumes, groups, numbers, paths)
    if isinstance(samples, Table):
        steps = [(field.at or ROW, field.steps) for field in fields]
        return table_space(samples, np.array(parts.starts), numbers, paths, steps)
    if not isinstance(samples, Sequences):
        return None
    every = np.concatenate([np.zeros(1, dtype=np.int64), *(edges[1:] for edges in parts.edges)])
    return sequence_space(samples, every, [field.steps for field in fields if field.steps is not None])


def _check_samples(samples: object) -> None:
    if samples is not None and not isinstance(samples, SampleKind):
        raise OptionError(
            f"samples= takes Sequences(...), Rows(...), Table(...) or Boxes(...), not {samples!r}; "
            "Sequences(16, of='data/*') are 16 rows that stay inside a group"
        )


def _default_shape(file: Any, group: str, path: str, guard: Guard) -> SampleShape:
    names = default_fields(file[group] if group else file, path, guard)
    fields = {name: Field(name) for name in names}
    return sample_shape(fields[names[0]] if len(names) == 1 else fields)


def _named(paths: tuple[str, ...]) -> str:
    return repr(paths[0]) if len(paths) == 1 else f"{paths[0]!r} and {len(paths) - 1} more"


class _Files:
    """The files that were named, and behind them those that links of theirs lead to."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.identities, self.named = [identity_of(path) for path in paths], len(paths)
        self._numbers: dict[tuple[int, int], int] = {}

    def number_of(self, path: str) -> int:
        """Return a file's number; one that was not named is added."""
        if not self._numbers:
            self._numbers = {_inode(identity.path): n for n, identity in reversed([*enumerate(self.identities)])}
        number = self._numbers.setdefault(_inode(path), len(self.identities))
        if number == len(self.identities):
            self.identities.append(identity_of(path))
        return number


def _inode(path: str) -> tuple[int, int]:
    try:
        stat = os.stat(path)
    except OSError:
        identity_of(path)  # says what is wrong with it
        raise
    return stat.st_dev, stat.st_ino


class _Taken(NamedTuple):
    """What a sample takes of a dataset: the shape of it, and the steps where it is rows."""

    shape: tuple[int, ...]
    steps: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a dataset is: in which file, and under which path there, behind all links.

    `unresolved` says why only the path that was asked for leads to it.
    """

    number: int
    identity: SourceIdentity
    dataset: Any
    path: str
    unresolved: str = ""


class _FileReader:
    """Collects the parts of one open file."""

    def __init__(
        self,
        file: Any,
        number: int,
        files: _Files,
        row_start: int,
        guard: Guard,
        linked: contextlib.ExitStack,
        samples: SampleKind | None,
        extents: Extents | None,
        looked_up: dict[int, LookedUp],
    ) -> None:
        self._looked_up, self._sources = looked_up, files.named
        self.sequences = samples if isinstance(samples, (Sequences, Table)) else None
        self._extents, self.volume = extents, Volume()
        self.file, self.number, self.identity = file, number, files.identities[number]
        self.row_start, self.guard = row_start, guard
        self._files, self._linked = files, linked
        self.fields: list[FieldLayout] = []
        self.once: list[tuple[int, Any]] = []
        self.groups: dict[Any, tuple[_Place, Columns, str, tuple[Along, ...], list[Target]]] = {}

    def read(self, shape: SampleShape, group: str = "") -> FileParts:
        """Find all fields of a sample; of many groups, names say nothing of the one that they are found in."""
        lengths: dict[str, int] = {}
        entries = [self._add(place, field, lengths) for place, field in enumerate(shape.fields)]
        if not lengths:
            raise OptionError(
                f"{self.identity.path!r}: none of the fields {', '.join(map(repr, shape.keys))} says how many samples "
                "there are; name at least one dataset with an axis of rows"
            )
        if len(set(lengths.values())) > 1:
            listing = ", ".join(f"{name!r} has {rows:,}" for name, rows in lengths.items())
            raise FieldLengthError(
                f"{self.identity.path!r}: the fields of a sample must agree in rows, but {listing}; "
                "name fields of one length; Field(..., repeat=True) is what a file or a group has once",
                file=self.identity.path,
            )
        parts = tuple(self._part(*group) for group in self.groups.values())
        return FileParts(
            rows=next(iter(lengths.values())),
            fields=tuple(replace(field, name=field.name.removeprefix(f"{group}/")) for field in self.fields),
            parts=parts,
            entries=tuple(entries),
            once=tuple(self.once),
        )

    def _add(self, place: int, field: Field | Given, lengths: dict[str, int]) -> Any:
        """Add what one entry of a sample holds; give the number of its field, or a dict of numbers."""
        if not isinstance(field, Field):
            return self._add_column(field)
        if field.rows is not None:
            return self._look_up(place, field)
        if field.repeat or self._is_attribute(field.name):
            return self._add_once(field)
        source, path = self._beside(field) if field.file else (self.file, self.identity.path)
        dataset, dataset_path, member = self._found(source, field.name, path)
        name = field.name if not field.file else f"{field.name} of {path}"
        lengths[name] = dataset.shape[0] if self._extents is None else 1
        where = self._placed_in(path, dataset, dataset_path) if field.file else self._place(dataset, dataset_path)
        at, columns = self._at(field), field.columns
        along: tuple[Along, ...] = ()
        if self._extents is None:
            taken = self._rows_taken(dataset, field)
        else:
            columns = None
            try:
                along, sizes = self._extents.take(dataset.shape, field, self.volume)
            except (OptionError, FieldLengthError) as error:
                raise with_names(error, path, field.name) from None
            taken = _Taken(sizes, None)
        key = (where.number, dataset_path, repr(columns), taken.steps, at, along)
        group = self.groups.setdefault(key, (where, columns, field.name, along, []))
        return self._entry(dataset, dataset_path, field, taken, member, group[-1])

    def _rows_taken(self, dataset: Any, field: Field) -> _Taken:
        """Give what a sample that is a row, or several, takes."""
        steps = None if field.rows is not None else steps_of(field.steps, self.sequences, field.name)
        if field.axis is not None:
            raise OptionError(
                f"Field({field.name!r}, axis=): a sample is a row of axis 0 here; axis= is for Sequences(axis=)"
            )
        try:
            row_shape = selected_shape(dataset.shape[1:], field.columns)
        except OptionError as error:
            inside = not dataset.shape[1:] and (dataset.dtype.subdtype or dataset.dtype.fields)
            why = "columns= chooses among a dataset's axes, not inside a member; take it whole and index the batch"
            raise OptionError(f"{self.identity.path!r}: field {field.name!r}: {why if inside else error}") from None
        return _Taken(shape=row_shape if steps is None else (len(steps), *row_shape), steps=steps)

    def _at(self, field: Field) -> str:
        """Give the column of a table that a field's rows count from; empty for the one that samples begin at."""
        columns = self.sequences.columns if isinstance(self.sequences, Table) else {}
        if field.at and not isinstance(columns.get(field.at), np.ndarray):
            numbers = [name for name, values in columns.items() if isinstance(values, np.ndarray)]
            raise OptionError(
                f"Field({field.name!r}, at={field.at!r}): at= names a column of row numbers of samples=Table(...), "
                + (f"which has {', '.join(map(repr, numbers))}" if columns else "and there is no Table")
            )
        return field.at

    def _found(self, file: Any, name: str, path: str) -> tuple[Any, str, tuple[str, ...]]:
        """Find a dataset that has an axis of rows: itself, its path, and the member path inside its elements."""
        dataset, dataset_path, member = find_dataset(file, name, path, self.guard)
        self._check_has_numpy_type(dataset, name)
        check_has_rows(dataset, name, path)
        return dataset, dataset_path, member

    def _beside(self, field: Field) -> tuple[Any, str]:
        """Open the file that a field of another file has beside this one."""
        if len(field.file) != self._sources:
            raise OptionError(
                f"Field({field.name!r}, file=): {len(field.file)} files stand beside {self._sources}; name as many, "
                "one for each file of the source, or look rows up in them with rows="
            )
        path = field.file[self.number]
        return self._opened(path), path

    def _opened(self, path: str) -> Any:
        self._files.number_of(path)  # the file as it was before it was opened
        return self._linked.enter_context(open_hdf5(path))

    def _placed_in(self, path: str, dataset: Any, dataset_path: str) -> _Place:
        number = self._files.number_of(path)
        return _Place(number=number, identity=self._files.identities[number], dataset=dataset, path=dataset_path)

    def _look_up(self, place: int, field: Field) -> Any:
        """Add a field that is looked up: its dataset, here or in the files that it names, and the rows wanted of it."""
        known = self._looked_up.get(place)
        if known is None:
            given = None if isinstance(field.rows, str) else field.rows
            known = self._looked_up[place] = LookedUp(name=field.name, given=given)
        first = 0 if field.file else known.rows
        if not field.file:
            known.entry = self._add_looked_up(known, field, self.file, self.identity.path)
        elif not known.parts:
            before = len(self.fields)
            for path in field.file:
                del self.fields[before:]
                known.entry = self._add_looked_up(known, field, self._opened(path), path)
        else:
            self.fields += known.layouts
        if isinstance(field.rows, str):
            values = once_of(self.file, field.rows, self.identity.path, self.guard)
            known.add_table(values, first, self.identity.path)
        return known.entry

    def _add_looked_up(self, known: LookedUp, field: Field, file: Any, path: str) -> Any:
        """Add a file's share of a dataset that is looked up; give the number of its field, or a dict of numbers."""
        before, targets = len(self.fields), list[Target]()
        dataset, dataset_path, member = self._found(file, field.name, path)
        entry = self._entry(dataset, dataset_path, field, self._rows_taken(dataset, field), member, targets)
        known.check_alike(self.fields[before:], path)
        where = self._placed_in(path, dataset, dataset_path) if field.file else self._place(dataset, dataset_path)
        part = self._part(where, field.columns, field.name, (), targets)
        known.parts.append(replace(part, row_start=known.rows))
        return entry

    def _add_column(self, given: Given) -> int:
        """Add a field that comes from no dataset; give its number."""
        steps = cast_to = None
        shape: tuple[int, ...] = ()
        kind = "array"
        dtype: np.dtype[Any] = np.dtype(np.int64)
        if isinstance(given, Padding):
            if self.sequences is None:
                raise OptionError("Padding() tells what was padded of a sequence, so it needs samples=Sequences(...)")
            steps = steps_of(given.steps, self.sequences, "Padding()")
            assert steps is not None
            shape, dtype = (len(steps),), np.dtype(bool)
        elif isinstance(given, Values):
            cast_to = given.dtype
            if isinstance(given.values, np.ndarray):
                shape, dtype = given.values.shape[1:], given.values.dtype.newbyteorder("=")
            else:
                kind, dtype = "object", np.dtype(object)
        self.fields.append(
            FieldLayout(name=given.name, kind=kind, dtype=dtype, row_shape=shape, cast=cast_to, steps=None)
        )
        return len(self.fields) - 1

    def _is_attribute(self, name: str) -> bool:
        return "@" in name and name not in self.file

    def _add_once(self, field: Field) -> int:
        """Add a field that the whole part has once: an attribute, or a dataset without an axis of rows."""
        value = np.asarray(once_of(self.file, field.name, self.identity.path, self.guard))
        if value.dtype.kind not in "biufc":
            value = value.astype(object)
        kind = "object" if value.dtype.kind == "O" else "array"
        dtype = value.dtype.newbyteorder("=")
        self.once.append((len(self.fields), value.tolist() if kind == "object" else value.astype(dtype)))
        shape = () if kind == "object" else value.shape
        self.fields.append(
            FieldLayout(name=field.name, kind=kind, dtype=dtype, row_shape=shape, cast=field.dtype, steps=None)
        )
        return len(self.fields) - 1

    def _place(self, dataset: Any, path: str) -> _Place:
        """Follow the links to a dataset, so that it is read as if its own file had been named."""
        here = _Place(number=self.number, identity=self.identity, dataset=dataset, path=path)
        if dataset.file.filename == self.file.filename:
            return here
        # libhdf5 knows a path in the other file only for what was not reached over a soft link in this one.
        found = self.file[without_soft_links(self.file, path)]
        target, name = os.path.abspath(os.fsdecode(found.file.filename)), found.name
        self.guard.check_file(path, target, self.identity.path)
        number = self._files.number_of(target)  # the file as it was before it was opened by its own name
        file = self._linked.enter_context(open_hdf5(target))
        there = file.get(name) if name else None
        if not isinstance(there, h5py.Dataset) or _address(there) != _address(found):
            return replace(here, unresolved="it lies in another file, behind an external link")
        identity = self._files.identities[number]
        return _Place(number=number, identity=identity, dataset=there, path=name.strip("/"))

    def _check_has_numpy_type(self, dataset: Any, name: str) -> None:
        try:
            _ = dataset.dtype
        except (TypeError, ValueError, NotImplementedError) as error:
            raise UnsupportedFieldError(
                f"{self.identity.path!r}: field {name!r} has a type that h5py cannot read: {error}",
                field=name,
                file=self.identity.path,
            ) from error

    # --- fields -------------------------------------------------------------------------------------

    def _entry(
        self, dataset: Any, path: str, field: Any, taken: _Taken, member: tuple[str, ...], targets: list[Target]
    ) -> Any:
        """Add the field, or one for each member of a compound; give its number or a dict of numbers."""
        dtype: Any = elements.plain_dtype(dataset.dtype)
        for part in member:
            dtype = dtype.fields[part][0]
        if field.members:
            self._check_members(field, dtype)
            stacked = np.dtype((dtype.fields[field.members[0]][0], (len(field.members),)))
            return self._add_field(dataset, path, field, taken, member, stacked, targets)
        if dtype.fields is not None:
            return {name: self._entry(dataset, path, field, taken, (*member, name), targets) for name in dtype.names}
        return self._add_field(dataset, path, field, taken, member, dtype, targets)

    def _check_members(self, field: Field, dtype: np.dtype[Any]) -> None:
        """Refuse members that are not there, or make no matrix."""
        known = dtype.names or ()
        for name in field.members:
            if name not in known:
                there = f"it has {', '.join(map(repr, known))}" if known else f"its elements are {dtype}, no compounds"
                raise FieldNotFoundError(
                    f"{self.identity.path!r}: field {field.name!r} has no member {name!r}, which members= names; "
                    f"{there}{did_you_mean(name, list(known))}",
                    field=field.name,
                    file=self.identity.path,
                )
        kinds = {name: dtype[name] for name in field.members}
        first = kinds[field.members[0]]
        if any(kind != first for kind in kinds.values()) or first.kind not in "biufc":
            listing = ", ".join(f"{name!r} is {kind}" for name, kind in kinds.items())
            raise UnsupportedFieldError(
                f"{self.identity.path!r}: members= makes one tensor of numbers of one type, but of {field.name!r} "
                f"{listing}; make a field for each type, and join them in transform=",
                field=field.name,
                file=self.identity.path,
            )

    def _add_field(
        self,
        dataset: Any,
        path: str,
        field: Any,
        taken: _Taken,
        member: tuple[str, ...],
        dtype: np.dtype[Any],
        targets: list[Target],
    ) -> int:
        name = ":".join((path, *member)) if member else field.name
        base, inner_shape = dtype.subdtype or (dtype, ())
        kind = "object" if base.kind == "O" else "bytes" if base.kind == "S" else "array"
        why = _why_refused(dtype, kind, member, taken.steps)
        if self._extents is not None and kind != "array" and field.rows is None:
            why = why or "samples that are parts of volumes are of numbers"
        if why:
            raise UnsupportedFieldError(
                f"{self.identity.path!r}: field {name!r} is {dtype}: {why}",
                field=name,
                file=self.identity.path,
            )
        self.fields.append(
            FieldLayout(
                name=name,
                kind=kind,
                dtype=np.dtype(object) if kind == "object" else np.dtype(base.newbyteorder("=")),
                row_shape=(*taken.shape, *inner_shape),
                steps=taken.steps,
                at=field.at,
                cast=field.dtype,
                cut_at_nul=kind == "bytes" and elements.ends_at_nul(dataset.id.get_type(), member),
            )
        )
        number = len(self.fields) - 1
        stored, stacked = elements.plain_dtype(dataset.dtype), field.members
        leaf = elements.leaf_of(stored, member, stacked) if kind != "object" else None
        fill = np.zeros(leaf.nbytes if leaf else 0, np.uint8)
        targets.append(Target(field=number, member=member, leaf=leaf, fill=fill, stacked=stacked))
        return number

    # --- datasets -----------------------------------------------------------------------------------

    def _part(
        self, place: _Place, columns: Columns, name: str, along: tuple[Along, ...], targets: list[Target]
    ) -> DatasetPart:
        part = self._found_part(place, columns, name, targets)
        if not along:
            return part
        elements = int(np.prod(part.shape[1:], dtype=object))
        whole = ColumnPiece(number=0, row_elements=elements, segments=np.array([[0, 0, elements]]))
        return replace(part, along=along, pieces=(whole,))

    def _found_part(self, place: _Place, columns: Columns, name: str, targets: list[Target]) -> DatasetPart:
        dataset = place.dataset
        pipeline = filters.pipeline_of(dataset.id.get_create_plist())
        reason = self._why_h5py(place, targets, pipeline, name)
        index, why_no_index = self._read_index(place, pipeline, reason, name)
        if reason or why_no_index:
            return self._describe(place, columns, targets, pipeline, None, reason or why_no_index)
        assert index is not None
        try:
            element = fill_element(dataset, index)
        except (OSError, RuntimeError) as error:  # nothing was written, and no fill value defined
            reason = f"what its missing chunks hold cannot be read: {error}"
            return self._describe(place, columns, targets, pipeline, None, reason)
        if element is not None:
            targets = [replace(t, fill=element[t.leaf.places]) for t in targets if t.leaf]
        part = self._describe(place, columns, targets, pipeline, index, "")
        if reason := why_not_decoded_here(dataset, part, place.identity):
            return self._describe(place, columns, targets, pipeline, None, reason)
        return part

    def _read_index(
        self, place: _Place, pipeline: filters.Pipeline, reason: str, name: str
    ) -> tuple[ChunkIndex | None, str]:
        """Read the chunk index if it is needed; else, or if it cannot be used, say why not."""
        dataset = place.dataset
        # Even where h5py reads, only the index tells whether a filter that is missing was applied to any chunk.
        lacking = dataset.chunks is not None and not all(h5py.h5z.filter_avail(f.id) for f in pipeline.filters)
        if reason and not lacking:
            return None, reason
        try:
            index = build_index(dataset, file_size=place.identity.size)
        except H5StreamError:
            raise
        except (RuntimeError, OSError, OverflowError) as error:
            return None, f"its chunk index cannot be read: {error}"
        why_not = self._why_h5py_after_index(name, pipeline, index)
        if why_not:
            return None, why_not
        return index if dataset.chunks else _cut_extent(index, dataset.id.get_type().get_size()), ""

    def _describe(
        self,
        place: _Place,
        columns: Columns,
        targets: list[Target],
        pipeline: filters.Pipeline,
        index: ChunkIndex | None,
        reason: str,
    ) -> DatasetPart:
        dataset = place.dataset
        if index is not None:
            chunk_rows, chunk_row_shape = index.chunk_shape[0], index.chunk_shape[1:]
            # Members that are put together, element by element, are as good as a filter.
            scattered = dataset.ndim > 1 and any(t.leaf is not None and len(t.leaf.offsets) > 1 for t in targets)
            access = DECODED if pipeline.filters or scattered else DIRECT
        else:
            chunk_rows, chunk_row_shape = _rows_read_together(dataset), dataset.shape[1:]
            access = VIA_H5PY
            targets = [replace(t, leaf=None) for t in targets]
        return DatasetPart(
            file=place.number,
            path=place.path,
            rows=dataset.shape[0],
            row_start=self.row_start,
            access=access,
            reason=reason or (pipeline.describe() if pipeline.filters else "no filter"),
            chunk_rows=max(1, chunk_rows),
            index=index,
            pipeline=pipeline,
            columns=columns,
            pieces=column_pieces(dataset.shape[1:], chunk_row_shape, columns),
            targets=tuple(targets),
            stored_element_nbytes=dataset.id.get_type().get_size(),
            dtype_text=str(elements.plain_dtype(dataset.dtype)),
            shape=tuple(dataset.shape),
            behind=self._files_behind(place, reason),
        )

    def _files_behind(self, place: _Place, reason: str) -> tuple[int, ...]:
        """Give the numbers of the files that libhdf5 puts a dataset together from: they may change as well."""
        if reason not in (IS_VIRTUAL, IN_EXTERNAL_FILES):
            return ()
        found = files_behind(place.dataset, place.identity.path)
        return tuple(self._files.number_of(path) for path in found[:WATCHED_FILES])

    def _why_h5py(self, place: _Place, targets: list[Target], pipeline: filters.Pipeline, name: str) -> str:
        dataset = place.dataset
        creation = dataset.id.get_create_plist()
        self.guard.check_data(dataset, name, place.identity.path)
        if dataset.is_virtual:
            return IS_VIRTUAL
        if creation.get_external_count():
            return IN_EXTERNAL_FILES
        if place.unresolved:
            return place.unresolved
        if any(t.leaf is None for t in targets):
            return "variable length" if dataset.dtype.kind == "O" else f"{dataset.dtype}: libhdf5 converts it"
        if not elements.is_laid_out_as_numpy(dataset):
            return "its stored type is not a NumPy type; libhdf5 converts it"
        if creation.get_layout() == h5py.h5d.COMPACT:
            return "compact: its bytes lie in the object header"
        for f in pipeline.filters:
            if f.id in (NBIT, SCALEOFFSET):
                return f"{filters.KNOWN_NAMES[f.id]}: only libhdf5 undoes it"
        return ""

    def _why_h5py_after_index(self, name: str, pipeline: filters.Pipeline, index: ChunkIndex) -> str:
        """Look for filters that stored chunks really need and that are not decoded here."""
        for place, f in enumerate(pipeline.filters):
            needed = bool(((index.filter_mask >> np.uint32(place)) & 1 == 0).any())
            if f.decodable or not needed:
                continue
            if h5py.h5z.filter_avail(f.id):
                return f"filter {f.id} ({f.name}): only a plugin of this machine's libhdf5 undoes it"
            label = filters.KNOWN_NAMES.get(f.id, f.name or "unnamed")
            raise MissingFilterError(
                f"{self.identity.path!r}: field {name!r} needs HDF5 filter {f.id} ({label}), which is not available. "
                "Get a plugin for it (hdf5plugin carries most; others are listed as registered filters by The HDF "
                "Group) and name its folder in HDF5_PLUGIN_PATH before Python starts.",
                filter_id=f.id,
                file=self.identity.path,
                field=name,
            )
        return ""


def _why_refused(dtype: np.dtype[Any], kind: str, member: tuple[str, ...], steps: tuple[int, ...] | None) -> str:
    """Say why a batch cannot hold a field of a type; empty where it can."""
    if why := elements.refusal(dtype):
        return why
    if dtype.subdtype is not None and dtype.subdtype[0].fields is not None:
        return "an array of compounds inside a compound has no tensor form"
    if kind == "object" and member:
        return "a member of variable length, which only whole datasets may have"
    if kind == "object" and steps is not None:
        return "values of variable length make no tensor of several rows; leave it out, or store it with a fixed length"
    return ""


def _address(dataset: Any) -> int:
    """Return where a dataset lies in its file."""
    return int(h5py.h5o.get_info(dataset.id).addr)


def _rows_read_together(dataset: Any) -> int:
    if dataset.chunks is not None:
        return int(dataset.chunks[0])
    row_nbytes = max(1, dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=object)))
    rows: int = min(READ_TOGETHER_NBYTES // row_nbytes, dataset.shape[0])
    return max(1, rows)


def _cut_extent(index: ChunkIndex, element_nbytes: int) -> ChunkIndex:
    """Cut one contiguous extent into blocks of rows, so that it is read like chunks."""
    row_nbytes = element_nbytes * int(np.prod(index.shape[1:], dtype=object))
    rows = index.shape[0]
    together = max(1, min(READ_TOGETHER_NBYTES // max(1, row_nbytes), max(1, rows)))
    if len(index.numbers) == 0:
        return replace(
            one_extent((together, *index.shape[1:]), offset=-1, nbytes=0),
            shape=index.shape,
            grid=(-(-rows // together), *index.grid[1:]),
        )
    numbers = np.arange(-(-rows // together), dtype=np.int64)
    counts = np.minimum(together, rows - numbers * together)
    return ChunkIndex(
        shape=index.shape,
        chunk_shape=(together, *index.shape[1:]),
        grid=(len(numbers), *index.grid[1:]),
        numbers=numbers,
        offset=index.offset[0] + numbers * (together * row_nbytes),
        nbytes=counts * row_nbytes,
        filter_mask=np.zeros(len(numbers), dtype=np.uint32),
    )
