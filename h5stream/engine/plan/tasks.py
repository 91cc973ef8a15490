"""Rows and where each goes, how they are cut into tasks, and what a thread carries a task out with.

`Placement` is the one place between order and plan. A sample that takes several rows of a dataset comes in here as
spans: consecutive rows that go to consecutive places. They stay spans until a chunk, or a stretch that was read, is
placed.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import LifoQueue
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.engine.counters import Tally, clock
from h5stream.engine.kinds.ragged import Share
from h5stream.engine.slots import SlotFormat, address_of
from h5stream.order.places import Places, is_ascending, less, narrowed, new_array, place_dtype, sought
from h5stream.order.window import Window
from h5stream.storage.decode.filters import DecodeScratch
from h5stream.storage.file.h5py_reader import H5pyReader
from h5stream.storage.layout.layout import FieldLayout
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.source.identity import ByteSource, Descriptor
from h5stream.storage.source.local import FilesBytes

Bytes = NDArray[np.uint8]

Ints = NDArray[np.int64]

Where = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""The address of each batch's slot, where each field begins in a slot, and the bytes of one of its rows."""

PlacesOfField = tuple[Places, Places, NDArray[np.int64], int, int]
"""As scattering kernels end: the batch of each row and its place there, the address of each batch's slot, where the
field begins in it, and the bytes of a row."""

NONE = np.zeros(0, dtype=np.int64)
"""In place of numbers that are not needed."""

_PLACED_NBYTES = operator.attrgetter("placed_nbytes")

GOING_ON = np.zeros(1, dtype=np.int32)
"""For tasks that nobody stops."""

TASK_NBYTES = 2 * 1024 * 1024
"""Decoded bytes of one task: a few chunks, so that threads meet rarely and still share a window evenly."""

