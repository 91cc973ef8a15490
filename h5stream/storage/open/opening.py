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
from h5stream.samples.columns import Padding, SampleNumber, SourceNumber, ValueColumn, Values
from h5stream.samples.kinds import Objects, Rows, Sequences
from h5stream.samples.ragged import DENSE
from h5stream.samples.segments import Segmentation, edges_over, in_memory
from h5stream.samples.space import Space, number_outside, space_of_rows, steps_of
from h5stream.samples.table import GROUP, ROW, Table, groups_in, table_space
from h5stream.storage.decode.elements import held_dtype
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
from h5stream.storage.layout.fields import Asked, Field, Fields, SampleShape, Source, beside, read_request, sample_shape
from h5stream.storage.layout.layout import DatasetPart, FieldLayout, SampleLayout, SparseEntry, leaves_of, numbers_of
from h5stream.storage.open.extents import SampleKind
from h5stream.storage.open.field_reader import read_fields
from h5stream.storage.open.joining import (
    FileParts,
    check_alike,
    with_all_meanings,
    with_like_strings,
    with_named_shapes,
    with_room_for_all,
    with_rows_of_values,
)
from h5stream.storage.open.lookups import Key, LookedUp, aligned, counted, forget, shared
from h5stream.storage.open.objects import (
    attributes_of,
    files_of,
    groups_alike,
    kept_or_anew,
    lacks,
    lacks_all,
    objects_of,
)
from h5stream.storage.source.local import FilesIdentity
from h5stream.storage.source.remote import opening

_KINDS = "Sequences(...), Rows(...), Objects(...), Table(...) or Boxes(...)"


def open_layout(
    source: Source | Asked, fields: Fields = None, *, samples: SampleKind | None = None, allow_external: bool = False
) -> SampleLayout:
    """Open files, find the fields in each, and give the layout of a sample."""
    if samples is not None and not isinstance(samples, SampleKind):
        raise OptionError(f"samples= takes {_KINDS}, such as Sequences(16, of='data/*'), not {samples!r}")
    asked = source if isinstance(source, Asked) else read_request(source, fields)
    every = Files(asked.paths)
    parts = _parts_of(asked, every, samples, allow_external)
    shape, looked_up = parts.shape, parts.looked_up
    files = with_room_for_all(parts.files, parts.labels)
    paths = [every.identities[number].path for number, _ in parts.names]
    check_alike(files, paths, parts.labels)
    files = with_like_strings(with_all_meanings(files, paths, parts.labels))
    if parts.rows == 0:
        named = any(isinstance(one, Field) and one.lookup is not None for one in shape.fields)
        why = f"has zero {'samples' if named else 'rows'} in {', '.join(shape.keys)}"
        why += ", by what lookup= names; there is nothing to stream" if named else "; there is nothing to stream"
        raise FieldLengthError(f"{_named(asked.paths)} {why}", file=asked.paths[0])
    layout = SampleLayout(
        files=tuple(every.identities),
        file_starts=tuple(parts.starts),
        fields=files[0].fields,
        datasets=(*zip(*(file.parts for file in files), strict=True), *(tuple(e.parts) for e in looked_up.values())),
        shape=shape,
        entries=files[0].entries,
        allow_external=allow_external,
        space=_space(samples, parts, asked.paths, files[0].fields),
        left_out=0 if isinstance(samples, Objects) else parts.left_out,
    )
    numbered = enumerate(looked_up.values(), len(files[0].parts))
    lookups = aligned(
        [each.lookup(number, layout.rows, layout.space, _named(asked.paths)) for number, each in numbered],
        [each.crop for each in looked_up.values()],
    )
    layout = replace(layout, columns=tuple(_columns(layout, files, samples)), lookups=shared(lookups))
    layout = with_rows_of_values(with_named_shapes(layout, looked_up.values()))
    _check_padding(layout)
    may_lack = isinstance(samples, Objects) and samples.missing == "fill"
    layout = with_packings(_normalized(_with_image_sizes(layout)), [file.packed for file in files], may_lack=may_lack)
    warn_of_meanings(layout)
    return layout


