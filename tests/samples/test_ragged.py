"""Ragged fields: samples of unlike numbers of rows, or of texts, which come as lists, beside h5py."""

import h5py
import numpy as np
import pytest
import torch
from support.making import vlen, write_datasets

from h5stream import (
    Bounds,
    Field,
    H5Dataset,
    H5StreamLoader,
    Lengths,
    Objects,
    Ragged,
    Rows,
    SampleNumber,
    Sequences,
    errors,
)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (lambda: Field("hit", ragged="packed"), "lookup=Bounds"),
        (lambda: Field("hit", lookup=Bounds("bounds"), ragged="padded"), "'packed', 'nested'"),
        (lambda: Field("hit", lookup=Bounds("bounds"), ragged=Ragged(pad_value=1)), "is for .pad."),
        (lambda: Field("hit", lookup=Bounds("doubtful")), "where they begin or where they end"),
        (lambda: Field("hit", lookup=Bounds("half")), "whole numbers of rows, and has 0.5"),
        (lambda: Field("hit", lookup=Bounds("bound")), "Did you mean"),
        (
            lambda: Field("small", lookup=Bounds("bounds"), ragged=Ragged("pad", pad_value=-1)),
            "pad_value=-1 does not fit",
        ),
        (lambda: Field("hit", lookup=Lengths("time")), "there are 4 samples"),
        (lambda: Field("hit", lookup=Lengths("beyond")), "sample 3 is said to have rows"),
        (lambda: Field("hit", lookup=Bounds("backwards")), "go backwards or beyond"),
        (lambda: Field("text", lookup=Bounds("bounds")), "ragged rows are of numbers"),
        (lambda: Field("pair", lookup=Bounds("bounds")), "'pair:a'"),
        (lambda: Field("vary", ragged=Ragged("pad", pad_value=0.5)), "does not fit"),
        (lambda: Field("texts", ragged="packed"), "numbers of variable length"),
        (lambda: Field("label", ragged="packed"), "numbers of variable length"),
        (lambda: Field("pairs", ragged="packed"), "'a'"),
        (lambda: Field("rows", ragged="packed"), "one value a row"),
    ],
)
def test_what_is_said_wrongly_is_told(tmp_path, field, says):
    held = {"hit": np.zeros((6, 3)), "time": range(6), "label": range(4), "bounds": [0, 2, 2, 5, 6]}
    held |= {"beyond": [2, 0, 3, 9], "backwards": [0, 3, 2, 5, 6], "half": [0.5] * 4, "doubtful": [0, 2, 5, 6]}
    held |= {"small": np.zeros(6, "u1"), "text": [*"abcdef"], "pair": np.zeros(6, [("a", "f4"), ("b", "i4")])}
    held |= {"vary": vlen("i4", [[1], [], [2, 3], []]), "texts": [*"abcd"]}
    for name, shape, kind in (("pairs", (4,), [("a", "i2"), ("b", "f4")]), ("rows", (4, 2), "f4")):
        held[name] = {"shape": shape, "dtype": h5py.vlen_dtype(np.dtype(kind))}
    write_datasets(tmp_path / "a.h5", **held)
    with pytest.raises(errors.H5StreamError, match=says):
        H5Dataset(tmp_path / "a.h5", [field(), "label"])


def test_rows_of_unlike_form_are_named(tmp_path):
    write_datasets(tmp_path / "a.h5", **{f"s{k}": np.zeros((k + 1, 4 if k == 3 else 3)) for k in range(5)})
    with pytest.raises(errors.FieldLengthError, match="s3"):
        H5Dataset(tmp_path / "a.h5", {"x": Field(".", ragged="packed")}, samples=Objects("*"))


@pytest.mark.parametrize("made", ["value", "empty", "compound"])
def test_objects_that_have_no_rows_of_numbers_are_told(tmp_path, made):
    things = {"value": 3.0, "empty": h5py.Empty("f4"), "compound": np.zeros(3, [("a", "f4"), ("b", "i4")])}
    write_datasets(tmp_path / "a.h5", v__0=np.zeros(3, "f4"), v__1=things[made])
    with pytest.raises(errors.H5StreamError, match=r"single value|is empty|compound|must agree"):
        H5Dataset(tmp_path / "a.h5", {"x": Field(".", ragged="list")}, samples=Objects("v/*"))


