"""What the tests of other people's trainers share: a file, a model that notes the rows it is given, and what to ask."""

import itertools

import torch
from support.sample_files import write_sample

from h5stream import H5StreamLoader

ROWS, HELD_OUT, COLUMNS, BATCH = 1000, 200, 1024, 64


def write_files(folder):
    """Write files for training and validation, of rows so wide that they are streamed and not kept."""
    train = write_sample(folder, name="train.h5", rows=ROWS, columns=COLUMNS, chunk_rows=16)
    held_out = write_sample(folder, name="val.h5", rows=HELD_OUT, columns=COLUMNS, chunk_rows=16)
    # Under 8 MiB a dataset is kept in memory and nothing would be decoded in the second epoch.
    return train, held_out


def loaders_of(train, held_out, **options):
    options = {"fields": ["x", "y"], "num_workers": 1, "keep": "never", **options}
    return (
        H5StreamLoader(train.path, BATCH, shuffle=True, seed=4, **options),
        H5StreamLoader(held_out.path, BATCH, **options),
    )


class Noted(torch.nn.Module):
    """A linear model that notes the rows of each batch, which the labels name."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(COLUMNS, 1)
        self.train_rows, self.held_out_rows = [], []

    def forward(self, x, labels):
        (self.train_rows if self.training else self.held_out_rows).append(labels.tolist())
        return {"loss": (self.linear(x).squeeze(1) * 1e-6 - labels).square().mean()}


def assert_each_row_once_an_epoch(batches, rows, epochs):
    """Assert that the batches of some epochs hold each row once an epoch, in another order each epoch if shuffled."""
    per_epoch = -(-rows // BATCH)
    assert len(batches) == epochs * per_epoch
    for first in range(0, len(batches), per_epoch):
        assert sorted(itertools.chain(*batches[first : first + per_epoch])) == list(range(rows))


def assert_two_epochs(model, train, held_out):
    """Assert that a model was given each row of both loaders once in each of two epochs, by their own readers."""
    assert_each_row_once_an_epoch(model.train_rows, ROWS, 2)
    assert_each_row_once_an_epoch(model.held_out_rows, HELD_OUT, 2)
    assert_fast_path(train, ROWS)
    assert_fast_path(held_out, HELD_OUT)


def assert_fast_path(loader, rows):
    """Assert that the loader's own readers gave the last epoch: each chunk decoded once."""
    stats = loader.stats()
    assert stats.rows == rows
    assert -(-rows // 16) <= stats.chunks < -(-rows // 16) + 16  # `y` is no chunk, and read in a few pieces
    assert stats.decoded_bytes >= rows * COLUMNS * 4