def _normalized(layout: SampleLayout) -> SampleLayout:
    """Note what is done to the numbers of fields, where that fits them."""
    fields = list(layout.fields)
    for asked, entry in zip(layout.shape.fields, layout.entries, strict=True):
        wanted = asked.normalize if isinstance(asked, Field) else None
        for _, leaf in leaves_of("", entry) if wanted is not None else ():
            assert wanted is not None
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
class _Parts:
    """What the files, or groups of them, hold, one behind the other."""

    shape: SampleShape
    looked_up: dict[Key, LookedUp] = field(default_factory=dict)
    files: list[FileParts] = field(default_factory=list)
    names: list[tuple[int, str]] = field(default_factory=list)  # of each the number of its file, its group's name
    labels: list[str] = field(default_factory=list)  # what messages call it
    starts: list[int] = field(default_factory=lambda: [0])  # where its rows begin
    edges: list[NDArray[np.int64]] = field(default_factory=list)  # of its segments
    left_out: int = 0
    lacking: FieldNotFoundError | None = None  # the error of the first that lacks a field
    without: list[str] = field(default_factory=list)  # files of a pattern that are left out without being asked

    @property
    def rows(self) -> int:
        return self.starts[-1]

    def add(self, part: FileParts, number: int, name: str, label: str) -> None:
        """Add what a file, or a group of it, holds."""
        self.left_out += part.left_out
        self.files.append(part)
        self.names.append((number, name))
        self.labels.append(label)
        self.starts.append(self.rows + part.rows)


def _parts_of(asked: Asked, every: Files, samples: SampleKind | None, allow_external: bool) -> _Parts:
    """Find the fields in all files: objects together where they are stored alike, and all else one by one."""
    fields = [one for one in asked.shape.fields if isinstance(one, Field)] if asked.shape else []
    others = (path for one in fields for path in one.file)
    guard = Guard.for_paths((*asked.paths, *others), allow_external=allow_external)
    is_named, asked = asked.shape is not None, _with_places(_with_fields(asked, samples, guard), samples, guard)
    is_alike = not any(one.has_own_shape for one in fields)
    if isinstance(samples, Objects) and is_alike and (is_named or samples.of == FILES):
        if (found := _together(asked, every, samples, guard)) is not None:
            return found
        if encoded := next((one for one in fields if one.decode), None):
            why = "images of objects are read where objects of one file have each field, stored alike and in that file"
            why = f": Field({encoded.name!r}, decode=): {why} itself, and not beside lookup= or Objects('files')"
            raise UnsupportedFieldError(f"{_named(asked.paths)}{why}", field=encoded.name)
    return _one_by_one(asked, every, samples, guard)


def _with_places(asked: Asked, samples: SampleKind | None, guard: Guard) -> Asked:
    """Return what was asked for, with fields that know where they lie beside the groups, or objects, of samples.

    A field whose name is in the first file, stars and all, is that.
    """
    of = samples.columns.get(GROUP) if isinstance(samples, Table) else getattr(samples, "of", None)
    is_word = isinstance(of, str) and of in (FILES, ROWS)
    if asked.shape is None or of is None or is_word or isinstance(of, Segmentation | np.ndarray):
        return asked
    fields = [*asked.shape.fields]
    starred = [
        k for k, one in enumerate(fields) if isinstance(one, Field) and "*" in one.name[1:] and one.name[0] == "/"
    ]
    if not starred:
        return asked
    path = asked.paths[0]
    with open_hdf5(path) as file:
        for k in starred:
            one = fields[k]
            if isinstance(one, Field) and means(file, one.name, path, guard) is None:
                fields[k] = beside(one, of, asked.group)
    return replace(asked, shape=replace(asked.shape, fields=tuple(fields)))