COPIED_TASK_NBYTES = 8 * 1024 * 1024
"""Bytes of one task that decodes nothing, or one chunk after the other: a thread that comes back for another has to
wait until those that run Python let it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Rows and the destination of each, as 32-bit numbers if these are large enough."""

    rows: Places  # row numbers of the whole sequence of rows, or of a chunk where one is cut into those
    batch: Places  # batch, within: the batch of each, counted from the window's first, and its place there
    within: Places
    # where they are spans: how many consecutive rows each is, which go to consecutive places. None for single rows
    counts: Places | None = None
    of_sample: int = 1  # places that a sample has; 1 where a place is a sample
    share: Share | None = None  # of a ragged dataset, what says to which sample a place belongs
    drawn: tuple[int, int] = (0, 0)  # seed and epoch, of which random crops are a function

    @classmethod
    def of(cls, window: Window, first_batch: int = 0) -> Placement:
        """Take over a window of an order, its batches counted from `first_batch`."""
        batch = less(window.batch, first_batch) if first_batch else narrowed(window.batch)
        counts = None if window.counts is None else narrowed(window.counts)
        rows, within = narrowed(window.rows), narrowed(window.within)
        return cls(rows=rows, batch=batch, within=within, counts=counts, drawn=window.drawn)

    @classmethod
    def by_number(cls, first: NDArray[np.int64], counts: NDArray[np.int64]) -> Placement:
        """Return spans of rows whose places in the first batch are their numbers."""
        kind = place_dtype(int((first + counts).max(initial=0)))
        rows: Places = first.astype(kind)
        return cls(rows=rows, batch=np.zeros_like(rows), within=rows, counts=counts.astype(kind))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: slice | NDArray[np.integer | np.bool_]) -> Placement:
        counts = None if self.counts is None else self.counts[chosen]
        return replace(
            self, rows=self.rows[chosen], batch=self.batch[chosen], within=self.within[chosen], counts=counts
        )

    @property
    def total_rows(self) -> int:
        """Rows that are placed, a row that several samples take as often."""
        return len(self.rows) if self.counts is None else int(self.counts.sum(dtype=np.int64))

    @property
    def samples(self) -> Places:
        """The place of each one's sample in its batch."""
        if self.share is not None:
            return self.share.places_of(self.batch, self.within)
        return self.within if self.of_sample == 1 else self.within // self.of_sample

    @property
    def lengths(self) -> Places:
        """How many rows each is, as kernels take it: empty where each is one."""
        return self.rows[:0] if self.counts is None else self.counts

    def each_row(self) -> Placement:
        """Return every row for itself, span after span."""
        if self.counts is None:
            return self
        rows, batch, within = (np.empty(self.total_rows, dtype=self.rows.dtype) for _ in range(3))
        kernels.spread(self.rows, self.batch, self.within, self.counts, rows, batch, within)
        return replace(self, rows=rows, batch=batch, within=within, counts=None)

    @property
    def first_batch(self) -> int:
        """The earliest batch, counted from the window's first, that any of the rows goes to."""
        return kernels.range_of(self.batch)[0]

    def rows_of_batches(self) -> Ints:
        """Count the rows of each batch."""
        counts = np.zeros(kernels.range_of(self.batch)[1] + 1, dtype=np.int64)
        kernels.count_batches(self.batch, self.lengths, counts)
        return counts

    def ascending(self) -> Placement:
        """Return the same in ascending order of rows, which is the fastest to read."""
        return self if is_ascending(self.rows) else self[np.argsort(self.rows, kind="stable")]

    def of_parts(self, parts: tuple[DatasetPart, ...]) -> Iterator[tuple[int, Placement]]:
        """Yield the number of each part that has some of the rows, with these; rows must be ascending.

        Samples without rows may lie behind the last row: they are of the last part.
        """
        if len(parts) == 1:
            yield 0, self
            return
        edges = [*sought(self.rows, [part.row_start for part in parts]).tolist(), len(self)]
        for number, (low, high) in enumerate(itertools.pairwise(edges)):
            if high > low:
                yield number, self[low:high]

    def in_steps(self, count: int) -> Iterator[Placement]:
        """Cut into about so many rows each."""
        step = self.step_of(count)
        for low in range(0, len(self), step):
            yield self[low : low + step]

    def step_of(self, count: int) -> int:
        """Return how many entries have about so many rows."""
        return count if self.counts is None else max(1, count * len(self) // max(1, self.total_rows))

    def row_edges(self) -> Ints:
        """Return where the places of each row begin, of rows that ascend, and where the last ends."""
        return np.append(np.flatnonzero(np.diff(self.rows, prepend=-1)), len(self))

    def cut_every(self, rows: int, first_row: int = 0) -> Placement:
        """Cut spans at multiples of so many rows, counted from a first one."""
        if self.counts is None:
            return self
        begin, end = self.rows - first_row, self.rows + (self.counts - first_row)
        rows = min(rows, np.iinfo(begin.dtype).max)  # chunks may have more rows than there are, and than such numbers
        before = begin // rows
        pieces = (end - 1) // rows - before + 1
        if (pieces == 1).all():
            return self
        of = np.repeat(np.arange(len(self)), pieces)
        number = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces) + before[of]
        low, high = np.maximum(begin[of], number * rows), np.minimum(end[of], (number + 1) * rows)
        kind = self.rows.dtype
        cut = replace(
            self,
            rows=(low + first_row).astype(kind),
            batch=self.batch[of],
            within=(self.within[of] + (low - begin[of])).astype(kind),
            counts=(high - low).astype(kind),
        )
        return cut.ascending()

    def in_chunks(self, part: DatasetPart) -> tuple[Placement, Ints, Ints]:
        """Give ascending rows their numbers inside their chunks; spans are cut where chunks end."""
        cut = self if self.counts is None else self.cut_every(part.chunk_rows, part.row_start)
        rows = cut.rows
        inside, most = new_array(len(rows), rows.dtype), 0
        if len(rows):
            most = min(len(rows), (int(rows[-1]) - int(rows[0])) // part.chunk_rows + 2)
        edges, numbers = np.empty(most + 1, dtype=np.int64), np.empty(most, dtype=np.int64)
        count = kernels.into_chunks(rows, part.row_start, part.chunk_rows, inside, edges[:most], numbers)
        edges[count] = len(rows)
        return replace(cut, rows=inside), edges[: count + 1], numbers[:count]


def cut_by(work: Ints, most: int) -> Iterator[slice]:
    """Cut neighbours wherever their work, such as bytes, adds up to `most`."""
    share = (np.cumsum(work) - work) // most
    edges = np.concatenate([[0], np.flatnonzero(np.diff(share)) + 1, [len(work)]]).tolist()
    for start, stop in itertools.pairwise(edges):
        yield slice(start, stop)


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
        slots, row_nbytes = np.array([address_of(memory)], dtype=np.int64), tuple(map(_PLACED_NBYTES, fields))
        return cls(slots=slots, format=slot_format, row_nbytes=row_nbytes, objects=objects)

    @classmethod
    def nowhere(cls, fields: Sequence[FieldLayout]) -> Destination:
        """Return no batch, for what only keeps rows in memory."""
        return cls(
            slots=NONE,
            format=SlotFormat(rows=0, offsets=(0,) * len(fields), nbytes=0),
            row_nbytes=tuple(map(_PLACED_NBYTES, fields)),
        )

    def of(self, field: int, placement: Placement) -> tuple[Places, PlacesOfField]:
        """Return the rows of a field, and where each goes."""
        ragged = self.ragged.get(field)
        slots, offset = (self.slots, self.format.offsets[field]) if ragged is None else (ragged, 0)
        return placement.rows, (placement.batch, placement.within, slots, offset, self.row_nbytes[field])

    def scatter(self, field: int, placement: Placement, source: int, stride: int, segments: NDArray[np.int64]) -> None:
        """Copy rows, or spans of them, of a field from memory to their places; see `kernels.scatter`."""
        is_spread = placement.counts is not None and stride == 0
        rows, to = self.of(field, placement.each_row() if is_spread else placement)
        if placement.counts is None or is_spread:
            kernels.scatter(source, stride, segments, rows, *to)
        else:
            kernels.scatter_spans(source, stride, segments, rows, placement.lengths, *to)

    def scatter_whole(self, field: int, placement: Placement, source: Bytes, stride: int) -> None:
        """Copy rows in memory to batches, in the same form; with a `stride` of 0 one row goes to all places."""
        nbytes = stride or source.nbytes
        if nbytes:
            self.scatter(field, placement, address_of(source), stride, np.array([[0, 0, nbytes]], dtype=np.int64))

    def put(self, field: int, placement: Placement, values: Iterable[object]) -> None:
        """Put objects, one a row, to their places in a field's lists."""
        ragged = self.ragged.get(field)
        for value, batch, within in zip(values, placement.batch.tolist(), placement.within.tolist(), strict=True):
            (self.objects[batch][field] if ragged is None else ragged[batch])[within] = value

    def of_each(
        self, fields: Sequence[int], placement: Placement
    ) -> tuple[Places, Places, Places, Places, Ints, Ints, Ints]:
        """Return the same for several fields at once, spans as they are: offsets and row lengths are arrays then."""
        return placement.rows, placement.lengths, placement.batch, placement.within, *self.of_fields(fields)

    def of_fields(self, fields: Sequence[int]) -> Where:
        """Return where some fields are."""
        offsets, row_nbytes = np.empty(len(fields), np.int64), np.empty(len(fields), np.int64)
        for k, number in enumerate(fields):
            offsets[k] = 0 if number in self.ragged else self.format.offsets[number]
            row_nbytes[k] = self.row_nbytes[number]
        return self.ragged.get(fields[0], self.slots), offsets, row_nbytes  # a ragged field is alone


NOWHERE = Destination(slots=NONE, format=SlotFormat(rows=0, offsets=(), nbytes=0), row_nbytes=())
"""The destination of rows that go nowhere yet, or no longer."""


class OwnScratch(threading.local):
    """Buffers of each thread."""

    def __init__(self) -> None:
        self.scratch = DecodeScratch()


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
    borrowed: DecodeScratch | None = field(default=None, init=False)

    @property
    def decoding(self) -> DecodeScratch:
        """Scratch for decoding until the next read; waits while all processors decode."""
        if self.decoders is None:
            return self.scratch
        if self.borrowed is None:
            self.borrowed = self.decoders.get()
        return self.borrowed

    def give_back(self) -> None:
        """Return borrowed scratch to the other threads."""
        if self.decoders is not None and self.borrowed is not None:
            self.decoders.put(self.borrowed)
            self.borrowed = None

    def land(self, part: Native, at: NDArray[np.int64], descriptor: int, destination: Destination) -> int:
        """Carry out a native plan; return the first unit that was not brought. `at` has their addresses."""
        where = destination.of_fields(part.fields)
        scratch = self.scratch if self.decoders is None else self.decoding
        return kernels.land(
            part.plan, part.first, part.last, descriptor, at, *where, scratch.native.address, self.stop,
            self.tally.native,
        )  # fmt: skip

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
    rest: Callable[[int], Task] | None = None  # None: what is left is done as all of it

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
            if tools.borrowed is not None:
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


Way = Callable[[Placement, int], Iterable[Task]]
"""Cuts rows of a dataset part, ascending, into tasks of about so many bytes. Any thread may call."""


class Bringing(Protocol):
    """Plans tasks for rows that may be cached; if it is given the missing chunks, for these alone."""

    def __call__(
        self, placement: Placement, task_nbytes: int, missing: NDArray[np.bool_] | None = None, /
    ) -> Iterable[Task]:
        """Cut rows of a dataset part, ascending, into tasks of about so many bytes."""
