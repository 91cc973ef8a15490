"""Make the ratio table of a benchmark run, and the results file that the repository keeps.

pytest bench --benchmark-only --benchmark-json=run.json
python tools/bench_report.py run.json --save bench/results/NAME.json
python tools/bench_report.py bench/results/NAME.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

PACKAGES = ("torch", "h5py", "hdf5plugin", "numpy", "numba", "imagecodecs", "pytest-benchmark")


def compact(raw: dict[str, Any]) -> dict[str, Any]:
    """Keep of a pytest-benchmark file what a reader needs: machine, versions, figures with their spread."""
    cpu = raw["machine_info"].get("cpu", {})
    return {
        "machine": {
            "cpu": cpu.get("brand_raw", platform.processor()),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": f"{raw['machine_info']['system']} {raw['machine_info']['machine']}",
        },
        "versions": {"python": raw["machine_info"]["python_version"]}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
        "when": raw["datetime"][:10],
        "results": [
            {
                "group": one["group"],
                "name": one["name"],
                **one["extra_info"],
                "seconds": {key: one["stats"][key] for key in ("min", "median", "max", "rounds")},
            }
            for one in raw["benchmarks"]
        ],
    }


def rates(report: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Give the median rows a second of each (file kind, contender)."""
    return {
        (one["kind"], one["contender"]): one["rows"] / one["seconds"]["median"]
        for one in report["results"]
        if "contender" in one
    }


def ratio_table(report: dict[str, Any]) -> str:
    """Make a Markdown table of what ours is to each contender."""
    from bench.cases import TARGETS

    found = rates(report)
    lines = ["| file | against | its rows/s | ours, rows/s | ratio | asked |", "|---|---|---:|---:|---:|---:|"]
    for (kind, contender), rate in found.items():
        if contender == "ours" or (kind, "ours") not in found:
            continue
        ratio = found[kind, "ours"] / rate
        asked = TARGETS.get((kind, contender))
        verdict = "" if asked is None else f"{asked:,g}{'' if ratio >= asked else ' (missed)'}"
        shown = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2f}"
        lines.append(f"| {kind} | {contender} | {rate:,.0f} | {found[kind, 'ours']:,.0f} | {shown} | {verdict} |")
    return "\n".join(lines)


def promises(report: dict[str, Any]) -> str:
    """List the figures that are not rates."""
    lines = []
    for one in report["results"]:
        if one["group"] == "promises":
            figures = {k: v for k, v in one.items() if k not in ("group", "name", "seconds", "shares")}
            lines.append(f"{one['name']}: " + ", ".join(f"{k} {v:.3g}" for k, v in figures.items()))
    return "\n".join(lines)


def main() -> int:
    """Print the tables; with --save also write the compact results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    report = json.loads(arguments.results.read_text())
    if "machine_info" in report:
        report = compact(report)
    if arguments.save:
        arguments.save.parent.mkdir(parents=True, exist_ok=True)
        arguments.save.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['machine']['cpu']}, {report['machine']['cpus']} CPUs, {report['when']}\n")
    print(ratio_table(report))
    print()
    print(promises(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
