"""Members of compounds that make one tensor, beside h5py and NumPy."""

import h5py
import numpy as np
import pytest
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from h5stream import Field, H5Dataset, H5StreamLoader, errors

NAMES = ("pt", "eta", "phi", "mass", "flavour")


@st.composite
def stored(draw):
    """A compound of members that lie in any order, some of another type, and how it is stored."""
    kind = draw(st.sampled_from(["<f4", ">f4", "<f8", "<i2", ">u8", "<c8", "u1"]))
    kinds = [draw(st.sampled_from([kind, kind, kind, "<i4"])) for _ in NAMES]
    gaps = [draw(st.integers(0, 3)) for _ in NAMES]
    offsets, end = [], 0
    for k in draw(st.permutations(range(len(NAMES)))):
        offsets.append((k, end + gaps[k]))
        end += gaps[k] + np.dtype(kinds[k]).itemsize
    dtype = np.dtype(
        {
            "names": NAMES,
            "formats": kinds,
            "offsets": [offset for _, offset in sorted(offsets)],
            "itemsize": end + draw(st.integers(0, 4)),
        }
    )
    alike = [name for name, one in zip(NAMES, kinds, strict=True) if one == kind]
    if not alike:
        kinds[0], alike = kind, NAMES[:1]
        dtype = np.dtype({"names": NAMES, "formats": ["<i4"] * len(NAMES)})
        alike = list(NAMES)
    chosen = draw(st.lists(st.sampled_from(alike), min_size=1, max_size=6))
    shape = (draw(st.integers(1, 40)), *draw(st.lists(st.integers(1, 7), max_size=2)))
    options = draw(
        st.sampled_from(
            [
                {},
                {"chunks": True},
                {"chunks": True, "compression": "gzip", "shuffle": True},
                {"chunks": True, "fletcher32": True},
            ]
        )
    )
    if options:
        options = {**options, "chunks": tuple(draw(st.integers(1, n)) for n in shape)}
    return dtype, chosen, shape, options, draw(st.booleans())


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=stored(), data=st.data())
def test_members_are_stacked_as_numpy_stacks_them(tmp_path, form, data):
    dtype, chosen, shape, options, nested = form
    rng = np.random.default_rng(0)
    values = np.zeros(shape, dtype)
    for name in NAMES:
        values[name] = rng.integers(0, 100, shape)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        if nested:
            outer = np.zeros(shape, [("weight", "f4"), ("jet", dtype)])
            outer["jet"] = values
            file.create_dataset("jets", data=outer, **options)
        else:
            file.create_dataset("jets", data=values, **options)
    columns = data.draw(st.none() | st.slices(shape[1])) if len(shape) > 1 else None
    field = Field("jets:jet" if nested else "jets", members=chosen, columns=columns)
    taken = values if columns is None else values[:, columns]
    wanted = np.stack([taken[name] for name in chosen], axis=-1)
    wanted = wanted.astype(wanted.dtype.newbyteorder("="))
    rows = np.array(data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=30)))
    dataset = H5Dataset(path, field)
    assert (dataset[:].numpy() == wanted).all()
    assert dataset[:].shape == wanted.shape
    assert (dataset[rows].numpy() == wanted[rows]).all()
    assert (dataset[int(rows[0])].numpy() == wanted[rows[0]]).all()
    with H5StreamLoader(path, 8, shuffle=True, fields=[field, Field("jets", columns=columns)], num_workers=0) as loader:
        for found, _ in loader:
            assert found.shape[1:] == wanted.shape[1:]
            assert all((row == wanted).reshape(shape[0], -1).all(axis=1).any() for row in found.numpy())


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
        (lambda: Field("x", members="a", repeat=True), errors.OptionError, "repeat=True takes the whole"),
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


def test_members_that_h5py_converts_are_stacked_too(tmp_path):
    """A float of 16 bits with a member of 9 bits precision is no NumPy type."""
    odd = h5py.h5t.STD_I16LE.copy()
    odd.set_precision(9)
    compound = h5py.h5t.create(h5py.h5t.COMPOUND, 4)
    compound.insert(b"a", 0, odd)
    compound.insert(b"b", 2, odd)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple((5, 2))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", compound, space))
        values = np.zeros((5, 2), [("a", "i2"), ("b", "i2")])
        values["a"], values["b"] = np.arange(10).reshape(5, 2), np.arange(10).reshape(5, 2) - 3
        dataset[...] = values
    found = H5Dataset(tmp_path / "a.h5", Field("x", members=["b", "a"]))
    assert found.layout.datasets[0][0].access == "h5py"
    assert (found[:].numpy() == np.stack([values["b"], values["a"]], axis=-1)).all()
