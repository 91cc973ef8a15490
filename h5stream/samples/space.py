"""Sample spaces: which samples there are, and which rows each field takes of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.samples.boxes import BoxSpace, number_outside
from h5stream.samples.segments import Edges
from h5stream.samples.sequences import Draws, Sequences, anchors_of, rows_taken

Ints = NDArray[np.int64]

Steps = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpace:
    """All sequences of some segments."""

    anchors: NDArray[np.int64]  # the row that each sample begins at
    edges: Edges  # of the segments; see `h5stream.samples.segments`
    pad: str | float | None  # what stands where a step leads out of its segment; None where none does
    left_out: int  # segments that no sample is of, since they are shorter than one
    draws: Draws | None = None  # how an epoch's samples are drawn from these; None where it takes all
    # for samples that a `Table` lists: the rows that fields count from which name another column of it
    others: dict[str, NDArray[np.int64]] | None = None

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.anchors)

    @property
    def segments(self) -> tuple[Ints, Ints]:
        """The number of each segment's first sample, and how many it has, of those that have any."""
        segment = np.searchsorted(self.edges, self.anchors, side="right")
        first = np.flatnonzero(np.diff(segment, prepend=-1))
        return first, np.diff(np.append(first, len(segment)))

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory."""
        return self.anchors.nbytes + sum(rows.nbytes for rows in (self.others or {}).values())

    def anchors_of(self, numbers: NDArray[Any], at: str = "") -> Ints:
        """Return the rows that samples begin at, by their numbers, for fields that count from a column of a table."""
        anchors: Ints = (self.others[at] if at and self.others is not None else self.anchors)[numbers]
        return anchors

    def outside(self, numbers: NDArray[Any], steps: Sequence[int]) -> NDArray[np.bool_]:
        """Tell which steps lead out of the segment, for each of some samples."""
        return rows_taken(self.anchors[numbers], tuple(steps), self.edges)[1].reshape(len(numbers), len(steps))


Space = SequenceSpace | BoxSpace


def sequence_space(sequences: Sequences, edges: Edges, steps: Sequence[Steps]) -> SequenceSpace:
    """Find all sequences of some segments."""
    first, last = min(map(min, steps)), max(map(max, steps))
    anchors = anchors_of(edges, sequences, first, last)
    lengths = np.diff(edges)
    if not len(anchors):
        longest = int(lengths.max(initial=0))
        raise OptionError(
            f"no sequence fits: its steps span {last - first + 1:,} rows (from {first} to {last}), and the longest of "
            f"{len(lengths):,} segments has {longest:,}; take a shorter one, or pad='edge' or pad='zeros'"
        )
    with_samples = np.unique(np.searchsorted(edges, anchors, side="right"))
    left_out = len(lengths) - len(with_samples)
    return SequenceSpace(anchors=anchors, edges=edges, pad=sequences.pad, left_out=left_out, draws=sequences.draws)


def joined_space(spaces: Sequence[SequenceSpace], starts: Sequence[int]) -> SequenceSpace:
    """Return the space of several that follow one another, each beginning at a row of the whole."""
    moved = list(zip(spaces, starts, strict=True))
    return SequenceSpace(
        anchors=np.concatenate([space.anchors + start for space, start in moved]),
        edges=np.concatenate([np.zeros(1, dtype=np.int64), *(space.edges[1:] + start for space, start in moved)]),
        pad=spaces[0].pad,
        left_out=sum(space.left_out for space in spaces),
        draws=spaces[0].draws,
    )


def steps_of(given: Any, samples: Any, name: str) -> Steps | None:
    """Return the steps of a field: its own, or those of a kind of samples that has some; None where it gives a row."""
    if samples is None and given is not None:
        raise OptionError(
            f"field {name!r} has steps in take=, which need samples=Sequences(...), for it says what a segment is, or "
            "Table"
        )
    if given is not None:
        return tuple(given)
    if samples is None or (samples.steps is None and not isinstance(samples, Sequences)):
        return None
    if samples.steps is None:
        raise OptionError(f"field {name!r} needs take=STEPS, or Sequences a length: Sequences(16)")
    return tuple(samples.steps)


# --- Spans: the stored rows that samples take of a field, and where they land in each sample. Pure.
#
# A span is some consecutive rows that one sample takes. A sequence of 16 neighbouring rows is one span, steps that are
# not neighbours are several, and samples that overlap have spans that share rows.


class Spans(NamedTuple):
    """What some samples take of a field, by ascending first row."""

    first: Ints  # the number of each span's first row
    rows: Ints  # how many rows it has
    sample: Ints  # the sample that takes it, as its place among those that were asked about
    at: Ints  # where its first row lands in the sample, counted in rows
    outside_sample: Ints  # samples that have rows for which nothing is stored: a number stands there
    outside_at: Ints  # which row of the sample that is


def neighbours(steps: Steps) -> tuple[Ints, Ints, Ints]:
    """Group steps that follow one another: the first of each group, how many, and its place among the steps."""
    every = np.array(steps, dtype=np.int64)
    at = np.append(0, np.flatnonzero(np.diff(every) != 1) + 1)
    return every[at], np.diff(np.append(at, len(every))), at


def spans_of(anchors: NDArray[Any], steps: Steps, space: SequenceSpace) -> Spans:
    """Return what a field with steps takes of some samples."""
    samples = np.arange(len(anchors), dtype=np.int64)
    none, inside = samples[:0], samples
    if space.pad is not None:
        segment = np.searchsorted(space.edges, anchors, side="right") - 1
        before, behind = anchors + min(steps) < space.edges[segment], anchors + max(steps) >= space.edges[segment + 1]
        inside = np.flatnonzero(~(before | behind))
    begins, counts, at = neighbours(steps)
    first, sample = (anchors[inside].astype(np.int64)[:, None] + begins).reshape(-1), np.repeat(inside, len(begins))
    rows, at, outside = np.tile(counts, len(inside)), np.tile(at, len(inside)), (none, none)
    if len(inside) < len(samples):
        over = np.setdiff1d(samples, inside, assume_unique=True)
        single, leads_out = rows_taken(anchors[over], steps, space.edges)
        of, step = np.repeat(over, len(steps)), np.tile(np.arange(len(steps)), len(over))
        if number_outside(space.pad) is not None:
            outside = of[leads_out], step[leads_out]
            single, of, step = single[~leads_out], of[~leads_out], step[~leads_out]
        first, rows = np.concatenate([first, single]), np.concatenate([rows, np.ones_like(single)])
        sample, at = np.concatenate([sample, of]), np.concatenate([at, step])
    by_row = np.argsort(first, kind="stable")
    return Spans(first[by_row], rows[by_row], sample[by_row], at[by_row], *outside)
