"""Fields that take rows of a dataset, or a part of it: from a name to the fields of a batch.

Fields of other kinds, in the modules beside this one, take its steps as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import h5py
import numpy as np
from numpy.typing import DTypeLike

from h5stream.base.names import parted
from h5stream.base.texts import did_you_mean
from h5stream.errors import CorruptChunkError, FieldNotFoundError, H5StreamError, OptionError, UnsupportedFieldError
from h5stream.samples.kinds import Sequences
from h5stream.samples.packing import Packing
from h5stream.samples.ragged import DENSE, STACKED
from h5stream.samples.segments import RowLists, Stretches
from h5stream.samples.space import Along, Steps, steps_of
from h5stream.samples.table import Table
from h5stream.storage.decode import elements
from h5stream.storage.decode.columns import axes_taken, selected_shape
from h5stream.storage.decode.elements import dtype_of
from h5stream.storage.decode.images import Images
from h5stream.storage.decode.small_floats import shown
from h5stream.storage.file.discovery import FieldSource, refusal
from h5stream.storage.file.meanings import meaning_of
from h5stream.storage.file.stored import Location, OpenFile, part_of
from h5stream.storage.layout.access import VIA_H5PY, ThroughH5py
from h5stream.storage.layout.axis_names import MATRIX_PATH, AxisNames, axis_names
from h5stream.storage.layout.fields import Field, check_options
from h5stream.storage.layout.layout import Entry, FieldLayout, Labels, TakenRows
from h5stream.storage.layout.parts import DatasetPart, Meaning, Target
from h5stream.storage.open.extents import Extents, SampleKind
from h5stream.storage.open.lookups import Key, LookupBuilder

EntryLayout = tuple[Entry, list[FieldLayout], list[Target]]
"""An entry of a sample: the number of its field, or a dict of numbers for a compound; its fields; their targets."""


@dataclass(slots=True)
class RowCounts:
    """The numbers of rows that a part has according to its fields, and the datasets that may stand for its rows."""

    of_fields: dict[str, int] = field(default_factory=dict)  # by field name
    of_lookups: dict[str, int] = field(default_factory=dict)  # the same from lookups, used if no field has rows
    of_chosen: dict[Key, int] = field(default_factory=dict)  # the number of row numbers that a dataset holds
    is_uncertain: bool = False  # whether `of_lookups` is from bounds that may be one more than the samples
    dataset: tuple[OpenFile, str] | None = None  # the dataset that defines samples' rows: its file and name
    # parts that stand for the rows if no dataset has one a sample, with their priority; the first of the lowest wins
    parts: list[tuple[int, DatasetPart]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class PartBuilder:
    """Collects the fields of a sample in one open file, or in a group of it."""

    opened: OpenFile
    row_start: int
    samples: SampleKind | None
    are_objects: bool  # whether each sample is an object
    sequences: Sequences | Table | None  # the kind of samples, if these may take several rows
    extents: Extents | None
    lookups: dict[Key, LookupBuilder]
    fields: list[FieldLayout] = field(default_factory=list)
    constants: list[tuple[int, object]] = field(default_factory=list)  # as in `FileParts`
    packed: list[tuple[int, Packing]] = field(default_factory=list)  # as in `FileParts`
    counts: RowCounts = field(default_factory=RowCounts)
    # ragged fields: the ranges of their rows, the values of these, and the first row of this part
    stretches: list[tuple[LookupBuilder, Stretches | RowLists, list[np.ndarray], int]] = field(default_factory=list)
    numbers: tuple[str, list[int]] | None = None  # the first field with {} in its name, and the numbers of its objects
    # datasets with rows for each sample, by what is read of them, with all fields that they fill
    datasets: dict[tuple[object, ...], tuple[Location, Field, tuple[Along, ...], list[Target]]] = field(
        default_factory=dict
    )
    parts: list[DatasetPart] = field(default_factory=list)  # parts that are complete: objects as rows

    @property
    def path(self) -> str:
        """The file's path."""
        return self.opened.path

    def add(self, layout: FieldLayout) -> int:
        """Add a field that is not read from a dataset; return its number."""
        self.fields.append(layout)
        return len(self.fields) - 1


def field_of(name: str, dtype: DTypeLike, row_shape: tuple[int, ...] = ()) -> FieldLayout:
    """Return the field of a batch for numbers of a type, or for objects."""
    kind = "object" if dtype is object else "array"
    return FieldLayout(name=name, kind=kind, dtype=np.dtype(dtype), row_shape=row_shape)


