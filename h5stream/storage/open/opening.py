"""Opening: files and field names become a `SampleLayout`, with every rule checked and nothing left open."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.base.names import Names
from h5stream.base.texts import counted as counted_text
from h5stream.base.texts import names_text
from h5stream.errors import (
    FieldLengthError,
    FieldNotFoundError,
    H5StreamError,
    LeftOutWarning,
    OptionError,
    UnsupportedFieldError,
)
from h5stream.samples.boxes import ROWS, Boxes, FieldSteps, axis_space
from h5stream.samples.columns import Padding, SampleColumn, SampleNumber, SourceNumber, Values
from h5stream.samples.kinds import Objects, Rows, Sequences
from h5stream.samples.ragged import DENSE
from h5stream.samples.segments import Segmentation, edges_over, in_memory
from h5stream.samples.space import Space, number_outside, space_of_rows, steps_of
from h5stream.samples.table import GROUP, ROW, Table, groups_in, table_space
from h5stream.storage.decode.elements import batch_dtype
from h5stream.storage.decode.filters import DecodeError
from h5stream.storage.decode.images import COLOURS, LOOKED_AT, Images, decode_image, palette_bits
from h5stream.storage.decode.small_floats import held_as, shown, widened, widened_dtype
from h5stream.storage.file.catalogue import Catalogue
from h5stream.storage.file.discovery import default_fields, means, refusal
from h5stream.storage.file.external import Guard
from h5stream.storage.file.groups import FILES, RawFile, edges_in, groups_of
from h5stream.storage.file.h5py_reader import H5pyReader
from h5stream.storage.file.meanings import warn_of_meanings, with_packings
from h5stream.storage.file.stored import Files, OpenFile, open_hdf5
from h5stream.storage.layout.fields import Field, beside
from h5stream.storage.layout.layout import DatasetPart, FieldLayout, SampleLayout, SparseEntry, leaves_of, numbers_of
from h5stream.storage.layout.request import Fields, Request, SampleShape, Source, read_request, sample_shape
from h5stream.storage.open.extents import SampleKind
from h5stream.storage.open.field_reader import read_fields
from h5stream.storage.open.joining import (
    FileParts,
    check_consistent,
    with_joined_meanings,
    with_largest_shapes,
    with_named_shapes,
    with_rows_of_values,
    with_uniform_strings,
)
from h5stream.storage.open.lookups import Key, LookupBuilder, align_crops, restore, share_arrays, snapshot
from h5stream.storage.open.objects import (
    attributes_of,
    file_rows,
    lacks_all_fields,
    lacks_field,
    load_or_find,
    object_rows,
    similar_group_parts,
)
from h5stream.storage.source.local import FilesIdentity
from h5stream.storage.source.remote import opening

_KINDS = "Sequences(...), Rows(...), Objects(...), Table(...) or Boxes(...)"


def open_layout(
    source: Source | Request, fields: Fields = None, *, samples: SampleKind | None = None, allow_external: bool = False
) -> SampleLayout:
    """Open files, find the fields in each, and return the layout of a sample."""
    if samples is not None and not isinstance(samples, SampleKind):
        raise OptionError(f"samples= takes {_KINDS}, such as Sequences(16, of='data/*'), not {samples!r}")
    request = source if isinstance(source, Request) else read_request(source, fields)
    files = Files(request.paths)
    builder = _read_parts(request, files, samples, allow_external)
    shape, lookup_builders = builder.shape, builder.lookups
    parts_of_files = with_largest_shapes(builder.files, builder.labels)
    paths = [files.identities[number].path for number, _ in builder.names]
    check_consistent(parts_of_files, paths, builder.labels)
    parts_of_files = with_uniform_strings(with_joined_meanings(parts_of_files, paths, builder.labels))
    if builder.rows == 0:
        named = any(isinstance(one, Field) and one.lookup is not None for one in shape.fields)
        why = f"has zero {'samples' if named else 'rows'} in {', '.join(shape.keys)}"
        why += ", by what lookup= names; there is nothing to stream" if named else "; there is nothing to stream"
        raise FieldLengthError(f"{_paths_text(request.paths)} {why}", file=request.paths[0])
    layout = SampleLayout(
        files=tuple(files.identities),
        file_starts=tuple(builder.starts),
        fields=parts_of_files[0].fields,
        datasets=(
            *zip(*(file.parts for file in parts_of_files), strict=True),
            *(tuple(e.parts) for e in lookup_builders.values()),
        ),
        shape=shape,
        entries=parts_of_files[0].entries,
        allow_external=allow_external,
        space=_space(samples, builder, request.paths, parts_of_files[0].fields),
        left_out=0 if isinstance(samples, Objects) else builder.left_out,
    )
    numbered = enumerate(lookup_builders.values(), len(parts_of_files[0].parts))
    lookups = align_crops(
        [lookup.lookup(number, layout.rows, layout.space, _paths_text(request.paths)) for number, lookup in numbered],
        [lookup.crop for lookup in lookup_builders.values()],
    )
    layout = replace(layout, columns=tuple(_columns(layout, parts_of_files, samples)), lookups=share_arrays(lookups))
    layout = with_rows_of_values(with_named_shapes(layout, lookup_builders.values()))
    _check_padding(layout)
    may_lack = isinstance(samples, Objects) and samples.missing == "fill"
    layout = with_packings(
        _normalized(_with_image_sizes(layout)), [file.packed for file in parts_of_files], may_lack=may_lack
    )
    warn_of_meanings(layout)
    return layout


def _normalized(layout: SampleLayout) -> SampleLayout:
    """Set the normalization of fields; raise if it does not fit their type or shape."""
    fields = list(layout.fields)
    for spec, entry in zip(layout.shape.fields, layout.entries, strict=True):
        wanted = spec.normalize if isinstance(spec, Field) else None
        if wanted is None:
            continue
        for _, leaf in leaves_of("", entry):
            number = numbers_of(leaf)[0]
            field, is_image = fields[number], fields[number].images is not None
            is_dense = field.ragged is not None and field.ragged.form == DENSE
            shape = (field.ragged.wanted,) if is_dense and field.ragged is not None else field.row_shape
            why = "" if is_image and field.kind == "object" else wanted.misfit(shape)
            if (field.is_listed and not is_image) or field.dtype.kind == "c":
                why = "normalize= is for real numbers; of variable length with ragged='list'"
            if isinstance(entry, SparseEntry) and not is_dense and wanted.mean != 0:
                why = "normalize= would make values of the zeros that are not stored; ragged='dense' has them"
            if why:
                raise OptionError(f"field {field.name!r}: {why}")
            fields[number] = replace(field, normalize=wanted)
    return replace(layout, fields=tuple(fields))


@dataclass(slots=True)
class _LayoutBuilder:
    """Collects the parts of all files, or groups of them, in order."""

    shape: SampleShape
    lookups: dict[Key, LookupBuilder] = field(default_factory=dict)
    files: list[FileParts] = field(default_factory=list)
    names: list[tuple[int, str]] = field(default_factory=list)  # for each part: the number of its file, its group
    labels: list[str] = field(default_factory=list)  # for each part: its name in messages
    starts: list[int] = field(default_factory=lambda: [0])  # the first row of each part, and the total
    edges: list[NDArray[np.int64]] = field(default_factory=list)  # for each part: the edges of its segments
    left_out: int = 0  # files, groups or objects
    lacking: FieldNotFoundError | None = None  # the first error of one that lacks a field
    without: list[str] = field(default_factory=list)  # files of a pattern left out although missing= was not set

    @property
    def rows(self) -> int:
        return self.starts[-1]

    def add(self, part: FileParts, number: int, name: str, label: str) -> None:
        """Append the part of a file, or of a group of it."""
        self.left_out += part.left_out
        self.files.append(part)
        self.names.append((number, name))
        self.labels.append(label)
        self.starts.append(self.rows + part.rows)


def _read_parts(request: Request, files: Files, samples: SampleKind | None, allow_external: bool) -> _LayoutBuilder:
    """Find the fields in all files: objects stored in the same way together, all others one by one."""
    fields = [one for one in request.shape.fields if isinstance(one, Field)] if request.shape else []
    others = (path for one in fields for path in one.file)
    guard = Guard.for_paths((*request.paths, *others), allow_external=allow_external)
    is_named, have_one_shape = request.shape is not None, not any(one.has_own_shape for one in fields)
    shape = _with_places(_requested_shape(request, samples, guard), request, samples, guard)
    request = replace(request, shape=shape)
    if isinstance(samples, Objects) and have_one_shape and (is_named or samples.of == FILES):
        if (builder := _read_stacked(request, shape, files, samples, guard)) is not None:
            return builder
        if encoded := next((one for one in fields if one.decode), None):
            why = "images of objects are read where objects of one file have each field, stored alike and in that file"
            why = f": Field({encoded.name!r}, decode=): {why} itself, and not beside lookup= or Objects('files')"
            raise UnsupportedFieldError(f"{_paths_text(request.paths)}{why}", field=encoded.name)
    return _read_one_by_one(request, shape, files, samples, guard)


def _with_places(shape: SampleShape, request: Request, samples: SampleKind | None, guard: Guard) -> SampleShape:
    """Return the shape with its fields beside groups or objects, such as "/labels/*", resolved.

    A name that exists in the first file, with its star, is taken literally.
    """
    of = samples.columns.get(GROUP) if isinstance(samples, Table) else getattr(samples, "of", None)
    is_word = isinstance(of, str) and of in (FILES, ROWS)
    if of is None or is_word or isinstance(of, Segmentation | np.ndarray):
        return shape
    fields = [*shape.fields]
    starred = [
        k for k, one in enumerate(fields) if isinstance(one, Field) and "*" in one.name[1:] and one.name[0] == "/"
    ]
    if not starred:
        return shape
    path = request.paths[0]
    with open_hdf5(path) as file:
        for k in starred:
            one = fields[k]
            if isinstance(one, Field) and means(file, one.name, path, guard) is None:
                fields[k] = beside(one, of, request.group)
    return replace(shape, fields=tuple(fields))


def _read_one_by_one(
    request: Request, shape: SampleShape, files: Files, samples: SampleKind | None, guard: Guard
) -> _LayoutBuilder:
    """Find the fields in each file or group, opening one at a time; similar groups are derived from the first."""
    builder = _LayoutBuilder(shape)
    for number, path in enumerate(request.paths):
        with open_hdf5(path) as file, contextlib.ExitStack() as linked:
            opened, similar = OpenFile(file, number, files, guard, linked), None
            groups = _existing_groups(opened, builder, request, samples)
            for k, (group, name) in enumerate(groups):
                part = None if similar is None else similar(k, builder.rows)
                try:
                    part = part or _read_group(opened, builder, group, samples)
                except FieldNotFoundError as error:
                    if not _leaves_out(opened, builder, group, request, samples):
                        raise _group_error(error, samples) from None
                    builder.lacking = builder.lacking or error
                    continue
                if isinstance(samples, Sequences) and part.volume is None:
                    builder.edges.append(edges_in(file, group, samples.of, part.rows, path, guard) + builder.rows)
                if (
                    similar is None
                    and len(groups) - k > _MOST_OPENED
                    and not (isinstance(samples, Objects) or builder.lookups)
                ):
                    raw = linked.enter_context(RawFile(file, guard, attributes_of(builder.shape)))
                    cuts = isinstance(samples, Sequences) and samples.lengths == "shortest"
                    names = [one for one, _ in groups]
                    similar = similar_group_parts(opened, raw, builder.shape, names, part, k, cuts=cuts)
                builder.add(part, number, name, f"group {group!r} of {path!r}" if samples and group else repr(path))
    if not builder.files:
        what = "objects" if isinstance(samples, Objects) else "files or groups"
        raise FieldNotFoundError(f"each of {builder.left_out:,} {what} lacks a field: {builder.lacking}", field="")
    _warn_of_files(builder.without)
    return builder


def _existing_groups(
    opened: OpenFile, builder: _LayoutBuilder, request: Request, samples: SampleKind | None
) -> list[tuple[str, str]]:
    """Return the groups of a file like `_groups`, without missing ones if they may be left out."""
    try:
        return _groups(opened.file, request, samples, opened.number, opened.guard)
    except FieldNotFoundError as error:
        if not isinstance(samples, Rows | Sequences | Boxes):
            raise
        above, names = f"{request.group}/" if request.group else "", samples.of if isinstance(samples.of, list) else []
        existing = [one for one in names if opened.means(above + one.strip("/")) is not None]
        of_pattern = samples.missing is None and _is_from_pattern(opened, request) and not existing
        if samples.missing != "skip" and not of_pattern:
            raise
        builder.lacking, builder.left_out = builder.lacking or error, builder.left_out + 1
        builder.without += [opened.path] if of_pattern else []
        if not existing:
            return []
        return _groups(opened.file, request, replace(samples, of=existing), opened.number, opened.guard)


def _skips(samples: SampleKind | None) -> bool:
    return isinstance(samples, Objects | Rows | Sequences | Boxes) and samples.missing == "skip"


def _is_from_pattern(opened: OpenFile, request: Request) -> bool:
    return opened.number < len(request.of_pattern) and request.of_pattern[opened.number]


def _leaves_out(
    opened: OpenFile, builder: _LayoutBuilder, group: str, request: Request, samples: SampleKind | None
) -> bool:
    """Return whether a file, or a group of it, that lacks a field is left out; if so, count it."""
    is_left_out = _skips(samples)
    may_lack_all = samples is None or (isinstance(samples, Rows | Sequences) and samples.missing is None)
    if may_lack_all and _is_from_pattern(opened, request):
        of = samples.of if isinstance(samples, Rows | Sequences) else None
        is_one = not group or (isinstance(of, str) and not glob.has_magic(of))
        is_left_out = is_one and lacks_all_fields(opened.file, group, builder.shape, opened.path, opened.guard)
        builder.without += [opened.path] if is_left_out else []
    builder.left_out += is_left_out
    return is_left_out


def _warn_of_files(paths: Sequence[str]) -> None:
    """Warn once of all files of a pattern that are left out."""
    if paths:
        message = f"{counted_text(len(paths), 'file')} of the pattern without any of the fields left out: "
        message += (
            f"{names_text([*map(repr, paths)])}. If that is meant, write samples=Rows(missing='skip'), or missing= of "
        )
        warnings.warn(f"{message}Sequences or Rows(of=); missing='error' refuses it", LeftOutWarning, stacklevel=6)


_MOST_OPENED = 8
"""The most groups left that are opened one by one; reading all headers takes as long as opening some."""


def _read_group(opened: OpenFile, builder: _LayoutBuilder, group: str, samples: SampleKind | None) -> FileParts:
    """Find the fields in a file, or in a group of it."""
    if (
        builder.lacking
        and _skips(samples)
        and lacks_field(opened.file, group, builder.shape, opened.identity.path, opened.guard)
    ):
        raise builder.lacking
    before, inside = snapshot(builder.lookups), builder.shape.inside(group)
    try:
        return read_fields(opened, inside, group if samples else "", samples, builder.rows, builder.lookups)
    except FieldNotFoundError:
        restore(builder.lookups, before)
        raise


def _read_stacked(
    request: Request, shape: SampleShape, files: Files, samples: Objects, guard: Guard
) -> _LayoutBuilder | None:
    """Read objects, or files, as rows of one dataset for each field; None if they must be read one by one."""
    builder, key, of_files = _LayoutBuilder(shape), _catalogue_key(request.group, shape, samples), samples.of == FILES
    for one in shape.fields:
        is_column = isinstance(one, Padding) or (of_files and isinstance(one, SourceNumber))
        if is_column or (isinstance(one, Field) and (one.is_looked_up or one.is_numbered or (of_files and one.decode))):
            return None
    if of_files:
        identity = FilesIdentity.of(files.identities[: files.named])
        catalogue, inside = Catalogue(identity, *key), shape.inside(request.group)

        def read_files() -> FileParts:
            return file_rows(files, identity, catalogue, inside, request.group, samples, guard, builder.lookups)

        with opening().without_prefetching():
            part = load_or_find(catalogue, builder.lookups, read_files)
        if part is None:
            return None
        files.identities[:] = [identity]
        builder.add(part, 0, "", repr(request.paths[0]))
        return builder
    for number, path in enumerate(request.paths):
        with open_hdf5(path) as file, contextlib.ExitStack() as linked:
            opened = OpenFile(file, number, files, guard, linked)
            catalogue = Catalogue() if samples.missing == "fill" else Catalogue(opened.identity, *key)
            raw = linked.enter_context(RawFile(file, guard, attributes_of(builder.shape), catalogue))
            part = _read_objects(opened, raw, request, samples, builder)
        if part is None:
            return None
        builder.add(part, number, "", repr(path))
    return builder


def _read_objects(
    opened: OpenFile, raw: RawFile, request: Request, samples: Objects, builder: _LayoutBuilder
) -> FileParts | None:
    """Return the objects of one file as rows; None if they must be read one by one."""

    def objects() -> FileParts:
        names: Sequence[str] = raw.catalogue.names() if raw.catalogue.is_kept else ()
        if not raw.catalogue.is_kept:
            path, kind = opened.identity.path, _member_kind(request)
            names = groups_of(
                opened.file, request.group, samples.of, path, opened.guard, kind, _samples_text(samples), raw
            )
        try:
            return object_rows(opened, raw, builder.shape, names, samples, builder.rows, builder.lookups)
        except FieldNotFoundError as error:
            raise _group_error(error, samples) from None

    return load_or_find(raw.catalogue, builder.lookups, objects)


def _catalogue_key(group: str, shape: SampleShape, samples: Objects) -> tuple[str, str, str]:
    """Return the requested objects, fields and missing= as texts, which identify a catalogue of a file."""
    of = samples.of
    if not isinstance(of, str):
        names = Names.of(str(name) for name in of)
        digest = hashlib.sha256(names.text.tobytes() + names.edges.tobytes()).hexdigest()
        of = f"{len(names):,} names, {digest[:32]}"
    fields = sorted(
        f"{f.name!r}{', of unlike lengths' * (f.ragged is not None)}{', encoded' * bool(f.decode)}"
        for f in shape.fields
        if isinstance(f, Field)
    )
    return f"{group}/{of}".strip("/"), ", ".join(fields), samples.missing


def _group_error(error: FieldNotFoundError, samples: SampleKind | None) -> FieldNotFoundError:
    """Return the error with a hint that every group needs the field, if a pattern or a list named the groups."""
    of = getattr(samples, "of", None)
    if not isinstance(of, (str, list)) or of in (FILES, ROWS):
        return error
    matched = f"{_samples_text(samples).format(repr(of))} matches" if isinstance(of, str) else "the list names"
    way_out = "a narrower pattern, or a list of names, leaves others out"
    if isinstance(samples, Objects):
        way_out = (
            "Objects(..., missing='skip') leaves others out, and 'fill' fills datasets of objects that are stored "
        )
        way_out += "alike, no attributes or single values"
    why = f"{str(error).rstrip('.')}. Each group that {matched} needs the field; {way_out}. In fields= its name begins "
    why += "inside the group."
    return FieldNotFoundError(why, field=error.field, file=error.file)


def _groups(
    file: h5py.File, request: Request, samples: SampleKind | None, number: int, guard: Guard
) -> list[tuple[str, str]]:
    """Return the groups of a file that hold rows: their paths, and the names that a table has for them."""
    where = request.paths[number], guard, _member_kind(request)
    named = groups_in(samples, number, request.paths) if isinstance(samples, Table) else None
    if named is not None:
        paths = groups_of(file, request.group, named, *where, "samples=Table(group={})") if named else []
        return [*zip(paths, named, strict=True)]
    of = None if samples is None or isinstance(samples, Table) or samples.of == ROWS else samples.of
    return [(group, "") for group in groups_of(file, request.group, of, *where, _samples_text(samples))]


def _samples_text(samples: SampleKind | None) -> str:
    """Return the option that names the samples' groups, as a template for messages."""
    return "Objects({})" if isinstance(samples, Objects) else "of={}"


