"""Many files as one source of bytes: their bytes lie one behind the other, with gaps that no read goes over.

Each read opens its file and closes it again, so that tens of thousands of files hold no descriptor, and looks before it
closes it whether the file is what it was: one that was replaced or written to is told at the read that meets it.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled._native import read_files
from h5stream.storage.names import Names
from h5stream.storage.source import LOCAL_GAP_NBYTES, FileIdentity

Ints = NDArray[np.int64]

BETWEEN_NBYTES = 1 << 20
"""From one file's last byte to the next one's first: more than any read goes over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilesIdentity:
    """What many files were when they were opened."""

    paths: Names  # as they were given
    sizes: Ints  # sizes, mtimes, inodes: as in `FileIdentity`
    mtimes: Ints
    inodes: Ints
    starts: Ints  # where the bytes of each begin

    @classmethod
    def of(cls, files: Sequence[FileIdentity]) -> FilesIdentity:
        """Put files one behind the other."""
        sizes, mtimes = (np.array([getattr(one, name) for one in files], np.int64) for name in ("size", "mtime_ns"))
        inodes = np.array([one.inode for one in files], np.uint64).view(np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes + BETWEEN_NBYTES)[:-1]])
        return cls(paths=Names.of(one.path for one in files), sizes=sizes, mtimes=mtimes, inodes=inodes, starts=starts)

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
        for each in (self.paths.edges, self.sizes, self.mtimes, self.inodes):
            digest.update(each.tobytes())
        return digest.hexdigest()

    def at(self, offset: int) -> tuple[FileIdentity, int]:
        """Return the file that a byte lies in, and where it lies there."""
        k = int(np.searchsorted(self.starts, offset, side="right")) - 1
        size, mtime_ns, inode = (int(each[k]) for each in (self.sizes, self.mtimes, self.inodes))
        inode &= (1 << 64) - 1
        return FileIdentity(path=self.paths[k], size=size, mtime_ns=mtime_ns, inode=inode), offset - int(self.starts[k])

    def each(self) -> list[FileIdentity]:
        """Return every file."""
        return [self.at(start)[0] for start in self.starts.tolist()]

    def over(self, copies: Sequence[FileIdentity]) -> FilesIdentity:
        """Return the same of copies."""
        return FilesIdentity.of(copies)

    def check_unchanged(self) -> None:
        """Do nothing: each read looks at its file."""

    def open(self) -> FilesBytes:
        """Return the bytes."""
        return FilesBytes(self)


class FilesBytes:
    """Positional reads of many files.

    # Guarantees: any thread may read at any time; nothing is open between two reads. Pickling carries the identity.
    """

    gap_nbytes = LOCAL_GAP_NBYTES
    concurrency = 0
    has_descriptor = False

    def __init__(self, identity: FilesIdentity) -> None:
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
        arrays = [np.frombuffer(target, dtype=np.uint8) for target in targets]
        places = np.array([array.ctypes.data for array in arrays], dtype=np.int64)
        self.read_each(np.array(offsets, np.int64), np.array([array.size for array in arrays], np.int64), places)

    def read_each(self, offsets: Ints, nbytes: Ints, places: Ints) -> None:
        """Read to addresses."""
        files, done = self.identity, 0
        known = self._paths, self._path_at, files.sizes, files.mtimes, files.inodes
        which = np.searchsorted(files.starts, offsets, side="right") - 1
        inside = offsets - files.starts[which]
        while done < len(which):
            done += read_files(*known, which[done:], inside[done:], nbytes[done:], places[done:])
            if done < len(which):  # once more in the ordinary way, which says what is wrong, or gets over it
                own, offset = files.at(int(offsets[done]))
                memory = (ctypes.c_ubyte * int(nbytes[done])).from_address(int(places[done]))
                source = own.open()
                try:
                    source.read_into(offset, memoryview(memory).cast("B"))
                    own.check_unchanged()
                finally:
                    source.close()
                done += 1
