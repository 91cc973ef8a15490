"""What a loader really takes of a process: resident memory over what the imports took, case by case.

``python bench/memory.py`` runs every case in a process of its own and prints a table; ``--out`` writes it as JSON.
The figure is the peak of the resident set while an epoch runs (``VmHWM``), less what was resident when modules were
imported and kernels loaded. It should stay within `memory_budget`.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import describe

MIB = 1 << 20

SPARE_NBYTES = 300 * MIB
"""What interpreter and libraries take themselves, and the whole may so exceed the budget by."""

ROWS = {
    "1 B": (30_000_000, 1, "u1", MIB),
    "4 B": (30_000_000, 1, "i4", MIB // 4),
    "768 B": (400_000, 768, "u1", 1024),
    "1 MiB": (400, MIB, "u1", 1),
}
"""Kind of rows -> how many, elements of a row, their type, and rows of a chunk."""

VALUES = {"vlen_list": (200_000, None), "ragged": (200_000, "packed")}
"""Kind of samples of 20 to 60 float32 each -> how many, and the form in which batches have them."""

CASES = {
    "auto": {},
    "auto, gzip": {"compression": True},
    "all": {"window": "all", "budget_of": "needed"},
    "subset": {"subset": True},
    "sampler": {"sampler": True},
    "rank 1 of 3": {"rank": 1, "world_size": 3},
    "two epochs": {"epochs": 2, "persistent_workers": True},
    "in file order": {"shuffle": False},
    "short batches": {"batch_size": 256},
    "short batches, gzip": {"batch_size": 256, "compression": True},
    "weights": {"draw": "Weighted", "budget_of": "needed"},
    "balance": {"draw": "Balanced", "budget_of": "needed"},
}
"""Name -> what is unlike a plain shuffled epoch."""


def make_file(folder: Path, kind: str, *, compression: bool = False, rows: int | None = None) -> Path:
    """Write a file of a kind of rows, with labels beside them, unless it is there."""
    import h5py
    import numpy as np

    if kind in VALUES:
        return _file_of_values(folder / "values.h5", rows or VALUES[kind][0])
    all_rows, width, dtype, chunk_rows = ROWS[kind]
    rows = rows or all_rows
    path = folder / f"{kind.replace(' ', '')}-{rows}{'-gzip' * compression}.h5"
    if path.exists():
        return path
    with h5py.File(path, "w") as file:
        filters = {"compression": "gzip", "compression_opts": 1, "shuffle": True} if compression else {}
        shape, chunks = ((rows,), (chunk_rows,)) if width == 1 else ((rows, width), (chunk_rows, width))
        x = file.create_dataset("x", shape, dtype, chunks=chunks, **filters)
        for start in range(0, rows, step := max(1, 64 * MIB // (width * x.dtype.itemsize))):
            count = min(step, rows - start)
            x[start : start + count] = np.resize(np.arange(251, dtype=dtype), (count, *shape[1:]))
        file.create_dataset("y", data=np.arange(rows, dtype="i8") % 100, chunks=(min(rows, 8192),), **filters)
    return path


def _file_of_values(path: Path, rows: int) -> Path:
    import h5py
    import numpy as np

    if not path.exists():
        lengths = np.random.default_rng(0).integers(20, 61, rows)
        with h5py.File(path, "w") as file:
            x = file.create_dataset("x", (rows,), h5py.vlen_dtype("f4"))
            for start in range(0, rows, 10_000):
                x[start : start + 10_000] = np.array(
                    [np.arange(n, dtype="f4") for n in lengths[start:][:10_000]], object
                )
            file["y"] = np.arange(rows) % 100
    return path


def resident_nbytes(name: str = "VmRSS") -> int:
    """Give what this process holds (``VmRSS``), or held at most (``VmHWM``)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name + ":"))


