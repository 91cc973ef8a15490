"""Fields that are looked up, by rows or by names, fields of other files, and members: what is told of them."""

from functools import partial
from itertools import pairwise

import h5py
import numpy as np
import pytest
import torch
from support.making import make_file, write_datasets

from h5stream import (
    Between,
    Bounds,
    Crop,
    Field,
    H5Dataset,
    H5StreamLoader,
    Lengths,
    Ragged,
    Rows,
    SampleNumber,
    Sequences,
    Table,
)
from h5stream.errors import FieldLengthError, FieldNotFoundError, H5StreamError, OptionError, UnsupportedFieldError
from h5stream.results import Packed
from h5stream.structure import sample_of

ROWS, FEATURES = 300, 50


@pytest.fixture
def data(tmp_path):
    """Questions that name images, in one file; what is known of the images in another; answers in a third."""
    rng = np.random.default_rng(0)
    features, named = rng.random((FEATURES, 30), "f4"), rng.integers(0, FEATURES, ROWS)
    write_datasets(tmp_path / "questions.h5", question=np.arange(ROWS), image=named)
    make_file(tmp_path / "features.h5", "features", None, data=features, chunks=(4, 30), compression="gzip")
    write_datasets(tmp_path / "answers.h5", answer=np.arange(ROWS) * 3)
    return tmp_path, features, named


def fields_of(folder, rows):
    features = Field("features", file=folder / "features.h5", lookup=rows)
    return {"question": "question", "features": features, "answer": Field("answer", file=folder / "answers.h5")}


def test_chunks_that_are_looked_up_make_the_blocks(data):
    folder, _, named = data
    blocks = H5Dataset(folder / "questions.h5", fields_of(folder, "image")).blocks
    rows = blocks.rows_at(np.arange(ROWS))
    chunks = [set(named[rows[low:high]] // 4) for low, high in pairwise(blocks.edges)]
    assert all(len(some) == 1 for some in chunks)
    assert len(chunks) == len(set(named // 4))
    assert sorted(rows.tolist()) == list(range(ROWS))


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"lookup": np.full(ROWS, FEATURES)}, OptionError, r"\.h5': .*names row 50 at 0.*0 to 49"),
        ({"lookup": np.full(ROWS, -1)}, OptionError, "Negative numbers do not count"),
        ({"lookup": [1, 2]}, OptionError, "2 numbers, and needs one for each of 300"),
        ({"lookup": "imag"}, FieldNotFoundError, "Did you mean 'image'"),
        ({"lookup": [0.5] * ROWS}, OptionError, "row number for each sample"),
        ({}, FieldLengthError, "must agree in rows"),
        ({"file": ["features.h5", "features.h5"]}, OptionError, "2 files stand beside 1"),
        ({"lookup": "image", "take": [0]}, OptionError, "without take="),
    ],
    ids=str,
)
def test_bad_input_is_told_with_the_way_out(data, monkeypatch, options, kind, says):
    monkeypatch.chdir(data[0])
    with pytest.raises(kind, match=says):
        H5Dataset("questions.h5", ["question", Field("features", **{"file": "features.h5"} | options)])


@pytest.mark.parametrize("rows", [([0, 1, 4], [0, -1, 2]), ([0, 5, 4], [0, 1, 2]), ([0, 1, 2], [5, 0, 0])])
def test_rows_are_those_of_the_same_file_or_group(tmp_path, rows):
    groups = {}
    for k, some in enumerate(rows):
        of = {"x": np.arange(3), "table": np.arange(5) + 100 * k, "rows": np.array(some)}
        write_datasets(tmp_path / f"{k}.h5", **of)
        groups |= {f"g__{k}__{name}": values for name, values in of.items()}
    write_datasets(tmp_path / "groups.h5", **groups)
    fields, one = ["x", Field("table", lookup="rows")], 0 if 5 in rows[0] else 1
    sources = [str(tmp_path / "0.h5"), str(tmp_path / "1.h5")], [tmp_path / f"{one}.h5"]
    for paths, of in (*((paths, None) for paths in sources), (tmp_path / "groups.h5", Rows(of="g/*"))):
        with pytest.raises(OptionError, match=r"names row (-1|5) at [01], and there are rows 0 to 4"):
            H5Dataset(paths, fields, samples=of)


MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("said", "values"),
    [
        (Lengths, ([3, MOST, 1],)),
        (Lengths, ([3, MOST - 2, MOST, 2],)),
        (Bounds, ([0, 3, 5, -(2**63)],)),
        (Bounds, ([0.0, 3.0, 5.0, np.inf],)),
        (Between, ([0, 1, 1], [1, 2, -(2**63)])),
        (Between, ([0, np.inf, 1], [1, 2, 2])),
        (Between, (np.array([0, 2**64 - 1, 1], "u8"), [1, 2, 2])),
        (partial(Between, inclusive=True), ([0, 1, 1], [1, 2, MOST])),
    ],
)
def test_stretches_whose_sums_wrap_around_are_refused(tmp_path, said, values):
    names = [f"said{k}" for k in range(len(values))]
    path = write_datasets(tmp_path / "a.h5", x=np.arange(10), **dict(zip(names, map(np.array, values), strict=True)))
    for of in (names, [*map(np.array, values)]):
        with pytest.raises(OptionError, match=r"is said to have rows|whole numbers of rows"):
            H5Dataset(path, Field("x", lookup=said(*of), ragged="packed"))


def test_lengths_of_segments_whose_sum_wraps_around_are_refused(tmp_path):
    path = write_datasets(tmp_path / "a.h5", x=np.arange(10), said=np.array([3, MOST, MOST, 9]))
    with pytest.raises(OptionError, match=f"of 10 rows at most; one is {MOST}"):
        H5Dataset(path, "x", samples=Sequences(2, of=Lengths("said")))


def test_a_file_without_any_names_is_refused_where_nothing_says_what_the_field_holds(tmp_path):
    write_datasets(tmp_path / "a.h5", o__p0=np.arange(3), key=np.array([], dtype="S5"))
    with pytest.raises(FieldLengthError, match="names no object, so that nothing says"):
        H5Dataset(tmp_path / "a.h5", {"x": Field("o/{}", lookup="key")})


def test_names_over_several_files_are_looked_up_in_those_of_the_field(tmp_path):
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for k, path in enumerate(paths):
        write_datasets(path, **{f"p{k}": np.full(3, k)})
    for names, kind in ((["p0"], OptionError), (["p0", "p1"], FieldNotFoundError)):
        with pytest.raises(kind, match=r"in the first file of the source: .*Field\(..., file="):
            H5Dataset(paths, {"x": Field("{}", lookup=names)})
    told = H5Dataset(paths[0], {"x": Field("{}", lookup=["p1", "p0"], file=paths)})
    assert told[:]["x"].tolist() == [[1, 1, 1], [0, 0, 0]]


def test_objects_that_cannot_be_looked_up_are_named(tmp_path):
    write_datasets(tmp_path / "a.h5", p0=np.zeros((2, 3)), p1=np.zeros((3, 3)), one=1.5)
    for options, kind, words in [
        ({"lookup": ["p0", "p9"], "ragged": "list"}, FieldNotFoundError, "no 'p9'.*1 of 2 names"),
        ({"lookup": ["p0", "p1"]}, FieldLengthError, "different lengths, 2 to 3 rows; ragged="),
        ({"lookup": [3]}, OptionError, "a name for each sample"),
        ({"lookup": ["one"]}, FieldLengthError, r"'one' is a single value, .* Values\("),
        ({"lookup": ["p0"], "decode": "jpeg"}, UnsupportedFieldError, "decode= takes objects that are bytes"),
    ]:
        with pytest.raises(kind, match=words):
            H5Dataset(tmp_path / "a.h5", {"x": Field("{}", **options)})
    with pytest.raises(OptionError, match=r"need \{\} in"):
        Field("p", lookup=["p0"])
    with pytest.raises(OptionError, match=r"3 names, and needs one for each of 2"):
        H5Dataset(tmp_path / "a.h5", {"x": Field("{}", lookup=["p0"] * 3), "p": "p0"})


@pytest.mark.parametrize(
    ("field", "kind", "says"),
    [
        (lambda: Field("x", columns=["a", "d"]), FieldNotFoundError, "no member 'd'.*it has 'a', 'b', 'c'"),
        (lambda: Field("x", columns=["a", "b"]), UnsupportedFieldError, "'a' is float32, 'b' is int32; make a field"),
        (lambda: Field("x", columns=["c"]), UnsupportedFieldError, "'c' is"),
        (lambda: Field("plain", columns=["a"]), OptionError, "the file has no names of them"),
        (lambda: Field("x", columns=["a", 3]), OptionError, "columns= takes names alone"),
        (lambda: Field("x", columns=["a"], take="all"), OptionError, "take='all' takes the whole"),
    ],
)
def test_members_that_make_no_tensor_are_refused(tmp_path, field, kind, says):
    write_datasets(tmp_path / "a.h5", x=np.zeros(4, [("a", "f4"), ("b", "i4"), ("c", "S3")]), plain=np.zeros(4))
    with pytest.raises(kind, match=says):
        H5Dataset(tmp_path / "a.h5", field())


