"""Samples of which each has a shape of its own, beside h5py: objects, files, rows of groups."""

import h5py
import numpy as np
import pytest

from h5stream import Crop, Field, H5Dataset, H5StreamLoader, Objects, Ragged, Rows, Sequences, errors

STORED = [{}, {"chunks": True}, {"compression": "gzip", "shuffle": True, "chunks": (3, 2, 2)}, {"scaleoffset": 0}]
ARRAYS = Field("x", ragged="arrays")


@pytest.fixture(params=STORED, ids=str)
def paths(request, tmp_path):
    """Two files of groups, whose arrays agree in nothing but their number of axes."""
    found = []
    for number in range(2):
        found.append(tmp_path / f"{number}.h5")
        with h5py.File(found[-1], "w") as file:
            for k in range(5):
                shape = (3 + k, 4 + number, 9 - k)
                values = np.random.default_rng(k).integers(0, 99, shape)
                file.create_dataset(f"data/{k}/x", data=values.astype("i2"), **request.param)
                file[f"data/{k}/y"], file[f"data/{k}/n"] = np.arange(3 + k), 10 * number + k
    return found


def read(paths):
    """Read all groups with h5py: the arrays by the group's number, and those of rows with the row's `y`."""
    whole, rows = {}, []
    for number, path in enumerate(paths):
        with h5py.File(path) as file:
            for k in range(5):
                values = whole[10 * number + k] = file[f"data/{k}/x"][()]
                rows += list(zip(values, file[f"data/{k}/y"][()], strict=True))
    return whole, rows


def mean_of(sample):
    return {"mean": sample["x"].double().mean(), "n": sample["n"]}


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("paths", [STORED[2]], indirect=True)
def test_python_for_each_sample_gets_it_in_its_shape(paths):
    whole, _ = read(paths)
    options = {"sample_transform": mean_of, "sample_workers": 1, "multiprocessing_context": "fork"}
    fields = {"x": ARRAYS, "n": "n"}
    with H5StreamLoader(paths, 3, shuffle=True, samples=Objects("data/*"), fields=fields, **options) as loader:
        found = {
            n: mean for batch in loader for n, mean in zip(batch["n"].tolist(), batch["mean"].tolist(), strict=True)
        }
    assert found == {n: pytest.approx(values.mean()) for n, values in whole.items()}


def test_what_has_no_shape_of_its_own_is_refused_by_name(paths):
    objects = Objects("data/*")
    with pytest.raises(errors.OptionError, match=r"samples=Objects"):
        H5Dataset(paths[0], ARRAYS, samples=Sequences(2, of="data/*"))
    with pytest.raises(errors.OptionError, match=r"samples=Objects"):
        H5Dataset(paths[0], Field("data/0/x", ragged="arrays"))
    with pytest.raises(errors.OptionError, match="whole arrays"):
        Field("x", ragged=Ragged("arrays", crop=Crop(3, at="start")))
    with pytest.raises(errors.OptionError, match="whole arrays"):
        Field("x", ragged="arrays", columns=[0, 1])
    with pytest.raises(errors.UnsupportedFieldError, match="single values"):
        H5Dataset(paths[0], Field("n", ragged="arrays"), samples=objects)
    with pytest.raises(errors.FieldLengthError, match="ragged='arrays'"):
        H5Dataset(paths[0], Field("x", ragged="list"), samples=objects)
    with pytest.raises(errors.FieldLengthError, match="ragged='arrays'"):
        H5Dataset(paths[0], "x", samples=Rows(of="data/*"))
    with h5py.File(paths[0], "a") as file:
        del file["data/3/x"]
        file["data/3/x"] = np.zeros((2, 2), "i2")
    with pytest.raises(errors.FieldLengthError, match=r"2 axes in group 'data/3'.*3 in"):
        H5Dataset(paths[0], ARRAYS, samples=objects)


def test_statistics_leave_them_out_and_say_so(paths):
    dataset = H5Dataset(paths, {"x": ARRAYS, "y": Field("y", ragged="arrays"), "n": "n"}, samples=Objects("data/*"))
    assert list(dataset.statistics()) == ["n"]
    with pytest.raises(errors.OptionError, match="shape of its own"):
        dataset.statistics("x")


def test_an_array_that_holds_nothing_is_told_with_the_way_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["0/x"], file["1/x"] = np.zeros((2, 3)), np.zeros((0, 3))
    with pytest.raises(
        errors.FieldLengthError, match=r"'1/x'.*\(0, 3\): there is nothing in it; .*Objects\(\[\.\.\.\]"
    ):
        H5Dataset(tmp_path / "a.h5", Field("x", ragged="arrays"), samples=Objects("*"))
    kept = H5Dataset(tmp_path / "a.h5", Field("x", ragged="arrays"), samples=Objects(["0"]))
    assert kept[0].shape == (2, 3)
