"""Types that h5py gives another dtype once elements were read, and stored types that it gives the same one."""

import warnings

import h5py
import numpy as np
import pytest
import torch

from h5stream import Field, H5Dataset, H5StreamLoader, Objects, Rows, Sequences
from h5stream.errors import FieldLengthError, FieldNotFoundError


def in_another_order(path, groups=("a", "b"), **storage):
    """Write complex numbers whose real part is declared first and comes second, alone and inside of a compound."""
    part = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
    part.insert(b"r", 4, h5py.h5t.IEEE_F32LE)
    part.insert(b"i", 0, h5py.h5t.IEEE_F32LE)
    both = h5py.h5t.create(h5py.h5t.COMPOUND, 12)
    both.insert(b"z", 4, part)
    both.insert(b"n", 0, h5py.h5t.STD_I32LE)
    z = (np.arange(24) - 1j * np.arange(24)[::-1]).astype("c8").reshape(6, 4)
    pairs = np.zeros((6, 4), [("n", "i4"), ("z", "c8")])
    pairs["n"], pairs["z"] = np.arange(24).reshape(6, 4), z * 2
    with h5py.File(path, "w") as file:
        for group in groups:
            at, creation = file.create_group(group), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            if storage.get("chunks"):
                creation.set_chunk((2, 4))
                creation.set_deflate(1)
            for name, dtype, values in ((b"z", part, z), (b"pairs", both, pairs)):
                space = h5py.h5s.create_simple((6, 4))
                dataset = h5py.h5d.create(at.id, name, dtype, space, creation)
                dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=h5py.h5t.py_create(values.dtype))
            single = h5py.h5d.create(at.id, b"single", part, h5py.h5s.create(h5py.h5s.SCALAR))
            single.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(z[0, 0]), mtype=h5py.h5t.py_create(z.dtype))
    return str(path), z, pairs


@pytest.mark.parametrize("chunks", [False, True])
def test_complex_numbers_whose_imaginary_part_comes_first_are_the_same_whatever_was_read_before(tmp_path, chunks):
    path, z, pairs = in_another_order(tmp_path / "a.h5", chunks=chunks)
    kept = []
    for _ in range(3):
        dataset = H5Dataset(path, {"z": "a/z", "p": "a/pairs", "m": "a/pairs:z", "all": Field("b/z", take="all")})
        kept.append(dataset)
        batch = dataset[:]
        assert np.array_equal(batch["z"], z)
        assert np.array_equal(batch["p"]["z"], pairs["z"])
        assert np.array_equal(batch["m"], pairs["z"])
        assert np.array_equal(batch["p"]["n"], pairs["n"])
        assert np.array_equal(dataset[3]["z"], z[3])
        assert np.array_equal(batch["all"][2], z)
        kept.append(H5StreamLoader(path, 6, fields=["a/z", "a/pairs:z"]))
        one, other = next(iter(kept[-1]))
        assert np.array_equal(one, z)
        assert np.array_equal(other, pairs["z"])
        for samples in (Rows(of=["a", "b"]), Sequences(3, of="*"), Objects("*"), Rows(of="*", axis=1)):
            kept.append(H5Dataset(path, "z", samples=samples))
            assert kept[-1][:].dtype == torch.complex64
        assert np.array_equal(kept[-2][:], np.stack([z, z]))
        kept.append(H5Dataset(path, ["z", "single"], samples=Objects("*")))
        assert np.array_equal(kept[-1][:][1], np.stack([z[0, 0]] * 2))
        with pytest.raises(FieldNotFoundError, match="It is not a compound but complex64"):
            H5Dataset(path, "a/z:r")
    for one in kept:
        one.close()


def test_a_compound_whose_imaginary_part_was_declared_first_stays_a_compound(tmp_path):
    values = np.zeros(5, [("i", "f4"), ("r", "f4")])
    values["i"], values["r"] = np.arange(5), -np.arange(5)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["z"] = values
    kept = [H5Dataset(str(tmp_path / "a.h5"), "z") for _ in range(3)]
    for one in kept:
        assert {name: each.tolist() for name, each in one[:].items()} == {k: values[k].tolist() for k in ("i", "r")}
        one.close()


def stored_types():
    """Name pairs of stored types of which h5py makes one dtype."""
    short = h5py.h5t.STD_I16LE.copy()
    short.set_precision(11)
    enum = h5py.h5t.py_create(h5py.enum_dtype({"A": 1}, basetype="i2"), logical=True)
    pairs = {"11 bits": (short, "i2"), "an enum": (enum, "i2")}
    if hasattr(h5py.h5t, "COMPLEX_IEEE_F32LE"):
        pairs["native complex"] = h5py.h5t.COMPLEX_IEEE_F32LE, "c8"
    return pairs


@pytest.mark.parametrize("kind", stored_types())
def test_objects_of_stored_types_of_one_dtype_are_joined(tmp_path, kind):
    stored, dtype = stored_types()[kind]
    values = np.arange(8).astype(dtype).reshape(2, 4)
    files = [str(tmp_path / f"{k}.h5") for k in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # h5py's, of precision
        with h5py.File(tmp_path / "all.h5", "w") as file:
            file["o/a"] = values[0]
            space = h5py.h5s.create_simple((4,))
            dataset = h5py.h5d.create(file["o"].id, b"b", stored, space)
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values[1])
            for name, path in zip("ab", files, strict=True):
                with h5py.File(path, "w") as other:
                    file.copy(f"o/{name}", other, "x")
        path, pad = str(tmp_path / "all.h5"), Field(".", ragged="pad")
        assert np.array_equal(H5Dataset(path, ".", samples=Objects("o/*"))[:], values)
        assert np.array_equal(H5Dataset(path, ".", samples=Objects(["o/b", "o/a"]))[:], values[::-1])
        assert np.array_equal(H5Dataset(path, pad, samples=Objects("o/*"))[:].values, values)
        assert np.array_equal(H5Dataset(files, "x", samples=Objects("files"))[:], values)
        assert np.array_equal(H5Dataset(path, ".", samples=Rows(of="o/*"))[:], values.reshape(-1))


def test_objects_of_other_dtypes_are_refused_by_their_names(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["o/a"], file["o/b"] = np.arange(4, dtype="i2"), np.arange(4, dtype="i4")
    with pytest.raises(FieldLengthError, match=r"'o/b' holds int32 .*, and 'o/a' int16"):
        H5Dataset(str(tmp_path / "a.h5"), ".", samples=Objects("o/*"))
