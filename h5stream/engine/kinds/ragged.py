"""Ragged rows: their places in a batch, and their memory.

A window brings a share of a batch, and each share lies in memory of its own, its samples one behind the other: how many
rows the other shares have is known only when they are planned. Most batches have one share, which is then handed over
as it is.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from h5stream.base.leases import Lent
from h5stream.base.limits import cached_property
from h5stream.compiled import _native as kernels
from h5stream.engine.slots import FIELD_ALIGNMENT, Memory, address_of, map_memory
from h5stream.errors import SourceError
from h5stream.order.places import Places
from h5stream.samples.ragged import Ragged
from h5stream.storage.decode.small_floats import held_as, name_of, widened
from h5stream.storage.layout.layout import FieldLayout

Ints = NDArray[np.int64]

Take = Callable[[int], Memory]
"""Gives memory of so many bytes."""

Listed = list[list[object]]
"""The rows of each sample."""

PADDING_SHARE = 4
"""Samples that are padded are read to where they lie in the end if that takes no more than one part in so many beside
them: they are not copied then, but take more as long as the batch waits."""

SHARES_NBYTES = 8 * 1024 * 1024
"""Bytes of ragged rows that lie in one memory, of batches that follow one another: taken at once, and on huge pages.
It is used again once the last of them is dropped."""

WIDENED_ITEMS = 1 << 16
"""Small floats that are added up as float32 at a time."""

FILLER_ITEMS = 64
"""Elements of what ragged rows are padded with that are laid out beforehand."""

POOLED_NBYTES = 256 * 1024
"""Bytes of a share from which on its memory is used again: less comes from the C library as fast."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """A window's share of a ragged dataset: samples by batch and place, each with its rows."""

    fields: tuple[int, ...]  # the fields that the dataset fills
    edges: Ints  # (batches + 1,): where the samples of each batch begin, and where the last end
    within: Places  # the place of each sample in its batch, ascending in each
    counts: Ints  # its rows
    # where they begin among all that the window brings, and where the last end: one behind the other, or, where little
    # of that is padding, as far apart as the longest of their batch is long
    starts: Ints
    # for each batch where its samples begin one behind the other, and where the last ends; one batch after the other
    offsets: Ints

    @classmethod
    def of(
        cls,
        fields: Iterable[int],
        batch: Places,
        within: Places,
        counts: Ints,
        *,
        is_padded: bool = False,
    ) -> tuple[Share, Ints]:
        """Take samples in any order; also gives where the rows of each begin in its batch's share."""
        order, batches = order_of_places(batch, within), int(batch.max(initial=-1)) + 1
        edges, starts = np.zeros(batches + 1, dtype=np.int64), np.zeros(len(order) + 1, dtype=np.int64)
        places, lengths, begins = np.empty_like(within), np.empty(len(order), np.int64), np.empty(len(order), np.int64)
        offsets = np.zeros(len(order) + batches, dtype=np.int64)
        if batches:
            kernels.lay_stretches(order, batch, within, counts, edges, places, lengths, starts, offsets)
        if is_padded:
            starts = _padded_starts(edges, lengths, starts)
        if batches:
            kernels.begins_of_stretches(order, batch, edges, starts, begins)
        share = cls(
            fields=tuple(fields),
            edges=edges,
            within=places,
            counts=lengths,
            starts=starts,
            offsets=offsets,
        )
        return share, begins

    @property
    def begins(self) -> Ints:
        """Offsets of each batch's rows among all, and their end."""
        return self.starts[self.edges]

    def places_of(self, batch: Places, row: Places) -> Places:
        """Return the places of the samples that rows belong to, by their batch and their number in its share."""
        samples = np.searchsorted(self.starts[:-1], self.begins[batch] + row, side="right") - 1
        return self.within[samples]


def order_of_places(batch: Places, within: Places) -> Places:
    """Return the order by batch and place, which are unique."""
    order = np.empty(len(batch), dtype=np.int32)
    if len(batch) and not kernels.order_by_place(batch, within, order):
        return np.argsort(batch * (int(within.max()) + np.int64(1)) + within)
    return order


