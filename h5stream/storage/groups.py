"""Groups by pattern: which groups of a file hold segments, or rows that are read one behind the other."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldNotFoundError, OptionError
from h5stream.samples.segments import Bounds, Edges, Ends, Ids, Lengths, edges_of
from h5stream.samples.sequences import Of
from h5stream.storage import whereabouts
from h5stream.storage.discovery import find_dataset
from h5stream.storage.external import Guard
from h5stream.storage.headers import GROUP
from h5stream.storage.links import NOT_HARD
from h5stream.storage.nearest import did_you_mean
from h5stream.storage.whereabouts import RawFile

FILES = "files"
"""What stands for whole files in place of a pattern."""


def groups_of(
    file: Any,
    root: str,
    of: Of,
    path: str,
    guard: Guard,
    kind: type[h5py.Group] | type[h5py.Dataset] = h5py.Group,
    said: str = "of= names",
    raw: RawFile | None = None,
) -> list[str]:
    """Find the groups of an open file that hold rows, or the datasets that have them themselves.

    Parameters
    ----------
    file : h5py.File
        Open.
    root : str
        The group to look in; empty for the file's root.
    of : str, sequence of str, or what else says what a segment is
        A pattern with ``*`` and ``?`` at any level, whose groups come in the order of their names, numbers in these
        counted as such; or names, whose groups come in the order given. For all else it is `root` alone.
    path : str
        The file's path, for messages.
    guard : Guard
        Says which files external links may lead to.
    kind : type
        `h5py.Group`, or `h5py.Dataset` where a field is ``"."``.
    said : str
        What names them, for messages.
    raw : RawFile, optional
        The file's bytes, if they are at hand.

    Returns
    -------
    list of str
        Paths without slashes around them; an empty one is the file's root.

    Raises
    ------
    FieldNotFoundError
        If a pattern matches no group, or a name is not one.
    """
    if of is None or of == FILES or isinstance(of, (Ends, Ids, Lengths, Bounds)):
        return [root]
    above = f"{root}/" if root else ""
    if isinstance(of, str):
        with contextlib.nullcontext(raw) if raw else RawFile(file) as raw:
            found = list(_matching(file[root or "/"], of.strip("/").split("/"), above, path, guard, kind, raw))
        if not found:
            raise FieldNotFoundError(
                f"{path!r}: of={of!r} matches no {_WHAT[kind]}.{_instead(file, root, of, path, guard, kind)}",
                field=of,
                file=path,
            )
        return found
    names = [above + _checked_name(name).strip("/") for name in of]
    if not names:
        raise OptionError("of= names no group; give a pattern such as 'data/*', names of groups, or 'files'")
    for name in names:
        guard.check_links(file, name, path)
        if not isinstance(file.get(name), kind):
            if kind is h5py.Dataset:
                raise FieldNotFoundError(
                    f"{path!r} has no dataset {name!r}, which {said}, and which the field '.' is."
                    + did_you_mean(name, _siblings(file, name)),
                    field=name,
                    file=path,
                )
            every = list(_all_groups(file))
            hint = did_you_mean(name, every)
            inside = next((group.removesuffix(f"/{name}") for group in every if group.endswith(f"/{name}")), "")
            if inside:
                hint += f" Names are looked up inside the group that is given: H5Dataset(file[{inside!r}], ...)."
            raise FieldNotFoundError(f"{path!r} has no group {name!r}, which {said}.{hint}", field=name, file=path)
    return names


def edges_in(file: Any, group: str, of: Of, rows: int, path: str, guard: Guard) -> Edges:
    """Give the edges of the segments of a group's rows, counted from its first row.

    Raises
    ------
    FieldNotFoundError, OptionError
        If what is to say where segments end is not there, or does not say it.
    """
    if not isinstance(of, (Ends, Ids, Lengths, Bounds)):
        return np.array([0, rows], dtype=np.int64)
    above = f"{group}/" if group else ""
    names = of.fields if isinstance(of, (Ends, Ids)) else (of.name,)
    values = [_column(file, above + name, path, guard) for name in names]
    try:
        return edges_of(of, values, rows)
    except OptionError as error:
        raise OptionError(f"{path!r}: {error}") from None


def _column(file: Any, name: str, path: str, guard: Guard) -> NDArray[Any]:
    dataset, _, member = find_dataset(file, name, path, guard)
    values = dataset[()]
    for part in member:
        values = values[part]
    return np.asarray(values)


def _checked_name(name: Any) -> str:
    text = name.decode() if isinstance(name, bytes) else name
    if not isinstance(text, str):
        raise OptionError(f"of= takes a pattern, or names of groups, not {name!r}")
    return text


def _matching(
    group: Any,
    levels: list[str],
    above: str,
    path: str,
    guard: Guard,
    kind: type[h5py.Group] | type[h5py.Dataset],
    raw: RawFile,
) -> Iterator[str]:
    pattern, *below = levels
    if not below and len(group) >= whereabouts.MANY:
        yield from _many_matching(group, pattern, above, path, guard, kind, raw)
        return
    names = [name for name in group if isinstance(name, str)]
    for name in sorted(fnmatch.filter(names, pattern), key=_by_numbers):
        guard.check_links(group.file, above + name, path)
        inner = group.get(name)
        if below and isinstance(inner, h5py.Group):
            yield from _matching(inner, below, f"{above}{name}/", path, guard, kind, raw)
        elif not below and isinstance(inner, kind):
            yield above + name


def _many_matching(
    group: Any,
    pattern: str,
    above: str,
    path: str,
    guard: Guard,
    kind: type[h5py.Group] | type[h5py.Dataset],
    raw: RawFile,
) -> Iterator[str]:
    """Give what a pattern matches in a group of many: libhdf5 opens none whose header says what it is."""
    where = raw.members(group)
    names = sorted(where if pattern == "*" else fnmatch.filter(where, pattern), key=_by_numbers)
    addresses = np.array([where[name] for name in names], dtype=np.int64)
    hard = addresses != NOT_HARD
    headers = raw.headers(np.where(hard, addresses, -1))
    known = headers.understood & hard
    wanted = (headers.layout == GROUP) == (kind is h5py.Group)
    for name, is_known, is_wanted in zip(names, known.tolist(), wanted.tolist(), strict=True):
        if not is_known:
            guard.check_links(group.file, above + name, path)
            is_wanted = isinstance(group.get(name), kind)
        if is_wanted:
            yield above + name


def _by_numbers(name: str) -> list[tuple[int, int | str]]:
    """Give a key by which ``demo_2`` comes before ``demo_10``."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in _NUMBERS.split(name)]


