"""Boxes of volumes: the part of each chunk that boxes overlap is copied to its place in each of them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.base.cancel import raise_if_stopped
from h5stream.compiled import _native as kernels
from h5stream.engine.assemble import Assembler
from h5stream.engine.counters import clock
from h5stream.engine.kinds.ragged import objects_for
from h5stream.engine.plan.chunks import BoxesInChunks, ChunkFields, ChunkPlan, ChunkTable
from h5stream.engine.plan.tasks import (
    TASK_NBYTES,
    Destination,
    Ints,
    Placement,
    PlacesOfField,
    Task,
    Tools,
    copying,
    cut_by,
)
from h5stream.engine.slots import SlotFormat, address_of
from h5stream.errors import CorruptChunkError, OptionError
from h5stream.samples.space import Accept, Space, number_outside
from h5stream.storage.decode.small_floats import held_as
from h5stream.storage.layout.access import DIRECT, VIA_H5PY
from h5stream.storage.layout.index import MISSING, ChunkIndex, ColumnPiece
from h5stream.storage.layout.layout import Entry, FieldLayout, SampleLayout, numbers_of
from h5stream.storage.layout.parts import DatasetPart
from h5stream.structure import sample_of


class _InChunks(NamedTuple):
    """The position of chunks: their shapes, the shape of their dataset, and their first elements."""

    chunk_shape: Ints
    shape: Ints
    begin: Ints


Regions = tuple[Ints, Ints, Ints, Ints, Ints]
"""Of some parts of volumes: where each begins and ends, the volume's elements, and its boxes as a range of all."""

PLAIN, EDGE, REFLECT = 0, 1, 2
"""What an index outside of a volume stands for: nothing, the nearest inside, or the one mirrored at the edge."""


def looked_up(index: ChunkIndex, number: Ints) -> tuple[Ints, Ints, Ints]:
    """Find chunks by their numbers: the entry of each in the index, where its bytes begin in the file, how many."""
    entry = index.find(number)
    stored = entry != MISSING
    offset, nbytes = np.full(len(entry), MISSING), np.zeros(len(entry), dtype=np.int64)
    offset[stored], nbytes[stored] = index.offset[entry[stored]], index.nbytes[entry[stored]]
    return entry, offset, nbytes


def boxes_of(
    parts: Sequence[DatasetPart], boxes: Callable[[Sequence[DatasetPart]], BoxesOfParts]
) -> list[tuple[Ints, BoxesOfParts]]:
    """Return the planner of a dataset's boxes for each group of parts of one form, with their numbers."""
    numbers_by_form: dict[Hashable, list[int]] = {}
    for number, part in enumerate(parts):
        targets = tuple((target.leaf, target.fill.tobytes()) for target in part.targets)
        numbers_by_form.setdefault((part.along, part.access, part.stored_element_nbytes, targets), []).append(number)
    return [(np.array(numbers), boxes([parts[n] for n in numbers])) for numbers in numbers_by_form.values()]


