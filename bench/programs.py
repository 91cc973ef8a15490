"""Loaders of real programs: ``python -m bench.programs --json bench/results/programs.json``.

Each program has a file in its own layout, and its own reader, which is measured beside h5stream on the same file, each
in processes of its own and in turns. Two programs are packages, and come with their reader; of the others, the reader
is written in our own words (`bench.held_out` has more). All samples of an epoch are compared before anything is timed.
Nothing is converted, and h5stream keeps nothing between epochs.

    pip install -c constraints.txt torch==2.13.0 . einops pyyaml scipy
    pip install --no-deps the_well==1.2.0 salt-ml==0.13.0 atlas-ftag-tools==0.3.3
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import statistics
import sys
import tempfile
import time
import types
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import torch

from bench import held_out
from bench.child import run_child, warm
from bench.machine import describe
from bench.program import IN_ORDER, SHUFFLED, THEIRS, Program, packed
from h5stream import Bounds, Field, H5StreamLoader, Sequences
from h5stream.results import Packed


class TheWell(Program):
    """Five steps of a simulation, four of input and one of output, channels last: one scalar and a vector of two."""

    name, subject, packages, batch, stored = "The Well", "PDEs", ("the_well",), 32, ("none", "gzip")
    full, tiny = (8, 100, 128), (2, 8, 6)
    fields = {"density": ("t0_fields", ()), "velocity": ("t1_fields", (2,))}  # noqa: RUF012

    def write(self, path: Path, stored: str, seed: int, trajectories: int, steps: int, side: int) -> None:
        rng, axis = np.random.default_rng(seed), np.linspace(0, 2 * np.pi, side, dtype="f4")
        at = np.linspace(0, 10, steps, dtype="f4")[:, None, None]
        with h5py.File(path, "w") as file:
            about = {"dataset_name": "waves", "grid_type": "cartesian", "n_spatial_dims": 2}
            file.attrs.update(about | {"n_trajectories": trajectories, "simulation_parameters": []})
            file.create_group("boundary_conditions")
            for name, values in (("time", at.ravel()), ("x", axis), ("y", axis)):
                file.create_dataset(f"dimensions/{name}", data=values).attrs["sample_varying"] = False
            file["dimensions"].attrs["spatial_dims"] = ["x", "y"]
            for group in ("scalars", "t0_fields", "t1_fields", "t2_fields"):
                file.create_group(group).attrs["field_names"] = [n for n, (of, _) in self.fields.items() if of == group]
            for name, (group, more) in self.fields.items():
                frame = (side, side, *more)
                # Its own writer does not chunk; where such files are compressed, a frame is a chunk.
                packed = {"chunks": (1, 1, *frame), "compression": "gzip"} if stored == "gzip" else {}
                made = file[group].create_dataset(name, (trajectories, steps, *frame), "f4", **packed)
                made.attrs.update({"dim_varying": [True, True], "sample_varying": True, "time_varying": True})
                for run, *part in np.ndindex(trajectories, *more):
                    waves = rng.uniform(0, 4, (5, 3)).astype("f4")
                    made[(run, ..., *part)] = sum(np.sin(a * axis[:, None] + b * axis + c * at) for a, b, c in waves)

    def reader(self) -> Any:
        return importlib.import_module("the_well.data")

    def theirs(self, folder: Path, shuffle: bool, workers: int) -> Any:
        # Without what is the same in each sample: the grid and the boundary.
        how = {"n_steps_input": 4, "n_steps_output": 1, "return_grid": False, "boundary_return_type": None}
        return self.stock(self.reader().WellDataset(path=str(folder), **how), shuffle, workers)

    def ours(self, path: Path, **options: Any) -> Any:
        fields = {name: f"{group}/{name}" for name, (group, _) in self.fields.items()}
        windows = Sequences(5, of="rows", axis=1)
        return H5StreamLoader(path, fields=fields, samples=windows, batch_transform=self.joined, **options)

    @staticmethod
    def joined(batch: Any) -> dict[str, Any]:
        frames = torch.cat([batch["density"].unsqueeze(-1), batch["velocity"]], dim=-1)
        return {"input_fields": frames[:, :4], "output_fields": frames[:, 4:]}


class Salt(Program):
    """Two members of a jet, fifteen of each of its 40 tracks, which of these are there, and labels of both."""

    name, subject, packages = "Salt", "particle physics", ("salt-ml", "atlas-ftag-tools")
    batch, stored, file = 1000, ("lz4",), "jets.h5"
    # Batches are neighbours in the file; their order is shuffled.
    shuffle, loaders = "batches", (THEIRS, SHUFFLED, IN_ORDER)
    full, tiny = (100_000,), (8000,)
    jet, floats, hits = ("pt", "eta"), tuple(f"d{k}" for k in range(10)), tuple(f"hits{k}" for k in range(5))

    def write(self, path: Path, stored: str, seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        # Members that the model does not take are there too.
        jets = np.zeros(count, [(name, "f4") for name in (*self.jet, "mass", "energy")] + [("flavour_label", "i4")])
        members = [(name, "f4") for name in (*self.floats, "phi", "theta")] + [(name, "u1") for name in self.hits]
        tracks = np.zeros((count, 40), [*members, ("truth_origin_label", "i4"), ("valid", "?")])
        tracks["valid"] = there = np.arange(40) < rng.poisson(8, count)[:, None]
        for values, found in ((jets, np.ones(count, bool)), (tracks, there)):
            for name in set(values.dtype.names) - {"valid"}:
                size, real = int(found.sum()), values.dtype[name].kind == "f"
                values[name][found] = rng.standard_normal(size, "f4") if real else rng.integers(0, 8, size)
        with h5py.File(path, "w") as file:
            file.create_dataset("jets", data=jets, **hdf5plugin.LZ4())
            file.create_dataset("tracks", data=tracks, chunks=(100, 40), **hdf5plugin.LZ4())

    def reader(self) -> Any:
        if "salt.data" not in sys.modules:  # which would import the trainer
            bare, found = types.ModuleType("salt.data"), importlib.util.find_spec("salt.data")
            bare.__path__ = list(found.submodule_search_locations or ()) if found else []
            sys.modules["salt.data"] = bare
        return [importlib.import_module(f"salt.data.{name}") for name in ("datasets", "samplers")]

    def theirs(self, folder: Path, shuffle: bool, workers: int) -> Any:
        datasets, samplers = self.reader()
        labels = {"jets": ["flavour_label"], "tracks": ["truth_origin_label"]}
        takes = {"jets": [*self.jet], "tracks": [*self.floats, *self.hits]}
        samples = datasets.SaltDataset(folder / self.file, "", takes, "fit", labels=labels)
        order = samplers.RandomBatchSampler(samples, self.batch, shuffle, drop_last=True)
        return self.stock(samples, False, workers, batch_size=None, sampler=order)

    def ours(self, path: Path, **options: Any) -> Any:
        fields = {
            "jets": Field("jets", columns=self.jet),
            "tracks": Field("tracks", columns=self.floats),
            "hits": Field("tracks", columns=self.hits, dtype=torch.float32),
            "valid": "tracks:valid",
            "flavour": Field("jets:flavour_label", dtype=torch.int64),
            "origin": Field("tracks:truth_origin_label", dtype=torch.int64),
        }
        return H5StreamLoader(path, fields=fields, batch_transform=self.as_theirs, **options)

    @staticmethod
    def as_theirs(batch: Any) -> tuple[dict[str, Any], ...]:
        absent = ~batch["valid"]
        tracks = torch.cat([batch["tracks"], batch["hits"]], dim=-1).masked_fill_(absent.unsqueeze(-1), 0)
        labels = {"jets": {"flavour_label": batch["flavour"]}, "tracks": {"truth_origin_label": batch["origin"]}}
        return {"jets": batch["jets"], "tracks": tracks}, {"tracks": absent}, labels


class LaBraM(Program):
    """Four seconds of 62 channels at 200 Hz, out of the recording of a subject, which is cut end to end."""

    name, subject, window = "LaBraM", "EEG", 800
    full, tiny = (12, 400), (3, 30)

    def write(self, path: Path, stored: str, seed: int, subjects: int, seconds: int) -> None:
        rng = np.random.default_rng(seed)
        with h5py.File(path, "w") as file:
            for subject in range(subjects):
                eeg = rng.standard_normal((62, 200 * int(rng.integers(3 * seconds // 4, seconds))), "f4") * 20
                made = file.create_dataset(f"subject_{subject}/eeg", data=eeg, chunks=(62, 200))
                made.attrs.update({"lFreq": 0.1, "hFreq": 75.0, "rsFreq": 200})

    def theirs(self, folder: Path, shuffle: bool, workers: int) -> Any:
        return self.stock(Recordings(folder / self.file, self.window), shuffle, workers)

    def ours(self, path: Path, **options: Any) -> Any:
        windows = Sequences(self.window, stride=self.window, of="*", axis=1)
        return H5StreamLoader(path, fields="eeg", samples=windows, **options)


class Recordings:
    """LaBraM's dataset in our own words: a sample is sliced out of the dataset of its subject."""

    def __init__(self, path: Path, window: int) -> None:
        self.path, self.window, self.opened = path, window, None
        with h5py.File(path) as file:
            lengths = {subject: file[subject]["eeg"].shape[1] for subject in file}
        self.places = [(name, first) for name, n in lengths.items() for first in range(0, n - window + 1, window)]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Any:
        self.opened = self.opened or h5py.File(self.path)  # in each worker at its first sample
        subject, first = self.places[number]
        return self.opened[subject]["eeg"][:, first : first + self.window]


