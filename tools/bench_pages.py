"""Make the pages and pictures of docs/ from the results under bench/results/: no number there is typed by hand.

python tools/bench_pages.py           write them
python tools/bench_pages.py --check   fail unless the pages are those of the committed results
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import bench_tables as tables  # noqa: E402
from tools import learning_tables as learning  # noqa: E402

RESULTS, DOCS = ROOT / "bench" / "results", ROOT / "docs"
IMAGES = DOCS / "images"
_MADE = "<!-- made by tools/bench_pages.py from bench/results/: change those -->\n\n"


def load(part: str) -> dict[str, Any] | None:
    """Give the results of a part: the full ones, or where there are none the quick ones."""
    for name in (f"{part}-full", f"{part}-quick", part):
        path = RESULTS / f"{name}.json"
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text())
            return found
    return None


def benchmarks_page(peers: dict[str, Any], sweep: dict[str, Any] | None, growth: dict[str, Any] | None) -> str:
    """Write the page of benchmarks."""
    machine = peers["machine"]
    parts = [
        "# Benchmarks\n",
        f"{machine['cpus']} cores ({machine['cpu']}), {peers['when']}; {peers['rows']:,} rows of "
        f"{peers['row_nbytes']:,} bytes, shuffled batches of {peers['batch_rows']:,}, files in the page cache. Each "
        "peer ran in a process of its own; rows/s is the median of the epochs after the first, memory is what the "
        "process and its workers took more than before the loader was opened. Whole epochs gave the same checksum.\n",
    ]
    for kind in tables.kinds(peers):
        parts += [
            f"## {kind}\n",
            f"![peers on {kind}](images/peers-{kind}.svg)\n",
            tables.peers_table(peers, kind) + "\n",
        ]
    if peers["absent"]:
        parts += ["## Not measured\n", tables.absent_list(peers) + "\n"]
    parts += ["## Where ours is not first\n", tables.not_first_table(peers, sweep) + "\n"]
    if sweep:
        parts += [
            "## Against the naive loader, one thing varied at a time\n",
            tables.sweep_verdict(sweep) + " The naive loader counts with one process's rate times the processors.\n",
            "![sweep](images/sweep.svg)\n",
            tables.sweep_table(sweep) + "\n",
        ]
    if growth:
        parts += ["## How cost grows with rows\n", tables.growth_table(growth) + "\n"]
    return _MADE + "\n".join(parts)


def learning_page(report: dict[str, Any]) -> str:
    """Write the page of what shuffling costs learning."""
    parts = [
        "# What window shuffling costs learning\n",
        f"{report['seeds']} seeds of each order; the same first weights, data and steps. A file is sorted by label "
        "(the worst case), by session, or not at all, and has many small chunks or few large ones. Figures are the "
        "final test loss, with the 95 % interval of its mean, and accuracy. *full, other seeds* is a placebo: a second "
        "full shuffle, which shows what chance alone does to each column.\n",
        learning.verdict(report) + "\n",
        learning.verdict_table(report) + "\n",
        "![loss of each order](images/learning.svg)\n",
        "## Does the score foretell harm?\n",
        learning.score_table(report) + "\n",
        "![loss over score](images/learning-score.svg)\n",
        "The score knows how well batches mix *places in the file*; it cannot know whether neighbours are alike. In a "
        "file in random order no order harms, whatever its score.\n",
    ]
    for data in dict.fromkeys(one["data"] for one in report["results"]):
        some = next(one for one in report["results"] if one["data"] == data)
        parts.append(f"## {data}: {some['rows']:,} training rows\n")
        for model in report["models"]:
            parts += [f"{model}; columns are *sorted by, chunks*:\n", learning.cases_table(report, data, model) + "\n"]
    return _MADE + "\n".join(parts)


def pages() -> dict[Path, str]:
    """Make every page that there are results for."""
    made = {}
    if peers := load("peers"):
        made[DOCS / "benchmarks.md"] = benchmarks_page(peers, load("sweep"), load("growth"))
    if report := load("learning"):
        made[DOCS / "shuffling-results.md"] = learning_page(report)
    return made


def draw() -> None:
    """Draw every picture that there are results for."""
    import matplotlib as mpl

    from tools import bench_plots

    mpl.rcParams["svg.hashsalt"] = "h5stream"  # the same results make the same file
    figures: dict[str, Any] = {}
    if peers := load("peers"):
        figures |= {f"peers-{kind}": bench_plots.peers_figure(peers, kind) for kind in tables.kinds(peers)}
    if sweep := load("sweep"):
        figures["sweep"] = bench_plots.sweep_figure(sweep)
    if report := load("learning"):
        figures["learning"] = bench_plots.learning_figure(report)
        figures["learning-score"] = bench_plots.score_figure(report)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    made = pages()
    if given.check:
        stale = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
        print("pages: " + (f"not those of the results: {', '.join(stale)}" if stale else "up to date"))
        return 1 if stale else 0
    for path, text in made.items():
        path.write_text(text)
        print(path.relative_to(ROOT))
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
