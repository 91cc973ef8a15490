"""Samples along another axis than the first, beside slices of h5py: recordings, simulations, unlike rates, tables."""

import contextlib

import h5py
import numpy as np
import pytest
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from h5stream import (
    Boxes,
    Ends,
    Field,
    H5Dataset,
    H5StreamLoader,
    Padding,
    Rows,
    SampleNumber,
    Sequences,
    Table,
    errors,
)

STORED = [{}, {"chunks": True}, {"chunks": True, "compression": "gzip"}, {"chunks": True, "fletcher32": True}]


def taken(values, axis, places, pad):
    """Take places along an axis of an array; those outside of it as `pad` says."""
    count = values.shape[axis]
    found = np.take(values, np.clip(places, 0, count - 1), axis=axis)
    if pad is not None and pad != "edge":
        outside = [k for k, place in enumerate(places) if not 0 <= place < count]
        where = [slice(None)] * found.ndim
        where[axis] = outside
        found[tuple(where)] = 0 if pad == "zeros" else pad
    return found


@st.composite
def recordings(draw):
    """Some arrays of one rank, one of whose axes is time, of unlike length."""
    axes = draw(st.integers(2, 4))
    axis = draw(st.integers(1, axes - 1))
    others = [draw(st.integers(1, 4)) for _ in range(axes)]
    shapes = []
    for _ in range(draw(st.integers(1, 3))):
        shape = list(others)
        shape[axis] = draw(st.integers(1, 14))
        shapes.append(tuple(shape))
    dtype = draw(st.sampled_from(["u1", "<f4", ">i2", "<f8"]))
    options = []
    for shape in shapes:
        kind = draw(
            st.sampled_from([*STORED, *([{"chunks": True, "scaleoffset": 0}] if dtype in ("u1", ">i2") else [])])
        )
        options.append({**kind, "chunks": tuple(draw(st.integers(1, n)) for n in shape)} if kind else {})
    return axis, shapes, dtype, options


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=recordings(), data=st.data())
def test_every_sample_along_an_axis_is_what_h5py_slices(tmp_path, form, data):
    axis, shapes, dtype, options = form
    rng, arrays = np.random.default_rng(0), []
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for k, (shape, stored) in enumerate(zip(shapes, options, strict=True)):
            arrays.append(rng.integers(0, 100, shape).astype(dtype))
            file.create_dataset(f"{k}/x", data=arrays[-1], **stored)
            file[f"{k}/t"] = np.arange(shape[axis])
            file[str(k)].attrs["name"] = k
    by_row = len(shapes) == 1 and data.draw(st.booleans())
    most = max(shape[axis] for shape in shapes)
    steps = data.draw(st.lists(st.integers(-2, most), min_size=1, max_size=4))
    length, stride = data.draw(st.integers(1, most)), data.draw(st.integers(1, 4))
    pad = data.draw(st.sampled_from([None, "edge", "zeros", 7]))
    tail = data.draw(st.sampled_from(["drop", "shift"])) if pad is None else "drop"
    starts = data.draw(st.sampled_from(["all", "random"]))
    fields = {
        "x": Field("x", steps=steps) if data.draw(st.booleans()) else "x",
        "t": Field("t", axis=0),
        "number": SampleNumber(),
        "out": Padding(),
        "name": "@name",
    }
    samples = Sequences(
        length,
        stride=stride,
        of="rows" if by_row else "*",
        axis=axis - (len(shapes[0]) if data.draw(st.booleans()) else 0),
        pad=pad,
        tail=tail,
        starts=starts,
    )
    order = data.draw(
        st.sampled_from([{"shuffle": True, "seed": 1}, {}, {"shuffle": True, "window": 3, "num_workers": 0}])
    )
    with contextlib.ExitStack() as opened:
        source = opened.enter_context(h5py.File(path))["0"] if by_row else path
        arguments = {"batch_size": 3, "fields": fields, "samples": samples, **order}
        check(source, arguments, arrays, axis % arrays[0].ndim, by_row)


