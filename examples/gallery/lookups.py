"""Rows that another field names, of other files, and what is in memory."""

import h5py
import numpy as np

from examples.gallery.program import GZIP, Program, as_lists, measured, pixels
from h5stream import Between, Field, H5StreamLoader, SampleNumber, Table, Values


class ClevrIep(Program):
    """A question, its program and its answer, with the features of its image, which are in another file."""

    repository, subject, layout = (
        "facebookresearch/clevr-iep",
        "visual questions",
        "rows of another file by number",
    )
    size = 20

    @staticmethod
    def make(folder, size=1):
        rng, rows = np.random.default_rng(0), 60 * size
        with h5py.File(folder / "questions.h5", "w") as file, h5py.File(folder / "features.h5", "w") as features:
            file["questions"], file["programs"] = rng.integers(0, 90, (rows, 46)), rng.integers(0, 40, (rows, 27))
            file["answers"], file["image_idxs"] = rng.integers(0, 28, rows), np.arange(rows) // 10
            features.create_dataset("features", data=measured(rng, rows // 10, 1024, 14, 14), chunks=(1, 1024, 14, 14))

    def __init__(self, folder):
        with h5py.File(folder / "questions.h5") as file:
            self.data = {name: file[name][:] for name in file}
        self.features = h5py.File(folder / "features.h5")["features"]

    def __len__(self):
        return len(self.data["answers"])

    def __getitem__(self, index):
        found = {name: self.data[name][index] for name in ("questions", "programs", "answers")}
        return {**found, "features": self.features[self.data["image_idxs"][index]]}

    @staticmethod
    def ours(folder, **options):
        features = Field("features", file=folder / "features.h5", lookup="image_idxs")
        fields = {name: name for name in ("questions", "programs", "answers")}
        return H5StreamLoader(folder / "questions.h5", fields={**fields, "features": features}, **options)


class PCam(Program):
    """An image of one file, and its label of another."""

    repository, subject, layout = "pytorch/vision", "pathology", "rows of two files"
    size = 30

    @staticmethod
    def make(folder, size=1):
        rng, rows = np.random.default_rng(0), 60 * size
        with h5py.File(folder / "x.h5", "w") as images, h5py.File(folder / "y.h5", "w") as labels:
            images.create_dataset("x", data=pixels(rng, rows, 96, 96, 3), chunks=(min(rows, 64), 96, 96, 3), **GZIP)
            labels.create_dataset("y", data=rng.integers(0, 2, (rows, 1, 1, 1), "u1"))

    def __init__(self, folder):
        self.folder = folder
        with h5py.File(folder / "x.h5") as images:
            self.count = len(images["x"])

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with h5py.File(self.folder / "x.h5") as images:
            image = images["x"][index]
        with h5py.File(self.folder / "y.h5") as labels:
            return {"image": image, "label": labels["y"][index, 0, 0, 0]}

    @staticmethod
    def ours(folder, **options):
        fields = {"image": "x", "label": Field("y", file=folder / "y.h5", columns=(0, 0, 0, ...))}
        return H5StreamLoader(folder / "x.h5", fields=fields, **options)


class CheXzero(Program):
    """An X-ray, and what its report says, which is in memory and may be blank."""

    repository, subject, layout = "rajpurkarlab/CheXzero", "medical imaging", "rows, and a table beside"
    batch, size = 32, 10

    @staticmethod
    def make(folder, size=1):
        rng, rows = np.random.default_rng(0), 20 * size
        with h5py.File(folder / "cxr.h5", "w") as file:
            file["cxr"] = measured(rng, rows, 320, 320)
        np.save(folder / "reports.npy", [f"finding {k}" if k % 5 else " " for k in range(rows)])

    def __init__(self, folder):
        self.images, self.reports = h5py.File(folder / "cxr.h5")["cxr"], np.load(folder / "reports.npy")

    def __len__(self):
        return len(self.reports)

    def __getitem__(self, index):
        return {"image": self.images[index], "text": str(self.reports[index])}

    @staticmethod
    def ours(folder, **options):
        fields = {"image": "cxr", "text": Values(np.load(folder / "reports.npy").tolist())}
        return H5StreamLoader(folder / "cxr.h5", fields=fields, **options)


class MVPBenchmark(Program):
    """A shape as one sees it from somewhere, the whole shape, of which there is one for 26 views, and its class."""

    repository, subject, layout = "paul007pl/MVP_Benchmark", "point clouds", "rows by a rule"
    batch, size = 32, 20

    @staticmethod
    def make(folder, size=1):
        rng, shapes = np.random.default_rng(0), 3 * size
        with h5py.File(folder / "mvp.h5", "w") as file:
            for name, count in (("incomplete_pcds", 26 * shapes), ("complete_pcds", shapes)):
                file.create_dataset(name, data=measured(rng, count, 2048, 3), compression="gzip")
            file["labels"] = rng.integers(0, 16, 26 * shapes)

    def __init__(self, folder):
        with h5py.File(folder / "mvp.h5") as file:
            self.data = {name: file[name][:] for name in file}

    in_memory = True

    def __len__(self):
        return len(self.data["labels"])

    def __getitem__(self, index):
        return {
            "partial": self.data["incomplete_pcds"][index],
            "complete": self.data["complete_pcds"][index // 26],
            "label": self.data["labels"][index],
        }

    @staticmethod
    def ours(folder, **options):
        views = len(h5py.File(folder / "mvp.h5")["labels"])
        return H5StreamLoader(
            folder / "mvp.h5",
            fields={
                "partial": "incomplete_pcds",
                "complete": Field("complete_pcds", lookup=np.arange(views) // 26),
                "label": "labels",
            },
            **options,
        )


class ImageCaptioning(Program):
    """A caption, and its image, which five captions share."""

    repository, subject = "sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning", "captions"
    layout = "rows by a rule, and lists beside"
    batch, size = 32, 10

    @staticmethod
    def make(folder, size=1):
        rng, images = np.random.default_rng(0), 8 * size
        with h5py.File(folder / "TRAIN_IMAGES.hdf5", "w") as file:
            file.create_dataset("images", data=pixels(rng, images, 3, 256, 256))
            file.attrs["captions_per_image"] = 5
        np.save(folder / "CAPTIONS.npy", rng.integers(0, 9000, (5 * images, 52)))

    def __init__(self, folder):
        self.file, self.captions = h5py.File(folder / "TRAIN_IMAGES.hdf5"), np.load(folder / "CAPTIONS.npy")
        self.each = self.file.attrs["captions_per_image"]

    def __len__(self):
        return len(self.captions)

    def __getitem__(self, index):
        return {"image": self.file["images"][index // self.each], "caption": self.captions[index]}

    @staticmethod
    def ours(folder, **options):
        captions = np.load(folder / "CAPTIONS.npy")
        samples, fields = Table(row=np.arange(len(captions)) // 5), {"image": "images", "caption": Values(captions)}
        return H5StreamLoader(folder / "TRAIN_IMAGES.hdf5", samples=samples, fields=fields, **options)


class EALSTM(Program):
    """A year of weather at a river, its flow, and the properties of its basin, a row of a table by the basin's name."""

    repository, subject, layout = "kratzert/ealstm_regional_modeling", "hydrology", "rows, and a table by their names"
    batch, size = 256, 50

    @staticmethod
    def make(folder, size=1):
        rng, rows, basins = np.random.default_rng(0), 80 * size, [f"{1_013_500 + 7 * k:08}" for k in range(20)]
        with h5py.File(folder / "camels.h5", "w") as file:
            for name, shape in {"input_data": (rows, 270, 5), "target_data": (rows, 1), "q_stds": (rows, 1)}.items():
                file.create_dataset(name, data=measured(rng, *shape), chunks=True)
            file["sample_2_basin"] = [basins[k // 4 % 20].encode() for k in range(rows)]
        np.savez(folder / "attributes.npz", basins=basins, values=rng.random((20, 27), "f4"))

    def __init__(self, folder):
        self.path, table = folder / "camels.h5", np.load(folder / "attributes.npz")
        self.table = dict(zip(table["basins"].tolist(), table["values"], strict=True))
        with h5py.File(self.path) as file:
            self.count = len(file["q_stds"])

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with h5py.File(self.path) as file:
            return {
                "x": file["input_data"][index],
                "y": file["target_data"][index],
                "q_std": file["q_stds"][index],
                "attributes": self.table[file["sample_2_basin"][index].decode()],
            }

    @staticmethod
    def ours(folder, **options):
        table, basins = np.load(folder / "attributes.npz"), h5py.File(folder / "camels.h5")["sample_2_basin"].asstr()[:]
        rows = {name: row for row, name in enumerate(table["basins"].tolist())}
        attributes = Values(table["values"][[rows[name] for name in basins]])
        fields = {"x": "input_data", "y": "target_data", "q_std": "q_stds", "attributes": attributes}
        return H5StreamLoader(folder / "camels.h5", fields=fields, **options)


class PyTorchVQA(Program):
    """A question and its answer, with the features of its image, found by the image's number."""

    repository, subject, layout = "Cyanogenoid/pytorch-vqa", "visual questions", "rows by an index of numbers"
    batch, size = 32, 8

    @staticmethod
    def make(folder, size=1):
        rng, images = np.random.default_rng(0), 6 * size
        ids = rng.permutation(500_000)[:images]
        with h5py.File(folder / "resnet-14x14.h5", "w") as file:
            file["ids"] = ids
            file.create_dataset("features", data=measured(rng, images, 2048, 14, 14, dtype="f2"))
        np.savez(
            folder / "questions.npz",
            image=rng.permutation(np.repeat(ids, 3)),
            q=rng.integers(0, 900, (3 * images, 23)),
            a=rng.integers(0, 3000, 3 * images),
        )

    def __init__(self, folder):
        table, self.file = np.load(folder / "questions.npz"), h5py.File(folder / "resnet-14x14.h5")
        self.image, self.q, self.a = table["image"], table["q"], table["a"]
        self.rows = {number: row for row, number in enumerate(self.file["ids"][:])}

    def __len__(self):
        return len(self.a)

    def __getitem__(self, index):
        features = self.file["features"][self.rows[self.image[index]]]
        return {"v": features, "q": self.q[index], "a": self.a[index], "item": index}

    @staticmethod
    def ours(folder, **options):
        table, ids = np.load(folder / "questions.npz"), h5py.File(folder / "resnet-14x14.h5")["ids"][:]
        rows = np.argsort(ids)[np.searchsorted(np.sort(ids), table["image"])]
        return H5StreamLoader(
            folder / "resnet-14x14.h5",
            samples=Table(row=rows),
            fields={"v": "features", "q": Values(table["q"]), "a": Values(table["a"]), "item": SampleNumber()},
            **options,
        )


class BanVQA(Program):
    """A question, and the features of as many boxes as its image has."""

    repository, subject, layout = "jnhwkim/ban-vqa", "visual questions", "stretches of rows by an index"
    batch, size, collate = 64, 10, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng, images = np.random.default_rng(0), 15 * size
        ends = np.cumsum(rng.integers(10, 101, images))
        with h5py.File(folder / "train.hdf5", "w") as file:
            file["pos_boxes"] = np.stack([np.append(0, ends[:-1]), ends], 1)
            file["image_features"] = measured(rng, ends[-1], 512)
            file["spatial_features"] = rng.random((ends[-1], 6), "f4")
        np.savez(
            folder / "entries.npz",
            image=rng.permutation(np.arange(3 * images) % images),
            question=rng.integers(0, 900, (3 * images, 14)),
        )

    def __init__(self, folder):
        self.file, entries = h5py.File(folder / "train.hdf5"), np.load(folder / "entries.npz")
        self.pos_boxes, self.image, self.question = self.file["pos_boxes"][:], entries["image"], entries["question"]

    def __len__(self):
        return len(self.image)

    def __getitem__(self, index):
        first, last = self.pos_boxes[self.image[index]]
        return {
            "features": self.file["image_features"][first:last],
            "spatials": self.file["spatial_features"][first:last],
            "question": self.question[index],
        }

    @staticmethod
    def ours(folder, **options):
        entries = np.load(folder / "entries.npz")
        if not (folder / "boxes.h5").exists():
            with h5py.File(folder / "boxes.h5", "w") as index, h5py.File(folder / "train.hdf5") as file:
                index["first"], index["last"] = file["pos_boxes"][:][entries["image"]].T
        boxes = {"file": folder / "train.hdf5", "lookup": Between("first", "last"), "ragged": "pad"}
        return H5StreamLoader(
            folder / "boxes.h5",
            fields={
                "features": Field("image_features", **boxes),
                "spatials": Field("spatial_features", **boxes),
                "question": Values(entries["question"]),
            },
            **options,
        )