def add_rows(builder: PartBuilder, spec: Field) -> Entry:
    """Add a field that has a row, several rows, or a part of a volume for each sample."""
    source = next(sources_of(builder, spec)) if spec.file else builder.opened
    node = dataset_with_rows(source, spec.name)
    shape = node.dataset.shape
    name = f"{spec.name} of {source.path}" if spec.file else spec.name
    builder.counts.of_fields[name] = shape[0] if builder.extents is None else 1
    place, along, steps, columns = source.place(node), tuple[Along, ...](), None, ""
    if spec.take.at:
        _check_origin_column(builder, spec)
    if builder.extents is None:
        (row_shape, steps), columns = row_selection(builder, node, spec), repr(spec.columns)
    else:
        along, row_shape = builder.extents.take(shape, spec, source.path)
    entry, layouts, targets = describe_field(builder, spec, node, row_shape, steps)
    if len(layouts) == 1 and len(shape) > 1:
        layouts = [layouts[0].with_axes(named_axes(builder, spec, node, source, along))]
    builder.fields += layouts
    for target, layout in zip(targets, layouts, strict=True):
        # Values of variable length are stored in the heap, separately for each member.
        apart = target.field if layout.dtype.kind == "O" else None
        take = steps, spec.take.at, spec.take.pad
        key = (place.number, node.path, apart, columns, take, along, spec.decode, spec.length)
        builder.datasets.setdefault(key, (place, spec, along, []))[-1].append(target)
    return entry


def row_selection(builder: PartBuilder, node: FieldSource, spec: Field) -> tuple[tuple[int, ...], Steps | None]:
    """Return the shape that a sample of one or several rows has of a dataset, and its steps; None for one row."""
    is_one_row = spec.lookup is not None or (spec.take.steps is None and builder.sequences is None)
    steps = None if is_one_row else steps_of(spec.take.steps, builder.sequences, spec.name)
    if spec.take.axis not in (None, 0) or spec.take.scale:
        why = "a sample is a row of axis 0 here, or several; Take(axis=) and Take(scale=) are for other samples"
        raise OptionError(f"Field({spec.name!r}): {why}, such as Sequences(axis=1) and Boxes")
    shape = node.dataset.shape[1:]
    try:
        row_shape = shape if spec.columns is None else selected_shape(shape, spec.columns)
    except OptionError as error:
        inner = inner_dtype(node)
        inside = not shape and (inner.subdtype or inner.fields)
        why = "columns= chooses among a dataset's axes, not inside a member; take it whole and index the batch"
        raise field_error(builder.opened, spec, f": {why if inside else error}", OptionError) from None
    return row_shape if steps is None else (len(steps), *row_shape), steps


def named_axes(
    builder: PartBuilder, spec: Field, node: FieldSource, source: OpenFile, along: tuple[Along, ...]
) -> tuple[AxisNames, ...]:
    """Return the names of the columns that a field takes; empty for objects, and for columns taken by position."""
    if builder.are_objects or spec.columns == (Ellipsis,) or node.member or len(node.dataset.shape) < 2:
        return ()
    if not (
        h5py.h5a.get_num_attrs(node.dataset.id) or MATRIX_PATH.search(node.path)
    ):  # no scales, and no names beside it
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


def _check_origin_column(builder: PartBuilder, spec: Field) -> None:
    """Raise if the rows of a field count from a column that no table has."""
    columns = builder.samples.columns if isinstance(builder.samples, Table) else {}
    if not isinstance(columns.get(spec.take.at), np.ndarray):
        numbers = [name for name, values in columns.items() if isinstance(values, np.ndarray)]
        available = f"which has {', '.join(map(repr, numbers))}" if columns else "and there is no Table"
        why = f"(at={spec.take.at!r}): at= names a column of row numbers of Table(...), {available}"
        raise OptionError(f"Field({spec.name!r}, take=Take{why})")


def describe_field(
    builder: PartBuilder, spec: Field, node: FieldSource, shape: tuple[int, ...], steps: Steps | None = None
) -> EntryLayout:
    """Return the entry of a dataset: its field, or one for each member of a compound, with the samples' shape."""
    layouts, targets = list[FieldLayout](), list[Target]()
    whole = elements.as_torch_bits(inner_dtype(node), spec.dtype)
    if spec.decode:
        return describe_image(builder, spec, _image_leaf(builder, spec, node, whole), steps, node.member)
    if spec.members:
        _check_members(builder, spec, whole)
        whole = np.dtype((whole[spec.members[0]], (len(spec.members),)))

    first, meaning = len(builder.fields), Meaning()
    if h5py.h5a.get_num_attrs(node.dataset.id):
        meaning = meaning_of(node.dataset)
    leaves = [(node.member, whole)] if whole.fields is None else [*members_of(whole, node.member)]
    stored = _stored_dtype(node.dataset, spec)
    for number, (member, dtype) in enumerate(leaves, first):
        layout, leaf = _field_layout(builder, spec, node._replace(member=member), dtype, stored, shape, steps)
        layouts.append(layout)
        fill = np.zeros(leaf.nbytes if leaf else 0, np.uint8)  # until the dataset's fill value is read
        targets.append(Target(field=number, member=member, leaf=leaf, fill=fill, stacked=spec.members, meaning=meaning))
    return first if whole.fields is None else entry_of(whole, itertools.count(first)), layouts, targets


