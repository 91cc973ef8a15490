"""What libhdf5 lists and does not find, by the numbers that it looks things up with: we must not find it either."""

import contextlib
import os
import struct

import h5py
import numpy as np
import pytest

from h5stream import Field, H5Dataset, Objects, Rows, Sequences, errors
from h5stream.storage.file.catalogue import Catalogue
from h5stream.storage.file.external import Guard
from h5stream.storage.headers.headers import ASK
from h5stream.storage.many.members import FileMembers, root_addresses
from h5stream.storage.source.local import FilesIdentity, identity_of
from tools import fuzz_files


def nodes(content, kind, level):
    """Give where nodes of version 1 B-trees begin, of groups (0) or chunks (1), and how many entries they have."""
    found, at = [], content.find(b"TREE")
    while at >= 0:
        if content[at + 4] == kind and content[at + 5] == level:
            found.append((at, struct.unpack_from("<H", content, at + 6)[0]))
        at = content.find(b"TREE", at + 1)
    return found


def damage(path, at, number, nbytes=8):
    content = bytearray(path.read_bytes())
    content[at : at + nbytes] = number.to_bytes(nbytes, "little")
    path.write_bytes(content)


@pytest.mark.parametrize("is_ragged", [False, True])
def test_an_object_whose_chunk_is_listed_and_not_found_is_fill_value_as_in_h5py(tmp_path, is_ragged):
    path, count = tmp_path / "a.h5", 30
    with h5py.File(path, "w") as file:
        for k in range(count):
            values = np.full(4 + k % 3 * is_ragged, k + 1.0)
            file.create_dataset(f"data/{k:04}", data=values, chunks=(4,), maxshape=(None,), fillvalue=-1)
    at, _ = nodes(path.read_bytes(), 1, 0)[9]
    damage(path, at + 24 + 32 + 8, 0)
    damage(path, at + 24 + 32 + 16, 0)
    data = H5Dataset(path, Field(".", ragged="list" if is_ragged else None), samples=Objects("data/*"))
    with h5py.File(path) as file:
        expected = [file[f"data/{k:04}"][:] for k in range(count)]
    assert (expected[9] == -1).all()
    assert all(np.array_equal(data[k], expected[k]) for k in range(count))


@pytest.mark.parametrize("field", ["last coordinate", "row", "column"])
@pytest.mark.parametrize("number", [1, 4, 2**40, 2**63])
def test_a_damaged_key_gives_on_every_path_what_h5py_reads_or_what_was_written(tmp_path, field, number):
    path, names = tmp_path / "a.h5", [f"o/d{k}" for k in range(3)]
    with h5py.File(path, "w", libver=("earliest", "v110")) as file:
        for name in names:
            values = np.arange(10, dtype="f4").reshape(5, 2) + 60
            file.create_dataset(name, data=values, chunks=(1, 1), maxshape=(None, 2), fillvalue=-7, compression="gzip")
    at, _ = nodes(path.read_bytes(), 1, 0)[-1]
    damage(path, at + 24 + 4 * 40 + 8 * (1 + ["row", "column", "last coordinate"].index(field)), number)
    right = [values]
    with h5py.File(path) as file, contextlib.suppress(OSError):
        right.append(file[names[-1]][()])
    whole, each = Field(".", ragged="list"), Objects("o/*")
    for read in (
        lambda: H5Dataset(path, names[-1])[:],
        lambda: H5Dataset(path, {"x": "."}, samples=each)[:]["x"][2],
        lambda: H5Dataset(path, {"x": whole}, samples=each)[:]["x"][2],
        lambda: H5Dataset(path, {"x": Field(".", ragged="arrays")}, samples=each)[:]["x"][2],
        lambda: H5Dataset(path, {"x": "."}, samples=Objects(names[2:]))[:]["x"][0],
        lambda: H5Dataset(path, {"x": Field("o/{}", lookup=["d2", "d1"], ragged="list")})[:]["x"][0],
        lambda: H5Dataset(path, {"x": "."}, samples=Rows(of="o/*"))[:]["x"][10:],
        lambda: H5Dataset(path, {"x": "."}, samples=Sequences(5, of="o/*"))[:]["x"][2],
    ):
        with contextlib.suppress(errors.H5StreamError):
            values_read = np.asarray(read())
            assert any(np.array_equal(values_read, one) for one in right)


def test_an_index_whose_keys_are_out_of_order_is_left_to_libhdf5(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=("earliest", "v110")) as file:
        data = file.create_dataset("o/x", shape=(40,), dtype="f4", chunks=(2,), fillvalue=-7)
        data[:20] = np.arange(20) + 60
    at, _ = nodes(path.read_bytes(), 1, 0)[-1]
    damage(path, at + 24 + 3 * 32 + 8, 30)
    with h5py.File(path) as file:
        expected = file["o/x"][:]
    assert np.array_equal(H5Dataset(path, "o/x")[:], expected)
    assert np.array_equal(H5Dataset(path, {"x": "x"}, samples=Objects("o"))[:]["x"][0], expected)


def test_a_superblock_of_another_checksum_or_with_a_driver_is_left_to_libhdf5(tmp_path):
    for libver, at in (("earliest", 48), ("latest", 13), ("latest", 44)):
        path = tmp_path / f"{libver}{at}.h5"
        with h5py.File(path, "w", libver=libver) as file:
            file["x"] = 1
        roots = []
        for is_sound in (True, False):
            if not is_sound:
                damage(path, at, 5, nbytes=1)
            guard = Guard.for_paths([str(path)], allow_external=False)
            files = FileMembers(FilesIdentity.of([identity_of(str(path))]), Catalogue(), "error", guard)
            roots.append(int(root_addresses(files.raw)[0]))
        assert roots[0] >= 0
        assert roots[1] == ASK


@pytest.mark.filterwarnings("ignore:.*lead nowhere")
@pytest.mark.parametrize(
    ("files", "seed"), [(17, 7400), *(pytest.param(50, seed, marks=pytest.mark.slow) for seed in (7400, None))]
)
def test_damaged_samples_are_what_h5py_says_of_them(tmp_path, files, seed):
    """A short part of ``python tools/fuzz_files.py samples``."""
    counts, wrong = fuzz_files.fuzz(
        "samples", files, seed or int.from_bytes(os.urandom(4), "little"), tmp_path / "wrong"
    )
    assert not wrong, wrong
    assert counts["files"] >= files
