"""Fields of one segment, or object, in different places of a file, beside h5py."""

import h5py
import numpy as np
import pytest
from oracle.compare import differs, parts_of, plain

from h5stream import Bounds, Field, H5Dataset, Objects, Rows, Table, errors
from h5stream.storage.file import groups

KEYS = ["b", "a10", "a9", "c"]
STORED = {"chunks": True, "compression": "gzip"}


@pytest.fixture
def path(tmp_path):
    """Write arrays of records, windows of A beside those of B for each patient, and parameters."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, key in enumerate(KEYS):
            file.create_dataset(f"data_arrays/{key}", data=rng.integers(0, 99, (6 + k, 3)), **STORED)
            file.create_dataset(f"same/{key}", data=rng.integers(0, 99, (5, 2)), **STORED)
            file.create_dataset(f"beside/same_{key}", data=rng.integers(0, 99, 7), **STORED)
            file[f"once/{key}"], file[f"group/{key}/x"] = k, np.arange(4) + 10 * k
            file[f"once/{key}"].attrs["unit"] = f"m{k}"
        for patient in (3, 1):
            for k in range(3):
                for name in "AB":
                    data = rng.integers(0, 99, (4 + k, 2))
                    file.create_dataset(f"patient_{patient}/{name}/seg_{k}/ecg", data=data, **STORED)
    return tmp_path / "a.h5"


def test_segments_of_patients_lie_beside_one_another(path):
    with h5py.File(path) as file:
        expected = [
            {"a": file[f"{patient}/A/{k}/ecg"][row], "b": file[f"{patient}/B/{k}/ecg"][row]}
            for patient in sorted(name for name in file if name.startswith("patient_"))
            for k in file[f"{patient}/A"]
            for row in range(len(file[f"{patient}/A/{k}/ecg"]))
        ]
    fields = {"a": "ecg", "b": "/patient_*/B/seg_*/ecg"}
    dataset = H5Dataset(path, fields, samples=Rows(of="patient_*/A/seg_*"))
    assert [field.name for field in dataset.layout.fields] == [*fields.values()]
    assert not differs(plain([*dataset]), plain(expected))


@pytest.mark.parametrize(
    ("of", "many"), [("same/*", 1), ("same/*", 2000), ([f"same/{key}" for key in ("c", "b", "a9")], 1)], ids=str
)
def test_objects_have_fields_beside_them(path, of, many, monkeypatch):
    monkeypatch.setattr(groups, "MANY", many)
    fields = {"x": ".", "there": "/beside/same_*", "ragged": Field("/data_arrays/*", ragged="list")}
    fields |= {"once": "/once/*", "group": "/group/*/x", "unit": "/once/*@unit"}
    places = {"x": "same/{}", "there": "beside/same_{}", "ragged": "data_arrays/{}", "once": "once/{}"}
    with h5py.File(path) as file:
        keys = [name.rpartition("/")[2] for name in (of if isinstance(of, list) else [*file["same"]])]
        expected = [{name: file[place.format(key)][()] for name, place in places.items()} for key in keys]
        for one, key in zip(expected, keys, strict=True):
            one |= {"group": file[f"group/{key}/x"][()], "unit": file[f"once/{key}"].attrs["unit"]}
    for _ in range(2):  # the second time from what the catalogue kept
        dataset = H5Dataset(path, fields, samples=Objects(of))
        assert len(dataset.layout.datasets[0]) == 1  # all objects are rows of one dataset
        assert not differs(plain(parts_of(dataset[:])), plain(expected))


def test_what_lacks_its_field_beside_it_is_left_out(path):
    with h5py.File(path, "a") as file:
        del file["beside/same_a9"]
    dataset = H5Dataset(path, [".", "/beside/same_*"], samples=Objects("same/*", missing="skip"))
    assert len(dataset) == 3
    with pytest.raises(errors.FieldNotFoundError, match=r"beside/same_a9.*missing='skip'\) leaves"):
        H5Dataset(path, [".", "/beside/same_*"], samples=Objects("same/*"))


def test_a_table_and_lookups_name_places_beside_too(path):
    with h5py.File(path, "a") as file:
        for k, key in enumerate(KEYS):
            file[f"hits/{key}"], file[f"ends/{key}"] = np.arange(3 * (6 + k)), 3 * np.arange(6 + k + 1)
            file[f"fours/{key}"] = np.arange(8 * k, 8 * k + 8).reshape(4, 2)
        fours = {key: file[f"fours/{key}"][:].tolist() for key in KEYS}
    hits = Field("/hits/*", lookup=Bounds("/ends/*"), ragged="list")
    first = H5Dataset(path, [".", hits], samples=Rows(of="data_arrays/*"))[:][1]
    assert [one.tolist() for one in first[6:9]] == [[18, 19, 20], [0, 1, 2], [3, 4, 5]]
    table = Table(group=["group/c", "group/b", "group/c"], row=[1, 0, 3])
    found = H5Dataset(path, ["x", Field("/fours/*", columns=[1])], samples=table)[:]
    assert found[0].tolist() == [31, 0, 33]
    assert found[1].tolist() == [[fours[key][row][1]] for key, row in (("c", 1), ("b", 0), ("c", 3))]


@pytest.mark.parametrize("name", ["b*", "*", "b:*"])
def test_a_star_of_a_member_is_its_own(path, name):
    records = np.zeros(5, [(name, "f4"), ("b2", "f4")])
    with h5py.File(path, "a") as file:
        for k, key in enumerate(KEYS):
            records[name] = np.arange(5) + 10 * k
            file[f"records/{key}"] = records
        right = [file[f"records/{key}"][name] for key in sorted(KEYS)]
    for written in (name, name.replace("*", r"\*")):
        dataset = H5Dataset(path, f"/records/*:{written}", samples=Rows(of="group/*"))
        assert dataset[:].tolist() == np.concatenate(right).tolist()


@pytest.mark.parametrize(
    ("field", "samples", "says"),
    [
        ("/*/*", Rows(of="group/*"), r"a \* of its name stands for what that of of= stood for, and 'group/\*' has 1"),
        ("/*/*", Objects(["group/a9"]), "with names in a list there is one"),
        ("/none/*", Rows(of="group/*"), "no dataset '/none/a10'"),
    ],
)
def test_names_that_lead_nowhere_are_told(path, field, samples, says):
    with pytest.raises(errors.H5StreamError, match=says):
        H5Dataset(path, ["x", field], samples=samples)


def test_several_patterns_are_told_how_to_write_it(path):
    with pytest.raises(errors.FieldNotFoundError, match=r"one pattern, or names.*Field\('/scores/\*'\)"):
        H5Dataset(path, "x", samples=Objects(("data_arrays/*", "scoring_arrays/*")))
