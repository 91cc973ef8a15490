"""Python for each sample, in processes: what it gives, whatever their number, and what becomes of their faults."""

import functools
import gc
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from support import applied, forking
from support.applied import KINDS, write_kinds
from support.fake_backend import FakeBackend
from support.forking import in_forked_child
from support.inner import device_is, iterations_of, pinned_copies
from support.making import corrupt_chunk, write_datasets
from support.sample_files import eventually, in_thread, write_sample
from support.seeded import SeededLoader as H5StreamLoader
from torch.utils.data import DataLoader

from h5stream import H5Dataset
from h5stream.base import hints
from h5stream.errors import CorruptChunkError, IsolatedProcessError, LoaderClosedError, LoaderTimeoutError, OptionError
from h5stream.workers import sample_engine
from h5stream.workers.memory import SharedMemory, create_file

pytestmark = [
    # Python 3.12 and later warn of a fork beside threads, which is what these tests ask for: it takes no seconds.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
]
FORK = {"multiprocessing_context": "fork"}
WAYS = ["fork", *(pytest.param(method, marks=pytest.mark.slow) for method in ("spawn", "forkserver"))]


def same(a, b):
    """Tell whether two batches are alike: structure, types, shapes, strides and bytes."""
    if isinstance(a, torch.Tensor):
        alike = isinstance(b, torch.Tensor) and (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        return alike and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert same(a, b), f"batch {number} differs"


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    return write_kinds(tmp_path_factory.mktemp("kinds") / "kinds.h5")


@pytest.fixture
def sample(tmp_path):
    return write_sample(tmp_path, rows=200)


def rows(path, function, workers=1, batch_size=10, **given):
    """Give a loader of rows ``(x, y)`` in the file's order that applies a function to them."""
    given = {"fields": ["x", "y"], **FORK, **given}
    return H5StreamLoader(path, batch_size, sample_transform=function, sample_workers=workers, **given)


def batches_of(path, batch_size=7, epochs=1, **given):
    """Give all that a loader of a file's samples gives."""
    with H5StreamLoader(path, batch_size, **FORK, **given) as loader:
        return [batch for _ in range(epochs) for batch in loader]


def pids_of(loader):
    return iterations_of(loader).engine.pids


def is_gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


# --- what it gives ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_same_for_any_number_of_workers(kinds, kind):
    given = {**KINDS[kind], "shuffle": True, "seed": 4, "window": 24, "sample_transform": applied.changed}
    found = {workers: batches_of(kinds, epochs=2, sample_workers=workers, **given) for workers in (0, 1, 3)}
    assert_same(found[1], found[0])
    assert_same(found[3], found[0])
    half = len(found[0]) // 2
    assert not same(found[0][:half], found[0][half:]), "each epoch draws anew"


@pytest.mark.parametrize("method", WAYS)
def test_workers_are_processes_however_they_are_started(tmp_path, sample, method):
    init = functools.partial(applied.marking, str(tmp_path))
    given = {"worker_init_fn": init, "multiprocessing_context": method}
    with rows(sample.path, applied.with_info, 2, **given) as loader:
        batches = list(loader)
        pids = pids_of(loader)
    assert {pid for *_, batch in batches for pid in batch.tolist()} <= {*pids}
    assert os.getpid() not in pids
    assert {number for _, numbers, _, _ in batches for number in numbers.tolist()} <= {0, 1}
    assert {count for *_, counts, _ in batches for count in counts.tolist()} == {2}
    assert sorted(path.name for path in tmp_path.glob("worker*")) == ["worker 0 of 2", "worker 1 of 2"]
    assert all(map(is_gone, pids))


def test_collated_as_a_stock_dataloader_collates(kinds):
    stock = list(DataLoader(H5Dataset(kinds, **KINDS["a mapping"]), 8))
    given = {**KINDS["a mapping"], "sample_transform": applied.as_it_is}
    for workers in (0, 1):
        assert_same(batches_of(kinds, 8, sample_workers=workers, **given), stock)


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_whose_memory_does_not_say_all_of_them_are_collated(tmp_path, workers):
    numbers = np.arange(8192, dtype="c8").reshape(4, 2048) * (1 + 2j)
    write_datasets(tmp_path / "complex.h5", x=numbers)
    given = {"fields": "x", "sample_transform": torch.conj, "sample_workers": workers}
    (batch,) = batches_of(tmp_path / "complex.h5", 4, **given)
    np.testing.assert_array_equal(batch.numpy(), numbers.conj())


def test_what_is_drawn_is_of_the_sample_and_not_of_its_batch_or_rank(kinds):
    def drawn(batch_size, **given):
        given |= {"fields": ["y"], "sample_transform": lambda s: (s[0], random.random()), "sample_workers": 2}
        batches = batches_of(kinds, batch_size, **given)
        return dict(pair for y, r in batches for pair in zip(y.tolist(), r.tolist(), strict=True))

    first = drawn(7)
    assert first == drawn(13, shuffle=True)
    assert first == drawn(5, rank=0, world_size=2) | drawn(5, rank=1, world_size=2)
    assert first != drawn(7, seed=1)
    assert len(set(first.values())) == applied.ROWS


def test_a_sample_that_a_sampler_names_twice_draws_twice(kinds):
    given = {"fields": "y", "sampler": [3, 3, 3, 8], "sample_transform": lambda _: random.random()}
    here, there = (torch.cat(batches_of(kinds, 2, sample_workers=workers, **given)).tolist() for workers in (0, 2))
    assert here == there
    assert len(set(here)) == 4


def test_in_place_the_own_generators_stay_as_they_are(kinds):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with H5StreamLoader(kinds, 7, fields="x", sample_transform=applied.changed) as loader:
        assert len(list(loader)) == 9
    assert same((random.random(), np.random.rand(), torch.rand(1)), expected)


@pytest.mark.parametrize("given", [{}, {"sample_transform": applied.as_it_is}], ids=["alone", "both"])
def test_whole_batches_are_transformed_in_workers_and_samples_in_the_same(kinds, given):
    given, found = {**given, "fields": ["x", "y"], "shuffle": True, "batch_transform": applied.noisy, **FORK}, {}
    for workers in (0, 1, 3):
        with H5StreamLoader(kinds, 7, transform_workers=workers, **given) as loader:
            found[workers] = list(loader)
            assert not workers or len(pids_of(loader)) == workers
    assert_same(found[1], found[0])
    assert_same(found[3], found[0])


def test_samples_are_collated_in_workers_without_a_function_for_each(kinds):
    given = {"fields": ["x", "y"], "shuffle": True, "collate_fn": applied.collated_by_chance}
    found = {workers: batches_of(kinds, epochs=2, sample_workers=workers, **given) for workers in (0, 1, 3)}
    assert {pid for *_, pid in found[0]} == {os.getpid()}
    assert os.getpid() not in {pid for *_, pid in found[3]}
    for workers in (1, 3):
        assert_same([batch[:-1] for batch in found[workers]], [batch[:-1] for batch in found[0]])
    assert sorted(y for _, ys, _ in found[3][:9] for y in ys) == list(range(60))


def test_samples_come_singly(kinds):
    given = {"fields": ["x", "y"], "sample_transform": lambda s: (s[0].numpy(), s[1])}
    for workers in (0, 2):
        found = batches_of(kinds, None, sample_workers=workers, **given)
        assert_same(found, [list(H5Dataset(kinds, ["x", "y"])[k]) for k in range(applied.ROWS)])


def test_a_sample_that_is_kept_stays_as_it_is(sample):
    kept = []

    def keeping(one):
        kept.append(one)
        expected = torch.stack([torch.as_tensor(sample.x[int(y)]) for _, y in kept])
        assert torch.equal(torch.stack([x for x, _ in kept]), expected)
        return one

    with rows(sample.path, keeping) as loader:
        assert sum(len(y) for _, y in loader) == 200


def test_an_epoch_goes_on_where_a_state_was_saved(kinds):
    given = {"fields": ["x", "y"], "shuffle": True, "seed": 9, "window": 24, **FORK}
    with H5StreamLoader(kinds, 7, sample_transform=applied.changed, sample_workers=2, **given) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = list(iterator)
    with H5StreamLoader(kinds, 7, sample_transform=applied.changed, sample_workers=1, **given) as loader:
        loader.load_state_dict(state)
        assert_same(list(loader), rest)


def test_rows_of_corrupt_chunks_are_an_error_at_their_batch_or_left_out(sample):
    corrupt_chunk(sample.path, 3)
    with rows(sample.path, applied.as_it_is, 2) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)[1][0]) for _ in range(9)] == list(range(0, 90, 10))
        with pytest.raises(CorruptChunkError):
            next(iterator)
    with rows(sample.path, applied.as_it_is, 2, on_error="skip") as loader:
        batches = list(loader)
        assert loader.stats().skipped_rows == 32
    assert torch.cat([y for _, y in batches]).tolist() == [k for k in range(200) if not 96 <= k < 128]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_moved_to_a_device_and_transformed_there_or_pinned_behind_all_else(kinds, monkeypatch, workers):
    given = {"fields": {"x": "x", "y": "y"}, "shuffle": True, "sample_transform": applied.as_it_is}
    expected = [{"x": batch["x"] * 2, "y": batch["y"]} for batch in batches_of(kinds, **given)]
    copies = pinned_copies(monkeypatch)
    assert len(batches_of(kinds, sample_workers=workers, pin_memory=True, **given)) == len(copies) == len(expected)
    device_is(monkeypatch, FakeBackend(0, is_late=False))

    def doubled(batch):
        return {"x": batch["x"] * 2, "y": batch["y"]}

    there = {"sample_workers": workers, "device": "cuda", "batch_transform": doubled}
    assert_same(batches_of(kinds, **given, **there), expected)


