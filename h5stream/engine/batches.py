"""Batches in progress: the rows that windows bring, the rows that cannot be read, and their completion."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.engine.counters import RunCounters
from h5stream.engine.kinds.ragged import RaggedRows, Take, lend, objects_for
from h5stream.engine.plan.failing import close_gaps
from h5stream.engine.plan.tasks import COPIED_TASK_NBYTES, NOWHERE, Destination, Native, Placement, Task
from h5stream.engine.reader import RowReader
from h5stream.engine.slots import Slot, SlotFormat, SlotRing
from h5stream.errors import CorruptChunkError, H5StreamError, SourceError
from h5stream.order.places import Places
from h5stream.order.window import Order, Window
from h5stream.storage.layout.layout import FieldLayout
from h5stream.storage.source.identity import ByteSource, Descriptor, SourceIdentity
from h5stream.storage.source.remote import REQUEST_NBYTES

Longs = NDArray[np.int64]

PlanShare = tuple["kernels.Plan", Longs, int, int, Longs, Longs, Longs]
"""A plan as `kernels.Pool.add` takes it."""

MOST_HELD = 64
"""Files that the pool reads for a window: each is open until all of the window is there."""

ARRANGED_AHEAD = 3
"""Batches whose ragged rows are arranged before they are asked for: one for each of two readers, and the next one."""

FINEST_TASK_NBYTES, FINEST_FAR_TASK_NBYTES = 64 * 1024, 512 * 1024
"""Bytes of a task at the least, so that all threads have one of a small window. What one requests of a store is under
way together: with tasks of one frame, 32 readers had half of a line whose answers take 100 ms.
"""


@dataclass(slots=True)
class ReadyBatch:
    """A batch that the engine has filled, or is filling."""

    number: int
    rows: int
    slot: Slot
    objects: dict[int, Any]  # by field number, what does not live in a slot: lists, and `RaggedRows`
    missing: int = 0  # rows that are still to come; 0 once it may be handed over
    dropped: tuple[Places, ...] = ()  # places of rows that cannot be had and are left out
    corrupt: CorruptChunkError | None = None  # why, for one of them
    value: Any = None  # what was made of it already, if another process filled it; nothing lies in the slot then
    arranging: bool | None = None  # whether a thread arranges its ragged rows; None before that was looked at
    arranging_takes: int = 0  # for how many batches it counts besides because of that

    def arrange(self) -> None:
        """Arrange its ragged rows, before it is handed over."""
        for rows in self.objects.values():
            if isinstance(rows, RaggedRows):
                rows.arrange()

    @property
    def arranging_costs(self) -> int:
        """The memory for arranging its ragged rows, in multiples of their bytes; 0 if nothing has to be copied."""
        ragged = [rows for rows in self.objects.values() if isinstance(rows, RaggedRows)]
        shared = max(1, sum(rows.shared_nbytes for rows in ragged))
        return -(-sum(rows.copied_nbytes for rows in ragged) // shared)


@dataclass(slots=True, eq=False)
class PlannedWindow:
    """A window whose tasks are known; once admitted it has batches."""

    numbers: range  # the batches that it has a share in
    rows_of_batch: NDArray[np.int64]  # rows that it brings to each of them
    tasks: list[Task]
    files: tuple[int, ...]  # that its rows lie in, also those that stay in memory: all must still be what they were
    fills: bool = False  # whether any of the tasks decodes what stays in memory
    # of the tasks, those that the pool carries out, taken out of these; and what it carries out of each
    native: list[Task] = field(default_factory=list)
    parts: list[Native] = field(default_factory=list)
    descriptors: dict[int, Descriptor] = field(default_factory=dict)  # of the files that the pool reads, held open
    in_part: set[int] = field(default_factory=set)  # of those that the pool carries out, which it did not end
    pending: int = 0  # tasks that are still to come; all that the pool carries out count as one
    destination: Destination = NOWHERE
    batches: list[ReadyBatch] = field(default_factory=list)
    # rows that cannot be had, by batch (counted from the first) and place in it, and why
    dropped: list[tuple[Places, Places, CorruptChunkError]] = field(default_factory=list)

    def take_native(self, sources: Sequence[ByteSource]) -> None:
        """Choose the tasks that the pool carries out: those that are data alone, of files that open, not too many."""
        tasks, self.tasks, opened = self.tasks, [], self.descriptors
        for task in tasks:
            if (part := task.native) is not None:
                if part.file is not None and part.file not in opened and len(opened) < MOST_HELD:
                    with contextlib.suppress(H5StreamError):  # which a thread says when it reads from it
                        if (descriptor := sources[part.file].descriptor()) is not None:
                            opened[part.file] = descriptor
                if part.file is None or part.file in opened:
                    self.native.append(task)
                    self.parts.append(part)
                    continue
            self.tasks.append(task)

    def note_kept(self) -> None:
        """Mark chunks that the pool decoded as present in the cache."""
        for number, task in enumerate(self.native):
            if task.kept is not None and number not in self.in_part:
                task.kept(None)

    def shares(self) -> list[PlanShare]:
        """Return the plans that the pool carries out, each cut into the parts that are its tasks."""
        shares: list[PlanShare] = []
        begin, edges = 0, []
        for number, part in enumerate(self.parts, 1):
            edges.append(part.first)
            following = self.parts[number] if number < len(self.parts) else None
            if following is not None and following.plan is part.plan and following.first == part.last:
                continue
            edges.append(part.last)
            descriptor = -1 if part.file is None else self.descriptors[part.file].number
            where = self.destination.of_fields(part.fields)
            shares.append((part.plan, np.array(edges, dtype=np.int64), begin, descriptor, *where))
            begin, edges = number, []
        return shares

    def changed_file(self, identities: Sequence[SourceIdentity]) -> SourceError | None:
        """Return an error if one of its files has changed since it was opened: its bytes cannot be trusted then."""
        try:
            for number in self.files:
                identities[number].check_unchanged()
        except SourceError as error:
            return error
        return None


class OpenBatches:
    """The batches of one pass that fill or wait to be handed over, and the errors in their way.

    # Guarantees: used under the lock of the run. `ready` is one number that any thread may read.
    """

    def __init__(
        self,
        order: Order,
        first_batch: int,
        slots: SlotRing,
        slot_format: SlotFormat,
        fields: Sequence[FieldLayout],
        take: Take | None,
        most: int,
    ) -> None:
        self.most, self.passed_on = most, 0  # batches that may be open; those that were handed over and count as open
        self._order, self._slots, self._format = order, slots, slot_format
        self._row_nbytes, self._placed_nbytes, has_objects = tuple[int, ...](), tuple[int, ...](), False
        for one in fields:
            self._row_nbytes += (one.row_nbytes,)
            self._placed_nbytes += (one.placed_nbytes,)
            has_objects = has_objects or one.kind == "object"
        self._take, self.arranged, self.has_ragged = take, 0, take is not None  # memory for ragged rows, if any come
        self._fields = fields if self.has_ragged or has_objects else ()  # those to make room for outside of slots
        self.by_number: dict[int, ReadyBatch] = {}  # those that are open
        self._error_at: dict[int, BaseException] = {}
        self.next, self.ready = first_batch, 0

    @property
    def any_waits(self) -> bool:
        """Whether one of them waits to be handed over."""
        return any(batch.missing == 0 for batch in self.by_number.values())

    def admit(self, window: PlannedWindow) -> None:
        """Return a window its batches, with slots for those that were not open yet."""
        slots: list[int] = []
        every: list[dict[int, Any]] = []
        for number, brought in zip(window.numbers, window.rows_of_batch.tolist(), strict=True):
            batch = self.by_number.get(number)
            if batch is None:
                rows = self._order.batch_size_of(number)
                objects = objects_for(self._fields, rows, self._take) if self._fields else {}
                batch = ReadyBatch(number=number, rows=rows, slot=self._slots.take(), objects=objects, missing=rows)
                self.by_number[number] = batch
            window.batches.append(batch)
            slots.append(batch.slot.address)
            every.append(batch.objects)
            assert brought <= batch.missing
        window.pending = len(window.tasks) + bool(window.native)
        ragged: dict[int, Any] = {}
        if self._take is not None:
            shares = (task.shared.share for task in itertools.chain(window.tasks, window.native))
            ragged = lend(shares, every, self._placed_nbytes, self._take)
        window.destination = Destination(
            slots=np.array(slots, dtype=np.int64),
            format=self._format,
            row_nbytes=self._placed_nbytes,
            objects=every,
            ragged=ragged,
        )

    def complete(self, window: PlannedWindow) -> None:
        """Count the rows that a window has brought, and note the places that stay empty in its batches."""
        for numbers, within, error in window.dropped:
            for number in np.unique(numbers).tolist():
                batch = window.batches[number]
                batch.dropped, batch.corrupt = (*batch.dropped, within[numbers == number]), error
        for batch, brought in zip(window.batches, window.rows_of_batch.tolist(), strict=True):
            batch.missing -= brought
            self.ready += batch.missing == 0
        # A reader that waits still knows its last window, which must keep neither batches nor plans.
        window.batches, window.tasks, window.native, window.parts = [], [], [], []
        window.destination, window.descriptors = NOWHERE, {}

    def first_full(self, counters: RunCounters) -> ReadyBatch | None:
        """Return the next batch if it is complete, without gaps, and keep it among the open ones. Raises its error."""
        if self.next in self._error_at:
            raise self._error_at[self.next]
        batch = self.by_number.get(self.next)
        if batch is None or batch.missing > 0 or batch.arranging:
            return None
        if batch.dropped:
            counters.skipped_rows += close_gaps(batch, self._format, self._row_nbytes)
        return batch

    @property
    def room(self) -> int:
        """How many more batches may be open; below zero if one window needed more."""
        return self.most - len(self.by_number) - self.arranged - self.passed_on

    def to_arrange(self) -> ReadyBatch | None:
        """Return one of the next batches to be arranged, which then counts as more of them, if there is room.

        A batch that failed lacks some of its rows: whatever is in their places would be a second, other error.
        """
        number, end = self.next, min(self._error_at, default=self.next + ARRANGED_AHEAD)
        while number < min(end, self.next + ARRANGED_AHEAD):
            batch = self.by_number.get(number)
            if batch is None or batch.missing:
                return None
            if batch.arranging is None and not batch.dropped:
                batch.arranging_takes = batch.arranging_costs
                batch.arranging = 0 < batch.arranging_takes <= self.room
                if batch.arranging:
                    self.arranged += batch.arranging_takes
                    return batch
                batch.arranging_takes = 0
            number += 1
        return None

    def remove(self, batch: ReadyBatch) -> None:
        """Take out the next batch."""
        del self.by_number[batch.number]
        self.arranged -= batch.arranging_takes
        self.next, self.ready = self.next + 1, self.ready - 1

    def fail(self, number: int, error: BaseException) -> None:
        """Note an error at the first batch that needed the data; of several the earliest counts."""
        if number <= min(self._error_at, default=number):
            self._error_at = {max(number, self.next): error}

    def first_lacking(self, active: Iterable[PlannedWindow]) -> int:
        """Return the first batch that lacks rows which none of the windows under way brings."""
        coming: Counter[int] = Counter()
        for window in active:
            coming.update(dict(zip(window.numbers, window.rows_of_batch.tolist(), strict=True)))
        lacking = (number for number, batch in self.by_number.items() if batch.missing > coming[number])
        return min(lacking, default=max(self.by_number, default=self.next - 1) + 1)

    def check_ended(self) -> None:
        """Raise `AssertionError` if the next batch, which is open, lacks rows that no window will bring."""
        batch = self.by_number[self.next]
        if batch.missing:
            raise AssertionError(f"batch {self.next} lacks {batch.missing} rows that no window will bring")

    def clear(self) -> list[ReadyBatch]:
        """Take out all of them, and forget what went wrong."""
        batches, self.by_number, self._error_at = list(self.by_number.values()), {}, {}
        return batches


class Windows:
    """The windows of a pass that are still to be planned, and the next one, once it is planned.

    # Guarantees: used under the lock of the run, but for `plan`, which one thread calls while `is_planning`.
    `remaining` and `planned` are read without it, too.
    """

    def __init__(self, windows: Iterator[Window], reader: RowReader, threads: int) -> None:
        self.remaining: Iterator[Window] | None = windows  # None once none is left to be planned
        self._reader, self._threads = reader, threads
        self.is_planning = False
        self.planned: PlannedWindow | None = None
        self.planned_adds = 0  # batches that it opens: none of its batches is handed over before it is admitted

    @property
    def are_exhausted(self) -> bool:
        """Whether no other one will come."""
        return self.remaining is None and self.planned is None and not self.is_planning

    def plan(self) -> PlannedWindow | None:
        """Plan the next one; None at the end."""
        reader, windows = self._reader, self.remaining
        window = None if windows is None else next(windows, None)
        if window is None:
            return None
        first = int(window.batch.min())
        placement = Placement.of(window, first)
        if reader.acceptance is not None:
            placement = reader.accepted(placement)
        del window  # its batch numbers are as much memory as those of the placement
        # Small windows are cut finely enough that every thread gets a share.
        share = placement.total_rows * reader.row_nbytes // (4 * max(1, self._threads))
        most = REQUEST_NBYTES if reader.is_far else COPIED_TASK_NBYTES
        least = FINEST_FAR_TASK_NBYTES if reader.is_far else FINEST_TASK_NBYTES
        tasks, fills = list[Task](), False
        for task in reader.plan(placement, max(least, min(most, share)) if self._threads else most):
            tasks.append(task)
            fills = fills or task.kept is not None
        rows_of_batch, files = placement.rows_of_batches(), reader.layout.files_of(placement.rows)
        planned = PlannedWindow(range(first, first + len(rows_of_batch)), rows_of_batch, tasks, files, fills)
        if self._threads:
            planned.take_native(reader.sources)
        return planned

    def put(self, planned: PlannedWindow | None, open_batches: OpenBatches) -> bool:
        """Note what `plan` returned; return whether there is a window to be admitted.

        One that was planned while the pass was stopped, or failed, is dropped: it would be read, or kept for ever.
        """
        self.is_planning = False
        self.planned = None if self.remaining is None else planned
        if self.planned is None:
            self.remaining = None
            return False
        self.planned_adds = len(set(self.planned.numbers).difference(open_batches.by_number))
        return True

    def end(self) -> None:
        """Plan and admit no others."""
        self.remaining = self.planned = None


class CacheFill:
    """Tasks that decode rows for the cache before a batch needs them.

    # Guarantees: any thread may call `next`; all else is used under the lock of the run.
    """

    def __init__(self, tasks: Iterator[Task] | None) -> None:
        self._tasks, self._choosing = tasks, threading.Lock()
        self.is_left = tasks is not None  # whether any may be left
        self.running = 0  # tasks that threads carry out

    def next(self) -> Task | None:
        """Return another task; None if none is left."""
        with self._choosing, contextlib.suppress(Exception):  # batches report what is wrong
            return None if self._tasks is None else next(self._tasks, None)
        return None

    def done(self, task: Task | None) -> bool:
        """Note that a task ended, or that none was left; return whether threads may go on with something else."""
        self.running -= 1
        if task is None:
            self._tasks, self.is_left = None, False
        return not self.running or task is None
