"""A loader goes on where its state was saved: exactly, at once, and with other numbers of ranks."""

import io
import itertools
import json

import h5py
import numpy as np
import pytest
import torch
from support.amounts import crossed
from support.batches import batches_of as rows
from support.inner import around_reads, stream_all
from support.making import write_datasets
from support.sample_files import write_sample
from torch.utils.data import RandomSampler

from h5stream import Boxes, ChunkBatchSampler, H5Dataset, H5StreamLoader, Rows, Sequences, Table
from h5stream.errors import OptionError, StateError
from h5stream.training import track

ROWS, BATCH = 1000, 48
FIELDS = ["x", "y"]


def make(sample, **options):
    options = {"batch_size": BATCH, "shuffle": True, "seed": 5, "window": 200, "fields": FIELDS, **options}
    return H5StreamLoader(getattr(sample, "path", sample), **options)


def epochs(loader, count):
    return [rows(loader) for _ in range(count)]


def through_json(state):
    return json.loads(json.dumps(state))


def stopped_after(loader, batches):
    """Take some batches of the next epoch, and give them with the state then."""
    iterator = iter(loader)
    taken = rows(itertools.islice(iterator, batches))
    return taken, through_json(loader.state_dict())


# --- exactly ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "options"),
    crossed(("auto", 200, "all"), ({}, {"drop_last": True}, {"shuffle": False}, {"num_workers": 0})),
)
def test_before_and_after_are_the_uninterrupted_run(sample, window, options):
    whole = epochs(make(sample, window=window, **options), 3)
    for batches in (0, 1, 7, len(whole[1]) - 1, len(whole[1])):
        first = make(sample, window=window, **options)
        assert rows(first) == whole[0]
        taken, state = stopped_after(first, batches)
        later = make(sample, window=window, **options)
        later.load_state_dict(state)
        if batches == len(whole[1]):
            assert [taken, rows(later)] == whole[1:]
        else:
            assert [taken + rows(later), rows(later)] == whole[1:]


def test_set_epoch_to_the_epoch_of_the_state_does_not_lose_the_place_and_threads_and_devices_may_differ(sample):
    taken, state = stopped_after(make(sample, num_workers=2), 4)
    whole = rows(make(sample))
    same, other = make(sample, num_workers=0, device="cpu", memory_budget=1 << 30), make(sample)
    for loader in (same, other):
        loader.load_state_dict(state)
    same.set_epoch(0)
    assert taken + rows(same) == whole
    other.set_epoch(1)
    assert len(rows(other)) == len(whole)


def test_an_iterator_that_is_dropped_before_its_first_batch_uses_nothing_up(sample):
    """Lightning makes one to see whether that can be done."""
    taken, state = stopped_after(make(sample), 4)
    later = make(sample)
    later.load_state_dict(state)
    iter(later)
    assert later.state_dict() == state
    iter(later)
    whole = epochs(make(sample), 2)
    assert [taken + rows(later), rows(later)] == whole
    first, second = iter(later), iter(later)  # in use at once, they are of two epochs
    assert rows(first) != rows(second)


def test_nothing_is_read_that_was_taken_before(sample, monkeypatch):
    read = []
    around_reads(monkeypatch, lambda target: read.append(target.nbytes))
    whole = make(sample)
    list(whole)
    everything = sum(read)
    _, state = stopped_after(make(sample, num_workers=0), 18)
    later = make(sample, num_workers=0)
    later.load_state_dict(state)
    read.clear()
    list(later)
    assert sum(read) < everything / 2


def test_the_state_is_numbers_and_text_and_needs_no_pickle(sample):
    _, state = stopped_after(make(sample), 3)
    assert len(json.dumps(state)) < 700
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


# --- other numbers of ranks ---------------------------------------------------------------------------------


def test_a_rest_that_cannot_be_cut_is_refused_and_the_loader_stays_as_it_was(sample):
    _, state = stopped_after(make(sample), 20)
    state["taken"] = [[1, 20]]
    later = make(sample, rank=0, world_size=64)
    with pytest.raises(OptionError, match=r"left of epoch 0 cannot be divided among 64 ranks.*set_epoch\(1\)"):
        later.load_state_dict(state)
    assert later.state_dict()["taken"] == []
    later.set_epoch(1)
    assert len(rows(later)) == len(later)


# --- what must be the same ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 6}, "seed was 5 and is now 6"),
        ({"batch_size": 47}, "batch_size was 48 and is now 47"),
        ({"shuffle": False}, r"settings: shuffle was True and is now False\. "),
        ({"drop_last": True}, "drop_last was False and is now True"),
        ({"window": 300}, "window was 200 and is now 300"),
        ({"fields": ["x"]}, "fields was x:float32"),
    ],
)
def test_other_settings_are_refused_by_name(sample, options, message):
    _, state = stopped_after(make(sample), 3)
    loader = make(sample, **options)
    with pytest.raises(StateError, match=message) as caught:
        loader.load_state_dict(state)
    assert next(iter(options)) in (*caught.value.changed, "shuffle")
    list(loader)  # still of use


