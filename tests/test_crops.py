"""``crop=``: a part of each sample of a ragged field, another in each epoch and the same however it is read."""

import dataclasses
import itertools
import json

import h5py
import numpy as np
import pytest
import torch
from amounts import examples
from forking import children_are_forks
from hypothesis import given
from hypothesis import strategies as st

from h5stream import Bounds, Crop, Field, H5Dataset, H5StreamLoader, collate, errors

COUNTS = np.random.default_rng(3).integers(0, 40, 60)


@pytest.fixture(scope="module", params=[{}, {"chunks": 37, "compression": "gzip"}], ids=["contiguous", "gzip"])
def path(request, tmp_path_factory):
    path, bounds = tmp_path_factory.mktemp("crops") / "a.h5", np.append(0, np.cumsum(COUNTS))
    with h5py.File(path, "w") as file:
        file.create_dataset("mel", data=np.arange(bounds[-1]), **request.param)
        file.create_dataset("pitch", data=-np.arange(bounds[-1]), **request.param)
        file.create_dataset("audio", data=np.arange(10 * bounds[-1]), **request.param)
        file["bounds"], file["samples"] = bounds, 10 * bounds
        file.create_dataset("label", data=np.arange(60), chunks=(9,), compression="gzip")
    return path


EIGHT = Crop(8)


def fields(crop=EIGHT, form="packed"):
    frames = Bounds("bounds")
    return {
        "mel": Field("mel", rows=frames, crop=crop, ragged=form),
        "pitch": Field("pitch", rows=frames, crop=crop),
        "audio": Field("audio", rows=Bounds("samples"), crop=Crop(10 * crop.length, at=crop.at)),
        "whole": Field("mel", rows=frames),
        "first": Field("mel", rows=frames, max_length=crop.length),
        "label": "label",
    }


def starts_of(batches, length=8):
    """Compare crops with what is stored, and fields with each other; give where each sample's begins."""
    bounds, found = np.append(0, np.cumsum(COUNTS)), {}
    for batch in batches:
        for k, number in enumerate(batch["label"].tolist()):
            mel, pitch, audio, whole, first = (batch[name].sample(k) for name in list(batch)[:5])
            assert whole.tolist() == list(range(bounds[number], bounds[number + 1]))
            assert first.tolist() == whole[:length].tolist()
            assert len(mel) == min(length, COUNTS[number])
            assert pitch.tolist() == (-mel).tolist()
            if len(mel):
                start = int(mel[0])
                assert mel.tolist() == list(range(start, start + len(mel)))
                assert bounds[number] <= start <= start + len(mel) <= bounds[number + 1]
                assert len(audio) == 10 * len(mel)
                assert abs(int(audio[0]) - 10 * start) <= 10
                found[number] = start - int(bounds[number])
    return found


OPTIONS = [{}, {"shuffle": True}, {"shuffle": True, "window": 7}, {"num_workers": 0}, {"window": "all"}]


