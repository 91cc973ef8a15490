"""Data that need no decoding: h5py's bytes for every form, and no bytes read but those that are wanted."""

import h5py
import numpy as np
import pytest
import torch
from support.amounts import crossed
from support.inner import stream_all
from support.making import make_file, write_datasets
from support.recording import asked_for, record_reads

from h5stream import Field, H5Dataset, H5StreamLoader, SampleNumber, Sequences
from h5stream.engine.plan.tasks import Placement
from h5stream.storage.source.one_file import LOCAL_GAP_NBYTES


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch):
    stream_all(monkeypatch)


def write(path, rows=4000, columns=20, chunks=None, **more):
    x = np.arange(rows * columns, dtype="f4").reshape(rows, columns)
    return write_datasets(path, x={"data": x, "chunks": chunks}, **more), x


@pytest.mark.parametrize(
    ("chunks", "options"),
    crossed(
        (None, (3000, 5000), (700, 5000)), ({"shuffle": True}, {"shuffle": False}, {"shuffle": True, "window": "all"})
    ),
    ids=str,
)
def test_an_epoch_of_few_columns_reads_no_others(tmp_path, monkeypatch, chunks, options):
    path, x = write(tmp_path / "a.h5", rows=3000, columns=5000, chunks=chunks)  # 200 of each 20,000 bytes
    columns = slice(1000, 1050)
    reads = record_reads(monkeypatch)
    with H5StreamLoader(path, 256, fields=Field("x", columns=columns), num_workers=0, **options) as loader:
        reads.clear()
        batches = torch.cat(list(loader)).numpy()
    order = np.argsort(batches[:, 0])
    assert (batches[order] == x[:, columns]).all()
    assert sum(reads) == x[:, columns].nbytes


def test_columns_that_lie_far_apart_are_read_apart(tmp_path, monkeypatch):
    path, x = write(tmp_path / "a.h5", rows=100, columns=10_000)
    columns = [9_000, 0, 1, 5_000]
    reads = record_reads(monkeypatch)
    dataset = H5Dataset(path, Field("x", columns=columns))
    reads.clear()
    assert (dataset[10:40].numpy() == x[10:40][:, columns]).all()
    assert sum(reads) == 30 * 16
    assert len(reads) == 30 * 3
    reads.clear()
    few = dataset[98:]
    assert (sum(reads), len(reads)) == (2 * 16, 2 * 3)
    assert (few.numpy() == x[98:][:, columns]).all()


def test_gaps_that_cost_less_than_a_read_are_read_along(tmp_path, monkeypatch):
    path, x = write(tmp_path / "a.h5", rows=1000)
    reads = record_reads(monkeypatch)
    dataset = H5Dataset(path, Field("x", columns=slice(0, 2)))
    reads.clear()
    near, far = np.arange(0, 100, 2), np.array([0, 200, 400])
    assert (dataset[near].numpy() == x[near, :2]).all()
    assert (len(reads), sum(reads)) == (1, 98 * 80 + 8)
    reads.clear()
    assert (dataset[far].numpy() == x[far, :2]).all()
    assert (len(reads), sum(reads)) == (3, 3 * 8)


def test_a_member_of_large_elements_is_read_without_the_others(tmp_path, monkeypatch):
    values = np.zeros(50, [("image", "u1", (9000,)), ("label", "i8")])
    values["label"] = np.arange(50)
    path = str(tmp_path / "a.h5")
    write_datasets(path, x=values)
    reads = record_reads(monkeypatch)
    dataset = H5Dataset(path, "x:label")
    reads.clear()
    assert dataset[:].tolist() == list(range(50))
    assert (sum(reads), len(reads)) == (50 * 8, 50)
    reads.clear()
    assert dataset[np.arange(0, 50, 2)].tolist() == list(range(0, 50, 2))
    assert sum(reads) == 25 * 8


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler", "subset"])
def test_rows_of_a_large_chunk_are_read_alone(tmp_path, monkeypatch, kind):
    """24 MiB of rows of 6 KiB in one chunk, of which every 16th is wanted."""
    path, x = write(tmp_path / "a.h5", rows=4096, columns=1536, chunks=(4096, 1536))
    wanted = np.random.default_rng(0).permutation(4096)[:256]
    reads = record_reads(monkeypatch)
    options = {
        "sampler": {"sampler": wanted.tolist(), "batch_size": 32},
        "batch_sampler": {"batch_sampler": wanted.reshape(-1, 32).tolist(), "batch_size": 1},
        "subset": {"shuffle": True, "batch_size": 32},
    }[kind]
    source = H5Dataset(path, "x", rows=wanted) if kind == "subset" else path
    with H5StreamLoader(source, fields=None if kind == "subset" else "x", num_workers=0, **options) as loader:
        reads.clear()
        found = torch.cat(list(loader)).numpy()
    assert (found[np.argsort(found[:, 0])] == x[np.sort(wanted)]).all()
    assert sum(reads) <= 1.01 * x[wanted].nbytes + 256 * LOCAL_GAP_NBYTES // 8


