"""The staging folder on disk: its manifest, the lock of the manifest, and the sessions that copy or use files.

The manifest is JSON (``.h5stream/manifest.json`` in the folder); its names are relative to the folder::

    {"format": "h5stream-staging", "version": 2,
     "files": {"a.h5": {"source": "/data/a.h5", "size_bytes": 10, "mtime_ns": 1, "state": "whole",
                        "checksum": {"algorithm": "xxh3_128", "block_bytes": 16777216, "digest": "..."},
                        "copy_inode": 5, "copy_mtime_ns": 1, "owner": "4711-0a1b2c3d4e5f", "staged_at": 1700000000.0,
                        "keep": true, "users": [...], "recipe": "", "copy_bytes": -1}}}

# Guarantees:
# - The manifest is changed only under `StagingFolder.locked`, an exclusive flock that is held briefly and never while
#   data is copied; it is replaced by rename, so that readers need no lock and see one version or the next.
# - A call of `stage` that copies, or that leases copies, is a session: it holds a flock on a file of its own in
#   the control folder, and the manifest names the session in the entries that it makes or uses. The kernel drops the
#   lock with the process, so its death is noticed at once, also from another container.
# - A lock belongs to one process: a forked child closes inherited locks, so that it keeps none alive.
# - Sessions are probed with a shared lock, so that two concurrent probes do not take each other for the session.
# - No wait blocks in the kernel: locks are polled, and between two attempts the caller's `tick` runs and Ctrl-C works.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from h5stream.base.filesystem import explained, try_flock
from h5stream.errors import ManifestError, StagingError
from h5stream.storage.source.one_file import FileIdentity
from h5stream.storage.source.remote import ObjectIdentity

CONTROL = ".h5stream"  # folder inside the staging folder that holds the manifest, its lock and unfinished copies
FORMAT, VERSION = "h5stream-staging", 2
BLOCK_BYTES = 16 << 20  # a file of 1 TB has 60,000 digests, and one of 100 MB still keeps every thread busy
FIRST_WAIT_S, LONGEST_WAIT_S = 0.002, 0.1

_locks: dict[str, int] = {}
"""Descriptors of the locks that this process holds, by session or, briefly, by folder."""
_locks_lock = threading.RLock()


def _forget_locks() -> None:
    """Close the locks that a forked child has inherited, so that they end with the parent."""
    for descriptor in _locks.values():
        os.close(descriptor)
    _locks.clear()
    _locks_lock.release()


os.register_at_fork(before=_locks_lock.acquire, after_in_parent=_locks_lock.release, after_in_child=_forget_locks)


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """A folder for staged files, by its absolute path."""

    path: Path

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> StagingFolder:
        """Return the folder of a user's path."""
        return cls(Path(os.path.abspath(os.path.expanduser(path))))

    @property
    def control(self) -> Path:
        """The folder of the manifest."""
        return self.path / CONTROL

    @property
    def _manifest(self) -> Path:
        return self.control / "manifest.json"

    def part_path(self, name: str, entry: Entry) -> Path:
        """Return the path of an unfinished copy."""
        # The name may contain folders, or be too long for a suffix; its hash does not and is not.
        digest = hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()
        return self.control / f"{entry.owner}.{digest}.part"

    @contextlib.contextmanager
    def locked(self, tick: Callable[[], None] = lambda: None) -> Iterator[Files]:
        """Hold the lock and yield the files of the manifest; missing folders are created.

        If there is no manifest at the end, all files of h5stream are removed from the folder.
        """
        key, wait_s = f"lock {uuid.uuid4().hex}", FIRST_WAIT_S
        while not self._try_lock(self.control / "lock", key):
            tick()
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        try:
            yield self.load()
        finally:
            if not self._manifest.exists():
                self._tidy()
            _unlock(key)

    def load(self) -> Files:
        """Read the manifest; without a file, it has no entries."""
        text = None
        with explained(self.path, "written"), contextlib.suppress(FileNotFoundError):
            text = self._manifest.read_text(encoding="utf-8")
        return {} if text is None else from_json(text, where=str(self.path))

    def save(self, files: Files) -> None:
        """Replace the manifest in one step; only under the lock."""
        fresh = self.control / "manifest.json.new"
        with explained(self.path, "written"):
            if not files:
                self._manifest.unlink(missing_ok=True)
                return
            with fresh.open("w", encoding="utf-8") as out:
                out.write(to_json(files))
                out.flush()
                os.fsync(out.fileno())
            fresh.replace(self._manifest)

    def _tidy(self) -> None:
        made = 0
        with contextlib.suppress(OSError, ValueError):
            made = int((self.control / "made").read_text())
        control_files = (self.control / name for name in ("manifest.json.new", "made", "lock"))
        for path in (*self.control.glob("*.session"), *self.control.glob("*.part"), *control_files):
            with contextlib.suppress(OSError):
                _remove_unfinished(path)
        with contextlib.suppress(OSError):  # not empty: files of others
            for path in (self.control, self.path, *self.path.parents)[: made + 1]:
                path.rmdir()

    def _make_control(self) -> None:
        made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.control.mkdir(mode=0o755, parents=True, exist_ok=True)
        if made:
            with contextlib.suppress(FileExistsError), (self.control / "made").open("x") as out:
                out.write(str(len(made)))  # folders to remove with the last copy, if they are empty
        facts = self.control.lstat()
        if not is_ours(facts) or facts.st_mode & 0o022:  # a symbolic link may be written to by all
            owner = f"belongs to user {facts.st_uid} with mode {facts.st_mode & 0o777:o}"
            raise StagingError(
                f"{self.control} {'is a symbolic link' if stat.S_ISLNK(facts.st_mode) else owner}: somebody else could "
                "put other data into the copies that it lists. Name a folder of your own, or remove it",
                folder=str(self.path),
            )

    def _try_lock(self, path: Path, key: str) -> bool:
        """Try to take a lock and keep it under a key; a missing lock file is created."""
        locked = False
        try:
            with explained(self.path, "written"):
                self._make_control()
                with _locks_lock, contextlib.suppress(FileNotFoundError):  # no fork between opening and recording it
                    # Another process may have tidied up meanwhile; the next try makes the folder again.
                    _locks[key] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                # The lock file is removed with the last staged file; a lock on a deleted file is worthless.
                locked = key in _locks and try_flock(_locks[key], fcntl.LOCK_EX) and is_same(_locks[key], path)
        finally:
            if not locked:
                _unlock(key)
        return locked

    # --- sessions ---------------------------------------------------------------------------------------

    def begin_session(self, session: str) -> None:
        """Take the lock of a session until `end_session` or the end of the process; only under the folder's lock."""
        # Session files that no entry names are swept away, even while the session only waits for others.
        path = self.control / f"{session}.session"
        if session not in _locks or not is_same(_locks[session], path):
            _unlock(session)
            self._try_lock(path, session)

    def end_session(self, session: str) -> None:
        """Release the lock of a session, if this process holds it."""
        if session in _locks:
            with contextlib.suppress(OSError):
                (self.control / f"{session}.session").unlink()
            _unlock(session)

    def is_alive(self, session: str) -> bool:
        """Return whether the process of a session runs, in this container or another."""
        try:
            file = FileIO(self.control / f"{session}.session", opener=open_no_link)
        except OSError:
            return False
        with file, explained(self.path, "written"):
            return not try_flock(file.fileno(), fcntl.LOCK_SH)

    def alive_among(self, entries: Iterable[Entry]) -> set[str]:
        """Return the sessions of some copies whose processes still run."""
        return set(filter(self.is_alive, {session for entry in entries for session in sessions_of(entry)}))

    def release(self, session: str) -> None:
        """End a session of this process: delete unfinished copies, and copies that only `staged` blocks used."""
        if session not in _locks:  # ended already, or held by the process that this one was forked from
            return
        if not self.control.exists():
            self.end_session(session)
            return
        with self.locked() as files:
            used = [name for name, entry in files.items() if session in entry.users]
            self.end_session(session)
            self.reclaim(files)
            for name in used:
                if name in files and not files[name].keep and files[name].whole and not files[name].users:
                    self.delete_copy(name, files.pop(name))
            self.save(files)

    # --- copies -----------------------------------------------------------------------------------------

    def is_intact(self, name: str, entry: Entry) -> bool | None:
        """Return whether a copy is unchanged; None if its name does not exist or belongs to another file."""
        try:
            facts = (self.path / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(facts.st_mode) or facts.st_ino != entry.copy_inode or not is_ours(facts):
            return None
        return facts.st_size == entry.bytes_of_copy and facts.st_mtime_ns == entry.copy_mtime_ns

    def is_free(self, name: str) -> bool:
        """Return whether a file of that name can be created: the name is unused, and its folders are folders."""
        return not os.path.lexists(self.path / name) and self._leads_nowhere_else(name)

    def _leads_nowhere_else(self, name: str) -> bool:
        """Return whether a name's existing folders are plain: a symbolic link could lead out of the folder."""
        above = [self.path / parent for parent in Path(name).parents]
        return all(stat.S_ISDIR(folder.lstat().st_mode) for folder in above[:-1] if os.path.lexists(folder))

    def make_part(self, name: str, entry: Entry) -> int:
        """Create the empty file of an unfinished copy, and return its inode."""
        path = self.part_path(name, entry)
        with explained(self.path, "written"):
            path.touch(0o600, exist_ok=False)
            return path.stat().st_ino

    def delete_copy(self, name: str, entry: Entry) -> bool:
        """Delete a copy if the file of that name is still this copy; return whether it was."""
        if self.is_intact(name, entry) is None or not self._leads_nowhere_else(name):
            return False
        (self.path / name).unlink()
        with contextlib.suppress(OSError):  # not empty: another's
            for parent in list(Path(name).parents)[:-1]:  # the innermost first
                (self.path / parent).rmdir()
        return True

    def drop_unfinished(self, name: str, entry: Entry) -> None:
        """Delete the remains of an unfinished copy."""
        _remove_unfinished(self.part_path(name, entry))
        if entry.copy_inode:  # it may have its name without being confirmed, and is then only identified by its inode
            self.delete_copy(name, entry)

    def copied_bytes(self, name: str, entry: Entry) -> int:
        """Return the bytes of an unfinished copy so far, as counted by the file system."""
        try:
            return min(entry.bytes_of_copy, self.part_path(name, entry).lstat().st_blocks * 512)
        except OSError:
            return 0

    def reclaim(self, files: Files) -> None:
        """Remove the unfinished copies and the uses of dead sessions from the folder and from `files`."""
        alive = self.alive_among(files.values())
        for name, entry in list(files.items()):
            if entry.whole or entry.owner in alive:
                files[name] = replace(entry, users=tuple(user for user in entry.users if user in alive))
            else:
                self.drop_unfinished(name, files.pop(name))
        for path in self.control.glob("*.session"):  # of dead sessions, even if the manifest never named them
            if path.stem not in alive:
                for unfinished in self.control.glob(f"{path.stem}.*.part"):
                    _remove_unfinished(unfinished)
                path.unlink(missing_ok=True)


def _remove_unfinished(part: Path) -> None:
    shutil.rmtree(part.with_suffix(".object"), ignore_errors=True)  # data fetched for repacking
    part.unlink(missing_ok=True)


def _unlock(key: str) -> None:
    with _locks_lock:
        descriptor = _locks.pop(key, None)
        if descriptor is not None:
            with contextlib.suppress(OSError):  # explicitly, since a child that is just being forked has it open too
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def open_no_link(path: str, flags: int) -> int:
    """Open a file, but not through a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def is_ours(facts: os.stat_result) -> bool:
    """Return whether a file belongs to this user or to root."""
    return facts.st_uid in (0, os.geteuid())


def is_same(descriptor: int, path: Path) -> bool:
    """Return whether a path still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def new_session() -> str:
    """Return a unique session name with the id of this process."""
    return f"{os.getpid()}-{uuid.uuid4().hex[:12]}"


def pids_of(sessions: Iterable[str]) -> tuple[int, ...]:
    """Return the process ids of sessions, for messages; ids differ inside and outside of containers."""
    return tuple(sorted({int(session.partition("-")[0]) for session in sessions}))


def sessions_of(entry: Entry) -> set[str]:
    """Return the sessions that need a copy: those that use it, and the one that makes it."""
    return {*entry.users, *([] if entry.whole else [entry.owner])}


# --- The contents of the manifest, as values; no file is touched here.


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """A file's checksum: the hash of the digests of its blocks, so that threads can share the work.

    It detects accidents, not attacks: the algorithm is not cryptographic.
    """

    digest: str  # in hexadecimal
    algorithm: str = "xxh3_128"  # of the blocks, and of their digests in file order
    block_bytes: int = BLOCK_BYTES  # the last block of a file is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file that is staged, or being copied."""

    source: str  # absolute path, symbolic links resolved; or the address of an object in a store
    size_bytes: int  # of the source when it was copied
    mtime_ns: int  # of the source when it was copied, and of the copy; 0 for an object
    owner: str  # the session that made, or makes, the copy
    keep: bool  # False if the last `staged` block that uses the copy deletes it
    checksum: Checksum | None = None  # of the copy; None while it is being made
    copy_inode: int = 0  # distinguishes the copy from a file put in its place
    copy_mtime_ns: int = 0  # as stored by the copy's file system
    staged_at: float = 0.0  # in seconds since 1970
    users: tuple[str, ...] = ()  # sessions; those whose lock is no longer held do not count
    recipe: str = ""  # how it was repacked (`Recipe.to_text`); empty for a copy of the source's own bytes
    copy_bytes: int = -1  # size of a repacked copy, estimated while it is being made; -1 if it is the source's
    etag: str = ""  # for an object, when it was copied

    @property
    def whole(self) -> bool:
        """Whether the copy is finished and verified."""
        return self.checksum is not None

    @property
    def bytes_of_copy(self) -> int:
        """The size of the copy in bytes."""
        return self.size_bytes if self.copy_bytes < 0 else self.copy_bytes


Files = dict[str, Entry]
Source = FileIdentity | ObjectIdentity
"""The state of a file to be staged when it was examined; symbolic links in the path are resolved."""


class SourceState(TypedDict):
    """The fields of an `Entry` that describe its source."""

    source: str
    size_bytes: int
    mtime_ns: int
    etag: str


def state_of(source: Source) -> SourceState:
    """Return the entry's fields that describe a source."""
    return {
        "source": source.path,
        "size_bytes": source.size,
        "mtime_ns": getattr(source, "mtime_ns", 0),
        "etag": getattr(source, "etag", ""),
    }


def is_of(entry: Entry, source: Source, recipe: str) -> bool:
    """Return whether a copy was made from this state of the source with this recipe; False if it has no state."""
    if isinstance(source, ObjectIdentity):
        copied_ns = round(entry.staged_at * 1e9)
        # Dates have a resolution of seconds: an object changed just before the copy may have changed again.
        if not source.etag or (entry.whole and source.changed_ns > copied_ns - _SETTLED_NS):
            return False
    return entry.recipe == recipe and all(getattr(entry, name) == was for name, was in state_of(source).items())


_SETTLED_NS = 2_000_000_000
"""Nanoseconds after which a changed object surely has another date."""

_FIELDS = tuple(field.name for field in fields(Entry))


def to_json(files: Mapping[str, Entry]) -> str:
    """Return the text of the manifest, one line per file."""
    lines = []
    for name, entry in sorted(files.items()):
        listed = {key: getattr(entry, key) for key in _FIELDS if key != "etag" or entry.etag}  # unknown to version 0.2
        listed |= {
            "state": "whole" if entry.whole else "copying",
            "checksum": entry.checksum and asdict(entry.checksum),
        }
        lines.append(f"{json.dumps(name)}: {json.dumps(listed)}")
    # `indent` of json is ten times as slow, and the manifest is written with every batch of finished copies.
    listing = ",\n".join(lines)
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "files": {{\n{listing}\n}}}}\n'


