"""The staging folder on disk: its manifest, the lock over it, and the locks of those who copy and of those who use.

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
import errno
import fcntl
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from h5stream.errors import NotEnoughSpaceError, StagingError
from h5stream.staging.manifest import CONTROL, Entry, Files, from_json, to_json

FIRST_WAIT_S = 0.002
LONGEST_WAIT_S = 0.1

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


def _no_tick() -> None:
    """Do nothing between two tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingFolder:
    """A folder that files are staged to."""

    path: Path
    """The folder, absolute."""

    @property
    def control(self) -> Path:
        """The folder of the manifest."""
        return self.path / CONTROL

    @property
    def _manifest(self) -> Path:
        return self.control / "manifest.json"

    def copy_path(self, name: str) -> Path:
        """Return the path of a staged file."""
        return self.path / name

    def part_path(self, name: str, entry: Entry) -> Path:
        """Return the path under which a file is copied before it is whole."""
        # The name itself may hold folders, or be too long to take a suffix; its hash is not.
        digest = hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()
        return self.control / f"{entry.owner}.{digest}.part"

    def session_path(self, session: str) -> Path:
        """Return the path of the file whose lock says that a session is alive."""
        return self.control / f"{session}.session"

    @contextlib.contextmanager
    def locked(self, tick: Callable[[], None] = _no_tick) -> Iterator[dict[str, Entry]]:
        """Hold the lock and give the files of the manifest; the folders are made where they are absent.

        Where there is no manifest at the end, nothing of ours stays in the folder.
        """
        key = f"lock {uuid.uuid4().hex}"
        _wait_for_lock(self, key, tick)
        try:
            yield self.load()
        finally:
            if not self._manifest.exists():
                self._tidy()
            _unlock(key)

    def load(self) -> dict[str, Entry]:
        """Read the manifest; no file, no entries."""
        try:
            text = self._manifest.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise unusable(self, error) from error
        return from_json(text, where=str(self.path))

    def save(self, files: Files) -> None:
        """Replace the manifest in one step; only under the lock."""
        fresh = self.control / "manifest.json.new"
        try:
            if not files:
                self._manifest.unlink(missing_ok=True)
                return
            with fresh.open("w", encoding="utf-8") as out:
                out.write(to_json(files))
                out.flush()
                os.fsync(out.fileno())
            fresh.replace(self._manifest)
        except OSError as error:
            raise unusable(self, error) from error

    def _tidy(self) -> None:
        made = 0
        with contextlib.suppress(OSError, ValueError):
            made = int((self.control / "made").read_text())
        ours = (self.control / name for name in ("manifest.json.new", "made", "lock"))
        for path in (*self.control.glob("*.session"), *ours):
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):  # not empty: something that is not ours
            for path in (self.control, self.path, *self.path.parents)[: made + 1]:
                path.rmdir()


def _wait_for_lock(folder: StagingFolder, key: str, tick: Callable[[], None]) -> None:
    wait_s = FIRST_WAIT_S
    while not _try_lock(folder, folder.control / "lock", key):
        tick()
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _try_lock(folder: StagingFolder, path: Path, key: str) -> bool:
    """Try to take a lock and to keep it under a key; its file is made where it is absent."""
    _make_control(folder)
    locked = False
    try:
        with _locks_lock:  # no fork between the two lines
            _locks[key] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return False  # another process tidied up between the two calls; the next try makes the folder again
    except OSError as error:
        raise unusable(folder, error) from error
    try:
        # With the last staged file its lock is removed as well; one without a name is worth nothing.
        locked = _try_flock(folder, _locks[key], fcntl.LOCK_EX) and is_same(_locks[key], path)
    finally:
        if not locked:
            _unlock(key)
    return locked


def _unlock(key: str) -> None:
    with _locks_lock:
        descriptor = _locks.pop(key, None)
        if descriptor is not None:
            with contextlib.suppress(OSError):  # said, because a child that is just being forked has it open as well
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _make_control(folder: StagingFolder) -> None:
    made = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    try:
        folder.control.mkdir(mode=0o755, parents=True, exist_ok=True)
        if made:
            with contextlib.suppress(FileExistsError), (folder.control / "made").open("x") as out:
                out.write(str(len(made)))  # folders that go with the last copy, if nothing else has come into them
    except OSError as error:
        raise unusable(folder, error) from error
    if folder.control.is_symlink():
        raise StagingError(
            f"{folder.control} is a symbolic link, which could lead out of the folder: remove it",
            folder=str(folder.path),
        )
    facts = folder.control.lstat()
    if not is_ours(facts) or facts.st_mode & 0o022:
        raise StagingError(
            f"{folder.control} belongs to user {facts.st_uid} with mode {facts.st_mode & 0o777:o}: somebody else could "
            "put other data into the copies that it lists. Name a folder of your own, or remove it",
            folder=str(folder.path),
        )


def is_ours(facts: os.stat_result) -> bool:
    """Say whether a file was made by this user or by root."""
    return facts.st_uid in (0, os.geteuid())


def _try_flock(folder: StagingFolder, descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise unusable(folder, error) from error
    return True


def is_same(descriptor: int, path: Path) -> bool:
    """Tell whether a path still names the file that is open."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def unusable(folder: StagingFolder, error: OSError) -> StagingError:
    """Return the error for a folder in which the manifest cannot be kept."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return NotEnoughSpaceError(
            f"{folder.path} is full: not even the manifest of staged files could be written. Free space "
            "there, or name another folder",
            folder=str(folder.path),
        )
    return StagingError(
        f"cannot keep the manifest of staged files in {folder.path}: {error.strerror or error}"
        f"{f' ({error.filename})' if error.filename else ''}. "
        f"Staging needs a folder that may be written and locked; name another one, or free what blocks it",
        folder=str(folder.path),
    )


def new_session() -> str:
    """Return the name of a session of this process: its id, as the process sees it, and what tells calls apart."""
    return f"{os.getpid()}-{uuid.uuid4().hex[:12]}"


def pid_of(session: str) -> int:
    """Return the process that a session belongs to, for people: in a container its id is another one from outside.

    Examples
    --------
    >>> pid_of(new_session()) == os.getpid()
    True
    """
    return int(session.partition("-")[0])


def begin_session(folder: StagingFolder, session: str) -> None:
    """Take the lock of a session, which is held until `end_session` or the end of the process; only under the lock."""
    # What no entry names is swept away, also while its session only waits for others.
    path = folder.session_path(session)
    if session not in _locks or not is_same(_locks[session], path):
        _unlock(session)
        _try_lock(folder, path, session)


def is_held(session: str) -> bool:
    """Say whether this process, and not the one that it was forked from, holds the lock of a session."""
    return session in _locks


def end_session(folder: StagingFolder, session: str) -> None:
    """Return the lock of a session back, if this process holds it."""
    if is_held(session):
        with contextlib.suppress(OSError):
            folder.session_path(session).unlink()
        _unlock(session)


def is_alive(folder: StagingFolder, session: str) -> bool:
    """Say whether the process of a session runs, in this container or another."""
    try:
        descriptor = os.open(folder.session_path(session), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not _try_flock(folder, descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)
