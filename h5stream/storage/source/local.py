"""Bytes of local files, and of many files as one source; `identity_of` chooses the kind of source by path."""

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
"""Bytes of a gap between two reads that is read rather than skipped: cheaper than another system call. It is one page,
so that scattered small chunks do not cause the whole file to be read."""


def identity_of(path: str) -> FileIdentity | ObjectIdentity:
    """Return the identity of a path, a local file or an object in a store."""
    return ObjectIdentity.of(path) if is_address(path) else FileIdentity.of(path)


def identities_of(paths: Sequence[str]) -> list[SourceIdentity]:
    """Return the identities of paths; those of objects in stores are requested together."""
    far = iter(opening().identities([path for path in paths if is_address(path)]))
    return [next(far) if is_address(path) else FileIdentity.of(path) for path in paths]


def absolute(path: str) -> str:
    """Return an absolute path; an address is returned unchanged."""
    return path if is_address(path) else os.path.abspath(path)


def bytes_at(identity: SourceIdentity, offset: int, nbytes: int) -> bytearray:
    """Read bytes of a file, which is opened only for that; for metadata that libhdf5 reads as well."""
    data, source = bytearray(nbytes), identity.for_structure()
    try:
        source.read_many((offset,), (memoryview(data),))
    finally:
        source.close()
    return data


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

    def descriptor(self) -> Descriptor:
        """Return the descriptor, opening the file if needed; it stays open as long as it is referenced."""
        return self._descriptor or self._open()

    def _open(self, failed: Descriptor | None = None) -> Descriptor:
        """Open the file for all later reads, if it is not open, or its descriptor has `failed`."""
        path = self.identity.path
        if self._pid != os.getpid():  # a thread of the parent may hold the old lock forever
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            if self._descriptor is None or self._descriptor is failed:
                self.identity.check_unchanged()
                try:
                    self._descriptor = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                except PermissionError:
                    raise not_permitted(path) from None
                except OSError as error:
                    raise SourceError(f"{path!r} cannot be opened: {error.strerror}", file=path) from error
                _open_sources.append(weakref.ref(self))
                while len(_open_sources) > MOST_OPEN:  # the next read of a closed file opens it again
                    first = _open_sources.popleft()()
                    if first is not None and first is not self:
                        first.close()
            return self._descriptor

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; raises like `read_into`."""
        for offset, target in zip(offsets, targets, strict=True):
            self.read_into(offset, target)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes that start at `offset`; try twice, since network storage may recover."""
        descriptor = self.descriptor()  # referenced until the read is done, even if `close` is called meanwhile
        if (error := self._filled(descriptor.number, offset, target)) is None:
            return
        what = f"reading {target.nbytes} bytes at byte {offset} of {self.identity.path!r} failed: {error.strerror}"
        _log.warning("%s; trying once more with the file opened afresh", what)
        descriptor = self._open(descriptor)
        if (error := self._filled(descriptor.number, offset, target)) is not None:
            what = f"{what}; so it did once more with the file opened afresh"
            raise SourceError(what, file=self.identity.path) from error

    def _filled(self, fd: int, offset: int, target: memoryview) -> OSError | None:
        """Fill `target`; return the system's error, or None."""
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


# --- Many files as one source of bytes: their bytes are concatenated, with gaps that no read crosses.
#
# Each read opens and closes its file, so that tens of thousands of files need no descriptors. Before closing it checks
# whether the file has changed, so that the first read of a replaced or modified file reports it.


