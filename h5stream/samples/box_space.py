"""The boxes that there are in some volumes, and what a dataset gives for one. Pure.

A *volume* is a dataset that samples are parts of, or several of equal axes. A sample has an *origin*, a number along
each axis that samples begin at; of each axis of its own a dataset gives the elements at some *offsets* from one of
these numbers, or from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.samples.sequences import Draws

Ints = NDArray[np.int64]


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
        numbers = origins[:, self.origin]
        return numbers if self.scale == 1 else numbers * self.scale.numerator // self.scale.denominator


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Origins that follow one another by strides along each axis, the last at most a place of its own."""

    first: Ints  # first, last: (volumes, axes): the first and the last origin along each axis of each volume
    last: Ints
    counts: Ints  # (volumes, axes): how many there are
    stride: tuple[int, ...]  # from one to the next along each axis
    segment_axes: int = 0  # axes of which each number is a segment of its own: 0 where a volume is one

    @property
    def _samples(self) -> Ints:
        """How many samples each volume has."""
        samples: Ints = np.prod(self.counts, axis=1, dtype=np.int64)
        return samples

    @property
    def samples(self) -> int:
        """How many there are."""
        return int(self._samples.sum())

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

    def volumes_of(self, numbers: NDArray[Any]) -> Ints:
        """Return the volume of each sample, by its number."""
        found: Ints = np.searchsorted(np.cumsum(self._samples), numbers, side="right")
        return found

    def origins_of(self, numbers: NDArray[Any]) -> Ints:
        """Return the origin of each sample, by its number."""
        volume = self.volumes_of(numbers)
        left = numbers - (np.cumsum(self._samples) - self._samples)[volume]
        origins = np.empty((len(volume), self.counts.shape[1]), dtype=np.int64)
        for axis in reversed(range(origins.shape[1])):
            left, place = np.divmod(left, self.counts[volume, axis])
            place = self.first[volume, axis] + place * self.stride[axis]
            origins[:, axis] = np.minimum(place, self.last[volume, axis])
        return origins


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listed:
    """Origins one by one."""

    volume: Ints  # (samples,): the volume of each
    origins: Ints  # (samples, numbers): the numbers of each

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self.volume)

    @property
    def segments(self) -> tuple[Ints, Ints]:
        """One of all."""
        return np.zeros(1, dtype=np.int64), np.array([self.samples])

    @property
    def arrays(self) -> tuple[Ints, ...]:
        """What it is made of."""
        return self.volume, self.origins

    def volumes_of(self, numbers: NDArray[Any]) -> Ints:
        """Return the volume of each sample, by its number."""
        volumes: Ints = self.volume[numbers]
        return volumes

    def origins_of(self, numbers: NDArray[Any]) -> Ints:
        """Return the origin of each sample, by its number."""
        origins: Ints = self.origins[numbers]
        return origins


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Which boxes will do."""

    function: Callable[[Any], Any]  # tells it of a box
    on: str | int | None  # the field that it is asked about, by its name or place; None asks about whole samples
    tries: int  # boxes that are tried for each sample, at most


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoxSpace:
    """All samples that are parts of some volumes."""

    volumes: Ints  # (volumes, axes): elements of each along the axes that samples begin at
    starts: Grid | Listed  # where samples begin
    pad: str | float | None = None  # what stands outside of volumes; None where no sample leads out
    draws: Draws | None = None  # how an epoch's samples are drawn from all; None where it takes all
    left_out: int = 0  # volumes, or rows of them, that no sample is of: they are shorter than one, or lack a field
    accept: Accept | None = None  # which boxes will do; None accepts all

    @property
    def segments(self) -> tuple[Ints, Ints]:
        """The number of each segment's first sample, and how many it has."""
        return self.starts.segments

    @property
    def samples(self) -> int:
        """How many there are, or how many are possible."""
        return self.starts.samples

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory."""
        return self.volumes.nbytes + sum(each.nbytes for each in self.starts.arrays)

    def anchors_of(self, numbers: NDArray[Any], at: str = "") -> Ints:
        """Return the volume of each sample, by its number."""
        return self.starts.volumes_of(numbers)

    def boxes_of(self, numbers: NDArray[Any]) -> tuple[Ints, Ints]:
        """Return the volume and the origin of each sample, by its number."""
        return self.starts.volumes_of(numbers), self.starts.origins_of(numbers)

    def drawn_again(self, numbers: Ints, trial: int) -> Ints:
        """Return the boxes that are tried in place of some that were refused, as a function of their numbers alone.

        They are of the same volume, or of any, as the first were drawn.
        """
        words = _mixed(numbers.astype(np.uint64), trial)
        if self.draws is not None and self.draws.by == "rows":
            return (words % np.uint64(self.samples)).astype(np.int64)
        first, counts = self.segments
        segment = np.searchsorted(first, numbers, side="right") - 1
        return first[segment] + (words % counts[segment].astype(np.uint64)).astype(np.int64)

    def outside(self, numbers: NDArray[Any], steps: Sequence[int]) -> NDArray[np.bool_]:
        """Tell which steps along the last axis lead out of the volume, for each of some samples."""
        volume, origins = self.boxes_of(numbers)
        places = origins[:, self.volumes.shape[1] - 1 :][:, :1] + np.array(steps, dtype=np.int64)
        found: NDArray[np.bool_] = (places < 0) | (places >= self.volumes[volume, -1:])
        return found


def _mixed(numbers: NDArray[np.uint64], trial: int) -> NDArray[np.uint64]:
    """Give 64 bits for each number and trial that look random. Source: the finalizer of SplitMix64."""
    bits = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64((trial + 1) * 0xD1342543DE82EF95 % (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def number_outside(pad: str | float | None) -> float | None:
    """Return the number that a padding puts outside; None where it repeats what is inside, or there is none.

    Examples
    --------
    >>> number_outside("zeros"), number_outside(3), number_outside("edge")
    (0.0, 3.0, None)
    """
    return None if pad in (None, "edge", "reflect") else 0.0 if pad == "zeros" else float(pad)
