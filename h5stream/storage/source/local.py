"""Files by their paths, local or in stores, and many files as one source of bytes."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from h5stream.base.names import Ints, Names, is_address
from h5stream.compiled._native import read_files
from h5stream.storage.source.blocks import BLOCK_NBYTES, HELD_NBYTES
from h5stream.storage.source.identity import ByteSource, SourceIdentity
from h5stream.storage.source.one_file import LOCAL_GAP_NBYTES, FileIdentity
from h5stream.storage.source.remote import GAP_NBYTES, ObjectIdentity, opening, read_once, read_sources


def identity_of(path: str) -> FileIdentity | ObjectIdentity:
    """Return the identity of a path, a local file or an object in a store."""
    return ObjectIdentity.of(path) if is_address(path) else FileIdentity.of(path)


def identities_of(paths: Sequence[str]) -> list[SourceIdentity]:
    """Return the identities of paths; those of objects in stores are requested together."""
    identities = dict[str, SourceIdentity]()
    far = list(filter(is_address, paths))
    if far:
        identities.update(zip(far, opening().identities(far), strict=True))
    every = list[SourceIdentity]()
    for path in paths:
        every.append(identities[path] if path in identities else FileIdentity.of(path))
    return every


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
        far = {number: one for number, one in enumerate(files) if isinstance(one, ObjectIdentity)}
        return FilesIdentity(
            path=files[0].path,
            size=int(sizes.sum()),
            paths=Names.of(one.path for one in files),
            sizes=sizes,
            starts=np.concatenate([[0], np.cumsum(sizes + BETWEEN_NBYTES)[:-1]]),
            mtimes=np.array([getattr(one, "mtime_ns", 0) for one in files], np.int64),
            inodes=np.array([getattr(one, "inode", 0) for one in files], np.uint64).view(np.int64),
            far=far,
            is_far=bool(far),
        )

    @property
    def file_sizes(self) -> tuple[int, ...]:
        """Bytes of each file."""
        return tuple(self.sizes.tolist())

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
