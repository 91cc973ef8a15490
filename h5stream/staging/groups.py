"""Which files belong together, and which names they get in the folder.

A file that needs no other keeps its own name. Files that need one another keep their places relative to one
another, so that the names inside them still lead where they should. Where a name is taken by something else,
the whole group moves into a subfolder named after the source's folder: the file's own name never changes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import posixpath
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from h5stream.errors import H5StreamError, NotHDF5Error, SourceError, UnfollowableReferenceError
from h5stream.staging.folder import CONTROL, Entry, Files, StagingFolder
from h5stream.storage.external import Reference, references
from h5stream.storage.remote import ObjectIdentity
from h5stream.storage.source import FileIdentity, stat_of
from h5stream.storage.stores import is_address

_MOST_NAMED = 10

Source = FileIdentity | ObjectIdentity
"""A file to be staged as it was when it was looked at; a path has its symbolic links resolved."""


class Group(NamedTuple):
    """Files that keep their places relative to one another."""

    root: str  # the folder, or the address of one, that all of them lie under
    members: dict[str, Source]  # by their places there, the one that was asked for first


def prefixes(root: str) -> Iterator[str]:
    """Return the subfolders that a group may lie in, in the order in which they are tried."""
    # Cut off, so that the name stays within the 255 bytes that a name may have.
    folder = os.path.basename(root)[:50] or "root"
    name = f"{folder}-{hashlib.blake2b(os.fsencode(root), digest_size=3).hexdigest()}"
    yield from ("", f"{name}/")
    yield from (f"{name}-{number}/" for number in itertools.count(2))


def gather(path: str, *, follow: bool, known: ObjectIdentity | None = None) -> tuple[Group, list[str]]:
    """Return the group of a file: itself, and with `follow` every file that it needs, directly or not; and what to say.

    A needed file that is named by an absolute path, or would not be found beside the copy, is an error. Of an object in
    a store, whose identity may be `known`, nothing else can come along.
    """
    if is_address(path):
        root, name = posixpath.split(path)
        if name in (".", ".."):
            raise SourceError(
                f"{path!r} names a folder of a store, and no object; name objects, or a pattern", file=path
            )
        return Group(root, {name: known or ObjectIdentity.of(path)}), []
    main = Path(os.path.abspath(path))
    stat_of(str(main))
    places, notices = _closure(main) if follow else ([main], list(_what_stays_behind(main)))
    root = os.path.commonpath([place.parent for place in places])
    members = {os.path.relpath(place, root): FileIdentity.of(os.path.realpath(place)) for place in places}
    return Group(root, dict[str, Source](members)), notices


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


# --- names ----------------------------------------------------------------------------------------------


class Standing(Enum):
    """What a name in the folder is to a file that would take it."""

    THERE = auto()  # its copy, whole or in the making
    FREE = auto()  # nothing has that name, or a copy of the source that may be replaced
    TAKEN = auto()  # something else has that name, or uses it


def state_of(source: Source) -> dict[str, Any]:
    """Return what an entry holds of a source."""
    if isinstance(source, ObjectIdentity):
        return {"source": source.path, "size_bytes": source.size, "mtime_ns": 0, "etag": source.etag}
    return {"source": source.path, "size_bytes": source.size, "mtime_ns": source.mtime_ns, "etag": ""}


def is_of(entry: Entry, source: Source, recipe: str) -> bool:
    """Say whether a copy was made of this state of the source, and in this way; never of one that says no state."""
    if isinstance(source, ObjectIdentity) and not source.etag:
        return False
    return entry.recipe == recipe and all(getattr(entry, name) == was for name, was in state_of(source).items())


def standing(folder: StagingFolder, files: Files, name: str, source: Source, recipe: str) -> Standing:
    """Say what a name is to a source that is to be copied, or to be rewritten by a recipe."""
    entry = files.get(name)
    if entry is not None and entry.source != source.path:
        return Standing.TAKEN
    if entry is not None and not entry.whole:
        return Standing.THERE
    intact = None if entry is None else folder.is_intact(name, entry)
    if entry is None or intact is None:
        return Standing.FREE if folder.is_free(name) else Standing.TAKEN
    if intact and is_of(entry, source, recipe):
        return Standing.THERE
    return Standing.TAKEN if entry.users else Standing.FREE


def names_of(folder: StagingFolder, files: Files, group: Group, copies: Sequence[str], recipe: str) -> list[str]:
    """Return the names of a group: where it lies already, or the first where none is taken.

    `copies` are the names of copies of its first member.
    """

    def stand(prefix: str) -> set[Standing]:
        return {standing(folder, files, prefix + place, one, recipe) for place, one in group.members.items()}

    first = next(iter(group.members))
    known = [name.removesuffix(first) for name in copies if name == first or name.endswith(f"/{first}")]
    chosen = next((prefix for prefix in known if stand(prefix) == {Standing.THERE}), None)
    if chosen is None:
        reserved = any(place.startswith(f"{CONTROL}/") for place in group.members)
        tried = (prefix for prefix in prefixes(group.root) if prefix or not reserved)
        chosen = next(prefix for prefix in tried if Standing.TAKEN not in stand(prefix))
    return [chosen + place for place in group.members]