def _one_by_one(asked: Asked, every: Files, samples: SampleKind | None, guard: Guard) -> _Parts:
    """Open one file, or group, after the other and find the fields in it; groups stored alike by the first of them."""
    assert asked.shape is not None
    found = _Parts(asked.shape)
    for number, path in enumerate(asked.paths):
        with open_hdf5(path) as file, contextlib.ExitStack() as linked:
            opened, alike = OpenFile(file, number, every, guard, linked), None
            groups = _groups_that_are_there(opened, found, asked, samples)
            for k, (group, name) in enumerate(groups):
                part = None if alike is None else alike(k, found.rows)
                try:
                    part = part or _opened_group(opened, found, group, samples)
                except FieldNotFoundError as error:
                    if not _leaves_out(opened, found, group, asked, samples):
                        raise _of_each_group(error, samples) from None
                    found.lacking = found.lacking or error
                    continue
                if isinstance(samples, Sequences) and part.volume is None:
                    found.edges.append(edges_in(file, group, samples.of, part.rows, path, guard) + found.rows)
                if alike is None and len(groups) - k > _FEW and not (isinstance(samples, Objects) or found.looked_up):
                    raw = linked.enter_context(RawFile(file, guard, attributes_of(found.shape)))
                    cuts = isinstance(samples, Sequences) and samples.lengths == "shortest"
                    names = [one for one, _ in groups]
                    alike = groups_alike(opened, raw, found.shape, names, part, k, cuts=cuts)
                found.add(part, number, name, f"group {group!r} of {path!r}" if samples and group else repr(path))
    if not found.files:
        what = "objects" if isinstance(samples, Objects) else "files or groups"
        raise FieldNotFoundError(f"each of {found.left_out:,} {what} lacks a field: {found.lacking}", field="")
    _warn_of_files(found.without)
    return found


def _groups_that_are_there(
    opened: OpenFile, found: _Parts, asked: Asked, samples: SampleKind | None
) -> list[tuple[str, str]]:
    """Return the groups of a file that hold rows, as `_groups` does; without those that it lacks, if that may be."""
    try:
        return _groups(opened.file, asked, samples, opened.number, opened.guard)
    except FieldNotFoundError as error:
        if not isinstance(samples, Rows | Sequences | Boxes):
            raise
        above, names = f"{asked.group}/" if asked.group else "", samples.of if isinstance(samples.of, list) else []
        there = [one for one in names if opened.means(above + one.strip("/")) is not None]
        of_pattern = samples.missing is None and _is_of_pattern(opened, asked) and not there
        if samples.missing != "skip" and not of_pattern:
            raise
        found.lacking, found.left_out = found.lacking or error, found.left_out + 1
        found.without += [opened.path] if of_pattern else []
        return _groups(opened.file, asked, replace(samples, of=there), opened.number, opened.guard) if there else []


def _skips(samples: SampleKind | None) -> bool:
    return isinstance(samples, Objects | Rows | Sequences | Boxes) and samples.missing == "skip"


def _is_of_pattern(opened: OpenFile, asked: Asked) -> bool:
    return opened.number < len(asked.of_pattern) and asked.of_pattern[opened.number]


def _leaves_out(opened: OpenFile, found: _Parts, group: str, asked: Asked, samples: SampleKind | None) -> bool:
    """Tell whether a file, or a group of it, that lacks a field is left out, and note that it is."""
    is_left_out = _skips(samples)
    may_lack_all = samples is None or (isinstance(samples, Rows | Sequences) and samples.missing is None)
    if may_lack_all and _is_of_pattern(opened, asked):
        of = samples.of if isinstance(samples, Rows | Sequences) else None
        is_one = not group or (isinstance(of, str) and not glob.has_magic(of))
        is_left_out = is_one and lacks_all(opened.file, group, found.shape, opened.path, opened.guard)
        found.without += [opened.path] if is_left_out else []
    found.left_out += is_left_out
    return is_left_out


def _warn_of_files(paths: Sequence[str]) -> None:
    """Warn, once, of the files of a pattern that are left out."""
    if paths:
        said = f"{counted_text(len(paths), 'file')} of the pattern without any of the fields left out: "
        said += (
            f"{names_text([*map(repr, paths)])}. If that is meant, write samples=Rows(missing='skip'), or missing= of "
        )
        warnings.warn(f"{said}Sequences or Rows(of=); missing='error' refuses it", LeftOutWarning, stacklevel=6)


_FEW = 8
"""Groups that are opened one by one: looking at the headers of all takes as long as opening some."""


