"""The fields of a sample in one file: names become datasets, members, columns in memory, and what fills them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import (
    CorruptChunkError,
    FieldLengthError,
    FieldNotFoundError,
    H5StreamError,
    OptionError,
    UnsupportedFieldError,
)
from h5stream.samples.boxes import Along
from h5stream.samples.columns import Given, Padding, Values
from h5stream.samples.objects import Objects
from h5stream.samples.segments import Bounds, Said
from h5stream.samples.sequences import Sequences
from h5stream.samples.space import steps_of
from h5stream.samples.stretches import DENSE, Ragged, Stretches, names_of, samples_said
from h5stream.samples.table import Table
from h5stream.storage import elements
from h5stream.storage.agreement import FileParts
from h5stream.storage.discovery import (
    check_has_numpy_type,
    check_has_rows,
    find_dataset,
    is_attribute,
    once_of,
    why_not_opened,
)
from h5stream.storage.extents import Extents, SampleKind, Volume, with_names
from h5stream.storage.fields import Field, SampleShape, changed, columns_wanted, not_ragged
from h5stream.storage.images import Images
from h5stream.storage.layout import DIRECT, VIA_H5PY, DatasetPart, FieldLayout, Target
from h5stream.storage.lookups import LookedUp
from h5stream.storage.names import Names
from h5stream.storage.nearest import did_you_mean
from h5stream.storage.object_rows import bytes_of_each, rows_of_each
from h5stream.storage.options import IMAGES, OF_OBJECTS, ONCE, SPARSE, VALUES, check_options
from h5stream.storage.parts import VARIABLE_LENGTH, PartReader
from h5stream.storage.places import OpenFile, Place
from h5stream.storage.rowbox import Columns, selected_shape
from h5stream.storage.sparse import SparseEntry, categories_of, is_matrix, shape_of
from h5stream.storage.templates import NOWHERE
from h5stream.storage.units import EachBytes, Lying, ObjectsOfFile, find
from h5stream.storage.values import as_samples_have_it
from h5stream.storage.whereabouts import RawFile


class _Taken(NamedTuple):
    """What a sample takes of a dataset: the shape of it, and the steps where it is rows."""

    shape: tuple[int, ...]
    steps: tuple[int, ...] | None


class _Stretched(NamedTuple):
    """A ragged field, what says which rows its samples have, and where those of this part begin."""

    known: LookedUp
    said: Stretches
    values: list[Any]
    first: int


class FieldReader:
    """Collects the fields of a sample, and the parts that fill them, of one open file or of a group of it."""

    def __init__(
        self,
        opened: OpenFile,
        row_start: int,
        samples: SampleKind | None,
        extents: Extents | None,
        looked_up: dict[int, LookedUp],
    ) -> None:
        self._looked_up, self._opened, self._samples = looked_up, opened, samples
        self.sequences = samples if isinstance(samples, (Sequences, Table)) else None
        self._extents, self.volume = extents, Volume()
        self.file, self.number, self.identity = opened.file, opened.number, opened.identity
        self.guard, self._parts = opened.guard, PartReader(opened.files, opened.guard, row_start)
        self.fields: list[FieldLayout] = []
        self.once: list[tuple[int, Any]] = []
        self._stretches: list[_Stretched] = []
        self._valued: list[tuple[Any, str]] = []
        self._named: list[LookedUp] = []
        self._is_object, self.whole = isinstance(samples, Objects), list[DatasetPart]()
        self._image_rows: dict[int, str] = {}
        self._bytes: list[DatasetPart] = []
        self.groups: dict[Any, tuple[Place, Columns, str, tuple[Along, ...], list[Target]]] = {}

    def read(self, shape: SampleShape, group: str = "") -> FileParts:
        """Find all fields of a sample; of many groups, names say nothing of the one that they are found in."""
        lengths: dict[str, int] = {}
        entries = [self._add(place, field, lengths) for place, field in enumerate(shape.fields)]
        if not lengths:
            lengths |= {one.known.name: samples_said(one.said, one.values) for one in self._stretches[:1]}
        if not lengths:
            lengths |= {known.name: len(known.tables[-1]) for known in self._named[:1]}
        if not lengths and self._is_object and self.once:
            lengths["the object"] = 1
        if not lengths:
            raise OptionError(
                f"{self.identity.path!r}: none of the fields {', '.join(map(repr, shape.keys))} says how many samples "
                "there are; name at least one dataset with an axis of rows"
            )
        rows = self._agreed(lengths)
        for one in self._stretches:
            one.known.add_stretches(one.values, rows, one.first, self.identity.path)
        parts = tuple(self._with_lengths(self._parts.part(*group)) for group in self.groups.values())
        if self._cuts:
            parts = tuple(replace(part, rows=rows) for part in parts)
        parts = (*parts, *self._bytes)
        if not parts and self._stretches:
            name = names_of(self._stretches[0].said)[0]
            parts = (self._rows_alone(*find_dataset(self.file, name, self.identity.path, self.guard)[:2], lengths),)
        elif not parts and self._valued:
            parts = (self._rows_alone(*self._valued[0], lengths),)
        elif not parts and self.whole:
            parts = (replace(self.whole[0], rows=rows, pieces=(), targets=()),)
        elif not parts and self._is_object:
            parts = (self._nothing(),)
        return FileParts(
            rows=rows,
            fields=tuple(replace(field, name=field.name.removeprefix(f"{group}/")) for field in self.fields),
            parts=parts,
            entries=tuple(entries),
            once=tuple(self.once),
        )

    @property
    def _cuts(self) -> bool:
        """Whether fields are cut to as many rows as the shortest has."""
        samples = self.sequences
        return isinstance(samples, Sequences) and samples.lengths == "shortest" and self._extents is None

    def _agreed(self, lengths: dict[str, int]) -> int:
        """Return the rows that fields agree in, by the rows of each."""
        if len(set(lengths.values())) > 1 and not self._cuts:
            samples = self.sequences
            is_whole = isinstance(samples, Sequences) and samples.axis == 0 and not isinstance(samples.of, Said)
            way_out = ", and Sequences(..., lengths='shortest') leaves out rows that some lack" if is_whole else ""
            listing = ", ".join(f"{name!r} has {rows:,}" for name, rows in lengths.items())
            raise FieldLengthError(
                f"{self.identity.path!r}: the fields of a sample must agree in rows, but {listing}; "
                f"name fields of one length; Field(..., repeat=True) is what a file or a group has once{way_out}. "
                "`h5stream inspect FILE` says what fits together",
                file=self.identity.path,
            )
        return min(lengths.values())

    def _nothing(self) -> DatasetPart:
        """Return a dataset of no field, for an object that has single values alone."""
        return DatasetPart(
            file=self.number,
            path="",
            rows=1,
            row_start=self._parts.row_start,
            access=DIRECT,
            reason="nothing is read of it",
            chunk_rows=1,
            shape=(1,),
        )

    def _with_lengths(self, part: DatasetPart) -> DatasetPart:
        """Return the part of a field of images with how long each is, where a dataset says so."""
        layout = self.fields[part.targets[0].field] if part.targets else None
        if layout is None or layout.images is None:
            return part
        as_values = part.targets[0].field not in self._image_rows
        if part.heap is None and (as_values or (part.access == VIA_H5PY and part.dtype_text != "uint8")):
            raise self._refusal(
                layout.name,
                f"field {layout.name!r}: decode= takes bytes that h5stream reads without libhdf5, not these: "
                f"{part.reason}",
                part,
            )
        name = self._image_rows.get(part.targets[0].field)
        if not name:
            return part
        lengths = self._once(name).reshape(-1)
        most = int(np.prod(part.shape[1:])) * part.stored_element_nbytes
        if lengths.dtype.kind not in "iu" or len(lengths) != part.rows or ((lengths < 0) | (lengths > most)).any():
            raise OptionError(
                f"{self.identity.path!r}: field {layout.name!r}: length={name!r} has {len(lengths):,} values of "
                f"{lengths.dtype}, and it takes a number of bytes from 0 to {most:,} for each of {part.rows:,} rows"
            )
        return replace(part, lengths=lengths.astype(np.int64))

    def _rows_alone(self, dataset: Any, path: str, lengths: dict[str, int]) -> DatasetPart:
        """Return what says which rows samples have as a dataset of no field, where nothing else has a row a sample."""
        part = self._parts.part(self._opened.place(dataset, path), None, path, (), [])
        return replace(part, rows=next(iter(lengths.values())), pieces=(), heap=None)

    def _add(self, place: int, field: Field | Given, lengths: dict[str, int]) -> Any:
        """Add what one entry of a sample holds; give the number of its field, or a dict of numbers."""
        if not isinstance(field, Field):
            return self._add_column(field)
        if not field.is_looked_up and (group := self._group_named(field.name)) is not None:
            if is_matrix(group):
                self._check(SPARSE, field)
                return self._add_matrix(place, field, group)
            if (categories := categories_of(group)) is not None:
                entry = self._add(place, changed(field, name=f"{field.name}/codes"), lengths)
                self.fields[entry] = replace(self.fields[entry], name=field.name, categories=categories)
                return entry
        if field.rows is not None:
            return self._look_up(place, field)
        if field.names is not None:
            return self._look_up_objects(place, field, lengths)
        if field.decode and self._is_object:
            return self._add_bytes_of_object(field, lengths)
        if field.has_own_shape:
            return self._add_arrays(place, field, lengths)
        if field.ragged is not None and not field.decode:
            self._check(OF_OBJECTS if self._is_object else VALUES, field)
            return (self._add_rows_of_object if self._is_object else self._add_values)(place, field, lengths)
        if field.repeat or self._is_attribute(field.name):
            return self._add_once(field)
        source, path = self._beside(field) if field.file else (self.file, self.identity.path)
        if self._extents is not None and self._extents.has_once(source.get(field.name)):
            return self._add_once(field)
        dataset, dataset_path, member = self._found(source, field.name, path)
        name = field.name if not field.file else f"{field.name} of {path}"
        lengths[name] = dataset.shape[0] if self._extents is None else 1
        where = self._where(field, path, dataset, dataset_path)
        at, columns = self._at(field), field.columns
        along: tuple[Along, ...] = ()
        if self._extents is None:
            taken = self._rows_taken(dataset, field, member)
        else:
            columns = None
            try:
                along, sizes = self._extents.take(dataset.shape, field, self.volume)
            except (OptionError, FieldLengthError) as error:
                raise with_names(error, path, field.name) from None
            taken = _Taken(sizes, None)
        key = (where.number, dataset_path, repr(columns), taken.steps, at, field.pad, along, field.decode, field.length)
        group = self.groups.setdefault(key, (where, columns, field.name, along, []))
        return self._entry(dataset, dataset_path, field, taken, member, group[-1])

    def _check(self, kind: str, field: Field) -> None:
        check_options(kind, field, self._samples, self.identity.path)

    def _add_arrays(self, place: int, field: Field, lengths: dict[str, int]) -> Any:
        """Add a field of which each sample has a shape of its own, and the shape that those of this part have."""
        if self._extents is None or not (self._is_object or self._extents.takes_points):
            raise OptionError(
                f"Field({field.name!r}, ragged='arrays') is for whole objects, samples=Objects(...), or for rows of "
                "files or groups, samples=Rows(of='files') or Rows(of='*')"
            )
        entry = self._add(place, changed(field, ragged=None), lengths)
        if not isinstance(entry, int) or self.fields[entry].kind != "array" or any(n == entry for n, _ in self.once):
            raise UnsupportedFieldError(
                f"{self.identity.path!r}: field {field.name!r}: ragged='arrays' takes numbers along axes, and no "
                "compounds, strings or single values; name a member, or leave it out",
                field=field.name,
                file=self.identity.path,
            )
        shape = np.array(self.fields[entry].row_shape, dtype=np.int64)
        self.fields[entry] = replace(self.fields[entry], shapes=len(self.fields))
        self.once.append((len(self.fields), shape))
        self.fields.append(
            FieldLayout(name=f"shape of {field.name}", kind="array", dtype=shape.dtype, row_shape=shape.shape)
        )
        return entry

    def _rows_taken(self, dataset: Any, field: Field, member: tuple[str, ...]) -> _Taken:
        """Return what a sample that is a row, or several, takes."""
        is_one = field.rows is not None or field.names is not None
        steps = None if is_one else steps_of(field.steps, self.sequences, field.name)
        if field.axis not in (None, 0) or field.scale:
            raise OptionError(
                f"Field({field.name!r}): a sample is a row of axis 0 here, or several. Along another axis samples= "
                "says so, Sequences(axis=1), and fields that lie otherwise have an axis= of their own; scale= is for "
                "Sequences and Boxes"
            )
        try:
            row_shape = selected_shape(dataset.shape[1:], field.columns)
        except OptionError as error:
            inner = _inner_dtype(dataset, member)
            inside = not dataset.shape[1:] and (inner.subdtype or inner.fields)
            why = "columns= chooses among a dataset's axes, not inside a member; take it whole and index the batch"
            raise OptionError(f"{self.identity.path!r}: field {field.name!r}: {why if inside else error}") from None
        return _Taken(shape=row_shape if steps is None else (len(steps), *row_shape), steps=steps)

    def _at(self, field: Field) -> str:
        """Return the column of a table that a field's rows count from; empty for the one that samples begin at."""
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
        check_has_numpy_type(dataset, name, path)
        check_has_rows(dataset, name, path)
        return dataset, dataset_path, member

    def _beside(self, field: Field) -> tuple[Any, str]:
        """Open the file that a field of another file has beside this one."""
        named = self._opened.files.named
        if len(field.file) != named:
            raise OptionError(
                f"Field({field.name!r}, file=): {len(field.file)} files stand beside {named}; name as many, "
                "one for each file of the source, or look rows up in them with rows="
            )
        path = field.file[self.number]
        return self._opened.opened(path), path

    def _where(self, field: Field, path: str, dataset: Any, dataset_path: str) -> Place:
        """Say where a dataset is, in this file or in the one beside it that a field names."""
        if field.file:
            return self._opened.beside(path, dataset, dataset_path)
        return self._opened.place(dataset, dataset_path)

    def _look_up(self, place: int, field: Field) -> Any:
        """Add a field that is looked up: its dataset, here or in the files that it names, and the rows wanted of it."""
        known = self._looked_up.get(place)
        if known is None:
            said = field.rows if isinstance(field.rows, Stretches) else None
            given = None if said is not None or isinstance(field.rows, str) else field.rows
            crop = None if field.ragged is None else field.ragged.crop
            known = LookedUp(name=field.name, given=given, said=said, crop=crop)
            self._looked_up[place] = known
        first = 0 if field.file else known.rows
        if not field.file:
            known.entry = self._add_looked_up(known, field, self.file, self.identity.path)
        elif not known.parts:
            before = len(self.fields)
            for path in field.file:
                del self.fields[before:]
                known.entry = self._add_looked_up(known, field, self._opened.opened(path), path)
        else:
            self.fields += known.layouts
        if isinstance(field.rows, str):
            known.add_table(self._once(field.rows), first, self.identity.path)
        elif isinstance(field.rows, Stretches):
            names = names_of(field.rows)
            numbers = [self._once(name) for name in names]
            self._stretches.append(_Stretched(known, field.rows, numbers, first))
        return known.entry

    def _group_named(self, name: str) -> Any:
        """Return the group that a name leads to in this file; None for anything else."""
        name = name.strip("/")
        with contextlib.suppress(KeyError, RuntimeError, ValueError, OSError):
            # Asked for its kind alone (`get(getclass=True)`), a damaged object crashes libhdf5, which opening refuses.
            if name and isinstance(found := self.file[name], h5py.Group):
                self.guard.check_links(self.file, name, self.identity.path)
                return found
        return None

    def _add_matrix(self, place: int, field: Field, group: Any) -> SparseEntry:
        """Add a sparse matrix: its values, and the column of each."""
        form = field.ragged.form if field.ragged is not None else ""
        name, path = field.name.strip("/"), self.identity.path
        if form not in ("packed", DENSE) or (field.columns is not None and form != DENSE):
            raise self._refusal(
                field.name,
                f"{field.name!r} is a sparse matrix, which comes as ragged='dense', rows of which columns= takes some, "
                "or as ragged='packed', the values that are stored, with their columns",
            )
        _, width = shape_of(group, name, path)
        places = columns_wanted(field, width) if form == DENSE else None
        said = Bounds(f"{name}/indptr")
        values = changed(Field(f"{name}/data", rows=said, dtype=field.dtype), ragged=Ragged(form=form, places=places))
        # Behind the numbers of the fields that the user named.
        number = self._look_up(~(2 * place), values)
        indices = changed(Field(f"{name}/indices", rows=said), ragged=Ragged(width=width))
        columns = self._look_up(~(2 * place + 1), indices)
        self.fields[number] = replace(self.fields[number], name=field.name)
        if self.fields[columns].dtype.kind not in "iu" or not isinstance(number, int):
            why = f"whose columns are {self.fields[columns].dtype}, and not whole numbers"
            raise self._refusal(field.name, f"{field.name!r} is a sparse matrix {why}")
        return SparseEntry(values=number, columns=columns, width=width, is_dense=form == DENSE)

    def _add_values(self, place: int, field: Field, lengths: dict[str, int]) -> Any:
        """Add a ragged field whose rows are the items of values of variable length."""
        assert field.ragged is not None
        known = self._looked_up.setdefault(place, LookedUp(name=field.name, crop=field.ragged.crop))
        dataset, path, _ = self._found(self.file, field.name, self.identity.path)
        if elements.vlen_base(dataset.dtype) is None:
            raise not_ragged(field.name)
        known.entry = self._add_looked_up(known, field, self.file, self.identity.path)
        part = known.parts[-1]
        if part.heap is None or len(dataset.shape) > 1:
            why = part.reason if part.heap is None else f"a row has {dataset.shape[1:]} values"
            raise self._refusal(
                field.name,
                f"field {field.name!r}, {why}: ragged= takes one value a row, of numbers, that h5stream reads without "
                "libhdf5; without it each sample is a list",
                part,
            )
        known.add_values(part)
        lengths[field.name] = part.rows
        self._valued.append((dataset, path))
        return known.entry

    def _add_rows_of_object(self, place: int, field: Field, lengths: dict[str, int]) -> Any:
        """Add a ragged field whose rows are all those of a dataset of the object."""
        assert field.ragged is not None
        known = self._looked_up.setdefault(place, LookedUp(name=field.name, crop=field.ragged.crop))
        known.entry = self._add_looked_up(known, field, self.file, self.identity.path)
        part = known.parts[-1]
        self._check_ragged(field, part)
        known.add_rows(np.array([part.row_start]), np.array([part.rows]))
        lengths[field.name] = 1
        self.whole.append(replace(part, row_start=self._parts.row_start))
        return known.entry

    def _check_ragged(self, field: Field, part: DatasetPart) -> None:
        """Refuse values of variable length as the rows of an object."""
        if part.heap is not None or VARIABLE_LENGTH in part.reason or self.fields[-1].kind != "ragged":
            why = "which ragged= cannot take of whole objects; without it each sample is a list"
            raise self._refusal(field.name, f"{part.path!r} holds values of variable length, {why}")

    def _add_bytes_of_object(self, field: Field, lengths: dict[str, int]) -> int:
        """Add an image whose bytes are a dataset of the object."""
        _, path, _ = find_dataset(self.file, field.name, self.identity.path, self.guard)
        targets = [self._add_image_layout(field, None)]
        with RawFile(self.file, self.guard) as raw:
            self._bytes.append(self._part_of_bytes(ObjectsOfFile(raw, [path]), self.number, targets))
        lengths[field.name] = 1
        return targets[0].field

    def _part_of_bytes(self, members: ObjectsOfFile, file: int, targets: list[Target], first: int = -1) -> DatasetPart:
        """Return objects that are bytes as rows, of this part or of what is looked up."""
        found = EachBytes("", len(members), self.guard)
        which, first = find(members, [found]), self._parts.row_start if first < 0 else first
        return bytes_of_each(members, which, found, file=file, row_start=first, targets=targets)

    def _look_up_objects(self, place: int, field: Field, lengths: dict[str, int]) -> Any:
        """Add a field of which each sample has an object that is named."""
        crop = None if field.ragged is None else field.ragged.crop
        known = self._looked_up.setdefault(place, LookedUp(name=field.name, crop=crop))
        known.is_given = not isinstance(field.names, str)
        names = field.names
        if isinstance(names, str):
            values = self._once(names).reshape(-1)
            names = [one.decode() if isinstance(one, bytes) else str(one) for one in values.tolist()]
            lengths[field.names] = len(names)
        elif known.tables:
            self.fields += known.layouts
            return known.entry
        unknown = [name for name in dict.fromkeys(names) if name not in known.objects]
        before = len(self.fields)
        for path in field.file or (self.identity.path,):
            del self.fields[before:]
            file = self._opened.opened(path) if field.file else self.file
            unknown = self._add_objects(known, field, file, path, unknown)
        if unknown:
            raise self._unknown(field, unknown, len(set(names)), file, path)
        if not known.parts:
            raise FieldLengthError(
                f"{self.identity.path!r}: names= of field {field.name!r} names no object, so that nothing says what "
                "the field holds; leave out this file, or begin with one that has samples",
                field=field.name,
                file=self.identity.path,
            )
        del self.fields[before:]
        self.fields += known.layouts
        self.whole.append(replace(known.parts[0], row_start=self._parts.row_start, heap=None))
        rows = np.array([known.objects[name] for name in names], dtype=np.int64).reshape(-1, 2)
        if field.decode:  # an image is one row, whatever bytes it has
            known.tables.append(rows[:, 0])
        else:
            known.add_rows(*rows.T)
        self._named.append(known)
        return known.entry

    def _unknown(self, field: Field, unknown: list[str], count: int, file: Any, path: str) -> FieldNotFoundError:
        """Return the error for names of which there is no object; one that is damaged is told here."""
        missing = field.name.replace("{}", unknown[0])
        why_not_opened(file, missing.strip("/"), path)  # says so if it is there, and damaged
        above, _, below = field.name.rpartition("{}")
        beside = file.get(above.rpartition("/")[0] or "/") if not below else None
        hint = did_you_mean(unknown[0].strip(), beside) if isinstance(beside, h5py.Group) else ""
        return FieldNotFoundError(
            f"{path!r}: there is no {missing!r}, which names= has.{hint} {len(unknown):,} of "
            f"{count:,} names are of nothing that is there. Leave out samples without an object: "
            "Subset, or rows= of the loader",
            field=field.name,
            file=path,
        )

    def _add_objects(self, known: LookedUp, field: Field, file: Any, path: str, names: list[str]) -> list[str]:
        """Add the rows of objects that a file has; gives the names of those that it has not."""
        before, parts = len(self.fields), len(known.parts)

        def describe(k: int) -> DatasetPart:
            del self.fields[before:], known.parts[parts:]
            known.entry = self._add_looked_up(known, field, file, path, members.names[k])
            if field.ragged is not None:
                self._check_ragged(field, known.parts[-1])
            return replace(known.parts.pop(), row_start=0)

        with RawFile(file, self.guard) as raw:
            paths = [field.name.replace("{}", name).strip("/") for name in names]
            addresses = raw.addresses(paths)
            there = np.flatnonzero(addresses != NOWHERE)
            members = ObjectsOfFile(raw, Names.of((paths[k] for k in there.tolist()), addresses[there]))
            named = [names[k] for k in there.tolist()]
            if named and field.decode:
                targets = [self._add_image_layout(field, None)]
                known.entry, first = targets[0].field, known.rows
                known.check_alike(self.fields[before:], path)
                number = self._opened.files.number_of(path) if field.file else self.number
                known.parts.append(self._part_of_bytes(members, number, targets, first))
                known.objects |= {name: (first + row, 1) for row, name in enumerate(named)}
            elif named:
                lying = Lying("", len(named))
                rows = rows_of_each(members, find(members, [lying]), lying, describe)
                begins = zip(*(each.tolist() for each in known.add_objects(rows)), strict=True)
                known.objects |= dict(zip(named, begins, strict=True))
        return [name for name, address in zip(names, addresses.tolist(), strict=True) if address == NOWHERE]

    def _add_looked_up(self, known: LookedUp, field: Field, file: Any, path: str, name: str = "") -> Any:
        """Add a file's share of a dataset that is looked up; give the number of its field, or a dict of numbers."""
        before, targets = len(self.fields), list[Target]()
        dataset, dataset_path, member = self._found(file, name or field.name, path)
        entry = self._entry(dataset, dataset_path, field, self._rows_taken(dataset, field, member), member, targets)
        if field.ragged is not None and isinstance(entry, dict):
            raise UnsupportedFieldError(
                f"{path!r}: field {field.name!r} is a compound, and each member of a ragged one is a field of its own: "
                f"Field({field.name + ':' + next(iter(entry))!r}, rows=...), or members=[...] for one matrix",
                field=field.name,
                file=path,
            )
        known.check_alike(self.fields[before:], path)
        where = self._where(field, path, dataset, dataset_path)
        part = self._with_lengths(self._parts.part(where, field.columns, field.name, (), targets))
        known.parts.append(replace(part, row_start=known.rows))
        return entry

    def _add_column(self, given: Given) -> int:
        """Add a field that comes from no dataset; give its number."""
        cast_to = None
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
        return self._added(name=given.name, kind=kind, dtype=dtype, row_shape=shape, cast=cast_to)

    def _once(self, name: str) -> NDArray[Any]:
        """Return what the file, or the group, has once under a name, or a whole dataset of numbers."""
        return np.asarray(once_of(self.file, name, self.identity.path, self.guard))

    def _is_attribute(self, name: str) -> bool:
        return is_attribute(self.file, name, self.identity.path)

    def _add_once(self, field: Field) -> int:
        """Add a field that the whole part has once: an attribute, or a dataset without an axis of rows."""
        self._check(ONCE, field)
        value = as_samples_have_it(once_of(self.file, field.name, self.identity.path, self.guard))
        self.once.append((len(self.fields), value))
        if not isinstance(value, np.ndarray):
            return self._added(name=field.name, kind="object", dtype=np.dtype(object), row_shape=(), cast=field.dtype)
        return self._added(
            name=field.name,
            kind="array",
            dtype=elements.held_dtype(value.dtype),
            row_shape=value.shape,
            cast=field.dtype,
            unit=_unit(value.dtype),
        )

    def _refusal(self, name: str, why: str, part: DatasetPart | None = None) -> H5StreamError:
        """Return the error for a field of this file that cannot be had, at all or because a chunk is damaged."""
        path = self.identity.path
        if part is not None and part.damaged is not None:
            says = f"{path!r}: field {name!r}: {part.reason}"
            return CorruptChunkError(says, file=path, field=name, chunk=part.damaged)
        return UnsupportedFieldError(f"{path!r}: {why}", field=name, file=path)

    # --- fields -------------------------------------------------------------------------------------

    def _entry(
        self, dataset: Any, path: str, field: Any, taken: _Taken, member: tuple[str, ...], targets: list[Target]
    ) -> Any:
        """Add the field, or one for each member of a compound; give its number or a dict of numbers."""
        dtype = _inner_dtype(dataset, member)
        if field.decode:
            return self._add_images(dataset, field, taken, member, dtype, targets)
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
            raise self._refusal(
                field.name,
                f"members= makes one tensor of numbers of one type, but of {field.name!r} {listing}; make a field for "
                "each type, and join them in batch_transform=",
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
        items = elements.vlen_base(dtype) if field.ragged is not None and field.rows is None else None
        dtype, stored = (dtype, elements.plain_dtype(dataset.dtype)) if items is None else (items, items)
        base, inner_shape = dtype.subdtype or (dtype, ())
        kind = (
            "ragged"
            if field.ragged is not None and base.kind not in "OSV"
            else "object"
            if base.kind == "O"
            else "bytes"
            if base.kind == "S"
            else "array"
        )
        why = _why_refused(dtype, kind, member, taken.steps) or _why_not_ragged(field, kind)
        if self._extents is not None and kind not in ("array", "ragged") and field.rows is None:
            why = why or "samples that are parts of volumes are of numbers"
        if why:
            raise self._refusal(name, f"field {name!r} is {dtype}: {why}")
        number = self._added(
            name=name,
            kind=kind,
            dtype=np.dtype(object) if kind == "object" else elements.held_dtype(base),
            row_shape=(*taken.shape, *inner_shape),
            steps=taken.steps,
            at=field.at,
            pad=field.pad,
            cast=field.dtype,
            ragged=field.ragged,
            unit=_unit(base),
            cut_at_nul=kind == "bytes" and elements.ends_at_nul(dataset.id.get_type(), member),
        )
        stacked = field.members
        leaf = elements.leaf_of(stored, member, stacked) if kind != "object" else None
        fill = np.zeros(leaf.nbytes if leaf else 0, np.uint8)
        targets.append(Target(field=number, member=member, leaf=leaf, fill=fill, stacked=stacked))
        return number

    def _add_images(
        self,
        dataset: Any,
        field: Field,
        taken: _Taken,
        member: tuple[str, ...],
        dtype: np.dtype[Any],
        targets: list[Target],
    ) -> int:
        """Add a field of images; of what size they are is found out once all files are open."""
        rows = dataset.shape[1:]
        is_values = not rows and (elements.vlen_base(dtype) == np.uint8 or elements.is_text(dtype))
        leaf = None
        if is_values and field.length:
            raise OptionError(
                f"{self.identity.path!r}: field {field.name!r}: length= is for rows of bytes that are filled up, and "
                "values of variable length are as long as they are; leave it out"
            )
        if not is_values:
            leaf = elements.bytes_leaf(dtype)
            if member or len(rows) != (dtype.itemsize == 1) or leaf is None or self._extents is not None or taken.steps:
                raise self._refusal(
                    field.name,
                    f"field {field.name!r} is {dtype} {dataset.shape}: decode= takes images as values of variable "
                    "length (of uint8), or as rows of bytes, one a sample",
                )
            self._image_rows[len(self.fields)] = field.length
        targets.append(self._add_image_layout(field, leaf))
        return targets[-1].field

    def _add_image_layout(self, field: Field, leaf: elements.Leaf | None) -> Target:
        self._check(IMAGES, field)
        images, dtype = Images(format=field.decode), np.dtype(object)
        number = self._added(
            name=field.name, kind="object", dtype=dtype, row_shape=(), ragged=field.ragged, images=images
        )
        return Target(field=number, member=(), leaf=leaf, fill=np.zeros(leaf.nbytes if leaf else 0, np.uint8))

    def _added(self, **layout: Any) -> int:
        """Add what a field is in a batch; give its number."""
        self.fields.append(FieldLayout(**layout))
        return len(self.fields) - 1


def _unit(dtype: np.dtype[Any]) -> str:
    """Return what a batch's whole numbers count, where they are dates or times."""
    return str(dtype.newbyteorder("=")) if dtype.kind in "mM" else ""


def _inner_dtype(dataset: Any, member: tuple[str, ...]) -> Any:
    """Return the type of a member of a dataset's elements."""
    dtype: Any = elements.plain_dtype(dataset.dtype)
    for part in member:
        dtype = dtype.fields[part][0]
    return dtype


def _why_not_ragged(field: Field, kind: str) -> str:
    """Say why rows of a field cannot come as it asks; empty where they can."""
    if field.ragged is not None and field.ragged.form == DENSE and field.ragged.places is None:
        return "ragged='dense' is for sparse matrices, groups of data, indices and indptr"
    return "ragged rows are of numbers" if field.ragged is not None and kind != "ragged" else ""


def _why_refused(dtype: np.dtype[Any], kind: str, member: tuple[str, ...], steps: tuple[int, ...] | None) -> str:
    """Say why a batch cannot hold a field of a type; empty where it can."""
    if why := elements.refusal(dtype):
        return why
    if dtype.subdtype is not None and dtype.subdtype[0].fields is not None:
        return "an array of compounds inside a compound has no tensor form"
    if kind == "object" and member:
        return "a member of variable length, which only whole datasets may have"
    if kind in ("object", "ragged") and steps is not None:
        return "values of variable length make no tensor of several rows; leave it out, or store it with a fixed length"
    return ""
