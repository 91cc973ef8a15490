"""What takes rows takes samples of every kind: ranks, states, devices, processes, staged copies, samplers, subsets."""

import dataclasses
import pickle

import h5py
import numpy as np
import pytest
import torch
from amounts import crossed

from h5stream import (
    Boxes,
    ChunkBatchSampler,
    Field,
    H5Dataset,
    H5StreamLoader,
    Objects,
    Padding,
    Rows,
    SampleNumber,
    Sequences,
    Table,
)

KINDS = {
    "rows": ({"x": "flat/x", "y": "flat/y"}, None),
    "looked up": ({"x": Field("flat/x", rows="flat/image"), "y": "flat/y"}, None),
    "sequences": (
        {"x": Field("x", steps=[-1, 0, 2]), "y": "y", "out": Padding()},
        Sequences(3, of="demos/*", pad="edge"),
    ),
    "random starts": ({"x": "x", "y": "y"}, Sequences(3, of="demos/*", starts="random")),
    "drawn starts": ({"x": "x", "y": "y"}, Sequences(3, of="demos/*", starts="random", per_epoch=25, draw="rows")),
    "rows of groups": ({"x": "x", "y": "y"}, Rows(of="demos/*")),
    "a table": (
        {"x": Field("flat/x", steps=[0, 3]), "y": Field("flat/y", at="end", steps=[0])},
        Table(row=np.arange(0, 40, 3), end=np.arange(40, 54)),
    ),
    "boxes": ({"x": "volume", "y": "label"}, Boxes((3, 4), at="grid", stride=(2, 2), halo=(1, 1), pad="reflect")),
    "random boxes": ({"x": "volume", "y": "label"}, Boxes((3, 4), per_epoch=30)),
    "along an axis": ({"x": "eeg", "y": Field("stage", axis=0, scale=0.1, steps=[0])}, Sequences(10, stride=7, axis=1)),
    "along an axis of rows": (
        {"x": Field("eeg", steps=[0, 2]), "y": "channel"},
        Sequences(of="rows", axis=1, stride=5),
    ),
    "columns of an axis": ({"x": "eeg", "y": Field("volume", axis=0, scale=0.1)}, Rows(axis=-1)),
    "objects": ({"x": "x", "y": "y", "z": "@mark"}, Objects("objects/*")),
    "datasets, stored in two ways": ({"x": ".", "z": "@mark"}, Objects("alone/*")),
    "a table of an axis": (
        {"x": "eeg", "y": "channel"},
        Table(axis=1, length=4, row=[0, 4, 2, 2], start=[0, 96, 5, 50]),
    ),
}