class BoxesOfParts:
    """The boxes of one dataset in volumes that have one form.

    # Guarantees: immutable, but for what is worked out twice with the same result; any thread may plan.
    """

    def __init__(
        self, parts: Sequence[DatasetPart], fields: Sequence[FieldLayout], pad: str | float | None, gaps: Sequence[int]
    ) -> None:
        self._parts, self._fields, self._gaps, first = parts, fields, gaps, parts[0]
        # Along each axis: how many elements a box takes, which, counted from its origin, and whether these follow.
        self._sizes = np.array([len(along.offsets) for along in first.along], dtype=np.int64)
        self._offsets = np.zeros((len(first.along), int(self._sizes.max())), dtype=np.int64)
        for axis, along in enumerate(first.along):
            self._offsets[axis, : len(along.offsets)] = along.offsets
        self._follow = np.array([(np.diff(along.offsets) == 1).all() for along in first.along], dtype=np.int64)
        least = np.array([min(along.offsets, default=0) for along in first.along], dtype=np.int64)
        self._reach = least, np.array([max(along.offsets, default=0) for along in first.along], dtype=np.int64)
        own = fields[first.targets[0].field].take.pad
        pad = pad if own is None else own
        self._mode, self._outside = {"edge": EDGE, "reflect": REFLECT}.get(str(pad), PLAIN), number_outside(pad)
        self._shapes = np.array([part.shape for part in parts], dtype=np.int64)
        self._chunk_fields: dict[int, ChunkFields] = {}
        if first.access != VIA_H5PY:
            self._chunk_shapes = np.array([part.grid_shape for part in parts], dtype=np.int64)
            self._grids = -(-self._shapes // self._chunk_shapes)
            chunks = self._grids.prod(axis=1)
            self._first_chunks = np.cumsum(chunks) - chunks
            # One task takes chunks of one file where nothing is decoded, and of one part where anything is.
            owner = [part.file if first.access == DIRECT else k for k, part in enumerate(parts)]
            self._owner = np.array(owner, dtype=np.int64)

    def plan(self, placement: Placement, of: Ints, origins: Ints, task_nbytes: int) -> Iterator[Task]:
        """Cut boxes into tasks."""
        if not self._sizes.all():  # the columns chosen are none
            return
        zeros = np.zeros(len(origins), dtype=np.int64)
        begins = np.stack([zeros + along.begins(origins) for along in self._parts[0].along], axis=1)
        if self._outside is not None:
            (first, last), shapes = self._ends(begins), self._shapes[of]
            out = np.flatnonzero(((first < 0) | (last >= shapes)).any(axis=1))
            if len(out):
                yield copying(
                    placement[out], functools.partial(self._fill_outside, self._outside, begins[out], shapes[out])
                )
        if self._parts[0].access == VIA_H5PY:
            for k, part in enumerate(of.tolist()):
                bring = functools.partial(self._through_h5py, self._parts[part], begins[k : k + 1])
                yield Task(shared=placement[k : k + 1], bring=bring)
            return
        yield from self._plan_chunks(placement, begins, of, task_nbytes)

    def place(
        self, sources: Ints, strides: Ints, regions: Regions, element: int, origins: Ints, where: PlacesOfField
    ) -> None:
        """Copy the overlap of boxes with regions in memory; see `kernels.place_boxes`."""
        boxes = self._offsets, self._sizes, self._follow, self._mode
        batch, within, slots, offset, nbytes = where
        kernels.place_boxes(sources, strides, *regions, *boxes, element, origins, batch, within, slots, offset, nbytes)

    def _ends(self, origins: Ints) -> tuple[Ints, Ints]:
        """Return the first and the last element of each box along each axis; they may be out of bounds."""
        least, most = self._reach
        return origins + least, origins + most

    def _spans(self, origins: Ints, shape: Ints) -> tuple[Ints, Ints]:
        """Return the first element inside of a volume that each box needs along each axis, and where the last ends."""
        first, last = self._ends(origins)
        low, high = np.clip(first, 0, shape - 1), np.clip(last, 0, shape - 1)
        if self._mode == REFLECT:
            low = np.minimum(low, np.where(last >= shape, 2 * (shape - 1) - last, low))
            high = np.maximum(high, np.where(first < 0, -first, high))
            far = (first <= -shape) | (last >= 2 * shape - 1)  # mirrored more than once
            low, high = np.where(far, 0, low), np.where(far, shape - 1, high)
        return np.maximum(low, 0), np.minimum(high, shape - 1) + 1

    def _fill_outside(
        self, outside: float, origins: Ints, shapes: Ints, placement: Placement, destination: Destination
    ) -> None:
        """Write the number that stands outside of volumes wherever boxes lead out of those."""
        for target in self._parts[0].targets:
            layout = self._fields[target.field]
            inner = math.prod(layout.row_shape) // math.prod(self._sizes.tolist())
            row = np.full(int(self._sizes[-1]) * inner, held_as(outside, layout.dtype)).view(np.uint8)
            _, where = destination.of(target.field, placement)
            element = row.nbytes // int(self._sizes[-1])
            kernels.fill_outside(address_of(row), shapes, self._offsets, self._sizes, element, origins, *where)

    def _through_h5py(
        self, part: DatasetPart, origins: Ints, placement: Placement, destination: Destination, tools: Tools
    ) -> None:
        """Read one box through h5py, and copy it to its place."""
        shape = np.array([part.shape])
        low, high = self._spans(origins, shape)
        since = clock()
        values = tools.h5py.box(part, tuple(low[0].tolist()), tuple((high - low)[0].tolist()))
        since = tools.tally.via_h5py(since, values.nbytes)
        for target in part.targets:
            dense = np.ascontiguousarray(target.taken(values), dtype=self._fields[target.field].dtype)
            count = values.shape[: len(part.shape)]  # elements that are arrays have axes of their own behind these
            element = dense.nbytes // max(1, math.prod(count))
            strides, (zero, one) = _strides(np.array([count]), element), np.array([[0], [1]])
            _, where = destination.of(target.field, placement)
            sources = np.array([address_of(dense.reshape(-1).view(np.uint8))])
            self.place(sources, strides, (low, high, shape, zero, one), element, origins, where)
        tools.tally.scattered(since)

    def _plan_chunks(self, placement: Placement, origins: Ints, of: Ints, task_nbytes: int) -> Iterator[Task]:
        shapes, chunk_shapes, grids = self._shapes[of], self._chunk_shapes[of], self._grids[of]
        low, high = self._spans(origins, shapes)
        where, box = _touched(low, high, chunk_shapes)
        if not self._follow.all():
            needed = self._needed(origins, where * chunk_shapes[box], box, shapes, chunk_shapes)
            where, box = where[needed], box[needed]
        number = (where * _strides(grids[box], 1)).sum(axis=1)
        by_chunk = np.argsort(self._first_chunks[of[box]] + number, kind="stable")
        number, where, box = number[by_chunk], where[by_chunk], box[by_chunk]
        part = of[box]
        first = np.flatnonzero((np.diff(part, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0))
        ends, owner = np.append(first[1:], len(number)), part[first]
        entry, offset, nbytes = self._looked_up(owner, number[first])
        chunks = ChunkTable(number[first], np.zeros_like(first), entry, offset, nbytes, first, ends)
        inside = _InChunks(chunk_shapes[box[first]], shapes[box[first]], where[first] * chunk_shapes[box[first]])
        skipped = np.zeros_like(first)
        if self._parts[0].access == DIRECT:
            chunks, skipped = self._leave_out(chunks, inside, low[box], high[box])
        order = np.lexsort((chunks.offset, self._owner[owner]))
        chunks, owner, skipped = chunks.some(order), owner[order], skipped[order]
        inside = _InChunks(*(column[order] for column in inside))
        how = self._offsets, self._sizes, self._follow, self._mode
        shared, origins = placement[box], origins[box]
        work = chunks.nbytes
        if self._parts[0].access != DIRECT:
            work = np.maximum(work, self._chunk_shapes[owner].prod(axis=1) * self._parts[0].stored_element_nbytes)
        # One plan takes chunks of one file where nothing is decoded, and of one part where anything is.
        for run in _stretches(self._owner[owner]):
            number_of_part = int(owner[run.start])
            part_of = self._parts[number_of_part]
            in_chunks = BoxesInChunks(
                inside.begin[run], inside.chunk_shape[run], inside.shape[run], skipped[run], origins, *how
            )
            plan = ChunkPlan.of(
                part_of,
                self._fields_of(number_of_part),
                chunks.some(run),
                shared,
                self._gaps[part_of.file],
                in_chunks,
            )
            for cut in cut_by(work[run], min(task_nbytes, TASK_NBYTES)):
                yield plan.task(cut.start, cut.stop)

    def _looked_up(self, part: Ints, number: Ints) -> tuple[Ints, Ints, Ints]:
        """Find chunks by their parts, ascending, and their numbers, as `looked_up` does."""
        chunks = [looked_up(self._parts[int(part[one][0])].chunk_index, number[one]) for one in _stretches(part)]
        entry, offset, nbytes = (np.concatenate(column) for column in zip(*chunks, strict=True))
        return entry, offset, nbytes

    def _fields_of(self, number: int) -> ChunkFields:
        """Return the elements that fields take from a part's chunks; without decoding all parts share one."""
        number = 0 if self._parts[0].access == DIRECT else number
        if number not in self._chunk_fields:
            # A box is no row of the dataset.
            element = ColumnPiece(number=0, row_elements=1, segments=np.array([[0, 0, 1]]))
            self._chunk_fields[number] = ChunkFields(self._parts[number], (element,))
        return self._chunk_fields[number]

    def _needed(self, origins: Ints, begins: Ints, box: Ints, shapes: Ints, chunk_shapes: Ints) -> NDArray[np.bool_]:
        """Tell which chunks hold an element that the box takes, where these do not follow one another."""
        first, last = self._ends(origins)
        needed = np.ones(len(box), dtype=bool)
        for axis in np.flatnonzero(self._follow == 0).tolist():
            taken = np.sort(self._offsets[axis, : self._sizes[axis]])
            from_origin = begins[:, axis] - origins[box, axis]
            ends = from_origin + chunk_shapes[box, axis]
            inside = np.searchsorted(taken, from_origin) < np.searchsorted(taken, ends)
            leads_out = (first[box, axis] < 0) | (last[box, axis] >= shapes[box, axis])
            needed &= inside | leads_out
        return needed

    def _leave_out(self, chunks: ChunkTable, inside: _InChunks, low: Ints, high: Ints) -> tuple[ChunkTable, Ints]:
        """Read of chunks that nothing has to be decoded of only from the first element to the last that boxes need.

        Gives the bytes at the beginning of each that are left out, too.
        """
        least = np.minimum.reduceat(low, chunks.low, axis=0) - inside.begin
        most = np.maximum.reduceat(high, chunks.low, axis=0) - 1 - inside.begin
        element = self._parts[0].stored_element_nbytes
        strides = _strides(inside.chunk_shape, element)
        least, most = np.maximum(least, 0), np.minimum(most, inside.chunk_shape - 1)
        begin, end = (least * strides).sum(axis=1), (most * strides).sum(axis=1) + element
        stored = chunks.entry != MISSING
        offset, nbytes = np.where(stored, chunks.offset + begin, MISSING), np.where(stored, end - begin, 0)
        return chunks._replace(offset=offset, nbytes=nbytes), np.where(stored, begin, 0)


def _stretches(numbers: Ints) -> Iterator[slice]:
    """Return stretches of the same number."""
    edges = [*np.flatnonzero(np.diff(numbers, prepend=-1)).tolist(), len(numbers)]
    return itertools.starmap(slice, itertools.pairwise(edges))


def _touched(low: Ints, high: Ints, chunk_shape: Ints) -> tuple[Ints, Ints]:
    """Return the place in its dataset's grid of each chunk that each box touches, and that box."""
    first, counts = low // chunk_shape, (high - 1) // chunk_shape - low // chunk_shape + 1
    touches = counts.prod(axis=1)
    box = np.repeat(np.arange(len(low)), touches)
    rest = np.arange(len(box)) - np.repeat(np.cumsum(touches) - touches, touches)
    where = np.empty((len(box), low.shape[1]), dtype=np.int64)
    for axis in reversed(range(low.shape[1])):
        rest, where[:, axis] = np.divmod(rest, counts[box, axis])
    return first[box] + where, box


def _strides(shapes: Ints, element_nbytes: int) -> Ints:
    """Return the bytes from one element to the next along each axis of some arrays."""
    strides = np.full(shapes.shape, element_nbytes, dtype=np.int64)
    strides[:, :-1] *= np.cumprod(shapes[:, :0:-1], axis=1)[:, ::-1]
    return strides


# --- those that are accepted ---------------------------------------------------------------------------------

TRIED_NBYTES = 16 * 1024 * 1024
"""Bytes of boxes that are tried at a time."""

Carry = Callable[[Iterator[Task], Destination], None]
Plan = Callable[[Placement, tuple[int, ...]], Iterator[Task]]


class Acceptance:
    """Finds boxes that are accepted.

    # Guarantees: immutable; any thread may ask. The user's function is called by that thread, and must allow it.
    """

    def __init__(self, layout: SampleLayout, space: Space, rule: Accept, plan: Plan, carry_out: Carry) -> None:
        self._layout, self._space, self._rule = layout, space, rule
        self._on, wanted = _asked(layout, self._rule.on)
        self._plan, self._carry_out, self._assembler = plan, carry_out, Assembler(layout)
        fields = [{target.field for target in parts[0].targets} for parts in layout.aligned]
        self._datasets = tuple(number for number, filled in enumerate(fields) if filled & wanted)
        wanted = set().union(*(fields[number] for number in self._datasets))
        self._nbytes = sum(layout.fields[field].row_nbytes for field in wanted)

    def numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each box its own number if it is accepted, and the number of an accepted one otherwise."""
        accepted, pending = numbers.copy(), np.arange(len(numbers))
        at_once = max(1, TRIED_NBYTES // max(1, self._nbytes))
        for trial in range(self._rule.tries):
            refused = [pending[:0]]
            for first in range(0, len(pending), at_once):
                raise_if_stopped()
                tried = pending[first : first + at_once]
                refused.append(tried[~self._accepts(accepted[tried])])
            if not len(pending := np.concatenate(refused)):
                return accepted
            accepted[pending] = self._space.drawn_again(numbers[pending], trial)
        raise OptionError(
            f"Boxes: accept= refused {self._rule.tries:,} boxes in turn for {len(pending):,} of {len(numbers):,} "
            "samples; let it accept more, or allow more tries="
        )

    def _accepts(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Ask the function about some boxes; one that cannot be read is taken, so that its batch tells why."""
        try:
            return self._answers(numbers)
        except CorruptChunkError:
            if len(numbers) == 1:
                return np.ones(1, dtype=bool)
            return np.concatenate([self._accepts(numbers[k : k + 1]) for k in range(len(numbers))])

    def _answers(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Ask the function about some boxes, each read once."""
        distinct, which = np.unique(numbers, return_inverse=True)
        count = len(distinct)
        slot_format = SlotFormat.for_rows(self._layout.fields, count)
        memory = np.empty(slot_format.nbytes, dtype=np.uint8)  # of fields that are not asked about nothing is touched
        objects = objects_for(self._layout.fields, count)
        destination = Destination.of_batch(memory, slot_format, self._layout.fields, [objects])
        placement = Placement(rows=distinct, batch=np.zeros(count, dtype=np.int64), within=np.arange(count))
        self._carry_out(self._plan(placement, self._datasets), destination)
        batch = self._assembler.batch(memory, slot_format, count, objects)
        argument = batch if self._on is None else batch[self._on]
        accepted = np.array([_answer(self._rule.function(sample_of(argument, k))) for k in range(count)], dtype=bool)
        answers: NDArray[np.bool_] = accepted[which]
        return answers


def _asked(layout: SampleLayout, on: str | int | None) -> tuple[str | int | None, set[int]]:
    """Return where the entry that a function looks at is in a batch, None for all of it, and the fields in there."""
    if on is None:
        return None, set(range(len(layout.fields)))
    keys, is_tuple = list(layout.shape.keys), layout.shape.kind == "tuple"
    places: dict[str | int, int] = (
        {} if layout.shape.kind == "one" else {key: number for number, key in enumerate(keys)}
    )
    places |= {number: number for number in range(len(keys))} if is_tuple else {}
    if on not in places:
        has = f"it has {', '.join(map(repr, places))}" if places else "a sample is one tensor, so leave it out"
        raise OptionError(f"Boxes: accept_on={on!r} is no field of a sample; {has}")
    return places[on] if is_tuple else on, _fields_in(layout.entries[places[on]])


def _answer(answer: object) -> bool:
    """Return the answer of a user's function as a bool."""
    try:
        if answer is None:
            raise TypeError("it returned None")
        return bool(answer)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"Boxes: accept= answers True or False for a box: {error}") from error


def _fields_in(entry: Entry) -> set[int]:
    if isinstance(entry, dict):
        return set().union(*map(_fields_in, entry.values()))
    return set(numbers_of(entry))