class WatChMaL(Program):
    """The label of an event and its hits; an index says where those of each event begin."""

    name, subject, batch = "WatChMaL", "particle physics, hits", 256
    full, tiny = (100_000,), (600,)
    hits = ("hit_pmt", "hit_time", "hit_charge")

    def write(self, path: Path, stored: str, seed: int, events: int) -> None:
        rng = np.random.default_rng(seed)
        counts = rng.integers(1, 400, events)
        with h5py.File(path, "w") as file:
            file["event_hits_index"], file["labels"] = np.cumsum(counts) - counts, rng.integers(0, 3, events)
            file["hit_pmt"] = rng.integers(0, 1900, counts.sum()).astype("i4")
            file["hit_time"], file["hit_charge"] = rng.standard_normal((2, counts.sum()), "f4")

    def theirs(self, folder: Path, shuffle: bool, workers: int) -> Any:
        return self.stock(Events(folder / self.file, self.hits), shuffle, workers, collate_fn=packed)

    def ours(self, path: Path, **options: Any) -> Any:
        hits = {name: Field(name, lookup=Bounds("event_hits_index")) for name in self.hits}
        return H5StreamLoader(path, fields={"label": "labels", **hits}, **options)


class Events:
    """WatChMaL's dataset in our own words: the file is mapped into memory, and an event's hits are sliced out of it."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self.path, self.mapped = path, {}
        with h5py.File(path) as file:
            self.labels, self.begins = file["labels"][:], np.append(file["event_hits_index"], len(file[names[0]]))
            self.where = {name: (file[name].dtype, "r", file[name].id.get_offset(), file[name].shape) for name in names}

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, event: int) -> dict[str, Any]:
        if not self.mapped:  # in each worker at its first sample
            self.mapped = {name: np.memmap(self.path, *where) for name, where in self.where.items()}
        hits = slice(*self.begins[event : event + 2])
        return {"label": self.labels[event], **{name: values[hits] for name, values in self.mapped.items()}}


PROGRAMS: dict[str, Any] = {"the_well": TheWell(), "salt": Salt(), "labram": LaBraM(), "watchmal": WatChMaL()}
PROGRAMS |= held_out.PROGRAMS


def tensors(batch: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a batch with their names, the first of which has a row for each sample."""
    if isinstance(batch, Packed):
        yield f"{name} packed", [batch.values[a:b] for a, b in itertools.pairwise(batch.offsets)]
    elif isinstance(batch, dict | list | tuple):
        for key, one in batch.items() if isinstance(batch, dict) else enumerate(batch):
            yield from tensors(one, f"{name} {key}")
    else:
        yield name, batch


