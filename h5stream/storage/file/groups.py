"""Find a file's objects by patterns and names, and the addresses of their headers.

Links are followed once, and only within the file.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from h5stream.base.names import Names, Within, as_pattern, unquoted
from h5stream.base.texts import as_text, counted, did_you_mean
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
    object_at,
    once_of,
    refusal,
)
from h5stream.storage.file.external import Guard
from h5stream.storage.headers.headers import ASK, HeaderBatch, looked_up, raw_of, read_headers, superblock_of
from h5stream.storage.headers.templates import GROUP, NOWHERE, Ints
from h5stream.storage.source.handles import DAMAGE
from h5stream.storage.source.local import identity_of

_log = logging.getLogger("h5stream")

_Kind: TypeAlias = "type[h5py.Group] | type[h5py.Dataset]"

_OTHERS = "name the others: of=[...], Objects([...])"

FILES = "files"
"""The value of `of` for whole files."""

MOST_ADDRESS = (1 << 63) - 1
"""The largest valid address; a damaged file may contain larger ones."""

ELSEWHERE = -3
"""The address of an object behind an external link, missing or not."""

MANY = 2000
"""Objects from which on a catalogue is saved: fewer are found in a tenth of a second."""

CHECKED_EVERY = 1000
"""Every so many objects, one is compared with libhdf5."""
CHECKED_OF_FEW = 3
"""Objects that are compared if there are fewer."""
CHECKED_OF_KEPT = 100
"""Objects of a saved catalogue that are compared; more were compared before it was saved."""


def checked(count: int, *, is_kept: bool = False) -> range:
    """Return the indices of the objects, of `count`, that are compared with libhdf5."""
    if is_kept:
        return range(0, count, max(CHECKED_EVERY, count // CHECKED_OF_KEPT))
    return range(0, count, min(CHECKED_EVERY, max(1, count // CHECKED_OF_FEW)))


class RawFile(contextlib.AbstractContextManager["RawFile"]):
    """An open file, with its raw bytes for reading headers."""

    def __init__(
        self, file: h5py.File, guard: Guard, attributes: Sequence[str] = (), catalogue: Catalogue | None = None
    ) -> None:
        self.file, self.guard, self.attributes = file, guard, attributes
        self.catalogue = catalogue or Catalogue()
        identity = identity_of(file.filename)
        self._source = identity.for_structure()
        self.superblock = superblock_of(file, identity.size)
        self.raw = raw_of(self._source, self.superblock)
        self.fileno = h5py.h5o.get_info(file.id).fileno
        self._read: tuple[Ints | None, set[str], list[HeaderBatch]] = (None, set(), [])

    def __exit__(self, *_: object) -> None:
        self._source.close()  # h5py's file stays open

    def headers(self, addresses: Ints, attributes: Sequence[str] = ()) -> list[HeaderBatch]:
        """Return the headers at some addresses, the last result cached; see `read_headers`."""
        if self._read[0] is not addresses or not self._read[1].issuperset(attributes):
            self._read = addresses, set(attributes), read_headers(self.raw, addresses, attributes)
        return self._read[2]

    def addresses(self, names: Sequence[str]) -> Ints:
        """Return the addresses of objects' headers, `ELSEWHERE` behind external links, `NOWHERE` if missing."""
        result, last, group, where = np.full(len(names), NOWHERE), None, None, NOWHERE
        for k, name in enumerate(names):
            above, _, leaf = name.rpartition("/")
            if above != last:
                where = self.behind(above) if above else NOWHERE
                last, group = above, self.file.get(above or "/") if not above or where >= 0 else None
            if isinstance(group, h5py.Group):
                result[k] = self._address(group.id, above, leaf)
            elif where == ELSEWHERE:
                result[k] = ELSEWHERE
        return result

    def inside(self, names: Sequence[str], path: str) -> Ints:
        """Return the addresses of the headers at one path inside each object; see `addresses`."""
        result, steps = looked_up(self.raw, self.addresses(names), path), path.strip("/").split("/")
        for k in np.flatnonzero(result == ASK).tolist():
            above = names[k]
            for step in steps:
                group = dataset_at(self.file, above, self.file.filename, "group")
                # The group may be in another file, whose addresses mean nothing in this one.
                result[k] = self._address(group, above, step) if self.holds(group) else ELSEWHERE
                if result[k] < 0:
                    break
                above = f"{above}/{step}"
        return result

    def holds(self, opened: h5py.h5g.GroupID) -> bool:
        """Return whether an open object is in this file."""
        return bool(h5py.h5o.get_info(opened).fileno == self.fileno)

    def behind(self, path: str) -> int:
        """Return the address of an object's header, following all links; see `addresses`."""
        self.guard.check_links(self.file, path, self.file.filename)
        try:
            info = h5py.h5o.get_info(self.file.id, path.encode("utf-8", "surrogateescape"))
        except DAMAGE:
            return NOWHERE
        if info.fileno != self.fileno:
            return ELSEWHERE
        return int(info.addr) if info.addr <= MOST_ADDRESS else NOWHERE

    def _address(self, group: h5py.h5g.GroupID, above: str, name: str) -> int:
        try:
            info = group.links.get_info(name.encode("utf-8", "surrogateescape"))
        except (KeyError, RuntimeError):
            return NOWHERE
        if info.type != h5py.h5l.TYPE_HARD:
            return self.behind(f"{above}/{name}")
        return int(info.u) if info.u <= MOST_ADDRESS else NOWHERE  # no file has a larger one


