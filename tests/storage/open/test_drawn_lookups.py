"""Functions as ``lookup=``: rows that are drawn anew in each epoch, the same however they are read."""

import functools
import itertools

import h5py
import numpy as np
import pytest
import torch
from support.forking import SERVED
from support.making import sparse_group

from h5stream import Field, H5Dataset, H5StreamLoader, Mixture, SampleNumber, Sized, errors
from h5stream.order import fractions

CELLS, GENES = 300, 20


def control_of(samples, epoch, seed, kinds, perturbed):
    """Give each cell a control cell of its kind, another in each epoch."""
    found = np.empty(len(samples), dtype=np.int64)
    drawn = fractions(samples, epoch, seed)
    for kind in np.unique(kinds):
        pool, ours = np.flatnonzero((kinds == kind) & ~perturbed), kinds[samples] == kind
        found[ours] = pool[(drawn[ours] * len(pool)).astype(np.int64)]
    return found


@pytest.fixture
def cells(tmp_path):
    """Cells as AnnData keeps them, dense and sparse; give the path, their counts, and the function."""
    rng = np.random.default_rng(0)
    counts = np.where(rng.random((CELLS, GENES)) < 0.3, rng.integers(1, 9, (CELLS, GENES)), 0).astype("f4")
    kinds, perturbed = rng.integers(0, 3, CELLS), rng.random(CELLS) < 0.7
    with h5py.File(tmp_path / "cells.h5ad", "w") as file:
        file.create_dataset("dense", data=counts, chunks=(16, GENES), compression="gzip")
        sparse_group(file, "X", counts, chunks=(16,), compression="gzip")
        file["pick"], file["kind"] = rng.integers(0, CELLS, CELLS), kinds
    return tmp_path / "cells.h5ad", counts, functools.partial(control_of, kinds=kinds, perturbed=perturbed)


def fields_of(function):
    drawn = {"dense": Field("dense", lookup=function), "sparse": Field("X", lookup=function, ragged="dense")}
    return {"n": SampleNumber(), "kind": "kind", **drawn}


def check(batch, counts, function, epoch, seed):
    """Compare a batch with what the function says of its samples; give their numbers."""
    numbers = batch["n"].numpy()
    expected = counts[function(numbers, epoch, seed)]
    assert np.array_equal(batch["dense"].numpy(), expected)
    assert np.array_equal(batch["sparse"].numpy(), expected)
    return numbers.tolist()


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}, {"keep": "never", "window": 40}], ids=str)
def test_each_epoch_has_rows_of_its_own_however_it_is_read(cells, options):
    path, counts, function = cells
    with H5StreamLoader(path, 32, shuffle=True, seed=5, fields=fields_of(function), **options) as loader:
        for epoch in range(2):
            found = [number for batch in loader for number in check(batch, counts, function, epoch, 5)]
            assert sorted(found) == list(range(CELLS))


def test_ranks_and_a_resumed_run_draw_the_same(cells):
    path, counts, function = cells
    make = functools.partial(H5StreamLoader, path, 16, shuffle=True, seed=5, fields=fields_of(function))
    found = []
    for rank in range(2):
        with make(rank=rank, world_size=2) as loader:
            list(loader)  # epoch 0
            found += [n for batch in itertools.islice(loader, 3) for n in check(batch, counts, function, 1, 5)]
            state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        found += [number for batch in loader for number in check(batch, counts, function, 1, 5)]
    assert sorted(found) == list(range(CELLS))


def test_a_dataset_alone_draws_for_the_epoch_that_it_is_set_to(cells):
    path, counts, function = cells
    dataset = H5Dataset(path, fields_of(function))
    for epoch, seed in ((0, 0), (3, 7)):
        dataset.set_epoch(epoch, seed=seed)
        check(dataset[[9, 250, 9]], counts, function, epoch, seed)
        expected = counts[function(np.array([250]), epoch, seed)[0]]
        assert np.array_equal(dataset[250]["sparse"].numpy(), expected)