def sums(loader: Iterable[Any]) -> Iterator[int]:
    """Yield a checksum of each sample of an epoch: of names, types, shapes and bytes."""
    for batch in loader:
        names, columns = zip(*tensors(batch), strict=True)
        for sample in zip(*columns, strict=True):
            total = 0
            for name, value in zip(names, sample, strict=True):
                said = f"{name} {value.dtype} {tuple(value.shape)}".encode()
                total = zlib.crc32(np.ascontiguousarray(value), zlib.crc32(said, total))
            yield total


def check(program: Program, folder: Path, workers: int = 2) -> dict[str, Any]:
    """Compare each sample of an epoch of ours with theirs, in order and shuffled; say how many there are."""
    wanted = list(sums(program.open(THEIRS, folder, False, workers)))
    assert list(sums(program.open(SHUFFLED, folder, False))) == wanted, "samples are not theirs"
    for loader in (THEIRS, SHUFFLED):
        shuffled = list(sums(program.open(loader, folder, True, workers)))
        assert sorted(shuffled) == sorted(wanted), f"shuffled samples of {loader} are not those in order"
        assert shuffled != wanted, f"{loader} does not shuffle"
    return {"samples": len(wanted)}


def timed(program: Program, folder: Path, loader: str, seconds: float) -> dict[str, Any]:
    """Time the first batch of a loader, and after it as many epochs as fit, or a part of the first."""
    program.reader()
    rates: list[float] = []
    began = now = until = time.perf_counter()
    opened = program.open(loader, folder)
    while not rates or now < until:
        taken, start = 0, now
        for batch in opened:
            now = time.perf_counter()
            if until == began:
                start, until = now, now + seconds
                continue
            taken += len(next(tensors(batch))[1])
            if now > until:
                break
        else:
            rates.append(taken / (now - start))
        rates = rates or [taken / (now - start)]
    first_s = until - seconds - began
    return {"first_batch_s": first_s, "samples_per_s": statistics.median(rates), "first_epoch_per_s": rates[0]}


