"""Who copies what: decided under the folder's lock, from the manifest and from what lies in the folder.

# Guarantees:
# - Everything here runs under `StagingFolder.locked`; nothing here copies data.
# - A name is written to the manifest before a file of that name exists, and taken from it after the file is
#   gone: whatever moment a kill -9 picks, the manifest names every copy that is ours, by its inode. What lies
#   in the control folder belongs to the session that its name begins with, and is swept away with it.
# - A process claims all that it will copy at once, copies it, and only then waits for what others copy. So
#   no two processes wait for each other.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from h5stream.errors import NotEnoughSpaceError, StagingError
from h5stream.filesystem import MEMORY_FILESYSTEMS
from h5stream.space import Space, measure, pages, refusal
from h5stream.staging.folder import StagingFolder, begin_session, is_alive, is_ours, unusable
from h5stream.staging.layout import Group, Member, Standing, choose_prefix, known_prefixes
from h5stream.staging.manifest import Entry, Files


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """Who asks, and what for."""

    session: str
    """Name of the call's session."""
    hold: bool
    """Whether the session goes on with the copies, as their user."""
    keep: bool
    """Whether the copies stay when nothing uses them any more."""
    margin_bytes: int | None
    """What is to stay free; None for the defaults."""
    recipe: str = ""
    """How the files are to be repacked (`Recipe.to_text`); empty for copies of their own bytes."""
    estimate: Callable[[Member], int] | None = None
    """Gives about how many bytes a repacked file will take; None where nothing is repacked."""

    def bytes_of_copy(self, member: Member) -> int:
        """Give about how many bytes a copy will take."""
        return member.version.size_bytes if self.estimate is None else self.estimate(member)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one look at the manifest decided."""

    names: tuple[tuple[str, ...], ...]
    """For each group, the name of each member."""
    to_copy: tuple[tuple[str, Member, int], ...]
    """What this process is to copy: name, source, and inode of the empty file that it begins as."""
    to_wait_for: tuple[str, ...]
    """What other processes are copying."""


@dataclass(slots=True)
class _Draft:
    """A claim in the making, and the manifest as it would become."""

    files: dict[str, Entry]
    names: list[tuple[str, ...]]
    to_copy: list[tuple[str, Member]]
    to_wait_for: list[str]
    to_retire: list[str]


def is_intact(folder: StagingFolder, name: str, entry: Entry) -> bool | None:
    """Say whether a copy is as it was made; None where something else, or nothing, has its name."""
    try:
        facts = folder.copy_path(name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(facts.st_mode) or facts.st_ino != entry.copy_inode or not is_ours(facts):
        return None
    return facts.st_size == entry.bytes_of_copy and facts.st_mtime_ns == entry.copy_mtime_ns


def _is_free(folder: StagingFolder, name: str) -> bool:
    """Say whether a file of that name can be made: nothing has it, and its folders are folders."""
    path = folder.copy_path(name)
    if os.path.lexists(path):
        return False
    return _lead_nowhere_else(parent for parent in _folders_above(folder, path) if os.path.lexists(parent))


def _folders_above(folder: StagingFolder, path: Path) -> list[Path]:
    """Return the folders between a copy and the staging folder, the innermost first."""
    return list(path.parents)[: len(path.relative_to(folder.path).parts) - 1]


def _lead_nowhere_else(folders: Iterable[Path]) -> bool:
    """Say whether these are plain folders: a symbolic link in the way could lead out of the staging folder."""
    return all(stat.S_ISDIR(os.lstat(path).st_mode) for path in folders)


def standing_in(folder: StagingFolder, files: Files, who: Claimant) -> Callable[[str, Member], Standing]:
    """Return the function that says what a name is to a source."""

    def standing(name: str, member: Member) -> Standing:
        entry = files.get(name)
        if entry is None:
            return Standing.FREE if _is_free(folder, name) else Standing.TAKEN
        if entry.source != member.source:
            return Standing.TAKEN
        if not entry.whole:
            return Standing.OURS if entry.owner == who.session else Standing.COPYING
        return _standing_of_copy(folder, name, entry, member, who)

    return standing


def _standing_of_copy(folder: StagingFolder, name: str, entry: Entry, member: Member, who: Claimant) -> Standing:
    intact = is_intact(folder, name, entry)
    if intact is None:
        return Standing.STALE if _is_free(folder, name) else Standing.TAKEN
    if intact and is_of(entry, member, who.recipe):
        return Standing.FRESH
    return Standing.TAKEN if entry.users else Standing.STALE


def is_of(entry: Entry, member: Member, recipe: str) -> bool:
    """Say whether a copy was made of this state of the source, and in this way."""
    now = (member.source, member.version.size_bytes, member.version.mtime_ns, recipe)
    return (entry.source, entry.size_bytes, entry.mtime_ns, entry.recipe) == now


def make_claim(folder: StagingFolder, groups: Sequence[Group], who: Claimant, tick: Callable[[], None]) -> Claim:
    """Decide what to copy and what to use, and write both to the manifest, in the session of `who`.

    Where what is to be copied does not fit, nothing is changed and `NotEnoughSpaceError` is raised.
    """
    with folder.locked(tick) as files:
        before = dict(files)
        reclaim(folder, files)
        draft = _draft(folder, groups, files, who)
        if draft.to_copy:
            _check_space(folder, files, draft, who)
        if draft.to_copy or who.hold:
            begin_session(folder, who.session)  # before the manifest speaks of it: without a lock it counts as dead
        for name in draft.to_retire:
            delete_copy(folder, name, files[name])
        with contextlib.ExitStack() as undone:
            for name, _ in draft.to_copy:
                path = folder.part_path(name, draft.files[name])
                inode = _make_part(folder, path)
                undone.callback(path.unlink, missing_ok=True)
                draft.files[name] = replace(draft.files[name], copy_inode=inode)
            if draft.files != before:
                folder.save(draft.files)
            undone.pop_all()  # all of them are in the manifest now
    to_copy = tuple((name, member, draft.files[name].copy_inode) for name, member in draft.to_copy)
    return Claim(names=tuple(draft.names), to_copy=to_copy, to_wait_for=tuple(draft.to_wait_for))


def _draft(folder: StagingFolder, groups: Sequence[Group], files: Files, who: Claimant) -> _Draft:
    draft = _Draft(dict(files), [], [], [], [])
    standing = standing_in(folder, draft.files, who)
    copies: dict[str, list[str]] = {}
    for name, entry in files.items():
        copies.setdefault(entry.source, []).append(name)
    for group in groups:
        known = known_prefixes(group, copies.get(group.members[0].source, []))
        prefix = choose_prefix(group, known, standing)
        if prefix is None:
            raise StagingError(
                f"no name is left in {folder.path} for {group.members[0].source}; remove what is not needed "
                "with `h5stream stage --remove`",
                file=group.members[0].source,
                folder=str(folder.path),
            )
        names = tuple(prefix + member.relative for member in group.members)
        for name, member in zip(names, group.members, strict=True):
            _take(draft, name, member, standing(name, member), who)
            copies.setdefault(member.source, []).append(name)
        draft.names.append(names)
    _retire_outdated(folder, draft, groups, who)
    return draft


def _take(draft: _Draft, name: str, member: Member, standing: Standing, who: Claimant) -> None:
    old = draft.files.get(name)
    if standing is Standing.FRESH and old is not None:
        draft.files[name] = replace(old, users=_users(old, who), keep=old.keep or who.keep)
    elif standing is Standing.COPYING:
        draft.to_wait_for.append(name)
    elif standing in {Standing.FREE, Standing.STALE}:
        if old is not None:
            draft.to_retire.append(name)
        draft.to_copy.append((name, member))
        draft.files[name] = _copying_entry(member, old, who)


def _copying_entry(member: Member, old: Entry | None, who: Claimant) -> Entry:
    return Entry(
        source=member.source,
        size_bytes=member.version.size_bytes,
        mtime_ns=member.version.mtime_ns,
        owner=who.session,
        keep=who.keep or bool(old and old.keep),
        users=_users(old, who),
        recipe=who.recipe,
        copy_bytes=-1 if who.estimate is None else who.estimate(member),
    )


def _users(old: Entry | None, who: Claimant) -> tuple[str, ...]:
    """Return the users of a copy, with this session where it is to be one."""
    return tuple(dict.fromkeys([*(old.users if old else ()), *([who.session] if who.hold else [])]))


def _retire_outdated(folder: StagingFolder, draft: _Draft, groups: Sequence[Group], who: Claimant) -> None:
    """Retire stale copies of the same sources under other names, left while they were still used."""
    standing = standing_in(folder, draft.files, who)
    chosen = {name for names in draft.names for name in names}
    members = {member.source: member for group in groups for member in group.members}
    for name, entry in list(draft.files.items()):
        member = members.get(entry.source)
        if member and name not in chosen and standing(name, member) is Standing.STALE:
            draft.to_retire.append(name)
            del draft.files[name]


def _check_space(folder: StagingFolder, files: Files, draft: _Draft, who: Claimant) -> None:
    space = _after_retiring(folder, measure(folder.path, who.margin_bytes), draft.to_retire)
    promised = sum(_still_to_come(folder, name, entry) for name, entry in files.items() if not entry.whole)
    sizes = [(member.source, who.bytes_of_copy(member)) for _, member in draft.to_copy]
    problem = refusal(space, sizes, promised)
    if problem:
        raise NotEnoughSpaceError(
            problem,
            folder=str(folder.path),
            needed=sum(pages(size) for _, size in sizes),
            available=max(0, space.usable_bytes - promised),
        )


def _after_retiring(folder: StagingFolder, space: Space, names: Sequence[str]) -> Space:
    freed = 0
    for name in names:
        with contextlib.suppress(OSError):
            freed += folder.copy_path(name).lstat().st_blocks * 512
    free = None if space.free_bytes is None else space.free_bytes + freed
    memory = space.memory_bytes
    if memory is not None and space.filesystem in MEMORY_FILESYSTEMS:
        memory += freed
    return replace(space, free_bytes=free, memory_bytes=memory)


def copied_bytes(folder: StagingFolder, name: str, entry: Entry) -> int:
    """Return how far an unfinished copy has come, in bytes, as the file system counts them."""
    try:
        return min(entry.bytes_of_copy, folder.part_path(name, entry).lstat().st_blocks * 512)
    except OSError:
        return 0


def _still_to_come(folder: StagingFolder, name: str, entry: Entry) -> int:
    return entry.bytes_of_copy - copied_bytes(folder, name, entry)


def _make_part(folder: StagingFolder, path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise unusable(folder, error) from error
    try:
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


def delete_copy(folder: StagingFolder, name: str, entry: Entry) -> bool:
    """Delete a copy if the file of that name is the one that was made; say whether it was."""
    path = folder.copy_path(name)
    folders = _folders_above(folder, path)
    if is_intact(folder, name, entry) is None or not _lead_nowhere_else(folders):
        return False
    path.unlink()
    for parent in folders:
        with contextlib.suppress(OSError):  # not empty: another's
            parent.rmdir()
    return True


def drop_unfinished(folder: StagingFolder, name: str, entry: Entry) -> None:
    """Delete what there is of a copy that was not finished."""
    with contextlib.suppress(FileNotFoundError):
        folder.part_path(name, entry).unlink()
    if entry.copy_inode:
        # Its name was given but not yet confirmed. It is ours by its inode only.
        delete_copy(folder, name, entry)


def sessions_of(entry: Entry) -> set[str]:
    """Return the sessions that need a copy: those that use it, and the one that makes it."""
    return {*entry.users, *([] if entry.whole else [entry.owner])}


def alive_among(folder: StagingFolder, entries: Iterable[Entry]) -> set[str]:
    """Return those sessions of some copies whose processes still run."""
    named = {session for entry in entries for session in sessions_of(entry)}
    return {session for session in named if is_alive(folder, session)}


def reclaim(folder: StagingFolder, files: dict[str, Entry]) -> None:
    """Take the unfinished copies of dead sessions, and their uses, from the folder and from `files`."""
    alive = alive_among(folder, files.values())
    for name, entry in list(files.items()):
        if entry.whole or entry.owner in alive:
            files[name] = replace(entry, users=tuple(user for user in entry.users if user in alive))
        else:
            drop_unfinished(folder, name, files.pop(name))
    for path in folder.control.glob("*.session"):  # of the dead, also of those of whom the manifest never spoke
        if path.stem not in alive:
            for unfinished in (*folder.control.glob(f"{path.stem}.*.part"), path):
                unfinished.unlink(missing_ok=True)
