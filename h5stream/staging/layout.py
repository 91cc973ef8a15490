"""What is staged together: a file, the files that it needs, and the names that they may get in the folder.

A file that needs no other keeps its own name. Files that need one another keep their places relative to one
another, so that the names inside them still lead where they should. Where a name is taken by something else,
the whole group moves into a subfolder named after the source's folder: the file's own name never changes.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from h5stream.errors import H5StreamError, NotHDF5Error, SourceError, UnfollowableReferenceError
from h5stream.storage.external import Reference, references
from h5stream.storage.remote import ObjectIdentity
from h5stream.storage.source import FileIdentity, stat_of
from h5stream.storage.stores import is_address

_MOST_FOLDERS = 1000  # more sources of one name, all in use at once, than anybody has
_MOST_NAMED = 10


class Member(NamedTuple):
    """One file to be staged."""

    source: FileIdentity | ObjectIdentity  # when it was looked at; a path has its symbolic links resolved
    relative: str  # its place relative to the other files of its group


class Group(NamedTuple):
    """Files that keep their places relative to one another."""

    root: str  # the folder, or the address of one, that all of them lie under
    members: tuple[Member, ...]  # the one that was asked for first


def prefixes(group: Group) -> Iterator[str]:
    """Return the subfolders that a group may lie in, in the order in which they are tried.

    Examples
    --------
    >>> steps = prefixes(Group(root="/data/run1", members=()))
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


def gather(path: str, *, follow: bool, known: ObjectIdentity | None = None) -> tuple[Group, list[str]]:
    """Return the group of a file: itself, and with `follow` every file that it needs, directly or not; and what to say.

    A needed file that is named by an absolute path, or would not be found beside the copy, is an error. Of an object in
    a store, whose identity may be `known`, nothing else can come along.
    """
    if is_address(path):
        root, name = posixpath.split(path)
        if name in ("", ".", ".."):
            raise SourceError(
                f"{path!r} names a folder of a store, and no object; name the objects, or a pattern", file=path
            )
        return Group(root, (Member(known or ObjectIdentity.of(path), name),)), []
    main = Path(os.path.abspath(path))
    stat_of(str(main))
    places, notices = _closure(main) if follow else ([main], list(_what_stays_behind(main)))
    root = os.path.commonpath([place.parent for place in places])
    members = [Member(FileIdentity.of(os.path.realpath(place)), os.path.relpath(place, root)) for place in places]
    return Group(root, tuple(members)), notices


def _needs(path: Path) -> tuple[Reference, ...]:
    try:
        return references(path)
    except NotHDF5Error:  # any file can be staged, and external storage is raw bytes
        return ()


def _what_stays_behind(main: Path) -> Iterator[str]:
    try:
        needs = sorted({f"{item.target} ({item.kind})" for item in _needs(main)})
    except H5StreamError as error:
        yield f"it is not known which files {main} needs: {error}"
        return
    if needs:
        names = ", ".join(needs[:_MOST_NAMED]) + (", ..." if len(needs) > _MOST_NAMED else "")
        yield f"{main} needs other files, which are not staged: {names}. --follow (follow=True) brings them along"


def _closure(main: Path) -> tuple[list[Path], list[str]]:
    """Return the files reached from one, itself first, as places in the layout; and what to say."""
    found, notices, waiting = {main: None}, dict[str, None](), [main]
    while waiting:
        for item in _needs(waiting.pop()):
            if item.kind == "external storage":  # the one kind of name that is not looked up beside the file
                notices[
                    f"{item.file} has external storage, which HDF5 looks for in the working directory: set "
                    "HDF5_EXTFILE_PREFIX='${ORIGIN}' to read the raw files that came along"
                ] = None
            place = _place_beside(item)
            if place is None:
                notices[f"{item.file} names {item.target} ({item.kind}), which does not exist"] = None
            elif place not in found:
                found[place] = None
                waiting.append(place)
    return list(found), list(notices)


def _place_beside(item: Reference) -> Path | None:
    """Return where a needed file stands beside its user; None if it is not there. Refuse what a copy would not find."""
    place, there = Path(os.path.normpath(item.file.parent / item.target)), item.resolve() is not None
    if item.absolute and there:
        problem = "is named by an absolute path, so that a copy would still read the original"
    elif not item.absolute and not there and Path(item.target).is_file():
        problem = "is read from the working directory, so that it has no place beside the copy"
    elif there and not place.is_file():
        problem = "is reached through a symbolic link that it does not lie beside, and a copy would not find it"
    else:
        return place if there else None
    raise UnfollowableReferenceError(
        f"cannot bring along what {item.file} needs: its {item.place} needs {item.target} ({item.kind}), "
        f"which {problem}. Stage without --follow, or rewrite the name relative to the file",
        file=str(item.file),
        target=item.target,
    )
