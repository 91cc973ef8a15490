"""Files as objects in a store: the same samples as from the disk, few requests, and errors that name the object."""

import contextlib
import datetime
import gc
import itertools
import os
import pickle
import random
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import weakref
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace

import h5py
import imagecodecs
import numpy as np
import pytest
import torch
from support import forking
from support.forking import SERVED, in_forked_child
from support.inner import around, iterations_of, processors, stream_all
from support.making import corrupt_chunk, low_level, make_file, vlen, write, write_datasets
from support.object_server import ObjectServer
from support.real_servers import HTTP, s3, web
from support.sample_files import eventually, in_thread, plain
from torch.utils.data import DataLoader

from h5stream import Bounds, Boxes, Field, H5Dataset, H5StreamLoader, Objects, Sequences, errors, repack, stage
from h5stream.compiled import _native as kernels
from h5stream.storage.source import disk_cache, handles, remote, stores

obstore = pytest.importorskip("obstore")

SOON = {"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=3)}
ROWS = 6000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects") / "run"
    folder.mkdir()
    rng = np.random.default_rng(0)
    with h5py.File(folder / "a.h5", "w") as file:
        x = rng.integers(0, 99, (ROWS, 32)).astype("f4")
        file.create_dataset("x", data=x, chunks=(128, 32), compression="gzip", shuffle=True)
        file["y"], file["offsets"] = np.arange(ROWS), np.arange(0, ROWS + 1, 10)
        file.create_dataset("v", **vlen("i2", [np.arange(k % 9) for k in range(ROWS // 10)]))
        file.create_dataset("volume", data=rng.integers(0, 9, (20, 24, 24)), chunks=(8, 8, 8), compression="gzip")
        for k in range(40):
            file[f"o/{k}"] = np.full((3, 2), k, "f4")
            file[f"o/{k}"].attrs["label"] = k
    return folder


@pytest.fixture(scope="module", params=["our own", "S3", "nginx"])
def place(request, folder, tmp_path_factory):
    """Give the address of the folder on a server."""
    with contextlib.ExitStack() as stack:
        if request.param == "our own":
            yield stack.enter_context(contextlib.closing(ObjectServer(folder))).url
        elif request.param == "S3":
            yield stack.enter_context(s3(folder, stack.enter_context(pytest.MonkeyPatch.context())))
        else:
            yield stack.enter_context(web(folder, tmp_path_factory.mktemp("nginx")))


KINDS = {
    "rows": {"fields": ["x", "y"]},
    "ragged": {"fields": {"x": Field("x", lookup=Bounds("offsets")), "v": Field("v", ragged="packed")}},
    "objects": {"fields": {"x": ".", "label": "@label"}, "samples": Objects("o/*")},
    "boxes": {"fields": "volume", "samples": Boxes((5, 8, 8), at="grid", stride=(5, 4, 4))},
}


def readers():
    """Return the threads that read, those of other tests' loaders among them."""
    return {one for one in threading.enumerate() if one.name.startswith(("h5stream-reader", "h5stream-far"))}


def epoch(source, **options):
    with H5StreamLoader(source, 256, shuffle=True, seed=0, **options) as loader:
        return [plain(batch) for batch in loader]


def loader_of(path, kind):
    dataset = H5Dataset(path, **KINDS[kind], storage_options=HTTP)
    return H5StreamLoader(dataset, len(dataset) // 9, shuffle=True, seed=3)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_and_their_order_are_those_of_the_file_and_a_state_goes_on_from_either(folder, place, kind):
    def epoch_of(loader):
        return [plain(batch) for batch in loader]

    sources = [folder / "a.h5", f"{place}/a.h5"]
    with loader_of(sources[0], kind) as loader:
        whole = [epoch_of(loader) for _ in range(2)]
    assert whole[0] != whole[1]
    for first, other in (sources, sources[::-1]):
        with loader_of(first, kind) as one, loader_of(other, kind) as rest:
            batches = iter(one)
            taken = [plain(next(batches)) for _ in range(4)]
            rest.load_state_dict(one.state_dict())
            assert [taken + epoch_of(rest), epoch_of(rest)] == whole


def test_what_is_not_there_is_told(place):
    with pytest.raises(errors.SourceNotFoundError, match=rf"there is no object '{place}/b\.h5'"):
        H5Dataset(f"{place}/b.h5", "x", storage_options=HTTP)
    if place.startswith("s3"):
        assert len(H5Dataset(f"{place}/[ab]*.h5", "x", storage_options=HTTP)) == ROWS
        with pytest.raises(errors.SourceNotFoundError, match="no object matches"):
            H5Dataset(f"{place}/c*.h5", "x", storage_options=HTTP)


def test_an_epoch_asks_for_stretches_and_not_for_chunks(server):
    dataset = H5Dataset(f"{server.url}/a.h5", ["x", "y"])
    assert len(server.asked) < 25
    server.asked.clear()
    epoch(dataset)
    assert len(server.asked) < 10


def test_a_dataset_keeps_its_object_open_without_a_handle_of_it(server):
    """As h5py has it for files: a loader that holds datasets alone reads on, whenever the handle is collected."""
    make_file(server.folder / "handle.h5", data=np.arange(10))
    dataset = handles.open_file(f"{server.url}/handle.h5")["x"]
    gc.collect()
    with h5py.File(server.folder / "handle.h5") as file:
        assert np.array_equal(dataset[:], file["x"][:])
    dataset.file.close()
    assert not dataset.id.valid


@pytest.mark.parametrize("decode", ["", "png"])
def test_what_several_samples_have_is_asked_for_once(server, decode):
    frames = np.random.default_rng(0).integers(0, 255, (300, 40, 50), "u1")
    v = vlen("u1", [np.frombuffer(imagecodecs.png_encode(frame), "u1") for frame in frames])
    write_datasets(server.folder / "frames.h5", x={"data": frames, "chunks": (1, 40, 50)}, v=v)
    field = Field("v" if decode else "x", take=range(0, 12, 3), decode=decode)
    dataset = H5Dataset(f"{server.url}/frames.h5", {"x": field, "at": Field("x", take=[0])}, samples=Sequences())
    with H5StreamLoader(dataset, 32, True, keep="never", window="all", num_workers=4) as loader:
        batches = iter(loader)
        first = next(batches)
        rest = [first, *batches]
        asked = loader.stats().requested_bytes
    for batch in rest:
        for found, at in zip(batch["x"].numpy(), batch["at"].numpy(), strict=True):
            number = np.flatnonzero((frames == at[0]).all(axis=(1, 2)))[0]
            assert (found == frames[number : number + 12 : 3]).all()
    assert len(np.concatenate([batch["at"] for batch in rest])) == 300 - 9
    assert asked < 4 * frames.nbytes  # of both fields, this epoch's and the next one's window; each four times were 10


def test_a_pattern_lists_the_store(folder):
    store = obstore.store.LocalStore(str(folder.parent))
    dataset = H5Dataset(f"memory://here/{folder.name}/[ab]*.h5", "y", storage_options=store)
    assert dataset[:].tolist() == list(range(ROWS))
    for pattern in ("none/*.h5", "*.h5", f"{folder.name}?a.h5"):  # * and ? stay within a folder
        with pytest.raises(errors.SourceNotFoundError, match="no object matches 'memory://here/"):
            H5Dataset(f"memory://here/{pattern}", "y", storage_options=store)
    with pytest.raises(errors.OptionError, match="a web server has no list"):
        H5Dataset("https://localhost/*.h5", "y")


def test_a_batch_waits_for_no_request_of_a_later_one(server, monkeypatch):
    """Labels that are in memory are copied by a thread that comes back from the store, before it asks for more."""
    stream_all(monkeypatch, keep_nbytes=64_000)
    path = server.folder / "later.h5"
    x = np.random.default_rng(0).random((8000, 256), "f4")
    write_datasets(path, y={"data": np.arange(8000), "chunks": (100,)}, x={"data": x, "chunks": (100, 256)})
    with h5py.File(path) as file:
        later = file["x"].id.get_chunk_info_by_coord((2000, 0)).byte_offset
    options = {"client_options": {"timeout": "60s"}}
    dataset = H5Dataset(f"{server.url}/later.h5", ["x", "y"], storage_options=options)

    def begin(request):
        return int(re.findall(r"\d+", request[2] or "0")[0])

    server.fault = lambda _, request: "stall" if begin(request) >= later else None
    with H5StreamLoader(dataset, 500, window=1000, num_workers=2, keep="never", timeout=20) as loader:
        iterator = iter(loader)
        for k in range(4):
            batch, numbers = next(iterator)
            assert np.array_equal(batch.numpy(), x[500 * k : 500 * k + 500]), k
            assert numbers[0] == 500 * k


def test_values_of_a_heap_collection_are_requested_once(server):
    """Every eighth value is wanted: what else is in its collection is known, and comes with it."""
    path, rng = server.folder / "heap.h5", np.random.default_rng(0)
    values = [rng.integers(0, 255, 3000 + 8 * k % 50, "u1") for k in range(400)]
    write_datasets(path, v=vlen("u1", values))
    dataset = H5Dataset(f"{server.url}/heap.h5", Field("v", ragged="list"))
    chosen = list(range(0, 400, 8))
    server.asked.clear()
    with H5StreamLoader(dataset.subset(chosen), 50, keep="never", num_workers=1) as loader:
        (batch,) = loader
    assert all(np.array_equal(one.numpy(), values[k]) for one, k in zip(batch, chosen, strict=True))
    asked = sorted([*map(int, re.findall(r"\d+", request[2]))] for request in server.asked if request[2])
    assert all(before[1] < after[0] for before, after in itertools.pairwise(asked)), asked


@pytest.mark.parametrize("fault", [503, 429, "short", "reset", "stall"])
def test_a_store_that_fails_now_and_then_is_asked_again(folder, server, fault):
    draw, options = random.Random(1), {"client_options": {"timeout": "0.5s"}}
    server.fault = lambda *_: fault if draw.random() < 0.2 else None
    dataset = H5Dataset(f"{server.url}/a.h5", ["x", "y"], storage_options=options)
    wanted = epoch(H5Dataset(folder / "a.h5", ["x", "y"]))
    assert [epoch(dataset, keep="never") for _ in range(2)] == [wanted, wanted]


@pytest.mark.parametrize(
    ("fault", "said", "when"),
    [
        (403, "does not let .* be read", "opening"),
        (404, "there is no object", "reading"),
        (503, "failed: .*503", "opening"),
        ("stall", "failed: ", "reading"),
    ],
)
def test_a_store_that_always_fails_is_named_at_the_batch_that_needed_it(server, fault, said, when):
    options, before = {"client_options": {"timeout": "0.5s"}, "retry_config": SOON}, readers()
    address = f"{server.url}/a.h5"
    if when == "opening":
        server.fault = lambda *_: fault
        with pytest.raises(errors.SourceError, match=said) as caught:
            H5Dataset(address, "x", storage_options=options)
    else:
        dataset = H5Dataset(address, "x", storage_options=options)
        server.fault = lambda *_: fault
        with pytest.raises(errors.SourceError, match=said) as caught:
            epoch(dataset)
    assert address in str(caught.value)
    assert caught.value.file == address
    assert readers() <= before


@pytest.mark.parametrize("heeds_tags", [True, False])
def test_an_object_that_changes_is_an_error_and_no_mixture(tmp_path, heeds_tags):
    with ObjectServer(tmp_path) as server:
        server.heeds_tags = heeds_tags
        for k in range(2):
            make_file(tmp_path / "a.h5", "x", None, data=np.full((3000, 4), k, "f4"), chunks=(100, 4))
            if k == 0:
                dataset = H5Dataset(f"{server.url}/a.h5", "x")
        with pytest.raises(errors.SourceChangedError, match="changed while it was being read"):
            epoch(dataset)


@pytest.mark.filterwarnings("error")
def test_a_server_of_these_tests_leaves_no_connection_when_it_is_closed(tmp_path):
    """Also none that waits for who has stopped reading, or for what never comes."""
    (tmp_path / "large").write_bytes(bytes(64 << 20))
    with ObjectServer(tmp_path) as server, contextlib.ExitStack() as stack:
        for fault in (None, "stall"):
            server.fault, before = lambda *_, fault=fault: fault, len(server.asked)
            link = stack.enter_context(socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))))
            link.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            eventually(lambda before=before: len(server.asked) > before)
        server.close()
        assert not server._connections
        assert not [one for one in threading.enumerate() if one is server._thread]
    gc.collect()  # which would warn of what is open


WATCHED = {
    "weak ETags": {"tag": 'W/"{}"'},
    "dates": {"has_tags": False, "has_dates": True},
    "sizes": {"has_tags": False},
}


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("watched", WATCHED)
def test_an_object_without_a_strong_etag_is_watched_by_what_its_store_gives(tmp_path, watched, replaced):
    path = tmp_path / "a.h5"
    rows = np.arange(12_000, dtype="f4").reshape(3000, 4)
    make_file(path, "x", None, data=rows, chunks=(100, 4))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    with ObjectServer(tmp_path) as server:
        vars(server).update(WATCHED[watched])
        dataset = H5Dataset(f"{server.url}/a.h5", "x")
        assert dataset[:].numpy().tolist() == rows.tolist()
        if replaced:
            more = 7 if watched == "sizes" else 0
            make_file(path, "x", None, data=np.zeros((3000 + more, 4), "f4"), chunks=(100, 4))
        for read in (lambda: epoch(dataset, keep="never"), lambda: dataset[2999]):
            if replaced:
                with pytest.raises(errors.SourceChangedError, match=r"its (size|ETag|date) (went )?from .* to "):
                    read()
            else:
                read()


@pytest.mark.parametrize("watched", ["strong ETags", *WATCHED])
def test_an_object_that_h5py_reads_is_the_one_that_was_opened_or_has_changed(tmp_path, watched):
    path, kind = tmp_path / "a.h5", np.dtype([("text", h5py.string_dtype()), ("a", "f4")])

    def rewrite(rows, begin):
        values = np.array([(f"{begin + k}", begin + k) for k in range(rows)], kind)
        stored = h5py.h5t.py_create(kind, logical=True)
        low_level(
            path, (rows,), stored=stored, prepare=lambda one: one.set_layout(h5py.h5d.COMPACT), then=write(values)
        )

    rewrite(30, 0)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    with ObjectServer(tmp_path) as server:
        vars(server).update(WATCHED.get(watched, {}))
        dataset = H5Dataset(f"{server.url}/a.h5", "x")
        rewrite(37, 500)
        with contextlib.suppress(errors.SourceChangedError):  # or it is held in memory as it was
            assert dataset[:]["a"].tolist() == list(range(30))
        dataset.close()


def test_an_object_that_became_shorter_has_changed(tmp_path):
    path = tmp_path / "a.h5"
    make_file(path, "x", None, data=np.arange(40_000), chunks=(100,))
    with ObjectServer(tmp_path) as server:
        server.has_tags = False
        dataset = H5Dataset(f"{server.url}/a.h5", "x")
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(errors.SourceChangedError, match=r"its size went from \d+ to 1000 bytes"):
            dataset[39_999]


def test_what_nothing_watches_is_said_once_and_held_by_nobody(tmp_path, caplog):
    path = tmp_path / "a.h5"
    with ObjectServer(tmp_path) as server:
        server.has_tags = False
        for k in range(3):
            make_file(path, "x", None, data=np.full(3000, k), chunks=(100,))
            assert H5Dataset(f"{server.url}/a.h5", "x")[2999] == k
        assert caplog.text.count(f"{server.url} gives neither ETags nor the dates of its files") == 1


ANSWERS = {
    301: ("redirects the request", errors.SourceError),
    400: ("GET .* was answered with 400 .*token that has expired", errors.SourceError),
    401: ("does not let .* be read", errors.SourceError),
    405: ("answered with 405 .*download the file", errors.SourceError),
    409: ("answered with 409 .*try again later", errors.SourceError),
    410: ("there is no object .* any more", errors.SourceNotFoundError),
    404: ("there is no object 'http", errors.SourceNotFoundError),
    412: ("it has another ETag", errors.SourceChangedError),
    416: ("answered with 416 .*open it again", errors.SourceError),
    "whole": ("sends whole files alone.*download it", errors.SourceError),
    "elsewhere": ("does not send the bytes that it is asked for", errors.SourceError),
    "gzip": ("Content-Encoding: gzip.*download the file", errors.SourceError),
}


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_each_answer_that_waiting_does_not_change_is_told_at_once(server, answer):
    said, kind = ANSWERS[answer]
    server.fault = lambda _, request: answer if request[0] == "GET" else None
    asked = in_thread(lambda: H5Dataset(f"{server.url}/a.h5", "x"))
    error = asked.exception(20)  # and not after the 40 s for which a store is asked again
    assert type(error) is kind
    assert re.search(said, str(error)), error
    assert error.file == f"{server.url}/a.h5"


@pytest.mark.parametrize("answer", [405, 410])
def test_a_server_that_does_not_answer_heads_is_told(server, answer):
    server.fault = lambda _, request: answer if request[0] == "HEAD" else None
    with pytest.raises(errors.SourceError, match="405 .*in this way" if answer == 405 else "any more"):
        H5Dataset(f"{server.url}/a.h5", "x")


@pytest.mark.parametrize("answer", [408, 429, 500, 502, 503, 504])
def test_a_store_that_stays_busy_is_asked_again_and_told_with_the_way_out(server, answer):
    server.fault = lambda *_: answer
    with pytest.raises(errors.SourceError, match=rf"after 2 retries.* {answer} .*'retry_timeout': '3min'"):
        H5Dataset(f"{server.url}/a.h5", "x", storage_options={"retry_config": SOON})


@pytest.mark.parametrize("address", ["{}/a.h5", "s3://bucket/a.h5", "s3://bucket/*.h5"])
def test_a_certificate_that_is_not_accepted_is_told_at_once(folder, tmp_path, address):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    certificate, key = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    subject = ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *subject], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with ObjectServer(folder, tls=tls) as server:
        store = {"endpoint": server.url, "region": "here", "skip_signature": True}
        options = store if address.startswith("s3") else None
        asked = in_thread(lambda: H5Dataset(address.format(server.url), "y", storage_options=options))
        error = asked.exception(20)  # and not after the 40 s for which a store is asked again
        assert isinstance(error, errors.SourceError)
        assert re.search("certificate is not accepted .*'root_certificate': .*SSL_CERT_FILE", str(error)), error
        if not address.startswith("s3"):
            accepted = {"client_options": {"allow_invalid_certificates": True}}
            assert len(H5Dataset(address.format(server.url), "y", storage_options=accepted)) == ROWS


def test_an_address_may_be_encoded_as_a_browser_shows_it(tmp_path):
    make_file(tmp_path / "my file \u00fc 100%.h5", "x", None, data=np.arange(10), chunks=(5,))
    with ObjectServer(tmp_path) as server:
        for name in ("my%20file%20%C3%BC%20100%25.h5", "my file \u00fc 100%.h5"):
            assert H5Dataset(f"{server.url}/{name}", "x")[7] == 7


def test_credentials_that_the_environment_has_by_now_are_used(server, monkeypatch):
    (server.folder / "bucket-of-later").mkdir()
    shutil.copy(server.folder / "a.h5", server.folder / "bucket-of-later")
    address = "s3://bucket-of-later/a.h5"
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_REGION", "here")
    with pytest.raises(errors.SourceError, match="AWS_ALLOW_HTTP=true"):
        H5Dataset(address, "y")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert len(H5Dataset(address, "y")) == ROWS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"access_key_id": "key", "secret_access_key": "hushhush"},
            "access_key_id and secret_access_key in storage_op",
        ),
        ({"skip_signature": True}, "without credentials"),
        ({}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"),
    ],
)
def test_a_refusal_says_whose_credentials_were_wrong(server, monkeypatch, options, said):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    server.fault = lambda *_: 403
    store = {"endpoint": server.url, "region": "here", **HTTP}
    if options:
        with pytest.raises(errors.SourceError, match=said):
            H5Dataset("s3://bucket/a.h5", storage_options=store | options)
    else:
        monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
        assert said in stores._permission_advice("s3://bucket/a.h5", "no such word")


