"""Draws: which samples an epoch takes and how often, if not each once: by weights, by classes, in stated shares.

Draws are *places* of the blocks of the whole data, as a function of seed and epoch alone. They define the blocks of the
epoch: each contains what was drawn from one block, in several *turns* if that is more than the block has samples,
so that copies do not crowd one window, and a decoded chunk serves about as many samples as in any epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h5stream.base.limits import cached_property
from h5stream.base.texts import counted
from h5stream.errors import OptionError
from h5stream.order.blocks import Blocks
from h5stream.order.draws import random_words
from h5stream.order.places import DRAWS, Places, is_ascending, new_array, permutation, pieces, place_dtype, sought
from h5stream.samples.kinds import MOST_DRAWN
from h5stream.samples.segments import Ints
from h5stream.samples.space import Space

TURNS_A_WINDOW = 16
"""Minimum turns of a source in a window, which then deviates from the source's share by less than one turn."""


def digest(*parts: Any) -> str:
    """Return a digest of bytes and arrays, for a state."""
    hashed = hashlib.blake2b(digest_size=8)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochDraws:
    """Draws an epoch's samples. Thread-safe."""

    kind: str  # how they are drawn, for a state
    count: int  # samples of an epoch
    inputs: Sequence[ArrayLike]  # what the draws depend on besides seed and epoch
    drawn: Callable[[int, int], Places]  # the samples that an epoch takes, ascending, by seed and epoch
    at: Places | None = None  # the place of each sample; None if that is its number

    @property
    def fingerprint(self) -> str:
        """A digest of the inputs besides seed and epoch, for a state."""
        return f"{self.count} by {self.kind}, {digest(*map(np.ascontiguousarray, self.inputs))}"

    def places(self, seed: int, epoch: int) -> Places:
        """Return the places that an epoch takes, ascending, with repetitions."""
        places = self.drawn(seed, epoch)
        if self.at is not None:  # which samples were drawn does not depend on how they are stored
            for piece in pieces(len(places)):
                places[piece] = self.at[places[piece]]
            places.sort()
        return places


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDraws:
    """Draws that are planned but not made, so that their memory can be counted first."""

    count: int  # samples of an epoch
    nbytes: int  # peak bytes of the `EpochDraws` and of drawing, without the result
    make: Callable[[], EpochDraws]  # makes the draws


def weighted_draws(weights: NDArray[np.float64], count: int) -> EpochDraws:
    """Draw independently with probabilities in proportion to weights: counts are multinomial."""
    places, before = len(weights), 0.0
    until = np.divide(weights, weights.max(), out=new_array(places, np.float64))
    for piece in pieces(places):
        until[piece.start] += before
        until[piece] = np.cumsum(until[piece])
        before = until[piece.stop - 1]
    until *= places / until[-1]
    # Despite rounding every draw finds a place, and one with a positive weight.
    until[np.searchsorted(until, until[-1]) :] = np.inf

    def drawn(seed: int, epoch: int) -> Places:
        every = _fractions(count, seed, epoch, places)
        every.sort()  # sorted keys speed up the search
        taken: Places = new_array(count, place_dtype(places))
        for piece in pieces(count):
            taken[piece] = np.searchsorted(until, every[piece], side="right")
        return taken

    return EpochDraws(kind="WeightedDraws", count=count, inputs=[until], drawn=drawn)


def distinct_draws(weights: NDArray[np.float64], count: int) -> EpochDraws:
    """Draw without replacement by weights: the least exponential variates by weight (Efraimidis, Spirakis 2006)."""
    scaled, limits = weights / weights.max(), np.finfo(np.float64)
    scaled[(scaled == 0) & (weights > 0)] = limits.tiny  # not as one that is left out

    def drawn(seed: int, epoch: int) -> Places:
        keys = _fractions(len(scaled), seed, epoch, 1)
        np.log1p(np.negative(keys, out=keys), out=keys)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            np.divide(np.negative(keys, out=keys), scaled, out=keys)
        np.minimum(keys, limits.max, out=keys)
        keys[scaled == 0] = np.inf
        chosen = np.argpartition(keys, count - 1)[:count]
        del keys
        places: Places = chosen.astype(place_dtype(len(scaled)))
        places.sort()
        return places

    return EpochDraws(kind="DistinctDraws", count=count, inputs=[scaled], drawn=drawn)


