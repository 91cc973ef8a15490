"""Missing values and packing of numbers, from the attributes and fill values of their datasets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.base.hints import warn
from h5stream.errors import MeaningWarning, OptionError
from h5stream.samples.columns import SampleColumn
from h5stream.samples.lookup import Lookup
from h5stream.samples.packing import FILL, MEANINGS, NETCDF, PACKED, Number, Packing, all_missing, as_stored, packing
from h5stream.samples.table import ROW
from h5stream.storage.decode.elements import dtype_of, has_small_sequences, type_if_any
from h5stream.storage.decode.small_floats import held_as, name_of, shown, widened, widened_dtype
from h5stream.storage.decode.values import attribute_of, fill_value_of
from h5stream.storage.file.discovery import Node, object_at
from h5stream.storage.file.stored import open_hdf5
from h5stream.storage.layout.access import ObjectsAsRows, RowsOfObjects
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.layout import FieldLayout, SampleLayout, leaves_of, numbers_of
from h5stream.storage.layout.parts import DatasetPart, Meaning, Target
from h5stream.storage.source.handles import DAMAGE
from h5stream.storage.source.local import FilesIdentity

_SCALES = ("scale_factor", "add_offset")

MOST_NUMBERS = 1000
"""The most numbers of an attribute that are read: a fill value is one, and missing values are few."""

MissingValues = tuple[str | Number, ...]
Packed = tuple[tuple[int, Packing], ...]
"""The packings of the fields that a part has once, with the numbers of the fields."""


# --- one dataset


def attributes_of(dataset: h5py.Dataset, names: Sequence[str]) -> dict[str, object]:
    """Return the named attributes of a dataset, without missing, unreadable and large ones."""
    values: dict[str, Any] = {}
    if not isinstance(dataset, h5py.Dataset) or not h5py.h5a.get_num_attrs(dataset.id):
        return values
    for name in names:
        with contextlib.suppress(*DAMAGE, TypeError, ValueError, NotImplementedError):
            if (
                h5py.h5a.exists(dataset.id, name.encode())
                and np.prod(dataset.attrs.get_id(name).shape or (1,)) <= MOST_NUMBERS
            ):
                value = widened(attribute_of(dataset.attrs, name))
                if not isinstance(value, h5py.Empty):
                    values[name] = value
    return values


def meaning_of(dataset: h5py.Dataset) -> Meaning:
    """Return the attributes of a dataset that define the meaning of its numbers, as comparable text."""
    if not isinstance(dataset, h5py.Dataset) or not h5py.h5a.get_num_attrs(dataset.id):
        return ()
    return tuple((name, text_of_value(value)) for name, value in attributes_of(dataset, MEANINGS).items())


def packed_by(dataset: h5py.Dataset) -> tuple[str, ...]:
    """Return the attributes that define missing or packed numbers of a dataset."""
    dtype = type_if_any(dataset.id.get_type())
    if dtype is None or dtype.kind not in "iuf":
        return ()
    attributes = attributes_of(dataset, (*PACKED, "_Unsigned"))
    kind = np.dtype(widened_dtype(dtype).newbyteorder("="))
    plain = packing((NETCDF,), kind, {})
    return tuple(attributes) if replace(packing((NETCDF,), kind, attributes), dtype=plain.dtype) != plain else ()


def packed_text(name: str, attributes: Sequence[str]) -> str:
    """Return a text about attributes that define packed numbers, and the option that follows them."""
    text = name if name.isprintable() and '"' not in name and "\\" not in name else repr(name)[1:-1]
    listing = ", ".join(f"{text}@{one}" for one in attributes)
    return f'{text} has fill values or packed numbers ({listing}), which Field("{text}", missing="netcdf") follows'


def not_followed(layout: SampleLayout) -> dict[str, tuple[str, ...]]:
    """Return, by field, the attributes that define packed numbers and are not followed."""
    names = dict[str, tuple[str, ...]]()
    for parts in layout.datasets:
        for target in parts[0].targets:
            field = layout.fields[target.field]
            if attributes := tuple(name for name, _ in target.meaning if name in PACKED and not field.packings):
                names[field.name] = attributes
    return names


def text_of_value(value: Any) -> str:
    """Return the value of an attribute as text."""
    values = np.ravel(value).tolist()
    texts = [one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in values]
    return ", ".join(texts)


def packing_of(
    dataset: h5py.Dataset,
    member: tuple[str, ...],
    dtype: np.dtype,
    missing: MissingValues,
    path: str,
    stacked: tuple[str, ...] = (),
) -> Packing:
    """Return the packing of the numbers of a dataset, or of a member."""
    members = [(*member, name) for name in stacked] or [member]
    names = (*PACKED, "_Unsigned") if NETCDF in missing else ()
    attributes = attributes_of(dataset, names)
    every = []
    for one in members:
        fill = _member_value(_fill_value(dataset, path), one) if FILL in missing else None
        every.append(
            _packing(missing, dtype, {name: _member_value(value, one) for name, value in attributes.items()}, fill)
        )
    if len(set(every)) > 1:
        rule = "members have different fill values, and make one tensor; make a field of each, or give missing= numbers"
        raise OptionError(f"{path!r}: {dataset.name!r}: {rule}")
    return every[0]


def _packing(missing: MissingValues, dtype: np.dtype, attributes: dict[str, object], fill: object = None) -> Packing:
    """Return the packing of numbers of a dtype; missing values are rounded to a small float's precision."""
    if name_of(dtype):
        missing = tuple(one if isinstance(one, str) else _rounded(one, dtype).item() for one in missing)
        attributes = {name: value if name in _SCALES else _rounded(value, dtype) for name, value in attributes.items()}
    return packing(missing, widened_dtype(dtype), attributes, widened(fill))


