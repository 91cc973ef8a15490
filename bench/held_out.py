"""Programs that no part of h5stream was made for, for `bench.programs`: their files, and their readers in our words."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench.program import Program, packed
from h5stream import Bounds, Field, H5StreamLoader, Objects, SampleNumber, Sequences, Values
from h5stream.order import fractions
from h5stream.samples import searchsorted


class Opened:
    """Samples of a file that each worker opens at its first sample."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def __len__(self) -> int:
        return self.count

    @functools.cached_property
    def file(self) -> h5py.File:
        return h5py.File(self.path)


class OwnReader(Program):
    """A program whose reader is one of `Opened`."""

    samples: type[Opened]
    collate: Any = staticmethod(packed)

    def theirs(self, folder: Path, shuffle: bool, workers: int) -> Any:
        return self.stock(self.samples(folder / self.file), shuffle, workers, collate_fn=self.collate)


class Slices(Opened):
    """DSEC's reader: the events between two frames are sliced out of four datasets."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with h5py.File(path) as file:
            self.bounds = np.searchsorted(file["events/t"][:], file["frames"][:] - file["t_offset"][()])
        self.count = len(self.bounds) - 1

    def __getitem__(self, frame: int) -> dict[str, Any]:
        between = slice(*self.bounds[frame : frame + 2])
        return {name: self.file[f"events/{name}"][between] for name in Dsec.fields}


class Dsec(OwnReader):
    """Events of a camera between two of its frames, by their times."""

    name, subject, batch, stored, samples = "DSEC", "event camera", 32, ("gzip",), Slices
    full, tiny = (20_000_000, 3000), (20_000, 40)
    fields = {"x": "<u2", "y": "<u2", "p": "u1", "t": "<u4"}  # noqa: RUF012

    def write(self, path: Path, stored: str, seed: int, events: int, frames: int) -> None:
        rng = np.random.default_rng(seed)
        times = np.cumsum(rng.integers(0, 4, events))
        with h5py.File(path, "w") as file:
            for name, dtype in self.fields.items():
                values = times if name == "t" else rng.integers(0, 2 if name == "p" else 640, events)
                how = {"chunks": (16_384,), "compression": stored, "shuffle": True}
                file.create_dataset(f"events/{name}", data=values.astype(dtype), **how)
            file["t_offset"] = 40_000
            file["frames"] = 40_000 + np.linspace(0, times[-1], frames).astype("i8")

    def ours(self, path: Path, **options: Any) -> Any:
        with h5py.File(path) as file:
            edges = searchsorted(file["events/t"], file["frames"][:] - file["t_offset"][()])
            rows = Bounds(edges, holds="bounds")
        return H5StreamLoader(path, fields={n: Field(f"events/{n}", lookup=rows) for n in self.fields}, **options)


class Regions(Opened):
    """spine's reader: an event refers to regions of the datasets that hold its images."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with h5py.File(path) as file:
            self.count = len(file["events"])

    def __getitem__(self, number: int) -> dict[str, Any]:
        event = self.file["events"][number]
        return {name: self.file[name][event[name]] for name in ("points", "labels")}


class Spine(OwnReader):
    """Points of an image of neutrinos and their labels, by region references."""

    name, subject, batch, samples = "spine", "neutrinos", 32, Regions
    full, tiny = (2000, 1500), (40, 20)

    def write(self, path: Path, stored: str, seed: int, events: int, points: int) -> None:
        rng = np.random.default_rng(seed)
        counts = rng.integers(1, points, events)
        ends = np.cumsum(counts)
        kinds = np.dtype([("points", h5py.regionref_dtype), ("labels", h5py.regionref_dtype)])
        with h5py.File(path, "w") as file:
            file.create_dataset("points", data=rng.random((ends[-1], 5), "f4"), chunks=(1024, 5), maxshape=(None, 5))
            file.create_dataset("labels", data=rng.integers(0, 5, ends[-1]), chunks=(4096,), maxshape=(None,))
            referred = file.create_dataset("events", (events,), kinds)
            for k, (count, end) in enumerate(zip(counts, ends, strict=True)):
                event = np.zeros(1, kinds)
                for name in kinds.names or ():
                    event[name] = file[name].regionref[end - count : end]
                referred[k] = event[0]

    def ours(self, path: Path, **options: Any) -> Any:
        fields = {name: Field(name, lookup=Bounds(f"events:{name}")) for name in ("points", "labels")}
        return H5StreamLoader(path, fields=fields, **options)