def forget_peak() -> None:
    """Let the peak begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def warmed(folder: Path) -> int:
    """Import, compile and open once; give what that left resident."""
    import h5py
    import numpy as np

    from h5stream import H5StreamLoader

    path = folder / "warm.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=np.zeros((4096, 8), "u1"), chunks=(64, 8), compression="gzip", shuffle=True)
    for shuffle in (False, True):
        with H5StreamLoader(path, 256, shuffle) as loader:
            for _ in loader:
                pass
    gc.collect()
    return resident_nbytes()


def _loader_of(path: Path, case: dict, batch_size: int, budget: int):
    import numpy as np

    from h5stream import Balanced, Field, H5Dataset, H5StreamLoader, Weighted
    from h5stream.errors import BudgetError

    given = ("window", "rank", "world_size", "persistent_workers")
    options = {name: case[name] for name in given if name in case}
    if "draw" in case:
        options["draw"] = (Weighted if case["draw"] == "Weighted" else Balanced)("y")
    fields = {"x": Field("x", ragged=case["ragged"]), "y": "y"} if case.get("ragged") else None
    dataset = H5Dataset(path, fields)
    if case.get("subset"):
        dataset = dataset.subset(np.arange(0, len(dataset), 2))
        forget_peak()  # choosing rows is not the loader's business; holding them is
    if case.get("sampler"):
        order = np.random.default_rng(0).permutation(min(len(dataset), 2_000_000))
        options["sampler"] = order
    else:
        options["shuffle"] = case.get("shuffle", True)
    try:
        return H5StreamLoader(dataset, batch_size, memory_budget=budget, **options), budget
    except BudgetError as error:
        if case.get("budget_of") != "needed":
            raise
        return H5StreamLoader(dataset, batch_size, memory_budget=error.needed, **options), error.needed


def measure_here(path: Path, case: dict, batch_size: int, budget: int, most_batches: int | None) -> dict:
    """Run a case in this process; give bytes."""
    baseline = warmed(path.parent)
    forget_peak()
    loader, budget = _loader_of(path, case, batch_size, budget)
    made = resident_nbytes("VmHWM") - baseline
    batches = 0
    for _ in range(case.get("epochs", 1)):
        for number, _batch in enumerate(loader, 1):
            batches += 1
            if number == most_batches:
                break
    del _batch
    peak = resident_nbytes("VmHWM")
    size, threads = loader.window_size, loader.num_workers
    loader.close()
    del loader
    gc.collect()
    return {
        "budget": budget,
        "says": size.needed_nbytes,
        "window_rows": size.window_rows,
        "threads": threads,
        "batches": batches,
        "made": made,
        "grew": peak - baseline,
        "resident": peak,
        "after": resident_nbytes() - baseline,
    }


def measure(path: Path, case: dict, *, batch_size: int, budget: int, most_batches: int | None = None) -> dict:
    """Run a case in a process of its own; give bytes."""
    asked = json.dumps([str(path), case, batch_size, budget, most_batches])
    done = subprocess.run([sys.executable, __file__, "--child", asked], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def batch_size_of(kind: str, case: dict) -> int:
    """Return the rows of a batch: a few MiB at most."""
    return 16 if kind == "1 MiB" else case.get("batch_size", 8192)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=256, help="MiB")
    parser.add_argument("--kind", choices=[*ROWS, *VALUES])
    parser.add_argument("--case", choices=list(CASES))
    parser.add_argument("--folder", type=Path, help="where files lie; a temporary one by default")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        from h5stream.errors import BudgetError  # here, since importing takes memory

        path, *rest = json.loads(given.child)
        try:
            print(json.dumps(measure_here(Path(path), *rest)))
        except BudgetError as error:
            print(json.dumps({"refused": error.needed}))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        found = []
        print(
            f"{'rows':>6} {'case':<20} {'window':>12} {'budget':>7} {'says':>7} {'grew':>7} {'in all':>7} {'after':>7}"
        )
        for kind in [given.kind] if given.kind else [*ROWS, *VALUES]:
            for name in [given.case] if given.case else ["auto"] if kind in VALUES else CASES:
                case = CASES[name] | ({"ragged": VALUES[kind][1]} if kind in VALUES else {})
                path = make_file(folder, kind, compression=bool(case.get("compression")))
                result = measure(path, case, batch_size=batch_size_of(kind, case), budget=given.budget * MIB)
                found.append({"rows": kind, "case": name, **result})
                if refused := result.get("refused"):
                    print(f"{kind:>6} {name:<20} refused: it needs {refused / MIB:,.0f} MiB", flush=True)
                    continue
                figures = "".join(
                    f" {result[key] / MIB:7.0f}" for key in ("budget", "says", "grew", "resident", "after")
                )
                over = "  over" if result["grew"] > result["budget"] + SPARE_NBYTES else ""
                print(f"{kind:>6} {name:<20} {result['window_rows']:12,}{figures}{over}", flush=True)
                if given.out:
                    given.out.write_text(json.dumps(describe() | {"results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
