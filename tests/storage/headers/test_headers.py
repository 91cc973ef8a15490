"""Objects that are found by the bytes of their headers, in files of every kind that h5py writes.

``tests/oracle`` draws their types, filters, layouts and attributes; ``tools/fuzz_files.py samples`` damages them.
"""

import h5py
import numpy as np
import pytest
from support.amounts import crossed

from h5stream import Field, H5Dataset, Objects
from h5stream.storage.file import groups


@pytest.fixture(autouse=True)
def by_their_headers(monkeypatch):
    monkeypatch.setattr(groups, "MANY", 1)
    monkeypatch.setenv("H5STREAM_CATALOGUE", "0")


def made(path, libver, sizes, userblock):
    """Make a file with another version of its structures, and other bytes for addresses and lengths."""
    access, creation = h5py.h5p.create(h5py.h5p.FILE_ACCESS), h5py.h5p.create(h5py.h5p.FILE_CREATE)
    access.set_libver_bounds(getattr(h5py.h5f, f"LIBVER_{libver}"), h5py.h5f.LIBVER_LATEST)
    creation.set_sizes(*sizes)
    creation.set_userblock(userblock)
    return h5py.File(h5py.h5f.create(str(path).encode(), h5py.h5f.ACC_TRUNC, creation, access))


@pytest.mark.parametrize(
    ("libver", "sizes", "userblock", "attributes", "count"),
    crossed(
        ("EARLIEST", "V18", "V110", "V112", "V114", "LATEST"),
        ((8, 8), (4, 4), (8, 4)),
        (0, 512, 2048),
        (1, 20),
        (9, 300),
    ),
)
def test_objects_of_every_version_are_what_h5py_reads(tmp_path, libver, sizes, userblock, attributes, count):
    path = tmp_path / "a.h5"
    with made(path, libver, sizes, userblock) as file:
        group = file.create_group("data", track_order=count == 9)
        for k in range(count):
            chunks = {"chunks": (2,)} if k % 3 == 1 else {}
            group.create_dataset(f"{k:03}", data=np.arange(3 + k % 300) + k, **chunks)
        for k in range(count):  # what comes later goes to continuation blocks, or where many attributes are
            for number in range(attributes if k < 20 else 1):
                group[f"{k:03}"].attrs[f"{number}" + "l" * number] = [k, number]
        group["again"], group["soft"], group["below"] = group["000"], h5py.SoftLink("/data/001"), h5py.Empty("f4")
        names = [*(f"{k:03}" for k in range(count)), "again", "soft"]
        expected = [(group[name][:], group[name].attrs["0"]) for name in names]
    fields = {"x": Field(".", ragged="list"), "label": "@0"}
    batch = H5Dataset(path, fields, samples=Objects([f"data/{name}" for name in names]))[:]
    assert all(np.array_equal(ours, theirs) for ours, (theirs, _) in zip(batch["x"], expected, strict=True))
    assert batch["label"].tolist() == [label.tolist() for _, label in expected]


def test_objects_of_a_named_type_are_what_h5py_reads(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file["named"] = np.dtype("f4")
        for k in range(5):
            file.create_dataset(f"data/{k}", data=np.full(3, k, "f4"), dtype=file["named"])
    assert H5Dataset(tmp_path / "a.h5", ".", samples=Objects("data/*"))[:].tolist() == [[k] * 3 for k in range(5)]