def _padded_starts(edges: Ints, counts: Ints, starts: Ints) -> Ints:
    """Return the starts of samples that are read to padded memory, in batches that grow little by it."""
    samples, begins = np.diff(edges), starts[edges]
    batch = np.repeat(np.arange(len(samples)), samples)
    nonempty, longest = np.flatnonzero(samples), np.zeros_like(samples)
    longest[nonempty] = np.maximum.reduceat(counts, edges[nonempty])
    rows = np.diff(begins)
    apart = samples * longest <= rows + rows // PADDING_SHARE
    placed = np.append(0, np.cumsum(np.where(apart, samples * longest, rows)))
    numbers = np.arange(len(counts)) - edges[batch]
    inside = np.where(apart[batch], numbers * longest[batch], starts[:-1] - begins[batch])
    return np.append(placed[batch] + inside, placed[-1])


class RaggedCounts:
    """How many rows each sample of a batch has: share by share while they come, then one behind the other."""

    def __init__(self, samples: int) -> None:
        self.samples = samples  # of the batch
        # Places of samples, ascending, and the rows of each. Tuples of arrays, which a garbage collection leaves out:
        # one that looks at all that a window brings, and then at all of torch, takes a tenth of a second.
        self.shares: tuple[tuple[Places, Ints], ...] = ()

    def add(self, places: Places, counts: Ints, offsets: Ints) -> None:
        """Add a share, with where its samples begin one behind the other."""
        self.shares += ((places, counts),)
        if len(places) == self.samples:
            self.lengths, self.offsets = counts, offsets  # places ascend, so these are all of them in turn

    @cached_property
    def lengths(self) -> Ints:
        """The rows of each sample, once all shares are there."""
        lengths = np.zeros(self.samples, dtype=np.int64)
        for places, counts in self.shares:
            lengths[places] = counts
        return lengths

    @cached_property
    def longest(self) -> int:
        """The most rows of any sample."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def offsets(self) -> Ints:
        """Offsets of each sample's rows, and their end."""
        return np.append(0, np.cumsum(self.lengths))


