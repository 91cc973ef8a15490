"""A setting to turn, with what to expect of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One knob to turn, with what to expect."""

    knob: str
    """What it is called."""
    present: str
    """Its value now."""
    try_next: str
    """What to try."""
    why: str
    """Why that helps."""
    speedup: float | None = None
    """How many times faster the limiting part becomes, at best; None where that is not known."""
    stop: str = ""
    """When to leave it; empty where nothing is to be tried step by step."""

    def __str__(self) -> str:
        return f"{self.knob}: {self.present} -> {self.try_next} ({self.why})"