def in_a_child(*words: object) -> dict[str, Any]:
    """Compare, or time a loader, in a process of its own."""
    outcome = run_child(["bench.programs", "--child", *map(str, words)], 900)
    if outcome.error:
        raise RuntimeError(f"{words[0]}, {words[2]}: {outcome.error[:200]}")
    return outcome.result


def measure(name: str, stored: str, seed: int, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Write a file, compare the samples, and measure the loaders in turns."""
    program, found = PROGRAMS[name], {}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / program.file
        program.write(path, stored, seed, *program.full)
        warm(path)
        checked = in_a_child(name, place, "check", 0) | {"nbytes": path.stat().st_size}
        turns = [{k: in_a_child(name, place, k, given.seconds) for k in program.loaders} for _ in range(given.rounds)]
        for loader, first in turns[0].items():
            found[loader] = {key: statistics.median(turn[loader][key] for turn in turns) for key in first}
    row = {"seed": seed, "program": program.name, "subject": program.subject, "stored": stored, **checked}
    row |= {"reader": "its own" if program.packages else "in our words", "conversion": "none"}
    for loader in program.loaders[1:]:
        shuffle = {"their_shuffle": program.shuffle, "our_shuffle": "none" if loader == IN_ORDER else "all samples"}
        times = found[loader]["samples_per_s"] / found[THEIRS]["samples_per_s"]
        yield {**row, **shuffle, "theirs": found[THEIRS], "ours": found[loader], "times": times}


FORM = "{:8} {:>4} {:6} {:12} {:11} {:>8} {:>9} {:>5} {:>4} {:>4}"
HEAD = ("program", "seed", "filter", "they shuffle", "we shuffle", "theirs", "ours", "times", "wait", "ours")


def line_of(row: dict[str, Any]) -> str:
    """Write a result as a line of 80 columns: what, samples/s, and seconds until the first batch."""
    cells = [row[name] for name in ("program", "seed", "stored", "their_shuffle", "our_shuffle")]
    rates, firsts = ([row[who][name] for who in ("theirs", "ours")] for name in ("samples_per_s", "first_batch_s"))
    return FORM.format(*cells, *(f"{x:,.0f}" for x in rates), f"{row['times']:.1f}", *(f"{x:.1f}" for x in firsts))


def main() -> None:
    """Measure, print a line for each result, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1], help="of each a file is made")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3, help="how often it is the turn of each loader")
    parser.add_argument("--seconds", type=float, default=8.0, help="that a turn takes behind the first batch")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        program, folder, loader, seconds = PROGRAMS[given.child[0]], Path(given.child[1]), *given.child[2:]
        done = check(program, folder) if loader == "check" else timed(program, folder, loader, float(seconds))
        print(json.dumps(done))
        return
    if absent := [package for name in given.only for package in PROGRAMS[name].absent()]:
        raise SystemExit(f"not installed: {', '.join(absent)}; see the head of bench/programs.py")
    packages = [package for name in given.only for package in PROGRAMS[name].packages]
    results: list[dict[str, Any]] = []
    about = describe({package: importlib.metadata.version(package) for package in packages}) | {"results": results}
    print("samples/s, and seconds until the first batch", FORM.format(*HEAD), sep="\n", flush=True)
    for seed, name in itertools.product(given.seed, given.only):
        for row in (row for stored in PROGRAMS[name].stored for row in measure(name, stored, seed, given)):
            results.append(row)
            print(line_of(row), flush=True)
            if given.json:
                given.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