def links_of(group: h5py.h5g.GroupID) -> Names:
    """Return the names of all links of a group, in h5py's order, with the addresses of hard links.

    Addresses are those of object headers, relative to the file's base address; other links have `NOWHERE`.
    """
    text, edges, addresses, hard = bytearray(), array("q", [0]), array("Q"), h5py.h5l.TYPE_HARD

    def note(name: bytes, info: h5py.h5l.LinkInfo) -> None:
        text.extend(name)
        edges.append(len(text))
        addresses.append(info.u if info.type == hard else MOST_ADDRESS + 1)

    tracked = group.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED
    by = h5py.h5.INDEX_CRT_ORDER if tracked else h5py.h5.INDEX_NAME
    group.links.iterate(note, info=True, idx_type=by)
    raw_addresses = np.frombuffer(addresses, dtype=np.uint64)
    where = np.where(raw_addresses > MOST_ADDRESS, NOWHERE, raw_addresses.astype(np.int64))
    return Names(np.frombuffer(text, dtype=np.uint8), np.frombuffer(edges, dtype=np.int64), where)


# --- groups by pattern: those with segments, or with rows that are concatenated


def groups_of(
    file: h5py.File,
    root: str,
    of: Of,
    path: str,
    guard: Guard,
    kind: _Kind = h5py.Group,
    option: str = "of={}",
    raw: RawFile | None = None,
) -> Sequence[str]:
    """Return the paths of the groups, or datasets, of an open file that `of` names or matches."""
    if of is None or of == FILES or isinstance(of, Segmentation):
        return [root]
    above = f"{root}/" if root else ""
    with contextlib.nullcontext(raw) if raw else RawFile(file, guard) as raw:
        if isinstance(of, str):
            if not (matching := _match_pattern(root, of, path, kind, raw)):
                what = "group" if kind is h5py.Group else "dataset, which the field '.' is"
                why = f": {option.format(repr(of))} matches no {what}.{_suggestion(root, of, path, kind, raw)}"
                raise refusal(path, of, why, FieldNotFoundError)
            return matching
        names = Names.of(above + _checked_name(name, option) for name in of)
        if not names:
            option = option.format("[]")
            raise OptionError(f"{option} names no group; give a pattern such as 'data/*', names of groups, or 'files'")
        names.addresses = raw.addresses(names)
        if (names.text == ord("\\")).any() and (names.addresses == NOWHERE).any():
            names = _unescaped(names, raw, path)
        is_known = _kind_mask(names, kind, raw)
    for name in (names[k] for k in np.flatnonzero(~is_known).tolist()):
        guard.check_links(file, name, path)
        if not isinstance(object_at(file, name, path), kind):
            raise refusal(path, name, f" has no {_missing_text(file, name, option, kind)}", FieldNotFoundError)
    return names


