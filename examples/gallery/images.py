"""Encoded images and audio."""

import h5py
import imagecodecs
import numpy as np
import torch

from examples.gallery.program import Program, as_lists, measured, pixels
from h5stream import Field, H5StreamLoader, Objects, Table, Values


def jpeg(rng, height, width):
    """Give a picture as a JPEG."""
    small = pixels(rng, height // 8, width // 8, 3)
    return imagecodecs.jpeg8_encode(small.repeat(8, 0).repeat(8, 1), level=90)


class SoloLearn(Program):
    """An image, decoded, and its class, which is the group that it lies in."""

    repository, subject, layout = "vturrisi/solo-learn", "images", "a dataset of JPEG bytes for each image, by class"
    batch, size, collate = 64, 10, staticmethod(as_lists)

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        with h5py.File(folder / "imagenet.h5", "w") as file:
            for k in range(30 * size):
                image = jpeg(rng, 224 + k % 3 * 8, 256)
                file[f"n{k % 5:08}/{k}.JPEG"] = np.frombuffer(image, "u1")

    def __init__(self, folder):
        self.path = folder / "imagenet.h5"
        with h5py.File(self.path) as file:
            self.images = [(name, image, y) for y, name in enumerate(sorted(file)) for image in file[name]]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        name, image, y = self.images[index]
        with h5py.File(self.path) as file:
            return {"image": imagecodecs.jpeg8_decode(file[name][image][()]), "y": y}

    @staticmethod
    def ours(folder, **options):
        file = h5py.File(folder / "imagenet.h5")
        images = [(f"{name}/{image}", y) for y, name in enumerate(sorted(file)) for image in file[name]]
        names, y = zip(*images, strict=True)
        fields = {"image": Field(".", decode="jpeg", ragged="list"), "y": Values(y)}
        return H5StreamLoader(folder / "imagenet.h5", samples=Objects(list(names)), fields=fields, **options)


class RoboticsDiffusionTransformer(Program):
    """An image at a step of an episode, decoded, and the next sixteen actions, the last one again behind the end."""

    repository, subject = "thu-ml/RoboticsDiffusionTransformer", "robotics"
    layout = "a file for each episode, rows of JPEG bytes"
    batch, size = 32, 6

    @staticmethod
    def make(folder, size=1):
        rng = np.random.default_rng(0)
        for k in range(2 * size):
            images = [jpeg(rng, 120, 160) for _ in range(20 + k % 3)]
            longest = max(map(len, images))
            with h5py.File(folder / f"episode_{k}.hdf5", "w") as file:
                rows = [np.frombuffer(image.ljust(longest, b"\0"), "u1") for image in images]
                file["observations/images/cam_high"], file["action"] = np.stack(rows), measured(rng, len(images), 14)

    def __init__(self, folder):
        self.paths, self.steps = sorted(folder.glob("*.hdf5"), key=lambda path: int(path.stem[8:])), []
        for path in self.paths:
            with h5py.File(path) as file:
                self.steps += [(path, step) for step in range(len(file["action"]))]

    def __len__(self):
        return len(self.steps)

    def __getitem__(self, index):
        path, step = self.steps[index]
        with h5py.File(path) as file:
            image = imagecodecs.jpeg8_decode(file["observations/images/cam_high"][step].tobytes())
            action = file["action"][step : step + 16]
        return {"image": image, "action": np.concatenate([action, action[-1:].repeat(16 - len(action), 0)])}

    @staticmethod
    def ours(folder, **options):
        paths = sorted(folder.glob("*.hdf5"), key=lambda path: int(path.stem[8:]))
        lengths = [len(h5py.File(path)["action"]) for path in paths]
        file, row = np.repeat(range(len(paths)), lengths), np.concatenate([*map(np.arange, lengths)])
        image, action = Field("observations/images/cam_high", decode="jpeg"), Field("action", take=range(16))
        fields = {"image": image, "action": action}
        return H5StreamLoader(paths, samples=Table(file=file, row=row, pad="edge"), fields=fields, **options)


class PaSST(Program):
    """A clip as encoded bytes, which the program decodes itself, and its classes as bits."""

    repository, subject, layout = "kkoutini/PaSST", "audio", "bytes of variable length"
    batch, size, collate = 32, 20, staticmethod(as_lists)
    transforms = True

    @staticmethod
    def make(folder, size=1):
        rng, clips = np.random.default_rng(0), 20 * size
        with h5py.File(folder / "audioset.h5", "w") as file:
            mp3 = file.create_dataset("mp3", (clips,), dtype=h5py.vlen_dtype("u1"))
            for k in range(clips):
                mp3[k] = rng.integers(0, 255, 40_000 + 370 * (k % 8), "u1")
            file["target"] = np.packbits(rng.random((clips, 527)) < 0.1, axis=-1)
            file["audio_name"] = [f"Y{k}.mp3" for k in range(clips)]

    def __init__(self, folder):
        self.path = folder / "audioset.h5"
        with h5py.File(self.path) as file:
            self.count = len(file["target"])

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with h5py.File(self.path) as file:
            return {"mp3": file["mp3"][index], "target": np.unpackbits(file["target"][index])[:527]}

    @staticmethod
    def ours(folder, **options):
        def unpacked(batch):
            return {"mp3": batch["mp3"], "target": torch.from_numpy(np.unpackbits(batch["target"], axis=-1)[:, :527])}

        fields = {"mp3": "mp3", "target": "target"}
        return H5StreamLoader(folder / "audioset.h5", fields=fields, batch_transform=unpacked, **options)
