"""The file under the loader fails, is slow, or changes while it is read."""

import errno
import os
import shutil
import threading

import h5py
import numpy as np
import pytest
import torch
from support.inner import read_in_python, stream_all
from support.making import write_datasets
from support.sample_files import open_descriptors, reader_threads

from h5stream import H5Dataset, H5StreamLoader
from h5stream.errors import SourceChangedError, SourceError


class FailingReads:
    """Lets chosen calls of ``preadv`` fail, and records the file behind each descriptor."""

    def __init__(self, monkeypatch, *numbers, error=errno.EIO):
        self._numbers, self._error, self._real = set(numbers), error, os.preadv
        self._lock, self.calls, self.failed = threading.Lock(), 0, 0
        monkeypatch.setattr(os, "preadv", self)
        read_in_python(monkeypatch)

    def __call__(self, fd, buffers, offset):
        with self._lock:
            number, self.calls = self.calls, self.calls + 1
            fails = number in self._numbers
            self.failed += fails
        if fails:
            raise OSError(self._error, os.strerror(self._error))
        return self._real(fd, buffers, offset)


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_a_read_that_fails_once_is_done_again_on_a_fresh_descriptor(sample, monkeypatch, caplog, error, num_workers):
    before = open_descriptors()
    loader = H5StreamLoader(sample.path, 50, True, num_workers=num_workers, window=200, keep="never")
    list(loader)
    caplog.clear()  # of what is said once in a process
    reads = FailingReads(monkeypatch, 2, error=error)
    rows = [row for batch in loader for row in batch["y"].tolist()]
    assert sorted(rows) == list(range(1000))
    assert reads.failed == 1
    loader.close()  # the next epoch, which is read ahead, may have opened the file
    assert open_descriptors() == before
    (record,) = caplog.records
    assert os.strerror(error) in record.getMessage()
    assert sample.path in record.getMessage()


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_read_that_fails_twice_is_an_error_that_names_it(sample, monkeypatch, num_workers):
    loader = H5StreamLoader(sample.path, 50, num_workers=num_workers, window=200)
    FailingReads(monkeypatch, *range(3, 1000))
    with pytest.raises(SourceError, match=r"reading \d+ bytes at byte \d+ of .*sample.h5.* failed: Input/output") as e:
        list(loader)
    assert "once more" in str(e.value)
    assert isinstance(e.value.__cause__, OSError)
    assert e.value.file == sample.path
    assert reader_threads() == []


class BrokenHandles:
    """Breaks, under libhdf5, so many of the files that h5py opens; reads then fail with what the system says."""

    def __init__(self, monkeypatch, broken, *, before_the_dataset=False):
        self._left, self._real, self._before = broken, h5py.File, before_the_dataset
        monkeypatch.setattr(h5py, "File", self._open)

    def _open(self, *args, **kwargs):
        file = self._real(*args, **kwargs)
        if self._left:
            self._left -= 1
            if not self._before:
                file["x"][:0]
            folder = os.open("/", os.O_RDONLY)
            os.dup2(folder, file.id.get_vfd_handle())  # EISDIR for every read
            os.close(folder)
        return file


@pytest.fixture
def sample_for_h5py(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    x = {"data": np.arange(400).reshape(100, 4), "chunks": (10, 4), "scaleoffset": 0}
    return write_datasets(tmp_path / "a.h5", x=x)


@pytest.mark.parametrize("before_the_dataset", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_read_of_h5py_that_fails_once_is_done_again_with_the_file_opened_afresh(
    sample_for_h5py, monkeypatch, caplog, num_workers, before_the_dataset
):
    before = open_descriptors()
    loader = H5StreamLoader(sample_for_h5py, 25, num_workers=num_workers, on_error="skip")
    BrokenHandles(monkeypatch, 1, before_the_dataset=before_the_dataset)
    assert torch.cat(list(loader))[:, 0].tolist() == list(range(0, 400, 4))
    assert {"Is a directory" in record.getMessage() for record in caplog.records} == {True}
    loader.close()
    assert open_descriptors() == before


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_read_of_h5py_that_fails_again_is_no_corrupt_chunk_that_may_be_skipped(
    sample_for_h5py, monkeypatch, num_workers
):
    loader = H5StreamLoader(sample_for_h5py, 25, num_workers=num_workers, on_error="skip")
    BrokenHandles(monkeypatch, 1000)
    with pytest.raises(SourceError, match=r"dataset 'x'.*Is a directory; then.*opened afresh: Is a directory") as e:
        list(loader)
    assert e.value.file == sample_for_h5py


def test_a_file_that_was_replaced_is_not_read_after_an_error(sample, monkeypatch, tmp_path):
    iterator = iter(H5StreamLoader(sample.path, 50, num_workers=0, window=100))
    next(iterator)
    shutil.copy(sample.path, tmp_path / "new.h5")
    os.replace(tmp_path / "new.h5", sample.path)
    FailingReads(monkeypatch, 0)
    with pytest.raises(SourceChangedError, match="another inode"):
        list(iterator)


def test_a_short_read_goes_on_where_it_ended(sample, monkeypatch):
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:7]], offset))
    assert H5Dataset(sample.path, "x")[:].numpy().tobytes() == sample.x.tobytes()


def test_a_slow_source_delays_and_changes_nothing(sample, monkeypatch):
    """Every read waits until the consumer has come to wait: nothing is ready, ever."""
    real, asked = os.preadv, threading.Semaphore(0)

    def slow(fd, buffers, offset):
        assert asked.acquire(timeout=60)
        return real(fd, buffers, offset)

    loader = H5StreamLoader(sample.path, 100, num_workers=2, window=100)
    monkeypatch.setattr(os, "preadv", slow)
    read_in_python(monkeypatch)
    iterator = iter(loader)
    rows = []
    for _ in range(10):
        asked.release(20)
        rows += next(iterator)["y"].tolist()
    assert rows == list(range(1000))
