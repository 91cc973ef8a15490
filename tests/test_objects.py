"""Objects: a group, a dataset or a file a sample, beside h5py."""

import os

import h5py
import numpy as np
import pytest
from making import write_datasets

from h5stream import Field, H5Dataset, H5StreamLoader, Objects, errors


def test_objects_that_lack_a_field_are_told_or_left_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(5):
            file[f"{k}/x"] = np.full(3, k)
            if k != 2:
                file[f"{k}/y"] = np.full(2, k)
    with pytest.raises(errors.FieldNotFoundError, match=r"'2/y'.*missing='skip'\) leaves"):
        H5Dataset(tmp_path / "a.h5", ["x", "y"], samples=Objects("*"))
    dataset = H5Dataset(tmp_path / "a.h5", ["x", "y"], samples=Objects("*", missing="skip"))
    assert dataset[:][1][:, 0].tolist() == [0, 1, 3, 4]
    assert "1 segment(s) or object(s) that give no sample left out" in repr(dataset)


def test_objects_that_are_unlike_are_told(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["0/x"], file["1/x"], file["2/x"] = np.zeros(3), np.zeros(3), np.zeros(4)
        file["k/0"], file["k/1"] = np.zeros(3, "f4"), np.zeros(3, "f8")
    with pytest.raises(errors.FieldLengthError, match=r"'2/x' holds float64 \(4,\), and '0/x' float64 \(3,\)"):
        H5Dataset(tmp_path / "a.h5", "x", samples=Objects(["0", "1", "2"]))
    with pytest.raises(errors.FieldLengthError, match="'k/1' holds float64"):
        H5Dataset(tmp_path / "a.h5", ".", samples=Objects("k/*"))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        for k, (mark, value) in enumerate([(1, 2), (0.5, 2), (1, 2.5)]):
            file[f"{k}/x"], file[f"{k}/value"], file[str(k)].attrs["mark"] = np.zeros(3), value, mark
    for field, names, says in (("@mark", "01", "'1/@mark' is float64"), ("value", "02", "'2/value' is float64")):
        with pytest.raises(errors.FieldLengthError, match=says):
            H5Dataset(tmp_path / "b.h5", ["x", field], samples=Objects([*names]))


@pytest.mark.parametrize(
    ("fields", "samples", "says"),
    [
        ("x", lambda: Objects([]), "lists no object"),
        ("x", lambda: Objects(1), "takes a list of names, .*not 1"),
        ("x", lambda: Objects(["0", "1", "0"]), "of= names '0' twice; each once"),
        ("x", lambda: Objects("*", missing="ignore"), "missing= is"),
        (Field("x", take=[0]), lambda: Objects("*"), "takes datasets whole"),
        ("x", lambda: Objects("nothing/*"), r"Objects\('nothing/\*'\) matches no group"),
        ("x", lambda: Objects(["0", "9"]), r"'9', which Objects\(\[...\]\) names"),
        ("@mark", lambda: Objects("*", missing="fill"), r"Objects\('\*'\) matches .* no attributes or single values"),
    ],
)
def test_what_is_no_object_is_told(tmp_path, fields, samples, says):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["0/x"], file["0"].attrs["mark"], file["1/x"] = np.zeros(3), 1, np.zeros(3)
    with pytest.raises(errors.H5StreamError, match=says):
        H5Dataset(tmp_path / "a.h5", fields, samples=samples())


def test_links_that_lead_nowhere_are_counted(tmp_path, caplog):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(4):
            file[f"data/t{k}"] = np.full(3, k)
        file["data/t4"], file["data/t5"] = h5py.SoftLink("/lost"), h5py.SoftLink("/gone")
    assert len(H5Dataset(tmp_path / "a.h5", ".", samples=Objects("data/*"))) == 4
    assert "2 link(s) that the pattern matches lead nowhere and are left out, such as 'data/t4'" in caplog.text


def test_a_member_that_an_object_lacks_is_told_with_the_nearest(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(3):
            file[f"data/{k}/image"] = np.full(3, k)
    with pytest.raises(errors.FieldNotFoundError, match=r"Did you mean 'data/0/image'.*its name begins inside the"):
        H5Dataset(tmp_path / "a.h5", "imgae", samples=Objects("data/*"))
    with pytest.raises(errors.FieldNotFoundError, match="Did you mean 'data/1'"):
        H5Dataset(tmp_path / "a.h5", "image", samples=Objects(["data/0", "data/1 "]))


def test_external_links_are_refused_among_objects(tmp_path):
    write_datasets(tmp_path / "b.h5", x=np.full(3, 7))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(3):
            file[f"data/t{k}"] = np.full(3, k)
        file["data/t3"], file["over"] = h5py.SoftLink("/over"), h5py.ExternalLink("b.h5", "x")
    for of in ("data/*", [f"data/t{k}" for k in range(4)]):
        with pytest.raises(errors.ExternalDataError, match=r"external link to 'b\.h5'"):
            H5Dataset(tmp_path / "a.h5", ".", samples=Objects(of))
        dataset = H5Dataset(tmp_path / "a.h5", ".", samples=Objects(of), allow_external=True)
        assert dataset[:][:, 0].tolist() == [0, 1, 2, 7]


def test_files_that_are_samples_do_not_all_stay_open(tmp_path):
    for k in range(300):
        write_datasets(tmp_path / f"{k}.h5", x=np.full(3, k))
    with H5StreamLoader(f"{tmp_path}/*.h5", 30, shuffle=True, fields=["x"], samples=Objects("files")) as loader:
        before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
        for _ in range(2):
            assert sorted(int(x) for batch in loader for x in batch[0][:, 0]) == [*range(300)]
        assert not before or len(os.listdir("/proc/self/fd")) < before + 280


@pytest.mark.parametrize("field", ["x", Field("x", ragged="packed"), Field("x", ragged="arrays")])
def test_objects_that_lack_an_attribute_are_left_out_if_one_says_so(tmp_path, field):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(6):
            file[f"{k}/x"] = np.full(3, k)
            if k not in (0, 4):
                file[f"{k}"].attrs["label"] = k
            if k != 2:
                file[f"{k}/x"].attrs["unit"] = "mV"
    asked = {"x": field, "label": "@label", "unit": "x@unit"}
    dataset = H5Dataset(tmp_path / "a.h5", asked, samples=Objects("*", missing="skip"))
    assert dataset[:]["label"].tolist() == [1, 3, 5]
    assert [dataset[k]["x"].tolist() for k in range(3)] == [[1] * 3, [3] * 3, [5] * 3]
    for missing in ("error", "fill"):
        with pytest.raises(errors.FieldNotFoundError, match=r"'0' has no attribute 'label'"):
            H5Dataset(tmp_path / "a.h5", asked, samples=Objects("*", missing=missing))
    for wrong in ("@labels", "x@units"):
        with pytest.raises(errors.FieldNotFoundError, match=r"each of 6 objects lacks a field: .*has no attribute"):
            H5Dataset(tmp_path / "a.h5", {**asked, "label": wrong}, samples=Objects("*", missing="skip"))


@pytest.mark.parametrize("missing", ["fill", "skip"])
def test_an_object_in_another_file_is_none_that_is_missing(tmp_path, missing):
    write_datasets(tmp_path / "b.h5", x=np.full(3, 77.0))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(4):
            file[f"o/{k}/x"] = np.full(3, float(k))
        del file["o/1/x"], file["o/2/x"]
        file["o/1/x"] = h5py.ExternalLink("b.h5", "/x")
    samples = Objects("o/*", missing=missing)
    if missing == "skip":
        dataset = H5Dataset(tmp_path / "a.h5", "x", samples=samples, allow_external=True)
        assert dataset[:][:, 0].tolist() == [0, 77, 3]
    else:
        with pytest.raises(errors.FieldNotFoundError, match=r"no dataset 'o/2/x'.*fills datasets of objects that are"):
            H5Dataset(tmp_path / "a.h5", "x", samples=samples, allow_external=True)


@pytest.mark.parametrize("order", ["<", ">"])
def test_values_of_variable_length_have_their_own_byte_order_in_objects(tmp_path, order):
    items = np.array([1, 2], f"{order}i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(3):
            some, dtype = np.empty(1, object), h5py.vlen_dtype(items.dtype)
            some[0] = items * k
            file.create_dataset(f"{k}/one", (), dtype)[()] = items * k
            file.create_dataset(f"{k}/some", (1,), dtype)[0] = items * k
            file[f"{k}"].attrs.create("some", some, dtype=dtype)
    batch = H5Dataset(tmp_path / "a.h5", ["one", "some", "@some"], samples=Objects("*"))[:]
    assert batch[0].tolist() == [[0, 0], [1, 2], [2, 4]]
    assert [[one.tolist() for one in each] for each in batch[1]] == [[[0, 0]], [[1, 2]], [[2, 4]]]
    assert [[one.tolist() for one in each] for each in batch[2]] == [[[0, 0]], [[1, 2]], [[2, 4]]]
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file["2/one"]
        file.create_dataset("2/one", (), h5py.vlen_dtype(items.dtype))[()] = items[:1]
    with pytest.raises(errors.FieldLengthError, match=r"'2/one' is int32 \(1,\), and that of the first"):
        H5Dataset(tmp_path / "a.h5", "one", samples=Objects("*"))