@dataclass(slots=True, kw_only=True)
class RaggedRows:
    """The rows of a ragged field in a batch: share by share while they come, then as the batch has them.

    # Guarantees: one thread at a time, also of those of the same samples.
    """

    field: FieldLayout
    of: RaggedCounts  # how many rows each sample has; fields of which samples have the same rows share it
    take: Take
    # of values of a sparse matrix that come dense: the column of each, and the place of each column
    dense: tuple[RaggedRows, NDArray[np.int32]] | None = None
    shares: tuple[Memory, ...] = ()  # the rows of each share, one sample behind the other
    memory: Memory | None = None  # the rows, once they are arranged
    lists: Listed | None = None  # in place of them, where a batch has lists

    @property
    def how(self) -> Ragged:
        """How they come in a batch."""
        return self.field.form

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row; values of variable length are objects, of one byte each here."""
        return 1 if self.field.dtype.kind == "O" else self.field.placed_nbytes

    @property
    def shared_nbytes(self) -> int:
        """Bytes of the shares."""
        return sum(memory.nbytes for memory in self.shares)

    @property
    def copied_nbytes(self) -> int:
        """Bytes that are copied to arrange the rows for the batch; 0 if they are in place."""
        if self._to_be_dense is not None:
            return self.of.samples * self.how.wanted * self.row_nbytes
        return 0 if self._is_together or self.field.is_listed else self._filled_nbytes

    @property
    def _filled_nbytes(self) -> int:
        is_padded = self.how.form == "pad"
        return self.row_nbytes * self.of.samples * self.of.longest if is_padded else self.shared_nbytes

    @property
    def _is_together(self) -> bool:
        return len(self.shares) == 1 and self.shares[0].nbytes == self._filled_nbytes

    def without(self, present: NDArray[np.bool_]) -> RaggedRows:
        """Leave out samples whose rows cannot be had."""
        number = np.cumsum(present) - 1
        remaining = replace(self, of=RaggedCounts(int(present.sum())), shares=())
        for (places, counts), memory in zip(self.of.shares, self.shares, strict=True):
            begins = self._begins(counts, memory)
            for k in np.flatnonzero(present[places]).tolist():
                remaining.of.shares += ((number[places[k : k + 1]], counts[k : k + 1]),)
                remaining.shares += (memory[begins[k] * self.row_nbytes : (begins[k] + counts[k]) * self.row_nbytes],)
        return remaining

    def arrange(self) -> Any:
        """Return the bytes of the rows as the batch has them, or the rows of each sample as lists; done once."""
        return self.listed() if self.field.is_listed else self.laid()

    def laid(self) -> Memory:
        """Return the bytes of the rows as the batch has them; done once."""
        if self.memory is None:
            self.memory = self._laid()
            self.shares = ()
        return self.memory

    def listed(self) -> Listed:
        """Return the rows of each sample as lists; done once."""
        if self.lists is None:
            self.lists = self._lists()
            self.shares = ()
        return self.lists

    def _lists(self) -> Listed:
        lists: Listed = [[] for _ in range(self.of.samples)]
        is_plain, row_shape = self.field.dtype.kind != "O", self.field.row_shape
        for (places, counts), share in zip(self.of.shares, self.shares, strict=True):
            edges = np.append(0, np.cumsum(counts)).tolist()
            rows = share.view(self.field.dtype).reshape(edges[-1], *row_shape) if is_plain else share
            for place, (low, high) in zip(places.tolist(), itertools.pairwise(edges), strict=True):
                lists[place] = rows[low:high].tolist()
        return lists

    def _laid(self) -> Memory:
        memory = self._together()
        if self.how.width:
            self._check_columns(memory)
        if (dense := self._to_be_dense) is not None:
            memory = self._dense(memory, *dense)
        if self.how.form == "pad" and len(memory):
            filler = np.full(FILLER_ITEMS, held_as(self.how.pad_value, self.field.dtype)).view(np.uint8)
            used, stride = self.of.lengths * self.row_nbytes, len(memory) // self.of.samples
            kernels.fill_behind(address_of(memory), stride, used, address_of(filler), len(filler))
        return memory

    def _together(self) -> Memory:
        """Return the rows of all shares in one memory."""
        # Places ascend, so the samples of one share are all of them in turn.
        return self.shares[0] if self._is_together else self._arranged()

    @property
    def _to_be_dense(self) -> tuple[RaggedRows, NDArray[np.int32]] | None:
        """The columns of values that are to be laid dense; None where they came without them, since that is done."""
        return self.dense if self.dense is not None and (self.dense[0].shares or not self.shares) else None

    def _dense(self, together: Memory, beside: RaggedRows, places: NDArray[np.int32]) -> Memory:
        """Return the rows of a dense matrix."""
        values, numbers = together.view(self.field.dtype), beside._together()
        beside.memory, beside.shares = numbers, ()
        columns = _column_numbers(numbers, beside.field.dtype)
        memory = self.take(self.of.samples * self.how.wanted * self.row_nbytes)
        out = memory.view(self.field.dtype).reshape(self.of.samples, self.how.wanted)
        is_small = bool(name_of(self.field.dtype))
        step = max(1, WIDENED_ITEMS // max(1, self.how.wanted) if is_small else self.of.samples)
        for low in range(0, self.of.samples, step):
            edges, rows = self.of.offsets[low : low + step + 1], out[low : low + step]
            stretch, laid = slice(edges[0], edges[-1]), np.empty(rows.shape, np.float32) if is_small else rows
            added = widened(values[stretch]), columns[stretch], edges - edges[0]
            wrong = kernels.add_sparse(*added, places, self.of.longest, laid)
            if wrong != kernels.NONE_WRONG:
                refuse_column(wrong, beside.how.width, repr(beside.field.name))
            if is_small:
                rows[...] = 0
                rows[laid != 0] = held_as(laid[laid != 0], self.field.dtype)
        return memory

    def _check_columns(self, memory: Memory) -> None:
        """Refuse columns that a matrix does not have: torch would leave its memory.

        They are looked at in every batch: a file may change and keep its size and its time.
        """
        columns = _column_numbers(memory, self.field.dtype)
        least, most = kernels.least_and_most(columns) if len(columns) else (0, -1)
        if least < 0 or most >= self.how.width:
            refuse_column(least if least < 0 else most, self.how.width, repr(self.field.name))

    def _begins(self, counts: Ints, share: Memory) -> Ints:
        """Return where the samples of a share begin in it."""
        if len(share) == self.row_nbytes * int(counts.sum()):
            return np.cumsum(counts) - counts
        return np.arange(len(counts)) * int(counts.max())

    def _arranged(self) -> Memory:
        begins, nbytes = self.of.offsets, self.of.offsets[-1] * self.row_nbytes
        if self.how.form == "pad":
            stride = self.of.longest
            begins, nbytes = np.arange(self.of.samples) * stride, self.of.samples * stride * self.row_nbytes
        memory = self.take(int(nbytes))
        whole, out = np.array([[0, 0, self.row_nbytes]]), np.array([address_of(memory)])
        for (places, counts), share in zip(self.of.shares, self.shares, strict=True):
            kernels.scatter_spans(
                address_of(share), self.row_nbytes, whole, self._begins(counts, share), counts, np.zeros_like(counts),
                begins[places], out, 0, self.row_nbytes,
            )  # fmt: skip
        return memory


def objects_for(fields: Sequence[FieldLayout], rows: int, take: Take | None = None) -> dict[int, Any]:
    """Return empty containers, by field number, for a batch's values that do not live in its slot."""
    take = RaggedMemory().take if take is None else take
    objects = {
        number: RaggedRows(field=one, of=RaggedCounts(rows), take=take)
        if one.kind == "ragged"
        else [None] * (rows * one.places)
        for number, one in enumerate(fields)
        if one.kind in ("object", "ragged")
    }
    join_columns(objects)
    return objects


