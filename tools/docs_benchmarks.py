"""Make the benchmark page of the documentation from the committed results.

python tools/docs_benchmarks.py          write docs/benchmarks.md
python tools/docs_benchmarks.py --check  fail unless it is already what the results say
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """\
# Benchmarks

Made by `tools/docs_benchmarks.py` from the files in `bench/results/`; no figure here is typed by hand. To measure your
own machine: `h5stream bench` (a minute), or the whole table,

```bash
python -m pip install -c constraints.txt '.[test]'
pytest bench --benchmark-only --benchmark-json=run.json
python tools/bench_report.py run.json
```

*naive*: one row per `__getitem__`, worker processes. *tuned*: lazy open, `__getitems__`, sorted h5py index. *in_ram*:
the same rows as a NumPy array behind a stock `DataLoader` with `__getitems__`. *decode_limit*: as many threads, only
reading and inflating. *sequential_h5py*: `dset[a:b]` in order, not shuffled. Ratios say how many times as fast as the
other h5stream is; under 1 it is slower.
"""


def page(reports: dict[str, dict[str, Any]]) -> str:
    """Make the page of the reports by their names."""
    return "\n".join([HEAD, *(line for name, report in reports.items() for line in _section(name, report))])


def _section(name: str, report: dict[str, Any]) -> Iterator[str]:
    machine, versions = report["machine"], report["versions"]
    yield f"## {name}\n"
    yield (
        f"{machine['cpu']}, {machine['cpus']} processors, {machine['memory_gib']} GiB, {machine['system']}, "
        f"{report['when']}. " + ", ".join(f"{package} {version}" for package, version in versions.items()) + ".\n"
    )
    yield "| file | what | rows/s, median | slowest to fastest | rounds | h5stream is |"
    yield "|---|---|---:|---:|---:|---:|"
    rated = [one for one in report["results"] if "contender" in one]
    ours = {one["kind"]: _rate(one, "median") for one in rated if one["contender"] == "ours"}
    yield from (_row(one, ours.get(one["kind"])) for one in rated)
    yield ""


def _rate(one: dict[str, Any], which: str) -> float:
    return float(one["rows"] / one["seconds"][which])


def _row(one: dict[str, Any], ours: float | None) -> str:
    median = _rate(one, "median")
    is_ours = one["contender"] == "ours"
    ratio = (
        "" if is_ours or ours is None else f"{ours / median:,.0f} x" if ours > 10 * median else f"{ours / median:.2f} x"
    )
    return (
        f"| {one['kind']} | {'**h5stream**' if is_ours else one['contender']} | {median:,.0f} | "
        f"{_rate(one, 'max'):,.0f} to {_rate(one, 'min'):,.0f} | {one['seconds']['rounds']} | {ratio} |"
    )


def reports() -> dict[str, dict[str, Any]]:
    """Read the committed results that compare contenders."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    return {name: report for name, report in found.items() if _compares(report)}


def _compares(report: Any) -> bool:
    listed = report.get("results") if isinstance(report, dict) else None
    return isinstance(listed, list) and any("contender" in one and "kind" in one for one in listed)


def main() -> int:
    """Write the page, or with --check compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the page differs")
    wanted = page(reports())
    if not parser.parse_args().check:
        PAGE.write_text(wanted)
        return 0
    same = PAGE.exists() and PAGE.read_text() == wanted
    print(
        "docs/benchmarks.md: " + ("up to date" if same else "not that of bench/results; run tools/docs_benchmarks.py")
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