def _member_kind(request: Request) -> Any:
    """Return the type of the objects that hold rows: groups, or datasets if a field is ``"."`` or a member of it."""
    specs = () if request.shape is None else request.shape.fields
    are_datasets = any(isinstance(one, Field) and one.name.partition(":")[0] == "." for one in specs)
    return h5py.Dataset if are_datasets else h5py.Group


def _columns(
    layout: SampleLayout, files: list[FileParts], samples: SampleKind | None
) -> Iterator[tuple[int, SampleColumn]]:
    """Yield the numbers and columns of fields that are not read from a dataset."""
    for number, spec in zip(layout.entries, layout.shape.fields, strict=True):
        if isinstance(spec, (SampleNumber, SourceNumber)):
            yield number, SampleColumn(starts=(0,) if isinstance(spec, SourceNumber) else ())
        elif isinstance(spec, Padding):
            yield number, SampleColumn(steps=steps_of(spec.steps, samples, "Padding()") or (), space=layout.space)
        elif isinstance(spec, Values):
            if len(spec.values) != layout.samples:
                count_text = (
                    f"{len(spec.values):,} values, and there are {layout.samples:,} samples: it needs one for each"
                )
                raise FieldLengthError(
                    f"{spec.name!r} in memory has {count_text}, also for those that rows= leaves out"
                )
            yield number, SampleColumn(spec.values)
    are_objects = files[0].are_objects
    for place, (number, first) in enumerate(files[0].constants):
        values: Any = [file.constants[place][1] for file in files]
        if isinstance(first, np.ndarray) and layout.fields[number].ragged is None:
            values = np.concatenate(values) if are_objects else np.stack(values)
            values = values.view(batch_dtype(values.dtype))
        elif are_objects:
            values = [*itertools.chain(*values)]
        yield number, SampleColumn(values) if are_objects else SampleColumn(values, layout.file_starts, by_rows=True)


