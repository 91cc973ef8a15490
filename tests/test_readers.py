"""Programs that read HDF5 for training, by what each reads: its layout, its reader in h5py, and what one writes here.

Every sample of a shuffled epoch is compared, through a loader and through a stock DataLoader.
"""

import itertools

import h5py
import imagecodecs
import numpy as np
import pytest
import torch
from numpy.lib.recfunctions import structured_to_unstructured

from h5stream import (
    Between,
    Bounds,
    Boxes,
    Crop,
    Ends,
    Field,
    H5Dataset,
    H5StreamLoader,
    Lengths,
    Objects,
    Padding,
    Rows,
    SampleNumber,
    Sequences,
    Table,
    Values,
)

GZIP = {"compression": "gzip", "shuffle": True}
STORED = pytest.mark.parametrize("stored", [{}, GZIP], ids=["contiguous", "gzip"])


def write(file, name, values, stored, rows=7):
    options = {**stored, "chunks": (min(rows, len(values)), *values.shape[1:])} if stored else {}
    file.create_dataset(name, data=values, **options)


def check_all(expected, source, fields, samples=None):
    """Compare each sample with that of the same number, or, without numbers, as far as `expected` can find it."""
    fields = {**fields, "number": SampleNumber()}
    dataset = H5Dataset(source, fields, samples=samples)
    assert len(dataset) == len(expected)
    loaders = [
        H5StreamLoader(source, 8, shuffle=True, seed=1, fields=fields, samples=samples),
        H5StreamLoader(dataset, 5, shuffle=True, window=10, num_workers=0),
        torch.utils.data.DataLoader(dataset, 4, shuffle=True),
    ]
    for loader in loaders:
        seen = []
        for batch in loader:
            for place, number in enumerate(batch["number"].tolist()):
                for name, wanted in expected[number].items():
                    found = batch[name][place]
                    if isinstance(wanted, str):
                        assert found == wanted
                    else:
                        assert np.array_equal(found.numpy(), wanted), (name, number)
                seen.append(number)
        assert sorted(seen) == list(range(len(expected)))


@STORED
def test_robomimic(tmp_path, stored):
    """Demonstrations by a mask of names; a stack of frames and the coming actions, padded by the nearest."""
    rng, frames, length = np.random.default_rng(0), 3, 5
    lengths = {"demo_0": 9, "demo_3": 4, "demo_10": 14, "demo_11": 6}
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for name, rows in lengths.items():
            write(file, f"data/{name}/obs/agentview_image", rng.integers(0, 255, (rows, 8, 8, 3), "u1"), stored)
            write(file, f"data/{name}/actions", rng.random((rows, 7)), stored)
        file["mask/train"] = np.array([b"demo_10", b"demo_0", b"demo_3"])
    expected = []
    with h5py.File(tmp_path / "demos.h5") as file:
        train = [name.decode() for name in file["mask/train"][:]]
        for name in train:
            demo, rows = file["data"][name], lengths[name]
            for index in range(rows):
                begin, end = max(0, index - (frames - 1)), min(rows, index + length)
                before, after = max(0, frames - 1 - index), max(0, index + length - rows)

                def padded(values, before=before, after=after):
                    return np.concatenate([values[:1]] * before + [values] + [values[-1:]] * after)

                expected.append({
                    "image": padded(demo["obs/agentview_image"][begin:end]),
                    "action": padded(demo["actions"][begin:end]),
                    "is_pad": np.array([True] * before + [False] * (end - begin) + [True] * after),
                })  # fmt: skip
    steps = range(1 - frames, length)
    fields = {"image": Field("obs/agentview_image", steps=steps), "action": Field("actions", steps=steps)}
    samples = Sequences(of=[f"data/{name}" for name in train], pad="edge")
    check_all(expected, tmp_path / "demos.h5", {**fields, "is_pad": Padding(steps)}, samples)


@STORED
def test_diffusion_policy(tmp_path, stored):
    """Windows of a horizon that may begin before a demonstration and end behind it, but only so far."""
    rng, horizon, before, after = np.random.default_rng(0), 8, 1, 3
    lengths = (12, 5, 30)
    with h5py.File(tmp_path / "demos.h5", "w") as file:
        for k, rows in enumerate(lengths):
            write(file, f"data/demo_{k}/obs/image", rng.integers(0, 255, (rows, 6, 6, 3), "u1"), stored)
            write(file, f"data/demo_{k}/actions", rng.random((rows, 10), "f4"), stored)
    expected = []
    with h5py.File(tmp_path / "demos.h5") as file:
        for k, rows in enumerate(lengths):
            for start in range(-before, rows - horizon + after + 1):
                wanted = np.clip(np.arange(start, start + horizon), 0, rows - 1)
                demo = file[f"data/demo_{k}"]
                expected.append({"image": demo["obs/image"][()][wanted], "action": demo["actions"][()][wanted]})
    samples = Sequences(of="data/*", pad="edge", pad_rows=(before, after))
    # An anchor is a row that is there; the windows are those of all anchors, counted from one row before.
    steps = range(-before, horizon - before)
    fields = {"image": Field("obs/image", steps=steps), "action": Field("actions", steps=steps)}
    check_all(expected, tmp_path / "demos.h5", fields, samples)


