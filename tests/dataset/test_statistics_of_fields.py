"""What `H5Dataset.statistics` finds is what NumPy finds of the whole, and is never that of a file as it was."""

import math
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.making import corrupt_chunk, read_with_h5py, vlen, write_datasets
from support.sample_files import settle

from h5stream import Field, H5Dataset, Lengths, Objects, Ragged, Values
from h5stream.base import hints
from h5stream.dataset.moments import MOST_VALUES, Moments
from h5stream.engine import sizing
from h5stream.errors import CorruptChunkError, FieldNotFoundError, OptionError
from h5stream.storage.file.catalogue import forget, kept_of

KINDS = ["f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def moments_of(values, pieces=3):
    found = Moments(values.dtype, values.shape[-1])
    for piece in np.array_split(values, pieces):
        if piece.size:
            found.add(piece)
    return found


def exactly(column):
    """Give mean and standard deviation by whole numbers and fractions of any length."""
    whole = [int(v) for v in column.tolist()]
    n, total, squares = len(whole), sum(whole), sum(v * v for v in whole)
    return total / n, math.sqrt((n * squares - total * total) / (n * n))


@given(data=st.data(), kind=st.sampled_from(KINDS), shape=st.tuples(st.integers(1, 60), st.integers(1, 5)))
def test_any_numbers_have_the_moments_that_numpy_finds(data, kind, shape):
    values = data.draw(arrays.arrays(kind, shape))
    found = moments_of(values)
    for channel, column in enumerate(values.T):
        if values.dtype.kind in "biu":
            mean, std = exactly(column)
            assert (found.mean[channel], found.std[channel]) == pytest.approx((mean, std), rel=1e-15)
            assert (found.least[channel], found.most[channel]) == (column.min(), column.max())
            continue
        finite = column[np.isfinite(column)].astype(np.longdouble)
        assert (found.nan[channel], found.inf[channel]) == (np.isnan(column).sum(), np.isinf(column).sum())
        assert found.count[channel] == len(finite)
        if not len(finite):
            assert np.isnan([found.mean[channel], found.std[channel]]).all()
            continue
        near = 1e-12 * float(np.abs(finite).max())
        assert found.mean[channel] == pytest.approx(float(finite.mean()), rel=1e-12, abs=near)
        assert found.std[channel] == pytest.approx(float(finite.std()), rel=1e-9, abs=near)
        assert (found.least[channel], found.most[channel]) == (finite.min(), finite.max())


@pytest.mark.parametrize("outlier", [None, 0.0, np.nan, np.inf])
@pytest.mark.parametrize("lanes", [1, 3, 700])
def test_a_large_offset_costs_no_digits(outlier, lanes):
    values = np.random.default_rng(0).normal(size=(9000, lanes)) * 1e-3 + 1e8
    if outlier is not None:
        values[0] = outlier
    finite = np.where(np.isfinite(values), values, np.nan).astype(np.longdouble)
    found = moments_of(values, 7)
    assert np.allclose(found.std, np.nanstd(finite, axis=0).astype("f8"), rtol=1e-11, atol=0)
    assert np.allclose(found.mean, np.nanmean(finite, axis=0).astype("f8"), rtol=1e-15, atol=0)


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_numbers_whose_squares_are_no_float64_have_their_mean_and_deviation(pieces):
    columns = [
        [0, 0, 5e-199, 0, 0, 0],
        [1e-170, 3e-170, np.nan, 1e-170, 3e-170, 2e-170],
        [1e200, 3e200, 1, 2, np.inf, 1e-300],
        [-1e308, 1e308, 1e308, -1e308, 0, 0],
        [5e-324, 0, 0, 5e-324, 0, 0],
        [1e-160, 1e-160, 1e-160, 1e-170, 1e-170, 1e-170],
        [0, 0, 0, 0, 0, 1e-200],
        [1e300, 1, 2, 3, 4, 5],
        [1, 2, 3, 4, 5, 1e300],
        [1e200, 1e200, 1e200, 1e200, 1e200, 1e200],
        [0, 0, 0, 0, 0, 0],
        [1, 2, 3, 4, 5, 6],
    ]
    values = np.array(columns).T.copy()
    merged = Moments(values.dtype, len(columns))
    for piece in np.array_split(values, pieces):
        merged.merge(moments_of(piece, 1))
    finite = np.where(np.isfinite(values), values, np.nan).astype(np.longdouble)
    for summed in (moments_of(values, pieces), merged, moments_of(np.repeat(values, 3000, axis=0), pieces)):
        near = 1e-12 * np.nanmax(np.abs(finite), axis=0).astype("f8") + 5e-324
        assert (np.abs(summed.mean - np.nanmean(finite, axis=0).astype("f8")) <= near).all()
        assert np.allclose(summed.std, np.nanstd(finite, axis=0).astype("f8"), rtol=1e-12, atol=5e-324)


def test_whole_numbers_of_any_size_are_summed_exactly():
    values = np.concatenate([np.full(5000, 2**63 - 1), np.full(5001, -(2**63))]).reshape(-1, 1)
    found = moments_of(values)
    assert (found.mean[0], found.std[0]) == exactly(values[:, 0])
    close = (np.arange(10001) % 3 + 2**62).reshape(-1, 1)
    assert moments_of(close).std[0] == pytest.approx(np.std(np.arange(10001) % 3), rel=1e-14)


# --- over files -----------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as f:
        table = rng.normal(size=(500, 6)).astype("f4")
        table[3, 2], table[4, 1], table[5, 1] = np.nan, np.inf, -np.inf
        f.create_dataset("table", data=table, chunks=(40, 6), compression="gzip", shuffle=True)
        f["image"] = rng.integers(0, 256, (500, 3, 5, 4), dtype="u1")
        f["mask"] = rng.integers(0, 4, (500, 5, 4), dtype="u1")
        f["label"] = rng.integers(-3, 4, 500)
        f["share"], f["flag"] = rng.random(500), rng.random(500) < 0.3
        f["big"] = np.arange(500, dtype=">i4")
        f["half"] = rng.random((500, 2)).astype("f2")
        f["name"] = np.array([b"a", b"b"])[rng.integers(0, 2, 500)]
        f["text"] = np.array([f"t{k % 3}" for k in range(500)], dtype=object)
        f["wave"] = np.ones(500, "c8")
        f["all"] = np.zeros(500, [("age", "i4"), ("name", "S3")])
        f["lengths"] = np.arange(500) % 3
        f["hits"] = rng.normal(size=(int((np.arange(500) % 3).sum()), 2))
        f["first"], f["which"] = np.arange(500), np.arange(500)[::-1]
    return settle(tmp_path / "a.h5")


def same(found, values, axes=()):
    """Compare with NumPy, over all axes but those kept."""
    values = np.asarray(values)
    over = tuple(axis for axis in range(values.ndim) if axis not in axes)
    numbers = np.where(np.isfinite(values), values, np.nan).astype("f8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "mean": np.nanmean(numbers, axis=over),
            "std": np.nanstd(numbers, axis=over),
            "min": np.nanmin(numbers, axis=over),
            "max": np.nanmax(numbers, axis=over),
            "nan": np.isnan(values).sum(axis=over),
            "inf": np.isinf(values).sum(axis=over),
            "count": np.isfinite(values).sum(axis=over),
        }
    for key, wanted in expected.items():
        assert np.allclose(getattr(found, key), wanted, rtol=1e-12, atol=1e-15, equal_nan=True), key
        assert np.shape(getattr(found, key)) == np.shape(wanted)


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("table", None), ("table", -1), ("table", 0), ("image", 0), ("image", -1), ("image", (0, 2)), ("image", None),
        ("mask", None), ("label", None), ("share", None), ("flag", None), ("big", None), ("half", -1),
    ],
)  # fmt: skip
def test_a_field_has_the_statistics_that_numpy_finds(path, name, axis):
    values = read_with_h5py(path, name)
    found = H5Dataset(path, name).statistics(axis=axis)[name]
    axes = () if axis is None else tuple(np.atleast_1d(axis))
    same(found, values, [1 + a if a >= 0 else values.ndim + a for a in axes])
    assert found.samples == 500
    counts = dict(zip(*(each.tolist() for each in np.unique(values, return_counts=True)), strict=True))
    assert found.counts == (counts if len(counts) <= MOST_VALUES and name != "table" else None)