def test_results_are_bounded_by_the_budget(sample):
    def large(one):
        return torch.full((100_000,), float(one[1]))

    with rows(sample.path, large, 2, memory_budget="24MiB", prefetch_factor=10) as loader:
        iterator = iter(loader)
        next(iterator)
        run = iterator._run
        eventually(lambda: any(made.done() for *_, made in list(run._due)))
        assert run._most <= 6, "4 MB each, and no more of them than fit"
        assert [int(batch[0, 0]) for batch in iterator] == list(range(10, 200, 10))


# --- faults -------------------------------------------------------------------------------------------------------


def test_an_error_comes_at_its_batch_with_the_workers_traceback(sample):
    explode = functools.partial(applied.raising, ZeroDivisionError("there is a 37"))
    with rows(sample.path, functools.partial(applied.at, 37, explode), 2) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)[1][0]) for _ in range(3)] == [0, 10, 20]
        with pytest.raises(ZeroDivisionError, match="there is a 37") as caught:
            next(iterator)
        assert "in raising" in str(caught.value.__cause__)
        assert caught.value.__notes__ == ["in sample_transform= of sample 37"]
        assert list(iterator) == []
        assert int(next(iter(loader))[1][0]) == 0, "the next iteration works"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("function", "kind"), [(lambda _: None, TypeError), (lambda s: s[0][: s[1] % 3], RuntimeError)]
)
def test_what_cannot_be_collated_says_so_and_names_the_way_out(sample, function, kind, workers):
    with rows(sample.path, function, workers) as loader:
        iterator = iter(loader)
        with pytest.raises(kind) as caught:
            next(iterator)
    assert "sample_transform=" in caught.value.__notes__[0]
    assert "collate_fn=" in caught.value.__notes__[0]


