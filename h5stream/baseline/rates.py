"""Rows a second from several files in turn, each through a loader that is opened anew."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from h5stream.baseline.measure import batches_of
from h5stream.loader import H5StreamLoader
from h5stream.structure import leaves

_ROUNDS = 5
_SECONDS = 3.0


def fresh_rates(
    paths: Sequence[str], fields: Sequence[str], *, rounds: int = _ROUNDS, seconds: float = _SECONDS, **options: Any
) -> list[float]:
    """Give each file's best rate in rows a second, opening the file included.

    The files take turns, so that a neighbour on the machine slows all of them alike. A loader that stays open
    would keep small datasets in memory and measure nothing. What was delivered within the time of a turn counts.
    """
    best = [0.0] * len(paths)
    for _ in range(rounds):
        for number, path in enumerate(paths):
            best[number] = max(best[number], _rate(path, fields, seconds, {"shuffle": True, **options}))
    return best


def _rate(path: str, fields: Sequence[str], seconds: float, options: dict[str, Any]) -> float:
    start, rows = time.perf_counter(), 0
    with H5StreamLoader(path, fields=list(fields), **options) as loader:
        for batch in batches_of(loader):
            rows += len(leaves(batch)[0])
            if time.perf_counter() - start >= seconds:
                break
        return rows / (time.perf_counter() - start)
