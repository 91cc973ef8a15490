"""Where the first serial part bites as readers are added: a simulation from figures that were measured on two cores.

python -m bench.serial_parts

Readers take chunks; each needs Python's global lock for a while, then works beside the others. One of them at a time
plans what comes next, and the loop takes batches. All of planning and of the loop's work is taken to hold the lock,
which is more than it does, and memory is taken to be as fast for sixteen cores as for two.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a chunk takes.

    Attributes
    ----------
    rows : int
        Its rows.
    beside_us : float
        Reading, decoding and copying it, without the lock.
    locked_us : float
        Python for it in its reader, with the lock.
    plan_ns : float
        Planning, a row.
    batch_rows, batch_us : int, float
        Rows of a batch, and what its hand-over takes.
    """

    rows: int
    beside_us: float
    locked_us: float
    plan_ns: float
    batch_rows: int
    batch_us: float

    @property
    def serial_us(self) -> float:
        """What of a chunk no two threads do at a time."""
        return self.locked_us + 1e-3 * self.plan_ns * self.rows + self.batch_us * self.rows / self.batch_rows


CASES = {
    "gzip-4 + shuffle, 1 KiB rows": Work(
        rows=1024, beside_us=1370, locked_us=20, plan_ns=50, batch_rows=8192, batch_us=60
    ),
    "unfiltered, 1 KiB rows": Work(rows=1024, beside_us=235, locked_us=10, plan_ns=35, batch_rows=8192, batch_us=60),
    "kept in memory": Work(rows=1024, beside_us=170, locked_us=2, plan_ns=23, batch_rows=8192, batch_us=31),
    "unfiltered, batches of 64": Work(rows=1024, beside_us=235, locked_us=10, plan_ns=177, batch_rows=64, batch_us=20),
}


def rows_per_s(work: Work, threads: int, chunks: int = 20_000) -> float:
    """Simulate so many readers: each waits for the lock, in the order of asking, and then works beside the others."""
    asks = [(0.0, thread) for thread in range(threads)]
    lock_free_us = ended_us = 0.0
    for _ in range(chunks):
        asked_us, thread = heapq.heappop(asks)
        # What is planned for a chunk, and handed over of it, goes by the same lock.
        lock_free_us = max(asked_us, lock_free_us) + work.serial_us
        ended_us = lock_free_us + work.beside_us
        heapq.heappush(asks, (ended_us, thread))
    return 1e6 * chunks * work.rows / ended_us


def main() -> int:
    """Print million rows a second, and what of the readers' time is left to them."""
    counts = (1, 2, 4, 8, 16, 64)
    print("| case | serial, us a chunk | bites at cores | " + " | ".join(f"{n} readers" for n in counts) + " |")
    print("|---|---:|---:|" + "---:|" * len(counts))
    for name, work in CASES.items():
        bites = 1 + work.beside_us / work.serial_us
        rates = " | ".join(f"{rows_per_s(work, n) / 1e6:.1f}" for n in counts)
        print(f"| {name} | {work.serial_us:.0f} | {bites:.0f} | {rates} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