def test_what_cannot_be_pickled_is_told_of(sample):
    with rows(sample.path, applied.raising_what_stays) as loader:
        with pytest.raises(IsolatedProcessError, match="Unpicklable: a message") as caught:
            next(iter(loader))
        assert "in raising_what_stays" in str(caught.value.__cause__)
    with (
        rows(sample.path, lambda _: threading.Lock(), collate_fn=list) as loader,
        pytest.raises(OptionError, match=r"batch 0 cannot leave the process of sample_workers=1.*pickle"),
    ):
        next(iter(loader))


def test_a_killed_worker_is_an_error_and_the_next_iteration_has_others(tmp_path, sample):
    with rows(sample.path, functools.partial(applied.hanging, 25, str(tmp_path)), 2) as loader:
        iterator = iter(loader)
        first = [next(iterator) for _ in range(2)]
        before = pids_of(loader)
        eventually(lambda: any(tmp_path.glob("[0-9]*")))
        os.kill(int(next(tmp_path.glob("[0-9]*")).name), signal.SIGKILL)
        with pytest.raises(IsolatedProcessError, match=r"child process \d+ of sample_workers=2 .*SIGKILL") as caught:
            next(iterator)
        assert caught.value.exitcode == -signal.SIGKILL
        assert [int(y[0]) for _, y in first] == [0, 10]
        assert int(next(iter(loader))[1][0]) == 0
        assert not set(before) & set(pids_of(loader))
    assert all(map(is_gone, before))


