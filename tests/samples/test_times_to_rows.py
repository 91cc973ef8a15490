"""Stretches that arrays in memory say: events between two times, segments by flags, regions that a file refers to."""

import itertools

import h5py
import numpy as np
import pytest
import torch
from support.batches import flat
from support.making import write_datasets

from h5stream import Bounds, Ends, Field, H5Dataset, H5StreamLoader, Lengths, Sequences, errors
from h5stream.samples import searchsorted, segments

EVENTS = {"x": "<u2", "y": "<u2", "p": "u1", "t": "<u4"}


@pytest.fixture
def recordings(tmp_path):
    """Make two recordings of an event camera as DSEC has them, and the times of its frames."""
    rng, found = np.random.default_rng(3), []
    for k, count in enumerate((5000, 3500)):
        path, times = tmp_path / f"events_{k}.h5", np.sort(rng.integers(0, 90_000, count))
        events = {name: rng.integers(0, 2 if name == "p" else 640, count) for name in "xyp"} | {"t": times}
        held = {
            f"events/{name}": {"data": events[name].astype(dtype), "chunks": (333,), "compression": "gzip"}
            for name, dtype in EVENTS.items()
        }
        write_datasets(path, **held, t_offset=40_000 + k)
        found.append((path, 40_000 + k + np.sort(rng.integers(-50, 90_050, 12))))
    return found


def between_frames(path, frames):
    """Give the events between frames, as DSEC's EventSlicer finds them."""
    with h5py.File(path) as file:
        held = {name: file[f"events/{name}"][:] for name in EVENTS}
        times = held["t"] + int(file["t_offset"][()])
    inside = [(begin <= times) & (times < end) for begin, end in itertools.pairwise(frames)]
    return [{name: values[where] for name, values in held.items()} for where in inside]


def dsec(path, frames):
    with h5py.File(path) as file:
        rows = Bounds(searchsorted(file["events/t"], frames - file["t_offset"][()]))
    return H5Dataset(path, {name: Field(f"events/{name}", lookup=rows, ragged="list") for name in EVENTS})


@pytest.mark.parametrize("shuffle", [False, True])
def test_events_between_frames_are_those_of_dsec(recordings, shuffle):
    theirs = [sample for one in recordings for sample in between_frames(*one)]
    ours = flat(H5StreamLoader([dsec(*one) for one in recordings], 4, shuffle=shuffle))
    assert len(ours) == len(theirs) == 22

    def texts(samples):
        return [str({name: np.asarray(values).tolist() for name, values in one.items()}) for one in samples]

    assert sum(len(one["t"]) for one in ours) > 5000
    assert (sorted(texts(ours)) == sorted(texts(theirs))) if shuffle else (texts(ours) == texts(theirs))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("rows", [0, 1, 7, 2000])
def test_searchsorted_is_that_of_numpy(tmp_path, side, rows, monkeypatch):
    monkeypatch.setattr(segments, "_PIECE_ROWS", 16)
    rng = np.random.default_rng(rows)
    for values in (np.sort(rng.integers(0, 300, rows)), np.sort(rng.normal(size=rows))):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["t"] = values
            wanted = rng.choice(np.append(values, [-5, 150, 999]), (11, 3))
            for times in (file["t"], values, *([H5Dataset(file["t"])] if rows else [])):
                found = searchsorted(times, wanted, side)
                assert found.dtype == np.int64
                assert np.array_equal(found, np.searchsorted(values, wanted, side))


@pytest.mark.parametrize("types", [("u8", "i8"), ("i8", "u8"), ("u8", "u8")])
@pytest.mark.parametrize("piece", [2, 100])
def test_nanoseconds_are_told_apart_whatever_their_types(types, piece, monkeypatch):
    monkeypatch.setattr(segments, "_PIECE_ROWS", piece)
    times = 1_700_000_000_000_000_000 + np.arange(9)
    ours = searchsorted(times.astype(types[0]), times.astype(types[1]))
    assert ours.tolist() == [*range(9)]


@pytest.mark.parametrize(("values", "says"), [([3, 2, 5], "do not ascend"), ([[1], [2]], r"have the shape \(2, 1\)")])
def test_what_does_not_ascend_is_refused(values, says):
    with pytest.raises(errors.OptionError, match=f"one number a row, in ascending order; .* {says}"):
        searchsorted(np.array(values), [2])


