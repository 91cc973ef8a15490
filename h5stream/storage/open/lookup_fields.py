"""Fields that are looked up: rows of a dataset, values of variable length, and rows of sparse matrices."""

from __future__ import annotations

import itertools
from dataclasses import replace

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from h5stream.base.names import Within
from h5stream.errors import FieldLengthError, H5StreamError, OptionError
from h5stream.samples.ragged import DENSE, STACKED, Ragged, changed
from h5stream.samples.segments import Between, Bounds, RowLists, Stretches, in_memory, row_lists, samples_bounded
from h5stream.storage.decode import elements
from h5stream.storage.decode.columns import ColumnNames
from h5stream.storage.decode.small_floats import shown, widened_dtype
from h5stream.storage.file.discovery import FieldSource, is_matrix, object_at, refusal, region_rows, shape_of
from h5stream.storage.file.stored import OpenFile, part_moved
from h5stream.storage.layout.axis_names import AxisNames, axis_names, chosen_by_name, moved, unlike_names
from h5stream.storage.layout.field_options import not_ragged
from h5stream.storage.layout.fields import Field, check_options, columns_wanted
from h5stream.storage.layout.layout import Entry, FieldLayout, SparseEntry
from h5stream.storage.open.extents import Extents
from h5stream.storage.open.lookups import Key, LookupBuilder, LookupInMemory, snapshot, width_mismatch
from h5stream.storage.open.rows import (
    PartBuilder,
    dataset_part,
    dataset_with_rows,
    describe_field,
    field_error,
    inner_dtype,
    named_axes,
    read_error,
    row_selection,
    sources_of,
)


def add_lookup(builder: PartBuilder, key: Key, spec: Field, indptr: str = "") -> Entry:
    """Add a looked-up field: its dataset, in this file or in those of its file=, and the rows of samples.

    For a sparse matrix, `indptr` names the dataset of its row bounds, and `spec` need not have a lookup=.
    """
    selector, counts = spec.lookup, builder.counts
    values: ArrayLike = builder.opened.numbers(selector) if isinstance(selector, str) else []
    spec, lists = _with_row_lists(builder, spec, values, is_matrix=bool(indptr))
    is_named = isinstance(selector, str | None) or (isinstance(selector, Stretches) and not in_memory(selector))
    lookup = lookup_of(builder, key, spec, from_user=None if is_named else selector)
    is_first = not lookup.parts
    before = 0 if spec.file else sum(len(one) for one, *_ in lookup.ranges) if indptr else lookup.rows
    if spec.ragged is not None and lists is None and not (indptr or spec.decode or isinstance(selector, Stretches)):
        raise _single_row_error(builder, spec, spec.ragged)
    if not spec.file or selector is None or is_first:
        for source in sources_of(builder, spec):
            first = lookup.rows
            add_lookup_part(builder, lookup, with_columns(builder, key, spec, source), source)
            if indptr:
                edges = np.asarray(source.numbers(indptr))
                of_rows = Bounds(indptr, holds="bounds")
                lookup.add_stretches(of_rows, [edges], len(edges) - 1, first, repr(source.path))
                if selector is None:
                    counts.of_fields[spec.name] = len(edges) - 1
                    counts.dataset = counts.dataset or (source, indptr)
    builder.fields += lookup.layouts
    if isinstance(selector, str) and lists is None:
        among = sum(len(one) for one, *_ in lookup.ranges) if indptr else lookup.rows
        lookup.add_chosen(values, before, among - before, builder.path)
        counts.of_chosen[key] = len(lookup.chosen[-1])
        _note_row_source(builder, lookup, selector)
    elif selector is not None and is_named:
        which, bounds = _stretches(builder, lookup, spec) if lists is None else (lists, [])
        is_plain = isinstance(which, Bounds) and not which.holds  # only these leave the number of samples uncertain
        # A count of this part replaces one of all parts.
        if not builder.stretches or (counts.is_uncertain and not is_plain):
            count = len(np.asarray(bounds[0]).reshape(-1)) if lists is None else len(lists)
            counts.of_lookups = {lookup.name: samples_bounded(which, count) if isinstance(which, Bounds) else count}
            counts.is_uncertain = is_plain
        builder.stretches.append((lookup, which, bounds, before))
        _note_row_source(builder, lookup, selector if isinstance(selector, str) else selector.names[0])
    elif selector is not None and not callable(selector) and is_first:
        # With more than one file, they do not say which file has how many samples.
        counts.of_lookups = counts.of_lookups or {lookup.name: lookup.count}
        counts.parts.append((1, lookup.parts[0]))
    return lookup.entry


