"""What bytes are read from: an identity, which tells whether they are still the same, and the source that it opens."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from h5stream.errors import TruncatedFileError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceIdentity:
    """What a file was when it was opened, wherever it lies; or what several were.

    # Guarantees: immutable, hashable and pickled: it travels to other processes and opens its source there.
    """

    path: str  # the path as it was given
    size: int  # bytes

    @property
    def file_sizes(self) -> tuple[int, ...]:
        """Bytes of each file, where it stands for several."""
        return (self.size,)

    @property
    def is_far(self) -> bool:
        """Whether any of it is an object in a store."""
        return False

    @property
    def is_watched(self) -> bool:
        """Whether anything but its size tells that other bytes took its place."""
        return True

    def at(self, offset: int) -> tuple[SourceIdentity, int]:
        """Return the file that a byte lies in, and where it lies there."""
        return self, offset

    def each(self) -> Sequence[SourceIdentity]:
        """Return every file that it stands for."""
        return [self]

    def check_unchanged(self) -> None:
        """Raise `SourceChangedError` if the path no longer leads to the same bytes; reads may tell that themselves."""

    def open(self) -> ByteSource:
        """Return the bytes; they may be opened only when they are first read."""
        raise NotImplementedError

    def for_structure(self) -> ByteSource:
        """Return the bytes for who reads many small pieces of their structure."""
        return self.open()

    def ends_early(self, offset: int, wanted: int, there: int) -> TruncatedFileError:
        """Return the error for bytes that are promised at an offset, and of which only some are there."""
        return TruncatedFileError(
            f"{self.path!r} ends early: {wanted} bytes are promised at byte {offset}, {there} are there (it has "
            f"{self.size}). Copy it again from its source.",
            file=self.path,
        )


class Descriptor:
    """An open descriptor, closed when the last reference to it goes, so that no reader's number changes its meaning."""

    number = -1  # until it is known: Ctrl-C may come before

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            _close(self.number)


class ByteSource:
    """The bytes of one file, or of several.

    # Guarantees: any thread may read, at any time, also after `close`, which lets go of what is open until then. Memory
    to be filled belongs to the caller; the source keeps nothing of it. Pickling carries the identity.
    """

    gap_nbytes = 0  # bytes between two reads that are better read along than skipped
    has_descriptor = False  # whether `descriptor` gives one

    def __init__(self, identity: Any) -> None:
        self.identity = identity  # what the file was when it was opened

    def __reduce__(self) -> tuple[Any, ...]:
        return self.identity.open, ()

    def read_many(self, offsets: Sequence[int], targets: Sequence[memoryview]) -> None:
        """Fill each target with the bytes that start at its offset."""
        raise NotImplementedError

    def descriptor(self) -> Descriptor | None:
        """Return an open descriptor of a local file, for the caller's own reads; it is open as long as it is held."""
        return None

    def close(self) -> None:
        """Let go of what is open; a later read opens it again."""
