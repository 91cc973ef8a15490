"""Benchmarks can be run, and the pages, pictures and reasons made from their results are those that are committed."""

import json
import sys
import tomllib
from pathlib import Path

import pytest
from support import forking

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("tools.bench_tables", reason="tools/ belongs to a checkout, not to an installed package")

from tools import bench_pages  # noqa: E402
from tools.not_first import NOT_EXPLAINED, REASONS, Behind, behind, not_first_table, why  # noqa: E402


def test_cells_where_ours_is_not_first_are_listed_with_the_reason_that_is_written_down(tmp_path):
    cells = [{"ours": 5, "naive": 6, "tuned": 7}, {"ours": 9, "naive": 6}, {"error": "it fell"}]
    found = behind(None, None, {"results": [{"axis": "fields", "value": k, **cell} for k, cell in enumerate(cells)]})
    assert [(one.part, one.case, one.who) for one in found] == [
        ("sweep", "fields = 0", "naive"),
        ("sweep", "fields = 0", "tuned"),
    ]
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
        assert reason["part"] in ("main", "peers", "sweep") or reason["part"].startswith("others-")


def test_the_committed_pages_and_the_readme_are_those_of_the_committed_results(capsys):
    assert bench_pages.main(["--check"]) == 0, f"{capsys.readouterr().out}: run python tools/bench_pages.py"
    assert {"README.md", "benchmarks.md"} <= {path.name for path in bench_pages.pages()}


def test_every_benchmark_is_imported():
    names = sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
    code = "import importlib, sys; sys.path.insert(0, sys.argv[1])"
    done = forking.run(f"{code}; [importlib.import_module(f'bench.{{name}}') for name in sys.argv[2:]]", ROOT, *names)
    assert done.returncode == 0, done.stderr[-3000:]


def test_committed_results_are_json_with_machine_versions_and_date():
    for path in (ROOT / "bench" / "results").glob("*.json"):
        found = json.loads(path.read_text())
        assert {"machine", "versions", "when", "results"} <= set(found), path.name