def _unescaped(names: Names, raw: RawFile, path: str) -> Names:
    """Return names with backslashes removed from those that do not exist literally."""
    exists = _addresses_of(names) != NOWHERE
    every = (
        name if is_literal or is_there(raw.file, name, path) else unquoted(name)
        for name, is_literal in zip(names, exists.tolist(), strict=True)
    )
    names = Names.of(every)
    names.addresses = raw.addresses(names)
    return names


def _checked_name(name: object, option: str) -> str:
    """Return a name as a relative path; "/" and "." are the group itself."""
    text = as_text(name)
    if not isinstance(text, str) or not text:
        rule = "takes a pattern, or names of groups ('/' is the file, or group, itself)"
        raise OptionError(f"{option.format('[...]')} {rule}, not {name!r}")
    return text.strip("/") or "."


def _missing_text(file: h5py.File, name: str, option: str, kind: _Kind) -> str:
    """Return the message for a missing group or dataset, with a suggestion."""
    says = f"{option.format('[...]')} names"
    if "*" in name:
        return (
            f"{name!r}, which {says}: it takes one pattern, or names; what several match is a list of an H5Dataset for "
            "each, and a field beside what a pattern matches is Field('/scores/*')"
        )
    if kind is h5py.Dataset:
        above = file.get(name.rpartition("/")[0] or "/")
        beside = [f"{above.name}/{one}".strip("/") for one in above] if isinstance(above, h5py.Group) else []
        return f"dataset {name!r}, which {says}, and which the field '.' is.{did_you_mean(name, beside)}"
    at_root = [one for one in file if isinstance(file.get(one), h5py.Group)]
    every = [inner for one in at_root for inner in (one, *(f"{one}/{below}" for below in file[one]))]
    hint = did_you_mean(name, every)
    if inside := next((group.removesuffix(f"/{name}") for group in every if group.endswith(f"/{name}")), ""):
        hint += f" Names are looked up inside the group that is given: H5Dataset(file[{inside!r}], ...)."
    return f"group {name!r}, which {says}.{hint}"


def edges_in(file: h5py.File, group: str, of: Of, rows: int, path: str, guard: Guard) -> Edges:
    """Return the edges of the segments of a group's rows, relative to its first row."""
    if not isinstance(of, Segmentation) or in_memory(of):
        return np.array([0, rows], dtype=np.int64)
    above = f"{group}/" if group else ""
    values = [np.asarray(widened(once_of(file, Within(above, name), path, guard))) for name in of.names]
    try:
        return edges_of(of, values, rows)
    except OptionError as error:
        raise OptionError(f"{path!r}: {error}") from None


def _match_pattern(root: str, of: str, path: str, kind: _Kind, raw: RawFile) -> Names:
    """Return the objects of a kind that a pattern matches, without opening those whose headers are understood.

    A part of the pattern that exists literally as a name matches only that name.
    """
    above, dead, levels = (
        f"{root}/" if root else "",
        list[str](),
        [one for one in of.split("/") if one not in ("", ".")],
    )
    pieces: dict[tuple[bool, ...], list[Names]] = {}
    for are_literal, matched in _match_links(raw.file[root or "/"], levels, above, path, raw, dead):
        pieces.setdefault(are_literal, []).append(matched)
    names = Names.joined(())
    for are_literal in sorted(pieces, reverse=True):
        names = _filter_kind(Names.joined(pieces[are_literal]), path, kind, raw, dead)
        if names:
            break
    if dead:  # broken links are no samples
        text = "%r: the pattern matches %s, such as %r: left out; copy what is named there into the file, or remove it"
        _log.warning(text, path, counted(len(dead), "broken link"), dead[0])
    return names


def _filter_kind(names: Names, path: str, kind: _Kind, raw: RawFile, dead: list[str]) -> Names:
    """Return the names of objects of a kind; broken links are added to `dead`."""
    wanted, parent, holder = _kind_mask(names, kind, raw), "", raw.file
    for k in np.flatnonzero(~wanted).tolist():  # libhdf5 opens the others, so that damaged objects raise
        last, (parent, _, leaf) = parent, names[k].rpartition("/")
        holder = holder if parent == last else raw.file[parent or "/"]
        inner = behind(holder, leaf, path, _OTHERS)
        wanted[k] = isinstance(inner, kind)
        dead += [names[k]] if inner is None else []
    return names if wanted.all() else names.only(np.flatnonzero(wanted))


