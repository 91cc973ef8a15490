"""What is there and cannot be opened is said to be damaged, or what it is; never that it is not there."""

import re

import h5py
import hdf5plugin
import numpy as np
import pytest
from oracle.hazards import keys_of
from support.commands import printed
from support.forking import guards_are_forks
from support.making import damage_header, numbers, write_datasets

from h5stream import Bounds, Field, H5Dataset, Sequences
from h5stream.advice.listing import list_file, root_fields
from h5stream.errors import FieldNotFoundError, H5StreamError, SourceError
from h5stream.storage.decode.values import values_of


@pytest.fixture(params=["earliest", "latest"])
def path(tmp_path, request):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=request.param) as file:
        for name in ("x", "y", "deep/z", "deep/w", "other/v", "a:b", "g /e'0/x"):
            file[name] = numbers(6, 2)
    return path


@pytest.mark.parametrize(
    ("damaged", "name"),
    [
        ("x", "x"),
        ("x", "/x:member"),
        ("deep/z", "deep/z"),
        ("a:b", "a:b"),
        ("a:b", "a:b:c"),
        ("deep", "deep/z"),
        ("g /e'0", "g /e'0/x"),
    ],
)
def test_a_damaged_dataset_is_said_to_be_damaged_wherever_it_stands_in_a_name(path, damaged, name):
    damage_header(path, damaged)
    said = f"{damaged!r} is there, but libhdf5 cannot open it: Unable to .*It is damaged"
    with pytest.raises(SourceError, match=said) as error:
        H5Dataset(path, name)
    assert error.value.file == str(path)
    assert H5Dataset(path, "y")[:].tolist() == numbers(6, 2).tolist()


def test_without_fields_a_damaged_dataset_is_not_left_out(path):
    damage_header(path, "x")
    with pytest.raises(SourceError, match=r"'x' is there, .*name other fields: fields="):
        H5Dataset(path)
    assert root_fields(str(path)) == []


def test_a_name_that_is_not_there_is_still_not_there(path):
    damage_header(path, "x")
    for name in ("xx", "y/x", "deep/u", "deep//u", "./q"):
        with pytest.raises(FieldNotFoundError, match="has no dataset"):
            H5Dataset(path, name)


def test_a_listing_names_what_is_damaged_and_what_libhdf5_said(path, monkeypatch):
    guards_are_forks(monkeypatch)
    damage_header(path, "x", "other")
    entries = {entry.path: entry for entry in list_file(str(path)).entries}
    assert set(entries) == {"x", "y", "a:b", "deep/z", "deep/w", "g /e'0/x", "other"}
    for name in ("x", "other"):
        assert (entries[name].access, entries[name].layout) == ("refused", "damaged")
        assert "it is there, but libhdf5 cannot open it: Unable to" in entries[name].reason
    assert "it is there, but libhdf5 cannot open it" in " ".join(printed("inspect", path, "--fields", "y").split())


@pytest.fixture
def with_own_link(tmp_path):
    """A file with a link of class 100, which libhdf5 knows nothing of: an external one of another number."""
    path = tmp_path / "a.h5"
    own = dict.fromkeys(("own", "g/own"), h5py.ExternalLink("other.h5", "/x"))
    write_datasets(path, x=np.arange(5), g__y=np.arange(5), **own)
    content, count = re.subn(rb"(\x01\x08)\x40(.own)", b"\\1\x64\\2", path.read_bytes(), flags=re.DOTALL)
    assert count == 2
    path.write_bytes(content)
    return path


def test_a_user_defined_link_does_not_hide_what_else_there_is(with_own_link):
    assert H5Dataset(with_own_link)[:].tolist() == [0, 1, 2, 3, 4]
    assert root_fields(str(with_own_link)) == ["x"]
    assert {entry.path for entry in list_file(str(with_own_link)).entries} == {"x", "g/y"}


@pytest.mark.parametrize("allow_external", [False, True])
@pytest.mark.parametrize("name", ["own", "g/own", "own/x", "own:member"])
def test_a_user_defined_link_is_named_as_what_it_is(with_own_link, name, allow_external):
    with pytest.raises(FieldNotFoundError, match=r"own' is a user-defined link \(class 100\), which only the program"):
        H5Dataset(with_own_link, name, allow_external=allow_external)


# --- what a listing says of each kind of dataset -----------------------------------------------------------------


EXPECTED = {
    "contiguous": ("contiguous", "direct", "no filter"),
    "chunked": ("chunked", "direct", "no filter"),
    "gzip": ("chunked", "decoded", "shuffle + gzip-4"),
    "plugin": ("chunked", "decoded", "lz4"),
    "nbit": ("chunked", "h5py", "scaleoffset: only libhdf5 undoes it"),
    "unwritten": ("chunked", "direct", "no filter"),
    "empty": ("contiguous", "refused", "has zero rows in empty; there is nothing to stream"),
    "scalar": (
        "contiguous",
        "refused",
        "is a single value, so it has no rows; a field's first axis are the samples; "
        "Field('scalar', take='all') gives it to each row of its file, or group",
    ),
    "strings": ("contiguous", "heap", "variable length"),
    "group/deep": ("contiguous", "direct", "no filter"),
}


