"""A ragged field of many files that are a sample each: one dataset of each, alike but in its number of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import TruncatedFileError
from h5stream.storage.header_bytes import CHUNKED, CONTIGUOUS
from h5stream.storage.headers import Headers, chunks_of
from h5stream.storage.layout import DECODED, DIRECT
from h5stream.storage.lookups import LookedUp
from h5stream.storage.many_files import FilesIdentity
from h5stream.storage.metadata_bytes import NOWHERE
from h5stream.storage.names import Names
from h5stream.storage.object_rows import ObjectRows, Stored, asked_of, together
from h5stream.storage.objects import UnlikeError

Ints = NDArray[np.int64]
Owned = tuple[Ints, Ints, Ints, Ints, Ints]
"""Of chunks: file, number, offset, bytes, filter mask."""


class RowsOfFiles:
    """The rows that files have of a ragged field.

    Parameters
    ----------
    first : LookedUp
        What the first file gives.
    file : h5py.File
        That file, open.
    count : int
        How many files there are.
    """

    def __init__(self, first: LookedUp, file: Any, count: int) -> None:
        if len(first.parts) != 1 or first.parts[0].access not in (DIRECT, DECODED) or first.parts[0].index is None:
            raise UnlikeError(first.name)
        self.first, self.template = first, first.parts[0]
        self.path, self._is_chunked = self.template.path, file[self.template.path].chunks is not None
        self._kind, self._rows, self._chunks = asked_of(file, self.path).kind, np.zeros(count, np.int64), list[Owned]()

    def understood(self, givens: Ints, headers: Headers) -> tuple[NDArray[np.bool_], Ints, Owned]:
        """Say of which files it is stored as in the first of them, how many rows each has, and where chunks lie."""
        alike = (headers.kind == headers.kind[0]) & (headers.kind >= 0) & (headers.rank == headers.rank[0])
        alike &= (headers.rank > 0) & (headers.dims[:, 1:] == headers.dims[:1, 1:]).all(axis=1)
        rows = headers.dims[:, 0] if headers.dims.shape[1] else np.zeros(len(alike), np.int64)
        owner, none = np.flatnonzero(alike & (headers.address != NOWHERE)), np.zeros(0, np.int64)
        if headers.layout[0] == CONTIGUOUS:
            zeros = np.zeros_like(owner)
            return alike, rows, (owner, zeros, headers.address[owner], headers.nbytes[owner], zeros)
        if headers.layout[0] != CHUNKED or not alike.any():
            return np.zeros(len(alike), dtype=bool), rows, (none, none, none, none, none)
        which = np.flatnonzero(alike)
        chunks = chunks_of(givens, headers, which)
        alike[which[~chunks.understood]] = False
        mask = chunks.filter_mask.astype(np.int64)
        return alike, rows, (chunks.owner, chunks.number, chunks.offset, chunks.nbytes, mask)

    def take(self, files: Ints, alike: NDArray[np.bool_], rows: Ints, chunks: Owned) -> None:
        """Take what was found of some files, of those that are alike."""
        owner, *others = chunks
        ours = alike[owner]
        self._rows[files[alike]] = rows[alike]
        self._chunks.append((files[owner[ours]], *(each[ours] for each in others)))  # type: ignore[arg-type]

    def ask(self, file: Any, k: int) -> None:
        """Ask libhdf5 for those of one file."""
        asked = asked_of(file, self.path)
        if asked.kind != self._kind:
            raise UnlikeError(self.path)
        self._rows[k] = asked.shape[0]
        number, offset, nbytes, mask = asked.chunks.T
        self._chunks.append((np.full(len(number), k), number, offset, nbytes, mask))

    def compare(self, file: Any, k: int) -> None:
        """Refuse what was found of a file if libhdf5 sees it otherwise."""
        asked, ours = asked_of(file, self.path), self._columns(k)
        if asked.kind != self._kind or asked.shape[0] != self._rows[k] or not np.array_equal(ours, asked.chunks):
            raise UnlikeError(self.path)

    def add_to(self, known: LookedUp, files: FilesIdentity) -> None:
        """Put the rows of all files one behind the other, as what is looked up.

        Raises
        ------
        TruncatedFileError
            If some are said to lie beyond a file's end.
        """
        owner, number, offset, nbytes, mask = (np.concatenate(each) for each in zip(*self._chunks, strict=True))
        index, count = self.template.index, len(self._rows)
        assert index is not None
        chunk_rows = np.full(count, index.chunk_shape[0]) if self._is_chunked else np.maximum(self._rows, 1)
        if (np.bincount(owner, minlength=count) < -(-self._rows // chunk_rows) * index.columns).any():
            raise UnlikeError(self.path)  # what was never written has a value that must be asked for
        beyond = np.flatnonzero((offset < 0) | (nbytes < 0) | (offset > files.sizes[owner] - nbytes))
        if len(beyond):
            path = files.paths[int(owner[beyond[0]])]
            raise TruncatedFileError(f"{path!r}: bytes of {self.path!r} are said to lie beyond its end", file=path)
        stored = Stored(
            which=np.arange(count),
            rows=self._rows,
            owner=owner,
            number=number,
            offset=offset + files.starts[owner],
            nbytes=nbytes,
            filter_mask=mask,
        )
        names = Names.of([self.path] * count)
        part, first = together(self.template, stored, names, is_chunked=self._is_chunked)
        known.entry, known.is_given, known.layouts = self.first.entry, True, self.first.layouts
        known.add_rows(
            *known.add_objects(ObjectRows(parts=[replace(part, file=0, row_start=0)], first=first, counts=self._rows))
        )

    def _columns(self, k: int) -> Ints:
        """Give the chunks of one file."""
        some = (np.stack(each[1:], axis=1)[each[0] == k] for each in self._chunks)
        return np.concatenate([np.zeros((0, 4), np.int64), *some])