LISTED_ROWS, LISTED = 40, 23


@pytest.fixture
def listed(tmp_path):
    """Rows that samples list: as many each, or any number, in memory and in the file; and the rows themselves."""
    rng = np.random.default_rng(1)
    rows = rng.random((LISTED_ROWS, 3), "f4")
    even = rng.integers(0, LISTED_ROWS, (LISTED, 3))
    lists = [rng.integers(0, LISTED_ROWS, k % 5) for k in range(LISTED)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("packed", data=rows, chunks=(7, 3), compression="gzip")
        file["plain"], file["x"], file["even"] = rows, np.arange(LISTED), even
        stored = file.create_dataset("lists", (LISTED,), h5py.vlen_dtype("u2"))
        for k, one in enumerate(lists):
            stored[k] = one
    return str(tmp_path / "a.h5"), rows, {"even": even, "lists": lists}


def assert_listed(dataset, rows, lists, **options):
    """Assert that batches and single samples have the rows that samples list."""
    with H5StreamLoader(dataset, 5, seed=0, **{"shuffle": True} | options) as loader:
        batches = list(loader)
    numbers = [int(number) for batch in batches for number in batch["x"]]
    assert sorted(numbers) == sorted(int(one["x"]) for one in dataset)
    came = [sample_of(batch["y"], k) for batch in batches for k in range(len(batch["x"]))]
    for number, one in [*zip(numbers, came, strict=True), *((int(one["x"]), one["y"]) for one in dataset)]:
        np.testing.assert_array_equal(one, rows[np.asarray(lists[number], "i8")])


@pytest.mark.parametrize("name", ["packed", "plain"])
@pytest.mark.parametrize("ragged", [None, "packed", "pad", "list", "nested"])
@pytest.mark.parametrize("which", ["even", "lists"])
@pytest.mark.parametrize("is_named", [True, False])
def test_samples_have_the_rows_that_they_list_in_their_order(listed, name, ragged, which, is_named):
    path, rows, lists = listed
    lookup = which if is_named else lists[which]
    dataset = H5Dataset(path, {"x": "x", "y": Field(name, lookup=lookup, ragged=ragged)})
    assert_listed(dataset, rows, lists[which], num_workers=2)
    if ragged is None:
        batch = next(iter(H5StreamLoader(dataset, LISTED, num_workers=0)))["y"]
        assert isinstance(batch, Packed if which == "lists" else torch.Tensor)
        assert which == "lists" or batch.shape == (LISTED, 3, 3)


@pytest.mark.parametrize(
    ("lookup", "shape"),
    [
        ([(1, 2)] * LISTED, (2, 3)),
        ([range(3)] * LISTED, (3, 3)),
        ([torch.tensor([1, 1])] * LISTED, (2, 3)),
        (torch.ones(LISTED, 1, dtype=torch.int64), (1, 3)),
        ([[]] * LISTED, (0, 3)),
        (np.zeros((LISTED, 0)), (0, 3)),
    ],
    ids=str,
)
def test_lists_of_one_length_are_one_tensor(listed, lookup, shape):
    path, rows, _ = listed
    dataset = H5Dataset(path, {"x": "x", "y": Field("plain", lookup=lookup)})
    assert dataset[0]["y"].shape == shape
    assert_listed(dataset, rows, [np.asarray(one) for one in lookup], num_workers=0)


@pytest.mark.parametrize(
    ("lookup", "says"),
    [
        ([[1, 2]] * 5, "5 lists of rows, and needs one for each of 23"),
        (
            [[1]] * (LISTED - 1) + [[3, 40]],
            "row 40 for sample 22, at 1 of its list, and there are rows 0 to 39; 1 of 24",
        ),
        ([[]] + [[1, -1]] * (LISTED - 1), "row -1 for sample 1, at 1 .*lists of rows may differ in length"),
        ([[1]] * (LISTED - 1) + [3], "takes a list of row numbers for each sample, and sample 22 has 3"),
        ([[0.5]] * LISTED, "takes a list of row numbers for each sample, and sample 0 has float64"),
        ([[True]] * LISTED, "takes a list of row numbers for each sample, and sample 0 has bool"),
        ([[[1]]] * LISTED, r"takes a list of row numbers for each sample, and sample 0 has int64 \(1, 1\)"),
        ([{1, 2}] * LISTED, "has no order"),
        (np.full((LISTED, 2), 2**63, "u8"), "is to hold whole numbers of rows, and has 9223372036854775808"),
        (np.zeros((LISTED, 2, 2), int), r"or a list of them, not int64 \(23, 2, 2\)"),
        (np.zeros((LISTED, 2)), r"or a list of them, not float64 \(23, 2\)"),
        ("plain", r"one whole number a row, or a list of them, not float32 \(40, 3\)"),
    ],
    ids=str,
)
def test_lists_that_name_no_rows_are_refused_with_the_way_out(listed, lookup, says):
    with pytest.raises(OptionError, match=says):
        H5Dataset(listed[0], {"x": "x", "y": Field("plain", lookup=lookup)})


def test_rows_that_are_listed_are_changed_and_cropped_as_others(listed):
    path, rows, lists = listed
    fields = {
        "x": "x",
        "start": Field("packed", lookup="lists", ragged=Ragged(crop=Crop(2, at="start"))),
        "random": Field("packed", lookup=lists["lists"], ragged=Ragged(crop=Crop(2))),
        "columns": Field("packed", lookup="even", columns=[2, 0], dtype=torch.float64),
        "normalized": Field("plain", lookup=lists["lists"], normalize={"mean": 0.5, "std": 2}),
        "missing": Field("plain", lookup="even", missing=float(rows[lists["even"][4, 1], 2])),
    }
    for one in H5Dataset(path, fields):
        number = int(one["x"])
        even, some = rows[lists["even"][number]], rows[lists["lists"][number]]
        np.testing.assert_array_equal(one["start"], some[:2])
        assert any(np.array_equal(one["random"], some[k : k + 2]) for k in range(max(1, len(some) - 1)))
        np.testing.assert_array_equal(one["columns"], even[:, [2, 0]].astype("f8"))
        np.testing.assert_allclose(one["normalized"], (some - 0.5) / 2)
        np.testing.assert_array_equal(
            one["missing"], np.where(even == rows[lists["even"][4, 1], 2], np.float32(np.nan), even)
        )


def test_statistics_count_each_row_as_often_as_samples_list_it(listed):
    path, rows, lists = listed
    fields = {"even": Field("packed", lookup="even"), "lists": Field("packed", lookup=lists["lists"])}
    for name, one in H5Dataset(path, fields).statistics().items():
        every = rows[np.concatenate([np.asarray(some) for some in lists[name]])]
        assert one.count == every.size
        np.testing.assert_allclose([one.mean, one.std], [every.mean(), every.std()], rtol=1e-5)


def test_a_resumed_epoch_has_the_rest_of_the_rows_that_samples_list(listed):
    path, _, lists = listed
    dataset = H5Dataset(path, {"x": "x", "y": Field("packed", lookup=lists["lists"])})
    with H5StreamLoader(dataset, 4, shuffle=True, seed=3) as loader:
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), [batch["y"].values for batch in batches]
    with H5StreamLoader(dataset, 4, shuffle=True, seed=3) as loader:
        loader.load_state_dict(state)
        again = [batch["y"].values for batch in loader]
    assert len(rest) == len(again) == 5
    assert all(torch.equal(a, b) for a, b in zip(rest, again, strict=True))


