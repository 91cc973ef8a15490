"""Each argument and value that `DataLoader` takes is taken, at its place: a swap must not fail on an argument."""

import inspect

import numpy as np
import pytest
import torch
from support.each import for_each
from support.inner import default_budget
from support.making import make_file, write_datasets
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from h5stream import H5StreamLoader


def parameters(kind):
    return {name: p for name, p in inspect.signature(kind.__init__).parameters.items() if name != "self"}


THEIRS, OURS = parameters(DataLoader), parameters(H5StreamLoader)


def positional(parameters):
    return [name for name, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]


@for_each(THEIRS)
def test_a_parameter_of_dataloader_exists_here_under_its_name_and_kind(name):
    assert name in OURS, f"DataLoader has {name}=, which H5StreamLoader does not take"
    assert OURS[name].kind == THEIRS[name].kind


def test_positional_parameters_stand_where_dataloader_has_them():
    assert positional(OURS) == positional(THEIRS)


# Defaults that differ are decisions; each has its reason here.
CHANGED_DEFAULTS = {
    "batch_size": "large batches are what this is for",
    "num_workers": "threads are free to start: as many as the cgroup allows",
}


@for_each([name for name in THEIRS if name != "dataset"])
def test_defaults_are_those_of_dataloader_but_for_what_was_decided(name):
    same = OURS[name].default == THEIRS[name].default
    assert same != (name in CHANGED_DEFAULTS)


ARGUMENTS = [
    {"num_workers": np.int64(2)},
    {"num_workers": 2, "prefetch_factor": 1},
    {"num_workers": 2, "prefetch_factor": None},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "timeout": np.float32(30.0)},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 2, "multiprocessing_context": torch.multiprocessing.get_context("spawn")},
    {"num_workers": 2, "multiprocessing_context": "forkserver", "in_order": False},
    {"num_workers": 2, "worker_init_fn": print},
    {"num_workers": 0, "timeout": 0, "in_order": False},
    {"pin_memory_device": ""},
    {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    {"shuffle": None},
    {"shuffle": 1},
    {"batch_size": 10**12},
    {"batch_size": 20, "drop_last": True},
    {"batch_size": None},
    {"batch_sampler": [[0, 1], [2]]},
    {"batch_size": 1, "batch_sampler": [[0, 1], [2]]},
    {"sampler": [3, 1, 2], "shuffle": False},
    {"sampler": RandomSampler(range(20), replacement=True, num_samples=7)},
    {"sampler": range(5), "drop_last": True},
    {"collate_fn": len},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("swap") / "a.h5"
    write_datasets(path, x=np.arange(20))
    return path


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda arguments: "-".join(arguments))
def test_what_dataloader_takes_is_taken(path, arguments):
    arguments = {"batch_size": 4, **arguments} if "batch_sampler" not in arguments else arguments
    theirs = DataLoader(TensorDataset(torch.arange(20)), **arguments)
    loader = H5StreamLoader(path, **arguments)
    assert [name for name in THEIRS if name != "shuffle" and not hasattr(loader, name)] == []
    assert len(loader) == len(theirs)
    assert sum(1 for _ in loader) == len(theirs)


def test_a_numpy_batch_size_is_taken_too(path):
    assert [len(x) for x in H5StreamLoader(path, np.int32(8))] == [8, 8, 4]


def test_a_batch_larger_than_the_default_budget_does_not_fail_a_swap(tmp_path, caplog, monkeypatch):
    default_budget(monkeypatch, 4 << 20)
    make_file(tmp_path / "a.h5", "x", None, data=np.zeros((64, 1 << 18), "u1"), chunks=(1, 1 << 18))
    with H5StreamLoader(tmp_path / "a.h5", 32, shuffle=True) as loader:
        assert "memory_budget: " in caplog.text
        assert loader.window_size.needed_nbytes <= loader.memory_budget
        assert [len(x) for x in loader] == [32, 32]
