"""Several files are one sequence of rows."""

import numpy as np
import pytest
from making import make_file, numbers

from h5stream import H5Dataset
from h5stream.errors import FieldLengthError, FieldNotFoundError

VALUES = numbers(100, 6, dtype="<f4")


@pytest.fixture
def paths(tmp_path):
    cuts = [(0, 13), (13, 14), (14, 60), (60, 100)]
    return [make_file(tmp_path / f"part{k}.h5", data=VALUES[slice(*cut)]) for k, cut in enumerate(cuts)]


def test_a_pattern_takes_files_by_name(paths, tmp_path):
    assert H5Dataset(tmp_path / "part*.h5", "x")[:].numpy().tobytes() == VALUES.tobytes()
    two = H5Dataset([str(tmp_path / "part[01].h5"), paths[3]], "x")
    assert two[:].numpy().tobytes() == np.concatenate([VALUES[:14], VALUES[60:]]).tobytes()


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    path = make_file(tmp_path / "run[1].h5", data=numbers(3))
    assert len(H5Dataset(path, "x")) == 3


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
