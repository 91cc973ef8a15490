"""The cache of what was read of objects in stores: nothing is asked for twice, and nothing wrong is served."""

import concurrent.futures
import errno
import itertools
import os
import pickle
import re
import signal
import threading
import time
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from support.forking import SERVED, in_forked_child
from support.object_server import ObjectServer
from support.sample_files import in_thread

from h5stream import Bounds, Boxes, Field, H5Dataset, H5StreamLoader, Objects
from h5stream.errors import OptionError, SourceChangedError
from h5stream.storage.source import blocks, disk_cache
from h5stream.storage.source.disk_cache import PAGE_NBYTES, CachedBytes, ObjectCache

obstore = pytest.importorskip("obstore")

KINDS = {
    "rows": {"fields": ["x", "y"]},
    "ragged": {"fields": {"x": Field("x", lookup=Bounds("offsets"))}},
    "objects": {"fields": {"x": "."}, "samples": Objects("o/*")},
    "boxes": {"fields": "volume", "samples": Boxes((16, 16, 16), at="grid")},
}


def write(path, seed=0):
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        x = rng.integers(0, 99, (8000, 256)).astype("i2")
        file.create_dataset("x", data=x, chunks=(32, 256), compression="gzip")
        file["y"], file["offsets"] = np.arange(8000), np.arange(0, 8001, 10)
        file["plain"] = rng.integers(0, 99, (4000, 128)).astype("i2")
        file.create_dataset("volume", data=rng.integers(0, 99, (64, 64, 64)).astype("i2"), chunks=(16, 16, 16))
        for k in range(60):
            file[f"o/{k}"] = rng.integers(0, 99, (40, 32)).astype("i2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects")
    write(folder / "a.h5")
    return folder


@pytest.fixture(autouse=True)
def _nothing_in_memory():
    """Forget what the process knows of objects, and of folders that could not be written."""
    blocks._blocks.clear()
    yield
    disk_cache._given_up.clear()
    disk_cache._too_small.clear()


def plain(value):
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value.numpy().tobytes()


def epoch(source, seed=0, **options):
    with H5StreamLoader(source, 256, shuffle=True, seed=seed, keep="never", window=1024, **options) as loader:
        return [plain(batch) for batch in loader]


def opened_elsewhere(address, kind, cache, barrier=None, **options):
    """Open a dataset and read an epoch of it, in another process."""
    dataset = H5Dataset(address, **KINDS[kind], cache=cache)
    if barrier is not None:
        barrier.wait(60)
    return epoch(dataset, **options)


def elsewhere(function, *arguments):
    with concurrent.futures.ProcessPoolExecutor(1, SERVED) as pool:
        return pool.submit(function, *arguments).result(120)


def ranges(server):
    found = [re.fullmatch(r"bytes=(\d+)-(\d+)", asked or "") for _, _, asked in server.asked]
    return sorted((int(one[1]), int(one[2]) + 1) for one in found if one)


def nbytes_of(cache):
    return sum(os.stat(cache / name).st_blocks * 512 for name in os.listdir(cache) if name != "used")


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_epoch_and_single_samples_ask_for_nothing(folder, server, tmp_path, kind):
    local = H5Dataset(folder / "a.h5", **KINDS[kind])
    wanted = [epoch(local, seed=seed) for seed in range(2)]
    dataset = H5Dataset(f"{server.url}/a.h5", **KINDS[kind], cache=tmp_path)
    assert epoch(dataset) == wanted[0]
    asked = ranges(server)
    assert asked
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(asked))  # no byte twice
    server.asked.clear()
    assert epoch(dataset, seed=1) == wanted[1]
    assert plain(dataset[5:20]) == plain(local[5:20])
    assert plain(dataset[[5, 5, 0]]) == plain(local[[5, 5, 0]])
    assert server.asked == []


def test_another_process_asks_what_the_object_is_and_for_nothing_else(server, tmp_path):
    wanted = epoch(H5Dataset(f"{server.url}/a.h5", **KINDS["rows"], cache=tmp_path))
    server.asked.clear()
    assert elsewhere(opened_elsewhere, f"{server.url}/a.h5", "rows", tmp_path) == wanted
    assert [how for how, _, _ in server.asked] == ["HEAD"]


