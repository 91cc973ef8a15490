"""Samples as a dataset of Ray Data: those of the files, once each, whatever a sample is."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from support.forking import python_path
from support.making import sparse_group
from support.sample_files import plain

from h5stream import Bounds, Boxes, Field, H5Dataset, Objects, Sequences
from h5stream.errors import OptionError
from h5stream.ray import read_hdf5

ray = pytest.importorskip("ray", reason="needs ray[data]: pip install 'ray[data]'")
pytest.importorskip("ray.data", reason="needs ray[data]: pip install 'ray[data]'")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # starts a cluster of its own

HERE = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    variables = {"PYTHONPATH": python_path(HERE.parent, HERE), "OMP_NUM_THREADS": "1"}
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables}
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for name in "ab":
        with h5py.File(folder / f"{name}.h5", "w") as file:
            x = rng.normal(size=(1000, 3, 4)).astype("f4")
            file.create_dataset("x", data=x, chunks=(64, 3, 4), compression="gzip")
            file["n"], file["edges"] = np.arange(1000) + 1000 * (name == "b"), np.arange(0, 1001, 10)
            file["text"] = np.array([f"t{k} é" for k in range(1000)], dtype=object)
            file["table"] = np.zeros(1000, [("age", "i4"), ("w", "f4", (2,))])
            file.create_dataset("v", 100, h5py.vlen_dtype("i2"))
            for k in range(100):
                file["v"][k] = np.arange(k % 5)
                file[f"o/{k}/x"], file[f"o/{k}/y"] = np.full((3 + k % 2, 2), k), k
            file.create_dataset("volume", data=rng.integers(0, 99, (20, 24, 24)), chunks=(8, 8, 8), compression="lzf")
    return folder


KINDS = {
    "rows": {"fields": ["n", "x", "text", "table"]},
    "one field": {"fields": "n"},
    "sequences": {"fields": {"x": "x", "n": Field("n", take=[0, 3])}, "samples": Sequences(4, stride=2)},
    "objects": {"fields": {"x": Field("x", ragged="pad"), "y": "y"}, "samples": Objects("o/*")},
    "ragged": {"fields": {"x": Field("x", lookup=Bounds("edges")), "v": Field("v", ragged="packed")}},
    "boxes": {"fields": "volume", "samples": Boxes((5, 8, 8), at="grid", stride=(5, 4, 4))},
    "chosen": {"fields": ["n", "x"], "rows": np.arange(0, 2000, 7)},
}


def as_text(sample):
    """Give a sample with text where the file has strings."""
    if isinstance(sample, tuple):
        return tuple(map(as_text, sample))
    return sample.decode() if isinstance(sample, bytes) else sample


def flat(sample, names):
    """Give a sample of ours with the columns of Ray's."""
    if not isinstance(sample, dict):
        sample = dict(zip(names, sample if isinstance(sample, tuple) else (sample,), strict=True))
    found = {}
    for name, value in sample.items():
        found |= {f"{name}:{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_the_files_once_each(folder, kind):
    options = KINDS[kind]
    dataset = H5Dataset([folder / "a.h5", folder / "b.h5"], **options)
    names = [options["fields"]] if isinstance(options["fields"], str) else list(options["fields"])
    wanted = sorted(repr(plain(flat(as_text(dataset[k]), names))) for k in range(len(dataset)))
    there = read_hdf5([folder / "a.h5", folder / "b.h5"], **options, override_num_blocks=5)
    assert there.count() == len(dataset)
    assert sorted(repr(plain(dict(row))) for row in there.take_all()) == wanted


def test_each_chunk_is_read_by_one_task(folder):
    there = read_hdf5(folder / "a.h5", ["n", "x"], override_num_blocks=6).map_batches(
        lambda batch: {"chunk": np.unique(batch["n"] // 64)}, batch_size=None
    )
    assert sorted(row["chunk"] for row in there.take_all()) == list(range(16))


def test_it_reads_addresses_and_parts_of_a_split(folder):
    pytest.importorskip("obstore", reason="needs the extra 'remote'")
    from support.object_server import ObjectServer

    with ObjectServer(folder) as server:
        train, _ = H5Dataset(f"{server.url}/a.h5", "n").split(0.8)
        assert sorted(row["n"] for row in read_hdf5(train).take_all()) == sorted(train[:].tolist())


def test_what_no_column_holds_is_refused(folder, tmp_path):
    with h5py.File(tmp_path / "sparse.h5", "w") as file:
        sparse_group(file, "X", np.eye(3, 4, dtype="f4"))
    with pytest.raises(OptionError, match="ragged='dense'"):
        read_hdf5(tmp_path / "sparse.h5", Field("X", ragged="packed"))
    assert read_hdf5(tmp_path / "sparse.h5", Field("X", ragged="dense")).take(1)[0]["X"].tolist() == [1, 0, 0, 0]
    with pytest.raises(OptionError, match="credentials go by the environment"):
        read_hdf5(folder / "a.h5", "n", storage_options={"region": "here"})
