"""Samples that are no rows, and fields that are no datasets: beside h5py, through dataset and loader."""

from itertools import pairwise

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

LENGTHS = (9, 1, 23, 4, 40, 17)


@pytest.fixture(scope="module", params=[{}, {"compression": "gzip", "shuffle": True}], ids=["contiguous", "gzip"])
def path(request, tmp_path_factory):
    """Demonstrations of unlike lengths, each a group: images, actions, and what each has once."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("demos") / "demos.h5"
    with h5py.File(path, "w") as file:
        file.attrs["robot"] = "arm"
        for k, rows in enumerate(LENGTHS):
            group = file.create_group(f"data/demo_{k}")
            chunks = (min(5, rows), 6, 6, 3) if request.param else None
            images = rng.integers(0, 255, (rows, 6, 6, 3), "u1")
            group.create_dataset("obs/image", data=images, chunks=chunks, **request.param)
            group["actions"] = rng.random((rows, 7), "f4")
            group["goal"] = rng.random(3)
            group.attrs["success"], group.attrs["text"] = k % 2, f"task {k}"
    return str(path)


def test_a_state_of_other_sequences_is_refused(path):
    def made(samples):
        return H5StreamLoader(path, 8, fields="actions", samples=samples)

    state = made(Sequences(4, of="data/*")).state_dict()
    for other in ({"length": 5}, {"stride": 2}, {"pad": "edge"}):
        with pytest.raises(errors.StateError, match="and is now"):
            made(Sequences(**{"length": 4, "of": "data/*"} | other)).load_state_dict(state)
    padded = [made(Sequences(4, of="data/*", pad=pad)) for pad in ("edge", "zeros")]
    with pytest.raises(errors.StateError, match="samples was"):
        padded[1].load_state_dict(padded[0].state_dict())


def test_flat_buffers_are_cut_where_a_field_says_so(tmp_path):
    ends = np.isin(np.arange(30), [4, 5, 17, 24])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observations"], file["terminals"], file["timeouts"] = np.arange(30), ends, np.zeros(30, bool)
    samples = Sequences(3, of=Ends("terminals", "timeouts"))
    found = H5Dataset(tmp_path / "a.h5", "observations", samples=samples)[:].tolist()
    edges = [0, 5, 6, 18, 25, 30]
    expected = [list(range(k, k + 3)) for a, b in pairwise(edges) for k in range(a, b - 2)]
    assert found == expected


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
        H5Dataset(path, fields, samples=samples)
    with pytest.raises(kind, match=says):
        H5StreamLoader(path, 4, fields=fields, samples=samples)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sequences(0), "length must be at least 1"),
        (lambda: Sequences(2, stride=0), "stride must be at least 1"),
        (lambda: Sequences(2.5), "length is an integer"),
        (lambda: Sequences(2, pad="repeat"), "'edge', 'zeros' or a number"),
        (lambda: Sequences(2, tail="cut"), "'drop' or 'shift'"),
        (lambda: Sequences(2, pad="edge", tail="shift"), "leave pad= out"),
        (lambda: Sequences(2, pad_rows=(1, 1)), "needs pad="),
        (lambda: Sequences(2, pad="edge", pad_rows=3), "two numbers of rows"),
        (lambda: Field("x", take=[]), "steps= is empty"),
        (lambda: Take("ab"), "a range or a list"),
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
    ],
    ids=str,
)
def test_segments_that_are_said_wrongly_are_told(tmp_path, of, values, says):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["said"] = np.arange(6), values
    with pytest.raises(errors.OptionError, match=rf"a\.h5': .*{says}"):
        H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(2, of=of))