def test_an_object_that_changed_is_read_anew(tmp_path):
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "a.h5"
    with ObjectServer(tmp_path / "store") as server:
        datasets, wanted = [], []
        for seed in range(2):
            write(path, seed)
            wanted.append(epoch(H5Dataset(path, "plain")))
            datasets.append(H5Dataset(f"{server.url}/a.h5", "plain", cache=tmp_path / "cache"))
            first = datasets[seed][:100]
            assert (first == H5Dataset(path, "plain")[:100]).all()
        with pytest.raises(SourceChangedError):
            epoch(datasets[0])
        assert epoch(datasets[1]) == wanted[1] != wanted[0]


@pytest.mark.parametrize("how", ["a byte of each page", "checksums", "cut", "emptied"])
def test_what_is_damaged_is_asked_for_again(folder, server, tmp_path, how):
    dataset = H5Dataset(f"{server.url}/a.h5", "x", cache=tmp_path)
    wanted = epoch(dataset)
    for path in tmp_path.glob("*.pages"):
        content = bytearray(path.read_bytes())
        first = disk_cache._SUMS_NBYTES
        if how == "a byte of each page":
            for place in range(first + 7, len(content), PAGE_NBYTES):
                content[place] ^= 4
        elif how == "checksums":
            content[:first] = bytes(k ^ 1 for k in content[:first])
        left = {"cut": first + 40 * PAGE_NBYTES, "emptied": 0}.get(how, len(content))
        path.write_bytes(content[:left])
    server.asked.clear()
    assert epoch(dataset) == wanted
    assert server.asked
    server.asked.clear()
    assert epoch(dataset) == wanted
    assert server.asked == []


def test_a_process_that_is_killed_leaves_nothing_wrong(folder, server, tmp_path):
    wanted, enough = epoch(H5Dataset(folder / "a.h5", **KINDS["rows"])), threading.Event()

    def stall(number, request):
        if number > 5:
            enough.set()
            return "stall"
        return None

    server.fault = stall
    child = SERVED.Process(target=opened_elsewhere, args=(f"{server.url}/a.h5", "rows", tmp_path))
    child.start()
    assert enough.wait(120)
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    server.fault = None
    begun = len(ranges(server))
    assert epoch(H5Dataset(f"{server.url}/a.h5", **KINDS["rows"], cache=tmp_path)) == wanted
    assert len(ranges(server)) > begun