@pytest.mark.parametrize("part", ["all", "some"])
def test_every_kind_of_sample_has_statistics(path, tmp_path, part):
    hits, table, which = (read_with_h5py(path, name) for name in ("hits", "table", "which"))
    ragged = Field("hits", lookup=Lengths("lengths"), ragged=Ragged("pad", pad_value=1e9))
    looked_up = Field("table", lookup="which")
    dataset = H5Dataset(path, {"h": ragged, "t": looked_up, "v": Values(np.arange(500) % 5)})
    rows = np.arange(500) if part == "all" else np.arange(0, 500, 7)
    starts = np.append(0, np.cumsum(np.arange(500) % 3))
    expected = np.concatenate([hits[starts[k] : starts[k + 1]] for k in rows])
    found = (dataset if part == "all" else dataset.subset(rows)).statistics(axis={"h": -1, "t": 0})
    same(found["h"], expected, [1])
    same(found["t"], table[which[rows]], [1])
    same(found["v"], rows % 5)


def test_objects_of_unlike_lengths_have_statistics(tmp_path):
    rng = np.random.default_rng(1)
    with h5py.File(tmp_path / "o.h5", "w") as f:
        waves = [rng.normal(size=(k + 1, 3)) for k in range(20)]
        for k, wave in enumerate(waves):
            f[f"data/{k:02}"] = wave
            f[f"data/{k:02}"].attrs["label"] = k % 2
        f.create_dataset("vlen", **vlen("f4", map(np.arange, range(20))))
    dataset = H5Dataset(tmp_path / "o.h5", {"x": Field(".", ragged="list"), "y": "@label"}, samples=Objects("data/*"))
    found = dataset.statistics(axis={"x": -1})
    same(found["x"], np.concatenate(waves), [1])
    assert found["y"].counts == {0: 10, 1: 10}
    lists = H5Dataset(tmp_path / "o.h5", "vlen").statistics()["vlen"]
    same(lists, np.concatenate([np.arange(k) for k in range(20)]))


