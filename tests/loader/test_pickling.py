"""A loader travels to other processes as a DataLoader does: by its arguments."""

import multiprocessing
import pickle

import h5py
import numpy as np
import pytest
import torch
from support.batches import epoch
from support.forking import SERVED
from support.making import write_datasets
from torch.utils.data import Subset

from h5stream import ChunkBatchSampler, H5Dataset, H5StreamLoader

ROWS = 60


@pytest.fixture
def path(tmp_path):
    x = {"data": np.arange(ROWS), "chunks": (7,)}
    return write_datasets(tmp_path / "a.h5", x=x, texts=[f"{n}" for n in range(ROWS)])


def double(x):
    return 2 * x


MADE = {
    "path": lambda path: H5StreamLoader(path, 8, True, fields="x", window=20),
    "h5py": lambda path: H5StreamLoader(h5py.File(path)["x"], 8, True),
    "dataset": lambda path: H5StreamLoader(H5Dataset(path, "x", rows=range(5, 50)), 8, True, drop_last=True),
    "subset": lambda path: H5StreamLoader(Subset(H5Dataset(path, "x"), [9, 3, 5]), 2, sampler=[2, 0, 1]),
    "sampler": lambda path: H5StreamLoader(path, 8, sampler=range(0, ROWS, 2), fields="x"),
    "generator": lambda path: H5StreamLoader(path, 8, True, fields="x", generator=torch.Generator().manual_seed(3)),
    "batch_transform": lambda path: H5StreamLoader(
        path, 8, True, fields="x", batch_transform=double, rank=1, world_size=2
    ),
    "context": lambda path: H5StreamLoader(
        path, 8, fields="x", multiprocessing_context=multiprocessing.get_context("spawn"), num_workers=2
    ),
}


@pytest.mark.parametrize("how", MADE)
def test_a_copy_gives_the_same_batches(path, how):
    loader = MADE[how](path)
    copy = pickle.loads(pickle.dumps(loader))
    assert repr(copy) == repr(loader)
    for _ in range(2):
        assert epoch(copy) == epoch(loader)
    later = pickle.loads(pickle.dumps(loader))  # goes on with the third epoch
    assert epoch(later) == epoch(loader)
    for one in (loader, copy, later):
        one.close()


def test_an_iterator_stays_behind(path):
    with H5StreamLoader(path, 8, shuffle=True, fields="x") as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(NotImplementedError, match="pickle the loader"):
            pickle.dumps(batches)
        copy = pickle.loads(pickle.dumps(loader))
        assert sorted(row for batch in copy for row in batch.tolist()) == list(range(ROWS))
        copy.close()


def send_epochs(end, loader, dataset, sampler):
    end.send((epoch(loader), dataset[:][0].tolist(), list(sampler)))
    loader.close()


def test_another_process_takes_a_loader_while_the_file_is_open_here(path):
    with h5py.File(path) as file:
        loader = H5StreamLoader(file["x"], 8, shuffle=True, batch_transform=double)
        dataset = H5Dataset(file, ["x", "texts"])
        sampler = ChunkBatchSampler(dataset, 8)
        ours, theirs = SERVED.Pipe()
        child = SERVED.Process(target=send_epochs, args=(theirs, loader, dataset, sampler))
        child.start()
        assert ours.poll(120)
        assert ours.recv() == (epoch(loader), dataset[:][0].tolist(), list(sampler))
        child.join()
        loader.close()
