"""Every member that is read: each file, and each group or object of it. A plain file is a set of one member.

The first member is opened with every check. The headers of the others are compared with its own: objects that are
stored alike become the rows of one dataset for each field, and groups like the first become parts that are derived from
it. A member that differs is opened like the first.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.base.hints import warn
from h5stream.base.names import Names
from h5stream.base.texts import counted as counted_text
from h5stream.base.texts import names_text
from h5stream.errors import FieldNotFoundError, LeftOutWarning, UnsupportedFieldError
from h5stream.samples.boxes import ROWS, Boxes
from h5stream.samples.columns import Padding, SourceNumber
from h5stream.samples.kinds import Objects, Rows, Sequences
from h5stream.samples.segments import Segmentation
from h5stream.samples.table import GROUP, Table, groups_in
from h5stream.storage.file.catalogue import Catalogue
from h5stream.storage.file.discovery import default_fields, means
from h5stream.storage.file.external import Guard
from h5stream.storage.file.groups import FILES, RawFile, edges_in, groups_of
from h5stream.storage.file.stored import Files, OpenFile, open_hdf5
from h5stream.storage.layout.fields import Field, beside
from h5stream.storage.layout.request import Request, SampleShape, sample_shape
from h5stream.storage.many.members import MixedStorageError
from h5stream.storage.open.extents import SampleKind
from h5stream.storage.open.field_reader import read_fields
from h5stream.storage.open.joining import FileParts
from h5stream.storage.open.lookups import Key, LookupBuilder, restore, snapshot
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

MOST_OPENED = 8
"""The most groups left that are opened one by one; reading all headers takes as long as opening some."""


def read_members(request: Request, files: Files, samples: SampleKind | None, allow_external: bool) -> MemberReader:
    """Find the fields in all members: together in objects that are stored in the same way, else one by one."""
    paths, encoded, has_own_shape = [*request.paths], "", False
    for one in request.shape.fields if request.shape else ():
        if isinstance(one, Field):
            paths += one.file
            encoded = encoded or (one.name if one.decode else "")
            has_own_shape = has_own_shape or one.has_own_shape
    guard = Guard.for_paths(tuple(paths), allow_external=allow_external)
    shape = _default_shape(request, samples, guard) if request.shape is None else request.shape
    if samples is not None:
        shape = _with_places(shape, request, samples, guard)
    is_named, request = request.shape is not None, replace(request, shape=shape)
    if isinstance(samples, Objects) and not has_own_shape and (is_named or samples.of == FILES):
        reader = MemberReader(request, shape, files, samples, guard)
        with contextlib.suppress(MixedStorageError):
            reader.read(stack=samples)
            return reader
        if encoded:
            why = "images of objects are read where objects of one file have each field, stored alike and in that file"
            why = f": Field({encoded!r}, decode=): {why} itself, and not beside lookup= or Objects('files')"
            raise UnsupportedFieldError(f"{paths_text(request.paths)}{why}", field=encoded)
    reader = MemberReader(request, shape, files, samples, guard)
    reader.read()
    if not reader.parts:
        what = "objects" if isinstance(samples, Objects) else "files or groups"
        raise FieldNotFoundError(f"each of {reader.left_out:,} {what} lacks a field: {reader.lacking}", field="")
    if reader.without:
        _warn_of_files(reader.without)
    return reader


@dataclass(slots=True)
class MemberReader:
    """Reads the fields of all members, and collects their parts in order."""

    request: Request
    shape: SampleShape
    files: Files
    samples: SampleKind | None
    guard: Guard
    lookups: dict[Key, LookupBuilder] = field(default_factory=dict)
    parts: list[FileParts] = field(default_factory=list)  # of each file, or of each group of it
    names: list[tuple[int, str]] = field(default_factory=list)  # for each part: the number of its file, its group
    labels: list[str] = field(default_factory=list)  # for each part: its name in messages
    starts: list[int] = field(default_factory=list)  # the first row of each part
    rows: int = 0  # of all parts
    edges: list[NDArray[np.int64]] = field(default_factory=list)  # for each part: the edges of its segments
    left_out: int = 0  # files, groups or objects
    lacking: FieldNotFoundError | None = None  # the first error of one that lacks a field
    without: list[str] = field(default_factory=list)  # files of a pattern left out although missing= was not set

    def add(self, part: FileParts, number: int, name: str, label: str) -> None:
        """Append the part of a file, or of a group of it."""
        self.left_out += part.left_out
        self.parts.append(part)
        self.names.append((number, name))
        self.labels.append(label)
        self.starts.append(self.rows)
        self.rows += part.rows

    def read(self, stack: Objects | None = None) -> None:
        """Read the members of every file; those of `stack` together, or raise `MixedStorageError` if they differ."""
        if stack is not None:
            _check_stackable(self.shape, stack)
            if stack.of == FILES:
                self._stack_files(stack)
                return
        for number, path in enumerate(self.request.paths):
            with open_hdf5(path) as file, contextlib.ExitStack() as linked:
                opened = OpenFile(file, number, self.files, self.guard, linked)
                if stack is None:
                    self._read_groups(opened, linked)
                else:
                    self._stack_objects(opened, linked, stack)

    def _read_groups(self, opened: OpenFile, linked: contextlib.ExitStack) -> None:
        """Read a file, or each group of it; groups like the first that was read are derived from it."""
        samples, similar, path = self.samples, None, self.request.paths[opened.number]
        try:
            groups = _groups(opened.file, self.request, samples, opened.number, self.guard)
        except FieldNotFoundError as error:
            groups = self._existing_groups(opened, error)
        for k, (group, name) in enumerate(groups):
            part = None if similar is None else similar(k, self.rows)
            try:
                part = part or self._read_group(opened, group)
            except FieldNotFoundError as error:
                if not self._leaves_out(opened, group):
                    raise _group_error(error, samples) from None
                self.lacking = self.lacking or error
                continue
            if isinstance(samples, Sequences) and part.volume is None:
                edges = edges_in(opened.file, group, samples.of, part.rows, path, self.guard)
                self.edges.append(edges + self.rows)
            if similar is None and len(groups) - k > MOST_OPENED and not (isinstance(samples, Objects) or self.lookups):
                raw = linked.enter_context(RawFile(opened.file, self.guard, attributes_of(self.shape)))
                cuts = isinstance(samples, Sequences) and samples.lengths == "shortest"
                names = [one for one, _ in groups]
                similar = similar_group_parts(opened, raw, self.shape, names, part, k, cuts=cuts)
            label = f"group {group!r} of {path!r}" if samples and group else repr(path)
            self.add(part, opened.number, name, label)

    def _read_group(self, opened: OpenFile, group: str) -> FileParts:
        """Find the fields in a file, or in a group of it, with every check."""
        shape, lookups = self.shape, self.lookups
        if (
            self.lacking
            and self._skips()
            and lacks_field(opened.file, group, shape, opened.identity.path, opened.guard)
        ):
            raise self.lacking
        before, inside = snapshot(lookups) if lookups else {}, shape.inside(group) if group else shape
        try:
            return read_fields(opened, inside, group if self.samples else "", self.samples, self.rows, lookups)
        except FieldNotFoundError:
            restore(lookups, before)
            raise

    def _existing_groups(self, opened: OpenFile, error: FieldNotFoundError) -> list[tuple[str, str]]:
        """Return the groups of a file that exist; raise the error of the others if they may not be left out."""
        samples, group = self.samples, self.request.group
        if not isinstance(samples, Rows | Sequences | Boxes):
            raise error
        above, names = f"{group}/" if group else "", samples.of if isinstance(samples.of, list) else []
        existing = [one for one in names if opened.means(above + one.strip("/")) is not None]
        of_pattern = samples.missing is None and self._is_from_pattern(opened) and not existing
        if samples.missing != "skip" and not of_pattern:
            raise error
        self.lacking, self.left_out = self.lacking or error, self.left_out + 1
        self.without += [opened.path] if of_pattern else []
        if not existing:
            return []
        return _groups(opened.file, self.request, replace(samples, of=existing), opened.number, self.guard)

    def _leaves_out(self, opened: OpenFile, group: str) -> bool:
        """Return whether a file, or a group of it, that lacks a field is left out; if so, count it."""
        samples, is_left_out = self.samples, self._skips()
        may_lack_all = samples is None or (isinstance(samples, Rows | Sequences) and samples.missing is None)
        if may_lack_all and self._is_from_pattern(opened):
            of = samples.of if isinstance(samples, Rows | Sequences) else None
            is_one = not group or (isinstance(of, str) and not glob.has_magic(of))
            is_left_out = is_one and lacks_all_fields(opened.file, group, self.shape, opened.path, opened.guard)
            self.without += [opened.path] if is_left_out else []
        self.left_out += is_left_out
        return is_left_out

    def _skips(self) -> bool:
        return isinstance(self.samples, Objects | Rows | Sequences | Boxes) and self.samples.missing == "skip"

    def _is_from_pattern(self, opened: OpenFile) -> bool:
        return opened.number < len(self.request.of_pattern) and self.request.of_pattern[opened.number]

    def _stack_files(self, samples: Objects) -> None:
        """Read all files as rows of one dataset for each field."""
        request, files = self.request, self.files
        identity = FilesIdentity.of(files.identities[: files.named])
        catalogue = Catalogue(identity, *_catalogue_key(request.group, self.shape, samples))
        inside = self.shape.inside(request.group)

        def stacked() -> FileParts:
            return file_rows(files, identity, catalogue, inside, request.group, samples, self.guard, self.lookups)

        with opening().without_prefetching():
            part = load_or_find(catalogue, self.lookups, stacked)
        files.identities[:] = [identity]
        self.add(part, 0, "", repr(request.paths[0]))

    def _stack_objects(self, opened: OpenFile, linked: contextlib.ExitStack, samples: Objects) -> None:
        """Read the objects of a file as rows of one dataset for each field."""
        request, shape, path = self.request, self.shape, self.request.paths[opened.number]
        is_kept = samples.missing != "fill"
        key = _catalogue_key(request.group, shape, samples)
        catalogue = Catalogue(opened.identity, *key) if is_kept else Catalogue()
        raw = linked.enter_context(RawFile(opened.file, self.guard, attributes_of(shape), catalogue))

        def stacked() -> FileParts:
            names: Sequence[str] = catalogue.names() if catalogue.is_kept else ()
            if not catalogue.is_kept:
                where = opened.identity.path, opened.guard, _member_kind(request), _samples_text(samples)
                names = groups_of(opened.file, request.group, samples.of, *where, raw)
            try:
                return object_rows(opened, raw, shape, names, samples, self.rows, self.lookups)
            except FieldNotFoundError as error:
                raise _group_error(error, samples) from None

        self.add(load_or_find(catalogue, self.lookups, stacked), opened.number, "", repr(path))


def _groups(
    file: h5py.File, request: Request, samples: SampleKind | None, number: int, guard: Guard
) -> list[tuple[str, str]]:
    """Return the groups of a file that hold rows: their paths, and the names that a table has for them."""
    of = None if samples is None or isinstance(samples, Table) or samples.of == ROWS else samples.of
    named = groups_in(samples, number, request.paths) if isinstance(samples, Table) else None
    if of is None and named is None:
        return [(request.group, "")]
    where = request.paths[number], guard, _member_kind(request)
    if named is not None:
        paths = groups_of(file, request.group, named, *where, "samples=Table(group={})") if named else []
        return [*zip(paths, named, strict=True)]
    return [(group, "") for group in groups_of(file, request.group, of, *where, _samples_text(samples))]


def _member_kind(request: Request) -> type[h5py.HLObject]:
    """Return the type of the objects that hold rows: groups, or datasets if a field is ``"."`` or a member of it."""
    named = () if request.shape is None else request.shape.fields
    are_datasets = any(isinstance(one, Field) and one.name.partition(":")[0] == "." for one in named)
    kind: type[h5py.HLObject] = h5py.Dataset if are_datasets else h5py.Group
    return kind


def _check_stackable(shape: SampleShape, samples: Objects) -> None:
    """Raise `MixedStorageError` if a field is of a kind that objects, or files, are read one by one for."""
    of_files = samples.of == FILES
    for one in shape.fields:
        is_column = isinstance(one, Padding) or (of_files and isinstance(one, SourceNumber))
        if is_column or (isinstance(one, Field) and (one.is_looked_up or one.is_numbered or (of_files and one.decode))):
            raise MixedStorageError(one.name)


def paths_text(paths: tuple[str, ...]) -> str:
    """Return the files of a source for messages."""
    return repr(paths[0]) if len(paths) == 1 else f"{paths[0]!r} and {len(paths) - 1} more"


def _samples_text(samples: SampleKind | None) -> str:
    """Return the option that names the samples' groups, as a template for messages."""
    return "Objects({})" if isinstance(samples, Objects) else "of={}"


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


def _warn_of_files(paths: Sequence[str]) -> None:
    """Warn once of all files of a pattern that are left out."""
    message = f"{counted_text(len(paths), 'file')} of the pattern without any of the fields left out: "
    message += f"{names_text([*map(repr, paths)])}. If that is meant, write samples=Rows(missing='skip'), or missing= "
    message += "of Sequences or Rows(of=); missing='error' refuses it"
    warn(message, LeftOutWarning)


def _default_shape(request: Request, samples: SampleKind | None, guard: Guard) -> SampleShape:
    """Return all datasets of the first group with rows, for a request that names no fields."""
    for number, path in enumerate(request.paths):
        with open_hdf5(path) as file:
            for group, _ in _groups(file, request, samples, number, guard):
                names = default_fields(file[group] if group else file, path, guard)
                fields = {name: Field(name) for name in names}
                return sample_shape(fields[names[0]] if len(names) == 1 else fields)
    raise AssertionError("no file has a group that was named")
