"""Rows and where each goes: what an order hands to the engine, and how it is cut; pure.

This is the one place between order and plan. A sample that takes several rows of a dataset comes in here as spans:
consecutive rows that go to consecutive places. They stay spans until a chunk, or a stretch that was read, is placed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.compiled import _native as kernels
from h5stream.engine.ragged import Share
from h5stream.order.permutation import CROPS, fractions_of
from h5stream.order.places import Places, is_ascending, less, narrowed, new_array, place_dtype, sought
from h5stream.order.window import Window
from h5stream.samples.space import Space, Steps, neighbours, number_outside
from h5stream.storage.layout.layout import DatasetPart, Lookup

Ints = NDArray[np.int64]


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

    def __getitem__(self, chosen: Any) -> Placement:
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

    def stretched(
        self,
        lookup: Lookup,
        fields: Iterable[int],
        are_values: bool = False,
        is_padded: bool = False,
    ) -> Placement:
        """Return the rows of a ragged dataset that samples have, one sample after the other in each batch's share.

        Of values of variable length, each sample has one row, which goes to where its first item goes. Rows that
        samples list are single rows, each with a place of its own.
        """
        samples = self.rows
        first, counts = lookup.stretches(samples, self.drawn)
        if lookup.spare is not None:
            begins = (fractions_of(samples, *self.drawn, CROPS) * (lookup.spare[samples] + 1)).astype(np.int64)
            first = first + (begins if lookup.paces is None else begins * lookup.length // lookup.paces[samples])
        share, within = Share.of(fields, self.batch, self.within, counts, is_padded=is_padded)
        nonempty = slice(None) if counts.all() else np.flatnonzero(counts)
        most = 0 if lookup.listed is None else int(lookup.listed.max(initial=0))
        kind = place_dtype(int(max((first + counts).max(initial=0), share.starts[-1], most)))
        spans = Placement(
            rows=first[nonempty].astype(kind),
            batch=self.batch[nonempty].astype(kind),
            within=within[nonempty].astype(kind),
            counts=None if are_values else counts[nonempty].astype(kind),
            share=share,
        )
        if lookup.listed is None or not len(spans):
            return spans
        rows = spans.each_row()
        return replace(rows, rows=lookup.listed[rows.rows].astype(kind))

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
        cut = self.cut_every(part.chunk_rows, part.row_start)
        rows = cut.rows
        inside, most = new_array(len(rows), rows.dtype), 0
        if len(rows):
            most = min(len(rows), (int(rows[-1]) - int(rows[0])) // part.chunk_rows + 2)
        edges, numbers = np.empty(most + 1, dtype=np.int64), np.empty(most, dtype=np.int64)
        count = kernels.into_chunks(rows, part.row_start, part.chunk_rows, inside, edges[:most], numbers)
        edges[count] = len(rows)
        return replace(cut, rows=inside), edges[: count + 1], numbers[:count]


def placed_spans(
    samples: Placement, steps: Steps | None, at: str, space: Space, pad: str | float | None, most_rows: int
) -> tuple[Placement, Placement | None]:
    """Return the stored rows that samples take of fields with some steps, and the places that no row goes to.

    A sequence of 16 neighbouring rows is one span, steps that are not neighbours are several. Where steps lead out of
    the segment, each is one of its own: the row is the segment's first or last, unless a number stands there.
    """
    anchors = space.anchors_of(samples.rows, at)
    if steps is None:
        return replace(samples, rows=anchors.astype(place_dtype(most_rows))), None
    assert space.edges is not None
    inside = numbers = np.arange(len(anchors), dtype=np.int64)
    if pad is not None:
        segment = np.searchsorted(space.edges, anchors, side="right") - 1
        low, high = space.edges[segment], space.edges[segment + 1] - 1
        inside = np.flatnonzero((anchors + min(steps) >= low) & (anchors + max(steps) <= high))
    begins, counts, places = neighbours(steps)
    first, sample = (anchors[inside].astype(np.int64)[:, None] + begins).reshape(-1), np.repeat(inside, len(begins))
    counts, places = np.tile(counts, len(inside)), np.tile(places, len(inside))
    count = len(steps)
    kind = place_dtype(max(most_rows, (int(samples.within.max(initial=0)) + 1) * count))
    within: Places = samples.within.astype(kind, copy=False)
    batch: Places = samples.batch.astype(kind, copy=False)
    outside = None
    if len(inside) < len(numbers):
        over = np.setdiff1d(numbers, inside, assume_unique=True)
        wanted = anchors[over].astype(np.int64)[:, None] + np.array(steps, dtype=np.int64)
        single = np.clip(wanted, low[over, None], high[over, None])
        stays = np.ones(single.shape, dtype=np.bool_)
        if number_outside(pad) is not None:
            stays = single == wanted
            of, step = np.nonzero(~stays)
            outside = Placement(
                rows=np.zeros(len(of), dtype=kind),
                batch=batch[over[of]],
                within=within[over[of]] * count + step.astype(kind),
                of_sample=count,
            )
        of, step = np.nonzero(stays)
        first, sample = np.concatenate([first, single[stays]]), np.concatenate([sample, over[of]])
        counts, places = np.concatenate([counts, np.ones_like(of)]), np.concatenate([places, step])
    by_row = np.argsort(first, kind="stable")
    sample, counts = sample[by_row], counts[by_row]
    taken = Placement(
        rows=first[by_row].astype(kind),
        batch=batch[sample],
        within=within[sample] * count + places[by_row].astype(kind),
        counts=None if (counts == 1).all() else counts.astype(kind),
        of_sample=count,
    )
    return taken, outside


def cut_by(work: Ints, most: int) -> Iterator[slice]:
    """Cut neighbours wherever their work, such as bytes, adds up to `most`."""
    share = (np.cumsum(work) - work) // most
    edges = np.concatenate([[0], np.flatnonzero(np.diff(share)) + 1, [len(work)]]).tolist()
    for start, stop in itertools.pairwise(edges):
        yield slice(start, stop)