def _match_links(
    group: h5py.Group, levels: list[str], above: str, path: str, raw: RawFile, dead: list[str]
) -> Iterator[tuple[tuple[bool, ...], Names]]:
    """Yield the names that a pattern matches, with the addresses of their headers.

    Names are grouped by the parts of the pattern that match literally.
    """
    if not levels:
        return
    (pattern, *below), links = levels, links_of(group.id)
    for is_literal, which in _match_names(links, pattern):
        for name in (links[k] for k in which.tolist()) if below else ():
            if not is_hard_link(group, name):  # the links above were followed before
                raw.guard.check_links(group.file, above + name, path)
            inner = behind(group, name, path, _OTHERS)
            dead += [above + name] if inner is None else []
            if isinstance(inner, h5py.Group):
                for are_literal, matched in _match_links(inner, below, f"{above}{name}/", path, raw, dead):
                    yield (is_literal, *are_literal), matched
        if below:
            continue
        matched = links.only(which)
        addresses = _addresses_of(matched)
        if not raw.holds(group.id):
            addresses[:] = NOWHERE
        for k in np.flatnonzero(addresses == NOWHERE).tolist():
            addresses[k] = raw.behind(above + matched[k])
        yield (is_literal,), matched.inside(above)


def _kind_mask(names: Names, kind: _Kind, raw: RawFile) -> NDArray[np.bool_]:
    """Return a mask of the objects that are of a kind, by their headers."""
    is_known = np.zeros(len(names), dtype=bool)
    for headers in raw.headers(_addresses_of(names), raw.attributes):
        is_known[headers.which] = (headers.template.layout == GROUP) == (kind is h5py.Group)
    return is_known


def _addresses_of(names: Names) -> Ints:
    if names.addresses is None:
        raise ValueError("these names have no addresses")
    return names.addresses


def _match_names(links: Names, pattern: str) -> Iterator[tuple[bool, NDArray[np.int64]]]:
    """Yield the index of the link whose name equals the pattern, if any, and then of those that match it.

    Names that are not UTF-8 are skipped, as in h5py.
    """
    if pattern == "*" and not ((links.text > 127) | (links.text == ord("*"))).any():
        yield False, np.arange(len(links))
        return
    literal, match = (
        pattern.encode("utf-8", "surrogateescape"),
        re.compile(fnmatch.translate(as_pattern(pattern))).match,
    )
    same, matched = array("q"), array("q")
    for k, name in enumerate(links.encoded()):
        with contextlib.suppress(UnicodeDecodeError):
            if name == literal:
                same.append(k)
            elif match(name.decode()):
                matched.append(k)
    for is_literal, which in ((True, same), (False, matched)):
        if which:
            yield is_literal, np.array(which, dtype=np.int64)


def _suggestion(root: str, of: str, path: str, kind: _Kind, raw: RawFile) -> str:
    """Return a suggestion for a pattern without matches: objects of the other kind, or existing groups."""
    other = next(iter(_match_pattern(root, of, path, h5py.Dataset if kind is h5py.Group else h5py.Group, raw)), None)
    if other is not None and kind is h5py.Dataset:
        return f" It matches groups, such as {other!r}: name the datasets in them as fields, and not '.'"
    if other is not None and ("*" in of or "?" in of):
        return f" It matches datasets, such as {other!r}: each of these is the field '.', fields='.'"
    if other is not None:
        return f" It is a dataset; Sequences(of=Ends({of!r})), Lengths, Bounds or Ids take what it says of segments"
    groups = [name for name in raw.file if isinstance(raw.file.get(name), h5py.Group)]
    if not groups:
        return " It has no groups; of='files' takes each file as a segment."
    shown = ", ".join(repr(name) for name in groups[:8]) + (" ..." if len(groups) > 8 else "")
    return f" At its root are the groups {shown}; '{groups[0]}/*' matches those in the first."