class Pairs(Opened):
    """D-SCRIPT's reader: two proteins by their names, and whether they interact."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.pairs, self.labels = DScript.pairs_of(path)
        self.count = len(self.labels)

    def __getitem__(self, number: int) -> dict[str, Any]:
        first, second = self.pairs[number]
        return {"a": self.file[first][:], "b": self.file[second][:], "y": self.labels[number]}


class DScript(OwnReader):
    """Embeddings of two proteins, a dataset each, chosen by a list of names beside the file."""

    name, subject, batch, stored, samples = "D-SCRIPT", "pairs of proteins", 32, ("gzip",), Pairs
    full, tiny = (400, 4000), (20, 50)

    def write(self, path: Path, stored: str, seed: int, proteins: int, pairs: int) -> None:
        rng = np.random.default_rng(seed)
        with h5py.File(path, "w") as file:
            for k, length in enumerate(rng.integers(50, 400, proteins).tolist()):
                file.create_dataset(f"P{k:05}", data=np.round(rng.normal(size=(length, 128)), 2), compression=stored)
        names, labels = rng.integers(0, proteins, (pairs, 2)), rng.integers(0, 2, pairs)
        lines = [f"P{a:05}\tP{b:05}\t{y}\n" for (a, b), y in zip(names.tolist(), labels.tolist(), strict=True)]
        path.with_suffix(".tsv").write_text("".join(lines))

    @staticmethod
    def pairs_of(path: Path) -> tuple[list[list[str]], np.ndarray]:
        rows = [line.split("\t") for line in path.with_suffix(".tsv").read_text().splitlines()]
        return [row[:2] for row in rows], np.array([int(row[2]) for row in rows])

    def ours(self, path: Path, **options: Any) -> Any:
        pairs, labels = self.pairs_of(path)
        proteins = {
            name: Field("{}", lookup=[pair[k] for pair in pairs], ragged="packed") for k, name in enumerate("ab")
        }
        return H5StreamLoader(path, fields={**proteins, "y": Values(labels)}, **options)


def control_of(samples: np.ndarray, epoch: int, seed: int, kinds: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Give each cell an unperturbed cell of its kind, another in each epoch."""
    found, drawn = np.empty(len(samples), np.int64), fractions(samples, epoch, seed)
    for kind in np.unique(kinds):
        some, ours = np.flatnonzero(pool & (kinds == kind)), kinds[samples] == kind
        found[ours] = some[(drawn[ours] * len(some)).astype(np.int64)]
    return found


def pools_of(path: Path) -> dict[str, np.ndarray]:
    """Read what controls are drawn from."""
    with h5py.File(path) as file:
        return {"kinds": file["obs/kind"][:], "pool": file["obs/perturbed"][:] == 0}