def test_texts_of_samples_of_unlike_lengths_are_counted(tmp_path):
    words, counts = [b"a", b"bb", b"a", b"", b"ccc", b"a"], [0, 2, 3, 1]
    with h5py.File(tmp_path / "t.h5", "w") as f:
        f["fixed"], f["n"] = np.array(words), counts
        f.create_dataset("text", data=words, dtype=h5py.string_dtype())
    for name in ("fixed", "text"):
        field = Field(name, lookup=Lengths("n"), ragged="list")
        assert H5Dataset(tmp_path / "t.h5", {"t": field}).statistics()["t"].counts == {
            b"": 1,
            b"a": 3,
            b"bb": 1,
            b"ccc": 1,
        }
        assert H5Dataset(tmp_path / "t.h5", {"t": field}).subset([1]).statistics()["t"].counts == {b"a": 1, b"bb": 1}


def test_texts_are_counted_and_complex_numbers_left_out(path):
    found = H5Dataset(path, ["name", "text", "wave", "all"]).statistics()
    assert list(found) == ["name", "text", "all:age", "all:name"]
    assert found["name"].counts.keys() == {b"a", b"b"}
    assert list(found["text"].counts.values()) == [167, 167, 166]
    assert found["all:age"].counts == {0: 500}
    assert math.isnan(found["name"].mean)
    assert found["name"].to_dict()["mean"] is None
    with pytest.raises(OptionError, match="'name' is text"):
        found["name"].normalize()


def test_a_second_call_reads_nothing_and_says_the_same(path, monkeypatch):
    fields = ["table", "label", "share", "name", "image"]
    first = H5Dataset(path, fields).statistics(axis={"table": -1})
    assert [one.of for one in kept_of(path)] == ["statistics"]
    monkeypatch.setattr("h5stream.dataset.statistics.read_through", lambda *_: pytest.fail("it was read again"))
    again = H5Dataset(path, fields).statistics(axis={"table": -1})
    assert {k: v.to_dict() for k, v in first.items()} == {k: v.to_dict() for k, v in again.items()}
    assert again["table"].mean.dtype == np.float64
    assert again["name"].counts == first["name"].counts


@pytest.mark.parametrize("change", ["data", "damage", "another part", "another axis", "forgotten"])
def test_what_was_kept_of_something_else_is_not_believed(path, change):
    before = H5Dataset(path, "table").statistics()["table"]
    (kept,) = kept_of(path)
    dataset, axis = H5Dataset(path, "table"), None
    if change == "data":
        with h5py.File(path, "a") as f:
            f["table"][:] = 7
        os.utime(path, (2e9, 2e9))
        assert H5Dataset(path, "table").statistics()["table"].mean == 7
        return
    if change == "damage":
        content = bytearray(Path(kept.path).read_bytes())
        place = content.index(b'"mean"')
        content[place + 9] ^= 1
        Path(kept.path).write_bytes(content)
    elif change == "another part":
        dataset = dataset.subset(slice(10))
    elif change == "another axis":
        axis = -1
    else:
        assert forget(path) == 1
    values = read_with_h5py(path, "table")
    values = values if dataset.rows is None else values[dataset.rows]
    same(dataset.statistics(axis=axis)["table"], values, [1] if axis else [])
    assert before.mean == H5Dataset(path, "table").statistics()["table"].mean


@pytest.mark.parametrize(
    ("fields", "axis", "rule"),
    [
        ("tabel", None, "has no field 'tabel'.*table"),
        ("table", 3, "has 1 axis, of"),
        ("label", -1, "have no axis"),
        ("table", "x", "is a number"),
        ("table", {"other": 1}, "axis= names 'other'"),
        ("wave", None, "complex"),
    ],
)
def test_what_has_no_statistics_says_why(path, fields, axis, rule):
    dataset = H5Dataset(path, ["table", "label", "wave"])
    with pytest.raises((OptionError, FieldNotFoundError), match=rule):
        dataset.statistics(fields, axis=axis)


