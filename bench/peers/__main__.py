"""Measure every peer on the same rows and write the results.

python -m bench.peers --quick --out bench/results/peers-quick.json
python -m bench.peers --only h5stream --only 'torch index in RAM'
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench.child import disk_nbytes, run_child, warm
from bench.machine import describe
from bench.peers.protocol import BATCH_ROWS, Peer
from bench.peers.registry import PEERS, missing, versions
from bench.peers.source import FILTERS, write_source

ROWS = {"quick": 65_536, "full": 524_288}
SECONDS = {"quick": 3.0, "full": 12.0}
LIMIT_S = 240.0


PEER_S = 12.0
"""Seconds of a peer beside the timed ones, on average: converting, starting twice, checking an epoch."""


def estimate_s(size: str) -> float:
    """Give about how many seconds all peers take on all files."""
    return len(FILTERS) * (len(PEERS) * (PEER_S + SECONDS[size] / 2) + ROWS[size] / 30_000)


def measure_peer(peer: Peer, kind: str, source: Path, scratch: Path, size: str) -> dict[str, Any]:
    """Convert and measure one peer, and clear away what it converted."""
    row = {"peer": peer.name, "file": kind, "reads": peer.reads, "shuffle": peer.shuffle}
    folder = scratch / "converted"
    folder.mkdir()
    try:
        made = run_child(["bench.peers.measure", "prepare", peer.name, str(source), str(folder)], LIMIT_S)
        if made.error:
            return row | {"error": f"converting: {made.error}"}
        path = Path(made.result["path"])
        warm(path)
        found = run_child(
            ["bench.peers.measure", "measure", peer.name, str(source), str(path), "--seconds", str(SECONDS[size])],
            LIMIT_S,
        )
        if found.error:
            return row | {"error": found.error}
        return row | _figures(found.result, made.result["convert_s"], disk_nbytes(path), found.peak_nbytes, peer)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _figures(found: dict[str, Any], convert_s: float, disk: int, peak: int, peer: Peer) -> dict[str, Any]:
    rates = found.pop("rates")
    # The first epoch also fills caches; parts of one are all alike.
    steady = rates[1:] if found["whole_epoch"] and len(rates) > 1 else rates
    return {
        "rows_per_s": round(statistics.median(steady)),
        "spread": [round(min(steady)), round(max(steady))],
        "first_epoch_rows_per_s": round(rates[0]),
        "epochs": len(rates),
        "peak_mb": round(peak / 1e6, 1),
        "disk_mb": round(disk / 1e6, 1),
        "convert_s": round(convert_s, 2) if peer.reads == "converted" else 0.0,
        **{key: round(value, 4) if isinstance(value, float) else value for key, value in found.items()},
    }


def main() -> int:
    """Measure and write; a peer that fails is a result too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an eighth of the rows, and less time for each")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--kind", action="append", choices=list(FILTERS))
    parser.add_argument("--only", action="append", help="name of a peer; may be given several times")
    parser.add_argument("--folder", type=Path, help="where the files go; by default a temporary folder")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    size = "quick" if given.quick else "full"
    rows = given.rows or ROWS[size]
    wanted = [peer for peer in PEERS if not given.only or peer.name in given.only]
    scratch = Path(tempfile.mkdtemp(prefix="h5stream-peers-", dir=given.folder))
    results = []
    try:
        for kind in given.kind or list(FILTERS):
            source = scratch / f"{kind}.h5"
            write_source(source, rows, kind)
            for peer in wanted:
                if not missing(peer):
                    results.append(measure_peer(peer, kind, source, scratch, size))
                    _say(results[-1])
            source.unlink()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    absent = [{"peer": peer.name, "reason": missing(peer)} for peer in wanted if missing(peer)]
    report = describe(versions()) | {
        "rows": rows, "row_nbytes": 1024 + 8, "batch_rows": BATCH_ROWS, "results": results, "absent": absent
    }  # fmt: skip
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _say(row: dict[str, Any]) -> None:
    said = row.get("error") or (
        f"{row['rows_per_s']:>12,} rows/s  first {row['first_batch_s']:.2f} s  {row['peak_mb']:,.0f} MB  "
        f"disk {row['disk_mb']:,.0f} MB  converted in {row['convert_s']} s  {row['checksum'] or 'part'}"
    )
    print(f"{row['file']:14} {row['peer']:42} {said}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