def test_single_rows_read_their_own_bytes_only(tmp_path):
    path, x = write(tmp_path / "a.h5", rows=2000, columns=30, chunks=(900, 30), y=np.arange(2000))
    dataset = H5Dataset(path, {"x": Field("x", columns=slice(3, 5)), "y": "y"})
    dataset[1]  # opens what there is to open
    begin = asked_for()[1]
    sample = dataset[1234]
    assert asked_for()[0][0] - begin[0] == 2 * 4 + 8
    assert sample["x"].tolist() == x[1234, 3:5].tolist()
    assert (int(sample["y"]), sample["y"].shape) == (1234, ())
    subset = dataset.subset(np.arange(1000, 2000))
    assert int(subset[7]["y"]) == int(subset[-993]["y"]) == 1007
    with pytest.raises(IndexError):
        dataset[2000]


@pytest.mark.parametrize(
    ("lie", "shape"),
    crossed(
        ("contiguous", "in a row", "backwards", "every other"), ((50, 30_000), (24, 65_536), (16, 100_000), (250, 700))
    ),
)
def test_a_stretch_is_what_h5py_reads_however_its_chunks_lie_and_however_long_it_is(tmp_path, lie, shape):
    rows, width = shape
    values, path = np.random.default_rng(0).integers(1, 256, (rows, width), dtype="u1"), tmp_path / "a.h5"
    chunks = range(0, rows, 7)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", values.shape, "u1", chunks=None if lie == "contiguous" else (7, width))
        written = {"contiguous": [0], "in a row": chunks, "backwards": chunks[::-1], "every other": chunks[::2]}[lie]
        for first in written:
            x[first : None if lie == "contiguous" else first + 7] = values[first:][: rows if len(written) == 1 else 7]
        values = x[...]
    for length in (2, rows // 2):
        fields = {"x": "x", "first": SampleNumber()}
        with H5StreamLoader(path, 4, fields=fields, samples=Sequences(length), shuffle=True) as loader:
            for batch in loader:
                for stretch, first in zip(batch["x"].numpy(), batch["first"].tolist(), strict=True):
                    np.testing.assert_array_equal(stretch, values[first : first + length])
    assert (H5Dataset(path, "x")[rows - 1].numpy() == values[-1]).all()
    assert (H5Dataset(path, "x")[3 : rows - 1].numpy() == values[3:-1]).all()


@pytest.mark.parametrize("chunks", [None, (7, 4096)])
def test_a_stretch_is_read_at_once_where_its_chunks_lie_one_behind_the_other(tmp_path, chunks, monkeypatch):
    make_file(tmp_path / "a.h5", "x", None, data=np.arange(400 * 4096, dtype="u4").reshape(400, -1), chunks=chunks)
    with H5StreamLoader(
        str(tmp_path / "a.h5"), 8, fields="x", samples=Sequences(40, stride=20), num_workers=0, shuffle=True
    ) as loader:
        seen = record_reads(monkeypatch)
        batches = [*loader]
    assert len(seen) == len(loader.dataset) == sum(len(batch) for batch in batches)


def test_spans_of_a_chunk_with_more_rows_than_their_numbers_can_count_are_left_whole():
    """A chunk may have 2^31 rows, and more, of a dataset that has few."""
    ints = [np.array(each, np.int32) for each in ([7, 90], [0, 0], [0, 5], [5, 9])]
    spans = Placement(**dict(zip(("rows", "batch", "within", "counts"), ints, strict=True)))
    assert all(spans.cut_every(rows) is spans for rows in (2**31 - 1, 2**31, 2**40))
