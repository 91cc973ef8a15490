"""The results of the main job (``pytest bench``) as tables: pure functions from JSON to Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tools.bench_report import CONTENDERS, KINDS
from tools.bench_tables import literal

WORDS = (
    "524,288 rows of 256 float32 and a label, in shuffled batches of 8,192. Each `DataLoader` has a worker for each "
    'processor. *Decoding every epoch* is `keep="never"`; by default h5stream keeps decoded rows that fit '
    "`memory_budget`. The NumPy array is read by `__getitems__`. Figures are medians in rows/s; *x* is how "
    "many times as fast as the other h5stream is when it decodes every epoch."
)
OURS = ("ours", "kept")
LIMIT = "limit: only inflating, or copying"
LIMITS = {"decode_limit": LIMIT, "threaded_copy": LIMIT}
"""Contenders that share a column: a file has one of them."""


def facts_of(report: dict[str, Any]) -> dict[str, str]:
    """Name where and with what a report was made: each fact by what it is about."""
    machine = report["machine"]
    return {
        "cpu": machine["cpu"],
        "cpus": f"{machine['cpus']} processors",
        "memory": f"{machine['memory_gib']} GiB",
        "system": machine["system"],
        **{package: f"{package} {version}" for package, version in report["versions"].items()},
    }


def usual_facts(reports: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Give the facts that most reports share, so that a page says them once."""
    every = [facts_of(report) for report in reports]
    counts = {name: Counter(facts[name] for facts in every if name in facts).most_common(1)[0] for name in every[0]}
    return {name: fact for name, (fact, count) in counts.items() if 2 * count > len(every)}


def machine_line(report: dict[str, Any], usual: dict[str, str]) -> str:
    """Say in a line when a report was made, and what was not as usual."""
    other = [fact for name, fact in facts_of(report).items() if usual.get(name) != fact]
    if (load := report["machine"].get("load_before", 0)) > 2 * report["machine"].get("cpus", 2):
        other.append(f"other work on it at a lower priority (load {load:.0f})")
    return f"*{', '.join([report['when'], *other])}.*"


def main_table(report: dict[str, Any]) -> str:
    """Make the table of the main job: a row for each file, a column for each contender that was measured."""
    rated = [one for one in report["results"] if "contender" in one]
    cells = {(one["kind"], LIMITS.get(one["contender"], one["contender"])): one for one in rated}
    shown = [name for name in [*CONTENDERS, LIMIT] if any(name == contender for _, contender in cells)]
    heads = [f"**{CONTENDERS[name]}**" if name in OURS else literal(CONTENDERS.get(name, name)) for name in shown]
    lines = ["| file | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(shown)]
    for kind in dict.fromkeys(one["kind"] for one in rated):
        row = [_cell(cells.get((kind, name)), cells.get((kind, "ours"))) for name in shown]
        lines.append(f"| {KINDS[kind]} | {' | '.join(row)} |")
    return "\n".join(lines)


def _rate(one: dict[str, Any], which: str) -> float:
    return float(one["rows"] / one["seconds"][which])


def _cell(one: dict[str, Any] | None, ours: dict[str, Any] | None) -> str:
    if one is None:
        return ""
    median = _rate(one, "median")
    if one["contender"] in OURS:
        return f"{median:,.0f}"
    ratio = _rate(ours, "median") / median if ours else 0
    return f"{median:,.0f}" + (f" ({ratio:,.0f} x)" if ratio > 10 else f" ({ratio:.2f} x)" if ratio else "")
