"""Samples that are no rows, and fields that are no datasets: what is refused, and what leads to segments."""

import h5py
import numpy as np
import pytest

from h5stream import (
    Bounds,
    Ends,
    Field,
    H5Dataset,
    H5StreamLoader,
    Lengths,
    Padding,
    Rows,
    SampleNumber,
    Sequences,
    Take,
    Values,
    errors,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Demonstrations of unlike lengths, each a group: actions, and what each has once."""
    path = tmp_path_factory.mktemp("demos") / "demos.h5"
    with h5py.File(path, "w") as file:
        for k, rows in enumerate((9, 1, 23, 4, 40, 17)):
            group = file.create_group(f"data/demo_{k}")
            group["actions"], group["goal"], group.attrs["success"] = np.zeros((rows, 7)), np.zeros(3), k % 2
    return str(path)


@pytest.mark.parametrize(
    ("fields", "samples", "kind", "says"),
    [
        ("actions", Sequences(4, of="demos/*"), errors.FieldNotFoundError, "matches no group.*'data/\\*' matches"),
        ("actions", Sequences(4, of=["data/demo_9"]), errors.FieldNotFoundError, "Did you mean 'data/demo_5'"),
        ("actions", Sequences(99, of="data/*"), errors.OptionError, "span 99 rows.*longest of 6 segments has 40"),
        (Field("data/demo_0/actions", take=[0]), None, errors.OptionError, "needs? samples=Sequences"),
        ("actions", Sequences(of="data/*"), errors.OptionError, "needs take=STEPS, or Sequences a length"),
        (["actions", Padding()], Rows(of="data/*"), errors.OptionError, "needs? samples=Sequences"),
        (["actions", Values([1, 2])], Rows(of="data/*"), errors.FieldLengthError, "2 values, and there are 94 samples"),
        ([Values([1, 2]), SampleNumber()], Rows(of="data/*"), errors.OptionError, "name at least one dataset"),
        (["actions", "@sucess"], Rows(of="data/*"), errors.FieldNotFoundError, "Did you mean 'success'"),
        (["actions", "goal"], Rows(of="data/*"), errors.FieldLengthError, "must agree in rows.*take='all'"),
    ],
)
def test_bad_input_is_told_with_the_way_out(path, fields, samples, kind, says):
    with pytest.raises(kind, match=says):
        H5StreamLoader(path, 4, fields=fields, samples=samples)


def test_what_is_there_once_in_unlike_shapes_is_refused_with_the_way_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(2):
            file[f"m{k}/x"], file[f"m{k}/species"] = np.zeros((3, 2)), np.arange(5 + k)
    fields = ["x", Field("species", take="all")]
    with pytest.raises(errors.FieldLengthError, match=r"of one shape .*Values.*SampleNumber\(\)$"):
        H5Dataset(tmp_path / "a.h5", fields, samples=Rows(of="*"))


def test_a_member_of_a_table_that_is_a_segment_is_a_field(tmp_path):
    kind = [("image", "u1", (2, 2)), ("label", "i4")]
    tables = [np.frombuffer(np.random.default_rng(k).bytes(8 * (5 + k)), kind) for k in range(3)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, table in enumerate(tables):
            file[f"run_{k}"] = table
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
    ],
)
def test_what_is_no_sequence_is_refused(make, says):
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
    ],
    ids=str,
)
def test_segments_that_are_said_wrongly_are_told(tmp_path, of, values, says):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["said"] = np.arange(6), values
    with pytest.raises(errors.OptionError, match=rf"a\.h5': .*{says}"):
        H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(2, of=of))


def test_a_mask_of_names_is_looked_up_in_the_group_that_is_given(tmp_path):
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        for k, rows in enumerate((5, 9, 3, 12)):
            file[f"data/demo_{k}/actions"] = 100 * k + np.arange(rows)
        file["mask/train"] = [b"demo_3", b"demo_0"]
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