@STORED
def test_act(tmp_path, stored):
    """A file an episode: one random time of each, and all actions from there on, zeros behind the end."""
    rng, rows = np.random.default_rng(0), 20
    paths = [str(tmp_path / f"episode_{k}.hdf5") for k in range(5)]
    for path in paths:
        with h5py.File(path, "w") as file:
            write(file, "observations/images/top", rng.integers(0, 255, (rows, 8, 8, 3), "u1"), stored)
            write(file, "observations/qpos", rng.random((rows, 14)), stored)
            write(file, "action", rng.random((rows, 14)), stored)
            file.attrs["sim"] = True
    fields = {
        "image": Field("observations/images/top", steps=[0]),
        "qpos": Field("observations/qpos", steps=[0]),
        "action": Field("action", steps=range(rows)),
        "is_pad": Padding(range(rows)),
        "start": Field("observations/qpos", steps=[0], columns=[0]),
        "sim": "@sim",
    }
    samples, starts = Sequences(of="files", starts="random", pad="zeros"), []
    for epoch in range(4):
        with H5StreamLoader(paths, 2, shuffle=True, fields=fields, samples=samples, seed=epoch) as loader:
            episodes = []
            for batch in loader:
                for place in range(len(batch["qpos"])):
                    for episode, path in enumerate(paths):
                        with h5py.File(path) as file:
                            times = np.flatnonzero(
                                file["observations/qpos"][:, 0] == batch["start"][place, 0, 0].item()
                            )
                            if not len(times):
                                continue
                            start = int(times[0])
                            padded, is_pad = np.zeros((rows, 14)), np.arange(rows) >= rows - start
                            padded[: rows - start] = file["action"][start:]
                            assert np.array_equal(batch["image"][place, 0], file["observations/images/top"][start])
                            assert np.array_equal(batch["qpos"][place, 0], file["observations/qpos"][start])
                            assert np.array_equal(batch["action"][place], padded)
                            assert np.array_equal(batch["is_pad"][place], is_pad)
                            episodes.append(episode)
                            starts.append(start)
            assert sorted(episodes) == list(range(5))
    assert len(set(starts)) > 5


@STORED
def test_fourcastnet(tmp_path, stored):
    """A file a year: some channels of some times before as input, others of a later one as target, within the year."""
    rng, history, step, inputs, outputs = np.random.default_rng(0), 1, 2, [0, 3, 5], [1, 2]
    paths = [str(tmp_path / f"{year}.h5") for year in (1979, 1980)]
    for path, times in zip(paths, (15, 20), strict=True):
        with h5py.File(path, "w") as file:
            write(file, "fields", rng.random((times, 6, 9, 12), "f4"), stored, rows=1)
    expected = []
    for path in paths:
        with h5py.File(path) as file:
            fields = file["fields"]
            expected += [
                {"x": fields[time - step * history : time + 1 : step, inputs], "y": fields[time + step, outputs][None]}
                for time in range(step * history, len(fields) - step)
            ]
    fields = {
        "x": Field("fields", steps=range(-step * history, 1, step), columns=inputs),
        "y": Field("fields", steps=[step], columns=outputs),
    }
    check_all(expected, paths, fields, Sequences(of="files"))


@STORED
def test_d4rl(tmp_path, stored):
    """One flat buffer: transitions to the next observation, but not over the end of an episode."""
    rng, rows = np.random.default_rng(0), 120
    ends = rng.random((2, rows)) < 0.1
    with h5py.File(tmp_path / "buffer.h5", "w") as file:
        write(file, "observations", rng.random((rows, 11), "f4"), stored)
        write(file, "actions", rng.random((rows, 3), "f4"), stored)
        write(file, "rewards", rng.random(rows, "f4"), stored)
        file["terminals"], file["timeouts"] = ends
    expected = []
    with h5py.File(tmp_path / "buffer.h5") as file:
        expected += [
            {
                "observation": file["observations"][i : i + 1], "next": file["observations"][i + 1 : i + 2],
                "action": file["actions"][i : i + 1], "reward": file["rewards"][i : i + 1],
            }
            for i in range(rows - 1)
            if not file["terminals"][i] and not file["timeouts"][i]
        ]  # fmt: skip
    fields = {
        "observation": Field("observations", steps=[0]), "next": Field("observations", steps=[1]),
        "action": Field("actions", steps=[0]), "reward": Field("rewards", steps=[0]),
    }  # fmt: skip
    check_all(expected, tmp_path / "buffer.h5", fields, Sequences(of=Ends("terminals", "timeouts")))


@STORED
def test_biofoundation(tmp_path, stored):
    """Groups of windows and labels, one behind the other."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "eeg.h5", "w") as file:
        for k, rows in enumerate((12, 1, 30)):
            write(file, f"data_group_{k}/X", rng.random((rows, 22, 16), "f4"), stored)
            write(file, f"data_group_{k}/y", rng.integers(0, 4, rows), stored)
    with h5py.File(tmp_path / "eeg.h5") as file:
        expected = [{"x": group["X"][i], "y": group["y"][i]} for group in file.values() for i in range(len(group["y"]))]
    check_all(expected, tmp_path / "eeg.h5", {"x": "X", "y": "y"}, Rows(of="data_group_*"))


@STORED
def test_seisbench(tmp_path, stored):
    """Traces in buckets: a table names for each the bucket, the row, and the part of it (here the same for all)."""
    rng, shapes = np.random.default_rng(0), [(9, 3, 40), (5, 3, 52), (7, 4, 64)]
    with h5py.File(tmp_path / "waveforms.hdf5", "w") as file:
        for k, shape in enumerate(shapes):
            write(file, f"data/bucket{k}", rng.random(shape, "f4"), stored, rows=2)
    bucket = rng.integers(0, 3, 30)
    row = np.array([rng.integers(0, shapes[k][0]) for k in bucket])
    names = [f"bucket{k}${i},:3,:36" for k, i in zip(bucket, row, strict=True)]
    expected = []
    with h5py.File(tmp_path / "waveforms.hdf5") as file:
        for name in names:
            dataset, where = name.split("$")
            i, channels, times = where.split(",")
            expected.append({"x": file[f"data/{dataset}"][int(i), : int(channels[1:]), : int(times[1:])], "name": name})
    table = Table(group=[f"data/{name.split('$')[0]}" for name in names], row=row)
    fields = {"x": Field(".", columns=(slice(3), slice(36))), "name": Values(names)}
    check_all(expected, tmp_path / "waveforms.hdf5", fields, table)


@STORED
def test_clevr_iep(tmp_path, stored):
    """Questions of one file, each with the features of its image in another."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "questions.h5", "w") as file, h5py.File(tmp_path / "features.h5", "w") as features:
        for name, values in {
            "questions": rng.integers(0, 90, (70, 20)), "programs": rng.integers(0, 40, (70, 27)),
            "answers": rng.integers(0, 28, 70), "image_idxs": rng.integers(0, 7, 70),
        }.items():  # fmt: skip
            write(file, name, values, stored)
        write(features, "features", rng.random((7, 16, 5, 5), "f4"), stored, rows=1)
    with h5py.File(tmp_path / "questions.h5") as file, h5py.File(tmp_path / "features.h5") as features:
        expected = [
            {
                "question": file["questions"][i],
                "program": file["programs"][i],
                "answer": file["answers"][i],
                "features": features["features"][file["image_idxs"][i]],
            }
            for i in range(70)
        ]
    fields = {
        "question": "questions",
        "program": "programs",
        "answer": "answers",
        "features": Field("features", file=str(tmp_path / "features.h5"), rows="image_idxs"),
    }
    check_all(expected, tmp_path / "questions.h5", fields)