class Controls(Opened):
    """A reader of cells beside their controls: rows of a sparse matrix, laid dense."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with h5py.File(path) as file:
            self.begins, self.genes = file["X/indptr"][:], int(file["X"].attrs["shape"][1])
        self.count = len(self.begins) - 1
        self.controls = control_of(np.arange(self.count), 0, 0, **pools_of(path))

    def row(self, cell: int) -> np.ndarray:
        at, found = slice(*self.begins[cell : cell + 2]), np.zeros(self.genes, "f4")
        found[self.file["X/indices"][at]] = self.file["X/data"][at]
        return found

    def __getitem__(self, cell: int) -> dict[str, Any]:
        return {"x": self.row(cell), "control": self.row(self.controls[cell]), "n": np.int64(cell)}


class ControlCells(OwnReader):
    """The counts of a cell, and those of a control cell of its kind, which is drawn."""

    name, subject, batch, stored, samples = "Controls", "cells", 64, ("gzip",), Controls
    collate = None
    full, tiny = (20_000, 2000), (300, 20)

    def write(self, path: Path, stored: str, seed: int, cells: int, genes: int) -> None:
        rng = np.random.default_rng(seed)
        counts = rng.integers(genes // 20, genes // 5, cells)
        with h5py.File(path, "w") as file:
            file["X/indptr"] = np.append(0, np.cumsum(counts))
            indices = np.concatenate([np.sort(rng.choice(genes, n, replace=False)) for n in counts.tolist()])
            values = {"indices": indices.astype("i4"), "data": rng.integers(1, 9, len(indices)).astype("f4")}
            for name, held in values.items():
                file.create_dataset(f"X/{name}", data=held, chunks=(len(held) // 100,), compression=stored)
            file["X"].attrs.update(
                {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": (cells, genes)}
            )
            file["obs/kind"], file["obs/perturbed"] = rng.integers(0, 5, cells), rng.integers(0, 4, cells) > 0

    def ours(self, path: Path, **options: Any) -> Any:
        drawn = functools.partial(control_of, **pools_of(path))
        fields = {"x": Field("X", ragged="dense"), "control": Field("X", lookup=drawn, ragged="dense")}
        return H5StreamLoader(path, fields={**fields, "n": SampleNumber()}, seed=0, **options)


class FramesInTurn(Opened):
    """A reader of walks whose frames are datasets: some that follow one another are stacked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with h5py.File(path) as file:
            self.places = [(walk, t) for walk in file for t in range(len(file[walk]) - Frames.steps + 1)]
        self.count = len(self.places)

    def __getitem__(self, number: int) -> dict[str, Any]:
        walk, first = self.places[number]
        frames = [self.file[f"{walk}/frame_{t}_depth"][:] for t in range(first, first + Frames.steps)]
        return {"depth": np.stack(frames)}


class Frames(OwnReader):
    """Frames that follow one another, each a dataset of its own (`frame_0_depth`, `frame_1_depth`)."""

    name, subject, batch, stored, samples = "Frames", "robots", 32, ("gzip",), FramesInTurn
    collate = None
    full, tiny, steps = (40, 60, 96), (3, 9, 8), 4

    def write(self, path: Path, stored: str, seed: int, walks: int, frames: int, side: int) -> None:
        rng = np.random.default_rng(seed)
        with h5py.File(path, "w") as file:
            for walk in range(walks):
                depth = np.round(rng.normal(size=(side, side)).cumsum(axis=0).cumsum(axis=1), 1)
                for t in range(int(rng.integers(frames // 2, frames))):
                    data = (depth + np.round(rng.normal(size=(side, side)), 1)).astype("f4")
                    file.create_dataset(f"walk_{walk:03}/frame_{t}_depth", data=data, compression=stored)

    def ours(self, path: Path, **options: Any) -> Any:
        windows = Sequences(self.steps, of="walk_*")
        return H5StreamLoader(path, fields={"depth": "frame_{}_depth"}, samples=windows, **options)


class Episodes(Opened):
    """Minari's reader: each field of an episode is a dataset in its group."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with h5py.File(path) as file:
            self.episodes = list(file)
        self.count = len(self.episodes)

    def __getitem__(self, number: int) -> dict[str, Any]:
        episode = self.file[self.episodes[number]]
        return {name: episode[name][()] for name in Minari.fields}


class Minari(OwnReader):
    """Whole episodes of five fields, in the chunks that h5py guesses."""

    name, subject, batch, samples = "Minari", "offline RL", 16, Episodes
    full, tiny = (800,), (30,)
    fields = {"observations": ((27,), "f8"), "actions": ((8,), "f4"), "rewards": ((), "f8")}  # noqa: RUF012
    fields |= {"terminations": ((), "?"), "truncations": ((), "?")}

    def write(self, path: Path, stored: str, seed: int, episodes: int) -> None:
        rng = np.random.default_rng(seed)
        with h5py.File(path, "w") as file:
            for k, rows in enumerate(rng.integers(50, 1000, episodes).tolist()):
                for name, (shape, dtype) in self.fields.items():
                    values = rng.normal(size=(rows, *shape)).astype(dtype)
                    file.create_dataset(f"episode_{k}/{name}", data=values, maxshape=(None, *shape), chunks=True)

    def ours(self, path: Path, **options: Any) -> Any:
        fields = {name: Field(name, ragged="packed") for name in self.fields}
        return H5StreamLoader(path, fields=fields, samples=Objects("episode_*"), **options)


PROGRAMS: dict[str, Program] = {
    "dsec": Dsec(),
    "spine": Spine(),
    "d_script": DScript(),
    "control_cells": ControlCells(),
    "frames": Frames(),
    "minari": Minari(),
}