BETWEEN_NBYTES = 1 << 20
"""Bytes between two files: more than any read crosses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilesIdentity(SourceIdentity):
    """The state of many files when they were opened; its path is that of the first, its size the total."""

    paths: Names  # as the user gave them
    sizes: Ints  # bytes
    starts: Ints  # offset of each file among all bytes
    mtimes: Ints  # mtimes, inodes: as in `FileIdentity`; 0 for objects in stores
    inodes: Ints
    far: dict[int, ObjectIdentity]  # the objects in stores, by number

    @staticmethod
    def of(files: Sequence[SourceIdentity]) -> FilesIdentity:
        """Concatenate files."""
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
        """Bytes of each file."""
        return tuple(self.sizes.tolist())

    @property
    def is_far(self) -> bool:
        """Whether one of them is an object in a store."""
        return bool(self.far)

    @property
    def is_watched(self) -> bool:
        """Whether anything but the sizes can reveal that any file was replaced."""
        return all(one.is_watched for one in self.far.values())

    @property
    def digest(self) -> str:
        """A digest of the states of all files."""
        digest = hashlib.sha256(self.paths.text.tobytes())
        for array in (self.paths.edges, self.sizes, self.mtimes, self.inodes):
            digest.update(array.tobytes())
        digest.update("\0".join(one.etag for one in self.far.values()).encode())
        return digest.hexdigest()

    def file(self, number: int) -> FileIdentity | ObjectIdentity:
        """Return the identity of one file."""
        if number in self.far:
            return self.far[number]
        size, mtime_ns, inode = (int(values[number]) for values in (self.sizes, self.mtimes, self.inodes))
        return FileIdentity(path=self.paths[number], size=size, mtime_ns=mtime_ns, inode=inode & ((1 << 64) - 1))

    def open(self) -> ByteSource:
        """Return the bytes of all files."""
        return FarFilesBytes(self) if self.far else FilesBytes(self)

    def for_structure(self) -> ByteSource:
        """Return a source suited to many small reads of metadata."""
        return FarFilesBytes(self, holds_beginnings=True) if self.far else self.open()

    def place(self, offsets: int | Ints) -> tuple[Ints, Ints]:
        """Return the numbers of the files that contain some bytes, and the bytes' offsets in these files."""
        which = np.searchsorted(self.starts, offsets, side="right") - 1
        return which, offsets - self.starts[which]

    def at(self, offset: int) -> tuple[FileIdentity | ObjectIdentity, int]:
        """Return the file that contains a byte, and the byte's offset in it."""
        number, inside = self.place(offset)
        return self.file(int(number)), int(inside)

    def each(self) -> list[FileIdentity | ObjectIdentity]:
        """Return the identities of all files."""
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
        """Fill each target with the bytes that start at its offset; raises like `FileBytes.read_into`."""
        places = [ctypes.addressof(ctypes.c_char.from_buffer(target)) for target in targets]
        nbytes = [target.nbytes for target in targets]
        self.read_each(*(np.array(values, np.int64) for values in (offsets, nbytes, places)))

    def read_each(self, offsets: Ints, nbytes: Ints, places: Ints) -> None:
        """Read ranges to memory addresses."""
        files, done = self.identity, 0
        columns = self._paths, self._path_at, files.sizes, files.mtimes, files.inodes
        which, inside = files.place(offsets)
        while done < len(which):
            done += read_files(*columns, which[done:], inside[done:], nbytes[done:], places[done:])
            if done < len(which):  # retry through `FileBytes`, which raises the error or recovers
                own, offset = files.file(int(which[done])), int(inside[done])
                memory = (ctypes.c_ubyte * int(nbytes[done])).from_address(int(places[done]))
                read_once(own.open(), (offset,), (memoryview(memory).cast("B"),))
                done += 1


class FarFilesBytes(ByteSource):
    """Ranges of many files, including objects in stores; all ranges of one read are requested together.

    For reads of metadata the beginning of each file, which contains most of them, is kept in memory.
    """

    gap_nbytes = GAP_NBYTES

    def __init__(self, identity: FilesIdentity, *, holds_beginnings: bool = False) -> None:
        super().__init__(identity)
        share = min(BLOCK_NBYTES, max(_LEAST_NBYTES, HELD_NBYTES // len(identity.sizes)))
        self._nbytes = np.minimum(identity.sizes, share * holds_beginnings)
        self._beginnings = dict[int, memoryview]()

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset, after fetching missing beginnings together."""
        which, inside = (numbers.tolist() for numbers in self.identity.place(np.array(offsets, np.int64)))
        missing = [number for number in dict.fromkeys(which) if number not in self._beginnings and self._nbytes[number]]
        begins = [memoryview(bytearray(nbytes)) for nbytes in self._nbytes[missing].tolist()]
        self._read([(number, 0, begin) for number, begin in zip(missing, begins, strict=True)])
        self._beginnings.update(zip(missing, begins, strict=True))
        further = list[tuple[int, int, memoryview]]()
        for number, offset, target in zip(which, inside, targets, strict=True):
            cached = self._beginnings.get(number, memoryview(b""))[offset:][: target.nbytes]
            if cached.nbytes == target.nbytes:
                target[:] = cached
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
"""The least bytes of a file's beginning: libhdf5's metadata of a small file."""
