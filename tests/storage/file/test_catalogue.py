"""The catalogue of a file's objects that is kept from one opening to the next."""

import os
import sys
import time
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.sample_files import settle

from h5stream import H5Dataset, Objects
from h5stream.cli.app import main
from h5stream.storage.file import catalogue, groups

FIELDS = {"x": "x", "y": "y", "mark": "@mark", "name": "@name", "code": "code"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(groups, "MANY", 20)
    monkeypatch.setattr("h5stream.storage.file.groups.CHECKED_EVERY", 10)
    return tmp_path / "cache" / "h5stream" / "catalogue"


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.h5")


def write(path, add=0, count=40):
    with h5py.File(path, "w") as file:
        for k in range(count):
            file[f"{k:02d}/x"], file[f"{k:02d}/code"] = np.arange(3) + k + add, k + add
            file[f"{k:02d}"].create_dataset("y", data=np.arange(6) * k + add, chunks=(2,), compression="gzip")
            file[f"{k:02d}"].attrs["mark"], file[f"{k:02d}"].attrs["name"] = [k, add], f"é{k}"
        file["other/x"] = 1
    return settle(path)


def check(path, add=0, count=40):
    dataset = H5Dataset(path, FIELDS, samples=Objects("[0-9]*"))
    batch = dataset[:]
    assert batch["x"].tolist() == [[k + add, k + add + 1, k + add + 2] for k in range(count)]
    assert batch["y"].tolist() == [[j * k + add for j in range(6)] for k in range(count)]
    assert batch["mark"].tolist() == [[k, add] for k in range(count)]
    assert batch["code"].tolist() == [k + add for k in range(count)]
    assert batch["name"] == [f"é{k}" for k in range(count)]


def test_what_was_found_is_kept_for_the_next_opening(folder, path):
    check(path)
    (kept,) = catalogue.kept_of(path)
    assert (kept.objects, kept.asked, kept.is_current, kept.of) == (40, 0, True, "[0-9]*")
    before = Path(kept.path).stat().st_ino
    check(path)
    assert Path(kept.path).stat().st_ino == before, "made anew"
    listed = H5Dataset(path, "x", samples=Objects([f"{k:02d}" for k in reversed(range(30))]))
    assert listed[:][:, 0].tolist() == [*reversed(range(30))]
    assert {one.objects for one in catalogue.kept_of(path)} == {30, 40}
    assert not [one for one in folder.iterdir() if one.suffix == ".new"]
    assert (catalogue.forget(path), catalogue.kept_of(path)) == (2, [])


@pytest.mark.usefixtures("folder")
def test_another_file_at_the_path_has_a_catalogue_of_its_own_once_it_was_not_just_written(path):
    check(path)
    write(path, add=7)
    for written_s, is_kept in ((time.time(), False), (1.1e9, True)):
        os.utime(path, (written_s, written_s))
        assert not catalogue.kept_of(path)[0].is_current
        check(path, add=7)
        assert catalogue.kept_of(path)[0].is_current == is_kept


@pytest.mark.parametrize("flips", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_damaged_catalogues_are_made_anew(folder, path, flips):
    check(path)
    (archive,) = folder.iterdir()
    sound, rng = archive.read_bytes(), np.random.default_rng(0)
    damaged = [b"", sound[:100], sound[: len(sound) // 2], sound + b"x" * 70_000]
    for _ in range(flips):
        bytes_of = bytearray(sound)
        bytes_of[rng.integers(len(sound))] ^= 1 << rng.integers(8)
        damaged.append(bytes(bytes_of))
    for one in damaged:
        archive.write_bytes(one)
        check(path)
    assert catalogue.kept_of(path)[0].objects == 40


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("x offset", lambda a: a + (1 << 40)),
        ("x nbytes", lambda a: a * 0 + (1 << 62)),
        ("x number", lambda a: a[::-1]),
        ("y nbytes", lambda a: a + 1),
        ("y asked", lambda a: a[:0]),
        ("names edges", lambda a: a + 1),
        ("names text", lambda a: a[:-1]),
        ("value @mark", lambda a: a + 1),
        ("value @name text", lambda a: a + 1),
    ],
)
def test_no_catalogue_is_trusted_more_than_the_file(folder, path, key, change):
    check(path)
    (archive,) = folder.iterdir()
    with zipfile.ZipFile(archive) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    dtype = {"text": "u1", "mark": "i8"}.get(key.split()[-1].strip("@"), "i8")
    entries[key] = np.ascontiguousarray(change(np.frombuffer(entries[key], dtype))).astype(dtype).tobytes()
    with zipfile.ZipFile(archive, "w") as file:
        for name, value in entries.items():
            file.writestr(name, value)
    check(path)
    check(path)


def test_without_a_folder_nothing_is_kept(folder, path, monkeypatch, tmp_path):
    monkeypatch.setenv(catalogue.SWITCH, "0")
    check(path)
    assert not folder.exists()
    monkeypatch.delenv(catalogue.SWITCH)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    check(path)
    assert (catalogue.kept_of(path), catalogue.forget(path)) == ([], 0)


def test_the_folder_is_bounded(folder, tmp_path, monkeypatch):
    paths = [write(tmp_path / f"{k}.h5") for k in range(4)]
    check(paths[0])
    monkeypatch.setattr(catalogue, "MOST_NBYTES", 3 * next(folder.iterdir()).stat().st_size)
    for place, path in enumerate(paths):
        check(path)
        os.utime(catalogue.kept_of(path)[0].path, (1e9 + place, 1e9 + place))
    assert [len(catalogue.kept_of(path)) for path in paths] == [0, 1, 1, 1]


def test_the_command_line_shows_and_drops_it(folder, path, capsys, monkeypatch):
    check(path)
    for options, says in (
        (["--catalogue"], ["1 catalogue kept", "[0-9]*: 40 objects, '@mark', '@name', 'code', 'x', 'y'", "0 of them"]),
        (["--forget"], ["1 catalogue dropped"]),
        (["--catalogue"], ["0 catalogues kept", "2,000 and more"]),
    ):
        monkeypatch.setattr(sys, "argv", ["h5stream", "inspect", path, *options])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        said = " ".join(capsys.readouterr().out.split())
        assert all(one in said for one in says), said
    assert not [*folder.iterdir()]


@pytest.mark.usefixtures("folder")
def test_objects_that_are_asked_of_hdf5_are_counted(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        for k in range(30):
            file.create_dataset(f"{k:02d}", data=np.full(4, k), chunks=(2,), maxshape=(None,) if k in (3, 7) else (4,))
    path = settle(tmp_path / "a.h5")
    for _ in range(2):
        dataset = H5Dataset(path, ".", samples=Objects("*"))
        assert dataset[:][:, 0].tolist() == [*range(30)]
        assert "; 2 objects asked of HDF5" in repr(dataset)
    assert catalogue.kept_of(path)[0].asked == 2
