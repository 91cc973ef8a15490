"""``draw=Sized(...)``: batches of ragged samples by size, in every way that a loader reads."""

import itertools
import json

import h5py
import numpy as np
import pytest

from h5stream import Bounds, Field, H5StreamLoader, Lengths, Sized, errors

COUNTS = np.random.default_rng(1).integers(0, 30, 150)


def write(path, counts, **stored):
    bounds = np.append(0, np.cumsum(counts))
    with h5py.File(path, "w") as file:
        file.create_dataset("token", data=np.arange(bounds[-1]), **stored)
        file["bounds"], file["label"], file["word"] = bounds, np.arange(len(counts)), np.arange(2 * len(counts))
        file["words"] = np.full(len(counts), 2)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("sized") / "a.h5"
    write(path, COUNTS, chunks=37, compression="gzip")
    return path


FIELDS = {
    "token": Field("token", lookup=Bounds("bounds"), ragged="packed"),
    "word": Field("word", lookup=Lengths("words")),
    "label": "label",
}


def check(batches):
    """Compare samples with what was written, and batches with the limit; give their numbers, batch by batch."""
    bounds, seen = np.append(0, np.cumsum(COUNTS)), []
    for batch in batches:
        numbers = batch["label"].tolist()
        seen.append(numbers)
        for k, number in enumerate(numbers):
            assert batch["token"].sample(k).tolist() == list(range(bounds[number], bounds[number + 1]))
        assert COUNTS[numbers].sum() <= 70
    return seen


def flat(batches):
    return list(itertools.chain(*batches))


def test_a_slot_holds_the_most_samples_that_a_batch_may_have(tmp_path):
    write(tmp_path / "a.h5", [300] * 60 + [0] * 200 + [1] * 100)
    with H5StreamLoader(tmp_path / "a.h5", fields=["label", FIELDS["token"]], draw=Sized(300)) as loader:
        sizes = [len(labels) for labels, _ in loader]
    assert sizes == [1] * 59 + [201, 100]


@pytest.mark.parametrize("given_too", [{}, {"draw": Sized(70, bucket=True)}, {"shuffle": False}], ids=str)
def test_ranks_part_an_epoch_and_others_go_on_where_they_were(path, given_too):
    options = {"draw": Sized(70), "seed": 4, "shuffle": True, "window": 40, "fields": FIELDS, **given_too}
    seen, state = [], None
    for world_size, most in ((3, 2), (2, 99)):
        parts = []
        for rank in range(world_size):
            with H5StreamLoader(path, 12, rank=rank, world_size=world_size, **options) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                parts.append(check(itertools.islice(iter(loader), most)))
                saved = json.loads(json.dumps(loader.state_dict()))
        assert len({len(part) for part in parts}) == 1
        seen += flat(flat(parts))
        state = saved
    assert sorted(seen) == list(range(150))


def test_a_state_of_other_lengths_or_limits_is_refused(path):
    with H5StreamLoader(path, fields=FIELDS, draw=Sized(70), shuffle=True) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for other in (Sized(80), Sized(70, bucket=True), None):
        with (
            H5StreamLoader(path, fields=FIELDS, shuffle=True, draw=other) as loader,
            pytest.raises(errors.StateError),
        ):
            loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"draw": Sized(28)}, "sample [0-9]+ alone has 29 rows of 'token'.* rows=29.*subset"),
        ({"draw": Sized(90, "label")}, "no ragged field; those are 'token', 'word'"),
        ({"draw": Sized(bucket=True), "shuffle": False}, "pass shuffle=True"),
        ({"draw": Sized(90), "shuffle": False, "sampler": [1, 2]}, "sampler= and batch_sampler= must be left out"),
        ({"draw": Sized(90), "batch_size": None}, "single samples"),
        ({"draw": Sized(90), "fields": "label"}, "there is none"),
        ({"draw": Sized(2000), "drop_last": True, "world_size": 3, "rank": 0}, "do not fill one"),
    ],
    ids=str,
)
def test_what_is_asked_for_wrongly_is_told(path, options, says):
    with pytest.raises(errors.OptionError, match=says):
        H5StreamLoader(path, **{"fields": FIELDS, "shuffle": True, **options})


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"rows": 0}, "positive number of rows"),
        ({"rows": "many"}, "positive number of rows"),
        ({"bucket": 3}, "bucket= takes True"),
        ({"rows": 3, "field": 4}, "the name of a ragged field, not 4"),
        ({}, "rows= .*, bucket=True or both"),
    ],
    ids=str,
)
def test_what_no_batch_can_be_sized_by_is_refused_at_once(asked, says):
    with pytest.raises(errors.OptionError, match=says):
        Sized(**asked)
