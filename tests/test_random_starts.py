"""Random starts: one sample of each segment an epoch, or so many, beside h5py; a function of seed and epoch alone."""

import h5py
import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from h5stream import ChunkBatchSampler, Field, H5Dataset, H5StreamLoader, SampleNumber, Sequences, errors
from h5stream.order.draws import RandomStarts
from h5stream.samples.segments import Ends
from h5stream.samples.sequences import Draws
from h5stream.samples.space import SequenceSpace

LENGTHS = (9, 3, 23, 4, 40, 17, 4)
STEPS = 4
FIELDS = {"x": "x", "next": Field("x", steps=[STEPS - 1]), "number": SampleNumber()}
LONG_ENOUGH = [k for k, rows in enumerate(LENGTHS) if rows >= STEPS]


@pytest.fixture(scope="module", params=[{}, {"chunks": (5,), "compression": "gzip"}], ids=["contiguous", "gzip"])
def path(request, tmp_path_factory):
    """Groups whose rows say which group and which row of it they are."""
    path = tmp_path_factory.mktemp("starts") / "demos.h5"
    with h5py.File(path, "w") as file:
        for k, rows in enumerate(LENGTHS):
            options = request.param | ({"chunks": (min(5, rows),)} if request.param else {})
            file.create_dataset(f"data/demo_{k}/x", data=1000 * k + np.arange(rows), **options)
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


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 0}, {"window": 4}, {"shuffle": False}, {"window": "all"}],
    ids=str,
)
def test_an_epoch_takes_one_start_of_each_segment(path, options):
    given = {"shuffle": True, "seed": 1} | options
    with H5StreamLoader(path, 2, fields=FIELDS, samples=random(), **given) as loader:
        epochs = [begins_of(loader) for _ in range(4)]
    for begins in epochs:
        assert sorted(begin // 1000 for begin in begins) == LONG_ENOUGH
    assert len({tuple(sorted(begins)) for begins in epochs}) > 1
    with H5StreamLoader(path, 3, fields=FIELDS, samples=random(), shuffle=True, seed=1) as again:
        assert sorted(begins_of(again)) == sorted(epochs[0])


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


def test_flags_of_a_flat_buffer_make_segments(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["end"] = np.arange(30), np.isin(np.arange(30), [4, 5, 17, 24])
    samples = Sequences(3, of=Ends("end"), starts="random")
    found = H5Dataset(tmp_path / "a.h5", "x", samples=samples)[:].numpy()
    assert np.digitize(found, [5, 6, 18, 25]).tolist() == [[0] * 3, [2] * 3, [3] * 3, [4] * 3]


@examples(200)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    per_epoch=st.none() | st.integers(1, 60),
    by=st.sampled_from(["segments", "rows"]),
    data=st.data(),
)
def test_draws_are_of_what_may_be_drawn(counts, per_epoch, by, data):
    edges, total = np.cumsum([0, *counts]), sum(counts)
    by = by if per_epoch else "segments"
    draws = Draws(per_epoch=per_epoch, by=by)
    space = SequenceSpace(anchors=np.arange(total), edges=edges, pad=None, left_out=0, draws=draws)
    rows = np.array(sorted(data.draw(st.none() | st.sets(st.integers(0, total - 1), min_size=1)) or range(total)))
    starts = RandomStarts(space, rows)
    numbers = starts.numbers(seed=data.draw(st.integers(0, 2**63)), epoch=data.draw(st.integers(0, 5)))
    assert len(numbers) == len(starts)
    assert (np.diff(numbers) >= 0).all()
    assert set(numbers.tolist()) <= set(rows.tolist())
    segments = np.searchsorted(edges, rows, side="right")
    if by == "segments":
        seen = np.bincount(np.searchsorted(edges, numbers, side="right"), minlength=segments.max() + 1)
        often = seen[np.unique(segments)]
        assert often.max() - often.min() <= 1
    chosen = starts.of_segments(np.array([0]))
    assert chosen.tolist() == rows[segments == segments[0]].tolist()
