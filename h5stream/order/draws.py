"""What is drawn for samples, as a function of seed and epoch: which of all that are possible come, and their seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.order.permutation import DRAWS, SAMPLES, permutation, random_words, words_of
from h5stream.samples.space import Space

Ints = NDArray[np.int64]


class RandomStarts:
    """Draws samples for each epoch.

    # Guarantees: immutable; any thread may draw.
    """

    def __init__(self, space: Space, rows: Ints | None = None) -> None:
        assert space.draws is not None
        self._draws, self._rows = space.draws, rows
        if rows is None:
            self._first, self._counts = space.segments
            return
        segment = np.searchsorted(space.segments[0], rows, side="right")
        self._first = np.flatnonzero(np.diff(segment, prepend=-1))
        self._counts = np.diff(np.append(self._first, len(rows)))

    def __len__(self) -> int:
        return len(self._first) if self._draws.per_epoch is None else self._draws.per_epoch

    def of_segments(self, segments: Ints) -> Ints:
        """Return the numbers of all samples of some segments, these counted among those that samples are drawn of."""
        ranges = [np.arange(self._first[k], self._first[k] + self._counts[k]) for k in np.unique(segments).tolist()]
        places = np.concatenate(ranges)
        return places if self._rows is None else self._rows[places]

    def numbers(self, seed: int, epoch: int) -> Ints:
        """Return the numbers of the samples of an epoch, ascending; one that is drawn twice comes twice."""
        words = random_words(len(self), seed, epoch, DRAWS)
        if self._draws.by == "rows":
            places = below(words, int(self._counts.sum()))
        else:
            segment = self._segments(seed, epoch)
            places = self._first[segment] + below(words, self._counts[segment])
        places = np.sort(places)
        return places if self._rows is None else self._rows[places]

    def _segments(self, seed: int, epoch: int) -> Ints:
        """Return the segment of each draw: each as often as any other, but for one."""
        segments = np.arange(len(self._first))
        if self._draws.per_epoch is None:
            return segments
        rounds, rest = divmod(self._draws.per_epoch, len(segments))
        chosen = permutation(len(segments), seed, epoch, DRAWS)[:rest].astype(np.int64)
        return np.concatenate([np.tile(segments, rounds), chosen])


def below(words: NDArray[np.uint64], counts: Any) -> Ints:
    """Turn 64 random bits each into numbers from 0 to less than the counts, which are far below 2**64."""
    return (words % np.asarray(counts).astype(np.uint64)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class SeedsColumn:
    """A field of each sample's number, and a random seed for what is done to it; see `h5stream.samples.columns`."""

    def of(self, numbers: NDArray[np.int64], rows: NDArray[Any], drawn: tuple[int, int]) -> Any:
        """Return a row of both for each of some samples."""
        return np.stack([numbers, words_of(numbers, *drawn, SAMPLES).view(np.int64)], axis=1)
