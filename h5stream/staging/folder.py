"""The staging folder on disk: its manifest, the lock over it, and the locks of those who copy.

# Guarantees:
# - The manifest is changed only under `StagingFolder.locked`, an exclusive flock that is held for moments,
#   never while data is copied; it is replaced by rename, so that readers need no lock and see one version or
#   the next.
# - Whoever copies holds a second flock, on a session file, for as long as it copies. The kernel drops it
#   with the process, so a copier's death is seen at once, also across containers.
# - No wait blocks in the kernel: locks are tried again and again, and between two tries the caller's `tick`
#   runs and Ctrl-C is heard.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from h5stream.errors import NotEnoughSpaceError, StagingError
from h5stream.staging.leases import is_alive
from h5stream.staging.manifest import CONTROL, Entry, Files, from_json, to_json

FIRST_WAIT_S = 0.002
LONGEST_WAIT_S = 0.1


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
        """Give the path of a staged file."""
        return self.path / name

    def part_path(self, name: str, entry: Entry) -> Path:
        """Give the path under which a file is copied before it is whole."""
        # The name itself may hold folders, or be too long to take a suffix; its hash is not.
        digest = hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()
        return self.control / f"{entry.session}.{digest}.part"

    @contextlib.contextmanager
    def locked(self, tick: Callable[[], None] = _no_tick) -> Iterator[dict[str, Entry]]:
        """Hold the lock and give the files of the manifest; the folders are made where they are absent.

        Where there is no manifest at the end, nothing of ours stays in the folder.
        """
        descriptor = _wait_for_lock(self, tick)
        try:
            yield self.load()
        finally:
            if not self._manifest.exists():
                self._tidy()
            os.close(descriptor)

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
        for name in ("manifest.json.new", "lock"):
            with contextlib.suppress(OSError):
                (self.control / name).unlink()
        with contextlib.suppress(OSError):  # not empty: somebody opens a session at this moment
            self.control.rmdir()


def _wait_for_lock(folder: StagingFolder, tick: Callable[[], None]) -> int:
    path, wait_s = folder.control / "lock", FIRST_WAIT_S
    while True:
        descriptor = _try_lock(folder, path)
        if descriptor is not None:
            return descriptor
        tick()
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _try_lock(folder: StagingFolder, path: Path) -> int | None:
    _make_control(folder)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None  # somebody tidied up between the two calls; the next try makes the folder again
    except OSError as error:
        raise unusable(folder, error) from error
    try:
        # Whoever removes the last staged file removes the lock as well; one without a name is worth nothing.
        if _try_flock(folder, descriptor) and _is_same(descriptor, path):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _make_control(folder: StagingFolder) -> None:
    try:
        folder.control.mkdir(mode=0o755, parents=True, exist_ok=True)
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
    """Say whether a file was made by this user or by root, and by nobody else."""
    return facts.st_uid in (0, os.geteuid())


def _try_flock(folder: StagingFolder, descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise unusable(folder, error) from error
    return True


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def unusable(folder: StagingFolder, error: OSError) -> StagingError:
    """Give the error for a folder in which the manifest cannot be kept."""
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


class CopySession:
    """The lock of one process that copies, held until `close` or until the process is gone."""

    def __init__(self, folder: StagingFolder, name: str) -> None:
        self.name = name
        self._path = folder.control / f"{name}.session"
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(folder, error) from error
        _try_flock(folder, self._descriptor)

    def close(self) -> None:
        """Give the lock back."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def copier_is_alive(folder: StagingFolder, entry: Entry) -> bool:
    """Say whether the process that claimed a copy still works on it.

    Its process must run and its session must be locked. Either alone can mislead: a forked child inherits
    the lock, and a process of another container cannot be looked up.
    """
    return is_alive(entry.owner) and session_is_locked(folder, entry.session)


def session_is_locked(folder: StagingFolder, name: str) -> bool:
    """Say whether somebody holds the lock of a session."""
    try:
        descriptor = os.open(folder.control / f"{name}.session", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not _try_flock(folder, descriptor)
    finally:
        os.close(descriptor)
