"""A file that the user has open in the same process is read all the same, and the user's own opening is not refused."""

import concurrent.futures
import contextlib
import errno
import fcntl
import itertools
import os
import subprocess
import sys
import threading

import h5py
import numpy as np
import pytest
import torch
from oracle import expected, same, take
from support import forking
from support.forking import in_forked_child
from support.inner import around
from support.making import write_datasets

from h5stream import H5Dataset, H5StreamLoader, repack, stage
from h5stream.advice.listing import list_file
from h5stream.errors import SourceChangedError, SourceError
from h5stream.storage.source import handles

ROWS = 400
X = np.arange(ROWS * 3, dtype="i4").reshape(ROWS, 3)
TEXTS = [f"row {n}".encode() for n in range(ROWS)]
LIBVERS = (None, "latest", ("v110", "v114"))
LOCKINGS = (None, True, False, "best-effort")
MODES = pytest.mark.parametrize(("mode", "swmr"), [("r", False), ("r", True), ("r+", False), ("a", False)])
SETTINGS = [{"locking": locking, "libver": libver} for locking, libver in itertools.product(LOCKINGS, LIBVERS)]


def write(path, libver=None, rows=X):
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("x", data=rows, chunks=(50, 3), compression="gzip")
        file["texts"] = TEXTS  # of variable length
    return str(path)


@pytest.fixture(scope="module", params=LIBVERS, ids=str)
def path(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp("open") / "a.h5", request.param)


def check(dataset):
    x, texts = dataset[:]
    assert np.array_equal(x, X)
    assert texts == TEXTS


@MODES
def test_a_file_that_the_user_has_open_is_read(path, mode, swmr):
    for settings in SETTINGS:
        with h5py.File(path, mode, swmr=swmr, **settings) as theirs:
            dataset = H5Dataset(path, ["x", "texts"])
            check(dataset)
            assert np.array_equal(theirs["x"][:], X), settings
            dataset.close()
            assert np.array_equal(theirs["x"][:], X), settings


@MODES
def test_the_user_opens_a_file_that_is_being_read(path, mode, swmr):
    for settings in SETTINGS:
        dataset = H5Dataset(path, ["x", "texts"])
        check(dataset)
        with h5py.File(path, mode, swmr=swmr, **settings) as theirs:
            assert np.array_equal(theirs["x"][:], X), settings
            if mode == "r":
                check(dataset)
        dataset.close()


def test_an_epoch_runs_while_the_user_opens_and_closes_the_file(path):
    loader = H5StreamLoader(path, 50, fields=["x", "texts"], shuffle=True, num_workers=2)
    for _ in range(2):
        rows = []
        for x, texts in loader:
            with h5py.File(path) as theirs:
                assert theirs["x"].shape == X.shape
            assert [f"row {int(row[0]) // 3}".encode() for row in x] == texts
            rows += x[:, 0].tolist()
        assert sorted(rows) == X[:, 0].tolist()
    loader.close()


@pytest.mark.parametrize("held", ["dataset", "loader", "iterator"])
def test_a_file_written_anew_is_read_as_it_is_while_older_handles_live(tmp_path, held):
    path = write(tmp_path / "a.h5")
    kept = dataset = H5Dataset(path, ["x", "texts"])
    check(dataset)  # texts come through h5py, whose handle stays open
    if held != "dataset":
        kept = H5StreamLoader(dataset, 50)
        next(running := iter(kept))
        kept = running if held == "iterator" else kept
    # Other shapes, chunks and names at the places of the old ones.
    write_datasets(path, x={"data": X[::-1].T, "chunks": (1, 40)}, texts=TEXTS[:3], z=np.arange(3))
    anew = H5Dataset(path)
    assert anew.layout.shape.keys == ("texts", "x", "z")
    assert np.array_equal(anew[:]["x"], X[::-1].T)
    assert anew[:]["texts"] == TEXTS[:3]
    with pytest.raises(SourceChangedError):
        list(kept) if held == "loader" else dataset[:]
    with pytest.raises(SourceChangedError):
        dataset[3]