@pytest.fixture(scope="module", params=[{}, {"compression": "gzip"}], ids=["contiguous", "gzip"])
def path(request, tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("kinds") / "a.h5", np.random.default_rng(0)
    with h5py.File(path, "w") as file:

        def add(name, values):
            file.create_dataset(name, data=values, **({**request.param, "chunks": True} if request.param else {}))

        add("flat/x", rng.random((60, 4, 3)))
        add("flat/y", np.arange(60))
        file["flat/image"] = rng.integers(0, 60, 60)
        for k, rows in enumerate((8, 3, 1, 12)):
            add(f"demos/{k}/x", rng.random((rows, 5)))
            add(f"demos/{k}/y", np.arange(rows) + 100 * k)
        for k in range(11):
            add(f"objects/{k}/x", rng.random((4, 3)))
            add(f"objects/{k}/y", np.arange(2) + 10 * k)
            file[f"objects/{k}"].attrs["mark"] = k
            file.create_dataset(f"alone/{k}", data=rng.random(6), chunks=(2 + k % 2,)).attrs["mark"] = k
        add("volume", rng.random((10, 12)))
        add("label", rng.integers(0, 9, (10, 12)))
        add("eeg", rng.random((5, 100)))
        file["stage"], file["channel"] = np.arange(10), np.arange(5)
    return path


def numbered(kind):
    fields, samples = KINDS[kind]
    return {**fields, "number": SampleNumber()}, samples


def check(batches, whole):
    """Compare every sample of an epoch with that of the same number; give the numbers."""
    seen = []
    for batch in batches:
        for place, number in enumerate(batch["number"].tolist()):
            for name, values in whole.items():
                assert torch.equal(batch[name][place], values[number]), (name, number)
            seen.append(number)
    return seen


def every(path, kind):
    """Give all samples that there are, by their numbers, read one at a time."""
    fields, samples = numbered(kind)
    dataset = H5Dataset(path, fields, samples=samples)
    if dataset.layout.draws is not None:  # all that may be drawn
        fields = {name: field for name, field in fields.items() if name != "number"}
        steps = {"starts": "all", "per_epoch": None, "draw": "segments"}
        if isinstance(samples, Boxes):
            boxes = dataclasses.replace(samples, at=np.argwhere(np.ones((8, 9))), per_epoch=None)
            return H5Dataset(path, fields, samples=boxes)[:]
        return H5Dataset(path, fields, samples=dataclasses.replace(samples, **steps))[:]
    singles = [dataset[k] for k in range(len(dataset))]
    return {name: torch.stack([single[name] for single in singles]) for name in singles[0] if name != "number"}


def ranks(path, fields, samples, whole):
    seen = []
    for rank in range(2):
        with H5StreamLoader(
            path, 4, shuffle=True, seed=2, fields=fields, samples=samples, rank=rank, world_size=2, window=8
        ) as loader:
            seen += check(loader, whole)
    with H5StreamLoader(path, 4, shuffle=True, seed=2, fields=fields, samples=samples, window=8) as loader:
        assert len(seen) in (len(loader.dataset), len(loader.dataset) + 1)
    return seen


def resumed(path, fields, samples, whole):
    given = {"shuffle": True, "seed": 2, "window": 8, "fields": fields, "samples": samples}
    with H5StreamLoader(path, 2, **given) as loader:
        expected = check(loader, whole)
    seen = []
    with H5StreamLoader(path, 2, **given) as loader:
        for batch in loader:
            seen += check([batch], whole)
            state = loader.state_dict()
            break
    with H5StreamLoader(path, 2, **given) as loader:
        loader.load_state_dict(state)
        seen += check(loader, whole)
    assert seen == expected
    return seen


def subset(path, fields, samples, whole):
    dataset = pickle.loads(pickle.dumps(H5Dataset(path, fields, samples=samples)))
    if dataset.layout.draws is not None and dataset.layout.draws.per_epoch is not None:
        return
    chosen = dataset.subset(np.arange(0, len(dataset), 2))
    seen = check(H5StreamLoader(chosen, 3, shuffle=True, num_workers=0), whole)
    assert len(seen) == len(chosen)
    return


def under_a_data_loader(path, fields, samples, whole):
    dataset = H5Dataset(path, fields, samples=samples)
    sampler = ChunkBatchSampler(dataset, 4, shuffle=True, seed=1)
    return check(torch.utils.data.DataLoader(dataset, batch_sampler=sampler), whole)


def plain(**options):
    def read(path, fields, samples, whole):
        with H5StreamLoader(path, 4, fields=fields, samples=samples, **options) as loader:
            check(loader, whole)
            seen = check(loader, whole)
            assert loader.stats().rows == len(seen)
        return seen

    return read


WAYS = {
    "shuffled": plain(shuffle=True, seed=1),
    "in order": plain(),
    "without threads": plain(shuffle=True, num_workers=0, window=5),
    "all in one window": plain(shuffle=True, window="all"),
    "on a device": plain(shuffle=True, device="cpu"),
    "skipping errors": plain(shuffle=True, on_error="skip", memory_budget=32 << 20),
    "ranks": ranks,
    "resumed": resumed,
    "subset": subset,
    "a stock DataLoader": under_a_data_loader,
}


@pytest.mark.parametrize(("kind", "way"), crossed(tuple(KINDS), tuple(WAYS)))
def test_samples_of_every_kind_are_read_in_every_way(path, kind, way):
    fields, samples = numbered(kind)
    whole = every(path, kind)
    seen = WAYS[way](path, fields, samples, whole)
    if seen is not None and samples is not None and kind in ("random starts",):
        assert len(seen) == 3
    elif seen is not None and not kind.startswith(("drawn", "random")):
        assert set(seen) == set(range(len(whole["x"])))


@pytest.mark.parametrize("kind", KINDS)
def test_staged_copies_of_every_kind(path, kind, tmp_path):
    fields, samples = numbered(kind)
    whole = every(path, kind)
    with H5StreamLoader(path, 4, shuffle=True, fields=fields, samples=samples, stage_to=tmp_path) as loader:
        assert check(loader, whole)
