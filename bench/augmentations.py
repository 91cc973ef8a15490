"""Functions for single samples as public programs write them, and the readers that they write: what workers import."""

from __future__ import annotations

import random
import time
from threading import Barrier
from typing import Any, ClassVar

import h5py
import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch.utils.data import Dataset

from h5stream import H5Dataset

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
CROP_SECONDS_SAMPLES = 16_000


def augmented(sample: tuple[Any, Any]) -> tuple[torch.Tensor, Any]:
    """Crop, resize, flip, jitter and normalize an image with Pillow, as torchvision's transforms do."""
    image, label = Image.fromarray(np.asarray(sample[0])), sample[1]
    side = image.width
    size = int(side * (0.6 + 0.4 * random.random()))
    left, top = random.randint(0, side - size), random.randint(0, side - size)
    image = image.resize((side, side), Image.Resampling.BILINEAR, (left, top, left + size, top + size))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhance(image).enhance(0.6 + 0.8 * random.random())
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
    return tensor.sub_(MEAN).div_(DEVIATION), label


def audio_crop(sample: tuple[Any, Any]) -> tuple[torch.Tensor, Any]:
    """Crop a waveform anywhere, change its gain, add noise, and take a log spectrogram."""
    wave, label = np.asarray(sample[0]), sample[1]
    start = np.random.randint(0, len(wave) - CROP_SECONDS_SAMPLES)
    wave = wave[start : start + CROP_SECONDS_SAMPLES] * np.float32(np.random.uniform(0.5, 1.5))
    wave = wave + np.random.randn(len(wave)).astype("f4") * np.float32(0.005)
    frames = np.lib.stride_tricks.sliding_window_view(wave, 512)[::256] * np.hanning(512).astype("f4")
    return torch.from_numpy(np.log1p(np.abs(np.fft.rfft(frames))).astype("f4")), label


def cutout(sample: tuple[Any, Any]) -> tuple[torch.Tensor, Any]:
    """Pad and crop a small image, flip it and cut a square out of it, with tensors alone."""
    image, label = torch.as_tensor(sample[0]).permute(2, 0, 1).float().div_(255), sample[1]
    side = image.shape[1]
    image = torch.nn.functional.pad(image[None], (4, 4, 4, 4), mode="reflect")[0]
    top, left = (int(torch.randint(0, 9, ())) for _ in range(2))
    image = image[:, top : top + side, left : left + side]
    if torch.rand(()) < 0.5:
        image = image.flip(2)
    image = (image - MEAN) / DEVIATION
    y, x = (int(torch.randint(0, side - 15, ())) for _ in range(2))
    image[:, y : y + 16, x : x + 16] = 0
    return image, label


class AuthorsReader(Dataset[Any]):
    """The dataset that most programs have: h5py, opened in the worker, a row at a time, and the function."""

    def __init__(self, path: str, function: Any, length: int) -> None:
        self.path, self.function, self.length = path, function, length
        self.file: h5py.File | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path)
        return self.function((self.file["x"][index], int(self.file["label"][index])))


class OurSamples(Dataset[Any]):
    """`H5Dataset` and the function, for a stock DataLoader."""

    def __init__(self, path: str, function: Any, length: int) -> None:
        self.dataset, self.function, self.length = H5Dataset(path, ["x", "label"]), function, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.function(self.dataset[index])


class PureFunction:
    """What a process does that only calls the function, on samples in memory."""

    here: ClassVar[tuple[PureFunction, Barrier]]

    def __init__(self, function: Any, samples: list[Any]) -> None:
        self.function, self.samples = function, samples

    def begin(self, barrier: Barrier) -> None:
        """Keep the samples in this process: the first thing that it does."""
        torch.set_num_threads(1)
        self.samples = [(torch.from_numpy(x), torch.tensor(label)) for x, label in self.samples]
        PureFunction.here = self, barrier

    @staticmethod
    def timed() -> tuple[float, float]:
        """Apply the function to each sample; give the seconds and the processor's seconds."""
        self, barrier = PureFunction.here
        barrier.wait()
        wall, processor = time.perf_counter(), time.process_time()
        for sample in self.samples:
            self.function(sample)
        return time.perf_counter() - wall, time.process_time() - processor
