"""What goes wrong around a running loader: signals, memory, descriptors, consumers that leave or never come.

More of this kind stands in ``test_loader_threads.py``, ``test_loader_processes.py`` and ``engine/``; the table in
``docs/reliability.md`` names each.
"""

import gc
import importlib
import os
import resource
import signal
import threading
import traceback
from pathlib import Path

import psutil
import pytest
import torch
from support import forking
from support.amounts import crossed
from support.inner import fail_in_call, open_batches, run_of, stream_all
from support.sample_files import carry_out_in_python, eventually, one_epoch_at_a_time, reader_threads, write_sample

from h5stream import H5StreamLoader
from h5stream.engine import batches, slots
from h5stream.engine.assemble import Assembler
from h5stream.engine.plan import chunks, kept
from h5stream.engine.plan.tasks import Placement, Tools
from h5stream.errors import SourceError

ROOT = Path(__file__).resolve().parents[2]


def rows_of(loader):
    return sorted(row for batch in loader for row in batch["y"].tolist())


# --- signals --------------------------------------------------------------------------------------------------

STATES = (
    "opening",
    "first batch",
    "waiting",
    "batch_transform",
    "training step",
    "between epochs",
    "after the last batch",
)


SCRIPT = (ROOT / "tests" / "support" / "signalled.py").read_text()


def signalled(sample, state, workers, number, handled="default"):
    """Run the script until it is in the state, send it the signal; return its exit status and what it said then."""
    said = []
    with forking.Forked(SCRIPT, sample.path, state, workers, handled) as child:
        killer = threading.Timer(60, child.kill)  # a hang must not hang the tests
        killer.start()
        for line in map(str.strip, child.stdout):
            if line == "ready" and line not in said:
                child.send_signal(number)
            said.append(line)
        killer.cancel()
        killer.join()
    return child.returncode, [line for line in said if line != "ready"]


@pytest.mark.parametrize(("state", "workers"), crossed(STATES, (0, 2)))
def test_ctrl_c_in_any_state_ends_the_script_and_leaves_no_thread(sample, state, workers):
    status, said = signalled(sample, state, workers, signal.SIGINT)
    # A thread that is inside a read cannot be ended: it is a daemon, and the process does not wait for it.
    in_reads = {"gone 1", "gone 2"} if workers and state in ("first batch", "waiting") else set()
    assert said[0] == "error KeyboardInterrupt"
    assert said[1] in {"gone 0"} | in_reads
    assert status == 1


@pytest.mark.parametrize(("state", "workers"), crossed(STATES, (0, 2)))
def test_sigterm_in_any_state_ends_the_process_or_does_what_a_handler_of_the_users_says(sample, state, workers):
    assert signalled(sample, state, workers, signal.SIGTERM) == (-signal.SIGTERM, [])
    status, said = signalled(sample, state, workers, signal.SIGTERM, "handled")
    assert (status, said[0]) == (3, "error SystemExit")


# --- memory ---------------------------------------------------------------------------------------------------

ALLOCATIONS = {
    "slots": (slots.SlotRing, "_map_arena"),
    "landing": (Tools, "land"),
    "plan": (Placement, "in_chunks"),
    "destination": (batches, "Destination"),
    "kept": (kept, "map_memory"),
    "chunks": (chunks.ChunkPlan, "_land_range"),
    "batch": (Assembler, "batch"),
}


@pytest.mark.parametrize(("site", "at", "num_workers"), crossed(tuple(ALLOCATIONS), (0, 3), (0, 2)))
def test_no_memory_at_any_allocation_is_an_error_after_which_the_loader_works(
    tmp_path, monkeypatch, site, at, num_workers
):
    if site != "kept":
        stream_all(monkeypatch)
    carry_out_in_python(monkeypatch)
    sample = write_sample(tmp_path)
    loader = H5StreamLoader(sample.path, 50, True, num_workers=num_workers, window=100)
    with monkeypatch.context() as patch:
        calls = fail_in_call(patch, *ALLOCATIONS[site], at, MemoryError(site))
        one_epoch_at_a_time(patch)  # an error there is the next epoch's
        iterator = iter(loader)
        try:
            got = list(iterator)
        except MemoryError as error:
            assert str(error) == site  # noqa: PT017  whether it comes depends on how often the site is reached
        else:
            assert len(calls) <= at
            assert len(got) == 20
        assert calls
        assert reader_threads() == []
    assert rows_of(loader) == list(range(1000))


# --- descriptors ----------------------------------------------------------------------------------------------


