"""How far staging has come, as one value that is handed to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingProgress:
    """How far one call of `stage` has come."""

    bytes_done: int
    """Bytes that lie in the folder already, of what had to be copied by this or another process."""
    bytes_total: int
    """Bytes that had to be copied by this or another process."""
    files_done: int
    """Files that are whole, of those that had to be copied."""
    files_total: int
    """Files that had to be copied."""
    waiting_for: tuple[int, ...]
    """Process ids of those who copy what this process only waits for; empty while it copies itself."""
    notices: tuple[str, ...]
    """Lines for people that are known so far."""


ProgressCallback = Callable[[StagingProgress], None]
"""Called in the caller's thread, about ten times a second, also during waits. What it raises ends the call:
nothing half-copied is left."""
