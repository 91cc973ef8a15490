"""Where objects of a file are: which ones patterns and names mean, and where their headers lie.

Links are followed once, and only such as stay in the file.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.base.names import Names, Within, as_pattern, unquoted
from h5stream.base.texts import as_text, did_you_mean
from h5stream.errors import FieldNotFoundError, OptionError
from h5stream.samples.kinds import Of
from h5stream.samples.segments import Edges, Segmentation, edges_of, in_memory
from h5stream.storage.decode.small_floats import widened
from h5stream.storage.file.catalogue import Catalogue
from h5stream.storage.file.discovery import (
    behind,
    dataset_at,
    is_hard_link,
    is_there,
    once_of,
    refusal,
    thing_at,
)
from h5stream.storage.file.external import Guard
from h5stream.storage.headers.headers import ASK, Alike, looked_up, raw_of, read_headers, superblock_of
from h5stream.storage.headers.templates import GROUP, NOWHERE, Ints
from h5stream.storage.source.handles import DAMAGE
from h5stream.storage.source.local import identity_of

_log = logging.getLogger("h5stream")

_OTHERS = "name the others: of=[...], Objects([...])"

FILES = "files"
"""What stands for whole files in place of a pattern."""

MOST_ADDRESS = (1 << 63) - 1
"""The largest address that is taken; a damaged file may name larger ones."""

ELSEWHERE = -3
"""Stands for the address of what is in another file, or would be if it is not there."""

MANY = 2000
"""Objects from which on what was found of them is kept for the next time: fewer are found in a tenth of a second."""

CHECKED_EVERY = 1000
"""So many objects from one that is compared with what libhdf5 says of it to the next."""
CHECKED_OF_FEW = 3
"""So many objects are compared of fewer."""
CHECKED_OF_KEPT = 100
"""So many objects of a catalogue that was kept are compared, of many that were when it was kept."""


def checked(count: int, *, is_kept: bool = False) -> range:
    """Choose which of so many objects are compared with what libhdf5 says of them."""
    if is_kept:
        return range(0, count, max(CHECKED_EVERY, count // CHECKED_OF_KEPT))
    return range(0, count, min(CHECKED_EVERY, max(1, count // CHECKED_OF_FEW)))


class RawFile(contextlib.AbstractContextManager["RawFile"]):
    """An open file, and its bytes beside it."""

    def __init__(
        self, file: Any, guard: Guard, attributes: Sequence[str] = (), catalogue: Catalogue | None = None
    ) -> None:
        self.file, self.guard, self.attributes = file, guard, attributes
        self.catalogue = catalogue or Catalogue()
        identity = identity_of(file.filename)
        self._source = identity.for_structure()
        self.superblock = superblock_of(file, identity.size)
        self.raw = raw_of(self._source, self.superblock)
        self.fileno = h5py.h5o.get_info(file.id).fileno
        self._read: tuple[Ints | None, set[str], list[Alike]] = (None, set(), [])

    def __exit__(self, *_: object) -> None:
        self._source.close()  # h5py's file stays open

    def headers(self, addresses: Ints, attributes: Sequence[str] = ()) -> list[Alike]:
        """Read some headers; see `read_headers`. What was read last is not read again."""
        if self._read[0] is not addresses or not self._read[1].issuperset(attributes):
            self._read = addresses, set(attributes), read_headers(self.raw, addresses, attributes)
        return self._read[2]

    def addresses(self, names: Sequence[str]) -> Ints:
        """Return where the headers of some objects lie, by their paths; `ELSEWHERE` or `NOWHERE` for others."""
        found, last, group, where = np.full(len(names), NOWHERE), None, None, NOWHERE
        for k, name in enumerate(names):
            above, _, leaf = name.rpartition("/")
            if above != last:
                where = self.behind(above) if above else NOWHERE
                last, group = above, self.file.get(above or "/") if not above or where >= 0 else None
            if isinstance(group, h5py.Group):
                found[k] = self._address(group.id, above, leaf)
            elif where == ELSEWHERE:
                found[k] = ELSEWHERE
        return found

    def inside(self, names: Sequence[str], path: str) -> Ints:
        """Return where the headers of objects lie that have one path inside of others, as for `addresses`."""
        found, steps = looked_up(self.raw, self.addresses(names), path), path.strip("/").split("/")
        for k in np.flatnonzero(found == ASK).tolist():
            above = names[k]
            for step in steps:
                group = dataset_at(self.file, above, self.file.filename, "group")
                # A link may lead to a group of another file, whose hard links say nothing of this one.
                found[k] = self._address(group, above, step) if self.holds(group) else ELSEWHERE
                if found[k] < 0:
                    break
                above = f"{above}/{step}"
        return found

    def holds(self, opened: Any) -> bool:
        """Tell whether an open object, by its h5py ID, is in this file."""
        return bool(h5py.h5o.get_info(opened).fileno == self.fileno)

    def behind(self, path: str) -> int:
        """Return where the header of an object lies, whatever links lead to it; see `addresses`."""
        self.guard.check_links(self.file, path, self.file.filename)
        try:
            info = h5py.h5o.get_info(self.file.id, path.encode("utf-8", "surrogateescape"))
        except DAMAGE:
            return NOWHERE
        if info.fileno != self.fileno:
            return ELSEWHERE
        return int(info.addr) if info.addr <= MOST_ADDRESS else NOWHERE

    def _address(self, group: Any, above: str, name: str) -> int:
        try:
            info = group.links.get_info(name.encode("utf-8", "surrogateescape"))
        except (KeyError, RuntimeError):
            return NOWHERE
        if info.type != h5py.h5l.TYPE_HARD:
            return self.behind(f"{above}/{name}")
        return int(info.u) if info.u <= MOST_ADDRESS else NOWHERE  # one that no file has


def links_of(group: Any) -> Names:
    """List the links of a group, ``h5py.Group.id``, in h5py's order: of every kind, each once.

    Only of hard links it says where the object headers lie, counted from the file's base address; `NOWHERE` for others.
    """
    text, edges, addresses, hard = bytearray(), array("q", [0]), array("Q"), h5py.h5l.TYPE_HARD

    def note(name: bytes, info: Any) -> None:
        text.extend(name)
        edges.append(len(text))
        addresses.append(info.u if info.type == hard else MOST_ADDRESS + 1)

    tracked = group.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED
    by = h5py.h5.INDEX_CRT_ORDER if tracked else h5py.h5.INDEX_NAME
    group.links.iterate(note, info=True, idx_type=by)
    found = np.frombuffer(addresses, dtype=np.uint64)
    where = np.where(found > MOST_ADDRESS, NOWHERE, found.astype(np.int64))
    return Names(np.frombuffer(text, dtype=np.uint8), np.frombuffer(edges, dtype=np.int64), where)


# --- groups by pattern: those that hold segments, or rows that are read one behind the other


def groups_of(
    file: Any,
    root: str,
    of: Of,
    path: str,
    guard: Guard,
    kind: type[h5py.Group] | type[h5py.Dataset] = h5py.Group,
    said: str = "of={}",
    raw: RawFile | None = None,
) -> Sequence[str]:
    """Find the groups of an open file that hold rows, or the datasets that have them themselves."""
    if of is None or of == FILES or isinstance(of, Segmentation):
        return [root]
    above = f"{root}/" if root else ""
    with contextlib.nullcontext(raw) if raw else RawFile(file, guard) as raw:
        if isinstance(of, str):
            if not (found := _matching(root, of, path, kind, raw)):
                what = "group" if kind is h5py.Group else "dataset, which the field '.' is"
                why = f": {said.format(repr(of))} matches no {what}.{_instead(root, of, path, kind, raw)}"
                raise refusal(path, of, why, FieldNotFoundError)
            return found
        names = Names.of(above + _checked_name(name, said) for name in of)
        if not names:
            said = said.format("[]")
            raise OptionError(f"{said} names no group; give a pattern such as 'data/*', names of groups, or 'files'")
        names.addresses = raw.addresses(names)
        if (names.text == ord("\\")).any() and (names.addresses == NOWHERE).any():
            names = _without_quotes(names, raw, path)
        known = _known(names, kind, raw)
    for name in (names[k] for k in np.flatnonzero(~known).tolist()):
        guard.check_links(file, name, path)
        if not isinstance(thing_at(file, name, path), kind):
            raise refusal(path, name, f" has no {_not_there(file, name, said, kind)}", FieldNotFoundError)
    return names


def _without_quotes(names: Names, raw: RawFile, path: str) -> Names:
    """Return names of which those that are not there as they are have no backslashes."""
    assert names.addresses is not None
    is_known = names.addresses != NOWHERE
    every = (
        name if is_here or is_there(raw.file, name, path) else unquoted(name)
        for name, is_here in zip(names, is_known.tolist(), strict=True)
    )
    names = Names.of(every)
    names.addresses = raw.addresses(names)
    return names


def _checked_name(name: Any, said: str) -> str:
    """Return a name as its path from the group that it is looked up in; that group itself is "/" as well as "."."""
    text = as_text(name)
    if not isinstance(text, str) or not text:
        rule = "takes a pattern, or names of groups ('/' is the file, or group, itself)"
        raise OptionError(f"{said.format('[...]')} {rule}, not {name!r}")
    return text.strip("/") or "."


def _not_there(file: Any, name: str, said: str, kind: Any) -> str:
    """Say that a group, or a dataset, that was named is not there, and what may have been meant."""
    said = f"{said.format('[...]')} names"
    if "*" in name:
        return (
            f"{name!r}, which {said}: it takes one pattern, or names; what several match is a list of an H5Dataset for "
            "each, and a field beside what a pattern matches is Field('/scores/*')"
        )
    if kind is h5py.Dataset:
        above = file.get(name.rpartition("/")[0] or "/")
        beside = [f"{above.name}/{one}".strip("/") for one in above] if isinstance(above, h5py.Group) else []
        return f"dataset {name!r}, which {said}, and which the field '.' is.{did_you_mean(name, beside)}"
    at_root = [one for one in file if isinstance(file.get(one), h5py.Group)]
    every = [inner for one in at_root for inner in (one, *(f"{one}/{below}" for below in file[one]))]
    hint = did_you_mean(name, every)
    if inside := next((group.removesuffix(f"/{name}") for group in every if group.endswith(f"/{name}")), ""):
        hint += f" Names are looked up inside the group that is given: H5Dataset(file[{inside!r}], ...)."
    return f"group {name!r}, which {said}.{hint}"


def edges_in(file: Any, group: str, of: Of, rows: int, path: str, guard: Guard) -> Edges:
    """Return the edges of the segments of a group's rows, counted from its first row."""
    if not isinstance(of, Segmentation) or in_memory(of):
        return np.array([0, rows], dtype=np.int64)
    above = f"{group}/" if group else ""
    values = [np.asarray(widened(once_of(file, Within(above, name), path, guard))) for name in of.names]
    try:
        return edges_of(of, values, rows)
    except OptionError as error:
        raise OptionError(f"{path!r}: {error}") from None


