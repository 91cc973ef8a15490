"""Samples that are no rows, and fields that are no datasets: what is refused, and what leads to segments."""

import itertools

import h5py
import numpy as np
import pytest
import torch
from support.making import read_with_h5py, write_datasets

from h5stream import (
    Between,
    Bounds,
    Boxes,
    ChunkBatchSampler,
    Crop,
    Ends,
    Field,
    H5Dataset,
    H5StreamLoader,
    Ids,
    Lengths,
    Objects,
    Padding,
    Ragged,
    Rows,
    SampleNumber,
    Sequences,
    Table,
    Take,
    Values,
    errors,
)


@pytest.mark.parametrize(
    ("fields", "samples", "kind", "says"),
    [
        ("x", Sequences(4, of="demos/*"), errors.FieldNotFoundError, "matches no group.*'data/\\*' matches"),
        ("x", Sequences(4, of=["data/demo_9"]), errors.FieldNotFoundError, "Did you mean 'data/demo_2'"),
        ("x", Sequences(99, of="data/*"), errors.OptionError, "span 99 rows.*longest of 3 segments has 9"),
        (Field("x", take=[50]), Sequences(1, of="data/*"), errors.OptionError, "from 50 to 50, counted .* nearer to 0"),
        (Field("data/demo_0/x", take=[0]), None, errors.OptionError, "needs? samples=Sequences"),
        ("x", Sequences(of="data/*"), errors.OptionError, "needs take=STEPS, or Sequences a length"),
        (["x", Padding()], Rows(of="data/*"), errors.OptionError, "needs? samples=Sequences"),
        (["x", Values([1, 2])], Rows(of="data/*"), errors.FieldLengthError, "2 values, and there are 19 samples"),
        ([Values([1, 2]), SampleNumber()], Rows(of="data/*"), errors.OptionError, "name at least one dataset"),
        (["x", "@sucess"], Rows(of="data/*"), errors.FieldNotFoundError, "Did you mean 'success'"),
        (["x", "goal"], Rows(of="data/*"), errors.FieldLengthError, "must agree in rows.*take='all'"),
    ],
)
def test_bad_input_is_told_with_the_way_out(given, fields, samples, kind, says):
    with pytest.raises(kind, match=says):
        H5StreamLoader(given, 4, fields=fields, samples=samples)


def test_what_is_there_once_in_unlike_shapes_is_refused_with_the_way_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(2):
            file[f"m{k}/x"], file[f"m{k}/species"] = np.zeros((3, 2)), np.arange(5 + k)
    fields = ["x", Field("species", take="all")]
    with pytest.raises(errors.FieldLengthError, match=r"of one shape .*ragged='pad'.*Values\(\.\.\.\)$"):
        H5Dataset(tmp_path / "a.h5", fields, samples=Rows(of="*"))


