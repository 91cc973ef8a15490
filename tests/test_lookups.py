"""Fields that are looked up, by rows or by names, fields of other files, and members: what is told of them."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from making import make_file, write_datasets

from h5stream import Between, Bounds, Field, H5Dataset, Lengths, Rows, Sequences
from h5stream.errors import FieldLengthError, FieldNotFoundError, OptionError, UnsupportedFieldError

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