def _rounded(value: Any, dtype: np.dtype) -> Any:
    """Return numbers rounded to a small float's precision; other values unchanged."""
    if np.asarray(value).dtype.kind not in "iuf":
        return value
    every = [widened(held_as(one, dtype)) for one in np.ravel(value).tolist()]
    return np.array(every, np.float32).reshape(np.shape(value))


def _fill_value(dataset: h5py.Dataset, path: str) -> Any:
    """Return a dataset's fill value; raise if none was set."""
    plist = dataset.id.get_create_plist()
    dtype, is_own = dtype_of(dataset), plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if not is_own or dtype.kind == "O" or has_small_sequences(dtype):
        problem = "has no fill value of its own; give missing= the number that stands for what is missing"
        raise OptionError(f"{path!r}: missing='fill', and {dataset.name!r} {problem}")
    return fill_value_of(dataset)


def _member_value(value: Any, member: tuple[str, ...]) -> Any:
    """Return the member of a value, or the value itself if it is no compound."""
    for name in member:
        value = value[name] if getattr(value, "dtype", None) is not None and value.dtype.names else value
    return value


def check_is_number(field: FieldLayout) -> None:
    """Raise if a field cannot contain NaN."""
    if field.is_listed or field.dtype.kind not in "iuf":
        what = "numbers of variable length in a list" if field.is_listed else str(field.dtype)
        rule = "missing= is for whole and floating point numbers; of variable length with ragged='list'"
        raise OptionError(f"field {field.name!r} is {what}: {rule}")


# --- whole layouts: the packing of each dataset, and of each sample


def with_packings(layout: SampleLayout, packed: Sequence[Packed], *, may_lack: bool = False) -> SampleLayout:
    """Return the layout with the packings of fields with missing=; `packed` has those of values that a part has once.

    If objects `may_lack` a dataset, and are filled, all numbers of the filling are missing.
    """
    once = dict(packed[0])
    for field, entry in zip(layout.shape.fields, layout.entries, strict=True):
        if not isinstance(field, Field) or not field.missing:
            continue
        leaves = [numbers_of(leaf)[0] for _, leaf in leaves_of("", entry)]
        _check_fit(field, [layout.fields[number] for number in leaves])
        for number in leaves:
            if number in once:
                of = [np.array([dict(one)[number]], dtype=object) for one in packed]
                layout = _with_field_packings(layout, number, of, None)
            else:
                layout = _with_dataset_packings(layout, number, field.missing, may_lack=may_lack)
    return layout


def _check_fit(requested: Field, fields: Sequence[FieldLayout]) -> None:
    """Raise for fields without numbers, and for a missing value that no element can equal."""
    for field in fields:
        check_is_number(field)
    for number in requested.missing if NETCDF not in requested.missing else ():
        if isinstance(number, str) or (
            number != number and any(widened_dtype(field.dtype).kind == "f" for field in fields)
        ):
            continue  # NaN stays NaN
        if all(as_stored(number, widened_dtype(field.dtype)) is None for field in fields):
            problem = f"missing={number!r}, and its stored numbers are {shown(fields[0].dtype)}, which are never that"
            raise OptionError(f"Field({requested.name!r}): {problem}; give the number as it is stored")


