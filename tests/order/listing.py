"""The batches of an order, as its windows place their rows."""


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
