"""How far an epoch is: a bar where there is a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

REFRESH_S = 0.2
"""Seconds between two drawings of the bar: drawing takes about 2 ms, so 1 %."""


@dataclass(slots=True)
class Advance:
    """How far the epoch is.

    Attributes
    ----------
    batches, samples : int
        Taken so far.
    total : int or None
        Batches of the epoch, if they are known.
    elapsed_s : float
        Seconds so far.
    """

    batches: int = 0
    samples: int = 0
    total: int | None = None
    elapsed_s: float = 0.0

    @property
    def rate(self) -> str:
        """Samples a second, or batches where samples are not known."""
        what, unit = (self.samples, "samples/s") if self.samples else (self.batches, "batches/s")
        return f"{what / self.elapsed_s if self.elapsed_s else 0:,.0f} {unit}"

    @property
    def left(self) -> str:
        """Time that the rest will take, as minutes and seconds."""
        if self.total is None or not self.batches:
            return "?:??"
        seconds = round(self.elapsed_s / self.batches * (self.total - self.batches))
        return f"{seconds // 60}:{seconds % 60:02d}"


class Display(Protocol):
    """Shows an epoch. Called by the loop's thread alone; draws when it is called and never by itself."""

    def update(self, advance: Advance) -> None:
        """Note how far the epoch is; called for each batch, so it must cost next to nothing."""

    def note(self, advance: Advance, text: str) -> None:
        """Show the state of the machine."""

    def say(self, text: str) -> None:
        """Print a line that stays."""

    def close(self) -> None:
        """Take the display away."""


class Bar:
    """A bar, with the machine's state on a line of its own below it.

    There is no drawing thread: the bar is drawn when a batch arrives and the last drawing is `REFRESH_S` old.
    """

    def __init__(self, console: Console, description: str, total: int | None) -> None:
        self._drawn_s = 0.0
        self._progress = _TwoLines(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task(description or "epoch", total=total, rate="")
        self._progress.start()

    def update(self, advance: Advance) -> None:
        """Draw, if the last drawing is old enough."""
        now_s = time.monotonic()
        if now_s - self._drawn_s >= REFRESH_S:
            self._drawn_s = now_s
            self._draw(advance)

    def note(self, advance: Advance, text: str) -> None:
        """Draw with a new state of the machine."""
        self._progress.below = Text(text, style="dim", no_wrap=True, overflow="ellipsis")
        self._draw(advance)

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Take the bar away; what was said stays."""
        self._progress.stop()

    def _draw(self, advance: Advance) -> None:
        self._progress.update(self._task, completed=advance.batches, rate=advance.rate)
        self._progress.refresh()


class _TwoLines(Progress):
    below = Text("")

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield self.below


class Lines:
    """Plain lines, one for each state of the machine."""

    def __init__(self, console: Console, description: str) -> None:
        self._console, self._description = console, description or "epoch"

    def update(self, advance: Advance) -> None:
        """Do nothing: a line a batch would be too many."""

    def note(self, advance: Advance, text: str) -> None:
        """Print how far it is."""
        done = "" if not advance.total else f"{advance.batches / advance.total:4.0%} "
        of = "" if advance.total is None else f"/{advance.total}"
        self.say(
            f"{self._description}: {done}{advance.batches}{of} | {advance.rate} | {advance.left} left"
            + (f" | {text}" if text else "")
        )

    def say(self, text: str) -> None:
        """Print a line, whole: a file has no width."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Do nothing."""


def display_for(console: Console, description: str, total: int | None) -> Display:
    """Give a bar where there is a terminal, lines elsewhere."""
    return Bar(console, description, total) if console.is_terminal else Lines(console, description)
