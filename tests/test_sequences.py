"""Sequences of rows as samples, from real files, beside what h5py gives to a reader of a few lines."""

import h5py
import numpy as np
import pytest
from amounts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from inner import stream_all

from h5stream import Field, H5Dataset, H5StreamLoader, SampleNumber
from h5stream.errors import FieldLengthError, FieldNotFoundError, OptionError
from h5stream.samples.segments import Bounds, Ends, Ids, Lengths
from h5stream.samples.sequences import Sequences


def demos(path, lengths=(5, 9, 3, 12), **stored):
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for k, rows in enumerate(lengths):
            group = file.create_group(f"data/demo_{k}")
            chunks = (min(4, rows), 6, 6) if stored else None
            group.create_dataset("obs/image", data=rng.integers(0, 255, (rows, 6, 6), "u1"), chunks=chunks, **stored)
            group["actions"] = rng.random((rows, 7), "f4")
    return str(path)


def by_hand(path, anchor_steps, name, groups, pad):
    """Give every sample of a field, as a loop over groups and rows gives it."""
    found = []
    with h5py.File(path) as file:
        for group in groups:
            x = file[f"{group}/{name}"][()]
            for row in range(len(x)):
                wanted = [row + step for step in anchor_steps]
                if pad is None and (min(wanted) < 0 or max(wanted) >= len(x)):
                    continue
                found.append(x[np.clip(wanted, 0, len(x) - 1)])
    return np.stack(found)


def test_a_mask_of_names_is_looked_up_in_the_group_that_is_given(tmp_path):
    path = demos(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        file["mask/train"] = [b"demo_3", b"demo_0"]
    with h5py.File(path) as file:
        train = H5Dataset(file["data"], "actions", samples=Sequences(3, of=file["mask/train"]))
        said = r"no group 'demo_3'.*mean 'data/demo_3'.*given: H5Dataset\(file\['data'\], \.\.\.\)"
        with pytest.raises(FieldNotFoundError, match=said):
            H5Dataset(path, "actions", samples=Sequences(3, of=file["mask/train"]))
    assert np.array_equal(train[:], by_hand(path, range(3), "actions", ["data/demo_3", "data/demo_0"], None))


@pytest.mark.parametrize("stored", [{}, {"compression": "gzip"}], ids=["contiguous", "gzip"])
@pytest.mark.parametrize("pad", [None, "edge"])
def test_groups_of_episodes_are_segments(tmp_path, stored, pad):
    path = demos(tmp_path / "a.h5", **stored)
    groups = [f"data/demo_{k}" for k in range(4)]
    steps = (-1, 0, 1, 2)
    dataset = H5Dataset(
        path,
        {"image": Field("obs/image", steps=[-1, 0]), "action": "actions", "wide": Field("actions", steps=steps)},
        samples=Sequences(3, of="data/*", pad=pad),
    )
    batch = dataset[:]
    told = by_hand(path, steps, "actions", groups, pad)
    assert len(dataset) == len(told)
    assert (batch["wide"].numpy() == told).all()
    assert (batch["action"].numpy() == told[:, 1:]).all()
    images = by_hand(path, steps, "obs/image", groups, pad)[:, :2]
    assert batch["image"].shape == (len(told), 2, 6, 6)
    assert (batch["image"].numpy() == images).all()
    for index in (0, 7, -1):
        assert (dataset[index]["image"].numpy() == images[index]).all()


GZIP = {"chunks": (4, 3), "compression": "gzip", "shuffle": True}


STORED = [
    {},
    {"chunks": (3, 2)},
    {"chunks": (4, 3), "compression": "gzip", "shuffle": True},
    {"chunks": (6, 1), "compression": "gzip"},  # side by side
    {"chunks": (5, 300), "compression": "lzf", "shuffle": True},  # rows that are long enough to be unshuffled in place
    {"chunks": (2, 2), "fletcher32": True},
    {"chunks": (8, 3), "scaleoffset": 0},  # through h5py
]


@st.composite
def recordings(draw):
    """Files of one flat buffer each, with segments said in one of six ways; and what is asked of them."""
    lengths = draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3))
    steps = draw(st.lists(st.integers(-3, 4), min_size=1, max_size=4, unique=True))
    return {
        "lengths": lengths,
        "way": draw(st.sampled_from(["files", "ends", "ids", "lengths", "bounds", "groups"])),
        "stored": draw(st.sampled_from(STORED)),
        "wide": draw(st.sampled_from([3, 3, 300])),
        "dtype": draw(st.sampled_from(["u1", "<f4", ">i2", "S3"])),
        "steps": steps,
        "pad": draw(st.sampled_from([None, "edge"])),
        "stride": draw(st.integers(1, 3)),
        "columns": draw(st.sampled_from([None, slice(0, 2), [2, 0]])),
    }


