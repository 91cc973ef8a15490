"""Make the ratio table of a benchmark run, and the results file that the repository keeps.

pytest bench --benchmark-only --benchmark-json=run.json
python tools/bench_report.py run.json --save bench/results/NAME.json
python tools/bench_report.py bench/results/NAME.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import describe


def compact(raw: dict[str, Any]) -> dict[str, Any]:
    """Keep of a pytest-benchmark file what a reader needs: machine, versions, figures with their spread."""
    return {
        **describe({"pytest-benchmark": importlib.metadata.version("pytest-benchmark")}),
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
        if contender in ("ours", "kept") or (kind, "ours") not in found:
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


OURS = "h5stream"
START, END = "<!-- measured: made by tools/bench_pages.py -->\n", "<!-- measured: end -->"

# What a reader knows a file kind and a contender by.
KINDS = {
    "gzip4_shuffle": "gzip-4 + shuffle, 1 MiB chunks",
    "unfiltered": "chunked, no filter",
    "guessed_gzip": "h5py's own chunks (8192 x 4), gzip",
    "zstd": "zstd",
    "lz4": "lz4",
    "one_row_per_chunk": "one 2 KiB row a chunk, gzip",
}
CONTENDERS = {
    "naive": "DataLoader, one row per __getitem__",
    "tuned": "DataLoader, batched and sorted reads",
    "sequential_h5py": "h5py in order, not shuffled",
    "ours": "h5stream, decoding every epoch",
    "kept": "h5stream, later epochs (rows in memory)",
    "in_ram": "NumPy array in memory, under a DataLoader",
    "decode_limit": "limit: only inflating, as many threads",
    "threaded_copy": "limit: only copying, as many threads",
}


def readme_sentence(peers: dict[str, Any]) -> str:
    """Say in a sentence how long an epoch takes, from the run that the README's picture shows."""
    rated = (one for one in peers["results"] if one["file"] == "gzip4_shuffle" and "rows" in one)
    rate = {one["peer"]: one["rows_per_s"] for one in rated}
    ours, kept, tuned, naive = (
        _seconds(peers["rows"] / rate[name])
        for name in ("h5stream, keep='never'", "h5stream", "tuned h5py, 2 workers", "naive DataLoader, 2 workers")
    )
    cores = peers["machine"]["cpus"]
    return (
        f"**A shuffled epoch of {peers['rows']:,} rows of 1 KiB, gzip, takes {ours} on {cores} cores, and {kept} from "
        f"the second on if the rows fit in memory. A `DataLoader` takes {tuned} if it reads whole batches with h5py, "
        f"{naive} if it reads rows.** ([All figures](docs/benchmarks.md).)\n"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def with_sentence(readme: str, sentence: str) -> str:
    """Put the sentence between its marks."""
    before, rest = readme.split(START)
    return before + START + sentence + END + rest.split(END)[1]


TABLE_START, TABLE_END = "<!-- epochs: made by tools/bench_pages.py -->\n", "<!-- epochs: end -->"


def readme_table(peers: dict[str, Any], loops: dict[str, Any], virtual: dict[str, Any]) -> str:
    """Make the README's table: what an epoch takes with other readers, and with h5stream."""
    rate = {one["peer"]: one.get("rows_per_s") for one in peers["results"] if one["file"] == "gzip4_shuffle"}
    names = ("naive DataLoader, 2 workers", "NumPy in RAM, __getitems__", "h5stream")
    naive, array, ours = (_seconds(peers["rows"] / rate[name]) for name in names)
    rows = [[f"only reading {peers['rows']:,} rows of 1 KiB, gzip", f"about {naive}", array, ours]]
    readers = ("DataLoader over h5py", "DataLoader over an array in memory", "h5stream")
    for model in dict.fromkeys(one["model"] for one in loops["results"]):
        found = {one["reader"]: one for one in loops["results"] if one["model"] == model}
        epochs = [_seconds(statistics.median(found[name]["epoch_s"])) for name in readers]
        about = "about " * (min(found[readers[0]]["part"]) < 1)
        what = f"training {_WORDS[model]} on {found[OURS]['count']:,} {found[OURS]['samples']}"
        rows.append([what, about + epochs[0], *epochs[1:]])
    far = {
        one["reader"]: 262_144 / statistics.median(one["values"])
        for one in virtual["results"]
        if one["case"] == "20 ms away" and one["figure"] == "later epochs"
    }
    ours, (name, best) = _seconds(far.pop(OURS)), min(far.items(), key=lambda pair: pair[1])
    rows.append(["only reading 262,144 rows of 1 KiB from a store 20 ms away", f"{_seconds(best)} ({name})", "", ours])
    lines = [
        "| an epoch of | `DataLoader` over h5py, sample by sample | array in memory | h5stream |",
        "|---|---:|---:|---:|",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


_WORDS = {"MLP": "an MLP", "CNN": "a CNN", "GRU": "a GRU"}


def with_table(readme: str, table: str) -> str:
    """Put the table between its marks."""
    before, rest = readme.split(TABLE_START)
    return before + TABLE_START + table + TABLE_END + rest.split(TABLE_END)[1]


def gpu_table(report: dict[str, Any]) -> str:
    """Make Markdown of a results file of ``bench/gpu.py``: copies, batches a second, utilisation."""
    lines, found = [f"{report['machine']['gpu']}, {report['machine']['cpus']} CPUs", ""], report["results"]
    for section in ("copies", "feed_share", "steady_state", "delayed_consumers"):
        if section in found:
            figures = ", ".join(f"{name} {value:,.4g}" for name, value in found[section].items())
            lines.append(f"- {section.replace('_', ' ')}: {figures}")
    for section in ("batches_per_s", "thread_scaling", "utilisation"):
        rows = found.get(section, {})
        columns = list(dict.fromkeys(name for row in rows.values() for name in row))
        if columns:
            lines += ["", f"| {section.replace('_', ' ')} | " + " | ".join(columns) + " |"]
            lines.append("|---|" + "---:|" * len(columns))
        for name, row in rows.items():
            cells = [f"{row[column]:,.3g}" if column in row else "" for column in columns]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Print the tables; with --save also write the compact results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    report = json.loads(arguments.results.read_text())
    if "gpu" in report.get("machine", {}):
        print(gpu_table(report))
        return 0
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
