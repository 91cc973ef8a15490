"""The naive loader is stopped inside a batch, with its workers, and its rows count until then."""

import os
import signal
import time

import h5py
import numpy as np
import psutil
import pytest
from support.inner import rivals_are_forks
from support.making import make_file, write_datasets
from support.sample_files import eventually

from h5stream.baseline import NaiveDataset, RivalError, measure_naive


def is_there(process):
    try:
        tracker = "resource_tracker" in " ".join(process.cmdline())  # stays as long as we do
        return process.status() != psutil.STATUS_ZOMBIE and not tracker
    except psutil.NoSuchProcess:
        return False


def test_it_is_stopped_inside_a_batch_and_no_process_is_left(tmp_path):
    # Each row has a part in each of 256 chunks.
    make_file(tmp_path / "a.h5", data=np.zeros((20_000, 256), "u1"), chunks=(20_000, 1), compression="gzip")
    before, began = set(psutil.Process().children(recursive=True)), set()

    def look(rows):
        began.update(set(psutil.Process().children(recursive=True)) - before)

    how = {"batch_size": 8192, "workers": 2, "row_nbytes": 256}
    for seconds in (2.0, 6.0, 18.0, 60.0):  # on a machine that is busy, workers are slow to begin
        found = measure_naive([str(tmp_path / "a.h5")], ["x"], seconds=seconds, progress=look, **how)
        if found.rows:
            break
    assert (found.batches, found.first_batch_s, found.stopped) == (0, None, True)
    assert found.rows > 0
    assert began
    eventually(lambda: not any(map(is_there, began)))  # a killed one goes when the system comes to it


def test_a_whole_epoch_of_several_files_is_counted_row_by_row(tmp_path, monkeypatch):
    rivals_are_forks(monkeypatch)
    for name in ("a.h5", "b.h5"):
        write_datasets(tmp_path / name, x=np.zeros((100, 3), "f4"))
    paths = [str(tmp_path / "a.h5"), str(tmp_path / "b.h5")]
    found = measure_naive(paths, ["x"], batch_size=64, workers=0, seconds=60, row_nbytes=12)
    assert (found.rows, found.batches, found.nbytes, found.stopped) == (200, 4, 2400, False)


def test_what_it_cannot_read_is_told(tmp_path, monkeypatch):
    rivals_are_forks(monkeypatch)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("v", 9, h5py.vlen_dtype("i4"))[:3] = [np.arange(k) for k in (1, 2, 3)]
    for name, why in (
        ("nothing", "FieldNotFoundError: .* has no dataset 'nothing'"),
        ("v", "torch cannot stack arrays of different shapes"),
    ):
        with pytest.raises(RivalError, match=f"^naive not measured: {why}"):
            measure_naive([str(tmp_path / "a.h5")], [name], batch_size=64, workers=2, seconds=60, row_nbytes=12)


def test_a_row_that_never_comes_ends_with_the_time_and_what_ends_the_rival_is_told(tmp_path, monkeypatch):
    rivals_are_forks(monkeypatch)
    how = {"batch_size": 64, "workers": 0, "row_nbytes": 4, "seconds": 0.3}
    path = write_datasets(tmp_path / "a.h5", x=np.zeros(100, "f4"))
    monkeypatch.setattr(NaiveDataset, "__getitem__", lambda *_: time.sleep(600))
    assert measure_naive([path], ["x"], **how).stopped
    with pytest.raises(ZeroDivisionError):  # of what is told how far it is
        measure_naive([path], ["x"], progress=lambda rows: 1 // rows, **how)
    monkeypatch.setattr(NaiveDataset, "__getitem__", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RivalError, match="its process ended with status -9"):
        measure_naive([path], ["x"], **how | {"seconds": 60})
