"""Which seed a loader has that was given none: one of torch's generator, as a DataLoader's; with several ranks 0."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from support.batches import epoch
from support.inner import in_group
from support.making import write_datasets
from torch.utils.data import RandomSampler

from h5stream import (
    Balanced,
    Bounds,
    ChunkBatchSampler,
    Crop,
    Field,
    H5Dataset,
    H5StreamLoader,
    Ragged,
    Sequences,
    Weighted,
)
from h5stream.errors import StateError

ROWS, BATCH = 400, 16


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    x, rows = {"data": np.arange(ROWS), "chunks": (10,)}, {"data": np.arange(9 * ROWS), "chunks": (90,)}
    return write_datasets(tmp_path_factory.mktemp("seeds") / "a.h5", x=x, rows=rows, bounds=9 * np.arange(ROWS + 1))


def plus_noise(x):
    return x + torch.rand(())


DRAWING = {
    "a shuffle": {"shuffle": True},
    "weights": {"draw": Weighted(np.arange(ROWS) + 1)},
    "weights in the order of the file": {"draw": Weighted(np.arange(ROWS) + 1), "shuffle": False},
    "balance": {"draw": Balanced(np.arange(ROWS) % 3)},
    "a function for samples": {"sample_transform": plus_noise},
    "random starts": {"samples": Sequences(4, of="files", starts="random", per_epoch=50)},
    "random crops": {"fields": Field("rows", lookup=Bounds("bounds"), ragged=Ragged("pad", crop=Crop(3)))},
    "a sampler of torch": {"sampler": RandomSampler(range(ROWS))},
}


def made(path, how, **options):
    return H5StreamLoader(path, **({"batch_size": BATCH, "fields": "x", **DRAWING[how]} | options))


def state_of_generator():
    return torch.default_generator.get_state().tolist()


def drawn_after(seed):
    torch.manual_seed(seed)
    return int(torch.empty((), dtype=torch.int64).random_())


@pytest.mark.parametrize("how", DRAWING)
def test_manual_seed_repeats_a_run_and_another_one_does_not(path, how):
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        with made(path, how) as loader:
            runs.append((loader.seed, epoch(loader), epoch(loader)))
    assert runs[0] == runs[1]
    assert runs[0][1] != runs[0][2]
    assert {runs[0][0], runs[2][0]} == {drawn_after(5), drawn_after(6)}
    assert runs[0][1] != runs[2][1]
    with made(path, how, seed=runs[0][0]) as loader:
        assert epoch(loader) == runs[0][1]


@pytest.mark.parametrize("how", DRAWING)
def test_the_seed_is_drawn_once_however_much_is_asked_of_the_loader(path, how):
    drawn_after(5)
    wanted = state_of_generator()
    torch.manual_seed(5)
    with made(path, how) as loader:
        len(loader), loader.stats(), loader.seed, loader.state_dict(), repr(loader)
        if "sampler" not in DRAWING[how] and how != "random crops":
            list(loader.batch_sampler)
        assert len(epoch(loader)) == len(loader)
        pickle.loads(pickle.dumps(loader)).close()
        assert state_of_generator() == wanted


@pytest.mark.parametrize("options", [{}, {"draw": None, "sampler": range(7)}, {"seed": 3, "shuffle": True}], ids=str)
def test_a_loader_that_draws_nothing_leaves_the_generator_alone(path, options):
    before = state_of_generator()
    with H5StreamLoader(path, BATCH, fields="x", **options) as loader:
        epoch(loader)
        assert loader.seed == options.get("seed", 0)
    assert state_of_generator() == before


def test_a_generator_that_is_given_is_drawn_from_instead(path):
    before = state_of_generator()
    generator = torch.Generator().manual_seed(5)
    with H5StreamLoader(path, BATCH, True, fields="x", generator=generator) as loader:
        assert loader.seed == drawn_after(5)
    torch.manual_seed(0)
    assert state_of_generator() == before


def test_several_ranks_have_0_and_draw_nothing(path):
    before = state_of_generator()
    ranks = [H5StreamLoader(path, BATCH, True, fields="x", rank=rank, world_size=2) for rank in range(2)]
    assert [one.seed for one in ranks] == [0, 0]
    assert sorted(x for one in ranks for batch in one for x in batch.tolist()) == list(range(ROWS))
    assert [ChunkBatchSampler(H5Dataset(path, "x"), 8, world_size=2).state_dict()["order"]["seed"]] == [0]
    assert state_of_generator() == before


def test_a_loader_that_was_made_before_its_group_has_0_as_long_as_there_are_several_ranks(path, monkeypatch):
    loader, sampler = H5StreamLoader(path, BATCH, True, fields="x"), ChunkBatchSampler(H5Dataset(path, "x"), BATCH)
    drawn, alone = loader.seed, list(sampler)
    in_group(monkeypatch, rank=1, world_size=2)
    assert loader.seed == loader.state_dict()["fingerprint"]["seed"] == 0
    assert copy.deepcopy(loader).seed == 0
    assert epoch(loader) == epoch(H5StreamLoader(path, BATCH, True, fields="x", seed=0))
    sampler.set_epoch(0)
    assert list(sampler) == list(ChunkBatchSampler(H5Dataset(path, "x"), BATCH, seed=0)) != alone
    monkeypatch.undo()
    assert loader.seed == drawn


@pytest.mark.parametrize("how", DRAWING)
def test_a_state_brings_its_seed_and_refuses_another_that_was_given(path, how):
    with made(path, how, batch_size=1) as first, made(path, how, batch_size=1) as later:
        batches = iter(first)
        next(batches)
        state = json.loads(json.dumps(first.state_dict()))
        rest = epoch(batches)
        assert later.seed != first.seed
        later.load_state_dict(state)
        assert later.seed == first.seed
        assert epoch(later) == rest
        assert later.seed == pickle.loads(pickle.dumps(later)).seed
        with made(path, how, batch_size=1, seed=1) as other, pytest.raises(StateError, match="seed was"):
            other.load_state_dict(state)


def test_a_batch_sampler_draws_and_goes_on_as_a_loader_does(path):
    dataset = H5Dataset(path, "x")
    seed = drawn_after(7)
    torch.manual_seed(7)
    sampler = ChunkBatchSampler(dataset, BATCH)
    assert sampler.state_dict()["order"]["seed"] == seed
    batches = iter(sampler)
    next(batches)
    state = json.loads(json.dumps(sampler.state_dict()))
    before = state_of_generator()
    assert ChunkBatchSampler(dataset, BATCH, shuffle=False).state_dict()["order"]["seed"] == 0
    assert state_of_generator() == before
    later = ChunkBatchSampler(dataset, BATCH)
    later.load_state_dict(state)
    assert list(later) == list(batches)
    with pytest.raises(StateError, match="seed was"):
        ChunkBatchSampler(dataset, BATCH, seed=1).load_state_dict(state)
