"""Functions for samples that a worker imports, and files of every kind of sample to apply them to."""

import os
import random
import threading
import time

import h5py
import numpy as np
import torch
from torch.utils.data import get_worker_info

from h5stream import Bounds, Boxes, Field, Objects, Padding, SampleNumber, Sequences, Values

NUMBER = SampleNumber("number")
ROWS = 60


def write_kinds(path):
    """Write a file that every kind of sample below is read from."""
    rng = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rng.random((ROWS, 5), dtype="f4"), chunks=(7, 5), compression="gzip")
        file["y"] = np.arange(ROWS)
        file["name"] = np.array([f"name {k}" for k in range(ROWS)], dtype="S9")
        file["text"] = [f"text {k}" * (k % 4) for k in range(ROWS)]
        bounds = np.append(0, np.cumsum(rng.integers(0, 9, ROWS)))
        file["bounds"], file["hits"] = bounds, rng.random((bounds[-1], 2), dtype="f4")
        file.create_dataset("volume", data=rng.random((12, 10, 9), dtype="f4"), chunks=(4, 4, 4))
        for k in range(4):
            file[f"demo/{k}/o"] = rng.random((9 + k, 3), dtype="f4")
            file[f"demo/{k}"].attrs["mass"] = float(k)
    return str(path)


KINDS = {
    "rows": {"fields": ["x", "y", NUMBER]},
    "a mapping": {"fields": {"x": "x", "name": "name", "text": "text", "number": NUMBER, "w": Values(np.arange(60.0))}},
    "a ragged list": {"fields": {"hits": Field("hits", lookup=Bounds("bounds"), ragged="list"), "number": NUMBER}},
    "sequences": {"fields": {"x": "x", "pad": Padding(), "number": NUMBER}, "samples": Sequences(4, pad="edge")},
    "objects": {"fields": {"o": Field("o", ragged="list"), "m": "@mass", "n": NUMBER}, "samples": Objects("demo/*")},
    "boxes": {"fields": {"v": "volume", "number": NUMBER}, "samples": Boxes((4, 5, 3), at="random", per_epoch=30)},
}


def changed(sample):
    """Give a sample with numbers drawn from each generator, and a length, which is the same whatever the sample is."""
    return [total(sample) + random.random(), np.random.rand(2), torch.rand(3), random.getrandbits(20)]


def total(sample):
    if isinstance(sample, torch.Tensor):
        return float(sample.double().sum())
    if isinstance(sample, dict):
        return sum(map(total, sample.values()))
    if isinstance(sample, (list, tuple)):
        return sum(map(total, sample))
    return float(len(sample))


def collated_by_chance(samples):
    return random.choice(samples)[0], [int(y) for _, y in samples], os.getpid()


def as_it_is(sample):
    return sample


def noisy(batch):
    x = batch["x"] if isinstance(batch, dict) else batch[0]
    return x + torch.rand(x.shape), random.random()


def with_info(sample):
    info = get_worker_info()
    return sample, -1 if info is None else info.id, 0 if info is None else info.num_workers, os.getpid()


def marking(folder, number):
    with open(os.path.join(folder, f"worker {number} of {get_worker_info().num_workers}"), "w") as file:
        file.write(str(os.getpid()))


def at(number, action, sample):
    """Do something at the sample of a number."""
    if sample[-1] == number:
        action()
    return sample


def raising(error):
    raise error


class Unpicklable(Exception):  # noqa: N818
    def __init__(self, one, two):
        super().__init__("a message")
        self.lock = threading.Lock()


def raising_what_stays(sample):
    raise Unpicklable(1, 2)


def hanging(at, folder, sample):
    if sample[-1] == at:
        open(os.path.join(folder, str(os.getpid())), "w").close()
        while True:
            time.sleep(60)
    return sample
