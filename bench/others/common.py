"""What the benchmarks of others share: results, limits, and epochs of ours in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import imagecodecs
import numpy as np

from bench.child import warm_memory
from bench.gallery_training import in_a_process

THREADS = 2


def result(case: str, reader: str, figure: str, value: float, unit: str) -> dict[str, Any]:
    """Make a result: in what case, who read, what was measured, and how much of it."""
    return {"case": case, "reader": reader, "figure": figure, "unit": unit, "value": value}


WARMED = """
import importlib, mmap, runpy, sys
import numpy as np
for name in sys.argv[1].split(","):
    importlib.import_module(name)
with mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
    memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, np.uint8)[::4096] = 1
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program of theirs in a process that has imported what it needs and touched memory, as ours have."""


def said(words: list[str], folder: Path) -> str:
    """Run a program of theirs in its folder; give what it printed."""
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def apart(call: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call a function in a forked process; give the dict that it returns."""
    return in_a_process(_sent, call, *arguments)


def _sent(call: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    *own, pipe = arguments
    warm_memory(4 << 30)
    pipe.send(call(*own))


def rates(loader: Iterable[Any], samples: int, epochs: int, count: Callable[[Any], int]) -> list[float]:
    """Give the samples/s of each epoch of a loader, which must have all samples."""
    found = []
    for _ in range(epochs):
        since, seen = time.perf_counter(), 0
        for batch in loader:
            seen += count(batch)
        found.append(seen / (time.perf_counter() - since))
        if seen != samples:
            raise ValueError(f"{seen} samples came, not {samples}")
    return found


def decoding_alone(path: Path, name: str, decode: Callable[..., Any] = imagecodecs.zstd_decode) -> float:
    """Give the seconds that reading and decoding all chunks of a dataset takes, in as many threads as ours."""
    with h5py.File(path) as file:
        chunks = [file[name].id.get_chunk_info(k) for k in range(file[name].id.get_num_chunks())]
        nbytes = int(np.prod(file[name].chunks)) * file[name].dtype.itemsize

    def work(part: list[Any]) -> None:
        out = np.empty(nbytes, np.uint8)
        with path.open("rb", buffering=0) as stream:
            for chunk in part:
                stream.seek(chunk.byte_offset)
                decode(stream.read(chunk.size), out=out)

    since = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        [*threads.map(work, [chunks[k::THREADS] for k in range(THREADS)])]
    return time.perf_counter() - since


def lines_of_json(path: Path) -> list[dict[str, Any]]:
    """Read a file with an object in each line."""
    return [json.loads(line) for line in path.read_text().splitlines()]