def join_columns(objects: dict[int, Any]) -> None:
    """Let the values of sparse matrices know of their columns, which are the next field."""
    for number, rows in objects.items():
        if isinstance(rows, RaggedRows) and (places := rows.how.places) is not None:
            rows.dense = objects[number + 1], places


def rows_of_values(values: Sequence[np.ndarray], field: FieldLayout) -> RaggedRows:
    """Return arrays in memory, one a sample, as the rows of a field in a batch."""
    counts = np.array([len(value) for value in values], dtype=np.int64)
    of, offsets = RaggedCounts(len(values)), np.append(0, np.cumsum(counts))
    of.add(np.arange(len(values)), counts, offsets)
    empty = np.empty((0, *field.row_shape), field.dtype)
    memory = np.concatenate([empty, *values]).reshape(-1).view(np.uint8)
    ragged = replace(field, kind="ragged")
    return RaggedRows(field=ragged, of=of, take=RaggedMemory().take, shares=(memory,))


def is_widened(dtype: np.dtype) -> bool:
    """Return whether a kernel takes column numbers of a type as wider ones: its own are signed."""
    return dtype.kind == "u" and dtype.itemsize < 4


def _column_numbers(memory: Memory, dtype: np.dtype) -> NDArray[np.integer]:
    return memory.view(dtype).astype(np.int32) if is_widened(dtype) else memory.view(f"i{dtype.itemsize}")


def refuse_column(column: int, width: int, where: str) -> NoReturn:
    """Say that a sparse matrix has a value in a column that it does not have."""
    raise SourceError(
        f"{where}: a value of a sparse matrix has column index {column:,}, counted from 0, and there are {width:,} "
        "columns: its indices are damaged, or its shape is wrong. See whether the program that wrote it can read it"
    )


