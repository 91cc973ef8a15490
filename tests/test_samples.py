"""Samples that are no rows, and fields that are no datasets: beside h5py, through dataset and loader."""

from itertools import chain, pairwise

import h5py
import numpy as np
import pytest
import torch
from amounts import crossed

from h5stream import (
    Ends,
    Field,
    H5Dataset,
    H5StreamLoader,
    Padding,
    Rows,
    SampleNumber,
    Sequences,
    Values,
    errors,
)

LENGTHS = (9, 1, 23, 4, 40, 17)


@pytest.fixture(scope="module", params=[{}, {"compression": "gzip", "shuffle": True}], ids=["contiguous", "gzip"])
def path(request, tmp_path_factory):
    """Demonstrations of unlike lengths, each a group: images, actions, and what each has once."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("demos") / "demos.h5"
    with h5py.File(path, "w") as file:
        file.attrs["robot"] = "arm"
        for k, rows in enumerate(LENGTHS):
            group = file.create_group(f"data/demo_{k}")
            chunks = (min(5, rows), 6, 6, 3) if request.param else None
            images = rng.integers(0, 255, (rows, 6, 6, 3), "u1")
            group.create_dataset("obs/image", data=images, chunks=chunks, **request.param)
            group["actions"] = rng.random((rows, 7), "f4")
            group["goal"] = rng.random(3)
            group.attrs["success"], group.attrs["text"] = k % 2, f"task {k}"
    return str(path)


FIELDS = {
    "image": Field("obs/image", steps=[-1, 0]),
    "action": Field("actions", dtype=torch.float64),
    "padded": Padding(),
    "number": SampleNumber(),
    "success": "@success",
    "text": "@text",
    "goal": Field("goal", repeat=True),
}


def by_hand(path, length, pad):
    """Give every sample, as a reader of a few lines makes them."""
    samples = []
    with h5py.File(path) as file:
        for k, rows in enumerate(LENGTHS):
            demo = file[f"data/demo_{k}"]
            image, action = demo["obs/image"][()], demo["actions"][()]
            for row in range(rows):
                wanted = np.arange(row - 1, row + length)
                outside = (wanted < 0) | (wanted >= rows)
                if pad is None and outside.any():
                    continue
                rows_of = np.clip(wanted, 0, rows - 1)
                images, actions = image[rows_of[:2]], action[rows_of[1:]].astype("f8")
                if pad not in (None, "edge"):
                    number = 0 if pad == "zeros" else pad
                    images[outside[:2]], actions[outside[1:]] = number, number
                samples.append((images, actions, outside[1:], k % 2, f"task {k}", demo["goal"][()]))
    return samples


def check(batch, expected):
    for place, number in enumerate(batch["number"].tolist()):
        image, action, outside, success, text, goal = expected[number]
        assert (batch["image"][place].numpy() == image).all()
        assert (batch["action"][place].numpy() == action).all()
        assert (batch["padded"][place].numpy() == outside).all()
        assert batch["success"][place] == success
        assert batch["text"][place] == text
        assert (batch["goal"][place].numpy() == goal).all()


@pytest.mark.parametrize("pad", [None, "edge", "zeros", 7])
def test_a_dataset_gives_the_samples_of_a_reader_of_a_few_lines(path, pad):
    expected = by_hand(path, 4, pad)
    dataset = H5Dataset(path, FIELDS, samples=Sequences(4, of="data/*", pad=pad))
    assert len(dataset) == len(expected)
    batch = dataset[:]
    assert batch["number"].tolist() == list(range(len(expected)))
    check(batch, expected)
    one = dataset[-1]
    assert (one["image"].numpy() == expected[-1][0]).all()
    assert one["text"] == expected[-1][4]


LOADERS = (
    {},
    {"num_workers": 0},
    {"window": 16},
    {"window": "all"},
    {"shuffle": False},
    {"memory_budget": "24MiB", "num_workers": 1},
    {"drop_last": True},
)


@pytest.mark.parametrize(("options", "pad"), crossed(LOADERS, (None, "edge", 7)), ids=str)
def test_a_loader_gives_each_sample_once(path, options, pad):
    expected = by_hand(path, 4, pad)
    given = {"shuffle": True, "seed": 1} | options
    with H5StreamLoader(path, 8, fields=FIELDS, samples=Sequences(4, of="data/*", pad=pad), **given) as loader:
        for _ in range(2):
            seen = []
            for batch in loader:
                check(batch, expected)
                seen += batch["number"].tolist()
            left_out = len(expected) % 8 if options.get("drop_last") else 0
            assert len(seen) == len(set(seen)) == len(expected) - left_out
            assert options.get("shuffle", True) == (seen != sorted(seen))


def numbers(loader):
    return [batch["number"].tolist() for batch in loader]


def test_ranks_part_an_epoch_and_a_state_goes_on_at_any_batch(path):
    def made(**given):
        return H5StreamLoader(
            path, 8, shuffle=True, seed=3, fields=FIELDS, samples=Sequences(4, of="data/*"), window=24, **given
        )

    whole = numbers(made())
    shares = [numbers(made(rank=rank, world_size=2)) for rank in range(2)]
    assert sorted(chain.from_iterable(shares[0] + shares[1])) == sorted(chain.from_iterable(whole))
    for stop in range(len(whole)):
        loader = made()
        iterator = iter(loader)
        begun = [next(iterator)["number"].tolist() for _ in range(stop)]
        other = made()
        other.load_state_dict(loader.state_dict())
        assert begun + numbers(other) == whole


def test_a_state_of_other_sequences_is_refused(path):
    def made(samples):
        return H5StreamLoader(path, 8, fields="actions", samples=samples)

    state = made(Sequences(4, of="data/*")).state_dict()
    for other in ({"length": 5}, {"stride": 2}, {"pad": "edge"}):
        with pytest.raises(errors.StateError, match="and is now"):
            made(Sequences(**{"length": 4, "of": "data/*"} | other)).load_state_dict(state)
    padded = [made(Sequences(4, of="data/*", pad=pad)) for pad in ("edge", "zeros")]
    with pytest.raises(errors.StateError, match="samples was"):
        padded[1].load_state_dict(padded[0].state_dict())


def test_some_samples_of_a_dataset_are_chosen_by_their_numbers(path):
    dataset = H5Dataset(path, FIELDS, samples=Sequences(4, of="data/*"), rows=range(0, 40, 3))
    expected = by_hand(path, 4, None)
    for source in (dataset, dataset.subset([1, 5, 6]), torch.utils.data.Subset(dataset, [4, 0, 4])):
        for batch in H5StreamLoader(source, 4):
            check(batch, expected)
    assert H5Dataset(dataset).subset([1, 5])[:]["number"].tolist() == [3, 15]


def test_rows_of_groups_follow_one_another(path):
    dataset = H5Dataset(path, {"action": "actions", "goal": Field("goal", repeat=True)}, samples=Rows(of="data/*"))
    with h5py.File(path) as file:
        actions = np.concatenate([file[f"data/demo_{k}/actions"] for k in range(len(LENGTHS))])
        goals = np.repeat([file[f"data/demo_{k}/goal"] for k in range(len(LENGTHS))], LENGTHS, axis=0)
    batch = dataset[:]
    assert (batch["action"].numpy() == actions).all()
    assert (batch["goal"].numpy() == goals).all()
    with H5StreamLoader(
        path, 16, shuffle=True, fields=["actions", SampleNumber()], samples=Rows(of="data/*")
    ) as loader:
        for rows, numbers in loader:
            assert (rows.numpy() == actions[numbers]).all()


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, list], ids=["array", "tensor", "list"])
def test_values_in_memory_are_a_field(path, kind):
    labels, texts = np.arange(sum(LENGTHS)) ** 2, [f"row {k}" for k in range(sum(LENGTHS))]
    fields = ["actions", Values(kind(labels), dtype=torch.float32), Values(texts, name="text"), SampleNumber()]
    with H5StreamLoader(path, 16, shuffle=True, fields=fields, samples=Rows(of="data/*"), num_workers=2) as loader:
        for _, values, words, numbers in loader:
            assert values.dtype == torch.float32
            assert values.tolist() == (numbers**2).tolist()
            assert words == [f"row {k}" for k in numbers.tolist()]


def test_flat_buffers_are_cut_where_a_field_says_so(tmp_path):
    ends = np.isin(np.arange(30), [4, 5, 17, 24])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observations"], file["terminals"], file["timeouts"] = np.arange(30), ends, np.zeros(30, bool)
    samples = Sequences(3, of=Ends("terminals", "timeouts"))
    found = H5Dataset(tmp_path / "a.h5", "observations", samples=samples)[:].tolist()
    edges = [0, 5, 6, 18, 25, 30]
    expected = [list(range(k, k + 3)) for a, b in pairwise(edges) for k in range(a, b - 2)]
    assert found == expected


@pytest.mark.parametrize(
    ("fields", "samples", "kind", "says"),
    [
        ("actions", Sequences(4, of="demos/*"), errors.FieldNotFoundError, "matches no group.*'data/\\*' matches"),
        ("actions", Sequences(4, of=["data/demo_9"]), errors.FieldNotFoundError, "Did you mean 'data/demo_5'"),
        ("actions", Sequences(99, of="data/*"), errors.OptionError, "span 99 rows.*longest of 6 segments has 40"),
        (Field("data/demo_0/actions", steps=[0]), None, errors.OptionError, "needs samples=Sequences"),
        ("actions", Sequences(of="data/*"), errors.OptionError, "needs steps=, or Sequences a length"),
        (["actions", Padding()], Rows(of="data/*"), errors.OptionError, "needs samples=Sequences"),
        (["actions", Values([1, 2])], Rows(of="data/*"), errors.FieldLengthError, "2 values, and there are 94 samples"),
        ([Values([1, 2]), SampleNumber()], Rows(of="data/*"), errors.OptionError, "name at least one dataset"),
        (["actions", "@sucess"], Rows(of="data/*"), errors.FieldNotFoundError, "Did you mean 'success'"),
        (["actions", "goal"], Rows(of="data/*"), errors.FieldLengthError, "must agree in rows.*repeat=True"),
    ],
)
def test_bad_input_is_told_with_the_way_out(path, fields, samples, kind, says):
    with pytest.raises(kind, match=says):
        H5Dataset(path, fields, samples=samples)
    with pytest.raises(kind, match=says):
        H5StreamLoader(path, 4, fields=fields, samples=samples)


def test_what_a_sample_is_is_said_where_the_files_are_named(path):
    dataset = H5Dataset(path, "actions", samples=Rows(of="data/*"))
    with pytest.raises(errors.OptionError, match="belongs to the H5Dataset"):
        H5StreamLoader(dataset, 4, samples=Sequences(4))