def _space(
    samples: SampleKind | None, parts: _LayoutBuilder, paths: tuple[str, ...], fields: tuple[FieldLayout, ...]
) -> Space | None:
    """Return the space of all samples; None if each sample is a row."""
    numbers = {name: number for number, name in enumerate(parts.names)}
    if parts.files[0].are_objects:
        if not parts.left_out and all(file.anchors is None for file in parts.files):
            return None
        rows = (np.arange(file.rows) if file.anchors is None else file.anchors for file in parts.files)
        every = np.concatenate([row + start for row, start in zip(rows, parts.starts, strict=False)])
        return space_of_rows(every[None], np.array([0, parts.rows]), left_out=parts.left_out)
    volumes = [file.volume for file in parts.files if file.volume is not None]
    if volumes:
        space = volumes[0].space(volumes, parts.labels, numbers, paths)
        return replace(space, left_out=parts.left_out) if isinstance(samples, Objects) and parts.left_out else space
    if isinstance(samples, Table):
        steps = [(field.at or ROW, field.steps) for field in fields]
        return table_space(samples, np.array(parts.starts), numbers, paths, steps)
    if not isinstance(samples, Sequences):
        return None
    edges = np.concatenate([np.zeros(1, dtype=np.int64), *(edges[1:] for edges in parts.edges)])
    if in_memory(samples.of):
        edges = edges_over(cast(Segmentation, samples.of), edges)
    taken = [field.steps for field in fields if field.steps is not None] or [tuple(samples.steps or (0,))]
    lengths, least, most = np.diff(edges), min(map(min, taken)), max(map(max, taken))
    return axis_space(samples, lengths[:, None], [FieldSteps(elements=lengths, least=least, most=most)], edges)