def _fractions(count: int, seed: int, epoch: int, size: int) -> NDArray[np.float64]:
    """Return random numbers from 0 to less than `size`, in the memory of their random bits."""
    words = random_words(count, seed, epoch, DRAWS)
    words >>= np.uint64(11)
    return np.multiply(words, size * 2.0**-53, out=words.view(np.float64), casting="unsafe")


def class_draws(classes: NDArray[np.integer], counts: Sequence[int]) -> EpochDraws:
    """Draw a stated number of samples of each class; within a class, counts differ by at most one."""
    wanted, sizes, total = np.array(counts, dtype=np.int64), np.zeros(len(counts), dtype=np.int64), len(classes)
    classes = classes.astype(np.uint16, copy=False)  # 16 bits sort in one pass
    for piece in pieces(total):
        sizes += np.bincount(classes[piece], minlength=len(counts))
    times: Ints = wanted // np.maximum(1, sizes)

    def drawn(seed: int, epoch: int) -> Places:
        remaining = wanted - times * sizes
        once_more = new_array(total, np.uint8)  # a byte each: they are set in no order
        once_more[:] = 0
        shuffled = permutation(total, seed, epoch, DRAWS)
        for piece in pieces(total):
            if not remaining.any():
                break
            samples = shuffled[piece]
            sample_classes = classes[samples]
            by_class = np.argsort(sample_classes, kind="stable")
            available = np.bincount(sample_classes, minlength=len(remaining))
            number = np.arange(len(samples)) - np.repeat(np.cumsum(available) - available, available)
            once_more[samples[by_class[number < np.repeat(remaining, available)]]] = 1
            remaining -= np.minimum(remaining, available)
        del shuffled
        return _repeated(lambda samples: times[classes[samples]] + once_more[samples], total, sum(counts))

    return EpochDraws(kind="ClassDraws", count=sum(counts), inputs=[wanted, classes], drawn=drawn)


