"""`H5StreamLoader` in the place of `DataLoader`: length, epochs, batches and what becomes of them."""

import inspect

import numpy as np
import pytest
import torch
from support.making import write_datasets
from support.sample_files import write_sample
from torch.utils.data import DataLoader, default_collate

from h5stream import H5Dataset, H5StreamLoader
from h5stream.loader.arguments import OLD


@pytest.fixture
def sample(tmp_path):
    return write_sample(tmp_path)


def shuffled(sample, **options):
    return H5StreamLoader(sample.path, **{"batch_size": 64, "shuffle": True, "fields": ["x", "y"], **options})


def test_attributes_say_what_was_given(sample):
    dataset = H5Dataset(sample.path, "x")
    loader = H5StreamLoader(dataset, 10, drop_last=True, num_workers=1, timeout=3, pin_memory=True)
    assert loader.dataset is dataset
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.timeout) == (10, True, 1, 3)
    assert loader.pin_memory
    assert "H5StreamLoader(H5Dataset(1,000 rows of x" in repr(loader)


@pytest.mark.parametrize(
    "name", sorted((inspect.signature(H5StreamLoader.__init__).parameters.keys() | OLD) - {"self", "timeout"})
)
def test_no_argument_is_changed_in_vain(sample, name):
    loader = shuffled(sample)
    in_its_words = f"{name} attribute should not be set after H5StreamLoader is initialized; make another"
    with pytest.raises(ValueError, match=in_its_words):
        setattr(loader, name, None)


def test_the_timeout_and_attributes_of_the_users_own_may_be_set(sample):
    loader = shuffled(sample)
    loader.timeout, loader.nickname = 30, "train"
    assert len(list(loader)) == 16
    loader.load_state_dict(shuffled(sample, seed=None).state_dict())
    assert (loader.timeout, loader.nickname) == (30, "train")


def test_the_batch_sampler_gives_the_very_batches_that_come(sample):
    loader = shuffled(sample, window=200, seed=5)
    for _ in range(2):
        named = list(loader.batch_sampler)
        assert [y.tolist() for _, y in loader] == named
    assert list(loader.sampler) == list(loader.batch_sampler)


def test_a_seed_of_any_size_goes_before_a_generator(sample):
    first, again = (shuffled(sample, seed=2**80, generator=torch.Generator()) for _ in range(2))
    assert first.seed == 2**80
    assert torch.equal(torch.cat([y for _, y in first]), torch.cat([y for _, y in again]))


def test_a_single_kept_tensor_stays_while_the_loader_goes_on(sample, either_way):
    loader = shuffled(sample, window=64)
    kept = []
    for _ in range(3):
        for _, y in loader:
            kept.append((y[:1], int(y[0])))  # a view keeps its batch's memory as well
    assert all(int(view) == then for view, then in kept)


def test_writing_into_a_batch_changes_no_other(sample, either_way):
    loader = shuffled(sample, window=100)
    for _ in range(3):
        for x, y in loader:
            assert sample.matches(x, y)
            x.fill_(-1)
            y.fill_(-1)


def test_collate_fn_gets_samples_and_gives_what_dataloader_gives_to_transforms(sample):
    def collate(samples):
        return {"n": len(samples), "all": default_collate(samples)}

    ours = H5StreamLoader(sample.path, 64, fields=["x", "y"], collate_fn=collate)
    theirs = DataLoader(H5Dataset(sample.path, ["x", "y"]), 64, collate_fn=collate)
    for a, b in zip(ours, theirs, strict=True):
        assert a["n"] == b["n"]
        assert all(torch.equal(u, v) for u, v in zip(a["all"], b["all"], strict=True))
    loader = H5StreamLoader(sample.path, 500, fields="y", collate_fn=len, batch_transform=lambda n: n + 1)
    assert list(loader) == [501, 501]


@pytest.mark.parametrize("collate_fn", [None, lambda sample: ("one", *sample)])
def test_without_batch_size_samples_come_singly(sample, collate_fn):
    ours = H5StreamLoader(sample.path, None, fields=["x", "y"], collate_fn=collate_fn)
    theirs = DataLoader(H5Dataset(sample.path, ["x", "y"]), None, collate_fn=collate_fn)
    assert len(ours) == len(theirs) == 1000
    assert ours.batch_sampler is theirs.batch_sampler is None
    for a, b in zip(ours, theirs, strict=True):
        assert len(a) == len(b)
        assert all(torch.equal(torch.as_tensor(u), torch.as_tensor(v)) for u, v in zip(a[-2:], b[-2:], strict=True))


def test_one_name_gives_a_tensor_several_a_list_a_mapping_a_dict_and_none_all_at_the_root(tmp_path, sample):
    for fields, kind in (("x", torch.Tensor), (["x", "y"], list), ({"image": "x"}, dict), (None, dict)):
        (batch,) = H5StreamLoader(sample.path, 1000, fields=fields)
        assert type(batch) is kind
    assert list(batch) == ["x", "y"]
    write_datasets(tmp_path / "one.h5", only=np.arange(3))
    (batch,) = H5StreamLoader(str(tmp_path / "one.h5"))
    assert batch.tolist() == [0, 1, 2]
