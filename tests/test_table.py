"""Samples that a table lists, of groups and files, beside h5py."""

from itertools import chain

import h5py
import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from h5stream import Field, H5Dataset, H5StreamLoader, Padding, SampleNumber, Table, Values, errors

LENGTHS = {"a/left": 9, "a/right": 3, "b": 23}
STORED = [{}, {"chunks": (4, 2), "compression": "gzip"}]


def write(path, first, options):
    with h5py.File(path, "w") as file:
        for k, (group, rows) in enumerate(LENGTHS.items()):
            values = first + 1000 * k + 10 * np.arange(rows)[:, None] + np.arange(2)
            file.create_dataset(
                f"{group}/x", data=values, **options | ({"chunks": (min(4, rows), 2)} if options else {})
            )
            file[f"{group}/t"] = np.arange(rows) / 2
    return str(path)


@pytest.fixture(scope="module", params=STORED, ids=["contiguous", "gzip"])
def paths(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    return [write(folder / f"{k}.h5", 100_000 * k, request.param) for k in range(2)]


@st.composite
def tables(draw, count=2):
    """Columns of a table over the files above: rows that are there, and a second row of the same group."""
    samples = draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.sampled_from(sorted(LENGTHS))), min_size=1, max_size=40)
    )
    rows = [[draw(st.integers(0, LENGTHS[group] - 1)) for _, group in samples] for _ in range(2)]
    return {
        "file": [file for file, _ in samples],
        "group": [group for _, group in samples],
        "row": rows[0],
        "later": rows[1],
    }


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    columns=tables(),
    steps=st.lists(st.integers(-3, 3), min_size=1, max_size=4),
    pad=st.sampled_from(["edge", "zeros", 7]),
    data=st.data(),
)
def test_every_sample_is_what_the_table_says(paths, columns, steps, pad, data):
    fields = {
        "one": "x",
        "steps": Field("x", steps=steps),
        "later": Field("x", at="later"),
        "times": Field("t", at="later", steps=steps),
        "padded": Padding(steps),
        "number": SampleNumber(),
        "value": Values(np.arange(len(columns["row"])) * 3),
    }
    options = data.draw(
        st.sampled_from(
            [
                {"shuffle": True, "seed": 1},
                {},
                {"shuffle": True, "window": 5, "num_workers": 0},
                {"shuffle": True, "window": "all"},
            ]
        )
    )
    files = [h5py.File(path) for path in paths]
    with H5StreamLoader(paths, 4, fields=fields, samples=Table(columns, pad=pad), **options) as loader:
        batches = list(loader)
    seen = torch.cat([batch["number"] for batch in batches]).tolist()
    assert sorted(seen) == list(range(len(columns["row"])))
    assert options.get("shuffle") or seen == sorted(seen)
    for batch in batches:
        for place, number in enumerate(batch["number"].tolist()):
            group = files[columns["file"][number]][columns["group"][number]]
            row, later = columns["row"][number], columns["later"][number]
            assert (batch["one"][place].numpy() == group["x"][row]).all()
            assert (batch["later"][place].numpy() == group["x"][later]).all()
            assert batch["value"][place] == 3 * number
            for name, dataset, begin in (("steps", "x", row), ("times", "t", later)):
                for k, step in enumerate(steps):
                    inside = 0 <= begin + step < len(group[dataset])
                    clipped = group[dataset][np.clip(begin + step, 0, len(group[dataset]) - 1)]
                    wanted = clipped if inside or pad == "edge" else np.full_like(clipped, 0 if pad == "zeros" else pad)
                    assert (batch[name][place][k].numpy() == wanted).all()
            assert batch["padded"][place].tolist() == [not 0 <= row + step < len(group["x"]) for step in steps]
    for file in files:
        file.close()


def test_rows_count_through_all_files_where_nothing_names_them(paths):
    whole = torch.cat([each for path in paths for each in (H5Dataset(path, "b/x")[:],)])
    dataset = H5Dataset(paths, "b/x", samples=Table(row=[40, 0, 0, 22]))
    assert (dataset[:] == whole[[40, 0, 0, 22]]).all()
    last = LENGTHS["b"] - 1
    with pytest.raises(errors.OptionError, match="steps from 0 to 1"):  # a sample lies in one file
        H5Dataset(paths, "b/x", samples=Table(row=[last], length=2))


def test_tables_come_as_frames_arrays_and_tensors(paths):
    given = {"group": ["b", "a/left", "b"], "row": [4, 0, 5]}
    structured = np.array(list(zip(given["group"], given["row"], strict=True)), [("group", "S8"), ("row", "i4")])

    class Frame(dict):
        @property
        def columns(self):
            return list(self)

    wanted = H5Dataset(paths[0], "x", samples=Table(given, length=2))[:]
    assert wanted.shape == (3, 2, 2)
    for table in (
        structured,
        Frame(given),
        {**given, "row": torch.tensor(given["row"])},
        {**given, "row": np.array([4.0, 0, 5])},
    ):
        assert (H5Dataset(paths[0], "x", samples=Table(table, length=2))[:] == wanted).all()
    named = Table(given, file=[paths[0]] * 3, length=2)
    assert (H5Dataset(paths, "x", samples=named)[:] == wanted).all()
    assert repr(named) == "Table(3 samples, columns group, row, file)"