def check(source, arguments, arrays, axis, by_row):
    """Read an epoch, and look at each sample."""
    fields, samples = arguments["fields"], arguments["samples"]
    length, stride, pad, tail = samples.length, samples.stride, samples.pad, samples.tail
    steps = list(range(length)) if fields["x"] == "x" else list(fields["x"].steps)
    least, most = min(0, *steps), max(length - 1, *steps)
    expected = []
    for k, array in enumerate(arrays):
        count = array.shape[axis]
        if pad is None:
            first, last = max(0, -least), min(count - 1, count - 1 - most)
        else:
            first, last = 0, count - 1
        begins = list(range(first, last + 1, stride))
        if tail == "shift" and begins and begins[-1] < last:
            begins.append(last)
        expected += [(k, row, begin) for row in range(array.shape[0] if by_row else 1) for begin in begins]
    if not expected:
        with pytest.raises(errors.OptionError, match="no sample fits"):
            H5StreamLoader(source, **arguments)
        return
    with H5StreamLoader(source, **arguments) as loader:
        batches = list(loader)
        everything = loader.dataset.layout.samples
    assert everything == len(expected)
    seen = []
    for batch in batches:
        for place, number in enumerate(batch["number"].tolist()):
            k, row, begin = expected[number]
            seen.append(number)
            values = arrays[k][row] if by_row else arrays[k]
            along = axis - 1 if by_row else axis
            places = [begin + step for step in steps]
            assert (batch["x"][place].numpy() == taken(values, along, places, pad)).all()
            reference = np.arange(arrays[k].shape[axis])
            whole = [begin + step for step in range(length)]
            assert (batch["t"][place].numpy() == taken(reference, 0, whole, pad)).all()
            assert batch["out"][place].tolist() == [not 0 <= each < len(reference) for each in whole]
            assert batch["name"][place] == k
    if arguments["samples"].starts == "all":
        assert sorted(seen) == list(range(len(expected)))
    else:
        segments = [expected[number][:2] for number in seen]
        assert sorted(segments) == sorted(set(segments)) == sorted({each[:2] for each in expected})


@pytest.mark.parametrize("stored", [{}, {"chunks": (2, 3, 4), "compression": "gzip"}], ids=["contiguous", "gzip"])
def test_a_sample_may_be_one_index_of_another_axis(tmp_path, stored):
    values = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, **stored)
        file["y"] = np.arange(6)
    dataset = H5Dataset(tmp_path / "a.h5", {"x": "x", "y": Field("y", axis=0)}, samples=Rows(axis=-1))
    assert len(dataset) == 6
    for k in range(6):
        assert (dataset[k]["x"].numpy() == values[..., k]).all()
        assert dataset[k]["y"] == k


@pytest.mark.parametrize("stored", [{}, {"chunks": (2, 3, 4, 2), "compression": "gzip"}], ids=["contiguous", "gzip"])
@pytest.mark.parametrize(
    "columns", [[2, 0], slice(1, 3), (..., 1), (1, ...), (slice(None, None, 2), [0, 2])], ids=lambda each: str(each)
)
def test_columns_choose_of_the_axes_that_samples_do_not_lie_along(tmp_path, stored, columns):
    values = np.arange(4 * 5 * 7 * 3).reshape(4, 5, 7, 3).astype("f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, **stored)
    samples = Sequences(2, of="rows", axis=2)
    dataset = H5Dataset(tmp_path / "a.h5", Field("x", columns=columns), samples=samples)
    for number in range(len(dataset)):
        row, start = divmod(number, 6)
        first, second = columns if isinstance(columns, tuple) else (columns, slice(None))
        others = values[row].transpose(0, 2, 1)  # time last, so that what is chosen comes first
        first = slice(None) if first is Ellipsis else first
        second = slice(None) if second is Ellipsis else second
        wanted = others[first][..., second, :] if isinstance(first, int) else others[first][:, second]
        wanted = wanted[..., start : start + 2]
        if wanted.ndim == 3:
            wanted = wanted.transpose(0, 2, 1)
        elif isinstance(first, int):
            wanted = wanted.T
        assert (dataset[number].numpy() == wanted).all()


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("columns", [[], slice(9, None), (slice(None), slice(2, 2))], ids=str)
@pytest.mark.parametrize("samples", [Rows(axis=1), Sequences(2, axis=1), Sequences(2, axis=1, pad=5)], ids=str)
def test_a_choice_of_no_columns_gives_samples_without_elements(tmp_path, stored, columns, samples):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((3, 6, 4)), **stored)
    dataset = H5Dataset(tmp_path / "a.h5", Field("x", columns=columns), samples=samples)
    first, last = (3, 0) if isinstance(columns, tuple) else (0, 4)
    shape = (first, last) if isinstance(samples, Rows) else (first, 2, last)
    assert dataset[0].shape == shape
    with H5StreamLoader(dataset, len(dataset), shuffle=True) as loader:
        assert [batch.shape for batch in loader] == [(len(dataset), *shape)]


