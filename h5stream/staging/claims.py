"""Which names files get in the folder, and who copies what: decided from the manifest and from what lies there.

A file that needs no other keeps its own name. Files that need one another keep their places relative to one
another, so that the names inside them still lead where they should. Where a name is taken by something else,
the whole group moves into a subfolder named after the source's folder: the file's own name never changes.

# Guarantees:
# - What decides runs under `StagingFolder.locked`; nothing here copies data.
# - A name is written to the manifest before a file of that name exists, and taken from it after the file is
#   gone: whatever moment a kill -9 picks, the manifest names every copy that is ours, by its inode. What lies
#   in the control folder belongs to the session that its name begins with, and is swept away with it.
# - A process claims all that it will copy at once, copies it, and only then waits for what others copy. So
#   no two processes wait for each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from h5stream.errors import H5StreamError, NotHDF5Error, SourceError, StagingError, UnfollowableReferenceError
from h5stream.filesystem import check_fits, measure
from h5stream.staging.folder import CONTROL, Entry, Files, StagingFolder
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


# --- claims ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Who asks for copies, and on which terms."""

    session: str  # of the call
    hold: bool  # whether the session goes on with the copies, as their user
    keep: bool  # whether the copies stay when nothing uses them any more
    margin_bytes: int | None  # what is to stay free; None for the defaults
    recipe: str = ""  # how the files are to be repacked (`Recipe.to_text`); empty for copies of their own bytes
    estimate: Callable[[str], int] | None = None  # about how many bytes a source takes repacked


class Claim(NamedTuple):
    """What one look at the manifest decided."""

    names: list[tuple[str, ...]]  # for each group, the name of each member
    to_copy: dict[str, FileIdentity | ObjectIdentity]  # what this process is to copy, by name
    to_wait_for: list[str]  # what other processes are copying
    files: Files  # the manifest, as it was written


class _Standing(Enum):
    """What a name in the folder is to a file that would take it."""

    THERE = auto()  # its copy, whole or in the making
    FREE = auto()  # nothing has that name, or a copy of the source that may be replaced
    TAKEN = auto()  # something else has that name, or uses it


def is_of(entry: Entry, source: FileIdentity | ObjectIdentity, recipe: str) -> bool:
    """Say whether a copy was made of this state of the source, and in this way; never of one that says no state."""
    if isinstance(source, ObjectIdentity) and not source.etag:
        return False
    was = {"size_bytes": entry.size_bytes, "mtime_ns": entry.mtime_ns, "etag": entry.etag}
    return (entry.source, was, entry.recipe) == (source.path, _state_of(source), recipe)


def _state_of(source: FileIdentity | ObjectIdentity) -> dict[str, Any]:
    """Return what an entry holds of a source's state."""
    if isinstance(source, FileIdentity):
        return {"size_bytes": source.size, "mtime_ns": source.mtime_ns, "etag": ""}
    return {"size_bytes": source.size, "mtime_ns": 0, "etag": source.etag}


def make_claim(folder: StagingFolder, groups: Sequence[Group], terms: Terms, tick: Callable[[], None]) -> Claim:
    """Decide what to copy and what to use, and write both to the manifest.

    Where what is to be copied does not fit, nothing is changed and `NotEnoughSpaceError` is raised.
    """
    with folder.locked(tick) as before:
        there = dict(before)
        folder.reclaim(there)
        claim = _decide(folder, groups, there, terms)
        files = claim.files
        outdated = {name: one for name, one in there.items() if name in claim.to_copy or name not in files}
        if claim.to_copy:
            _check_space(folder, there, outdated, claim, terms)
        if claim.to_copy or terms.hold:
            folder.begin_session(terms.session)  # before the manifest speaks of it: without a lock it counts as dead
        for name, entry in outdated.items():
            folder.delete_copy(name, entry)
        with contextlib.ExitStack() as undone:
            for name in claim.to_copy:
                path = folder.part_path(name, files[name])
                files[name] = replace(files[name], copy_inode=_make_part(folder, path))
                undone.callback(path.unlink, missing_ok=True)
            if files != before:
                folder.save(files)
            undone.pop_all()  # all of them are in the manifest now
    return claim


