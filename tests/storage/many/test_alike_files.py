"""A file a sample, for many files: read as rows of one dataset, beside h5py."""

import dataclasses
import itertools
import os
import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.making import write_datasets
from support.object_server import ObjectServer
from support.real_servers import HTTP

from h5stream import Field, H5Dataset, H5StreamLoader, Objects, SampleNumber, errors
from h5stream.storage.file import groups
from h5stream.storage.file.catalogue import kept_of

COUNT = 13
FIELDS = {"x": "x", "y": Field("deep/er/y", columns=slice(1, 4)), "n": "n", "a": "@a", "v": "deep@v"}
GZIP = {"chunks": (3, 5), "compression": "gzip", "shuffle": True}
FORMS = {"contiguous": {}, "gzip": GZIP, "latest": {"libver": "latest", **GZIP}, "user block": {"userblock_size": 512}}


@pytest.fixture(params=[1, 10_000], ids=["kept", "not kept"])
def _many(request, monkeypatch):
    """What was found of few files is kept, as of many, or not."""
    monkeypatch.setattr(groups, "MANY", request.param)


@pytest.fixture(params=["disk", "store", "both", "store with a cache"])
def place(request, tmp_path, monkeypatch):
    """A folder of files, which lie on this disk, or which a store serves, or every other one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "files"
    folder.mkdir()
    if request.param == "disk":
        yield Place(folder)
        return
    pytest.importorskip("obstore")
    cache = tmp_path / "pages" if "cache" in request.param else None
    with ObjectServer(folder) as server:
        yield Place(folder, server.url, 2 if request.param == "both" else 1, cache)


@dataclasses.dataclass
class Place:
    """Where files are written, and where they are read."""

    folder: Path
    url: str = ""
    every: int = 1
    cache: Path | None = None

    def source(self, count):
        """Return what names the first files of it."""
        if not self.url:
            return f"{self.folder}/*.h5"
        return [f"{self.folder if k % self.every else self.url}/{k:04d}.h5" for k in range(count)]

    @property
    def options(self):
        return {"storage_options": HTTP, "cache": self.cache} if self.url else {}


def write(folder, number, *, values=None, **stored):
    """Write a file of a sample; `values` are those of x."""
    given = {key: stored.pop(key) for key in ("libver", "userblock_size") if key in stored}
    rng = np.random.default_rng(number)
    with h5py.File(folder / f"{number:04d}.h5", "w", **given) as file:
        file.create_dataset("x", data=rng.integers(0, 9, (7, 5)).astype("f4") if values is None else values, **stored)
        chunks = {"chunks": (3, 4)} if "chunks" in stored else {}
        file.create_dataset("deep/er/y", data=rng.integers(0, 99, (4, 6)), **chunks)
        file["n"], file.attrs["a"], file["deep"].attrs["v"] = number, number / 2, np.arange(3) + number
    os.utime(folder / f"{number:04d}.h5", (1e9, 1e9 + (values is not None)))


def check(place, numbers=range(COUNT)):
    """Compare an epoch with h5py, and give the dataset."""
    folder, fields, samples = place.folder, {**FIELDS, "k": SampleNumber()}, Objects("files")
    dataset = H5Dataset(place.source(len(numbers)), fields, samples=samples, **place.options)
    seen = []
    with H5StreamLoader(dataset, 5, shuffle=True, memory_budget="200MB") as loader:
        for batch in loader:
            for i, k in enumerate(batch["k"].tolist()):
                seen.append(numbers[k])
                with h5py.File(folder / f"{numbers[k]:04d}.h5") as file:
                    theirs = {"x": file["x"][()], "y": file["deep/er/y"][1:4], "n": file["n"][()]}
                    theirs |= {"a": file.attrs["a"], "v": file["deep"].attrs["v"]}
                for key, value in theirs.items():
                    assert np.array_equal(batch[key][i].numpy(), value), (key, numbers[k])
    assert sorted(seen) == sorted(numbers)
    return dataset


@pytest.mark.parametrize(
    ("_many", "form"),
    [*itertools.product([1], FORMS), (10_000, "gzip")],
    ids=lambda value: value if isinstance(value, str) else "kept" if value == 1 else "not kept",
    indirect=["_many"],
)
@pytest.mark.usefixtures("_many")
def test_a_file_a_sample_is_what_h5py_reads(place, form):
    for number in range(COUNT):
        write(place.folder, number, **FORMS[form])
    dataset = check(place)
    assert len(dataset.layout.files) == 1
    is_asked = groups.MANY == 1 and form == "user block"
    assert dataset.layout.asked == (COUNT if is_asked else 0)
    assert f"{COUNT} files" in repr(dataset)
    assert np.array_equal(dataset[7]["y"].numpy(), dataset[[7]]["y"][0].numpy())
    again = check(place)  # out of the catalogue, if there are many
    first = f"{place.url or place.folder}/0000.h5"
    assert bool(kept_of(first)) == (groups.MANY == 1)
    assert again.layout.datasets[0][0].index.offset.tolist() == dataset.layout.datasets[0][0].index.offset.tolist()
    assert pickle.loads(pickle.dumps(dataset))[3]["n"] == 3


@pytest.mark.usefixtures("_many")
def test_a_file_of_another_shape_is_named(place):
    for number in range(COUNT):
        write(place.folder, number, values=np.zeros((7, 5 + (number == 9)), "f4"))
    with pytest.raises(errors.FieldLengthError, match=r"0009\.h5': 'x' holds float32 \(7, 6\).*ragged="):
        check(place)
    write(place.folder, 9)
    with h5py.File(place.folder / "0012.h5", "a") as file:
        file.attrs["a"] = np.zeros(2)
    with pytest.raises(errors.FieldLengthError, match=r"0012\.h5': '@a' is float64 \(2,\)"):
        check(place)


CHANGES = {
    "replaced": lambda path, other: os.replace(other, path),
    "cut short": lambda path, other: os.truncate(path, 3000),
    "written to": lambda path, other: shutil.copyfile(other, path),
    "gone": lambda path, other: os.remove(path),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_between_epochs_is_named(place, change):
    for number in range(COUNT):
        write(place.folder, number, **GZIP)
    other = place.folder / "other"
    write_datasets(other, x=np.ones((70, 50)))
    dataset = H5Dataset(place.source(COUNT), {"y": "x"}, samples=Objects("files"), **place.options)
    # What stays in memory of a store is not asked for again, so that nothing tells that it has changed.
    keep = "never" if place.url and place.every == 1 else "auto"
    with H5StreamLoader(dataset, 5, shuffle=True, keep=keep) as loader:
        assert sum(len(batch["y"]) for batch in loader) == COUNT
        CHANGES[change](place.folder / "0009.h5", other)
        if place.cache:  # nothing is asked for again
            assert sum(len(batch["y"]) for batch in loader) == COUNT
            return
        is_missed = place.url and place.every == 1 and change == "gone"
        with pytest.raises(errors.SourceNotFoundError if is_missed else errors.SourceChangedError, match=r"0009\.h5"):
            list(itertools.chain(loader, loader))  # the first of them may have been read ahead


@pytest.mark.usefixtures("_many")
@pytest.mark.parametrize("are_soft", [True, False])
def test_links_are_followed_inside_of_their_file_alone(place, are_soft):
    for number in range(COUNT):
        write(place.folder, number)
        if are_soft:
            with h5py.File(place.folder / f"{number:04d}.h5", "a") as file:
                file.move("x", "elsewhere")
                file["x"] = h5py.SoftLink("/elsewhere")
    check(place)
    with h5py.File(place.folder / "0011.h5", "a") as file, h5py.File(place.folder.parent / "secret.h5", "w") as secret:
        del file["x"]
        file["x"], secret["x"] = h5py.ExternalLink(str(place.folder.parent / "secret.h5"), "x"), np.zeros((7, 5), "f4")
    with pytest.raises(errors.ExternalDataError, match=r"0011\.h5"):
        check(place)
    samples, is_far = Objects("files", missing="skip"), place.url != "" and place.every == 1
    with pytest.raises(errors.ExternalDataError, match=r"0011\.h5"):  # and is not taken for a file that lacks it
        H5Dataset(place.source(COUNT), FIELDS, samples=samples, allow_external=is_far, **place.options)


def test_a_file_that_was_cut_or_is_none_is_refused(place):
    for number in range(COUNT):
        write(place.folder, number)
    os.truncate(place.folder / "0009.h5", 4000)
    with pytest.raises(errors.TruncatedFileError, match=r"0009\.h5"):
        check(place)
    (place.folder / "0009.h5").write_bytes(b"none")
    with pytest.raises(errors.NotHDF5Error, match=r"0009\.h5"):
        check(place)


def test_a_catalogue_is_for_files_as_they_were(place, monkeypatch):
    monkeypatch.setattr(groups, "MANY", 1)
    for number in range(COUNT):
        write(place.folder, number)
    check(place)
    for number in (4, 5):
        write(place.folder, number, values=np.full((7, 5), 77, "f4"))
    check(place)
    write(place.folder, COUNT)
    check(place, range(COUNT + 1))
