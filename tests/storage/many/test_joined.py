"""Several datasets read as one, groups of a file among them, and the order of a `Subset`: DataLoader is the oracle."""

import itertools
import pickle

import h5py
import numpy as np
import pytest
import torch
from support.amounts import crossed
from support.inner import stream_all
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from h5stream import (
    Boxes,
    ChunkBatchSampler,
    Field,
    H5Dataset,
    H5StreamLoader,
    Padding,
    Rows,
    SampleNumber,
    Sequences,
    Table,
    Take,
    collate,
)
from h5stream.errors import FieldLengthError, OptionError

LENGTHS = {"a.h5": [13, 5], "b.h5": [20, 0, 7]}
STORAGE = [{"compression": "gzip"}, {}, {"scaleoffset": 0}, {"compression": "lzf", "shuffle": True}, {"chunks": (3,)}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make two files of groups; each row says which it is, and no group is stored like another."""
    folder, first = tmp_path_factory.mktemp("joined"), 0
    for name, lengths in LENGTHS.items():
        with h5py.File(folder / name, "w") as file:
            for k, rows in enumerate(lengths):
                kind = dict(STORAGE[(first + k) % len(STORAGE)])
                numbers = np.arange(first, first + rows)
                rest = {"chunks": (4, 2), "maxshape": (None, 2)} if kind else {}
                kind.pop("chunks", None)
                file.create_dataset(f"g{k}/x", data=np.stack([numbers, numbers + 0.5], 1).astype("f4"), **rest, **(
                    {} if "scaleoffset" in kind else kind
                ))  # fmt: skip
                file.create_dataset(f"g{k}/y", data=numbers, chunks=(3,), maxshape=(None,), **kind)
                first += rows
    return folder


def groups(folder, **options):
    held = [(name, k) for name, lengths in LENGTHS.items() for k, rows in enumerate(lengths) if rows]
    return [H5Dataset(folder / name, [f"g{k}/x", f"g{k}/y"], **options) for name, k in held]


TOTAL = sum(map(sum, LENGTHS.values()))


def labels_of(loader):
    """Give the labels batch by batch; the rows must be theirs."""
    seen = []
    for x, y in loader:
        assert torch.equal(x[:, 0], y.float())
        assert torch.equal(x[:, 1], y + 0.5)
        seen.append(y.tolist())
    return seen


def all_labels(loader):
    return [label for batch in labels_of(loader) for label in batch]


FORMS = {
    "list": list,
    "tuple": tuple,
    "concat": ConcatDataset,
    "sum": lambda parts: parts[0] + parts[1] + parts[2] + parts[3],
    "nested": lambda parts: ConcatDataset([ConcatDataset(parts[:2]), parts[2], parts[3]]),
    "H5Dataset": H5Dataset,
    "of Subsets": lambda parts: [Subset(part, range(len(part))) for part in parts],
}


@pytest.mark.parametrize(("form", "kept"), crossed(tuple(FORMS), (True, False)))
def test_datasets_are_read_one_behind_the_other(folder, form, kept, monkeypatch):
    if not kept:
        stream_all(monkeypatch)
    source = FORMS[form](groups(folder))
    assert all_labels(H5StreamLoader(source, 8)) == list(range(TOTAL))
    shuffled = H5StreamLoader(source, 8, shuffle=True)
    first, second = all_labels(shuffled), all_labels(shuffled)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(TOTAL))


def test_a_joined_dataset_is_a_dataset(folder):
    joined = H5Dataset(groups(folder))
    assert len(joined) == TOTAL
    assert joined[:][1].tolist() == list(range(TOTAL))
    assert [int(y) for _, y in joined] == list(range(TOTAL))
    assert joined[[44, 0, 18]][1].tolist() == [44, 0, 18]
    assert len(joined.layout.files) == 2
    assert pickle.loads(pickle.dumps(joined))[-1][1].item() == TOTAL - 1
    assert joined.subset([20, 3])[:][1].tolist() == [3, 20]
    sampler = ChunkBatchSampler(joined, 7, seed=3)
    stock = DataLoader(joined, batch_sampler=sampler, collate_fn=collate)
    assert sorted(all_labels(stock)) == list(range(TOTAL))
    assert joined.blocks.count > len(joined.layout.leading)


def test_what_a_loader_does_it_does_over_joined_datasets(folder, tmp_path):

    def made(**options):
        return H5StreamLoader(groups(folder), 4, shuffle=True, seed=5, **options)

    whole = labels_of(made(window=12))
    begun = made(window=12)
    first = [next(it) for it in [iter(begun)] for _ in range(3)]
    later = made(window=12)
    later.load_state_dict(begun.state_dict())
    assert [y.tolist() for _, y in first] + labels_of(later) == whole
    ranks = [all_labels(made(rank=rank, world_size=3)) for rank in range(3)]
    assert sorted(itertools.chain(*ranks)) == list(range(TOTAL))
    assert labels_of(made(window=12, stage_to=tmp_path)) == whole
    assert labels_of(made(window=12, num_workers=0)) == whole
    joined = H5Dataset(groups(folder))
    for options in ({"sampler": [40, 2, 2, 17], "batch_size": 3}, {"batch_sampler": [[9], [44, 0]]}):
        assert labels_of(H5StreamLoader(groups(folder), **options)) == labels_of(DataLoader(joined, **options))


@pytest.mark.parametrize(
    ("other", "kind", "message"),
    [
        ({"fields": ["g1/x"]}, OptionError, r"number 1 .*gives a tuple of 'g1/x', but number 0 .* 'g0/x', 'g0/y'"),
        ({"fields": "g1/x"}, OptionError, r"number 1 \('.*a\.h5'\) gives only 'g1/x'"),
        ({"fields": {"x": "g1/x", "y": "g1/y"}}, OptionError, "gives a dict of 'x', 'y'"),
        ({"fields": ["g1/y", "g1/x"]}, FieldLengthError, r"field 'g1/y' has rows of int64 \(\), but 'g0/x' .* float32"),
        ({"fields": [Field("g1/x", columns=[0]), "g1/y"]}, FieldLengthError, r"\(1,\), but .* \(2,\)"),
        ({"fields": [Field("g1/x", dtype=torch.float16), "g1/y"]}, FieldLengthError, r"cast to torch.float16, but 'g"),
        ({"fields": ["g1/x", "g1/y"], "allow_external": True}, OptionError, "must agree in allow_external="),
    ],
)
def test_parts_that_differ_are_named(folder, other, kind, message):
    with pytest.raises(kind, match=message):
        H5StreamLoader([groups(folder)[0], H5Dataset(folder / "a.h5", **other)])


def test_paths_and_what_cannot_be_seen_into_are_refused_among_datasets(folder):
    for wrap in (list, ConcatDataset):
        with pytest.raises(OptionError, match="cannot see into a TensorDataset"):
            H5StreamLoader(wrap([groups(folder)[0], TensorDataset(torch.arange(3))]))
    with pytest.raises(OptionError, match=r"a\.h5'\) stands among datasets; make it an H5Dataset"):
        H5StreamLoader([groups(folder)[0], folder / "a.h5"])


PADDED = Sequences(2, pad="edge")
SAMPLES = {
    "one of each recording": (["w"], lambda k: Sequences(4, axis=1, starts="random")),
    "boxes that are listed": (["v"], lambda k: Boxes((2, 2), at=[[k, 0], [0, 1]])),
    "a table": (["x", Field("x", take=Take([0, 1], at="then"))], lambda k: Table(row=[k, 2], then=[0, k], length=2)),
    "a table along another axis": (["w"], lambda k: Table(axis=1, row=[0, 1], start=[k, 2], length=3)),
}


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Make three files of arrays that differ in length along one axis or another."""
    folder, rng = tmp_path_factory.mktemp("volumes"), np.random.default_rng(7)
    for k in range(3):
        with h5py.File(folder / f"{k}.h5", "w") as file:
            kind = {"chunks": True, "compression": "gzip"} if k else {}
            for name, shape in {"w": (2, 9 + k), "v": (3, 4 + k, 5), "x": (6 + k, 2)}.items():
                file.create_dataset(name, data=rng.integers(0, 99, shape), **kind)
    return [folder / f"{k}.h5" for k in range(3)]


@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_of_any_kind_are_read_one_behind_the_other(volumes, kind):
    fields, samples = SAMPLES[kind]
    parts = [H5Dataset(path, fields, samples=samples(k)) for k, path in enumerate(volumes)]
    expected = [str(sample) for part in parts for sample in part]
    joined = pickle.loads(pickle.dumps(H5Dataset(parts)))
    is_drawn = joined.layout.draws is not None
    assert len(joined) == len(expected)
    assert is_drawn or [str(sample) for sample in joined] == expected
    fields = [*fields, SampleNumber()]
    parts = [H5Dataset(path, fields, samples=samples(k)) for k, path in enumerate(volumes)]
    with H5StreamLoader(parts, 4, shuffle=True) as loader:
        seen = [sample for batch in loader for sample in zip(*batch, strict=True)]
    if is_drawn:
        recordings = np.searchsorted([6, 13, 21], [int(number) for *_, number in seen], "right")
        assert sorted(recordings.tolist()) == [0, 1, 2]
        return
    assert {int(number): str(tuple(sample)) for *sample, number in seen} == dict(enumerate(expected))


@pytest.mark.parametrize(
    ("first", "other", "says"),
    [
        (("w", Rows(axis=1)), ("w", None), "rows of"),
        (("x", Sequences(2)), (Field("x", take=[1, 5]), Sequences(2)), r"other rows of a sample than in .*\(take=\)"),
        (("v", Boxes((2, 2), at="grid")), ("v", Boxes((2, 2), at="grid", stride=(1, 1))), "with one stride="),
        (("x", Table(row=[0])), ("x", Table(row=[0], then=[0])), None),
        (("x", PADDED), ("x", Sequences(2, pad="zeros")), "padded alike"),
        ((["x", Padding([0, 1])], PADDED), (["x", Padding([0, 2])], PADDED), "the same kinds of fields"),
        (("v", Boxes((2, 2), per_epoch=2)), ("v", Boxes((2, 2), per_epoch=2)), "per_epoch= give one H5Dataset all"),
        (("w", Rows(axis=1)), ("x", Rows(axis=-1, of="rows")), "rows of"),
    ],
)
def test_samples_of_unlike_kinds_are_told(volumes, first, other, says):
    parts = [H5Dataset(volumes[k], fields, samples=samples) for k, (fields, samples) in enumerate((first, other))]
    if says is None:
        assert len(H5Dataset(parts)) == 2
        return
    with pytest.raises((OptionError, FieldLengthError), match=says):
        H5Dataset(parts)


def test_named_arrays_of_joined_datasets_have_room_for_the_largest_of_all(tmp_path):
    arrays = {"a": np.ones((1, 2, 3), bool), "b": np.arange(12).reshape(3, 1, 4) % 3 == 1}
    with h5py.File(tmp_path / "named.h5", "w") as file:
        file.create_dataset("o/a", data=arrays["a"], chunks=(2, 3, 5), maxshape=(None,) * 3)
        file.create_dataset("o/b", data=arrays["b"], chunks=(3, 1, 4))
    parts = []
    for path, names in {"0.h5": ["a", "a", "b"], "1.h5": ["b"]}.items():
        with h5py.File(tmp_path / path, "w") as file:
            file["n"] = np.array(names, "S9")
        field = Field("o/{}", file=str(tmp_path / "named.h5"), ragged="arrays", lookup="n")
        parts.append(H5Dataset(tmp_path / path, {"o": field}))
    for numbers in ([3], [0, 1, 2, 3], [3, 3, 1]):
        for number, array in zip(numbers, H5Dataset(parts)[numbers]["o"], strict=True):
            assert np.array_equal(array.numpy(), arrays["aabb"[number]])
