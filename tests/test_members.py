"""Members of compounds that make one tensor, beside h5py and NumPy."""

import h5py
import numpy as np
import pytest

from h5stream import Field, H5Dataset, errors


@pytest.mark.parametrize(
    ("field", "kind", "says"),
    [
        (lambda: Field("x", members=["a", "d"]), errors.FieldNotFoundError, "no member 'd'.*it has 'a', 'b', 'c'"),
        (
            lambda: Field("x", members=["a", "b"]),
            errors.UnsupportedFieldError,
            "'a' is float32, 'b' is int32; make a field for",
        ),
        (lambda: Field("x", members=["c"]), errors.UnsupportedFieldError, "'c' is"),
        (lambda: Field("plain", members=["a"]), errors.FieldNotFoundError, "no compounds"),
        (lambda: Field("x", members=[3]), errors.OptionError, "members= takes names"),
        (lambda: Field("x", members="a", take="all"), errors.OptionError, "take='all' takes the whole"),
    ],
)
def test_members_that_make_no_tensor_are_refused(tmp_path, field, kind, says):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["plain"] = np.zeros(4, [("a", "f4"), ("b", "i4"), ("c", "S3")]), np.zeros(4)
    with pytest.raises(kind, match=says):
        H5Dataset(tmp_path / "a.h5", field())