def test_a_member_of_a_table_that_is_a_segment_is_a_field(tmp_path):
    kind = [("image", "u1", (2, 2)), ("label", "i4")]
    tables = [np.frombuffer(np.random.default_rng(k).bytes(8 * (5 + k)), kind) for k in range(3)]
    write_datasets(tmp_path / "a.h5", **{f"run_{k}": table for k, table in enumerate(tables)})
    fields = {"image": ".:image", "label": ".:label"}
    dataset = H5Dataset(tmp_path / "a.h5", fields, samples=Sequences(4, of="run_*"))
    windows = [table[k : k + 4] for table in tables for k in range(len(table) - 3)]
    for name in fields:
        assert np.array_equal(dataset[:][name], [window[name] for window in windows])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sequences(0), "length must be at least 1"),
        (lambda: Sequences(2, stride=0), "stride must be at least 1"),
        (lambda: Sequences(2.5), "length is an integer"),
        (
            lambda: Sequences(2, stride=(1, 4)),
            r"not \(1, 4\)\. .* are steps, .* drawn for each sample.*sample_transform=$",
        ),
        (lambda: Sequences(2, pad="repeat"), "'edge', 'zeros' or a number"),
        (lambda: Sequences(2, tail="cut"), "'drop' or 'shift'"),
        (lambda: Sequences(2, pad="edge", tail="shift"), "leave pad= out"),
        (lambda: Sequences(2, pad_rows=(1, 1)), "needs pad="),
        (lambda: Sequences(2, pad="edge", pad_rows=3), "two numbers of rows"),
        (lambda: Field("x", take=[]), "steps= is empty"),
        (lambda: Take(0), r"a range or list .*\[0\], not 0"),
        (lambda: Field("x", take=[0, 1.5]), "a step is an integer"),
        (lambda: Ends(), "takes names of fields"),
        (lambda: Sequences(4, starts="any"), "starts= is 'all' or 'random'"),
        (lambda: Sequences(4, per_epoch=5), "per_epoch= is a number of random starts"),
        (lambda: Sequences(4, starts="random", per_epoch=0), "at least 1"),
        (lambda: Sequences(4, starts="random", draw="rows"), "say how many"),
        (lambda: Sequences(4, starts="random", per_epoch=5, draw="even"), "draw= is 'segments' or 'rows'"),
        (lambda: Table(group=["b"]), "needs a column 'row'.*its columns are 'group'"),
        (lambda: Table(row=[0, 1], group=["b"]), "'row' has 2, 'group' has 1"),
        (lambda: Table(row=[]), "the Table is empty"),
        (lambda: Table(row=[0.5]), "'row' holds whole numbers"),
        (lambda: Table(row=[[0]]), "not the shape \\(1, 1\\)"),
        (lambda: Table(row=[0], lenght=3), "what is no column is length=, pad= or axis="),
        (lambda: Table(row=[None]), "holds whole numbers, and not such as None"),
        (lambda: Table(row=[0], length=0), "length must be at least 1"),
        (lambda: Table(row=[0], pad="wrap"), "Table: pad= is 'edge', 'zeros' or a number"),
        (lambda: Table("index.csv"), "takes columns by name|needs a column"),
        (lambda: Table(5), "takes columns by name|needs a column"),
        (lambda: Bounds([[0, 5]]), "Bounds takes the path of a dataset, or an array of whole numbers with one axis"),
        (lambda: Between("bounds"), r"first and last.*'bounds'.* write Between\(pairs\[:, 0\], pairs"),
        (lambda: Between("first", [5]), "Between takes the path of a dataset, or an array.* not 'first'"),
        (lambda: Lengths([1.5]), "has 1.5"),
        (lambda: Ends("done", [0, 1]), "Ends takes .* flags"),
        (lambda: Ends(["a", "b"]), "Ends takes .* flags"),
        (lambda: Ids(3), "Ids takes .* values"),
        (lambda: Boxes((4, 4)), r"at='random' and per_epoch=None\. Pass per_epoch=1000 .* or at='grid' alone"),
        (lambda: Boxes((4, 4), at="grid", per_epoch=5), "where at='random', and only there"),
        (lambda: Boxes((4, 4), per_epoch=0), "at least 1"),
        (lambda: Boxes((4, 0), at="grid"), "shape= is one number for each axis, at least 1"),
        (lambda: Boxes(4, at="grid"), "shape= is one number for each axis"),
        (lambda: Boxes((4, 4), at="grid", stride=(2,)), "stride= has 1 number, and shape= 2"),
        (lambda: Boxes((4, 4), per_epoch=1, stride=(2, 2)), "stride= belongs to at='grid'"),
        (lambda: Boxes((4, 4), at="middle"), "'random', 'grid' or an array"),
        (lambda: Boxes((4, 4), at=[1, 2]), "a row of whole numbers for each box"),
        (lambda: Boxes((4, 4), at="grid", pad="wrap"), "pad= is"),
        (lambda: Boxes((4, 4), at="grid", draw="even"), "draw= is"),
        (lambda: Boxes((4, 4), at="grid", accept=len), "accept= is a function, for at='random'"),
        (lambda: Boxes((4, 4), per_epoch=1, accept_on="label"), "it needs accept="),
        (lambda: Sequences(2**40, pad="zeros"), "length takes at most 67,108,864 rows of a sample, not"),
        (lambda: Table(row=[0], length=2**40), "length takes at most 67,108,864 rows of a sample"),
        (lambda: Field("x", take=range(2**40)), "takes at most 67,108,864 rows of a sample"),
        (lambda: Sequences(2, starts="random", per_epoch=2**62), r"per_epoch= takes at most 2\*\*53 samples"),
        (lambda: Boxes((4, 4), per_epoch=2**62), r"per_epoch= takes at most 2\*\*53 samples of an epoch"),
        (lambda: Boxes((2**62, 4), per_epoch=1, pad="zeros"), "takes at most 67,108,864 elements along an axis"),
        (lambda: Crop(0), "a row or more"),
        (lambda: Crop(2.5), "length"),
        (lambda: Crop(8, at="end"), "'random', 'start' or 'center'"),
        (lambda: Field("x", lookup=Bounds("b"), ragged=Ragged(crop=8)), "takes a Crop"),
    ],
)
def test_what_says_no_samples_is_refused_at_once(make, says):
    with pytest.raises(errors.OptionError, match=says):
        make()