def test_each_kind_is_listed_with_how_it_is_read_and_why(tmp_path):
    made = str(tmp_path / "kinds.h5")
    x = np.random.default_rng(0).standard_normal((1000, 8)).astype("f4")
    with h5py.File(made, "w") as file:
        file["contiguous"] = x
        file.create_dataset("chunked", data=x, chunks=(100, 8))
        file.create_dataset("gzip", data=x, chunks=(100, 3), compression="gzip", shuffle=True)
        file.create_dataset("plugin", data=x, chunks=(100, 8), **hdf5plugin.LZ4())
        file.create_dataset("nbit", data=np.arange(1000), chunks=(100,), scaleoffset=12)
        file.create_dataset("unwritten", (1000,), "f8", chunks=(100,))
        file.create_dataset("empty", (0, 4), "f4")
        file["scalar"] = 1.0
        file["null"] = h5py.Empty("f4")
        file["strings"] = ["a", "b"]
        file["references"] = np.array([file["scalar"].ref], dtype=h5py.ref_dtype)
        file["opaque"] = np.zeros(3, "V5")
        file["group/deep"] = np.arange(3, dtype=">i2")
    whole = list_file(made)
    found = {entry.path: entry for entry in whole.entries}
    assert whole.left_out == 0
    for path, expected in EXPECTED.items():
        assert (found[path].layout, found[path].access, found[path].reason) == expected, path
    for path in ("null", "references", "opaque"):
        assert found[path].access == "refused"
        assert made not in found[path].reason
    assert found["null"].shape is None
    assert found["strings"].variable_length
    assert found["group/deep"].dtype == "int16 big-endian"


@pytest.mark.parametrize("most", [2000, 10])
def test_datasets_that_are_not_looked_at_are_counted(tmp_path, most):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(300):
            file[f"s/{k}/x"], file[f"s/{k}/y/z"] = k, k
            file[f"s/0/w/{k}"] = k  # which the other groups have not
        file["about"] = 3
    found = list_file(str(tmp_path / "a.h5"), most=most)
    assert len(found.entries) < 100
    assert len(found.entries) + found.left_out == 901


@pytest.mark.parametrize("filters", [{}, {"compression": "gzip"}])
@pytest.mark.parametrize(
    "opened",
    [
        lambda path: H5Dataset(path, ["y", "x"]),
        lambda path: H5Dataset(path, ["y", Field("x", take="all")]),
        lambda path: H5Dataset(path, Field("y", lookup="x")),
        lambda path: H5Dataset(path, "y", samples=Sequences(2, of=Bounds("x"))),
        lambda path: H5Dataset(path, ["y", "words"]),
    ],
)
def test_a_chunk_shorter_than_its_checksum_ends_no_process(tmp_path, opened, filters):
    """libhdf5 reads behind such a chunk, and crashes: what it reads at opening is checked before."""
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w", libver=("earliest", "latest")) as file:
        file.create_dataset("x", data=np.arange(40), chunks=(10,), fletcher32=True, **filters)
        words = np.array([str(k) for k in range(40)], "S3")
        file.create_dataset("words", data=words, chunks=(10,), fletcher32=True)
        file["y"] = np.arange(40)
    for name in ("x", "words"):
        ((key, _), *_) = keys_of(path, name)
        with open(path, "r+b") as file:
            file.seek(key)
            file.write((1).to_bytes(4, "little"))
    with pytest.raises(H5StreamError, match="fletcher32: the chunk is shorter than its checksum"):
        opened(path)[:]


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_boxes_of_data_with_checksums_are_read_as_h5py_does(tmp_path, libver):
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        made = {"chunks": (10, 4), "maxshape": (None, None), "fletcher32": True}
        file.create_dataset("x", (40, 6), "i4", **made)[10:20] = numbers(10, 6)  # the other chunks are not written
        file.create_dataset("never", (40, 6), "i4", **made)
        file.create_dataset("empty", (0, 6), "i4", **made)
        for name in ("x", "never", "empty"):
            for start, count in (
                ((), ()),
                ((0,), (3,)),
                ((9,), (2,)),
                ((35,), (5,)),
                ((0, 3), (40, 3)),
                ((15, 0), (20, 6)),
            ):
                box = tuple(slice(a, a + n) for a, n in zip(start, count, strict=True))
                if name != "empty" or not start:
                    assert np.array_equal(values_of(file[name], start, count), file[name][box])