def test_one_long_sample_that_makes_batches_too_large_is_told_the_ways_out(tmp_path):
    write_datasets(tmp_path / "a.h5", **{f"t{k}": np.zeros(4 if k else 400_000) for k in range(40)})
    with pytest.raises(errors.BudgetError, match=r"Ragged.*Crop.*draw=Sized"):
        H5StreamLoader(
            tmp_path / "a.h5", 32, samples=Objects("t*"), fields=Field(".", ragged="pad"), memory_budget=1 << 24
        )


# --- texts, and values of variable length ------------------------------------------------------------------------


COUNTS = np.random.default_rng(0).integers(0, 5, 60)
TOTAL = int(COUNTS.sum())
KINDS = ("texts", "numbers")


def stored(kind, count):
    """Make so many rows of a kind."""
    if kind == "texts":
        return np.array([f"wörd {k} " * (k % 7) for k in range(count)], dtype=h5py.string_dtype())
    found = np.empty(count, dtype=h5py.vlen_dtype("i4"))
    for k in range(count):
        found[k] = np.arange(k % 6, dtype="i4")
    return found


def plain(values):
    """Give tensors and arrays as lists, all else as it is."""
    return [one.tolist() if isinstance(one, torch.Tensor | np.ndarray) else one for one in values]


@pytest.fixture(
    params=[(kind, options) for kind in KINDS for options in ({}, {"chunks": (9,), "compression": "gzip"})], ids=str
)
def data(request, tmp_path):
    kind, options = request.param
    rows = stored(kind, TOTAL)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("text", data=rows, dtype=rows.dtype, **options)
        file["counts"], file["score"] = COUNTS, np.arange(TOTAL)
        for k in range(8):
            few = {**options, "chunks": (2,), "maxshape": (None,)} if options else {}
            file.create_dataset(f"images/{k}/captions", data=rows[: k + 1], dtype=rows.dtype, **few)
        read = file["text"][()]
    return tmp_path / "a.h5", read


def test_captions_of_each_image_come_as_lists(data):
    path, rows = data
    names = [f"{k}" for k in range(8)][::-1]
    fields = {"captions": Field("images/{}/captions", lookup=names, ragged="list"), "n": SampleNumber()}
    with H5StreamLoader(path, 3, shuffle=True, fields=fields) as loader:
        found = {n: one for batch in loader for n, one in zip(batch["n"].tolist(), batch["captions"], strict=True)}
    assert {n: plain(one) for n, one in found.items()} == {n: plain(rows[: 8 - n]) for n in range(8)}


@pytest.mark.parametrize("form", ["packed", "pad", "nested"])
def test_texts_come_in_no_other_form(data, form):
    with pytest.raises(errors.UnsupportedFieldError, match="ragged='list' of texts"):
        H5Dataset(data[0], Field("text", lookup=Lengths("counts"), ragged=form))
    with pytest.raises(errors.OptionError, match="normalize= is for"):
        H5Dataset(data[0], Field("text", lookup=Lengths("counts"), ragged="list", normalize={"mean": 1}))


@pytest.mark.parametrize("workers", [0, 2])
def test_texts_that_h5py_reads_are_not_kept_as_bytes(tmp_path, workers):
    rows = stored("texts", TOTAL)
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind, space = h5py.h5t.py_create(rows.dtype, logical=True), h5py.h5s.create_simple(rows.shape)
        h5py.h5d.create(file.id, b"text", kind, space, compact)
        file["text"][...], file["counts"] = rows, COUNTS
    fields = {"text": Field("text", lookup=Lengths("counts"), ragged="list"), "n": SampleNumber()}
    edges = np.append(0, np.cumsum(COUNTS))
    with H5StreamLoader(tmp_path / "a.h5", 7, fields=fields, shuffle=True, num_workers=workers) as loader:
        for batch in [*loader, *loader]:
            for text, n in zip(batch["text"], batch["n"].tolist(), strict=True):
                assert [*text] == [one.encode() for one in rows[edges[n] : edges[n + 1]]]


