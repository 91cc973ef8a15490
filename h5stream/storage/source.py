"""Bytes by offset, wherever they are, and the identity that tells whether they are still the same.

A layout knows its files by their identities, and an identity opens its source: what reads asks `SourceIdentity.open`
and nothing else. `identity_of` is the one place that chooses, by the path.
"""

from __future__ import annotations

import abc
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from stat import S_ISDIR, S_ISREG
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled._native import read_files
from h5stream.errors import H5StreamError, SourceChangedError, SourceError, SourceNotFoundError, TruncatedFileError
from h5stream.storage.handles import flush_written
from h5stream.storage.names import Ints, Names
from h5stream.storage.remote import (
    BLOCK_NBYTES,
    GAP_NBYTES,
    HELD_NBYTES,
    ObjectIdentity,
    held_bytes,
    opening,
    read_sources,
)
from h5stream.storage.stores import SCHEMES, is_address

_log = logging.getLogger("h5stream")

LOCAL_GAP_NBYTES = 4 * 1024
"""Bytes between two reads of a local file that are read along rather than skipped: less than another system call
costs. A page, so that small chunks that lie scattered do not drag the whole file in."""


class SourceIdentity(Protocol):
    """What a file was when it was opened, wherever it lies.

    # Guarantees: immutable, hashable and pickled: it travels to other processes and opens its source there.
    """

    @property
    def path(self) -> str:
        """The path as it was given."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def file_sizes(self) -> tuple[int, ...]:
        """Bytes of each file, where it stands for several."""
        ...

    def at(self, offset: int) -> tuple[SourceIdentity, int]:
        """Return the file that a byte lies in, and where it lies there."""
        ...

    def each(self) -> Sequence[SourceIdentity]:
        """Return every file that it stands for."""
        ...

    def over(self, copies: Sequence[FileIdentity]) -> SourceIdentity:
        """Return the same of copies of all of them."""
        ...

    def check_unchanged(self) -> None:
        """Raise `SourceChangedError` if the path no longer leads to the same bytes."""

    def open(self) -> ByteSource:
        """Return the bytes; they may be opened only when they are first read."""
        ...


class ByteSource(Protocol):
    """The bytes of one file. Local files are one kind (`FileBytes`).

    # Guarantees: any thread may read, at any time, also after `close`, which lets go of what is open until then. Memory
    to be filled belongs to the caller; the source keeps nothing of it.
    """

    gap_nbytes: int  # bytes between two reads that are better read along than skipped
    has_descriptor: bool  # whether `descriptor` gives one

    @property
    def identity(self) -> SourceIdentity:
        """What the file was when it was opened."""
        ...

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset."""

    def descriptor(self) -> Descriptor | None:
        """Return an open descriptor of a local file, for the caller's own reads; it is open as long as it is held."""

    def close(self) -> None:
        """Let go of what is open; a later read opens it again."""


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
    """Return some bytes of a file, which is open only meanwhile."""
    if isinstance(identity, ObjectIdentity):  # libhdf5 is about to look there as well, or has
        return held_bytes(identity, offset, nbytes)
    found, source = bytearray(nbytes), identity.open()
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


