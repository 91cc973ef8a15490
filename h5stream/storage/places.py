"""Opening files with h5py, and places: in which file a dataset is, and under which path there, behind all links."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import h5py

from h5stream.errors import H5StreamError, NotHDF5Error, SourceError, TruncatedFileError
from h5stream.storage.external import Guard, without_soft_links
from h5stream.storage.handles import open_file
from h5stream.storage.remote import check_reads, is_address
from h5stream.storage.source import SourceIdentity, absolute, identity_of, no_such_file, not_permitted


@contextlib.contextmanager
def open_hdf5(path: str) -> Iterator[Any]:
    """Open an HDF5 file for reading, beside whatever has it open, and close it at the end."""
    try:
        file = open_file(path)
    except FileNotFoundError:
        raise no_such_file(path) from None
    except OSError as error:
        check_reads(path)
        raise _explain_open_failure(path, error) from None
    with file:
        try:
            yield file
            check_reads(path)
        except H5StreamError:
            check_reads(path)
            raise
        except MemoryError as error:
            raise SourceError(
                f"there is no memory for what {path!r} says it holds ({error}); it is damaged, or its rows or chunks "
                "are too large for this machine",
                file=path,
            ) from error
        except (RuntimeError, OSError, KeyError, UnicodeError) as error:  # what h5py makes of libhdf5's failures
            check_reads(path)
            raise SourceError(f"libhdf5 cannot read the structure of {path!r}: {error}", file=path) from error


def _explain_open_failure(path: str, error: OSError) -> SourceError:
    text = str(error)
    if isinstance(error, PermissionError) or error.errno in (errno.EACCES, errno.EPERM):
        return not_permitted(path)
    if "truncated file" in text:
        return TruncatedFileError(f"{path!r} is truncated: {text}. Copy it again from its source.", file=path)
    if "signature not found" in text:
        return NotHDF5Error(
            f"{path!r} is not an HDF5 file: it has no HDF5 signature ({identity_of(path).size} bytes).", file=path
        )
    return SourceError(f"libhdf5 cannot open {path!r}: {text}", file=path)


class Files:
    """The files that were named, and behind them those that links of theirs lead to."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.identities, self.named = [identity_of(path) for path in paths], len(paths)
        self._numbers: dict[Any, int] = {}

    def number_of(self, path: str) -> int:
        """Return a file's number; one that was not named is added."""
        if not self._numbers:
            self._numbers = {_inode(identity.path): n for n, identity in reversed([*enumerate(self.identities)])}
        number = self._numbers.setdefault(_inode(path), len(self.identities))
        if number == len(self.identities):
            self.identities.append(identity_of(path))
        return number


def _inode(path: str) -> Any:
    if is_address(path):
        return path
    try:
        stat = os.stat(path)
    except OSError:
        identity_of(path)  # says what is wrong with it
        raise
    return stat.st_dev, stat.st_ino


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a dataset is: in which file, and under which path there, behind all links.

    `unresolved` says why only the path that was asked for leads to it.
    """

    number: int
    identity: SourceIdentity
    dataset: Any
    path: str
    unresolved: str = ""


class OpenFile:
    """One of the files that were named, open, and those that its links lead to."""

    def __init__(self, file: Any, number: int, files: Files, guard: Guard, linked: contextlib.ExitStack) -> None:
        self.file, self.number, self.files, self.guard = file, number, files, guard
        self.identity = files.identities[number]
        self._linked = linked

    def opened(self, path: str) -> Any:
        """Open another file, which is closed with this one."""
        self.files.number_of(path)  # the file as it was before it was opened
        return self._linked.enter_context(open_hdf5(path))

    def place(self, dataset: Any, path: str, file: Any = "") -> Place:
        """Follow the links to a dataset, so that it is read as if its own file had been named; `file` is that here."""
        if file:
            number = self.files.number_of(file)
            return Place(number=number, identity=self.files.identities[number], dataset=dataset, path=path)
        here = Place(number=self.number, identity=self.identity, dataset=dataset, path=path)
        if dataset.file.filename == self.file.filename:
            return here
        # libhdf5 knows a path in the other file only for what was not reached over a soft link in this one.
        found = self.file[without_soft_links(self.file, path)]
        target, name = absolute(os.fsdecode(found.file.filename)), found.name
        self.guard.check_file(path, target, self.identity.path)
        number = self.files.number_of(target)  # the file as it was before it was opened by its own name
        file = self._linked.enter_context(open_hdf5(target))
        there = file.get(name) if name else None
        if not isinstance(there, h5py.Dataset) or _address(there) != _address(found):
            return replace(here, unresolved="it lies in another file, behind an external link")
        identity = self.files.identities[number]
        return Place(number=number, identity=identity, dataset=there, path=name.strip("/"))


def _address(dataset: Any) -> int:
    """Return where a dataset lies in its file."""
    return int(h5py.h5o.get_info(dataset.id).addr)
