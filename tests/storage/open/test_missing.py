"""Missing and packed numbers: `missing=` gives what the rules of xarray and of CF conventions give, on every path."""

import itertools
import pickle
import warnings

import h5py
import numpy as np
import pytest
import torch
from support.making import write_datasets
from torch.utils.data import ConcatDataset

from h5stream import (
    Boxes,
    Field,
    H5Dataset,
    H5StreamLoader,
    Mixture,
    Objects,
    Rows,
    SampleNumber,
    Sequences,
    Table,
)
from h5stream.errors import MeaningWarning, OptionError
from h5stream.storage.file import groups

ROWS = 24


def negative(sample):
    return -sample


def decoded(raw, attributes):
    """Decode as xarray does with mask_and_scale, and netCDF4-python with ranges: written out."""
    scale, offset = attributes.get("scale_factor"), attributes.get("add_offset")
    stored, signed = raw.astype(raw.dtype.newbyteorder("=")), raw.dtype.newbyteorder("=")
    if "_Unsigned" in attributes:
        stored = stored.view(f"{'u' if attributes['_Unsigned'] == 'true' else 'i'}{raw.dtype.itemsize}")
    fills = [np.ravel(attributes[name]) for name in ("_FillValue", "missing_value") if name in attributes]
    missing = np.zeros(raw.shape, bool)
    for fill in itertools.chain(*fills):
        missing |= stored == np.array(fill).astype(signed).view(stored.dtype)
    least, most = attributes.get("valid_range", (attributes.get("valid_min"), attributes.get("valid_max")))
    missing |= False if least is None else stored < least
    missing |= False if most is None else stored > most
    if scale is None and offset is None:
        small = np.float32 if stored.dtype.itemsize <= 2 else np.float64
        dtype = stored.dtype if stored.dtype.kind == "f" else small
    elif scale is not None and offset is not None and type(scale) is type(offset) is np.float32:
        dtype = np.float64 if stored.dtype.itemsize == 4 and stored.dtype.kind in "iu" else np.float32
    else:
        dtype = np.float32 if offset is None and type(scale) is np.float32 else np.float64
    values = stored.astype(dtype)
    values = values if scale is None else (values * scale).astype(dtype)
    values = values if offset is None else (values + offset).astype(dtype)
    values[missing] = np.nan
    return values


def write(path, raw, attributes, name="t", **options):
    """Write a dataset with attributes, as arrays of one number where netCDF does so."""
    with h5py.File(path, "a") as file:
        data = file.create_dataset(name, data=raw, **options)
        for key, value in attributes.items():
            data.attrs[key] = value


def packed(k, dtype="i2", rows=ROWS, across=(4,)):
    """Draw numbers with some that are missing, and say in attributes how they are packed."""
    raw = np.random.default_rng(k).integers(0, 120, (rows, *across)).astype(dtype)
    raw.reshape(-1)[3::11] = 127
    attributes = {"_FillValue": np.array(127, raw.dtype.newbyteorder("="))[()]}
    attributes |= {"scale_factor": np.float32(0.5 + k), "add_offset": np.float32(10 * k)}
    return raw, attributes


@pytest.fixture
def files(tmp_path):
    """Write three files whose numbers are packed differently, and return their paths and what they mean."""
    paths, means = [], []
    for k in range(3):
        raw, attributes = packed(k)
        paths.append(tmp_path / f"{k}.nc")
        write(paths[-1], raw, attributes, chunks=(5, 2), compression="gzip")
        means.append(decoded(raw, attributes))
    return paths, means


def same(got, want):
    got = got.numpy() if isinstance(got, torch.Tensor) else got
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