def _opened_group(opened: OpenFile, found: _Parts, group: str, samples: SampleKind | None) -> FileParts:
    """Find the fields in a file, or in a group of it."""
    if found.lacking and _skips(samples) and lacks(opened.file, group, found.shape, opened.identity.path, opened.guard):
        raise found.lacking
    before, inside = counted(found.looked_up), found.shape.inside(group)
    try:
        return read_fields(opened, inside, group if samples else "", samples, found.rows, found.looked_up)
    except FieldNotFoundError:
        forget(found.looked_up, before)
        raise


def _together(asked: Asked, every: Files, samples: Objects, guard: Guard) -> _Parts | None:
    """Read objects, or files, as rows of one dataset a field; None where they are unlike, and are read one by one."""
    assert asked.shape is not None
    found, words, of_files = _Parts(asked.shape), _in_words(asked, samples), samples.of == FILES
    for one in asked.shape.fields:
        is_column = isinstance(one, Padding) or (of_files and isinstance(one, SourceNumber))
        if is_column or (isinstance(one, Field) and (one.is_looked_up or one.is_numbered or (of_files and one.decode))):
            return None
    if of_files:
        identity = FilesIdentity.of(every.identities[: every.named])
        catalogue, inside = Catalogue(identity, *words), asked.shape.inside(asked.group)

        def files() -> FileParts:
            return files_of(every, identity, catalogue, inside, asked.group, samples, guard, found.looked_up)

        with opening().here_and_there():
            part = kept_or_anew(catalogue, found.looked_up, files)
        if part is None:
            return None
        every.identities[:] = [identity]
        found.add(part, 0, "", repr(asked.paths[0]))
        return found
    for number, path in enumerate(asked.paths):
        with open_hdf5(path) as file, contextlib.ExitStack() as linked:
            opened = OpenFile(file, number, every, guard, linked)
            catalogue = Catalogue() if samples.missing == "fill" else Catalogue(opened.identity, *words)
            raw = linked.enter_context(RawFile(file, guard, attributes_of(found.shape), catalogue))
            part = _objects_in(opened, raw, asked, samples, found)
        if part is None:
            return None
        found.add(part, number, "", repr(path))
    return found


def _objects_in(opened: OpenFile, raw: RawFile, asked: Asked, samples: Objects, found: _Parts) -> FileParts | None:
    """Return the objects of one file as rows; None where they are unlike."""

    def objects() -> FileParts:
        names: Sequence[str] = raw.catalogue.names() if raw.catalogue.is_kept else ()
        if not raw.catalogue.is_kept:
            path, kind = opened.identity.path, _kind_of(asked)
            names = groups_of(opened.file, asked.group, samples.of, path, opened.guard, kind, _said_of(samples), raw)
        try:
            return objects_of(opened, raw, found.shape, names, samples, found.rows, found.looked_up)
        except FieldNotFoundError as error:
            raise _of_each_group(error, samples) from None

    return kept_or_anew(raw.catalogue, found.looked_up, objects)


def _in_words(asked: Asked, samples: Objects) -> tuple[str, str, str]:
    """Say which objects and which fields were asked for: all that what is found of a file depends on."""
    assert asked.shape is not None
    of = samples.of
    if not isinstance(of, str):
        names = Names.of(str(name) for name in of)
        digest = hashlib.sha256(names.text.tobytes() + names.edges.tobytes()).hexdigest()
        of = f"{len(names):,} names, {digest[:32]}"
    fields = sorted(
        f"{f.name!r}{', of unlike lengths' * (f.ragged is not None)}{', encoded' * bool(f.decode)}"
        for f in asked.shape.fields
        if isinstance(f, Field)
    )
    return f"{asked.group}/{of}".strip("/"), ", ".join(fields), samples.missing