def _decide(folder: StagingFolder, groups: Sequence[Group], there: Files, terms: Terms) -> Claim:
    claim = Claim([], {}, [], dict(there))
    files = claim.files

    def standing(name: str, member: Member) -> _Standing:
        return _standing(folder, files, name, member.source, terms.recipe)

    copies: dict[str, list[str]] = {}  # names, by source
    for name, entry in files.items():
        copies.setdefault(entry.source, []).append(name)
    for group in groups:
        names = _names(group, copies.get(group.members[0].source.path, []), standing)
        if names is None:
            path = group.members[0].source.path
            raise StagingError(
                f"no name is left in {folder.path} for {path}; remove what is not needed with `h5stream stage "
                "--remove`",
                file=path,
                folder=str(folder.path),
            )
        claim.names.append(names)
        for name, member in zip(names, group.members, strict=True):
            old, users = files.get(name), [terms.session] if terms.hold else []
            if old is None or standing(name, member) is _Standing.FREE:
                claim.to_copy[name] = member.source
                files[name] = _begun(member.source, old, users, terms)
                copies.setdefault(member.source.path, []).append(name)
            elif old.whole or old.owner == terms.session:
                files[name] = replace(old, users=_with(old, users), keep=old.keep or terms.keep)
            else:
                claim.to_wait_for.append(name)
    chosen = {name for names in claim.names for name in names}
    for member in {member for group in groups for member in group.members}:
        for name in copies.get(member.source.path, []):  # also under other names, left while they were still used
            if name in files and name not in chosen and standing(name, member) is _Standing.FREE:
                del files[name]
    return claim


def _standing(
    folder: StagingFolder, files: Files, name: str, source: FileIdentity | ObjectIdentity, recipe: str
) -> _Standing:
    entry = files.get(name)
    if entry is None:
        return _Standing.FREE if folder.is_free(name) else _Standing.TAKEN
    if entry.source != source.path:
        return _Standing.TAKEN
    intact = True if not entry.whole else folder.is_intact(name, entry)
    if intact is None:
        return _Standing.FREE if folder.is_free(name) else _Standing.TAKEN
    if not entry.whole or (intact and is_of(entry, source, recipe)):
        return _Standing.THERE
    return _Standing.TAKEN if entry.users else _Standing.FREE


def _names(group: Group, copies: Sequence[str], standing: Callable[[str, Member], _Standing]) -> tuple[str, ...] | None:
    """Return the names of a group: where it lies already, or the first where none is taken; None if all are."""

    def stand(prefix: str) -> set[_Standing]:
        return {standing(prefix + member.relative, member) for member in group.members}

    first = group.members[0].relative
    known = (name.removesuffix(first) for name in copies if name == first or name.endswith("/" + first))
    chosen = next((prefix for prefix in known if stand(prefix) == {_Standing.THERE}), None)
    if chosen is None:
        reserved = any(member.relative.startswith(CONTROL + "/") for member in group.members)
        free = (prefix for prefix in prefixes(group) if _Standing.TAKEN not in stand(prefix))
        chosen = next((prefix for prefix in free if prefix or not reserved), None)
    return None if chosen is None else tuple(chosen + member.relative for member in group.members)


def _begun(source: FileIdentity | ObjectIdentity, old: Entry | None, users: Sequence[str], terms: Terms) -> Entry:
    return Entry(
        source=source.path,
        **_state_of(source),
        owner=terms.session,
        keep=terms.keep or bool(old and old.keep),
        users=_with(old, users),
        recipe=terms.recipe,
        copy_bytes=-1 if terms.estimate is None else terms.estimate(source.path),
    )


def _with(old: Entry | None, users: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*(old.users if old else ()), *users]))


def _check_space(folder: StagingFolder, there: Files, outdated: Iterable[str], claim: Claim, terms: Terms) -> None:
    freed = 0
    for name in outdated:
        with contextlib.suppress(OSError):
            freed += folder.copy_path(name).lstat().st_blocks * 512
    begun = ((name, entry) for name, entry in there.items() if not entry.whole)
    promised = sum(entry.bytes_of_copy - folder.copied_bytes(name, entry) for name, entry in begun)
    sizes = [(source.path, claim.files[name].bytes_of_copy) for name, source in claim.to_copy.items()]
    check_fits(measure(folder.path, terms.margin_bytes, freed), sizes, promised)


def _make_part(folder: StagingFolder, path: Path) -> int:
    """Make the empty file that a copy begins as, and return its inode."""
    with folder.usable(), open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as part:
        return os.fstat(part.fileno()).st_ino
