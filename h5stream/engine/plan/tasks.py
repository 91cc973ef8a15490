"""Tasks of reader threads, the tools that they use, and the destinations of their rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import LifoQueue
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.engine.plan.placement import Ints, Placement
from h5stream.engine.slots import SlotFormat, address_of
from h5stream.engine.statistics import Tally, clock
from h5stream.storage.decode.filters import DecodeScratch
from h5stream.storage.file.h5py_reader import H5pyReader
from h5stream.storage.layout.layout import DatasetPart, FieldLayout
from h5stream.storage.source.identity import ByteSource, Descriptor
from h5stream.storage.source.local import FilesBytes

Bytes = NDArray[np.uint8]

Where = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""The address of each batch's slot, where each field begins in a slot, and the bytes of one of its rows."""

NONE = np.zeros(0, dtype=np.int64)
"""In place of numbers that are not needed."""

GOING_ON = np.zeros(1, dtype=np.int32)
"""For tasks that nobody stops."""

TASK_NBYTES = 2 * 1024 * 1024
"""Decoded bytes of one task: a few chunks, so that threads meet rarely and still share a window evenly."""

COPIED_TASK_NBYTES = 8 * 1024 * 1024
"""Bytes of one task that decodes nothing, or one chunk after the other: a thread that comes back for another has to
wait until those that run Python let it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The destination of a window's rows."""

    slots: NDArray[np.int64]  # address of each batch's slot, counted from the window's first batch
    format: SlotFormat  # where the fields begin in a slot
    # bytes of what goes to one place, for each field: of a row, also where a sample has several
    row_nbytes: tuple[int, ...]
    objects: Sequence[dict[int, Any]] = ()  # for each batch, by field number, the list that its objects go into
    # by field number, the address of what each batch has of a ragged field, or an array of objects
    ragged: Mapping[int, Any] = field(default_factory=dict)

    @classmethod
    def of_batch(
        cls,
        memory: Bytes,
        slot_format: SlotFormat,
        fields: Sequence[FieldLayout],
        objects: Sequence[dict[int, Any]] = (),
    ) -> Destination:
        """Return memory as the only batch that rows go to."""
        slots, row_nbytes = np.array([address_of(memory)], dtype=np.int64), tuple(one.placed_nbytes for one in fields)
        return cls(slots=slots, format=slot_format, row_nbytes=row_nbytes, objects=objects)

    @classmethod
    def nowhere(cls, fields: Sequence[FieldLayout]) -> Destination:
        """Return no batch, for what only keeps rows in memory."""
        return cls(
            slots=NONE,
            format=SlotFormat(rows=0, offsets=(0,) * len(fields), nbytes=0),
            row_nbytes=tuple(one.placed_nbytes for one in fields),
        )

    def of(self, field: int, placement: Placement) -> tuple[Any, ...]:
        """Return the arguments that all scattering kernels end with: the rows of a field, and where each goes."""
        slots, offset = self._begin_of(field)
        return placement.rows, placement.batch, placement.within, slots, offset, self.row_nbytes[field]

    def _begin_of(self, field: int) -> tuple[NDArray[np.int64], int]:
        """Return an address for each batch, and where a field begins behind it."""
        ragged = self.ragged.get(field)
        return (self.slots, self.format.offsets[field]) if ragged is None else (ragged, 0)

    def scatter(self, field: int, placement: Placement, source: int, stride: int, segments: NDArray[np.int64]) -> None:
        """Copy rows, or spans of them, of a field from memory to their places; see `kernels.scatter`."""
        if placement.counts is None:
            kernels.scatter(source, stride, segments, *self.of(field, placement))
        elif stride == 0:
            kernels.scatter(source, stride, segments, *self.of(field, placement.each_row()))
        else:
            rows, *to = self.of(field, placement)
            kernels.scatter_spans(source, stride, segments, rows, placement.lengths, *to)

    def scatter_whole(self, field: int, placement: Placement, source: Bytes, stride: int) -> None:
        """Copy rows in memory to batches, in the same form; with a `stride` of 0 one row goes to all places."""
        nbytes = stride or source.nbytes
        if nbytes:
            self.scatter(field, placement, address_of(source), stride, np.array([[0, 0, nbytes]], dtype=np.int64))

    def put(self, field: int, placement: Placement, values: Iterable[Any]) -> None:
        """Put objects, one a row, to their places in a field's lists."""
        ragged = self.ragged.get(field)
        for value, batch, within in zip(values, placement.batch.tolist(), placement.within.tolist(), strict=True):
            (self.objects[batch][field] if ragged is None else ragged[batch])[within] = value

    def of_each(self, fields: Sequence[int], placement: Placement) -> tuple[Any, ...]:
        """Return the same for several fields at once, spans as they are: offsets and row lengths are arrays then."""
        return placement.rows, placement.lengths, placement.batch, placement.within, *self.of_fields(fields)

    def of_fields(self, fields: Sequence[int]) -> Where:
        """Return where some fields are."""
        begins = [self._begin_of(field) for field in fields]
        slots = begins[0][0]  # a ragged field is alone
        offsets = np.array([offset for _, offset in begins], dtype=np.int64)
        return slots, offsets, np.array([self.row_nbytes[field] for field in fields], dtype=np.int64)