def test_other_data_are_refused_by_name(sample, tmp_path):
    _, state = stopped_after(make(sample), 3)
    longer = write_sample(tmp_path, name="longer.h5", rows=ROWS + 1)
    with pytest.raises(StateError, match="rows was 1000 and is now 1001") as caught:
        make(longer).load_state_dict(state)
    assert "file_bytes" in caught.value.changed
    with pytest.raises(StateError, match="the chosen rows differ"):
        make(H5Dataset(sample.path, FIELDS, rows=range(900)), fields=None).load_state_dict(state)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Sequences(4, stride=30), Sequences(4, stride=29)),
        (Sequences(4, stride=30), Sequences(5, stride=30)),
        (Sequences(4, pad="edge"), Sequences(4, pad="zeros")),
        (Sequences(4, stride=30, of=["a", "b"]), Sequences(4, stride=29, of=["a", "b"])),
        (Table(row=[1, 2, 3]), Table(row=[1, 2, 4])),
        (Boxes((4, 4), at="grid", stride=(30, 2)), Boxes((4, 4), at="grid", stride=(29, 2))),
        (Sequences(2, axis=1, stride=3), Sequences(2, axis=1, stride=2)),
    ],
    ids=repr,
)
def test_samples_that_begin_elsewhere_are_others(tmp_path, one, other):
    write_datasets(tmp_path / "x.h5", **dict.fromkeys("ab", np.zeros((100, 9), "f4")))

    def loader(samples):
        fields = "." if getattr(samples, "of", None) else "a"
        return H5StreamLoader(tmp_path / "x.h5", 1, fields=fields, samples=samples)

    state = through_json(loader(one).state_dict())
    loader(one).load_state_dict(state)
    with pytest.raises(StateError, match="other data or settings"):
        loader(other).load_state_dict(state)
    if one == Sequences(4, stride=30):  # 0.2.0 did not say where samples begin
        before = state["fingerprint"] | {"samples": state["fingerprint"]["samples"].split(", from ")[0]}
        loader(one).load_state_dict({**state, "format": 3, "fingerprint": before})


def test_data_that_were_written_anew_are_noticed_by_their_chunks(sample, tmp_path):
    _, state = stopped_after(make(sample), 3)
    data = np.random.default_rng(0).random(sample.x.shape, dtype="f4")
    x = {"data": data, "chunks": (32, 4), "compression": "gzip", "shuffle": True}
    write_datasets(tmp_path / "again.h5", x=x, y=sample.y)
    with pytest.raises(StateError, match="the stored chunks of the fields differ"):
        make(tmp_path / "again.h5").load_state_dict(state)


def test_an_automatic_window_is_that_of_the_state_though_less_memory_is_free_now(tmp_path, monkeypatch):
    stream_all(monkeypatch)
    sample = write_sample(tmp_path, rows=20000, columns=16)
    options = {"window": "auto", "num_workers": 1, "batch_size": 100}
    much, little = (make(sample, memory_budget=n, **options) for n in (1 << 30, 4_500_000))
    assert much.window_size.window_rows > little.window_size.window_rows
    whole = epochs(make(sample, memory_budget=1 << 30, **options), 2)
    taken, state = stopped_after(much, 150)
    little.load_state_dict(state)
    assert [taken + rows(little), rows(little)] == whole
    least = make(sample, memory_budget=2_500_000, **options)
    before, size = least.state_dict(), least.window_size
    with pytest.raises(OptionError, match="memory_budget=2,500,000 bytes is too small for window="):
        least.load_state_dict(state)
    assert (least.state_dict(), least.window_size) == (before, size)  # as it was
    assert rows(least) == rows(make(sample, memory_budget=2_500_000, **options))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "takes what state_dict"),
        ({"epoch": 3}, "takes what state_dict"),
        ({"format": 5}, "has format 5; this version of h5stream reads 1 to 4"),
        ({"format": 1, "epoch": 0}, "damaged: KeyError"),
        ({"epoch": -1}, "damaged"),
        ({"taken": [[1]]}, "damaged"),
        ({"taken": [[0, 1]]}, "damaged"),
        ({"taken": [[1 << 60, 1]]}, "damaged"),
        ({"fingerprint": 5}, "damaged"),
    ],
)
def test_what_is_no_state_is_refused(sample, state, message):
    loader = make(sample)
    if isinstance(state, dict) and "format" not in state and state != {"epoch": 3}:
        state = {**loader.state_dict(), **state}
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(state)


def test_a_state_of_the_shuffle_before_is_refused_inside_of_an_epoch_alone(sample):
    _, state = stopped_after(make(sample), 3)
    with pytest.raises(StateError, match="another order") as caught:
        make(sample).load_state_dict({**state, "format": 2})
    assert caught.value.changed == ("format",)
    _, between = stopped_after(make(sample), 21)
    later = make(sample)
    later.load_state_dict({**between, "format": 2})
    assert rows(later) == epochs(make(sample), 2)[1]
    _, in_file_order = stopped_after(make(sample, shuffle=False), 3)
    make(sample, shuffle=False).load_state_dict({**in_file_order, "format": 2})


