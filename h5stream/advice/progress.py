"""How far an epoch is: a bar where there is a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

REFRESH_S = 0.2
"""Seconds between two drawings of the bar: drawing takes about 2 ms, so 1 %."""


@dataclass(slots=True)
class Advance:
    """How far the epoch is."""

    batches: int = 0
    samples: int = 0  # taken so far
    total: int | None = None  # batches of the epoch, if they are known
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


class Display:
    """An epoch as it goes: a bar where there is a terminal, with the machine's state below it, lines elsewhere.

    # Guarantees: called by the loop's thread alone. There is no drawing thread: the bar is drawn when a batch arrives
    and the last drawing is `REFRESH_S` old.
    """

    def __init__(self, console: Console, description: str, total: int | None) -> None:
        self._console, self._description, self._drawn_s = console, description or "epoch", 0.0
        self._bar: _TwoLines | None = None
        if console.is_terminal:
            self._bar = _TwoLines(
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
            self._task = self._bar.add_task(self._description, total=total, rate="")
            self._bar.start()

    def update(self, advance: Advance) -> None:
        """Note how far the epoch is; called for each batch, so it must cost next to nothing."""
        if self._bar is not None and (now_s := time.monotonic()) - self._drawn_s >= REFRESH_S:
            self._drawn_s = now_s
            self._draw(self._bar, advance)

    def note(self, advance: Advance, text: str) -> None:
        """Show the state of the machine."""
        if self._bar is not None:
            self._bar.below = Text(text, style="dim", no_wrap=True, overflow="ellipsis")
            self._draw(self._bar, advance)
            return
        done = "" if not advance.total else f"{advance.batches / advance.total:4.0%} "
        of = "" if advance.total is None else f"/{advance.total}"
        self.say(
            f"{self._description}: {done}{advance.batches}{of} | {advance.rate} | {advance.left} left"
            + (f" | {text}" if text else "")
        )

    def say(self, text: str) -> None:
        """Print a line that stays: above the bar, or whole, since a file has no width."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=self._bar is None)

    def close(self) -> None:
        """Take the bar away; what was said stays."""
        if self._bar is not None:
            self._bar.stop()

    def _draw(self, bar: _TwoLines, advance: Advance) -> None:
        bar.update(self._task, completed=advance.batches, rate=advance.rate)
        bar.refresh()


class _TwoLines(Progress):
    below = Text("")

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield self.below
