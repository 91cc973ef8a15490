"""Random starts: one sample of each segment an epoch, or so many, beside h5py; a function of seed and epoch alone."""

import h5py
import numpy as np
import pytest
import torch

from h5stream import ChunkBatchSampler, Field, H5Dataset, H5StreamLoader, SampleNumber, Sequences, errors

LENGTHS = (9, 3, 23, 4, 40, 17, 4)
STEPS = 4
FIELDS = {"x": "x", "next": Field("x", take=[STEPS - 1]), "number": SampleNumber()}
LONG_ENOUGH = [k for k, rows in enumerate(LENGTHS) if rows >= STEPS]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Groups whose rows say which group and which row of it they are."""
    path = tmp_path_factory.mktemp("starts") / "demos.h5"
    with h5py.File(path, "w") as file:
        for k, rows in enumerate(LENGTHS):
            values = 1000 * k + np.arange(rows)
            file.create_dataset(f"data/demo_{k}/x", data=values, chunks=(min(5, rows),), compression="gzip")
    return str(path)


def random(**options):
    return Sequences(STEPS, of="data/*", starts="random", **options)


def begins_of(batches):
    """Give the first row of each sample, after a look whether the others follow it as they do in the file."""
    batches = [batches] if isinstance(batches, dict) else list(batches)
    x, last = (torch.cat([batch[key] for batch in batches]).numpy() for key in ("x", "next"))
    assert (x == x[:, :1] + np.arange(STEPS)).all()
    assert (last[:, 0] == x[:, -1]).all()
    assert (x[:, -1] % 1000 < np.array(LENGTHS)[x[:, 0] // 1000]).all()
    return x[:, 0].tolist()


def test_a_dataset_alone_draws_for_the_epoch_that_it_is_told(path):
    dataset = H5Dataset(path, FIELDS, samples=random())
    assert len(dataset) == len(LONG_ENOUGH)
    loader = torch.utils.data.DataLoader(dataset, 2, num_workers=1)
    drawn = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        drawn.append(begins_of(loader))
        assert [begin // 1000 for begin in drawn[-1]] == LONG_ENOUGH
        assert begins_of(dataset[:]) == [int(dataset[k]["x"][0]) for k in range(len(dataset))] == drawn[-1]
    assert drawn[0] == drawn[2] != drawn[1]
    dataset.set_epoch(0, seed=5)
    assert begins_of(dataset[:]) != drawn[0]
    sampler = ChunkBatchSampler(dataset, 2, window=4)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        begins = begins_of(torch.utils.data.DataLoader(dataset, batch_sampler=sampler))
        assert sorted(begins) == sorted(begins_of(dataset[:]))


def test_what_is_drawn_is_drawn_evenly(path):
    """Segments as often as one another; starts as likely as one another."""
    counted = {}
    for draw in ("segments", "rows"):
        loader = H5StreamLoader(path, 128, fields=FIELDS, samples=random(per_epoch=1000, draw=draw), seed=2)
        begins = begins_of(loader)
        counted[draw] = np.bincount([begin // 1000 for begin in begins], minlength=len(LENGTHS))
        assert len(set(begins)) > 0.9 * sum(max(0, rows - STEPS + 1) for rows in LENGTHS)
    share = 1000 // len(LONG_ENOUGH)
    assert set(counted["segments"]) <= {0, share, share + 1}
    starts = np.array([max(0, rows - STEPS + 1) for rows in LENGTHS])
    assert np.abs(counted["rows"] - 1000 * starts / starts.sum()).max() < 60


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"starts": "any"}, "starts= is 'all' or 'random'"),
        ({"per_epoch": 5}, "per_epoch= is a number of random starts"),
        ({"starts": "random", "per_epoch": 0}, "at least 1"),
        ({"starts": "random", "draw": "rows"}, "say how many"),
        ({"starts": "random", "per_epoch": 5, "draw": "even"}, "draw= is 'segments' or 'rows'"),
    ],
)
def test_what_contradicts_itself_is_refused(options, says):
    with pytest.raises(errors.OptionError, match=says):
        Sequences(4, **options)


def test_a_sampler_beside_draws_is_refused(path):
    with pytest.raises(errors.OptionError, match="draws its samples anew for each epoch"):
        H5StreamLoader(path, 4, fields=FIELDS, samples=random(), sampler=[0, 1])


def test_joined_datasets_take_one_start_of_each_segment(path):
    parts = [
        H5Dataset(path, "x", samples=Sequences(STEPS, of=names, starts="random"))
        for names in (["data/demo_0", "data/demo_2"], ["data/demo_5"])
    ]
    for _ in range(3):
        found = torch.cat(list(H5StreamLoader(parts, 2, shuffle=True)))
        assert sorted((found[:, 0] // 1000).tolist()) == [0, 2, 5]
    drawn = H5Dataset(path, "x", samples=random(per_epoch=5))
    with pytest.raises(errors.OptionError, match="per_epoch= give one H5Dataset all files"):
        H5StreamLoader([drawn, drawn], 2)
