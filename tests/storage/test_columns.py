"""``columns=`` takes some of a row's columns, in any order, and reads only the chunks that hold them."""

import numpy as np
import pytest
import torch
from making import make_file, numbers

from h5stream import Field, H5Dataset, H5StreamLoader
from h5stream.errors import OptionError
from h5stream.storage.rowbox import column_pieces


def test_the_same_dataset_may_be_named_with_several_selections(tmp_path):
    values = numbers(20, 6)
    path = make_file(tmp_path / "a.h5", data=values, chunks=(8, 4))
    left, right, whole = H5Dataset(path, [Field("x", columns=slice(0, 2)), Field("x", columns=[5]), "x"])[:]
    assert (left.tolist(), right.tolist(), whole.tolist()) == (
        values[:, :2].tolist(),
        values[:, [5]].tolist(),
        values.tolist(),
    )


def test_only_the_chunks_that_hold_the_columns_are_read(tmp_path):
    path = make_file(tmp_path / "a.h5", data=numbers(40, 30), chunks=(10, 5), compression="gzip")
    with H5StreamLoader(path, 40, fields=Field("x", columns=[29, 6]), keep="never") as loader:
        list(loader)
        assert loader.stats().chunks == 8


@pytest.mark.parametrize(
    ("shape", "columns", "why"),
    [
        ((50, 30), [0, -30], "names a column twice"),
        ((50, 30), [-31], "columns=-31 is not there"),
        ((6, 5, 4, 3), (..., 1, ...), "'...' may stand once"),
        ((6, 5, 4, 3), (0, slice(2), 1, slice(1)), "names 4 axes, and rows have 3"),
    ],
)
def test_columns_that_are_not_there_or_named_twice_are_refused_with_the_field(tmp_path, shape, columns, why):
    path = make_file(tmp_path / "a.h5", data=numbers(*shape))
    with pytest.raises(OptionError, match=rf"a\.h5': field 'x': .*{why}"):
        H5Dataset(path, Field("x", columns=columns))


@pytest.mark.parametrize("columns", [(0,), (2, 0), (np.int64(1), 0)], ids=str)
def test_a_tuple_of_numbers_is_a_place_to_numpy_and_refused_with_both_readings(columns):
    numbers = ", ".join(map(str, columns))
    with pytest.raises(OptionError, match=rf"columns=\[{numbers}\] takes .* columns=\({numbers}, \.\.\.\)"):
        Field("x", columns=columns)


def test_columns_inside_a_member_are_refused_by_what_they_are(tmp_path):
    path = make_file(tmp_path / "a.h5", data=np.zeros(20, [("v", "f4", (3,)), ("n", "i4")]))
    with pytest.raises(OptionError, match="field 'x:v': columns= chooses among a dataset's axes, not inside a member"):
        H5Dataset(path, Field("x:v", columns=[0]))
    with pytest.raises(OptionError, match=r"field 'x:n': .*one number a row"):
        H5Dataset(path, Field("x:n", columns=[0]))


@pytest.mark.parametrize("made", [list, np.array, torch.tensor])
def test_a_mask_takes_columns_and_is_of_all_of_them(tmp_path, made):
    mask = made([True, False, True])
    values = np.arange(30.0).reshape(10, 3)
    path = make_file(tmp_path / "a.h5", data=values)
    assert np.array_equal(H5Dataset(path, Field("x", columns=mask))[:], values[:, [0, 2]])
    with pytest.raises(OptionError, match="a mask of 2 columns, and there are 3"):
        H5Dataset(path, Field("x", columns=mask[:2]))


def test_a_row_larger_than_any_batch_is_refused_before_anything_is_allocated():
    with pytest.raises(OptionError, match="take some of its columns"):
        column_pieces((2**31, 2), (1, 1))
