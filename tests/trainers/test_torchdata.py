"""torchdata: `StatefulDataLoader` over `H5Dataset` and `ChunkBatchSampler`, and its protocol on the loader."""

import itertools

import pytest
from support.recorded import BATCH, ROWS, assert_each_row_once_an_epoch

from h5stream import ChunkBatchSampler, H5Dataset, collate
from h5stream.dataset.collating import Samples

stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata: pip install '.[trainers]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


def make(files, num_workers):
    dataset = H5Dataset(files[0].path, "y")
    return stateful.StatefulDataLoader(
        dataset,
        batch_sampler=ChunkBatchSampler(dataset, BATCH, seed=3),
        collate_fn=whole_batch,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )


def whole_batch(samples):
    assert isinstance(samples, Samples)  # a batch was read at once, not row by row
    return collate(samples)


def rows(batches):
    return [y.tolist() for y in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("taken", [5, 16, 21, 32])
def test_a_stateful_loader_goes_on_in_the_very_epoch(files, num_workers, taken):
    whole = make(files, num_workers)
    expected = rows(whole) + rows(whole) + rows(whole)
    assert_each_row_once_an_epoch(expected, ROWS, 3)
    assert expected[:16] != expected[16:32]
    first = make(files, num_workers)
    batches = itertools.chain.from_iterable(iter(first) for _ in range(3))
    found = rows(itertools.islice(batches, taken))
    state = first.state_dict()
    later = make(files, num_workers)
    later.load_state_dict(state)
    while len(found) < 48:
        found += rows(later)
    assert found == expected
