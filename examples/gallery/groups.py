"""Groups of many rows each, one behind the other."""

import h5py
import numpy as np

from examples.gallery.program import Program, measured
from h5stream import Field, H5Dataset, H5StreamLoader, Rows, Table, Values


class BioFoundation(Program):
    """A window of a recording, and its label."""

    repository, subject, layout = "pulp-bio/BioFoundation", "EEG", "groups of windows"
    batch, size = 64, 30

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "eeg.h5", "w") as file:
            for k in range(5 * size):
                rows = 12 if k % 5 else 7
                file[f"data_group_{k}/X"] = measured(rng, rows, 22, 1280)
                file[f"data_group_{k}/y"] = rng.integers(0, 4, rows)

    def __init__(self, folder):
        self.file = h5py.File(folder / "eeg.h5")
        groups = [f"data_group_{k}" for k in range(len(self.file))]
        self.rows = [(group, row) for group in groups for row in range(len(self.file[group]["y"]))]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        group, row = self.rows[index]
        return {"x": self.file[group]["X"][row], "y": self.file[group]["y"][row]}

    @staticmethod
    def ours(folder, **options):
        fields = {"x": "X", "y": "y"}
        return H5StreamLoader(folder / "eeg.h5", samples=Rows(of="data_group_*"), fields=fields, **options)


class SeisBench(Program):
    """A trace by its name in a catalogue: a bucket, a row of it, and the part of the row that is not filled up."""

    repository, subject, layout = "seisbench/seisbench", "seismology", "buckets of traces, and a catalogue"
    size = 20

    @staticmethod
    def make(folder, size=1):
        rng, names = np.random.default_rng(0), []
        with h5py.File(folder / "waveforms.hdf5", "w") as file:
            for k in range(2 * size):
                file.create_dataset(f"data/bucket{k}", data=measured(rng, 12, 3, 6000 + k % 3 * 40))
                names += [f"bucket{k}${row},:3,:6000" for row in range(12)]
        np.save(folder / "metadata.npy", rng.permutation(names)[: 20 * size])

    def __init__(self, folder):
        self.file, self.names = h5py.File(folder / "waveforms.hdf5"), np.load(folder / "metadata.npy")

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        bucket, where = self.names[index].split("$")
        row, channels, times = where.split(",")
        values = self.file[f"data/{bucket}"][int(row), : int(channels[1:]), : int(times[1:])]
        return {"x": values, "name": str(self.names[index])}

    @staticmethod
    def ours(folder, **options):
        names = np.load(folder / "metadata.npy").tolist()
        buckets, rows = zip(*(name.split(",")[0].split("$") for name in names), strict=True)
        return H5StreamLoader(
            folder / "waveforms.hdf5",
            samples=Table(group=[f"data/{bucket}" for bucket in buckets], row=np.array(rows, int)),
            fields={"x": Field(".", columns=(slice(3), slice(6000))), "name": Values(names)},
            **options,
        )


class Dino(Program):
    """A frame of any of many videos, a group each."""

    repository, subject, layout = "ShutongJIN/dino", "robotics", "groups of videos of frames"
    batch, size = 32, 8

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "videos.h5", "w") as file:
            for k in range(3 * size):
                frames = rng.integers(0, 60, (int(rng.integers(6, 20)), 96, 128, 3), "u1")
                file.create_dataset(f"video_{k}/rgb/frames", data=frames, chunks=(1, 96, 128, 3), compression="lzf")

    def __init__(self, folder):
        self.file = h5py.File(folder / "videos.h5")
        self.videos = [self.file[f"video_{k}/rgb/frames"] for k in range(len(self.file))]

    def __len__(self):
        return sum(map(len, self.videos))

    def __getitem__(self, index):
        for video in self.videos:
            if index < len(video):
                return {"frame": video[index]}
            index -= len(video)
        raise IndexError(index)

    @staticmethod
    def ours(folder, **options):
        samples = Rows(of="video_*/rgb")
        return H5StreamLoader(folder / "videos.h5", samples=samples, fields={"frame": "frames"}, **options)


class Fsrcnn(Program):
    """A small patch and the same one large, of datasets of many patches each, in pairs."""

    repository, subject, layout = "yunzed/FSRCNN-pytorch", "super-resolution", "pairs of numbered datasets"
    size = 10

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "train.h5", "w") as file:
            for k in range(2 * size):
                file[f"lr{k}"], file[f"hr{k}"] = measured(rng, 32, 1, 24, 24), measured(rng, 32, 1, 72, 72)

    def __init__(self, folder):
        self.file = h5py.File(folder / "train.h5")

    def __len__(self):
        return len(self.file) // 2 * 32

    def __getitem__(self, index):
        k, row = divmod(index, 32)
        return {"lr": self.file[f"lr{k}"][row], "hr": self.file[f"hr{k}"][row]}

    @staticmethod
    def ours(folder, **options):
        path = folder / "train.h5"
        pairs = range(len(h5py.File(path)) // 2)
        return H5StreamLoader([H5Dataset(path, {"lr": f"lr{k}", "hr": f"hr{k}"}) for k in pairs], **options)