F4, F8 = np.float32, np.float64
CASES = [
    ("i2", {"scale_factor": F8(0.01), "add_offset": F8(273.15), "_FillValue": np.int16(-32767)}),
    (">i2", {"scale_factor": F4(0.01), "add_offset": F4(273.15), "_FillValue": np.int16(-32767)}),
    ("i2", {"scale_factor": F4(0.01), "missing_value": np.array([5, 6], "i2")}),
    ("i2", {"scale_factor": F8(0.01), "_FillValue": np.array([7], "i2")}),
    ("i2", {"add_offset": F4(1.5), "missing_value": F8(3)}),
    ("i1", {"_FillValue": np.int8(-1), "_Unsigned": "true", "scale_factor": F4(2)}),
    ("i2", {"_FillValue": np.int16(-1), "_Unsigned": "true", "valid_range": np.array([3, 60000], "i4")}),
    ("u1", {"_FillValue": np.uint8(255), "_Unsigned": "false"}),
    ("u1", {"_FillValue": np.uint8(255), "valid_max": np.uint8(200)}),
    ("u2", {"missing_value": np.uint16(65535), "valid_min": np.uint16(7)}),
    (">u4", {"_FillValue": np.uint32(2**32 - 1)}),
    ("i4", {"_FillValue": np.int32(-(2**31)), "scale_factor": F4(0.1), "add_offset": F4(1)}),
    ("i8", {"_FillValue": np.int64(2**62 + 1), "valid_min": np.int64(-(2**62))}),
    ("u8", {"_FillValue": np.uint64(2**64 - 1), "valid_max": np.uint64(2**63 + 5)}),
    ("f4", {"_FillValue": F4(np.nan), "missing_value": F4(1e20)}),
    (">f8", {"missing_value": F8(-9999.9), "valid_range": np.array([-1e6, 1e6])}),
    ("f4", {"_FillValue": F4(-999), "scale_factor": F4(2), "add_offset": F4(3)}),
]


def drawn(dtype, attributes):
    kind = np.dtype(dtype).newbyteorder("=")
    rng = np.random.default_rng(1)
    if kind.kind == "f":
        raw = rng.normal(0, 1000, (ROWS, 4)).astype(kind)
        raw[1, 1] = np.nan
    else:
        limits = np.iinfo(kind)
        raw = rng.integers(limits.min, limits.max, (ROWS, 4), kind, endpoint=True)
        raw[0, :4] = limits.min, limits.max, 0, limits.max - 1
    for k, name in enumerate(("_FillValue", "missing_value", "valid_min", "valid_max", "valid_range")):
        for fill in np.ravel(attributes.get(name, [])):
            raw[2 + k] = np.array(fill).astype(kind)
            raw[8 + k] = np.array(fill).astype(kind) + np.array([-1, 0, 1, 2]).astype(kind)
    return raw.astype(dtype)


@pytest.mark.parametrize(("dtype", "attributes"), CASES, ids=str)
def test_attributes_are_followed_as_xarray_and_netcdf_do(tmp_path, dtype, attributes):
    raw = drawn(dtype, attributes)
    write(tmp_path / "a.nc", raw, attributes)
    with np.errstate(all="ignore"):
        want = decoded(raw, attributes)
    dataset = H5Dataset(tmp_path / "a.nc", Field("t", missing="netcdf"))
    same(dataset[:], want)
    same(dataset[5], want[5])
    assert np.isnan(want).any()
    finite = want[np.isfinite(want)]
    known = dataset.statistics()["t"]
    assert (known.count, known.nan) == (finite.size, np.isnan(want).sum())
    assert (known.min, known.max) == (finite.min(), finite.max())
    np.testing.assert_allclose([known.mean, known.std], [finite.mean(dtype=F8), finite.std(dtype=F8)], rtol=1e-6)


def test_each_file_has_its_own_packing(files):
    paths, means = files
    want, field = np.concatenate(means), Field("t", missing="netcdf")
    dataset = H5Dataset(paths, {"t": field, "k": SampleNumber()})
    same(dataset[:]["t"], want)
    for k in (0, ROWS, 3 * ROWS - 1):
        same(dataset[k]["t"], want[k])
    for options in ({}, {"num_workers": 0}, {"rows": [30, 2, 60]}):
        rows = options.pop("rows", None)
        some = dataset if rows is None else dataset.subset(rows)
        with H5StreamLoader(some, batch_size=7, **options) as loader:
            batches = list(loader)
        assert sum(len(batch["k"]) for batch in batches) == len(some)
        for batch in batches:
            same(batch["t"], want[batch["k"]])
    known = dataset.statistics()["t"]
    np.testing.assert_allclose([known.mean, known.std], [np.nanmean(want), np.nanstd(want)], rtol=1e-6)
    assert known.nan == np.isnan(want).sum()


