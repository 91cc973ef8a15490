"""What the commands print while they work: lines, notices once each, and a bar with rate and time left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

# A log file wants to know that it goes on, not how it looks every moment.
_PLAIN_LINE_S = 5.0


def clean(*texts: str) -> tuple[str, ...]:
    """Make file names printable that are no valid text, or that hold line breaks and the like."""
    valid = (text.encode("utf-8", "replace").decode() for text in texts)
    return tuple("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text) for text in valid)


def line(console: Console, text: str) -> None:
    """Print one line, as it is: file names are no markup, and only the terminal may break it."""
    console.print(clean(text)[0], markup=False, highlight=False, soft_wrap=True)


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
                line(self._console, f"note: {notice}")


class Bar:
    """A progress bar with rate and time left on a terminal; elsewhere a plain line every few seconds."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._console = console
        self._last = time.monotonic()
        self._begin = self._last
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
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

    def show(self, done: int, total: int, note: str) -> None:
        """Show how far it is."""
        self._progress.update(self._task, completed=done, total=total or None, note=note)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last >= _PLAIN_LINE_S:
            self._last = now
            rate = done / max(now - self._begin, 1e-6)
            left = f", {(total - done) / rate:.0f} s left" if rate > 0 else ""
            speed = f"{rate / (1 << 20):.0f} MiB/s"
            text = f"{self._title}: {done >> 20} of {total >> 20} MiB, {speed}{left} {note}"
            line(self._console, text.rstrip())
