"""Tables, verdicts and pages from results files: what they say follows from the numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("tools.bench_tables", reason="tools/ belongs to a checkout, not to an installed package")

from tools import bench_pages, bench_plots  # noqa: E402
from tools import bench_statistics as statistics  # noqa: E402
from tools import bench_tables as tables  # noqa: E402
from tools import learning_tables as learning  # noqa: E402


def peer(name, rate, **more):
    return {
        "peer": name, "file": "gzip", "reads": "plain HDF5", "shuffle": "full", "rows_per_s": rate, "spread": [1, 2],
        "whole_epoch": True, "first_batch_s": 0.5, "peak_mb": 10.0, "disk_mb": 5.0, "convert_s": 0.0,
    } | more  # fmt: skip


def peers_report(*results):
    return {
        "machine": {"cpu": "a", "cpus": 2}, "when": "2026-01-01", "rows": 10, "row_nbytes": 8, "batch_rows": 4,
        "results": list(results), "absent": [{"peer": "gone", "reason": "not installed"}],
    }  # fmt: skip


FAILED = {"peer": "broken", "file": "gzip", "reads": "converted", "shuffle": "full", "error": "it fell"}


def test_the_ranking_puts_the_fastest_first_and_failures_last():
    report = peers_report(FAILED, peer("slow", 1), peer("h5stream", 10))
    assert [one["peer"] for one in tables.ranking(report, "gzip")] == ["h5stream", "slow", "broken"]
    assert "failed: it fell" in tables.peers_table(report, "gzip")


def test_cells_where_ours_is_not_first_are_listed_with_both_rates():
    report = peers_report(
        peer("h5stream", 10), peer("h5stream, window='all'", 40), peer("in RAM", 30, reads="memory"), FAILED
    )
    sweep = {"results": [
        {"axis": "fields", "value": 4, "ours": 5, "naive": 6}, {"axis": "fields", "value": 1, "error": "x"},
        {"axis": "batch_rows", "value": 4, "ours": 9, "naive": 6},
    ]}  # fmt: skip
    table = tables.not_first_table(report, sweep)
    assert "| gzip | in RAM (memory) | 30 | 10 | 3.00 | its rows are decoded" in table
    assert "| fields = 4 | naive DataLoader | 6 | 5 | 1.20 |" in table
    assert "window" not in table
    assert "batch_rows" not in table
    assert tables.sweep_verdict(sweep) == "Slower than the naive loader in 1 of 2 cells; 1 could not be measured."


def test_first_everywhere_is_said_in_words():
    assert tables.not_first_table(peers_report(peer("h5stream", 2), peer("b", 1)), None) == (
        "Ours is first in every cell."
    )


def case(order, loss, *, sorted_by="label", score=1.0, window=10):
    return {
        "data": "d", "sorted_by": sorted_by, "chunks": "small", "model": "m", "order": order, "rows": 100,
        "window_rows": window, "score": score, "loss": list(loss), "accuracy": [0.5 + v / 100 for v in loss],
    }  # fmt: skip


def learning_report(auto):
    rng = np.random.default_rng(0)
    full = 1 + rng.normal(0, 0.01, 10)
    return {
        "seeds": 10, "models": {"m": 0.1},
        "results": [
            case("full", full), case("full, other seeds", full + rng.normal(0, 0.002, 10)),
            case("auto", full + auto), case("none", full + 1, score=0.01),
        ],
    }  # fmt: skip


def test_an_order_that_harms_is_found_and_one_that_does_not_is_not():
    even = np.array([0.001, -0.001] * 5)
    assert learning.harmed(learning_report(even), "auto") == []
    assert learning.harmed(learning_report(even), "none") == [("d", "label", "small", "m")]
    assert learning.harmed(learning_report(even + 0.05), "auto") == [("d", "label", "small", "m")]
    assert "differs from a full shuffle in 1 of 1 cases" in learning.verdict(learning_report(even + 0.05))
    assert "in 1 of them its window is smaller than the file" in learning.verdict(learning_report(even))


def test_the_interval_of_ten_values_is_that_of_students_t():
    values = [1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    mean, margin = statistics.mean_and_margin(values)
    assert mean == 5.5
    assert margin == pytest.approx(2.262 * np.std(values, ddof=1) / np.sqrt(10), rel=1e-3)


def test_the_score_table_ranks_within_each_sorting():
    table = learning.score_table(learning_report(np.zeros(10)))
    assert table.splitlines()[2].startswith("| label | -1.00 |")


def test_every_figure_can_be_drawn(tmp_path):
    report = learning_report(np.zeros(10))
    sweep = {"results": [{"axis": "fields", "value": 4, "ours": 5, "naive": 6}]}
    for number, figure in enumerate([
        bench_plots.peers_figure(peers_report(peer("h5stream", 10), peer("b", 3), FAILED), "gzip"),
        bench_plots.sweep_figure(sweep), bench_plots.learning_figure(report), bench_plots.score_figure(report),
    ]):  # fmt: skip
        figure.savefig(tmp_path / f"{number}.svg")
        assert (tmp_path / f"{number}.svg").stat().st_size > 1000


def test_the_committed_pages_are_those_of_the_committed_results():
    for path, text in bench_pages.pages().items():
        assert path.read_text() == text, f"{path.name}: run python tools/bench_pages.py"


def test_committed_results_are_json_with_machine_versions_and_date():
    for path in (ROOT / "bench" / "results").glob("*.json"):
        found = json.loads(path.read_text())
        assert {"machine", "versions", "when", "results"} <= set(found), path.name