def test_a_worker_that_died_with_nothing_to_do_is_given_nothing_more(sample):
    with rows(sample.path, applied.as_it_is, 2) as loader:
        iterator = iter(loader)
        next(iterator)
        dead, other = workers = iterations_of(loader).engine.workers
        made = iterator._run._due
        eventually(
            lambda: [one.done() for *_, one in list(made)] == 4 * [True] and not any(worker.due for worker in workers)
        )
        os.kill(dead.pid, signal.SIGKILL)
        eventually(lambda: dead.gone is not None)
        assert len(list(iterator)) == 19
        assert other.usable


KILLED = """
import functools, sys, torch
from support import applied
from h5stream import H5StreamLoader

given = {"fields": ["x", "y"], "sample_workers": 2, "multiprocessing_context": "fork"}
function = functools.partial(applied.hanging, 5, sys.argv[2])
iterator = iter(H5StreamLoader(sys.argv[1], 10, sample_transform=function, **given))
next(iterator)
"""


def test_workers_end_when_their_parent_is_killed_whatever_they_do(tmp_path, sample):
    parent = forking.Forked(KILLED, sample.path, tmp_path)
    eventually(lambda: any(tmp_path.glob("[0-9]*")))
    workers = psutil.Process(parent.pid).children()
    assert len(workers) == 2
    parent.kill()
    parent.communicate()
    eventually(lambda: all(is_gone(worker.pid) for worker in workers))


def test_a_worker_that_cannot_begin_says_why(sample):
    def failing(number):
        raise ZeroDivisionError(f"{number} at the beginning")

    with rows(sample.path, applied.as_it_is, 1, worker_init_fn=failing) as loader:
        with pytest.raises(ZeroDivisionError, match="0 at the beginning") as caught:
            next(iter(loader))
        assert "in failing" in str(caught.value.__cause__)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_that_ends_inside_a_function_is_an_error_and_names_the_sample(sample, workers):
    left = iter(range(13))
    with rows(sample.path, lambda sample: (next(left), sample)[1], workers) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match="sample_transform= raised StopIteration, at sample 13"):
            next(iterator)


@pytest.mark.parametrize(
    ("action", "given", "status"), [(os._exit, 7, 7), (sys.exit, 5, 5), (applied.raising, KeyboardInterrupt(), 1)]
)
def test_a_function_that_ends_its_process_is_an_error(sample, action, given, status, capfd):
    with rows(sample.path, functools.partial(applied.at, 25, functools.partial(action, given)), 2) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)[1][0]) for _ in range(2)] == [0, 10]
        with pytest.raises(IsolatedProcessError, match=f"ended with status {status}"):
            next(iterator)


def test_a_worker_that_sleeps_for_ever_is_ended_by_the_timeout(tmp_path, sample):
    with rows(sample.path, functools.partial(applied.hanging, 5, str(tmp_path)), timeout=2) as loader:
        iterator = iter(loader)
        pids = pids_of(loader)
        with pytest.raises(LoaderTimeoutError, match=r"no batch within timeout=2.*\(batch 0\); it is read.*functions"):
            next(iterator)
        assert all(map(is_gone, pids))


@pytest.mark.parametrize("name", ["sample_transform", "collate_fn", "batch_transform", "worker_init_fn"])
def test_a_lambda_is_refused_where_it_cannot_go_and_the_way_out_is_named(sample, name):
    given = {"sample_transform": applied.as_it_is, "multiprocessing_context": "spawn", name: lambda one: one}
    given |= {"transform_workers": 1} if name == "batch_transform" else {"sample_workers": 1}
    with pytest.raises(OptionError, match=rf"{name}=<function .*top level of a module.*multiprocessing_context='fork'"):
        H5StreamLoader(sample.path, **given)