def no_such_file(path: str) -> SourceNotFoundError:
    """Return the error of a path that leads nowhere; it names the file beside it that may be meant."""
    if re.search(rf"(^|/){SCHEMES}:/", path):
        said = "is the address of an object in a store without one of its slashes: give it as text, not as a Path"
        return SourceNotFoundError(f"{path!r} {said}", file=path)
    folder, name = os.path.split(path)
    stem, end = os.path.splitext(name)
    with contextlib.suppress(OSError):
        # Of names that differ in their ends, the one with the end that was asked for comes last, and is taken.
        there = sorted(os.listdir(folder or os.curdir), key=lambda one: os.path.splitext(one)[1] == end)
        stems = {os.path.splitext(one)[0]: one for one in there}
        for near in difflib.get_close_matches(stem, stems, n=1):
            said = f"no such file: {path!r}. Did you mean {os.path.join(folder, stems[near])!r}?"
            return SourceNotFoundError(said, file=path)
    return SourceNotFoundError(f"no such file: {path!r}", file=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """What a file was when it was opened."""

    path: str  # the path as it was given
    size: int  # bytes
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
        parts = []
        if self.inode != now.inode:
            parts.append("it was replaced (another inode)")
        if self.size != now.size:
            parts.append(f"its size went from {self.size} to {now.size} bytes")
        if self.mtime_ns != now.mtime_ns:
            parts.append("its modification time moved")
        return ", ".join(parts)

    @property
    def file_sizes(self) -> tuple[int, ...]:
        """Bytes of each file: of this one."""
        return (self.size,)

    def at(self, offset: int) -> tuple[FileIdentity, int]:
        """Return the file that a byte lies in, and where it lies there."""
        return self, offset

    def each(self) -> list[FileIdentity]:
        """Return every file: this one."""
        return [self]

    def over(self, copies: Sequence[FileIdentity]) -> FileIdentity:
        """Return the same of a copy."""
        return copies[0]

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


class Descriptor:
    """An open descriptor.

    It is closed when the last reference to it goes, so that no reader's number changes its meaning.
    """

    number = -1  # until it is known: Ctrl-C may come before

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            _close(self.number)


MOST_OPEN = 256
"""Files that hold a descriptor; where a sample is a file there are tens of thousands of them."""

_opened_in_turn: collections.deque[weakref.ref[FileBytes]] = collections.deque()


def _let_go_of_others(opened: FileBytes) -> None:
    """Close the files that were opened first where too many are open; the next read of one opens it again."""
    _opened_in_turn.append(weakref.ref(opened))
    while len(_opened_in_turn) > MOST_OPEN:
        first = _opened_in_turn.popleft()()
        if first is not None and first is not opened:
            first.close()


class FileBytes:
    """Positional reads of one file; any number of threads may read at once.

    # Guarantees: `pread` has no shared position, so readers need no lock; the descriptor is opened once
    # under `_lock` and stays open until `close`. A forked child may go on using the inherited descriptor
    # for the same reason. Pickling carries the identity only, and the copy opens the file itself.
    """

    gap_nbytes = LOCAL_GAP_NBYTES
    has_descriptor = True

    def __init__(self, identity: FileIdentity) -> None:
        self.identity = identity
        self._held: Descriptor | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"identity": self.identity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["identity"])  # type: ignore[misc]

    def close(self) -> None:
        """Let go of the descriptor, which is closed with the last read that uses it; a later read opens another."""
        self._held = None

    def descriptor(self) -> Descriptor:
        """Return the open descriptor, for reads of the caller's own; it stays open as long as it is held."""
        return self._held or self._open()

    def _open(self) -> Descriptor:
        with self._lock:
            if self._held is None:
                self._held = Descriptor(self._opened())
                _let_go_of_others(self)
            return self._held

    def _opened(self) -> int:
        self.identity.check_unchanged()
        try:
            return os.open(self.identity.path, os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            raise not_permitted(self.identity.path) from None
        except OSError as error:
            raise SourceError(
                f"{self.identity.path!r} cannot be opened: {error.strerror}", file=self.identity.path
            ) from error

    def _open_again(self, held: Descriptor) -> Descriptor:
        """Open the file afresh, for everyone who reads from now on."""
        fresh = Descriptor(self._opened())
        with self._lock:
            if self._held is held:
                self._held = fresh
        return fresh

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; raises what `read_into` does."""
        for offset, target in zip(offsets, targets, strict=True):
            self.read_into(offset, target)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` with the bytes that start at `offset`."""
        held = self.descriptor()  # held until the read is over, also if `close` is called meanwhile
        try:
            self._fill(held.number, offset, target)
        except OSError as error:
            if isinstance(error, H5StreamError):
                raise
            self._read_again(held, offset, target, error)

    def _fill(self, fd: int, offset: int, target: memoryview) -> None:
        done, wanted = 0, target.nbytes
        while done < wanted:
            count = os.preadv(fd, [target[done:] if done else target], offset + done)
            if count == 0:
                self._explain_short_read(offset, wanted, done)
            done += count

    def _read_again(self, held: Descriptor, offset: int, target: memoryview, first: OSError) -> None:
        """Read once more through a fresh descriptor: network storage gets over an error or a stale handle so."""
        what = f"reading {target.nbytes} bytes at byte {offset} of {self.identity.path!r} failed: {first.strerror}"
        _log.warning("%s; trying once more with the file opened afresh", what)
        fresh = self._open_again(held)
        try:
            self._fill(fresh.number, offset, target)
        except OSError as error:
            if isinstance(error, H5StreamError):
                raise
            raise SourceError(
                f"{what}; so it did once more with the file opened afresh", file=self.identity.path
            ) from error

    def _explain_short_read(self, offset: int, wanted: int, done: int) -> None:
        self.identity.check_unchanged()
        raise TruncatedFileError(
            f"{self.identity.path!r} ends early: {wanted} bytes are promised at byte {offset}, {done} are there "
            f"(the file has {self.identity.size}). Copy it again from its source.",
            file=self.identity.path,
        )


# --- Many files as one source of bytes: their bytes lie one behind the other, with gaps that no read goes over.
#
# Each read opens its file and closes it again, so that tens of thousands of files hold no descriptor, and looks before
# it closes it whether the file is what it was: one that was replaced or written to is told at the read that meets it.


BETWEEN_NBYTES = 1 << 20
"""From one file's last byte to the next one's first: more than any read goes over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilesIdentity:
    """What many files were when they were opened."""

    paths: Names  # as they were given
    sizes: Ints  # bytes
    starts: Ints  # where the bytes of each begin

    @staticmethod
    def of(files: Sequence[FileIdentity | ObjectIdentity]) -> FilesIdentity:
        """Put files one behind the other."""
        paths, sizes = Names.of(one.path for one in files), np.array([one.size for one in files], np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes + BETWEEN_NBYTES)[:-1]])
        local = [one for one in files if isinstance(one, FileIdentity)]
        if len(local) < len(files):
            return FarFilesIdentity(paths=paths, sizes=sizes, starts=starts, files=tuple(files))
        mtimes = np.array([one.mtime_ns for one in local], np.int64)
        inodes = np.array([one.inode for one in local], np.uint64).view(np.int64)
        return LocalFilesIdentity(paths=paths, sizes=sizes, starts=starts, mtimes=mtimes, inodes=inodes)

    @property
    def path(self) -> str:
        """The path of the first."""
        return self.paths[0]

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return int(self.sizes.sum())

    @property
    def file_sizes(self) -> tuple[int, ...]:
        """Bytes of each."""
        return tuple(self.sizes.tolist())

    @property
    def digest(self) -> str:
        """A digest of what all of them are."""
        digest = hashlib.sha256(self.paths.text.tobytes())
        for each in (self.paths.edges, self.sizes, *self.marks()):
            digest.update(each.tobytes())
        return digest.hexdigest()

    @abc.abstractmethod
    def marks(self) -> Sequence[NDArray[Any]]:
        """Return what else tells whether they are what they were."""

    @property
    @abc.abstractmethod
    def changed_ns(self) -> int:
        """When one was changed last, in nanoseconds; 0 where that does not matter."""

    @abc.abstractmethod
    def file(self, number: int) -> FileIdentity | ObjectIdentity:
        """Return one of them."""

    @abc.abstractmethod
    def open(self) -> FilesBytes | FarFilesBytes:
        """Return the bytes."""

    def for_structure(self) -> ByteSource:
        """Return the bytes for who reads many small pieces of their structure."""
        return self.open()

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

    def over(self, copies: Sequence[FileIdentity]) -> FilesIdentity:
        """Return the same of copies."""
        return FilesIdentity.of(copies)

    def check_unchanged(self) -> None:
        """Do nothing: each read looks at its file."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalFilesIdentity(FilesIdentity):
    """What many files on disks here were when they were opened."""

    mtimes: Ints  # mtimes, inodes: as in `FileIdentity`
    inodes: Ints

    def marks(self) -> Sequence[NDArray[Any]]:
        """Return what else tells whether they are what they were."""
        return self.mtimes, self.inodes

    @property
    def changed_ns(self) -> int:
        """When one was changed last, in nanoseconds."""
        return int(self.mtimes.max())

    def file(self, number: int) -> FileIdentity:
        """Return one of them."""
        size, mtime_ns, inode = (int(each[number]) for each in (self.sizes, self.mtimes, self.inodes))
        return FileIdentity(path=self.paths[number], size=size, mtime_ns=mtime_ns, inode=inode & ((1 << 64) - 1))

    def open(self) -> FilesBytes:
        """Return the bytes."""
        return FilesBytes(self)


class FilesBytes:
    """Positional reads of many files.

    # Guarantees: any thread may read at any time; nothing is open between two reads. Pickling carries the identity.
    """

    gap_nbytes = LOCAL_GAP_NBYTES
    has_descriptor = False

    def __init__(self, identity: LocalFilesIdentity) -> None:
        self.identity = identity
        edges = identity.paths.edges
        self._paths = np.insert(identity.paths.text, edges[1:], 0)
        self._path_at = edges[:-1] + np.arange(len(edges) - 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return FilesBytes, (self.identity,)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def descriptor(self) -> None:
        """Give none: what is open is closed with the read."""
        return

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
                source = own.open()
                try:
                    source.read_into(offset, memoryview(memory).cast("B"))
                    own.check_unchanged()
                finally:
                    source.close()
                done += 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FarFilesIdentity(FilesIdentity):
    """What many files were of which some or all are objects in stores."""

    files: tuple[FileIdentity | ObjectIdentity, ...]

    def marks(self) -> Sequence[NDArray[Any]]:
        """Return what else tells whether they are what they were."""
        marks = (one.etag if isinstance(one, ObjectIdentity) else f"{one.mtime_ns} {one.inode}" for one in self.files)
        named = Names.of(marks)
        return named.text, named.edges

    @property
    def changed_ns(self) -> int:
        """When one on a disk here was changed last, in nanoseconds."""
        return max(one.mtime_ns if isinstance(one, FileIdentity) else 0 for one in self.files)

    def file(self, number: int) -> FileIdentity | ObjectIdentity:
        """Return one of them."""
        return self.files[number]

    def open(self) -> FarFilesBytes:
        """Return the bytes."""
        return FarFilesBytes(self)

    def for_structure(self) -> ByteSource:
        """Return the bytes for who reads many small pieces of their structure."""
        return _Beginnings(self)


class FarFilesBytes:
    """Ranges of many files of which some or all are objects in stores; those of one read are asked for at once.

    # Guarantees: any thread may read at any time; nothing is open between two reads. Pickling carries the identity.
    """

    gap_nbytes = GAP_NBYTES
    has_descriptor = False

    def __init__(self, identity: FarFilesIdentity) -> None:
        self.identity = identity

    def __reduce__(self) -> tuple[Any, ...]:
        return self.identity.open, ()

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def descriptor(self) -> None:
        """Give none."""
        return

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset."""
        of_each = dict[int, tuple[list[int], list[memoryview]]]()
        which, inside = self.identity.place(np.array(offsets, np.int64))
        for number, offset, target in zip(which.tolist(), inside.tolist(), targets, strict=True):
            own = of_each.setdefault(number, ([], []))
            own[0].append(offset)
            own[1].append(target)
        read_sources([(self.identity.file(number).open(), *own) for number, own in of_each.items()])


class _Beginnings(FarFilesBytes):
    """The bytes of many files for who reads their structure: the beginning of each is held, where most of it lies."""

    def __init__(self, identity: FarFilesIdentity) -> None:
        super().__init__(identity)
        self._nbytes = min(BLOCK_NBYTES, max(_LEAST_NBYTES, HELD_NBYTES // len(identity.files)))
        self._held = dict[int, memoryview]()

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset; beginnings that are not held come at once."""
        which, inside = self.identity.place(np.array(offsets, np.int64))
        missing = np.array([k for k in np.unique(which).tolist() if k not in self._held], np.int64)
        begins = [memoryview(bytearray(nbytes)) for nbytes in np.minimum(self.identity.sizes[missing], self._nbytes)]
        super().read_many(self.identity.starts[missing].tolist(), begins)
        self._held.update(zip(missing.tolist(), begins, strict=True))
        further = list[tuple[int, memoryview]]()
        for k, at, offset, target in zip(which.tolist(), inside.tolist(), offsets, targets, strict=True):
            found = self._held[k][at:][: target.nbytes]
            if found.nbytes == target.nbytes:
                target[:] = found
            else:
                further.append((offset, target))
        super().read_many([offset for offset, _ in further], [target for _, target in further])


_LEAST_NBYTES = 2048
"""Of a file's beginning, at least: what libhdf5 writes of a small structure."""
