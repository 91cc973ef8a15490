"""How near ours comes to what limits it, cell by cell, and an older commit beside it.

    H5STREAM_BENCH_OLDER=FOLDER python -m pytest bench/test_limits.py --benchmark-enable --benchmark-json=limits.json -s

`H5STREAM_BENCH_OLDER` is a checkout of the older commit (``git worktree add FOLDER COMMIT``); without it only this one
is measured. Each cell of `bench.limit_cells` runs in processes of its own, older and newer in turns, and in each of
them ours and the limit in turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from pathlib import Path

import pytest

from bench.child import ROOT, run_child, warm
from bench.limit_cells import CELLS, WRITERS

LIMIT_S = 300.0
OLDER = os.environ.get("H5STREAM_BENCH_OLDER")


@pytest.fixture(scope="module")
def trees():
    """Give for each commit what goes before the path: its package, and its own cells, which know that."""
    found = {}
    for name, root in {"older": OLDER, "newer": str(ROOT)}.items():
        if root is not None:
            found[name] = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(Path(root).resolve())}
    return found


def file_of(folder: Path, kind: str) -> Path:
    path = folder / (kind if kind == "many_files" else f"{kind}.h5")
    if not path.exists():
        partial = path.with_suffix(".partial")
        WRITERS[kind](partial)
        partial.rename(path)
    warm(path)
    return path


def commit_of(root: str) -> str:
    told = subprocess.run(["git", "-C", root, "log", "-1", "--format=%h"], capture_output=True, text=True, check=False)
    return told.stdout.strip()


@pytest.mark.parametrize("name", CELLS)
def test_how_near_the_limit(benchmark, bench_folder, trees, name):
    cell = CELLS[name]
    path = file_of(bench_folder, cell.file)
    figures: dict[str, dict[str, list[float]]] = {tree: {} for tree in trees}

    def measure() -> None:
        for _ in range(cell.processes):
            for tree, environment in trees.items():
                outcome = run_child(["bench.limit_cells", name, str(path)], LIMIT_S, environment)
                assert not outcome.error, f"{tree}: {outcome.error}"
                for key, values in outcome.result.items():
                    figures[tree].setdefault(key, []).extend(values)

    benchmark.pedantic(measure, rounds=1)
    benchmark.group = "limits"
    benchmark.extra_info.update(case=name, file=cell.file, against=cell.against, least=cell.least, most=cell.most)
    for tree, found in figures.items():
        key = "ratio" if "ratio" in found else "ours_s"
        middle, all_of_it = statistics.median(found[key]), sorted(found[key])
        benchmark.extra_info[tree] = {
            "median": middle,
            "spread": [all_of_it[0], all_of_it[-1]],
            "commit": commit_of(OLDER if tree == "older" and OLDER else str(ROOT)),
            **{other: statistics.median(values) for other, values in found.items()},
        }
        print(f"\n{name}, {tree}: {middle:.3g} [{all_of_it[0]:.3g}, {all_of_it[-1]:.3g}] of {cell.against}")
    newer = benchmark.extra_info["newer"]["median"]
    assert cell.least is None or newer >= cell.least
    assert cell.most is None or newer <= cell.most
