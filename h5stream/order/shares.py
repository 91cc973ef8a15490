"""Which output places each rank has of an epoch, or of what is left of one that another number of ranks began.

Each rank that began the epoch has a run of output places and has taken the first of them. What is left of all
runs, one behind the other, is a new line; it is cut into equal runs for the ranks that go on. They may be
stopped in turn: a line's pieces are always pieces of the first ranks' runs, so a place remains two numbers.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import OptionError
from h5stream.order.cut import BatchCut, Cut
from h5stream.order.line import Line, OrderSettings, RankRun

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
    total = rows = line.blocks.total_rows
    if taken:
        left = _left(total, settings, taken)
        rows = _rows_of(left)
    batches = _batches_left(rows, settings) if taken else count_batches(rows, settings)
    start, stop = rank_run(rows, settings, batches)
    cut = BatchCut(rows=stop - start, batch_size=settings.batch_size, batches=batches)
    if not taken:
        return Share({settings.rank: RankRun(line, start, stop)}, np.array([[settings.rank, 0, cut.rows]]), cut)
    stretches, began = _sliced(left, start, stop), dataclasses.replace(settings, rank=0, world_size=taken[0][0])
    ranks = np.unique(stretches[:, 0]).tolist()
    places = {rank: rank_run(total, dataclasses.replace(began, rank=rank)) for rank in ranks}
    return Share({rank: RankRun(line, *places[rank]) for rank in ranks}, stretches, cut)


def count_batches(rows: int, settings: OrderSettings) -> int:
    """Return the batches that every rank has, by arithmetic alone."""
    ranks, size = settings.world_size, settings.batch_size
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


def rank_run(rows: int, settings: OrderSettings, batches: int | None = None) -> tuple[int, int]:
    """Return the places of a line that are a rank's own, where each rank has so many batches."""
    batches = count_batches(rows, settings) if batches is None else batches
    if settings.drop_last:
        length = batches * settings.batch_size
        return settings.rank * length, (settings.rank + 1) * length
    each, extra = divmod(rows, settings.world_size)
    start = settings.rank * each + min(settings.rank, extra)
    return start, start + each + (settings.rank < extra)


def _left(rows: int, settings: OrderSettings, taken: Taken) -> Stretches:
    """Return what is left of the runs of the ranks that began, one behind the other."""
    first = dataclasses.replace(settings, rank=0, world_size=taken[0][0])
    runs = np.array([rank_run(rows, dataclasses.replace(first, rank=rank)) for rank in range(first.world_size)])
    line = np.stack([np.arange(len(runs)), np.zeros_like(runs[:, 0]), runs[:, 1] - runs[:, 0]], axis=1)
    for number, (ranks, batches_taken) in enumerate(taken):
        some = dataclasses.replace(settings, rank=0, world_size=ranks)
        total = _rows_of(line)
        # The first ranks' line has lost what `drop_last` leaves out, and may not be counted anew.
        batches = count_batches(rows, some) if number == 0 else _batches_left(total, some)
        if batches_taken > batches:
            raise OptionError(f"{ranks} ranks took {batches_taken:,} batches each, but had {batches:,}")
        left = []
        for rank in range(ranks):
            start, stop = rank_run(total, dataclasses.replace(some, rank=rank), batches)
            cut = BatchCut(rows=stop - start, batch_size=settings.batch_size, batches=batches)
            gone = cut.start_of(batches_taken) if batches_taken < batches else cut.rows
            left.append(_sliced(line, start + gone, stop))
        line = np.concatenate(left)
    return line


def _rows_of(line: Stretches) -> int:
    return int((line[:, 2] - line[:, 1]).sum())


def _batches_left(rows: int, settings: OrderSettings) -> int:
    """Return the batches that every rank has of what is left; none may be left, unlike in a whole epoch."""
    if rows == 0 or (settings.drop_last and rows < settings.world_size * settings.batch_size):
        return 0
    try:
        return count_batches(rows, settings)
    except OptionError as error:
        raise OptionError(
            f"what is left of epoch {settings.epoch} cannot be cut for {settings.world_size} ranks: {error}. Or begin "
            f"the next epoch, with set_epoch({settings.epoch + 1})"
        ) from error


def _sliced(line: Stretches, start: int, stop: int) -> Stretches:
    """Return the places `start` to `stop` of a line."""
    rank, first, last = line.T
    begins = np.cumsum(last - first) - (last - first)
    found = np.stack([rank, first + np.maximum(start - begins, 0), np.minimum(last, first + stop - begins)], axis=1)
    return found[found[:, 1] < found[:, 2]]