def _of_each_group(error: FieldNotFoundError, samples: SampleKind | None) -> FieldNotFoundError:
    """Say that a field is needed in every group, where a pattern or a list named them."""
    of = getattr(samples, "of", None)
    if not isinstance(of, (str, list)) or of in (FILES, ROWS):
        return error
    said = f"{_said_of(samples).format(repr(of))} matches" if isinstance(of, str) else "the list names"
    way_out = "a narrower pattern, or a list of names, leaves others out"
    if isinstance(samples, Objects):
        way_out = (
            "Objects(..., missing='skip') leaves others out, and 'fill' fills datasets of objects that are stored "
        )
        way_out += "alike, no attributes or single values"
    why = f"{str(error).rstrip('.')}. Each group that {said} needs the field; {way_out}. In fields= its name begins "
    why += "inside the group."
    return FieldNotFoundError(why, field=error.field, file=error.file)


def _groups(file: Any, asked: Asked, samples: SampleKind | None, number: int, guard: Guard) -> list[tuple[str, str]]:
    """Return the groups of a file that hold rows: their paths, and the names that a table has for them."""
    where = asked.paths[number], guard, _kind_of(asked)
    named = groups_in(samples, number, asked.paths) if isinstance(samples, Table) else None
    if named is not None:
        paths = groups_of(file, asked.group, named, *where, "samples=Table(group={})") if named else []
        return [*zip(paths, named, strict=True)]
    of = None if samples is None or isinstance(samples, Table) or samples.of == ROWS else samples.of
    return [(group, "") for group in groups_of(file, asked.group, of, *where, _said_of(samples))]


def _said_of(samples: SampleKind | None) -> str:
    """Return how a user wrote which groups samples are of, with {} for what was written."""
    return "Objects({})" if isinstance(samples, Objects) else "of={}"


def _kind_of(asked: Asked) -> Any:
    """Return what holds the rows: groups, or datasets themselves, where a field is ``"."``, or a member of that."""
    given = () if asked.shape is None else asked.shape.fields
    are_datasets = any(isinstance(one, Field) and one.name.partition(":")[0] == "." for one in given)
    return h5py.Dataset if are_datasets else h5py.Group


def _columns(
    layout: SampleLayout, files: list[FileParts], samples: SampleKind | None
) -> Iterator[tuple[int, ValueColumn]]:
    """Return the fields that come from no dataset, by their numbers."""
    for number, given in zip(layout.entries, layout.shape.fields, strict=True):
        if isinstance(given, (SampleNumber, SourceNumber)):
            yield number, ValueColumn(starts=(0,) if isinstance(given, SourceNumber) else ())
        elif isinstance(given, Padding):
            yield number, ValueColumn(steps=steps_of(given.steps, samples, "Padding()") or (), space=layout.space)
        elif isinstance(given, Values):
            if len(given.values) != layout.samples:
                said = f"{len(given.values):,} values, and there are {layout.samples:,} samples: it needs one for each"
                raise FieldLengthError(f"{given.name!r} in memory has {said}, also for those that rows= leaves out")
            yield number, ValueColumn(given.values)
    are_objects = files[0].are_objects
    for place, (number, first) in enumerate(files[0].once):
        values: Any = [file.once[place][1] for file in files]
        if isinstance(first, np.ndarray) and layout.fields[number].ragged is None:
            values = np.concatenate(values) if are_objects else np.stack(values)
            values = values.view(held_dtype(values.dtype))
        elif are_objects:
            values = [*itertools.chain(*values)]
        yield number, ValueColumn(values) if are_objects else ValueColumn(values, layout.file_starts, by_rows=True)


def _space(
    samples: SampleKind | None, parts: _Parts, paths: tuple[str, ...], fields: tuple[FieldLayout, ...]
) -> Space | None:
    """Find all samples; None where a sample is a row."""
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
    """Refuse a number for padding that the type of a field cannot hold, and padding of what is not padded."""

    def check(one: FieldLayout, option: str, number: float) -> None:
        if not _holds(one.dtype, number):
            said = f"{option}={number:g} does not fit into field {one.name!r}, which is stored as {shown(one.dtype)}"
            raise OptionError(
                f"{said} (dtype= casts what was padded); take another, or lengths or Padding() for a mask"
            )

    for one in layout.fields:
        if one.ragged is not None and not one.is_listed:
            check(one, "pad_value", one.ragged.pad_value)
    for parts in layout.aligned:
        for one in (layout.fields[target.field] for target in parts[0].targets):
            if one.pad is not None and (layout.space is None or layout.space.pad is None):
                said = f"field {one.name!r} has Take(pad={one.pad!r}), and nothing is padded"
                raise OptionError(f"{said}: samples= says with pad= that it is")
            number = number_outside(layout.pad_of(one)) if one.steps is not None or parts[0].along else None
            if number and one.kind == "array":
                check(one, "pad", number)


