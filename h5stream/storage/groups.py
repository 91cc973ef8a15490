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
from h5stream.samples.kinds import Of
from h5stream.samples.segments import Edges, Said, edges_of
from h5stream.storage.discovery import behind, is_hard_link, once_of, thing_at
from h5stream.storage.external import Guard
from h5stream.storage.names import Names, packed
from h5stream.storage.nearest import did_you_mean
from h5stream.storage.templates import GROUP, NOWHERE
from h5stream.storage.whereabouts import RawFile, links_of

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
    if of is None or of == FILES or isinstance(of, Said):
        return [root]
    above = f"{root}/" if root else ""
    with contextlib.nullcontext(raw) if raw else RawFile(file, guard) as raw:
        if isinstance(of, str):
            found = _matching(file[root or "/"], of.strip("/").split("/"), above, path, guard, kind, raw)
            if not found:
                raise FieldNotFoundError(
                    f"{path!r}: of={of!r} matches no {_WHAT[kind]}.{_instead(file, root, of, path, guard, kind)}",
                    field=of,
                    file=path,
                )
            return found
        names = Names.of(above + _checked_name(name).strip("/") for name in of)
        if not names:
            raise OptionError("of= names no group; give a pattern such as 'data/*', names of groups, or 'files'")
        names.addresses = raw.addresses(names)
        known = _known(names, kind, raw)
    for name in (names[k] for k in np.flatnonzero(~known).tolist()):
        guard.check_links(file, name, path)
        if not isinstance(thing_at(file, name, path), kind):
            raise _not_there(file, name, path, said, kind)
    return names


def _not_there(file: Any, name: str, path: str, said: str, kind: Any) -> FieldNotFoundError:
    """Return the error for a group, or a dataset, that was named and is not there."""
    if kind is h5py.Dataset:
        above = file.get(name.rpartition("/")[0] or "/")
        beside = [f"{above.name}/{one}".strip("/") for one in above] if isinstance(above, h5py.Group) else []
        what, hint = f"dataset {name!r}, which {said}, and which the field '.' is.", did_you_mean(name, beside)
    else:
        every = [*_all_groups(file)]
        what, hint = f"group {name!r}, which {said}.", did_you_mean(name, every)
        if inside := next((group.removesuffix(f"/{name}") for group in every if group.endswith(f"/{name}")), ""):
            hint += f" Names are looked up inside the group that is given: H5Dataset(file[{inside!r}], ...)."
    return FieldNotFoundError(f"{path!r} has no {what}{hint}", field=name, file=path)


def edges_in(file: Any, group: str, of: Of, rows: int, path: str, guard: Guard) -> Edges:
    """Return the edges of the segments of a group's rows, counted from its first row."""
    if not isinstance(of, Said):
        return np.array([0, rows], dtype=np.int64)
    above = f"{group}/" if group else ""
    values = [np.asarray(once_of(file, above + name, path, guard)) for name in of.names]
    try:
        return edges_of(of, values, rows)
    except OptionError as error:
        raise OptionError(f"{path!r}: {error}") from None


def _checked_name(name: Any) -> str:
    text = name.decode() if isinstance(name, bytes) else name
    if not isinstance(text, str):
        raise OptionError(f"of= takes a pattern, or names of groups, not {name!r}")
    return text


def _matching(group: Any, levels: list[str], above: str, path: str, guard: Guard, kind: Any, raw: RawFile) -> Names:
    """Return what a pattern matches: libhdf5 opens none whose header says what it is."""
    dead = list[str]()
    names = Names.joined(_linked(group, levels, above, path, guard, raw, dead))
    wanted, parent, holder = _known(names, kind, raw), "", raw.file
    for k in np.flatnonzero(~wanted).tolist():  # what is left out is asked of libhdf5: damage is not
        last, (parent, _, leaf) = parent, names[k].rpartition("/")
        holder = holder if parent == last else raw.file[parent or "/"]
        inner = behind(holder, leaf, path, _OTHERS)
        wanted[k] = isinstance(inner, kind)
        dead += [names[k]] if inner is None else []
    if dead:  # what they were to lead to is no sample
        _log.warning(
            "%r: %s link(s) that the pattern matches lead nowhere and are left out, such as %r; copy what they name "
            "into the file, or take them away",
            path,
            f"{len(dead):,}",
            dead[0],
        )
    if wanted.all():
        return names
    return names.only(np.flatnonzero(wanted))


def _linked(
    group: Any, levels: list[str], above: str, path: str, guard: Guard, raw: RawFile, dead: list[str]
) -> Iterator[Names]:
    """Yield the names that a pattern matches, and where the headers lie that they lead to."""
    pattern, *below = levels
    links = links_of(group.id)
    which = _matches(links, pattern)
    if below:
        for name in (links[k] for k in which.tolist()):
            if not is_hard_link(group, name):  # the links above it were followed on the way down
                guard.check_links(group.file, above + name, path)
            inner = behind(group, name, path, _OTHERS)
            dead += [above + name] if inner is None else []
            if isinstance(inner, h5py.Group):
                yield from _linked(inner, below, f"{above}{name}/", path, guard, raw, dead)
        return
    assert links.addresses is not None
    addresses = links.addresses[which] if raw.has(group) else np.full(len(which), NOWHERE)
    for k in np.flatnonzero(addresses == NOWHERE).tolist():
        addresses[k] = raw.behind(above + links[int(which[k])])
    chosen = np.zeros(len(links), dtype=bool)
    chosen[which] = True
    yield packed(itertools.compress(links.encoded(), chosen), above, addresses)


def _known(names: Names, kind: Any, raw: RawFile) -> NDArray[np.bool_]:
    """Tell what is of a kind, by its header."""
    assert names.addresses is not None
    headers = raw.headers(names.addresses, raw.attributes)
    known: NDArray[np.bool_] = headers.understood & ((headers.layout == GROUP) == (kind is h5py.Group))
    return known


def _matches(links: Names, pattern: str) -> NDArray[np.int64]:
    """Return the places of links whose names match a pattern; names that are no UTF-8 are none of h5py's."""
    if pattern == "*" and not (links.text > 127).any():
        return np.arange(len(links))
    match = re.compile(fnmatch.translate(pattern)).match
    found = array("q")
    for k, name in enumerate(links.encoded()):
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


def _instead(file: Any, root: str, of: str, path: str, guard: Guard, kind: Any) -> str:
    """Say what a pattern matches where it matches nothing that is wanted, or else what there is."""
    other = h5py.Dataset if kind is h5py.Group else h5py.Group
    above = f"{root}/" if root else ""
    with RawFile(file, guard) as raw:
        found = next(iter(_matching(file[root or "/"], of.strip("/").split("/"), above, path, guard, other, raw)), None)
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
