"""The results of the main job (``pytest bench``) as tables: pure functions from JSON to Markdown."""

from __future__ import annotations

from typing import Any

WORDS = (
    "*naive*: one row per `__getitem__`, worker processes. *tuned*: lazy open, `__getitems__`, sorted h5py index. "
    '*h5stream* decodes every row in every epoch (`keep="never"`); *kept* is h5stream as it comes, where all rows fit '
    "`memory_budget`, from its second epoch on. *in_ram*: the same rows as a NumPy array behind a stock `DataLoader` "
    "with `__getitems__`. *decode_limit*: as many threads, only reading and inflating. *sequential_h5py*: `dset[a:b]` "
    "in order, not shuffled. Ratios say how many times as fast as the other h5stream is; under 1 it is slower."
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
    is_ours = one["contender"] == "ours"
    ratio = (
        "" if is_ours or ours is None else f"{ours / median:,.0f} x" if ours > 10 * median else f"{ours / median:.2f} x"
    )
    return (
        f"| {one['kind']} | {'**h5stream**' if is_ours else one['contender']} | {median:,.0f} | "
        f"{_rate(one, 'max'):,.0f} to {_rate(one, 'min'):,.0f} | {one['seconds']['rounds']} | {ratio} |"
    )
