"""The child as a process: it does what it is there for, its end is noticed, and it never outlives its parent.

What is told of its start has a new interpreter for a child, with `sample`; the rest a fork, with `forked`.
"""

from __future__ import annotations

import functools
import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import forking
import h5py
import isolated
import psutil
import pytest
import torch
from forking import Forked, children_are_forks, guards_are_forks, in_forked_child
from inner import stream_all
from isolated import child_of, eventually
from sample_files import write_sample

from h5stream import H5StreamLoader
from h5stream.errors import IsolatedProcessError, LoaderClosedError

ROOT = Path(__file__).resolve().parents[2]
SLOW = pytest.mark.slow  # seconds for another new interpreter, where a test beside it tells as much


@pytest.fixture
def sample(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    guards_are_forks(monkeypatch)
    return write_sample(tmp_path)


@pytest.fixture
def forked(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    children_are_forks(monkeypatch)
    return write_sample(tmp_path)


def is_gone(pid):
    """Tell whether a process has ended; one whose parent is gone may wait to be counted."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def script(tmp_path, text, *arguments, name="script.py", **options):
    """Start a script; its standard output and error are pipes."""
    path = tmp_path / name
    path.write_text(text)
    return Forked(text, *arguments, path=path, **options)


def test_functions_run_there_and_what_they_log_is_heard_here(tmp_path, sample, caplog):
    with h5py.File(sample.path, "r") as file:
        where = file["x"].id.get_chunk_info(5)
    with open(sample.path, "r+b") as raw:
        raw.seek(where.byte_offset + 5)
        raw.write(b"\xff" * 20)
    options = {"on_error": "skip", "num_workers": 2, "window": 50}
    functions = {
        "batch_transform": isolated.with_pid_and_program,
        "worker_init_fn": functools.partial(isolated.marking, str(tmp_path)),
    }
    with (
        caplog.at_level(logging.WARNING, "h5stream"),
        H5StreamLoader(sample.path, 50, isolation="process", **options, **functions) as loader,
    ):
        iterator = iter(loader)
        first = next(iterator)
        os.kill(child_of(loader), signal.SIGTERM)  # meant for the parent, who may want to end in its own way
        batches = [first, *iterator]
        child = child_of(loader)
    assert {pid for _, pid, _ in batches} == {child} != {os.getpid()}
    assert {status for _, _, status in batches} == {-signal.SIGTERM}, "the child's own handlers are not handed down"
    assert sorted(torch.cat([b["y"] for b, _, _ in batches]).tolist()) == [k for k in range(1000) if not 160 <= k < 192]
    assert {f.name for f in tmp_path.glob("thread*")} == {f"thread {k} of {child}" for k in range(2)}
    assert sum("rows are left out" in message for message in caplog.messages) == 1
    assert is_gone(child)


def test_random_numbers_follow_the_parents_seed(forked):
    torch.manual_seed(11)
    with H5StreamLoader(forked.path, 500, batch_transform=isolated.random_numbers, isolation="process") as loader:
        drawn = [numbers.tolist() for numbers in loader]
    assert drawn == [torch.rand(3).tolist(), torch.rand(3).tolist()]


# --- its end --------------------------------------------------------------------------------------------------


def test_a_killed_child_is_an_error_within_a_second_and_the_next_iteration_works(tmp_path, forked):
    transform = functools.partial(isolated.hanging_while, str(tmp_path))
    loader = H5StreamLoader(forked.path, 50, isolation="process", batch_transform=transform)
    iterator = iter(loader)
    child, killed = child_of(loader), []

    def kill():
        eventually((tmp_path / "reached").exists)
        killed.append(time.monotonic())
        os.kill(child, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(IsolatedProcessError, match=rf"child process {child} .*SIGKILL.*Iterate again") as caught:
        next(iterator)
    assert time.monotonic() - killed[0] < 1
    assert caught.value.exitcode == -signal.SIGKILL
    killer.join()
    (tmp_path / "go").touch()
    assert sorted(torch.cat([batch["y"] for batch in loader]).tolist()) == list(range(1000))
    assert child_of(loader) != child
    loader.close()


@pytest.mark.parametrize(
    ("transform", "said"),
    [(isolated.crashing, r"SIGSEGV \(a codec or batch_transform= crashed"), (isolated.ending_the_process, "status 7")],
)
def test_how_the_child_ended_is_said(forked, transform, said):
    loader = H5StreamLoader(forked.path, 50, isolation="process", batch_transform=transform)
    with loader, pytest.raises(IsolatedProcessError, match=said):
        next(iter(loader))


def test_iterators_that_are_dropped_leave_no_process_and_no_descriptor(forked):
    process = psutil.Process()
    before = process.num_fds(), len(process.children())
    loader = H5StreamLoader(forked.path, 50, True, window=100, isolation="process")
    next(iter(loader))
    with_child = process.num_fds(), len(process.children())
    for k in range(50):
        iterator = iter(loader)
        for _ in range(k % 3):
            next(iterator)
        del iterator
    gc.collect()
    # Fewer is no leak: files that loaders of other tests held are closed when those are collected.
    assert process.num_fds() <= with_child[0]
    assert len(process.children()) == with_child[1]
    child = child_of(loader)
    kept = list(loader)
    del loader  # without close()
    gc.collect()
    assert is_gone(child)
    assert process.num_fds() <= before[0]
    assert len(process.children()) == before[1]
    assert all(forked.matches(batch["x"], batch["y"]) for batch in kept)


USE = """
import os, signal, sys, time
from h5stream import H5StreamLoader

def labels(batch):
    return batch["y"], os.getpid()

def main():
    how = {"isolation": "process", "timeout": 60, "batch_transform": labels}
    loader = H5StreamLoader(sys.argv[1], 50, fields={"y": "y"}, **how)
    iterator = iter(loader)
    child = next(iterator)[1]
    if "fork" in sys.argv:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if os.fork() == 0:
            os.close(1), os.close(2)
            signal.pause()  # a process that holds all that its parent held
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for then in sys.argv[3:] or ["end"]:
        try:
            print(child, flush=True)
            while then == "wait":
                time.sleep(0.05)  # a signal just before `pause` would be waited for in vain
        except KeyboardInterrupt:
            print(sum(pid == child != os.getpid() for _, pid in iterator), flush=True)
            if "raise" in sys.argv:
                raise

if __name__ == "__main__":
    main()
"""


def test_ctrl_c_in_a_terminal_is_the_parents_alone_and_a_child_ends_when_its_parent_is_killed(tmp_path, sample):
    parent = script(tmp_path, USE, sample.path, "fork", "wait", "wait", own_group=True)
    with parent:
        child = int(parent.stdout.readline())
        forked = [p for p in psutil.Process(parent.pid).children() if p.pid != child]
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.readline() == "19\n"
        assert int(parent.stdout.readline()) == child
        assert not is_gone(child)
        parent.kill()
        try:
            eventually(lambda: is_gone(child))
        finally:
            for process in forked:
                process.kill()
        assert parent.stderr.read() == ""
    assert len(forked) == 1


@SLOW
def test_ctrl_c_has_one_traceback_and_ends_the_child(tmp_path, sample):
    parent = script(tmp_path, USE, sample.path, "raise", "wait", own_group=True, whole_end=True)
    with parent:
        child = int(parent.stdout.readline())
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=60)
    assert out == "19\n"
    assert err.count("Traceback") == err.count("KeyboardInterrupt") == 1
    assert is_gone(child)


@SLOW
@pytest.mark.parametrize("ended", ["by itself", "by a signal"])
def test_the_interpreters_exit_ends_the_child(tmp_path, sample, ended):
    parent = script(tmp_path, USE, sample.path, *["-", "wait"] * (ended == "by a signal"), whole_end=True)
    with parent:
        child = int(parent.stdout.readline())
        if ended == "by itself":
            assert parent.communicate(timeout=60) == ("", "")
            assert parent.returncode == 0
        else:
            parent.kill()
        eventually(lambda: is_gone(child))


# --- where it comes from --------------------------------------------------------------------------------------

UNGUARDED = """
import sys
from h5stream import H5StreamLoader
with H5StreamLoader(sys.argv[1], 50, isolation="process") as loader:
    print(sum(len(batch["y"]) for batch in loader))
"""

WITH_A_FUNCTION = """
import os, sys
from h5stream import H5StreamLoader

def labels(batch):
    return batch["y"], os.getpid()

def main():
    with H5StreamLoader(sys.argv[1], 50, isolation="process", batch_transform=labels) as loader:
        print(sum(len(y) * (pid != os.getpid()) for y, pid in loader))
"""


@SLOW
@pytest.mark.parametrize("text", [UNGUARDED, WITH_A_FUNCTION + "\nif __name__ == '__main__':\n    main()"])
def test_a_script_needs_a_guard_only_for_functions_of_its_own(tmp_path, sample, text):
    """One with such a function and a guard is `USE` as well."""
    ran = script(tmp_path, text, sample.path)
    assert ran.communicate(timeout=60) == ("1000\n", "")


def test_a_script_without_the_guard_that_it_needs_is_told_so(tmp_path, sample):
    ran = script(tmp_path, WITH_A_FUNCTION + "\nmain()", sample.path)
    out, err = ran.communicate(timeout=60)
    assert (out, ran.returncode) == ("", 1)
    assert err.splitlines()[-1].startswith("h5stream.errors.OptionError: isolation='process' starts a process that")
    assert "if __name__ == '__main__':" in err.splitlines()[-1]


def test_a_function_from_a_prompt_is_refused_at_once(sample):
    text = WITH_A_FUNCTION + "\nmain()"
    ran = forking.run(text, sample.path)
    assert "OptionError: batch_transform=<function labels" in ran.stderr
    assert "put it into a module that is imported" in ran.stderr


def test_a_function_of_a_script_that_is_piped_in_is_refused_at_once(sample):
    text = WITH_A_FUNCTION + "\nmain()"
    ran = subprocess.run([sys.executable, "-", sample.path], input=text, text=True, capture_output=True, timeout=60)
    assert "OptionError: batch_transform=<function labels" in ran.stderr
    assert "a script that was piped in" in ran.stderr


def rows_of_rank(path, rank, queue):
    with H5StreamLoader(path, 50, True, rank=rank, world_size=2, isolation="process") as loader:
        queue.put([row for batch in loader for row in batch["y"].tolist()])


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=SLOW)])
def test_a_rank_in_a_daemonic_process_has_a_child_of_its_own(forked, method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    other = context.Process(target=rows_of_rank, args=(forked.path, 1, queue), daemon=True)
    other.start()
    rows_of_rank(forked.path, 0, queue)
    rows = [queue.get(timeout=120) for _ in range(2)]
    other.join(60)
    assert sorted(rows[0] + rows[1]) == list(range(1000))


def test_a_forked_process_starts_a_child_of_its_own_and_leaves_the_parents_alone(forked):
    loader = H5StreamLoader(forked.path, 50, fields="y", isolation="process")
    iterator = iter(loader)
    first = next(iterator)

    def use_it():
        with pytest.raises(LoaderClosedError, match=r"made before a fork.*call iter\(loader\) again in the child"):
            next(iterator)
        rows = [row for y in loader for row in y.tolist()]
        child = child_of(loader)
        loader.close()
        return rows, child, is_gone(child)

    rows, child, gone = in_forked_child(use_it, limit_s=60)
    assert rows == list(range(1000))
    assert gone
    assert child != child_of(loader)
    assert [row for y in (first, *iterator) for row in y.tolist()] == list(range(1000))
    in_forked_child(loader.close)
    assert len(list(loader)) == 20
    loader.close()