def test_texts_and_values_of_variable_length_are_listed_too(tmp_path):
    texts, lists = [b"a", b"bc", b"", b"def"], [[1, 0], [], [3, 3, 2]]
    write_datasets(tmp_path / "a.h5", x=np.arange(3), text=np.array(texts), two=np.array([[0, 3]] * 3))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        values = file.create_dataset("values", (4,), h5py.vlen_dtype("i4"))
        for k in range(4):
            values[k] = np.arange(k)
    fields = {
        "x": "x",
        "text": Field("text", lookup=lists, ragged="list"),
        "two": Field("text", lookup="two"),
        "values": Field("values", lookup=lists, ragged="list"),
    }
    (batch,) = H5StreamLoader(H5Dataset(tmp_path / "a.h5", fields), 3, num_workers=0)
    assert batch["text"] == [[texts[k] for k in some] for some in lists]
    assert batch["two"] == [[b"a", b"def"]] * 3
    assert [[one.tolist() for one in some] for some in batch["values"]] == [
        [[*range(k)] for k in some] for some in lists
    ]
    with pytest.raises(UnsupportedFieldError, match="ragged='list' of texts"):
        H5Dataset(tmp_path / "a.h5", {"x": "x", "text": Field("text", lookup=lists)})


def test_what_takes_one_row_a_sample_refuses_lists(tmp_path):
    image = np.frombuffer(b"\x89PNG\r\n\x1a\n", "u1")
    write_datasets(tmp_path / "a.h5", x=np.arange(2), image=np.stack([image] * 4), row=np.zeros(4, [("a", "f4")]))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", (4, 3)
        group["data"], group["indices"], group["indptr"] = np.ones(4, "f4"), np.arange(4) % 3, np.arange(5)
        file["two"] = np.zeros((2, 2), int)
    for field in (
        Field("image", lookup=[[0, 1], [2]], decode="png"),
        Field("X", lookup=[[0, 1], [2]], ragged="dense"),
        Field("X", lookup="two", ragged="dense"),
    ):
        with pytest.raises(OptionError, match="it takes one row a sample"):
            H5Dataset(tmp_path / "a.h5", {"x": "x", "y": field})
    with pytest.raises(UnsupportedFieldError, match="'row:a'"):
        H5Dataset(tmp_path / "a.h5", {"x": "x", "y": Field("row", lookup="two")})
    for ragged in ("pad", Ragged(crop=Crop(1))):
        with pytest.raises(OptionError, match="ragged= is for samples of unlike lengths"):
            H5Dataset(tmp_path / "a.h5", {"x": "x", "y": Field("image", lookup="x", ragged=ragged)})


