"""Other processes: datasets in the workers of a stock DataLoader, loaders in forked children."""

import multiprocessing
import threading

import pytest
import torch
from support.forking import in_forked_child
from support.sample_files import gate, in_thread, write_sample
from torch.utils.data import DataLoader

from h5stream import ChunkBatchSampler, H5Dataset, H5StreamLoader, collate
from h5stream.errors import LoaderClosedError
from h5stream.storage.file.h5py_reader import H5pyReader
from h5stream.storage.source.one_file import FileBytes, FileIdentity


# Those that import torch anew are slow; test_pickling.py has one by default, which takes a dataset as well.
@pytest.mark.parametrize(
    "start_method", ["fork", *(pytest.param(method, marks=pytest.mark.slow) for method in ("spawn", "forkserver"))]
)
def test_a_dataset_works_in_the_workers_of_a_stock_dataloader(sample, start_method):
    dataset = H5Dataset(sample.path, ["x", "y"])
    dataset[0]  # open before the fork
    loader = DataLoader(
        dataset,
        batch_sampler=ChunkBatchSampler(dataset, 128, seed=1),
        num_workers=2 if start_method == "fork" else 1,  # the others import torch anew, each
        collate_fn=collate,
        multiprocessing_context=multiprocessing.get_context(start_method),
    )
    expected = H5StreamLoader(dataset, 128, True, seed=1)
    for (x, y), (_, rows) in zip(loader, expected, strict=True):
        assert torch.equal(y, rows)
        assert sample.matches(x, y)


@pytest.mark.parametrize("kept", [True, False], ids=["collated there", "collated later"])
@pytest.mark.parametrize("fields", [["x", "y"], {"x": "x", "y": "y"}], ids=["tuples", "dicts"])
def test_what_a_function_does_to_samples_before_it_collates_them_is_kept(sample, fields, kept):
    def change(samples):
        for number, one in enumerate(samples):
            if isinstance(one, dict):
                one["y"] = one["y"] + 1
            else:
                samples[number] = one[0], one[1] + 1
        samples.reverse()
        samples.pop()
        return collate(samples) if kept else samples

    for workers in (0, 1):
        method = {"multiprocessing_context": "fork"} if workers else {}  # a function of this one is not pickled
        loader = DataLoader(H5Dataset(sample.path, fields), 4, collate_fn=change, num_workers=workers, **method)
        batch = next(iter(loader)) if kept else collate(next(iter(loader)))
        assert (batch["y"] if isinstance(batch, dict) else batch[1]).tolist() == [4, 3, 2]


@pytest.mark.parametrize("where", [FileBytes, H5pyReader])
def test_a_dataset_that_a_thread_was_opening_is_read_in_a_forked_child(tmp_path, monkeypatch, where):
    path = write_sample(tmp_path, **({"scaleoffset": 2} if where is H5pyReader else {})).path
    dataset, reached, opened = H5Dataset(path, "x"), threading.Event(), threading.Event()
    real = FileIdentity.check_unchanged

    def wait(identity):
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            opened.wait(30)
        real(identity)

    monkeypatch.setattr(FileIdentity, "check_unchanged", wait)
    reading = in_thread(lambda: dataset[3])
    assert reached.wait(30)
    assert in_forked_child(lambda: dataset[5].tolist(), limit_s=20)[0] == pytest.approx(5, abs=0.01)
    opened.set()
    assert reading.result(30)[0].item() == pytest.approx(3, abs=0.01)


def test_an_iterator_from_before_a_fork_says_so_in_the_child(sample):
    iterator = iter(H5StreamLoader(sample.path, 10, fields="y", num_workers=2, window=20))
    next(iterator)

    def use_it():
        with pytest.raises(LoaderClosedError, match=r"made before a fork.*call iter\(loader\) again in the child"):
            next(iterator)

    in_forked_child(use_it)
    assert len(list(iterator)) == 99  # the parent's own goes on


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_iterates_again_in_a_forked_child(sample, num_workers, persistent_workers):
    loader = H5StreamLoader(
        sample.path, 50, True, num_workers=num_workers, persistent_workers=persistent_workers, window=100
    )
    for _ in loader:
        pass
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(1)
    rows = in_forked_child(lambda: [batch["y"].tolist() for batch in loader])
    loader.set_epoch(1)
    assert rows == [batch["y"].tolist() for batch in loader]
    loader.close()


def test_a_fork_while_small_datasets_are_being_read_leaves_no_lock_behind(tmp_path, monkeypatch):
    sample = write_sample(tmp_path)
    loader = H5StreamLoader(sample.path, 500, fields="y", num_workers=1)
    with gate(monkeypatch) as blocked:
        iterator = iter(loader)
        assert blocked.reached.wait(30)  # the reader thread holds the lock of the kept datasets now

        def iterate():
            blocked.open()
            return [y.tolist() for y in loader]

        assert in_forked_child(iterate) == [list(range(500)), list(range(500, 1000))]
        blocked.open()
        assert len(list(iterator)) == 2


def test_a_child_writing_into_its_batch_leaves_the_parents_alone(sample):
    loader = H5StreamLoader(sample.path, 1000, fields="y")
    (kept,) = loader
    in_forked_child(lambda: kept.fill_(-1).tolist())
    assert kept.tolist() == list(range(1000))


def test_closing_a_parents_loader_in_a_child_does_not_disturb_the_parent(sample):
    loader = H5StreamLoader(sample.path, 50, fields="y", num_workers=2, window=100)
    iterator = iter(loader)
    next(iterator)
    in_forked_child(loader.close)
    assert len(list(iterator)) == 19
