"""Members of a compound that are of variable length, beside plain ones: what h5py reads, on every path."""

import shutil

import h5py
import numpy as np
import pytest
import torch

from h5stream import (
    Field,
    H5Dataset,
    H5StreamLoader,
    Objects,
    Rows,
    Sequences,
    errors,
    repack,
)

HEAD = np.dtype([("flags", "u8"), ("pos", ">f4", (3,))])
EVENT = np.dtype(
    [("head", HEAD), ("data", h5py.vlen_dtype("f4")), ("name", h5py.string_dtype()), ("k", "i2"), ("raw", "S5")]
)
MEMBERS = ("head:flags", "head:pos", "data", "name", "k", "raw")


def events(first, rows):
    """Return rows of events, some of them without data or a name."""
    values = np.zeros(rows, EVENT)
    for k in range(rows):
        n = first + k
        values["head"]["flags"][k], values["head"]["pos"][k] = n, n + np.arange(3)
        values["data"][k], values["name"][k] = np.arange(n % 4, dtype="f4") + n, f"é{n}" * (n % 3)
        values["k"][k], values["raw"][k] = -n, b"abc\0d" if n % 2 else b"x"
    return values


LAYOUTS = {
    "plain": {},
    "chunks": {"chunks": (3,)},
    "gzip": {"chunks": (4,), "compression": "gzip", "shuffle": True},
    "open": {"chunks": (5,), "maxshape": (None,)},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("members") / "a.h5"
    with h5py.File(path, "w") as file:
        for name, options in LAYOUTS.items():
            for group, first in (("g0", 0), ("g1", 10)):
                file.create_dataset(f"{group}/{name}", data=events(first, 10), **options)
        layout = h5py.VirtualLayout((10,), EVENT)
        layout[:] = h5py.VirtualSource(file["g0/plain"])
        file.create_virtual_dataset("g0/virtual", layout)
        unwritten = file.create_dataset("g0/unwritten", (10,), EVENT, chunks=(2,))
        unwritten[4:6] = events(4, 2)
        for group in ("g0", "g1"):
            file[f"{group}/number"] = np.arange(10) + 10 * int(group[1])
    return path


def plain(value):
    """Return what a sample has as lists, numbers and bytes."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) else value


def member_of(values, name):
    for part in name.split(":"):
        values = values[part]
    return [one.split(b"\0", 1)[0] if name == "name" else plain(one) for one in values]


@pytest.mark.parametrize("name", [*LAYOUTS, "virtual", "unwritten"])
def test_members_and_whole_compounds_are_what_h5py_reads(path, name):
    with h5py.File(path) as file:
        expected = file["g0"][name][:]
    fields = {member: f"g0/{name}:{member}" for member in MEMBERS} | {"all": f"g0/{name}", "number": "g0/number"}
    dataset = H5Dataset(path, fields)
    batch = plain(dataset[:])
    for member in MEMBERS:
        assert batch[member] == member_of(expected, member), member
        inner = batch["all"]
        for part in member.split(":"):
            inner = inner[part]
        assert inner == batch[member], member
    with H5StreamLoader(path, 4, fields=fields, shuffle=True, seed=1) as loader:
        for loaded in map(plain, loader):
            for k, number in enumerate(loaded["number"]):
                assert all(loaded[member][k] == batch[member][number] for member in MEMBERS)
    accesses = {part.access for parts in dataset.layout.datasets for part in parts}
    assert ("h5py" in accesses) == (name == "virtual")


@pytest.mark.parametrize("form", ["list", "pad", "packed", "nested"])
def test_members_of_variable_length_come_in_each_ragged_form(path, form):
    with h5py.File(path) as file:
        expected = [one.tolist() for group in ("g0", "g1") for one in file[group]["gzip"]["data"]]
    fields = {"v": Field("gzip:data", ragged=form), "k": "gzip:k"}
    dataset = H5Dataset(path, fields, samples=Rows(of="g*"))
    assert [dataset[k]["v"].tolist() for k in range(20)] == expected
    batch = dataset[:]["v"]
    each = [batch.sample(k) if form in ("packed", "pad") else batch[k] for k in range(20)]
    assert [one.tolist() for one in each] == expected


def test_sequences_lookups_and_objects_take_members_of_variable_length(path):
    with h5py.File(path) as file:
        names, data = (member_of(file["g1"]["chunks"][:], member) for member in ("name", "data"))
    fields = {"n": "chunks:name", "v": "chunks:data", "k": "chunks:k"}
    steps = plain(H5Dataset(path, fields, samples=Sequences(3, of="g1"))[2])
    assert steps == {"n": names[2:5], "v": data[2:5], "k": [-12, -13, -14]}
    chosen = {"n": Field("g1/chunks:name", lookup=[7, 0]), "v": Field("g1/chunks:data", lookup=[7, 0])}
    assert plain(H5Dataset(path, chosen)[:]) == {"n": [names[7], names[0]], "v": [data[7], data[0]]}
    whole = H5Dataset(path, {"n": Field("chunks:name", ragged="list"), "k": "chunks:k"}, samples=Objects("g*"))
    assert plain(whole[1]) == {"n": names, "k": [-k for k in range(10, 20)]}
    with pytest.raises(errors.UnsupportedFieldError, match=r"is looked up is a field of its own, 'g1/chunks:head'"):
        H5Dataset(path, {"n": "g0/number", "v": Field("g1/chunks", lookup=np.arange(10))})


def test_repack_keeps_members_of_variable_length(path, tmp_path):
    repack(path, tmp_path / "b.h5")
    with h5py.File(path) as old, h5py.File(tmp_path / "b.h5") as new:
        for name in ("g0/plain", "g0/gzip", "g1/chunks", "g0/unwritten"):
            for member in MEMBERS:
                assert member_of(new[name][:], member) == member_of(old[name][:], member), (name, member)


def test_a_damaged_value_of_a_member_is_named(path, tmp_path):
    shutil.copy(path, tmp_path / "b.h5")
    dataset = H5Dataset(tmp_path / "b.h5", "g0/plain:data")
    where = int(dataset.layout.datasets[0][0].heap.address[3])
    with open(tmp_path / "b.h5", "r+b") as file:
        file.seek(where)
        file.write(b"XXXX")
    with pytest.raises(errors.CorruptChunkError, match="g0/plain"):
        H5Dataset(tmp_path / "b.h5", "g0/plain:data")[3]
