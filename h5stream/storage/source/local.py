"""Bytes of files on disks here, and of many files as one; `identity_of` chooses the kind of source by the path."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import difflib
import hashlib
import logging
import os
import re
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from stat import S_ISDIR, S_ISREG
from typing import Any

import numpy as np

from h5stream.base.names import Ints, Names
from h5stream.compiled._native import read_files
from h5stream.errors import SourceChangedError, SourceError, SourceNotFoundError
from h5stream.storage.source.handles import flush_written
from h5stream.storage.source.identity import ByteSource, Descriptor, SourceIdentity
from h5stream.storage.source.remote import (
    BLOCK_NBYTES,
    GAP_NBYTES,
    HELD_NBYTES,
    ObjectIdentity,
    opening,
    read_once,
    read_sources,
)
from h5stream.storage.source.stores import SCHEMES, is_address

_log = logging.getLogger("h5stream")

LOCAL_GAP_NBYTES = 4 * 1024
"""Bytes between two reads of a local file that are read along rather than skipped: less than another system call
costs. A page, so that small chunks that lie scattered do not drag the whole file in."""


def identity_of(path: str) -> FileIdentity | ObjectIdentity:
    """Return the identity of a path, which says what kind of source its bytes come from."""
    return ObjectIdentity.of(path) if is_address(path) else FileIdentity.of(path)


def identities_of(paths: Sequence[str]) -> list[SourceIdentity]:
    """Return the identities of paths; stores are asked for many at once."""
    far = iter(opening().identities([path for path in paths if is_address(path)]))
    return [next(far) if is_address(path) else FileIdentity.of(path) for path in paths]


def absolute(path: str) -> str:
    """Return a path that means the same wherever the process is; an address does."""
    return path if is_address(path) else os.path.abspath(path)


def bytes_at(identity: SourceIdentity, offset: int, nbytes: int) -> bytearray:
    """Return some bytes of a file, which is open only meanwhile; libhdf5 is about to look there as well, or has."""
    found, source = bytearray(nbytes), identity.for_structure()
    try:
        source.read_many((offset,), (memoryview(found),))
    finally:
        source.close()
    return found


def not_permitted(path: str) -> SourceError:
    """Return the error of a file that is there, and that this user may not read."""
    return SourceError(
        f"no permission to read {path!r}: `ls -l` shows who has it, and its owner can give it", file=path
    )


def stat_of(path: str) -> os.stat_result:
    """Return what the system says of a regular file; refuse a path that leads to anything else."""
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


_ALIKE = 0.7
"""`difflib`'s ratio from which a name counts as a misspelling of another."""


