"""Whose rows come when: samplers of other people, selections, several files, windows, ranks."""

import itertools

import numpy as np
import pytest
import torch
from support.batches import batches_of
from support.making import make_file
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset

from h5stream import H5Dataset, H5StreamLoader
from h5stream.errors import BudgetError, OptionError


@pytest.fixture
def dataset(sample):
    return H5Dataset(sample.path, ["x", "y"])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_sampler_decides_the_order_as_in_dataloader(sample, dataset, drop_last, num_workers):
    def options():
        sampler = list(RandomSampler(dataset, generator=torch.Generator().manual_seed(1)))
        return {"batch_size": 64, "sampler": sampler, "drop_last": drop_last}

    ours = H5StreamLoader(dataset, **options(), num_workers=num_workers)
    theirs = DataLoader(dataset, **options())
    assert len(ours) == len(theirs)
    assert batches_of(ours) == batches_of(theirs)
    assert next(iter(ours.batch_sampler)) != list(range(64))
    assert ours.sampler == options()["sampler"]


def test_a_batch_longer_than_its_sampler_says_is_refused_not_written_past_its_slot(dataset):
    class Liar(BatchSampler):
        def __iter__(self):
            yield list(range(self.batch_size))
            yield list(range(self.batch_size + 1))

    iterator = iter(H5StreamLoader(dataset, batch_sampler=Liar(SequentialSampler(dataset), 8, False)))
    assert next(iterator)[1].tolist() == list(range(8))
    with pytest.raises(OptionError, match="a batch of 9 rows, but there is room for 8; let its attribute batch_size"):
        next(iterator)


def test_samples_listed_in_batches_without_batch_size_are_batches(sample, dataset):
    # The idiom of torch's documentation for data that is read in bulk.
    def nested():
        return {"batch_size": None, "sampler": BatchSampler(SequentialSampler(dataset), 300, False)}

    ours, theirs = H5StreamLoader(dataset, **nested()), DataLoader(dataset, **nested())
    assert len(ours) == len(theirs) == 4
    assert batches_of(ours) == batches_of(theirs)
    counted = H5StreamLoader(dataset, **nested(), collate_fn=lambda batch: len(batch[1]))
    assert list(counted) == [300, 300, 300, 100]


@pytest.mark.parametrize("indices", [[4, 2], torch.tensor([4, 2]), np.array([4, 2]), range(4, 0, -2)])
def test_single_samples_by_indices_of_any_integer_type(dataset, indices):
    ours = H5StreamLoader(dataset, None, sampler=indices)
    assert [int(y) for _, y in ours] == [4, 2]
    assert [y.shape for _, y in ours] == [(), ()]
    assert batches_of(H5StreamLoader(dataset, 2, sampler=indices)) == [[4, 2]]


def test_an_endless_sampler_ends_with_break(dataset):
    def forever():
        while True:
            yield from range(1000)

    class Endless:
        def __iter__(self):
            return forever()

    loader = H5StreamLoader(dataset, 64, sampler=Endless())
    taken = list(itertools.islice(loader, 40))
    assert [int(y[0]) for _, y in taken] == [64 * k % 1000 for k in range(40)]


def test_a_samplers_indices_are_places_in_the_subset_as_in_dataloader(dataset):
    nested = Subset(Subset(dataset, [50, 30, 10, 70, 20]), [4, 0, 1])
    for given in ({"batch_size": 2, "sampler": [2, 0, 1]}, {"batch_sampler": [[1], [0, 2, -1]]}):
        assert batches_of(H5StreamLoader(nested, **given)) == batches_of(DataLoader(nested, **given))
    for given in ({"batch_sampler": [[0], [3]]}, {"batch_size": 1, "sampler": [0, 3]}):
        with pytest.raises(OptionError, match="gave row 3, but there are 3 rows"):
            list(H5StreamLoader(nested, **given))


def test_a_small_window_mixes_neighbours_and_all_mixes_everything(dataset):
    near = batches_of(H5StreamLoader(dataset, 32, True, window=32))
    far = batches_of(H5StreamLoader(dataset, 32, True, window="all"))
    assert max(len({row // 32 for row in batch}) for batch in near) <= 3  # a block's end, a short one, a beginning
    assert min(len({row // 32 for row in batch}) for batch in far[:-1]) > 10


@pytest.mark.parametrize("num_workers", [1, 2, 7])
@pytest.mark.parametrize("window", [40, "auto"])
def test_any_number_of_threads_gives_the_same_batches(sample, dataset, window, num_workers):
    def epoch(workers):
        return list(H5StreamLoader(dataset, 48, True, num_workers=workers, window=window, seed=9))

    for (x, y), (u, v) in zip(epoch(0), epoch(num_workers), strict=True):
        assert torch.equal(y, v)
        assert torch.equal(x, u)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_draws_from_the_global_generator_before_the_loop_does(dataset, num_workers):
    def batches_and_draws():
        torch.manual_seed(0)
        iterator = iter(H5StreamLoader(dataset, 50, sampler=RandomSampler(dataset), num_workers=num_workers))
        drawn = torch.rand(3).tolist()
        return [y.tolist() for _, y in iterator], drawn

    first = batches_and_draws()
    assert all(batches_and_draws() == first for _ in range(5))


class Silent:
    """A batch sampler that does not say how many rows its batches have."""

    def __init__(self, *batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def test_a_batch_sampler_that_does_not_say_its_rows_gets_the_room_that_the_budget_has(dataset, tmp_path):
    named = [[3, 1], [7], list(range(20, 80)), [0, 999]]
    more = [[5, 3], list(range(1000)), list(range(1000)) * 3]
    assert batches_of(H5StreamLoader(dataset, batch_sampler=Silent(*more))) == more  # than there are rows
    for budget in (None, 2_400_000):
        given = Silent(*named)
        loader = H5StreamLoader(dataset, batch_sampler=given, memory_budget=budget, num_workers=1)
        assert batches_of(loader) == named
        assert loader.batch_sampler is given
        assert (loader.batch_size, len(loader)) == (None, 4)
    wide = make_file(tmp_path / "wide.h5", shape=(4000, 200_000), dtype="f4", chunks=(2, 200_000))
    loader = H5StreamLoader(wide, batch_sampler=Silent([5, 3], list(range(40))))
    assert [len(x) for x in loader] == [2, 40]
    assert loader.window_size.needed_nbytes <= loader.memory_budget
    assert loader.window_size.max_open_batches >= 6
    assert loader.held_nbytes <= loader.memory_budget


def test_a_batch_beyond_the_room_says_what_would_do_and_no_room_for_one_row_is_refused(dataset):
    silent = Silent([1], list(range(1000)) * 5)
    loader = H5StreamLoader(dataset, batch_sampler=silent, memory_budget=1_200_000, num_workers=1)
    with pytest.raises(OptionError, match=r"batch of 5,000 rows.*room for .* batch_size .*memory_budget="):
        list(loader)
    silent.batch_size = 5000
    assert len(batches_of(H5StreamLoader(dataset, batch_sampler=silent, num_workers=1))) == 2
    with pytest.raises(BudgetError, match="too small"):
        H5StreamLoader(dataset, batch_sampler=Silent([0]), memory_budget=10_000, num_workers=1)
