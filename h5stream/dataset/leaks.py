"""Leaks: whether samples of several parts read the same rows, and how to take parts that do not.

Samples are intervals on a line: the rows of all files, or an axis of one volume after the other. An interval shares
rows with those that begin inside it, and these are next to it in the order of their beginnings. Boxes that share places
of one axis are compared along the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from h5stream.base.limits import cached_property
from h5stream.order.places import is_ascending
from h5stream.samples.segments import Ints
from h5stream.samples.space import Grid, Space, neighbours, scaled
from h5stream.storage.layout.layout import SampleLayout

_INTERVALS = 1 << 19
"""Intervals that are compared at a time, at least."""

Runs = tuple[tuple[int, int], ...]
"""Stretches of consecutive steps: the first of each, and the number after its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """The steps of all fields that count from the same place of a sample."""

    column: str = ""  # for segments: the column with the rows that they count from
    axes: tuple[int, ...] = (0,)  # the numbers of an origin that they count from
    scales: tuple[Fraction, ...] = (Fraction(1),)  # elements of the fields per element of an origin, along each axis
    runs: tuple[Runs, ...] = (((0, 1),),)  # the steps along each axis
    pads: frozenset[str | float] = frozenset()  # what fills steps outside the data

    def joined(self, other: _Steps) -> _Steps:
        """Return the steps of both."""
        runs = tuple(_merged(pair) for pair in zip(self.runs, other.runs, strict=True))
        return _Steps(column=self.column, axes=self.axes, scales=self.scales, runs=runs, pads=self.pads | other.pads)