@dataclass(slots=True)
class Tools:
    """The tools that carry out a task.

    # Guarantees: belongs to one thread, as its scratch and its counters do; sources and h5py's files are shared. Who
    # has borrowed what it decodes with gives it back before the next read, so that a wait for it ends; only what h5py
    # is asked for, a chunk that does not decode, is fetched meanwhile.
    """

    sources: Sequence[ByteSource]
    h5py: H5pyReader
    scratch: DecodeScratch
    tally: Tally
    decoders: LifoQueue[DecodeScratch] | None = None  # to borrow from; None where a thread decodes with its own
    stop: NDArray[np.int32] = field(default_factory=lambda: GOING_ON)  # (1,): not 0 once nothing more is wanted
    _borrowed: DecodeScratch | None = field(default=None, init=False)

    @property
    def decoding(self) -> DecodeScratch:
        """Scratch for decoding until the next read; waits while all processors decode."""
        if self.decoders is None:
            return self.scratch
        if self._borrowed is None:
            self._borrowed = self.decoders.get()
        return self._borrowed

    def give_back(self) -> None:
        """Return borrowed scratch to the other threads."""
        if self.decoders is not None and self._borrowed is not None:
            self.decoders.put(self._borrowed)
            self._borrowed = None

    def land(self, part: Native, at: NDArray[np.int64], descriptor: int, destination: Destination) -> int:
        """Carry out a native plan; return the first unit that was not brought. `at` has their addresses."""
        where = destination.of_fields(part.fields)
        scratch = self.decoding.native.address
        return kernels.land(
            part.plan, part.first, part.last, descriptor, at, *where, scratch, self.stop, self.tally.native
        )

    def read(self, file: int, offsets: NDArray[np.int64], nbytes: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
        """Read ranges of a file to scratch, one behind the other; gives the bytes, and where each begins there."""
        self.give_back()
        source, began, places, count = self.sources[file], clock(), np.cumsum(nbytes) - nbytes, len(nbytes)
        data = self.scratch.buffer("read", int(nbytes.sum()))
        if not count:
            return data, places
        if isinstance(source, FilesBytes):
            source.read_each(offsets, nbytes, address_of(data) + places)
        else:
            ends = zip(places.tolist(), (places + nbytes).tolist(), strict=True)
            source.read_many(offsets.tolist(), [data[low:high].data for low, high in ends])
        self.tally.read(began, data.nbytes, count)
        return data, places


class Native(NamedTuple):
    """Part of a plan that is data alone: a thread carries it out without Python."""

    plan: kernels.Plan
    first: int  # its units: chunks, or entries of a placement
    last: int
    fields: tuple[int, ...]  # that it fills
    file: int | None  # that it reads from; None if it copies what is in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Some rows of a window that one thread brings: the function that reads them and brings them to their places.

    What it does was decided when it was planned. Where `native` says all of it, kernels carry it out first, and the
    function brings what they could not: from the unit on that `rest` is given.

    # Guarantees: immutable, and rows are written to the places that they were meant for: any thread may carry it out,
    and more than once.
    """

    shared: Placement  # where its rows go, which may be some of these
    bring: Callable[[Placement, Destination, Tools], None]
    own: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None  # its rows, as ranges of `shared`; None for all
    apart: Callable[[Task], Iterable[Task]] = lambda task: (task,)  # the smallest tasks, each of which may fail alone
    # Says that what it decodes is in memory, if it stays there: of what is native up to a unit, or all.
    kept: Callable[[int | None], None] | None = None
    native: Native | None = None
    rest: Callable[[int], Task] | None = None

    @property
    def placement(self) -> Placement:
        """Its rows, and where they go; put together only where something failed, if they are some of many."""
        if self.own is None:
            return self.shared
        ranges = zip(*(each.tolist() for each in self.own), strict=True)
        return self.shared[np.concatenate([np.arange(low, high) for low, high in ranges])]

    def land(self, destination: Destination, tools: Tools) -> None:
        """Bring the rows to their places."""
        try:
            self.bring(self.shared, destination, tools)
        finally:
            tools.give_back()
        if self.kept is not None:
            self.kept(None)


def copying(placement: Placement, copy: Callable[[Placement, Destination], None]) -> Task:
    """Return the task that copies rows from memory."""

    def bring(placement: Placement, destination: Destination, tools: Tools) -> None:
        since = clock()
        copy(placement, destination)
        tools.tally.scattered(since)

    return Task(shared=placement, bring=bring)


def descriptor_of(source: ByteSource) -> Descriptor:
    """Return the descriptor of a source whose rows were planned for one."""
    descriptor = source.descriptor()
    assert descriptor is not None
    return descriptor


def row_by_row(task: Task) -> Iterator[Task]:
    """Return one task for each row, or span."""
    for placement in task.placement.in_steps(1):
        yield replace(task, shared=placement)


def chunk_by_chunk(task: Task, part: DatasetPart) -> Iterator[Task]:
    """Return one task for each chunk that has some of a part's rows, which are ascending."""
    _, edges, _ = task.placement.in_chunks(part)
    for low, high in itertools.pairwise(edges.tolist()):
        yield replace(task, shared=task.placement[low:high])


class Keeping:
    """Memory for all rows of the first chunks of a dataset part, and which of them are there.

    # Guarantees: any thread may bring chunks and say that they are there; who brings one writes the bytes that any
    other would write.
    """

    def __init__(
        self,
        part: DatasetPart,
        destination: Destination,
        filled: NDArray[np.bool_],
        copy: Callable[[Placement, Destination, Tools], None],
    ) -> None:
        self.part, self.filled = part, filled
        self.destination = destination  # a batch that has all rows, each at the place of its number
        self._copy = copy  # copies rows that are there to their places
        # Of rows that are cut into several pieces, each of which lies in a chunk of its own: those that are there.
        self._pieces = np.zeros((len(filled), len(part.pieces)), dtype=np.bool_)

    def rows_of(self, chunks: Ints) -> tuple[Ints, Ints]:
        """Return the first row of each chunk, and how many it has; none of those that there is no room for."""
        part, counts = self.part, self.part.rows_of_chunks(chunks)
        return part.row_start + chunks * part.chunk_rows, np.where(chunks < len(self.filled), counts, 0)

    def note(self, chunks: Ints, pieces: Ints) -> None:
        """Say that pieces of some chunks are there."""
        inside = chunks < len(self.filled)
        chunks, pieces = chunks[inside], pieces[inside]
        self._pieces[chunks, pieces] = True
        self.filled[chunks] = self._pieces[chunks].all(axis=1)

    def tasks(
        self,
        read: Callable[[Placement, Destination, Tools], None],
        placement: Placement,
        edges: Ints,
        chunks: Ints,
        missing: NDArray[np.bool_],
    ) -> Iterator[Task]:
        """Plan what reads all of the missing chunks, a few in each task, and copies the wanted rows from memory."""
        at_once = max(1, TASK_NBYTES // max(1, self.part.chunk_rows * self.part.stored_row_nbytes))
        wanted = np.flatnonzero(missing & (chunks < len(self.filled)))
        behind = np.flatnonzero(missing & (chunks >= len(self.filled)))
        for low in range(0, len(wanted), at_once):
            yield self._task(read, placement, edges, chunks, wanted[low : low + at_once])
        if len(behind):
            yield Task(
                shared=_of_chunks(placement, edges, behind),
                bring=read,
                apart=functools.partial(chunk_by_chunk, part=self.part),
            )

    def _task(
        self,
        read: Callable[[Placement, Destination, Tools], None],
        placement: Placement,
        edges: Ints,
        chunks: Ints,
        wanted: Ints,
    ) -> Task:
        present = chunks[wanted]

        def bring(placement: Placement, destination: Destination, tools: Tools) -> None:
            if not self.filled[present].all():
                read(Placement.by_number(*self.rows_of(present)).each_row(), self.destination, tools)
            if len(destination.slots):
                self._copy(placement, destination, tools)

        def apart(task: Task) -> Iterator[Task]:
            """Return tasks that keep nothing: one for each chunk."""
            yield from chunk_by_chunk(Task(shared=task.shared, bring=read), self.part)

        def note(_: int | None) -> None:
            for piece in range(self._pieces.shape[1]):
                self.note(present, np.full(len(present), piece))

        return Task(shared=_of_chunks(placement, edges, wanted), bring=bring, apart=apart, kept=note)


def _of_chunks(placement: Placement, edges: Ints, wanted: Ints) -> Placement:
    """Return the rows of some chunks, where those of each begin and end at two of the edges."""
    low, high = edges[:-1][wanted], edges[1:][wanted]
    if (low[1:] == high[:-1]).all():
        return placement[int(low[0]) : int(high[-1])]
    return placement[np.concatenate([np.arange(*each) for each in zip(low.tolist(), high.tolist(), strict=True)])]


Way = Callable[[Placement, int], Iterable[Task]]
"""Cuts rows of a dataset part, ascending, into tasks of about so many bytes. Any thread may call."""


class Bringing(Protocol):
    """Plans tasks for rows that may be cached; if it is given the missing chunks, for these alone."""

    def __call__(
        self, placement: Placement, task_nbytes: int, missing: NDArray[np.bool_] | None = None, /
    ) -> Iterable[Task]:
        """Cut rows of a dataset part, ascending, into tasks of about so many bytes."""
