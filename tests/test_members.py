"""Members of compounds that make one tensor, beside h5py and NumPy."""

import h5py
import numpy as np
import pytest
from inner import stream_all

from h5stream import Field, H5Dataset, H5StreamLoader, SampleNumber, errors


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


@pytest.mark.parametrize("members", [["b", "a"], ["a", "a"], ["b", "b"], ["a", "b"]], ids=" ".join)
@pytest.mark.parametrize("shape", [(30,), (30, 3)], ids=str)
def test_members_that_take_as_many_bytes_as_an_element_has(tmp_path, members, shape):
    values = np.zeros(shape, [("a", "f4"), ("b", "f4")])
    values["a"], values["b"] = np.random.default_rng(0).random((2, *shape), "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
    wanted = np.stack([values[name] for name in members], axis=-1)
    dataset = H5Dataset(tmp_path / "a.h5", Field("x", members=members))
    assert (dataset[:].numpy() == wanted).all()
    assert (dataset[7].numpy() == wanted[7]).all()
    assert (dataset[[9, 2, 9]].numpy() == wanted[[9, 2, 9]]).all()


def test_members_of_what_was_never_written_have_their_fill_value(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    fill = np.array((7, 2.5), [("a", ">i2"), ("b", "<f4")])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        x = file.create_dataset("x", (60, 3), fill.dtype, chunks=(4, 3), fillvalue=fill)
        x[20:30] = np.ones((10, 3), fill.dtype)
        expected = x[()]
    fields = {"a": "x:a", "b": "x:b", "n": SampleNumber()}
    with H5StreamLoader(tmp_path / "a.h5", 7, shuffle=True, fields=fields) as loader:
        for batch in loader:
            for name in "ab":
                assert (batch[name].numpy() == expected[name][batch["n"].numpy()]).all()