def test_datasets_that_are_joined_keep_their_packings(files):
    paths, means = files
    each = [H5Dataset(path, Field("t", missing="netcdf")) for path in paths]
    pair = H5Dataset(paths[:2], Field("t", missing="netcdf"))
    same(H5Dataset(each)[:], np.concatenate(means))
    same(H5Dataset(ConcatDataset([each[2], pair]))[:], np.concatenate([means[2], *means[:2]]))
    same(H5Dataset([each[0], each[0]])[:], np.concatenate(means[:1] * 2))
    mixed = Mixture({"a": pair, "b": each[2]}, weights=[1, 1])
    same(mixed[:], np.concatenate(means))
    with pytest.raises(OptionError, match="missing= in some"):
        H5Dataset([each[0], H5Dataset(paths[1], "t")])


def test_samples_of_several_rows_and_boxes_have_the_packing_of_their_file(files):
    paths, means = files
    field = Field("t", missing="netcdf")
    sequences = H5Dataset(paths, field, samples=Sequences(5))
    want = [mean[k : k + 5] for mean in means for k in range(ROWS - 4)]
    same(sequences[:], np.stack(want))
    same(sequences[30], want[30])
    table = Table(row=[3, ROWS + 2, 2 * ROWS], other=[ROWS, 1, 2 * ROWS + 5])
    both = {"t": field, "o": Field("t", missing="netcdf", take=None)}
    every = np.concatenate(means)
    found = H5Dataset(paths, both, samples=table)[:]
    same(found["t"], every[[3, ROWS + 2, 2 * ROWS]])
    boxes = H5Dataset(paths, field, samples=Boxes((6, 2), stride=(6, 2), at="grid"))
    want = [mean[r : r + 6, c : c + 2] for mean in means for r in range(0, ROWS, 6) for c in (0, 2)]
    same(boxes[:], np.stack(want))
    along = H5Dataset(paths, field, samples=Sequences(2, axis=1, stride=2))
    same(along[:], np.stack([mean[:, c : c + 2] for mean in means for c in (0, 2)]))


def test_rows_that_are_looked_up_have_the_packing_of_theirs(tmp_path, files):
    paths, means = files
    rows, every = np.random.default_rng(4).integers(0, 3 * ROWS, 40), np.concatenate(means)
    write(tmp_path / "q.h5", np.arange(40), {}, "q")
    looked_up = Field("t", file=paths, lookup=rows, missing="netcdf")
    dataset = H5Dataset(tmp_path / "q.h5", ["q", looked_up])
    same(dataset[:][1], every[rows])
    assert dataset.statistics(["t"])["t"].nan == np.isnan(every[rows]).sum()
    begins = np.array([0, 20, ROWS, 50]), np.array([4, ROWS, 30, 53])
    from h5stream import Between

    write(tmp_path / "r.h5", np.arange(4), {}, "q")
    for form in ("packed", "pad", "list", "nested"):
        ragged = Field("t", file=paths, lookup=Between(*begins), ragged=form, missing="netcdf")
        one = H5Dataset(tmp_path / "r.h5", ["q", ragged])
        want = [every[a:b] for a, b in zip(*begins, strict=True)]
        batch = one[:][1]
        if form == "packed":
            same(batch.values, np.concatenate(want))
        elif form == "pad":
            for k, rows_of in enumerate(want):
                same(batch.values[k, : len(rows_of)], rows_of)
                assert not batch.values[k, len(rows_of) :].any()
        else:
            for got, rows_of in zip(batch if form == "list" else batch.unbind(), want, strict=True):
                same(got, rows_of)
        assert one.statistics(["t"])["t"].nan == np.isnan(np.concatenate(want)).sum()
    drawn_anew = Field("t", file=paths, lookup=lambda samples, epoch, seed: samples, missing="netcdf")
    with pytest.raises(OptionError, match="a function says in each epoch anew"):
        H5Dataset(tmp_path / "q.h5", ["q", drawn_anew])


