"""What many processors bring, and what is left of that beside a loop that is busy with Python.

    python -m bench.many_cores --out bench/results/many-cores.json
    python -m bench.many_cores --tree ../old --readers 8 16 --only gzip

A library that is loaded first lets each read take as long as decoding its bytes would on a processor of its own (2 ns
a byte, as gzip inflates), so that two processors stand for many: what is left on them is what more would not help with,
that is Python, its lock, planning and copying. Chunks of gzip hold their bytes as they are.

Figures of a cell: rows a second of a loop that only takes batches, as a share of what so many readers could decode; and
the share of the time that a loop spends in steps of its own, of Python or of small operations of torch. ``--real``
measures without the library, of gzip as level 4 makes it, on a machine that has the processors. ``--tree`` measures
another checkout in turn, and prints this one over it.

Rivals are a DataLoader whose worker processes, as many as there are readers, each open the file and read sorted indices
with h5py, and one over a NumPy array in memory. Processes have no lock to share.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # behind the tree that is measured

ROOT = Path(__file__).resolve().parent.parent
NS_PER_BYTE = 2.0
ROWS, WIDTH = 262_144, 256
"""Rows of `WIDTH` float32: 256 MiB."""

SECONDS, RIVAL_S = 1.5, 10.0
"""How long each loop goes on, at least, in whole epochs; and with a rival, wherever that is in an epoch."""

MOST_WORKERS = 16
"""Processes of a rival: each takes hundreds of MiB."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Data, and how they are streamed."""

    name: str
    file: str
    batch_size: int = 8192
    step_s: float = 0.005  # that a busy loop spends on a batch
    keep: str = "never"
    window: int | str = "auto"  # rows
    is_decoded: bool = True  # whether reads take as long as decoding
    rival: str = ""  # what reads in place of h5stream


CELLS = (
    Cell("gzip, 1 MiB chunks", "gzip-1024"),
    Cell("gzip, 64 KiB chunks", "gzip-64"),
    Cell("unfiltered", "plain-1024"),
    Cell("kept in memory", "gzip-1024", keep="auto", is_decoded=False),
    Cell("gzip, windows of 4 batches", "gzip-64", window=4 * 8192),
    Cell("gzip, windows of 32 batches", "gzip-64", window=32 * 8192),
    Cell("gzip, batches of 64 rows", "gzip-64", batch_size=64, step_s=0.0005),
    Cell("DataLoader, gzip, 1 MiB chunks", "gzip-1024", rival="tuned"),
    Cell("DataLoader, gzip, 64 KiB chunks", "gzip-64", rival="tuned"),
    Cell("DataLoader, array in memory", "plain-1024", is_decoded=False, rival="in RAM"),
)


def make_files(folder: Path, gzip_level: int) -> None:
    """Write the files that are not there."""
    import h5py
    import numpy as np

    from h5stream.baseline.measure import sample_rows

    for cell in CELLS:
        path, (kind, chunk_rows) = folder / f"{cell.file}.h5", cell.file.split("-")
        if path.exists():
            continue
        some = sample_rows(np.random.default_rng(0), 65_536)
        filters = {"compression": "gzip", "compression_opts": gzip_level, "shuffle": True} if kind == "gzip" else {}
        with h5py.File(part := path.with_suffix(".part"), "w") as file:
            x = file.create_dataset("x", (ROWS, WIDTH), "f4", chunks=(int(chunk_rows), WIDTH), **filters)
            for begin in range(0, ROWS, len(some)):
                x[begin : begin + len(some)] = some
            file["y"] = np.arange(ROWS)
        part.rename(path)