def test_a_handle_that_closes_within_a_read_is_a_change_of_the_file(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        file.create_dataset("h5py's", (3,), dtype=h5py.vlen_dtype(">i4"))
    dataset = H5Dataset(path, "h5py's")
    interrupted = []

    def write_anew(*_):
        if not interrupted:
            interrupted.append(True)
            write(path, rows=X[::-1])
            assert np.array_equal(H5Dataset(path, "x")[:], X[::-1])

    around(monkeypatch, h5py.Dataset, "__getitem__", before=write_anew)
    with pytest.raises(SourceChangedError):
        dataset[:]
    assert interrupted


@pytest.mark.parametrize("driver", ["core", "stdio", "fileobj"])
def test_a_file_that_the_user_opened_through_another_driver_is_read(path, driver):
    with contextlib.ExitStack() as stack:
        given = stack.enter_context(open(path, "rb")) if driver == "fileobj" else path
        stack.enter_context(h5py.File(given, "r", **({} if driver == "fileobj" else {"driver": driver})))
        check(H5Dataset(path, ["x", "texts"]))


# --- what is written and not yet in the file --------------------------------------------------------------------


@pytest.mark.parametrize("libver", LIBVERS, ids=str)
@pytest.mark.parametrize("kept", ["file", "dataset"])
def test_what_the_user_wrote_and_did_not_close_is_read(tmp_path, libver, kept):
    path = str(tmp_path / "a.h5")
    file = h5py.File(path, "w", libver=libver)
    file.create_dataset("x", data=X, chunks=(50, 3), compression="gzip")
    file["texts"] = TEXTS
    x = file["x"]
    if kept == "dataset":
        del file
    dataset = H5Dataset(path, ["x", "texts"])
    check(dataset)
    assert sum(len(batch) for batch in H5StreamLoader(path, 64, fields="x")) == ROWS
    assert {entry.rows for entry in list_file(path).entries} == {ROWS}
    dataset.close()
    x.file.close()


@pytest.mark.parametrize("libver", LIBVERS, ids=str)
def test_rows_written_after_the_opening_are_never_passed_over_in_silence(tmp_path, libver):
    path = write(tmp_path / "a.h5", libver)
    with h5py.File(path, "r+") as file:
        dataset, loader = H5Dataset(path, "x"), H5StreamLoader(path, 100, fields="x")
        assert np.array_equal(dataset[:], X)
        assert sum(len(batch) for batch in loader) == ROWS
        file["x"][7] = -1  # stays in libhdf5's chunk cache
        with pytest.raises(SourceChangedError, match="open it again"):
            dataset[:]
        with pytest.raises(SourceChangedError):
            list(loader)
        assert H5Dataset(path, "x")[7].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_that_the_user_has_open_is_staged_and_repacked(tmp_path, mode):
    path = write(tmp_path / "a.h5")
    with h5py.File(path, mode) as theirs:
        if mode == "r+":
            theirs["x"][7] = -1
        staged = stage(path, to=tmp_path / "fast").paths[0]
        repack(path, tmp_path / "b.h5", chunk_nbytes=4096)
        for made in (staged, tmp_path / "b.h5"):
            assert np.array_equal(H5Dataset(made, "x")[:], theirs["x"][:])


def test_what_staging_knows_of_a_marked_file_is_said(tmp_path):
    path = write(tmp_path / "a.h5", "latest")
    with h5py.File(path, "r+"):
        notices = stage(path, to=tmp_path / "fast").notices
    assert any("already open for write" in notice for notice in notices)


# --- other processes --------------------------------------------------------------------------------------------

WRITER = """
import sys, h5py
with h5py.File(sys.argv[1], "r+") as file:
    file["x"][:5] = -1
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def written_elsewhere(tmp_path):
    """A file that another process has open for writing."""
    path = write(tmp_path / "a.h5")
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"open\n"
        yield path, other


def test_a_file_that_another_process_writes_is_refused_as_by_h5py_and_read_once_it_is_closed(written_elsewhere):
    path, other = written_elsewhere
    with pytest.raises(BlockingIOError):
        h5py.File(path)
    with pytest.raises(SourceError, match=f"is open for writing in process {other.pid}.*Wait until it has closed"):
        H5Dataset(path, "x")
    other.communicate()
    assert (H5Dataset(path, "x")[:5] == -1).all()


def test_what_is_there_is_read_where_locks_are_turned_off(written_elsewhere, monkeypatch):
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "FALSE")
    assert H5Dataset(written_elsewhere[0], "x").layout.samples == len(X)


@pytest.mark.parametrize("value", ["FALSE", "0", "false", "False", "off"])
def test_the_variable_turns_locks_off_in_the_spellings_that_libhdf5_takes(written_elsewhere, monkeypatch, value):
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", value)
    code = "import sys, h5py; h5py.File(sys.argv[1])"  # libhdf5 looks at it when it is loaded
    ran = subprocess.run([sys.executable, "-c", code, written_elsewhere[0]], capture_output=True)
    refused = contextlib.nullcontext() if ran.returncode == 0 else pytest.raises(SourceError, match="open for writing")
    with refused:
        H5Dataset(written_elsewhere[0], "x")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_nothing_is_refused_where_the_file_system_has_no_locks(written_elsewhere, monkeypatch, number):
    def without_locks(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(handles.fcntl, "flock", without_locks)
    assert H5Dataset(written_elsewhere[0], "x").layout.samples == len(X)


def test_a_writer_that_the_system_does_not_name_is_refused_too(written_elsewhere, monkeypatch, tmp_path):
    monkeypatch.setattr(handles, "_LOCKS", tmp_path / "locks")  # as of another PID namespace, or without /proc
    with pytest.raises(SourceError, match="is open for writing in another process"):
        H5Dataset(written_elsewhere[0], "x")


def test_a_program_that_inherits_the_lock_alone_is_refused_as_by_h5py(tmp_path):
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "r+"):
        asked = "from h5stream.storage.source import handles\nassert not handles.said_of_writer(path)"
        for read in ("import h5py\nh5py.File(path)", asked):
            code = f"import sys\npath = sys.argv[1]\n{read}"
            started = subprocess.run([sys.executable, "-c", code, path], close_fds=False, capture_output=True)
            assert started.returncode == 1, read


def test_a_virtual_dataset_whose_source_another_process_writes_is_refused_as_by_h5py(written_elsewhere, tmp_path):
    other = written_elsewhere[1]
    make_virtual(tmp_path / "middle.h5", "a.h5", X)
    make_virtual(tmp_path / "v.h5", "middle.h5", X)
    for virtual in ("middle.h5", "v.h5"):
        with h5py.File(tmp_path / virtual) as file, pytest.raises(BlockingIOError):
            file["x"][:]
        with pytest.raises(SourceError, match=r"a\.h5' is open for writing in process"):
            H5Dataset(tmp_path / virtual, "x", allow_external=True)
    other.communicate()
    assert (H5Dataset(tmp_path / "v.h5", "x", allow_external=True)[:5] == -1).all()


def test_external_storage_has_no_lock_that_h5py_looks_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source.raw").write_bytes(X.tobytes())
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", X.shape, X.dtype, external=[("source.raw", 0, X.nbytes)])
    with open(tmp_path / "source.raw", "r+b") as raw:
        fcntl.flock(raw, fcntl.LOCK_EX)
        assert np.array_equal(H5Dataset(tmp_path / "a.h5", "x", allow_external=True)[:], X)
        assert not any("open for writing" in one for one in stage("a.h5", to=tmp_path / "b", follow=True).notices)


def test_staging_a_file_that_another_process_writes_is_said(written_elsewhere, tmp_path):
    assert any("is open for writing" in one for one in stage(written_elsewhere[0], to=tmp_path / "fast").notices)


@pytest.mark.parametrize("kind", ["link", "virtual"])
def test_staging_says_which_of_the_files_that_come_along_another_process_writes(written_elsewhere, tmp_path, kind):
    if kind == "virtual":
        make_virtual(tmp_path / "main.h5", "a.h5", X)
    else:
        with h5py.File(tmp_path / "main.h5", "w") as file:
            file["x"] = h5py.ExternalLink("a.h5", "x")
    staged = stage(tmp_path / "main.h5", to=tmp_path / "fast", follow=True)
    assert [one.split()[0] for one in staged.notices if "is open for writing" in one] == [repr(written_elsewhere[0])]


def test_threads_neither_refuse_nor_disturb_another_that_opens_and_closes_a_file_for_writing(tmp_path):
    path, ended = write(tmp_path / "a.h5"), threading.Event()

    def read():
        while not ended.is_set():
            assert handles.said_of_writer(path) == ""

    with concurrent.futures.ThreadPoolExecutor(3) as readers:
        reading = [readers.submit(read) for _ in range(3)]
        try:
            for _ in range(200):
                h5py.File(path, "r+").close()
        finally:
            ended.set()
        for one in reading:
            one.result()


# --- children ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_forked_child_reads_while_the_parent_has_the_file_open(tmp_path, mode):
    path = write(tmp_path / "a.h5")
    with h5py.File(path, mode) as theirs:
        dataset = H5Dataset(path, ["x", "texts"])
        check(dataset)
        in_forked_child(lambda: check(dataset))
        assert np.array_equal(theirs["x"][:], X)


@pytest.mark.parametrize("mode", ["r+", "w"])
def test_a_child_forked_before_its_parent_opens_a_file_for_writing_is_refused_as_by_h5py(tmp_path, mode):
    path = write(tmp_path / "a.h5")
    H5Dataset(path, "x").close()

    def read(way):
        try:
            h5py.File(path).close() if way.strip() == "h5py" else H5Dataset(path, "x").close()
        except (BlockingIOError, SourceError) as error:
            return type(error).__name__
        return "read"

    child = forking.Standing(read)
    with h5py.File(path, mode) as file:
        file.require_dataset("x", X.shape, X.dtype)
        refused = [child.ask(way) for way in ("h5py", "h5stream")]
    closed = [child.ask(way) for way in ("h5py", "h5stream")]
    child.end()
    assert refused == ["BlockingIOError", "SourceError"]
    assert closed == ["read", "read"]


def test_a_forked_process_reads_what_it_wrote_itself_and_did_not_close(tmp_path):
    path, other = write(tmp_path / "a.h5"), write(tmp_path / "b.h5")

    def work():
        with h5py.File(other, "r+") as file:
            x = file["x"]  # whose chunks are not written as long as it lives
            x[:] = X + 1
            own = H5Dataset(other, "x")[:]
        return own, H5Dataset(path, "x")[:]

    with h5py.File(path, "r+") as file:
        x = file["x"]
        H5Dataset(path, "x").close()
        before = os.stat(path)
        own, inherited = in_forked_child(work)
        assert np.array_equal(x[:], X)
        assert os.stat(path).st_mtime_ns == before.st_mtime_ns
    assert np.array_equal(own, X + 1)
    assert np.array_equal(inherited, X)


def test_the_child_of_a_forked_process_reads_what_that_has_open_for_writing(tmp_path):
    path = write(tmp_path / "a.h5")

    def between():
        with h5py.File(path, "r+") as theirs:
            check(H5Dataset(path, ["x", "texts"]))
            in_forked_child(lambda: check(H5Dataset(path, ["x", "texts"])))
            return np.array_equal(theirs["x"][:], X)

    assert in_forked_child(between)


def test_a_forked_child_does_not_write_what_its_parent_holds_back(tmp_path):
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "r+") as theirs:
        theirs["x"][7] = -1
        before = os.stat(path)
        assert in_forked_child(lambda: len(H5Dataset(path, "x"))) == ROWS
        assert os.stat(path).st_mtime_ns == before.st_mtime_ns


def test_no_handle_is_left_behind_at_the_end_of_the_interpreter(tmp_path):
    path = write(tmp_path / "a.h5")
    code = (
        "import sys, warnings, h5py, h5stream\n"
        "warnings.simplefilter('error')\n"
        "theirs = h5py.File(sys.argv[1])\n"
        "dataset = h5stream.H5Dataset(sys.argv[1], ['x', 'texts'])\n"
        "dataset[3]\n"
    )
    done = forking.run(code, path, whole_end=True)
    assert (done.returncode, done.stderr) == (0, "")


def make_virtual(path, source, values):
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[:] = h5py.VirtualSource(source, "x", values.shape)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)


def write_source(folder, kind, values):
    """Write, each time anew, the file that another dataset's data come from."""
    if kind == "external storage":
        (folder / "source.raw").write_bytes(values.tobytes())
        return
    (folder / "source.h5").unlink(missing_ok=True)
    write_datasets(folder / "source.h5", x={"data": values, "chunks": (len(values) // 2,)})


@pytest.mark.parametrize("kind", ["virtual", "two levels", "external storage"])
def test_a_file_behind_a_dataset_that_changed_is_noticed(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # where libhdf5 looks for external storage
    path, values = tmp_path / "v.h5", np.arange(40)
    write_source(tmp_path, kind, values)
    if kind == "external storage":
        with h5py.File(path, "w") as file:
            file.create_dataset("x", values.shape, values.dtype, external=[("source.raw", 0, values.nbytes)])
    else:
        make_virtual(tmp_path / "middle.h5", "source.h5", values)
        make_virtual(path, "middle.h5" if kind == "two levels" else "source.h5", values)
    old = H5Dataset(path, "x", allow_external=True)
    loader = H5StreamLoader(H5Dataset(path, "x", allow_external=True), 8)
    assert old[:].tolist() == torch.cat(list(loader)).tolist() == values.tolist()
    write_source(tmp_path, kind, np.arange(100, 148)[:40])
    new = H5Dataset(path, "x", allow_external=True)
    assert new[:].tolist() == list(range(100, 140))
    with pytest.raises(SourceChangedError, match=r"source\.(h5|raw)"):
        old[:]
    with pytest.raises(SourceChangedError, match=r"source\.(h5|raw)"):
        list(loader)
    assert new[3].item() == 103


# --- Python's collector, which may run in any thread at any moment, beside h5py's lock ---------------------------


SCRIPT = """
import gc, sys, threading, weakref
import h5py
from h5py._objects import phil
from h5stream.storage.source.event_loop import requests

gc.disable()  # but for what is asked for below
path = sys.argv[1]
h5py.File(path, "w").close()


def garbage():
    file = h5py.File(path)
    cycle = [file.id]
    cycle.append(cycle)
    return weakref.ref(file.id)


async def collect():
    return gc.collect()


def fetch():
    with phil:  # as h5py does while it reads
        found.extend(requests().run([collect()]))


left, found = garbage(), []
reader = threading.Thread(target=fetch, daemon=True)
reader.start()
reader.join(20)
assert found == [0], "the thread that fetches waits for the one that waits for it"
assert left() is not None
requests().run([collect()])
assert left() is None, "what was left is never collected"
assert gc.get_freeze_count() < 2000  # since Python 3.12 those few that never die count
"""


def test_the_thread_that_fetches_collects_nothing_while_another_has_the_lock(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "a.h5"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


COMPOUND = np.dtype([("a", "f4"), ("text", h5py.string_dtype()), ("list", h5py.vlen_dtype("i4")), ("b", "f4")])


def write_compound(path):
    values = np.zeros((6, 2), COMPOUND)
    values["a"], values["b"] = np.arange(12).reshape(6, 2), 7
    for k, one in enumerate(values.reshape(-1)):
        one["text"], one["list"] = "x" * k, np.arange(k, dtype="i4")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(4, 2), maxshape=(None, 2), compression="gzip")
        layout = h5py.VirtualLayout((6, 2), COMPOUND)
        layout[...] = h5py.VirtualSource(".", "x", (6, 2), COMPOUND, maxshape=(None, 2))
        file.create_virtual_dataset("virtual", layout)
    with h5py.File(path.with_name("links.h5"), "w") as file:
        file["x"], file["virtual"] = (h5py.ExternalLink(path.name, name) for name in ("x", "virtual"))


@pytest.mark.parametrize("member", ["", ":a", ":text", ":list"])
@pytest.mark.parametrize(
    ("file", "name"), [("a.h5", "x"), ("a.h5", "virtual"), ("links.h5", "x"), ("links.h5", "virtual")]
)
def test_who_opened_it_first_may_close_a_compound_with_members_of_variable_length(tmp_path, file, name, member):
    write_compound(tmp_path / "a.h5")  # libhdf5 2.0 ends the process of whoever reads it then through another handle
    with h5py.File(tmp_path / "a.h5") as theirs:
        right = expected(theirs["x"][()])
    right = right[member[1:]] if member else right
    every = [H5Dataset(str(tmp_path / file), name + member, allow_external=True) for _ in range(3)]
    for dataset in every:
        assert same(dataset[:], right)
    for dataset, other in itertools.pairwise(every):
        dataset.close()
        assert same(other[:], right)
        assert same(other[4:], take(right, slice(4, None)))
    every[-1].close()