@pytest.mark.parametrize("is_one_file", [True, False])
def test_objects_have_packings_of_their_own(tmp_path, is_one_file):
    means, paths = {}, []
    for k in range(40):
        raw, attributes = packed(k % 5, rows=6)
        path = tmp_path / ("a.h5" if is_one_file else f"{k:02}.h5")
        write(path, raw, attributes, f"g{k:02}/t" if is_one_file else "t", chunks=(3, 4))
        means[k] = decoded(raw, attributes)
        paths.append(path)
    source, of = (paths[0], "g*") if is_one_file else (paths, "files")
    every = np.stack(list(means.values()))
    same(H5Dataset(source, Field("t", missing="netcdf"), samples=Objects(of))[:], every)
    ragged = H5Dataset(source, Field("t", missing="netcdf", ragged="packed"), samples=Objects(of))
    same(ragged[:].values, every.reshape(-1, 4))
    same(ragged[7], every[7])
    if is_one_file:
        for samples in (Rows(of="g*"), Sequences(6, of="g*")):
            got = H5Dataset(source, Field("t", missing="netcdf"), samples=samples)[:]
            same(got.reshape(40, 6, 4), every)
        named = Field("g{}/t", lookup=["03", "11", "04"], missing="netcdf")
        write(tmp_path / "q.h5", np.arange(3), {}, "q")
        same(H5Dataset(source, named)[:], every[[3, 11, 4]])


def test_what_a_file_has_once_is_decoded_too(tmp_path):
    want = []
    for k in range(2):
        raw, attributes = packed(k, rows=3)
        write(tmp_path / f"{k}.h5", raw, attributes, "once")
        write(tmp_path / f"{k}.h5", np.arange(4), {}, "x")
        want += [decoded(raw, attributes)] * 4
    fields = {"x": "x", "once": Field("once", take="all", missing="netcdf")}
    paths = [tmp_path / "0.h5", tmp_path / "1.h5"]
    same(H5Dataset(paths, fields)[:]["once"], np.stack(want))
    same(H5Dataset([H5Dataset(path, fields) for path in paths])[:]["once"], np.stack(want))
    with h5py.File(paths[0], "a") as file:
        file.attrs["a"] = 3
    with pytest.raises(OptionError, match="missing= is for datasets, not for attributes"):
        H5Dataset(paths[0], ["x", Field("@a", missing=3)])


def test_numbers_and_fill_values_become_nan_of_float32(tmp_path):
    raw = np.arange(ROWS * 4).reshape(ROWS, 4) % 9
    write(tmp_path / "a.h5", raw.astype("i4"), {}, "x", fillvalue=5)
    write(tmp_path / "a.h5", raw.astype("f8"), {}, "y")
    for name, missing, values in (
        ("x", 3, [3]),
        ("x", (3, -1, 4), [3, 4]),
        ("x", "fill", [5]),
        ("y", torch.tensor([7.0, np.nan]), [7]),
    ):
        got = H5Dataset(tmp_path / "a.h5", Field(name, missing=missing))[:]
        same(got, np.where(np.isin(raw, values), np.nan, raw).astype("f4"))
    wide = H5Dataset(tmp_path / "a.h5", Field("x", missing=("fill", 2), dtype=torch.float64))
    want = np.where(np.isin(raw, [2, 5]), np.nan, raw).astype("f8")
    same(wide[:], want)
    normal = {"mean": 1, "std": 2, "factor": 0.5, "nan": -7}
    got = H5Dataset(tmp_path / "a.h5", Field("x", missing=("fill", 2), normalize=normal))[:]
    np.testing.assert_allclose(got.numpy(), np.nan_to_num((want * 0.5 - 1) / 2, nan=-7).astype("f4"))
    assert got.dtype == torch.float32
    by = H5Dataset(tmp_path / "a.h5", Field("x", missing=2)).statistics()["x"]
    assert by.counts == {k: (raw == k).sum() for k in range(9) if k != 2}