def test_leaving_the_loop_and_beginning_again_gives_whole_epochs(sample):
    with rows(sample.path, lambda one: (time.sleep(0.01), one)[1], 2) as loader:
        for _ in range(3):
            for _, y in loader:
                assert y.tolist() == list(range(10))
                break
        loader.set_epoch(0)
        assert torch.cat([y for _, y in loader]).tolist() == list(range(200))


def test_closing_while_another_thread_waits_ends_its_wait(tmp_path, sample):
    loader = rows(sample.path, functools.partial(applied.hanging, 0, str(tmp_path)))
    iterator = iter(loader)
    waiting = in_thread(lambda: next(iterator))
    eventually(lambda: any(tmp_path.glob("[0-9]*")))
    loader.close()
    assert isinstance(waiting.exception(20), LoaderClosedError)


def test_ctrl_c_ends_the_wait_and_leaves_nothing(tmp_path, sample):
    loader = rows(sample.path, functools.partial(applied.hanging, 0, str(tmp_path)))
    iterator = iter(loader)
    pids = pids_of(loader)

    def interrupt():
        eventually(lambda: any(tmp_path.glob("[0-9]*")))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (it may come before the wait)
        thread.start()
        next(iterator)
    thread.join()
    loader.close()
    assert all(map(is_gone, pids))


def left_open():
    """Give what a loader may leave behind: processes, descriptors, threads, and entries of /dev/shm."""
    gc.collect()
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    threads = {thread.name for thread in threading.enumerate() if "h5stream" in thread.name}
    return children, len(os.listdir("/proc/self/fd")), threads, set(os.listdir("/dev/shm"))


