"""Weights, classes and torch's samplers through the loader: samples as h5py has them, as often as they were drawn."""

import itertools
import json
import re
from collections import Counter

import h5py
import numpy as np
import pytest
import torch
from support.making import read_with_h5py, write_datasets
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from h5stream import (
    Balanced,
    Bounds,
    Field,
    H5Dataset,
    H5StreamLoader,
    Lengths,
    SampleNumber,
    Sequences,
    Sized,
    Values,
    Weighted,
    errors,
)

ROWS = 600
CHUNK = 20


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file with samples of every kind; every value says where it stands."""
    draw, stored = np.random.default_rng(0), {"compression": "gzip"}
    held = {"x": {"data": np.arange(3.0 * ROWS).reshape(ROWS, 3), "chunks": (CHUNK, 3), **stored}}
    held["w"] = draw.random(ROWS) ** 3 * (np.arange(ROWS) % 7 != 0)
    held["label"] = (np.arange(ROWS) % 50 == 0).astype("i8")
    held["name"] = np.array(["cat", "dog", "eel"], dtype=object)[draw.choice(3, ROWS, p=[0.9, 0.07, 0.03])]
    held |= {"noise": draw.random(ROWS), "nan": np.append(np.zeros(ROWS - 1), np.nan)}
    for k in range(40):
        held[f"demos/d{k:02}/x"] = {"data": 1000 * k + np.arange(5 + k % 7), "chunks": (4,), **stored}
    held["ends"] = np.append(0, np.cumsum(draw.integers(1, 9, 100)))
    held["tokens"] = {"data": np.arange(held["ends"][-1]), "chunks": (16,), **stored}
    return write_datasets(tmp_path_factory.mktemp("weights") / "a.h5", **held)


def test_weights_of_a_field_need_not_be_delivered(path):
    w = read_with_h5py(path, "w")
    epochs = [
        [x[:, 0].tolist() for x in H5StreamLoader(path, 32, fields="x", draw=Weighted(weights), seed=5)]
        for weights in ("w", w, torch.from_numpy(w), (w * 7).tolist())
    ]
    delivered = H5StreamLoader(path, 32, fields=["x", "w"], draw=Weighted("w"), seed=5)
    epochs.append([x[:, 0].tolist() for x, _ in delivered])
    assert all(epoch == epochs[0] for epoch in epochs)
    in_memory = H5StreamLoader(path, 32, fields={"x": "x", "q": Values(w)}, draw=Weighted("q"), seed=5)
    assert [batch["x"][:, 0].tolist() for batch in in_memory] == epochs[0]


@pytest.mark.parametrize("sizes", [{"rows": 20}, {"bucket": True}, {"rows": 20, "bucket": True}], ids=str)
def test_batches_by_size_of_what_was_drawn(path, sizes):
    whole = np.split(read_with_h5py(path, "tokens"), read_with_h5py(path, "ends")[1:-1])
    fields = {"x": Field("tokens", lookup=Bounds("ends"), ragged="list"), "n": SampleNumber()}
    asked = {"fields": fields, "draw": Sized(**sizes, draw=Weighted(np.random.default_rng(0).random(100), 700))}
    with H5StreamLoader(path, 8, True, seed=0, **asked) as loader:
        batches, said = [], len(loader)
        batches += loader
        assert said == len(batches)
        state_of_second = None
        for number, _ in enumerate(loader):
            if number == 4:
                state_of_second = json.loads(json.dumps(loader.state_dict()))
    assert sum(len(batch["n"]) for batch in batches) == 700
    for batch in batches:
        assert sizes.get("rows", 10**6) >= sum(map(len, batch["x"]))
        assert all(np.array_equal(x, whole[n]) for x, n in zip(batch["x"], batch["n"].tolist(), strict=True))
    later = H5StreamLoader(path, 8, True, seed=0, **asked)
    later.load_state_dict(state_of_second)
    with H5StreamLoader(path, 8, True, seed=0, **asked) as again:
        again.set_epoch(1)
        assert [b["n"].tolist() for b in later] == [b["n"].tolist() for b in again][5:]


@pytest.mark.parametrize(
    "changed",
    [
        Weighted(np.arange(ROWS) + 2, 400),
        Weighted(np.arange(ROWS) + 1, 500),
        Balanced("label", count=400),
        Weighted(np.arange(ROWS) + 1, 400, replacement=False),
    ],
    ids=["weights", "count", "kind", "replacement"],
)
def test_a_state_of_other_weights_is_refused(path, changed):
    state = H5StreamLoader(path, 16, fields="x", draw=Weighted(np.arange(ROWS) + 1, 400)).state_dict()
    with pytest.raises(errors.StateError, match="what draw= takes"):
        H5StreamLoader(path, 16, fields="x", draw=changed).load_state_dict(state)


@pytest.mark.parametrize("draw", [Weighted(count=2**62), Balanced("label", count=2**62), 2**62], ids=str)
def test_more_samples_than_can_be_shared_out_are_refused(path, draw):
    with pytest.raises(errors.OptionError, match=r"takes at most 2\*\*53 samples of an epoch, not 4,611"):
        H5StreamLoader(path, 16, fields="x", draw=draw)


def test_a_tiny_weight_is_none_that_is_left_out(path):
    weights = np.zeros(ROWS)
    weights[-3:] = 1e-300, 1e-10, 1e300
    for shares in (weights, np.where(weights, 5e-324, 0)):
        loader = H5StreamLoader(path, 3, fields=["x", SampleNumber()], draw=Weighted(shares, 3, replacement=False))
        assert sorted(torch.cat([number for _, number in loader]).tolist()) == [*range(ROWS - 3, ROWS)]


def test_shares_may_be_far_apart(path):
    labels = np.arange(ROWS) % 3
    for shares in ([1e308] * 3, [5e-324] * 3):
        draw = Balanced(labels, shares=dict(enumerate(shares)), count=300)
        assert len(torch.cat([*H5StreamLoader(path, 30, fields="x", draw=draw)])) == 300
    draw = Balanced(labels, shares={0: 5e-324, 1: 1, 2: 1}, replacement=False)
    assert len(torch.cat([*H5StreamLoader(path, 30, fields="x", draw=draw)])) == 2 * (labels == 1).sum()


# --- classes ------------------------------------------------------------------------------------------------


# Several of which are one as floats, which NumPy takes numbers on both sides of 2**63 for.
@pytest.mark.parametrize("numbers", [[1, 2**63, 2**63 + 1], [2**53, 2**53 + 1, 2**53 + 2]])
def test_large_numbers_are_classes_of_their_own(tmp_path, numbers):
    labels = np.array(numbers, "u8")[np.arange(ROWS) % 3]
    path = write_datasets(tmp_path / "a.h5", large=labels)
    for given in (labels, "large"):
        loader = H5StreamLoader(path, 32, fields="large", draw=Balanced(given, count=300))
        assert Counter(x for batch in loader for x in batch.tolist()) == dict.fromkeys(numbers, 100)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.array([b"", b"x"]).repeat(ROWS // 2).astype("V1"), "type |V1"),
        (np.arange(ROWS) % 3 * 1j, "type complex128"),
        (np.array(["2020", "NaT"], "M8[s]").repeat(ROWS // 2), f"sample {ROWS // 2:,} is NaT, which is no class"),
        ([[1], [2, 3]] * (ROWS // 2), "each entry of the same shape"),
        (np.where(np.arange(ROWS) == 7, np.nan, 1.0), "sample 7 is NaN, which is no class"),
    ],
)
def test_what_is_no_class_is_refused(path, given, said):
    with pytest.raises(errors.OptionError, match=re.escape(said)):
        H5StreamLoader(path, 32, fields="x", draw=Balanced(given))


def test_shares_are_numbers_of_any_size_and_type(path):
    classes = np.arange(ROWS) % 2
    for one in (1e308, np.float32(2), np.int64(2)):
        loader = H5StreamLoader(path, 32, fields="x", draw=Balanced(classes, {0: one, 1: one}, count=100))
        assert sum(len(batch) for batch in loader) == 100


def test_classes_come_as_often_as_asked(path):
    fields = {"x": "x", "name": "name", "label": "label"}
    with h5py.File(path) as file:
        labels, names = file["label"][:], file["name"].asstr()[:].tolist()
    least = min(names.count(name) for name in set(names))

    def count(*asked, **options):
        loader = H5StreamLoader(path, 32, fields=fields, draw=Balanced(*asked, **options))
        return Counter(name.decode() for batch in loader for name in batch["name"])

    assert count("name") == {"cat": 200, "dog": 200, "eel": 200}
    assert count(names) == {"cat": 200, "dog": 200, "eel": 200}
    assert count("name", {"cat": 2, "dog": 1, "eel": 1}) == {"cat": 300, "dog": 150, "eel": 150}
    assert count("name", {"cat": 1, "dog": 0, "eel": 1}, count=50) == {"cat": 25, "eel": 25}
    assert count("name", replacement=False) == dict.fromkeys(["cat", "dog", "eel"], least)
    under = H5StreamLoader(path, 32, fields=fields, draw=Balanced("label", replacement=False))
    seen = torch.cat([batch["label"] for batch in under])
    assert (len(seen), int(seen.sum())) == (2 * labels.sum(), labels.sum())
    rows = torch.cat([batch["x"][:, 0] for batch in under])
    assert len(rows.unique()) == len(rows)


WRONG = {
    "weights of another number": (
        lambda: Weighted(np.ones(5)),
        "one number a sample: 600 samples, weights of shape \\(5,\\)",
    ),
    "negative": (lambda: Weighted(np.append(np.ones(ROWS - 1), -1)), "sample 599 has -1.0, and of all 600 samples 1"),
    "not a number": (lambda: Weighted("nan"), "sample 599 has nan"),
    "texts of another number": (lambda: Balanced(["a"] * 5), "600 samples, values of shape"),
    "all 0": (lambda: Weighted(np.zeros(ROWS)), "0 for all 600 samples"),
    "no numbers": (lambda: Weighted(["a"] * ROWS), "takes numbers"),
    "several a sample": (lambda: Weighted("x"), "has 3 that differ"),
    "no such field": (lambda: Weighted("q"), "no field|no dataset|not in|'q'"),
    "too many": (lambda: Weighted("w", 590, replacement=False), "590.*there are 514 that have a weight above 0"),
    "how many": (lambda: Weighted("w", replacement=False), "count= must say how many"),
    "too many alone": (lambda: Weighted(None, 601, replacement=False), "there are 600"),
    "none": (lambda: 0, r"draw= takes Weighted.*Sized.*a function.* or a positive number of samples, not 0"),
    "no count": (lambda: Weighted("w", 0), "Weighted: count= takes a positive number of samples, not 0"),
    "a name in a size": (lambda: Sized(3, draw="w"), "Sized: draw= takes .*not 'w'"),
    "replacement": (lambda: Weighted("w", replacement=1), "True or False"),
    "many values": (lambda: Balanced("noise"), "has 600 values in 600 samples, which are no classes"),
    "NaN": (lambda: Balanced("nan"), "sample 599 is NaN"),
    "NaN in an array": (lambda: Balanced(np.full(ROWS, np.nan)), r"^Balanced\(an array\): sample 0 is NaN"),
    "a matrix": (lambda: Balanced("x"), "one value a sample"),
    "a class without samples": (lambda: Balanced("label", {0: 1, 1: 1, 2: 1}), "2 .* but no sample has it; .* 0, 1"),
    "a class without share": (lambda: Balanced("label", {0: 1}), "gives 1 of 'label' no share, and 12 samples have it"),
    "a negative share": (lambda: Balanced("label", {0: 1, 1: -1}), "share of 1 is a number of 0 or more, not -1"),
    "no share": (lambda: Balanced("label", {0: 0, 1: 0}), "a share of 0"),
    "no mapping": (lambda: Balanced("label", 3), "the share of each of a field's values"),
    "too many of a class": (
        lambda: Balanced("label", count=100, replacement=False),
        "50 of them are of class 1, which has 12 samples.*pass count=24 or less",
    ),
    "no rows": (lambda: Sized(rows=0), "positive number of rows"),
    "no bucket": (lambda: Sized(bucket=3), "bucket= takes True"),
    "no name": (lambda: Sized(rows=3, field=4), "the name of a ragged field, not 4"),
    "no size": (lambda: Sized(), "rows= .*, bucket=True or both"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(path, name):
    draw, message = WRONG[name]
    with pytest.raises(errors.H5StreamError, match=message):
        H5StreamLoader(path, 16, fields="x", draw=draw())


def test_a_sampler_and_random_starts_beside_a_draw_are_refused(path):
    with pytest.raises(errors.OptionError, match=r"draw=Weighted\(...\) .*sampler= must be left out"):
        H5StreamLoader(path, 16, fields="x", draw=Weighted("w"), sampler=[1])
    samples = Sequences(3, of="demos/*", starts="random")
    with pytest.raises(errors.OptionError, match=r"starts='random'.* draw=Weighted\(...\) must be left out"):
        H5StreamLoader(path, 4, fields="x", samples=samples, draw=Weighted(np.ones(40)))
    with pytest.raises(errors.OptionError, match="draws its samples anew for each epoch"):
        H5StreamLoader(path, 4, fields="x", samples=samples, sampler=[0, 1])


def test_a_field_beside_those_of_a_dataset_says_how_often(path):
    whole = H5Dataset(path, "x")
    with h5py.File(path) as file:
        beside = {Weighted: ("w", file["w"][:]), Balanced: ("name", file["name"][:].astype(str))}
    parts = (whole, np.arange(ROWS)), (whole.split(0.5)[0], None), (Subset(whole, np.arange(500, 100, -3)), None)
    for part, rows in (*parts, ([parts[1][0], whole], None)):
        dataset = H5StreamLoader(part).dataset
        rows = np.arange(len(dataset)) if rows is None and dataset.rows is None else rows
        rows = dataset.rows % ROWS if rows is None else rows
        for kind, (name, values) in beside.items():
            named, given = (
                torch.cat(list(H5StreamLoader(part, 32, seed=0, draw=kind(asked)))).tolist()
                for asked in (name, values[rows])
            )
            assert named == given
    sequences_of = H5Dataset(path, "x", samples=Sequences(2, of="demos/*"))
    with pytest.raises(errors.FieldNotFoundError, match="has no dataset 'w' in 'demos/d00'"):
        H5StreamLoader(sequences_of, 16, draw=Weighted("w"))
    with pytest.raises(errors.FieldNotFoundError, match="has no dataset 'weight'"):
        H5StreamLoader(whole, 16, draw=Weighted("weight"))


# --- torch's samplers ---------------------------------------------------------------------------------------


def rows_of(loader):
    return (torch.cat(list(loader))[:, 0] / 3).long().tolist()


def seeded():
    return torch.Generator().manual_seed(4)


def test_torchs_samplers_are_read_as_what_they_mean(path):
    dataset = H5Dataset(path, "x")
    weights = np.arange(ROWS) % 3 == 0
    found = rows_of(H5StreamLoader(dataset, 50, sampler=WeightedRandomSampler(weights, 1000, generator=seeded())))
    assert len(found) == 1000
    assert not np.mod(found, 3).any()
    found = rows_of(H5StreamLoader(dataset, 50, sampler=WeightedRandomSampler(weights, 150, replacement=False)))
    assert len(set(found)) == 150
    assert not np.mod(found, 3).any()
    found = rows_of(H5StreamLoader(dataset, 50, sampler=WeightedRandomSampler(np.ones(40), 1000)))
    assert set(found) == set(range(40))
    assert sorted(rows_of(H5StreamLoader(dataset, 2, sampler=SubsetRandomSampler([5, 3, 9, 3])))) == [3, 3, 5, 9]
    assert sorted(rows_of(H5StreamLoader(dataset, 50, sampler=RandomSampler(dataset)))) == list(range(ROWS))
    assert len(set(rows_of(H5StreamLoader(dataset, 50, sampler=RandomSampler(dataset, num_samples=150))))) == 150
    often = np.bincount(rows_of(H5StreamLoader(dataset, 50, sampler=RandomSampler(dataset, num_samples=1300))))
    assert set(often.tolist()) == {2, 3}
    often = np.bincount(
        rows_of(H5StreamLoader(dataset, 50, sampler=RandomSampler(dataset, True, 6000))), minlength=ROWS
    )
    assert often.min() < 5
    assert often.max() > 15


@pytest.mark.parametrize(
    ("draw", "said"), [(Weighted("w"), "Weighted"), (Balanced("label"), "Balanced"), (9, "9")], ids=str
)
def test_a_sampler_and_an_argument_that_both_say_how_often_are_refused(path, draw, said):
    dataset = H5Dataset(path, "x")
    for sampler in (WeightedRandomSampler(np.ones(ROWS), 9), RandomSampler(dataset)):
        with pytest.raises(errors.OptionError, match=f"draw={said}.* and sampler={type(sampler).__name__}"):
            H5StreamLoader(dataset, 50, sampler=sampler, draw=draw)


def test_a_samplers_seed_is_its_generators_or_that_which_is_given(path):
    dataset = H5Dataset(path, "x")

    def epoch(generator=None, **options):
        return rows_of(H5StreamLoader(dataset, 50, sampler=RandomSampler(dataset, generator=generator), **options))

    assert epoch(seeded()) == epoch(seeded())
    assert epoch(seed=3) == epoch(seed=3) == rows_of(H5StreamLoader(dataset, 50, True, seed=3))


def test_a_distributed_sampler_says_rank_seed_and_epoch(path):
    dataset = H5Dataset(path, "x")
    samplers = [DistributedSampler(dataset, 4, rank, seed=7) for rank in range(4)]
    loaders = [H5StreamLoader(dataset, 16, sampler=sampler) for sampler in samplers]
    for epoch in (0, 5, 6):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        assert len({len(loader) for loader in loaders}) == 1
        ranks = [rows_of(loader) for loader in loaders]
        assert sorted(itertools.chain(*ranks)) == list(range(ROWS))
        own = H5StreamLoader(dataset, 16, True, seed=7, rank=1, world_size=4)
        own.set_epoch(epoch)
        assert rows_of(own) == ranks[1]
    loaders[0].set_epoch(9)
    assert samplers[0].epoch == 9


class Mine(RandomSampler):
    """Changed in a way that nothing here could know."""


def test_a_sampler_that_was_changed_is_followed_and_warned_of(path):
    dataset = H5Dataset(path, "x")
    given = [
        {"batch_size": 50, "sampler": Mine(dataset, generator=seeded())},
        {"batch_size": 1, "batch_sampler": BatchSampler(RandomSampler(dataset, generator=seeded()), 50, False)},
    ]
    for options in given:
        with pytest.warns(errors.SlowSamplerWarning, match=r"a chunk of 20 rows.*write draw="):
            loader = H5StreamLoader(dataset, **options)
        assert rows_of(loader) == list(RandomSampler(dataset, generator=seeded()))


@pytest.mark.filterwarnings("ignore::h5stream.errors.SlowSamplerWarning")
def test_weights_for_more_samples_than_there_are_are_followed(path):
    loader = H5StreamLoader(H5Dataset(path, "x"), 50, sampler=WeightedRandomSampler(np.append(np.zeros(ROWS), 1), 9))
    with pytest.raises(errors.OptionError, match="the sampler gave row 600"):
        list(loader)


# --- batches by size; the oracle and the tests of orders say which samples they have -----------------------------


TOKEN_COUNTS = np.random.default_rng(1).integers(0, 30, 150)


def write_tokens(tokens, counts, **stored):
    bounds, count = np.append(0, np.cumsum(counts)), len(counts)
    held = {"bounds": bounds, "label": np.arange(count), "word": np.arange(2 * count), "words": np.full(count, 2)}
    return write_datasets(tokens, token={"data": np.arange(bounds[-1]), **stored}, **held)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("sized") / "a.h5", TOKEN_COUNTS, chunks=37, compression="gzip")


TOKENS = {
    "token": Field("token", lookup=Bounds("bounds"), ragged="packed"),
    "word": Field("word", lookup=Lengths("words")),
    "label": "label",
}


def test_a_slot_holds_the_most_samples_that_a_batch_may_have(tmp_path):
    write_tokens(tmp_path / "a.h5", [300] * 60 + [0] * 200 + [1] * 100)
    with H5StreamLoader(tmp_path / "a.h5", fields=["label", TOKENS["token"]], draw=Sized(300)) as loader:
        sizes = [len(labels) for labels, _ in loader]
    assert sizes == [1] * 59 + [201, 100]


def test_a_state_of_other_lengths_or_limits_is_refused(tokens):
    with H5StreamLoader(tokens, fields=TOKENS, draw=Sized(70), shuffle=True) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for other in (Sized(80), Sized(70, bucket=True), None):
        with (
            H5StreamLoader(tokens, fields=TOKENS, shuffle=True, draw=other) as loader,
            pytest.raises(errors.StateError),
        ):
            loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"draw": Sized(28)}, "sample [0-9]+ alone has 29 rows of 'token'.* rows=29.*subset"),
        ({"draw": Sized(90, "label")}, "no ragged field; those are 'token', 'word'"),
        ({"draw": Sized(bucket=True), "shuffle": False}, "pass shuffle=True"),
        (
            {"draw": Sized(90), "shuffle": False, "sampler": [1, 2]},
            "leave out sampler=, batch_sampler= and batch_size=None",
        ),
        ({"draw": Sized(90), "batch_size": None}, "cuts batches itself: leave out"),
        ({"draw": Sized(90), "fields": "label"}, "there is none"),
        ({"draw": Sized(2000), "drop_last": True, "world_size": 3, "rank": 0}, "leaves no batch"),
    ],
    ids=str,
)
def test_sizes_that_are_asked_for_wrongly_are_told(tokens, options, says):
    with pytest.raises(errors.OptionError, match=says):
        H5StreamLoader(tokens, **{"fields": TOKENS, "shuffle": True, **options})
