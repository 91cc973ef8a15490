"""Plans of samples that are more than rows: steps around a row, boxes, lookups, and stretches of ragged datasets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from h5stream.engine.kinds.boxes import Acceptance, BoxesOfParts, boxes_of
from h5stream.engine.kinds.columns import padding, plan_columns
from h5stream.engine.kinds.ragged import Share
from h5stream.engine.kinds.sparse import dense_rows
from h5stream.engine.plan.tasks import TASK_NBYTES, Destination, Placement, Task
from h5stream.order.draws import fractions_of
from h5stream.order.places import CROPS, Places, narrowed, place_dtype
from h5stream.samples.lookup import Lookup
from h5stream.samples.space import Space, Steps, neighbours, number_outside
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.source.identity import ByteSource


def stretched(
    placement: Placement,
    lookup: Lookup,
    fields: Iterable[int],
    are_values: bool = False,
    is_padded: bool = False,
) -> Placement:
    """Return the rows of a ragged dataset that samples have, one sample after the other in each batch's share.

    Of values of variable length, each sample has one row, which goes to where its first item goes. Rows that
    samples list are single rows, each with a place of its own.
    """
    samples = placement.rows
    first, counts = lookup.stretches(samples, placement.drawn)
    if lookup.spare is not None:
        begins = (fractions_of(samples, *placement.drawn, CROPS) * (lookup.spare[samples] + 1)).astype(np.int64)
        first = first + (begins if lookup.paces is None else begins * lookup.length // lookup.paces[samples])
    share, within = Share.of(fields, placement.batch, placement.within, counts, is_padded=is_padded)
    nonempty = slice(None) if counts.all() else np.flatnonzero(counts)
    most = 0 if lookup.listed is None else int(lookup.listed.max(initial=0))
    kind = place_dtype(int(max((first + counts).max(initial=0), share.starts[-1], most)))
    spans = Placement(
        rows=first[nonempty].astype(kind),
        batch=placement.batch[nonempty].astype(kind),
        within=within[nonempty].astype(kind),
        counts=None if are_values else counts[nonempty].astype(kind),
        share=share,
    )
    if lookup.listed is None or not len(spans):
        return spans
    rows = spans.each_row()
    return replace(rows, rows=lookup.listed[rows.rows].astype(kind))


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


PlanRows = Callable[[Placement, int, Sequence[int]], Iterator[Task]]
"""Plans the reads of rows of some datasets, as `RowReader.plan_rows` does."""


class OtherKinds:
    """Plans the samples of a layout of which not all are rows.

    # Guarantees: any number of threads may plan. How boxes lie may be worked out twice, with the same result.
    """

    def __init__(self, layout: SampleLayout, sources: Sequence[ByteSource], datasets: Sequence[int]) -> None:
        self._layout, self._datasets = layout, datasets
        self._gaps = [source.gap_nbytes for source in sources]
        # Datasets of which samples take rows in one way are planned together.
        self._by_steps: dict[tuple[Steps | None, str, str | float | None], list[int]] = {}
        for dataset in datasets:
            is_boxed = layout.has_boxes and bool(layout.datasets[dataset][0].along)  # not where a row is an image
            if dataset < len(layout.aligned) and not is_boxed:
                self._by_steps.setdefault(layout.steps_of(dataset), []).append(dataset)
        self._lookups = [(one, narrowed(one.rows)) for one in layout.lookups if one.counts is None]
        self._dense = dense_rows(layout, sources)
        laid = {dataset for matrix in self._dense for dataset in matrix.datasets}
        self._ragged = _by_their_rows(layout, [one for one in layout.lookups if one.dataset not in laid])
        self._boxes: dict[int, list[tuple[NDArray[np.int64], BoxesOfParts]]] = {}

    def acceptance_of(self, carry_out: Callable[[Iterable[Task], Destination], None]) -> Acceptance | None:
        """Return what asks the user's function about samples; None if there is none."""
        space = self._layout.space
        if space is None or space.accept is None:
            return None
        return Acceptance(self._layout, space, space.accept, functools.partial(self._plan_boxes, space), carry_out)

    def plan(self, placement: Placement, task_nbytes: int, plan_rows: PlanRows) -> Iterator[Task]:
        """Plan what brings a window's samples."""
        layout = self._layout
        if layout.has_boxes and layout.space is not None:
            aligned = [number for number in self._datasets if number < len(layout.aligned)]
            every = [number for number in aligned if layout.datasets[number][0].along]
            yield from self._plan_boxes(layout.space, placement.each_row(), every, task_nbytes)
        for (steps, at, pad), datasets in self._by_steps.items():
            rows, outside = placement, None
            if layout.space is not None and not layout.has_boxes:
                rows, outside = placed_spans(placement.each_row(), steps, at, layout.space, pad, layout.rows)
            if len(rows):
                yield from plan_rows(rows, task_nbytes, datasets)
            if outside is not None:
                fields = [target.field for n in datasets for target in layout.datasets[n][0].targets]
                yield padding(layout, outside, fields)
        for lookup, table in self._lookups:
            samples, draw, datasets = placement.each_row(), lookup.draw, [lookup.dataset]
            of = table[samples.rows] if draw is None else narrowed(draw.of(samples.rows, *samples.drawn))
            if layout.datasets[lookup.dataset][0].along:  # objects, each of a shape of its own
                nowhere = np.zeros((len(of), 0), dtype=np.int64)
                yield from self._plan_parts(samples, of, nowhere, datasets, task_nbytes)
            elif lookup.dataset in self._datasets:
                yield from plan_rows(replace(samples, rows=of), task_nbytes, datasets)
        for lookups, are_values, is_padded in self._ragged:
            datasets = [one.dataset for one in lookups]
            filled = (target.field for dataset in datasets for target in layout.datasets[dataset][0].targets)
            rows = stretched(placement.each_row(), lookups[0], filled, are_values, is_padded)
            stored = [number for number in datasets if number in self._datasets]
            if len(rows) and stored:
                yield from plan_rows(rows, task_nbytes, stored)
            elif len(rows):  # rows without elements are counted all the same
                yield padding(layout, rows, ())
        for matrix in self._dense:
            yield from matrix.plan(placement, task_nbytes)
        yield from plan_columns(layout, placement)

    def _plan_boxes(
        self, space: Space, placement: Placement, datasets: Sequence[int], task_nbytes: int = TASK_NBYTES
    ) -> Iterator[Task]:
        """Plan what brings some datasets' boxes."""
        yield from self._plan_parts(placement, *space.boxes_of(placement.rows), datasets, task_nbytes, space.pad)

    def _plan_parts(
        self,
        placement: Placement,
        of: Places,
        origins: NDArray[np.int64],
        datasets: Sequence[int],
        task_nbytes: int,
        pad: str | float | None = None,
    ) -> Iterator[Task]:
        """Plan what brings boxes of datasets' parts, by the number of the part and the origin of each."""
        for dataset in datasets:
            if dataset not in self._boxes:
                boxes_like = functools.partial(BoxesOfParts, fields=self._layout.fields, pad=pad, gaps=self._gaps)
                self._boxes[dataset] = boxes_of(self._layout.datasets[dataset], boxes_like)
            for volumes, boxes in self._boxes[dataset]:
                place = np.minimum(np.searchsorted(volumes, of), len(volumes) - 1)
                inside = np.flatnonzero(volumes[place] == of)
                if len(inside):
                    yield from boxes.plan(placement[inside], place[inside], origins[inside], task_nbytes)


def _by_their_rows(layout: SampleLayout, lookups: Iterable[Lookup]) -> list[tuple[list[Lookup], bool, bool]]:
    """Return ragged datasets by samples with the same rows; whether those are values; whether they are padded."""
    datasets: dict[tuple[int, bool, bool, bool], list[Lookup]] = {}
    for one in lookups:
        if one.counts is not None:
            part = layout.datasets[one.dataset][0]
            filled = [layout.fields[target.field].ragged for target in part.targets]
            has_objects = any(layout.fields[target.field].dtype.kind == "O" for target in part.targets)
            is_padded = all(one is not None and one.form == "pad" for one in filled)
            how = part.heap is not None and not has_objects, is_padded, has_objects
            datasets.setdefault((id(one.counts), *how), []).append(one)
    return [(of_one, are_values, is_padded) for (_, are_values, is_padded, _), of_one in datasets.items()]