def test_no_message_repeats_a_secret_that_a_server_does():
    secret = "Bearer hushhush-7431"
    word = stores.word_of("https://echo.invalid", {"client_options": {"default_headers": {"authorization": secret}}})
    error = OSError(f"<Code>Denied</Code><Message>not {secret}</Message>")
    assert "hushhush" not in stores._without_keys(error, "https://echo.invalid/a.h5", word)


def test_small_files_that_stay_in_memory_are_asked_for_once(tmp_path):
    """In the order that the files on a disk have."""
    for k in range(30):
        write_datasets(tmp_path / f"{k:02}.h5", image=np.full((8, 8), k, "u1"), label=np.full((), k))
    files, samples = [f"{k:02}.h5" for k in range(30)], Objects("files")
    with ObjectServer(tmp_path) as server:
        epochs = {}
        for where in (str(tmp_path), server.url):
            dataset = H5Dataset([f"{where}/{name}" for name in files], ["image", "label"], samples=samples)
            with H5StreamLoader(dataset, 8, True, seed=1) as loader:
                epochs[where] = [([plain(batch) for batch in loader], loader.stats().requests) for _ in range(3)]
    near, far = epochs.values()
    assert [batches for batches, _ in near] == [batches for batches, _ in far]
    assert far[0][1] > 0
    assert [requests for _, requests in far[1:]] == [0, 0]


