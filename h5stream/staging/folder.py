"""The staging folder on disk: its manifest, the lock over it, and the sessions of those who copy or use.

The manifest is JSON (``.h5stream/manifest.json`` in the folder); its names are relative to the folder::

    {"format": "h5stream-staging", "version": 2,
     "files": {"a.h5": {"source": "/data/a.h5", "size_bytes": 10, "mtime_ns": 1, "state": "whole",
                        "checksum": {"algorithm": "xxh3_128", "block_bytes": 16777216, "digest": "..."},
                        "copy_inode": 5, "copy_mtime_ns": 1, "owner": "4711-0a1b2c3d4e5f", "staged_at": 1700000000.0,
                        "keep": true, "users": [...], "recipe": "", "copy_bytes": -1}}}

# Guarantees:
# - The manifest is changed only under `StagingFolder.locked`, an exclusive flock that is held for moments,
#   never while data is copied; it is replaced by rename, so that readers need no lock and see one version or
#   the next.
# - A call of `stage` that copies, or that leases copies, is a session: it holds a flock on a file of its own in
#   the control folder, and the manifest names the session beside what it makes or uses. The kernel drops the lock
#   with the process, so its death is seen at once, also from another container.
# - A lock belongs to one process: a forked child closes what it has inherited, so that it keeps none alive.
# - Whether a session is alive is asked with a shared lock, so that two who ask at once do not take one another for it.
# - No wait blocks in the kernel: locks are tried again and again, and between two tries the caller's `tick`
#   runs and Ctrl-C is heard.
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
from typing import Any

from h5stream.base.filesystem import explained, try_flock
from h5stream.errors import ManifestError, StagingError
from h5stream.storage.source.local import FileIdentity
from h5stream.storage.source.remote import ObjectIdentity

CONTROL = ".h5stream"  # folder inside the staging folder that holds the manifest, its lock and unfinished copies
FORMAT, VERSION = "h5stream-staging", 2
BLOCK_BYTES = 16 << 20  # a file of 1 TB has 60,000 digests, and one of 100 MB still keeps every thread busy
FIRST_WAIT_S, LONGEST_WAIT_S = 0.002, 0.1

_locks: dict[str, int] = {}
"""Descriptors of the locks that this process holds, by session or, for moments, by folder."""
_locks_lock = threading.RLock()


def _forget_locks() -> None:
    """Close the locks that a forked child has inherited: they are its parent's, and must end with that."""
    for descriptor in _locks.values():
        os.close(descriptor)
    _locks.clear()
    _locks_lock.release()


