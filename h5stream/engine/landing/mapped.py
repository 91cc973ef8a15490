"""Rows gathered straight from a mapping of the file: for unfiltered data in files that are never truncated.

Measured (docs/notes-staging.md): rows of 1 KiB in random order, two threads, tmpfs: 19 million a second from a
mapping, 3.2 million with a `pread` each. A mapping of a file that is truncated ends the process with SIGBUS, so
only those are mapped that are said to be safe: copies that `h5stream stage` made, which it unlinks and never
truncates.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.counters import clock
from h5stream.engine.landing.programs import Program, programs_of
from h5stream.engine.plan import Placement
from h5stream.engine.slots import address_of
from h5stream.engine.tasks import Destination, LandingTask, Tools
from h5stream.errors import TruncatedFileError
from h5stream.samples.box_space import BoxSpace
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DIRECT, DatasetPart, SampleLayout
from h5stream.storage.source import SourceIdentity

Ints = NDArray[np.int64]


def can_be_mapped(layout: SampleLayout, number: int) -> bool:
    """Tell whether the rows of a dataset can be copied as they lie: unfiltered, native, in files that are mapped."""
    return not isinstance(layout.space, BoxSpace) and all(
        part.access == DIRECT
        and part.file in layout.mapped
        and not any(layout.fields[target.field].images for target in part.targets)
        and all(target.leaf is not None and target.leaf.is_whole for target in part.targets)
        for part in layout.datasets[number]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedTask(LandingTask):
    """Some rows of one dataset part, in any order."""

    rows_of_part: MappedPart  # the dataset part
    placement: Placement  # the rows, and where they go

    def land(self, stored: Iterator[Any], destination: Destination, tools: Tools) -> None:
        """Copy the rows to their places; whether the file is what it was is looked at before it is touched."""
        since = clock()
        self.rows_of_part.copy(self.placement.each_row(), destination)
        tools.tally.scattered(since)


class MappedPart:
    """The rows of one dataset part in a mapping of its file.

    # Guarantees: any thread may copy. Tables of addresses are filled by any thread with the same content.
    """

    def __init__(self, part: DatasetPart, files: MappedFiles) -> None:
        self.part, self._files = part, files
        self._offsets: dict[int, Ints] = {}

    @functools.cached_property
    def _programs(self) -> tuple[Program, ...]:
        return programs_of(self.part)

    def copy(self, placement: Placement, destination: Destination) -> None:
        """Copy rows to their places."""
        mapping = self._files.mapping(self.part.file)
        mapping.check()
        for program in self._programs:
            for piece in range(len(self.part.pieces)):
                self._copy_piece(placement, destination, mapping, program, piece)

    def _copy_piece(
        self, placement: Placement, destination: Destination, mapping: _Mapping, program: Program, piece: int
    ) -> None:
        kernels.gather(
            mapping.address,
            self._offsets_of(piece, mapping),
            self.part.chunk_rows,
            self.part.row_start,
            int(program.strides[piece]),
            address_of(program.fill_rows[piece]),
            program.segments_nbytes[piece],
            *destination.of(program.field, placement),
        )

    def _offsets_of(self, piece: int, mapping: _Mapping) -> Ints:
        """Return where each chunk that holds a piece of the row begins in the file, `MISSING` where there is none."""
        offsets = self._offsets.get(piece)
        if offsets is None:
            part, index = self.part, self.part.chunk_index
            chunks = np.arange(index.grid[0], dtype=np.int64)
            entry = index.find(chunks * index.columns + part.pieces[piece].number)
            stored = entry != MISSING
            offsets = np.full(len(entry), MISSING, dtype=np.int64)
            offsets[stored] = index.offset[entry[stored]]
            rows = np.minimum(part.chunk_rows, part.rows - chunks * part.chunk_rows)
            nbytes = rows * part.pieces[piece].row_elements * part.stored_element_nbytes
            # Not by their ends, which may be too large for an integer.
            beyond = (offsets < 0) | (nbytes < 0) | (offsets > mapping.nbytes - nbytes)
            if beyond[stored].any():
                raise TruncatedFileError(
                    f"{mapping.path!r}, dataset {part.path!r}: rows are said to lie beyond the file's "
                    f"{mapping.nbytes} bytes. Copy it again from its source.",
                    file=mapping.path,
                )
            self._offsets[piece] = offsets
        return offsets


class MappedRows:
    """The rows of a dataset whose files are all mapped."""

    def __init__(self, parts: Sequence[DatasetPart], files: MappedFiles) -> None:
        self._parts = [MappedPart(part, files) for part in parts]
        self._starts = np.array([part.row_start for part in parts])
        self._row_nbytes = max(1, parts[0].stored_row_nbytes)

    def plan(self, placement: Placement, task_nbytes: int) -> Iterator[MappedTask]:
        """Cut rows, in any order, into tasks."""
        for some in placement.in_steps(max(1, task_nbytes // self._row_nbytes)):
            if len(self._parts) == 1:
                yield MappedTask(rows_of_part=self._parts[0], placement=some)
                continue
            of = np.searchsorted(self._starts, some.rows, side="right") - 1
            for number in np.unique(of).tolist():
                yield MappedTask(rows_of_part=self._parts[number], placement=some[of == number])


class MappedFiles:
    """The mappings of a layout's files.

    # Guarantees: any thread may ask. Each file is mapped once, under `_lock`, and stays mapped until the last task that
    refers to it is done and the object is dropped.
    """

    def __init__(self, identities: Sequence[SourceIdentity]) -> None:
        self._identities = identities
        self._lock = threading.Lock()
        self._files: dict[int, _Mapping] = {}

    def close(self) -> None:
        """Let go of the mappings; a later task maps the files again."""
        with self._lock:
            self._files = {}

    def mapping(self, number: int) -> _Mapping:
        """Return the mapping of a file."""
        with self._lock:
            if number not in self._files:
                self._files[number] = _Mapping(self._identities[number])
            return self._files[number]


class _Mapping:
    """One file in memory, read-only, for as long as anything refers to it."""

    def __init__(self, identity: SourceIdentity) -> None:
        self._identity, self.path, self.nbytes = identity, identity.path, identity.size
        identity.check_unchanged()
        self._file = open(identity.path, "rb", buffering=0)  # noqa: SIM115  open for as long as it is mapped
        self.check()
        self.memory: Any = np.frombuffer(mmap.mmap(self._file.fileno(), self.nbytes, prot=mmap.PROT_READ), np.uint8)
        self.address = address_of(self.memory)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def check(self) -> None:
        """Look whether the file still has all its bytes: one system call, against a SIGBUS."""
        if os.fstat(self._file.fileno()).st_size < self.nbytes:
            self._identity.check_unchanged()
            raise TruncatedFileError(f"{self.path!r} was truncated while it was read; stage it again", file=self.path)