@pytest.fixture
def parts(tmp_path):
    """Two files, and two groups of a file, whose samples list rows of their own part; what each sample has."""
    rows, groups, paths = {}, {}, [str(tmp_path / "0.h5"), str(tmp_path / "1.h5")]
    for k, (samples, there) in enumerate([(8, 5), (6, 30)]):
        table, even = np.arange(there) + 1000 * k, np.arange(samples * 2).reshape(samples, 2) * 3 % there
        number = np.arange(samples) + 100 * k
        for path, group in ((paths[k], ""), (str(tmp_path / "g.h5"), f"g/{k}/")):
            with h5py.File(path, "a") as file:
                file[f"{group}x"], file[f"{group}table"], file[f"{group}even"] = number, table, even
                stored = file.create_dataset(f"{group}lists", (samples,), h5py.vlen_dtype("i4"))
                for sample in range(samples):
                    stored[sample] = even[sample, : sample % 3]
        rows |= {int(number[j]): (table[some], table[some[: j % 3]]) for j, some in enumerate(even)}
        groups[k] = table
    return paths, str(tmp_path / "g.h5"), rows, np.concatenate([*groups.values()])


def test_lists_in_files_and_groups_count_from_0_in_each_and_arrays_through_all(parts):
    paths, grouped, rows, table = parts
    for k, name in enumerate(("even", "lists")):
        fields, wanted = {"x": "x", "y": Field("table", lookup=name)}, {x: some[k] for x, some in rows.items()}
        numbers = {x: np.searchsorted(table, some) for x, some in wanted.items()}
        in_memory = {"x": "x", "y": Field("table", lookup=[*numbers.values()])}
        for each in (fields, in_memory):
            assert_listed(H5Dataset(paths, each), table, numbers)
            assert_listed(H5Dataset(grouped, each, samples=Rows(of="g/*")), table, numbers)
        with H5StreamLoader([H5Dataset(path, fields) for path in paths], 5) as loader:
            assert_listed(loader.dataset, table, numbers)
        fields["y"] = Field("table", lookup=[*numbers.values()], file=paths)
        assert_listed(H5Dataset(paths, fields), table, numbers)


def test_lists_that_are_named_count_through_all_files_of_the_field(parts, tmp_path):
    paths, _, _, table = parts
    lists = np.random.default_rng(0).integers(0, len(table), (9, 4))
    path = write_datasets(tmp_path / "q.h5", x=np.arange(9), rows=lists)
    assert_listed(H5Dataset(path, {"x": "x", "y": Field("table", lookup="rows", file=paths)}), table, lists)
    assert len(H5Dataset(path, Field("table", lookup="rows", file=paths))) == 9


