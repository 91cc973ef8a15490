"""`h5stream inspect` of several files prints what reads them together."""

import re
import shlex

import h5py
import numpy as np
import pytest
from support.layouts import cells, write

PROGRAM = re.compile(r"^from h5stream.*?# your training step$", re.M | re.S)


def ran(program):
    """Run a printed program to its first batch; give its loader and that."""
    scope = {}
    exec(program.replace("    ...  # your training step", "    break"), scope)
    with scope["loader"] as loader:
        return loader, next(iter(loader))


@pytest.mark.parametrize("names", [["a1.h5ad", "a2.h5ad"], ["lung.h5ad", "heart.h5ad"], ["a[12].h5ad"]])
def test_matrices_of_files_are_one_dataset_by_list_or_pattern(tmp_path, monkeypatch, h5stream, names):
    for name, rows in {"a1": 40, "a2": 60, "a3": 20, "lung": 40, "heart": 60}.items():
        write(tmp_path, {f"{name}.h5ad": cells(rows, 30)})
    monkeypatch.chdir(tmp_path)
    out = h5stream("inspect", *names).out
    program = PROGRAM.search(out[: out.index("The first of them")])[0]
    loader, batch = ran(program)
    assert (len(loader.dataset), batch["x"].shape[1]) == (100, 30)
    assert f"h5stream inspect {shlex.join(names)} --batch-size" in out


def test_a_matrix_by_columns_beside_one_by_rows_is_no_field_of_it(tmp_path, monkeypatch, h5stream):
    write(tmp_path, {"a.h5ad": cells(40, 30)})
    write(tmp_path, {"b.h5ad": cells(50, 30) | {"X@encoding-type": "csc_matrix"}})
    monkeypatch.chdir(tmp_path)
    out = " ".join(h5stream("inspect", "a.h5ad", "b.h5ad").out.split())
    assert "By columns (CSC): b.h5ad." in out
    assert 'file="b.h5ad"' not in out.partition("By columns")[0]
    assert 'source = "b.h5ad"' in out  # the program that writes its rows
    assert 'H5StreamLoader( "a.h5ad"' in out


def test_files_that_are_listed_are_shown_together_like_those_of_a_pattern(tmp_path, monkeypatch, h5stream):
    for name in "a1", "a2", "a3":
        write(tmp_path, {f"{name}.h5": {"x": np.ones((50, 4)), "y": np.arange(50)}})
    monkeypatch.chdir(tmp_path)
    out = h5stream("inspect", "a1.h5", "a3.h5").out
    program = PROGRAM.search(out)[0]
    loader, _ = ran(program)
    assert len(loader.dataset) == 100


def test_fields_of_two_files_are_costed_by_the_command_that_is_printed(tmp_path, monkeypatch, h5stream):
    write(tmp_path, {"images.h5": {"x": np.ones((50, 4))}})
    write(tmp_path, {"labels.h5": {"y": np.arange(50)}})
    monkeypatch.chdir(tmp_path)
    out = h5stream("inspect", "images.h5", "labels.h5").out
    command = re.search(r"^h5stream inspect (.*?)\n\n", out, re.M | re.S)[1]
    assert "50 samples" in h5stream("inspect", *shlex.split(command.replace("\\\n", ""))).out


def test_of_many_unlike_files_the_first_are_shown_and_the_rest_counted(tmp_path, monkeypatch, h5stream):
    write(tmp_path, {f"{'abcdefghijk'[k]}.h5": {f"x{k}": np.ones((50 + k, k + 2))} for k in range(11)})
    monkeypatch.chdir(tmp_path)
    out = h5stream("inspect", ".").out
    assert "h.h5  " in out
    assert "i.h5  " not in out
    assert "and 3 more files, such as " in out
    assert "k.h5  " in h5stream("inspect", ".", "--all").out


def test_files_of_different_names_with_the_same_fields_are_shown_together(tmp_path, monkeypatch, h5stream):
    for name, rows in {"train": 50, "test": 30}.items():
        write(tmp_path, {f"{name}.h5": {"x": np.ones((rows, 4)), "y": np.arange(rows)}})
    monkeypatch.chdir(tmp_path)
    loader, _ = ran(PROGRAM.search(h5stream("inspect", "train.h5", "test.h5").out)[0])
    assert len(loader.dataset) == 80


def test_files_that_a_shell_has_put_in_place_of_their_pattern_are_named_by_it(tmp_path, monkeypatch, h5stream):
    names = [f"day{k:02}.h5" for k in range(12)]
    for name in names:
        write(tmp_path, {name: {"x": np.ones((50, 4)), "y": np.arange(50)}})
    monkeypatch.chdir(tmp_path)
    assert '"day*.h5",' in h5stream("inspect", *names).out
    assert all(f"{name}  " in h5stream("inspect", *names, "--fields", "x").out for name in names)


def test_statistics_count_categories_by_their_names(tmp_path, monkeypatch, h5stream):
    write(tmp_path, {"a.h5ad": cells(40, 30) | {"obs/cell_type/codes": np.array([0, 1, 1, -1] * 10, "i1")}})
    monkeypatch.chdir(tmp_path)
    out = h5stream("statistics", "a.h5ad", "--fields", "obs/cell_type").out
    with h5py.File("a.h5ad") as file:
        names = file["obs/cell_type/categories"].asstr()[:2]
    assert f"{names[1]}: 20 (50.0%)" in out
    assert f"{names[0]}: 10 (25.0%)" in out
    assert "no category (-1): 10 (25.0%)" in out