def source_draws(blocks: Blocks, counts: Sequence[int]) -> EpochDraws:
    """Draw a stated number from each source, in endless passes over its blocks, each in another random order.

    An epoch continues where the last one stopped, so no sample is left behind.
    """
    assert blocks.strata is not None
    all_edges, sizes = blocks.edges, np.diff(blocks.edges)
    blocks_of = [np.flatnonzero(blocks.strata == number) for number in range(len(counts))]

    def drawn(seed: int, epoch: int) -> Places:
        whole, ends = np.zeros(len(sizes), dtype=np.int64), []
        for number, (blocks_here, count) in enumerate(zip(blocks_of, counts, strict=True)):
            length, begin = int(sizes[blocks_here].sum()), epoch * count
            if not count:
                continue
            whole[blocks_here] += (begin + count) // length - begin // length
            for place, times in ((begin, -1), (begin + count, 1)):  # subtract the previous epoch's part, add this one's
                line = blocks_here[permutation(len(blocks_here), seed, place // length, DRAWS, number)]
                edges = np.append(0, np.cumsum(sizes[line]))
                until = int(np.searchsorted(edges, place % length, side="right")) - 1
                whole[line[:until]] += times
                first = int(all_edges[line[until]])
                ends.append((first, first + place % length - int(edges[until]), times))

        def times_of(piece: slice) -> Ints:
            low, high = np.searchsorted(all_edges, [piece.start, piece.stop], side="right") - 1
            edges = np.clip(all_edges[low : high + 2], piece.start, piece.stop)
            repeats: Ints = np.repeat(whole[low : low + len(edges) - 1], np.diff(edges))
            for first, stop, times in ends:
                repeats[max(0, first - piece.start) : max(0, stop - piece.start)] += times
            return repeats

        return _repeated(times_of, int(all_edges[-1]), sum(counts))

    return EpochDraws(kind="SourceDraws", count=sum(counts), inputs=[np.array(counts), all_edges], drawn=drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShares:
    """The samples of each of several sources, and the shares of the sources in an epoch."""

    names: tuple[str, ...]  # of the sources
    starts: tuple[int, ...]  # the number of each source's first sample
    shares: tuple[float, ...]  # of each; together 1
    stop: str  # `"first"`: an epoch ends when the first source has given all its samples; `"all"`: when each has

    def counts(self, sizes: Ints, total: int | None = None) -> list[int]:
        """Return the samples of each source in an epoch: of `total` samples, or as `stop` says."""
        shares = np.array(self.shares)
        if total is not None:
            return shared_out(total, shares)
        with np.errstate(over="ignore"):
            ends = sizes[shares > 0] / shares[shares > 0]
        if self.stop == "all" and ends.max() > MOST_DRAWN:
            last = int(np.flatnonzero(shares > 0)[ends.argmax()])
            raise OptionError(
                f"Mixture: with stop='all' an epoch lasts until source {self.names[last]!r}, with a share of "
                f"{shares[last]:.3g}, has given its {counted(int(sizes[last]), 'sample')}: that is {ends.max():.3g} "
                "samples, and an epoch has at most 2**53. Give it a larger weight, or pass stop='first' or draw=NUMBER"
            )
        counts: list[int] = np.rint(shares * (ends.min() if self.stop == "first" else ends.max())).astype(int).tolist()
        return counts

    def stratified(self, blocks: Blocks) -> Blocks:
        """Split blocks so that each has samples of one source, and record that source."""

        def source_of(samples: ArrayLike) -> Ints:
            numbers: Ints = np.searchsorted(self.starts, samples, side="right") - 1
            return numbers

        rows = blocks.rows
        if rows is None:  # one block may have samples of several sources, such as small objects of one file
            edges = np.union1d(blocks.edges, self.starts)
            return replace(blocks, edges=edges, strata=source_of(edges[:-1]))
        if is_ascending(rows):
            cuts = sought(rows, np.array(self.starts))
        else:
            rows = rows[np.lexsort((source_of(rows), np.repeat(np.arange(blocks.count), np.diff(blocks.edges))))]
            cuts = np.flatnonzero(np.diff(source_of(rows))) + 1
        edges = np.union1d(blocks.edges, cuts)
        return replace(blocks, edges=edges, rows=rows, strata=source_of(rows[edges[:-1]]))


def shared_out(total: int, shares: NDArray[np.float64]) -> list[int]:
    """Cut a number into parts by shares that add up to 1; the largest remainders are rounded up."""
    counts = np.floor(total * shares).astype(np.int64)
    counts[np.argsort(counts - total * shares, kind="stable")[: total - int(counts.sum())]] += 1
    parts: list[int] = counts.tolist()
    return parts


def _repeated(times_of: Callable[[slice], Ints], total: int, count: int) -> Places:
    """Return places 0 to `total`, each repeated as `times_of` says for a piece of them."""
    places, end = new_array(count, place_dtype(total)), 0
    for piece in pieces(total):
        repeated = np.repeat(np.arange(piece.start, piece.stop), times_of(piece))
        places[end : end + len(repeated)] = repeated
        end += len(repeated)
    assert end == count
    return places


def drawn_blocks(blocks: Blocks, places: Places, *, shuffle: bool, window_rows: int) -> Blocks:
    """Return the blocks of an epoch that takes some places of blocks."""
    edges = sought(places, blocks.edges)
    taken = np.flatnonzero(np.diff(edges))
    first, sizes = edges[taken], np.diff(edges)[taken]
    strata = None if blocks.strata is None else blocks.strata[taken]
    drawn = Blocks(edges=np.append(first, len(places)), rows=blocks.rows_at(places), strata=strata)
    turns = np.maximum(1, np.rint(sizes / np.diff(blocks.edges)[taken])).astype(np.int64)
    if strata is not None:
        wanted = TURNS_A_WINDOW * -(-len(places) // window_rows)
        turns = np.maximum(turns, -(-wanted // np.bincount(strata)[strata]))
    turns = np.minimum(turns, sizes)
    if not shuffle or (turns == 1).all():
        return drawn
    block = np.repeat(np.arange(len(turns)), turns)
    turn, every = np.arange(len(block)) - np.repeat(np.cumsum(turns) - turns, turns), turns[block]
    edges = np.append(0, np.cumsum((sizes[block] - turn + every - 1) // every))
    strata = None if strata is None else strata[block]
    return replace(drawn, edges=edges, first=first[block] + turn, every=every, strata=strata)


class DrawnBlocks:
    """Blocks that are drawn on first use. # Guarantees: any thread may; two draw the same."""

    def __init__(self, total_rows: int, draw: Callable[[], Blocks]) -> None:
        self.total_rows, self._draw = total_rows, draw

    @cached_property
    def drawn(self) -> Blocks:
        """The drawn blocks."""
        return self._draw()

    @property
    def count(self) -> int:
        """The number of blocks."""
        return self.drawn.count

    @property
    def edges(self) -> Ints:
        """The place at which each begins, and at which the last ends."""
        return self.drawn.edges

    @property
    def rows(self) -> Places | None:
        """The drawn rows."""
        return self.drawn.rows

    @property
    def lengths(self) -> Ints | None:
        """The length of each place, if batches are cut by it."""
        return self.drawn.lengths

    @property
    def strata(self) -> Ints | None:
        """The source of each block, if every window contains a share of each source."""
        return self.drawn.strata

    @property
    def first(self) -> Ints | None:
        """The first place of each, if blocks are turns of others."""
        return self.drawn.first

    @property
    def every(self) -> Ints | None:
        """The distance of the places of each, if blocks are turns of others."""
        return self.drawn.every

    def rows_at(self, places: Places) -> Places:
        """Look up the rows at places of the selection."""
        return self.drawn.rows_at(places)

    def __reduce__(self) -> tuple[object, ...]:
        return replace, (self.drawn,)


def interleaved(blocks: NDArray[np.integer], sizes: Ints, strata: Ints) -> Ints:
    """Interleave the blocks of several strata: each stratum evenly along the line, in its own order."""
    place = np.empty(len(blocks))
    for stratum in np.unique(strata).tolist():
        members = np.flatnonzero(strata[blocks] == stratum)
        own = sizes[blocks[members]]
        place[members] = (np.cumsum(own) - own / 2) / own.sum()
    return blocks[np.argsort(place, kind="stable")].astype(np.int64, copy=False)


# --- Samples that are drawn of all possible ones ---------------------------------------------------------


def random_samples(space: Space | None, rows: Ints | None, seed: int, epoch: int) -> Ints | None:
    """Return the numbers of an epoch's random samples, ascending, with repetitions; None if it takes all samples."""
    if space is None or space.draws is None:
        return None
    (first, counts), draws = _segments(space, rows), space.draws
    number = len(first) if draws.per_epoch is None else draws.per_epoch
    words = random_words(number, seed, epoch, DRAWS)
    if draws.by == "rows":
        places = below(words, int(counts.sum()))
    else:  # each segment as often as any other, but for one
        rounds, rest = divmod(number, len(first))
        chosen = permutation(len(first), seed, epoch, DRAWS)[:rest].astype(np.int64)
        segment = np.concatenate([np.tile(np.arange(len(first)), rounds), chosen])
        places = first[segment] + below(words, counts[segment])
    places = np.sort(places)
    return places if rows is None else rows[places]


def samples_of_segments(space: Space | None, rows: Ints | None, segments: Ints) -> Ints:
    """Return the numbers of all samples of some segments, numbered among those that samples are drawn from."""
    assert space is not None
    assert space.draws is not None
    if space.draws.per_epoch is not None:
        raise OptionError(
            "with per_epoch= there are none to choose from; name what they are drawn of: Sequences(..., of=[...]), or "
            "Boxes"
        )
    first, counts = _segments(space, rows)
    places = np.concatenate([np.arange(first[k], first[k] + counts[k]) for k in np.unique(segments).tolist()])
    return places if rows is None else rows[places]


def _segments(space: Space, rows: Ints | None) -> tuple[Ints, Ints]:
    """Return the place of each segment's first sample, and its number of samples, among some samples."""
    if rows is None:
        return space.segments
    segment = np.searchsorted(space.segments[0], rows, side="right")
    first = np.flatnonzero(np.diff(segment, prepend=-1))
    return first, np.diff(np.append(first, len(rows)))


def below(words: NDArray[np.uint64], counts: ArrayLike) -> Ints:
    """Turn random 64-bit words into numbers from 0 to less than the counts, which must be far below 2**64."""
    return (words % np.asarray(counts).astype(np.uint64)).astype(np.int64)
