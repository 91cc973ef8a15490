"""The first batch of a fresh machine, whose cache of compiled code is empty, in processor time; and the next process's.

    H5STREAM_BENCH_OLDER=FOLDER python -m pytest bench/test_first_batch.py --benchmark-enable \
        --benchmark-json=first-batch.json

`H5STREAM_BENCH_OLDER` is a checkout of an older commit, which is measured beside this one.
"""

from __future__ import annotations

import pytest

from bench.child import ROOT, run_child
from bench.first_batch import WRITERS
from bench.test_limits import OLDER, commit_of, trees  # noqa: F401  a fixture

LIMIT_S = 300.0


@pytest.mark.parametrize("tree", ["older", "newer"])
@pytest.mark.parametrize("case", WRITERS)
def test_first_batch(benchmark, tmp_path, trees, case, tree):  # noqa: F811
    if tree not in trees:
        pytest.skip("no older commit is named")
    path = tmp_path / "a.h5"
    WRITERS[case](path)
    found = []

    def measure() -> None:
        for _ in ("empty cache", "kept code"):
            environment = {**trees[tree], "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
            outcome = run_child(["bench.first_batch", case, str(path)], LIMIT_S, environment)
            assert not outcome.error, outcome.error
            found.append(outcome.result)

    benchmark.pedantic(measure, rounds=1)
    benchmark.extra_info.update(
        case=case,
        tree=tree,
        commit=commit_of(OLDER if tree == "older" and OLDER else str(ROOT)),
        imported_s=found[0]["imported_s"],
        empty_cache_s=found[0]["first_batch_s"],
        kept_code_s=found[1]["first_batch_s"],
    )