def mapped():
    return sum("memfd:h5stream" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("rounds", [8, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_starting_and_stopping_leaves_nothing_behind(tmp_path, rounds):
    path = write_sample(tmp_path, rows=40).path

    def one(k):
        with rows(path, applied.as_it_is, 1 + k % 2) as loader:
            for number, _ in enumerate(loader):
                if k % 3 and number == k % 4:
                    break
            if k % 5 == 0:
                os.kill(pids_of(loader)[0], signal.SIGKILL)

    for k in range(4):
        one(k)
    before, maps = left_open(), mapped()
    for k in range(rounds):
        one(k)
    # What other tests left may go meanwhile.
    eventually(lambda: all(now <= then for now, then in zip(left_open(), before, strict=True)))
    assert mapped() <= maps


EXITING = """
import sys
from h5stream import H5StreamLoader

def same(sample):
    return sample

def exiting(_):
    sys.exit(0)

if __name__ == "__main__":
    given = dict({WAY})
    with H5StreamLoader(sys.argv[1], 50, **given) as loader:
        for _ in loader:
            pass
"""


def run_script(folder, sample, code):
    script = folder / "train.py"
    script.write_text(code)
    return forking.run(code, sample.path, path=script)


@pytest.mark.parametrize(
    ("way", "is_guarded", "said"),
    [
        ("sample_transform=same, sample_workers=1", False, "ended by SystemExit: 0; "),
        pytest.param("batch_transform=exiting, transform_workers=1", True, "status 0; ", marks=pytest.mark.slow),
    ],
)
def test_an_exit_of_a_child_is_an_error_of_the_script_and_names_the_guard(tmp_path, sample, way, is_guarded, said):
    ran = run_script(tmp_path, sample, EXITING.replace("{WAY}", way) + ("" if is_guarded else "\nsys.exit(0)"))
    last = ran.stderr.splitlines()[-1]
    assert ran.returncode == 1
    assert last.startswith("h5stream.errors.IsolatedProcessError: ")
    assert said in last
    assert "under `if __name__ == '__main__':`" in last


def test_a_script_without_the_guard_that_its_functions_need_is_told_so(tmp_path, sample):
    unguarded = EXITING.replace('__name__ == "__main__"', "True")
    ran = run_script(tmp_path, sample, unguarded.replace("{WAY}", "sample_transform=same, sample_workers=1"))
    assert ran.returncode == 1
    assert "Put it under `if __name__ == '__main__':`" in ran.stderr


# --- memory that two processes map: it goes back to the system, and only by who made it --------------------------


NBYTES = 1 << 22


@pytest.fixture
def descriptor():
    descriptor = create_file()
    yield descriptor
    os.close(descriptor)


def pages_of(descriptor):
    return os.fstat(descriptor).st_blocks * 512


def test_a_forked_child_that_drops_it_takes_nothing_from_its_parent(descriptor):
    held = {"memory": SharedMemory(descriptor)}
    held["array"] = held["memory"].allocate(NBYTES)
    held["array"][:] = 5

    def drop():
        held.clear()
        gc.collect()
        return True

    assert in_forked_child(drop)
    assert np.all(held["array"] == 5)
    assert pages_of(descriptor) >= NBYTES
    held.clear()


def test_where_addresses_are_limited_a_file_takes_a_part_of_them(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (16 * NBYTES, 16 * NBYTES))
    memory = SharedMemory(limited := create_file())
    kept = memory.allocate(NBYTES // 2)
    with pytest.raises(MemoryError, match="no memory for 4,194,304 bytes of batches: 2,097,152 bytes are in use"):
        memory.allocate(NBYTES)
    del kept
    assert len(memory.allocate(NBYTES // 2)) == NBYTES // 2
    os.close(limited)


# --- hints ------------------------------------------------------------------------------------------------------


def test_spawned_workers_begin_with_the_loader(sample):
    given = {"multiprocessing_context": "spawn", "fields": "x"}
    with H5StreamLoader(sample.path, 50, sample_transform=applied.changed, sample_workers=1, **given) as loader:
        pids = pids_of(loader)
        assert len(pids) == 1
        iterator = iter(loader)
        assert pids_of(loader) == pids
        iterator.close()
    assert all(map(is_gone, pids))


def test_a_first_batch_that_is_long_in_coming_is_told_of_once(sample, monkeypatch, caplog):
    monkeypatch.setattr(hints, "_logged", set())
    monkeypatch.setattr(sample_engine, "SILENT_S", 0.0)
    with rows(sample.path, applied.changed, 2) as loader:
        list(loader)
        list(loader)
    (text,) = [one.getMessage() for one in caplog.records if one.name == hints.WORKERS]
    assert text.startswith("the first batch waits for the processes of sample_workers=2, each of which imports torch")


class Flip(torch.nn.Module):
    """Stands for a transform of torchvision."""

    def forward(self, image):
        return image.flip(-1)


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for one in self.transforms:
            image = one(image)
        return image


for made in (Flip, Compose):
    made.__module__ = "torchvision.transforms.v2"
flip = Flip()


def of_a_pair(sample):
    return flip(sample[0]), sample[1]


def turned(image):
    return flip(image.permute(2, 0, 1))


@pytest.mark.parametrize(
    ("shape", "function", "is_told"),
    [
        ((8, 8, 3), flip, True),
        ((8, 8, 1), Compose([flip]), True),
        ((8, 8, 4), of_a_pair, True),
        ((8, 8, 3), functools.partial(flip), True),
        ((3, 8, 8), flip, False),
        ((8, 8), flip, False),
        ((8, 8, 3), turned, False),
        ((8, 8, 3), applied.changed, False),
        ((8, 8, 3), None, False),
    ],
)
def test_images_with_channels_last_that_torchvision_would_turn_are_hinted_at_once(
    tmp_path, monkeypatch, caplog, shape, function, is_told
):
    monkeypatch.setattr(hints, "_logged", set())
    path = write_datasets(tmp_path / "a.h5", x=np.zeros((10, *shape), "u1"), y=np.arange(10))
    for _ in range(2):
        H5StreamLoader(path, 4, fields=["x", "y"], sample_transform=function).close()
    texts = [one.getMessage() for one in caplog.records if one.name == hints.SAMPLES]
    assert [("image.permute(2, 0, 1)" in text, "Flip of torchvision" in text) for text in texts] == [
        (True, True)
    ] * is_told
