"""How fast staging copies to a tmpfs, checksum and read-back included, beside ``cp`` in the same run.

    python -m pytest bench/test_stage.py --benchmark-enable --benchmark-json=stage.json -s

Each case's rounds are taken in turns with the others', so that a neighbour on the machine slows all of them;
the ratio of the medians is printed and kept in the JSON (``extra_info``). Source files lie in the page cache.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from h5stream.staging import remove_staged, stage

MIB = 1 << 20
ROUNDS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    files: int
    file_mib: int


CASES = [
    Case(name="one file of 512 MiB", files=1, file_mib=512),
    Case(name="8 files of 64 MiB", files=8, file_mib=64),
    Case(name="256 files of 1 MiB", files=256, file_mib=1),
]


@pytest.fixture
def ram():
    folder = Path("/dev/shm") / f"h5stream-bench-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no tmpfs at /dev/shm: {error}")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture
def sources(case, tmp_path):
    piece = os.urandom(MIB)
    paths = [tmp_path / f"{number:03}.bin" for number in range(case.files)]
    for path in paths:
        path.write_bytes(piece * case.file_mib)
    os.sync()  # written back now, not while something is timed
    return paths


def in_page_cache(sources):
    for path in sources:
        with path.open("rb", buffering=0) as file:
            while file.read(MIB):
                pass


def copy_with_cp(sources, folder):
    (folder / "cp").mkdir()
    subprocess.run(["cp", *map(str, sources), str(folder / "cp")], check=True)


def copy_with_stage(sources, folder):
    stage(sources, to=folder / "staged", lease=False)


def remove(folder):
    shutil.rmtree(folder / "cp", ignore_errors=True)
    remove_staged(folder / "staged", force=True)


def rates(case, sources, folder):
    """Give the rates of both in GB/s, a round of one after a round of the other."""
    size = case.files * case.file_mib * MIB
    found = {copy_with_cp: [], copy_with_stage: []}
    for _ in range(ROUNDS):
        for way, list_of_rates in found.items():
            in_page_cache(sources)
            begin = time.perf_counter()
            way(sources, folder)
            list_of_rates.append(size / (time.perf_counter() - begin) / 1e9)
            remove(folder)
    return found[copy_with_cp], found[copy_with_stage]


def test_staging_to_tmpfs_beside_cp(benchmark, case, sources, ram):
    if not benchmark.enabled:
        pytest.skip("a benchmark; run it with --benchmark-enable")
    cp, ours = rates(case, sources, ram)
    benchmark.extra_info |= {
        "cp_gb_per_s": [min(cp), statistics.median(cp), max(cp)],
        "stage_gb_per_s": [min(ours), statistics.median(ours), max(ours)],
        "stage_over_cp": statistics.median(ours) / statistics.median(cp),
        "stage_over_cp_at_best": max(ours) / max(cp),
    }
    print(
        f"\n{case.name}: cp {statistics.median(cp):.2f} GB/s ({min(cp):.2f} to {max(cp):.2f}), "
        f"stage {statistics.median(ours):.2f} ({min(ours):.2f} to {max(ours):.2f}), "
        f"stage over cp {statistics.median(ours) / statistics.median(cp):.2f}, "
        f"best over best {max(ours) / max(cp):.2f}"
    )
    benchmark.pedantic(
        copy_with_stage,
        setup=lambda: (in_page_cache(sources), ((sources, ram), {}))[1],
        teardown=lambda *_: remove(ram),
        rounds=3,
    )
