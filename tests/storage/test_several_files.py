"""Several files are one sequence of rows."""

import numpy as np
import pytest
from making import make_file, numbers

from h5stream import H5Dataset, H5StreamLoader
from h5stream.errors import FieldLengthError, FieldNotFoundError

VALUES = numbers(100, 6, dtype="<f4")


@pytest.fixture
def paths(tmp_path):
    """Make four files that store their rows in four ways."""
    cuts = [(0, 13), (13, 14), (14, 60), (60, 100)]
    options = [{}, {"chunks": (1, 6)}, {"chunks": (7, 4), "compression": "gzip", "shuffle": True}, {"chunks": (32, 6)}]
    dtypes = ["<f4", ">f4", "<f4", "<f4"]
    return [
        make_file(tmp_path / f"part{k}.h5", data=VALUES[start:stop].astype(dtype), **option)
        for k, ((start, stop), option, dtype) in enumerate(zip(cuts, options, dtypes, strict=True))
    ]


def test_rows_follow_one_another_in_the_order_of_the_files(paths):
    dataset = H5Dataset(paths, "x")
    assert len(dataset) == 100
    assert dataset[:].numpy().tobytes() == VALUES.tobytes()
    rows = np.random.default_rng(1).integers(0, 100, 60)
    assert dataset[rows].numpy().tobytes() == VALUES[rows].tobytes()
    assert [dataset[k].tolist() for k in (0, 12, 13, 14, 59, 60, -1)] == VALUES[[0, 12, 13, 14, 59, 60, 99]].tolist()


def test_a_pattern_takes_files_by_name(paths, tmp_path):
    assert H5Dataset(tmp_path / "part*.h5", "x")[:].numpy().tobytes() == VALUES.tobytes()
    two = H5Dataset([str(tmp_path / "part[01].h5"), paths[3]], "x")
    assert two[:].numpy().tobytes() == np.concatenate([VALUES[:14], VALUES[60:]]).tobytes()


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    path = make_file(tmp_path / "run[1].h5", data=numbers(3))
    assert len(H5Dataset(path, "x")) == 3


def test_a_file_without_rows_takes_part_in_silence(tmp_path):
    data = [numbers(5), numbers(0), numbers(4), numbers(0)]
    for chunks in (None, (2,)):
        options = {} if chunks is None else {"chunks": chunks, "maxshape": (None,)}
        paths = [make_file(tmp_path / f"{k}.h5", data=d, **options) for k, d in enumerate(data)]
        dataset = H5Dataset(paths, "x")
        assert dataset[:].tolist() == [*data[0].tolist(), *data[2].tolist()]
        assert [dataset[k].item() for k in (4, 5, 8)] == [data[0][4], data[2][0], data[2][3]]
        batches = list(H5StreamLoader(paths, 4, shuffle=True, fields="x"))
        assert sorted(v for batch in batches for v in batch.tolist()) == sorted(dataset[:].tolist())


@pytest.mark.parametrize(("dtype", "shape"), [("f8", (4, 6)), ("f4", (4, 5)), ("i4", (4, 6)), ("S4", (4, 6))])
def test_files_whose_rows_differ_in_type_or_shape_are_refused_by_name(paths, tmp_path, dtype, shape):
    other = make_file(tmp_path / "other.h5", data=np.zeros(shape, dtype))
    with pytest.raises(FieldLengthError, match=r"other\.h5'.*'x' has rows of .* must agree"):
        H5Dataset([paths[0], other], "x")


def test_compounds_with_other_members_are_refused(tmp_path):
    one = make_file(tmp_path / "1.h5", data=np.zeros(3, [("a", "i4"), ("b", "i4")]))
    two = make_file(tmp_path / "2.h5", data=np.zeros(3, [("a", "i4"), ("c", "i4")]))
    with pytest.raises(FieldLengthError, match="compound members"):
        H5Dataset([one, two], "x")


def test_a_field_that_one_file_lacks_names_that_file(paths, tmp_path):
    other = make_file(tmp_path / "other.h5", name="y", data=numbers(3))
    with pytest.raises(FieldNotFoundError, match=r"other\.h5' has no dataset 'x'. .*It has: y"):
        H5Dataset([paths[0], other], "x")
