"""Enums of several files, groups or objects: numbers that stand for two things are refused, in words that say which."""

import h5py
import numpy as np
import pytest
import torch

from h5stream import Boxes, Field, H5Dataset, Mixture, Objects, Rows, Sequences, Table
from h5stream.errors import FieldLengthError, UnsupportedFieldError

ONE = {"background": 0, "track": 1}
SWAPPED = {"track": 0, "background": 1}
MORE = {"background": 0, "track": 1, "noise": 2}
OTHERWISE = {"background": 0, "track": 1, "signal": 2}
MOVED = {"track": 5}
CODES = np.array([[0, 1], [1, 0], [1, 1], [0, 0]], "u1")


def write(path, *enums, codes=CODES):
    """Write a group for each enum, and the first also at the root; None for plain numbers."""
    with h5py.File(path, "w") as file:
        for k, labels in enumerate(enums):
            dtype = np.dtype("u1") if labels is None else h5py.enum_dtype(labels, basetype="u1")
            for group in (f"g{k}", "/") if not k else (f"g{k}",):
                at = file.require_group(group)
                at.create_dataset("y", data=codes, dtype=dtype, chunks=(2, 2))
                pairs = np.zeros(len(codes), np.dtype([("a", dtype), ("b", "f4")]))
                pairs["a"] = codes[:, 0]
                at.create_dataset("pairs", data=pairs)
                at.create_dataset("array", (len(codes),), np.dtype((dtype, (2,))))[...] = codes
                ragged = at.create_dataset("ragged", (len(codes),), h5py.vlen_dtype(dtype))
                for row, values in enumerate(codes):
                    ragged[row] = values
                at.attrs.create("label", np.uint8(1), dtype=dtype)
    return str(path)


def two(folder, first, second):
    return [write(folder / f"{k}.h5", labels) for k, labels in enumerate((first, second))]


FIELDS = {
    "y": "y",
    "a member": "pairs:a",
    "all members": "pairs",
    "arrays of enums": "array",
    "variable length": Field("ragged", ragged="pad"),
    "texts of variable length": "ragged",
}
READERS = {
    "files": lambda paths, groups, field: H5Dataset(paths, field),
    "datasets": lambda paths, groups, field: H5Dataset([H5Dataset(path, field) for path in paths]),
    "a mixture": lambda paths, groups, field: Mixture({"a": paths[0], "b": paths[1]}, [0.5, 0.5], fields=field),
    "groups": lambda paths, groups, field: H5Dataset(groups, field, samples=Rows(of="g*")),
    "groups by name": lambda paths, groups, field: H5Dataset(groups, field, samples=Rows(of=["g1", "g0"])),
    "a table": lambda paths, groups, field: H5Dataset(groups, field, samples=Table(row=[0, 1], group=["g0", "g1"])),
}


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("way", READERS)
def test_a_number_that_stands_for_two_things_is_refused(tmp_path, way, kind):
    paths, groups = two(tmp_path, ONE, SWAPPED), write(tmp_path / "groups.h5", ONE, SWAPPED)
    with pytest.raises(FieldLengthError, match=r"enum whose number 0 stands for '(background|track)' in .*, and for"):
        READERS[way](paths, groups, FIELDS[kind])
    with pytest.raises(FieldLengthError, match=r"'track' is the number 1 in .*, and 5 in"):
        H5Dataset(two(tmp_path, ONE, MOVED), FIELDS[kind])


OBJECTS = {
    "sequences": lambda paths, groups: H5Dataset(groups, "y", samples=Sequences(2, of="g*")),
    "boxes": lambda paths, groups: H5Dataset(groups, "y", samples=Boxes((2, 2), at="grid", of="g*")),
    "rows along another axis": lambda paths, groups: H5Dataset(groups, "y", samples=Rows(of="g*", axis=1)),
    "objects": lambda paths, groups: H5Dataset(groups, "y", samples=Objects("g*")),
    "padded objects": lambda paths, groups: H5Dataset(groups, Field("y", ragged="pad"), samples=Objects("g*")),
    "arrays": lambda paths, groups: H5Dataset(groups, Field("y", ragged="arrays"), samples=Objects("g*")),
    "datasets as objects": lambda paths, groups: H5Dataset(groups, ".", samples=Objects("g*/y")),
    "files as objects": lambda paths, groups: H5Dataset(paths, "y", samples=Objects("files")),
    "attributes": lambda paths, groups: H5Dataset(groups, ["y", "@label"], samples=Rows(of="g*")),
    "attributes of files": lambda paths, groups: H5Dataset(paths, ["pairs:b", "@label"]),
    "attributes of objects": lambda paths, groups: H5Dataset(groups, ["pairs:b", "@label"], samples=Objects("g*")),
    "what is there once": lambda paths, groups: H5Dataset(paths, ["pairs:b", Field("y", take="all")]),
    "named objects": lambda paths, groups: H5Dataset(paths[0], Field("{}/y", file=groups, lookup=["g0", "g1"])),
    "numbered objects": lambda paths, groups: H5Dataset(groups, "g{}/y"),
    "looked up": lambda paths, groups: H5Dataset(paths[0], Field("y", file=paths, lookup=np.arange(4))),
}


