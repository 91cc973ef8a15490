"""Samples that take several rows of a dataset: steps around a row, and stretches of a ragged dataset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from h5stream.engine.kinds.ragged import Share
from h5stream.engine.plan.tasks import Placement
from h5stream.order.permutation import CROPS, fractions_of
from h5stream.order.places import Places, place_dtype
from h5stream.samples.space import Space, Steps, neighbours, number_outside
from h5stream.storage.layout.layout import Lookup


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
