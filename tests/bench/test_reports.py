"""Tables, verdicts and pages from results files: what they say follows from the numbers."""

import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("tools.bench_tables", reason="tools/ belongs to a checkout, not to an installed package")

from tools import bench_pages, bench_plots, bench_report  # noqa: E402
from tools import bench_tables as tables  # noqa: E402
from tools.not_first import NOT_EXPLAINED, REASONS, Behind, behind, not_first_table, why  # noqa: E402


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


def cell(axis, value, ours, naive, **more):
    return {"axis": axis, "value": value, "ours": ours, "naive": naive, "spread": [1, 2]} | more


def main_report(**rates):
    return {
        "machine": {"cpu": "a", "cpus": 2, "memory_gib": 1, "system": "Linux"}, "versions": {"python": "3"},
        "when": "2026-01-01",
        "results": [
            {"kind": "gzip4_shuffle", "contender": name, "rows": 100,
             "seconds": {"min": 100 / rate, "median": 100 / rate, "max": 100 / rate, "rounds": 1}}
            for name, rate in rates.items()
        ],
    }  # fmt: skip


def test_cells_where_ours_is_not_first_are_listed_with_both_rates():
    report = peers_report(
        peer("h5stream", 10), peer("h5stream, window='all'", 40), peer("in RAM", 30, reads="memory"), FAILED
    )
    sweep = {"results": [
        cell("fields", 4, 5, 6, tuned=7), {"axis": "fields", "value": 1, "error": "x"},
        cell("batch_rows", 4, 9, 6), cell("cold", True, 3, 1, tuned=4, tuned_at_most=True),
    ]}  # fmt: skip
    main = main_report(ours=10, in_ram=20, decode_limit=30, naive=1)
    assert [(one.part, one.case, one.who) for one in behind(main, report, sweep)] == [
        ("main", "gzip4_shuffle", "in_ram"), ("peers", "gzip", "in RAM"),
        ("sweep", "fields = 4", "naive"), ("sweep", "fields = 4", "tuned"),
    ]  # fmt: skip
    assert tables.sweep_verdict(sweep) == "Slower than the naive loader in 1 of 3 cells; 1 could not be measured."


def test_rows_in_memory_are_compared_with_rows_that_are_kept():
    main = main_report(ours=10, kept=50, in_ram=20, naive=1) | {"when": "today", "machine": {"cpu": "a", "cpus": 2}}
    assert behind(main, None, None) == []
    main["results"].append({"cold_rows_per_s": 5})
    assert bench_report.readme_table(main).endswith(
        "| gzip-4 + shuffle, 1 MiB chunks | 10 | 50 | 10.0 |  | 2.50 |  |  |\n"
    )


def test_a_cell_shows_the_reason_that_is_written_down_or_that_there_is_none(tmp_path):
    written = tmp_path / "reasons.toml"
    written.write_text(
        '[[reason]]\npart = "peers"\ncase = "gz*"\nwho = "*RAM"\nwhy = "it sleeps"\n'
        '[[reason]]\npart = "peers"\ncase = "*"\nwho = "*"\nwhy = "too late"\n'
    )
    known = Behind(part="peers", case="gzip", who="in RAM", its=30, ours=10)
    unknown = Behind(part="sweep", case="gzip", who="in RAM", its=30, ours=10)
    assert (why(known, written), why(unknown, written)) == ("it sleeps", NOT_EXPLAINED)
    table = not_first_table([known, unknown], written)
    assert "| peers | gzip | in RAM | 30 | 10 | 3.00 | it sleeps |" in table
    assert table.endswith("1 of 2 cells are not explained.")


def test_every_written_reason_is_complete_and_names_a_part():
    for reason in tomllib.loads(REASONS.read_text())["reason"]:
        assert set(reason) == {"part", "case", "who", "why"}
        assert reason["part"] in ("main", "peers", "sweep")


def test_a_rival_that_gave_nothing_in_time_is_shown_as_a_bound():
    table = tables.sweep_table({"results": [cell("fields", 64, 100, 10, tuned=5, tuned_at_most=True)]})
    assert "| fields | 64 | 100 | 1 to 2 | 10 | 10 | under 5 | over 20 |" in table


@pytest.mark.parametrize("name", ["main-full", "reference-2core"])
def test_the_main_job_is_read_from_a_full_run_or_from_the_reference(name, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_pages, "RESULTS", tmp_path)
    assert bench_pages.load("main") is None
    (tmp_path / "reference-2core.json").write_text('{"is": "reference-2core"}')
    (tmp_path / f"{name}.json").write_text(json.dumps({"is": name}))
    assert bench_pages.load("main") == {"is": name}


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


def test_every_figure_can_be_drawn(tmp_path):
    report, blocks = learning_report(np.zeros(10)), learning_report(np.zeros(10))
    blocks["results"].append(case("64 blocks", [float(v) for v in range(1, 11)]))
    sweep = {"results": [cell("fields", 4, 5, 6, tuned=2), cell("cold", True, 5, 6), {"axis": "cold", "error": "x"}]}
    growth = {"results": [
        {"file": "virtual", "rows": rows, "first_batch_s": 1.0, "again_s": 0.1, "peak_mb": 5.0} for rows in (10, 100)
    ]}  # fmt: skip
    for number, figure in enumerate([
        bench_plots.peers_figure(peers_report(peer("h5stream", 10), peer("b", 3), FAILED), "gzip"),
        bench_plots.sweep_figure(sweep), bench_plots.growth_figure(growth),
        bench_plots.main_figure(main_report(ours=10, naive=1)),
        bench_plots.learning_figure(report), bench_plots.score_figure(report), bench_plots.subset_figure(blocks),
    ]):  # fmt: skip
        figure.savefig(tmp_path / f"{number}.svg")
        assert (tmp_path / f"{number}.svg").stat().st_size > 1000


def test_the_committed_pages_and_the_readme_are_those_of_the_committed_results(capsys):
    assert bench_pages.main(["--check"]) == 0, f"{capsys.readouterr().out}: run python tools/bench_pages.py"
    assert {"README.md", "benchmarks.md"} <= {path.name for path in bench_pages.pages()}


def test_committed_results_are_json_with_machine_versions_and_date():
    for path in (ROOT / "bench" / "results").glob("*.json"):
        found = json.loads(path.read_text())
        assert {"machine", "versions", "when", "results"} <= set(found), path.name