def _holds(dtype: np.dtype[Any], number: float) -> bool:
    """Tell whether a type has a number, or one next to it where it has fractions."""
    if isinstance(number, int) and not -(2**63) <= number < 2**64:
        number = float(number)  # no array has it as a whole number
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = widened(held_as(number, dtype))
    return bool(held == number if widened_dtype(dtype).kind in "biu" else np.isfinite(held) or not np.isfinite(number))


def _with_fields(asked: Asked, samples: SampleKind | None, guard: Guard) -> Asked:
    """Return what was asked for with all datasets of the first group that has rows, where no fields were named."""
    if asked.shape is not None:
        return asked
    for number, path in enumerate(asked.paths):
        with open_hdf5(path) as file:
            for group, _ in _groups(file, asked, samples, number, guard):
                names = default_fields(file[group] if group else file, path, guard)
                fields = {name: Field(name) for name in names}
                return replace(asked, shape=sample_shape(fields[names[0]] if len(names) == 1 else fields))
    raise AssertionError("no file has a group that was named")


def _named(paths: tuple[str, ...]) -> str:
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
                if fields[target.field].images is not None:
                    fields[target.field] = _sized(fields[target.field], parts, layout, reader)
    return replace(layout, fields=tuple(fields))


def _sized(field: FieldLayout, parts: tuple[DatasetPart, ...], layout: SampleLayout, reader: H5pyReader) -> FieldLayout:
    assert field.images is not None
    found, why, form = list[NDArray[Any]](), "", field.images.format
    palettes = set[bool]()  # whether images have one, of those that have colours or one
    path, named = layout.files[parts[0].file].path, f": field {field.name!r}: "
    unread = list[H5StreamError]()
    for data in _some(parts, layout, reader, unread):
        try:
            found.append(decode_image(data, form))
            is_palette = bool(palette_bits(data))
            palettes |= {is_palette} if is_palette or found[-1].ndim == 3 else set()
        except DecodeError as error:
            why = str(error)
    if not found:
        if unread and not why:
            raise unread[0]
        why = why or "there are none"
        said = f"of the values that were looked at none is an image that decode={form!r} takes: {why}"
        raise refusal(path, field.name, named + said)
    if len(palettes) > 1 and not form.endswith(COLOURS):
        said = f"some images have a palette, of which decode={form!r} gives the numbers, and others have colours; "
        raise refusal(path, field.name, f"{named}{said}decode='{form}{COLOURS}' gives the colours of all")
    nbytes = [image.nbytes for image in found]
    images = Images(format=form, mean_nbytes=float(np.mean(nbytes)), most_nbytes=max(nbytes))
    if field.ragged is None and len({(image.shape, image.dtype) for image in found}) == 1:
        steps = () if field.steps is None else (len(field.steps),)
        return replace(field, kind="array", row_shape=(*steps, *found[0].shape), dtype=found[0].dtype, images=images)
    if field.steps is not None:
        said = "images of unlike sizes, or with ragged='list', make no tensor of several rows; samples of one row have "
        raise refusal(path, field.name, f"{named}{said}them as a list")
    return replace(field, images=images)


def _some(
    parts: tuple[DatasetPart, ...], layout: SampleLayout, reader: H5pyReader, unread: list[H5StreamError]
) -> Iterator[NDArray[np.uint8]]:
    """Return the bytes of some rows, spread over all, and note why others cannot be read."""
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
    """Return the bytes of an image."""
    if part.heap is not None:
        data = part.heap.one(layout.files[part.file], row)
        return data if len(data) or not part.objects else reader.bytes_of(part, row)
    data = np.ascontiguousarray(reader.rows(part, row, 1)).reshape(-1).view(np.uint8)
    return data if part.lengths is None else data[: part.lengths[row]]
