"""Rows that stay in memory once they are decoded: the same samples, each chunk decoded once, within the budget."""

import os

import h5py
import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from inner import stream_all
from sample_files import write_sample

from h5stream import Bounds, Field, H5Dataset, H5StreamLoader, Objects, Sequences
from h5stream.errors import CorruptChunkError, OptionError, SourceError

BUDGET = 64 << 20


@pytest.fixture(autouse=True)
def nothing_is_resident(monkeypatch):
    stream_all(monkeypatch)


def make(path, batch_size=48, **options):
    given = {"shuffle": True, "seed": 5, "window": 200, "memory_budget": BUDGET, "num_workers": 2, "fields": ["x", "y"]}
    return H5StreamLoader(path, batch_size, **{**given, **options})


def listed(value):
    if isinstance(value, torch.Tensor):
        return [value.dtype, value.shape, value.numpy().tobytes()]
    if isinstance(value, (list, tuple)):
        return [listed(each) for each in value]
    if isinstance(value, dict):
        return {key: listed(each) for key, each in value.items()}
    return [listed(each) for each in vars(value).values()] if hasattr(value, "__dict__") else value


def epochs(loader, count=3):
    return [[listed(batch) for batch in loader] for _ in range(count)]


def decoded(loader):
    """The bytes that each of three epochs decodes."""
    found = []
    for _ in range(3):
        list(loader)
        found.append(loader.stats().decoded_bytes)
    return found


