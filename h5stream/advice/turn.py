"""A setting to turn, with what to expect of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One knob to turn, with what to expect.

    Attributes
    ----------
    knob : str
        What it is called.
    present : str
        Its value now.
    try_next : str
        What to try.
    why : str
        Why that helps.
    speedup : float or None
        How many times faster the limiting part becomes, at best; None where that is not known.
    stop : str
        When to leave it; empty where nothing is to be tried step by step.
    """

    knob: str
    present: str
    try_next: str
    why: str
    speedup: float | None = None
    stop: str = ""

    def __str__(self) -> str:
        return f"{self.knob}: {self.present} -> {self.try_next} ({self.why})"
