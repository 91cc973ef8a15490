"""What a listing says of each kind of dataset."""

import h5py
import hdf5plugin
import numpy as np
import pytest

from h5stream.advice import listing
from h5stream.advice.cost import decode_rate
from h5stream.advice.listing import list_file, root_fields
from h5stream.storage.opening import open_layout


@pytest.fixture
def every_kind(tmp_path):
    path = tmp_path / "kinds.h5"
    x = np.random.default_rng(0).standard_normal((1000, 8)).astype("f4")
    with h5py.File(path, "w") as file:
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
    return str(path)


EXPECTED = {
    "contiguous": ("contiguous", "direct", "no filter"),
    "chunked": ("chunked", "direct", "no filter"),
    "gzip": ("chunked", "decoded", "shuffle + gzip-4"),
    "plugin": ("chunked", "decoded", "lz4"),
    "nbit": ("chunked", "h5py", "scaleoffset: only libhdf5 undoes it"),
    "unwritten": ("chunked", "direct", "no filter"),
    "empty": ("contiguous", "refused", "has zero rows in empty; there is nothing to stream"),
    "scalar": ("contiguous", "refused", "is a single value, so it has no rows; a field's first axis are the samples"),
    "strings": ("contiguous", "heap", "variable length"),
    "group/deep": ("contiguous", "direct", "no filter"),
}


def test_each_kind_is_listed_with_how_it_is_read_and_why(every_kind):
    whole = list_file(every_kind)
    found = {entry.path: entry for entry in whole.entries}
    assert whole.left_out == 0
    for path, expected in EXPECTED.items():
        assert (found[path].layout, found[path].access, found[path].reason) == expected, path
    for path in ("null", "references", "opaque"):
        assert found[path].access == "refused"
        assert every_kind not in found[path].reason
    assert found["null"].shape is None
    assert found["strings"].variable_length
    assert found["group/deep"].dtype == "int16 big-endian"


def test_sizes_are_h5pys_own(every_kind):
    entries = list_file(every_kind).entries
    with h5py.File(every_kind) as file:
        for entry in entries:
            dataset = file[entry.path]
            assert entry.stored_nbytes == dataset.id.get_storage_size()
            assert entry.chunk_shape == dataset.chunks
            assert entry.shape == dataset.shape
    gzip = next(entry for entry in entries if entry.path == "gzip")
    assert (gzip.chunks, gzip.chunks_across, gzip.chunk_nbytes, gzip.row_nbytes) == (30, 3, 1200, 32)
    assert gzip.stored_chunks == 30
    assert gzip.ratio == pytest.approx(32_000 / gzip.stored_nbytes)
    unwritten = next(entry for entry in entries if entry.path == "unwritten")
    assert (unwritten.stored_chunks, unwritten.written_nbytes, unwritten.ratio) == (0, 0, None)


@pytest.mark.parametrize("most", [2000, 10])
def test_datasets_that_are_not_looked_at_are_counted(tmp_path, most, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(300):
            file[f"s/{k}/x"], file[f"s/{k}/y/z"] = k, k
        file["about"] = 3
    if most == 10:
        monkeypatch.setattr(listing, "MOST_COUNTED", 100)  # of more it is estimated
    found = list_file(str(tmp_path / "a.h5"), most=most)
    assert len(found.entries) < 100
    assert len(found.entries) + found.left_out == 601


def test_root_fields_are_given_only_where_they_agree(tmp_path, every_kind):
    assert root_fields(every_kind) == []
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.arange(3), np.arange(3)
    assert root_fields(str(tmp_path / "a.h5")) == ["x", "y"]


def test_only_filters_have_a_decode_rate(every_kind):
    for name, timed in (("gzip", True), ("plugin", True), ("chunked", False), ("nbit", False), ("unwritten", False)):
        layout = open_layout(every_kind, name)
        rate = decode_rate(layout.datasets[0][0], layout.files[0])
        assert (rate is not None) == timed, name
        assert rate is None or rate > 0