def test_members_of_compounds_have_their_own_fill_values(tmp_path):
    kind = np.dtype([("a", "i2"), ("b", "f4"), ("c", "f4")])
    table = np.zeros(ROWS, kind)
    for k, name in enumerate(kind.names):
        table[name] = (np.arange(ROWS) + k) % 5
    write(tmp_path / "a.h5", table, {}, "t", fillvalue=np.array((1, 2, 2), kind)[()])
    whole = H5Dataset(tmp_path / "a.h5", Field("t", missing="fill"))[:]
    for name, fill in (("a", 1), ("b", 2), ("c", 2)):
        want = np.where(table[name] == fill, np.nan, table[name]).astype("f4")
        same(whole[name], want)
        same(H5Dataset(tmp_path / "a.h5", Field(f"t:{name}", missing="fill"))[:], want)
    both = H5Dataset(tmp_path / "a.h5", Field("t", columns=["c", "b"], missing=[3]))[:]
    want = np.stack([table["c"], table["b"]], axis=-1)
    same(both, np.where(want == 3, np.nan, want).astype("f4"))


def test_values_of_variable_length_and_padding(tmp_path):
    lists = [np.array(one, "i4") for one in ([1, -9], [], [-9, 4, 5])]
    with h5py.File(tmp_path / "v.h5", "w") as file:
        data = file.create_dataset("v", (3,), h5py.vlen_dtype("i4"))
        for k, one in enumerate(lists):
            data[k] = one
        file["x"] = np.arange(6)
    got = H5Dataset(tmp_path / "v.h5", Field("v", ragged="pad", missing=-9))[:]
    same(got.values, np.array([[1, np.nan, 0], [0, 0, 0], [np.nan, 4, 5]], "f4"))
    padded = H5Dataset(tmp_path / "v.h5", Field("x", take=range(-1, 2), missing=-9), samples=Sequences(pad=-9))
    assert np.isnan(padded[0].numpy()).tolist() == [True, False, False]
    with pytest.raises(OptionError, match="in a list: missing="):
        H5Dataset(tmp_path / "v.h5", Field("v", missing=-9))


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (lambda: Field("x", missing="none"), "missing= takes 'netcdf'.*not 'none'"),
        (lambda: Field("x", missing=[None]), "missing= takes 'netcdf'.*not None"),
        (lambda: Field("x", missing=True), "missing= takes 'netcdf'.*not True"),
        (lambda: Field("x", missing=float("nan")), "stored numbers are uint8, which are never that"),
        (lambda: Field("x", missing=300), "stored numbers are uint8, which are never that"),
        (lambda: Field("x", missing="fill"), "has no fill value of its own"),
        (lambda: Field("x", missing=3, dtype=torch.int32), "missing= gives floating point numbers"),
        (lambda: Field("s", missing=3), "missing= is for whole and floating"),
        (lambda: Field("z", missing=3), "missing= is for whole and floating"),
        (lambda: Field("x", missing=3, decode="png"), "whole images, without"),
    ],
)
def test_what_missing_does_not_take_is_refused(tmp_path, field, says):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["s"], file["z"] = np.zeros(3, "u1"), [b"a"] * 3, np.zeros(3, "c8")
    with pytest.raises(OptionError, match=says):
        H5Dataset(tmp_path / "a.h5", field())


def test_numbers_that_do_not_mean_the_same_are_warned_of(tmp_path, files):
    paths, _ = files
    with pytest.warns(
        MeaningWarning, match=r"scale_factor is '0\.5' in .*0\.nc.*'1\.5' in .*missing='netcdf'"
    ) as warned:
        raw = H5Dataset(paths, "t")[:]
    assert len(warned) == 1
    with h5py.File(paths[0]) as file:
        same(raw[:ROWS], file["t"][()])
    each = [H5Dataset(path, "t") for path in paths]
    with pytest.warns(MeaningWarning, match="scale_factor"):
        H5Dataset(each)
    for k, unit in enumerate(("m", "km")):
        write(tmp_path / f"u{k}.h5", np.arange(3), {"units": unit, "long_name": str(k)}, "x")
    with pytest.warns(MeaningWarning, match="units is 'm'"):
        H5Dataset([tmp_path / "u0.h5", tmp_path / "u1.h5"], Field("x", missing="netcdf"))
    H5Dataset([tmp_path / "u0.h5"] * 2, "x")