@pytest.mark.parametrize(
    ("of", "values", "says"),
    [
        (Ends("said"), np.zeros((6, 2)), "one value for each of 6 rows"),
        (Lengths("said"), [2, 3], "add up to 5, but the fields have 6 rows"),
        (Lengths("said"), [-1, 7], "0 or more"),
        (Bounds("said"), [3, 2], "ascending row numbers from 0 to 6"),
        (Bounds("said"), [b"a"], "numbers of rows"),
        (Bounds("said"), [0, 2.5], "numbers of rows, and has 2.5"),
        (Bounds("said"), [1, 3], r"first rows that count from 1 as well: write Bounds\('said', holds='starts', base=1"),
        (Bounds("said"), [1, 3, 7], r"if they count from 1: Bounds\('said', base=1"),
        (Bounds("said"), [2, 5], "last rows that count from 0 as well"),
    ],
    ids=str,
)
def test_segments_that_are_said_wrongly_are_told(tmp_path, of, values, says):
    write_datasets(tmp_path / "a.h5", x=np.arange(6), said=values)
    with pytest.raises(errors.OptionError, match=rf"a\.h5': .*{says}"):
        H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(2, of=of))


@pytest.mark.parametrize(
    ("numbers", "options", "cuts"),
    [
        ([0, 4], {}, [4]),
        ([4, 6], {}, [4]),
        ([2, 4], {}, [2, 4]),
        ([1, 5], {"holds": "starts", "base": 1}, [4]),
        ([1, 3, 7], {"base": 1}, [2]),
        ([1, 4, 6], {"holds": "ends"}, [1, 4]),
        ([2, 5], {"holds": "ends"}, [2, 5]),
    ],
    ids=str,
)
def test_bounds_cut_rows_into_segments(tmp_path, numbers, options, cuts):
    path = write_datasets(tmp_path / "a.h5", x=np.arange(6), said=np.array(numbers, "u2"))
    wanted = [pair for some in np.split(np.arange(6), cuts) for pair in itertools.pairwise(some.tolist())]
    for said in ("said", numbers):
        dataset = H5Dataset(path, "x", samples=Sequences(2, of=Bounds(said, **options)))
        assert [tuple(dataset[k].tolist()) for k in range(len(dataset))] == wanted


def test_a_mask_of_names_is_looked_up_in_the_group_that_is_given(tmp_path):
    held = {f"data/demo_{k}/actions": 100 * k + np.arange(rows) for k, rows in enumerate((5, 9, 3, 12))}
    path = write_datasets(tmp_path / "a.h5", **held, mask__train=[b"demo_3", b"demo_0"])
    with h5py.File(path) as file:
        train = H5Dataset(file["data"], "actions", samples=Sequences(3, of=file["mask/train"]))
        said = r"no group 'demo_3'.*mean 'data/demo_3'.*given: H5Dataset\(file\['data'\], \.\.\.\)"
        with pytest.raises(errors.FieldNotFoundError, match=said):
            H5Dataset(path, "actions", samples=Sequences(3, of=file["mask/train"]))
    assert train[:, 0].tolist() == [*range(300, 310), *range(3)]