def test_all_pairs_of_times(paths):
    """Inputs and targets at any two times of one simulation, and the time between them."""
    first, second = np.triu_indices(LENGTHS["b"])
    table = Table(group=["b"] * len(first), row=first, target=second)
    fields = {"x": "x", "y": Field("x", at="target"), "lead": Values((second - first) / 2)}
    with h5py.File(paths[0]) as file:
        stored = file["b/x"][()]
    count = 0
    for batch in H5StreamLoader(paths[0], 32, shuffle=True, fields=fields, samples=table):
        rows = (batch["x"][:, 0].numpy() - stored[0, 0]) // 10
        later = rows + (2 * batch["lead"].numpy()).astype(int)
        assert (batch["x"].numpy() == stored[rows]).all()
        assert (batch["y"].numpy() == stored[later]).all()
        count += len(rows)
    assert count == len(first)


def test_ranks_part_a_table_and_a_state_goes_on(paths):
    rng = np.random.default_rng(0)
    table = {"group": ["b"] * 50, "row": rng.integers(0, 20, 50)}

    def made(table=table, **given):
        return H5StreamLoader(
            paths[0],
            8,
            shuffle=True,
            seed=3,
            fields=["x", SampleNumber()],
            samples=Table(table, length=3),
            window=16,
            **given,
        )

    whole = [numbers.tolist() for _, numbers in made()]
    shares = [[numbers.tolist() for _, numbers in made(rank=rank, world_size=2)] for rank in range(2)]
    assert sorted(chain(*shares[0], *shares[1])) == sorted(chain(*whole)) == list(range(50))
    loader = made()
    iterator = iter(loader)
    begun = [next(iterator)[1].tolist() for _ in range(2)]
    other = made()
    other.load_state_dict(loader.state_dict())
    assert begun + [numbers.tolist() for _, numbers in other] == whole
    with pytest.raises(errors.StateError, match="samples was"):
        made({**table, "row": table["row"][::-1]}).load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"group": ["b"]}, "needs a column 'row'.*its columns are 'group'"),
        ({"row": [0, 1], "group": ["b"]}, "'row' has 2, 'group' has 1"),
        ({"row": []}, "the Table is empty"),
        ({"row": [0.5]}, "'row' holds whole numbers"),
        ({"row": [[0]]}, "not the shape \\(1, 1\\)"),
        ({"row": [None]}, "holds whole numbers, and not such as None"),
        ({"row": [0], "length": 0}, "length must be at least 1"),
        ({"row": [0], "pad": "wrap"}, "Table: pad= is 'edge', 'zeros' or a number"),
    ],
)
def test_a_table_that_says_nothing_is_refused(columns, says):
    with pytest.raises(errors.OptionError, match=says):
        Table(**columns)


@pytest.mark.parametrize("columns", ["index.csv", 5, [1, 2]])
def test_what_has_no_columns_is_refused(columns):
    with pytest.raises(errors.OptionError, match=r"takes columns by name|needs a column"):
        Table(columns)


@pytest.mark.parametrize(
    ("table", "field", "says"),
    [
        ({"group": ["b", "b"], "row": [0, 23]}, "x", "'row' is 23 at sample 1, where 23 rows are there; .* 1 of 2"),
        ({"group": ["b"], "row": [-1]}, "x", "'row' is -1 at sample 0"),
        ({"group": ["b"], "row": [20], "length": 4}, "x", "steps from 0 to 3, where 23 rows .* pad='edge'"),
        ({"group": ["b"], "row": [2]}, Field("x", at="t2"), "at= names a column .* which has 'row'"),
        ({"group": ["b"], "row": [2], "t2": [40]}, Field("x", at="t2"), "'t2' is 40 at sample 0"),
        ({"row": [2]}, "b/x", None),
        ({"file": [1], "row": [2]}, "b/x", "'file' is 1 at 0, and 1 files are opened"),
        ({"file": ["no.h5"], "row": [2]}, "b/x", "names 'no.h5', which is not among the files"),
    ],
)
def test_rows_that_are_not_there_are_told(paths, table, field, says):
    def opened():
        return H5Dataset(paths[0], field, samples=Table(**table))

    if says is None:
        assert len(opened()) == 1
        return
    with pytest.raises(errors.OptionError, match=says):
        opened()


def test_groups_are_named_with_their_files(paths):
    table = Table(group=["b"], row=[0])
    with pytest.raises(errors.OptionError, match="beside 'group' it needs 'file'"):
        H5Dataset(paths, "x", samples=table)
    with pytest.raises(errors.FieldNotFoundError, match="has no group 'c'"):
        H5Dataset(paths[0], "x", samples=Table(group=["c"], row=[0]))
    with pytest.raises(errors.OptionError, match=r"Field.*at='row2'.*there is no Table"):
        H5Dataset(paths[0], Field("b/x", at="row2"))
    with pytest.raises(errors.OptionError, match=r"samples= takes Sequences\(...\), Rows\(...\), Objects"):
        H5Dataset(paths[0], "b/x", samples={"row": [0]})
    both = [H5Dataset(path, "x", samples=table) for path in paths]
    with pytest.raises(errors.OptionError, match="a Table lists the samples of one H5Dataset"):
        H5StreamLoader(both, 2)
