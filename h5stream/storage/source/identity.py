"""Interfaces of byte sources: an identity detects changes of a file, and opens the source of its bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from h5stream.errors import TruncatedFileError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceIdentity:
    """The state of one or several files when they were opened, on a disk or in a store.

    # Guarantees: immutable, hashable and picklable, so that other processes can open the source.
    """

    path: str  # as the user gave it
    size: int  # bytes
    is_far: bool = field(default=False, compare=False, repr=False)  # whether any of it is an object in a store

    @property
    def file_sizes(self) -> tuple[int, ...]:
        """Bytes of each file."""
        return (self.size,)

    @property
    def is_watched(self) -> bool:
        """Whether anything but the size can reveal that the file was replaced."""
        return True

    def at(self, offset: int) -> tuple[SourceIdentity, int]:
        """Return the file that contains a byte, and the byte's offset in it."""
        return self, offset

    def each(self) -> Sequence[SourceIdentity]:
        """Return the identities of all its files."""
        return [self]

    def check_unchanged(self) -> None:
        """Raise `SourceChangedError` if the path leads to other bytes now; does nothing if reads check that."""

    def open(self) -> ByteSource:
        """Return the source; it may open the file only at the first read."""
        raise NotImplementedError

    def for_structure(self) -> ByteSource:
        """Return a source suited to many small reads of metadata."""
        return self.open()

    def ends_early(self, offset: int, wanted: int, present: int) -> TruncatedFileError:
        """Return the error for a read of `wanted` bytes at an offset with only `present` bytes."""
        return TruncatedFileError(
            f"{self.path!r} ends early: {wanted} bytes are promised at byte {offset}, {present} are there (it has "
            f"{self.size}). Copy it again from its source.",
            file=self.path,
        )


@dataclass(eq=False)
class Descriptor:
    """A file descriptor that is closed with its last reference, so that its number is never reused under a reader."""

    number: int = -1  # with a default, so that `__del__` works if Ctrl-C interrupts `__init__`

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            _close(self.number)


class ByteSource:
    """The bytes of one file, or of several.

    # Guarantees: any thread may read, at any time, also after `close`, which releases what is open until then. Memory
    to be filled belongs to the caller; the source keeps no reference to it. Pickling carries the identity.
    """

    gap_nbytes = 0  # gaps between two reads up to which one larger read is faster
    has_descriptor = False  # whether `descriptor` returns one

    def __init__(self, identity: Any) -> None:
        self.identity = identity  # the state of the file when it was opened

    def __reduce__(self) -> tuple[Callable[[], ByteSource], tuple[()]]:
        return self.identity.open, ()

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset."""
        raise NotImplementedError

    def descriptor(self) -> Descriptor | None:
        """Return a descriptor of a local file, open as long as it is referenced; None for other sources."""
        return None

    def close(self) -> None:
        """Release open files; a later read opens them again."""
