"""Episodes of unlike lengths in chunks that h5py guessed, so that no two have chunks of one shape: beside h5py."""

import contextlib
import os
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.inner import around

from h5stream import Field, H5Dataset, Objects, Rows, Sequences, errors
from h5stream.storage.file import groups
from h5stream.storage.open import rows as plain_rows

COUNT = 24
NAMES = {"state": "obs/state", "reward": "reward", "done": "done"}
MADE = {
    "gzip": ("earliest", {"maxshape": True, "compression": "gzip", "shuffle": True}),
    "checksums": ("earliest", {"maxshape": True, "fletcher32": True}),
    "latest": ("latest", {}),
    "latest-growing": ("latest", {"maxshape": True}),
    "lzf": ("earliest", {"maxshape": True, "compression": "lzf"}),
}


@pytest.fixture(scope="module", params=MADE)
def made(request, tmp_path_factory):
    """Write the episodes; return their kind and their path."""
    (libver, options), rng = MADE[request.param], np.random.default_rng(0)
    path = tmp_path_factory.mktemp("episodes") / "a.h5"
    lengths = np.append(400, rng.choice(np.arange(4, 390), COUNT - 1, replace=False)).tolist()
    with h5py.File(path, "w", libver=libver) as file:
        for k, rows in enumerate(lengths):
            held = {"obs/state": np.round(rng.random((rows, 17)) * 9), "reward": rng.integers(0, 9, rows).astype(">f4")}
            for name, values in {**held, "done": rng.random(rows) < 0.5}.items():
                grows = {"maxshape": (None, *values.shape[1:])} if options.get("maxshape") else {}
                stored = {name: value for name, value in options.items() if name != "maxshape"}
                file.create_dataset(f"episode_{k}/{name}", data=values, chunks=True, **grows, **stored)
        shapes = {file[f"episode_{k}/obs/state"].chunks for k in range(COUNT)}
    assert len(shapes) > COUNT // 2
    os.utime(path, (1e9, 1e9))
    return request.param, path


@pytest.fixture
def described(monkeypatch):
    """Return the datasets that are opened with every check, by name."""
    seen = []
    around(monkeypatch, plain_rows, "part_of", before=lambda opened, place, name, *_, **__: seen.append(name))
    return seen


def in_h5py(path):
    """Return by field what each episode has, in h5py's order."""
    with h5py.File(path) as file:
        return {key: [file[k][name][()] for k in file] for key, name in NAMES.items()}


def windows(every, length):
    return np.concatenate([np.lib.stride_tricks.sliding_window_view(one, length, axis=0) for one in every])


def test_as_objects_and_again_from_the_catalogue(made, described, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(groups, "MANY", 10)
    kind, path = made
    fields = {key: Field(name, ragged="list") for key, name in NAMES.items()}
    expected = in_h5py(path)
    for opening in range(2):
        described.clear()
        dataset = H5Dataset(path, fields, samples=Objects("episode_*"))
        assert kind == "lzf" or len(described) <= 3 * len(NAMES)
        batch = dataset[:]
        for key, every in expected.items():
            for ours, theirs in zip(batch[key], every, strict=True):
                assert np.array_equal(ours, theirs), opening


@pytest.mark.parametrize("samples", [Sequences(4, of="episode_*"), Rows(of="episode_*")], ids=["sequences", "rows"])
def test_as_segments(made, described, samples):
    kind, path = made
    dataset = H5Dataset(path, NAMES, samples=samples)
    assert kind in ("lzf", "latest-growing") or len(described) <= 3 * len(NAMES)
    batch, length = dataset[:], 4 if isinstance(samples, Sequences) else 1
    for key, every in in_h5py(path).items():
        expected = np.moveaxis(windows(every, length), -1, 1)
        assert np.array_equal(batch[key], expected if length > 1 else expected[:, 0]), key


FRAMES = 120
"""Chunks of an episode, more or less: nodes of a tree have at most 64, so that some trees have a third level."""


@pytest.fixture(scope="module", params=[{}, {"compression": "gzip"}], ids=["none", "gzip"])
def written(request, tmp_path_factory):
    """Episodes with a chunk for each half of a frame, that were written in any order."""
    path, rng = tmp_path_factory.mktemp("frames") / "a.h5", np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for k in range(12):
            rows = 2400 if k == 5 else FRAMES + 7 * k
            made = file.create_dataset(f"{k:02}/x", (rows, 3), "i4", chunks=(1, 2), maxshape=(None, 3), **request.param)
            for row in rng.permutation(rows) if k % 2 else range(rows):
                made[row] = row, k, -row
    return path


@pytest.fixture
def frames(written, tmp_path):
    return Path(shutil.copy(written, tmp_path))


def test_trees_of_any_depth(frames, described):
    dataset = H5Dataset(frames, "x", samples=Sequences(2, of="*"))
    assert len(described) == 1
    with h5py.File(frames) as file:
        expected = np.moveaxis(windows([one["x"][()] for one in file.values()], 2), -1, 1)
    assert np.array_equal(dataset[:], expected)


@pytest.mark.parametrize("what", ["level", "first key", "last key", "sign", "child", "itself"])
def test_a_tree_that_contradicts_itself_is_left_to_h5py(frames, described, what):
    """Of a node below the root of the last episode's, what it says itself or what its parent says of it."""
    data = bytearray(frames.read_bytes())
    *_, root = (found.start() for found in re.finditer(b"TREE\1\1", data))
    key, head = 8 * 4, 24  # of a chunk of two axes: size, mask, its first element; then the address of what is below
    child = int.from_bytes(data[root + head + key :][:8], "little")
    last = head + int.from_bytes(data[child + 6 :][:2], "little") * (key + 8)
    second = root + head + 2 * key + 8
    if what == "level":
        data[child + 5] ^= 2
    elif what == "sign":
        data[child] ^= 1
    elif what in ("first key", "last key"):
        data[child + (head if what == "first key" else last) + 8] += 1
    else:
        data[second : second + 8] = (child if what == "child" else root).to_bytes(8, "little")
    frames.write_bytes(data)
    with contextlib.suppress(errors.H5StreamError):
        batch = H5Dataset(frames, "x", samples=Sequences(2, of="*"))[:]
        with h5py.File(frames) as file:
            found = [one["x"][()] for one in file.values()]
        assert np.array_equal(batch, np.moveaxis(windows(found, 2), -1, 1))
    assert described == ["00/x", "11/x"]
