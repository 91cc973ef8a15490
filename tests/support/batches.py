"""What batches hold, and an order of batches as a user would write it."""

from oracle.compare import parts_of

from h5stream.order import Window


def epoch(loader):
    return [str(batch) if isinstance(batch, tuple | list) else batch.tolist() for batch in loader]


def batches_of(loader):
    return [y.tolist() for _, y in loader]


def samples_of(batch):
    """Take a batch apart."""
    columns = {name: parts_of(values) for name, values in batch.items()}
    return [dict(zip(columns, sample, strict=True)) for sample in zip(*columns.values(), strict=True)]


def flat(batches):
    return [sample for batch in batches for sample in samples_of(batch)]


class Listed:
    """Rows one after the other, in batches of one size, a few batches a window."""

    def __init__(self, rows, batch_size=50, together=3):
        self.rows, self.batch_size, self.together = rows, batch_size, together

    @property
    def batches(self):
        return len(self.rows) // self.batch_size

    def batch_size_of(self, batch):
        return self.batch_size

    def windows(self, first_batch=0):
        for first in range(first_batch, self.batches, self.together):
            few = range(first, min(first + self.together, self.batches))
            yield Window.of_batches(first, [self.rows[k * self.batch_size :][: self.batch_size] for k in few])
