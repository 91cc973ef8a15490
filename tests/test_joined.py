"""Several datasets read as one, groups of a file among them, and the order of a `Subset`: DataLoader is the oracle."""

import itertools
import pickle

import h5py
import numpy as np
import pytest
import torch
from inner import stream_all
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from h5stream import ChunkBatchSampler, Field, H5Dataset, H5StreamLoader, collate
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
    return [
        H5Dataset(folder / name, [f"g{k}/x", f"g{k}/y"], **options)
        for name, lengths in LENGTHS.items()
        for k in range(len(lengths))
        if lengths[k]
    ]


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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kept", [True, False])
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
        (
            {"fields": [Field("g1/x", dtype=torch.float16), "g1/y"]},
            FieldLengthError,
            r"cast to torch.float16, but 'g0/x'",
        ),
        ({"fields": ["g1/x", "g1/y"], "allow_external": True}, OptionError, "must agree in allow_external="),
    ],
)
def test_parts_that_differ_are_named(folder, other, kind, message):
    with pytest.raises(kind, match=message):
        H5StreamLoader([groups(folder)[0], H5Dataset(folder / "a.h5", **other)])


@pytest.mark.parametrize("wrap", [list, ConcatDataset])
def test_what_cannot_be_seen_into_is_refused_inside_too(folder, wrap):
    with pytest.raises(OptionError, match="cannot see into a TensorDataset"):
        H5StreamLoader(wrap([groups(folder)[0], TensorDataset(torch.arange(3))]))


def test_paths_among_datasets_are_refused(folder):
    with pytest.raises(OptionError, match=r"a\.h5'\) stands among datasets; make it an H5Dataset"):
        H5StreamLoader([groups(folder)[0], folder / "a.h5"])