@pytest.mark.parametrize("more", [False, True])
def test_a_store_sends_the_second_epoch_ahead_only_if_it_is_sure_to_come(server, monkeypatch, more):
    stream_all(monkeypatch)
    rows = np.random.default_rng(0).integers(0, 255, (400, 10_000), "u1")
    make_file(server.folder / "large.h5", data=rows, chunks=(100, 10_000))
    dataset = H5Dataset(f"{server.url}/large.h5", "x")
    with H5StreamLoader(dataset, 100, True, keep="never", persistent_workers=more) as loader:
        server.nbytes = 0
        assert len(list(loader)) == 4
        if more:
            eventually(lambda: loader.stats().ahead_bytes >= rows.nbytes)
            assert "for the epoch that follows" in str(loader.stats())
        else:
            assert loader.stats().ahead_bytes == 0
            assert server.nbytes < 1.1 * rows.nbytes
        assert len(list(loader)) == 4
        assert rows.nbytes <= loader.stats().requested_bytes < 1.1 * rows.nbytes
        eventually(lambda: loader.stats().ahead_bytes >= rows.nbytes)  # epochs follow one another


def test_a_list_is_rewritten_with_its_options_by_an_executor(server, tmp_path):
    for name in "ab":
        write_datasets(server.folder / f"{name}-small.h5", x=np.arange(100))
    sources = [f"{server.url}/{name}-small.h5" for name in "ab"]
    token = {"client_options": {"default_headers": {"authorization": "Bearer hushhush"}}}
    with ThreadPoolExecutor(2) as threads:
        results = repack(sources, tmp_path, storage_options=token, executor=threads)
        staged = stage(sources, to=tmp_path / "fast", repack={}, storage_options=token, executor=threads)
    for path in (*(one.target for one in results), *staged.paths):
        assert H5Dataset(path, "x")[:].tolist() == list(range(100))
    staged.release()
    with ProcessPoolExecutor(1, SERVED) as processes:
        for call in (
            lambda: repack(sources, tmp_path, storage_options=token, executor=processes, overwrite=True),
            lambda: stage(sources, to=tmp_path / "new", repack={}, storage_options=token, executor=processes),
        ):
            with pytest.raises(errors.SourceError, match="storage_options=, which stay in the process"):
                call()


