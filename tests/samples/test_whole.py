"""Rows of things that are a sample each: what is logged, with the line that reads them whole; and folders of files."""

import h5py
import numpy as np
import pytest
from support.commands import printed

from h5stream import Field, H5Dataset, H5StreamLoader, Objects, errors
from h5stream.base import hints
from h5stream.storage.layout.sources import paths_of

IMAGE, MASK = np.arange(64, dtype="f4").reshape(8, 8), np.zeros((8, 8), "u1")


def _labelled(file, k):
    file["signal"] = np.zeros((20 + k, 3))
    file.attrs["label"] = k


def _with_a_number(file, k):
    file["signal"], file["age"] = np.zeros((20 + k, 3)), k


FILES = {
    "image and mask": ({"image": IMAGE, "mask": MASK}, ["image", "mask"], '["image", "mask"]'),
    "channels first": ({"image": np.zeros((3, 9, 9), "u1")}, "image", '"image"'),
    "in groups": ({"a/image": IMAGE, "b/mask": MASK}, ["a/image", "b/mask"], '["a/image", "b/mask"]'),
    "an attribute that labels": (_labelled, "signal", 'Field("signal", ragged="pad")'),
    "a number beside": (_with_a_number, "signal", 'Field("signal", ragged="pad")'),
}
ROWS = {
    "parts of a table with labels": ({"x": np.zeros((100, 8)), "y": np.zeros(100)}, ["x", "y"]),
    "parts of a table": ({"x": np.zeros((100, 8))}, "x"),
    "parts of unlike lengths": (lambda f, k: f.create_dataset("x", data=np.zeros((50 + k, 8))), "x"),
    "episodes": ({"obs": np.zeros((50, 40)), "actions": np.zeros((50, 3))}, ["obs", "actions"]),
    "a table of compounds": ({"t": np.zeros(30, [("a", "f4"), ("b", "i4")])}, "t:a"),
}


@pytest.fixture
def logged(caplog, monkeypatch):
    """Give what is logged of hints, as in a new process."""
    monkeypatch.setattr(hints, "_logged", set())
    return lambda: [one.getMessage() for one in caplog.records if one.name == hints.SAMPLES]


def _write(folder, holds, count=12):
    for k in range(count):
        with h5py.File(folder / f"s{k:02d}.h5", "w") as file:
            if callable(holds):
                holds(file, k)
            else:
                for name, data in holds.items():
                    file[name] = data
    return folder


@pytest.mark.parametrize("named", ["a pattern", "a list", "the folder"])
@pytest.mark.parametrize("what", FILES)
def test_files_that_are_a_sample_each_are_named_once_with_the_line_that_reads_them(tmp_path, logged, what, named):
    holds, fields, text = FILES[what]
    _write(tmp_path, holds)
    every = sorted(map(str, tmp_path.iterdir()))
    source = {"a pattern": f"{tmp_path}/*.h5", "a list": every, "the folder": tmp_path}[named]
    for _ in range(2):
        with H5StreamLoader(source, 4, fields=fields):
            pass
    (one,) = logged()
    assert one.startswith("each of 12 files holds ")
    assert f'if each file is a sample, write fields={text}, samples=Objects("files")' in one
    with H5StreamLoader(source, 4, fields=eval(text, {"Field": Field}), samples=Objects("files")) as whole:
        assert len(whole.dataset) == len(every)
    assert logged() == [one]


@pytest.mark.parametrize("what", ROWS)
def test_files_whose_rows_are_samples_are_read_without_a_word(tmp_path, logged, what):
    holds, fields = ROWS[what]
    H5Dataset(_write(tmp_path, holds), fields)
    assert logged() == []


def _write_one(path, names, data):
    with h5py.File(path, "w") as file:
        for name in names:
            file[name] = data
    return path


def test_rows_of_one_of_many_like_groups_are_named_with_the_pattern_of_all(tmp_path, logged):
    path = _write_one(tmp_path / "a.h5", [f"data/p{k}/in/image" for k in range(12)], IMAGE)
    assert len(H5Dataset(path, "data/p3/in/image")) == 8
    (one,) = logged()
    assert "data/p3 is one of 12 like groups" in one
    assert 'write fields="in/image", samples=Objects("data/*")' in one
    assert len(H5Dataset(path, "in/image", samples=Objects("data/*"))) == 12


def test_a_group_is_named_too_that_is_an_open_h5py_object(tmp_path, logged):
    path = _write_one(tmp_path / "a.h5", [f"p{k}/image" for k in range(12)], IMAGE)
    with h5py.File(path) as file:
        H5Dataset(file["p4"], "image")
    assert ['samples=Objects("*")' in one for one in logged()] == [True]


def test_a_group_without_like_ones_is_read_without_a_word(tmp_path, logged):
    H5Dataset(_write_one(tmp_path / "a.h5", ["train/image", "test/image", "val/image"], IMAGE), "train/image")
    assert logged() == []