@pytest.mark.parametrize("lookup", ["row", "rows"])
def test_what_is_looked_up_fits_the_samples_of_each_file(tmp_path, lookup):
    paths = [tmp_path / "0.h5", tmp_path / "1.h5"]
    for path, samples, lists in zip(paths, (3, 2), (2, 3), strict=True):
        write_datasets(
            path, x=np.arange(samples), t=np.arange(4), row=np.zeros(lists, int), rows=np.ones((lists, 2), int)
        )
    with pytest.raises(OptionError, match=r"0\.h5': field 't': lookup= has 2 .*needs one for each of 3"):
        H5Dataset(paths, {"x": "x", "t": Field("t", lookup=lookup)})


@pytest.mark.parametrize("beside", ["nothing", "rows", "names", "lists"])
@pytest.mark.parametrize("said", ["row", "column", "rows", "compound:row", "names", "t@row"])
def test_what_looks_up_in_each_file_says_how_many_samples_it_has(tmp_path, beside, said):
    paths, counts, tables = [tmp_path / "0.h5", tmp_path / "1.h5"], (5, 3), []
    rng, wanted = np.random.default_rng(2), []
    for path, count in zip(paths, counts, strict=True):
        table, row = rng.random(4), rng.integers(0, 4, count)
        compound, names = np.zeros(count, [("row", "i4")]), np.array([b"o0", b"o1"])[row % 2]
        compound["row"] = row
        write_datasets(
            path, t=table, row=row, column=row[:, None], rows=row[:, None] * [1, 1], compound=compound, names=names,
            o0=np.full(2, 0.5), o1=np.full(2, 1.5),
        )  # fmt: skip
        with h5py.File(path, "r+") as file:
            file["t"].attrs["row"] = row
        tables.append(table)
        wanted += (np.repeat(row % 2, 2) + 0.5).reshape(-1, 2).tolist() if said == "names" else table[row].tolist()
    wanted = [[one, one] for one in wanted] if said == "rows" else wanted
    theirs, total = np.concatenate(tables), sum(counts)
    memory = rng.integers(0, 8, total)
    fields = {
        "nothing": {},
        "rows": {"m": Field("t", lookup=memory)},
        "names": {"m": Field("{}", lookup=[f"o{one % 2}" for one in memory])},
        "lists": {"m": Field("t", lookup=np.stack([memory, memory], axis=1))},
    }[beside]
    right = {
        "rows": theirs[memory],
        "names": memory[:, None] % 2 + [0.5, 0.5],
        "lists": theirs[memory][:, None] * [1, 1],
    }
    looked_up = {"x": Field("{}" if said == "names" else "t", lookup=said)}
    for every in (fields | looked_up, looked_up | fields):
        dataset = H5Dataset(paths, every | {"number": SampleNumber()})
        assert len(dataset) == total
        with H5StreamLoader(dataset, 3, seed=0) as loader:
            for batch in loader:
                numbers = batch["number"].numpy()
                np.testing.assert_array_equal(batch["x"].numpy(), np.asarray(wanted)[numbers])
                if fields:
                    np.testing.assert_array_equal(batch["m"].numpy(), right[beside][numbers])
        dataset.close()


@pytest.mark.parametrize("other", [{"lookup": "row"}, {"lookup": "rows"}, {"lookup": "names"}])
def test_bounds_beside_a_dataset_that_says_how_many_samples_there_are_need_not_cover_all_rows(tmp_path, other):
    path = write_datasets(
        tmp_path / "a.h5", t=np.arange(9.0), row=np.arange(3), rows=np.ones((3, 2), int), names=np.array([b"t"] * 3),
        edges=np.array([1, 4, 4, 6]),
    )  # fmt: skip
    for bounds in ("edges", np.array([1, 4, 4, 6])):
        fields = {"y": Field("t", lookup=Bounds(bounds), ragged="list")}
        dataset = H5Dataset(path, {"x": Field("{}" if other["lookup"] == "names" else "t", **other)} | fields)
        assert [one["y"].tolist() for one in dataset] == [[1, 2, 3], [], [4, 5]]
        dataset.close()
        with pytest.raises(OptionError, match="Nothing else says how many samples there are"):
            H5Dataset(path, fields)


