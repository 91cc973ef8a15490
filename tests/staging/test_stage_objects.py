"""`stage` over objects in stores: the copier of files, and what only stores can do to it."""

import datetime
import random
import threading
import time
from dataclasses import replace

import h5py
import numpy as np
import pytest
from support.seeded import SeededLoader

from h5stream import H5Dataset, repack
from h5stream.errors import NotEnoughSpaceError, OptionError, SourceChangedError, SourceError, SourceNotFoundError
from h5stream.staging import list_staged, remove_staged, stage, staged, verify_staged

obstore = pytest.importorskip("obstore")

MIB = 1 << 20
SOON = {"retry_config": {"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=3)}}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "store/run").mkdir(parents=True)
    return tmp_path / "store"


def put(server, name, size, seed=0):
    """Write an object and return its address."""
    (server.folder / name).write_bytes(random.Random(seed).randbytes(size))
    return f"{server.url}/{name}"


def asked(server):
    """Return how many requests of each kind came since the last look."""
    kinds = [request[0] for request in server.asked]
    server.asked.clear()
    return kinds.count("HEAD"), kinds.count("GET")


def content(result):
    return [path.read_bytes() for path in result.paths]


def threads():
    return [one.name for one in threading.enumerate() if one.name.startswith("h5stream-stage")]


def test_copies_are_the_objects_and_are_reused_while_these_are_the_same(server, ram):
    sizes = {"a.bin": 37 * MIB + 11, "run/a.bin": 5, "empty": 0}
    addresses = [put(server, name, size, size) for name, size in sizes.items()]
    first = stage(addresses, to=ram, lease=False)
    assert content(first) == [(server.folder / name).read_bytes() for name in sizes]
    assert first.bytes_copied == sum(sizes.values())
    assert first.paths[0] == ram / "a.bin"
    assert first.paths[1].name == "a.bin"
    assert len({*first.paths}) == 3
    assert [result.problem for result in verify_staged(ram)] == ["", "", ""]
    asked(server)
    again = stage(addresses, to=ram, lease=False)
    assert (again.paths, again.copied) == (first.paths, ())
    assert asked(server) == (3, 0)
    (listed,) = [one for one in list_staged(ram) if one.path == ram / "a.bin"]
    assert (listed.source, listed.state) == (addresses[0], "in a store")
    assert len(remove_staged(ram).removed) == 3


@pytest.mark.parametrize("has_tags", [True, False])
def test_a_copy_of_an_object_that_changed_is_replaced_whether_or_not_there_is_an_etag_and_a_date(server, ram, has_tags):
    server.has_tags = has_tags
    address = put(server, "a.bin", 99)
    assert stage(address, to=ram, lease=False).copied
    put(server, "a.bin", 99, seed=1)
    assert content(stage(address, to=ram)) == [(server.folder / "a.bin").read_bytes()]


def test_tens_of_ranges_are_asked_for_beside_one_another(server, ram):
    addresses = [put(server, f"{k}.bin", 2 * MIB, k) for k in range(14)]
    server.distance = replace(server.distance, latency_ms=200)
    assert content(stage(addresses, to=ram)) == [(server.folder / f"{k}.bin").read_bytes() for k in range(14)]
    assert server.most_together >= 12


CHANGES = {
    "changes": lambda server: put(server, "a.bin", 40 * MIB, seed=1),
    "shrinks": lambda server: put(server, "a.bin", MIB),
    "is removed": lambda server: (server.folder / "a.bin").unlink(),
}


@pytest.mark.parametrize("how", CHANGES)
def test_an_object_that_changes_while_it_is_copied_is_an_error(server, ram, left, how):
    address, once = put(server, "a.bin", 40 * MIB), iter([1])

    def fault(_, request):
        if request[0] == "GET" and not (request[2] or "").startswith("bytes=0-") and next(once, None):
            CHANGES[how](server)

    server.fault = fault
    with pytest.raises(SourceChangedError, match=r"a\.bin changed while it was copied") as caught:
        stage(address, to=ram)
    assert caught.value.file == address
    assert left(ram) == []
    assert threads() == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [(403, "does not let .* be read"), (404, "changed .* it was removed"), (503, "503"), ("short", "failed: ")],
)
def test_a_store_that_always_fails_leaves_nothing(server, ram, left, fault, said):
    address = put(server, "a.bin", 5 * MIB)
    server.fault = lambda _, request: fault if request[0] == "GET" or (fault == 404 and len(server.asked) > 1) else None
    with pytest.raises(SourceError, match=said) as caught:
        stage(address, to=ram, storage_options=SOON)
    assert caught.value.file == address
    assert left(ram) == []


def test_what_cannot_be_staged_is_said(server, ram, left):
    address = put(server, "a.bin", 5)
    for given, error, said in (
        ({"files": f"{server.url}/none.h5"}, SourceNotFoundError, "there is no object 'http"),
        ({"files": f"{server.url}/run/"}, OptionError, "a bucket or a folder, not an object"),
        ({"files": f"{server.url}/*.bin"}, OptionError, "a web server has no list"),
        ({"follow": True}, OptionError, r"follow=True .* cannot be done"),
        ({"files": "s3:/bucket/a.h5"}, SourceNotFoundError, "without one of its slashes"),
        ({"margin_bytes": 1 << 60}, NotEnoughSpaceError, "has no room for"),
    ):
        with pytest.raises(error, match=said):
            stage(**{"files": address, "to": ram} | given)
        assert left(ram) == []


def test_ctrl_c_ends_reads_that_wait_and_leaves_no_part(server, ram, left):
    addresses = [put(server, "a.bin", 40 * MIB), put(server, "b.bin", 7)]
    stalled = threading.Event()

    def fault(_, request):
        if request[0] == "GET" and not (request[2] or "").startswith("bytes=0-"):
            stalled.set()
            return "stall"
        return None

    def progress(now):
        if stalled.is_set():
            raise KeyboardInterrupt

    server.fault = fault
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        stage(addresses, to=ram, progress=progress)
    assert time.monotonic() - begin < 10  # a request may take 30 s
    assert left(ram) == []
    assert threads() == []


def test_patterns_and_stores_are_those_of_a_dataset(tmp_path, ram):
    for name in ("a1.h5", "a2.h5", "b.h5"):
        (tmp_path / name).write_text(name)
    store = obstore.store.LocalStore(str(tmp_path))
    with staged("memory://here/a?.h5", to=ram, storage_options=store) as paths:
        assert [path.read_text() for path in paths] == ["a1.h5", "a2.h5"]
    assert list(ram.iterdir()) == []
    assert [path.name for path in stage(f"{tmp_path}/*.h5", to=ram).paths] == ["a1.h5", "a2.h5", "b.h5"]


@pytest.fixture
def table(server):
    """Give the address of an HDF5 file."""
    with h5py.File(server.folder / "a.h5", "w", userblock_size=512) as file:
        x = np.random.default_rng(0).integers(0, 99, (3000, 30)).astype("f4")
        file.create_dataset("x", data=x, chunks=(70, 30), compression="gzip")
        file["y"] = np.arange(3000)
        file["name"] = ["a", "bc"]
    (server.folder / "b.h5").write_bytes((server.folder / "a.h5").read_bytes())
    with open(server.folder / "a.h5", "r+b") as file:
        file.write(b"a user block")
    return f"{server.url}/a.h5"


def batches(source, **options):
    with SeededLoader(source, 128, shuffle=True, fields=["x", "y"], **options) as loader:
        return [tuple(value.numpy().tobytes() for value in batch) for batch in loader]


def test_a_loader_reads_copies_of_the_objects_that_it_opened(server, table, ram):
    paths = [server.folder / "a.h5", server.folder / "b.h5"]
    expected = batches(paths)
    addresses = [f"{server.url}/{path.name}" for path in paths]
    assert batches(addresses, stage_to=ram) == expected
    opened = H5Dataset(addresses, ["x", "y"])
    asked(server)
    with SeededLoader(opened, 128, shuffle=True, stage_to=ram) as loader:
        assert asked(server) == (0, 0)
        for path in paths:
            path.unlink()
        assert len(list(loader)) == len(expected)
    assert len(server.asked) == 0


def test_a_loader_refuses_an_object_that_changed_since_it_was_opened(server, table, ram, left):
    opened = H5Dataset(table, ["x", "y"])
    with h5py.File(server.folder / "a.h5", "r+") as file:
        file["y"][:] = 0
    with pytest.raises(SourceChangedError, match=r"a\.h5 changed while it was copied: its ETag from"):
        SeededLoader(opened, 128, stage_to=ram)
    assert left(ram) == []


def test_objects_are_rewritten_on_the_way(server, table, ram):
    result = stage(table, to=ram, repack={"compress": "lz4"})
    alone = repack(table, ram / "alone.h5")
    assert (alone.source, alone.rewritten) == (table, ("x", "y"))
    for path in (*result.paths, alone.target):
        assert path.read_bytes()[:12] == b"a user block"
        with h5py.File(path) as new, h5py.File(server.folder / "a.h5") as old:
            assert new["x"].chunks != old["x"].chunks
            assert all((new[name][()] == old[name][()]).all() for name in old)
    assert stage(table, to=ram, repack={"compress": "lz4"}).copied == ()
