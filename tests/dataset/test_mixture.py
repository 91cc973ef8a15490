"""Mixtures: several sources in stated shares; an epoch goes on where the last one stopped."""

import numpy as np
import pytest
import torch
from support.making import write_datasets

from h5stream import (
    Balanced,
    ChunkBatchSampler,
    Field,
    H5Dataset,
    H5StreamLoader,
    Mixture,
    Objects,
    SampleNumber,
    Sequences,
    SourceNumber,
    Weighted,
    errors,
)

SIZES = {"a": 60, "b": 300, "c": 1000}
CHUNKS = {"a": 60, "b": 10, "c": 64}
FIELDS = {"x": "x", "source": SourceNumber()}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Write a file for each source, whose values say which and which row."""
    folder, paths = tmp_path_factory.mktemp("mixture"), {}
    for number, (name, rows) in enumerate(SIZES.items()):
        first = 10_000 * number + np.arange(rows)
        held = {f"demos/d{k:02}/x": first[0] + 100 * k + np.arange(5 + k % 3) for k in range(rows // 20)}
        x = {"data": np.stack([first, -first], axis=1), "chunks": (CHUNKS[name], 2), "compression": "gzip"}
        paths[name] = write_datasets(folder / f"{name}.h5", x=x, wide=np.zeros((rows, number + 1)), **held)
    return paths


def values_of(batches):
    """Give the samples' values, after a look whether each is of the source that it says."""
    found = []
    for batch in batches:
        assert (batch["x"][:, 0] == -batch["x"][:, 1]).all()
        assert (batch["x"][:, 0] // 10_000 == batch["source"]).all()
        found += batch["x"][:, 0].tolist()
    return found


def count(values):
    return np.bincount(np.array(values) // 10_000, minlength=3).tolist()


@pytest.mark.parametrize("options", [{}, {"window": 100}, {"num_workers": 0}], ids=str)
def test_an_epoch_has_its_share_of_each_source(paths, options):
    for stop, wanted in (("first", [60, 30, 210]), ("all", [600, 300, 2100])):
        mixture = Mixture(paths, weights={"b": 1, "c": 7, "a": 2}, stop=stop, fields=FIELDS)
        with H5StreamLoader(mixture, 25, **options) as loader:
            seen = [values_of(loader) for _ in range(4)]
            assert len(loader) == sum(wanted) // 25
        assert all(count(epoch) == wanted for epoch in seen)
        together = np.array([value for epoch in seen for value in epoch])
        for number, rows in enumerate(SIZES.values()):  # passes go on: none is left behind
            often = np.bincount(together[together // 10_000 == number] % 10_000, minlength=rows)
            assert often.max() - often.min() <= 1


def test_each_batch_mixes_the_sources(paths):
    mixture = Mixture(paths, weights=[0.2, 0.3, 0.5], stop="all", fields=FIELDS)
    for window in (250, "auto", "all"):
        batches = [np.bincount(batch["source"], minlength=3) for batch in H5StreamLoader(mixture, 50, window=window)]
        shares = np.array(batches[:-1]) / 50
        assert np.abs(shares.mean(axis=0) - [0.2, 0.3, 0.5]).max() < 0.02
        assert shares.min() > 0
        assert shares.std(axis=0).max() < 0.11


@pytest.mark.parametrize(
    ("weights", "refused"),
    [
        ([1e308] * 3, None),
        ([1e-300, 1e300, 1], r"gives 'a' 1e-300, and 'b' 1e\+300, beside which its share rounds to 0"),
        ([1e-18, 1, 1], "stop='all' an epoch lasts until source 'a', with a share of 5e-19, .*at most 2\\*\\*53"),
    ],
    ids=str,
)
def test_weights_far_apart_make_an_epoch_or_are_refused(paths, weights, refused):
    if refused is None:
        mixture = Mixture(paths, weights, fields=FIELDS)
        assert count(values_of(H5StreamLoader(mixture, 30))) == [60] * 3
        return
    with pytest.raises(errors.OptionError, match=refused):
        H5StreamLoader(Mixture(paths, weights, stop="all", fields=FIELDS), 30)


def test_sources_may_be_datasets_parts_of_them_and_loaders(paths):
    whole = H5Dataset(paths["c"], FIELDS)
    part, other = whole.subset(slice(0, 100)), torch.utils.data.Subset(whole, range(999, 499, -1))
    sources = {"part": part, "other part": other, "a loader's": H5StreamLoader(paths["a"], 4, fields=FIELDS)}
    mixture = Mixture(sources, weights=[1, 1, 1], stop="all")
    batches = list(H5StreamLoader(mixture, 30))
    x, source = (torch.cat([batch[key] for batch in batches]) for key in ("x", "source"))
    for number, wanted in enumerate([range(20_000, 20_100), range(20_500, 21_000), range(60)]):
        assert (source == number).sum() == 500
        assert set(x[source == number][:, 0].tolist()) == set(wanted)
    assert len(mixture) == 660
    assert mixture[0]["source"] == 0
    assert mixture[659]["source"] == 2
    assert repr(mixture).startswith("Mixture(part: 0.333, other part: 0.333")
    assert whole[3]["source"] == 0  # of one dataset


@pytest.mark.parametrize("kind", [Sequences(4, of="demos/*"), Objects("demos/*")], ids=["sequences", "objects"])
def test_sources_of_samples_that_are_no_rows(paths, kind):
    x = Field("x", ragged="list") if isinstance(kind, Objects) else "x"
    fields = {"x": x, "source": SourceNumber(), "n": SampleNumber()}
    mixture = Mixture(paths, [1, 1, 1], stop="all", samples=kind, fields=fields)
    seen = [0, 0, 0]
    for batch in H5StreamLoader(mixture, 16):
        for x, source, n in zip(batch["x"], batch["source"].tolist(), batch["n"].tolist(), strict=True):
            assert (x // 10_000 == source).all()
            assert torch.equal(x, mixture[n]["x"])
            seen[source] += 1
    assert len(set(seen)) == 1


def test_a_part_of_a_mixture_has_the_same_shares(paths):
    mixture = Mixture(paths, [1, 1, 2], stop="all", fields=FIELDS)
    for part in (mixture.subset(slice(0, None, 2)), torch.utils.data.Subset(mixture, range(1358, -1, -2))):
        assert len(part) == 680
        values = values_of(H5StreamLoader(part, 32))
        assert count(values) == [250, 250, 500]
        assert len(set(np.array(values) % 2)) == 1


def test_what_contradicts_a_mixture_is_refused(paths):
    mixture = Mixture(paths, [1, 1, 1], fields=FIELDS)
    with pytest.raises(errors.OptionError, match=r"source 'b' has a share of 0\.333 and no samples"):
        H5StreamLoader(mixture.subset([1, 2]), 1)
    with pytest.raises(errors.OptionError, match="mix all sources in one"):
        H5Dataset([mixture, H5Dataset(paths["a"], FIELDS)])
    with pytest.raises(errors.OptionError, match="a Mixture has shares"):
        ChunkBatchSampler(mixture, 4)
    for sampler in ([1, 2], torch.utils.data.RandomSampler(mixture)):
        with pytest.raises(errors.OptionError, match=r"a Mixture says how often .* sampler= must be left out"):
            H5StreamLoader(mixture, 4, sampler=sampler)
    with pytest.raises(errors.OptionError, match="pass shuffle=True, not False"):
        H5StreamLoader(mixture, 4, shuffle=False)
    with pytest.raises(errors.OptionError, match=r"draw=Weighted\(...\) must be left out"):
        H5StreamLoader(mixture, 4, draw=Weighted(np.ones(1360)))
    for draw in (Balanced(np.arange(60) % 2), Weighted(np.ones(60)), 9):
        drawing = H5StreamLoader(paths["a"], 4, fields=FIELDS, draw=draw)
        with pytest.raises(errors.OptionError, match=r"source 'a' is a loader whose draw= .*its dataset"):
            Mixture({"a": drawing}, [1])
    with pytest.raises(errors.OptionError, match="source 'a' is a dataset, which says its own fields="):
        Mixture({"a": H5Dataset(paths["a"], "x")}, [1], fields="x")
    with pytest.raises(errors.OptionError, match="the sources of both in one"):
        Mixture({"m": mixture, "a": H5Dataset(paths["a"], FIELDS)}, [1, 1])


WRONG = {
    "no names": ([["a.h5"], [1]], {}, "takes its sources by names"),
    "another number": ([SIZES, [1, 2]], {}, "a number of 0 or more for each of 3 sources"),
    "negative": ([SIZES, [1, 2, -1]], {}, "not all 0"),
    "all 0": ([SIZES, [0, 0, 0]], {}, "not all 0"),
    "nan": ([SIZES, [1, 2, float("nan")]], {}, "0 or more"),
    "another name": ([SIZES, {"a": 1, "b": 1, "d": 1}], {}, "'c' is in one of them only"),
    "stop": ([SIZES, [1, 1, 1]], {"stop": "never"}, "stop= takes 'first' or 'all', not 'never'"),
    "unlike shapes": ([SIZES, [1, 1, 1]], {"fields": "wide"}, "wide"),
    "random starts": (
        [SIZES, [1, 1, 1]],
        {"fields": "x", "samples": Sequences(2, of="demos/*", starts="random")},
        "source 'a' has samples= with random starts",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(paths, name):
    (sources, weights), options, message = WRONG[name]
    with pytest.raises(errors.H5StreamError, match=message):
        Mixture(paths if sources is SIZES else sources, weights, **options)


def test_a_state_of_other_shares_is_refused(paths):
    state = H5StreamLoader(Mixture(paths, [1, 1, 1], fields=FIELDS), 16).state_dict()
    with pytest.raises(errors.StateError, match="what draw= takes"):
        H5StreamLoader(Mixture(paths, [1, 1, 2], fields=FIELDS), 16).load_state_dict(state)


@pytest.mark.parametrize("rows", [1, 2_500])
@pytest.mark.parametrize("interleaved", [False, True])
def test_sources_may_be_objects_of_one_file_that_one_block_holds(tmp_path, rows, interleaved):
    every = {f"a{k}": np.full((rows + k % 2, 2), 1.0) for k in range(10)}
    every |= {f"b{k:02}": np.full((rows + k % 2, 2), 2.0) for k in range(30)}
    names = sorted(every, key=lambda name: name[1:]) if interleaved else list(every)
    path = write_datasets(tmp_path / "a.h5", **{name: every[name] for name in names})
    fields = {"x": Field(".", ragged="list"), "source": SourceNumber()}
    parts = {letter: H5Dataset(path, fields, samples=Objects(f"{letter}*")) for letter in "ab"}
    with H5StreamLoader(Mixture(parts, {"a": 0.5, "b": 0.5}), 4, seed=1) as loader:
        for _ in range(2):
            pairs = [pair for batch in loader for pair in zip(batch["x"], batch["source"].tolist(), strict=True)]
            assert sorted(source for _, source in pairs) == [0] * 10 + [1] * 10
            assert all((x == source + 1).all() for x, source in pairs)