def test_texts_of_rows_without_any_come_as_lists(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, lengths in enumerate(([3, 1, 0], [2, 2])):
            file[f"g/{k}/none"], file[f"g/{k}/one"] = np.zeros((4, 0), "S5"), np.zeros((4, 1), "S5")
            file[f"g/{k}/at"] = lengths
    fields = {name: Field(name, ragged="list", lookup=Lengths("at")) for name in ("none", "one")}
    dataset = H5Dataset(tmp_path / "a.h5", fields, samples=Sequences(1, of="g/*"))
    assert [len(sample["one"]) for sample in dataset] == [3, 1, 0, 2, 2]
    for sample in dataset:
        assert sample["none"] == [[] for _ in sample["one"]]


@pytest.mark.parametrize("form", ["packed", "list", "pad"])
def test_the_last_object_may_have_no_rows(tmp_path, form):
    path = write_datasets(tmp_path / "a.h5", **{"o/0": np.arange(3), "o/1": np.zeros(0, "i8")})
    dataset = H5Dataset(path, {"x": Field(".", ragged=form), "k": SampleNumber()}, samples=Objects("o/*"))
    with H5StreamLoader(dataset, 2, shuffle=True) as loader:
        (batch,) = loader
    assert sorted(batch["k"].tolist()) == [0, 1]


COUNTS = np.array([6, 4, 0, 2, 5])
STARTS, ROWS = np.cumsum(COUNTS) - COUNTS, int(COUNTS.sum())
READINGS = {
    "bounds": (np.append(0, np.cumsum(COUNTS)), {}),
    "starts": (STARTS, {}),
    "ends": (np.cumsum(COUNTS), {}),
    "bounds from 1": (np.append(1, np.cumsum(COUNTS) + 1), {"base": 1}),
    "starts from 1": (STARTS + 1, {"base": 1}),
    "starts, in words": (STARTS, {"holds": "starts"}),
    "starts from 1, in words": (STARTS + 1, {"holds": "starts", "base": 1}),
    "ends, in words": (np.cumsum(COUNTS), {"holds": "ends"}),
    "bounds, in words": (np.append(0, np.cumsum(COUNTS)), {"holds": "bounds"}),
}


def split(values, counts):
    return [some.tolist() for some in np.split(values, np.cumsum(counts)[:-1])]


@pytest.mark.parametrize("kind", ["u1", "i8", "f8", "memory"])
@pytest.mark.parametrize("reading", READINGS)
def test_bounds_are_read_as_what_they_hold(tmp_path, reading, kind):
    (numbers, options), wanted = READINGS[reading], split(np.arange(ROWS), COUNTS)
    held = {"x": np.arange(ROWS), "label": np.arange(5), "at": numbers.astype("i8" if kind == "memory" else kind)}
    path = write_datasets(tmp_path / "a.h5", **held)
    field = Field("x", lookup=Bounds(numbers if kind == "memory" else "at", **options))
    dataset = H5Dataset(path, {"x": field, "label": "label"})
    assert [dataset[k]["x"].tolist() for k in range(len(dataset))] == wanted
    with H5StreamLoader(dataset, 2, drop_last=False) as loader:
        batches = [batch["x"] for batch in loader]
    assert [one.tolist() for values, at in batches for one in np.split(values, at[1:-1])] == wanted
    alone = {"x": field, "n": SampleNumber()}
    if options.get("holds") or reading.startswith("bounds"):
        dataset = H5Dataset(path, alone)
        assert [dataset[k]["x"].tolist() for k in range(len(dataset))] == wanted
    else:
        with pytest.raises(errors.OptionError, match=r"holds='bounds'.*holds='starts'.*holds='ends'"):
            H5Dataset(path, alone)


@pytest.mark.parametrize("of", ["groups", "files", "joined"])
def test_bounds_of_groups_and_files_are_read_as_what_they_hold(tmp_path, of):
    counts, held = [COUNTS, np.array([3]), np.array([0, 4])], {}
    for k, some in enumerate(counts):
        one = {"x": 100 * k + np.arange(some.sum()), "label": np.arange(len(some))}
        held[k] = one | {"at": (np.cumsum(some) - some + 1).astype("u8")}
        write_datasets(tmp_path / f"{k}.h5", **held[k])
    write_datasets(tmp_path / "g.h5", **{f"g{k}__{n}": v for k, one in held.items() for n, v in one.items()})
    paths = tmp_path / "g.h5" if of == "groups" else [tmp_path / f"{k}.h5" for k in range(3)]
    samples = Rows(of="g*") if of == "groups" else None
    wanted = [one for k, some in enumerate(counts) for one in split(100 * k + np.arange(some.sum()), some)]
    plain = "at"
    if of == "joined":
        every = np.concatenate(counts)
        plain = np.cumsum(every) - every + 1
    for options in ({"base": 1}, {"holds": "starts", "base": 1}):
        fields = {"x": Field("x", lookup=Bounds(plain, **options)), "label": "label"}
        if of == "joined" or options.get("holds"):
            dataset = H5Dataset(paths, fields, samples=samples)
            assert [dataset[k]["x"].tolist() for k in range(len(dataset))] == wanted
    with pytest.raises(errors.OptionError, match=r"holds='starts', base=1"):
        H5Dataset(paths, {"x": Field("x", lookup=Bounds(plain)), "label": "label"}, samples=samples)


@pytest.mark.parametrize(
    ("numbers", "rows", "says"),
    [
        ([1, 7, 11, 15], 17, "neither where they begin"),
        ([3, 7, 11, 15], 17, "neither where they begin"),
        ([1, 7, 11, 17], 17, "where they begin or where they end"),
        ([0, 7, 11, 17], 17, "where they begin or where they end"),
        ([1, 7, 11, 18], 17, "neither where they begin"),
        ([0, 7, 5, 9], 17, "go backwards"),
        ([1, 7, 11, 15, 18], 17, "if they count from 1, write Bounds.*base=1"),
        ([1], 17, "neither where they begin"),
        ([1, 2, 3], 17, "4 samples need 5"),
    ],
    ids=str,
)
def test_bounds_that_may_be_read_in_two_ways_are_refused(tmp_path, numbers, rows, says):
    labels = 1 if len(numbers) == 1 else 4
    path = write_datasets(tmp_path / "a.h5", x=np.arange(rows), label=np.arange(labels), at=np.array(numbers, "u8"))
    for at in ("at", np.array(numbers)):
        with pytest.raises(errors.OptionError, match=says):
            H5Dataset(path, {"x": Field("x", lookup=Bounds(at)), "label": "label"})


@pytest.mark.parametrize(("numbers", "rows"), [([0], 0), ([1], 1), ([5], 5), ([0], 5), ([0, 0, 0], 0)])
def test_bounds_whose_readings_agree_are_taken(tmp_path, numbers, rows):
    held = {"x": np.arange(rows), "label": np.arange(len(numbers)), "at": np.array(numbers)}
    dataset = H5Dataset(
        write_datasets(tmp_path / "a.h5", **held), {"x": Field("x", lookup=Bounds("at")), "label": "label"}
    )
    assert [one for k in range(len(dataset)) for one in dataset[k]["x"].tolist()] == [*range(rows)]


@pytest.mark.parametrize("options", [{"holds": "begin"}, {"base": 2}, {"base": True}])
def test_other_ways_to_read_bounds_are_refused(options):
    with pytest.raises(errors.OptionError, match=r"Bounds: (holds|base)="):
        Bounds("at", **options)


def test_arrays_of_nested_rows_come_in_a_list(tmp_path):
    path = write_datasets(tmp_path / "a.h5", hits=np.arange(9), off=[0, 2, 5, 9])
    dataset = H5Dataset(path, {"h": Field("hits", lookup=Bounds("off"), ragged="nested")}, numpy=True)
    expected = [[0, 1], [2, 3, 4], [5, 6, 7, 8]]
    for index in (slice(0, 3), [0, 1, 2], ...):
        rows = dataset[index]["h"]
        assert [type(row) for row in rows] == [np.ndarray] * 3
        assert [row.tolist() for row in rows] == expected
    assert [one["h"].tolist() for one in dataset.__getitems__([2, 0])] == [expected[2], expected[0]]
    assert dataset[1]["h"].tolist() == expected[1]