@STORED
def test_pcam(tmp_path, stored):
    """Images of one file, labels of another, of shape (N, 1, 1, 1)."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "x.h5", "w") as images, h5py.File(tmp_path / "y.h5", "w") as labels:
        write(images, "x", rng.integers(0, 255, (50, 12, 12, 3), "u1"), stored)
        write(labels, "y", rng.integers(0, 2, (50, 1, 1, 1), "u1"), stored)
        expected = [{"image": images["x"][i], "label": labels["y"][i, 0, 0, 0]} for i in range(50)]
    fields = {"image": "x", "label": Field("y", file=str(tmp_path / "y.h5"), columns=(0, 0, 0, ...))}
    check_all(expected, tmp_path / "x.h5", fields)


@STORED
def test_chexzero(tmp_path, stored):
    """Pictures with the texts of a table in memory, some of which are empty."""
    rng, texts = np.random.default_rng(0), [f"finding {k}" if k % 5 else " " for k in range(60)]
    with h5py.File(tmp_path / "cxr.h5", "w") as file:
        write(file, "cxr", rng.integers(0, 255, (60, 16, 16), "u1"), stored)
        expected = [{"image": file["cxr"][i], "text": texts[i]} for i in range(60)]
    check_all(expected, tmp_path / "cxr.h5", {"image": "cxr", "text": Values(texts)})


@STORED
def test_so2sat(tmp_path, stored):
    """Some bands, the last axis, of two satellites, and labels one hot."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "so2sat.h5", "w") as file:
        write(file, "sen1", rng.random((40, 8, 8, 8)), stored)
        write(file, "sen2", rng.random((40, 8, 8, 10)), stored)
        write(file, "label", np.eye(17)[rng.integers(0, 17, 40)], stored)
        expected = [
            {"s1": file["sen1"][i, ..., 4:6], "s2": file["sen2"][i][..., [2, 1, 0]], "label": file["label"][i]}
            for i in range(40)
        ]
    fields = {
        "s1": Field("sen1", columns=(..., slice(4, 6))),
        "s2": Field("sen2", columns=(..., [2, 1, 0])),
        "label": "label",
    }
    check_all(expected, tmp_path / "so2sat.h5", fields)


@STORED
def test_salt(tmp_path, stored):
    """Members of compounds as matrices: of jets, and of forty tracks for each."""
    rng = np.random.default_rng(0)
    jets = np.zeros(90, [("pt", "f4"), ("eta", "f4"), ("flavour", "i4"), ("mass", "f4")])
    tracks = np.zeros((90, 40), [("valid", "?"), ("d0", "f4"), ("z0", "f4"), ("pt", "f4")])
    for table in (jets, tracks):
        for name in table.dtype.names:
            values = rng.normal(size=table.shape) * 9
            table[name] = values > 0 if table.dtype[name].kind == "b" else values
    with h5py.File(tmp_path / "jets.h5", "w") as file:
        write(file, "jets", jets, stored, rows=20)
        write(file, "tracks", tracks, stored, rows=20)
    expected = [
        {
            "jets": structured_to_unstructured(jets[i][["pt", "eta", "mass"]]),
            "flavour": jets[i]["flavour"],
            "tracks": structured_to_unstructured(tracks[i][["d0", "pt"]]),
            "valid": tracks[i]["valid"],
        }
        for i in range(90)
    ]
    fields = {
        "jets": Field("jets", members=["pt", "eta", "mass"]),
        "flavour": "jets:flavour",
        "tracks": Field("tracks", members=["d0", "pt"]),
        "valid": "tracks:valid",
    }
    check_all(expected, tmp_path / "jets.h5", fields)


