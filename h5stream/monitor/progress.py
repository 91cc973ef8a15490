"""Progress displays: a bar on a terminal, lines elsewhere; and sanitizing of text from files for printing."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from h5stream.base.texts import text_of_bytes

PLAIN_LINE_S = 5.0  # a log file only needs a line from time to time
REFRESH_S = 0.2  # seconds between two updates for batches: drawing takes about 2 ms, so 1 %


def printable(text: str, kept: str = "\n") -> str:
    """Replace unprintable characters, except those in `kept`; for names, which have one line, `kept` is empty."""
    if text.isprintable():
        return text
    valid = text.encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in kept else "\N{REPLACEMENT CHARACTER}" for c in valid)


class Bar(Progress):
    """A progress bar with rate and remaining time on a terminal; elsewhere a plain line every few seconds.

    It uses the console of errors if the standard output is for results. The `unit` is ``"bytes"``, ``"rows"``,
    ``"samples"``, ``"batches"``, or ``"s"``: seconds, with a predicted total, that pass by themselves.

    # Guarantees: for batches it is only drawn by the thread that shows them, when one arrives and the last drawing is
    `REFRESH_S` old. A note is shown below, and lines are printed when the caller requests it.
    """

    def __init__(self, console: Console, title: str, *, unit: str = "bytes", total: int | None = None) -> None:
        self._title, self._unit, self._note = title, unit, ""
        self._begin = self._last = time.monotonic()
        columns: dict[str, tuple[ProgressColumn, ...]] = {
            **{
                one: (BarColumn(20), MofNCompleteColumn(), TextColumn(one), TimeRemainingColumn())
                for one in ("rows", "samples")
            },
            "bytes": (BarColumn(20), DownloadColumn(True), TransferSpeedColumn(), TimeRemainingColumn()),
            "batches": (BarColumn(None), MofNCompleteColumn(), TextColumn("{task.fields[rate]}")),
            "s": (BarColumn(20), TextColumn("{task.elapsed:.0f} of about {task.total:.0f} s")),
        }
        beside = Column(overflow="ellipsis", no_wrap=True)
        last = TextColumn("{task.fields[note]}", markup=False, table_column=beside)
        super().__init__(
            TextColumn("{task.description}", markup=False),
            *columns[unit],
            TimeRemainingColumn(compact=True) if unit == "batches" else last,
            console=console,
            transient=True,
            disable=not console.is_terminal,
            auto_refresh=unit != "batches",
            expand=unit == "batches",
        )
        self._task = self.add_task(title, total=1 if unit == "s" else total, note="", rate="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar, and the note below it; with the unit "s" time passes by itself, and never reaches the end."""
        for task in self.tasks if self._unit == "s" else ():
            task.completed = min(self.elapsed_s, 0.99 * (task.total or 1.0))
        yield from super().get_renderables()
        if self._unit == "batches":
            yield Text(self._note, style="dim", no_wrap=True, overflow="ellipsis")

    @property
    def elapsed_s(self) -> float:
        """Seconds since the bar was created."""
        return time.monotonic() - self._begin

    def show(self, done: float = 0, total: float = 0, note: str = "") -> None:
        """Show the progress."""
        note = printable(note, kept="")
        self.update(self._task, completed=done, total=total or None, note=note)
        now = time.monotonic()
        if self.disable and now - self._last >= PLAIN_LINE_S:
            self._last = now
            self.say(f"{self._title}: {self._counts(done, total, now)} {note}".replace("  ", " ").rstrip())

    def is_due(self) -> bool:
        """Return whether there is a bar that should be drawn again; called for each batch."""
        return not self.disable and time.monotonic() - self._last >= REFRESH_S

    def show_batches(self, done: int, total: int | None, elapsed_s: float, rate: str, note: str | None) -> None:
        """Show the number of batches and their rate, and replace the note below if one is given."""
        if note is not None:
            self._note = note
        if not self.disable:
            self._last = time.monotonic()
            self.update(self._task, completed=done, rate=rate)
            self.refresh()
            return
        remaining = (
            "?:??" if total is None else "{}:{:02d}".format(*divmod(round(elapsed_s / done * (total - done)), 60))
        )
        share, of = (f"{done / total:4.0%} ", f"/{total}") if total else ("", "")
        end = f" | {note}" if note else ""
        self.say(f"{self._title}: {share}{done}{of} | {rate} | {remaining} left{end}", soft_wrap=True)

    def say(self, text: str, soft_wrap: bool = False) -> None:
        """Print a line permanently, above the bar if there is one."""
        self.console.print(printable(text), markup=False, highlight=False, soft_wrap=soft_wrap)

    def _counts(self, done: float, total: float, now: float) -> str:
        if self._unit == "s":
            return f"{now - self._begin:.0f} of about {total:.0f} s"
        rate = done / max(now - self._begin, 1e-6)
        remaining = f", {(total - done) / rate:.0f} s left" if rate > 0 else ""
        if self._unit in ("rows", "samples"):
            return f"{done:,} of {total:,} {self._unit}, {rate:,.0f}/s{remaining}"
        return f"{text_of_bytes(done)} of {text_of_bytes(total)}, {text_of_bytes(rate)}/s{remaining}"
