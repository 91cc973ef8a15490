"""Rows that stay in memory once they are decoded: the same samples, each chunk decoded once, within the budget."""

import time
from dataclasses import fields, replace

import h5py
import numpy as np
import pytest
from support.inner import stream_all
from support.making import corrupt_chunk, write_datasets
from support.sample_files import eventually, plain, write_sample

from h5stream import Field, H5Dataset, H5StreamLoader
from h5stream.engine.plan import kept
from h5stream.errors import CorruptChunkError
from h5stream.storage.layout.access import ThroughH5py

BUDGET = 64 << 20


@pytest.fixture(autouse=True)
def nothing_is_resident(monkeypatch):
    stream_all(monkeypatch)


def make(path, batch_size=48, **options):
    given = {"shuffle": True, "seed": 5, "window": 200, "memory_budget": BUDGET, "num_workers": 2, "fields": ["x", "y"]}
    return H5StreamLoader(path, batch_size, **{**given, **options})


def epochs(loader, count=3):
    return [[plain(batch) for batch in loader] for _ in range(count)]


def decoded(loader):
    """The bytes that each of three epochs decodes."""
    found = []
    for _ in range(3):
        list(loader)
        found.append(loader.stats().decoded_bytes)
    return found


def test_each_chunk_is_decoded_once(tmp_path):
    sample = write_sample(tmp_path, rows=4000)
    loader = make(sample.path, fields="x")
    assert decoded(loader) == [4000 * 16, 0, 0]
    assert loader.stats().memory_bytes == 4000 * 16  # as all of the newest epoch
    assert decoded(make(sample.path, fields="x", keep="never")) == [4000 * 16] * 3


def test_what_stays_is_decoded_while_a_slow_loop_holds_a_batch(tmp_path):
    sample = write_sample(tmp_path, rows=200_000, columns=64)
    loader = make(sample.path, fields="x", window=40_000, memory_budget=128 << 20)
    batches = iter(loader)
    next(batches)
    eventually(lambda: loader.stats().decoded_bytes == 200_000 * 256)  # of five windows, one of which was asked for
    assert loader.window_size.max_open_batches < len(loader) // 2
    assert len(list(batches)) == len(loader) - 1
    assert loader.stats().decoded_bytes == 200_000 * 256


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_corrupt_chunk_that_is_decoded_ahead_fails_the_batch_that_needs_it(tmp_path, workers):
    sample = write_sample(tmp_path, rows=4000)
    corrupt_chunk(sample.path, 100)
    options = {"fields": "x", "window": 400, "num_workers": workers}
    found = {}
    for keep in ("auto", "never"):
        loader, found[keep] = make(sample.path, keep=keep, **options), []
        batches = iter(loader)
        with pytest.raises(CorruptChunkError, match=r"chunk \(3200, 0\)"):
            found[keep].extend(plain(batch) for batch in batches if time.sleep(0.005) is None)
    assert 0 < len(found["auto"]) < 83
    shared = min(map(len, found.values()))  # a few before it may be lost, with either
    assert found["auto"][:shared] == found["never"][:shared]


