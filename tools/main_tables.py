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
    "`memory_budget`. The NumPy array is read by `__getitems__`. *h5stream is* this many times as fast as the other; "
    "under 1 it is slower."
)


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
    return f"*{', '.join([report['when'], *other])}.*"


def main_table(report: dict[str, Any]) -> str:
    """Make the table of every file and contender, with spread."""
    lines = [
        "| file | what | rows/s, median | slowest to fastest | h5stream is |",
        "|---|---|---:|---:|---:|",
    ]
    rated = [one for one in report["results"] if "contender" in one]
    ours = {one["kind"]: _rate(one, "median") for one in rated if one["contender"] == "ours"}
    return "\n".join(lines + [_row(one, ours.get(one["kind"])) for one in rated])


def _rate(one: dict[str, Any], which: str) -> float:
    return float(one["rows"] / one["seconds"][which])


def _row(one: dict[str, Any], ours: float | None) -> str:
    median = _rate(one, "median")
    is_alone = one["contender"] in ("ours", "kept")
    ratio = (
        ""
        if is_alone or ours is None
        else f"{ours / median:,.0f} x"
        if ours > 10 * median
        else f"{ours / median:.2f} x"
    )
    name = f"**{CONTENDERS[one['contender']]}**" if is_alone else literal(CONTENDERS[one["contender"]])
    return (
        f"| {KINDS[one['kind']]} | {name} | {median:,.0f} | "
        f"{_rate(one, 'max'):,.0f} to {_rate(one, 'min'):,.0f} | {ratio} |"
    )