def _check_padding(layout: SampleLayout) -> None:
    """Raise if the type of a field cannot hold its padding, or if pad= is set and samples have no padding."""

    def check(one: FieldLayout, option: str, number: float) -> None:
        if not _can_hold(one.dtype, number):
            message = f"{option}={number:g} does not fit into field {one.name!r}, which is stored as {shown(one.dtype)}"
            raise OptionError(
                f"{message} (dtype= casts what was padded); take another, or lengths or Padding() for a mask"
            )

    for one in layout.fields:
        if one.ragged is not None and not one.is_listed:
            check(one, "pad_value", one.ragged.pad_value)
    for parts in layout.aligned:
        for one in (layout.fields[target.field] for target in parts[0].targets):
            if one.pad is not None and (layout.space is None or layout.space.pad is None):
                message = f"field {one.name!r} has Take(pad={one.pad!r}), and nothing is padded"
                raise OptionError(f"{message}: samples= says with pad= that it is")
            number = number_outside(layout.pad_of(one)) if one.steps is not None or parts[0].along else None
            if number and one.kind == "array":
                check(one, "pad", number)


def _can_hold(dtype: np.dtype[Any], number: float) -> bool:
    """Return whether a type can hold a number, exactly or, for floats, approximately."""
    if isinstance(number, int) and not -(2**63) <= number < 2**64:
        number = float(number)  # too large for any integer type
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = widened(held_as(number, dtype))
    return bool(
        converted == number if widened_dtype(dtype).kind in "biu" else np.isfinite(converted) or not np.isfinite(number)
    )


