"""Sample spaces: which samples there are, and what each field takes of one. Pure.

A *volume* is a dataset that samples are parts of, or several of equal axes, or a segment: a stretch of the rows of all
files. A sample has an *origin*, a number along each axis that samples begin at; of each axis of its own a dataset gives
the elements at some *offsets* from one of these numbers, or from 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.samples.kinds import Draws, Sequences
from h5stream.samples.segments import Edges, Ints

Steps = tuple[int, ...]


def fraction_of(number: Any) -> Fraction:
    """Return a number as a fraction; a float as the ratio of small whole numbers that it stands for, if there is one.

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
    """Return whole numbers times a fraction, rounded down, without a product that 64 bits do not hold."""
    over, under = scale.numerator, scale.denominator
    most = max(abs(int(numbers.max(initial=0))), abs(int(numbers.min(initial=0))))
    if most * over < 1 << 63 and under < 1 << 63:
        return numbers * over // under
    return np.array([number * over // under for number in numbers.tolist()], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Along:
    """What a sample takes of a dataset along one axis."""

    offsets: range | tuple[int, ...]  # the elements
    origin: int | None = None  # which number of the sample's origin they are counted from; None counts from 0
    scale: Fraction = Fraction(1)  # elements of this dataset for each of those that origins count in

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the axis."""
        return self.origin is None and isinstance(self.offsets, range)

    @property
    def span(self) -> int:
        """Elements from the first to the last."""
        return max(self.offsets, default=-1) - min(self.offsets, default=0) + 1

    def begins(self, origins: Ints) -> Any:
        """Return where the offsets are counted from, for samples by their origins."""
        if self.origin is None:
            return 0
        return scaled(origins[:, self.origin], self.scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Origins that follow one another by strides along each axis, the last at most a place of its own."""

    first: Ints  # first, last: (volumes, axes): the first and the last origin along each axis of each volume
    last: Ints
    counts: Ints  # (volumes, axes): how many there are
    stride: tuple[int, ...]  # from one to the next along each axis
    segment_axes: int = 0  # axes of which each number is a segment of its own: 0 where a volume is one

    @functools.cached_property
    def ends(self) -> Ints:
        """The number behind the last sample of each volume."""
        return np.cumsum(np.prod(self.counts, axis=1, dtype=np.int64))

    @property
    def samples(self) -> int:
        """How many there are."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def least_gap(self) -> int | None:
        """How far apart the last two samples of a volume are along the last axis, at least; None if none has two."""
        first, last, counts = (each[:, -1] for each in self.arrays)
        several = counts > 1
        gaps = (last - first - (counts - 2) * self.stride[-1])[several]
        return int(gaps.min()) if len(gaps) else None

    @property
    def segments(self) -> tuple[Ints, Ints]:
        """The number of each segment's first sample, and how many it has, of those that have any."""
        inner = np.prod(self.counts[:, self.segment_axes :], axis=1, dtype=np.int64)
        counts = np.repeat(inner, np.prod(self.counts[:, : self.segment_axes], axis=1, dtype=np.int64))
        starts = np.cumsum(counts) - counts
        return starts[counts > 0], counts[counts > 0]

    @property
    def arrays(self) -> tuple[Ints, ...]:
        """What it is made of."""
        return self.first, self.last, self.counts

    @property
    def said(self) -> bytes:
        """What tells its origins from others of as many samples in each volume; empty where they are without gaps."""
        if not {*self.stride} - {1}:
            return b""
        return repr(self.stride).encode() + b"".join(each.tobytes() for each in self.arrays)

    def of(self, numbers: NDArray[Any]) -> tuple[Ints, Ints]:
        """Return the volume and the origin of each sample, by its number."""
        volume = np.searchsorted(self.ends, numbers, side="right")
        left = numbers - np.where(volume > 0, self.ends[volume - 1], 0)
        origins = np.empty((len(volume), self.counts.shape[1]), dtype=np.int64)
        for axis in reversed(range(origins.shape[1])):
            left, place = np.divmod(left, self.counts[volume, axis])
            place = self.first[volume, axis] + place * self.stride[axis]
            origins[:, axis] = np.minimum(place, self.last[volume, axis])
        return volume, origins

    def before(self, volumes: Ints, places: Ints) -> Ints:
        """Return how many samples begin before a place along the only axis, in all volumes up to that of the place."""
        first, last, counts = (each[volumes, 0] for each in self.arrays)
        strides = np.minimum(-(-(places - first) // self.stride[0]), counts - 1)
        inside = np.where(places > last, counts, np.maximum(strides, 0))
        numbers: Ints = np.where(volumes > 0, self.ends[volumes - 1], 0) + inside
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listed:
    """Origins one by one."""

    volume: Ints  # (samples,): the volume of each; none where origins are rows
    origins: Ints  # (samples, numbers): the numbers of each

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self.origins)

    @property
    def segments(self) -> tuple[Ints, Ints]:
        """One of all."""
        return np.zeros(1, dtype=np.int64), np.array([self.samples])

    @property
    def arrays(self) -> tuple[Ints, ...]:
        """What it is made of."""
        return self.volume, self.origins

    @property
    def said(self) -> bytes:
        """What tells its origins from others."""
        return b"".join(each.tobytes() for each in self.arrays)

    def of(self, numbers: NDArray[Any]) -> tuple[Ints, Ints]:
        """Return the volume and the origin of each sample, by its number."""
        return self.volume[numbers], self.origins[numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Which boxes will do."""

    function: Callable[[Any], Any]  # tells it of a box
    on: str | int | None  # the field that it is asked about, by its name or place; None asks about whole samples
    tries: int  # boxes that are tried for each sample, at most


@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """All samples that are parts of some volumes."""

    volumes: Ints  # (volumes, axes): elements of each along the axes that samples begin at
    starts: Grid | Listed  # where samples begin
    pad: str | float | None = None  # what stands outside of volumes; None where no sample leads out
    draws: Draws | None = None  # how an epoch's samples are drawn from all; None where it takes all
    left_out: int = 0  # volumes, or rows of them, that no sample is of: they are shorter than one, or lack a field
    accept: Accept | None = None  # which boxes will do; None accepts all
    # where volumes are segments: the first row of each, and where the last ends; origins that are listed are rows then
    edges: Edges | None = None
    columns: tuple[str, ...] = ("",)  # of rows that a `Table` lists: what fields that count from each call it

    @property
    def samples(self) -> int:
        """How many there are, or how many are possible."""
        return self.starts.samples

    @property
    def rows(self) -> Ints:
        """The rows that samples of segments begin at: of each column, one a sample."""
        return self.starts.origins.T if isinstance(self.starts, Listed) else self._begins(np.arange(self.samples))[None]

    def _begins(self, numbers: NDArray[Any]) -> Ints:
        """Return the rows that samples of segments begin at, by arithmetic."""
        assert self.edges is not None
        volume, origins = self.starts.of(numbers)
        begins: Ints = self.edges[volume] + origins[:, 0]
        return begins

    @functools.cached_property
    def is_ascending(self) -> bool:
        """Whether samples of segments come by ascending row."""
        if isinstance(self.starts, Grid):
            return True
        rows = self.starts.origins[:, 0]
        return bool((rows[:-1] <= rows[1:]).all())

    def number_at(self, rows: Ints) -> Ints:
        """Return how many samples of segments begin before each of some rows, of a grid."""
        assert self.edges is not None
        assert isinstance(self.starts, Grid)
        volume = np.searchsorted(self.edges[1:-1], rows, side="right")
        return self.starts.before(volume, rows - self.edges[volume])

    @property
    def segments(self) -> tuple[Ints, Ints]:
        """The number of each segment's first sample, and how many it has, of those that have any."""
        if self.edges is None or isinstance(self.starts, Grid):
            return self.starts.segments
        segment = np.searchsorted(self.edges, self.rows[0], side="right")
        first = np.flatnonzero(np.diff(segment, prepend=-1))
        return first, np.diff(np.append(first, len(segment)))

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory."""
        edges = 0 if self.edges is None else self.edges.nbytes
        return edges + self.volumes.nbytes + sum(each.nbytes for each in self.starts.arrays)

    def anchors_of(self, numbers: NDArray[Any], at: str = "") -> Ints:
        """Return the rows that samples begin at, of a column, by their numbers; of boxes their volumes."""
        if self.edges is None:
            return self.starts.of(numbers)[0]
        if isinstance(self.starts, Grid):
            return self._begins(numbers)
        anchors: Ints = self.starts.origins[numbers, self.columns.index(at) if at in self.columns else 0]
        return anchors

    def boxes_of(self, numbers: NDArray[Any]) -> tuple[Ints, Ints]:
        """Return the volume and the origin of each sample, by its number."""
        return self.starts.of(numbers)

    def drawn_again(self, numbers: Ints, trial: int) -> Ints:
        """Return the boxes that are tried in place of some, by their numbers alone: of the same volume, or of any."""
        words = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        words = mixed(words + np.uint64((trial + 1) * 0xD1342543DE82EF95 % (1 << 64)))
        if self.draws is not None and self.draws.by == "rows":
            return (words % np.uint64(self.samples)).astype(np.int64)
        first, counts = self.segments
        segment = np.searchsorted(first, numbers, side="right") - 1
        return first[segment] + (words % counts[segment].astype(np.uint64)).astype(np.int64)

    def outside(self, numbers: NDArray[Any], steps: Sequence[int]) -> NDArray[np.bool_]:
        """Tell which steps along the last axis lead out of the volume, for each of some samples."""
        if self.edges is None:
            volume, origins = self.boxes_of(numbers)
            at = origins[:, self.volumes.shape[1] - 1]
        else:
            anchors = self.anchors_of(numbers)
            volume = np.searchsorted(self.edges, anchors, side="right") - 1
            at = anchors - self.edges[volume]
        places = at[:, None] + np.array(steps, dtype=np.int64)
        return (places < 0) | (places >= self.volumes[volume, -1:])


def space_of_rows(rows: Ints, edges: Edges, columns: tuple[str, ...] = ("",), **options: Any) -> Space:
    """Return the space of samples that begin at some rows: of each column, one a sample."""
    listed = Listed(volume=np.zeros(0, dtype=np.int64), origins=rows.T)
    return Space(volumes=np.diff(edges)[:, None], starts=listed, edges=edges, columns=columns, **options)


def joined_space(spaces: Sequence[Space], starts: Sequence[int]) -> Space:
    """Return the space of several of one form that follow one another, each beginning at a row of the whole."""
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
    """Return where samples of volumes begin that follow one another; `first` has the number of each space's first."""
    every, one = [space.starts.arrays for space in spaces], spaces[0].starts
    if isinstance(one, Listed):
        volume = np.concatenate([arrays[0] + number for arrays, number in zip(every, first, strict=True)])
        return Listed(volume=volume, origins=np.concatenate([arrays[1] for arrays in every]))
    begins, ends, counts = (np.concatenate(arrays) for arrays in zip(*every, strict=True))
    return replace(one, first=begins, last=ends, counts=counts)


def mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 bits for each 64 that look random. Source: the finalizer of SplitMix64, a bijection."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def number_outside(pad: str | float | None) -> float | None:
    """Return the number that a padding puts outside; None where it repeats what is inside, or there is none."""
    return None if pad is None or pad in ("edge", "reflect") else 0.0 if isinstance(pad, str) else pad


def steps_of(given: Any, samples: Any, name: str) -> Steps | None:
    """Return the steps of a field: its own, or those of a kind of samples that has some; None where it gives a row."""
    if samples is None and given is not None:
        raise OptionError(
            f"field {name!r} has steps in take=, and needs samples=Sequences(...), or Table, to say a segment"
        )
    if given is not None:
        return tuple(given)
    if samples is None or (samples.steps is None and not isinstance(samples, Sequences)):
        return None
    if samples.steps is None:
        raise OptionError(f"field {name!r} needs take=STEPS, or Sequences a length: Sequences(16)")
    return tuple(samples.steps)


def neighbours(steps: Steps) -> tuple[Ints, Ints, Ints]:
    """Group steps that follow one another: the first of each group, how many, and its place among the steps."""
    every = np.array(steps, dtype=np.int64)
    at = np.append(0, np.flatnonzero(np.diff(every) != 1) + 1)
    return every[at], np.diff(np.append(at, len(every))), at
