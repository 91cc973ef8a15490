"""Work over many files by an executor: what it gives is what this process would, and errors name the file."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from support.forking import SERVED, python_path
from support.making import write_datasets

from h5stream import H5Dataset, Sequences, repack, stage
from h5stream.advice.inspection import inspect_files
from h5stream.base.executors import run_jobs
from h5stream.dataset import statistics as statistics
from h5stream.errors import IsolatedProcessError, OptionError, StagingError


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setenv("H5STREAM_CATALOGUE", "0")
    monkeypatch.setattr(statistics, "JOB_NBYTES", 10_000)
    rng = np.random.default_rng(0)
    for name in "abc":
        x = {"data": rng.normal(size=(600, 5)).astype("f4"), "chunks": (50, 5), "compression": "gzip"}
        write_datasets(tmp_path / f"{name}.h5", x=x, y=rng.integers(0, 7, 600))
    return [tmp_path / f"{name}.h5" for name in "abc"]


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(2, SERVED) as pool:
        yield pool


@pytest.fixture(params=["threads", "processes", "dask"])
def executor(request):
    if request.param == "processes":
        yield request.getfixturevalue("processes")
    elif request.param == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
    else:
        dask = pytest.importorskip("distributed", reason="needs dask's distributed")
        with dask.Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
            yield client.get_executor()


def check(paths, folder, executor):
    """Hold what an executor makes to what is made without one."""
    for samples in (None, Sequences(4, stride=3)):
        dataset = H5Dataset(paths, ["x", "y"], samples=samples)
        there, here = (dataset.statistics(axis={"x": -1}, executor=each) for each in (executor, None))
        for name, one in there.items():
            assert one.to_dict() == here[name].to_dict()
    assert there["x"].mean == pytest.approx(np.concatenate([x.numpy() for x, _ in dataset]).mean(axis=0), abs=1e-6)
    for name in ("there", "here", "copies", "packed"):
        (folder / name).mkdir()
    targets = {"there": executor, "here": None}
    made = [repack(paths, folder / name, chunk_nbytes=8192, executor=by) for name, by in targets.items()]
    assert [[one.target.name for one in some] for some in made] == [[path.name for path in paths]] * 2
    for some in made:
        for path, one in zip(paths, some, strict=True):
            assert H5Dataset(one.target, "x")[:].equal(H5Dataset(path, "x")[:])
    seen = []
    copies = stage(paths, to=folder / "copies", executor=executor, progress=seen.append)
    assert [copy.read_bytes() for copy in copies.paths] == [path.read_bytes() for path in paths]
    assert (seen[-1].files_done, seen[-1].bytes_done) == (3, seen[-1].bytes_total)
    assert len(stage(paths, to=folder / "copies").reused) == 3
    names = [str(path) for path in paths]
    looked = [[one.to_dict() for one in inspect_files(names, executor=by, batch_size=99)] for by in (executor, None)]
    assert [[(one["file"], one["sample"]["batch_size"]) for one in some] for some in looked] == [
        [(n, 99) for n in names]
    ] * 2
    packed = stage(paths, to=folder / "packed", repack={"chunk_nbytes": 8192}, executor=executor)
    assert [H5Dataset(copy, "y")[:].tolist() for copy in packed.paths] == [H5Dataset(p, "y")[:].tolist() for p in paths]


@pytest.mark.filterwarnings("ignore")  # of dask
def test_it_gives_what_this_process_would(paths, tmp_path, executor):
    check(paths, tmp_path, executor)


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # as in containers
MPI = """
import os, pathlib, sys
from mpi4py.futures import MPICommExecutor
from mpi4py.MPI import COMM_WORLD
with MPICommExecutor(COMM_WORLD, root=0) as executor:
    if executor is not None:
        import test_executors
        test_executors.statistics.JOB_NBYTES = 10_000
        folder = pathlib.Path(sys.argv[1])
        test_executors.check(sorted(folder.glob("?.h5")), folder, executor)
"""


def test_ranks_of_mpi_give_it_too(paths, tmp_path):
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    if shutil.which("mpiexec") is None:
        pytest.skip("needs mpiexec")
    here = os.path.dirname(__file__)
    done = subprocess.run(
        ["mpiexec", "-n", "2", sys.executable, "-c", MPI, tmp_path],
        env={**os.environ, **AS_ROOT, "PYTHONPATH": python_path(here, os.path.dirname(here))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "packed" / "c.h5").exists()


@pytest.mark.parametrize("by", [None, "processes"])
def test_an_error_names_its_file(paths, tmp_path, by, request):
    executor = by and request.getfixturevalue(by)
    paths[1].write_bytes(b"no HDF5 at all")
    (tmp_path / "new").mkdir()
    with pytest.raises(OSError, match=r"b\.h5"):
        repack(paths, tmp_path / "new", executor=executor)
    with pytest.raises(ZeroDivisionError) as caught:
        list(run_jobs([("b.h5", divmod, (1, 0))], executor))
    assert caught.value.__notes__ == ["while working on b.h5"]


def test_a_process_that_dies_is_told_with_its_file():
    with (
        ProcessPoolExecutor(1, SERVED) as pool,
        pytest.raises(IsolatedProcessError, match=r"b\.h5: a process of executor= is gone"),
    ):
        list(run_jobs([("b.h5", os._exit, (3,))], pool))


def test_ctrl_c_cancels_what_has_not_begun():
    began, hold, ran = threading.Event(), threading.Event(), []

    def work(number):
        ran.append(number)
        began.set()
        hold.wait(30)

    def interrupt():
        began.wait(30)
        signal.raise_signal(signal.SIGINT)

    was = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            list(run_jobs([(f"{k}.h5", work, (k,)) for k in range(5)], pool, tick=interrupt))
        hold.set()
    signal.signal(signal.SIGINT, was)
    assert ran == [0]


def test_what_cannot_be_is_refused_before_anything_is_written(paths, tmp_path):
    new = tmp_path / "new"
    with pytest.raises(StagingError, match="there is no folder"):
        repack(paths, new)
    new.mkdir()
    (tmp_path / "other").mkdir()
    shutil.copy(paths[0], tmp_path / "other")
    with pytest.raises(OptionError, match=r"would both be .*a\.h5"):
        repack([*paths, tmp_path / "other" / "a.h5"], new)
    (new / "c.h5").touch()
    with pytest.raises(StagingError, match="exists; nothing was written"):
        repack(paths, new)
    assert os.listdir(new) == ["c.h5"]
    with pytest.raises(OptionError, match=r"client\.get_executor\(\)"):
        stage(paths, to=new, executor=4)
    with ThreadPoolExecutor(1) as pool, pytest.raises(OptionError, match="leave one out"):
        repack(paths, new, executor=pool, progress=print)