@pytest.fixture
def no_descriptors():
    """Give a function after which no file can be opened until the test ends."""
    importlib.import_module("numpy.ma")  # which NumPy opens when it is first used, as numba does its extensions
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []

    def use_up():
        gc.collect()  # what earlier tests left open is closed now, and not when a descriptor is looked for
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass

    def give_back():
        while held:
            os.close(held.pop())
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    yield use_up, give_back
    give_back()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_descriptor_left_is_an_error_that_says_so(sample, no_descriptors, num_workers):
    use_up, give_back = no_descriptors
    loader = H5StreamLoader(sample.path, 50, num_workers=num_workers)
    use_up()
    with pytest.raises(SourceError, match="cannot be opened: Too many open files"):
        list(loader)
    with pytest.raises(SourceError, match=r"(?s)cannot open .*Too many open files|cannot open"):
        H5StreamLoader(sample.path)
    give_back()
    assert rows_of(loader) == list(range(1000))
    loader.close()  # it may be reading ahead
    assert reader_threads() == []


def test_no_descriptor_left_for_h5py_is_no_corrupt_chunk(tmp_path, monkeypatch, no_descriptors):
    stream_all(monkeypatch)
    use_up, give_back = no_descriptors
    sample = write_sample(tmp_path, scaleoffset=3)
    loader = H5StreamLoader(sample.path, 50, on_error="skip", fields="x")
    use_up()
    with pytest.raises(SourceError, match=r"h5py cannot read .*Too many open files"):
        list(loader)
    give_back()
    assert sum(len(x) for x in loader) == 1000


# --- consumers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [60, pytest.param(900, marks=pytest.mark.slow)])
def test_iterators_dropped_half_way_leave_nothing(sample, times):
    loader = H5StreamLoader(sample.path, 50, True, num_workers=2, window=100)
    process = psutil.Process()

    def drop(times):
        for k in range(times):
            iterator = iter(loader)
            for _ in range(k % 3):
                next(iterator)
            del iterator
        gc.collect()
        return process.num_fds(), threading.active_count(), process.memory_info().rss

    descriptors, threads, rss = drop(40)
    later = drop(times)
    assert later[:2] == (descriptors, threads)
    assert later[2] - rss < 16 << 20
    assert reader_threads() == []


def test_a_consumer_that_never_comes_back_holds_little_and_ends_with_the_process(tmp_path, monkeypatch):
    """The readers stop at `max_open_batches`; they are daemons, and the process does not wait for them."""
    stream_all(monkeypatch)
    sample = write_sample(tmp_path, rows=20_000)
    loader = H5StreamLoader(sample.path, 50, num_workers=2, window=200)
    iterator = iter(loader)
    next(iterator)
    run = run_of(iterator)
    eventually(lambda: run.is_at_rest)  # once as much is open as may be
    assert open_batches(run) <= loader.window_size.max_open_batches < 400
    script = "import sys, h5stream; i = iter(h5stream.H5StreamLoader(sys.argv[1], 50, num_workers=2)); next(i)"
    assert forking.run(script, sample.path, whole_end=True).returncode == 0


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("k", [0, 7, 19])
def test_an_error_in_transform_at_batch_k_comes_at_batch_k_with_its_traceback(sample, num_workers, k):
    seen = []

    def transform(batch):
        if len(seen) == k:
            raise ZeroDivisionError("in the user's code")
        seen.append(batch)
        return batch

    iterator = iter(H5StreamLoader(sample.path, 50, num_workers=num_workers, batch_transform=transform))
    for _ in range(k):
        next(iterator)
    with pytest.raises(ZeroDivisionError, match="in the user's code") as caught:
        next(iterator)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "transform"
    assert reader_threads() == []


@pytest.mark.parametrize("same_file", [True, False])
def test_two_loaders_at_once_do_not_disturb_each_other(tmp_path, sample, same_file):
    other = sample if same_file else write_sample(tmp_path, "other.h5", first=5000)
    loaders = [H5StreamLoader(one.path, 30, True, seed=k, num_workers=2) for k, one in enumerate((sample, other))]
    rows = [[], []]
    for pair in zip(*loaders, strict=True):
        for k, (batch, one) in enumerate(zip(pair, (sample, other), strict=True)):
            assert one.matches(batch["x"], batch["y"])
            rows[k] += batch["y"].tolist()
    assert [sorted(r) for r in rows] == [list(range(1000))] * 2


def test_one_loaders_error_leaves_the_other_alone(tmp_path, sample, monkeypatch):
    other = write_sample(tmp_path, "other.h5")
    iterator = iter(H5StreamLoader(sample.path, 50, num_workers=2, window=100))
    broken = iter(H5StreamLoader(other.path, 50, num_workers=2, window=100))
    next(iterator), next(broken)
    os.truncate(other.path, 4096)
    with pytest.raises(SourceError):
        list(broken)
    assert torch.cat([batch["y"] for batch in iterator]).tolist() == list(range(50, 1000))
