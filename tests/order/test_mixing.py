"""A shuffle that mixes too little is said, with its figures and ways out that help; a good one is not."""

import re
import warnings

import numpy as np
import pytest
from support.making import make_file, write_datasets
from torch.utils.data import Subset

from h5stream import ChunkBatchSampler, H5Dataset, H5StreamLoader
from h5stream.errors import BudgetError, WeakShuffleWarning
from h5stream.order.quality import FEW_BLOCKS

CLASSES, ROWS_A_CLASS, BATCH = 300, 64, 64
ROWS = CLASSES * ROWS_A_CLASS
BUDGET = 3_000_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file sorted by class, each a chunk of its own, that has to be decoded."""
    labels = np.repeat(np.arange(CLASSES), ROWS_A_CLASS)
    pictures = np.random.default_rng(0).integers(0, 255, (ROWS, 500), "u1")
    imgs = {"data": pictures, "chunks": (ROWS_A_CLASS, 500), "compression": "lzf"}
    return write_datasets(tmp_path_factory.mktemp("sorted") / "a.h5", imgs=imgs, labels=labels)


def warned(action):
    """Give the warnings of a weak shuffle that an action gives; any other is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.simplefilter("always", WeakShuffleWarning)
        made = action()
    if hasattr(made, "close"):
        made.close()
    return caught


def loader(path, **arguments):
    given = {"batch_size": BATCH, "fields": ["imgs", "labels"], "num_workers": 1, "memory_budget": BUDGET}
    return H5StreamLoader(path, **given | arguments)


def test_a_window_of_few_blocks_is_said_once_a_loader_with_its_figures(path):
    (warning,) = warned(lambda: loader(path, shuffle=True))
    text = str(warning.message)
    assert warning.filename == __file__
    held = int(re.search(r"a window holds (\d+) of the 300 blocks", text)[1])
    assert 0 < held < FEW_BLOCKS
    assert "64 rows that lie together, by the chunks of 'imgs'" in text
    for _ in range(2):
        assert len(warned(lambda: loader(path, shuffle=True))) == 1


def test_the_figure_is_what_batches_hold(path):
    text = str(warned(lambda: loader(path, shuffle=True))[0].message)
    said = int(re.search(r"come from about (\d+) of them, where a full shuffle has (\d+)", text)[1])
    with pytest.warns(WeakShuffleWarning), loader(path, shuffle=True) as made:
        classes = [len(labels.unique()) for _, labels in made]
    assert np.mean(classes) == pytest.approx(said, rel=0.15)


def test_the_window_and_the_budget_that_it_names_help(path):
    text = str(warned(lambda: loader(path, shuffle=True))[0].message)
    window, enough = map(int, re.search(r"window=(\d+) or more with memory_budget=(\d+) \(it is", text).groups())
    with pytest.raises(BudgetError):
        loader(path, shuffle=True, window=window, memory_budget=enough - 1)
    assert not warned(lambda: loader(path, shuffle=True, window=window, memory_budget=enough))


WELL = [{"memory_budget": 1 << 30}, {"window": "all", "memory_budget": 1 << 30}, {"rank": 0, "world_size": 300}]


@pytest.mark.parametrize(
    "arguments", [{"shuffle": False}, {"sampler": range(100)}, *({"shuffle": True, **well} for well in WELL)]
)
def test_nothing_is_said_where_the_mixing_is_good_or_nothing_is_shuffled(path, arguments):
    assert not warned(lambda: loader(path, **arguments))


def test_a_file_or_a_selection_that_fits_a_window_is_mixed_however_few_blocks_it_has(path, tmp_path):
    rows = range(4 * ROWS_A_CLASS)
    assert not warned(lambda: loader(Subset(H5Dataset(path, ["imgs", "labels"]), rows), fields=None, shuffle=True))
    few = make_file(tmp_path / "a.h5", data=np.arange(1000), chunks=(500,), compression="gzip")
    assert not warned(lambda: H5StreamLoader(few, 10, shuffle=True))


def test_a_sampler_for_a_stock_loader_says_it_too(path):
    dataset = H5Dataset(path, "imgs")
    assert len(warned(lambda: ChunkBatchSampler(dataset, BATCH, window=BATCH))) == 1
    assert not warned(lambda: ChunkBatchSampler(dataset, BATCH, window=BATCH, shuffle=False))
    assert not warned(lambda: ChunkBatchSampler(dataset, BATCH))
