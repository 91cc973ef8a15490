"""Spans: the stored rows that samples take of a field, and where they land in each sample. Pure.

A span is some consecutive rows that one sample takes. A sequence of 16 neighbouring rows is one span, steps that are
not neighbours are several, and samples that overlap have spans that share rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.samples.sequences import taken_by
from h5stream.samples.space import SequenceSpace, Steps

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """What some samples take of a field, by ascending first row."""

    first: Ints  # first, rows: (n,): the number of each span's first row, and how many rows it has
    rows: Ints
    sample: Ints  # (n,): the sample that takes it, as its place among those that were asked about
    at: Ints  # (n,): where its first row lands in the sample, counted in rows
    # outside_sample, outside_at: (m,): rows of samples for which nothing is stored, since their steps lead out of the
    # segment: a number stands there
    outside_sample: Ints
    outside_at: Ints


def neighbours(steps: Steps) -> tuple[Ints, Ints, Ints]:
    """Group steps that follow one another: the first of each group, how many, and its place among the steps.

    Examples
    --------
    >>> [each.tolist() for each in neighbours((-1, 0, 1, 5, 3))]
    [[-1, 5, 3], [3, 1, 1], [0, 3, 4]]
    """
    every = np.array(steps, dtype=np.int64)
    at = np.append(0, np.flatnonzero(np.diff(every) != 1) + 1)
    return every[at], np.diff(np.append(at, len(every))), at


def spans_of(anchors: NDArray[Any], steps: Steps, space: SequenceSpace) -> Spans:
    """Return what a field with steps takes of some samples.

    Examples
    --------
    >>> space = SequenceSpace(anchors=np.arange(4), edges=np.array([0, 4]), pad="zeros", left_out=0)
    >>> spans = spans_of(np.array([3, 1]), (0, 1), space)
    >>> spans.first.tolist(), spans.rows.tolist(), spans.sample.tolist(), spans.at.tolist()
    ([1, 3], [2, 1], [1, 0], [0, 0])
    >>> spans.outside_sample.tolist(), spans.outside_at.tolist()
    ([0], [1])
    """
    none = np.zeros(0, dtype=np.int64)
    samples = np.arange(len(anchors), dtype=np.int64)
    inside = samples if space.pad is None else np.flatnonzero(_stays_inside(anchors, steps, space.edges))
    begins, counts, at = neighbours(steps)
    parts = [
        (
            (anchors[inside].astype(np.int64)[:, None] + begins).reshape(-1),
            np.tile(counts, len(inside)),
            np.repeat(inside, len(begins)),
            np.tile(at, len(inside)),
        )
    ]
    outside = none, none
    if len(inside) < len(samples):
        over = np.setdiff1d(samples, inside, assume_unique=True)
        taken = taken_by(anchors[over], steps, space.edges)
        sample, step = np.repeat(over, len(steps)), np.tile(np.arange(len(steps)), len(over))
        if space.padding is not None:
            assert taken.outside is not None
            outside = sample[taken.outside], step[taken.outside]
            sample, step, found = (each[~taken.outside] for each in (sample, step, taken.rows))
        else:
            found = taken.rows
        parts.append((found, np.ones_like(found), sample, step))
    first, rows, sample, step = (np.concatenate(each) for each in zip(*parts, strict=True))
    by_row = np.argsort(first, kind="stable")
    return Spans(
        first=first[by_row],
        rows=rows[by_row],
        sample=sample[by_row],
        at=step[by_row],
        outside_sample=outside[0],
        outside_at=outside[1],
    )


def _stays_inside(anchors: NDArray[Any], steps: Steps, edges: Ints) -> NDArray[np.bool_]:
    """Tell which samples take no row outside of their segment."""
    segment = np.searchsorted(edges, anchors, side="right") - 1
    within: NDArray[np.bool_] = (anchors + min(steps) >= edges[segment]) & (anchors + max(steps) < edges[segment + 1])
    return within
