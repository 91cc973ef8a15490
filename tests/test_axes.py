"""Samples along another axis than the first, beside slices of h5py: recordings, simulations, unlike rates, tables."""

import h5py
import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from h5stream import Boxes, Field, H5Dataset, H5StreamLoader, Padding, Rows, SampleNumber, Sequences, Table, errors

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
        length, stride=stride, of="rows" if by_row else "*", axis=axis - (len(shapes[0]) if data.draw(st.booleans()) else 0),
        pad=pad, tail=tail, starts=starts,
    )  # fmt: skip
    order = data.draw(
        st.sampled_from([{"shuffle": True, "seed": 1}, {}, {"shuffle": True, "window": 3, "num_workers": 0}])
    )
    source = path
    if by_row:
        with h5py.File(path) as file:
            source = file["0"]
            arguments = {"batch_size": 3, "fields": fields, "samples": samples, **order}
            check(source, arguments, arrays, axis, fields, length, stride, pad, tail, by_row)
    else:
        check(source, {"batch_size": 3, "fields": fields, "samples": samples, **order}, arrays, axis, fields, length, stride, pad, tail, by_row)  # fmt: skip


def check(source, arguments, arrays, axis, fields, length, stride, pad, tail, by_row):
    """Read an epoch, and look at each sample."""
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