def test_of_what_does_not_fit_a_part_is_kept(tmp_path):
    sample = write_sample(tmp_path, rows=20_000, columns=64)
    needed = make(sample.path, fields="x", keep="never").window_size.needed_nbytes
    part = make(sample.path, fields="x", memory_budget=needed + 10_000 * 256)
    first, second, third = decoded(part)
    assert first == 20_000 * 256
    assert second == third == (20_000 - 10_000 // 32 * 32) * 256


def test_a_smaller_automatic_window_leaves_room_for_all_that_is_decoded(tmp_path):
    """Where something is not decoded, and so read for each window, all of one is in memory beside what stays there."""
    with h5py.File(write_sample(tmp_path, rows=200_000, columns=64, compression="lzf").path, "r+") as file:
        file.create_dataset("plain", data=np.ones((200_000, 2), "f4"), chunks=(32, 2))
        path = file.filename
    options = {"fields": ["x", "plain"], "window": "auto", "batch_size": 1000, "memory_budget": 72 << 20}
    kept, fresh = make(path, **options), make(path, keep="never", **options)
    assert [nbytes - 200_000 * 8 for nbytes in decoded(kept)] == [200_000 * 256, 0, 0]
    assert fresh.window_size.window_rows // 4 <= kept.window_size.window_rows < fresh.window_size.window_rows
    assert kept.window_size.needed_nbytes <= options["memory_budget"]
    options["memory_budget"] = 60 << 20  # of which windows would have too little
    kept, fresh = make(path, **options), make(path, keep="never", **options)
    assert kept.window_size.window_rows == fresh.window_size.window_rows


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


def test_loaders_of_the_same_fields_share_what_is_kept(tmp_path):
    sample = write_sample(tmp_path, rows=4000)
    train, val = H5Dataset(sample.path, "x").split(0.9, seed=1)
    again = H5Dataset(sample.path, "x", rows=range(10))
    loader = make(train, fields=None)
    list(loader)
    for other in (val, again):
        one, fresh = make(other, fields=None, seed=1), make(other, fields=None, seed=1, keep="never")
        assert epochs(one, 1) == epochs(fresh, 1)
        assert (one.stats().decoded_bytes, fresh.stats().decoded_bytes > 0) == (0, True)
    wider = make(H5Dataset(sample.path, ["x", "y"]), fields=None)
    list(wider)
    assert wider.stats().decoded_bytes > 0
    for each in (loader, one):
        each.close()
    assert decoded(make(val, fields=None))[0] > 0  # no loader has it any more


def matrix(path, dense, genes):
    """Write a sparse matrix of chunks whose columns have names."""
    rows, columns = dense.nonzero()
    text = h5py.string_dtype()
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": dense.shape})
        group.create_dataset("data", data=dense[rows, columns], chunks=(500,), compression="gzip")
        group.create_dataset("indices", data=columns.astype("i4"), chunks=(500,), compression="gzip")
        group["indptr"] = np.append(0, np.cumsum((dense != 0).sum(1)))
        names = file.create_group("var")
        names.attrs.update({"_index": "_index", "encoding-type": "dataframe", "encoding-version": "0.2.0"})
        names.attrs["column-order"] = np.array([], dtype=text)
        names["_index"] = np.array(genes, dtype=text)
    return str(path)


@pytest.mark.parametrize("form", ["dense", "packed"])
def test_loaders_that_number_columns_otherwise_share_nothing_that_is_kept(tmp_path, form):
    dense, genes = ((np.arange(300)[:, None] + np.arange(50)) % 3).astype("f4"), [f"g{k}" for k in range(50)]
    paths = [matrix(tmp_path / "a.h5", dense, genes), matrix(tmp_path / "b.h5", dense[:, ::-1], genes[::-1])]

    def sums(columns, keep="auto"):
        options = {"ragged": form, "columns": columns} if form == "dense" else {"ragged": form}
        source = paths if form == "dense" else paths[0]
        loader = make(source, 100, shuffle=False, fields=Field("X", **options), keep=keep)
        return loader, [batch.sum() if form == "dense" else batch.values[1].sum() for batch in loader]

    few, _ = sums(genes[:10])
    many, mixed = sums(genes[::-1])
    assert mixed == sums(genes[::-1], keep="never")[1]
    assert mixed == sums(genes[::-1])[1]
    if form == "dense":
        dataset = H5Dataset(paths, Field("X", ragged="dense", columns=genes))
        assert dataset.statistics()["X"].mean == pytest.approx(dense.mean())
    few.close(), many.close()


OTHER = {int: 3, str: "other", tuple: (7,), np.ndarray: np.arange(3), type(None): np.arange(3)}
"""Another value of the type of a part's attribute."""


def test_each_thing_that_decides_the_bytes_of_rows_decides_what_is_shared(tmp_path):
    layout = H5Dataset(write_sample(tmp_path).path, "x").layout
    (part,) = layout.datasets[0]

    def key(changed):
        return kept._named(replace(layout, datasets=((changed,),)))

    assert key(part) == key(replace(part))
    for one in fields(part):
        if one.name not in kept.FROM_THE_FILE and one.name != "targets":
            value = getattr(part, one.name)
            assert key(replace(part, **{one.name: OTHER[type(value)]})) != key(part), one.name
    (target,) = part.targets
    for one in fields(target):
        if one.name not in {*kept.FROM_THE_FILE, "field"}:
            value = 5 if one.name == "leaf" else OTHER[type(getattr(target, one.name))]
            other = replace(target, **{one.name: value})
            assert key(replace(part, targets=(other,))) != key(part), one.name
    through_h5py = replace(part, via=ThroughH5py(reason="virtual"))
    assert key(through_h5py) != key(part)


def test_a_state_of_other_windows_keeps_no_rows_that_its_budget_has_no_room_for(tmp_path):
    x = {"data": np.arange(20_000, dtype="f4")[:, None].repeat(256, 1), "chunks": (64, 256), "compression": "lzf"}
    path = write_datasets(tmp_path / "a.h5", x=x)
    options = {"fields": "x", "window": "auto", "num_workers": 1}
    with make(path, 200, memory_budget=2 << 30, **options) as wide:
        state = wide.state_dict()
    with make(path, 200, memory_budget=28 << 20, **options) as narrow:
        narrow.load_state_dict(state)
        for _ in range(2):
            assert sum(len(x) for x in narrow) == 20_000
        assert narrow.window_size.kept_rows == ()
        assert narrow.held_nbytes <= narrow.window_size.needed_nbytes


def test_a_larger_budget_mixes_no_less_for_the_sake_of_rows_that_stay(tmp_path):
    x = {"data": np.arange(20_000, dtype="f4")[:, None].repeat(256, 1), "chunks": (64, 256), "compression": "lzf"}
    path = write_datasets(tmp_path / "a.h5", x=x)
    windows = []
    for mib in range(18, 34, 2):
        with make(path, 200, memory_budget=mib << 20, fields="x", window="auto", num_workers=1) as loader:
            windows.append(loader.window_size.window_rows)
    assert windows == sorted(windows)
