"""Objects with numbers in their names as rows of a group or file, beside h5py."""

import h5py
import numpy as np
import pytest

from h5stream import Field, H5Dataset, Objects, Rows, Sequences, errors

LENGTHS = (12, 5, 30)
WALKS = Sequences(4, of="walk_*", pad="edge")


@pytest.fixture
def path(tmp_path):
    """Walks of frames, each a few datasets of a group; some were never written."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "walks.h5", "w") as file:
        for walk, length in enumerate(LENGTHS):
            group = file.create_group(f"walk_{walk}")
            for t in rng.permutation(length).tolist():
                depth = group.create_dataset(
                    f"frame_{t}_depth", (6, 5), "f4", fillvalue=7, chunks=(4, 5), compression="gzip"
                )
                if t != 3:
                    depth[:] = rng.random((6, 5))
                group[f"steps/{t:03}/state"] = rng.integers(0, 99, 4).astype(">i2")
                group[f"frame_{t}_record"] = np.array([(t, t + 0.5)] * 2, [("a", "i4"), ("b", "f8")])
                group[f"frame_{t}_s"], group["frame_mean_depth"] = t, 0.0
                del group["frame_mean_depth"]
            group["frame_mean_depth"], group["time"] = np.zeros(3), np.arange(length)
    return tmp_path / "walks.h5"


def test_frames_are_rows_of_whatever_takes_rows(path):
    every = [(walk, t) for walk, count in enumerate(LENGTHS) for t in range(count)]
    fields = {"state": Field("steps/{}/state", columns=[1, 3]), "record": "frame_{}_record:b", "time": "time"}
    with h5py.File(path) as file:
        frames = [[file[f"walk_{walk}/frame_{t}_depth"][()] for t in range(n)] for walk, n in enumerate(LENGTHS)]
        states = [file[f"walk_{walk}/steps/{t:03}/state"][[1, 3]] for walk, t in every]
        records = [file[f"walk_{walk}/frame_{t}_record"]["b"] for walk, t in every]
    batch = H5Dataset(path, fields, samples=Rows(of="walk_*"))[:]
    expected = {"state": states, "record": records, "time": [t for _, t in every]}
    assert all(np.array_equal(batch[name].numpy(), values) for name, values in expected.items())
    whole = H5Dataset(path, {"x": Field("frame_{}_depth", ragged="list")}, samples=Objects("walk_*"))[:]["x"]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(whole, frames, strict=True))


def test_frames_of_other_files_and_encoded_ones_are_rows(path, tmp_path):
    imagecodecs = pytest.importorskip("imagecodecs")
    images = np.random.default_rng(0).integers(0, 255, (30, 8, 6, 3), "u1")
    with h5py.File(tmp_path / "frames.h5", "w") as file:
        for t, image in enumerate(images):
            file[f"rgb_{t}"], file[f"flow_{t}"] = np.frombuffer(imagecodecs.png_encode(image), "u1"), np.full((2, 2), t)
    fields = {"image": Field("rgb_{}", decode="png"), "flow": "flow_{}"}
    batch = H5Dataset(tmp_path / "frames.h5", fields)[:]
    assert np.array_equal(batch["image"].numpy(), images)
    beside = {"depth": "walk_2/frame_{}_depth", "flow": Field("flow_{}", file=tmp_path / "frames.h5")}
    assert H5Dataset(path, beside)[12]["flow"].tolist() == [[12, 12], [12, 12]]


@pytest.mark.parametrize(
    ("fields", "samples", "kind", "says"),
    [
        ("frame_{}_none", WALKS, errors.FieldNotFoundError, "nothing has a name such as 'walk_0/frame_0_none'"),
        ("frame_{}_s", WALKS, errors.UnsupportedFieldError, "is a single value.*write them as one dataset"),
        (["frame_{}_depth", "odd/{}"], None, errors.FieldNotFoundError, "nothing has a name"),
        (["walk_2/frame_{}_depth", "odd/{}"], None, errors.FieldLengthError, r"other numbers than those of 'walk_2/fr"),
        ("unlike/{}", None, errors.FieldLengthError, "objects must be alike"),
        ("texts/{}", None, errors.H5StreamError, "numbers"),
        (Field("frame_{}_depth", ragged="pad"), WALKS, errors.OptionError, "ragged= is for"),
        ("frame_{}_depth", Objects("walk_*"), errors.OptionError, r"with ragged= for Objects"),
        (Field("frame_{}_depth", take="all"), WALKS, errors.OptionError, "makes objects the rows"),
        ("frame_{}_depth", Sequences(2, of="walk_*", axis=1), errors.OptionError, "along axis 0"),
    ],
)
def test_what_makes_no_rows_is_refused_in_words(path, fields, samples, kind, says):
    with h5py.File(path, "a") as file:
        for t in range(30):
            file[f"odd/{2 * t}"], file[f"unlike/{t}"], file[f"texts/{t}"] = np.zeros(2), np.zeros(2 + t % 2), ["a", "b"]
    with pytest.raises(kind, match=says):
        H5Dataset(path, fields, samples=samples)
