"""Rows gathered straight from a mapping of the file: for unfiltered data in files that nobody truncates.

Measured (docs/notes-staging.md): rows of 1 KiB in random order, two threads, tmpfs: 19 million a second from a
mapping, 3.2 million with a `pread` each. A mapping of a file that is truncated ends the process with SIGBUS, so
only those are mapped that are said to be safe: copies that `h5stream stage` made, which it unlinks and never
truncates.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.emit import Emitter, Program, Sink
from h5stream.engine.plan import counted_from
from h5stream.engine.slots import address_of
from h5stream.errors import TruncatedFileError
from h5stream.order.epoch import Window
from h5stream.order.places import Places
from h5stream.storage.index import MISSING
from h5stream.storage.layout import DIRECT, DatasetPart, SampleLayout
from h5stream.storage.source import FileIdentity

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherTask:
    """Some rows of one dataset part, in any order, copied from the mapping by one thread.

    Attributes
    ----------
    part : DatasetPart
        The dataset.
    rows, batch, within : ndarray of int
        Row numbers of the whole sample sequence, and where each goes, batches counted from the window's first.
    """

    part: DatasetPart
    rows: Places
    batch: Places
    within: Places

    @property
    def first_batch(self) -> int:
        """The earliest batch, counted from the window's first, that needs this task."""
        return int(self.batch.min())

    def split(self) -> Iterator[GatherTask]:
        """Give itself: nothing in it can fail alone."""
        yield self


def can_be_gathered(layout: SampleLayout, number: int) -> bool:
    """Tell whether the rows of a dataset can be copied as they lie: unfiltered, native, in files that are mapped."""
    return all(
        part.access == DIRECT
        and part.file in layout.mapped
        and all(target.leaf is not None and target.leaf.is_whole for target in part.targets)
        for part in layout.datasets[number]
    )


class MappedDatasets:
    """The datasets of a layout whose rows are gathered from mappings.

    # Guarantees: any thread may plan and carry. Each file is mapped once, under `_lock`, and stays mapped until
    the last task that refers to it is done and the object is dropped. Tables of addresses are filled by any
    thread with the same content.
    """

    def __init__(self, layout: SampleLayout, emitter: Emitter) -> None:
        self.numbers = tuple(n for n in range(len(layout.datasets)) if can_be_gathered(layout, n))
        self._layout, self._emitter = layout, emitter
        self._lock = threading.Lock()
        self._files: dict[int, _Mapping] = {}
        self._offsets: dict[tuple[int, int], Ints] = {}

    def close(self) -> None:
        """Let go of the mappings; a later task maps the files again."""
        with self._lock:
            self._files = {}

    def plan(self, window: Window, first_batch: int, skip: tuple[int, ...], task_nbytes: int) -> list[GatherTask]:
        """Cut a window's rows into tasks, in the window's own order."""
        tasks: list[GatherTask] = []
        window = counted_from(window, first_batch)
        for number in self.numbers:
            parts = self._layout.datasets[number]
            if number in skip or not parts[0].pieces:
                continue
            together = max(1, task_nbytes // max(1, parts[0].stored_row_nbytes))
            for low in range(0, len(window.rows), together):
                cut = slice(low, low + together)
                tasks += self._by_part(parts, window.rows[cut], window.batch[cut], window.within[cut])
        return tasks

    def _by_part(
        self, parts: tuple[DatasetPart, ...], rows: Places, batch: Places, within: Places
    ) -> Iterator[GatherTask]:
        if len(parts) == 1:
            yield GatherTask(part=parts[0], rows=rows, batch=batch, within=within)
            return
        of = np.searchsorted(np.array([part.row_start for part in parts]), rows, side="right") - 1
        for number in np.unique(of).tolist():
            ours = of == number
            yield GatherTask(part=parts[number], rows=rows[ours], batch=batch[ours], within=within[ours])

    def carry(self, task: GatherTask, sink: Sink) -> None:
        """Copy the rows to their places.

        Raises
        ------
        TruncatedFileError, SourceChangedError
            If the file is not what it was; looked at before it is touched.
        """
        part = task.part
        mapping = self._mapping(part.file)
        mapping.check()
        for program in self._emitter.programs_of(part):
            for piece in range(len(part.pieces)):
                self._gather(task, sink, mapping, program, piece)

    def _gather(self, task: GatherTask, sink: Sink, mapping: _Mapping, program: Program, piece: int) -> None:
        part, number = task.part, program.target.field
        kernels.gather(
            mapping.address,
            self._offsets_of(part, piece, mapping.nbytes),
            part.chunk_rows,
            part.row_start,
            int(program.strides[piece]),
            address_of(program.fill_rows[piece]),
            program.segments_nbytes[piece],
            task.rows,
            task.batch,
            task.within,
            sink.slots,
            sink.format.offsets[number],
            sink.row_nbytes[number],
        )

    def _mapping(self, number: int) -> _Mapping:
        with self._lock:
            if number not in self._files:
                self._files[number] = _Mapping(self._layout.files[number])
            return self._files[number]

    def _offsets_of(self, part: DatasetPart, piece: int, file_nbytes: int) -> Ints:
        """Give the place in the file of each chunk that crosses a piece of the row, `MISSING` where there is none."""
        key = (id(part), piece)
        if key not in self._offsets:
            index = part.index
            assert index is not None
            chunks = np.arange(index.grid[0], dtype=np.int64)
            place = index.find(chunks * index.columns + part.pieces[piece].number)
            stored = place != MISSING
            offsets = np.full(len(place), MISSING, dtype=np.int64)
            offsets[stored] = index.offset[place[stored]]
            rows = np.minimum(part.chunk_rows, part.rows - chunks * part.chunk_rows)
            nbytes = rows * part.pieces[piece].row_elements * part.stored_element_nbytes
            # Not by their ends, which may be too large for an integer.
            beyond = (offsets < 0) | (nbytes < 0) | (offsets > file_nbytes - nbytes)
            self._check_inside(part, bool(beyond[stored].any()), file_nbytes)
            self._offsets[key] = offsets
        return self._offsets[key]

    def _check_inside(self, part: DatasetPart, beyond: bool, file_nbytes: int) -> None:
        if beyond:
            path = self._layout.files[part.file].path
            raise TruncatedFileError(
                f"{path!r}, dataset {part.path!r}: rows are said to lie beyond the file's {file_nbytes} bytes. "
                "Copy it again from its source.",
                file=path,
            )


class _Mapping:
    """One file in memory, read-only, for as long as somebody refers to it."""

    def __init__(self, identity: FileIdentity) -> None:
        self._identity, self.nbytes = identity, identity.size
        identity.check_unchanged()
        self._file = open(identity.path, "rb", buffering=0)  # noqa: SIM115  open for as long as it is mapped
        self.check()
        self._memory: Any = np.frombuffer(mmap.mmap(self._file.fileno(), self.nbytes, prot=mmap.PROT_READ), np.uint8)
        self.address = address_of(self._memory)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def check(self) -> None:
        """Look whether the file still has all its bytes: one system call, against a SIGBUS."""
        if os.fstat(self._file.fileno()).st_size < self.nbytes:
            self._identity.check_unchanged()
            raise TruncatedFileError(
                f"{self._identity.path!r} was truncated while it was read; stage it again", file=self._identity.path
            )