def from_json(text: str, *, where: str) -> Files:
    """Parse the manifest of the folder `where`; raise if it is damaged, or has names outside of the folder."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}")
        if (version := int(document["version"])) != VERSION:
            raise ValueError(f"it has version {version}, this h5stream knows {VERSION}")
        for name in document["files"]:
            path = PurePosixPath(name)
            if not name or path.is_absolute() or ".." in path.parts or path.parts[0] == CONTROL or str(path) != name:
                # A damaged or forged list must not cause deletions elsewhere.
                raise ValueError(f"{name!r} is no relative path that stays inside the folder and outside {CONTROL}/")
        return {name: _entry(listed) for name, listed in document["files"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ManifestError(
            f"{where}/{CONTROL}/manifest.json is not a manifest of staged files ({type(error).__name__}: {error}). Use "
            f"the h5stream that wrote it, or another folder; or move {where}/{CONTROL} away and stage again, which "
            "leaves the files beside it as they are",
            folder=where,
        ) from error


def _entry(listed: Mapping[str, Any]) -> Entry:
    values = {key: value for key, value in listed.items() if key != "state"}
    for session in (values["owner"], *values["users"]):  # it becomes part of paths
        if not re.fullmatch("[0-9]+-[0-9a-f]{12}", session):
            raise ValueError(f"session {session!r}")
    checksum = None if values["checksum"] is None else Checksum(**values["checksum"])
    return Entry(**{**values, "checksum": checksum, "users": tuple(values["users"])})
