"""A row for each sample."""

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

from examples.gallery.program import Program, measured, pixels
from h5stream import Field, H5StreamLoader, SampleNumber


class BigGAN(Program):
    """An image and its label."""

    repository, subject, layout = "ajbrock/BigGAN-PyTorch", "image generation", "rows, large chunks"
    size = 40

    @staticmethod
    def make(folder, size=1):
        rng, rows = np.random.default_rng(0), 100 * size
        with h5py.File(folder / "I64.hdf5", "w") as file:
            chunk = min(500, rows)
            file.create_dataset("imgs", data=pixels(rng, rows, 3, 64, 64), chunks=(chunk, 3, 64, 64))
            file.create_dataset("labels", data=rng.integers(0, 1000, rows), chunks=(chunk,))

    def __init__(self, folder):
        self.path = folder / "I64.hdf5"
        with h5py.File(self.path) as file:
            self.count = len(file["labels"])

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with h5py.File(self.path) as file:
            return {"image": file["imgs"][index], "label": file["labels"][index]}

    @staticmethod
    def ours(folder, **options):
        return H5StreamLoader(folder / "I64.hdf5", fields={"image": "imgs", "label": "labels"}, **options)


class TokenChunks(Program):
    """A chunk of tokens."""

    repository, subject, layout = "Astera-org/ICL-non-ergodic-arxiv", "language", "rows"
    size = 100

    @staticmethod
    def make(folder, size=1):
        tokens = np.random.default_rng(0).integers(0, 50257, (100 * size, 256)).astype("i4")
        with h5py.File(folder / "tokens.h5", "w") as file:
            file.create_dataset("token_chunks", data=tokens, chunks=(100, 256), compression="gzip")

    def __init__(self, folder):
        self.tokens = h5py.File(folder / "tokens.h5")["token_chunks"]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"tokens": self.tokens[index, :]}

    @staticmethod
    def ours(folder, **options):
        return H5StreamLoader(folder / "tokens.h5", fields={"tokens": "token_chunks"}, **options)


class Dgcnn(Program):
    """The first 1,024 points of a shape, and its class."""

    repository, subject, layout = "WangYueFt/dgcnn", "point clouds", "rows, in several files"
    batch, size, in_memory = 32, 20, True

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for k, rows in enumerate((40 * size, 20 * size)):
            with h5py.File(folder / f"ply_data_train{k}.h5", "w") as file:
                file.create_dataset("data", data=measured(rng, rows, 2048, 3), compression="gzip")
                file.create_dataset("label", data=rng.integers(0, 40, (rows, 1), "u1"), compression="gzip")

    def __init__(self, folder):
        data, label = [], []
        for path in sorted(folder.glob("ply_data_train*.h5")):
            with h5py.File(path) as file:
                data.append(file["data"][:])
                label.append(file["label"][:])
        self.data, self.label = np.concatenate(data), np.concatenate(label)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {"points": self.data[index][:1024], "label": self.label[index]}

    @staticmethod
    def ours(folder, **options):
        fields = {"points": Field("data", columns=slice(1024)), "label": "label"}
        return H5StreamLoader(f"{folder}/ply_data_train*.h5", fields=fields, **options)


class Indoor3D(Program):
    """The points of a room, with colours, and a label for each point."""

    repository, subject, layout = "erikwijmans/Pointnet2_PyTorch", "point clouds", "rows, in several files"
    batch, size, in_memory = 32, 10, True

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for k in range(2):
            with h5py.File(folder / f"ply_data_all_{k}.h5", "w") as file:
                data = measured(rng, 15 * size, 4096, 9)
                file.create_dataset("data", data=data, compression="gzip")
                file.create_dataset("label", data=rng.integers(0, 13, (15 * size, 4096), "u1"), compression="gzip")

    def __init__(self, folder):
        files = [h5py.File(folder / f"ply_data_all_{k}.h5") for k in range(2)]
        self.points = np.concatenate([file["data"][:] for file in files])
        self.labels = np.concatenate([file["label"][:] for file in files])

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return {"points": self.points[index], "labels": self.labels[index]}

    @staticmethod
    def ours(folder, **options):
        fields = {"points": "data", "labels": "label"}
        return H5StreamLoader(f"{folder}/ply_data_all_*.h5", fields=fields, **options)


