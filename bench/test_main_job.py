"""The main job: 8192-row shuffled batches, ours beside what people use, on each kind of file."""

from __future__ import annotations

import pytest

from bench import cases


@pytest.mark.parametrize(("kind", "contender"), [(kind, name) for kind, names in cases.CASES.items() for name in names])
def test_shuffled_epoch(benchmark, bench_file, kind, contender):
    spec = cases.FILES[kind]
    action = cases.CONTENDERS[contender](bench_file(kind), spec)
    benchmark.group = kind
    rows = benchmark.pedantic(
        action, rounds=cases.ROUNDS[contender], warmup_rounds=cases.WARMUP.get(contender, 0), iterations=1
    )
    assert rows > 0
    if contender in ("ours", "kept", "in_ram"):
        assert rows == spec.rows
    benchmark.extra_info.update(rows=rows, contender=contender, kind=kind)