@pytest.mark.parametrize("many", [1, 2000], ids=["by bytes", "one by one"])
@pytest.mark.parametrize("kind", [str, np.bytes_], ids=["of variable length", "fixed"])
@pytest.mark.parametrize("units", [["m", "m", "km"], ["km", "mm", "km"], ["m", None, "m"], ["km"] * 3], ids=str)
def test_objects_and_groups_whose_units_differ_are_warned_of(tmp_path, monkeypatch, units, kind, many):
    monkeypatch.setattr(groups, "MANY", many)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = [tmp_path / f"{k}.h5" for k in range(3)]
    for place in (tmp_path / "all.h5", *paths):
        with h5py.File(place, "w") as file:
            for k in range(3) if place.name == "all.h5" else [int(place.stem)]:
                group = file.create_group(f"g/{k}") if place.name == "all.h5" else file
                group["x"] = np.full(4, k)
                if units[k]:
                    group["x"].attrs["units"] = kind(units[k])
    one, ragged = tmp_path / "all.h5", Field("x", ragged="list")
    ways = [(one, "x", Objects("g/*")), (one, ragged, Objects("g/*")), (one, ".", Objects("g/*/x"))]
    ways += [(paths, "x", Objects("files")), (paths, ragged, Objects("files")), (one, "x", Rows(of="g/*"))]
    for source, field, samples in [*ways, *ways]:  # the second time by what was kept of them, if that are many
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", MeaningWarning)
            H5Dataset(source, field, samples=samples).close()
        texts = [str(one.message) for one in caught if one.category is MeaningWarning]
        assert len(texts) == (len(set(units)) > 1)
        other = next((k for k in range(3) if units[k] != units[0]), 0)
        assert all(f"units is {units[0]!r} in" in text for text in texts)
        assert all(f"g/{other}/x" in text or f"{other}.h5" in text for text in texts)


def test_a_layout_with_packings_travels_and_is_written(tmp_path, files):
    import pickle

    paths, means = files
    dataset = pickle.loads(pickle.dumps(H5Dataset(paths, Field("t", missing=("netcdf", -4)))))
    every = np.concatenate(means)
    with H5StreamLoader(dataset, batch_size=8, sample_transform=negative, sample_workers=1, shuffle=False) as loader:
        got = torch.cat([*loader])
    same(-got, every)
    assert repr(Field("t", missing=-1)) == "Field('t', missing=(-1,))"