def test_no_credential_is_in_what_is_kept_or_said(server, caplog):
    headers = {"default_headers": {"authorization": "Bearer hushhush"}}
    dataset = H5Dataset(f"{server.url}/a.h5", ["x", "y"], storage_options={"client_options": headers})
    loader = H5StreamLoader(dataset, 256, seed=0)
    next(iter(loader))
    told = [pickle.dumps(dataset), repr(dataset).encode(), repr(loader.state_dict()).encode(), caplog.text.encode()]
    server.fault = lambda *_: 403
    with pytest.raises(errors.SourceError) as caught:
        dataset[[7, 3000]]
    loader.close()
    assert b"hushhush" not in b"".join([*told, str(caught.value).encode(), repr(dataset.layout.files).encode()])
    with pytest.raises(errors.OptionError, match=r"followed by a query") as caught:
        H5Dataset(f"{server.url}/a.h5?key=hushhush", "x")
    assert "hushhush" not in str(caught.value)
    for address in ("s3://key:hushhush@bucket/a.h5", "http://hushhush@127.0.0.1/a.h5", "az://a:hushhush@c/a.h5"):
        with pytest.raises(errors.OptionError, match="a name or a key before its @") as caught:
            H5Dataset(address, "x")
        assert "hushhush" not in str(caught.value)
    with pytest.raises(errors.OptionError, match="failed to parse a value as boolean") as caught:
        H5Dataset("s3://bucket/a.h5", "x", storage_options={"skip_signature": "hushhush"})
    assert "hushhush" not in str(caught.value)


