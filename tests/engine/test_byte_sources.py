"""Bytes from elsewhere than a local file: the same rows, errors where they belong."""

from dataclasses import dataclass, replace

import h5py
import numpy as np
import pytest
from inner import sources_of, stream_all

from h5stream import Field, H5Dataset, H5StreamLoader
from h5stream.engine.tasks import TASK_NBYTES
from h5stream.errors import SourceError, TruncatedFileError
from h5stream.storage.source import FileIdentity

ROWS = 3000


@dataclass(frozen=True)
class MemoryIdentity:
    """A file whose bytes are held in memory, as those of another storage would be fetched from there."""

    path: str
    size: int
    gap_nbytes: int = 0
    fails_at: int = -1

    def check_unchanged(self):
        pass

    def open(self):
        return MemoryBytes(self)


class MemoryBytes:
    """The bytes of such a file."""

    has_descriptor = False

    def __init__(self, identity):
        self.identity, self.gap_nbytes = identity, identity.gap_nbytes
        self.asked = []
        with open(identity.path, "rb") as file:
            self.content = file.read()

    def read_many(self, offsets, targets):
        for offset, target in zip(offsets, targets, strict=True):
            self.asked.append((offset, target.nbytes))
            if offset <= self.identity.fails_at < offset + target.nbytes:
                raise SourceError(f"{self.identity.path!r}: the storage does not answer", file=self.identity.path)
            found = self.content[offset : offset + target.nbytes]
            if len(found) < target.nbytes:
                raise TruncatedFileError(f"{self.identity.path!r} ends early", file=self.identity.path)
            target[:] = found

    def descriptor(self):
        return None

    def close(self):
        pass


def elsewhere(dataset, **options):
    """Give the dataset with its files' bytes in memory."""
    files = tuple(MemoryIdentity(each.path, each.size, **options) for each in dataset.layout.files)
    return dataset.over(replace(dataset.layout, files=files))


@pytest.fixture(autouse=True)
def all_is_streamed(monkeypatch):
    stream_all(monkeypatch)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("sources") / "a.h5"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        x = rng.integers(0, 99, (ROWS, 24)).astype("f4")
        file.create_dataset("gzip", data=x, chunks=(64, 24), compression="gzip", shuffle=True)
        file.create_dataset("large", data=np.repeat(x, 20, axis=1), chunks=(100, 480), compression="lzf")
        file.create_dataset("side", data=x, chunks=(1000, 12), compression="gzip")
        file.create_dataset("plain", data=x, chunks=(70, 9))
        file["contiguous"] = x.astype(">f8")
        file.create_dataset("sparse", (ROWS, 3), "i2", chunks=(50, 2), fillvalue=-7)
        file["sparse"][120:130] = 1
        file["pair"] = np.zeros(ROWS, dtype=[("a", "i4"), ("b", "<f4")])
        file["row"] = np.arange(ROWS)
    return str(path)


FIELDS = ["gzip", "large", "side", "plain", "contiguous", "sparse", "pair:b", "row"]


def epoch(dataset, threads, **options):
    with H5StreamLoader(dataset, 128, shuffle=True, seed=1, window=600, num_workers=threads, **options) as loader:
        return list(loader)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_batches_are_those_of_the_local_file(path, threads):
    dataset = H5Dataset(path, FIELDS)
    expected = epoch(dataset, threads)
    found = epoch(elsewhere(dataset), threads)
    for ours, local in zip(found, expected, strict=True):
        for a, b in zip(ours, local, strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("gap_nbytes", [0, 100, 1 << 20])
@pytest.mark.parametrize("field", [*FIELDS, Field("contiguous", columns=slice(2, 9)), Field("plain", columns=[20, 3])])
def test_rows_and_slices_are_those_of_the_local_file(path, field, gap_nbytes):
    local = H5Dataset(path, field)
    ours = elsewhere(local, gap_nbytes=gap_nbytes)
    for rows in (7, slice(60, 400), [5, 1, 2999, 131, 131], slice(0, ROWS, 7)):
        assert ours[rows].numpy().tobytes() == local[rows].numpy().tobytes()


@pytest.mark.parametrize("field", ["gzip", "contiguous"])
def test_how_much_is_read_along_is_the_sources_to_say(path, field):
    reads = []
    for gap_nbytes in (0, 1 << 20):
        dataset = elsewhere(H5Dataset(path, field), gap_nbytes=gap_nbytes)
        dataset[[0, 300, 600, 900]]
        (source,) = sources_of(dataset)
        reads.append(len(source.asked))
    assert reads == [4, 1]


def test_an_error_of_the_source_arrives_at_the_batch_that_needed_the_bytes(path):
    dataset = H5Dataset(path, "large")
    index = dataset.layout.datasets[0][0].index
    failing = elsewhere(dataset, fails_at=int(index.offset[20]) + 1)
    loader = H5StreamLoader(failing, 50, num_workers=2, window=100)
    taken = []
    with pytest.raises(SourceError, match="does not answer"):
        taken.extend(loader)
    assert len(taken) == 40


def test_a_local_file_is_one_of_its_kind(path):
    source = FileIdentity.of(path).open()
    assert source.has_descriptor
    assert 0 < source.gap_nbytes < TASK_NBYTES
    targets = [bytearray(8), bytearray(4)]
    source.read_many((0, 1), [memoryview(target) for target in targets])
    assert targets == [b"\x89HDF\r\n\x1a\n", b"HDF\r"]
    source.close()
