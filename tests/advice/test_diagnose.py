"""The diagnosis names the right limit in staged experiments, and its advice, followed, makes the loop faster.

All of it is told by a clock of the test's own; what loaders measure of themselves is written down by the test.
"""

import re
import threading
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from support.commands import printed
from support.each import for_each
from support.inner import processors, stream_all, synchronized_by, trials_by
from support.making import make_file
from torch.utils.data import DataLoader

from h5stream import H5StreamLoader, diagnose
from h5stream.advice import Turn
from h5stream.advice.diagnose import SYNCHRONIZE_S, Trial, data_limit, measure, time_loop, time_step
from h5stream.advice.loaders import LoaderKnobs
from h5stream.engine.statistics import LoaderStatistics
from h5stream.errors import OptionError

ROWS, WIDTH, CHUNK, BATCH = 8192, 64, 128, 512


class Clock:
    """Goes on when it is told to, and a little at each look, so that a run ends whose batches cost nothing."""

    LOOK_S = 5e-4

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.go_on(self.LOOK_S)
        return self.now_s

    def go_on(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    trials_by(monkeypatch, clock)
    return clock


@pytest.fixture(autouse=True)
def four_processors(monkeypatch):
    """What advice on threads depends on is the same everywhere; and nothing is read just once and kept."""
    processors(monkeypatch, 4)
    stream_all(monkeypatch)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rows = np.random.default_rng(0).integers(0, 9, (ROWS, WIDTH)).astype("f4")
    path = tmp_path_factory.mktemp("diagnose") / "a.h5"
    return make_file(path, data=rows, chunks=(CHUNK, WIDTH), compression="gzip")


def loader_of(file, **options):
    # A window of few blocks: its chunks are no neighbours, so that each is a read of its own.
    settings = {"batch_size": BATCH, "shuffle": True, "num_workers": 1, "window": 8 * CHUNK} | options
    return H5StreamLoader(file, **settings)


def verdict(file, step=lambda batch: None, *, seconds=0.3, **options):
    with loader_of(file, keep="never", **options) as loader:  # as of files that do not fit into memory
        return diagnose(loader, step, seconds=seconds)


def test_a_slow_step_is_the_step_and_a_faster_step_helps(file, clock):
    before = verdict(file, lambda batch: clock.go_on(0.04 * len(batch) / BATCH), seconds=0.1)
    assert before.limit.name == "step"
    assert before.waiting_share < 0.05
    assert "not input-bound" in before.answer
    assert [turn.knob for turn in before.turns] == ["step"]
    after = verdict(file, lambda batch: clock.go_on(0.01 * len(batch) / BATCH), seconds=0.1)
    assert after.together_s < 0.3 * before.together_s


class Kept:
    """A loader whose first epoch takes longer than later ones, which are in memory."""

    batch_size, num_workers, batch_transform = BATCH, 1, None

    def __init__(self, clock, seconds, count=6):
        self.clock, self.seconds, self.count, self.epoch = clock, seconds, count, -1

    def __len__(self):
        return self.count

    def forget(self):
        self.epoch = -1

    def __iter__(self):
        self.epoch += 1
        took_s = self.seconds if self.epoch == 0 else 0.0
        for batch in torch.zeros(self.count * BATCH, WIDTH).split(BATCH):
            self.clock.go_on(took_s)
            yield batch


def test_the_first_epoch_is_measured_apart_from_those_that_are_in_memory(monkeypatch, clock):
    monkeypatch.setattr("h5stream.advice.diagnose._forget_kept", Kept.forget)
    found = diagnose(Kept(clock, 0.16), lambda batch: clock.go_on(0.04), seconds=8.0)
    assert found.first_waiting_share == pytest.approx(0.8, abs=0.03)
    assert found.waiting_share < 0.03
    assert re.match(r"the first epoch is strongly input-bound \(\d+.\d% waiting\), later ones are not so", found.answer)
    assert re.search(r"both, first epoch: 20\d\.\d\d ms a batch", str(found))
    assert re.search(r"both, later epochs: 4\d\.\d\d ms a batch", str(found))
    assert re.search(r"; 16\d\.\d\d ms in its first epoch", found.arithmetic[0])
    assert re.match(r"16\d\.\d ms a batch", found.limit.measured)
    assert [turn.knob for turn in found.turns] == ["num_workers"]  # of what is waited for, not of the step
    assert found.arithmetic[-1].endswith("; in the first epoch")


class Decoding(Kept):
    """Counts what it does: its first epoch decodes, later ones only move rows, and take less for it."""

    def __iter__(self):
        self.taken = 0
        for batch in super().__iter__():
            self.clock.go_on(0.1 * self.seconds if self.epoch else 0.0)
            self.taken += 1
            yield batch

    def stats(self):
        spent_s = self.taken * self.seconds * (0.1 if self.epoch else 1.0)
        work = {"scatter_s": spent_s} if self.epoch else {"decode_s": spent_s, "decoded_bytes": 1, "scatter_s": 0.01}
        rows = {"rows": self.taken * BATCH, "batches": self.taken, "delivered_bytes": 1}
        times = {"elapsed_s": spent_s, "wait_s": spent_s, "running_s": spent_s}
        return LoaderStatistics(**rows, **times, **work)


# Seconds of a step; the limit, and in which epochs. Later ones wait 8 %, 4 % and 67 % of the time.
EPOCHS = [
    (0.19, "decode", " in the first epoch"),
    (0.38, "decode", " in the first epoch"),
    (0.008, "scatter", ""),
]


@pytest.mark.parametrize(("step_s", "limit", "where"), EPOCHS)
def test_the_limit_is_that_of_the_epochs_whose_gain_is_computed(monkeypatch, clock, step_s, limit, where):
    monkeypatch.setattr("h5stream.advice.diagnose._forget_kept", Kept.forget)
    found = diagnose(Decoding(clock, 0.16), lambda batch: clock.go_on(step_s), seconds=8.0)
    assert found.limit.name == limit
    assert f"; the limit{where} is {limit}: " in found.answer
    assert [turn.knob for turn in found.turns] == ["num_workers", "filters"][: 1 + (limit == "decode")]
    gains = [line for line in found.arithmetic if line.startswith("next: ")]
    assert all(("; in the first epoch at most" in line) == bool(where) for line in gains)


def test_an_epoch_longer_than_the_run_says_that_later_ones_were_not_measured(monkeypatch, clock):
    monkeypatch.setattr("h5stream.advice.diagnose._forget_kept", Kept.forget)
    found = diagnose(Kept(clock, 0.04, 100), lambda batch: clock.go_on(0.01), seconds=0.5)
    assert found.first_waiting_share == found.waiting_share == pytest.approx(0.8, abs=0.05)
    assert "strongly input-bound" in found.answer
    assert "later epochs were not measured" in str(found)


def test_rows_that_stay_in_memory_are_decoded_anew_for_each_run(file):
    with loader_of(file, seed=0) as loader:
        list(loader)
        found = diagnose(loader, lambda batch: None, seconds=0.2)
    assert found.statistics.decoded_bytes >= ROWS * WIDTH * 4


def test_of_a_pause_in_place_of_a_step_nothing_is_advised(clock):
    found = measure(InMemory(BATCH), lambda batch: clock.go_on(0.04), 0.5, is_pause=True)
    assert found.limit.name == "step"
    assert found.limit.measured.endswith("ms a batch, a pause in its place")
    assert found.turns == ()
    assert "bf16" not in str(found)


class InMemory:
    """A loader whose batches are there already."""

    batch_transform = None

    def __init__(self, batch_size):
        self.batch_size = batch_size

    def __len__(self):
        return ROWS // self.batch_size

    def __iter__(self):
        return iter(torch.zeros(ROWS, WIDTH).split(self.batch_size))


class Transforming(InMemory):
    """Takes a while for each batch, and tells that, as our loaders do."""

    def __init__(self, clock, seconds):
        super().__init__(BATCH)
        self.clock, self.seconds, self.given, self.num_workers = clock, seconds, 0, 1

    def batch_transform(self, batch):
        self.clock.go_on(self.seconds)
        return batch

    def __iter__(self):
        self.given = 0
        for batch in super().__iter__():
            self.given += 1
            yield self.batch_transform(batch)

    def stats(self):
        spent_s = self.given * self.seconds
        counted = {"elapsed_s": spent_s, "transform_s": spent_s, "wait_s": 0.01 * spent_s}
        return LoaderStatistics(rows=self.given * BATCH, batches=self.given, **counted)


def test_a_loader_that_is_waited_for_has_its_limit_named_and_a_gain_that_the_step_caps(clock):
    loader = Transforming(clock, 0.06)
    found = diagnose(loader, lambda batch: clock.go_on(0.06), seconds=0.6)
    assert (found.limit.name, [turn.knob for turn in found.turns]) == ("Python", ["batch_transform"])
    assert found.turns[0].speedup == pytest.approx(2.0, abs=0.1)
    loader.collate_fn = torch.stack
    found = diagnose(loader, lambda batch: clock.go_on(0.001), seconds=0.6)
    assert found.limit.name == "Python"
    assert "60.0 ms a batch in batch_transform" in found.limit.measured
    assert found.waiting_share > 0.9
    assert "strongly input-bound" in found.answer
    assert [turn.knob for turn in found.turns] == ["collate_fn", "batch_transform"]
    assert found.turns[0].speedup > 1.5


class Waiting(InMemory):
    """Is waited for a while for each batch, though its readers are idle; has a window of many rows."""

    window_size = SimpleNamespace(window_rows=100 * ROWS, first_window_rows=None)

    def __init__(self, clock, seconds, decoded_bytes=0):
        super().__init__(BATCH)
        self.clock, self.seconds, self.taken, self.decoded_bytes = clock, seconds, 0, decoded_bytes

    def __iter__(self):
        self.taken = 0
        for batch in super().__iter__():
            self.clock.go_on(self.seconds)
            self.taken += 1
            yield batch

    def stats(self):
        spent_s, rows = self.taken * self.seconds, self.taken * BATCH
        nbytes = {"decoded_bytes": self.decoded_bytes * rows, "delivered_bytes": rows}
        return LoaderStatistics(rows=rows, batches=self.taken, elapsed_s=spent_s, wait_s=spent_s, **nbytes)


def test_a_larger_batch_gains_no_more_than_the_ceiling_allows(clock):
    found = diagnose(Waiting(clock, 0.01), lambda batch: clock.go_on(0.04), seconds=2.0)
    assert (found.limit.name, [turn.knob for turn in found.turns]) == ("batch too small", ["batch_size"])
    assert 1.1 < found.turns[0].speedup <= 1.02 / found.ceiling_share
    # Nor more than the loader itself, twice as fast, whatever the loop loses elsewhere.
    found = diagnose(Waiting(clock, 0.04), lambda batch: clock.go_on(0.001), seconds=2.0)
    assert found.turns[0].speedup <= 2.0


def test_of_a_loop_near_its_ceiling_nothing_is_advised(clock):
    found = diagnose(Waiting(clock, 0.002), lambda batch: clock.go_on(0.04), seconds=2.0)
    assert 0.05 < found.waiting_share < 0.1
    assert found.ceiling_share > 0.9
    assert (found.turns, found.arithmetic[-1].startswith("next: nothing")) == ((), True)
    # But what raises the ceiling itself is, and says so.
    found = diagnose(InMemory(8), lambda batch: clock.go_on(0.02), seconds=0.6)
    assert found.ceiling_share > 0.9
    assert re.search(r"; the ceiling rises, at most [12]\.\d times as many rows a second, computed", str(found))


def test_what_was_read_ahead_is_said_only_of_rows_that_were_decoded(clock):
    for decoded_bytes, count in ((0, 0), (3, 1)):
        loader = Waiting(clock, 0.04, decoded_bytes)
        caveats = diagnose(loader, lambda batch: clock.go_on(0.001), seconds=0.3).caveats
        assert sum("had read ahead when it was stopped" in caveat for caveat in caveats) == count


def test_a_tiny_batch_is_named_and_twice_the_batch_is_nearly_twice_as_fast(clock):
    steps = []

    def launched(batch):
        steps.append(len(batch))
        clock.go_on(0.02)

    before = diagnose(InMemory(8), launched, seconds=0.6)
    assert before.limit.name == "batch too small"
    assert set(steps) == {8, 4}  # half a batch was tried, on the step alone
    turn = before.turns[0]
    assert (turn.knob, turn.present, turn.try_next) == ("batch_size", "8", "16")
    assert 1.8 < turn.speedup <= 2.0
    after = diagnose(InMemory(16), launched, seconds=0.6)
    assert after.together_s / 16 < 0.55 * before.together_s / 8


def test_a_run_that_is_cut_off_says_that_it_had_read_ahead(tmp_path):
    path = make_file(tmp_path / "a.h5", data=np.zeros((100_000, 64), "f4"), chunks=(1000, 64), compression="gzip")
    with H5StreamLoader(path, 10, shuffle=True, fields="x", window=20_000) as loader:
        found = diagnose(loader, lambda batch: batch.sum(), seconds=0.05, probe_batch=False)
    (caveat,) = (caveat for caveat in found.caveats if "had read ahead when it was stopped" in caveat)
    assert re.search(r"taken: of the rows that were read it is \d+\.\d\d or more$", caveat)


WAITED = {"batches": 10, "elapsed_s": 1.0, "wait_s": 1.0, "running_s": 1.0}
DECODED = WAITED | {"decode_s": 0.9, "decoded_bytes": 900, "delivered_bytes": 300, "rows": 100}
BEGUN = {"batches": 2, "elapsed_s": 1.0, "wait_s": 0.9, "first_batch_s": 0.9, "running_s": 1.0, "read_s": 0.1}
TINY = {"rows": 8000, "batches": 8000, "wait_s": 0.4, "transform_s": 0.5, "running_s": 1.0, "decode_s": 0.1}
WIDE = {"batch_size": 100, "window_rows": 20000}
PLANNED = WAITED | {"plan_s": 0.9, "rows": 1000, "chunks": 1}
SLOWLY = WAITED | {"decode_s": 0.9, "decoded_bytes": 900, "delivered_bytes": 900}
NARROW, ONE = {"has_narrow_chunks": True}, {"scatter_s": 0.9, "threads": 1}
# What a loader counted, its settings, what limits it, and what is to be turned to which value.
LIMITS = [
    (TINY, {"batch_size": 1}, "batch too small", {"batch_size": "2"}),
    # Each chunk is torn apart; rows that were read ahead are no torn chunk.
    (DECODED | {"decoded_bytes": 4800}, {"num_workers": 4}, "decode", {"order": None, "filters": None}),
    (DECODED, {"num_workers": 4}, "decode", {"order": None, "filters": None}),
    (DECODED, {"num_workers": 4, "rows_ahead": 200}, "decode", {"filters": None}),
    # At the beginning of an epoch only what would change something.
    (BEGUN, {"window_rows": 1000}, "start of the epoch", {"window": "250"}),
    (BEGUN, WIDE | {"num_workers": 2, "first_window_rows": 20000}, "start of the epoch", {"window": "5000"}),
    (BEGUN, WIDE | {"num_workers": 2, "first_window_rows": 100}, "start of the epoch", {"epochs": None}),
    (BEGUN, WIDE | {"num_workers": 0, "first_window_rows": 100}, "start of the epoch", {"num_workers": "1 or more"}),
    # No more threads than the loader may have already, such as of a small file, which one of two threads reads.
    (WAITED | ONE, {"num_workers": 4, **NARROW}, "scatter", {"chunks": None}),
    (WAITED | ONE, {"num_workers": 1, **NARROW}, "scatter", {"num_workers": "4", "chunks": None}),
    (WAITED | ONE, {"num_workers": 4}, "scatter", {}),
    (WAITED | {"read_s": 0.9, "threads": 1}, {"num_workers": 2}, "storage", {"staging": None}),
    (WAITED | {"read_s": 0.9, "threads": 2}, {"num_workers": 2}, "storage", {"num_workers": "4", "staging": None}),
    (WAITED | {"h5py_s": 0.9}, {}, "h5py", {"storage of the field": None}),
    (WAITED | {"copy_s": 0.9}, {}, "copy", {"pin_memory": None}),
    (PLANNED, {"window_rows": 800}, "planning", {"window": "200"}),
    (PLANNED, {}, "planning", {"window": "a quarter of its rows"}),
    (PLANNED | {"chunks": 100}, {"window_rows": 800}, "planning", {"chunks": "repack with larger chunks"}),
    (TINY, {}, "batch too small", {"batch_size": "twice as many rows"}),
    # Nothing that changes nothing: a window or chunks of all rows, or a batch; lz4 for lz4; memory that is pinned.
    (PLANNED, {"window_rows": 1}, "planning", {}),
    (PLANNED | {"chunks": 100}, {"window_rows": 10}, "planning", {}),
    (TINY, {"batch_size": 1, "epoch_batches": 1}, "batch too small", {}),
    (SLOWLY, {"num_workers": 4, "filters": "shuffle + lz4"}, "decode", {}),
    (WAITED | {"copy_s": 0.9}, {"pin_memory": True}, "copy", {"pin_memory": None}),
]


def test_threads_that_the_budget_has_no_room_for_are_not_advised_but_a_budget_that_has(file):
    small = {"num_workers": 2, "batch_size": 32, "window": "auto"}
    with loader_of(file, memory_budget="6MiB", **small) as loader:
        knobs = LoaderKnobs.of(loader)
        assert (knobs.num_workers, knobs.room.most_threads) == (1, 1)
    turn = data_limit(LoaderStatistics(**WAITED | {"decode_s": 0.9}), knobs, cpus=4).turns[0]
    assert (turn.knob, turn.present, turn.speedup) == ("memory_budget", "6.00 MiB", 4.0)
    assert "this one has room for 1 thread" in turn.why
    budget, threads = re.fullmatch(r"(\d+MiB), with num_workers=(\d)", turn.try_next).groups()
    with loader_of(file, **small | {"memory_budget": budget, "num_workers": int(threads)}) as loader:
        assert loader.num_workers == int(threads) == 4
    with loader_of(file, **small | {"memory_budget": budget}) as loader:
        knobs = LoaderKnobs.of(loader)
    turn = data_limit(LoaderStatistics(**WAITED | {"decode_s": 0.9, "threads": 2}), knobs, cpus=16).turns[0]
    assert (turn.knob, turn.present, turn.try_next) == ("num_workers", "2", str(knobs.room.most_threads))


def test_more_and_fewer_threads_are_not_advised_together(clock):
    beside = []

    def slower(batch):
        clock.go_on(0.02 if len(beside) > 30 else 0.01)
        beside.append(1)

    loader = Waiting(clock, 0.04)
    found = diagnose(loader, slower, seconds=0.3)
    (caveat,) = (caveat for caveat in found.caveats if "on the same processors" in caveat)
    assert "fewer num_workers" in caveat
    loader.stats = lambda: LoaderStatistics(**WAITED | ONE)
    loader.num_workers = 1
    beside.clear()
    found = diagnose(loader, slower, seconds=0.3)
    assert [turn.knob for turn in found.turns] == ["num_workers"]
    (caveat,) = (caveat for caveat in found.caveats if "on the same processors" in caveat)
    assert "fewer" not in caveat
    beside.clear()
    found = measure(loader, slower, 0.3, is_pause=True)
    assert any(caveat.startswith("the pause takes") for caveat in found.caveats)


def test_the_wait_for_first_batches_is_said_of_one_epoch():
    several = LoaderStatistics(**BEGUN | {"epochs": 10, "first_batch_s": 0.09})
    found = data_limit(several, LoaderKnobs(window_rows=1000), cpus=4)
    assert str(found) == "start of the epoch: 90.0 ms until an epoch's first batch, 90% of the time"


@for_each(LIMITS)
def test_what_a_loader_counted_names_its_limit_and_what_to_turn(counted, settings, name, turns):
    settings = dict(settings)
    ahead = settings.pop("rows_ahead", 0)
    found = data_limit(LoaderStatistics(**counted), LoaderKnobs(**settings), cpus=4, rows_ahead=ahead)
    assert found.name == name
    assert {turn.knob: turns.get(turn.knob) and turn.try_next for turn in found.turns} == turns


def test_the_rate_of_reads_is_said_with_their_size():
    counted = LoaderStatistics(**WAITED, read_s=0.8, read_bytes=1 << 30, reads=1024)
    found = data_limit(counted, LoaderKnobs(num_workers=1), cpus=4)
    assert "1.25 GiB/s a thread in reads of 1.00 MiB" in found.measured


def test_nothing_is_changed_and_the_next_epoch_is_the_one_it_would_have_been(file, clock):
    with loader_of(file, seed=3) as loader, loader_of(file, seed=3) as untouched:
        before = LoaderKnobs.of(loader)
        diagnose(loader, lambda batch: clock.go_on(0.001), seconds=0.1)
        assert LoaderKnobs.of(loader) == before
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in untouched]


