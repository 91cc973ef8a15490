"""Another number of rows in each sample: offsets, lengths, variable length, sparse matrices."""

import h5py
import numpy as np
import torch

from examples.gallery.program import Program, as_lists, measured
from h5stream import Between, Bounds, Field, H5StreamLoader, Lengths, Values


class WatChMaL(Program):
    """The hits of an event, and its label; an index says where each event's begin."""

    repository, subject, layout = "WatChMaL/WatChMaL", "particle physics", "flat rows, and where each sample begins"
    batch, size, collate = 256, 200, staticmethod(as_lists)
    hits = ("hit_pmt", "hit_time", "hit_charge")

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        counts = rng.integers(0, 90, 50 * size)
        with h5py.File(folder / "digi.h5", "w") as file:
            file["hit_pmt"] = rng.integers(0, 2000, sum(counts)).astype("i4")
            file["hit_time"], file["hit_charge"] = measured(rng, sum(counts)), measured(rng, sum(counts))
            file["event_hits_index"], file["labels"] = np.cumsum(counts) - counts, rng.integers(0, 4, len(counts))

    def __init__(self, folder):
        with h5py.File(folder / "digi.h5") as file:
            self.labels = file["labels"][:]
            self.index = np.append(file["event_hits_index"], len(file["hit_pmt"])).astype(np.int64)
            self.mapped = {
                name: np.memmap(
                    folder / "digi.h5", mode="r", shape=one.shape, offset=one.id.get_offset() or 0, dtype=one.dtype
                )
                if one.id.get_offset() is not None
                else one[:]
                for name, one in ((name, file[name]) for name in self.hits)
            }

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        start, stop = self.index[index : index + 2]
        hits = {name: np.array(values[start:stop]) for name, values in self.mapped.items()}
        return {**hits, "label": self.labels[index]}

    @staticmethod
    def ours(folder, **options):
        rows = Bounds("event_hits_index")
        fields = {name: Field(name, lookup=rows) for name in ("hit_pmt", "hit_time", "hit_charge")}
        return H5StreamLoader(folder / "digi.h5", fields={**fields, "label": "labels"}, **options)


class Returnn(Program):
    """The frames of an utterance, and its targets, which are fewer."""

    repository, subject, layout = "rwth-i6/returnn", "speech", "flat rows, and lengths"
    batch, size, collate = 32, 50, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        lengths = np.stack([rng.integers(50, 200, 20 * size), rng.integers(0, 40, 20 * size)], 1)
        frames, targets = lengths.sum(0)
        with h5py.File(folder / "data.hdf", "w") as file:
            file["inputs"] = measured(rng, frames, 40)
            file["targets/data/classes"] = rng.integers(0, 5000, targets).astype("i4")
            file["seqLengths"], file["inputLengths"], file["targetLengths"] = lengths, lengths[:, 0], lengths[:, 1]

    def __init__(self, folder):
        self.file = h5py.File(folder / "data.hdf")
        self.starts = np.vstack([[0, 0], np.cumsum(self.file["seqLengths"][...], axis=0)])

    def __len__(self):
        return len(self.starts) - 1

    def __getitem__(self, index):
        (frames, classes), (frames_end, classes_end) = self.starts[index : index + 2]
        return {
            "data": self.file["inputs"][frames:frames_end],
            "classes": self.file["targets/data/classes"][classes:classes_end],
        }

    @staticmethod
    def ours(folder, **options):
        return H5StreamLoader(
            folder / "data.hdf",
            fields={
                "data": Field("inputs", lookup=Lengths("inputLengths"), ragged="pad"),
                "classes": Field("targets/data/classes", lookup=Lengths("targetLengths"), ragged="pad"),
            },
            **options,
        )