@pytest.mark.parametrize("stored", [{}, {"chunks": (3, 2), "compression": "gzip"}], ids=str)
@pytest.mark.parametrize("pad", [None, "edge"])
def test_the_shortest_field_of_a_segment_says_how_long_it_is(tmp_path, stored, pad):
    expected = []
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for k, rows in enumerate((6, 1, 4)):
            obs, actions = np.random.default_rng(k).random((rows + 1 + k, 2)), np.arange(rows) + 10 * k
            file.create_dataset(f"traj_{k}/obs", data=obs, **(stored if rows > 2 else {}))
            file[f"traj_{k}/actions"] = actions
            for start in range(rows if pad else rows - 2):
                taken = np.minimum(np.arange(start, start + 3), rows - 1)
                expected.append((obs[taken].tobytes(), actions[taken].tobytes()))
    samples = Sequences(3, of="traj_*", pad=pad, lengths="shortest")
    dataset = H5Dataset(tmp_path / "demos.h5", ["obs", "actions"], samples=samples)
    for shuffle in (False, True):
        found = [pair for batch in H5StreamLoader(dataset, 4, shuffle=shuffle) for pair in zip(*batch, strict=True)]
        found = [(obs.numpy().tobytes(), actions.numpy().tobytes()) for obs, actions in found]
        assert (sorted(found) if shuffle else found) == (sorted(expected) if shuffle else expected)
    with pytest.raises(errors.FieldLengthError, match="lengths='shortest'"):
        H5Dataset(tmp_path / "demos.h5", ["obs", "actions"], samples=Sequences(3, of="traj_*"))
    for options in ({"lengths": "longest"}, {"lengths": "shortest", "axis": 1}):
        with pytest.raises(errors.OptionError, match="lengths="):
            Sequences(3, **options)


# --- mistakes of users who had never seen the project, and what they were told -----------------------------------


