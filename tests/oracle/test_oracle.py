"""Whatever the files, the samples, the fields and the way of reading: right, or refused in words.

The same cases each time; ``python -m tools.fuzz`` draws others for as long as wanted.
"""

import collections

import pytest

from .kinds import KINDS, case_of
from .run import run

SEEDS = {"rows": 30, "group_rows": 17, "axis_rows": 14, "sequences": 30, "table": 20, "objects": 30, "boxes": 27}
MOST_REFUSED = {"rows": 0.2, "sequences": 0.45, "table": 0.45}


@pytest.fixture(autouse=True)
def catalogue_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(("kind", "seeds"), [(k, range(s, SEEDS[k], 2)) for k in KINDS for s in (0, 1)])
def test_every_case_is_what_h5py_says_or_refused_in_words(kind, seeds):
    counts, wrong = collections.Counter(), []
    for seed in seeds:
        for result in run(case_of(seed, kind)):
            counts[result["status"]] += 1
            if result["status"] not in ("right", "refused"):
                wrong.append((seed, result["form"], result["said"][-400:]))
    assert not wrong, f"python -m tools.fuzz --kind {kind} --case {wrong[0][0]} makes it smaller: {wrong[0]}"
    assert counts["refused"] <= MOST_REFUSED.get(kind, 0.3) * counts.total(), counts