def test_episodes_are_opened_in_requests_of_tens_and_few_turns(tmp_path):
    """Each has a group of its own, and more chunks than a node of a tree holds: none is asked for by itself."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(200):
            rows = int(rng.integers(60, 160))
            frames = rng.integers(0, 255, (rows, 16, 16), "u1")
            file.create_dataset(f"data/{k}/obs/x", data=frames, chunks=(1, 16, 16), compression="gzip")
            file[f"data/{k}/y"] = rng.random(rows)
    fields, samples = {"x": "obs/x", "y": "y"}, Sequences(16, of="data/*")
    with contextlib.closing(ObjectServer(tmp_path)) as server:
        dataset = H5Dataset(f"{server.url}/a.h5", fields, samples=samples)
        assert len(server.asked) < 250
        numbers = rng.choice(len(dataset), 20)
        ours, theirs = (one[numbers] for one in (dataset, H5Dataset(tmp_path / "a.h5", fields, samples=samples)))
        assert all(torch.equal(ours[name], theirs[name]) for name in fields)


KEPT = """
import sys, types
from h5stream import H5Dataset
sys.modules["kept"] = kept = types.ModuleType("kept")
kept.errors = []
for address in sys.argv[1:]:
    try:
        H5Dataset(address, "x")
    except Exception as error:
        kept.errors.append(error)