def test_numbered_datasets_that_were_taken_for_fields_are_named(tmp_path, logged):
    path = _write_one(tmp_path / "a.h5", [f"img_{k:02d}" for k in range(12)], IMAGE)
    assert len(H5Dataset(path)) == 8
    assert ['write fields=".", samples=Objects("img_*")' in one for one in logged()] == [True]
    assert len(H5Dataset(path, ".", samples=Objects("img_*"))) == 12


def test_columns_of_a_table_are_read_without_a_word(tmp_path, logged):
    H5Dataset(_write_one(tmp_path / "a.h5", [f"c_{k:02d}" for k in range(12)], np.zeros(50)))
    assert logged() == []


def test_values_of_a_sparse_matrix_are_named_with_the_field_that_is_its_rows(tmp_path, logged):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X/data"], file["X/indices"], file["X/indptr"] = np.ones(6), np.arange(6) % 3, np.arange(0, 8, 2)
        file["X"].attrs["encoding-type"], file["X"].attrs["shape"] = "csr_matrix", [3, 3]
    H5Dataset(tmp_path / "a.h5", ["X/data", "X/indices"])
    assert ['write fields=Field("X", ragged="dense")' in one for one in logged()] == [True]


# --- folders ----------------------------------------------------------------------------------------------


def test_commands_print_a_note_with_the_options_to_type(tmp_path, logged):
    _write(tmp_path, {"image": IMAGE, "mask": MASK})
    text = printed("statistics", tmp_path, "--fields", "image", width=200)
    assert """write --fields '"image"' --samples 'Objects("files")'""" in text
    assert "96 samples" in text
    assert "--samples" in printed("inspect", tmp_path)
    assert len(logged()) == 1


@pytest.fixture
def folder(tmp_path):
    """Write two files of ten rows, and what is none, into a folder."""
    for k, name in enumerate(("b.h5", "a.hdf5")):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"], file["y"] = np.arange(10.0) + 10 * k, np.arange(10)
    for name in ("readme.txt", ".hidden.h5"):
        (tmp_path / name).write_text("no HDF5")
    (tmp_path / "below").mkdir()
    return tmp_path


WANTED = [*np.arange(10.0, 20), *np.arange(10.0)]  # a.hdf5 comes first


@pytest.mark.parametrize("kind", [str, lambda path: path, lambda path: f"{path}/", lambda path: bytes(path)])
def test_a_folder_is_its_files_in_the_order_of_their_names(folder, kind):
    assert H5Dataset(kind(folder), "x")[:].tolist() == WANTED
    with H5StreamLoader(kind(folder), 8, fields=["x", "y"]) as loader:
        assert np.concatenate([x for x, _ in loader]).tolist() == WANTED


def test_a_folder_is_one_of_several_sources_and_the_files_of_a_field(folder, tmp_path_factory):
    other = _write_one(tmp_path_factory.mktemp("other") / "c.h5", ["x"], np.arange(3.0))
    assert H5Dataset([other, folder], "x")[:].tolist() == [0, 1, 2, *WANTED]
    lookup = np.array([3, 12, 0])
    assert H5Dataset(other, Field("x", file=folder, lookup=lookup))[:].tolist() == [13.0, 2.0, 10.0]


def test_a_folder_without_hdf5_files_is_refused_with_their_endings(folder):
    with pytest.raises(
        errors.SourceNotFoundError, match=r"no file in the folder .*below' ends in \.h5, \.hdf5"
    ) as error:
        H5Dataset(folder / "below")
    assert error.value.file == str(folder / "below")


def test_commands_take_a_folder(folder):
    assert "20 samples" in printed("statistics", folder, "--fields", "x")
    text = printed("bench", folder, "--fields", "x,y", "--seconds", "0.1", "--workers", "0", "--batch-size", "4")
    assert "2 files: 20 rows" in text
    assert "each of 20 rows came once, with h5py's bytes" in text
    assert "  2 files" in printed("inspect", folder)
    assert "20" in printed("suggest", folder, "--fields", "x")


def test_a_folder_in_a_store_is_its_objects(folder):
    obstore = pytest.importorskip("obstore")
    store = obstore.store.MemoryStore()
    for path in folder.iterdir():
        if path.is_file():
            obstore.put(store, f"day/{path.name}", path.read_bytes())
    dataset = H5Dataset("memory://here/day/", "x", storage_options=store)
    names = [identity.path.rpartition("/")[2] for identity in dataset.layout.files]
    assert (names, dataset[:].tolist()) == (["a.hdf5", "b.h5"], WANTED)


def test_paths_of_a_home_folder_are_expanded(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert paths_of("~", None) == [str(folder / "a.hdf5"), str(folder / "b.h5")]
