"""Batches from the other side of a link are those of threads, for all settings; here the other side is a thread."""

from __future__ import annotations

import gc
import itertools
import socket
from concurrent.futures import ThreadPoolExecutor

import h5py
import isolated
import numpy as np
import pytest
import torch
from inner import device_is, pinned_copies, stream_all
from isolated import assert_same, children_are_threads, eventually
from sample_files import write_sample
from seeded import SeededLoader as H5StreamLoader
from torch.utils.data import RandomSampler, Subset

from h5stream import Field, H5Dataset
from h5stream.errors import (
    BudgetError,
    CorruptChunkError,
    IsolatedProcessError,
    LoaderClosedError,
    LoaderTimeoutError,
    OptionError,
)
from h5stream.workers.child import Parent
from tests.device.fake_backend import FakeBackend


@pytest.fixture(autouse=True)
def children(monkeypatch):
    return children_are_threads(monkeypatch)


@pytest.fixture
def sample(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    return write_sample(tmp_path)


def both(source, *args, epochs=1, **options):
    """Give all batches of threads and of a child, from loaders with the same arguments."""
    found = []
    for isolation in ("thread", "process"):
        given = {name: value() if callable(value) and name == "sampler" else value for name, value in options.items()}
        with H5StreamLoader(source, *args, isolation=isolation, **given) as loader:
            found.append([batch for _ in range(epochs) for batch in loader])
    return found


SETTINGS = {
    "in order": {},
    "shuffled": {"shuffle": True, "window": 100},
    "one window": {"shuffle": True, "window": "all"},
    "without threads": {"shuffle": True, "num_workers": 0},
    "many threads": {"shuffle": True, "num_workers": 4, "window": 70},
    "ahead": {"shuffle": True, "persistent_workers": True, "window": 64},
    "second of three ranks": {"shuffle": True, "rank": 1, "world_size": 3},
    "without the rest": {"shuffle": True, "drop_last": True},
    "single samples": {"batch_size": None},
    "a function for samples": {"collate_fn": len},
    "taken apart, then transformed": {"collate_fn": list, "batch_transform": lambda samples: len(samples)},
    "a list of batches": {"batch_size": None, "batch_sampler": [[5, 3], [999], [7] * 20]},
    "a sampler": {"sampler": lambda: RandomSampler(range(1000), generator=torch.Generator().manual_seed(4))},
    "little memory": {"shuffle": True, "window": 96, "memory_budget": 16 << 20, "num_workers": 1},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_batches_are_those_of_threads(sample, setting):
    options = {"batch_size": 48, **SETTINGS[setting]}
    expected, found = both(sample.path, epochs=1 if options["batch_size"] is None else 2, **options)
    assert len(found) > 2
    assert_same(found, expected)


@pytest.mark.parametrize(
    "storage",
    [{"compression": "gzip"}, {"compression": "lzf", "shuffle": True}, {"fletcher32": True}, {"scaleoffset": 4}, {}],
    ids=str,
)
def test_batches_are_those_of_threads_for_every_filter(tmp_path, monkeypatch, storage):
    stream_all(monkeypatch)
    paths = [write_sample(tmp_path, f"{k}.h5", rows=150, first=1000 * k, **storage).path for k in range(2)]
    expected, found = both(paths, 32, True, window=64)
    assert_same(found, expected)


def test_strings_objects_and_casts_are_those_of_threads(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["text"] = [f"row {k}" * (k % 5) for k in range(300)]
        file["fixed"] = np.array([b"%03d" % k for k in range(300)])
        ragged = file.create_dataset("ragged", (300,), h5py.vlen_dtype("f4"))
        for k in range(300):
            ragged[k] = np.arange(k % 7)
        file["x"] = np.arange(600, dtype="u1").reshape(300, 2)
    fields = {"t": "text", "f": "fixed", "r": "ragged", "x": Field("x", dtype=torch.float32)}
    expected, found = both(tmp_path / "a.h5", 32, True, fields=fields)
    assert_same(found, expected)
    expected, found = both(tmp_path / "a.h5", 32, True, fields=fields, batch_transform=isolated.with_pid)
    assert_same(found, expected)


def test_a_subset_of_rows_is_that_of_threads(sample):
    dataset = H5Dataset(sample.path, rows=range(3, 900, 7))
    assert_same(*reversed(both(dataset, 20, True, window=50)))
    assert_same(*reversed(both(Subset(dataset, range(50)), 20, epochs=2)))


@pytest.mark.parametrize("state_from", ["thread", "process"])
@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": list(range(999, -1, -1))}], ids=["own", "sampler"])
def test_an_epoch_goes_on_where_a_state_was_saved_by_either_kind(sample, options, state_from):
    other = {"thread": "process", "process": "thread"}[state_from]
    with H5StreamLoader(sample.path, 64, isolation=state_from, **options) as first:
        whole = list(first)
    with H5StreamLoader(sample.path, 64, isolation=state_from, **options) as first:
        begun = list(itertools.islice(iter(first), 5))
        state = first.state_dict()
    with H5StreamLoader(sample.path, 64, isolation=other, **options) as second:
        second.load_state_dict(state)
        assert_same(begun + list(second), whole)


# --- what a transform makes ----------------------------------------------------------------------------------


def test_whatever_a_transform_makes_arrives_as_it_was_made(sample):
    expected, found = both(sample.path, 64, True, batch_transform=isolated.rows_and_more)
    assert_same(
        [{**batch, "own": vars(batch["own"])} for batch in found],
        [{**batch, "own": vars(batch["own"])} for batch in expected],
    )


def test_a_few_columns_of_a_large_tensor_travel_alone(sample):
    with H5StreamLoader(
        sample.path, 1000, batch_transform=isolated.column_of_a_large_one, isolation="process"
    ) as loader:
        (column,) = loader
    assert column.tolist() == list(range(3, 1_000_000, 1000))
    assert column.untyped_storage().nbytes() < 10_000


def test_the_bytes_of_a_view_stay_where_they_are(sample, children):
    with H5StreamLoader(sample.path, 500, batch_transform=isolated.rows_and_more, isolation="process") as loader:
        batch = next(iter(loader))
    storage = batch["view"].untyped_storage().data_ptr()
    assert batch["array"].ctypes.data == batch["view"].data_ptr()
    assert batch["column"].data_ptr() - batch["view"].data_ptr() == 4
    assert batch["new"].untyped_storage().data_ptr() != storage


def test_a_transform_that_keeps_its_batches_keeps_their_memory(sample, monkeypatch):
    monkeypatch.setattr(isolated, "KEPT", [])
    with H5StreamLoader(
        sample.path, 50, num_workers=1, batch_transform=isolated.keeping, isolation="process"
    ) as loader:
        for number, (x, first) in enumerate(loader):
            assert x[0, 0] == 50 * number
            assert first[0, 0] == 0
        assert [int(kept["y"][0]) for kept in isolated.KEPT] == list(range(0, 1000, 50))


# --- leases ---------------------------------------------------------------------------------------------------


def test_all_batches_can_be_kept_even_past_the_end_of_the_child(sample, children):
    loader = H5StreamLoader(sample.path, 50, True, window=100, isolation="process")
    kept = [batch for _ in range(3) for batch in loader]
    loader.close()
    del loader
    gc.collect()
    children[0].wait(30)
    assert len(kept) == 60
    assert all(sample.matches(batch["x"], batch["y"]) for batch in kept)


@pytest.mark.parametrize("transform", [None, isolated.as_it_is, isolated.copied])
def test_what_is_kept_of_a_transform_is_not_overwritten(tmp_path, transform):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.repeat(np.arange(1000.0), 512).reshape(1000, 512)
    with H5StreamLoader(tmp_path / "a.h5", 5, window=50, isolation="process", batch_transform=transform) as loader:
        kept = list(loader)
    assert torch.equal(torch.cat(kept)[:, 0], torch.arange(1000.0, dtype=torch.float64))


def test_slots_that_come_back_are_filled_again(sample, children):
    with H5StreamLoader(sample.path, 50, True, window=100, isolation="process") as loader:
        for _ in range(5):
            for batch in loader:
                assert sample.matches(batch["x"], batch["y"])
        ring = children[0].engine.slots
        assert ring.free_slots
        # All that can be open at a time, the ones on their way, and the one in the loop.
        assert ring.held_nbytes <= 64 * ring.slot_nbytes


def test_large_fields_of_a_batch_are_views_of_one_slot(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = file["y"] = np.ones((100, 4096), "f4")
    with H5StreamLoader(tmp_path / "a.h5", 50, isolation="process") as loader:
        batch = next(iter(loader))
    assert batch["y"].data_ptr() - batch["x"].data_ptr() == batch["x"].nbytes


@pytest.mark.parametrize("transform", [None, isolated.rows_and_more])
def test_what_is_open_on_both_sides_stays_within_the_least_that_the_budget_may_be(sample, children, transform):
    """Counted where slots are taken, so that batches on their way are in it."""
    options = {"window": 200, "num_workers": 2, "batch_transform": transform, "isolation": "process"}
    with pytest.raises(BudgetError) as refused:
        H5StreamLoader(sample.path, 20, True, memory_budget=1, **options)
    with H5StreamLoader(sample.path, 20, True, memory_budget=refused.value.needed, **options) as loader:
        most = 0
        for batch in loader:
            most = max(most, children[0].slots_out)
            del batch
        # That, the one in hand, and the one before it, which goes back with the next message.
        assert 4 < most <= loader.window_size.max_open_batches + 2


# --- errors ---------------------------------------------------------------------------------------------------


def corrupt(sample, chunk):
    with h5py.File(sample.path, "r") as file:
        where = file["x"].id.get_chunk_info(chunk)
    with open(sample.path, "r+b") as raw:
        raw.seek(where.byte_offset + 5)
        raw.write(b"\xff" * 20)


def test_a_corrupt_chunk_is_an_error_at_its_batch_with_the_childs_traceback_beneath(sample):
    corrupt(sample, 5)  # rows 160 to 191
    loader = H5StreamLoader(sample.path, 50, isolation="process", num_workers=2, window=50)
    iterator = iter(loader)
    assert [int(next(iterator)["y"][0]) for _ in range(3)] == [0, 50, 100]
    with pytest.raises(CorruptChunkError, match="chunk") as caught:
        next(iterator)
    assert caught.value.chunk == (160, 0)
    assert "Traceback (most recent call last)" in str(caught.value.__cause__)
    assert "in ask_h5py" in str(caught.value.__cause__)
    loader.close()


def test_skipped_rows_are_counted_here(sample):
    corrupt(sample, 5)
    with H5StreamLoader(sample.path, 50, isolation="process", on_error="skip", window=50) as loader:
        rows = torch.cat([batch["y"] for batch in loader])
        assert sorted(rows.tolist()) == [k for k in range(1000) if not 160 <= k < 192]
        assert loader.stats().skipped_rows == 32
        assert len(loader.stats().skipped_chunks) == 1


@pytest.mark.parametrize(
    ("transform", "kind", "said"),
    [
        (isolated.failing_at_100, ZeroDivisionError, "in the user's code"),
        (isolated.failing_oddly, IsolatedProcessError, r"not to be pickled: isolated\.OddError: one and two"),
        (isolated.giving_a_lambda, OptionError, "what batch_transform= made of batch 0 cannot leave the child"),
        (isolated.stopping, RuntimeError, "raised StopIteration"),
    ],
)
def test_an_error_in_transform_comes_at_its_batch_as_what_it_was(sample, transform, kind, said):
    with H5StreamLoader(sample.path, 50, isolation="process", batch_transform=transform) as loader:
        iterator = iter(loader)
        if transform is isolated.failing_at_100:
            next(iterator), next(iterator)
        with pytest.raises(kind, match=said) as caught:
            next(iterator)
        shown = caught.value if caught.value.__cause__ is None else caught.value.__cause__
        assert transform.__name__ in str(shown) + str(shown.__cause__)


def test_an_error_in_worker_init_fn_is_raised_here(sample):
    loader = H5StreamLoader(sample.path, 50, isolation="process", worker_init_fn=isolated.failing_init, num_workers=1)
    with loader, pytest.raises(ZeroDivisionError, match="thread 0"):
        next(iter(loader))


def test_an_error_in_a_sampler_comes_after_the_batches_before_it(sample):
    def sampler():
        yield from range(100)
        raise ZeroDivisionError("in the sampler")

    loader = H5StreamLoader(sample.path, 10, isolation="process", sampler=sampler())
    rows = []
    with loader, pytest.raises(ZeroDivisionError, match="in the sampler"):
        rows.extend(batch["y"] for batch in loader)
    assert torch.cat(rows).tolist() == list(range(100))


def test_a_sampler_is_asked_a_little_ahead_and_no_more(sample):
    asked = itertools.count()
    loader = H5StreamLoader(
        sample.path, 1, isolation="process", sampler=(next(asked) for _ in range(1000)), memory_budget=8 << 20
    )
    limit = loader.window_size.max_open_batches + 8
    with loader:
        for number, _ in enumerate(loader):
            assert next(asked) <= number + limit + number  # each look asks for one itself
            if number == 20:
                break


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"batch_transform": lambda batch: batch},
            r"batch_transform=.*cannot go to the child process.*top level of a module",
        ),
        ({"worker_init_fn": lambda number: None}, r"worker_init_fn=.*top level of a module"),
        ({"isolation": "fork"}, "isolation= takes 'thread' or 'process', not 'fork'"),
        ({"isolation": True}, "not True"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(sample, options, said):
    with pytest.raises(OptionError, match=said):
        H5StreamLoader(sample.path, 50, **{"isolation": "process", **options})


def test_a_system_without_nameless_files_is_told(sample, monkeypatch):
    monkeypatch.delattr("os.memfd_create")
    with pytest.raises(OptionError, match=r"isolation='process' needs memfd_create, which .* use 'thread'"):
        H5StreamLoader(sample.path, isolation="process")


def test_a_child_that_is_gone_is_an_error_and_the_next_iteration_starts_another(sample, children):
    with H5StreamLoader(sample.path, 50, isolation="process") as loader:
        iterator = iter(loader)
        first = next(iterator)
        children[0].kill()
        with pytest.raises(IsolatedProcessError, match=r"ended with status 0.*Iterate again"):
            list(iterator)
        assert sample.matches(first["x"], first["y"])
        assert len(list(loader)) == 20
    assert len(children) == 2


# --- the connection -------------------------------------------------------------------------------------------------


def test_timeout_is_honoured(sample):
    loader = H5StreamLoader(sample.path, 50, isolation="process", batch_transform=isolated.hanging, timeout=0.2)
    iterator = iter(loader)
    with pytest.raises(LoaderTimeoutError, match=r"no batch within timeout=0\.2 s"):
        next(iterator)


def test_two_iterators_share_a_child(sample, children):
    with H5StreamLoader(sample.path, 50, True, isolation="process") as loader:
        first, second = iter(loader), iter(loader)
        rows = [batch["y"].tolist() for pair in zip(first, second, strict=True) for batch in pair]
    assert len(children) == 1
    assert sorted(itertools.chain(*rows[::2])) == sorted(itertools.chain(*rows[1::2])) == list(range(1000))
    assert rows[::2] != rows[1::2]


def test_iterators_in_threads_of_their_own_each_get_their_batches(sample):
    with H5StreamLoader(sample.path, 20, True, isolation="process") as loader:
        iterators = [iter(loader) for _ in range(3)]
        with ThreadPoolExecutor(3) as threads:
            rows = list(threads.map(lambda one: [y for batch in one for y in batch["y"].tolist()], iterators))
    assert [sorted(r) for r in rows] == [list(range(1000))] * 3


def test_closing_the_loader_elsewhere_ends_a_wait(sample):
    loader = H5StreamLoader(sample.path, 50, isolation="process", batch_transform=isolated.hanging)
    iterator = iter(loader)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(next, iterator)
        eventually(lambda: loader.stats().starved_share)  # asked, and nothing is there
        loader.close()
        with pytest.raises(LoaderClosedError, match="loader was closed"):
            waiting.result(10)


def test_iterators_that_are_dropped_leave_nothing_open_in_the_child(sample, children):
    with H5StreamLoader(sample.path, 50, True, window=100, num_workers=1, isolation="process") as loader:
        for k in range(50):
            iterator = iter(loader)
            for _ in range(k % 3):
                next(iterator)
            eventually(lambda: children[0].slots_out)  # filled, and perhaps never asked for
            del iterator
        last = list(loader)  # said after all the others were stopped
        assert len(last) == 20
        del last
        next(iter(loader))  # brings the slots back
        eventually(lambda: children[0].slots_out <= loader.window_size.max_open_batches + 2)
    assert len(children) == 1


def test_statistics_are_those_of_threads(sample):
    counted = []
    for isolation in ("thread", "process"):
        with H5StreamLoader(sample.path, 50, True, num_workers=1, isolation=isolation) as loader:
            for _ in loader:
                pass
            counted.append(loader.stats())
    here, there = counted
    for name in ("rows", "batches", "delivered_bytes", "read_bytes", "decoded_bytes", "chunks", "threads"):
        assert getattr(here, name) == getattr(there, name) > 0
    assert there.first_batch_s > 0
    assert there.decode_s > 0
    assert 0 <= there.ready_mean <= there.ready_limit


def test_what_is_said_to_a_parent_that_is_gone_is_dropped():
    ours, theirs = socket.socketpair()
    with theirs:
        parent = Parent(theirs, None)
        ours.close()
        parent.send("a batch, or the end of a pass")


def test_a_broken_pipe_of_the_transforms_own_is_an_error_like_any_other(sample):
    with (
        H5StreamLoader(sample.path, 50, isolation="process", batch_transform=isolated.hung_up) as loader,
        pytest.raises(BrokenPipeError, match="its own"),
    ):
        next(iter(loader))


# --- devices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["device", "window_device"])
@pytest.mark.parametrize("seed", range(3))
def test_a_device_is_fed_from_pinned_shared_memory_with_the_same_batches(sample, monkeypatch, kind, seed):
    fake = FakeBackend(seed)
    device_is(monkeypatch, fake)
    options = {"shuffle": True, "window": 200, "fields": ["x", "y"], "batch_transform": lambda batch: batch}
    expected = list(H5StreamLoader(sample.path, 64, **options))
    with H5StreamLoader(sample.path, 64, isolation="process", **{kind: "cuda:0"}, **options) as loader:
        found = []
        for batch in loader:
            fake.finish()
            found.append([tensor.clone() for tensor in batch])
    assert_same(found, expected)
    assert fake.pinned_in_place
    assert fake.counts["allocate_pinned"] == 0


def test_pinned_batches_for_copies_of_the_users_own_are_torchs(sample, monkeypatch):
    """Slots of a child cannot be: torch would not know that a copy from them still runs."""
    pinned = pinned_copies(monkeypatch)
    with H5StreamLoader(sample.path, 100, isolation="process", pin_memory=True) as loader:
        assert len(list(loader)) == len(pinned) == 10