def test_tiny_and_huge_numbers_have_statistics_in_every_way_of_asking(tmp_path, monkeypatch):
    values = np.array([[1e-170, 1e200], [3e-170, 3e200]] * 50)
    write_datasets(tmp_path / "a.h5", x=values)
    write_datasets(tmp_path / "b.h5", x=values * 2)
    both = np.concatenate([values, values * 2]).astype(np.longdouble)
    mean, std = both.mean(axis=0).astype("f8"), both.std(axis=0).astype("f8")
    dataset = H5Dataset([tmp_path / "a.h5", tmp_path / "b.h5"], "x")
    with ThreadPoolExecutor(2) as executor:
        for name, ways in (("here", {}), ("here", {}), ("there", {"executor": executor})):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
            known = dataset.statistics(axis=-1, **ways)["x"]
            assert np.allclose(known.mean, mean, rtol=1e-12, atol=0)
            assert np.allclose(known.std, std, rtol=1e-12, atol=0)


def test_normalizing_what_never_varies_divides_by_one(path):
    with h5py.File(path, "a") as f:
        f["flat"], f["none"] = np.full((500, 2), 3.0), np.full(500, np.nan)
    found = H5Dataset(path, ["flat", "none", "image"]).statistics(axis={"flat": -1, "image": 0})
    assert found["flat"].normalize()["std"].tolist() == [1, 1]
    assert found["none"].normalize() == {"mean": 0, "std": 1}
    assert found["image"].normalize()["mean"].shape == (3, 1, 1)
    assert isinstance(H5Dataset(path, "image").statistics(axis=())["image"].mean, float)


def test_a_corrupt_chunk_is_an_error_and_nothing_is_kept(path):
    dataset = H5Dataset(path, "table")
    corrupt_chunk(path, 3, "table")
    settle(path)
    with pytest.raises(CorruptChunkError):
        dataset.statistics()
    assert kept_of(path) == []


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_statistics_of_encoded_images_are_told_from_those_of_pixels(tmp_path, caplog, monkeypatch, kind):
    encode = getattr(pytest.importorskip("imagecodecs"), f"{kind}_encode")
    images = [np.frombuffer(encode(np.full((8, 8, 3), 20 * k, np.uint8)), np.uint8) for k in range(6)]
    pixels = np.full((6, 4, 4), 255, np.uint8)
    pixels[:, 0, 1] = 216  # as a JPEG begins
    path = write_datasets(tmp_path / f"{kind}.h5", plain=pixels, image=vlen("u1", images))
    for _ in range(2):
        monkeypatch.setattr(hints, "_logged", set())
        caplog.clear()
        H5Dataset(path).statistics()
        assert f"Field('image', decode='{kind}') has those of the pixels" in caplog.text
        assert "plain" not in caplog.text
    caplog.clear()
    H5Dataset(path, Field("image", decode=kind)).statistics()
    assert "decode=" not in caplog.text


@pytest.mark.parametrize("filters", [{}, {"compression": "gzip"}], ids=["unfiltered", "gzip"])
def test_files_whose_samples_look_up_the_same_chunk_are_read_each_to_its_end(tmp_path, monkeypatch, filters):
    monkeypatch.setattr(sizing, "KEEP_NBYTES", -1)  # small data are otherwise read first
    every = []
    for k, rows in enumerate((5, 17)):
        with h5py.File(tmp_path / f"{k}.h5", "w") as f:
            x = f.create_dataset("x", data=np.arange(rows) + 100 * k, chunks=(4,), **filters)
            f["of"] = np.zeros(rows, "i8")
            every += x[:].tolist()
    write_datasets(tmp_path / "image.h5", image=np.arange(4000.0).reshape(1, 4000))
    fields = {"x": "x", "image": Field("image", file=tmp_path / "image.h5", lookup="of")}
    dataset = H5Dataset([tmp_path / "0.h5", tmp_path / "1.h5"], fields, allow_external=True)
    for names in (["x", "image"], ["image"]):
        of = dataset.statistics(names)
        assert of["image"].count == 22 * 4000
    assert dataset.statistics(["x", "image"])["x"].counts == dict.fromkeys(every, 1)


def test_rows_without_elements_have_no_values(tmp_path):
    paths = [write_datasets(tmp_path / f"{k}.h5", x=np.arange(6), none=np.zeros((6, 0), "i2")) for k in range(2)]
    for k, path in enumerate(paths):
        with h5py.File(path, "a") as f:
            f["none"].attrs["add_offset"] = 2.5 + k
    for field in ("x", Field("none", missing="netcdf")):
        found = H5Dataset(paths, ["x", field]).statistics()
        assert found["x"].samples == 12
    assert (found["none"].samples, found["none"].count, found["none"].counts) == (12, 0, {})