def test_two_processes_that_fill_at_once_ask_for_each_byte_once(folder, server, tmp_path):
    with SERVED.Manager() as manager, concurrent.futures.ProcessPoolExecutor(2, SERVED) as pool:
        barrier = manager.Barrier(2)
        address = f"{server.url}/a.h5"
        both = [pool.submit(opened_elsewhere, address, "rows", tmp_path, barrier, seed=seed) for seed in range(2)]
        found = [one.result(120) for one in both]
    assert found == [epoch(H5Dataset(folder / "a.h5", **KINDS["rows"]), seed=seed) for seed in range(2)]
    asked = ranges(server)
    together = len({page for low, high in asked for page in range(low // PAGE_NBYTES, -(-high // PAGE_NBYTES))})
    assert sum(high - low for low, high in asked) <= 1.05 * together * PAGE_NBYTES


class Slow:
    """A source of which the first read waits until it is let go on."""

    gap_nbytes = 0

    def __init__(self):
        self.asked, self.begun, self.go_on = 0, threading.Event(), threading.Event()

    def read_many(self, offsets, targets):
        self.asked += 1
        if self.asked == 1:
            self.begun.set()
            assert self.go_on.wait(60)
        for target in targets:
            target[:] = b"x" * target.nbytes


@pytest.mark.parametrize("other", ["goes on", "never comes back"])
def test_who_needs_what_another_fetches_waits_for_it_but_not_for_ever(tmp_path, monkeypatch, other):
    slow, waiting = Slow(), threading.Event()
    identity = SimpleNamespace(path="s3://b/a", size=99_999, etag='"1"')
    sources = [CachedBytes(identity, ObjectCache.of(tmp_path, None), lambda: slow) for _ in range(2)]
    memory = [bytearray(50_000) for _ in sources]

    def sleep(seconds):
        waiting.set()
        time.sleep(seconds)

    monkeypatch.setattr(disk_cache, "time", SimpleNamespace(sleep=sleep, time=time.time, monotonic=time.monotonic))
    if other == "never comes back":
        monkeypatch.setattr(disk_cache, "_WAIT_S", 0.1)
    first = in_thread(sources[0].read_many, (1000,), (memoryview(memory[0]),))
    assert slow.begun.wait(60)
    second = in_thread(sources[1].read_many, (1000,), (memoryview(memory[1]),))
    assert waiting.wait(60)
    if other == "never comes back":
        second.result(60)
        assert memory[1] == b"x" * 50_000
    slow.go_on.set()
    first.result(60)
    second.result(60)
    assert memory == [b"x" * 50_000] * 2
    assert slow.asked == (1 if other == "goes on" else 2)


def test_ranges_that_overlap_are_right_and_nothing_is_kept_behind_the_end(tmp_path):
    data = np.random.default_rng(0).bytes((20 << 20) + 100)
    identity = SimpleNamespace(path="s3://b/a", size=len(data), etag='"1"')
    store, asked = SimpleNamespace(gap_nbytes=0), [(0, 12 << 20), (4 << 20, 1 << 20), (0, 12 << 20), (20 << 20, 100)]
    store.read_many = lambda offsets, targets: [
        into.__setitem__(slice(None), data[k : k + into.nbytes]) for k, into in zip(offsets, targets, strict=True)
    ]
    targets = [bytearray(nbytes) for _, nbytes in asked]
    np.full(PAGE_NBYTES, 255, "u1")  # which leaves it in memory that is taken next
    CachedBytes(identity, ObjectCache.of(tmp_path, None), lambda: store).read_many(
        [offset for offset, _ in asked], [memoryview(one) for one in targets]
    )
    assert [data[offset : offset + nbytes] for offset, nbytes in asked] == targets
    assert next(tmp_path.glob("*-1.pages")).read_bytes()[-PAGE_NBYTES:] == data[20 << 20 :] + bytes(PAGE_NBYTES - 100)


@pytest.mark.parametrize("size", [1, 100_000, "0.5 MB"])
def test_a_cache_that_is_too_small_stays_bounded_and_right(folder, server, tmp_path, caplog, size):
    local = H5Dataset(folder / "a.h5", "x")
    dataset = H5Dataset(f"{server.url}/a.h5", "x", cache=tmp_path, cache_size=size)
    most = 500_000 if isinstance(size, str) else size
    for seed in range(2):
        wanted = epoch(local, seed)
        with H5StreamLoader(dataset, 256, shuffle=True, seed=seed, keep="never", window=1024) as loader:
            for batch, rows in zip(loader, wanted, strict=True):
                assert plain(batch) == rows
                assert nbytes_of(tmp_path) <= most
    told = [message for message in caplog.messages if "give a larger cache_size=" in message]
    assert len(told) == 1 if size == 1 else len(told) <= 1


def test_what_was_used_longest_ago_makes_room(tmp_path):
    (tmp_path / "store").mkdir()
    for name in "abc":
        write(tmp_path / "store" / f"{name}.h5", ord(name))
    cache = tmp_path / "cache"
    with ObjectServer(tmp_path / "store") as server:
        epoch(H5Dataset(f"{server.url}/a.h5", "plain", cache=tmp_path / "other"))
        size = 5 * nbytes_of(tmp_path / "other") // 2
        blocks._blocks.clear()

        def requests(name):
            server.asked.clear()
            dataset = H5Dataset(f"{server.url}/{name}.h5", "plain", cache=cache, cache_size=size)
            epoch(dataset)
            for path in cache.glob("*.pages"):
                stat = path.stat()
                os.utime(path, (stat.st_atime, stat.st_mtime - 100))  # time goes by
            blocks._blocks.clear()
            return len(ranges(server))

        assert requests("a")
        assert requests("b")
        assert requests("a") == 0
        assert requests("c")  # for which b makes room
        assert requests("a") == 0
        assert requests("b")


@pytest.mark.parametrize("why", ["no such folder any more", "full"])
def test_a_folder_that_cannot_be_written_is_told_once(folder, server, tmp_path, monkeypatch, caplog, why):
    if why == "full":

        def write(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(disk_cache, "_write", write)
    dataset = H5Dataset(f"{server.url}/a.h5", "x", cache=tmp_path if why == "full" else "/proc/self")
    assert epoch(dataset) == epoch(H5Dataset(folder / "a.h5", "x"))
    assert [one.getMessage().count("cannot be written") for one in caplog.records] == [1]


def test_a_folder_that_holds_more_than_its_size_is_made_smaller_although_all_is_there(server, tmp_path):
    for field in ("x", "y", "plain"):
        epoch(H5Dataset(f"{server.url}/a.h5", field, cache=tmp_path))
    before = nbytes_of(tmp_path)
    size = before // 3
    epoch(H5Dataset(f"{server.url}/a.h5", "x", cache=tmp_path, cache_size=size))
    assert nbytes_of(tmp_path) <= size < before


def test_arguments_that_make_no_cache_are_refused(folder, server, tmp_path):
    (tmp_path / "file").touch()
    for options, said in [
        ({"cache": tmp_path / "file" / "cache"}, "cannot be made: .*; name another folder"),
        ({"cache": "s3://bucket/cache"}, "takes a folder on a local disk"),
        ({"cache": 3}, "takes a folder on a local disk"),
        ({"cache": tmp_path, "cache_size": "much"}, "cache_size= takes bytes"),
        ({"cache": tmp_path, "cache_size": 0}, "at least a byte"),
        ({"cache_size": "1GB"}, "give both"),
    ]:
        with pytest.raises(OptionError, match=said):
            H5Dataset(f"{server.url}/a.h5", "x", **options)
    with pytest.raises(TypeError, match=r"H5StreamLoader\(H5Dataset\(..., cache=...\), ...\)"):
        H5StreamLoader(f"{server.url}/a.h5", cache=tmp_path)
    with pytest.raises(OptionError, match="cache= belongs to the H5Dataset that was given"):
        H5Dataset(H5Dataset(folder / "a.h5", "x"), cache=tmp_path)


def test_no_credential_is_in_the_cache_or_travels(server, tmp_path):
    headers = {"client_options": {"default_headers": {"authorization": "Bearer hushhush"}}}
    dataset = H5Dataset(f"{server.url}/a.h5", "x", storage_options=headers, cache=tmp_path)
    epoch(dataset)
    kept = [name.encode() + (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)]
    assert len(kept) > 1
    assert b"hushhush" not in b"".join([*kept, pickle.dumps(dataset)])
    named = [
        CachedBytes(SimpleNamespace(path=path, size=1, etag='"1"'), ObjectCache.of(tmp_path, None), None)._name
        for path in ("https://host/a", "https://user:hushhush@host/a", "https://host/b")
    ]
    assert named[0] == named[1] != named[2]


def test_an_object_without_a_sound_etag_is_not_kept(folder, server, tmp_path):
    server.tag = 'W/"{}"'
    store = obstore.store.MemoryStore()
    store.put("a.h5", folder / "a.h5")
    for address, options in ((f"{server.url}/a.h5", None), ("memory://here/a.h5", store)):
        dataset = H5Dataset(address, "x", storage_options=options, cache=tmp_path)
        assert (dataset[:3] == H5Dataset(folder / "a.h5", "x")[:3]).all()
    assert os.listdir(tmp_path) == []


def test_a_forked_child_reads_what_is_kept(server, tmp_path):
    dataset = H5Dataset(f"{server.url}/a.h5", ["x", "y"], cache=tmp_path)
    wanted = plain(dataset[:])
    assert in_forked_child(lambda: plain(dataset[:])) == wanted


def test_another_process_reads_what_is_kept_without_the_store(folder, tmp_path):
    store = obstore.store.LocalStore(str(folder))
    dataset = H5Dataset("memory://elsewhere/a.h5", "x", storage_options=store, cache=tmp_path)
    wanted = epoch(dataset)
    assert elsewhere(epoch, dataset) == wanted
