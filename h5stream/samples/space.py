"""Sample spaces: which samples exist, and what each field takes of one. Pure.

A *volume* is a dataset that samples are parts of, or several datasets of equal axes, or a segment: a stretch of the
rows of all files. A sample has an *origin*, a number along each axis that samples move along; along each of its axes a
dataset contributes the elements at some *offsets* from one of these numbers, or from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.base.limits import cached_property
from h5stream.errors import OptionError
from h5stream.samples.kinds import Draws, Sequences
from h5stream.samples.segments import Edges, Ints

Steps = tuple[int, ...]


def fraction_of(number: Any) -> Fraction:
    """Return a number as a fraction; a float as the ratio of small integers that it stands for, if there is one.

    A ratio of few digits may be four units in the last place away, as some roundings leave it. One of more digits has
    the float as its nearest. Both are so short that a float of 64 bits which stands for no ratio rarely is near one.
    """
    if not isinstance(number, (float, np.floating)):
        return Fraction(number)
    exact, kind = Fraction(float(number)), np.finfo(type(number))
    half = Fraction(float(abs(np.spacing(number)))) / 2
    for halves, bits in ((8, kind.nmant - 12), (1, 46)):
        ratio = _simplest(exact - halves * half, exact + halves * half) if exact > 0 else exact
        if (ratio.numerator * ratio.denominator).bit_length() <= bits:
            return ratio
    return exact


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction with the least denominator between two others. Source: Stern (1858), Brocot (1861)."""
    whole = low.__floor__()
    if whole == low or whole + 1 <= high:
        return Fraction(whole + (whole != low))
    return whole + 1 / _simplest(1 / (high - whole), 1 / (low - whole))


