"""How fast staging copies to a tmpfs, checksum and read-back included, beside ``cp`` in the same run.

    python -m pytest bench/test_stage.py --benchmark-enable --benchmark-json=stage.json -s

A round of one follows a round of the other. Staging uses more than one processor, ``cp`` uses one, so a
neighbour on a small machine slows staging only: each round also notes how busy others kept the processors,
and the ratio is given for all rounds and for those in which both were left alone. The sources lie in the page
cache.
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
MOST_ROUNDS = 30
# Processors kept busy by others, up to which a round counts as left alone.
QUIET = 0.15


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    gb_per_s: float
    neighbours: float
    """Processors that others kept busy meanwhile."""


def busy_seconds():
    """Seconds that all processors together have worked, for anybody."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    idle, iowait, steal = fields[3], fields[4], fields[7]
    return (sum(fields[:8]) - idle - iowait - steal) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    return sum(os.times()[:4])


def timed(action, size):
    busy, own, begin = busy_seconds(), own_seconds(), time.perf_counter()
    action()
    seconds = time.perf_counter() - begin
    others = (busy_seconds() - busy) - (own_seconds() - own)
    return Round(gb_per_s=size / seconds / 1e9, neighbours=max(0.0, others / seconds))


def pairs(case, sources, folder):
    """Give rounds of cp and of staging in turns, until enough of them were left alone."""
    size, found = case.files * case.file_mib * MIB, []
    while len(found) < MOST_ROUNDS and len(alone(found)) < ROUNDS:
        in_page_cache(sources)
        cp = timed(lambda: copy_with_cp(sources, folder), size)
        remove(folder)
        in_page_cache(sources)
        ours = timed(lambda: copy_with_stage(sources, folder), size)
        remove(folder)
        found.append((cp, ours))
    return found


def alone(found):
    return [pair for pair in found if max(one.neighbours for one in pair) < QUIET]


def summary(found):
    if not found:
        return {"rounds": 0}
    rates = [[pair[side].gb_per_s for pair in found] for side in (0, 1)]
    cp, ours = (statistics.median(side) for side in rates)
    return {
        "rounds": len(found),
        "cp_gb_per_s": [round(x, 2) for x in (min(rates[0]), cp, max(rates[0]))],
        "stage_gb_per_s": [round(x, 2) for x in (min(rates[1]), ours, max(rates[1]))],
        "stage_over_cp": round(ours / cp, 2),
    }


def test_staging_to_tmpfs_beside_cp(benchmark, case, sources, ram):
    if not benchmark.enabled:
        pytest.skip("a benchmark; run it with --benchmark-enable")
    copy_with_stage(sources, ram)  # imports h5py
    remove(ram)
    found = pairs(case, sources, ram)
    benchmark.extra_info |= {"all_rounds": summary(found), "left_alone": summary(alone(found))}
    print(f"\n{case.name}: all rounds {summary(found)}; left alone {summary(alone(found))}")
    benchmark.pedantic(
        copy_with_stage,
        setup=lambda: (in_page_cache(sources), ((sources, ram), {}))[1],
        teardown=lambda *_: remove(ram),
        rounds=3,
    )