@examples(40)
@given(
    options=st.sampled_from(OPTIONS),
    length=st.integers(1, 50),
    at=st.sampled_from(["random", "start", "center"]),
    form=st.sampled_from(["packed", "pad"]),
)
def test_a_crop_is_a_part_of_each_sample_at_one_place_of_all_fields(path, options, length, at, form):
    with H5StreamLoader(path, 7, fields=fields(Crop(length, at=at), form), **options) as loader:
        epochs = [starts_of(loader, length) for _ in range(2)]
    spare = {k: max(0, int(count) - length) for k, count in enumerate(COUNTS) if count}
    for starts in epochs:
        if at == "random":
            assert all(0 <= starts[k] <= spare[k] for k in spare)
        else:
            assert starts == {k: more // 2 if at == "center" else 0 for k, more in spare.items()}
    assert (epochs[0] == epochs[1]) == (at != "random" or sum(spare.values()) == 0) or sum(spare.values()) < 20


def test_every_place_is_as_likely_and_each_epoch_and_seed_has_others(path):
    seen = []
    for seed in (0, 1):
        with H5StreamLoader(path, 16, fields=fields(), seed=seed, shuffle=True) as loader:
            seen += [starts_of(loader) for _ in range(30)]
    assert len({tuple(sorted(starts.items())) for starts in seen}) == 60
    longest = int(COUNTS.argmax())
    places = np.bincount([starts[longest] for starts in seen], minlength=COUNTS[longest] - 7)
    assert len(places) == COUNTS[longest] - 7
    assert places.max() < 10


@pytest.mark.parametrize(
    "options",
    [
        {"isolation": "process"},
        {"device": "cpu"},
        {"shuffle": False},
        {"window": 5},
        {"num_workers": 0},
        {"sampler": list(range(60)), "shuffle": False},
        {"sampler": list(range(60)), "shuffle": False, "isolation": "process"},
        {"max_batch_rows": 300},
        {"batch_size": 3, "bucket": "mel"},
    ],
    ids=str,
)
def test_they_are_the_same_however_they_are_read(path, options, monkeypatch):
    children_are_forks(monkeypatch)
    with H5StreamLoader(path, 16, fields=fields(), seed=5, shuffle=True) as loader:
        expected = [starts_of(loader) for _ in range(2)]
    with H5StreamLoader(path, **{"batch_size": 8, "fields": fields(), "seed": 5, "shuffle": True, **options}) as loader:
        assert [starts_of(loader) for _ in range(2)] == expected
    assert expected[0] != expected[1]


def test_ranks_and_states_go_on_with_the_same(path):
    given_too = {"fields": fields(), "seed": 5, "shuffle": True, "window": 10}
    with H5StreamLoader(path, 7, **given_too) as loader:
        list(loader)
        expected = starts_of(loader)
    parts = {}
    for rank in range(2):
        with H5StreamLoader(path, 7, rank=rank, world_size=2, **given_too) as loader:
            loader.set_epoch(1)
            parts |= starts_of(loader)
    assert parts == expected
    for stop in (1, 4):
        with H5StreamLoader(path, 7, **given_too) as loader:
            loader.set_epoch(1)
            seen = starts_of(itertools.islice(loader, stop))
            state = json.loads(json.dumps(loader.state_dict()))
        with H5StreamLoader(path, 7, **given_too) as loader:
            loader.load_state_dict(state)
            assert seen | starts_of(loader) == expected


def test_a_dataset_has_those_of_the_first_epoch_and_of_any_that_is_named(path):
    dataset = H5Dataset(path, fields())
    with H5StreamLoader(dataset, 7, seed=0) as loader:
        epochs = [starts_of(loader) for _ in range(2)]
    stock = torch.utils.data.DataLoader(dataset, 9, collate_fn=collate)
    assert starts_of(stock) == epochs[0]
    bounds = np.append(0, np.cumsum(COUNTS))
    singles = [int(dataset[k]["mel"][0] - bounds[k]) for k in epochs[0]]
    assert singles == list(epochs[0].values())
    dataset.set_epoch(1)
    assert [int(dataset[k]["mel"][0] - bounds[k]) for k in epochs[1]] == list(epochs[1].values())
    assert starts_of(stock) == epochs[1]
    subset = dataset.subset([int(COUNTS.argmax())])
    assert int(subset[0]["mel"][0] - bounds[COUNTS.argmax()]) == epochs[0][int(COUNTS.argmax())]


def test_crops_of_one_length_are_a_tensor_with_padding(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["bounds"] = np.arange(90).reshape(30, 3), np.array([0, 8, 20, 30])
    field = Field("x", rows=Bounds("bounds"), crop=Crop(6), ragged="pad")
    padded = next(iter(H5StreamLoader(tmp_path / "a.h5", 3, fields=field)))
    assert padded.values.shape == (3, 6, 3)
    assert padded.lengths.tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Crop(0), "a row or more"),
        (lambda: Crop(2.5), "length"),
        (lambda: Crop(8, at="end"), "'random', 'start', 'center'"),
        (lambda: Field("x", rows="y", crop=Crop(8)), "rows=Bounds"),
        (lambda: Field("x", rows=Bounds("b"), crop=8), "takes a Crop"),
        (lambda: Field("x", rows=Bounds("b"), crop=Crop(8), max_length=8), "one of them"),
    ],
)
def test_what_is_no_crop_is_refused(make, says):
    with pytest.raises(errors.OptionError, match=says):
        make()


def test_a_crop_is_a_value():
    assert Crop(8) == Crop(8, "random") != dataclasses.replace(Crop(8), at="center")
