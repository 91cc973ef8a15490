"""Where something was ahead of h5stream, and why: from the results and bench/reasons.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tools.bench_tables import OURS, cell_name, kinds, literal, ranking

REASONS = Path(__file__).resolve().parent.parent / "bench" / "reasons.toml"
NOT_EXPLAINED = "not explained"
_RIVALS = ("naive", "tuned", "in_ram", "sequential_h5py")
"""What is measured in the main job beside ours; the decode limit is no rival, it delivers nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A cell in which ours was not first.

    Attributes
    ----------
    part, case, who : str
        ``main``, ``peers`` or ``sweep``; the cell; what was ahead.
    its, ours : float
        Rows a second.
    """

    part: str
    case: str
    who: str
    its: float
    ours: float


def behind(main: dict[str, Any] | None, peers: dict[str, Any] | None, sweep: dict[str, Any] | None) -> list[Behind]:
    """List every cell in which something gave more rows a second than ours."""
    found = [*_in_main(main or {"results": []}), *_in_peers(peers or {"results": []})]
    return found + _in_sweep(sweep or {"results": []})


def _in_main(main: dict[str, Any]) -> list[Behind]:
    rates = {
        (one["kind"], one["contender"]): one["rows"] / one["seconds"]["median"]
        for one in main["results"]
        if "contender" in one
    }
    # What is measured are epochs that keep nothing, and the loader as it comes, which keeps what fits.
    ours = {kind: max(rates.get((kind, who), 0) for who in ("ours", "kept")) for kind, _ in rates}
    return [
        Behind(part="main", case=kind, who=who, its=rate, ours=ours[kind])
        for (kind, who), rate in rates.items()
        if who in _RIVALS and 0 < ours[kind] < rate
    ]


def _in_peers(peers: dict[str, Any]) -> list[Behind]:
    found = []
    for kind in kinds(peers):
        rows = ranking(peers, kind)
        ours = next((one.get("rows_per_s", 0) for one in rows if one["peer"] == OURS), 0)
        found += [
            Behind(part="peers", case=kind, who=one["peer"], its=one["rows_per_s"], ours=ours)
            for one in rows
            if one.get("rows_per_s", 0) > ours and not one["peer"].startswith(OURS)
        ]
    return found


def _in_sweep(sweep: dict[str, Any]) -> list[Behind]:
    return [
        Behind(part="sweep", case=cell_name(one), who=who, its=one[who], ours=one["ours"])
        for one in sweep["results"]
        for who in ("naive", "tuned")
        # A rival that was stopped before its first batch has a bound, not a rate.
        if one.get(who, 0) > one.get("ours", 0) and "error" not in one and not one.get(f"{who}_at_most")
    ]


def why(cell: Behind, path: Path = REASONS) -> str:
    """Give the reason that is written down for a cell."""
    for reason in tomllib.loads(path.read_text())["reason"]:
        if all(fnmatchcase(getattr(cell, key), reason[key]) for key in ("part", "case", "who")):
            return str(reason["why"])
    return NOT_EXPLAINED


def not_first_table(cells: list[Behind], path: Path = REASONS) -> str:
    """Make the list of cells in which ours is not first; says so if there is none."""
    if not cells:
        return "Ours is first in every cell of the main job, of the alternatives and of what is varied."
    lines = ["| measured in | cell | who is ahead | its rows/s | ours, rows/s | times | why |"]
    lines.append("|---|---|---|---:|---:|---:|---|")
    lines += [
        f"| {one.part} | {one.case} | {literal(one.who)} | {one.its:,.0f} | {one.ours:,.0f} | "
        f"{one.its / max(1, one.ours):.2f} | {why(one, path)} |"
        for one in cells
    ]
    missing = sum(why(one, path) == NOT_EXPLAINED for one in cells)
    return "\n".join(lines) + f"\n\n{missing} of {len(cells)} cells are not explained."
