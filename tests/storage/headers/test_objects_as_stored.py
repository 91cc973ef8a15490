"""Objects however they are stored: compact, growing along any axis, of types that NumPy lays out otherwise, damaged."""

import h5py
import numpy as np
import pytest
from h5py import h5a, h5d, h5p, h5s, h5t
from support.making import damage_header, write_datasets

from h5stream import Field, H5Dataset, Objects
from h5stream.errors import FieldLengthError, H5StreamError, SourceError, UnsupportedFieldError


@pytest.fixture(autouse=True)
def _without_catalogue(monkeypatch):
    monkeypatch.setenv("H5STREAM_CATALOGUE", "0")


def equal(found, expected):
    return all(np.array_equal(np.asarray(a), b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("stored", ["i4", "S4"])
def test_objects_of_undefined_fill_values(tmp_path, stored):
    path, expected = tmp_path / "a.h5", [np.arange(3 + k).astype(stored) for k in range(3)]
    write_datasets(path, **{f"o/{k}": values for k, values in enumerate(expected)})
    path.write_bytes(path.read_bytes().replace(b"\2\2\2\1\0\0\0\0", b"\2\2\2\0\0\0\0\0"))
    with h5py.File(path) as file:
        assert file["o/0"].id.get_create_plist().fill_value_defined() == h5d.FILL_VALUE_UNDEFINED
    assert equal(H5Dataset(path, ".", samples=Objects(["o/1"]))[:], expected[1:2])
    named = Field("o/{}", lookup=["0", "1", "2"], ragged="list")
    assert equal(H5Dataset(path, {"x": named})[:]["x"], expected)
    assert equal(H5Dataset(path, Field(".", ragged="list"), samples=Objects("o/*"))[:], expected)


@pytest.mark.parametrize("ragged", [None, "list"])
def test_references_long_doubles_and_times_are_refused_in_words(tmp_path, ragged):
    path, time = tmp_path / "a.h5", h5t.UNIX_D32LE
    with h5py.File(path, "w") as file:
        for k in range(2):
            group = file.create_group(f"g/{k}")
            group["x"], group["ref"] = np.arange(3), file.ref
            group["refs"] = np.array([file.ref] * 2, dtype=h5py.ref_dtype)
            group["wide"], group["wides"] = np.longdouble(k), np.arange(2, dtype="g")
            group.attrs["ref"], group.attrs["wide"] = file.ref, np.longdouble(k)
            h5a.create(group.id, b"time", time, h5s.create(h5s.SCALAR))
            h5d.create(group.id, b"time", time, h5s.create(h5s.SCALAR))
            h5d.create(group.id, b"times", time, h5s.create_simple((2,)))
    several = ("refs", "wides", "times")
    for name in several if ragged else (*several, "ref", "wide", "time", "@ref", "@wide", "@time"):
        with pytest.raises(UnsupportedFieldError, match=f"{name}' (is|has)"):
            H5Dataset(path, {"x": "x", "f": Field(name, ragged=ragged)}, samples=Objects("g/*"))
        if ragged:
            with pytest.raises(UnsupportedFieldError, match=f"{name}' (is|has)"):
                H5Dataset(path, {"f": Field("g/{}/" + name, lookup=["0", "1"], ragged=ragged)})


def test_numbers_among_texts_are_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for k, value in enumerate(("text", 3, h5py.Empty("f4"))):
            file[f"g/{k}/v"], file[f"g/{k}/x"] = value, np.arange(2)
    for some in ("01", "10", "02", "20"):
        with pytest.raises(H5StreamError, match=r"objects must be alike|is empty|not a single"):
            H5Dataset(path, {"x": "x", "v": "v"}, samples=Objects([f"g/{k}" for k in some]))


WAYS = {  # what is damaged, what is read and of which samples
    "soft links": ("o/2", ".", "soft/*"),
    "a field": ("d/2/x", "x", "d/*"),
    "a value": ("d/2/v", {"x": "x", "v": "v"}, "d/*"),
    "what has an attribute": ("d/2/x", {"v": "v", "a": "x@a"}, "d/*"),
    "a ragged field": ("d/2/x", Field("x", ragged="list"), "d/*"),
    "arrays of their own shapes": ("d/2/x", Field("x", ragged="arrays"), "d/*"),
    "a field of a file": ("x", "x", "files"),
    "what is named": ("o/2", {"x": Field("o/{}", lookup=["1", "2"], ragged="list")}, None),
}


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_object_is_named_and_never_left_out(tmp_path, way, libver):
    path, (damaged, fields, of) = tmp_path / "a.h5", WAYS[way]
    with h5py.File(path, "w", libver=libver) as file:
        file["x"] = np.arange(3)
        for k in range(4):
            file[f"o/{k}"], file[f"d/{k}/x"], file[f"d/{k}/v"] = np.full(3, k), np.arange(4) + 10 * k, k
            file[f"d/{k}/x"].attrs["a"], file[f"soft/{k}"] = k, h5py.SoftLink(f"/o/{k}")
    samples = [of and Objects(of, missing=missing) for missing in ("error", "skip", "fill")]
    for one in samples[:2]:
        H5Dataset([path], fields, samples=one)
    damage_header(path, damaged)
    for one in samples:
        with pytest.raises(SourceError, match=rf"'({damaged}|soft/2)' is there, but libhdf5"):
            H5Dataset([path], fields, samples=one)


def test_addresses_beyond_what_fits_are_damage(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for k in range(3):
            file[f"o/{k}"] = np.arange(4) + k
        place = file["o/1"].id.get_offset()
    content = path.read_bytes()
    for wrong in (1 << 63, (1 << 64) - 2, (1 << 63) - 1):
        path.write_bytes(content.replace(place.to_bytes(8, "little"), wrong.to_bytes(8, "little")))
        for opened in (
            lambda: H5Dataset(path, ".", samples=Objects("o/*")),
            lambda: H5Dataset(path, Field(".", ragged="list"), samples=Objects("o/*")),
            lambda: H5Dataset(path, {"x": Field("o/{}", lookup=["0", "1"], ragged="list")}),
        ):
            with pytest.raises((SourceError, FieldLengthError), match=r"beyond|truncated"):
                opened()[:]


def test_a_value_of_which_nothing_was_written_is_zeros_also_where_libhdf5_fills_nothing(tmp_path):
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_chunk((4,))
    creation.set_fill_time(h5d.FILL_TIME_NEVER)
    creation.set_alloc_time(h5d.ALLOC_TIME_INCR)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        h5d.create(file.id, b"once", h5t.IEEE_F64LE, h5s.create_simple((4,)), creation)
        file["o/0"], file["o/1"] = np.arange(4), np.arange(4)
    used = [np.full(4, 7.5) for _ in range(50)]  # of this memory what is not filled would be
    del used
    once = H5Dataset(tmp_path / "a.h5", {"x": ".", "once": Field("/once", take="all")}, samples=Objects("o/*"))[:][
        "once"
    ]
    assert once.tolist() == [[0.0] * 4] * 2