def _matching(root: str, of: str, path: str, kind: Any, raw: RawFile) -> Names:
    """Return what a pattern matches: libhdf5 opens none whose header says what it is.

    Where a part of the pattern is a name that is there, this name is meant, and nothing else that the part matches.
    """
    above, dead, levels = (
        f"{root}/" if root else "",
        list[str](),
        [one for one in of.split("/") if one not in ("", ".")],
    )
    pieces: dict[tuple[bool, ...], list[Names]] = {}
    for are_literal, found in _linked(raw.file[root or "/"], levels, above, path, raw, dead):
        pieces.setdefault(are_literal, []).append(found)
    names = Names.joined(())
    for are_literal in sorted(pieces, reverse=True):
        names = _of_kind(Names.joined(pieces[are_literal]), path, kind, raw, dead)
        if names:
            break
    if dead:  # what they were to lead to is no sample
        said = "%r: %s link(s) that the pattern matches lead nowhere and are left out, such as %r; copy what they name"
        _log.warning(f"{said} into the file, or take them away", path, f"{len(dead):,}", dead[0])
    return names


def _of_kind(names: Names, path: str, kind: Any, raw: RawFile, dead: list[str]) -> Names:
    """Return those of some names that are of a kind; links that lead nowhere are noted."""
    wanted, parent, holder = _known(names, kind, raw), "", raw.file
    for k in np.flatnonzero(~wanted).tolist():  # what is left out is asked of libhdf5: damage is not
        last, (parent, _, leaf) = parent, names[k].rpartition("/")
        holder = holder if parent == last else raw.file[parent or "/"]
        inner = behind(holder, leaf, path, _OTHERS)
        wanted[k] = isinstance(inner, kind)
        dead += [names[k]] if inner is None else []
    return names if wanted.all() else names.only(np.flatnonzero(wanted))