@pytest.mark.parametrize("form", ["packed", "pad", "list", "arrays"])
def test_objects_of_unlike_names_and_lengths_have_their_own_packings(tmp_path, form):
    names = [f"{'x' * (k % 3)}{k:02}" for k in range(12)]
    wanted = {}
    with h5py.File(tmp_path / "o.h5", "w") as f:
        for k, name in enumerate(names):
            f[f"o/{name}/t"] = np.arange(k + 1, dtype="i2")
            f[f"o/{name}/t"].attrs["_FillValue"] = np.int16(k // 2)
            f[f"o/{name}/t"].attrs["scale_factor"] = np.float32(k + 1)
            values = np.arange(k + 1).astype("f4") * np.float32(k + 1)
            wanted[name] = np.where(np.arange(k + 1) == k // 2, np.float32(np.nan), values)
        order = list(f["o"])
    named = Field("o/{}/t", lookup=order[::-1], ragged=form, missing="netcdf")
    for field, samples, each in (
        (named, None, order[::-1]),
        (Field("t", ragged=form, missing="netcdf"), Objects("o/*"), order),
    ):
        dataset = H5Dataset(tmp_path / "o.h5", field, samples=samples)
        for k, name in enumerate(each):
            np.testing.assert_array_equal(dataset[k], wanted[name])


def test_filled_objects_do_not_shift_the_packings_of_others(tmp_path):
    with h5py.File(tmp_path / "o.h5", "w") as f:
        for k in range(5):
            f[f"o/{k}/w"] = k
            if k:
                f[f"o/{k}/t"] = np.array([k, 7], "i2")
                f[f"o/{k}/t"].attrs["_FillValue"], f[f"o/{k}/t"].attrs["scale_factor"] = np.int16(k), np.float32(k)
    dataset = H5Dataset(
        tmp_path / "o.h5", {"t": Field("t", missing="netcdf"), "w": "w"}, samples=Objects("o/*", missing="fill")
    )
    for k in range(5):
        np.testing.assert_array_equal(dataset[k]["t"], [np.nan, 7 * k if k else np.nan])


@pytest.mark.filterwarnings("ignore::h5stream.errors.MeaningWarning")  # of scale factors that are not followed
@pytest.mark.parametrize("missing", ["netcdf", "fill", -9, ["netcdf", 2], np.nan])
@pytest.mark.parametrize("are_files", [False, True])
@pytest.mark.parametrize("which", [{0}, {1, 4}])
@pytest.mark.parametrize("dtype", ["i2", "f4"])
def test_an_object_that_lacks_a_dataset_is_missing_as_a_whole(tmp_path, missing, are_files, which, dtype):
    stored = {k: np.array([k + 1, 7, k + 20], dtype) for k in range(5) if k not in which}
    paths = [tmp_path / (f"{k}.h5" if are_files else "a.h5") for k in range(5)]
    for k, path in enumerate(paths):
        with h5py.File(path, "a") as file:
            group = file if are_files else file.create_group(f"o/{k}")
            group["w"] = [k, k]
            if k in stored:
                group.create_dataset("x", data=stored[k], fillvalue=5)
                group["x"].attrs["scale_factor"], group["x"].attrs["add_offset"] = np.float64(k + 2), np.float64(10)
    samples = Objects("files" if are_files else "o/*", missing="fill")
    source = [*paths] if are_files else paths[0]
    if dtype[-2] != "f" and missing is np.nan:
        with pytest.raises(OptionError, match="are never that"):
            H5Dataset(source, Field("x", missing=missing), samples=samples)
        return
    dataset = H5Dataset(source, {"x": Field("x", missing=missing), "w": "w"}, samples=samples)
    loader = H5StreamLoader(dataset, 2, shuffle=False)
    batches = [*loader]
    loader.close()
    whole = dataset[:]["x"]
    assert torch.equal(torch.cat([one["x"] for one in batches]).nan_to_num(-1), whole.nan_to_num(-1))
    assert dataset.statistics("x")["x"].nan >= 3 * len(which)
    for k in range(5):
        if k in which:
            assert whole[k].isnan().all()
            assert dataset[k]["x"].isnan().all()
            continue
        is_packed = "netcdf" in missing if isinstance(missing, list) else missing == "netcdf"
        values = stored[k].astype("f8") * (k + 2) + 10 if is_packed else stored[k].astype("f8")
        values[np.isin(stored[k], {"netcdf": [], "fill": [5]}.get(str(missing), [2] if is_packed else [missing]))] = (
            np.nan
        )
        np.testing.assert_array_equal(whole[k].double(), values)
    dataset.close()


def test_members_of_a_compound_that_an_object_lacks_are_missing(tmp_path):
    pairs = np.array([(1, 2.0), (3, 4.0)], [("a", "i2"), ("b", "f4")])
    path = write_datasets(tmp_path / "a.h5", **{"o/0/w": 1, "o/1/w": 2, "o/1/x": pairs})
    samples = Objects("o/*", missing="fill")
    dataset = H5Dataset(path, {"x": Field("x", missing=1), "w": "w"}, samples=samples)
    assert dataset[0]["x"]["a"].isnan().all()
    assert dataset[0]["x"]["b"].isnan().all()
    np.testing.assert_array_equal(dataset[1]["x"]["a"], [np.nan, 3])
    np.testing.assert_array_equal(dataset[1]["x"]["b"], [2, 4])
    both = H5Dataset([dataset, dataset])
    assert both[2]["x"]["b"].isnan().all()
    copied = pickle.loads(pickle.dumps(dataset))
    assert copied[0]["x"]["a"].isnan().all()
    for one in (dataset, both, copied):
        one.close()
