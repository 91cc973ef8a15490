"""Samples of which each has a shape of its own: pairs, lookups along another axis, what is refused."""

import h5py
import numpy as np
import pytest

from h5stream import Crop, Field, H5Dataset, H5StreamLoader, Lengths, Objects, Ragged, Rows, Sequences, Values, errors

ARRAYS = Field("x", ragged="arrays")


@pytest.fixture
def path(tmp_path):
    """Groups whose arrays agree in nothing but their number of axes."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(5):
            file[f"data/{k}/x"] = np.random.default_rng(k).integers(0, 99, (3 + k, 4, 9 - k), "i2")
            file[f"data/{k}/y"], file[f"data/{k}/n"] = np.arange(3 + k), k
    return tmp_path / "a.h5"


def test_what_has_no_shape_of_its_own_is_refused_by_name(path):
    objects = Objects("data/*")
    with pytest.raises(errors.OptionError, match=r"samples=Objects"):
        H5Dataset(path, ARRAYS, samples=Sequences(2, of="data/*"))
    with pytest.raises(errors.OptionError, match=r"samples=Objects"):
        H5Dataset(path, Field("data/0/x", ragged="arrays"))
    with pytest.raises(errors.OptionError, match="whole arrays"):
        Field("x", ragged=Ragged("arrays", crop=Crop(3, at="start")))
    with pytest.raises(errors.OptionError, match="whole arrays"):
        Field("x", ragged="arrays", columns=[0, 1])
    with pytest.raises(errors.UnsupportedFieldError, match="single values"):
        H5Dataset(path, Field("n", ragged="arrays"), samples=objects)
    with pytest.raises(errors.FieldLengthError, match="ragged='arrays'"):
        H5Dataset(path, Field("x", ragged="list"), samples=objects)
    with pytest.raises(errors.FieldLengthError, match="ragged='arrays'"):
        H5Dataset(path, "x", samples=Rows(of="data/*"))
    with h5py.File(path, "a") as file:
        del file["data/3/x"]
        file["data/3/x"] = np.zeros((2, 2), "i2")
    with pytest.raises(errors.FieldLengthError, match=r"2 axes in group 'data/3'.*3 in"):
        H5Dataset(path, ARRAYS, samples=objects)


def test_statistics_leave_them_out_and_say_so(path):
    dataset = H5Dataset(path, {"x": ARRAYS, "y": Field("y", ragged="arrays"), "n": "n"}, samples=Objects("data/*"))
    assert list(dataset.statistics()) == ["n"]
    with pytest.raises(errors.OptionError, match="shape of its own"):
        dataset.statistics("x")


def test_an_array_that_holds_nothing_is_told_with_the_way_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["0/x"], file["1/x"] = np.zeros((2, 3)), np.zeros((0, 3))
    with pytest.raises(errors.FieldLengthError, match=r"'1/x'.*\(0, 3\), without elements; .*Objects\(\[\.\.\.\]"):
        H5Dataset(tmp_path / "a.h5", Field("x", ragged="arrays"), samples=Objects("*"))
    kept = H5Dataset(tmp_path / "a.h5", Field("x", ragged="arrays"), samples=Objects(["0"]))
    assert kept[0].shape == (2, 3)


class PairedDataset:
    """Pairs of proteins, each with an embedding of its own length, as D-SCRIPT reads them."""

    def __init__(self, path, first, second, labels):
        with h5py.File(path) as file:
            self.embeddings = {name: file[f"e/{name}"][()] for name in {*first, *second}}
        self.first, self.second, self.labels = first, second, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, k):
        return self.embeddings[self.first[k]], self.embeddings[self.second[k]], self.labels[k]


@pytest.mark.parametrize("stored", [{}, {"compression": "gzip", "shuffle": True, "chunks": (1, 2, 2)}], ids=str)
def test_pairs_name_objects_of_any_shape(tmp_path, stored):
    rng, names = np.random.default_rng(0), [f"P{k}" for k in range(9)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, name in enumerate(names):
            file.create_dataset(f"e/{name}", data=rng.random((1, 3 + k, 5 - k % 2), "f4"), **stored)
    first, second = (rng.choice(names, 40).tolist() for _ in range(2))
    theirs = PairedDataset(tmp_path / "a.h5", first, second, list(range(40)))
    fields = {
        "a": Field("e/{}", lookup=first, ragged="arrays"),
        "b": Field("e/{}", lookup=second, ragged="arrays", columns=(0, ...)),
        "n": Values(range(40)),
    }
    found = []
    with H5StreamLoader(tmp_path / "a.h5", 7, shuffle=True, fields=fields) as batches:
        for batch in batches:
            for n, a, b in zip(batch["n"].tolist(), batch["a"], batch["b"], strict=True):
                assert np.array_equal(a.numpy(), theirs[n][0])
                assert np.array_equal(b.numpy(), theirs[n][1][0])
                found.append(n)
    assert sorted(found) == theirs.labels


def test_objects_that_are_named_have_as_many_axes(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"], file["b"], file["c"], file["t"] = np.zeros((2, 3)), np.zeros(3), np.zeros((2, 3), "i4"), ["x"]
        file["d"] = np.zeros((0, 3))
    for names, kind, says in [
        (["a", "b"], errors.FieldLengthError, "'b' has 1 axes, and another object 2"),
        (["a", "c"], errors.FieldLengthError, "must agree"),
        (["t"], errors.UnsupportedFieldError, "takes numbers along axes"),
        (["d"], errors.FieldLengthError, "without elements"),
    ]:
        with pytest.raises(kind, match=says):
            H5Dataset(tmp_path / "a.h5", Field("{}", lookup=names, ragged="arrays"))
    with pytest.raises(errors.OptionError, match="without lookup= of rows"):
        Field("a", lookup=[0], ragged="arrays")


def test_what_lies_along_another_axis_looks_up_by_its_places(tmp_path):
    rng, values = np.random.default_rng(0), [np.random.default_rng(k).random((3, 8 + k)) for k in range(2)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, one in enumerate(values):
            file[f"g{k}/x"], file[f"g{k}/pick"] = one, rng.integers(0, 5, 8 + k)
            file[f"g{k}/key"] = rng.choice([b"u", b"v"], 8 + k)
            file[f"g{k}/table"], file[f"g{k}/counts"] = np.arange(5) + 10 * k, np.arange(8 + k) % 3
            file[f"g{k}/hits"] = np.arange(int((np.arange(8 + k) % 3).sum()))
        file["o/u"], file["o/v"] = np.arange(3), np.arange(3) + 5
    fields = {
        "x": "x",
        "looked": Field("table", lookup="pick"),
        "named": Field("/o/{}", lookup="key"),
        "hits": Field("hits", lookup=Lengths("counts"), ragged="list"),
    }
    for samples, steps in ((Rows(of="g*", axis=-1), 1), (Sequences(4, of="g*", axis=1, stride=2), 2)):
        dataset, k = H5Dataset(tmp_path / "a.h5", fields, samples=samples), 0
        with h5py.File(tmp_path / "a.h5") as file:
            for number, one in enumerate(values):
                group = file[f"g{number}"]
                ends = np.cumsum(group["counts"])
                for t in range(0, one.shape[1] - (3 if steps == 2 else 0), steps):
                    sample = dataset[k]
                    assert np.array_equal(sample["x"].numpy(), one[:, t] if steps == 1 else one[:, t : t + 4])
                    assert sample["looked"] == group["table"][group["pick"][t]]
                    assert sample["named"].tolist() == file[f"o/{group['key'][t].decode()}"][()].tolist()
                    assert sample["hits"].tolist() == group["hits"][ends[t] - group["counts"][t] : ends[t]].tolist()
                    k += 1
        assert k == len(dataset)