class NeuralMotifs(Program):
    """The boxes of an image, their labels and relations, by the first and the last of each; -1 for none."""

    repository, subject, layout = "rowanz/neural-motifs", "scene graphs", "flat rows, first and last of each sample"
    batch, size, collate = 64, 100, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        counts = np.stack([rng.integers(1, 30, 40 * size), rng.integers(0, 12, 40 * size)], 1)
        ends = np.cumsum(counts, axis=0)
        with h5py.File(folder / "VG-SGG.h5", "w") as file:
            file["boxes_1024"] = rng.integers(0, 1024, (ends[-1, 0], 4)).astype("i4")
            file["labels"] = rng.integers(1, 151, (ends[-1, 0], 1))
            file["relationships"] = rng.integers(0, 9, (ends[-1, 1], 2)).astype("i4")
            for column, name in enumerate(("box", "rel")):
                some = counts[:, column] > 0
                file[f"img_to_first_{name}"] = np.where(some, ends[:, column] - counts[:, column], -1)
                file[f"img_to_last_{name}"] = np.where(some, ends[:, column] - 1, -1)

    def __init__(self, folder):
        with h5py.File(folder / "VG-SGG.h5") as file:
            self.data = {name: file[name][:] for name in file}

    in_memory = True

    def __len__(self):
        return len(self.data["img_to_first_box"])

    def __getitem__(self, index):
        data = self.data
        boxes, relations = (
            slice(data[f"img_to_first_{kind}"][index], data[f"img_to_last_{kind}"][index] + 1)
            for kind in ("box", "rel")
        )
        return {
            "boxes": data["boxes_1024"][boxes],
            "labels": data["labels"][boxes, 0],
            "relationships": data["relationships"][relations] if relations.start >= 0 else np.zeros((0, 2), "i4"),
        }

    @staticmethod
    def ours(folder, **options):
        boxes = Between("img_to_first_box", "img_to_last_box", inclusive=True)
        relations = Between("img_to_first_rel", "img_to_last_rel", inclusive=True)
        return H5StreamLoader(
            folder / "VG-SGG.h5",
            fields={
                "boxes": Field("boxes_1024", lookup=boxes),
                "labels": Field("labels", columns=(0, ...), lookup=boxes),
                "relationships": Field("relationships", lookup=relations),
            },
            **options,
        )


class CheapReco(Program):
    """The voxels of an event: coordinates and energies of variable length, and its label."""

    repository, subject, layout = "jacknewsom/cheap-reco", "particle physics", "values of variable length"
    batch, size, collate = 64, 60, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng, events = np.random.default_rng(0), 40 * size
        with h5py.File(folder / "events.h5", "w") as file:
            for name in ("voxels_x", "voxels_y", "voxels_z", "energies"):
                dtype = "f4" if name == "energies" else "i4"
                file.create_dataset(name, (events,), dtype=h5py.vlen_dtype(dtype))
                for k in range(events):
                    file[name][k] = rng.integers(0, 200, k * 7919 % 120)
            file["label"] = rng.integers(0, 3, events)

    def __init__(self, folder):
        self.file = h5py.File(folder / "events.h5")

    def __len__(self):
        return len(self.file["label"])

    def __getitem__(self, index):
        return {name: one[index] for name, one in self.file.items()}

    @staticmethod
    def ours(folder, **options):
        names = ("voxels_x", "voxels_y", "voxels_z", "energies")
        fields = {name: Field(name, ragged="packed") for name in names}
        return H5StreamLoader(folder / "events.h5", fields={**fields, "label": "label"}, **options)


class EventCnn(Program):
    """The events of a camera between two of its frames; each frame says in an attribute where it comes."""

    repository, subject, layout = "TimoStoff/event_cnn_minimal", "event cameras", "flat rows, attributes of frames"
    batch, size, collate = 16, 10, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng, frames = np.random.default_rng(0), 20 * size
        ends = np.cumsum(rng.integers(500, 4000, frames))
        with h5py.File(folder / "sequence.h5", "w") as file:
            for name, dtype in (("xs", "i2"), ("ys", "i2"), ("ts", "f8"), ("ps", "?")):
                file[f"events/{name}"] = (rng.random(ends[-1]) * 200).astype(dtype)
            for k, end in enumerate(ends):
                file[f"images/image{k:09}"] = rng.integers(0, 255, (18, 24), "u1")
                file[f"images/image{k:09}"].attrs["event_idx"] = end

    def __init__(self, folder):
        self.file = h5py.File(folder / "sequence.h5")
        self.ends = [frame.attrs["event_idx"] for frame in self.file["images"].values()]

    def __len__(self):
        return len(self.ends) - 1

    def __getitem__(self, index):
        events = slice(self.ends[index], self.ends[index + 1])
        return {name: self.file[f"events/{name}"][events] for name in ("xs", "ys", "ts", "ps")}

    @staticmethod
    def ours(folder, **options):
        if not (folder / "frames.h5").exists():
            with h5py.File(folder / "frames.h5", "w") as index, h5py.File(folder / "sequence.h5") as file:
                index["bounds"] = [frame.attrs["event_idx"] for frame in file["images"].values()]
        events = {"file": folder / "sequence.h5", "lookup": Bounds("bounds", holds="bounds")}
        fields = {name: Field(f"events/{name}", **events) for name in ("xs", "ys", "ts", "ps")}
        return H5StreamLoader(folder / "frames.h5", fields=fields, **options)