def _with_dataset_packings(
    layout: SampleLayout, number: int, missing: MissingValues, *, may_lack: bool
) -> SampleLayout:
    """Return the layout with the packings of a field, from each of its datasets."""
    pairs = ((n, one) for n, parts in enumerate(layout.datasets) for one in parts[0].targets if one.field == number)
    dataset, _ = next(pairs)
    of = []
    with contextlib.ExitStack() as opened:
        files = _DatasetOpener(layout, opened)
        for part in layout.datasets[dataset]:
            target = next(one for one in part.targets if one.field == number)
            of.append(_part_packings(files, part, target, layout.fields[number], missing, may_lack=may_lack))
    return _with_field_packings(layout, number, of, dataset)


class _DatasetOpener:
    """Opens datasets of a layout, with one file open at a time."""

    def __init__(self, layout: SampleLayout, opened: contextlib.ExitStack) -> None:
        self._layout, self._opened = layout, opened
        self._path, self._file = "", None
        self._part: DatasetPart | None = None
        self._numbers = np.zeros(0, dtype=np.int64)

    def dataset(self, part: DatasetPart, k: int) -> tuple[Node | None, str]:
        """Return a part's dataset, or that of its object `k`, and the path of its file."""
        identity, path = self._layout.files[part.file], part.path
        within = identity.path
        if isinstance(identity, FilesIdentity):
            if part is not self._part:
                self._part, self._numbers = part, _file_of_each(part, identity)
            within = identity.paths[int(self._numbers[k])]
        elif part.objects is not None:
            path = part.path_of(k)
        if within != self._path:
            self._opened.close()
            self._file, self._path = self._opened.enter_context(open_hdf5(within)), within
        return object_at(self._file, path, within), within


def _file_of_each(part: DatasetPart, identity: FilesIdentity) -> NDArray[np.int64]:
    """Return the number of each object's file, by the addresses of its bytes."""
    objects = part.objects
    numbers = np.full(0 if objects is None else len(objects.paths), -1, dtype=np.int64)
    if part.index is not None and len(part.index.numbers):
        owner = part.index.numbers // part.index.columns
        if isinstance(objects, RowsOfObjects):
            owner = np.searchsorted(objects.edges, owner * part.chunk_rows, side="right") - 1
        numbers[owner] = np.searchsorted(identity.starts, part.index.offset, side="right") - 1
    lacking, in_turn = numbers < 0, np.arange(len(numbers))
    if isinstance(objects, RowsOfObjects):
        numbers[lacking & (objects.rows == 0)] = 0  # it has no data to read
        lacking = numbers < 0
    if lacking.any():
        if len(numbers) < len(identity.paths) or (numbers[~lacking] != in_turn[~lacking]).any():
            problem = "nothing was written in some of the files, so that their attributes cannot be told apart"
            raise OptionError(
                f"missing= of {part.path!r}: {problem}; give missing= the numbers that stand for what is missing"
            )
        numbers[lacking] = in_turn[lacking]
    return numbers


def _part_packings(
    files: _DatasetOpener,
    part: DatasetPart,
    target: Target,
    field: FieldLayout,
    missing: MissingValues,
    *,
    may_lack: bool,
) -> NDArray[np.object_]:
    """Return the packings of a part: one for all, or one for each of its objects."""
    follows, plain = any(isinstance(one, str) for one in missing), _packing(missing, field.dtype, {})
    packings = np.full(1 if part.objects is None else len(part.objects.paths), None if follows else plain, dtype=object)
    lacking = np.zeros(len(packings), dtype=bool)
    for k in range(len(packings)) if follows else _unwritten(part).tolist() if may_lack else ():
        dataset, path = files.dataset(part, k)
        lacking[k] = not isinstance(dataset, h5py.Dataset)
        if not lacking[k]:
            packings[k] = packing_of(dataset, target.member, field.dtype, missing, path, target.stacked)
    if lacking.any():
        packings[lacking] = all_missing(packings[~lacking][0] if not lacking.all() else plain)
    every = packings.tolist()
    return np.array(every[:1] if len({*every}) == 1 else every, dtype=object)