_NUMBERS = re.compile(r"(\d+)")


def _all_groups(file: Any) -> Iterator[str]:
    for name in file:
        inner = file.get(name)
        if isinstance(inner, h5py.Group):
            yield name
            yield from (f"{name}/{below}" for below in inner)


_WHAT = {h5py.Group: "group", h5py.Dataset: "dataset, which the field '.' is"}


def _siblings(file: Any, name: str) -> list[str]:
    above = file.get(name.rpartition("/")[0] or "/")
    return [f"{above.name.strip('/')}/{one}".strip("/") for one in above] if isinstance(above, h5py.Group) else []


def _instead(file: Any, root: str, of: str, path: str, guard: Guard, kind: Any) -> str:
    """Say what a pattern matches where it matches nothing that is wanted, or else what there is."""
    other = h5py.Dataset if kind is h5py.Group else h5py.Group
    above = f"{root}/" if root else ""
    with RawFile(file) as raw:
        found = next(_matching(file[root or "/"], of.strip("/").split("/"), above, path, guard, other, raw), None)
    if found is None:
        return _what_there_is(file)
    if kind is h5py.Dataset:
        return f" It matches groups, such as {found!r}: name the datasets in them as fields, and not '.'"
    if "*" not in of and "?" not in of:
        return (
            f" It is a dataset; Sequences(..., of=Ends({of!r})), Lengths, Bounds or Ids take what it says of segments"
        )
    return f" It matches datasets, such as {found!r}: each of these is the field '.', fields='.'"


def _what_there_is(file: Any) -> str:
    groups = [name for name in file if isinstance(file.get(name), h5py.Group)]
    if not groups:
        return " It has no groups; of='files' takes each file as a segment."
    shown = ", ".join(repr(name) for name in groups[:8]) + (" ..." if len(groups) > 8 else "")
    return f" At its root are the groups {shown}; '{groups[0]}/*' matches those in the first."
