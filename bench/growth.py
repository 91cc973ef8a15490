"""How cost grows with the number of rows, 10^4 to 10^9: open, first batch, memory, state.

python -m bench.growth --quick --out bench/results/growth-quick.json

Files hold next to nothing: chunks that were never written read as the fill value, and contiguous data whose space
is a hole. What is left is what the number of rows itself costs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py

from bench.child import run_child
from bench.machine import describe
from bench.tree_memory import tree_nbytes
from h5stream import H5Dataset, H5StreamLoader

ROWS = {"quick": [10**4, 10**6, 10**8], "full": [10**4, 10**5, 10**6, 10**7, 10**8, 10**9]}
LIMIT_S = 60.0
EACH_S = 5.0
"""Seconds of a file, about: writing it, starting Python, two epochs' first batches."""


def _chunked(path: Path, rows: int) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", (rows, 4), "f4", chunks=(min(rows, 8192), 4), fillvalue=1.5)


def _allocated(path: Path, rows: int) -> None:
    # An address for every chunk, so that the index is as long as in a file that is full; the chunks are holes.
    with h5py.File(path, "w", libver="latest") as file:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((min(rows, 8192), 4))
        creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((rows, 4)), creation)


def _sparse(path: Path, rows: int) -> None:
    # Late allocation leaves no address; early allocation with no fill makes a hole that the file system keeps free.
    with h5py.File(path, "w") as file:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((rows, 4))
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, creation)


def _virtual(path: Path, rows: int) -> None:
    half = path.with_name("half.h5")
    _sparse(half, rows // 2)
    layout = h5py.VirtualLayout((rows // 2 * 2, 4), "f4")
    for k in range(2):
        layout[k * (rows // 2) : (k + 1) * (rows // 2)] = h5py.VirtualSource(str(half), "x", (rows // 2, 4))
    with h5py.File(path, "w", libver="latest") as file:
        file.create_virtual_dataset("x", layout)


FILES = {
    "chunks that are holes": _allocated,
    "chunks never written": _chunked,
    "contiguous, sparse": _sparse,
    "virtual": _virtual,
}


def measure(path: Path, file: str) -> dict[str, Any]:
    """Open, take a batch, take the first batch of the next epoch."""
    base = tree_nbytes()
    start = time.perf_counter()
    # num_workers is what it is by default: a user's first batch.
    loader = H5StreamLoader(H5Dataset(path, ["x"], allow_external=file == "virtual"), 8192, shuffle=True)
    opened = time.perf_counter() - start
    times = []
    for _ in range(2):
        start = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
        state = json.dumps(loader.state_dict())
        saved, last = time.perf_counter() - start, tree_nbytes()
        iterator.close()
    print(json.dumps({"timed": True, "base": base, "last": last}), flush=True)
    return {
        "open_s": round(opened, 4),
        "first_batch_s": round(times[0], 4),
        "again_s": round(times[1], 4),
        "state_s": round(saved, 5),
        "state_bytes": len(state),
    }


def estimate_s(size: str) -> float:
    """Give about how many seconds all files take."""
    return len(FILES) * len(ROWS[size]) * EACH_S


def main() -> int:
    """Run all sizes, or with --one a file in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("PATH", "FILE"), help="used by the runner itself")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(Path(given.one[0]), given.one[1])))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="h5stream-growth-", dir=given.folder))
    results = []
    try:
        for file, write in FILES.items():
            for rows in ROWS["quick" if given.quick else "full"]:
                path = folder / "a.h5"
                write(path, rows)
                found = run_child(["bench.growth", "--one", str(path), file], LIMIT_S)
                figures = {"error": found.error} if found.error else found.result
                figures |= {} if found.error else {"peak_mb": round(found.peak_nbytes / 1e6, 1)}
                results.append({"file": file, "rows": rows} | figures)
                print(results[-1], flush=True)
                path.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(describe() | {"results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