def write_cells(path, rng, cells, genes):
    """Write an AnnData file: sparse counts, a type for each cell, and the genes' names."""
    counts = rng.integers(len(genes) // 20, len(genes) // 8, cells)
    columns = [np.sort(rng.choice(len(genes), count, replace=False)) for count in counts]
    with h5py.File(path, "w") as file:
        file["X/indptr"], file["X/indices"] = np.append(0, np.cumsum(counts)), np.concatenate(columns).astype("i4")
        file["X/data"] = rng.integers(1, 30, sum(counts)).astype("f4")
        file["X"].attrs.update(
            {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": (cells, len(genes))}
        )
        file["obs/cell_type/codes"] = rng.integers(0, 3, cells).astype("i1")
        file["obs/cell_type/categories"] = ["B", "NK", "T"]
        file["obs/cell_type"].attrs["encoding-type"] = "categorical"
        file["var/_index"] = genes


def dense_row(matrix, row):
    """Give a row of a sparse matrix, as its whole width."""
    found, values = slice(*matrix["indptr"][row : row + 2]), np.zeros(matrix.attrs["shape"][1], "f4")
    values[matrix["indices"][found]] = matrix["data"][found]
    return values


class AnnData(Program):
    """The counts of a cell, and its type."""

    repository, subject, layout = "scverse/anndata", "single cells", "a sparse matrix, row by row"
    batch, size = 128, 20

    @staticmethod
    def make(folder, size=1):
        write_cells(folder / "cells.h5ad", np.random.default_rng(0), 60 * size, [f"g{k}" for k in range(2000)])

    def __init__(self, folder):
        self.file = h5py.File(folder / "cells.h5ad")

    def __len__(self):
        return len(self.file["obs/cell_type/codes"])

    def __getitem__(self, index):
        return {"x": dense_row(self.file["X"], index), "cell_type": self.file["obs/cell_type/codes"][index]}

    @staticmethod
    def ours(folder, **options):
        fields = {"x": Field("X", ragged="dense"), "cell_type": "obs/cell_type"}
        return H5StreamLoader(folder / "cells.h5ad", fields=fields, **options)


class MappedCollection(Program):
    """The counts of a cell, of the genes that its files have in common, in one order, and its type."""

    repository, subject, layout = "laminlabs/lamindb", "single cells", "sparse matrices, columns in unlike order"
    batch, size = 128, 20
    transforms = True

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for k in range(2):
            genes = [f"g{gene}" for gene in rng.permutation(2000)[:1800]]
            write_cells(folder / f"cells_{k}.h5ad", rng, 40 * size, genes)

    def __init__(self, folder):
        self.files = [h5py.File(folder / f"cells_{k}.h5ad") for k in range(2)]
        genes = [file["var/_index"].asstr()[:].tolist() for file in self.files]
        joint = sorted(set(genes[0]) & set(genes[1]))
        self.columns = [[names.index(gene) for gene in joint] for names in genes]
        self.rows = [(k, row) for k, file in enumerate(self.files) for row in range(len(file["obs/cell_type/codes"]))]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        k, row = self.rows[index]
        x = dense_row(self.files[k]["X"], row)[self.columns[k]]
        return {"x": x, "cell_type": self.files[k]["obs/cell_type/codes"][row]}

    @staticmethod
    def ours(folder, **options):
        genes = [h5py.File(folder / f"cells_{k}.h5ad")["var/_index"].asstr()[:].tolist() for k in range(2)]
        joint = sorted(set(genes[0]) & set(genes[1]))
        place = np.array([[joint.index(gene) if gene in joint else -1 for gene in names] for names in genes])

        def joined(batch):
            values, columns, offsets, _ = batch["x"]
            row = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
            column = torch.from_numpy(place)[batch["file"][row], columns.long()]
            x = torch.zeros(len(offsets) - 1, len(joint))
            x[row[column >= 0], column[column >= 0]] = values[column >= 0]
            return {"x": x, "cell_type": batch["cell_type"]}

        cells = [len(h5py.File(folder / f"cells_{k}.h5ad")["obs/cell_type/codes"]) for k in range(2)]
        file = Values(np.repeat(range(2), cells))
        fields = {"x": Field("X", columns="by place", ragged="packed"), "cell_type": "obs/cell_type", "file": file}
        return H5StreamLoader(f"{folder}/cells_*.h5ad", fields=fields, batch_transform=joined, **options)
