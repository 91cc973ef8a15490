"""A split is complete, disjoint, as large as asked, never tears a group, and is a function of seed and data alone."""

import pickle
import re
import tracemalloc
import warnings

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.making import read_with_h5py, write_datasets
from torch.utils.data import Subset

from h5stream import (
    Balanced,
    Boxes,
    Ends,
    Field,
    H5Dataset,
    H5StreamLoader,
    Ids,
    Lengths,
    Objects,
    Rows,
    Sequences,
    Table,
    Take,
    Values,
    Weighted,
)
from h5stream.dataset import leaks
from h5stream.dataset.splits import part_sizes, parts_of, split_by_groups, split_by_strata, split_plainly
from h5stream.errors import H5StreamError, LeakWarning, OptionError

counts = st.lists(st.integers(1, 40), min_size=2, max_size=5)
labels = st.lists(st.integers(0, 6), min_size=10, max_size=200)
seeds = st.integers(0, 2**63)


def is_partition(parts, total):
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(total))


@given(sizes=counts, seed=seeds, data=st.data())
def test_each_part_has_its_share_of_each_stratum_to_within_one_sample(sizes, seed, data):
    total = sum(sizes)
    strata = np.unique(data.draw(st.lists(st.integers(0, 8), min_size=total, max_size=total)), return_inverse=True)[1]
    parts = split_by_strata(sizes, strata, seed)
    assert [len(part) for part in parts] == sizes
    assert is_partition(parts, total)
    for part, size in zip(parts, sizes, strict=True):
        for stratum, count in enumerate(np.bincount(strata)):
            assert abs((strata[part] == stratum).sum() - count * size / total) <= 1


@given(values=labels, sizes=st.integers(2, 4), seed=seeds, strata=st.booleans(), data=st.data())
def test_no_group_is_torn_and_no_part_is_empty(values, sizes, seed, strata, data):
    groups = np.unique(values, return_inverse=True)[1]
    total = len(groups)
    wanted = part_sizes([1 / sizes] * sizes, total)
    by = np.array(data.draw(st.lists(st.integers(0, 3), min_size=total, max_size=total))) if strata else None
    if groups.max() + 1 < sizes:
        with pytest.raises(OptionError, match="groups are not divided"):
            split_by_groups(wanted, groups, by, seed)
        return
    parts = split_by_groups(wanted, groups, by, seed)
    assert is_partition(parts, total)
    assert min(map(len, parts)) > 0
    assert all(len({k for k, part in enumerate(parts) if (groups[part] == g).any()}) == 1 for g in range(groups.max()))
    if not strata and groups.max() + 1 > 20 * sizes:
        assert all(len(part) - size < np.bincount(groups).max() for part, size in zip(parts, wanted, strict=True))