def _linked(
    group: Any, levels: list[str], above: str, path: str, raw: RawFile, dead: list[str]
) -> Iterator[tuple[tuple[bool, ...], Names]]:
    """Yield the names that a pattern matches, and where the headers lie that they lead to.

    Names come apart by which parts of the pattern are names that are there.
    """
    if not levels:
        return
    (pattern, *below), links = levels, links_of(group.id)
    for is_literal, which in _matches(links, pattern):
        for name in (links[k] for k in which.tolist()) if below else ():
            if not is_hard_link(group, name):  # the links above it were followed on the way down
                raw.guard.check_links(group.file, above + name, path)
            inner = behind(group, name, path, _OTHERS)
            dead += [above + name] if inner is None else []
            if isinstance(inner, h5py.Group):
                for are_literal, found in _linked(inner, below, f"{above}{name}/", path, raw, dead):
                    yield (is_literal, *are_literal), found
        if below:
            continue
        found = links.only(which)
        assert found.addresses is not None
        if not raw.holds(group.id):
            found.addresses[:] = NOWHERE
        for k in np.flatnonzero(found.addresses == NOWHERE).tolist():
            found.addresses[k] = raw.behind(above + found[k])
        yield (is_literal,), found.inside(above)


def _known(names: Names, kind: Any, raw: RawFile) -> NDArray[np.bool_]:
    """Tell what is of a kind, by its header."""
    assert names.addresses is not None
    known = np.zeros(len(names), dtype=bool)
    for alike in raw.headers(names.addresses, raw.attributes):
        known[alike.which] = (alike.template.layout == GROUP) == (kind is h5py.Group)
    return known