class BertShards(Program):
    """A sequence of tokens, its masks, and what is to be guessed, of shards that are read whole."""

    repository, subject, layout = "NVIDIA/DeepLearningExamples", "language", "rows, in several files"
    size, in_memory = 100, True

    @staticmethod
    def make(folder, size=1):
        rng, rows = np.random.default_rng(0), 30 * size
        for k in range(2):
            with h5py.File(folder / f"shard_{k}.hdf5", "w") as file:
                for name, width, dtype in (
                    ("input_ids", 512, "i4"), ("input_mask", 512, "i1"), ("segment_ids", 512, "i1"),
                    ("masked_lm_positions", 80, "i4"), ("masked_lm_ids", 80, "i4"),
                ):  # fmt: skip
                    values = rng.integers(0, 2 if dtype == "i1" else 30_000, (rows, width)).astype(dtype)
                    file.create_dataset(name, data=values, compression="gzip")
                file.create_dataset("next_sentence_labels", data=rng.integers(0, 2, rows, "i1"), compression="gzip")

    def __init__(self, folder):
        shards = [h5py.File(folder / f"shard_{k}.hdf5") for k in range(2)]
        self.data = {name: np.concatenate([shard[name][:] for shard in shards]) for name in shards[0]}

    def __len__(self):
        return len(self.data["input_ids"])

    def __getitem__(self, index):
        return {name: values[index] for name, values in self.data.items()}

    @staticmethod
    def ours(folder, **options):
        names = list(h5py.File(folder / "shard_0.hdf5"))
        return H5StreamLoader(f"{folder}/shard_*.hdf5", fields={name: name for name in names}, **options)


class PyPOTS(Program):
    """A time series, what of it is missing, its label, and its number."""

    repository, subject, layout = "WenjieDu/PyPOTS", "time series", "rows"
    size = 60
    transforms = True

    @staticmethod
    def make(folder, size=1):
        rng, rows = np.random.default_rng(0), 60 * size
        x = np.where(rng.random((rows, 48, 37)) < 0.8, np.nan, measured(rng, rows, 48, 37)).astype("f4")
        with h5py.File(folder / "physionet.h5", "w") as file:
            file["X"], file["y"] = x, rng.integers(0, 2, rows)

    def __init__(self, folder):
        self.file = h5py.File(folder / "physionet.h5")

    def __len__(self):
        return len(self.file["y"])

    def __getitem__(self, index):
        x = torch.from_numpy(self.file["X"][index])
        return {
            "index": index,
            "X": torch.nan_to_num(x),
            "missing_mask": (~torch.isnan(x)).to(torch.float32),
            "y": self.file["y"][index],
        }

    @staticmethod
    def ours(folder, **options):
        def masked(batch):
            x = batch["X"]
            return {**batch, "missing_mask": (~torch.isnan(x)).to(torch.float32), "X": x.nan_to_num_()}

        fields = {"index": SampleNumber(), "X": "X", "y": "y"}
        return H5StreamLoader(folder / "physionet.h5", fields=fields, batch_transform=masked, **options)


class Salt(Program):
    """Some members of a jet as a vector, of its forty tracks as a matrix, its flavour, and which tracks are there."""

    repository, subject, layout = "umami-hep/salt", "particle physics", "compounds, and arrays of compounds"
    batch, size = 256, 200

    @staticmethod
    def make(folder, size=1):
        rng, rows = np.random.default_rng(0), 100 * size
        jets = np.zeros(rows, [("pt", "f4"), ("eta", "f4"), ("flavour", "i4"), ("mass", "f4")])
        tracks = np.zeros((rows, 40), [("valid", "?"), ("d0", "f4"), ("z0", "f4"), ("pt", "f4")])
        for table in (jets, tracks):
            for name in table.dtype.names:
                table[name] = measured(rng, *table.shape, dtype=table.dtype[name])
        with h5py.File(folder / "jets.h5", "w") as file:
            file.create_dataset("jets", data=jets, chunks=(100,), compression="lzf")
            file.create_dataset("tracks", data=tracks, chunks=(100, 40), compression="lzf")

    def __init__(self, folder):
        self.file = h5py.File(folder / "jets.h5")

    def __len__(self):
        return len(self.file["jets"])

    def __getitem__(self, index):
        jet, tracks = self.file["jets"][index], self.file["tracks"][index]
        return {
            "jets": np.stack([jet[name] for name in ("pt", "eta", "mass")], -1),
            "tracks": np.stack([tracks[name] for name in ("d0", "pt")], -1),
            "flavour": jet["flavour"],
            "valid": tracks["valid"],
        }

    def loader(self, workers):
        slices = [slice(k, k + self.batch) for k in range(0, len(self), self.batch)]
        order = [slices[k] for k in torch.randperm(len(slices))]  # whole slices are read, in an order by chance
        return DataLoader(self, None, sampler=order, num_workers=workers, persistent_workers=workers > 0)

    @staticmethod
    def ours(folder, **options):
        return H5StreamLoader(
            folder / "jets.h5",
            fields={
                "jets": Field("jets", columns=["pt", "eta", "mass"]),
                "tracks": Field("tracks", columns=["d0", "pt"]),
                "flavour": "jets:flavour",
                "valid": "tracks:valid",
            },
            **options,
        )