@pytest.mark.parametrize("stored", [{}, {"chunks": (7,), "compression": "gzip"}], ids=["contiguous", "gzip"])
def test_fields_of_unlike_rates_are_taken_at_the_same_time(tmp_path, stored):
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "night.h5", "w") as file:
        for subject, stages in (("a", 9), ("b", 4)):
            file.create_dataset(f"{subject}/eeg", data=rng.random(stages * 30 + 5), **stored)
            file[f"{subject}/stage"] = np.arange(stages)
    fields = {"eeg": "eeg", "stage": Field("stage", scale=1 / 30), "now": Field("stage", scale=1 / 30, steps=[0])}
    samples = Sequences(60, stride=15, of="*")
    with (
        H5StreamLoader(
            tmp_path / "night.h5", 4, shuffle=True, fields={**fields, "n": SampleNumber()}, samples=samples
        ) as loader,
        h5py.File(tmp_path / "night.h5") as file,
    ):
        starts = [("a", k) for k in range(0, 9 * 30 + 5 - 59, 15) if k // 30 + 1 < 9]
        starts += [("b", k) for k in range(0, 4 * 30 + 5 - 59, 15) if k // 30 + 1 < 4]
        count = 0
        for batch in loader:
            for place, number in enumerate(batch["n"].tolist()):
                subject, start = starts[number]
                assert (batch["eeg"][place].numpy() == file[subject]["eeg"][start : start + 60]).all()
                assert batch["stage"][place].tolist() == [start // 30, start // 30 + 1]
                assert batch["now"][place].tolist() == [start // 30]
                count += 1
    assert count == len(starts)


@pytest.mark.parametrize("stored", [{}, {"chunks": (4, 4, 4), "compression": "gzip"}], ids=["contiguous", "gzip"])
@pytest.mark.parametrize("at", ["random", "grid", "listed"])
def test_boxes_of_fields_of_unlike_resolution_are_of_the_same_place(tmp_path, stored, at):
    rng = np.random.default_rng(0)
    raw, label = rng.random((12, 16, 20), "f4"), rng.integers(0, 5, (12, 8, 10))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", data=raw, **stored)
        file.create_dataset("label", data=label, **stored)
    given = {
        "random": {"per_epoch": 20},
        "grid": {"at": "grid", "stride": (3, 4, 4)},
        "listed": {"at": [[0, 0, 0], [5, 6, 8], [8, 12, 12]]},
    }[at]
    boxes = Boxes((4, 4, 8), **given)
    fields = {"raw": "raw", "label": Field("label", scale=(1, 0.5, 0.5)), "n": SampleNumber()}
    with H5StreamLoader(tmp_path / "a.h5", 3, shuffle=True, fields=fields, samples=boxes) as loader:
        space, count = loader.dataset.layout.space, 0
        for batch in loader:
            for place, origin in enumerate(space.boxes_of(batch["n"].numpy())[1].tolist()):
                z, y, x = origin
                assert (batch["raw"][place].numpy() == raw[z : z + 4, y : y + 4, x : x + 8]).all()
                y, x = y / 2, x / 2
                assert y == int(y)
                assert x == int(x)
                wanted = label[z : z + 4, int(y) : int(y) + 2, int(x) : int(x) + 4]
                assert (batch["label"][place].numpy() == wanted).all()
                count += 1
    assert count == len(loader.dataset)


def test_what_each_row_has_once_comes_whole(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"], file["p"], file["label"] = np.zeros((3, 9)), np.arange(12).reshape(3, 4), np.arange(3)
    fields = {"u": "u", "p": Field("p", axis="rows"), "label": "label"}
    dataset = H5Dataset(tmp_path / "a.h5", fields, samples=Sequences(4, of="rows", axis=1))
    assert [dataset[k]["p"].tolist() for k in (0, 6, 17)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert dataset[17]["label"] == 2
    with pytest.raises(errors.OptionError, match="axis='rows' takes the row of axis 0"):
        H5Dataset(tmp_path / "a.h5", {"u": "u", "p": Field("p", axis="rows")}, samples=Sequences(4, axis=1))


@pytest.fixture
def recording(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["short"], file["y"] = np.zeros((3, 10)), np.zeros((3, 9)), np.zeros(10)
        file["third"], file["text"] = np.zeros(3), np.zeros((3, 10), "S2")
        file["empty"] = np.zeros((3, 0))
    return tmp_path / "a.h5"


@pytest.mark.parametrize(
    ("fields", "samples", "kind", "says"),
    [
        ("x", lambda: Sequences(2, of="rows"), errors.OptionError, "so axis= is another"),
        ("x", lambda: Rows(), errors.OptionError, "Rows needs of="),
        ("x", lambda: Sequences(2, axis=2), errors.OptionError, r"'x'.*shape \(3, 10\), and no axis 2"),
        ("x", lambda: Sequences(11, axis=1), errors.OptionError, "span 11 elements.*has 10"),
        (["x", "short"], lambda: Sequences(2, axis=1), errors.FieldLengthError, "'short': it has 9 .*'x' has 10"),
        (["x", "y"], lambda: Sequences(2, axis=1), errors.OptionError, r"'y'.*Field\(..., axis=\) names another"),
        (["x", "y"], lambda: Sequences(2, of="rows", axis=1), errors.FieldLengthError, "'y': it has 10 .*'x' has 3"),
        ("y", lambda: Sequences(2, of="rows", axis=1), errors.OptionError, "each of them has fewer"),
        ("text", lambda: Sequences(2, axis=1), errors.UnsupportedFieldError, "parts of volumes are of numbers"),
        ("empty", lambda: Sequences(2, axis=1), errors.FieldLengthError, "there is nothing in it"),
        (Field("x", axis=1), lambda: Sequences(2), errors.OptionError, "a sample is a row of axis 0"),
        (Field("x", scale=2), lambda: None, errors.OptionError, "a sample is a row of axis 0"),
        (Field("x", scale=2), lambda: Table(row=[0]), errors.OptionError, "a sample is a row of axis 0"),
        (["y", Field("x", scale=2)], lambda: Sequences(2, of=Ends("y")), errors.OptionError, "cuts rows into segments"),
        (["x", Field("third", axis=0, scale=0.3)], lambda: Sequences(10, axis=1), errors.OptionError, None),
        (
            ["x", Field("y", axis=0, scale=0.5)],
            lambda: Sequences(2, axis=1),
            errors.FieldLengthError,
            "and 5 with scale",
        ),
        (["x", Field("third", axis=0, scale=1 / 3)], lambda: Sequences(4, axis=1), errors.OptionError, "makes 1.33333"),
        (Field("x", scale=0.5), lambda: Sequences(2, axis=1), errors.OptionError, "counts against fields without"),
        ("x", lambda: Table(axis=1, row=[0]), errors.OptionError, "needs a column 'start'"),
        ("x", lambda: Table(axis=1, length=3, row=[0], start=[8]), errors.OptionError, "'start' is 8 at sample 0"),
        ("x", lambda: Table(axis=1, length=3, row=[3], start=[0]), errors.OptionError, "'row' is 3 at sample 0"),
        ("x", lambda: Table(axis=1, length=3, start=[-1]), errors.OptionError, "'start' is -1 at sample 0"),
        (Field("x", at="end"), lambda: Table(axis=1, start=[1]), errors.OptionError, "names a column"),
        (Field("x", columns=[3]), lambda: Sequences(2, of="rows", axis=1), errors.OptionError, "none; leave it out"),
    ],
)
def test_what_does_not_fit_together_is_told(recording, fields, samples, kind, says):
    if says is None:
        assert len(H5Dataset(recording, fields, samples=samples())) == 1
        return
    with pytest.raises(kind, match=says):
        H5Dataset(recording, fields, samples=samples())


def test_segments_that_are_too_short_are_counted(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, length in enumerate((10, 3, 2, 7)):
            file[f"{k}/x"] = np.zeros((2, length))
            file[f"{k}/y"] = np.zeros(length)
    assert "2 segment(s)" in repr(H5Dataset(tmp_path / "a.h5", "x", samples=Sequences(4, of="*", axis=1)))
    assert "2 segment(s)" in repr(H5Dataset(tmp_path / "a.h5", "y", samples=Sequences(4, of="*")))