def lend(
    every: Iterable[Share | None],
    objects: Sequence[dict[int, Any]],
    row_nbytes: Sequence[int],
    take: Take,
) -> dict[int, Any]:
    """Return the memory of the shares that tasks of a window bring, and add it to its batches."""
    memory_of: dict[int, Any] = {}
    if not any(isinstance(one, RaggedRows) for each in objects[:1] for one in each.values()):
        return memory_of
    for share in dict.fromkeys(every):
        if share is None:
            continue
        of, first = [each[share.fields[0]].of for each in objects], objects[0][share.fields[0]]
        for k, (low, high) in enumerate(itertools.pairwise(share.edges.tolist())):
            of[k].add(share.within[low:high], share.counts[low:high], share.offsets[low + k : high + k + 1])
        if first.field.dtype.kind == "O":
            for number in share.fields:
                memory_of[number] = [np.empty(rows, dtype=object) for rows in np.diff(share.begins).tolist()]
                for k, values in enumerate(memory_of[number]):
                    objects[k][number].of = of[k]
                    objects[k][number].shares += (values,)
            continue
        sizes = np.diff(share.begins)[:, None] * np.array([row_nbytes[number] for number in share.fields])
        addresses = np.zeros((len(objects), len(share.fields)), dtype=np.int64)
        for k, number, memory in _pieces(sizes, take, addresses):
            ragged = objects[k][share.fields[number]]
            ragged.of = of[k]
            ragged.shares += (memory,)
        memory_of.update(zip(share.fields, np.ascontiguousarray(addresses.T), strict=True))
    return memory_of


def _pieces(sizes: Ints, take: Take, addresses: Ints) -> Iterator[tuple[int, int, Memory]]:
    """Give memory for each batch and field, of a few batches together, and note its address."""
    aligned = -(-sizes // FIELD_ALIGNMENT) * FIELD_ALIGNMENT
    ends = np.cumsum(aligned).reshape(sizes.shape)
    begins, first = ends - aligned, 0
    while first < len(sizes):
        before = int(begins[first, 0])
        after = max(first + 1, int(np.searchsorted(ends[:, -1], before + SHARES_NBYTES, side="right")))
        memory = take(max(1, int(ends[after - 1, -1]) - before))
        starts = begins[first:after] - before
        addresses[first:after] = address_of(memory) + starts
        # Not slices of the array, which would refer to what that stands on: it would be used again at once.
        shared = memory.data
        for k, (each, places) in enumerate(zip(sizes[first:after].tolist(), starts.tolist(), strict=True), first):
            for number, (nbytes, at) in enumerate(zip(each, places, strict=True)):
                yield k, number, np.frombuffer(shared, np.uint8, nbytes, at)
        first = after


class RaggedMemory:
    """Memory of shares, used again once no tensor looks at it.

    Mapping memory anew costs more than reading into it. As much is kept free as was in use at a time, less what is.

    # Guarantees: any thread may take. What comes back does so by one `deque.append`, which needs no lock, from
    whatever thread drops the last array over it, also inside the garbage collector.
    """

    def __init__(self) -> None:
        self._lent: Lent[Memory] = Lent()
        self._free: list[Memory] = []  # by size
        self._lock = threading.Lock()
        self._lent_nbytes = self._free_nbytes = self._most_nbytes = 0

    def __reduce__(self) -> tuple[object, ...]:
        return RaggedMemory, ()

    def take(self, nbytes: int) -> Memory:
        """Take so many bytes; their content is undefined."""
        if nbytes < POOLED_NBYTES:
            return np.empty(nbytes, dtype=np.uint8)
        with self._lock:
            self._take_back()
            place = bisect.bisect_left(self._free, nbytes, key=_nbytes)
            fits = place < len(self._free) and self._free[place].nbytes <= 2 * nbytes
            memory = self._free.pop(place) if fits else map_memory(nbytes + nbytes // 8)
            self._free_nbytes -= memory.nbytes if fits else 0
            self._lent_nbytes += memory.nbytes
            self._most_nbytes = max(self._most_nbytes, self._lent_nbytes)
            self._let_go(self._most_nbytes - self._lent_nbytes)
        # An array over this one keeps `memory` and not the view, so that tensors are made of the view alone.
        view = memory[:nbytes]
        self._lent.lend(memory, until_dropped=view)
        return view

    def trim(self) -> None:
        """Release free memory."""
        with self._lock:
            self._take_back()
            self._let_go(0)
            self._most_nbytes = self._lent_nbytes

    def _take_back(self) -> None:
        for memory in self._lent.returned():
            bisect.insort(self._free, memory, key=_nbytes)
            self._lent_nbytes -= memory.nbytes
            self._free_nbytes += memory.nbytes

    def _let_go(self, most_nbytes: int) -> None:
        while self._free_nbytes > most_nbytes:
            self._free_nbytes -= self._free.pop(0).nbytes


_nbytes = operator.attrgetter("nbytes")
