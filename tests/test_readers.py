"""Programs that are not in `examples/gallery/`, or written in another way there: layout, reader in h5py, and ours.

Every sample of a shuffled epoch is compared, through a loader and through a stock DataLoader.
"""

import itertools

import h5py
import numpy as np
import pytest
import torch

from h5stream import (
    Boxes,
    Crop,
    Field,
    H5Dataset,
    H5StreamLoader,
    Objects,
    SampleNumber,
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


@STORED
def test_mixdata(tmp_path, stored):
    """A group a mixture, and of each a random stretch, the same one of the mixture and of both its sources."""
    rng, segment = np.random.default_rng(0), 20
    with h5py.File(tmp_path / "mixtures.h5", "w") as file:
        for k in range(12):
            for name in ("mix", "s1", "s2"):
                write(file, f"mixtures/{k}/{name}", rng.random(segment + 5 * k).astype("f4"), stored)
    names = ["mix", "s1", "s2"]
    # As a tensor, since all are as long.
    fields, samples = {name: Field(name, ragged="pad", crop=Crop(segment)) for name in names}, Objects("mixtures/*")
    loader = H5StreamLoader(tmp_path / "mixtures.h5", 5, shuffle=True, fields=fields, samples=samples)
    epochs = []
    with h5py.File(tmp_path / "mixtures.h5") as file, loader:
        for _ in range(2):
            starts = {}
            for batch in loader:
                for mix, s1, s2 in zip(*(batch[name].values.numpy() for name in names), strict=True):
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
