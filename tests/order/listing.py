"""The batches of an order, as its windows place their rows."""

from dataclasses import replace

from h5stream.errors import OptionError
from h5stream.order.epoch import order_after


def batches_of(order, first_batch=0):
    """List the rows of each batch from one on; each place is filled once, and none is left empty."""
    found = [{} for _ in range(first_batch, order.batches)]
    for window in order.windows(first_batch):
        counts = [1] * len(window.rows) if window.counts is None else window.counts.tolist()
        where = (window.rows.tolist(), counts, window.batch.tolist(), window.within.tolist())
        for row, count, batch, within in zip(*where, strict=True):
            assert count > 0
            for k in range(count):
                assert within + k not in found[batch - first_batch]
                found[batch - first_batch][within + k] = row + k
    return [[rows[k] for k in range(len(rows))] for rows in found]


def taken_in_turn(blocks, chosen, worlds, until):
    """Give the batches that some numbers of ranks take of an epoch in turn, and whether that was all of it.

    `until` says after how many batches, of those from one to another, all but the last of them are stopped. It ends
    before where so little is left that no equal number of batches exists.
    """
    taken, seen = (), []
    for turn, world in enumerate(worlds, 1):
        try:
            ranks = [order_after(blocks, replace(chosen, rank=r, world_size=world), taken) for r in range(world)]
        except OptionError:
            return seen, False
        assert len({(order.batches, first) for order, first in ranks}) == 1
        batches, first = ranks[0][0].batches, ranks[0][1]
        last = batches if turn == len(worlds) else until(first, batches)
        seen += [rows for order, _ in ranks for rows in batches_of(order)[first:last]]
        before = taken[:-1] if first else taken
        taken = (*before, (world, last)) if last else before
    return seen, True