def _merged(every: Sequence[Runs]) -> Runs:
    """Join stretches of steps that meet."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(itertools.chain(*every)):
        if merged and first <= merged[-1][1]:
            first, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((first, end))
    return tuple(merged)


def _runs_of(steps: range | tuple[int, ...]) -> Runs:
    if isinstance(steps, range) and steps.step == 1:
        return ((steps.start, steps.stop),)
    first, counts, _ = neighbours(tuple(sorted({*steps})))
    return tuple(zip(first.tolist(), (first + counts).tolist(), strict=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class _SampleLine:
    """All samples along one axis, the *lead*: the rows, or the first axis along which samples have several elements.

    Each index of the axes before it is a stretch of the line.
    """

    space: Space | None = None
    steps: Sequence[_Steps]  # of the same scales

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """The first step along each axis, and the number after the last."""
        # Samples that reach beyond an edge read it even if all of their steps are outside, as if they had step 0.
        by_edge = [((0, 1),)] * any("edge" in one.pads for one in self.steps)
        axes = zip(*(one.runs for one in self.steps), strict=True)
        every = [[*runs, *by_edge] for runs in axes]
        return [(min(runs[0][0] for runs in axis), max(runs[-1][1] for runs in axis)) for axis in every]

    @cached_property
    def spans(self) -> list[int]:
        """The elements from the first step to the last along each axis."""
        return [end - first for first, end in self.ends]

    @cached_property
    def lead(self) -> int:
        """The axis of the line."""
        return next((axis for axis, span in enumerate(self.spans) if span > 1), len(self.spans) - 1)

    @cached_property
    def elements(self) -> list[Ints]:
        """The elements of each volume along each axis."""
        assert self.space is not None
        one, volumes = self.steps[0], self.space.volumes
        # The origins of a table may have several numbers along the last axis.
        columns = [volumes[:, min(axis, volumes.shape[1] - 1)] for axis in one.axes]
        return [-scaled(-column, scale) for column, scale in zip(columns, one.scales, strict=True)]

    @cached_property
    def grid(self) -> Grid | None:
        """The grid of the samples, whose numbers ascend along the line; None if they begin anywhere."""
        starts = None if self.space is None else self.space.starts
        return starts if isinstance(starts, Grid) and len(self.steps[0].axes) == len(starts.stride) else None

    @property
    def is_apart(self) -> bool:
        """Whether no two samples overlap, as rows do not, nor samples of a grid with long strides."""
        if self.grid is None:
            return self.space is None
        ends = zip(self.grid.least_gaps, self.steps[0].scales, self.spans, strict=True)
        return all(scaled(gap[None], scale)[0] >= span for gap, scale, span in ends)

    def places(self, one: _Steps, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the places of samples along each axis from the lead on, and the bounds of their segments."""
        if self.space is None:
            return numbers[:, None], numbers, numbers + 1
        if (edges := self.space.edges) is not None:
            rows = self.space.anchors_of(numbers, one.column)
            segment = np.searchsorted(edges, rows, side="right") if one.pads else np.ones(1, dtype=np.int64)
            return rows[:, None], edges[segment - 1], edges[segment]
        volume, origins = self.space.boxes_of(numbers)
        along = [scaled(origins[:, axis], scale) for axis, scale in zip(one.axes, one.scales, strict=True)]
        stretch = volume
        for axis in range(self.lead):
            stretch = stretch * int(self.elements[axis].max()) + along[axis]
        elements = self.elements[self.lead]
        low = stretch * (int(elements.max()) + 2 * self.spans[self.lead])
        along[self.lead] = along[self.lead] + low
        return np.stack(along[self.lead :], axis=1), low, low + elements[volume]

    def order(self, rows: Ints | None, total: int) -> Ints | None:
        """Return the order of samples along the line, those of a column after those of another; None if sorted."""
        along = rows
        if self.space is not None and self.grid is None:
            numbers = np.arange(total) if rows is None else rows
            along = np.concatenate([self.places(one, numbers)[0][:, 0] for one in self.steps])
        return None if along is None or is_ascending(along) else np.argsort(along, kind="stable")

    def shares_rows(self, rows: Ints | None, part: Ints) -> bool:
        """Return whether samples in several parts share rows; looks at a piece of the line at a time."""
        total, order = len(part), self.order(rows, len(part))
        least = max(1, _INTERVALS // max(len(one.runs[self.lead]) for one in self.steps))
        waiting, stop = np.zeros(0, dtype=np.int64), 0
        while stop < len(self.steps) * total:
            first, stop = stop, min(len(self.steps) * total, stop + max(least, len(waiting)))
            entries = np.concatenate([waiting, np.arange(first, stop) if order is None else order[first:stop]])
            column, samples = np.divmod(entries, total)
            numbers, at = samples if rows is None else rows[samples], np.empty(len(entries), dtype=np.int64)
            every: list[tuple[Ints, Ints, Ints]] = []
            for k, one in enumerate(self.steps):
                members = np.flatnonzero(column == k)
                places, low, high = self.places(one, numbers[members])
                at[members] = places[:, 0]
                for begins, ends in _intervals(one, self.lead, places, low, high):
                    inside = np.flatnonzero(begins[:, 0] < ends[:, 0]) if one.pads else slice(None)
                    every.append((begins[inside], ends[inside], part[samples[members[inside]]]))
            if _meet(*map(np.concatenate, zip(*every, strict=True))):
                return True
            waiting = entries[at > at[-1] - self.spans[self.lead]]
        return False

    def overlap(self, rows: Ints | None, total: int) -> int | None:
        """Return how many samples after any one share rows with it at most; None if they are in no order."""
        if self.lead < len(self.spans) - 1 or len(self.steps) > 1 or self.order(rows, total) is not None:
            return None
        span, one = self.spans[self.lead], self.steps[0]
        if self.grid is not None:
            stride, counts, gap = self.grid.stride[-1], self.grid.counts[:, -1], self.grid.least_gaps[-1]
            regular = -int(-span // (stride * one.scales[-1])) - 1
            return min(regular + int(gap < min(stride, span)), int(counts.max()) - 1)
        numbers = np.arange(total) if rows is None else rows
        places = self.places(one, numbers)[0][:, 0]
        return int((np.searchsorted(places, places + span) - np.arange(total)).max()) - 1


def _intervals(one: _Steps, lead: int, places: Ints, low: Ints, high: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield where the intervals of some steps begin and end; those without a row of the data end where they begin."""
    beside = [(runs[0][0], runs[-1][1]) for runs in one.runs[lead + 1 :]]
    for run in one.runs[lead]:
        begins, ends = (places + np.array(offsets) for offsets in zip(run, *beside, strict=True))
        if one.pads:
            by_edge = int("edge" in one.pads)  # the first or last row is repeated for those outside
            begins[:, 0] = np.clip(begins[:, 0], low, high - by_edge)
            ends[:, 0] = np.clip(ends[:, 0], low + by_edge, high)
        yield begins, ends


def _meet(begins: Ints, ends: Ints, part: Ints) -> bool:
    """Return whether boxes of several parts share a place; `begins` and `ends` have a row for each."""
    if (part[:1] == part).all():
        return False
    if not is_ascending(begins[:, 0]):
        order = np.argsort(begins[:, 0], kind="stable")
        begins, ends, part = begins[order], ends[order], part[order]
    changes = np.append(0, np.cumsum(part[1:] != part[:-1]))
    first, last = np.arange(len(part)), np.searchsorted(begins[:, 0], ends[:, 0]) - 1
    mixed = np.flatnonzero(changes[last] != changes)
    if begins.shape[1] == 1 or not len(mixed):
        return len(mixed) > 0
    starts, stops = (np.bincount(at[mixed], minlength=len(part)) for at in (first, last))
    near = (np.cumsum(starts) - np.cumsum(stops) + stops) > 0
    return _boxes_meet(begins[near], ends[near], part[near])


def _boxes_meet(begins: Ints, ends: Ints, part: Ints) -> bool:
    """Compare each box with those in its own and in neighbouring cells, which are as large as a box."""
    cells = begins // (ends - begins).max(axis=0)
    cells -= cells.min(axis=0)
    strides = np.append(np.cumprod((cells.max(axis=0) + 2)[:0:-1])[::-1], 1)
    order = np.argsort(cells @ strides, kind="stable")
    cell, begins, ends, part = (cells @ strides)[order], begins[order], ends[order], part[order]
    changes = np.append(0, np.cumsum(part[1:] != part[:-1]))
    for way in itertools.product((0, 1, -1), repeat=len(strides)):
        if (neighbour := int(np.dot(way, strides))) < 0:
            continue
        first, stop = (np.searchsorted(cell, cell + neighbour, side=side) for side in ("left", "right"))
        near = np.flatnonzero(first < stop)
        is_mixed = changes[first[near]] != changes[stop[near] - 1]
        near = near[is_mixed | (part[first[near]] != part[near])]
        while len(near):
            other = first[near]
            is_shared = ((begins[near] < ends[other]) & (begins[other] < ends[near])).all(axis=1)
            if (is_shared & (part[near] != part[other])).any():
                return True
            first[near] += 1
            near = near[first[near] < stop[near]]
    return False


def _steps_of(layout: SampleLayout, dataset: int) -> _Steps | None:
    """Return the steps of the fields of a dataset; None if these are the same for all samples of a volume."""
    steps, column, pad = layout.steps_of(dataset)
    pads = frozenset([] if pad is None else [pad])
    if not layout.has_boxes:
        return _Steps(column=column, runs=(_runs_of(steps or (0,)),), pads=pads)
    moving = {along.origin: along for along in layout.datasets[dataset][0].along if along.origin is not None}
    axes = tuple(sorted(moving))
    scales, runs = (tuple(moving[axis].scale for axis in axes), tuple(_runs_of(moving[axis].offsets) for axis in axes))
    return _Steps(axes=axes, scales=scales, runs=runs, pads=pads) if axes else None


def _lines(layout: SampleLayout) -> list[_SampleLine]:
    """Return the lines on which samples may share rows: one for the fields of each scale."""
    space, every = layout.space, dict[tuple[object, ...], _Steps]()
    if space is not None:
        for one in filter(None, (_steps_of(layout, dataset) for dataset in range(len(layout.aligned)))):
            key = one.column, one.axes, one.scales
            every[key] = every[key].joined(one) if key in every else one
    by_scale = dict[tuple[object, ...], list[_Steps]]()
    for one in every.values():
        # Fields of fewer axes are the same for many samples, as the label of a row is for all sequences along it.
        if space is not None and not any({*one.axes} < {*other.axes} for other in every.values()):
            axes = tuple(min(axis, space.volumes.shape[1] - 1) for axis in one.axes)
            by_scale.setdefault((axes, one.scales), []).append(one)
    return [_SampleLine(space=space, steps=steps) for steps in by_scale.values()] or [_SampleLine(steps=[_Steps()])]


def _has_repeated(rows: Ints | None) -> bool:
    return rows is not None and not (rows[:-1] < rows[1:]).all() and len(np.unique(rows)) < len(rows)


def share_rows(layout: SampleLayout, rows: Ints | None, parts: Sequence[Ints]) -> bool:
    """Return whether samples of several parts share rows."""
    has_repeated = _has_repeated(rows)
    possible = [line for line in _lines(layout) if has_repeated or not line.is_apart]
    if not possible:
        return False
    part = np.empty(sum(map(len, parts)), dtype=np.min_scalar_type(len(parts)))
    for number, members in enumerate(parts):
        part[members] = number
    return any(line.shares_rows(rows, part) for line in possible)


def in_order(layout: SampleLayout, rows: Ints | None, total: int) -> str:
    """Return how to take one part after the other so that they share no rows; empty if that is not possible."""
    every = [0 if line.is_apart else line.overlap(rows, total) for line in _lines(layout)]
    overlaps, n = [one for one in every if one is not None], int(0.8 * total)
    if len(overlaps) < len(every) or n < 1 or n + (most := max(overlaps)) >= total or _has_repeated(rows):
        return ""
    begin = f"n + {most}" if most else "n"
    return f"n = int(0.8 * len(dataset)); dataset.subset(slice(0, n)), dataset.subset(slice({begin}, None))"
