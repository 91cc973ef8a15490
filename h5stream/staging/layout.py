"""Where copies lie in the folder: groups of files that belong together, and the names that they get. Pure.

A file that needs no other keeps its own name. Files that need one another keep their places relative to one
another, so that the names inside them still lead where they should. Where a name is taken by something else,
the whole group moves into a subfolder named after the source's folder: the file's own name never changes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from h5stream.errors import H5StreamError, NotHDF5Error, UnfollowableReferenceError
from h5stream.staging.manifest import CONTROL

# More sources of one name, all in use at once, than anybody has.
_MOST_FOLDERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceVersion:
    """What tells one state of a source from another."""

    size_bytes: int
    """Size in bytes."""
    mtime_ns: int
    """Modification time in nanoseconds since 1970."""
    inode: int
    """Inode; a file that was replaced has another one."""
    device: int
    """Number of the device that it lies on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file to be staged."""

    source: str
    """Absolute path with symbolic links resolved: what is copied."""
    version: SourceVersion
    """Its state when it was looked at."""
    relative: str
    """Its place relative to the other files of its group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Files that keep their places relative to one another; the first one was asked for."""

    root: str
    """The folder that all of them lie under."""
    members: tuple[Member, ...]
    """The files, the one that was asked for first."""


class Standing(Enum):
    """What a name in the folder is to a file that would take it."""

    FRESH = "a whole copy of this state of the source"
    COPYING = "a copy of the source that is being made"
    OURS = "claimed a moment ago by this very call"
    STALE = "a copy of the source that may be replaced"
    FREE = "nothing has that name"
    TAKEN = "something else has that name, or uses it"


_THERE = {Standing.FRESH, Standing.COPYING, Standing.OURS}


def version_from(facts: os.stat_result) -> SourceVersion:
    """Return the state that `os.stat` or `os.fstat` has found."""
    return SourceVersion(size_bytes=facts.st_size, mtime_ns=facts.st_mtime_ns, inode=facts.st_ino, device=facts.st_dev)


def prefixes(group: Group) -> Iterator[str]:
    """Return the subfolders that a group may lie in, in the order in which they are tried.

    Examples
    --------
    >>> group = Group(root="/data/run1", members=())
    >>> steps = prefixes(group)
    >>> next(steps), next(steps), next(steps)
    ('', 'run1-cfb761/', 'run1-cfb761-2/')
    """
    yield ""
    # Cut off, so that the name stays within the 255 bytes that a name may have.
    folder = os.path.basename(group.root)[:50] or "root"
    digest = hashlib.blake2b(os.fsencode(group.root), digest_size=3).hexdigest()
    yield f"{folder}-{digest}/"
    for number in range(2, _MOST_FOLDERS):
        yield f"{folder}-{digest}-{number}/"


def known_prefixes(group: Group, names: Iterable[str]) -> list[str]:
    """Return the subfolders in which the group's first file has the given copies.

    Examples
    --------
    >>> version = SourceVersion(size_bytes=1, mtime_ns=1, inode=1, device=1)
    >>> first = Member(source="/a", version=version, relative="a")
    >>> known_prefixes(Group(root="/", members=(first,)), ["a", "run1/a", "ba"])
    ['', 'run1/']
    """
    relative = group.members[0].relative
    return [name.removesuffix(relative) for name in names if name == relative or name.endswith("/" + relative)]


def choose_prefix(group: Group, known: Iterable[str], standing: Callable[[str, Member], Standing]) -> str | None:
    """Return the subfolder for a group: where it lies already, or the first in which no name is taken; None if all are.

    A prefix is empty or ends in a slash; `known` ones, from `known_prefixes`, may hold the group already.
    """
    for prefix in known:
        if all(standing(prefix + member.relative, member) in _THERE for member in group.members):
            return prefix
    for prefix in prefixes(group):
        if all(_usable(prefix + member.relative, member, standing) for member in group.members):
            return prefix
    return None


def _usable(name: str, member: Member, standing: Callable[[str, Member], Standing]) -> bool:
    return not name.startswith(CONTROL + "/") and standing(name, member) is not Standing.TAKEN


# --- The files that come along: from what was asked for to groups of files that keep their places.
#
# Names are read by `h5stream.storage.external`, which is imported only where an HDF5 file is looked into.


if TYPE_CHECKING:
    from h5stream.storage.external import Reference


def gather(path: Path, *, follow: bool) -> tuple[Group, list[str]]:
    """Return the group of a file: itself, and with `follow` every file that it needs, directly or not; and what to say.

    A needed file that is named by an absolute path, or would not be found beside the copy, is an error.
    """
    from h5stream.storage.source import stat_of

    main = Path(os.path.abspath(path))
    stat_of(str(main))
    if not follow:
        # First, because looking into a file brings what this process has written into it, and so changes it.
        stays = list(_what_stays_behind(main))
        return _group([main]), stays
    found, missing = _closure(main)
    notices = [f"{item.file} names {item.target} ({item.kind}), which does not exist" for item in missing]
    return _group(found), [*notices, *_storage_notice(main)]


def _needs(path: Path) -> tuple[Reference, ...]:
    from h5stream.storage.external import references

    return references(path)


def _what_stays_behind(main: Path) -> Iterator[str]:
    try:
        needs = _needs(main)
    except NotHDF5Error:
        return
    except H5StreamError as error:
        yield f"it is not known which files {main} needs: {error}"
        return
    if needs:
        names = ", ".join(sorted({f"{item.target} ({item.kind})" for item in needs})[:10])
        yield (
            f"{main} needs other files, which are not staged: {names}"
            f"{', ...' if len(needs) > 10 else ''}. --follow (follow=True) brings them along"
        )


def _closure(main: Path) -> tuple[list[Path], list[Reference]]:
    """Return the files reached from one, itself first, as places in the layout; and names that lead nowhere."""
    found: dict[Path, None] = {main: None}
    missing: list[Reference] = []
    waiting = [main]
    while waiting:
        for item in _references_or_none(waiting.pop()):
            if item.resolve() is None and not _misplaced(item):
                missing.append(item)
                continue
            place = _place_beside(item)
            if place not in found:
                found[place] = None
                waiting.append(place)
    return list(found), missing


def _storage_notice(main: Path) -> Iterator[str]:
    # The one kind of name that HDF5 does not look up beside the file unless it is told to.
    if any(item.kind == "external storage" for item in _references_or_none(main)):
        yield (
            f"{main} has external storage, which HDF5 looks for in the working directory: set "
            f"HDF5_EXTFILE_PREFIX='${{ORIGIN}}' to read the raw files that came along"
        )


def _references_or_none(path: Path) -> tuple[Reference, ...]:
    try:
        return _needs(path)
    except NotHDF5Error:  # external storage is raw bytes
        return ()


def _misplaced(item: Reference) -> bool:
    """Say whether HDF5 finds the file in the working directory only."""
    return not item.absolute and Path(item.target).is_file()


def _place_beside(item: Reference) -> Path:
    """Return where the needed file stands beside the file that names it; refuse what a copy would not find."""
    problem = ""
    place = Path(os.path.normpath(item.file.parent / item.target))
    if item.absolute:
        problem = "is named by an absolute path, so that a copy would still read the original"
    elif item.resolve() is None:
        problem = "is read from the working directory, so that it has no place beside the copy"
    elif not place.is_file():
        problem = "is reached through a symbolic link that it does not lie beside, and a copy would not find it"
    if problem:
        raise UnfollowableReferenceError(
            f"cannot bring along what {item.file} needs: its {item.place} needs {item.target} ({item.kind}), "
            f"which {problem}. Stage without --follow, or rewrite the name relative to the file",
            file=str(item.file),
            target=item.target,
        )
    return place


def _group(places: list[Path]) -> Group:
    root = os.path.commonpath([place.parent for place in places])
    members = [
        Member(
            source=os.path.realpath(place), version=version_from(place.stat()), relative=os.path.relpath(place, root)
        )
        for place in places
    ]
    return Group(root=root, members=tuple(members))