def scaled(numbers: Ints, scale: Fraction) -> Ints:
    """Return integers times a fraction, rounded down, without overflow of 64 bits."""
    over, under = scale.numerator, scale.denominator
    most = max(abs(int(numbers.max(initial=0))), abs(int(numbers.min(initial=0))))
    if most * over < 1 << 63 and under < 1 << 63:
        return numbers * over // under
    return np.array([number * over // under for number in numbers.tolist()], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Along:
    """The elements that a sample takes of a dataset along one axis."""

    offsets: range | tuple[int, ...]  # the elements
    origin: int | None = None  # the number of the sample's origin that offsets are counted from; None counts from 0
    scale: Fraction = Fraction(1)  # elements of this dataset per element that origins count in

    @property
    def is_whole(self) -> bool:
        """Whether it takes the whole axis."""
        return self.origin is None and isinstance(self.offsets, range)

    @property
    def span(self) -> int:
        """The distance from the first element to the last, plus one."""
        return max(self.offsets, default=-1) - min(self.offsets, default=0) + 1

    def begins(self, origins: Ints) -> Any:
        """Return the element that offsets are counted from, for each origin."""
        if self.origin is None:
            return 0
        return scaled(origins[:, self.origin], self.scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Origins at regular strides along each axis; the last one may be closer to its neighbour."""

    first: Ints  # first, last: (volumes, axes): the first and the last origin along each axis of each volume
    last: Ints
    counts: Ints  # (volumes, axes): the number of origins
    stride: tuple[int, ...]  # from one to the next along each axis
    segment_axes: int = 0  # leading axes on which each index is a segment of its own; 0 if a volume is one segment

    @cached_property
    def ends(self) -> Ints:
        """The number after the last sample of each volume."""
        return np.cumsum(np.prod(self.counts, axis=1, dtype=np.int64))

    @property
    def samples(self) -> int:
        """The number of samples."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def least_gaps(self) -> Ints:
        """The least distance between neighbours along each axis; a huge number where no volume has two."""
        gaps = np.minimum(self.last - self.first - (self.counts - 2) * self.stride, self.stride)
        least: Ints = np.where(self.counts > 1, gaps, np.iinfo(np.int32).max).min(axis=0)
        return least

    @property
    def segments(self) -> tuple[Ints, Ints]:
        """The number of each segment's first sample, and its number of samples; empty segments are left out."""
        inner = np.prod(self.counts[:, self.segment_axes :], axis=1, dtype=np.int64)
        counts = np.repeat(inner, np.prod(self.counts[:, : self.segment_axes], axis=1, dtype=np.int64))
        starts = np.cumsum(counts) - counts
        return starts[counts > 0], counts[counts > 0]

    @property
    def arrays(self) -> tuple[Ints, ...]:
        """The arrays that define it."""
        return self.first, self.last, self.counts

    @property
    def fingerprint(self) -> bytes:
        """Bytes that identify the origins, for checkpoints; empty for grids without gaps."""
        if not {*self.stride} - {1}:
            return b""
        return repr(self.stride).encode() + b"".join(array.tobytes() for array in self.arrays)

    def of(self, numbers: NDArray[np.integer]) -> tuple[Ints, Ints]:
        """Return the volume and the origin of each sample, from its number."""
        volume = np.searchsorted(self.ends, numbers, side="right")
        remaining = numbers - np.where(volume > 0, self.ends[volume - 1], 0)
        origins = np.empty((len(volume), self.counts.shape[1]), dtype=np.int64)
        for axis in reversed(range(origins.shape[1])):
            remaining, place = np.divmod(remaining, self.counts[volume, axis])
            place = self.first[volume, axis] + place * self.stride[axis]
            origins[:, axis] = np.minimum(place, self.last[volume, axis])
        return volume, origins

    def before(self, volumes: Ints, places: Ints) -> Ints:
        """Return how many samples begin before a place along the only axis, in all volumes up to that of the place."""
        first, last, counts = (array[volumes, 0] for array in self.arrays)
        strides = np.minimum(-(-(places - first) // self.stride[0]), counts - 1)
        inside = np.where(places > last, counts, np.maximum(strides, 0))
        numbers: Ints = np.where(volumes > 0, self.ends[volumes - 1], 0) + inside
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listed:
    """Origins listed one by one."""

    volume: Ints  # (samples,): the volume of each; empty if origins are rows
    origins: Ints  # (samples, axes): the origin of each

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.origins)

    @property
    def segments(self) -> tuple[Ints, Ints]:
        """One segment of all samples."""
        return np.zeros(1, dtype=np.int64), np.array([self.samples])

    @property
    def arrays(self) -> tuple[Ints, ...]:
        """The arrays that define it."""
        return self.volume, self.origins

    @property
    def fingerprint(self) -> bytes:
        """Bytes that identify the origins, for checkpoints."""
        return b"".join(array.tobytes() for array in self.arrays)

    def of(self, numbers: NDArray[np.integer]) -> tuple[Ints, Ints]:
        """Return the volume and the origin of each sample, from its number."""
        return self.volume[numbers], self.origins[numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """A user's function that accepts or refuses boxes."""

    function: Callable[[Any], object]  # returns whether to accept a box
    on: str | int | None  # the field that the function gets, by name or position; None for whole samples
    tries: int  # the most boxes to try for each sample


@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """All samples that are parts of some volumes."""

    volumes: Ints  # (volumes, axes): elements of each along the axes that samples begin at
    starts: Grid | Listed  # where samples begin
    pad: str | float | None = None  # fills elements outside of volumes; None if no sample reaches outside
    draws: Draws | None = None  # how an epoch's samples are drawn from all; None if it takes all
    left_out: int = 0  # volumes, or rows of them, without samples: shorter than a sample, or without a field
    accept: Accept | None = None  # chooses among boxes; None accepts all
    # set if volumes are segments: the first row of each, and the end of the last; listed origins are then rows
    edges: Edges | None = None
    columns: tuple[str, ...] = ("",)  # the names of a `Table`'s row columns, by which fields refer to them

    @property
    def samples(self) -> int:
        """The number of samples, drawn or not."""
        return self.starts.samples

    @property
    def rows(self) -> Ints:
        """The rows at which samples of segments begin: one array per column."""
        return self.starts.origins.T if isinstance(self.starts, Listed) else self._begins(np.arange(self.samples))[None]

    @property
    def _segment_edges(self) -> Edges:
        if self.edges is None:
            raise TypeError("samples of volumes that are no segments begin at no rows")
        return self.edges

    def _begins(self, numbers: NDArray[np.integer]) -> Ints:
        """Compute the rows at which samples of segments begin."""
        volume, origins = self.starts.of(numbers)
        begins: Ints = self._segment_edges[volume] + origins[:, 0]
        return begins

    @cached_property
    def is_ascending(self) -> bool:
        """Whether samples of segments come by ascending row."""
        if isinstance(self.starts, Grid):
            return True
        rows = self.starts.origins[:, 0]
        return bool((rows[:-1] <= rows[1:]).all())

    def number_at(self, rows: Ints) -> Ints:
        """Return how many samples of segments on a grid begin before each row."""
        assert isinstance(self.starts, Grid)
        edges = self._segment_edges
        volume = np.searchsorted(edges[1:-1], rows, side="right")
        return self.starts.before(volume, rows - edges[volume])

    @property
    def segments(self) -> tuple[Ints, Ints]:
        """The number of each segment's first sample, and its number of samples; empty segments are left out."""
        if self.edges is None or isinstance(self.starts, Grid):
            return self.starts.segments
        segment = np.searchsorted(self.edges, self.rows[0], side="right")
        first = np.flatnonzero(np.diff(segment, prepend=-1))
        return first, np.diff(np.append(first, len(segment)))

    @property
    def nbytes(self) -> int:
        """The size in memory, in bytes."""
        edges = 0 if self.edges is None else self.edges.nbytes
        return edges + self.volumes.nbytes + sum(array.nbytes for array in self.starts.arrays)

    def anchors_of(self, numbers: NDArray[np.integer], at: str = "") -> Ints:
        """Return the rows of a column at which samples begin, from their numbers; for boxes, their volumes."""
        if self.edges is None:
            return self.starts.of(numbers)[0]
        if isinstance(self.starts, Grid):
            return self._begins(numbers)
        anchors: Ints = self.starts.origins[numbers, self.columns.index(at) if at in self.columns else 0]
        return anchors

    def boxes_of(self, numbers: NDArray[np.integer]) -> tuple[Ints, Ints]:
        """Return the volume and the origin of each sample, from its number."""
        return self.starts.of(numbers)

    def drawn_again(self, numbers: Ints, trial: int) -> Ints:
        """Return the boxes to try in place of refused ones, from their numbers alone: of the same volume, or of any."""
        words = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        words = mixed(words + np.uint64((trial + 1) * 0xD1342543DE82EF95 % (1 << 64)))
        if self.draws is not None and self.draws.by == "rows":
            return (words % np.uint64(self.samples)).astype(np.int64)
        first, counts = self.segments
        segment = np.searchsorted(first, numbers, side="right") - 1
        return first[segment] + (words % counts[segment].astype(np.uint64)).astype(np.int64)

    def outside(self, numbers: NDArray[np.integer], steps: Sequence[int]) -> NDArray[np.bool_]:
        """Return for each sample which steps along the last axis are outside of the volume."""
        if self.edges is None:
            volume, origins = self.boxes_of(numbers)
            at = origins[:, self.volumes.shape[1] - 1]
        else:
            anchors = self.anchors_of(numbers)
            volume = np.searchsorted(self.edges, anchors, side="right") - 1
            at = anchors - self.edges[volume]
        places = at[:, None] + np.array(steps, dtype=np.int64)
        return (places < 0) | (places >= self.volumes[volume, -1:])


def hint_of_short_segments(space: Space) -> str:
    """Return a hint if most segments give no sample, since each is shorter than one; else an empty text."""
    with_samples = len(space.segments[0])
    if space.left_out <= with_samples:
        return ""
    return (
        f"{space.left_out:,} of {space.left_out + with_samples:,} segments give no sample, since they are shorter than "
        "one: see whether of= says where they begin and end, Bounds of bounds, Ids of numbers that repeat and Ends of "
        "flags; pad= fills short ones up"
    )


def space_of_rows(
    rows: Ints, edges: Edges, columns: tuple[str, ...] = ("",), *, pad: str | float | None = None, left_out: int = 0
) -> Space:
    """Return the space of samples that begin at given rows: one array of rows per column."""
    listed = Listed(volume=np.zeros(0, dtype=np.int64), origins=rows.T)
    return Space(
        volumes=np.diff(edges)[:, None], starts=listed, edges=edges, columns=columns, pad=pad, left_out=left_out
    )


def joined_space(spaces: Sequence[Space], starts: Sequence[int]) -> Space:
    """Return the concatenation of several spaces of one form, each beginning at a row of the whole."""
    first, left_out = spaces[0], sum(space.left_out for space in spaces)
    if first.edges is None:
        volumes = np.concatenate([space.volumes for space in spaces])
        return replace(first, volumes=volumes, starts=_joined_starts(spaces, starts), left_out=left_out)
    every = [space.edges for space in spaces if space.edges is not None]
    edges = np.concatenate([np.zeros(1, np.int64), *(edges[1:] + k for edges, k in zip(every, starts, strict=True))])
    grids = [space.starts for space in spaces if isinstance(space.starts, Grid)]
    if len(grids) == len(spaces) and len({grid.stride for grid in grids}) == 1:
        volumes = np.diff(edges)[:, None]
        return replace(first, volumes=volumes, starts=_joined_starts(spaces, starts), edges=edges, left_out=left_out)
    rows = np.concatenate([space.rows + k for space, k in zip(spaces, starts, strict=True)], axis=1)
    joined = space_of_rows(rows, edges, first.columns, left_out=left_out)
    return replace(joined, pad=first.pad, draws=first.draws)


def _joined_starts(spaces: Sequence[Space], first: Sequence[int]) -> Grid | Listed:
    """Concatenate the origins of several spaces; `first` has the number of each space's first volume."""
    every, one = [space.starts.arrays for space in spaces], spaces[0].starts
    if isinstance(one, Listed):
        volume = np.concatenate([arrays[0] + number for arrays, number in zip(every, first, strict=True)])
        return Listed(volume=volume, origins=np.concatenate([arrays[1] for arrays in every]))
    begins, ends, counts = (np.concatenate(arrays) for arrays in zip(*every, strict=True))
    return replace(one, first=begins, last=ends, counts=counts)


def mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 random-looking bits for each 64. Source: the finalizer of SplitMix64, a bijection."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def number_outside(pad: str | float | None) -> float | None:
    """Return the number that fills elements outside; None if padding repeats inner elements, or there is no padding."""
    return None if pad is None or pad in ("edge", "reflect") else 0.0 if isinstance(pad, str) else pad


def steps_of(steps: Sequence[int] | None, samples: Any, name: str) -> Steps | None:
    """Return the steps of a field: its own, or those of its kind of samples; None if it takes a single row."""
    if samples is None and steps is not None:
        raise OptionError(
            f"field {name!r} has steps in take=, and needs samples=Sequences(...), or Table, to say a segment"
        )
    if steps is not None:
        return tuple(steps)
    if samples is None or (samples.steps is None and not isinstance(samples, Sequences)):
        return None
    if samples.steps is None:
        raise OptionError(f"field {name!r} needs take=STEPS, or Sequences a length: Sequences(16)")
    return tuple(samples.steps)


def neighbours(steps: Steps) -> tuple[Ints, Ints, Ints]:
    """Group consecutive steps: the first of each group, its length, and its place among the steps."""
    every = np.array(steps, dtype=np.int64)
    at = np.append(0, np.flatnonzero(np.diff(every) != 1) + 1)
    return every[at], np.diff(np.append(at, len(every))), at