def _matches(links: Names, pattern: str) -> Iterator[tuple[bool, NDArray[np.int64]]]:
    """Yield the place of the link that has a pattern for its name, if there is one, and of those that match it.

    Names that are no UTF-8 are none of h5py's.
    """
    if pattern == "*" and not ((links.text > 127) | (links.text == ord("*"))).any():
        yield False, np.arange(len(links))
        return
    literal, match = (
        pattern.encode("utf-8", "surrogateescape"),
        re.compile(fnmatch.translate(as_pattern(pattern))).match,
    )
    same, found = array("q"), array("q")
    for k, name in enumerate(links.encoded()):
        with contextlib.suppress(UnicodeDecodeError):
            if name == literal:
                same.append(k)
            elif match(name.decode()):
                found.append(k)
    for is_literal, which in ((True, same), (False, found)):
        if which:
            yield is_literal, np.array(which, dtype=np.int64)


def _instead(root: str, of: str, path: str, kind: Any, raw: RawFile) -> str:
    """Say what a pattern matches where it matches nothing that is wanted, or else what there is."""
    found = next(iter(_matching(root, of, path, h5py.Dataset if kind is h5py.Group else h5py.Group, raw)), None)
    if found is not None and kind is h5py.Dataset:
        return f" It matches groups, such as {found!r}: name the datasets in them as fields, and not '.'"
    if found is not None and ("*" in of or "?" in of):
        return f" It matches datasets, such as {found!r}: each of these is the field '.', fields='.'"
    if found is not None:
        return f" It is a dataset; Sequences(of=Ends({of!r})), Lengths, Bounds or Ids take what it says of segments"
    groups = [name for name in raw.file if isinstance(raw.file.get(name), h5py.Group)]
    if not groups:
        return " It has no groups; of='files' takes each file as a segment."
    shown = ", ".join(repr(name) for name in groups[:8]) + (" ..." if len(groups) > 8 else "")
    return f" At its root are the groups {shown}; '{groups[0]}/*' matches those in the first."