def test_a_state_of_the_order_of_names_before_goes_on_between_epochs_alone(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", track_order=True) as file:
        for k in np.random.default_rng(0).permutation(14).tolist():
            file[f"demo_{k}/x"] = np.full((3, 2), k)

    def made():
        return H5StreamLoader(tmp_path / "a.h5", 7, samples=Rows(of="*"), fields="x", shuffle=True, seed=3)

    def older(batches):
        for _ in zip(range(batches), loader := made(), strict=False):
            pass
        state = loader.state_dict()
        return {**state, "format": 3, "fingerprint": {**state["fingerprint"], "chunks": "as names were ordered then"}}

    whole, later = made(), made()
    list(whole)
    later.load_state_dict(older(len(whole)))
    assert [batch.tolist() for batch in later] == [batch.tolist() for batch in whole]
    with pytest.raises(StateError, match="order of groups and objects was another"):
        made().load_state_dict(older(3))


def test_more_batches_than_an_epoch_has_are_refused(sample):
    state = {**make(sample).state_dict(), "taken": [[1, 22]]}
    with pytest.raises(OptionError, match="22 batches were taken, but there are 21"):
        make(sample).load_state_dict(state)


@pytest.mark.parametrize("batches", [0, 1, 21])
def test_a_resumed_iterator_has_the_length_of_what_is_left_and_the_loader_that_of_an_epoch(sample, batches):
    with make(sample) as first, make(sample) as later, make(sample, rank=1, world_size=2) as other:
        _, state = stopped_after(first, batches)
        for loader in (later, other):
            whole = len(loader)
            loader.load_state_dict(state)
            if batches < 21:
                iterator = iter(loader)
                left = len(iterator)
                assert left == len(rows(iterator)) == len(iterator)
                assert left == (21 - batches if loader is later else -(-(1000 - 48 * batches) // 96))
            following = iter(loader)
            assert len(following) == len(loader) == whole == len(rows(following))


def test_track_counts_what_a_resume_left(sample):
    with make(sample) as first, make(sample) as later:
        _, state = stopped_after(first, 6)
        later.load_state_dict(state)
        epoch = track(later, monitor=False)
        assert [sum(1 for _ in epoch), epoch.summary.batches, epoch.summary.expected_batches] == [15, 15, 15]
        assert [sum(1 for _ in epoch), epoch.summary.expected_batches] == [21, 21]


# --- orders of somebody else's ------------------------------------------------------------------------------


def listed(sample, sampler, **options):
    return H5StreamLoader(sample.path, BATCH, sampler=sampler, fields=FIELDS, **options)


def seeded(seed=1):
    return list(RandomSampler(range(ROWS), generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("batches", [0, 1, 10, 21])
def test_a_sampler_that_gives_the_same_indices_again_goes_on(sample, batches):
    whole = rows(listed(sample, seeded()))
    taken, state = stopped_after(listed(sample, seeded()), batches)
    later = listed(sample, seeded())
    later.load_state_dict(state)
    assert taken + (rows(later) if batches < 21 else []) == whole
    assert batches < 21 or state["taken"] == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_that_gives_other_indices_is_an_error_and_no_repeated_row(sample, num_workers):
    _, state = stopped_after(listed(sample, seeded()), 5)
    later = listed(sample, seeded(2), num_workers=num_workers)
    later.load_state_dict(state)
    with pytest.raises(StateError, match=r"other indices than when the state was saved, 5 batches .*generator="):
        list(later)


def test_a_samplers_rest_is_not_cut_for_other_ranks(sample):
    _, state = stopped_after(listed(sample, seeded()), 5)
    state["taken"] = [[2, 5]]
    with pytest.raises(StateError, match=r"of 2 ranks and there are now 1: .* cannot be divided anew"):
        listed(sample, seeded()).load_state_dict(state)


def test_a_samplers_state_keeps_its_automatic_window(tmp_path, monkeypatch):
    dataset = H5Dataset(write_sample(tmp_path, rows=5000, columns=4).path)
    old = ChunkBatchSampler(dataset, 100, seed=3)
    batches = iter(old)
    first = [next(batches) for _ in range(7)]
    state, rest = old.state_dict(), list(batches)
    monkeypatch.setattr("h5stream.engine.footprint.SAMPLER_NBYTES", 48 * 1000)
    new = ChunkBatchSampler(dataset, 100, seed=3)
    assert list(new) != first + rest
    new.load_state_dict(state)
    assert list(new) == rest
    given = ChunkBatchSampler(dataset, 100, seed=3, window=777)
    with pytest.raises(StateError, match="window_rows was"):
        given.load_state_dict(state)
    state["order"]["window_rows"] = 0
    with pytest.raises(StateError, match="window_rows was 0"):
        new.load_state_dict(state)