def _requested_shape(request: Request, samples: SampleKind | None, guard: Guard) -> SampleShape:
    """Return the requested fields or, if none are named, all datasets of the first group with rows."""
    if request.shape is not None:
        return request.shape
    for number, path in enumerate(request.paths):
        with open_hdf5(path) as file:
            for group, _ in _groups(file, request, samples, number, guard):
                names = default_fields(file[group] if group else file, path, guard)
                fields = {name: Field(name) for name in names}
                return sample_shape(fields[names[0]] if len(names) == 1 else fields)
    raise AssertionError("no file has a group that was named")


def _paths_text(paths: tuple[str, ...]) -> str:
    return repr(paths[0]) if len(paths) == 1 else f"{paths[0]!r} and {len(paths) - 1} more"


# --- whether images are of one size: decided once, so that a batch never changes its type


def _with_image_sizes(layout: SampleLayout) -> SampleLayout:
    """Return a layout whose fields of images are tensors if some images, spread over all, are of one size."""
    if all(field.images is None for field in layout.fields):
        return layout
    fields = list(layout.fields)
    with contextlib.closing(H5pyReader(layout)) as reader:
        for parts in layout.datasets:
            for target in parts[0].targets[:1]:
                if (images := fields[target.field].images) is not None:
                    fields[target.field] = _with_size(fields[target.field], images.format, parts, layout, reader)
    return replace(layout, fields=tuple(fields))