def build_library(folder: Path) -> Path:
    """Compile what lets reads take their time."""
    library = folder / "slow_reads.so"
    source = Path(__file__).with_name("slow_reads.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


# --- in a process of its own ---------------------------------------------------------------------------------


def run_loop(loader: Any, step_s: float, kind: str, seconds: float = math.inf) -> tuple[float, float]:
    """Take batches for some time; give the rows a second, and the share of the time in steps.

    With `seconds` from the first batch on, and no longer than that: processes of a DataLoader take seconds to start.
    """
    import torch

    torch.set_num_threads(1)
    a = torch.ones(8)
    rows = steps = 0
    waits_for_first = seconds < math.inf
    began = time.perf_counter()
    while time.perf_counter() - began < min(SECONDS, seconds):
        for x, _ in loader:
            if waits_for_first:
                began, waits_for_first = time.perf_counter(), False
                continue
            if time.perf_counter() - began > seconds:
                break
            rows, steps = rows + len(x), steps + 1
            end = time.perf_counter() + step_s * (kind != "idle")
            while time.perf_counter() < end:
                if kind == "torch":
                    torch.mul(a, a)  # lets Python's lock go, and takes it again
                else:
                    for _ in range(50):
                        pass
    took = time.perf_counter() - began
    return rows / took, steps * step_s / took


def measure_here(path: str, cell: Cell, readers: int) -> dict[str, float]:
    """Measure the loops with the h5stream of this process, or with a rival."""
    from h5stream import H5StreamLoader

    if cell.rival:
        return _measure_rival(path, cell, readers)
    options: dict[str, Any] = {"keep": cell.keep, "window": cell.window, "num_workers": readers, "seed": 0}
    measured = {}
    with H5StreamLoader(path, cell.batch_size, True, fields=["x", "y"], memory_budget="4GiB", **options) as loader:
        for _ in range(2):
            for _batch in loader:
                pass
        measured["idle_rows_per_s"] = run_loop(loader, cell.step_s, "idle")[0]
        measured["in_steps"] = run_loop(loader, cell.step_s, "python")[1]
        measured["in_steps_torch"] = run_loop(loader, cell.step_s, "torch")[1]
    return measured


def _measure_rival(path: str, cell: Cell, workers: int) -> dict[str, float]:
    import h5py

    from bench.rivals import ram_loader, tuned_loader

    if cell.rival == "in RAM":
        with h5py.File(path) as file:
            loader = ram_loader([file["x"][:], file["y"][:]], cell.batch_size)
    else:
        loader = tuned_loader(path, ["x", "y"], cell.batch_size, workers)
    idle, _ = run_loop(loader, cell.step_s, "idle", RIVAL_S)
    shares = {kind: run_loop(loader, cell.step_s, kind, RIVAL_S)[1] for kind in ("python", "torch")}
    return {"idle_rows_per_s": idle, "in_steps": shares["python"], "in_steps_torch": shares["torch"]}


# --- all of them ---------------------------------------------------------------------------------------------


def measure(folder: Path, cell: Cell, readers: int, library: Path | None, tree: str | None) -> dict[str, float]:
    """Measure a cell in a process of its own, with another checkout's package if one is given."""
    environment = dict(os.environ)
    if library is not None:
        environment["LD_PRELOAD"] = str(library)
        environment["BENCH_NS_PER_BYTE"] = str(NS_PER_BYTE * cell.is_decoded)
    folders = [str(Path(tree).resolve() if tree else ROOT), environment.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    case = json.dumps([str(folder / f"{cell.file}.h5"), asdict(cell), readers])
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--case", case],
        cwd=tree or ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2000:])
    measured: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def median_of(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def ideal_of(readers: int) -> float:
    """Return the rows a second that so many readers could decode."""
    return readers * 1e9 / (NS_PER_BYTE * WIDTH * 4)


def line_of(cell: Cell, readers: int, mine: dict[str, float], old: dict[str, float] | None) -> str:
    """Return a cell as a line of text."""
    share = f" {mine['of_ideal']:5.2f} of ideal" if "of_ideal" in mine else " " * 15
    text = f"{cell.name:28} {readers:3} {mine['idle_rows_per_s']:12,.0f} rows/s{share}; in steps"
    text += f" {mine['in_steps']:.2f}, torch {mine.get('in_steps_torch', 0):.2f}"
    if old is not None:
        text += "; over the other: " + ", ".join(f"{mine[name] / old[name]:.2f}" for name in old)
    return text


def main() -> None:
    """Measure the cells that are asked for, and print and write them."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "h5stream-many-cores")
    ask.add_argument("--readers", type=int, nargs="+", default=[2, 8, 16, 32, 64])
    ask.add_argument("--rounds", type=int, default=3)
    ask.add_argument("--only", default="", help="part of a cell's name")
    ask.add_argument("--tree", help="another checkout, its extension built in place")
    ask.add_argument("--real", action="store_true", help="reads take the time that they take")
    ask.add_argument("--out", type=Path)
    ask.add_argument("--case", help=argparse.SUPPRESS)
    asked = ask.parse_args()
    if asked.case:
        path, cell, readers = json.loads(asked.case)
        print(json.dumps(measure_here(path, Cell(**cell), readers)))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    make_files(asked.folder, gzip_level=4 if asked.real else 0)
    from bench.machine import describe

    library, results = None if asked.real else build_library(asked.folder), []
    described = describe()
    for cell, readers in itertools.product((one for one in CELLS if asked.only in one.name), asked.readers):
        if cell.rival and (
            asked.tree or readers > MOST_WORKERS or (cell.rival == "in RAM" and readers > min(asked.readers))
        ):
            continue
        trees = [None, asked.tree] if asked.tree else [None]
        runs: dict[str | None, list[dict[str, float]]] = {tree: [] for tree in trees}
        for number in range(asked.rounds):
            for tree in trees if number % 2 else trees[::-1]:
                runs[tree].append(measure(asked.folder, cell, readers, library, tree))
        mine, old = median_of(runs[None]), median_of(runs[asked.tree]) if asked.tree else None
        if cell.is_decoded and not asked.real:
            mine["of_ideal"] = mine["idle_rows_per_s"] / ideal_of(readers)
        print(line_of(cell, readers, mine, old), flush=True)
        results.append({"cell": cell.name, "readers": readers, **mine})
    if asked.out:
        described |= {} if asked.real else {"ns_per_byte": NS_PER_BYTE}
        asked.out.write_text(json.dumps({**described, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
