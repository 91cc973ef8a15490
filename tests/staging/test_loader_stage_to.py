"""`H5StreamLoader(..., stage_to=DIR)`: reads from a leased copy, and gives the lease back."""

import gc
import os

import h5py
import numpy as np
import pytest
from seeded import SeededLoader as H5StreamLoader
from torch.utils.data import Subset

from h5stream import H5Dataset
from h5stream.errors import NotEnoughSpaceError, OptionError, StagedFileInUseError
from h5stream.staging import list_staged, remove_staged

ROWS = 2000


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.h5", "b.h5"):
        with h5py.File(folder / name, "w") as file:
            file["x"] = np.random.default_rng(len(name)).integers(0, 99, (ROWS, 30)).astype("f4")
            file.create_dataset("y", data=np.arange(ROWS), chunks=(100,), compression="gzip")
    return folder / "a.h5"


def users(folder):
    return [file.used_by for file in list_staged(folder)]


def content(loader):
    return [tuple(value.numpy().tobytes() for value in batch) for batch in loader]


def load(source, **options):
    return H5StreamLoader(source, 128, shuffle=True, fields=["x", "y"], **options)


def test_batches_come_from_the_copy_and_are_the_same(source, ram):
    expected = content(load(source))
    loader = load(source, stage_to=ram)
    assert [identity.path for identity in loader.dataset.layout.files] == [str(ram / "a.h5")]
    source.unlink()
    assert content(loader) == expected


def test_the_lease_lasts_until_close_the_end_of_a_block_or_of_the_loader(source, ram):
    one, two = load(source, stage_to=ram), load(source, stage_to=ram)
    for loader in (one, two):
        assert users(ram) == [(os.getpid(),)]
        with pytest.raises(StagedFileInUseError):
            remove_staged(ram)
        assert len(content(loader)) == len(loader)
        loader.close()
        loader.close()
    assert users(ram) == [()]
    with load(source, stage_to=ram) as loader:
        next(iter(loader))
    assert users(ram) == [()]
    loader = load(source, stage_to=ram)
    next(iter(loader))
    assert users(ram) == [(os.getpid(),)]
    del loader
    gc.collect()
    assert users(ram) == [()]
    assert remove_staged(ram).removed == (ram / "a.h5",)


def test_a_loader_that_fails_to_be_made_leases_nothing(source, ram):
    with pytest.raises(OptionError):
        load(source, stage_to=ram, memory_budget=1)
    gc.collect()
    assert all(used == () for used in users(ram))
    for wrong in ({"batch_size": -1}, {"seed": -1}):
        with pytest.raises(OptionError):
            H5StreamLoader(source, fields=["x", "y"], stage_to=ram / "other", **wrong)
    assert not (ram / "other").exists()


def test_a_copy_is_reused_also_by_its_own_name_and_a_stale_one_replaced(source, ram):
    load(source, stage_to=ram).close()
    before = (ram / "a.h5").stat().st_ino
    load(source, stage_to=ram).close()
    assert (ram / "a.h5").stat().st_ino == before
    with h5py.File(source, "a") as file:
        file["x"][0] = -1
    loader = load(source, stage_to=ram)
    expected = content(load(source))
    assert content(loader) == expected
    assert (ram / "a.h5").stat().st_ino != before
    assert content(load(ram / "a.h5", stage_to=ram)) == expected
    assert len(list_staged(ram)) == 1


@pytest.mark.parametrize("kind", ["pattern", "dataset", "subset"])
def test_whatever_a_loader_takes_is_staged(source, ram, kind):
    both = [str(source), str(source.with_name("b.h5"))]
    given = {
        "pattern": str(source.with_name("*.h5")),
        "dataset": H5Dataset(both, ["x", "y"], rows=np.arange(0, 2 * ROWS, 3)),
        "subset": Subset(H5Dataset(both, ["x", "y"]), list(range(500, 3000))),
    }[kind]
    fields = ["x", "y"] if kind == "pattern" else None
    options = {"shuffle": True, "fields": fields, "seed": 3}
    expected = [str(batch) for batch in H5StreamLoader(given, 300, **options)]
    with H5StreamLoader(given, 300, stage_to=ram, **options) as loader:
        assert [str(batch) for batch in loader] == expected
        assert len(list_staged(ram)) == 2


def test_errors_are_clear(source, small_tmpfs):
    with pytest.raises(OptionError, match="stage_to= takes a folder, not 7"):
        load(source, stage_to=7)
    with pytest.raises(NotEnoughSpaceError, match="do not fit"):
        load(source, stage_to=small_tmpfs("64k"))