def members_of(dtype: np.dtype, member: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], np.dtype]]:
    """Yield the paths and types of a compound's innermost members; any other type yields itself."""
    if dtype.fields is None:
        yield member, dtype
    for name in dtype.names or ():
        yield from members_of(dtype[name], (*member, name))


def entry_of(dtype: np.dtype, numbers: Iterator[int]) -> Entry:
    """Return the number of a type's field, or for a compound a dict of its members' numbers."""
    return {name: entry_of(dtype[name], numbers) for name in dtype.names} if dtype.names else next(numbers)


def _stored_dtype(dataset: h5py.Dataset, spec: Field) -> np.dtype:
    """Return the dtype that the elements of a dataset have in its file."""
    whole = elements.stored_as(dataset)
    return elements.as_torch_bits(
        elements.plain_dtype(dtype_of(dataset)) if whole.is_whole else whole.dtype, spec.dtype
    )


def _field_layout(
    builder: PartBuilder,
    spec: Field,
    node: FieldSource,
    dtype: np.dtype,
    whole: np.dtype,
    shape: tuple[int, ...],
    steps: Steps | None,
) -> tuple[FieldLayout, elements.Leaf | None]:
    """Return the field of elements of a type other than a compound, and the position of its bytes in an element."""
    (dataset, path, member), ragged = node, spec.ragged
    name = ":".join((path, *member)) if member else spec.name
    is_value = ragged is not None and spec.lookup is None and not builder.are_objects
    items = elements.vlen_base(dtype) if is_value else None
    dtype, stored = (dtype, whole) if items is None else (items, items)
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
        take=TakenRows(steps=steps, at=spec.take.at, pad=spec.take.pad),
        cast=spec.dtype,
        ragged=ragged,
        labels=Labels(
            unit=str(base.newbyteorder("=")) if base.kind in "mM" else "", meanings=elements.meanings_of(base)
        ),
        items=elements.vlen_base(base),
        cut_at_nul=base.kind == "S" and elements.ends_at_nul(dataset.id.get_type(), member),
    )
    inside = member if items is None else ()
    return layout, elements.leaf_of(stored, inside, spec.members) if base.kind != "O" else None


def _unsupported_reason(spec: Field, dtype: np.dtype, kind: str, member: tuple[str, ...], is_one: bool) -> str:
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


def _check_members(builder: PartBuilder, spec: Field, dtype: np.dtype) -> None:
    """Raise if names in columns= are not members of a compound, or if the members do not make a matrix."""
    if dtype.names is None:
        why = f": columns={[*spec.members]!r} names members of a compound, and its elements are {dtype}, no compounds"
        why += "; columns of an array are numbers"
        if spec.names_objects:
            why += " here, as in columns=[0, 1]: names from a dimension scale are taken of objects that samples="
            why += "Objects(...) names, and of one dataset, and not of objects that lookup= names"
        raise field_error(builder.opened, spec, why, FieldNotFoundError)
    if lacking := next((name for name in spec.members if name not in dtype.names), ""):
        has = f"it has {', '.join(map(repr, dtype.names))}.{did_you_mean(lacking, list(dtype.names))}"
        raise field_error(
            builder.opened, spec, f" has no member {lacking!r}, which columns= names; {has}", FieldNotFoundError
        )
    kinds = {name: dtype[name] for name in spec.members}
    first = kinds[spec.members[0]]
    if not all(elements.same_type(kind, first) for kind in kinds.values()) or first.kind not in "biufc":
        listing = ", ".join(f"{name!r} is {shown(kind)}" for name, kind in kinds.items())
        why = f": columns= of names makes one tensor of numbers of one type, but {listing}; make a field for each type"
        raise field_error(builder.opened, spec, why)
    why = elements.joined_meanings((elements.meanings_of(kind), repr(name)) for name, kind in kinds.items())[1]
    if why:
        why = f": columns= of names makes one tensor of these enums, and {why}, so a code would not mean the same; "
        raise field_error(builder.opened, spec, f"{why}make a field for each")


def inner_dtype(node: FieldSource) -> np.dtype:
    """Return the type of the elements of a dataset, or of their member."""
    dtype = elements.plain_dtype(dtype_of(node.dataset))
    for part in node.member:
        dtype = dtype[part]
    return dtype


