"""What a user asks for: paths, patterns and field names, and the shape of a sample.

``"x"`` asks for one tensor, ``["x", "y"]`` for a tuple, ``{"image": "x"}`` for a dict. A name is the path of a
dataset, ``"group/x"``, with a compound member after a colon: ``"obs:bulk_labels"``.
"""

from __future__ import annotations

import glob
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5stream.errors import FieldNotFoundError, OptionError, SourceNotFoundError
from h5stream.storage.rowbox import Columns


@dataclass(frozen=True, slots=True)
class Field:
    """One field, where its name alone does not say enough.

    Parameters
    ----------
    name : str
        Path of a dataset, with a compound member after a colon.
    columns : slice or sequence of int, optional, keyword-only
        Columns (axis 1 of the dataset) to take, in that order. Only the chunks that hold them are read, and of
        chunks without a filter only their bytes, but for gaps of up to 4 KiB.
    dtype : torch.dtype, optional, keyword-only
        What the batch is cast to; the cast runs after the raw bytes have reached the batch's device.

    Examples
    --------
    >>> Field("x", columns=slice(0, 4)).name
    'x'
    """

    name: str
    columns: Columns = None
    dtype: Any = None

    def __init__(self, name: str, *, columns: slice | Sequence[int] | None = None, dtype: Any = None) -> None:
        if not isinstance(name, str) or not name.strip("/"):
            raise OptionError(f"a field's name is the path of a dataset, not {name!r}")
        chosen = columns if columns is None or isinstance(columns, slice) else _column_list(columns)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "columns", chosen)
        object.__setattr__(self, "dtype", dtype)


def _column_list(columns: Sequence[int]) -> list[int]:
    try:
        if any(isinstance(c, (bool, np.bool_)) for c in columns):
            raise TypeError("a mask")
        return [operator.index(c) for c in columns]
    except TypeError as error:
        raise OptionError(
            f"columns= takes a slice or column numbers, not {columns!r} ({error}); numpy.flatnonzero makes numbers of "
            "a mask"
        ) from None


FieldLike = str | Field
Fields = FieldLike | Sequence[FieldLike] | Mapping[str, FieldLike] | None
Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape:
    """How the fields of a sample are put together.

    Attributes
    ----------
    kind : str
        ``"one"``, ``"tuple"`` or ``"dict"``.
    keys : tuple of str
        A key for each entry: the dict's key, or the field's name.
    fields : tuple of Field
        The entries, in the user's order.
    """

    kind: str
    keys: tuple[str, ...]
    fields: tuple[Field, ...]

    def assemble(self, values: Sequence[Any]) -> Any:
        """Put one value for each entry into the user's structure."""
        if self.kind == "one":
            return values[0]
        if self.kind == "tuple":
            return tuple(values)
        return dict(zip(self.keys, values, strict=True))


def sample_shape(fields: FieldLike | Sequence[FieldLike] | Mapping[str, FieldLike]) -> SampleShape:
    """Read what the user gave as ``fields``.

    Raises
    ------
    OptionError
        If it is empty or holds something that is not a name.

    Examples
    --------
    >>> sample_shape(["x", "y"]).kind
    'tuple'
    """
    if isinstance(fields, (str, Field)):
        one = _as_field(fields)
        return SampleShape(kind="one", keys=(one.name,), fields=(one,))
    if isinstance(fields, Mapping):
        entries = tuple(_as_field(f) for f in fields.values())
        kind, keys = "dict", tuple(str(key) for key in fields)
    elif isinstance(fields, Iterable):
        entries = tuple(_as_field(f) for f in fields)
        kind, keys = "tuple", tuple(f.name for f in entries)
    else:
        raise OptionError(f"fields= takes a name, a Field, a sequence or a mapping of them, not {fields!r}")
    if not entries:
        raise OptionError("fields= is empty; name at least one dataset, or leave it out for all at the file's root")
    return SampleShape(kind=kind, keys=keys, fields=entries)


def _as_field(given: Any) -> Field:
    if isinstance(given, Field):
        return given
    if isinstance(given, str):
        return Field(given)
    raise OptionError(f"a field is a name or h5stream.Field(...), not {given!r}")


def source_paths(source: Source) -> tuple[str, ...]:
    """Turn a path, a pattern or several of them into file paths, patterns sorted by name.

    Raises
    ------
    SourceNotFoundError
        If a pattern matches nothing, or nothing was named.
    """
    if not isinstance(source, (str, os.PathLike, Iterable)):
        raise OptionError(f"a source is a path, a pattern or several of them, not {source!r}")
    given = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    paths: list[str] = []
    for one in given:
        if not isinstance(one, (str, os.PathLike)):
            raise OptionError(f"a source is a path, a pattern or several of them, not {one!r}")
        path = os.fspath(one)
        if not os.path.exists(path) and glob.has_magic(path):
            found = sorted(glob.glob(os.path.expanduser(path), recursive=True))
            if not found:
                raise SourceNotFoundError(f"no file matches {path!r}", file=path)
            paths += found
        else:
            paths.append(path)
    if not paths:
        raise SourceNotFoundError("no file was named: the source is empty")
    return tuple(paths)


def split_member(name: str, exists: Any) -> tuple[str, tuple[str, ...]]:
    """Split a field's name into the dataset's path and its member path.

    A dataset whose own name has a colon is found first.

    Parameters
    ----------
    name : str
        As the user wrote it.
    exists : callable
        Tells whether a path leads to a dataset.

    Examples
    --------
    >>> split_member("obs:stats:mean", lambda path: path == "obs")
    ('obs', ('stats', 'mean'))
    """
    parts = name.split(":")
    for cut in range(len(parts), 0, -1):
        path = ":".join(parts[:cut])
        if path and exists(path):
            return path, tuple(parts[cut:])
    raise FieldNotFoundError(name, field=name)