def test_files_that_list_unlike_numbers_of_rows_are_told_how_to_read_them(tmp_path):
    paths = [tmp_path / "0.h5", tmp_path / "1.h5"]
    for k, path in enumerate(paths):
        write_datasets(path, x=np.arange(2) + 2 * k, t=np.arange(4), rows=np.ones((2, 2 + k), int))
    fields = {"x": "x", "y": Field("t", lookup="rows")}
    with pytest.raises(FieldLengthError, match="different numbers of rows in lookup=, 2 to 3 rows; ragged='packed'"):
        H5Dataset(paths, fields)
    with pytest.raises(
        FieldLengthError, match="read as one have different numbers of rows, 2 to 3 rows; ragged='packed'"
    ):
        H5StreamLoader([H5Dataset(path, fields) for path in paths], 2)
    dataset = H5Dataset(paths, {"x": "x", "y": Field("t", lookup="rows", ragged="pad")})
    assert_listed(dataset, np.arange(4), [[1, 1]] * 2 + [[1, 1, 1]] * 2)


def test_other_samples_list_rows_as_well(listed):
    path, rows, lists = listed
    fields = {"x": "x", "y": Field("packed", lookup="lists"), "z": Field("packed", lookup=lists["even"][:11])}
    for k, one in enumerate(H5Dataset(path, fields, samples=Sequences(3, stride=2))):
        np.testing.assert_array_equal(one["y"], rows[lists["lists"][2 * k]])
        np.testing.assert_array_equal(one["z"], rows[lists["even"][k]])
    (one,) = H5Dataset(path, {"x": "x", "y": Field("packed", lookup="even")}, samples=Table(row=[5]))
    np.testing.assert_array_equal(one["y"], rows[lists["even"][5]])


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("holds", [None, "starts", "ends", "bounds"])
@pytest.mark.parametrize("ragged", [None, "pad"])
def test_bounds_of_no_sample_are_refused(tmp_path, base, holds, ragged):
    path = write_datasets(tmp_path / "a.h5", y=np.arange(9), none=np.zeros(0, "i8"))
    with pytest.raises(OptionError, match=r"Field\('y'\): lookup= is empty"):
        Field("y", lookup=Bounds([], holds=holds, base=base), ragged=ragged)
    named = Field("y", lookup=Bounds("none", holds=holds, base=base), ragged=ragged)
    says = "has 0 bounds, and 0 samples need 1" if holds == "bounds" else "has zero samples in y, by what lookup= names"
    with pytest.raises(H5StreamError, match=says):
        H5Dataset(path, named)


@pytest.mark.parametrize(
    "lookup", [[], (), np.zeros(0, int), np.zeros((0, 2), int), torch.zeros(0), Lengths([]), Between([], [])], ids=str
)
@pytest.mark.parametrize("name", ["y", "h/{}/y"])
def test_a_lookup_that_is_empty_is_refused(lookup, name):
    with pytest.raises(OptionError, match="lookup= is empty and so names no sample"):
        Field(name, lookup=lookup)


@pytest.mark.parametrize("lookup", ["none", "pairs", "lists", Lengths("none"), Between("none", "none"), Bounds("one")])
def test_a_dataset_that_names_no_sample_is_not_said_to_have_no_rows(tmp_path, lookup):
    path = write_datasets(
        tmp_path / "a.h5", y=np.arange(9), none=np.zeros(0, "i8"), pairs=np.zeros((0, 2), "i8"), one=np.zeros(1, "i8")
    )
    with h5py.File(path, "a") as file:
        file.create_dataset("lists", (0,), h5py.vlen_dtype("i8"))
    with pytest.raises(H5StreamError, match=r"none of the fields 'y' says|zero samples in y, by|has 1 numbers"):
        H5Dataset(path, Field("y", lookup=lookup))


