"""The results of the main job (``pytest bench``) as tables: pure functions from JSON to Markdown."""

from __future__ import annotations

from typing import Any

from tools.bench_report import CONTENDERS, KINDS
from tools.bench_tables import literal

WORDS = (
    "524,288 rows of 256 float32 and a label, in shuffled batches of 8,192. The `DataLoader`s have a worker for each "
    'processor. *Decoding every epoch* is `keep="never"`; as it comes, h5stream keeps decoded rows that fit '
    "`memory_budget`. The NumPy array is read by `__getitems__`. *h5stream is* how many times as fast as the other; "
    "under 1 it is slower."
)


def machine_line(report: dict[str, Any]) -> str:
    """Say in a line where and with what a report was made."""
    machine = report["machine"]
    found = ", ".join(f"{package} {version}" for package, version in report["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cpus']} processors, {machine['memory_gib']} GiB, {machine['system']}, "
        f"{report['when']}. {found}."
    )


def main_table(report: dict[str, Any]) -> str:
    """Make the table of every file and contender, with spread."""
    lines = [
        "| file | what | rows/s, median | slowest to fastest | rounds | h5stream is |",
        "|---|---|---:|---:|---:|---:|",
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
        f"{_rate(one, 'max'):,.0f} to {_rate(one, 'min'):,.0f} | {one['seconds']['rounds']} | {ratio} |"
    )
