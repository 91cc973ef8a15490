"""``fields=`` together with an `H5Dataset`: the same samples, made of other fields."""

import h5py
import numpy as np
import pytest
import torch
from support.making import write_datasets
from torch.utils.data import ConcatDataset, Subset

from h5stream import Field, H5Dataset, H5StreamLoader, Mixture, Sequences, errors

ROWS = 100


@pytest.fixture
def path(tmp_path):
    x = {"data": np.arange(3.0 * ROWS).reshape(ROWS, 3), "chunks": (7, 3), "compression": "gzip"}
    held = {"y": np.arange(ROWS), "short": np.arange(ROWS - 1)}
    for name in "ab":
        held |= {f"demos/{name}/x": np.arange(20), f"demos/{name}/y": -np.arange(20)}
    return write_datasets(tmp_path / "a.h5", x=x, **held)


KINDS = {
    "all": lambda whole: whole,
    "a subset": lambda whole: whole.subset(slice(10, 90, 3)),
    "a part of a split": lambda whole: whole.split(0.7, seed=1)[1],
    "listed": lambda whole: whole.listed([5, 3, 5, 99]),
    "a Subset of torch": lambda whole: Subset(whole, [9, 1, 50]),
    "a ConcatDataset": lambda whole: ConcatDataset([whole.subset(slice(0, 9)), whole.subset([70, 71])]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_samples_are_the_same(path, kind):
    source = KINDS[kind](H5Dataset(path, "y"))
    rows = torch.cat(list(H5StreamLoader(source, 8))).numpy()
    with h5py.File(path) as file:
        x = file["x"][:][rows]
    with H5StreamLoader(source, 8, fields=[Field("x", normalize={"mean": 1.0, "std": 2.0}), "y"]) as loader:
        batches = list(loader)
    assert np.array_equal(torch.cat([y for _, y in batches]).numpy(), rows)
    assert np.allclose(torch.cat([batch for batch, _ in batches]).numpy(), (x - 1) / 2)


def test_samples_stay_what_they_were(path):
    demos = H5Dataset(path, "x", samples=Sequences(4, of="demos/*")).split(0.5, by="segment")[1]
    other = H5Dataset(demos, "y")
    assert [(-one).tolist() for one in other] == [one.tolist() for one in demos]
    assert [one.tolist() for one in demos.with_fields("y")] == [one.tolist() for one in other]


def test_what_is_not_there_for_each_sample_is_refused(path):
    dataset = H5Dataset(path, "y")
    with pytest.raises(errors.FieldNotFoundError, match="none"):
        H5StreamLoader(dataset, fields="none")
    with pytest.raises(errors.OptionError, match="not there for each of 100 samples, but for 99"):
        H5StreamLoader(dataset.subset([1]), fields="short")
    with pytest.raises(errors.OptionError, match="fields= of a Mixture are those of its sources"):
        H5StreamLoader(Mixture({"a": dataset}, {"a": 1}), fields="x")
