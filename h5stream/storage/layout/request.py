"""The user's request: the structure of a sample, and the files that it is read from.

``"x"`` requests one tensor, ``["x", "y"]`` a tuple, ``{"image": "x"}`` a dict.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import h5py

from h5stream.base.names import is_address
from h5stream.base.texts import as_text, names_in
from h5stream.errors import OptionError, SourceNotFoundError
from h5stream.samples.columns import FROM_NO_FILE, VirtualField
from h5stream.samples.ragged import changed
from h5stream.storage.decode.columns import ColumnNames
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.sources import checked_path, is_array, is_folder, named_by, paths_of, several

# Open h5py objects are accepted as well, in place of their names; h5py has no types to annotate that.
FieldLike = str | Field | VirtualField
Fields = FieldLike | Sequence[FieldLike] | Mapping[str, FieldLike] | None
Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape:
    """The structure of a sample."""

    kind: str  # `"one"`, `"tuple"` or `"dict"`
    keys: tuple[str, ...]  # a key for each entry: the dict's key, or the field's name
    fields: tuple[Field | VirtualField, ...]  # the entries, in the user's order

    def inside(self, group: str) -> SampleShape:
        """Return the structure with all fields in a group."""
        if not group:
            return self
        inner = (field.inside(group) if isinstance(field, Field) else field for field in self.fields)
        return replace(self, fields=tuple(inner))

    @property
    def by_name(self) -> list[int]:
        """The indices of fields with ``columns="by name"``."""
        every = enumerate(self.fields)
        return [k for k, one in every if isinstance(one, Field) and one.columns == ColumnNames()]

    def with_columns(self, columns: Mapping[int, tuple[str, ...]]) -> SampleShape:
        """Return the structure with column names for fields with ``columns="by name"``."""
        places = set(self.by_name) & columns.keys()
        named = (
            changed(one, columns=ColumnNames(columns[k])) if k in places and isinstance(one, Field) else one
            for k, one in enumerate(self.fields)
        )
        return replace(self, fields=tuple(named))


def sample_shape(fields: FieldLike | Sequence[FieldLike] | Mapping[str, FieldLike]) -> SampleShape:
    """Parse the argument ``fields``."""
    kind, names = "tuple", cast(Any, fields)
    if isinstance(fields, (str, Field, h5py.Group, h5py.Dataset, *FROM_NO_FILE)):
        kind, names = "one", [fields]
    elif isinstance(fields, Mapping):
        kind, names = "dict", [*fields.values()]
    elif isinstance(names, bytes | bytearray):
        raise OptionError(f"a field's name is text, not bytes: {as_text(bytes(names))!r}, not {names!r:.200}")
    elif not isinstance(names, Iterable) and not is_array(names):
        raise OptionError(f"fields= takes a name, a Field, a sequence or a mapping of them, not {fields!r}")
    else:
        names = names_in("fields=", names)
    entries = list[Field | VirtualField]()
    for one in names:
        entry = Field(one) if isinstance(one, (str, h5py.Group, h5py.Dataset)) else one
        if not isinstance(entry, (Field, *FROM_NO_FILE)):
            raise OptionError(f"a field is a name or h5stream.Field(...), not {entry!r}")
        entries.append(entry)
    if not entries:
        raise OptionError("fields= is empty; name at least one dataset, or leave it out for all at the file's root")
    keys = map(str, fields) if isinstance(fields, Mapping) else map(operator.attrgetter("name"), entries)
    return SampleShape(kind=kind, keys=tuple(keys), fields=tuple(entries))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The parsed source and fields of a user."""

    paths: tuple[str, ...]  # the files, in order
    group: str  # the group in which fields are looked up, and whose datasets are the default; empty for the root
    shape: SampleShape | None  # the structure of the fields; None for the default fields
    of_pattern: tuple[bool, ...] = ()  # for each file, whether it matched a pattern

    def may_be_whole(self, datasets: Sequence[str]) -> bool:
        """Return whether files or groups may be samples: not if `datasets` are named ones at the root of one file."""
        if not datasets:
            return False
        return len(self.paths) > 1 or self.shape is None or "/" in datasets[0]


def are_local(source: object, fields: object) -> bool:
    """Return whether a source is one path that is no address, and fields are names, so that no store is read."""
    names = [fields] if isinstance(fields, str) else fields
    are_names = names is None or (isinstance(names, (list, tuple)) and set(map(type, names)) == {str})
    return are_names and isinstance(source, str) and not is_address(source)


def read_request(source: Source, fields: Fields) -> Request:
    """Parse the arguments for the source and the fields."""
    paths, of_pattern, places = list[str](), list[bool](), dict[tuple[str, bool], None]()
    for one in several(source, "a source"):
        opened = named_by(one)
        matched = paths_of(one, opened)
        paths += matched
        of_pattern += [opened is None and (is_folder(one) or matched != [checked_path(one)])] * len(matched)
        places[opened[1:] if opened else ("", False)] = None
    if not paths:
        raise SourceNotFoundError("no file was named: the source is empty")
    (name, is_dataset), *others = places
    if others or (is_dataset and len(set(paths)) < len(paths)):
        problem = "several h5py objects are a source if they lie at one place, each in a file of its own"
        raise OptionError(f"{problem}; for fields of one file give the file, and fields=[...]")
    if is_dataset and fields is not None:
        raise OptionError(f"the source is the dataset {name!r}, so it is the field; leave out fields=, or give a file")
    if is_dataset:
        return Request(paths=tuple(paths), group="", shape=sample_shape(name), of_pattern=tuple(of_pattern))
    shape = None if fields is None else sample_shape(fields)
    for field in shape.fields if shape else ():
        of = field._file if isinstance(field, Field) else ""
        if of and not any(os.path.exists(path) and os.path.samefile(of, path) for path in paths):
            problem = f"the field {field.name!r} is a dataset of {of!r}, which is not among the files that are opened"
            raise OptionError(f"{problem}; all fields come from the source")
    return Request(paths=tuple(paths), group=name, shape=shape, of_pattern=tuple(of_pattern))
