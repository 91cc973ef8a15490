"""Samples that a table lists, of groups and files, beside h5py."""

import h5py
import numpy as np
import pytest
import torch

from h5stream import Field, H5Dataset, H5StreamLoader, Table, Take, errors

LENGTHS = {"a/left": 9, "a/right": 3, "b": 23}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("table"), []
    for number in range(2):
        found.append(str(folder / f"{number}.h5"))
        with h5py.File(found[-1], "w") as file:
            for k, (group, rows) in enumerate(LENGTHS.items()):
                values = 100_000 * number + 1000 * k + 10 * np.arange(rows)[:, None] + np.arange(2)
                file.create_dataset(f"{group}/x", data=values, chunks=(3, 2), compression="gzip")
    return found


def test_tables_come_as_frames_arrays_and_tensors(paths):
    given = {"group": ["b", "a/left", "b"], "row": [4, 0, 5]}
    structured = np.array(list(zip(given["group"], given["row"], strict=True)), [("group", "S8"), ("row", "i4")])

    class Frame(dict):
        @property
        def columns(self):
            return list(self)

    wanted = H5Dataset(paths[0], "x", samples=Table(given, length=2))[:]
    assert wanted.shape == (3, 2, 2)
    for table in (
        structured,
        Frame(given),
        {**given, "row": torch.tensor(given["row"])},
        {**given, "row": np.array([4.0, 0, 5])},
    ):
        assert (H5Dataset(paths[0], "x", samples=Table(table, length=2))[:] == wanted).all()
    named = Table(given, file=[paths[0]] * 3, length=2)
    assert (H5Dataset(paths, "x", samples=named)[:] == wanted).all()
    assert repr(named) == "Table(3 samples, columns group, row, file)"


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"group": ["b"]}, "needs a column 'row'.*its columns are 'group'"),
        ({"row": [0, 1], "group": ["b"]}, "'row' has 2, 'group' has 1"),
        ({"row": []}, "the Table is empty"),
        ({"row": [0.5]}, "'row' holds whole numbers"),
        ({"row": [[0]]}, "not the shape \\(1, 1\\)"),
        ({"row": [0], "lenght": 3}, "what is no column is length=, pad= or axis="),
        ({"row": [None]}, "holds whole numbers, and not such as None"),
        ({"row": [0], "length": 0}, "length must be at least 1"),
        ({"row": [0], "pad": "wrap"}, "Table: pad= is 'edge', 'zeros' or a number"),
    ],
)
def test_a_table_that_says_nothing_is_refused(columns, says):
    with pytest.raises(errors.OptionError, match=says):
        Table(**columns)


@pytest.mark.parametrize("columns", ["index.csv", 5, [1, 2]])
def test_what_has_no_columns_is_refused(columns):
    with pytest.raises(errors.OptionError, match=r"takes columns by name|needs a column"):
        Table(columns)


@pytest.mark.parametrize(
    ("table", "field", "says"),
    [
        ({"group": ["b", "b"], "row": [0, 23]}, "x", "'row' is 23 at sample 1, where 23 are there and .* 1 of 2"),
        ({"group": ["b"], "row": [-1]}, "x", "'row' is -1 at sample 0"),
        ({"group": ["b"], "row": [20], "length": 4}, "x", "begin at 0 to 19; .* pad='edge'"),
        ({"group": ["b"], "row": [2]}, Field("x", take=Take(at="t2")), "at= names a column .* which has 'row'"),
        ({"group": ["b"], "row": [2], "t2": [40]}, Field("x", take=Take(at="t2")), "'t2' is 40 at sample 0"),
        ({"file": [1], "row": [2]}, "b/x", "'file' is 1 at 0, and 1 files are opened"),
        ({"file": ["no.h5"], "row": [2]}, "b/x", "names 'no.h5', which is not among the files"),
    ],
)
def test_rows_that_are_not_there_are_told(paths, table, field, says):
    with pytest.raises(errors.OptionError, match=says):
        H5Dataset(paths[0], field, samples=Table(**table))


def test_groups_are_named_with_their_files(paths):
    table = Table(group=["b"], row=[0])
    with pytest.raises(errors.OptionError, match="beside 'group' it needs 'file'"):
        H5Dataset(paths, "x", samples=table)
    with pytest.raises(errors.FieldNotFoundError, match="has no group 'c'"):
        H5Dataset(paths[0], "x", samples=Table(group=["c"], row=[0]))
    with pytest.raises(errors.OptionError, match=r"Field.*at='row2'.*there is no Table"):
        H5Dataset(paths[0], Field("b/x", take=Take(at="row2")))
    with pytest.raises(errors.OptionError, match=r"samples= takes Sequences\(...\), Rows\(...\), Objects"):
        H5Dataset(paths[0], "b/x", samples={"row": [0]})
    both = [H5Dataset(path, "x", samples=table) for path in paths]
    assert len(H5StreamLoader(both, 2).dataset) == 2