def test_a_plain_split_takes_little_memory_and_too_much_is_to_be_made_smaller():
    tracemalloc.start()
    parts_of((0.5, 0.5), 1_000_000, seed=3, groups=None, strata=None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000
    with pytest.raises(OptionError, match=r"add up to 1\.1, and must add up to 1\. Make them smaller"):
        part_sizes((0.8, 0.3), 10)


class Halved(H5Dataset):
    def read(self, rows):
        x, y = super().read(rows)
        return x * self.half, y  # which is not there before `__init__` has ended

    def __len__(self):
        return int(super().__len__() * self.half)


def test_what_a_subclass_does_with_samples_is_not_done_to_what_a_split_goes_by(tmp_path):
    path = write_datasets(tmp_path / "a.h5", x=np.arange(12.0), y=np.arange(12) % 2)
    dataset = Halved(path, ["x", "y"], rows=slice(0, 10))
    dataset.half = 1.0
    assert [sorted(part[:][1].tolist()) for part in dataset.split(0.8, 0.2, stratify="y")] == [
        [0] * 4 + [1] * 4,
        [0, 1],
    ]
    assert len(H5Dataset([dataset, dataset])) == 20


def test_large_numbers_are_groups_and_strata_of_their_own(tmp_path):
    labels = np.array([1] * 4 + [2**63] * 6 + [2**63 + 1] * 10, "u8")
    path = write_datasets(tmp_path / "a.h5", x=np.arange(20), y=labels)
    for label in ("y", labels, labels.tolist()):
        assert [len(part) for part in H5Dataset(path, "x").split(0.5, 0.5, by=label)] == [10, 10]
        part, _ = H5Dataset(path, "y").split(0.5, 0.5, stratify=label)
        assert np.unique(part[:], return_counts=True)[1].tolist() == [2, 3, 5]


def test_the_same_seed_gives_the_same_parts_for_ever():
    strata, numbers = np.arange(10) % 3, np.arange(10)
    for parts, expected in (
        (split_plainly([5, 3, 2], 7), [[2, 4, 5, 7, 9], [3, 6, 8], [0, 1]]),
        (split_by_strata([6, 4], strata, 7), [[3, 4, 5, 6, 7, 9], [0, 1, 2, 8]]),
        (split_by_groups([6, 4], strata, numbers % 2, 7), [[0, 2, 3, 5, 6, 8, 9], [1, 4, 7]]),
        (split_by_groups([5, 5], numbers, None, 7), [[1, 3, 4, 7, 9], [0, 2, 5, 6, 8]]),
    ):
        assert [part.tolist() for part in parts] == expected


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    x = {"data": np.arange(2000, dtype="f4").reshape(500, 4), "chunks": (50, 4), "compression": "gzip"}
    held = {"label": rng.integers(0, 3, 500), "patient": np.sort(rng.integers(0, 40, 500))}
    held |= {"score": rng.random(500), "pair": rng.integers(0, 3, (500, 2))}
    held["text"] = [f"p{k}" for k in held["patient"]]
    return write_datasets(tmp_path / "a.h5", x=x, name=np.array(held["text"], "S"), **held)


@pytest.mark.parametrize("by", ["patient", "name", "text", "array", "field"])
def test_groups_are_by_a_dataset_that_is_no_field_a_field_or_an_array(path, by):
    patient = read_with_h5py(path, "patient")
    fields = ["x", "label", "patient"] if by == "field" else ["x", "label"]
    given = patient if by == "array" else "patient" if by == "field" else by
    parts = H5Dataset(path, fields).split(0.7, 0.2, 0.1, by=given, seed=5)
    owners = [set(patient[part.rows]) for part in parts]
    assert sum(map(len, owners)) == len(set(patient))
    expected = H5Dataset(path, "x").split(0.7, 0.2, 0.1, by=Field("patient"), seed=5)
    if by != "name" and by != "text":  # sorted otherwise
        assert all(np.array_equal(a.rows, b.rows) for a, b in zip(parts, expected, strict=True))


def test_a_part_works_wherever_a_dataset_does(path):
    whole = H5Dataset(path, ["x", "label"])
    train, val = whole.split(0.9, seed=1, stratify="label")
    x, label = read_with_h5py(path, "x"), read_with_h5py(path, "label")
    assert (len(train), len(val)) == (450, 50)
    again = pickle.loads(pickle.dumps(val))
    assert np.array_equal(again.rows, val.rows)
    assert np.array_equal(again[:][0].numpy(), x[val.rows])
    assert np.array_equal(train[7][0].numpy(), x[train.rows[7]])
    inner, rest = train.split(400, seed=3, by="block")
    assert set(inner.rows) | set(rest.rows) == set(train.rows)
    assert not {row // 50 for row in inner.rows} & {row // 50 for row in rest.rows}
    seen = np.concatenate([batch[0][:, 0].numpy() // 4 for batch in H5StreamLoader(val, 16, shuffle=True)])
    assert sorted(seen) == val.rows.tolist()
    assert sorted(H5StreamLoader(again, 64, shuffle=False).dataset.rows) == val.rows.tolist()
    assert np.array_equal(np.concatenate([b[1] for b in H5StreamLoader(val, 16)]), label[val.rows])


def test_several_datasets_that_are_read_as_one_are_split_as_one(path):
    both = H5Dataset([H5Dataset(path, "x"), H5Dataset(path, "x").subset(slice(0, 100))])
    train, val = both.split(0.5, by="patient", seed=2)
    patient = np.tile(read_with_h5py(path, "patient"), 2)
    assert not set(patient[train.rows]) & set(patient[val.rows])
    assert len(train) + len(val) == 600


def test_a_sample_that_a_subset_lists_twice_stays_in_one_part(path):
    listed = H5Dataset([Subset(H5Dataset(path, "x"), [7, 7, 3, 3, 9, 8, 1, 2, 7])])
    train, val = listed.split(0.6)
    assert not set(train.rows) & set(val.rows)
    assert len(train) + len(val) == 9


def test_files_and_blocks_are_kept_whole(path, tmp_path):
    other = tmp_path / "b.h5"
    other.write_bytes((tmp_path / "a.h5").read_bytes())
    train, val = H5Dataset([path, str(other)], "x").split(0.5, by="file")
    assert {tuple(set(part.rows // 500)) for part in (train, val)} == {(0,), (1,)}


@pytest.fixture
def demos(tmp_path):
    with h5py.File(tmp_path / "demos.h5", "w") as f:
        for k in range(12):
            f[f"data/{k}/x"] = np.full((20, 2), k)
            f[f"data/{k}/task"] = np.full(20, k % 2)
            f[f"data/{k}/once"] = np.zeros((4, 4))
            f[f"data/{k}"].attrs["subject"] = k // 2
        f["flat"], f["done"] = np.arange(60), np.arange(60) % 10 == 9
        f["volume"], f["lengths"], f["hits"] = np.zeros((8, 8, 8)), np.full(30, 2), np.arange(60)
    return str(tmp_path / "demos.h5")


def test_overlapping_sequences_and_boxes_leak_and_segments_do_not(demos):
    sequences = H5Dataset(demos, "x", samples=Sequences(5, of="data/*"))
    with pytest.warns(LeakWarning, match="by='segment'"):
        sequences.split(0.75)
    with pytest.warns(LeakWarning):
        H5Dataset(demos, "volume", samples=Boxes((4, 4, 4), at="grid", stride=(2, 4, 4))).split(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        H5Dataset(demos, "x", samples=Sequences(5, stride=5, of="data/*")).split(0.75)
        train, val = sequences.split(0.5, by="segment", stratify="task")
    assert (len(train), len(val)) == (6 * 16, 6 * 16)
    assert sum(int(v) % 2 for v in val[:].unique()) == 3
    assert not set(train[:].unique().tolist()) & set(val[:].unique().tolist())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subjects = sequences.split(0.5, by=Field("@subject"))
    assert not {int(v) // 2 for v in subjects[0][:].unique()} & {int(v) // 2 for v in subjects[1][:].unique()}


@pytest.mark.parametrize("by", ["block", np.arange(296) // 50, Field("thirds")])
def test_parts_that_share_rows_are_said_whatever_they_are_split_by_and_the_way_out_leaves_none(tmp_path, by):
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("x", data=np.arange(300), chunks=(50,), compression="gzip")
        f["thirds"] = np.arange(300) // 100
    dataset = H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(5))
    with pytest.warns(LeakWarning, match=re.escape("dataset.subset(slice(n + 4, None))")):
        parts = dataset.split(0.6, by=by)
    assert set(parts[0][:].unique().tolist()) & set(parts[1][:].unique().tolist())
    first, second = dataset.subset(slice(0, 200)), dataset.subset(slice(204, None))
    assert not set(first[:].unique().tolist()) & set(second[:].unique().tolist())
    apart = H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(5, stride=5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apart.split(0.6, by="block")


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A file in which each element has a number of its own, from 1 on."""
    path = tmp_path_factory.mktemp("numbered") / "a.h5"
    with h5py.File(path, "w") as f:
        f["x"], f["ids"] = 1 + np.arange(90), np.sort(np.arange(90) * 7 % 5)
        f["long"], f["label"] = 1 + np.arange(6 * 30).reshape(6, 30), 1000 + np.arange(6)
        for k, shape in enumerate([(7, 9, 8), (6, 10, 7)]):
            for axes in (1, 2, 3):
                f[f"g/{k}/v{axes}"] = 1000 * k + 1 + np.arange(np.prod(shape[:axes])).reshape(shape[:axes])
    return path


def numbers_read(part):
    """Return the elements that any sample of a part reads, without those that fill in."""
    values = part[:] if isinstance(part[:], tuple) else (part[:],)
    return {number for one in values for number in one.reshape(-1).tolist()} - {0}


def drawn_steps(draw):
    length, step, first = draw.integers(1, 6), draw.choice([1, 1, 2, 5]), draw.integers(-4, 5)
    return [range(first, first + length * step, step), [int(first), int(first) + 9]][draw.random() < 0.2]


def drawn_sequences(draw):
    """Windows of rows, or along the other axis of a matrix, of one field or two."""
    options = {
        "stride": int(draw.integers(1, 9)),
        **[{}, {"pad": 0}, {"pad": "edge"}, {"tail": "shift"}][draw.integers(4)],
    }
    if draw.random() < 0.5:
        name, options = "x", options | [{}, {"of": Ids("ids")}][draw.integers(2)]
    else:
        name, options = "long", options | {"axis": 1} | [{}, {"of": "rows"}][draw.integers(2)]
    fields = [Field(name, take=drawn_steps(draw)) for _ in range(draw.integers(1, 3))]
    return tuple(fields), Sequences(**options)


def drawn_table(draw):
    """Sequences that are listed, with places of a second field, in any order and repeated."""
    count, length, axis = draw.integers(4, 14), draw.integers(1, 5), draw.choice([0, 1])
    begins = np.sort(draw.integers(0, 25, count)) if draw.random() < 0.5 else draw.integers(0, 25, count)
    fields = ("x", Field("x", take=Take(steps=(0, 3), at="goal")))
    if axis:
        fields = ("long", Field("long", take=Take(steps=(0, 3), at="goal")))
        columns = {"row": draw.integers(0, 6, count), "start": begins, "goal": draw.integers(0, 25, count)}
        return fields[: draw.integers(1, 3)], Table(columns, length=length, axis=1)
    return fields[: draw.integers(1, 3)], Table(row=begins, goal=draw.integers(0, 80, count), length=length)


def drawn_boxes(draw):
    """Boxes of one to three axes of two volumes, on a grid or listed."""
    shape = tuple(draw.integers(1, 5, draw.integers(1, 4)).tolist())
    around = [{}, {"halo": (1,) * len(shape), "pad": 0}][draw.random() < 0.3]
    if draw.random() < 0.6:
        stride = tuple(draw.integers(1, 6, len(shape)).tolist())
        return f"v{len(shape)}", Boxes(shape, at="grid", stride=stride, of="g/*", **around)
    at = np.hstack([draw.integers(0, 2, (9, 1)), draw.integers(0, 3, (9, len(shape)))])
    return f"v{len(shape)}", Boxes(shape, at=at, of="g/*", **around)


def drawn_by(draw, total):
    """Values to split by: in stretches, by turns, drawn, or a few of one value."""
    number = np.arange(total)
    ways = [number * 4 // total, number // 3 % 2, number % draw.integers(2, 5), draw.integers(0, 4, total), number < 2]
    by = ways[draw.integers(len(ways))]
    return by if len({*by.tolist()}) > 1 else number * 2 // total


@pytest.mark.parametrize("drawn", [drawn_sequences, drawn_table, drawn_boxes])
def test_parts_are_said_to_share_rows_if_any_element_is_read_for_two(numbered, drawn, monkeypatch):
    monkeypatch.setattr(leaks, "_INTERVALS", 8)
    draw, outcomes = np.random.default_rng(5), []
    while len(outcomes) < 60:
        fields, samples = drawn(draw)
        dataset = H5Dataset(numbered, fields, samples=samples)
        if draw.random() < 0.4:
            chosen = draw.permutation(len(dataset))[: max(4, len(dataset) // 2)]
            dataset = dataset.subset(chosen if draw.random() < 0.5 else np.sort(chosen))
        by = drawn_by(draw, len(dataset))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", LeakWarning)
            parts = dataset.split(0.5, by=by)
        first, second = map(numbers_read, parts)
        outcomes.append(bool(first & second))
        assert any(one.category is LeakWarning for one in caught) == outcomes[-1], (fields, samples, by)
    assert {*outcomes} == {True, False}


@pytest.mark.parametrize(
    ("fields", "samples"),
    [
        ("x", Sequences(7, stride=2)),
        ("x", Sequences(8, stride=7, tail="shift")),
        ("x", Table(row=[0, 3, 3, 9, 10, 20, 22, 40, 41, 61, 70, 71, 80, 81], length=4)),
        (Field("x", take=range(-9, -4)), Sequences(pad="edge")),
        ((Field("x", take=[0]), Field("x", take=[9])), Sequences()),
        ("long", Sequences(4, axis=1, stride=3)),
        ("long", Sequences(4, axis=1, stride=4, tail="shift")),
        ("g/0/v1", Boxes((2,), at="grid", stride=(1,))),
    ],
    ids=str,
)
def test_the_way_out_of_one_recording_shares_no_rows_and_so_does_that_of_the_error(numbered, fields, samples):
    dataset = H5Dataset(numbered, fields, samples=samples)
    number = np.arange(len(dataset))
    with pytest.warns(LeakWarning, match="one part after the other") as caught:
        dataset.split(0.5, by=number % 2)
    with pytest.raises(OptionError, match="in the order of the file") as refused:
        dataset.split(0.5, by=np.zeros(len(dataset)))
    for message in (str(caught[0].message), str(refused.value)):
        (after,) = re.findall(r"slice\(n \+ (\d+), None\)", message)
        n = int(0.8 * len(dataset))
        parts = dataset.subset(slice(0, n)), dataset.subset(slice(n + int(after), None))
        assert not numbers_read(parts[0]) & numbers_read(parts[1])


@pytest.mark.parametrize(
    ("fields", "samples", "way_out"),
    [
        ("x", Table(row=[9, 8, 7, 8, 30, 11], length=4), "by=values"),
        ("x", Sequences(60, stride=15, tail="shift"), "by=values"),
        ("g/0/v3", Boxes((4, 4, 4), at="grid", stride=(2, 2, 2)), "by=values"),
        ("v3", Boxes((4, 4, 4), at="grid", stride=(2, 2, 2), of="g/*"), "by='segment'"),
        ("long", Sequences(7, axis=1, of="rows"), "by='segment'"),
    ],
    ids=str,
)
def test_the_way_out_of_what_is_in_no_order_or_of_several_recordings_is_by(numbered, fields, samples, way_out):
    dataset = H5Dataset(numbered, fields, samples=samples)
    with pytest.warns(LeakWarning, match=re.escape(way_out)) as caught:
        dataset.split(0.5, by=np.arange(len(dataset)) % 2)
    assert "slice" not in str(caught[0].message)
    if way_out == "by='segment'":
        first, second = map(numbers_read, dataset.split(0.5, by="segment"))
        assert not first & second
    else:
        with pytest.raises(OptionError, match=r"by= of more values$"):
            dataset.split(0.5, by="segment")


def test_a_label_of_each_row_is_not_what_sequences_along_it_share(numbered):
    dataset = H5Dataset(numbered, {"x": "long", "y": "label"}, samples=Sequences(5, stride=5, axis=1, of="rows"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(dataset.split(0.5)) == 2


def test_a_row_that_a_subset_lists_for_two_parts_is_shared(numbered):
    listed = H5Dataset([Subset(H5Dataset(numbered, "x"), [7, 7, 3, 3])])
    with pytest.warns(LeakWarning):
        listed.split(0.5, by=np.arange(4) % 2)


def test_a_kind_of_segments_is_no_value_to_split_by(numbered):
    with pytest.raises(OptionError, match=r"not Ids\(field='ids'\); write by='ids'"):
        H5Dataset(numbered, "x").split(0.5, by=Ids("ids"))
    with pytest.raises(OptionError, match="write stratify='ids'"):
        H5Dataset(numbered, "x").split(0.5, stratify=Ids("ids"))
    with pytest.raises(OptionError, match=r"write by='segment'"):
        H5Dataset(numbered, "x", samples=Sequences(2, of=Ends("ids"))).split(0.5, by=Ends("ids"))


@pytest.mark.parametrize(
    ("samples", "fields", "by", "sizes"),
    [
        (Sequences(3, of=Ends("done")), "flat", "segment", (24, 24)),
        (Sequences(4, of="data/*", starts="random"), "x", None, (6, 6)),
        (Boxes((4, 4, 4), at="grid", stride=(4, 4, 4)), "volume", None, (4, 4)),
        (Objects("data/*"), {"x": "x"}, "@subject", (6, 6)),
        (Objects("data/*"), {"x": "x", "s": "@subject"}, "s", (6, 6)),
        (Rows(of="data/*"), "x", "segment", (120, 120)),
        (None, {"h": Field("hits", lookup=Lengths("lengths"), ragged="packed"), "n": "lengths"}, None, (15, 15)),
        (None, {"f": "flat", "v": Values(np.arange(60) % 3)}, "v", None),
    ],
)
def test_every_kind_of_sample_can_be_split(demos, samples, fields, by, sizes):
    dataset = H5Dataset(demos, fields, samples=samples)
    parts = dataset.split(0.5, by=by)
    if sizes is not None:
        assert tuple(map(len, parts)) == sizes
    assert sum(map(len, parts)) == len(dataset)
    assert not set(parts[0].chosen.tolist()) & set(parts[1].chosen.tolist())
    for part in parts:
        assert sum(1 for _ in H5StreamLoader(part, 4, shuffle=True)) == -(-len(part) // 4)


@pytest.mark.parametrize("shares", [[0.5, 0.25, 0.25], np.array([0.5, 0.25, 0.25]), torch.tensor([8, 4, 4])])
def test_shares_are_a_list_an_array_or_a_tensor(tmp_path, shares):
    dataset = H5Dataset(write_datasets(tmp_path / "a.h5", x=np.arange(16)), "x")
    assert [len(part) for part in dataset.split(shares)] == [8, 4, 4]
    with pytest.raises(OptionError, match="split takes fractions"):
        dataset.split([shares, [1]])


@pytest.mark.parametrize("kind", ["alike", "ragged", "stored in other ways"])
def test_a_file_or_an_object_a_sample_is_a_file_and_a_segment_of_its_own(tmp_path, kind):
    for k in range(10):
        with h5py.File(tmp_path / f"{k}.h5", "w") as f:
            rows = np.full(4 + k * (kind == "ragged"), k)
            f.create_dataset("x", data=rows, compression="gzip" if kind.startswith("stored") and k % 2 else None)
            f.attrs["pair"] = k // 2
    field = Field("x", ragged="list" if kind == "ragged" else None)
    files = H5Dataset(str(tmp_path / "*.h5"), field, samples=Objects("files"))
    for by in ("file", "segment", "@pair"):
        parts = files.split(0.8, by=by)
        assert list(map(len, parts)) == [8, 2]
        assert not set(parts[0].rows) & set(parts[1].rows)
    if kind != "stored in other ways":
        first, second = H5Dataset([files, files]).split(0.5, by="file")
        assert {int(first[k][0]) for k in range(10)}.isdisjoint(int(second[k][0]) for k in range(10))


@pytest.mark.parametrize(
    ("shares", "given", "rule"),
    [
        ((), {}, "takes fractions"),
        ((0.8, 0.1), {}, "Name what is left"),
        (("x",), {}, "takes fractions"),
        ((1.0,), {}, "no sample"),
        ((501,), {}, "add up to 501, and must add up to 500. Make them smaller"),
        ((np.nan,), {}, "of 0 or more"),
        ((0.5,), {"by": "pair"}, "takes one value for each of 500 samples"),
        ((0.5,), {"stratify": "score"}, "a field of few values"),
        ((0.5,), {"by": "nothing"}, "nothing"),
        ((0.5,), {"seed": 1.5}, "non-negative"),
        ((0.5,), {"by": np.zeros(500)}, "groups are not divided"),
    ],
)
def test_what_cannot_be_split_so_says_why(path, shares, given, rule):
    with pytest.raises(H5StreamError, match=rule):
        H5Dataset(path, "x").split(*shares, **given)


@pytest.mark.parametrize("use", ["by", "stratify", "Balanced", "Weighted"])
@pytest.mark.parametrize("name", ["values", "pairs", "in lists", "in objects", "padded", "nested"])
def test_several_values_are_no_number_and_no_label_of_a_sample(tmp_path, use, name):
    lists = [np.arange(k % 3) for k in range(12)]
    with h5py.File(write_datasets(tmp_path / "a.h5", x=np.arange(12)), "a") as file:
        for key, some in (("values", lists), ("pairs", [[k, 1] for k in range(12)])):
            values = file.create_dataset(key, 12, h5py.vlen_dtype("i4"))
            for k, one in enumerate(some):
                values[k] = one
    given: object = {"in lists": [one.tolist() for one in lists], "in objects": np.array([*lists, 0], object)[:-1]}.get(
        name, name
    )
    data = H5Dataset(tmp_path / "a.h5", "x")
    if name in ("padded", "nested"):
        if use in ("Balanced", "Weighted"):
            given = "r"
            data = data.with_fields({"x": "x", "r": Field("values", ragged=name.removesuffix("ded"))})
        else:
            given = Field("values", ragged=name.removesuffix("ded"))
    uses = {
        "by": lambda: data.split(0.5, by=given),
        "stratify": lambda: data.split(0.5, stratify=given),
        "Balanced": lambda: H5StreamLoader(data, 3, draw=Balanced(given)),
        "Weighted": lambda: H5StreamLoader(data, 3, draw=Weighted(given)),
    }
    with pytest.raises(OptionError, match=r"one value|takes numbers|one number or text|each entry of the same shape"):
        uses[use]()
    data.close()


def test_texts_of_the_first_step_are_what_sequences_are_split_by(tmp_path):
    path = write_datasets(tmp_path / "a.h5", x=np.arange(12), who=np.array([b"a", b"b", b"c"] * 4, dtype=object))
    data = H5Dataset(path, ["x", "who"], samples=Sequences(2, stride=2))
    first = [{who[0] for _, who in part} for part in data.split(0.5, by="who")]
    data.close()
    assert first[0].isdisjoint(first[1])
    assert set.union(*first) == {b"a", b"b", b"c"}


@pytest.mark.parametrize("argument", ["by", "stratify"])
def test_values_in_memory_split_as_their_array_does(path, argument):
    dataset = H5Dataset(path, "x")
    array = np.arange(len(dataset)) % 3
    parts, others = (dataset.split(1 / 3, 2 / 3, **{argument: values}) for values in (Values(array), array))
    assert [part.rows.tolist() for part in parts] == [part.rows.tolist() for part in others]
    assert sum(len(part) for part in parts) == len(array)


@pytest.mark.parametrize(
    "samples",
    [
        Sequences(16, stride=4, of="patients/*"),
        Sequences(16, starts="random", of="patients/*"),
        Rows(of="patients/*"),
    ],
    ids=str,
)
@pytest.mark.parametrize("by", ["@subject", "@number", "number"])
def test_what_a_group_has_once_keeps_its_samples_together(tmp_path, samples, by):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(12):
            file[f"patients/{k:02}/x"] = np.full((40 + k, 3), k // 2)
            file[f"patients/{k:02}"].attrs["subject"] = f"s{k // 2}"
            file[f"patients/{k:02}"].attrs["number"] = file[f"patients/{k:02}/number"] = k // 2
    dataset = H5Dataset(tmp_path / "a.h5", "x", samples=samples)
    train, held_out = dataset.split(0.5, 0.5, by=by, seed=1)
    of = [set(np.unique(part[:])) for part in (train, held_out)]
    assert of[0]
    assert of[1]
    assert not of[0] & of[1]
    assert of[0] | of[1] == set(range(6))
    assert len(train) + len(held_out) == len(dataset)


def test_a_single_value_at_the_root_keeps_the_samples_of_its_file_together(tmp_path):
    paths = [tmp_path / f"{k}.h5" for k in range(4)]
    for k, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["x"], file["site"] = np.full(20, k), k
    for by in ("/site", "site"):
        train, held_out = H5Dataset(paths, "x", samples=Sequences(3)).split(0.5, 0.5, by=by)
        assert not {*np.unique(train[:])} & {*np.unique(held_out[:])}
