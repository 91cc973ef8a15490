"""Several names, files or numbers: those of a set are refused, since it has no order; those of an array are taken."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from support import forking

from h5stream import (
    Boxes,
    Field,
    H5Dataset,
    H5StreamLoader,
    Objects,
    Rows,
    Sequences,
    Table,
    Take,
    Values,
    repack,
    stage,
)
from h5stream.errors import OptionError

NAMES = [f"g{k}" for k in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make files of groups; each value says which file, group and row it is of."""
    folder = tmp_path_factory.mktemp("several")
    for k in range(3):
        with h5py.File(folder / f"{k}.h5", "w") as file:
            for j, name in enumerate(NAMES):
                file[f"{name}/x"] = 100 * k + 10 * j + np.arange(6.0).reshape(3, 2)
            file["x"], file["y"] = 100 * k + np.arange(8.0).reshape(4, 2), np.arange(4)
            file["t"] = np.zeros(4, [("a", "i4"), ("b", "i4")])
    return folder


def paths(folder):
    return [str(folder / f"{k}.h5") for k in range(3)]


SETS = {
    "files": lambda folder: H5Dataset(set(paths(folder)), "x"),
    "files of a loader": lambda folder: H5StreamLoader(frozenset(paths(folder)), 2, fields="x"),
    "fields": lambda folder: H5Dataset(paths(folder)[0], {"x", "y"}),
    "fields of keys": lambda folder: H5Dataset(paths(folder)[0], {"x": 1, "y": 2}.keys() & {"x", "y"}),
    "Objects": lambda folder: Objects(set(NAMES)),
    "Rows": lambda folder: Rows(of=set(NAMES)),
    "Rows, an iterator": lambda folder: Rows(of=iter(set(NAMES))),
    "Sequences": lambda folder: Sequences(2, of=frozenset(NAMES)),
    "Boxes": lambda folder: Boxes((2,), at="grid", of=set(NAMES)),
    "boxes' shape": lambda folder: Boxes({2, 3}, at="grid"),
    "Table": lambda folder: Table(row=[0, 1], group={"g0", "g1"}),
    "rows of a Table": lambda folder: Table(row={0, 1}),
    "Values": lambda folder: Values({1, 2}),
    "members": lambda folder: Field("t", columns={"a", "b"}),
    "columns": lambda folder: Field("x", columns={1, 0}),
    "columns of an axis": lambda folder: Field("x", columns=(..., {1, 0})),
    "file": lambda folder: Field("x", file=set(paths(folder))),
    "lookup of names": lambda folder: Field("{}/x", lookup=set(NAMES)),
    "lookup of rows": lambda folder: Field("x", lookup={1, 2}),
    "steps": lambda folder: Take({0, 1}),
    "scale": lambda folder: Take(scale={0.5, 2}),
    "rows": lambda folder: H5Dataset(paths(folder)[0], "x", rows={1, 2}),
    "subset": lambda folder: H5Dataset(paths(folder)[0], "x").subset({1, 2}),
    "listed": lambda folder: H5Dataset(paths(folder)[0], "x").listed(frozenset({1, 2})),
    "index": lambda folder: H5Dataset(paths(folder)[0], "x")[{1, 2}],
    "items": lambda folder: H5Dataset(paths(folder)[0], "x").__getitems__({1, 2}),
    "split": lambda folder: H5Dataset(paths(folder)[0], "x").split({0.25, 0.75}),
    "split by values": lambda folder: H5Dataset(paths(folder)[0], "x").split(0.5, by={1, 2, 3, 4}),
    "statistics": lambda folder: H5Dataset(paths(folder)[0], ["x", "y"]).statistics({"x", "y"}),
    "axes of statistics": lambda folder: H5Dataset(paths(folder)[0], ["x"]).statistics("x", axis={0}),
    "sampler": lambda folder: H5StreamLoader(paths(folder)[0], 2, fields="x", sampler={0, 1}),
    "batch_sampler": lambda folder: list(H5StreamLoader(paths(folder)[0], fields="x", batch_sampler=[{0, 1}])),
    "stage": lambda folder: stage(set(paths(folder)), to=folder / "fast"),
    "repack": lambda folder: repack(set(paths(folder)), folder),
    "fields of repack": lambda folder: repack(paths(folder)[0], folder / "new.h5", fields={"x", "y"}),
}


@pytest.mark.parametrize("what", SETS)
def test_a_set_is_refused_where_several_are_named(folder, what):
    with pytest.raises(OptionError, match=r"no order.*sorted\(") as caught:
        SETS[what](folder)
    assert caught.type is OptionError