@pytest.mark.parametrize("ragged", ["pad", "packed", "nested", "list"])
@pytest.mark.parametrize("are_named", [False, True])
def test_values_of_variable_length_of_one_row_a_sample_come_as_a_list_and_are_refused_in_true_words(
    tmp_path, ragged, are_named
):
    rows, lists = np.array([2, 0, 1, 2]), [np.arange(k + 1.0) for k in range(3)]
    path = write_datasets(tmp_path / "a.h5", y=np.arange(4), rows=rows)
    with h5py.File(path, "a") as file:
        values = file.create_dataset("v", (3,), h5py.vlen_dtype("f8"))
        for k, one in enumerate(lists):
            values[k] = one
    lookup = "rows" if are_named else rows
    with pytest.raises(OptionError, match=f"lookup= names one row for each .* come as a list, not ragged='{ragged}'"):
        H5Dataset(path, ["y", Field("v", lookup=lookup, ragged=ragged)])
    plain = H5Dataset(path, ["y", Field("v", lookup=lookup)])
    assert [one.tolist() for one in plain[:][1]] == [lists[k].tolist() for k in rows]
    each = H5Dataset(path, ["y", Field("v", lookup=rows[:, None], ragged="list")])
    assert [[inner.tolist() for inner in one] for one in each[:][1]] == [[lists[k].tolist()] for k in rows]
    plain.close()
    each.close()


@pytest.mark.parametrize(
    ("first", "last", "right"),
    [
        ([0, -1, 10], [3, 0, 14], [3, 0, 4]),
        ([0, -1, 10], [3, -1, 14], [3, 0, 4]),
        ([0, -5, 10], [3, 3, 14], "rows -5 to 3"),
        ([0, -1, 10], [3, 3, 14], "rows -1 to 3"),
        ([0, -5, 10], [3, -2, 14], "rows -5 to -2"),
    ],
)
def test_a_first_row_of_minus_one_alone_is_a_sample_without_rows(tmp_path, first, last, right):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["first"], file["last"] = np.arange(20), first, last
    for lookup in (Between("first", "last"), Between(np.array(first), np.array(last))):
        field = Field("x", lookup=lookup, ragged="list")
        if isinstance(right, str):
            with pytest.raises(OptionError, match=f"sample 1 is said to have {right}"):
                H5Dataset(tmp_path / "a.h5", field)
        else:
            assert [len(one) for one in H5Dataset(tmp_path / "a.h5", field)[:]] == right


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_range_of_rows_of_two_other_files_is_refused(tmp_path, in_memory):
    """It is of several files wherever it is said; what was beyond the first came as whatever the memory held."""
    files = [write_datasets(tmp_path / f"{k}.h5", x=np.arange(rows) + 100 * k) for k, rows in enumerate((5, 17, 9))]
    every = [*range(5), *range(100, 117), *range(200, 209)]

    def opened(first, end):
        path = write_datasets(tmp_path / "at.h5", y=np.arange(3), first=np.array(first), end=np.array(end))
        lookup = Between(first, end) if in_memory else Between("first", "end")
        return H5Dataset(path, ["y", Field("x", file=files, lookup=lookup, ragged="list")], allow_external=True)

    first, end = [0, 5, 22], [5, 22, 24]
    samples = opened(first, end)[:][1]
    assert [sample.tolist() for sample in samples] == [every[a:b] for a, b in zip(first, end, strict=True)]
    with pytest.raises(OptionError, match=r"sample 1 is said to have rows 3 to 8 .*, which are of several files"):
        opened([0, 3, 22], [5, 8, 24])


@pytest.mark.parametrize("of", [Lengths("n"), Bounds("starts", holds="starts"), Bounds("ends", holds="ends"), None])
def test_files_that_do_not_say_where_their_rows_begin_in_those_of_another_file_are_refused(tmp_path, of):
    """Each file's samples began anew at the first row of the other file, or went on to its last."""
    other = write_datasets(tmp_path / "x.h5", x=np.arange(8))
    paths = [
        write_datasets(tmp_path / f"{k}.h5", y=np.arange(2), n=np.diff(at), starts=at[:2], ends=at[1:], at=np.array(at))
        for k, at in enumerate(([0, 2, 5], [5, 6, 8]))
    ]

    def samples(paths, lookup):
        fields = {"y": "y", "x": Field("x", file=other, lookup=lookup, ragged="list")}
        return [sample.tolist() for sample in H5Dataset(paths, fields, allow_external=True)[:]["x"]]

    every = [[0, 1], [2, 3, 4], [5], [6, 7]]
    if of is None:
        assert samples(paths, Bounds("at")) == samples(paths, Between("starts", "ends")) == every
        assert samples(paths, Lengths([2, 3, 1, 2])) == every
        return
    assert samples(paths[:1], Lengths("n")) == every[:2]
    with pytest.raises(OptionError, match=r"of several files or groups does not say where in file= the rows of each"):
        samples(paths, of)