@STORED
def test_pytorch_3dunet(tmp_path, stored):
    """Patches of a grid that covers each volume, with a mirrored halo; channels are taken whole."""
    rng, patch, stride, halo = np.random.default_rng(0), (8, 16, 16), (6, 12, 12), (2, 4, 4)
    paths = [str(tmp_path / f"{k}.h5") for k in range(2)]
    for path, shape in zip(paths, ((14, 30, 40), (8, 33, 20)), strict=True):
        with h5py.File(path, "w") as file:
            options = {**stored, "chunks": (2, 4, 10, 10)} if stored else {}
            file.create_dataset("raw", data=rng.random((2, *shape), "f4"), **options)
            file.create_dataset(
                "label", data=rng.integers(0, 3, shape), **({**stored, "chunks": (4, 10, 10)} if stored else {})
            )

    def indices(whole, size, step):
        last = 0
        for last in range(0, whole - size + 1, step):
            yield last
        if last + size < whole:
            yield whole - size

    expected = []
    for path in paths:
        with h5py.File(path) as file:
            around = [(one, one) for one in halo]
            raw = np.pad(file["raw"][()], [(0, 0), *around], mode="reflect")
            label = np.pad(file["label"][()], around, mode="reflect")
            axes = [indices(*one) for one in zip(file["label"].shape, patch, stride, strict=True)]
            for origin in itertools.product(*map(list, axes)):
                box = tuple(slice(i, i + n + 2 * h) for i, n, h in zip(origin, patch, halo, strict=True))
                expected.append({"raw": raw[(slice(None), *box)], "label": label[box]})
    boxes = Boxes(patch, at="grid", stride=stride, halo=halo, pad="reflect")
    check_all(expected, paths, {"raw": "raw", "label": "label"}, boxes)


@STORED
def test_torch_em(tmp_path, stored):
    """So many crops an epoch anywhere in a volume, the same of raw data and labels."""
    shape, crop = (20, 24, 30), (5, 8, 9)
    raw = np.arange(np.prod(shape)).reshape(shape)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options = {**stored, "chunks": (8, 8, 8)} if stored else {}
        file.create_dataset("raw", data=raw, **options)
        file.create_dataset("labels", data=raw % 7, **options)
    with H5StreamLoader(tmp_path / "a.h5", 4, fields=["raw", "labels"], samples=Boxes(crop, per_epoch=50)) as loader:
        epochs = []
        for _ in range(2):
            seen = []
            for crops, labels in loader:
                for one, label in zip(crops.numpy(), labels.numpy(), strict=True):
                    origin = np.unravel_index(one[0, 0, 0], shape)
                    box = tuple(slice(i, i + n) for i, n in zip(origin, crop, strict=True))
                    assert np.array_equal(one, raw[box])
                    assert np.array_equal(label, raw[box] % 7)
                    seen.append(tuple(map(int, origin)))
            epochs.append(seen)
    assert len(epochs[0]) == len(epochs[1]) == 50
    assert len({*epochs[0], *epochs[1]}) > 60


@STORED
def test_multiple_physics_pretraining(tmp_path, stored):
    """Simulations x time in files: some times as history, the next as target, of several fields; no step leaves one."""
    rng, history = np.random.default_rng(0), 3
    paths = [str(tmp_path / f"ns_{k}.h5") for k in range(2)]
    for path, simulations in zip(paths, (3, 2), strict=True):
        with h5py.File(path, "w") as file:
            write(file, "velocity", rng.random((simulations, 9, 6, 5, 2), "f4"), stored, rows=1)
            write(file, "particles", rng.random((simulations, 9, 6, 5, 1), "f4"), stored, rows=1)
    expected = []
    for path in paths:
        with h5py.File(path) as file:
            simulations, times = file["velocity"].shape[:2]
            for simulation, time in itertools.product(range(simulations), range(history, times)):
                inner = slice(time - history, time + 1)
                both = [file[name][simulation, inner] for name in ("velocity", "particles")]
                trajectory = np.concatenate(both, -1)
                expected.append({"history": trajectory[:-1], "target": trajectory[-1]})
    fields = {
        f"{when}_{name}": Field(name, steps=steps)
        for when, steps in (("history", range(history)), ("target", [history]))
        for name in ("velocity", "particles")
    }

    def joined(batch):
        both = {when: torch.cat([batch[f"{when}_{name}"] for name in ("velocity", "particles")], -1)
                for when in ("history", "target")}  # fmt: skip
        return {"history": both["history"], "target": both["target"][:, 0], "number": batch["number"]}

    samples = Sequences(of="rows", axis=1)
    seen = []
    with H5StreamLoader(
        paths, 4, shuffle=True, fields={**fields, "number": SampleNumber()}, samples=samples, transform=joined
    ) as loader:
        for batch in loader:
            for place, number in enumerate(batch["number"].tolist()):
                seen.append(number)
                for name, wanted in expected[number].items():
                    assert np.array_equal(batch[name][place].numpy(), wanted)
    assert sorted(seen) == list(range(len(expected)))


@STORED
def test_poseidon(tmp_path, stored):
    """All pairs of times t1 <= t2 of each simulation, two of three channels."""
    rng, simulations, times = np.random.default_rng(0), 4, 6
    with h5py.File(tmp_path / "ns.nc", "w") as file:
        write(file, "velocity", rng.random((simulations, times, 3, 8, 8), "f4"), stored, rows=1)
    pairs = [(i, j) for i in range(times) for j in range(i, times) if j - i != 2]
    listed = [(simulation, t1, t2) for simulation in range(simulations) for t1, t2 in pairs]
    expected = []
    with h5py.File(tmp_path / "ns.nc") as file:
        for simulation, t1, t2 in listed:
            velocity = file["velocity"]
            pair = velocity[simulation, t1, 0:2], velocity[simulation, t2, 0:2], np.array(t2 - t1)
            expected.append(dict(zip(("input", "label", "time"), pair, strict=True)))
    table = np.array(listed)
    check_all(
        expected,
        tmp_path / "ns.nc",
        {
            "input": Field("velocity", columns=slice(0, 2)),
            "label": Field("velocity", columns=slice(0, 2), at="end"),
            "time": Values(table[:, 2] - table[:, 1]),
        },
        Table(axis=1, row=table[:, 0], start=table[:, 1], end=table[:, 2]),
    )


