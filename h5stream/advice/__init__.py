"""Advice about files and the loader, which shows its working and changes nothing: inspect, diagnose, tune, doctor.

Its results are kinds of `Suggestion`, an answer with its arithmetic and sources. Advice about the training itself
stands in `h5stream.training`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from h5stream.base.texts import ShownAsText
from h5stream.errors import OptionError

if TYPE_CHECKING:
    from h5stream.advice.inspection import inspect_files

__all__ = ["inspect_files"]


if not TYPE_CHECKING:  # so that a type checker finds names that are not there

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from h5stream.advice import inspection  # which needs torch

        return getattr(inspection, name)


# Share of step time spent waiting for data: under the first a job is not input-bound, over the second it strongly is.
NOT_WAITING = 0.05
WAITING = 0.20


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


@dataclass(frozen=True, slots=True)
class Turn:
    """One knob to turn, with what to expect."""

    knob: str  # what it is called
    present: str  # its value now
    try_next: str  # what to try
    why: str  # why that helps
    speedup: float | None = None
    """How many times faster the limiting part becomes, at best; None where that is not known."""
    stop: str = ""  # when to leave it; empty where nothing is to be tried step by step

    def __str__(self) -> str:
        return f"{self.knob}: {self.present} -> {self.try_next} ({self.why})"


# Rows of a batch where nothing is asked for: as large-batch trainers' notes have it, but no more bytes than this (8,192
# rows of a megabyte fill any memory), and of an epoch so many batches, or a rate would be the time of one.
_BATCH_ROWS, _BATCH_NBYTES, _LEAST_BATCHES = 8192, 64 << 20, 16


def batch_rows(rows: int | None, row_nbytes: float) -> int:
    """Return the rows of a batch where the user says nothing: a power of two, 8,192 at most, of so many in all."""
    most = [_BATCH_ROWS, int(_BATCH_NBYTES // max(1, row_nbytes))]
    most += [] if rows is None else [rows // _LEAST_BATCHES]
    return 1 << max(0, min(most).bit_length() - 1)


def at_least(smallest: float, **values: float | None) -> None:
    """Raise `OptionError` where a named value is smaller than allowed; ``None`` (not given) passes."""
    for name, value in values.items():
        if value is not None and not value >= smallest:
            raise OptionError(f"{name} must be at least {smallest}, not {value}")


def above_zero(**values: float | None) -> None:
    """Raise `OptionError` where a named value is zero, negative or not a number; ``None`` passes."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise OptionError(f"{name} must be above 0, not {value}")