@pytest.mark.parametrize("way", OBJECTS)
def test_a_number_that_stands_for_two_things_is_refused_for_each_kind_of_sample(tmp_path, way):
    paths, groups = two(tmp_path, ONE, SWAPPED), write(tmp_path / "groups.h5", ONE, SWAPPED)
    with pytest.raises(FieldLengthError, match=r"enum.*number 0 stands for '(background|track)' in .*, and for"):
        OBJECTS[way](paths, groups)


def test_more_labels_than_another_enum_has_may_be_joined(tmp_path):
    paths, groups = two(tmp_path, ONE, MORE), write(tmp_path / "groups.h5", MORE, ONE)
    for way, make in READERS.items():
        assert sorted(make(paths, groups, "y")[:].numpy()[:, 0].tolist())[0] == 0, way
    for make in (OBJECTS["objects"], OBJECTS["padded objects"], OBJECTS["files as objects"]):
        values = make(paths, groups)[:]
        values = np.asarray(values if isinstance(values, torch.Tensor) else values.values)
        assert np.array_equal(values.reshape(2, 4, 2), np.stack([CODES, CODES]))
    assert H5Dataset(groups, ["y", "@label"], samples=Rows(of="g*"))[5][1] == 1


def test_what_one_enum_has_more_is_compared_with_what_another_has_more(tmp_path):
    paths = [write(tmp_path / f"{k}.h5", labels) for k, labels in enumerate((ONE, MORE, OTHERWISE))]
    said = r"number 2 stands for 'noise' in .*1\.h5.*, and for 'signal' in .*2\.h5"
    with pytest.raises(FieldLengthError, match=said):
        H5Dataset(paths, "y")
    with pytest.raises(FieldLengthError, match="number 2 stands for"):
        H5Dataset([H5Dataset(paths[:2], "y"), H5Dataset(paths[2], "y")])
    groups = write(tmp_path / "groups.h5", ONE, MORE, OTHERWISE)
    for fields in ("y", Field("y", ragged="pad"), ["pairs:b", "@label"]):
        with pytest.raises(FieldLengthError, match="number 2 stands for"):
            H5Dataset(groups, fields, samples=Objects("g*"))


@pytest.mark.parametrize("between", [None, ONE])
def test_plain_numbers_beside_an_enum_contradict_no_label(tmp_path, between):
    paths, groups = two(tmp_path, MORE, None), write(tmp_path / "groups.h5", None, MORE)
    assert np.array_equal(H5Dataset(paths, "y")[:], np.concatenate([CODES, CODES]))
    for samples, shape in ((Rows(of="g*"), (8, 2)), (Objects("g*"), (2, 4, 2)), (Sequences(4, of="g*"), (2, 4, 2))):
        assert np.array_equal(H5Dataset(groups, "y", samples=samples)[:], np.stack([CODES, CODES]).reshape(shape))
    third = write(tmp_path / "third.h5", {"background": 3})
    with pytest.raises(FieldLengthError, match=r"'background' is the number 0 in .*, and 3 in"):
        H5Dataset([*paths, third], "y")


def test_members_that_make_one_tensor_have_one_enum(tmp_path):
    path = str(tmp_path / "a.h5")
    a, b, c = (h5py.enum_dtype(labels, basetype="u1") for labels in (ONE, SWAPPED, MORE))
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=np.zeros(3, np.dtype([("a", a), ("b", b), ("c", c)])))
    with pytest.raises(UnsupportedFieldError, match=r"enums, and number 0 stands for 'background' in 'a', and for"):
        H5Dataset(path, Field("t", columns=["a", "b"]))
    assert H5Dataset(path, Field("t", columns=["a", "c"]))[:].shape == (3, 2)