class Device:
    """Queues work and does it one after the other, as a GPU does: `step` returns at once."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.due_s, self.longest_s = clock, seconds, 0.0, 0.0

    def step(self, batch):
        self.due_s = max(self.due_s, self.clock.now_s) + self.seconds * len(batch) / BATCH
        self.longest_s = max(self.longest_s, self.due_s - self.clock.now_s)

    def synchronize(self):
        self.clock.go_on(max(0.0, self.due_s - self.clock.now_s))
        return True


def test_work_that_is_only_queued_is_waited_for_and_a_device_that_waits_is_told_from_a_host_that_does(
    monkeypatch, clock
):
    device = Device(clock, 0.02)
    synchronized_by(monkeypatch, device.synchronize)
    found = diagnose(InMemory(BATCH), device.step, seconds=1.0)
    assert found.step_s == pytest.approx(0.02, rel=0.05)  # not the time that the call takes
    assert found.limit.name == "step"
    assert found.waiting_share < 0.05
    found = diagnose(Transforming(clock, 0.06), device.step, seconds=2.0)
    assert found.limit.name == "Python"
    assert found.waiting_share == pytest.approx(2 / 3, abs=0.03)
    assert found.ceiling_share == pytest.approx(1 / 3, abs=0.03)


def test_the_queue_of_a_device_has_an_end_in_sight(monkeypatch, clock):
    device = Device(clock, 0.1)
    synchronized_by(monkeypatch, device.synchronize)
    assert time_loop(InMemory(BATCH), device.step, 2.0, step_s=0.1).batches > 10
    assert device.longest_s < SYNCHRONIZE_S + 0.1


def test_the_first_step_is_not_counted(clock):
    calls = []

    def step(batch):
        calls.append(1)
        clock.go_on(0.3 if len(calls) == 1 else 0.001)

    assert time_step(step, torch.zeros(4), 0.05).batch_s < 0.002


# Batches of an epoch, or of a length that is not known, and what a batch takes, with which share of waiting.
BEGINNINGS = [(10, 0.3, 2.5 / 3.0), (20, 0.2, 1.5 / 2.0), (None, 1.0 / 9, 0.5)]


@for_each(BEGINNINGS)
def test_a_run_counts_its_part_of_the_beginning_of_an_epoch_and_none_of_one_without_a_length(length, batch_s, share):
    trial = Trial(batches=10, rows=100, elapsed_s=3.0, waited_s=2.5, first_s=2.0, epoch_batches=length)
    assert trial.batch_s == pytest.approx(batch_s)
    assert trial.rows_per_s == pytest.approx(10 / batch_s)
    assert trial.waiting_share == pytest.approx(share)


@pytest.mark.parametrize(("where", "calls"), [("time_step", 1), ("time_loop", 10)])
def test_it_can_be_interrupted_and_leaves_no_reader(file, clock, where, calls):
    left = iter(range(1, calls))

    def interrupted(batch):
        clock.go_on(0.01)
        if next(left, None) is None:
            raise KeyboardInterrupt

    with loader_of(file) as loader:
        with pytest.raises(KeyboardInterrupt) as caught:
            diagnose(loader, interrupted, seconds=0.05)
        assert where in [entry.name for entry in caught.traceback]
        assert not any("h5stream-" in thread.name.replace("h5stream-requests", "") for thread in threading.enumerate())


def test_a_step_that_insists_on_its_batch_size_is_no_error(clock):
    def strict(batch):
        assert len(batch) == BATCH
        clock.go_on(0.05)

    assert diagnose(InMemory(BATCH), strict, seconds=0.6).limit.name == "step"


def test_a_loader_without_batches_and_a_time_that_is_not_positive_are_refused(file):
    with pytest.raises(OptionError, match="gives no batch"):
        diagnose([], print)
    with pytest.raises(OptionError, match="seconds"):
        verdict(file, seconds=0)


def test_a_stock_loader_is_measured_too(clock):
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            clock.go_on(0.002)
            return torch.zeros(2)

    found = diagnose(DataLoader(Slow(), batch_size=8), lambda batch: clock.go_on(0.0005), seconds=0.2)
    assert found.limit.name == "Python"
    assert "keeps no statistics" in found.limit.measured
    assert found.turns == (Turn(knob="num_workers", present="0", try_next="4", why="more batches are made at a time"),)


def test_the_command_says_that_a_batch_larger_than_the_file_has_a_shorter_step(file):
    done = printed("diagnose", file, "--step-ms", "1", "--seconds", "0.1", "--batch-size", str(ROWS + 1), width=200)
    assert f"all {ROWS:,} rows are one batch, with a step as much shorter: try --batch-size {ROWS}" in done


def test_the_command_says_one_rate_of_the_loader_alone_and_counts_one_row_as_one(tmp_path):
    path = make_file(tmp_path / "one.h5", data=np.zeros((1, 8)))
    done = printed("diagnose", path, "--step-ms", "1", "--seconds", "0.1", "--batch-size", "2", width=300)
    assert "window 1 row, " in done
    assert "; its 1 row is one batch, " in done
    assert re.findall(r"\b1 (?:rows|batches)\b|1 -> 1\b", done) == []
    assert len(re.findall(r"rows/s", done.partition("the loader counted, alone:")[2])) == 0
    assert "wait per batch: mean" in done


def test_batches_that_were_not_ready_are_said_only_of_several():
    texts = [str(LoaderStatistics(batches=count, starved_share=0.5)) for count in (1, 2, 10)]
    assert ["of the batches were not" in text for text in texts] == [False, False, True]
    assert all("ready when asked: 0.0 of at most 0" in text for text in texts)


@pytest.mark.parametrize(("chunks", "is_narrow"), [((5, 8), False), ((5, 3), True), (None, False)])
def test_chunks_narrower_than_a_row_are_known(tmp_path, chunks, is_narrow):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((20, 8)), chunks=chunks)
    with H5StreamLoader(tmp_path / "a.h5", 5) as loader:
        assert LoaderKnobs.of(loader).has_narrow_chunks == is_narrow


def test_the_command_says_samples_of_samples(file):
    words = ("--step-ms", "1", "--seconds", "0.1", "--batch-size", "8", "--samples", "Sequences(16)")
    done = printed("diagnose", file, *words, width=300).partition("the loader counted, alone:")[0]
    assert re.search(r"window [\d,]+ samples, batch 8, [\d,]+ bytes a sample\n", done)
    assert " samples/s" in done
    assert " rows/s" not in done