OF = {
    "files": lambda: "files",
    "ends": lambda: Ends("ends"),
    "ids": lambda: Ids("ids"),
    "lengths": lambda: Lengths("lengths"),
    "bounds": lambda: Bounds("bounds"),
    "groups": lambda: "episodes/*",
}


def write_recordings(folder, form):
    """Write the files; give their paths, and for each segment its rows."""
    paths, segments, rng = [], [], np.random.default_rng(3)
    for number, lengths in enumerate(form["lengths"]):
        path, rows = folder / f"{number}.h5", sum(lengths)
        x = rng.integers(10, 99, (rows, form["wide"])).astype(form["dtype"])
        cut = np.split(x, np.cumsum(lengths)[:-1])
        stored = dict(form["stored"])
        if np.dtype(form["dtype"]).kind not in "iu":
            stored.pop("scaleoffset", None)
        if stored:
            rows_of_chunk, columns = stored["chunks"]
            stored |= {"maxshape": (None, form["wide"]), "chunks": (rows_of_chunk, min(columns, form["wide"]))}
        with h5py.File(path, "w") as file:
            if form["way"] == "groups":
                for k, some in enumerate(cut):
                    file.create_dataset(f"episodes/e{k}/x", data=some, **stored)
            else:
                file.create_dataset("x", data=x, **stored)
                file["ids"] = np.repeat(np.arange(len(lengths)), lengths)
                file["ends"] = np.isin(np.arange(rows), np.cumsum(lengths) - 1)
                file["lengths"], file["bounds"] = lengths, np.cumsum(lengths)[:-1]
        paths.append(str(path))
        segments += [x] if form["way"] == "files" else cut
    return paths, segments


def samples_by_hand(segments, form):
    found = []
    for rows in segments:
        anchors = []
        for row in range(len(rows)):
            wanted = [row + step for step in form["steps"]]
            if form["pad"] is not None or (min(wanted) >= 0 and max(wanted) < len(rows)):
                anchors.append(wanted)
        found += [rows[np.clip(wanted, 0, len(rows) - 1)] for wanted in anchors[:: form["stride"]]]
    if form["columns"] is None:
        return found
    return [sample[:, form["columns"]] for sample in found]


def same(ours, theirs):
    if theirs.dtype.kind == "S":
        return ours == theirs.tolist()
    return ours.numpy().tobytes() == theirs.astype(theirs.dtype.newbyteorder("=")).tobytes()


@examples(400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=recordings(), data=st.data())
def test_every_sequence_is_what_h5py_gives_a_reader_of_a_few_lines(tmp_path_factory, form, data):
    paths, segments = write_recordings(tmp_path_factory.mktemp("r"), form)
    told = samples_by_hand(segments, form)
    samples = Sequences(of=OF[form["way"]](), pad=form["pad"], stride=form["stride"])
    field = Field("x", steps=form["steps"], columns=form["columns"])
    if not told:
        with pytest.raises(OptionError, match="no sequence fits"):
            H5Dataset(paths, field, samples=samples)
        return
    dataset = H5Dataset(paths, field, samples=samples)
    assert len(dataset) == len(told)
    assert same(dataset[:], np.stack(told))
    some = data.draw(st.lists(st.integers(-len(told), len(told) - 1), min_size=1, max_size=20))
    assert same(dataset[some], np.stack([told[k] for k in some]))
    assert same(dataset[some[0]], told[some[0]])
    if data.draw(st.integers(0, 3)) == 0:
        check_an_epoch(paths, [field, SampleNumber()], samples, told, data)


def check_an_epoch(paths, fields, samples, told, data):
    """Compare every batch of an epoch, of any window, threads and rank, kept in memory or streamed."""
    ranks = data.draw(st.integers(1, min(3, len(told))))
    options = {
        "shuffle": data.draw(st.booleans()),
        "window": data.draw(st.sampled_from(["auto", "all", 7])),
        "num_workers": data.draw(st.sampled_from([0, 2])),
        "seed": data.draw(st.integers(0, 9)),
    }
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            stream_all(patch)
        for rank in range(ranks):
            given = options | {"rank": rank, "world_size": ranks}
            with H5StreamLoader(paths, 4, fields=fields, samples=samples, **given) as loader:
                for values, numbers in loader:
                    assert same(values, np.stack([told[k] for k in numbers.tolist()]))
                    seen += numbers.tolist()
    assert sorted(seen) == list(range(len(told)))


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
    with pytest.raises(FieldLengthError, match="lengths='shortest'"):
        H5Dataset(tmp_path / "demos.h5", ["obs", "actions"], samples=Sequences(3, of="traj_*"))
    for options in ({"lengths": "longest"}, {"lengths": "shortest", "axis": 1}):
        with pytest.raises(OptionError, match="lengths="):
            Sequences(3, **options)
