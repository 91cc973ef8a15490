"""Run the benchmarks of others, two seeds each, and write their results.

    python -m bench.others insitubatch --checkout ~/insitubatch --out bench/results/others-insitubatch.json

A checkout is a clone of the other project, whose own programs are run as they are; what they need is installed beside
h5stream (Python 3.12 for insitubatch and annbatch).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench.machine import describe

SEEDS = 2
PACKAGES = {
    "insitubatch": ("insitubatch", "zarr"),
    "cells": ("annbatch", "scDataset", "anndata", "zarr", "zarrs"),
    "volumes": ("zarr", "zarrs"),
    "virtual": ("virtualizarr", "icechunk", "zarr", "zarrs", "obstore"),
    "images": ("spdl_core", "spdl_io"),
}
"""The packages of others that each benchmark needs."""


def main() -> None:
    """Measure one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(PACKAGES))
    parser.add_argument("--checkout", type=Path, default=Path(), help="a clone of the other project")
    parser.add_argument("--folder", type=Path, help="where files go; by default a temporary folder")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    module = importlib.import_module(f"bench.others.{asked.name}")
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            for one in module.measure(Path(folder), seed, asked.checkout.resolve()):
                key = tuple(one[name] for name in ("case", "reader", "figure"))
                value = float(f"{one.pop('value'):.4g}")
                found.setdefault(key, {**one, "values": []})["values"].append(value)
                print(*key, value, one["unit"], flush=True)
    report = describe({name: importlib.metadata.version(name) for name in PACKAGES[asked.name]})
    report |= {"seeds": SEEDS, "results": [*found.values()]}
    if asked.checkout != Path():
        words = ["git", "-C", str(asked.checkout), "log", "-1", "--format=%h, %as"]
        report["commit"] = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    asked.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
