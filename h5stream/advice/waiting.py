"""A clock around ``next(iterator)``: how long a loop waited for data, for the summary and for the monitor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

# Share of step time spent waiting for data: under the first a job is not input-bound, over the second it strongly is.
NOT_WAITING = 0.05
WAITING = 0.20

clock = time.perf_counter


class WaitClock:
    """Times the waits of one loop.

    # Guarantees: `take` is called by the loop alone and alone writes; `share` is called by one other thread, the
    monitor's, and sees a wait that is still going on. No lock: each figure is one number.

    Examples
    --------
    >>> waits = WaitClock()
    >>> iterator = iter(["a", "b"])
    >>> waits.take(iterator), waits.take(iterator), waits.take(iterator)
    (('a', True), ('b', True), (None, False))
    >>> waits.batches
    2
    """

    def __init__(self) -> None:
        self.batches = 0
        self.first_s: float | None = None
        self.longest_s = 0.0
        self.total_s = 0.0
        self._began_s: float | None = None
        self._seen_s, self._seen_at_s = 0.0, clock()

    def take(self, iterator: Iterator[Any]) -> tuple[Any, bool]:
        """Return the next value, and whether there was one."""
        self._began_s = began_s = clock()
        try:
            value = next(iterator)
        except StopIteration:
            return None, False
        finally:
            waited_s = clock() - began_s
            self._began_s = None
            self.total_s += waited_s
        self.batches += 1
        if self.first_s is None:
            self.first_s = waited_s
        else:
            self.longest_s = max(self.longest_s, waited_s)
        return value, True

    @property
    def mean_s(self) -> float | None:
        """Seconds of a wait after the first, on average; None before there is one."""
        if self.batches < 2 or self.first_s is None:
            return None
        return (self.total_s - self.first_s) / (self.batches - 1)

    def share(self) -> float:
        """Return the share of the time since the last call that was spent waiting, 0 to 1."""
        now_s, began_s = clock(), self._began_s
        waited_s = self.total_s + (now_s - began_s if began_s is not None else 0.0)
        passed_s, new_s = now_s - self._seen_at_s, waited_s - self._seen_s
        self._seen_s, self._seen_at_s = waited_s, now_s
        # The wait may have ended between the two readings, and is then counted a moment early or late.
        return min(1.0, max(0.0, new_s / passed_s)) if passed_s > 0 else 0.0
