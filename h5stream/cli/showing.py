"""What the commands print while they work: lines, notices once each, and a bar with rate and time left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column

from h5stream.cli.printable import printable
from h5stream.units import text_of_bytes

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

# A log file wants to know that it goes on, not how it looks every moment.
_PLAIN_LINE_S = 5.0


def line(console: Console, text: str) -> None:
    """Print one line, as it is: file names are no markup, and only the terminal may break it."""
    console.print(printable(text, kept=""), markup=False, highlight=False, soft_wrap=True)


def prose(console: Console, text: str, style: str = "") -> None:
    """Print a sentence, broken at the console's width; what is in it is no markup."""
    console.print(printable(text, kept=""), style=style, markup=False, highlight=False)


class Notices:
    """Prints each notice once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: set[str] = set()

    def __call__(self, notices: tuple[str, ...]) -> None:
        """Print those that are new."""
        for notice in notices:
            if notice not in self._seen:
                self._seen.add(notice)
                prose(self._console, f"note: {notice}")


class Bar:
    """A progress bar with rate and time left on a terminal; elsewhere a plain line every few seconds.

    Parameters
    ----------
    console : Console
        Where; the errors' console where the standard output is for results.
    title : str
        What is going on.
    rows : bool
        Count rows, and not bytes.
    """

    def __init__(self, console: Console, title: str, *, rows: bool = False) -> None:
        self._title = title
        self._console = console
        self._rows = rows
        self._last = time.monotonic()
        self._begin = self._last
        counts = (MofNCompleteColumn(), TextColumn("rows")) if rows else (DownloadColumn(binary_units=True),)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            *counts,
            *(() if rows else (TransferSpeedColumn(),)),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False, table_column=Column(overflow="ellipsis", no_wrap=True)),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=None, note="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, done: int, total: int, note: str = "") -> None:
        """Show how far it is."""
        self._progress.update(self._task, completed=done, total=total or None, note=note)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last >= _PLAIN_LINE_S:
            self._last = now
            rate = done / max(now - self._begin, 1e-6)
            left = f", {(total - done) / rate:.0f} s left" if rate > 0 else ""
            text = f"{self._title}: {self._counts(done, total, rate)}{left} {note}"
            line(self._console, text.rstrip())

    def _counts(self, done: int, total: int, rate: float) -> str:
        if self._rows:
            return f"{done:,} of {total:,} rows, {rate:,.0f} rows/s"
        return f"{text_of_bytes(done)} of {text_of_bytes(total)}, {text_of_bytes(rate)}/s"


class Steps:
    """Says which step of many is under way: in place on a terminal, elsewhere a line every few seconds."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title, self._last = console, title, time.monotonic()
        self._status = console.status(title)

    def __enter__(self) -> Steps:
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def show(self, text: str) -> None:
        """Show what has just been done."""
        said = printable(f"{self._title}: {text}", kept="")
        now = time.monotonic()
        if self._console.is_terminal:
            self._status.update(escape(said))
        elif now - self._last >= _PLAIN_LINE_S:
            self._last = now
            line(self._console, said)