def _with_size(
    field: FieldLayout, form: str, parts: tuple[DatasetPart, ...], layout: SampleLayout, reader: H5pyReader
) -> FieldLayout:
    """Return a field of images as a tensor if the images that are examined have one size and type."""
    images, why = list[NDArray[Any]](), ""
    palettes = set[bool]()  # whether an image has a palette; grayscale images do not count
    path, prefix = layout.files[parts[0].file].path, f": field {field.name!r}: "
    unread = list[H5StreamError]()
    for data in _spread_images(parts, layout, reader, unread):
        try:
            images.append(decode_image(data, form))
            is_palette = bool(palette_bits(data))
            palettes |= {is_palette} if is_palette or images[-1].ndim == 3 else set()
        except DecodeError as error:
            why = str(error)
    if not images:
        if unread and not why:
            raise unread[0]
        why = why or "there are none"
        message = f"of the values that were looked at none is an image that decode={form!r} takes: {why}"
        raise refusal(path, field.name, prefix + message)
    if len(palettes) > 1 and not form.endswith(COLOURS):
        message = f"some images have a palette, of which decode={form!r} gives the numbers, and others have colours; "
        raise refusal(path, field.name, f"{prefix}{message}decode='{form}{COLOURS}' gives the colours of all")
    nbytes = [image.nbytes for image in images]
    layout_images = Images(format=form, mean_nbytes=float(np.mean(nbytes)), most_nbytes=max(nbytes))
    if field.ragged is None and len({(image.shape, image.dtype) for image in images}) == 1:
        steps = () if field.steps is None else (len(field.steps),)
        return replace(
            field, kind="array", row_shape=(*steps, *images[0].shape), dtype=images[0].dtype, images=layout_images
        )
    if field.steps is not None:
        message = (
            "images of unlike sizes, or with ragged='list', make no tensor of several rows; samples of one row have "
        )
        raise refusal(path, field.name, f"{prefix}{message}them as a list")
    return replace(field, images=layout_images)


def _spread_images(
    parts: tuple[DatasetPart, ...], layout: SampleLayout, reader: H5pyReader, unread: list[H5StreamError]
) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of some images, spread over all rows; append the errors of others to `unread`."""
    starts = np.array([part.row_start for part in parts])
    rows = int(starts[-1]) + parts[-1].rows
    for row in np.unique(np.linspace(0, rows - 1, LOOKED_AT).astype(np.int64)).tolist() if rows else ():
        part = parts[int(np.searchsorted(starts, row, side="right")) - 1]
        within = row - part.row_start
        try:
            yield _bytes_at(part, within, layout, reader)
        except H5StreamError as error:
            unread.append(error)


def _bytes_at(part: DatasetPart, row: int, layout: SampleLayout, reader: H5pyReader) -> NDArray[np.uint8]:
    """Return the bytes of one image."""
    if part.heap is not None:
        data = part.heap.one(layout.files[part.file], row)
        return data if len(data) or not part.objects else reader.bytes_of(part, row)
    data = np.ascontiguousarray(reader.rows(part, row, 1)).reshape(-1).view(np.uint8)
    return data if part.lengths is None else data[: part.lengths[row]]