@pytest.mark.parametrize(
    ("values", "wanted", "says"),
    [
        ([1, 2], [[1], [2, 3]], "each entry of the same shape"),
        ([1, 2], np.zeros(2, "V3"), "which have an order, not .V3"),
        ([1j, 2], [1], "which have an order, not complex128"),
        ([1, 2], ["a"], "cannot compare int64 with"),
        ([1, 2], torch.ones(2, dtype=torch.bfloat16), "a tensor of another type"),
    ],
)
def test_what_has_no_order_is_refused(values, wanted, says):
    with pytest.raises(errors.OptionError, match=says):
        searchsorted(np.array(values), wanted)


@pytest.mark.parametrize(
    ("fields", "samples", "says"),
    [
        ("x", Sequences(2, of=Lengths([4, 4])), "Lengths.the array of 2.: the lengths add up to 8, .* 15 rows"),
        ("x", Sequences(2, of=Ends([0, 1])), "field the array of 2 .* for each of 15 rows"),
        (["x", Field("x", lookup=Lengths([4, 4]))], None, "the array of 2 has 2 numbers, and there are 15 samples"),
        (["x", Field("x", lookup=Lengths([2] * 15))], None, "sample 7 is said to have rows 14 to 16"),
        (
            ["x", Field("x", lookup=Lengths([1] * 8 + [3, 0, 0, 0, 0, 0, 0]))],
            None,
            "sample 8 .* rows 8 to 11 .* several files",
        ),
        (Field("x", lookup=Lengths([4, 11])), None, r"a list of an H5Dataset for each file"),
    ],
)
def test_arrays_that_do_not_fit_are_told(tmp_path, fields, samples, says):
    paths = [write_datasets(tmp_path / f"{count}.h5", x=np.arange(count)) for count in (9, 6)]
    with pytest.raises(errors.OptionError, match=says):
        H5Dataset(paths, fields, samples=samples)


# --- region references, as spine writes its neutrino images


@pytest.fixture
def images(tmp_path):
    rng, path = np.random.default_rng(5), tmp_path / "spine.h5"
    kinds = [("points", h5py.regionref_dtype), ("labels", h5py.regionref_dtype), ("number", "<i8")]
    with h5py.File(path, "w") as file:
        events, ends = file.create_dataset("events", (20,), np.dtype(kinds)), {"points": 0, "labels": 0}
        points = file.create_dataset("points", (0, 5), "<f4", maxshape=(None, 5), chunks=(16, 5), compression="gzip")
        labels = file.create_dataset("labels", (0,), "<i4", maxshape=(None,), chunks=(10,))
        for k in range(20):
            event = np.zeros(1, np.dtype(kinds))
            for dataset, name in ((points, "points"), (labels, "labels")):
                count, first = int(rng.integers(0 if k % 5 else 1, 9)), ends[name]
                ends[name] += count
                dataset.resize(ends[name], axis=0)
                dataset[first:] = rng.integers(0, 99, (count, *dataset.shape[1:]))
                event[name] = dataset.regionref[first : ends[name]] if count else h5py.RegionReference()
            event["number"] = k
            events[k] = event[0]
    return path


def test_images_by_region_references_are_those_of_spine(images):
    fields = {name: Field(name, lookup=Bounds(f"events:{name}"), ragged="list") for name in ("points", "labels")}
    with h5py.File(images) as file:
        regions = [{name: (file[name], event[name]) for name in fields} for event in file["events"][:]]
        theirs = [
            {name: rows[at].reshape(-1, *rows.shape[1:]) if at else rows[:0] for name, (rows, at) in event.items()}
            for event in regions
        ]
    for shuffle, number in ((False, {}), (True, {"number": "events:number"})):
        with H5StreamLoader(images, 6, fields=fields | number, shuffle=shuffle) as loader:
            ours = flat(loader)
        assert len(ours) == len(theirs) == 20
        for k, sample in enumerate(ours):
            expected = theirs[int(sample["number"]) if shuffle else k]
            for name, rows in expected.items():
                assert sample[name].shape == rows.shape
                assert np.array_equal(sample[name].numpy(), rows)


@pytest.mark.parametrize(
    ("region", "says"),
    [
        (lambda file: file["points"].regionref[::2], "sample 1 is not of consecutive whole rows"),
        (lambda file: file["points"].regionref[:, 1:3], "sample 1 is not of consecutive whole rows"),
        (lambda file: file["labels"].regionref[1:3], "sample 1 is not of consecutive whole rows of that dataset"),
    ],
)
def test_regions_that_are_no_rows_are_told(images, region, says):
    with h5py.File(images, "a") as file:
        file.create_dataset("refs", (2,), h5py.regionref_dtype)
        file["refs"][0], file["refs"][1] = file["points"].regionref[1:4], region(file)
    with pytest.raises(errors.UnsupportedFieldError, match=says):
        H5Dataset(images, Field("points", lookup=Bounds("refs")))
