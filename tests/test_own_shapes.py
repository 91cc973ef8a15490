"""Samples of which each has a shape of its own, beside h5py: objects, files, rows of groups."""

import h5py
import numpy as np
import pytest
import torch

from h5stream import Field, H5Dataset, H5StreamLoader, Objects, Rows, Sequences, errors

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


@pytest.mark.parametrize("options", [{}, {"stage": True}], ids=["", "staged"])
def test_objects_come_in_their_own_shapes(paths, tmp_path, options):
    options = {"stage_to": tmp_path / "staged"} if options.get("stage") else options
    whole, _ = read(paths)
    fields = {"x": ARRAYS, "half": Field("x", ragged="arrays", columns=(2, ...), dtype=torch.float64), "n": "n"}
    with H5StreamLoader(paths, 4, shuffle=True, samples=Objects("data/*"), fields=fields, **options) as loader:
        seen = []
        for batch in loader:
            for x, half, n in zip(batch["x"], batch["half"], batch["n"].tolist(), strict=True):
                assert (x.dtype, half.dtype) == (torch.int16, torch.float64)
                assert np.array_equal(x.numpy(), whole[n])
                assert np.array_equal(half.numpy(), whole[n][2])
                seen.append(n)
    assert sorted(seen) == sorted(whole)


def test_rows_of_groups_come_in_the_shapes_of_their_groups(paths):
    _, rows = read(paths)
    dataset = H5Dataset(paths, [ARRAYS, "y"], samples=Rows(of="data/*"))
    assert len(dataset) == len(rows)
    for k in (0, 7, len(rows) - 1):
        x, y = dataset[k]
        assert np.array_equal(x.numpy(), rows[k][0])
        assert y == rows[k][1]
    found = [pair for x, y in H5StreamLoader(dataset, 7, shuffle=True) for pair in zip(x, y.tolist(), strict=True)]
    expected = sorted((y, x.shape, x.tobytes()) for x, y in rows)
    assert sorted((y, tuple(x.shape), x.contiguous().numpy().tobytes()) for x, y in found) == expected


def mean_of(sample):
    return {"mean": sample["x"].double().mean(), "n": sample["n"]}


def test_python_for_each_sample_gets_it_in_its_shape(paths):
    whole, _ = read(paths)
    options = {"sample_transform": mean_of, "sample_workers": 1}
    fields = {"x": ARRAYS, "n": "n"}
    with H5StreamLoader(paths, 3, shuffle=True, samples=Objects("data/*"), fields=fields, **options) as loader:
        found = {
            n: mean for batch in loader for n, mean in zip(batch["n"].tolist(), batch["mean"].tolist(), strict=True)
        }
    assert found == {n: pytest.approx(values.mean()) for n, values in whole.items()}


def test_files_are_objects_and_rows_of_files_too(paths):
    for k, path in enumerate(paths):
        with h5py.File(path, "a") as file:
            file["z"], file["label"] = np.full((2, 3 + k, 5 - k), k), [0, 1]
    z = Field("z", ragged="arrays")
    (batch,) = H5StreamLoader(paths, 2, samples=Objects("files"), fields=z)
    assert [one.shape for one in batch] == [(2, 3, 5), (2, 4, 4)]
    (batch,) = H5StreamLoader(paths, 4, samples=Rows(of="files"), fields={"z": z, "label": "label"})
    assert [one.shape for one in batch["z"]] == [(3, 5), (3, 5), (4, 4), (4, 4)]
    assert batch["label"].tolist() == [0, 1, 0, 1]


def test_what_has_no_shape_of_its_own_is_refused_by_name(paths):
    objects = Objects("data/*")
    with pytest.raises(errors.OptionError, match=r"samples=Objects"):
        H5Dataset(paths[0], ARRAYS, samples=Sequences(2, of="data/*"))
    with pytest.raises(errors.OptionError, match=r"samples=Objects"):
        H5Dataset(paths[0], Field("data/0/x", ragged="arrays"))
    with pytest.raises(errors.OptionError, match="whole arrays"):
        Field("x", ragged="arrays", max_length=3)
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