def _note_row_source(builder: PartBuilder, lookup: LookupBuilder, name: str) -> None:
    """Note the dataset that defines the rows of samples; for an attribute, the part that it looks rows up in."""
    if builder.opened.is_attribute(name):
        builder.counts.parts.append((1, lookup.parts[-1]))
    else:
        builder.counts.dataset = builder.counts.dataset or (builder.opened, name)


def _single_row_error(builder: PartBuilder, spec: Field, ragged: Ragged) -> H5StreamError:
    """Return the error for ragged= of a field that has one row for each sample."""
    source = next(iter(sources_of(builder, spec)))
    if elements.vlen_base(inner_dtype(dataset_with_rows(source, spec.name))) is None:
        return not_ragged(spec.name)
    why = ": lookup= names one row for each sample, whose values of variable length come as a list, not ragged="
    why += f"{ragged.form!r}; leave ragged= out, or write lookup=rows[:, None] and ragged='list' for lists of them"
    return field_error(source, spec, why, OptionError)


def _with_row_lists(
    builder: PartBuilder, spec: Field, row_numbers: ArrayLike, *, is_matrix: bool
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
        raise field_error(
            builder.opened, spec, f"{why}, lookup=rows[:, 0] of an array; make a field for each", OptionError
        )
    return spec, lists


def _stretches(builder: PartBuilder, lookup: LookupBuilder, spec: Field) -> tuple[Stretches, list[np.ndarray]]:
    """Return the ranges of samples' rows and their values; region references become starts and ends."""
    names, opened = spec.lookup.names, builder.opened
    if isinstance(spec.lookup, Bounds) and not opened.is_attribute(names[0]):
        node = opened.find(names[0])
        if h5py.check_ref_dtype(inner_dtype(node)) is h5py.RegionReference:
            of = None if spec.file else object_at(opened.file, lookup.parts[-1].path, opened.path)
            return Between(*names * 2), [*region_rows(node, of, spec.name, opened.path)]
    return spec.lookup, [np.asarray(opened.numbers(name)).reshape(-1) for name in names]


def lookup_of(builder: PartBuilder, key: Key, spec: Field, from_user: LookupInMemory = None) -> LookupBuilder:
    """Return the builder of a looked-up field, which earlier files may have made."""
    crop = None if spec.ragged is None else spec.ragged.crop
    made = LookupBuilder(name=spec.name, crop=crop, from_user=from_user, is_elsewhere=bool(spec.file))
    return builder.lookups.setdefault(key, made)


def add_lookup_part(
    builder: PartBuilder, lookup: LookupBuilder, spec: Field, source: OpenFile, node: FieldSource | None = None
) -> None:
    """Add a file's part of a looked-up dataset."""
    node = node or dataset_with_rows(source, spec.name)
    entry, layouts, targets = describe_field(builder, spec, node, *row_selection(builder, node, spec))
    if isinstance(entry, dict):
        member = f"{spec.name}:{next(iter(entry))}"
        if spec.ragged is not None:
            why = f"each member of a ragged one is a field of its own, {member!r}, or columns=[NAMES] makes one matrix"
            raise field_error(source, spec, f" is a compound, and {why}")
        if len(targets) > 1 and any(layout.dtype.kind == "O" for layout in layouts):
            why = f"one that is looked up is a field of its own, {member!r}"
            raise field_error(source, spec, f" is a compound with members of variable length, and each of {why}")
    if len(layouts) == 1:
        layouts = [layouts[0].with_axes(named_axes(builder, spec, node, source, ()))]
    part = dataset_part(builder, source.place(node), spec, (), targets, start=lookup.rows)
    lookup.add_part(part, entry, layouts, source.path)


def add_ragged(builder: PartBuilder, key: Key, spec: Field) -> Entry:
    """Add a ragged field: the items of variable-length values, or all rows of an object's dataset."""
    check_options("objects" if builder.are_objects else "values", spec, builder.samples, builder.path)
    lookup, opened = lookup_of(builder, key, spec), builder.opened
    node = dataset_with_rows(opened, spec.name)
    if not builder.are_objects and elements.vlen_base(inner_dtype(node)) is None:
        raise not_ragged(spec.name)
    add_lookup_part(builder, lookup, spec, opened, node)
    builder.fields += lookup.layouts
    part = lookup.parts[-1]
    if builder.are_objects:
        lookup.add_rows(np.array([part.row_start]), np.array([part.rows]))
        builder.counts.parts.append((1, part))
    else:
        if part.heap is None or len(node.dataset.shape) > 1:
            why = part.reason if part.heap is None else f"a row has {node.dataset.shape[1:]} values"
            takes = "ragged= takes one value a row, of numbers, that h5stream reads without libhdf5"
            raise read_error(opened, spec, f", {why}: {takes}; without it each sample is a list", part)
        lookup.add_values(part, part.heap.length)
        builder.counts.parts.append((0, part))
    builder.counts.of_fields[spec.name] = 1 if builder.are_objects else part.rows
    return lookup.entry


# --- columns by name


def with_columns(builder: PartBuilder, key: Key, spec: Field, source: OpenFile, width: int | None = None) -> Field:
    """Return a field with its columns= of names resolved to numbers; `width` is the columns of a sparse matrix."""
    wanted = spec.columns
    if not isinstance(wanted, ColumnNames):
        return spec
    if wanted.by_place:
        return changed(spec, columns=(Ellipsis,))
    node = None if width is not None or spec.names_objects or spec.is_numbered else source.find(spec.name)
    if width is None and wanted.names and (node is None or inner_dtype(node).names):  # they are members of a compound
        return changed(spec, columns=None, members=wanted.names)
    if spec.has_own_shape:
        why = ": ragged='arrays' takes whole arrays, and columns= names columns; the members of a compound can be named"
        raise field_error(source, spec, why, OptionError)
    axes = axis_names(source.file, spec.name.strip("/") if node is None else node.path, source.identity, width)
    labels = [one for one in axes if one.axis == 1]
    if not labels:
        why = ": columns= names columns, and the file has no names of them, as the index of var is in AnnData, or a "
        raise field_error(source, spec, f"{why}dimension scale of texts; columns=[0, 1] takes numbers", OptionError)
    names = [*map(str, labels[0].read().tolist())]
    first, _ = builder.opened.files.columns.setdefault((key[0], "names"), (names, np.zeros(0, np.int32)))
    try:
        numbers = chosen_by_name(wanted, names, first)
    except OptionError as error:
        raise field_error(source, spec, f": {error}", OptionError) from None
    axes_before = 0 if node is None else _axes_before_columns(builder, spec, source, node.dataset.shape)
    return changed(spec, columns=(*[slice(None)] * axes_before, numbers) if axes_before else numbers)


def _axes_before_columns(builder: PartBuilder, spec: Field, source: OpenFile, shape: tuple[int, ...]) -> int:
    """Return the number of a sample's axes before the named columns, which are axis 1 of the dataset."""
    if builder.extents is None or spec.lookup is not None or (builder.are_objects and spec.ragged is not None):
        return 0
    along, _ = Extents.of(builder.extents.samples).take(shape, changed(spec, columns=None), source.path)
    kept = [axis for axis, one in enumerate(along) if one.origin is None]
    if 1 not in kept:
        why = ": columns= names columns, which are along axis 1 of the dataset, and so are the samples here; leave it "
        raise field_error(source, spec, f"{why}out, or take of the other axes by numbers, columns=[0, 1]", OptionError)
    return kept.index(1)


# --- sparse matrices


def add_matrix(builder: PartBuilder, key: Key, spec: Field, group: h5py.Group, path: str) -> SparseEntry:
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
        raise field_error(builder.opened, spec, f" is a sparse matrix, {why}")
    is_dense, is_named = form == DENSE, isinstance(spec.columns, ColumnNames) and not spec.columns.by_place
    sources = [(source, shape_of(source.file[path], name, source.path)[1]) for source in sources_of(builder, spec)]
    width, moves, axes = sources[0][1], list[NDArray[np.int64] | None](), tuple[AxisNames, ...]()
    places = columns_wanted(with_columns(builder, key, spec, *sources[0]), width) if is_dense or is_named else None
    if is_named:
        places, moves = _aligned_columns(builder, key, spec, sources, is_dense=is_dense)
        width = len(places)
    if not (isinstance(spec.columns, ColumnNames) and spec.columns.by_place):
        axes = _axes_of_matrix(builder, key, spec, sources, path)
    plain = changed(spec, columns=None, normalize=None)
    of_values = changed(Ragged(form or "packed"), places=places if is_dense else None)
    before = snapshot(builder.lookups).get((key[0], "indices"), (0,))[0]
    number = add_lookup(builder, (key[0], "data"), changed(plain, name=data, ragged=of_values), indptr)
    others = changed(plain, name=indices, dtype=None, ragged=changed(Ragged(), width=width))
    columns = add_lookup(builder, (key[0], "indices"), others, indptr)
    if not (isinstance(number, int) and isinstance(columns, int)):
        raise TypeError(f"{path!r} is a sparse matrix of compounds")  # they are refused before, as ragged fields
    if not is_named:
        _check_widths(builder, spec, builder.fields[columns], path)
    builder.fields[number] = replace(builder.fields[number].with_axes(axes), name=spec.name)
    parts = builder.lookups[key[0], "indices"].parts
    for k, table in enumerate(moves[: len(parts) - before], before):
        parts[k] = part_moved(parts[k], table)
    index_dtype = builder.fields[columns].dtype
    if is_named and index_dtype.kind in "iu" and width > np.iinfo(index_dtype).max:
        why = f"whose columns are {index_dtype}, too narrow to be named; write them as int32"
    elif widened_dtype(index_dtype).kind not in "iu":
        why = f"whose columns are {shown(index_dtype)}, and not whole numbers"
    elif form == DENSE and (dtype := builder.fields[number].dtype).str[1:] in ("f2", "f16", "c32"):
        why = f"of {dtype}, which ragged='packed' gives, 'dense' not"
    if why:
        raise field_error(builder.opened, spec, f" is a sparse matrix {why}")
    width -= is_named
    return SparseEntry(
        values=number, columns=columns, width=width, is_dense=is_dense, is_renumbered=is_named and not is_dense
    )


def _aligned_columns(
    builder: PartBuilder, key: Key, spec: Field, sources: list[tuple[OpenFile, int]], *, is_dense: bool
) -> tuple[NDArray[np.int32], list[NDArray[np.int64] | None]]:
    """Return the position in a row of each column of the first file, and a table that renumbers each file's columns.

    The last entry, -1, stands for all columns that are not wanted. In packed rows, positions replace columns.
    """
    columns, moves, key_of_places = builder.opened.files.columns, list[NDArray[np.int64] | None](), (key[0], "places")
    for source, width in sources:
        own = columns_wanted(with_columns(builder, key, spec, source, width), width)
        first = own if is_dense else np.arange(own.max(initial=-1) + 1, dtype=np.int32)
        _, reference = columns.setdefault(key_of_places, ([], np.append(first, np.int32(-1))))
        moves.append(moved(own, reference))
    return reference, moves


def _axes_of_matrix(
    builder: PartBuilder, key: Key, spec: Field, sources: list[tuple[OpenFile, int]], path: str
) -> tuple[AxisNames, ...]:
    """Return the names of the wanted columns of a sparse matrix; raise if they differ between files."""
    first: tuple[AxisNames, ...] | None = None
    for source, width in sources:
        own = columns_wanted(with_columns(builder, key, spec, source, width), width)
        taken = (
            None
            if spec.columns is None
            else tuple(np.argsort(np.where(own < 0, width, own), kind="stable")[: own.max(initial=-1) + 1].tolist())
        )
        axes = tuple(replace(one, taken=taken) for one in axis_names(source.file, path, source.identity, width))
        first = axes if first is None else first
        if why := unlike_names(first, axes, spec.name, (repr(sources[0][0].path), repr(source.path))):
            raise field_error(source, spec, f": {why}", FieldLengthError)
    return first or ()


def _check_widths(builder: PartBuilder, spec: Field, columns: FieldLayout, path: str) -> None:
    """Raise if the other files of a sparse matrix have another number of columns."""
    for source in itertools.islice(sources_of(builder, spec), 1, None):
        group = source.file.get(path)
        width = shape_of(group, spec.name, source.path)[1] if is_matrix(group) else columns.form.width
        if why := width_mismatch(columns, replace(columns, ragged=changed(columns.form, width=width))):
            raise refusal(source.path, spec.name, f": {why}", FieldLengthError)