@STORED
def test_labram(tmp_path, stored):
    """Subjects as groups of channels x time, a window every so often; the first part of each subject's alone."""
    rng, window, stride, until = np.random.default_rng(0), 20, 7, 0.8
    with h5py.File(tmp_path / "eeg.hdf5", "w") as file:
        for name, length in (("sub_a", 90), ("sub_b", 63), ("sub_c", 20)):
            write(file, f"{name}/eeg", rng.random((5, length)), stored, rows=3)
    expected, chosen, every = [], [], 0
    with h5py.File(tmp_path / "eeg.hdf5") as file:
        for subject in file:
            eeg = file[subject]["eeg"]
            count = (eeg.shape[1] - window) // stride + 1
            last = int(count * until - 1)
            chosen += [every + k for k in range(last + 1)]
            every += count
            expected += [{"eeg": eeg[:, k * stride : k * stride + window]} for k in range(last + 1)]
    samples = Sequences(window, stride=stride, of="*", axis=1)
    dataset = H5Dataset(tmp_path / "eeg.hdf5", {"eeg": "eeg", "number": SampleNumber()}, samples=samples, rows=chosen)
    places = {number: place for place, number in enumerate(chosen)}
    seen = []
    for batch in H5StreamLoader(dataset, 4, shuffle=True):
        for place, number in enumerate(batch["number"].tolist()):
            seen.append(number)
            assert np.array_equal(batch["eeg"][place].numpy(), expected[places[number]]["eeg"])
    assert sorted(seen) == chosen


