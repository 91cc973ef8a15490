"""How output places become batches, and which of them each rank has: of an epoch, or of what other ranks left of it.

Each rank that began the epoch has a run of output places and has taken the first of them. What is left of all
runs, one behind the other, is a new line; it is cut into equal runs for the ranks that go on. They may be
stopped in turn: a line's pieces are always pieces of the first ranks' runs, so a place remains two numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.order.line import Line, OrderSettings, RankRun
from h5stream.order.places import Places, new_array, pieces


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A run of output places cut into batches: at `edges`, or each full but the last.

    Where the run would fill only ``batches - 1`` full ones (another rank has one row more), the last full batch gives
    its last row away, so that all ranks count alike.
    """

    rows: int
    batches: int
    size: int = 0  # rows of a full batch
    edges: NDArray[np.int64] | None = None  # where each batch begins, and where the last ends

    @property
    def _last(self) -> int:
        return min((self.batches - 1) * self.size, self.rows - 1)

    def start_of(self, batch: int) -> int:
        """Return the first output place of a batch; behind the last batch, the end of all."""
        if batch >= self.batches:
            return self.rows
        if self.edges is not None:
            return int(self.edges[batch])
        return self._last if batch == self.batches - 1 else batch * self.size

    def batch_of(self, output: int) -> int:
        """Return the batch of one output place."""
        if self.edges is not None:
            return int(np.searchsorted(self.edges, output, side="right")) - 1
        return self.batches - 1 if output >= self._last else output // self.size

    def locate(self, output: Places) -> tuple[Places, Places]:
        """Return the batch of each output place, and its place in that."""
        batch, within = (new_array(len(output), output.dtype) for _ in range(2))
        size = min(self.size, self.rows)  # which may be more than the numbers' type can hold
        for piece in pieces(len(output)):
            if self.edges is not None:
                batch[piece] = np.searchsorted(self.edges, output[piece], side="right") - 1
                np.subtract(output[piece], self.edges[batch[piece]], out=within[piece], casting="same_kind")
            else:
                np.floor_divide(output[piece], size, out=batch[piece])
                np.subtract(output[piece], batch[piece] * size, out=within[piece])
        if self.edges is None and self._last < (self.batches - 1) * self.size:
            given_away = np.flatnonzero(output == self._last)
            batch[given_away], within[given_away] = self.batches - 1, 0
        return batch, within

    def of_run(self, begin: int, end: int, dtype: Any) -> tuple[Places, Places]:
        """Return the same for consecutive output places, without a division for each."""
        first, after = self.batch_of(begin), self.batch_of(end - 1) + 1
        starts = [self.start_of(batch) for batch in range(first, after)]
        sizes = np.diff([begin, *starts[1:], end])
        within = np.arange(begin, end, dtype=dtype) - np.repeat(np.array(starts, dtype=dtype), sizes)
        return np.repeat(np.arange(first, after, dtype=dtype), sizes), within


Taken = tuple[tuple[int, int], ...]
"""How far an epoch is: pairs of a number of ranks and of the batches that each of them took, in turn."""

Ints = NDArray[np.int64]

Stretches = Ints
"""Output places of the ranks that began an epoch, one row each: which rank's, where they start, where they stop."""


class Share(NamedTuple):
    """What one rank has of an epoch."""

    runs: dict[int, RankRun]  # by rank, of those that began the epoch
    stretches: Stretches  # of these runs, one behind the other
    cut: Cut  # how they become batches


def even_share(line: Line, settings: OrderSettings, taken: Taken) -> Share:
    """Return the share of a rank, where all batches are of one size."""
    rows, left, runs = line.blocks.total_rows, np.zeros((0, 3), dtype=np.int64), np.zeros(0, dtype=np.int64)
    for number, (ranks, took) in enumerate([*taken, (settings.world_size, 0)]):
        # The first ranks' line has lost what `drop_last` leaves out, and may not be counted anew.
        batches = _batches_left(rows, ranks, settings) if number else count_batches(rows, ranks, settings)
        edges = rank_edges(rows, ranks, settings, batches)
        if not number:
            runs, left = edges, np.stack([np.arange(ranks), np.zeros(ranks, dtype=np.int64), np.diff(edges)], axis=1)
        cuts = [Cut(rows=int(n), batches=batches, size=settings.batch_size) for n in np.diff(edges)]
        if number == len(taken):
            break
        if took > batches:
            raise OptionError(f"{ranks} ranks took {took:,} batches each, but had {batches:,}")
        pairs = zip(edges, edges[1:], cuts, strict=False)
        left = np.concatenate([_sliced(left, start + cut.start_of(took), stop) for start, stop, cut in pairs])
        rows = int((left[:, 2] - left[:, 1]).sum())
    stretches = _sliced(left, edges[settings.rank], edges[settings.rank + 1])
    found = {rank: RankRun(line, *runs[rank : rank + 2].tolist()) for rank in np.unique(stretches[:, 0]).tolist()}
    return Share(found, stretches, cuts[settings.rank])


def count_batches(rows: int, ranks: int, settings: OrderSettings) -> int:
    """Return the batches that every rank has, by arithmetic alone."""
    size = settings.batch_size
    if settings.drop_last:
        batches = rows // (ranks * size)
        if batches == 0:
            raise OptionError(
                f"drop_last=True leaves no batch: {rows:,} rows for {ranks} rank(s) x batch_size={size:,}; "
                "take a smaller batch_size or drop_last=False"
            )
        return batches
    fewest, extra = divmod(rows, ranks)
    if fewest == 0:
        raise OptionError(f"{rows:,} rows cannot give each of {ranks} ranks one; use fewer ranks")
    batches = -(-(fewest + bool(extra)) // size)
    if fewest < batches:
        raise OptionError(
            f"{rows:,} rows in batches of {size} do not give each of {ranks} ranks the same number of batches; "
            "pass drop_last=True or a batch_size of at least 2"
        )
    return batches


def rank_edges(rows: int, ranks: int, settings: OrderSettings, batches: int) -> Ints:
    """Return the places of a line where each rank's own begin, and where the last rank's end."""
    every = np.arange(ranks + 1, dtype=np.int64)
    if settings.drop_last:
        return every * (batches * settings.batch_size)
    each, extra = divmod(rows, ranks)
    edges: Ints = every * each + np.minimum(every, extra)
    return edges


def _batches_left(rows: int, ranks: int, settings: OrderSettings) -> int:
    """Return the batches that every rank has of what is left; none may be left, unlike in a whole epoch."""
    if rows == 0 or (settings.drop_last and rows < ranks * settings.batch_size):
        return 0
    try:
        return count_batches(rows, ranks, settings)
    except OptionError as error:
        raise OptionError(
            f"what is left of epoch {settings.epoch} cannot be cut for {ranks} ranks: {error}. Or begin "
            f"the next epoch, with set_epoch({settings.epoch + 1})"
        ) from error


def _sliced(line: Stretches, start: int, stop: int) -> Stretches:
    """Return the places `start` to `stop` of a line."""
    rank, first, last = line.T
    begins = np.cumsum(last - first) - (last - first)
    found = np.stack([rank, first + np.maximum(start - begins, 0), np.minimum(last, first + stop - begins)], axis=1)
    return found[found[:, 1] < found[:, 2]]