def _unwritten(part: DatasetPart) -> NDArray[np.int64]:
    """Return the indices of objects without stored data, if each object is a row."""
    if part.index is None or not isinstance(part.objects, ObjectsAsRows):
        return np.zeros(0, dtype=np.int64)
    return np.setdiff1d(np.arange(len(part.objects.paths)), part.index.numbers // part.index.columns)


def _with_field_packings(
    layout: SampleLayout, number: int, of: Sequence[NDArray[np.object_]], dataset: int | None
) -> SampleLayout:
    """Return the layout with a field's packings, and if datasets differ, with a field of their index."""
    index_of = {one: k for k, one in enumerate(dict.fromkeys(one for part in of for one in part.tolist()))}
    field = layout.fields[number]
    if len({one.stored for one in index_of}) > 1:
        problem = "some of its datasets have the attribute _Unsigned, others have not, or say otherwise"
        raise OptionError(f"field {field.name!r}: {problem}; read them as datasets of their own")
    packings, fields = tuple(index_of), list(layout.fields)
    if len(index_of) == 1:
        fields[number] = replace(field, packings=packings)
        return replace(layout, fields=tuple(fields))
    numbers = [np.array([index_of[one] for one in part.tolist()], dtype=np.int32) for part in of]
    is_of_parts = all(len(part) == 1 for part in numbers) and not field.take.at
    if dataset is None or (is_of_parts and dataset < len(layout.aligned)):
        column = SampleColumn(np.concatenate(numbers), layout.file_starts, by_rows=True)
    else:
        column = SampleColumn(_sample_packings(layout, field, numbers, dataset))
    return _with_column(layout, number, packings, column)


def _with_column(
    layout: SampleLayout, number: int, packings: tuple[Packing, ...], column: SampleColumn
) -> SampleLayout:
    """Return the layout with a field of the index of each sample's packing."""
    fields = list(layout.fields)
    fields[number] = replace(fields[number], packings=packings, packed_by=len(fields))
    name = f"{fields[number].name}: which packing"
    fields.append(FieldLayout(name=name, kind="array", dtype=np.dtype(np.int64), row_shape=()))
    return replace(layout, fields=tuple(fields), columns=(*layout.columns, (len(fields) - 1, column)))


def _sample_packings(
    layout: SampleLayout, field: FieldLayout, numbers: Sequence[NDArray[np.int32]], dataset: int
) -> NDArray[np.int32]:
    """Return the index of each sample's packing, by its rows."""
    firsts = list[NDArray[np.int64]]()
    for part, packing_numbers in zip(layout.datasets[dataset], numbers, strict=True):
        begins = np.zeros(1, dtype=np.int64)
        if len(packing_numbers) > 1:
            objects = part.objects
            begins = objects.edges[:-1] if isinstance(objects, RowsOfObjects) else np.arange(len(packing_numbers))
        firsts.append(begins + part.row_start)
    starts, of = np.concatenate(firsts), np.concatenate(numbers)
    lookup = next((one for one in layout.lookups if one.dataset == dataset), None)
    if lookup is not None:
        return of[_packing_rows(lookup, field, starts)]
    every = np.arange(layout.samples)
    rows = layout.anchors_of(every) if layout.space is None else layout.space.anchors_of(every, field.take.at or ROW)
    return of[np.searchsorted(starts, rows, side="right") - 1]


def _packing_rows(lookup: Lookup, field: FieldLayout, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the range of rows that contains each sample's rows."""
    why = ""
    place = np.searchsorted(starts, lookup.first_rows, side="right") - 1
    if lookup.draw is not None:
        why = "a function says in each epoch anew which rows samples have"
    elif lookup.counts is not None:
        more = lookup.counts + (0 if lookup.spare is None else lookup.spare)
        if lookup.listed is None:
            of, own = np.arange(len(place)), lookup.rows + np.maximum(more, 1) - 1
        else:
            of = np.repeat(np.arange(len(place)), more)
            own = lookup.listed[np.arange(len(of)) + (lookup.rows - np.cumsum(more) + more)[of]]
        last = np.searchsorted(starts, own, side="right") - 1
        why = "some samples have rows of several of them" if (last != place[of]).any() else ""
    if why:
        problem = f"its datasets differ in scale_factor, add_offset or fill values, and {why}"
        raise OptionError(f"field {field.name!r}: {problem}; give missing= numbers, or repack them with one packing")
    return place


# --- joined layouts


def without_packings(layout: SampleLayout) -> SampleLayout:
    """Return the layout with numbers as stored."""
    added = {field.packed_by for field in layout.fields} - {None}
    fields = (replace(one, packings=(), packed_by=None) for k, one in enumerate(layout.fields) if k not in added)
    columns = tuple((number, column) for number, column in layout.columns if number not in added)
    return replace(layout, fields=tuple(fields), columns=columns)


def with_joint_packings(layout: SampleLayout, layouts: Sequence[SampleLayout]) -> SampleLayout:
    """Return a joined layout with the packings of the layouts that it was made of."""
    for number in range(len(layout.fields)):
        several = [one.fields[number] for one in layouts]
        if not any(one.packings for one in several):
            continue
        if not all(one.packings for one in several):
            problem = "has missing= in some datasets that are read as one, and none in others; give all the same"
            raise OptionError(f"field {layout.fields[number].name!r} {problem}")
        index_of = {one: k for k, one in enumerate(dict.fromkeys(one for field in several for one in field.packings))}
        if len(index_of) == 1:
            fields = [
                replace(one, packings=tuple(index_of)) if k == number else one for k, one in enumerate(layout.fields)
            ]
            layout = replace(layout, fields=tuple(fields))
            continue
        if len({one.stored for one in index_of}) > 1:
            problem = "some of its datasets have the attribute _Unsigned, others have not, or say otherwise"
            raise OptionError(f"field {layout.fields[number].name!r}: {problem}; read them apart")
        columns = [
            None if own.packed_by is None else dict(one.columns)[own.packed_by]
            for one, own in zip(layouts, several, strict=True)
        ]
        is_of_parts = all(column is None or column.by_rows for column in columns)
        values = []
        for one, own, column in zip(layouts, several, columns, strict=True):
            if is_of_parts:
                old = np.zeros(len(one.file_starts) - 1, dtype=np.int32) if column is None else column.values
            elif column is None:
                old = np.zeros(one.samples, dtype=np.int32)
            else:
                every = np.arange(one.samples)
                old = column.of(every, one.anchors_of(every))
            values.append(np.array([index_of[packing] for packing in own.packings], dtype=np.int32)[old])
        joint = np.concatenate(values)
        column = SampleColumn(joint, layout.file_starts, by_rows=True) if is_of_parts else SampleColumn(joint)
        layout = _with_column(layout, number, tuple(index_of), column)
    return layout


# --- numbers with different meanings


def warn_of_meanings(layout: SampleLayout) -> None:
    """Warn of joined datasets whose attributes give stored numbers different meanings."""
    followed: set[int] | None = None
    for parts in layout.datasets:
        for place, target in enumerate(parts[0].targets):
            if len(parts) == 1 and not target.others:
                continue
            followed = set(_followed(layout)) if followed is None else followed
            first = _compared_attributes(target.field, target.meaning, followed)
            for where, meaning in _located_meanings(layout, parts, place):
                if meaning == target.meaning:
                    continue
                if (other := _compared_attributes(target.field, meaning, followed)) != first:
                    at_first = _location(layout, parts[0], parts[0].path)
                    _warn(layout, target.field, (first, at_first), (other, where))
                    return


def _located_meanings(
    layout: SampleLayout, parts: Sequence[DatasetPart], place: int
) -> Iterator[tuple[tuple[str, str], Meaning]]:
    """Yield the locations of a field's data, with the attributes there."""
    for part in parts:
        yield _location(layout, part, part.path), part.targets[place].meaning
        for path, meaning in part.targets[place].others:
            yield _location(layout, part, path), meaning


def _location(layout: SampleLayout, part: DatasetPart, path: str) -> tuple[str, str]:
    """Return the file and the path of data in a part; for objects that are files, the object's file."""
    identity = layout.files[part.file]
    if not isinstance(identity, FilesIdentity):
        return identity.path, path
    return (identity.paths[0] if path == part.path else path), part.path


def _followed(layout: SampleLayout) -> Iterator[int]:
    """Yield the numbers of fields with missing="netcdf", which follow the attributes of each dataset."""
    for field, entry in zip(layout.shape.fields, layout.entries, strict=True):
        if isinstance(field, Field) and NETCDF in field.missing:
            yield from (numbers_of(leaf)[0] for _, leaf in leaves_of("", entry))


def _compared_attributes(field: int, meaning: Meaning, followed: set[int]) -> dict[str, str]:
    """Return the attributes that must agree, by name: with missing="netcdf" only the units."""
    names = ("units",) if field in followed else MEANINGS
    return {name: value for name, value in meaning if name in names}


_LocatedAttributes = tuple[dict[str, str], tuple[str, str]]
"""Attributes by name, with their file and path."""


def _warn(layout: SampleLayout, number: int, first: _LocatedAttributes, other: _LocatedAttributes) -> None:
    name = next(name for name in MEANINGS if first[0].get(name) != other[0].get(name))
    is_one = first[1][0] == other[1][0]
    where = [f"{file!r}, {path!r}" if is_one else repr(file) for _, (file, path) in (first, other)]
    has = [f"{values[name]!r}" if name in values else "none" for values, _ in (first, other)]
    way_out = "missing='netcdf' follows the attributes of each file"
    if name == "units":
        way_out = "convert them, or read them as datasets of their own"
    text = (
        f"field {layout.fields[number].name!r}: stored numbers do not mean the same everywhere: {name} is {has[0]} in "
        f"{where[0]} and {has[1]} in {where[1]}, and they come as they are stored; {way_out}"
    )
    warn(text, MeaningWarning)