@pytest.fixture
def zipped(tmp_path):
    """Chunked and compressed data of many kinds, so that all of it is decoded; rows do not divide into chunks."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:

        def add(name, values, chunks, **more):
            file.create_dataset(name, data=values, chunks=chunks, compression="gzip", shuffle=True, **more)

        add("x", rng.integers(0, 99, (1003, 6), "i4"), (32, 4))
        add("y", np.arange(1003), (50,))
        add("z", rng.random((1003, 3)).astype(">f4"), (100, 3))
        members = np.zeros(1003, np.dtype([("a", "i2"), ("b", "f8", (2,))]))
        members["a"], members["b"] = np.arange(1003), rng.random((1003, 2))
        add("members", members, (64,))
        add("text", np.array([b"%d" % k for k in range(1003)]), (77,))
        add("flat", np.arange(5000), (64,))
        file["edges"] = np.sort(rng.integers(0, 5001, 1004))
        add("which", rng.integers(0, 1003, 1003), (100,))
        file.create_dataset("never", (1003, 2), "f4", chunks=(40, 2), compression="gzip", fillvalue=7)
    return tmp_path / "a.h5"


KINDS = {
    "rows": {"fields": ["x", "y", "z"]},
    "members": {"fields": {"a": "members:a", "b": "members:b", "t": "text"}},
    "columns": {"fields": [Field("x", columns=[5, 0, 1]), "y"]},
    "fill value": {"fields": ["never", "x"]},
    "looked up": {"fields": {"x": Field("x", rows="which"), "y": "y"}},
    "packed": {"fields": {"f": Field("flat", rows=Bounds("edges"), ragged="packed"), "y": "y"}},
    "pad": {"fields": {"f": Field("flat", rows=Bounds("edges"), ragged="pad"), "y": "y"}},
    "sequences": {"fields": {"x": Field("x", steps=[0, 1, 5]), "y": "y"}, "samples": Sequences(8, stride=3)},
    "in file order": {"fields": ["x", "y"], "shuffle": False},
    "one by one": {
        "fields": ["x", "y"],
        "sampler": [5, 900, 5, 17] * 50,
        "shuffle": None,
        "seed": None,
        "window": "auto",
    },
    "in a process": {"fields": ["x", "y"], "isolation": "process"},
    "in this thread": {"fields": ["x", "y"], "num_workers": 0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_that_are_decoded_anew(zipped, kind):
    options = KINDS[kind]
    kept, fresh = make(zipped, **options), make(zipped, keep="never", **options)
    assert kept.window_size.kept_rows
    assert not fresh.window_size.kept_rows
    assert kept.window_size.window_rows == fresh.window_size.window_rows  # the order does not depend on it
    assert epochs(kept) == epochs(fresh)


@examples(40)
@given(st.data())
def test_any_part_of_the_rows_may_be_kept(tmp_path_factory, data):
    rows, chunk, batch = (data.draw(st.integers(1, most)) for most in (300, 80, 60))
    folder = tmp_path_factory.mktemp("part")
    with h5py.File(folder / "a.h5", "w") as file:
        x = np.arange(rows * 3, dtype="i8").reshape(rows, 3)
        file.create_dataset("x", data=x, chunks=(min(chunk, rows), data.draw(st.integers(1, 3))), compression="gzip")
    options = {"fields": "x", "window": data.draw(st.integers(1, rows)), "memory_budget": BUDGET}
    needed = make(folder / "a.h5", batch, keep="never", **options).window_size.needed_nbytes
    options["memory_budget"] = needed + data.draw(st.integers(0, rows * 24 + 200))
    kept = make(folder / "a.h5", batch, **options)
    assert kept.window_size.needed_nbytes <= options["memory_budget"]
    assert epochs(kept) == epochs(make(folder / "a.h5", batch, keep="never", **options))


def test_each_chunk_is_decoded_once(tmp_path):
    sample = write_sample(tmp_path, rows=4000)
    loader = make(sample.path, fields="x")
    assert decoded(loader) == [4000 * 16, 0, 0]
    assert loader.stats().memory_bytes == 4000 * 16  # as all of the newest epoch
    assert decoded(make(sample.path, fields="x", keep="never")) == [4000 * 16] * 3


def test_of_what_does_not_fit_a_part_is_kept(tmp_path):
    sample = write_sample(tmp_path, rows=20_000, columns=64)
    needed = make(sample.path, fields="x", keep="never").window_size.needed_nbytes
    part = make(sample.path, fields="x", memory_budget=needed + 10_000 * 256)
    first, second, third = decoded(part)
    assert first == 20_000 * 256
    assert second == third == (20_000 - 10_000 // 32 * 32) * 256


def test_a_smaller_automatic_window_leaves_room_for_all(tmp_path):
    sample = write_sample(tmp_path, rows=200_000, columns=64)
    options = {"fields": "x", "window": "auto", "batch_size": 1000, "memory_budget": 72 << 20}
    kept, fresh = make(sample.path, **options), make(sample.path, keep="never", **options)
    assert decoded(kept) == [200_000 * 256, 0, 0]
    assert fresh.window_size.window_rows // 4 <= kept.window_size.window_rows < fresh.window_size.window_rows
    assert kept.window_size.needed_nbytes <= options["memory_budget"]
    options["memory_budget"] = 60 << 20  # of which windows would have too little
    kept, fresh = make(sample.path, **options), make(sample.path, keep="never", **options)
    assert kept.window_size.window_rows == fresh.window_size.window_rows


def test_a_resumed_order_of_other_windows_keeps_what_then_fits(tmp_path):
    sample = write_sample(tmp_path, rows=4000)
    begun = make(sample.path, fields="x", window="auto", memory_budget="200KiB")
    next(iter(begun))
    resumed = make(sample.path, fields="x", window="auto")
    assert resumed.window_size.window_rows > begun.window_size.window_rows
    resumed.load_state_dict(begun.state_dict())
    list(resumed)
    list(resumed)
    assert decoded(resumed) == [0, 0, 0]


def test_objects_and_several_files_are_kept(tmp_path):
    rng = np.random.default_rng(1)
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for k in range(40):
                file.create_dataset(f"d/{k}", data=rng.random((5, 7)), chunks=(5, 7), compression="gzip")
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    options = {"fields": {"x": "."}, "samples": Objects("d/*"), "batch_size": 7}
    kept = make(paths, **options)
    assert epochs(kept) == epochs(make(paths, keep="never", **options))
    assert decoded(kept) == [0, 0, 0]


def test_a_changed_file_is_noticed_before_kept_rows_are_used(tmp_path):
    sample = write_sample(tmp_path)
    loader = make(sample.path)
    list(loader)
    os.utime(sample.path, (1, 1))
    with pytest.raises(SourceError, match="changed"):
        list(loader)


def test_rows_of_a_corrupt_chunk_are_left_out_in_every_epoch(tmp_path):
    sample = write_sample(tmp_path)
    with h5py.File(sample.path) as file:
        info = file["x"].id.get_chunk_info(3)
    with open(sample.path, "r+b") as raw:
        raw.seek(info.byte_offset + 10)
        raw.write(b"\xff" * 20)
    with pytest.raises(CorruptChunkError, match=r"chunk \(96, 0\)"):
        list(make(sample.path))
    loader = make(sample.path, on_error="skip")
    for _ in range(3):
        seen = np.sort(np.concatenate([y.numpy() for _, y in loader]))
        assert seen.tolist() == [row for row in range(1000) if not 96 <= row < 128]


def test_kept_rows_count_in_what_is_held_and_go_with_close(tmp_path):
    sample = write_sample(tmp_path)
    # One thread needs the same slots each time; of several, the faster take fewer.
    loader, fresh = (make(sample.path, keep=keep, num_workers=0) for keep in ("auto", "never"))
    for each in (loader, fresh):
        list(each)
    assert loader.held_nbytes - fresh.held_nbytes >= 1000 * 16
    loader.close()
    assert loader.held_nbytes == 0
    assert epochs(loader, 1) == epochs(fresh, 1)  # begins anew


def test_few_rows_of_a_file_are_not_kept(tmp_path):
    sample = write_sample(tmp_path)
    assert not make(H5Dataset(sample.path, ["x", "y"], rows=range(0, 1000, 3)), fields=None).window_size.kept_rows
    assert make(H5Dataset(sample.path, ["x", "y"], rows=range(900)), fields=None).window_size.kept_rows


def test_another_word_for_keep_is_refused(tmp_path):
    with pytest.raises(OptionError, match="keep= takes 'auto'"):
        make(write_sample(tmp_path).path, keep=True)
