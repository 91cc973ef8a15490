"""One local file: its identity, and positional reads of its bytes."""

from __future__ import annotations

import collections
import contextlib
import difflib
import logging
import os
import re
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from stat import S_ISDIR, S_ISREG

from h5stream.base.names import SCHEMES
from h5stream.errors import SourceChangedError, SourceError, SourceNotFoundError
from h5stream.storage.source.handles import flush_written
from h5stream.storage.source.identity import ByteSource, Descriptor, SourceIdentity

_log = logging.getLogger("h5stream")

LOCAL_GAP_NBYTES = 4 * 1024
"""Bytes of a gap between two reads that is read rather than skipped: cheaper than another system call. It is one page,
so that scattered small chunks do not cause the whole file to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity(SourceIdentity):
    """The state of a local file when it was opened."""

    mtime_ns: int  # modification time in nanoseconds
    inode: int  # inode number; it differs if the file was replaced

    @classmethod
    def of(cls, path: str) -> FileIdentity:
        """Return the identity of a path, after flushing what this process has written to it."""
        flush_written(path, opening=True)
        return cls(path=path, size=0, mtime_ns=0, inode=0).now()

    def now(self) -> FileIdentity:
        """Return the current identity of the path."""
        stat = stat_of(self.path)
        return FileIdentity(path=self.path, size=stat.st_size, mtime_ns=stat.st_mtime_ns, inode=stat.st_ino)

    def difference(self, now: FileIdentity) -> str:
        """Return how the file has changed, as a text."""
        changes = {
            "it was replaced (another inode)": self.inode != now.inode,
            f"its size went from {self.size} to {now.size} bytes": self.size != now.size,
            "its modification time moved": self.mtime_ns != now.mtime_ns,
        }
        return ", ".join(what for what, is_so in changes.items() if is_so)

    def open(self) -> FileBytes:
        """Return the file's bytes; the file is opened at the first read."""
        return FileBytes(self)

    def check_unchanged(self) -> None:
        """Raise `SourceChangedError` if the path no longer leads to the same file."""
        with contextlib.suppress(OSError):
            stat = os.stat(self.path)
            if (stat.st_ino, stat.st_size, stat.st_mtime_ns) == (self.inode, self.size, self.mtime_ns):
                return
        try:
            flush_written(self.path, opening=False)
            now = self.now()
        except SourceError as error:
            raise SourceChangedError(
                f"{self.path!r} vanished while it was being read: {error}", file=self.path
            ) from error
        if now != self:
            raise SourceChangedError(
                f"{self.path!r} changed while it was being read: {self.difference(now)}. "
                "Rows read since may be mixed; open it again once its writer is done.",
                file=self.path,
            )


MOST_OPEN = 256
"""The most files with an open descriptor; with a file per sample there are tens of thousands."""

_open_sources: collections.deque[weakref.ref[FileBytes]] = collections.deque()


class FileBytes(ByteSource):
    """Positional reads of one file; any number of threads may read at once.

    # Guarantees: `pread` has no shared position, so readers need no lock; the descriptor is opened once
    # under `_lock` and stays open until `close`. A forked child may go on using the inherited descriptor
    # for the same reason. A pickled copy opens the file itself.
    """

    gap_nbytes = LOCAL_GAP_NBYTES
    has_descriptor = True

    def __init__(self, identity: SourceIdentity) -> None:
        super().__init__(identity)
        self._descriptor: Descriptor | None = None
        self._lock, self._pid = threading.Lock(), os.getpid()

    def close(self) -> None:
        """Release the descriptor, which the last read that uses it closes; a later read opens another."""
        self._descriptor = None

    def descriptor(self, failed: Descriptor | None = None) -> Descriptor:
        """Return the descriptor, opening the file if needed, or anew if its descriptor has `failed`.

        It stays open as long as it is referenced.
        """
        descriptor = self._descriptor
        if descriptor is not None and descriptor is not failed:
            return descriptor
        path = self.identity.path
        if self._pid != os.getpid():  # a thread of the parent may hold the old lock forever
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            descriptor = self._descriptor
            if descriptor is None or descriptor is failed:
                self.identity.check_unchanged()
                try:
                    descriptor = self._descriptor = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                except PermissionError:
                    raise not_permitted(path) from None
                except OSError as error:
                    raise SourceError(f"{path!r} cannot be opened: {error.strerror}", file=path) from error
                _open_sources.append(weakref.ref(self))
                while len(_open_sources) > MOST_OPEN:  # the next read of a closed file opens it again
                    first = _open_sources.popleft()()
                    if first is not None and first is not self:
                        first.close()
            return descriptor

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; raises like `read_into`."""
        for offset, target in zip(offsets, targets, strict=True):
            self.read_into(offset, target)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes that start at `offset`; try twice, since network storage may recover."""
        descriptor = self.descriptor()  # referenced until the read is done, even if `close` is called meanwhile
        done, wanted, what = 0, target.nbytes, ""
        while done < wanted:
            try:
                count = os.preadv(descriptor.number, [target[done:] if done else target], offset + done)
            except OSError as error:
                if what:
                    what = f"{what}; so it did once more with the file opened afresh"
                    raise SourceError(what, file=self.identity.path) from error
                what = f"reading {wanted} bytes at byte {offset} of {self.identity.path!r} failed: {error.strerror}"
                _log.warning("%s; trying once more with the file opened afresh", what)
                descriptor, done = self.descriptor(descriptor), 0
                continue
            if count == 0:
                self.identity.check_unchanged()
                raise self.identity.ends_early(offset, wanted, done)
            done += count


def not_permitted(path: str) -> SourceError:
    """Return the error for an existing file that this user may not read."""
    return SourceError(
        f"no permission to read {path!r}: `ls -l` shows who has it, and its owner can give it", file=path
    )


def stat_of(path: str) -> os.stat_result:
    """Return `os.stat` of a regular file; raise `SourceError` for anything else."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        raise no_such_file(path) from None
    except OSError as error:
        raise SourceError(f"cannot examine {path!r}: {error.strerror}", file=path) from None
    if S_ISDIR(stat.st_mode):
        pattern = os.path.join(path, "*.h5")
        raise SourceError(f"{path!r} is a folder, not an HDF5 file; name files of it, such as {pattern!r}", file=path)
    if not S_ISREG(stat.st_mode):  # Opening a pipe would wait for its writer.
        raise SourceError(f"{path!r} is a pipe or a device, not an HDF5 file", file=path)
    return stat


_MIN_SIMILARITY = 0.7
"""`difflib`'s ratio from which a name counts as a misspelling of another."""


def no_such_file(path: str) -> SourceNotFoundError:
    """Return the error for a missing file, with a similar name in the same folder."""
    if re.search(rf"(^|/){SCHEMES}:/(?!/)", path):
        message = "is the address of an object in a store without one of its slashes: give it as text, not as a Path"
        return SourceNotFoundError(f"{path!r} {message}", file=path)
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        for near in difflib.get_close_matches(name, os.listdir(folder or os.curdir), n=1, cutoff=_MIN_SIMILARITY):
            message = f"no such file: {path!r}. Did you mean {os.path.join(folder, near)!r}?"
            return SourceNotFoundError(message, file=path)
    return SourceNotFoundError(f"no such file: {path!r}", file=path)