def test_what_has_an_order_is_taken_as_a_list_is(folder):
    expected = H5Dataset(paths(folder)[0], "x", samples=Rows(of=NAMES[:2]))[:]
    ordered = {"g0": 0, "g1": 1}
    for names in (ordered, ordered.keys(), iter(NAMES[:2]), (name for name in NAMES[:2]), tuple(NAMES[:2])):
        assert (H5Dataset(paths(folder)[0], "x", samples=Rows(of=names))[:] == expected).all()
    assert len(H5Dataset((path for path in paths(folder)), "x")) == 12


def under_another_hash(code, *arguments):
    """Run some code in a new process, which hashes unlike this one."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=False
    )


def test_ranks_in_processes_with_other_hashes_share_all_samples_of_sorted_names(folder):
    code = (
        "import sys; from h5stream import H5StreamLoader, Rows\n"
        "loader = H5StreamLoader(sys.argv[1], 3, shuffle=True, seed=1, rank=int(sys.argv[2]), world_size=2,\n"
        "    fields='x', samples=Rows(of=sorted({'g0', 'g1', 'g2', 'g3'})))\n"
        "print(*(float(v) for batch in loader for v in batch[:, 0]))\n"
    )
    got = []
    for run in (forking.run, under_another_hash):
        done = run(code, paths(folder)[0], len(got) // 6)
        assert done.returncode == 0, done.stderr
        got += map(float, done.stdout.split())
    assert sorted(got) == [10.0 * j + 2 * row for j in range(4) for row in range(3)]


class Frame:
    """A column that gives an array and no more, as data frames do."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


FORMS = {
    "text": lambda names: np.array(names),
    "bytes": lambda names: np.array(names).astype("S"),
    "objects": lambda names: np.array(names, dtype=object),
    "bytes as objects": lambda names: np.array([name.encode() for name in names], dtype=object),
    "what gives an array": lambda names: Frame(np.array(names, dtype=object)),
}


@pytest.mark.parametrize("form", FORMS)
def test_names_in_an_array_are_those_of_a_list(folder, form):
    make, path, names = FORMS[form], paths(folder)[0], ["g2", "g0", "g3"]
    with h5py.File(path) as file:
        expected = np.stack([file[name]["x"][:] for name in names])

    def check(fields, shape=expected.shape, **options):
        assert np.array_equal(H5Dataset(path, fields, **options)[:].numpy().reshape(shape), expected.reshape(shape))

    check("x", samples=Objects(make(names)))
    check("x", samples=Rows(of=make(names)))
    check("x", samples=Sequences(1, of=make(names)))
    check("x", samples=Boxes((3, 2), at="grid", of=make(names)))
    check("x", samples=Table(row=[0, 0, 0], group=make(names), length=3))
    check(Field("{}/x", lookup=make(names)))
    first = H5Dataset(path, make(["x", "y"]))
    assert first.layout.shape.keys == ("x", "y")
    with h5py.File(path) as file:
        assert np.array_equal(first[2][0], file["x"][2])
    assert first.statistics(make(["y"])).keys() == {"y"}
    members = H5Dataset(path, Field("t", columns=make(["b", "a"])))[:]
    assert members.shape == (4, 2)


@pytest.mark.parametrize("form", FORMS)
def test_files_in_an_array_are_those_of_a_list(folder, form):
    make, every = FORMS[form], paths(folder)[::-1]
    expected = H5Dataset(every, "x")[:]
    assert (H5Dataset(make(every), "x")[:] == expected).all()
    with H5StreamLoader(make(every), 12, fields="x") as loader:
        assert (next(iter(loader)) == expected).all()
    assert (H5Dataset(every, Field("x", file=make(every)))[:] == expected).all()


def test_one_name_in_an_array_without_axes_is_that_name(folder):
    path = paths(folder)[0]
    expected = H5Dataset(path, "x", samples=Rows(of="g*"))[:]
    assert (H5Dataset(np.array(path), "x", samples=Rows(of=np.array("g*")))[:] == expected).all()
    assert (H5Dataset(path, "x", samples=Objects(b"g*"))[:].reshape(expected.shape) == expected).all()


def test_names_in_an_array_of_several_axes_are_refused(folder):
    for make in (lambda names: H5Dataset(names, "x"), lambda names: Objects(names), lambda names: Rows(of=names)):
        with pytest.raises(OptionError, match=r"one axis, not of shape \(2, 2\)"):
            make(np.array([["a", "b"], ["c", "d"]]))


def test_numbers_in_an_array_are_no_names(folder):
    for make in (lambda: Objects(np.arange(3)), lambda: Rows(of=np.arange(3)), lambda: H5Dataset(np.arange(3))):
        with pytest.raises(OptionError):
            make()