def no_such_file(path: str) -> SourceNotFoundError:
    """Return the error of a path that leads nowhere; it names the file beside it that may be meant."""
    if re.search(rf"(^|/){SCHEMES}:/(?!/)", path):
        said = "is the address of an object in a store without one of its slashes: give it as text, not as a Path"
        return SourceNotFoundError(f"{path!r} {said}", file=path)
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        for near in difflib.get_close_matches(name, os.listdir(folder or os.curdir), n=1, cutoff=_ALIKE):
            said = f"no such file: {path!r}. Did you mean {os.path.join(folder, near)!r}?"
            return SourceNotFoundError(said, file=path)
    return SourceNotFoundError(f"no such file: {path!r}", file=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity(SourceIdentity):
    """What a file on a disk here was when it was opened."""

    mtime_ns: int  # modification time in nanoseconds
    inode: int  # inode number; another one means that the file was replaced

    @classmethod
    def of(cls, path: str) -> FileIdentity:
        """Read the identity of a path, once what this process has written to it is in it."""
        flush_written(path, opening=True)
        return cls(path=path, size=0, mtime_ns=0, inode=0).now()

    def now(self) -> FileIdentity:
        """Read what the path leads to by now."""
        stat = stat_of(self.path)
        return FileIdentity(path=self.path, size=stat.st_size, mtime_ns=stat.st_mtime_ns, inode=stat.st_ino)

    def difference(self, now: FileIdentity) -> str:
        """Say how the file differs from what it is now."""
        said = {
            "it was replaced (another inode)": self.inode != now.inode,
            f"its size went from {self.size} to {now.size} bytes": self.size != now.size,
            "its modification time moved": self.mtime_ns != now.mtime_ns,
        }
        return ", ".join(what for what, is_so in said.items() if is_so)

    def open(self) -> FileBytes:
        """Return the file's bytes; it is opened when they are first read."""
        return FileBytes(self)

    def check_unchanged(self) -> None:
        """Raise `SourceChangedError` if the path no longer leads to this very file."""
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            if (found.st_ino, found.st_size, found.st_mtime_ns) == (self.inode, self.size, self.mtime_ns):
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
"""Files that hold a descriptor; where a sample is a file there are tens of thousands of them."""

_opened_in_turn: collections.deque[weakref.ref[FileBytes]] = collections.deque()


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
        self._held: Descriptor | None = None
        self._lock, self._pid = threading.Lock(), os.getpid()

    def close(self) -> None:
        """Let go of the descriptor, which is closed with the last read that uses it; a later read opens another."""
        self._held = None

    def descriptor(self) -> Descriptor:
        """Return the open descriptor, for reads of the caller's own; it stays open as long as it is held."""
        return self._held or self._open()

    def _open(self, failed: Descriptor | None = None) -> Descriptor:
        """Open the file, for everyone who reads from now on, also in place of a descriptor that has failed."""
        path = self.identity.path
        if self._pid != os.getpid():  # a thread that stayed in the parent may hold that one for ever
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            if self._held is None or self._held is failed:
                self.identity.check_unchanged()
                try:
                    self._held = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                except PermissionError:
                    raise not_permitted(path) from None
                except OSError as error:
                    raise SourceError(f"{path!r} cannot be opened: {error.strerror}", file=path) from error
                _opened_in_turn.append(weakref.ref(self))
                while len(_opened_in_turn) > MOST_OPEN:  # the next read of the one that is closed opens it again
                    first = _opened_in_turn.popleft()()
                    if first is not None and first is not self:
                        first.close()
            return self._held

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; raises what `read_into` does."""
        for offset, target in zip(offsets, targets, strict=True):
            self.read_into(offset, target)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes that start at `offset`; try twice: network storage gets over an error so."""
        held = self.descriptor()  # held until the read is over, also if `close` is called meanwhile
        if (error := self._filled(held.number, offset, target)) is None:
            return
        what = f"reading {target.nbytes} bytes at byte {offset} of {self.identity.path!r} failed: {error.strerror}"
        _log.warning("%s; trying once more with the file opened afresh", what)
        held = self._open(held)
        if (error := self._filled(held.number, offset, target)) is not None:
            what = f"{what}; so it did once more with the file opened afresh"
            raise SourceError(what, file=self.identity.path) from error

    def _filled(self, fd: int, offset: int, target: memoryview) -> OSError | None:
        """Fill `target`; return the error of the system, if there was one."""
        done, wanted = 0, target.nbytes
        while done < wanted:
            try:
                count = os.preadv(fd, [target[done:] if done else target], offset + done)
            except OSError as error:
                return error
            if count == 0:
                self.identity.check_unchanged()
                raise self.identity.ends_early(offset, wanted, done)
            done += count
        return None


# --- Many files as one source of bytes: their bytes lie one behind the other, with gaps that no read goes over.
#
# Each read opens its file and closes it again, so that tens of thousands of files hold no descriptor, and looks before
# it closes it whether the file is what it was: one that was replaced or written to is told at the read that meets it.


BETWEEN_NBYTES = 1 << 20
"""From one file's last byte to the next one's first: more than any read goes over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilesIdentity(SourceIdentity):
    """What many files were when they were opened; its path is that of the first, and its size that of all."""

    paths: Names  # as they were given
    sizes: Ints  # bytes
    starts: Ints  # where the bytes of each begin
    mtimes: Ints  # mtimes, inodes: as in `FileIdentity`; 0 of objects in stores
    inodes: Ints
    far: dict[int, ObjectIdentity]  # those that are objects in stores, by their numbers

    @staticmethod
    def of(files: Sequence[SourceIdentity]) -> FilesIdentity:
        """Put files one behind the other."""
        sizes = np.array([one.size for one in files], np.int64)
        return FilesIdentity(
            path=files[0].path,
            size=int(sizes.sum()),
            paths=Names.of(one.path for one in files),
            sizes=sizes,
            starts=np.concatenate([[0], np.cumsum(sizes + BETWEEN_NBYTES)[:-1]]),
            mtimes=np.array([getattr(one, "mtime_ns", 0) for one in files], np.int64),
            inodes=np.array([getattr(one, "inode", 0) for one in files], np.uint64).view(np.int64),
            far={number: one for number, one in enumerate(files) if isinstance(one, ObjectIdentity)},
        )

    @property
    def file_sizes(self) -> tuple[int, ...]:
        """Bytes of each."""
        return tuple(self.sizes.tolist())

    @property
    def is_far(self) -> bool:
        """Whether one of them is an object in a store."""
        return bool(self.far)

    @property
    def is_watched(self) -> bool:
        """Whether anything but its size tells of each of them that other bytes took its place."""
        return all(one.is_watched for one in self.far.values())

    @property
    def digest(self) -> str:
        """A digest of what all of them are."""
        digest = hashlib.sha256(self.paths.text.tobytes())
        for each in (self.paths.edges, self.sizes, self.mtimes, self.inodes):
            digest.update(each.tobytes())
        digest.update("\0".join(one.etag for one in self.far.values()).encode())
        return digest.hexdigest()

    def file(self, number: int) -> FileIdentity | ObjectIdentity:
        """Return one of them."""
        if number in self.far:
            return self.far[number]
        size, mtime_ns, inode = (int(each[number]) for each in (self.sizes, self.mtimes, self.inodes))
        return FileIdentity(path=self.paths[number], size=size, mtime_ns=mtime_ns, inode=inode & ((1 << 64) - 1))

    def open(self) -> ByteSource:
        """Return the bytes."""
        return FarFilesBytes(self) if self.far else FilesBytes(self)

    def for_structure(self) -> ByteSource:
        """Return the bytes for who reads many small pieces of their structure."""
        return FarFilesBytes(self, holds_beginnings=True) if self.far else self.open()

    def place(self, offsets: Any) -> tuple[Ints, Ints]:
        """Return the numbers of the files that bytes lie in, and where they lie there."""
        which = np.searchsorted(self.starts, offsets, side="right") - 1
        return which, offsets - self.starts[which]

    def at(self, offset: int) -> tuple[FileIdentity | ObjectIdentity, int]:
        """Return the file that a byte lies in, and where it lies there."""
        number, inside = self.place(offset)
        return self.file(int(number)), int(inside)

    def each(self) -> list[FileIdentity | ObjectIdentity]:
        """Return every file."""
        return [self.file(number) for number in range(len(self.starts))]


class FilesBytes(ByteSource):
    """Positional reads of many files; nothing is open between two reads."""

    gap_nbytes = LOCAL_GAP_NBYTES

    def __init__(self, identity: FilesIdentity) -> None:
        super().__init__(identity)
        edges = identity.paths.edges
        self._paths = np.insert(identity.paths.text, edges[1:], 0)
        self._path_at = edges[:-1] + np.arange(len(edges) - 1)

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; raises what `FileBytes.read_into` does."""
        places = [ctypes.addressof(ctypes.c_char.from_buffer(target)) for target in targets]
        nbytes = [target.nbytes for target in targets]
        self.read_each(*(np.array(each, np.int64) for each in (offsets, nbytes, places)))

    def read_each(self, offsets: Ints, nbytes: Ints, places: Ints) -> None:
        """Read to addresses."""
        files, done = self.identity, 0
        known = self._paths, self._path_at, files.sizes, files.mtimes, files.inodes
        which, inside = files.place(offsets)
        while done < len(which):
            done += read_files(*known, which[done:], inside[done:], nbytes[done:], places[done:])
            if done < len(which):  # once more in the ordinary way, which says what is wrong, or gets over it
                own, offset = files.file(int(which[done])), int(inside[done])
                memory = (ctypes.c_ubyte * int(nbytes[done])).from_address(int(places[done]))
                read_once(own.open(), (offset,), (memoryview(memory).cast("B"),))
                done += 1


class FarFilesBytes(ByteSource):
    """Ranges of many files of which some or all are objects in stores; those of one read are asked for at once.

    For who reads their structure the beginning of each file is held, where most of it lies.
    """

    gap_nbytes = GAP_NBYTES

    def __init__(self, identity: FilesIdentity, *, holds_beginnings: bool = False) -> None:
        super().__init__(identity)
        some = min(BLOCK_NBYTES, max(_LEAST_NBYTES, HELD_NBYTES // len(identity.sizes)))
        self._nbytes = np.minimum(identity.sizes, some * holds_beginnings)
        self._held = dict[int, memoryview]()

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; beginnings that are not held come at once."""
        which, inside = (each.tolist() for each in self.identity.place(np.array(offsets, np.int64)))
        missing = [number for number in dict.fromkeys(which) if number not in self._held and self._nbytes[number]]
        begins = [memoryview(bytearray(nbytes)) for nbytes in self._nbytes[missing].tolist()]
        self._read([(number, 0, begin) for number, begin in zip(missing, begins, strict=True)])
        self._held.update(zip(missing, begins, strict=True))
        further = list[tuple[int, int, memoryview]]()
        for number, offset, target in zip(which, inside, targets, strict=True):
            found = self._held.get(number, memoryview(b""))[offset:][: target.nbytes]
            if found.nbytes == target.nbytes:
                target[:] = found
            else:
                further.append((number, offset, target))
        self._read(further)

    def _read(self, wanted: Iterable[tuple[int, int, memoryview]]) -> None:
        of_each = dict[int, tuple[list[int], list[memoryview]]]()
        for number, offset, target in wanted:
            own = of_each.setdefault(number, ([], []))
            own[0].append(offset)
            own[1].append(target)
        read_sources([(self.identity.file(number).open(), *own) for number, own in of_each.items()])


_LEAST_NBYTES = 2048
"""Of a file's beginning, at least: what libhdf5 writes of a small structure."""
