"""Groups by pattern: which groups of a file hold segments, or rows that are read one behind the other."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import logging
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.errors import FieldNotFoundError, OptionError
from h5stream.samples.segments import Bounds, Edges, Ends, Ids, Lengths, edges_of
from h5stream.samples.sequences import Of
from h5stream.storage import whereabouts
from h5stream.storage.discovery import behind, is_hard_link, once_of, thing_at
from h5stream.storage.external import Guard
from h5stream.storage.names import Names, packed
from h5stream.storage.nearest import did_you_mean
from h5stream.storage.templates import GROUP
from h5stream.storage.whereabouts import NOT_HARD, Links, RawFile

_log = logging.getLogger("h5stream")

_OTHERS = "name the others: of=[...], Objects([...])"

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
) -> Sequence[str]:
    """Find the groups of an open file that hold rows, or the datasets that have them themselves."""
    if of is None or of == FILES or isinstance(of, (Ends, Ids, Lengths, Bounds)):
        return [root]
    above = f"{root}/" if root else ""
    if isinstance(of, str):
        with contextlib.nullcontext(raw) if raw else RawFile(file) as raw:
            found = Names.joined(_matching(file[root or "/"], of.strip("/").split("/"), above, path, guard, kind, raw))
        if not found:
            raise FieldNotFoundError(
                f"{path!r}: of={of!r} matches no {_WHAT[kind]}.{_instead(file, root, of, path, guard, kind)}",
                field=of,
                file=path,
            )
        return found
    names: Sequence[str] = [above + _checked_name(name).strip("/") for name in of]
    if not names:
        raise OptionError("of= names no group; give a pattern such as 'data/*', names of groups, or 'files'")
    known = np.zeros(len(names), dtype=bool)
    if raw and len(names) >= whereabouts.MANY:
        texts = Names.of(names)
        texts.addresses = raw.addresses(texts)
        headers = raw.headers(texts.addresses, raw.attributes)
        known = headers.understood & ((headers.layout == GROUP) == (kind is h5py.Group))
        names = texts
    for name in names if not known.any() else (names[k] for k in np.flatnonzero(~known).tolist()):
        guard.check_links(file, name, path)
        if not isinstance(thing_at(file, name, path), kind):
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
    """Return the edges of the segments of a group's rows, counted from its first row."""
    if not isinstance(of, (Ends, Ids, Lengths, Bounds)):
        return np.array([0, rows], dtype=np.int64)
    above = f"{group}/" if group else ""
    names = of.fields if isinstance(of, (Ends, Ids)) else (of.name,)
    values = [np.asarray(once_of(file, above + name, path, guard)) for name in names]
    try:
        return edges_of(of, values, rows)
    except OptionError as error:
        raise OptionError(f"{path!r}: {error}") from None


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
) -> Iterator[Names]:
    pattern, *below = levels
    if not below and _is_of_many(group):
        yield _many_matching(group, pattern, above, path, guard, kind, raw)
        return
    names, found, dead = [name for name in group if isinstance(name, str)], list[str](), list[str]()
    for name in fnmatch.filter(names, pattern):
        if not is_hard_link(group, name):  # the links above it were followed on the way down
            guard.check_links(group.file, above + name, path)
        inner = behind(group, name, path, _OTHERS)
        if inner is None:
            dead.append(above + name)
        elif below and isinstance(inner, h5py.Group):
            yield from _matching(inner, below, f"{above}{name}/", path, guard, kind, raw)
        elif not below and isinstance(inner, kind):
            found.append(above + name)
    _say_dead(dead, path)
    if found:
        yield Names.of(found)


def _say_dead(names: list[str], path: str) -> None:
    """Tell of links that a pattern matches and that lead nowhere: what they were to lead to is no sample."""
    if names:
        _log.warning(
            "%r: %s link(s) that the pattern matches lead nowhere and are left out, such as %r; copy what they name "
            "into the file, or take them away",
            path,
            f"{len(names):,}",
            names[0],
        )


def _is_of_many(group: Any) -> bool:
    """Tell whether a group has many links; to count a million, libhdf5 would take all of them into memory."""
    count = itertools.count(1)
    group.id.links.iterate(lambda _: next(count) >= whereabouts.MANY or None, order=h5py.h5.ITER_NATIVE)
    return next(count) > whereabouts.MANY


def _many_matching(
    group: Any,
    pattern: str,
    above: str,
    path: str,
    guard: Guard,
    kind: type[h5py.Group] | type[h5py.Dataset],
    raw: RawFile,
) -> Names:
    """Return what a pattern matches in a group of many: libhdf5 opens none whose header says what it is."""
    links = raw.links(group)
    which = _matches(links, pattern)
    addresses = links.addresses[which]
    for k in np.flatnonzero(addresses == NOT_HARD).tolist():
        guard.check_links(group.file, above + links.name(which[k]).decode(), path)
        addresses[k] = raw.behind(above + links.name(which[k]).decode())
    headers = raw.headers(addresses, raw.attributes)
    wanted = headers.understood & ((headers.layout == GROUP) == (kind is h5py.Group))
    dead = list[str]()
    for k in np.flatnonzero(~wanted).tolist():  # what is left out is asked of libhdf5: damage is not
        inner = behind(group, name := links.name(which[k]).decode(), path, _OTHERS)
        wanted[k] = isinstance(inner, kind)
        dead += [above + name] if inner is None else []
    _say_dead(dead, path)
    chosen = np.zeros(len(links), dtype=bool)
    chosen[which[wanted]] = True
    return packed(itertools.compress(links, chosen), above, addresses[wanted])


def _matches(links: Links, pattern: str) -> NDArray[np.int64]:
    """Return the places of links whose names match a pattern; names that are no UTF-8 are none of h5py's."""
    if pattern == "*" and not (links.names > 127).any():
        return np.arange(len(links))
    match = re.compile(fnmatch.translate(pattern)).match
    found = array("q")
    for k, name in enumerate(links):
        with contextlib.suppress(UnicodeDecodeError):
            if match(name.decode()):
                found.append(k)
    return np.array(found, dtype=np.int64)


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
        every = _matching(file[root or "/"], of.strip("/").split("/"), above, path, guard, other, raw)
        found = next((names[0] for names in every if names), None)
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