def test_datasets_that_are_read_as_one_ask_each_its_own(cells, tmp_path):
    path, counts, function = cells
    with h5py.File(tmp_path / "other.h5ad", "w") as file:
        file["dense"], file["kind"] = -counts[:50], np.zeros(50, dtype=int)
        sparse_group(file, "X", -counts[:50])
    both = [H5Dataset(path, fields_of(function)), H5Dataset(tmp_path / "other.h5ad", fields_of(backwards))]
    every = np.concatenate([counts, -counts[:50]])

    def of_both(samples, epoch, seed):
        rows = np.empty_like(samples)
        rows[samples < CELLS] = function(samples[samples < CELLS], epoch, seed)
        rows[samples >= CELLS] = CELLS + backwards(samples[samples >= CELLS] - CELLS, epoch, seed)
        return rows

    with H5StreamLoader(torch.utils.data.ConcatDataset(both), 32, shuffle=True, seed=1) as loader:
        found = [number for batch in loader for number in check(batch, every, of_both, 0, 1)]
    assert sorted(found) == list(range(CELLS + 50))
    with H5StreamLoader(Mixture({"all": both[0], "other": both[1]}, [0.5, 0.5]), 32, seed=1) as loader:
        for batch in loader:
            check(batch, every, of_both, 0, 1)


def backwards(samples, epoch, seed):
    return 49 - samples


def test_rows_of_a_matrix_in_another_file_are_named_and_must_be_there(cells):
    path, counts, _ = cells
    with h5py.File(path) as file:
        pick = file["pick"][:]
    fields = {"x": Field("X", file=path, lookup="pick", ragged="dense"), "n": SampleNumber(), "kind": "kind"}
    with H5StreamLoader(path, 32, shuffle=True, fields=fields) as loader:
        for batch in loader:
            assert np.array_equal(batch["x"].numpy(), counts[pick[batch["n"]]])
    wrong = np.where(np.arange(CELLS) == 7, 300, 0)
    with pytest.raises(errors.OptionError, match=r"names row 300 at 7, and there are rows 0 to 299"):
        H5Dataset(path, {"kind": "kind", "x": Field("X", lookup=wrong, ragged="dense")})


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda samples, epoch, seed: np.random.default_rng(seed).permutation(len(samples)), r"other rows.*fractions"),
        (lambda samples, epoch, seed: samples + 1, "gave row 300 for sample 299, and there are rows 0 to 299; 1 of 64"),
        (lambda samples, epoch, seed: samples / 2, r"gave float64 \(64,\); it takes \(samples, epoch, seed\)"),
        (lambda samples, epoch, seed: 3, r"int64 \(\)"),
    ],
)
def test_a_function_that_is_none_is_told_when_files_are_opened(cells, function, says):
    for name, options in (("dense", {}), ("X", {"ragged": "dense"})):
        with pytest.raises(errors.OptionError, match=says):
            H5Dataset(cells[0], {"kind": "kind", "x": Field(name, lookup=function, **options)})


def test_what_an_epoch_is_told_too_late_reaches_its_batch(cells):
    def late(samples, epoch, seed):
        return samples + CELLS * (epoch == 1)

    with H5StreamLoader(
        cells[0], 32, shuffle=True, fields={"kind": "kind", "x": Field("dense", lookup=late)}
    ) as loader:
        assert len(list(loader)) == 10
        with pytest.raises(errors.OptionError, match=r"field 'dense'.*are not there"):
            list(loader)


def sums(sample):
    return {"n": sample["n"], "sum": sample["x"].sum()}


def test_processes_that_change_samples_need_no_function(cells):
    path, counts, _ = cells
    fields = {"x": Field("dense", lookup=lambda samples, *_: 299 - samples), "n": SampleNumber(), "kind": "kind"}
    options = {"sample_transform": sums, "sample_workers": 1, "multiprocessing_context": SERVED}
    with H5StreamLoader(path, 64, shuffle=True, fields=fields, **options) as loader:
        for batch in loader:
            assert np.allclose(batch["sum"].numpy(), counts[299 - batch["n"].numpy()].sum(axis=1))


def test_what_a_function_does_not_go_with_is_refused(cells):
    with pytest.raises(errors.OptionError, match="a function as lookup= gives rows of one dataset"):
        Field("o/{}", lookup=backwards)
    with pytest.raises(errors.OptionError, match="ragged= is for"):
        H5Dataset(cells[0], {"kind": "kind", "x": Field("dense", lookup=cells[2], ragged="pad")})
    packed = {"kind": "kind", "x": Field("X", lookup=cells[2], ragged="packed")}
    with pytest.raises(errors.OptionError, match="there is none"):
        H5StreamLoader(cells[0], 32, fields=packed, draw=Sized(100))


def test_fractions_are_a_function_of_the_sample():
    every = fractions(np.arange(10_000), 2, 7)
    assert np.array_equal(fractions(np.array([77, 5]), 2, 7), every[[77, 5]])
    assert every.min() >= 0
    assert every.max() < 1
    assert abs(every.mean() - 0.5) < 0.02
    for others in ((3, 7), (2, 8), (2, 7, 1)):
        assert abs(np.corrcoef(every, fractions(np.arange(10_000), *others))[0, 1]) < 0.05
