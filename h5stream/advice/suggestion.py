"""What every piece of advice is: an answer, the arithmetic behind it, and where its numbers come from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from h5stream.notebook import ShownAsText


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion(ShownAsText):
    """Advice as a value: it is returned and printed, and never applied.

    What Python programs ask for is a subclass, whose own fields are the numbers; what only ``h5stream suggest`` asks
    for has them by name, as its JSON does.

    Attributes
    ----------
    title : str
        What the advice is about, a few words.
    answer : str
        The advice in one line.
    arithmetic : tuple of str
        How the answer follows, a step a line.
    caveats : tuple of str
        What the arithmetic does not know, or where it may mislead.
    sources : tuple of str
        Where rules and constants come from: papers, documentation, measurements.
    figures : dict
        Its numbers by name, with their units in the names.

    Examples
    --------
    >>> queue = Suggestion(title="Queue", answer="128 batches", arithmetic=("8 x 16 = 128",), figures={"batches": 128})
    >>> print(queue)
    Queue: 128 batches
        8 x 16 = 128
    >>> queue.to_dict()["batches"]
    128
    """

    title: str
    answer: str
    arithmetic: tuple[str, ...]
    caveats: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.answer}", *(f"    {line}" for line in self.arithmetic)]
        lines += [f"    note: {line}" for line in self.caveats]
        lines += [f"    source: {line}" for line in self.sources]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and figures, nested values too, as plain containers for JSON."""
        plain = asdict(self)
        figures: dict[str, Any] = plain.pop("figures")
        return plain | figures


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
