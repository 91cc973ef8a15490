"""A file a sample, for many files: read as rows of one dataset, beside h5py."""

import itertools
import os
import pickle
import shutil

import h5py
import numpy as np
import pytest
from making import write_datasets

from h5stream import Field, H5Dataset, H5StreamLoader, Objects, SampleNumber, errors
from h5stream.storage import whereabouts
from h5stream.storage.catalogue import kept_of

COUNT = 23
FIELDS = {"x": "x", "y": Field("deep/er/y", columns=slice(1, 4)), "n": "n", "a": "@a", "v": "deep@v"}
FORMS = {
    "contiguous": {},
    "gzip": {"chunks": (3, 5), "compression": "gzip", "shuffle": True},
    "latest": {"libver": "latest", "chunks": (3, 5), "compression": "gzip"},
    "user block": {"userblock_size": 512},
}


@pytest.fixture(params=[1, 10_000], ids=["kept", "not kept"])
def _many(request, monkeypatch):
    """What was found of few files is kept, as of many, or not."""
    monkeypatch.setattr(whereabouts, "MANY", request.param)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "files"


def write(folder, number, *, values=None, **stored):
    """Write a file of a sample; `values` are those of x."""
    folder.mkdir(exist_ok=True)
    given = {key: stored.pop(key) for key in ("libver", "userblock_size") if key in stored}
    rng = np.random.default_rng(number)
    with h5py.File(folder / f"{number:04d}.h5", "w", **given) as file:
        file.create_dataset("x", data=rng.integers(0, 9, (7, 5)).astype("f4") if values is None else values, **stored)
        file.create_dataset(
            "deep/er/y", data=rng.integers(0, 99, (4, 6)), **({} if "chunks" not in stored else {"chunks": (3, 4)})
        )
        file["n"], file.attrs["a"], file["deep"].attrs["v"] = number, number / 2, np.arange(3) + number
    os.utime(folder / f"{number:04d}.h5", (1e9, 1e9))


def check(folder, numbers=range(COUNT), fields=FIELDS, **options):
    """Compare an epoch with h5py, and give the dataset."""
    dataset = H5Dataset(f"{folder}/*.h5", {**fields, "k": SampleNumber()}, samples=Objects("files", **options))
    seen = []
    with H5StreamLoader(dataset, 5, shuffle=True, memory_budget="200MB") as loader:
        for batch in loader:
            for i, k in enumerate(batch["k"].tolist()):
                seen.append(numbers[k])
                with h5py.File(folder / f"{numbers[k]:04d}.h5") as file:
                    for key, theirs in (
                        ("x", lambda file: file["x"][()]),
                        ("y", lambda file: file["deep/er/y"][1:4]),
                        ("n", lambda file: file["n"][()]),
                        ("a", lambda file: file.attrs["a"]),
                        ("v", lambda file: file["deep"].attrs["v"]),
                    ):
                        if key in batch and key in fields:
                            assert np.array_equal(batch[key][i].numpy(), theirs(file)), (key, numbers[k])
    assert sorted(seen) == sorted(numbers)
    return dataset


@pytest.mark.usefixtures("_many")
@pytest.mark.parametrize("form", FORMS)
def test_a_file_a_sample_is_what_h5py_reads(folder, form):
    for number in range(COUNT):
        write(folder, number, **FORMS[form])
    dataset = check(folder)
    assert len(dataset.layout.files) == 1
    is_asked = whereabouts.MANY == 1 and form == "user block"
    assert dataset.layout.asked == (COUNT if is_asked else 0)
    assert f"{COUNT} file(s)" in repr(dataset)
    assert np.array_equal(dataset[7]["y"].numpy(), dataset[[7]]["y"][0].numpy())
    again = check(folder)  # out of the catalogue, if there are many
    assert bool(kept_of(str(folder / "0000.h5"))) == (whereabouts.MANY == 1)
    assert again.layout.datasets[0][0].index.offset.tolist() == dataset.layout.datasets[0][0].index.offset.tolist()
    assert pickle.loads(pickle.dumps(dataset))[3]["n"] == 3


@pytest.mark.usefixtures("_many")
def test_a_file_of_another_shape_is_named(folder):
    for number in range(COUNT):
        write(folder, number, values=np.zeros((7, 5 + (number == 17)), "f4"))
    with pytest.raises(errors.FieldLengthError, match=r"0017\.h5': 'x' holds float32 \(7, 6\).*ragged="):
        check(folder)
    write(folder, 17, values=np.zeros((7, 5), "f4"))
    with h5py.File(folder / "0012.h5", "a") as file:
        file.attrs["a"] = np.zeros(2)
    with pytest.raises(errors.FieldLengthError, match=r"0012\.h5': '@a' is float64 \(2,\)"):
        check(folder)


CHANGES = {
    "replaced": lambda path, other: os.replace(other, path),
    "cut short": lambda path, other: os.truncate(path, 3000),
    "written to": lambda path, other: shutil.copyfile(other, path),
    "gone": lambda path, other: os.remove(path),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_between_epochs_is_named(folder, change):
    for number in range(COUNT):
        write(folder, number, **FORMS["gzip"])
    other = folder / "other"
    write_datasets(other, x=np.ones((70, 50)))
    with H5StreamLoader(f"{folder}/*.h5", 5, shuffle=True, samples=Objects("files"), fields={"y": "x"}) as loader:
        assert sum(len(batch["y"]) for batch in loader) == COUNT
        CHANGES[change](folder / "0013.h5", other)
        with pytest.raises(errors.SourceChangedError, match=r"0013\.h5"):
            list(itertools.chain(loader, loader))  # the first of them may have been read ahead


@pytest.mark.usefixtures("_many")
@pytest.mark.parametrize("are_soft", [True, False])
def test_links_are_followed_inside_of_their_file_alone(folder, are_soft):
    for number in range(COUNT):
        write(folder, number)
        if are_soft:
            with h5py.File(folder / f"{number:04d}.h5", "a") as file:
                file.move("x", "elsewhere")
                file["x"] = h5py.SoftLink("/elsewhere")
    check(folder)
    with h5py.File(folder / "0011.h5", "a") as file, h5py.File(folder.parent / "secret.h5", "w") as secret:
        del file["x"]
        file["x"], secret["x"] = h5py.ExternalLink(str(folder.parent / "secret.h5"), "x"), np.zeros((7, 5), "f4")
    with pytest.raises(errors.ExternalDataError, match=r"0011\.h5"):
        check(folder)


def test_a_file_that_was_cut_or_is_none_is_refused(folder):
    for number in range(COUNT):
        write(folder, number)
    os.truncate(folder / "0019.h5", 4000)
    with pytest.raises(errors.TruncatedFileError, match=r"0019\.h5"):
        check(folder)
    (folder / "0019.h5").write_bytes(b"none")
    with pytest.raises(errors.NotHDF5Error, match=r"0019\.h5"):
        check(folder)


def test_a_catalogue_is_for_files_as_they_were(folder, monkeypatch):
    monkeypatch.setattr(whereabouts, "MANY", 1)
    for number in range(COUNT):
        write(folder, number)
    check(folder)
    for number in (4, 5):
        write(folder, number, values=np.full((7, 5), 77, "f4"))
    check(folder)
    write(folder, COUNT)
    check(folder, range(COUNT + 1))