print(len(kept.errors))
"""


def test_a_process_whose_reads_were_refused_ends_as_any_other(server):
    server.fault = lambda *request: 403 if "GET" in str(request) else None
    addresses = [f"{server.url}/{name}" for name in ("a.h5", "none.h5")]
    done = forking.run(KEPT, *addresses, whole_end=True)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_workers_that_lack_the_options_say_so_at_their_first_read(server):
    dataset = H5Dataset(f"{server.url}/a.h5", "y", storage_options=HTTP)
    loader = DataLoader(dataset, 64, num_workers=1, multiprocessing_context=SERVED)
    with pytest.raises(errors.SourceError, match=r"storage_options=, which stay in the process .* by the environment"):
        next(iter(loader))


def test_a_store_that_is_not_there_yet_is_asked_again(folder, monkeypatch):
    monkeypatch.setitem(stores.RETRIES["backoff"], "max_backoff", datetime.timedelta(seconds=0.5))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    refused = stores.store_usage()
    asked = in_thread(lambda: H5Dataset(f"http://127.0.0.1:{port}/a.h5", "y")[7])
    eventually(lambda: stores.store_usage(refused).requests)
    with pytest.raises(TimeoutError):
        asked.result(0.4)  # longer than the first few of the growing steps
    with ObjectServer(folder, port):
        assert int(asked.result(60)) == 7


def test_a_forked_child_is_told_how_to_start_workers(server):
    dataset = H5Dataset(f"{server.url}/a.h5", "y")
    dataset[0]

    def read():
        with pytest.raises(errors.SourceError, match="multiprocessing_context='spawn'"):
            dataset[[5, 4000]]
        return os.getpid()

    assert in_forked_child(read) != os.getpid()


def test_what_leads_out_of_an_object_is_refused(tmp_path):
    outside = {"shape": (3,), "dtype": "u1", "external": [("raw.bin", 0, 3)]}
    write_datasets(tmp_path / "a.h5", x=h5py.ExternalLink("b.h5", "x"), outside=outside)
    write_datasets(tmp_path / "b.h5", x=np.arange(3))
    (tmp_path / "raw.bin").write_bytes(b"123")
    store = obstore.store.LocalStore(str(tmp_path))
    for field in ("x", "outside"):
        with pytest.raises(errors.ExternalDataError, match="cannot be followed"):
            H5Dataset("memory://out/a.h5", field, storage_options=store, allow_external=True)


def test_small_objects_are_fetched_many_at_a_time(server):
    write_datasets(server.folder / "small.h5", **{f"d/{k}": np.full((3, 40), k, "f4") for k in range(1500)})
    dataset = H5Dataset(f"{server.url}/small.h5", ".", samples=Objects("d/*"))
    assert len(server.asked) < 40
    server.asked.clear()
    epoch(dataset, keep="never")
    assert len(server.asked) < 60


def test_each_reader_of_a_small_window_has_several_requests_under_way(server, monkeypatch):
    stream_all(monkeypatch)
    make_file(server.folder / "frames.h5", "x", None, data=np.zeros((200, 100_000), "u1"), chunks=(1, 100_000))
    dataset = H5Dataset(f"{server.url}/frames.h5", "x")
    server.distance, server.most_together = replace(server.distance, latency_ms=50), 0
    with H5StreamLoader(dataset, 8, shuffle=True, keep="never", window=16, num_workers=4) as loader:
        assert len(next(iter(loader))) == 8
    assert server.most_together > 8


def test_an_epoch_that_is_stopped_while_h5py_waits_for_a_store_fails_no_later_one(server):
    rows = np.arange(4_000_000, dtype="i4").reshape(4000, 1000)
    make_file(server.folder / "scaled.h5", "x", None, data=rows, scaleoffset=0, chunks=(100, 1000))
    options = {"shuffle": True, "keep": "never", "memory_budget": "64MiB", "num_workers": 2}
    with H5StreamLoader(H5Dataset(f"{server.url}/scaled.h5", "x"), 100, **options) as loader:
        for _ in range(4):
            stalled = threading.Event()
            server.fault = lambda *_: stalled.set() or "stall"  # noqa: B023
            with contextlib.closing(iter(loader)):
                assert stalled.wait(30)
        server.fault = lambda *_: None
        assert [len(batch) for batch in loader] == [100] * 40


def test_many_objects_are_opened_beside_one_another(server):
    for k in range(40):
        make_file(server.folder / f"part-{k:02}.h5", "x", None, data=np.full((30, 4), k), chunks=(10, 4))
    server.distance = replace(server.distance, latency_ms=50)
    dataset = H5Dataset([f"{server.url}/part-{k:02}.h5" for k in range(40)], "x")
    assert len(set(server.asked)) == 80  # what each is, and its bytes; on a busy machine some are asked again
    assert server.most_together > 10
    assert dataset[:][:, 0].tolist() == np.repeat(np.arange(40), 30).tolist()


def test_the_nodes_of_a_large_index_are_fetched_together(server):
    with h5py.File(server.folder / "index.h5", "w") as file:
        x = file.create_dataset("x", (2000, 8192), "u1", chunks=(1, 8192))
        for k in range(2000):
            x[k] = k % 251
    server.distance = replace(server.distance, latency_ms=50)
    dataset = H5Dataset(f"{server.url}/index.h5", "x")
    assert server.most_together > 10
    assert dataset[1999][0] == 1999 % 251


def test_small_data_that_an_epoch_was_stopped_before_are_read_by_the_next(server):
    make_file(server.folder / "small.h5", "x", None, data=np.arange(1, 3001), chunks=(50,), compression="gzip")
    for _ in range(30):
        loader = H5StreamLoader(H5Dataset(f"{server.url}/small.h5", "x"), 100, shuffle=True, num_workers=2)
        iter(loader)
        loader.close()
        assert sorted(number for batch in loader for number in batch.tolist()) == [*range(1, 3001)]
        server.asked.clear()
        assert len(list(loader)) == 30
        assert not server.asked
        loader.close()


def test_a_loader_that_is_closed_while_a_store_stalls_waits_for_nothing(server):
    before, stalled = readers(), threading.Event()
    loader = H5StreamLoader(H5Dataset(f"{server.url}/a.h5", "x"), 256, keep="never")
    server.fault = lambda *_: stalled.set() or "stall"
    batches = iter(loader)
    waiting = in_thread(lambda: next(batches))
    assert stalled.wait(30)
    in_thread(loader.close).result(5)  # and not after the 30 s that a request may take
    assert isinstance(waiting.exception(5), errors.LoaderClosedError)
    assert readers() <= before


@pytest.fixture
def noise(server):
    rows = np.random.default_rng(0).integers(0, 256, (16, 1 << 20), "u1")
    return make_file(server.folder / "noise.h5", data=rows, chunks=(1, 1 << 20), compression="gzip")


def test_a_loader_that_is_closed_while_a_cache_waits_leaves_no_thread(server, noise, tmp_path, monkeypatch):
    before, waiting = readers(), threading.Event()
    loader = H5StreamLoader(H5Dataset(f"{server.url}/noise.h5", "x", cache=tmp_path), 16, keep="never")
    monkeypatch.setattr(disk_cache, "_lock_pages", lambda *_: waiting.set())
    batches = iter(loader)
    found = in_thread(lambda: next(batches))
    assert waiting.wait(30)
    in_thread(loader.close).result(5)
    assert isinstance(found.exception(5), errors.LoaderClosedError)
    for thread in readers() - before:
        thread.join(3)  # and not the 10 s that another process has for it
    assert readers() <= before


def test_an_error_ends_what_is_read_beside_it(server, noise):
    dataset, before = H5Dataset(f"{server.url}/noise.h5", "x"), readers()
    first = int(dataset.layout.datasets[0][0].chunk_index.offset[0])
    server.fault = lambda _, request: 404 if f"bytes={first}-" in str(request) else "stall"
    with pytest.raises(errors.SourceError, match=r"noise\.h5"):
        in_thread(lambda: dataset[:]).result(10)  # and not the 30 s that a request may take
    assert readers() <= before


@pytest.mark.parametrize("is_small", [False, True])
def test_what_is_stopped_while_a_store_stalls_keeps_nothing(server, noise, uncollected, monkeypatch, is_small):
    if not is_small:
        stream_all(monkeypatch)
    dataset, before, stalled = H5Dataset(f"{server.url}/noise.h5", "x"), readers(), threading.Event()
    server.fault = lambda *_: stalled.set() or "stall"
    loader = H5StreamLoader(dataset, 4)
    iterator, kept = iter(loader), weakref.ref(iterations_of(loader).engine.reader)
    assert stalled.wait(30)
    del dataset, loader, iterator
    eventually(lambda: readers() <= before, limit_s=5)
    assert kept() is None


def test_the_loader_takes_what_opens_the_stores_and_leaves_it_behind(folder):
    store = obstore.store.LocalStore(str(folder))
    with H5StreamLoader("memory://there/a.h5", 512, fields="y", storage_options=store) as loader:
        assert [row for batch in loader for row in batch.tolist()] == list(range(ROWS))
        assert b"LocalStore" not in pickle.dumps(loader)
    with pytest.raises(errors.OptionError, match="storage_options= belongs to the H5Dataset"):
        H5StreamLoader(loader.dataset, storage_options=store)


def test_statistics_count_the_requests_of_each_epoch_and_those_before(server, tmp_path):
    for k in range(30):
        write_datasets(server.folder / f"{k}.h5", x=np.full(8, k, "f4"), y=np.full(1, k))
    files, found = [f"{server.url}/{k}.h5" for k in range(30)], []
    for cache in (None, tmp_path / "cache"):
        dataset = H5Dataset(files, ["x", "y"], samples=Objects("files"), cache=cache)
        with H5StreamLoader(dataset, 10, keep="never") as loader:
            found += [(len(list(loader)), loader.stats().requests) for _ in range(2)]
            said = loader.stats()
            assert ("object stores: 30 requests for" in str(said)) == (cache is None)
    assert found == [(3, 60), (3, 30), (3, 0), (3, 0)]  # the small field stays; the next epoch is read ahead
    assert said.process_requests > 90
    assert (said.cached_bytes > 30 * 4000, " from the cache; " in str(said)) == (True, True)
    with H5StreamLoader(server.folder / "0.h5", fields="x") as loader:
        assert len(list(loader)) == 1
        assert (loader.stats().requests, "object stores" in str(loader.stats())) == (0, False)


@pytest.mark.parametrize("samples", [None, Sequences(3)])
@pytest.mark.parametrize(("chunk_rows", "requested"), [(1, False), (4, False), (25, True)])
def test_unfiltered_rows_of_a_store_stay_in_memory(server, monkeypatch, samples, chunk_rows, requested):
    """Not those of large chunks: they come without the rows beside them. The order is that of the file."""
    stream_all(monkeypatch)
    rows = np.arange(200 * 4096, dtype="i4").reshape(200, 4096)
    make_file(server.folder / "frames.h5", data=rows, chunks=(chunk_rows, 4096))
    found = {}
    for where in (server.folder, server.url):
        dataset = H5Dataset(f"{where}/frames.h5", "x", samples=samples)
        for budget, keep in (("1GiB", "auto"), ("1GiB", "never"), ("8MiB", "auto")):
            with H5StreamLoader(dataset, 16, True, seed=1, memory_budget=budget, keep=keep) as loader:
                epochs = [[batch.clone() for batch in loader], [batch.clone() for batch in loader]]
                found[where, budget, keep] = epochs, loader.stats().requests > 0, loader.window_size.window_rows
    for budget, keep in (("1GiB", "auto"), ("1GiB", "never"), ("8MiB", "auto")):
        (near, _, near_rows), (far, asked, far_rows) = (found[w, budget, keep] for w in (server.folder, server.url))
        assert far_rows == near_rows
        assert all(
            torch.equal(a, b) for ones, others in zip(near, far, strict=True) for a, b in zip(ones, others, strict=True)
        )
        assert asked == (requested or (budget, keep) != ("1GiB", "auto"))


def test_objects_of_unlike_lengths_stay_in_memory(server):
    """Not what lies behind the shorter ones, which may be the end of a file."""
    for k in range(4):
        write_datasets(server.folder / f"o{k}.h5", x=np.arange(5 - k % 2, dtype="f4") + 10 * k)
    fields = {"x": Field("x", ragged="list")}
    dataset = H5Dataset([f"{server.url}/o{k}.h5" for k in range(4)], fields, samples=Objects("files"))
    with H5StreamLoader(dataset, 4) as loader:
        for _ in range(2):
            assert plain(next(iter(loader))["x"]) == [[10.0 * k + j for j in range(5 - k % 2)] for k in range(4)]


@pytest.mark.parametrize("chunk_rows", [16, 256])
def test_as_many_threads_decode_at_once_as_there_are_processors(server, monkeypatch, chunk_rows):
    """More of them, which wait, fit the budget so; and a chunk that does not decode keeps nobody waiting."""
    stream_all(monkeypatch)
    processors(monkeypatch, 2)
    path, used = server.folder / "coded.h5", set()
    rows = np.arange(4096 * 1024, dtype="i4").reshape(4096, 1024)
    make_file(path, data=rows, chunks=(chunk_rows, 1024), compression="lzf", fletcher32=True)

    def decode(*given):
        used.add(given[8])  # the address of its scratch
        time.sleep(0.002)  # so that another thread decodes meanwhile, also where the processors are busy

    around(monkeypatch, kernels, "land", before=decode)
    options = {"keep": "never", "memory_budget": "256MiB", "num_workers": 64}
    near, far = (H5StreamLoader(f"{where}/coded.h5", 256, True, **options) for where in (server.folder, server.url))
    assert 2 < near.num_workers < far.num_workers
    used.clear()
    with far:
        assert sorted(row for batch in far for row in batch[:, 0].tolist()) == rows[:, 0].tolist()
    assert len(used) == 2
    processors(monkeypatch, 8)
    with H5StreamLoader(f"{server.url}/coded.h5", 256, **options | {"num_workers": 1}) as one:
        used.clear()
        assert sum(len(batch) for batch in one) == 4096
    assert len(used) == 1  # and not one after the other
    for chunk in range(0, 4096, 512):
        corrupt_chunk(path, (chunk, 0))
    with H5StreamLoader(f"{server.url}/coded.h5", 256, True, on_error="skip", **options) as loader:
        assert 0 < sum(len(batch) for batch in loader) < 4096


def test_that_a_cache_keeps_nothing_or_too_little_is_said(server, tmp_path, caplog):
    make_file(server.folder / "large.h5", data=np.ones((24, 1 << 20), "u1"), chunks=(1, 1 << 20))
    H5Dataset(server.folder / "large.h5", cache=tmp_path)
    dataset = H5Dataset(f"{server.url}/large.h5", cache=tmp_path, cache_size="20MB")
    assert len(epoch(dataset, keep="never")) == 1
    server.has_tags = False
    H5Dataset(f"{server.url}/large.h5", cache=tmp_path)
    for said in ("no file of this dataset is in one", "is fetched again each time", f"nothing of {server.url}"):
        assert caplog.text.count(said) == 1


def test_each_rank_fetches_its_own_part(server):
    with h5py.File(server.folder / "large.h5", "w") as file:
        rows = np.random.default_rng(0).random((6000, 1024), "f4")
        file.create_dataset("x", data=rows, chunks=(50, 1024), compression="gzip", compression_opts=1)
    dataset, fetched = H5Dataset(f"{server.url}/large.h5", "x"), []
    for ranks in ({}, {"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2}):
        server.nbytes = 0
        # Without threads nothing of the next epoch is read ahead.
        with H5StreamLoader(dataset, 250, shuffle=True, seed=0, keep="never", num_workers=0, **ranks) as loader:
            assert sum(len(batch) for batch in loader) == 6000 // ranks.get("world_size", 1)
        fetched.append(server.nbytes)
    whole, *parts = fetched
    assert sum(parts) < 1.1 * whole
    assert max(parts) < 0.6 * whole


def test_options_are_those_of_the_dataset_that_was_given_them(folder):
    store = obstore.store.LocalStore(str(folder))
    first = H5Dataset("memory://options/a.h5", "y", storage_options=store)
    with pytest.raises(errors.OptionError, match="does not open"):  # by what the environment has
        H5Dataset("memory://options/a.h5", "y")
    assert first[:].tolist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("anon", "takes a dict of options"),
        ({"endpoint": "127.0.0.1:9000"}, "write https://127.0.0.1:9000"),
        ({"allow_http": True}, r"allow_http belongs in client_options: .*{'client_options': {'allow_http': True}}"),
        ({"config": {"aws_timeout": "3s"}}, "timeout belongs in client_options"),
        ({"regoin": "here"}, r"no 'regoin' there; write: storage_options={'region': \.\.\.}"),
        ({"retry_config": {"backoff": {"bse": 3}}}, r"{'retry_config': {'backoff': {'base': \.\.\.}}}"),
        ({"retry_config": {"retry_timeout": "soon"}}, "'retry_timeout' takes a duration: seconds, text such as '120s'"),
        ({"secret_access_key": b"hidden"}, "takes text, or True or False, not bytes"),
        (None, "AWS_ENDPOINT_URL='127.0.0.1:9000' is no address"),
    ],
)
def test_options_that_open_no_store_are_refused(monkeypatch, options, said):
    if options is None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(errors.OptionError, match=said):
        H5Dataset("s3://no-such-bucket/a.h5", "y", storage_options=options)


@pytest.mark.parametrize("name", ["store.from_url", "head_async"])
def test_a_panic_of_what_connects_is_an_error(monkeypatch, name):
    panic = type("PanicException", (BaseException,), {})("what it says")
    monkeypatch.setattr(f"obstore.{name}", lambda *_, **__: (_ for _ in ()).throw(panic))
    with pytest.raises(errors.H5StreamError, match="what it says"):
        H5Dataset(f"https://{name}.invalid/a.h5")


def test_retries_are_the_defaults_where_nothing_else_is_said():
    word = stores.word_of("https://retries.invalid", {"retry_config": {"retry_timeout": "5s 500ms", "backoff": {}}})
    found = stores.stores[word].retry_config
    assert (found["max_retries"], found["retry_timeout"].total_seconds(), found["backoff"]["base"]) == (100, 5.5, 3)


@pytest.mark.parametrize("fault", [None, 503])
def test_what_is_rewritten_is_fetched_ahead_and_nothing_is_left_of_it(server, tmp_path, fault):
    write_datasets(server.folder / "many.h5", **{f"d/{k}": np.full((3, 1000), k, "f4") for k in range(300)})
    url, options = f"{server.url}/many.h5", {"retry_config": SOON, **HTTP}

    def rewrite():
        repack(url, tmp_path / "many.h5", storage_options=options)

    if fault:
        server.fault = lambda number, _: fault if number > 2 else None
        with pytest.raises(errors.SourceError, match=url):
            rewrite()
    else:
        rewrite()
        assert len(server.asked) < 20
        server.asked.clear()
        assert H5Dataset(url, "d/7")[0][0] == 7  # not of the cache that is gone
        assert server.asked
    assert [one.name for one in tmp_path.iterdir() if one.suffix] == ["many.h5"] * (not fault)
    assert not [one for one in tmp_path.rglob("*") if one.suffix in (".object", ".part")]
    assert not [one for one in threading.enumerate() if one.name.startswith("h5stream-ahead")]


@pytest.mark.parametrize(
    ("address", "options", "said"),
    [
        ("https://no-such-host.invalid/a.h5", {"retry_config": SOON}, "error sending request: failed to lookup"),
        ("http://127.0.0.1:9/a.h5", {"retry_config": SOON, **HTTP}, "error sending request: .*refused"),
        (
            "s3://bucket/a.h5",
            {"endpoint": "http://127.0.0.1:9", "region": "here"},
            "AWS_ALLOW_HTTP=.*'allow_http': True",
        ),
    ],
)
def test_a_store_that_is_not_reached_is_told_with_the_reason(address, options, said):
    options = options if "region" not in options else {**options, "skip_signature": True}
    with pytest.raises(errors.SourceError, match=said):
        H5Dataset(address, storage_options=options)


def test_that_a_store_is_silent_is_said_before_the_error(monkeypatch, caplog):
    monkeypatch.setattr(remote, "_SILENT_S", 0.05)
    with pytest.raises(errors.SourceError):
        H5Dataset("http://127.0.0.1:9/a.h5", storage_options={"retry_config": SOON, **HTTP})
    assert "http://127.0.0.1:9 has not answered for 0 s (connection refused: is the port right?)" in caplog.text
    assert "asked again until 3 s have passed" in caplog.text


def test_a_refusal_names_the_variables_and_what_is_not_there_the_bucket(server, monkeypatch):
    keys = {"access_key_id": "key", "secret_access_key": "hidden", "region": "here"}
    options = {"endpoint": server.url, **keys, **HTTP, "retry_config": SOON}
    (server.folder / "bucket/days").mkdir(parents=True)
    (server.folder / "bucket/days/a.h5").touch()
    with pytest.raises(errors.SourceNotFoundError, match=r"there is no bucket 'buckett', or no object 'b\.h5' in it"):
        H5Dataset("s3://buckett/b.h5", storage_options=options)
    with pytest.raises(errors.SourceNotFoundError, match=r"objects lie below it: s3://bucket/days/\*\.h5"):
        H5Dataset("s3://bucket/days", storage_options=options)
    server.fault = lambda *_: 403
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hidden")
    with pytest.raises(errors.SourceError, match=r"AWS_ACCESS_KEY_ID is set, but .*'Credentials'") as caught:
        H5Dataset("s3://bucket/days/a.h5", storage_options=options)
    assert "hidden" not in str(caught.value)