@STORED
def test_earth_forecasting_transformer(tmp_path, stored):
    """A catalogue of events, which lie in files by year; some frames of each, time being the last axis."""
    rng, frames, stride, raw = np.random.default_rng(0), 4, 3, 12
    paths = [str(tmp_path / f"SEVIR_VIL_{year}.h5") for year in (2018, 2019)]
    for path, events in zip(paths, (3, 4), strict=True):
        with h5py.File(path, "w") as file:
            write(file, "vil", rng.integers(0, 255, (events, 8, 7, raw), "u1"), stored, rows=1)
    catalogue = [(paths[1], 2), (paths[0], 0), (paths[1], 3), (paths[0], 2)]
    listed = [(path, event, k * stride) for path, event in catalogue for k in range((raw - frames) // stride + 1)]
    expected = []
    for path, event, start in listed:
        with h5py.File(path) as file:
            expected.append(
                {"vil": file["vil"][event : event + 1, :, :, slice(0, None)][0][:, :, start : start + frames]}
            )
    files, events, starts = zip(*listed, strict=True)
    check_all(expected, paths, {"vil": "vil"}, Table(axis=-1, length=frames, file=files, row=events, start=starts))


@STORED
def test_eqtransformer(tmp_path, stored):
    """A list of traces, each a dataset of its own, with what its attributes say."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "stead.hdf5", "w") as file:
        for k in range(23):
            write(file, f"data/B{k:03}.TA_EV", rng.random((60, 3), "f4"), stored, rows=60)
            file[f"data/B{k:03}.TA_EV"].attrs["p_arrival_sample"] = float(k)
            file[f"data/B{k:03}.TA_EV"].attrs["snr_db"] = rng.random(3)
    chosen, expected = [f"B{k:03}.TA_EV" for k in (3, 22, 7, 0, 15, 9)], []
    with h5py.File(tmp_path / "stead.hdf5") as file:
        for name in chosen:
            dataset = file.get("data/" + name)
            attributes = dataset.attrs
            expected.append(
                {"x": np.array(dataset), "p": np.array(attributes["p_arrival_sample"]), "snr": attributes["snr_db"]}
            )
    fields = {"x": ".", "p": "@p_arrival_sample", "snr": "@snr_db"}
    check_all(expected, tmp_path / "stead.hdf5", fields, Objects([f"data/{name}" for name in chosen]))


@STORED
def test_cno_benchmarks(tmp_path, stored):
    """Numbered groups of an input and an output; the first of them for training."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "poisson.h5", "w") as file:
        for k in range(14):
            for name in ("input", "output"):
                write(file, f"sample_{k}/{name}", rng.random((8, 8)), stored, rows=4)
    expected = []
    with h5py.File(tmp_path / "poisson.h5") as file:
        for index in range(11):
            sample = file["sample_" + str(index)]
            expected.append({name: sample[name][:].reshape(1, 8, 8) for name in ("input", "output")})
    with h5py.File(tmp_path / "poisson.h5") as file:
        assert sorted(file)[:3] == ["sample_0", "sample_1", "sample_10"]
    names = [f"sample_{k}" for k in range(11)]
    dataset = H5Dataset(tmp_path / "poisson.h5", ["input", "output"], samples=Objects("sample_*"), rows=slice(11))
    for one, two in (dataset[:], H5Dataset(tmp_path / "poisson.h5", ["input", "output"], samples=Objects(names))[:]):
        assert np.array_equal(one[:, None].numpy(), [each["input"] for each in expected])
        assert np.array_equal(two[:, None].numpy(), [each["output"] for each in expected])


@STORED
def test_dncnn(tmp_path, stored):
    """Patches, each a dataset of the file's root with a number as its name, shuffled."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "train.h5", "w") as file:
        for k in range(31):
            write(file, str(k), rng.random((1, 9, 9), "f4"), stored, rows=1)
    with h5py.File(tmp_path / "train.h5") as file:
        expected = [{"patch": np.array(file[key])} for key in sorted(file, key=int)]
    check_all(expected, tmp_path / "train.h5", {"patch": "."}, Objects("*"))


@STORED
def test_ssl4mis(tmp_path, stored):
    """A file a slice, by a list of cases."""
    rng, cases = np.random.default_rng(0), [f"patient{k:03}_frame01_slice_{k % 3}" for k in (4, 1, 7, 2, 11, 5)]
    for case in cases:
        with h5py.File(tmp_path / f"{case}.h5", "w") as file:
            write(file, "image", rng.random((12, 10), "f4"), stored)
            write(file, "label", rng.integers(0, 4, (12, 10), "u1"), stored)
    expected = []
    for case in cases:
        with h5py.File(f"{tmp_path}/{case}.h5") as file:
            expected.append({"image": file["image"][:], "label": file["label"][:]})
    paths = [f"{tmp_path}/{case}.h5" for case in cases]
    check_all(expected, paths, {"image": "image", "label": "label"}, Objects("files"))


def check_ragged(expected, source, fields):
    """Compare each sample of a shuffled epoch, fields of unlike lengths among them."""
    with H5StreamLoader(source, 5, shuffle=True, seed=1, fields={**fields, "number": SampleNumber()}) as loader:
        seen = []
        for batch in loader:
            for place, number in enumerate(batch["number"].tolist()):
                for name, wanted in expected[number].items():
                    found = batch[name]
                    found = found.sample(place) if isinstance(found, tuple) else found[place]
                    assert np.array_equal(found.numpy(), wanted), (name, number)
                seen.append(number)
    assert sorted(seen) == list(range(len(expected)))
    dataset = H5Dataset(source, fields)
    for k, wanted in enumerate(expected):
        assert all(np.array_equal(dataset[k][name].numpy(), values) for name, values in wanted.items())


@STORED
def test_watchmal(tmp_path, stored):
    """Hits of events by where each event's begin; the last event's go on to the end."""
    rng, counts = np.random.default_rng(0), [4, 0, 9, 1, 6, 30, 2, 8, 5, 7, 3]
    index = np.cumsum(counts) - counts
    with h5py.File(tmp_path / "digi.h5", "w") as file:
        write(file, "hit_pmt", rng.integers(0, 2000, sum(counts), "i4"), stored)
        write(file, "hit_time", rng.random(sum(counts), "f4"), stored)
        write(file, "hit_charge", rng.random(sum(counts), "f4"), stored)
        file["event_hits_index"], file["labels"] = index, rng.integers(0, 4, len(counts))
    expected = []
    with h5py.File(tmp_path / "digi.h5") as file:
        event_hits_index = np.append(file["event_hits_index"], file["hit_pmt"].shape[0]).astype(np.int64)
        for item in range(len(counts)):
            start, stop = event_hits_index[item], event_hits_index[item + 1]
            hits = {name: file[name][start:stop] for name in ("hit_pmt", "hit_time", "hit_charge")}
            expected.append({**hits, "labels": file["labels"][item]})
    rows = Bounds("event_hits_index")
    fields = {name: Field(name, rows=rows) for name in ("hit_pmt", "hit_time", "hit_charge")}
    check_ragged(expected, tmp_path / "digi.h5", {**fields, "labels": "labels"})


@STORED
def test_returnn(tmp_path, stored):
    """Sequences of frames one behind the other, and targets of other lengths."""
    rng, lengths = np.random.default_rng(0), np.array([[9, 2], [4, 1], [13, 5], [1, 0], [7, 3], [8, 8]])
    with h5py.File(tmp_path / "data.hdf", "w") as file:
        write(file, "inputs", rng.random((int(lengths[:, 0].sum()), 5), "f4"), stored)
        write(file, "targets/data/classes", rng.integers(0, 40, int(lengths[:, 1].sum()), "i4"), stored)
        file["seqLengths"], file["inputLengths"], file["targetLengths"] = lengths, lengths[:, 0], lengths[:, 1]
    expected = []
    with h5py.File(tmp_path / "data.hdf") as file:
        starts = np.vstack([[0, 0], np.cumsum(file["seqLengths"][...], axis=0)])
        for k in range(len(lengths)):
            (frames, classes), (frames_end, classes_end) = starts[k], starts[k + 1]
            expected.append(
                {
                    "data": file["inputs"][frames:frames_end],
                    "classes": file["targets/data/classes"][classes:classes_end],
                }
            )
    fields = {
        "data": Field("inputs", rows=Lengths("inputLengths")),
        "classes": Field("targets/data/classes", rows=Lengths("targetLengths"), ragged="pad", pad_value=-1),
    }
    check_ragged(expected, tmp_path / "data.hdf", fields)


@STORED
def test_neural_motifs(tmp_path, stored):
    """Boxes and relationships of images by the first and the last of each, which belongs to it; -1 for none."""
    rng, counts = np.random.default_rng(0), np.array([[3, 2], [5, 0], [1, 1], [8, 4], [2, 0], [4, 3]])
    ends = np.cumsum(counts, axis=0)
    with h5py.File(tmp_path / "VG-SGG.h5", "w") as file:
        write(file, "boxes_1024", rng.integers(0, 1024, (int(ends[-1, 0]), 4), "i4"), stored)
        write(file, "labels", rng.integers(1, 151, (int(ends[-1, 0]), 1)), stored)
        write(file, "relationships", rng.integers(0, 9, (int(ends[-1, 1]), 2), "i4"), stored)
        for name, column in (("box", 0), ("rel", 1)):
            some = counts[:, column] > 0
            file[f"img_to_first_{name}"] = np.where(some, ends[:, column] - counts[:, column], -1)
            file[f"img_to_last_{name}"] = np.where(some, ends[:, column] - 1, -1)
    expected = []
    with h5py.File(tmp_path / "VG-SGG.h5") as file:
        first_box, last_box = file["img_to_first_box"][:], file["img_to_last_box"][:]
        first_rel, last_rel = file["img_to_first_rel"][:], file["img_to_last_rel"][:]
        for k in range(len(counts)):
            relationships = np.zeros((0, 2), np.int32)
            if first_rel[k] >= 0:
                relationships = file["relationships"][first_rel[k] : last_rel[k] + 1]
            expected.append(
                {
                    "boxes": file["boxes_1024"][:][first_box[k] : last_box[k] + 1, :],
                    "labels": file["labels"][:, 0][first_box[k] : last_box[k] + 1],
                    "relationships": relationships,
                }
            )
    boxes = Between("img_to_first_box", "img_to_last_box", inclusive=True)
    fields = {
        "boxes": Field("boxes_1024", rows=boxes),
        "labels": Field("labels", columns=(0, ...), rows=boxes, ragged="list"),
        "relationships": Field(
            "relationships", rows=Between("img_to_first_rel", "img_to_last_rel", inclusive=True), ragged="nested"
        ),
    }
    check_ragged(expected, tmp_path / "VG-SGG.h5", fields)


@pytest.mark.parametrize("said", ["sequences", "crops"])
@STORED
def test_mixdata(tmp_path, stored, said):
    """A group a mixture, and of each a random stretch, the same one of the mixture and of both its sources."""
    rng, segment = np.random.default_rng(0), 20
    with h5py.File(tmp_path / "mixtures.h5", "w") as file:
        for k in range(12):
            for name in ("mix", "s1", "s2"):
                write(file, f"mixtures/{k}/{name}", rng.random(segment + 5 * k).astype("f4"), stored)
    names = ["mix", "s1", "s2"]
    if said == "sequences":
        fields, samples = {name: name for name in names}, Sequences(segment, of="mixtures/*", starts="random")
    else:  # as a tensor, since all are as long
        fields = {name: Field(name, ragged="pad", crop=Crop(segment)) for name in names}
        samples = Objects("mixtures/*")
    loader = H5StreamLoader(tmp_path / "mixtures.h5", 5, shuffle=True, fields=fields, samples=samples)
    epochs = []
    with h5py.File(tmp_path / "mixtures.h5") as file, loader:
        for _ in range(2):
            starts = {}
            for batch in loader:
                found = (batch[name] if said == "sequences" else batch[name].values for name in names)
                for mix, s1, s2 in zip(*(each.numpy() for each in found), strict=True):
                    key, r = _found_in(file["mixtures"], mix)
                    assert np.array_equal(s1, file[f"mixtures/{key}/s1"][r : r + segment])
                    assert np.array_equal(s2, file[f"mixtures/{key}/s2"][r : r + segment])
                    starts[key] = r
            assert len(starts) == 12
            epochs.append(starts)
    assert epochs[0] != epochs[1]


def _found_in(mixtures, stretch):
    """Find the mixture that a stretch is of, and where it begins."""
    for key, group in mixtures.items():
        for r in np.flatnonzero(group["mix"][:] == stretch[0]).tolist():
            if np.array_equal(group["mix"][r : r + len(stretch)], stretch):
                return key, r
    raise AssertionError("no mixture has it")


@STORED
def test_passt(tmp_path, stored):
    """Encoded audio as bytes of variable length, decoded by the program itself; the classes as bits."""
    rng, clips = np.random.default_rng(0), 30
    with h5py.File(tmp_path / "audioset.h5", "w") as file:
        options = {**stored, "chunks": (7,)} if stored else {}
        mp3 = file.create_dataset("mp3", (clips,), dtype=h5py.vlen_dtype("u1"), **options)
        for k in range(clips):
            mp3[k] = rng.integers(0, 255, 900 + 37 * (k % 8), "u1")
        write(file, "target", np.packbits(rng.random((clips, 527)) < 0.1, axis=-1), stored)
        file["audio_name"] = [f"Y{k}.mp3" for k in range(clips)]
    with h5py.File(tmp_path / "audioset.h5") as file:
        expected = [{"mp3": file["mp3"][k], "target": file["target"][k]} for k in range(clips)]
    fields = {"mp3": "mp3", "target": "target", "number": SampleNumber()}
    with H5StreamLoader(tmp_path / "audioset.h5", 8, shuffle=True, fields=fields) as loader:
        seen = []
        for batch in loader:
            for k, number in enumerate(batch["number"].tolist()):
                assert batch["mp3"][k].numpy().tobytes() == expected[number]["mp3"].tobytes()
                assert np.array_equal(batch["target"][k].numpy(), expected[number]["target"])
                seen.append(number)
        assert sorted(seen) == list(range(clips))


@STORED
def test_cheap_reco(tmp_path, stored):
    """Voxels of particle events: coordinates and energies of variable length, and whose they are in a batch."""
    rng, events = np.random.default_rng(0), 40
    names = ("voxels_x", "voxels_y", "voxels_z", "energies")
    with h5py.File(tmp_path / "events.h5", "w") as file:
        options = {**stored, "chunks": (9,)} if stored else {}
        columns = [
            file.create_dataset(name, (events,), dtype=h5py.vlen_dtype("f4" if name == "energies" else "i4"), **options)
            for name in names
        ]
        for k in range(events):
            hits = int(rng.integers(0, 60))
            for column in columns:
                column[k] = rng.integers(0, 200, hits)
        write(file, "label", rng.integers(0, 3, events), stored)
    with h5py.File(tmp_path / "events.h5") as file:
        theirs = {name: file[name][:] for name in names}
    fields = {name: Field(name, ragged="packed") for name in names} | {"label": "label", "number": SampleNumber()}
    with H5StreamLoader(tmp_path / "events.h5", 8, shuffle=True, fields=fields) as loader:
        seen = []
        for batch in loader:
            numbers = batch["number"].tolist()
            for name in names:
                assert np.array_equal(batch[name].values.numpy(), np.concatenate([theirs[name][k] for k in numbers]))
                assert batch[name].offsets.diff().tolist() == [len(theirs[name][k]) for k in numbers]
            seen += numbers
        assert sorted(seen) == list(range(events))


@STORED
def test_robotics_diffusion_transformer(tmp_path, stored):
    """Frames of an episode as JPEG buffers, filled up with zeros to the longest."""
    rng, frames = np.random.default_rng(0), 20
    buffers = [imagecodecs.jpeg8_encode(rng.integers(0, 255, (16, 24, 3), "u1")) for _ in range(frames)]
    most = max(map(len, buffers))
    with h5py.File(tmp_path / "episode.h5", "w") as file:
        rows = np.stack([np.frombuffer(each.ljust(most, b"\0"), "u1") for each in buffers])
        write(file, "observations/images/cam_high", rows, stored)
        write(file, "action", rng.random((frames, 14), "f4"), stored)
    expected = []
    with h5py.File(tmp_path / "episode.h5") as file:
        for k in range(frames):
            image = imagecodecs.jpeg8_decode(file["observations/images/cam_high"][k].tobytes())
            expected.append({"image": image, "action": file["action"][k]})
    fields = {"image": Field("observations/images/cam_high", decode="jpeg"), "action": "action"}
    check_all(expected, tmp_path / "episode.h5", fields)


@STORED
def test_lamindb_mapped_collection(tmp_path, stored):
    """Rows of AnnData files whose genes come in another order in each, put in that of the genes they share."""
    rng, rows, expected = np.random.default_rng(0), (11, 8), []
    genes = [[f"g{k}" for k in rng.permutation(14)[:n]] for n in (14, 12)]
    joint = sorted(set(genes[0]) & set(genes[1]))
    paths = [tmp_path / f"{k}.h5ad" for k in range(2)]
    for path, names, count in zip(paths, genes, rows, strict=True):
        dense = np.where(rng.random((count, len(names))) < 0.4, rng.random((count, len(names))), 0).astype("f4")
        row, column = np.nonzero(dense)
        with h5py.File(path, "w") as file:
            options = {**stored, "chunks": (16,), "maxshape": (None,)} if stored else {}
            file.create_dataset("X/data", data=dense[row, column], **options)
            file.create_dataset("X/indices", data=column.astype("i4"), **options)
            file["X/indptr"] = np.append(0, np.bincount(row, minlength=count).cumsum())
            file["X"].attrs.update({"encoding-type": "csr_matrix", "shape": dense.shape})
            file["obs/cell_type/codes"] = rng.integers(0, 3, count, "i1")
            file["obs/cell_type/categories"] = np.array(["B", "NK", "T"], dtype=h5py.string_dtype())
            file["var/_index"] = np.array(names, dtype=h5py.string_dtype())
    for path, count in zip(paths, rows, strict=True):
        with h5py.File(path) as file:
            names = file["var/_index"].asstr()[:].tolist()
            var_indices, matrix = [names.index(gene) for gene in joint], file["X"]
            for idx in range(count):
                found = slice(*matrix["indptr"][idx : idx + 2])
                lazy_row = np.zeros(matrix.attrs["shape"][1], matrix["data"].dtype)
                lazy_row[matrix["indices"][found]] = matrix["data"][found]
                code = file["obs/cell_type/codes"][idx]
                expected.append({"X": lazy_row[var_indices], "cell_type": code})
    first = 0
    for path, names, count in zip(paths, genes, rows, strict=True):
        fields = {
            "X": Field("X", ragged="dense", columns=[names.index(gene) for gene in joint]),
            "cell_type": "obs/cell_type",
        }
        check_all(expected[first : first + count], path, fields)
        assert H5Dataset(path, fields).categories["cell_type"] == ("B", "NK", "T")
        first += count
    # Of all files at once, where they have the same genes.
    with H5StreamLoader([paths[0], paths[0]], 5, shuffle=True, fields={"X": Field("X", ragged="dense")}) as loader:
        assert sum(len(batch["X"]) for batch in loader) == 2 * rows[0]


@STORED
def test_solo_learn(tmp_path, stored):
    """JPEG bytes by class and key, of unlike sizes, opened by PIL; the class is the number of the group's name."""
    rng, expected = np.random.default_rng(0), []
    with h5py.File(tmp_path / "imagenet.h5", "w") as file:
        for k in range(26):
            image = imagecodecs.jpeg8_encode(rng.integers(0, 255, (16 + k % 3, 20, 3), "u1"))
            options = {**stored, "chunks": (len(image),)} if stored else {}
            key = f"n0{k % 3}/{k}.JPEG"
            if k % 2 and not stored:
                file[key] = np.void(image)
            else:
                file.create_dataset(key, data=np.frombuffer(image, "u1"), **options)
    with h5py.File(tmp_path / "imagenet.h5") as file:
        data = [(y, class_name, img) for y, class_name in enumerate(sorted(file)) for img in file[class_name]]
        for y, class_name, img in data:
            image = imagecodecs.jpeg8_decode(file[class_name][img][()].tobytes())
            expected.append({"image": image, "label": y})
    fields = {"image": Field(".", decode="jpeg"), "label": Values(np.array([y for y, _, _ in data]))}
    samples = Objects([f"{class_name}/{img}" for _, class_name, img in data])
    fields["number"] = SampleNumber()
    with H5StreamLoader(tmp_path / "imagenet.h5", 8, shuffle=True, fields=fields, samples=samples) as loader:
        seen = []
        for batch in loader:
            for k, number in enumerate(batch["number"].tolist()):
                assert np.array_equal(batch["image"][k].numpy(), expected[number]["image"])
                assert batch["label"][k] == expected[number]["label"]
                seen.append(number)
    assert sorted(seen) == list(range(26))
