"""``columns=`` takes some of a row's columns, in any order, and reads only the chunks that hold them."""

import h5py
import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from making import make_file, numbers

from h5stream import Field, H5Dataset, H5StreamLoader
from h5stream.engine.landing.chunks import chunk_tables
from h5stream.engine.plan import Placement
from h5stream.engine.tasks import TASK_NBYTES
from h5stream.errors import OptionError
from h5stream.storage.rowbox import column_pieces


def test_columns_of_a_compound_and_of_strings(tmp_path):
    values = np.zeros((20, 6), [("a", "i4"), ("s", "S3")])
    values["a"], values["s"] = numbers(20, 6), numbers(20, 6, dtype="i4").astype("S3")
    path = make_file(tmp_path / "a.h5", data=values, chunks=(8, 4), compression="gzip")
    ours = H5Dataset(path, Field("x", columns=[5, 1]))[:]
    assert ours["a"].numpy().tobytes() == np.ascontiguousarray(values["a"][:, [5, 1]]).tobytes()
    assert ours["s"] == values["s"][:, [5, 1]].tolist()


def test_columns_of_variable_length_strings(tmp_path):
    path = make_file(tmp_path / "a.h5", data=[["a", "b", "c"], ["d", "e", "f"]], dtype=h5py.string_dtype())
    dataset = H5Dataset(path, Field("x", columns=[2, 0]))
    assert dataset[:] == [[b"c", b"a"], [b"f", b"d"]]
    dataset.close()


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
    layout = H5Dataset(path, Field("x", columns=[29, 6])).layout
    rows = np.arange(40)
    placement = Placement(rows=rows, batch=np.zeros_like(rows), within=rows)
    tables = chunk_tables(layout.datasets[0][0], (), 0, placement, TASK_NBYTES)
    read = sorted(int(number) for table in tables for number in table.number)
    assert read == [k * 6 + column for k in range(4) for column in (1, 5)]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ([1, 1], "names a column twice"),
        ([0, -30], "names a column twice"),
        ([30], "columns=30 is not there: the rows have 30 columns, 0 to 29"),
        ([-31], "columns=-31 is not there"),
    ],
)
def test_columns_that_are_not_there_or_named_twice_are_refused_with_file_and_field(tmp_path, columns, why):
    path = make_file(tmp_path / "a.h5", data=numbers(50, 30))
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


@pytest.mark.parametrize("columns", [[True, 1], (True, False), np.zeros((2, 2), bool), [1.5], ["a"]], ids=str)
def test_something_that_is_no_number_is_refused_rather_than_misread(columns):
    with pytest.raises(OptionError, match="takes a slice or column numbers"):
        Field("x", columns=columns)


def test_a_row_larger_than_any_batch_is_refused_before_anything_is_allocated():
    with pytest.raises(OptionError, match="take some of its columns"):
        column_pieces((2**31, 2), (1, 1))


def of_an_axis(count):
    """Draw what may stand in brackets for one axis: a slice, an integer, a list, a mask."""
    some = st.lists(st.integers(0, count - 1), unique=True, max_size=count)
    return st.one_of(
        st.slices(count),
        st.integers(-count, count - 1),
        some,
        st.lists(st.booleans(), min_size=count, max_size=count).map(np.array),
    )


@given(data=st.data())
@examples(60)
def test_every_axis_is_taken_as_in_brackets(tmp_path_factory, data):
    shape = (6, 5, 4, 3)
    options = data.draw(
        st.sampled_from([{}, {"chunks": (2, 2, 3, 3)}, {"chunks": (4, 5, 2, 1), "compression": "gzip"}])
    )
    options |= data.draw(st.sampled_from([{}, {"scaleoffset": 0}])) if "chunks" in options else {}
    values = numbers(*shape, dtype="i4")
    path = make_file(tmp_path_factory.mktemp("c") / "a.h5", data=values, **options)
    first = data.draw(of_an_axis(5))
    columns = (first, *data.draw(st.sampled_from([(..., slice(1, 3)), (slice(None, None, -2), 1), (...,), ()])))
    if not isinstance(columns, tuple) or all(isinstance(each, int) for each in columns):
        columns = (*columns, ...)
    expected = values
    axis, parts = 1, list(columns)
    named = len([part for part in parts if part is not ...])
    at = next((k for k, part in enumerate(parts) if part is ...), len(parts))
    for part in [*parts[:at], *[slice(None)] * (3 - named), *parts[at + 1 :]]:
        expected = expected[(slice(None),) * axis + (part,)]
        axis += not isinstance(part, int)
    with H5StreamLoader(path, 4, fields=Field("x", columns=columns)) as loader:
        found = np.concatenate([batch.numpy() for batch in loader])
    assert found.shape == expected.shape
    assert (found == expected).all()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ((..., 1, ...), "'...' may stand once"),
        ((0, slice(2), 1, slice(1)), "names 4 axes, and rows have 3"),
        ((slice(2), 9), "columns=9 is not there"),
        ((slice(2), [1, 1]), "names a column twice"),
        ((slice(2), [0.5]), "slice or column numbers"),
    ],
)
def test_what_no_axis_has_is_refused(tmp_path, columns, says):
    path = make_file(tmp_path / "a.h5", data=numbers(6, 5, 4, 3, dtype="i4"))
    with pytest.raises(OptionError, match=says):
        H5Dataset(path, Field("x", columns=columns))
