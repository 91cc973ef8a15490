"""What libhdf5 lists and does not find, by the numbers that it looks things up with: we must not find it either."""

import os
import struct

import h5py
import numpy as np
import pytest

from h5stream import Field, H5Dataset, Objects
from h5stream.storage.catalogue import Catalogue
from h5stream.storage.external import Guard
from h5stream.storage.headers import ASK
from h5stream.storage.source import FilesIdentity, identity_of
from h5stream.storage.units import FilesEach, roots_of
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
            files = FilesEach(FilesIdentity.of([identity_of(str(path))]), Catalogue(), "error", guard)
            roots.append(int(roots_of(files.raw)[0]))
        assert roots[0] >= 0
        assert roots[1] == ASK


@pytest.mark.filterwarnings("ignore:.*lead nowhere")
@pytest.mark.parametrize("seed", [7400, pytest.param(None, id="anew", marks=pytest.mark.slow)])
def test_damaged_samples_are_what_h5py_says_of_them(tmp_path, monkeypatch, seed):
    """A short part of ``python tools/fuzz_files.py samples``."""
    counts, wrong = fuzz_files.fuzz("samples", 50, seed or int.from_bytes(os.urandom(4), "little"), tmp_path / "wrong")
    assert not wrong, wrong
    assert counts["files"] >= 50
