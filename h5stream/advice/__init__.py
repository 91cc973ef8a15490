"""Advice about files and the loader that shows its reasoning and changes nothing: inspect, diagnose, tune, doctor.

Results are subclasses of `Suggestion`, an answer with its arithmetic and sources. Advice about the training itself is
in `h5stream.training`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from h5stream.base.texts import ShownAsText
from h5stream.errors import OptionError

if TYPE_CHECKING:
    from h5stream.advice.inspection import inspect_files

__all__ = ["inspect_files"]


if not TYPE_CHECKING:  # so that a type checker reports missing names

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from h5stream.advice import inspection  # imported here since it needs torch

        return getattr(inspection, name)


# Share of step time spent waiting for data: below the first a job is not input-bound, above the second strongly.
NOT_WAITING = 0.05
WAITING = 0.20


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion(ShownAsText):
    """Advice as a value: it is returned and printed, and never applied.

    Results for Python programs are subclasses with the numbers as fields; results only for ``h5stream suggest`` have
    them in `figures`, as in its JSON.

    Attributes
    ----------
    title : str
        What the advice is about, a few words.
    answer : str
        The advice in one line.
    arithmetic : tuple of str
        The derivation of the answer, one step per line.
    caveats : tuple of str
        Limits of the arithmetic, and cases in which it may mislead.
    sources : tuple of str
        The origin of rules and constants: papers, documentation, measurements.
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
    """A setting to change, with the expected effect."""

    knob: str  # the name of the setting
    present: str  # its value now
    try_next: str  # what to try
    why: str  # why that helps
    speedup: float | None = None
    """The highest possible speedup of the limiting part; None if it is unknown."""
    stop: str = ""  # when to stop; empty unless it is to be tried step by step

    def __str__(self) -> str:
        return f"{self.knob}: {self.present} -> {self.try_next} ({self.why})"


# Default rows of a batch: as in notes on large-batch training, but with limited bytes (8,192 rows of a megabyte fill
# any memory), and with a minimum number of batches per epoch, or a rate would be the time of one.
_BATCH_ROWS, _BATCH_NBYTES, _LEAST_BATCHES = 8192, 64 << 20, 16


def batch_rows(rows: int | None, row_nbytes: float) -> int:
    """Return the default rows of a batch: a power of two, at most 8,192, that fits the data."""
    most = [_BATCH_ROWS, int(_BATCH_NBYTES // max(1, row_nbytes))]
    most += [] if rows is None else [rows // _LEAST_BATCHES]
    return 1 << max(0, min(most).bit_length() - 1)


def at_least(smallest: float, **values: float | None) -> None:
    """Raise `OptionError` if a named value is smaller than allowed; ``None`` (not given) passes."""
    for name, value in values.items():
        if value is not None and not value >= smallest:
            raise OptionError(f"{name} must be at least {smallest}, not {value}")


def above_zero(**values: float | None) -> None:
    """Raise `OptionError` if a named value is zero, negative or not a number; ``None`` passes."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise OptionError(f"{name} must be above 0, not {value}")