os.register_at_fork(before=_locks_lock.acquire, after_in_parent=_locks_lock.release, after_in_child=_forget_locks)


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """A folder that files are staged to, by its absolute path."""

    path: Path

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> StagingFolder:
        """Return the folder of a path as a user gives it."""
        return cls(Path(os.path.abspath(os.path.expanduser(path))))

    @property
    def control(self) -> Path:
        """The folder of the manifest."""
        return self.path / CONTROL

    @property
    def _manifest(self) -> Path:
        return self.control / "manifest.json"

    def part_path(self, name: str, entry: Entry) -> Path:
        """Return the path under which a file is copied before it is whole."""
        # The name itself may hold folders, or be too long to take a suffix; its hash is not.
        digest = hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()
        return self.control / f"{entry.owner}.{digest}.part"

    @contextlib.contextmanager
    def locked(self, tick: Callable[[], None] = lambda: None) -> Iterator[Files]:
        """Hold the lock and give the files of the manifest; the folders are made where they are absent.

        Where there is no manifest at the end, nothing of ours stays in the folder.
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
        """Read the manifest; no file, no entries."""
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
        ours = (self.control / name for name in ("manifest.json.new", "made", "lock"))
        for path in (*self.control.glob("*.session"), *self.control.glob("*.part"), *ours):
            with contextlib.suppress(OSError):
                _remove_unfinished(path)
        with contextlib.suppress(OSError):  # not empty: something that is not ours
            for path in (self.control, self.path, *self.path.parents)[: made + 1]:
                path.rmdir()

    def _make_control(self) -> None:
        made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.control.mkdir(mode=0o755, parents=True, exist_ok=True)
        if made:
            with contextlib.suppress(FileExistsError), (self.control / "made").open("x") as out:
                out.write(str(len(made)))  # folders that go with the last copy, if nothing else has come into them
        facts = self.control.lstat()
        if not is_ours(facts) or facts.st_mode & 0o022:  # a symbolic link may be written to by all
            owner = f"belongs to user {facts.st_uid} with mode {facts.st_mode & 0o777:o}"
            raise StagingError(
                f"{self.control} {'is a symbolic link' if stat.S_ISLNK(facts.st_mode) else owner}: somebody else could "
                "put other data into the copies that it lists. Name a folder of your own, or remove it",
                folder=str(self.path),
            )

    def _try_lock(self, path: Path, key: str) -> bool:
        """Try to take a lock and to keep it under a key; its file is made where it is absent."""
        locked = False
        try:
            with explained(self.path, "written"):
                self._make_control()
                with _locks_lock, contextlib.suppress(FileNotFoundError):  # no fork between opening and noting it
                    # Another process may have tidied up meanwhile; the next try makes the folder again.
                    _locks[key] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                # With the last staged file its lock is removed as well; one without a name is worth nothing.
                locked = key in _locks and try_flock(_locks[key], fcntl.LOCK_EX) and is_same(_locks[key], path)
        finally:
            if not locked:
                _unlock(key)
        return locked

    # --- sessions ---------------------------------------------------------------------------------------

    def begin_session(self, session: str) -> None:
        """Take the lock of a session, until `end_session` or the end of the process; only under the folder's lock."""
        # What no entry names is swept away, also while its session only waits for others.
        path = self.control / f"{session}.session"
        if session not in _locks or not is_same(_locks[session], path):
            _unlock(session)
            self._try_lock(path, session)

    def end_session(self, session: str) -> None:
        """Let go of the lock of a session, if this process holds it."""
        if session in _locks:
            with contextlib.suppress(OSError):
                (self.control / f"{session}.session").unlink()
            _unlock(session)

    def is_alive(self, session: str) -> bool:
        """Say whether the process of a session runs, in this container or another."""
        try:
            file = FileIO(self.control / f"{session}.session", opener=open_no_link)
        except OSError:
            return False
        with file, explained(self.path, "written"):
            return not try_flock(file.fileno(), fcntl.LOCK_SH)

    def alive_among(self, entries: Iterable[Entry]) -> set[str]:
        """Return those sessions of some copies whose processes still run."""
        return set(filter(self.is_alive, {session for entry in entries for session in sessions_of(entry)}))

    def release(self, session: str) -> None:
        """End a session that this process holds: what it has not finished goes, and what only `staged` blocks used."""
        if session not in _locks:  # or it is of the process that this one was forked from
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
        """Say whether a copy is as it was made; None where something else, or nothing, has its name."""
        try:
            facts = (self.path / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(facts.st_mode) or facts.st_ino != entry.copy_inode or not is_ours(facts):
            return None
        return facts.st_size == entry.bytes_of_copy and facts.st_mtime_ns == entry.copy_mtime_ns

    def is_free(self, name: str) -> bool:
        """Say whether a file of that name can be made: nothing has it, and its folders are folders."""
        return not os.path.lexists(self.path / name) and self._leads_nowhere_else(name)

    def _leads_nowhere_else(self, name: str) -> bool:
        """Say whether what there is of a name's folders is plain: a symbolic link could lead out of the folder."""
        above = [self.path / parent for parent in Path(name).parents]
        return all(stat.S_ISDIR(each.lstat().st_mode) for each in above[:-1] if os.path.lexists(each))

    def make_part(self, name: str, entry: Entry) -> int:
        """Make the empty file that a copy begins as, and return its inode."""
        path = self.part_path(name, entry)
        with explained(self.path, "written"):
            path.touch(0o600, exist_ok=False)
            return path.stat().st_ino

    def delete_copy(self, name: str, entry: Entry) -> bool:
        """Delete a copy if the file of that name is the one that was made; say whether it was."""
        if self.is_intact(name, entry) is None or not self._leads_nowhere_else(name):
            return False
        (self.path / name).unlink()
        with contextlib.suppress(OSError):  # not empty: another's
            for parent in list(Path(name).parents)[:-1]:  # the innermost first
                (self.path / parent).rmdir()
        return True

    def drop_unfinished(self, name: str, entry: Entry) -> None:
        """Delete what there is of a copy that was not finished."""
        _remove_unfinished(self.part_path(name, entry))
        if entry.copy_inode:  # its name may have been given and not yet confirmed; it is ours by its inode only
            self.delete_copy(name, entry)

    def copied_bytes(self, name: str, entry: Entry) -> int:
        """Return how far an unfinished copy has come, in bytes, as the file system counts them."""
        try:
            return min(entry.bytes_of_copy, self.part_path(name, entry).lstat().st_blocks * 512)
        except OSError:
            return 0

    def reclaim(self, files: Files) -> None:
        """Take the unfinished copies of dead sessions, and their uses, from the folder and from `files`."""
        alive = self.alive_among(files.values())
        for name, entry in list(files.items()):
            if entry.whole or entry.owner in alive:
                files[name] = replace(entry, users=tuple(user for user in entry.users if user in alive))
            else:
                self.drop_unfinished(name, files.pop(name))
        for path in self.control.glob("*.session"):  # of the dead, also of those of whom the manifest never spoke
            if path.stem not in alive:
                for unfinished in self.control.glob(f"{path.stem}.*.part"):
                    _remove_unfinished(unfinished)
                path.unlink(missing_ok=True)


def _remove_unfinished(part: Path) -> None:
    shutil.rmtree(part.with_suffix(".object"), ignore_errors=True)  # what was fetched to be repacked
    part.unlink(missing_ok=True)


def _unlock(key: str) -> None:
    with _locks_lock:
        descriptor = _locks.pop(key, None)
        if descriptor is not None:
            with contextlib.suppress(OSError):  # said, because a child that is just being forked has it open as well
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def open_no_link(path: str, flags: int) -> int:
    """Open a file, but not through a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def is_ours(facts: os.stat_result) -> bool:
    """Say whether a file was made by this user or by root."""
    return facts.st_uid in (0, os.geteuid())


def is_same(descriptor: int, path: Path) -> bool:
    """Tell whether a path still names the file that is open."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def new_session() -> str:
    """Return the name of a session of this process: its id, as the process sees it, and what tells calls apart."""
    return f"{os.getpid()}-{uuid.uuid4().hex[:12]}"


def pids_of(sessions: Iterable[str]) -> tuple[int, ...]:
    """Return the processes of some sessions, for people: in a container an id is another one from outside."""
    return tuple(sorted({int(session.partition("-")[0]) for session in sessions}))


def sessions_of(entry: Entry) -> set[str]:
    """Return the sessions that need a copy: those that use it, and the one that makes it."""
    return {*entry.users, *([] if entry.whole else [entry.owner])}


# --- What the manifest says, as values; no file is touched here.


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """A file's checksum: the hash of the digests of its blocks, so that threads can share the work.

    It finds accidents, not attacks: the algorithm is not cryptographic.
    """

    digest: str  # in hexadecimal
    algorithm: str = "xxh3_128"  # of the blocks, and of their digests in file order
    block_bytes: int = BLOCK_BYTES  # the last block of a file is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One staged file, or one that is being copied."""

    source: str  # absolute path, symbolic links resolved; or the address of an object in a store
    size_bytes: int  # of the source when it was copied
    mtime_ns: int  # of the source when it was copied; the copy is given the same; 0 of an object
    owner: str  # the session that made, or makes, the copy
    keep: bool  # False where the last `staged` block that uses the copy deletes it
    checksum: Checksum | None = None  # of the copy; None while it is being made
    copy_inode: int = 0  # tells a file that was put in the copy's place apart
    copy_mtime_ns: int = 0  # as the copy's file system keeps it
    staged_at: float = 0.0  # in seconds since 1970
    users: tuple[str, ...] = ()  # sessions; one whose lock is not held any more does not count
    recipe: str = ""  # how it was repacked (`Recipe.to_text`); empty for a copy of the source's own bytes
    copy_bytes: int = -1  # size of a repacked copy, an estimate while it is being made; -1 where it is the source's
    etag: str = ""  # of an object, when it was copied

    @property
    def whole(self) -> bool:
        """Whether the copy is finished and verified."""
        return self.checksum is not None

    @property
    def bytes_of_copy(self) -> int:
        """Size of the copy in bytes."""
        return self.size_bytes if self.copy_bytes < 0 else self.copy_bytes


Files = dict[str, Entry]
Source = FileIdentity | ObjectIdentity
"""A file to be staged as it was when it was looked at; a path has its symbolic links resolved."""


def state_of(source: Source) -> dict[str, Any]:
    """Return what an entry holds of a source."""
    state = {"source": source.path, "size_bytes": source.size}
    return state | {name: getattr(source, name, nothing) for name, nothing in (("mtime_ns", 0), ("etag", ""))}


def is_of(entry: Entry, source: Source, recipe: str) -> bool:
    """Say whether a copy was made of this state of the source, and in this way; never of one that says no state."""
    if isinstance(source, ObjectIdentity):
        copied_ns = round(entry.staged_at * 1e9)
        # Dates have seconds: what was changed just before it was copied may have changed again in the same one.
        if not source.etag or (entry.whole and source.changed_ns > copied_ns - _SETTLED_NS):
            return False
    return entry.recipe == recipe and all(getattr(entry, name) == was for name, was in state_of(source).items())


_SETTLED_NS = 2_000_000_000
"""Nanoseconds after which an object whose date alone is known has another one if it changes."""

_FIELDS = tuple(field.name for field in fields(Entry))


def to_json(files: Mapping[str, Entry]) -> str:
    """Return the manifest's text, a line for each file."""
    lines = []
    for name, entry in sorted(files.items()):
        listed = {key: getattr(entry, key) for key in _FIELDS if key != "etag" or entry.etag}  # 0.2 does not know it
        listed |= {
            "state": "whole" if entry.whole else "copying",
            "checksum": entry.checksum and asdict(entry.checksum),
        }
        lines.append(f"{json.dumps(name)}: {json.dumps(listed)}")
    # json's own `indent` is ten times as slow, and a manifest is written with every batch of finished copies.
    listing = ",\n".join(lines)
    return f'{{"format": "{FORMAT}", "version": {VERSION}, "files": {{\n{listing}\n}}}}\n'


def from_json(text: str, *, where: str) -> Files:
    """Return the files that the manifest of the folder `where` lists; refuse what is none, or leads out of it."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}")
        if (version := int(document["version"])) != VERSION:
            raise ValueError(f"it has version {version}, this h5stream knows {VERSION}")
        for name in document["files"]:
            path = PurePosixPath(name)
            if not name or path.is_absolute() or ".." in path.parts or path.parts[0] == CONTROL or str(path) != name:
                # What is deleted by this list must not be led elsewhere by a damaged or forged one.
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