@pytest.fixture
def given(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, rows in enumerate((6, 9, 4)):
            file[f"data/demo_{k}/done"] = np.arange(rows, dtype="u1")
            file[f"data/demo_{k}/x"] = np.arange(rows, dtype="f4")
            file[f"data/demo_{k}/goal"], file[f"data/demo_{k}"].attrs["success"] = np.zeros(3), k % 2
            file[f"eeg/{k}/signal"] = np.zeros((3, 20 + k))
            file[f"events/{k}"] = np.zeros((rows, 2))
        file["mask/train"] = np.array([b"data/demo_2", b"data/demo_0"])
        file["odd/a/x"], file["odd/b/y"] = np.zeros(3), np.zeros(3)
        file["terminals"], file["raw"] = np.zeros(10, bool), np.zeros((8, 8), "u1")
        file["u"] = np.arange(24.0).reshape(2, 4, 3)
    return tmp_path / "a.h5"


@pytest.mark.parametrize(("dtype", "pad"), [("i8", 2**53 + 1), ("i8", 2**63 - 1), ("u8", 2**64 - 1), ("f4", 0.1)])
def test_a_number_stands_outside_as_it_was_given(tmp_path, dtype, pad):
    path = write_datasets(tmp_path / "a.h5", x=np.arange(8).astype(dtype))
    for samples in (Sequences(4, pad=pad, pad_rows=(0, 3)), Boxes((4,), at="grid", halo=(2,), pad=pad)):
        assert H5Dataset(path, "x", samples=samples)[:].numpy()[-1, -1] == np.array(pad, dtype)


@pytest.mark.parametrize("pad", [-1, 300, 0.5, float("nan"), 2**64])
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_number_that_a_field_cannot_hold_is_no_padding(given, pad, dtype):
    with pytest.raises(errors.OptionError, match=r"pad=.* does not fit into field 'done', which is stored as uint8"):
        H5Dataset(given, Field("done", dtype=dtype), samples=Sequences(4, of="data/*", pad=pad))
    with pytest.raises(errors.OptionError, match="does not fit into field 'raw'"):
        H5Dataset(given, "raw", samples=Boxes((2, 2), at="grid", halo=(1, 1), pad=pad))
    with pytest.raises(errors.OptionError, match="does not fit into field 'raw'"):
        H5Dataset(given, "raw", samples=Table(row=[7], length=2, pad=pad))


def test_each_field_may_be_padded_with_its_own(given):
    fields = {"raw": "raw", "label": Field("raw", take=Take(pad=9))}
    boxes = H5Dataset(given, fields, samples=Boxes((2, 2), at="grid", halo=(1, 1), pad="reflect"))
    assert boxes[0]["label"][0].tolist() == [9] * 4
    assert boxes[0]["raw"][0].tolist() == [0] * 4
    with pytest.raises(errors.OptionError, match="nothing is padded"):
        H5Dataset(given, Field("x", take=Take(pad=3)), samples=Sequences(3, of="data/*"))
    with pytest.raises(errors.OptionError, match="pad= is 'edge', 'zeros' or a number"):
        Field("x", take=Take(pad="mirror"))


@pytest.mark.parametrize("kind", [lambda of: Sequences(2, of=of), lambda of: Rows(of=of)])
def test_names_come_as_arrays_too(given, kind):
    names = read_with_h5py(given, "mask/train")
    expected = H5Dataset(given, "x", samples=kind(["data/demo_2", "data/demo_0"]))[:].tolist()
    for of in (names, names.astype("U"), tuple(names)):
        assert H5Dataset(given, "x", samples=kind(of))[:].tolist() == expected
    with pytest.raises(errors.OptionError, match="not 3"):
        kind(3)
    with pytest.raises(errors.OptionError, match="names 'data/demo_0' twice"):
        kind(["data/demo_0", "data/demo_0"])


def test_values_of_unlike_length_are_a_list(given):
    dataset = H5Dataset(given, ["terminals", Values([[1], [1, 2]] * 5)])
    assert dataset[1][1] == [1, 2]


@pytest.mark.parametrize(
    ("fields", "samples", "says"),
    [
        ("x", lambda: Rows(of="events/*"), r"It matches datasets, such as 'events/0': each of these is the field '\.'"),
        (".", lambda: Rows(of="data/*"), "It matches groups, such as 'data/demo_0'"),
        ("x", lambda: Sequences(2, of="terminals"), r"It is a dataset; .*of=Ends\('terminals'\)"),
        ("signal", lambda: Sequences(5, of="eeg/*"), r"in group 'eeg/1' of .* but .* in group 'eeg/0' .* along axis 1"),
        ("x", lambda: Rows(of="odd/*"), r"Each group that of='odd/\*' matches needs the field; a narrower pattern"),
        ("x", lambda: Rows(of=Ends("terminals")), "of= names groups"),
        ("x", lambda: Rows(of="rows"), "of='rows' is for another axis"),
        ("raw", lambda: Boxes((2, 2), at="grid", of=Ends("terminals")), "of= names groups that hold volumes"),
        ("x", lambda: Table(group=["data/demo_7"], row=[0]), r"samples=Table\(group=\[...\]\) names.*Did you mean"),
        ("raw", lambda: Table(row=[1], start=[2]), "says where a sample begins along axis=, and there is none"),
        ("raw", lambda: Table(row=[-1], length=3, pad="zeros"), "steps= may lead out of it, with pad="),
        ("raw", lambda: Table(axis=1, row=[0], start=[9], length=3), "steps= may lead out of it, with pad="),
    ],
)
def test_mistakes_are_told_with_the_way_out(given, fields, samples, says):
    with pytest.raises(errors.H5StreamError, match=says):
        H5Dataset(given, fields, samples=samples())


def test_columns_of_an_index_that_nothing_names_are_left_alone(given):
    index = {"row": [0, 5], "magnitude": [0.5, float("nan")], "agency": ["a", None], "group": ["data/demo_1"] * 2}
    assert H5Dataset(given, "x", samples=Table(index))[:].tolist() == [0, 5]


def test_an_answer_that_is_none_is_told(given):
    dataset = H5Dataset(given, ["raw"], samples=Boxes((2, 2), per_epoch=3, accept=lambda raw: None, accept_on="raw"))
    with pytest.raises(errors.OptionError, match="answers True or False for a box: it returned None"):
        dataset[0]
    dataset = H5Dataset(given, ["raw"], samples=Boxes((2, 2), per_epoch=3, accept=lambda raw: raw > 0, accept_on="raw"))
    with pytest.raises(errors.OptionError, match="answers True or False for a box: Boolean value of Tensor"):
        dataset[0]


# --- samples that a table lists, of groups and files -------------------------------------------------------------


LENGTHS = {"a/left": 9, "a/right": 3, "b": 23}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("table"), []
    for number in range(2):
        held = {}
        for k, (group, rows) in enumerate(LENGTHS.items()):
            values = 100_000 * number + 1000 * k + 10 * np.arange(rows)[:, None] + np.arange(2)
            held[f"{group}/x"] = {"data": values, "chunks": (3, 2), "compression": "gzip"}
        found.append(write_datasets(folder / f"{number}.h5", **held))
    return found


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


@pytest.mark.parametrize(
    ("table", "field", "says"),
    [
        ({"group": ["b", "b"], "row": [0, 23]}, "x", "'row' is 23 at sample 1, where 23 are there and .* 1 of 2"),
        ({"group": ["b"], "row": [-1]}, "x", "'row' is -1 at sample 0"),
        ({"group": ["b"], "row": [20], "length": 4}, "x", "begin at 0 to 19; .* pad='edge'"),
        ({"group": ["b"], "row": [2]}, Field("x", take=Take(at="t2")), "at= names a column .* which has 'row'"),
        ({"group": ["b"], "row": [2], "t2": [40]}, Field("x", take=Take(at="t2")), "'t2' is 40 at sample 0"),
        ({"file": [1], "row": [2]}, "b/x", "'file' is 1 at 0, and 1 files are opened"),
        ({"file": ["no.h5"], "row": [2]}, "b/x", "names 'no.h5', which is not among the files"),
    ],
)
def test_rows_that_are_not_there_are_told(paths, table, field, says):
    with pytest.raises(errors.OptionError, match=says):
        H5Dataset(paths[0], field, samples=Table(**table))


def test_groups_are_named_with_their_files(paths):
    table = Table(group=["b"], row=[0])
    with pytest.raises(errors.OptionError, match="beside 'group' it needs 'file'"):
        H5Dataset(paths, "x", samples=table)
    with pytest.raises(errors.OptionError, match=r"Field.*at='row2'.*there is no Table"):
        H5Dataset(paths[0], Field("b/x", take=Take(at="row2")))
    both = [H5Dataset(path, "x", samples=table) for path in paths]
    assert len(H5StreamLoader(both, 2).dataset) == 2


# --- random starts: a function of seed and epoch alone -----------------------------------------------------------


ROWS_OF_GROUPS = (9, 3, 23, 4, 40, 17, 4)
STEPS = 4
FIELDS = {"x": "x", "next": Field("x", take=[STEPS - 1]), "number": SampleNumber()}
LONG_ENOUGH = [k for k, rows in enumerate(ROWS_OF_GROUPS) if rows >= STEPS]


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """Groups whose rows say which group and which row of it they are."""
    held = {}
    for k, rows in enumerate(ROWS_OF_GROUPS):
        values, chunks = 1000 * k + np.arange(rows), (min(5, rows),)
        held[f"data/demo_{k}/x"] = {"data": values, "chunks": chunks, "compression": "gzip"}
    return write_datasets(tmp_path_factory.mktemp("starts") / "demos.h5", **held)


def random(**options):
    return Sequences(STEPS, of="data/*", starts="random", **options)


def begins_of(batches):
    """Give the first row of each sample, after a look whether the others follow it as they do in the file."""
    batches = [batches] if isinstance(batches, dict) else list(batches)
    x, last = (torch.cat([batch[key] for batch in batches]).numpy() for key in ("x", "next"))
    assert (x == x[:, :1] + np.arange(STEPS)).all()
    assert (last[:, 0] == x[:, -1]).all()
    assert (x[:, -1] % 1000 < np.array(ROWS_OF_GROUPS)[x[:, 0] // 1000]).all()
    return x[:, 0].tolist()


def test_a_dataset_alone_draws_for_the_epoch_that_it_is_told(groups):
    dataset = H5Dataset(groups, FIELDS, samples=random())
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


def test_what_is_drawn_is_drawn_evenly(groups):
    """Segments as often as one another; starts as likely as one another."""
    counted = {}
    for draw in ("segments", "rows"):
        loader = H5StreamLoader(groups, 128, fields=FIELDS, samples=random(per_epoch=1000, draw=draw), seed=2)
        begins = begins_of(loader)
        counted[draw] = np.bincount([begin // 1000 for begin in begins], minlength=len(ROWS_OF_GROUPS))
        assert len(set(begins)) > 0.9 * sum(max(0, rows - STEPS + 1) for rows in ROWS_OF_GROUPS)
    share = 1000 // len(LONG_ENOUGH)
    assert set(counted["segments"]) <= {0, share, share + 1}
    starts = np.array([max(0, rows - STEPS + 1) for rows in ROWS_OF_GROUPS])
    assert np.abs(counted["rows"] - 1000 * starts / starts.sum()).max() < 60


def test_joined_datasets_take_one_start_of_each_segment(groups):
    parts = [
        H5Dataset(groups, "x", samples=Sequences(STEPS, of=names, starts="random"))
        for names in (["data/demo_0", "data/demo_2"], ["data/demo_5"])
    ]
    for _ in range(3):
        found = torch.cat(list(H5StreamLoader(parts, 2, shuffle=True)))
        assert sorted((found[:, 0] // 1000).tolist()) == [0, 2, 5]


def compounds(count, k):
    """Make compounds with a compound in them, numbers in arrays, and a text."""
    inner = np.dtype([("a", "i2"), ("b", "f4", (2,))])
    made = np.zeros(count, [("z", "u1"), ("pos", ">f4", (3,)), ("inner", inner), ("name", "S4"), ("ok", "?")])
    made["z"], made["pos"], made["name"], made["ok"] = k + 1, k + 0.5, f"n{k}", k % 2
    made["inner"]["a"], made["inner"]["b"] = -k, 2 * k
    return made


def nested(values):
    """Give compounds as nested dicts of lists."""
    if values.dtype.names:
        return {name: nested(values[name]) for name in values.dtype.names}
    return values.tolist()


def in_lists(sample, place=None):
    """Give a sample, or one of a batch, as nested dicts of lists."""
    if isinstance(sample, dict):
        return {name: in_lists(one, place) for name, one in sample.items()}
    one = sample if place is None else sample[place]
    return one.tolist() if isinstance(one, torch.Tensor) else one


OF_GROUPS = {
    "rows": (Rows(of="*"), np.repeat(range(12), 4)),
    "sequences": (Sequences(2, of="*"), np.repeat(range(12), 3)),
    "objects": (Objects("*"), np.arange(12)),
    "table": (Table(row=[0, 1, 3], group=["m00", "m05", "m11"]), [0, 5, 11]),
    "boxes": (Boxes((2,), at="grid", of="*"), np.repeat(range(12), 2)),
}


@pytest.mark.parametrize("kind", OF_GROUPS)
def test_a_compound_that_a_group_has_once_comes_as_a_dict_of_its_members(tmp_path, kind):
    (samples, groups), wanted = OF_GROUPS[kind], []
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(12):
            group = file.create_group(f"m{k:02}")
            group["x"], group["atoms"], group["one"] = np.arange(4.0), compounds(3, k), compounds((), k)
            group.attrs["meta"], group.attrs["some"] = compounds((), k)[()], compounds(2, k)
            held = group["atoms"][()], group["one"][()], group.attrs["meta"], group.attrs["some"]
            wanted.append(dict(zip(("atoms", "one", "@meta", "@some"), map(nested, held), strict=True)))
    fields = {"x": "x", "@meta": "@meta", "@some": "@some"}
    fields |= {name: Field(name, take="all") for name in ("atoms", "one")}
    dataset = H5Dataset(tmp_path / "a.h5", fields, samples=samples)
    samples = [in_lists(dataset[k]) for k in range(len(dataset))]
    with H5StreamLoader(dataset, 5, drop_last=False) as loader:
        batched = [in_lists(batch, k) for batch in loader for k in range(len(batch["x"]))]
    for every in (samples, batched):
        assert [{name: one[name] for name in wanted[0]} for one in every] == [wanted[k] for k in groups]


@pytest.mark.parametrize("kind", ["rows", "sequences"])
def test_what_each_of_many_groups_has_once_is_that_of_the_group(tmp_path, kind):
    wanted, path = [], tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["all"] = np.arange(3) + 7
        for k in range(40):
            group = file.create_group(f"g{k:02}")
            group["x"], group["z"], group["one"] = np.full((4,), k, "f4"), np.arange(3) * k, k * 1.5
            group.attrs["y"], group.attrs["name"], group["x"].attrs["unit"] = k % 7, f"n{k}", np.int8(k)
            wanted.append([k % 7, f"n{k}", k, (np.arange(3) * k).tolist(), k * 1.5, [7, 8, 9]])
        del file["g17/z"]  # stored in another way than the others
        file["g17"].create_dataset("z", data=np.arange(3) * 17, chunks=(2,), compression="gzip")
    fields = {"x": "x", "y": "@y", "name": "@name", "unit": "x@unit"}
    fields |= {"z": Field("z", take="all"), "one": Field("one", take="all"), "all": Field("/all", take="all")}
    count = 4 if kind == "rows" else 3
    with h5py.File(path, "r+") as file:
        names = [name for name in file if name != "all"]
    samples = Rows(of=names) if kind == "rows" else Sequences(2, of=names)
    dataset = H5Dataset(path, fields, samples=samples)
    for k in range(len(dataset)):
        one = in_lists(dataset[k])
        assert [one[name] for name in ("y", "name", "unit", "z", "one", "all")] == wanted[k // count]
        assert set(np.ravel(one["x"])) == {k // count}


def test_a_group_of_many_that_lacks_what_others_have_once_is_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(30):
            file[f"g{k:02}/x"] = np.arange(3)
            if k != 21:
                file[f"g{k:02}"].attrs["y"] = k if k != 25 else [k, k]
    with pytest.raises(errors.FieldNotFoundError, match=r"'g21' has no attribute 'y'"):
        H5Dataset(tmp_path / "a.h5", {"x": "x", "y": "@y"}, samples=Rows(of="*"))
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["g21"].attrs["y"] = 21
    with pytest.raises(errors.FieldLengthError, match=r"g25"):
        H5Dataset(tmp_path / "a.h5", {"x": "x", "y": "@y"}, samples=Rows(of="*"))


@pytest.mark.parametrize("kind", [Rows, lambda of: Sequences(1, of=of)], ids=["rows", "sequences"])
def test_the_root_is_a_group_that_can_be_named(tmp_path, kind):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"], file["g/y"] = np.arange(6), np.arange(6) + 10
    for of, expected in ((["/"], [*range(6)]), (["g", "/"], [*range(10, 16), *range(6)]), (["/g"], [*range(10, 16)])):
        assert H5Dataset(tmp_path / "a.h5", "y", samples=kind(of=of))[:].reshape(-1).tolist() == expected
    with pytest.raises(errors.OptionError, match=r"names of groups.*not ''"):
        H5Dataset(tmp_path / "a.h5", "y", samples=kind(of=[""]))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sequences(64, step=2), r"Sequences has no argument step=: write stride="),
        (lambda: Sequences(window=64), r"window=: write the length first"),
        (lambda: Sequences(64, strid=2), r"strid=. Did you mean 'stride'\?"),
        (lambda: Objects("a/*", rows=1), r"Objects has no argument rows=. It has of=, missing="),
        (lambda: H5Dataset("a.h5", transform=len), r"H5Dataset has no argument transform=. .*belong to H5StreamLoader"),
    ],
)
def test_an_argument_that_is_not_there_is_answered_with_what_to_write(make, says):
    with pytest.raises(TypeError, match=says):
        make()
