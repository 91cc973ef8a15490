"""Headers, chunk indexes and links that are read from the file's bytes, against h5py."""

import collections
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from amounts import examples
from header_files import HeaderFile, compare_with_h5py, header_files, write_file
from hypothesis import given

from h5stream.storage import templates
from h5stream.storage.headers import ABSENT, ASK, chunks_of, raw_of, read_headers, superblock_of
from h5stream.storage.source import identity_of
from h5stream.storage.whereabouts import links_of
from tools import fuzz_files


@examples(400)
@given(case=header_files())
def test_what_is_read_of_headers_is_what_h5py_says(case: HeaderFile, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "case.h5"
    write_file(case, path)
    counts = compare_with_h5py(path)
    assert counts["object: not understood"] == 0
    # libhdf5 2.0 cannot open what it has written itself with some sizes of addresses.
    assert counts["object: h5py refuses"] == 0 or case.sizes != (8, 8)


def read(path, names=(), group="data"):
    """Read the headers of all that a group leads to, and the group's links."""
    with h5py.File(path) as file:
        raw = raw_of(identity_of(str(path)).open(), superblock_of(file, path.stat().st_size))
        links = links_of(file[group].id)
    found = read_headers(raw, links.addresses, names)
    return links, found, chunks_of(raw, found)


def test_objects_are_of_one_kind_where_only_their_lengths_differ(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for k in range(20):
            file[f"data/{k:02}"] = np.zeros((k + 1, 3), dtype="f4" if k != 7 else "f8")
            file[f"data/{k:02}"].attrs["label"] = k if k != 5 else float(k)
    links, found, _ = read(path, ["label", "none"])
    assert list(links) == [f"{k:02d}" for k in range(20)]
    assert found.understood.all()
    assert (found.kind == found.kind[0]).tolist() == [k != 7 for k in range(20)]
    assert found.dims.tolist() == [[k + 1, 3] for k in range(20)]
    label = found.attributes["label"]
    assert (label.kind == label.kind[0]).tolist() == [k != 5 for k in range(20)]
    assert (found.attributes["none"].address == ABSENT).all()
    raw = path.read_bytes()
    assert [np.frombuffer(raw, "i8", 1, at)[0] for at in np.delete(label.address, 5)] == [
        k for k in range(20) if k != 5
    ]


def test_what_is_stored_elsewhere_is_not_understood(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        group = file.create_group("data")
        group["named type"] = np.dtype("f4")
        group.create_dataset("of a named type", shape=(3,), dtype=group["named type"])
        group.create_dataset("outside", shape=(3,), dtype="u1", external=[("raw.bin", 0, 3)])
        layout = h5py.VirtualLayout((3,), "f4")
        layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
        group.create_virtual_dataset("virtual", layout)
        group["usual"] = np.zeros(3)
    links, found, _ = read(path)
    assert [name for name, known in zip(links, found.understood, strict=True) if known] == ["usual"]


def test_links_that_are_not_hard_have_no_address(tmp_path):
    path = tmp_path / "a.h5"
    for libver, count in (("earliest", 3), ("earliest", 300), ("latest", 3), ("latest", 300)):
        with h5py.File(path, "w", libver=libver) as file:
            for k in range(count):
                file[f"data/{k}"] = k
            file["data/soft"] = h5py.SoftLink("/data/1")
            file["data/out"] = h5py.ExternalLink("other.h5", "/x")
        links, found, _ = read(path)
        assert list(links) == sorted(links)
        assert len(links) == count + 2
        assert [links[i] for i in np.flatnonzero(links.addresses == templates.NOWHERE)] == ["out", "soft"]
        assert found.understood.sum() == count


def test_a_group_is_known_as_one_and_has_attributes(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for k in range(3):
            file.create_group(f"data/{k}").attrs["label"] = k
    _, found, chunks = read(path, ["label"])
    assert (found.layout == templates.GROUP).all()
    assert (found.attributes["label"].nbytes == 8).all()
    assert not chunks.understood.any()


def test_trees_of_one_leaf_are_read_and_deeper_ones_are_asked_for(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for k in range(9):
            file.create_dataset(f"data/{k}", data=np.arange(100 + 10 * k, dtype="i2"), chunks=(2,), compression="gzip")
            file.create_dataset(f"data/{k} shorter", data=np.arange(40 + 2 * k, dtype="i2"), chunks=(2,))
    links, _, chunks = read(path)
    names = [name for name, known in zip(links, chunks.understood, strict=True) if known]
    assert names == [f"{k}{end}" for k in range(9) for end in ("", " shorter") if end or k < 3]
    assert compare_with_h5py(path)["chunks: the same (0)"] == 12


def test_a_file_that_is_cut_short_gives_headers_that_are_not_understood(tmp_path):
    path, cut = tmp_path / "a.h5", tmp_path / "cut.h5"
    with h5py.File(path, "w") as file:
        for k in range(30):
            file[f"data/{k:02}"] = np.zeros(100)
    with h5py.File(path) as file:
        half = superblock_of(file, path.stat().st_size // 2)
        addresses = links_of(file["data"].id).addresses
    cut.write_bytes(path.read_bytes()[: half.file_nbytes])
    found = read_headers(raw_of(identity_of(str(cut)).open(), half), addresses)
    assert 0 < found.understood.sum() < 30


def test_addresses_that_make_no_sense_are_not_understood(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(100)
    nonsense = np.array([-1, -(2**63), 0, 1, path.stat().st_size, 2**62, 2**63 - 1])
    with h5py.File(path) as file:
        raw = raw_of(identity_of(str(path)).open(), superblock_of(file, path.stat().st_size))
    found = read_headers(raw, nonsense, ["a"])
    assert not found.understood.any()
    assert (found.attributes["a"].address == ASK).all()
    assert len(read_headers(raw, np.array([], dtype=np.int64)).kind) == 0


@pytest.mark.parametrize("seed", [7400, pytest.param(None, id="anew", marks=pytest.mark.slow)])
def test_damaged_headers_are_read_as_h5py_reads_them_or_not_at_all(tmp_path, seed):
    """A short part of ``python tools/fuzz_files.py headers``."""
    counts, wrong = fuzz_files.fuzz(
        "headers", 75, seed or int.from_bytes(os.urandom(4), "little"), tmp_path / "wrong.h5"
    )
    assert not wrong, wrong
    assert counts["files"] >= 75


CORPUS = Path(os.environ.get("H5STREAM_CORPUS") or Path(__file__).resolve().parents[2].parent / "shared" / "corpus")
FILES = sorted(p for p in CORPUS.rglob("*") if p.is_file() and p.suffix not in (".md", ".tsv"))


@pytest.mark.corpus
@pytest.mark.skipif(not FILES, reason=f"the corpus of real files is not at {CORPUS} (H5STREAM_CORPUS names another)")
def test_headers_of_real_files_are_understood_or_not_but_never_wrong():
    counts = collections.Counter()
    for path in FILES:
        try:
            counts.update(compare_with_h5py(path, every=False))
        except AssertionError as error:
            raise AssertionError(f"{path}: {error}") from error
    same = sum(count for key, count in counts.items() if key.startswith("object: the same"))
    assert same > 10 * counts["object: not understood"]