# --- where fields are


def sources_of(builder: PartBuilder, spec: Field) -> Iterator[OpenFile]:
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


def dataset_with_rows(source: OpenFile, name: str) -> FieldSource:
    """Return a dataset, or a member of it; raise if it has no axis of rows."""
    node = source.find(name)
    if not node.dataset.shape:
        what = "empty (a null dataspace)" if node.dataset.shape is None else "a single value"
        why = f": {name!r} is {what}, so it has no rows; a field's first axis are the samples"
        once = f"; Field({parted(name)[1]!r}, take='all') gives it to each row of its file, or group"
        why += once * (what == "a single value")
        raise refusal(source.path, name, why)
    return node


# --- the dataset of a field


def dataset_part(
    builder: PartBuilder, place: Location, spec: Field, along: tuple[Along, ...], targets: list[Target], *, start: int
) -> DatasetPart:
    """Return the part of a dataset; for images, with their lengths if another dataset holds these."""
    part = part_of(builder.opened, place, spec.name, spec.columns, along, targets, row_start=start)
    if not spec.decode:
        return part
    of_bytes = targets[0].leaf is not None
    if part.heap is None and (not of_bytes or (part.access == VIA_H5PY and part.dtype_text != "uint8")):
        why = f": decode= takes bytes that h5stream reads without libhdf5, not these: {part.reason}"
        raise read_error(builder.opened, spec, why, part)
    if not (of_bytes and spec.length):
        return part
    lengths = np.asarray(builder.opened.numbers(spec.length)).reshape(-1)
    most = int(np.prod(part.shape[1:])) * part.stored_element_nbytes
    if lengths.dtype.kind not in "iu" or len(lengths) != part.rows or ((lengths < 0) | (lengths > most)).any():
        why = f": {spec.length!r} of decode= has {len(lengths):,} values of {lengths.dtype}, and it takes a number of "
        raise field_error(
            builder.opened, spec, f"{why}bytes from 0 to {most:,} for each of {part.rows:,} rows", OptionError
        )
    lengths = lengths.astype(np.int64)
    return replace(part, targets=tuple(replace(one, lengths=lengths) for one in part.targets))


def _image_leaf(builder: PartBuilder, spec: Field, node: FieldSource, dtype: np.dtype) -> elements.Leaf | None:
    """Return the position of an image in a row of bytes; None if images are values of variable length."""
    shape, leaf = node.dataset.shape, elements.bytes_leaf(dtype)
    rows, are_rows = shape[1:], builder.extents is None
    if are_rows and not rows and (elements.is_byte(elements.vlen_base(dtype)) or elements.is_text(dtype)):
        if spec.length:
            why = "a length in decode= is for rows of bytes that are filled up, not for values of variable length"
            raise field_error(builder.opened, spec, f": {why}; leave it out", OptionError)
        return None
    if node.member or len(rows) != (dtype.itemsize == 1) or leaf is None or not are_rows:
        why = "decode= takes images as values of variable length (of uint8), or as rows of bytes"
        raise field_error(builder.opened, spec, f" is {shown(dtype)} {shape}: {why}")
    return leaf


def describe_image(
    builder: PartBuilder,
    spec: Field,
    leaf: elements.Leaf | None,
    steps: Steps | None = None,
    member: tuple[str, ...] = (),
) -> EntryLayout:
    """Return the entry of a field of images; their size is determined once all files are open."""
    check_options("images", spec, builder.samples, builder.path)
    images, take = Images(format=spec.decode), TakenRows(steps=steps, at=spec.take.at, pad=spec.take.pad)
    layout = replace(field_of(spec.name, object), images=images, take=take, ragged=spec.ragged)
    number, fill = len(builder.fields), np.zeros(leaf.nbytes if leaf else 0, np.uint8)
    return number, [layout], [Target(field=number, member=member, leaf=leaf, fill=fill)]


# --- errors


def field_error(
    source: OpenFile, spec: Field, why: str, kind: type[H5StreamError] = UnsupportedFieldError, **facts: object
) -> H5StreamError:
    """Return the error for a field that a file does not provide."""
    return refusal(source.path, spec.name, f": field {spec.name!r}{why}", kind, **facts)


def read_error(source: OpenFile, spec: Field, why: str, part: DatasetPart) -> H5StreamError:
    """Return the error for a field that cannot be read: a damaged chunk if there is one, or else `why`."""
    if isinstance(part.via, ThroughH5py) and part.via.damaged is not None:
        return field_error(source, spec, f": {part.reason}", CorruptChunkError, chunk=part.via.damaged)
    return field_error(source, spec, why)
