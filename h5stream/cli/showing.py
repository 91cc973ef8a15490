"""Printing for the commands: lines, tables, JSON, and notices, each once.

A terminal never gets control characters from files, or characters that its encoding lacks.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, TextIO

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from h5stream.monitor.progress import printable

if TYPE_CHECKING:
    from h5stream.advice import Suggestion

# What our own screens draw, and one character each for terminals that know ASCII only.
_IN_ASCII = dict(
    zip(
        "✓✗→←↓↑…µ·█▉▊▋▌▍▎▏▁▂▃▄▅▆▇━╸╺─│",
        "+x><v^.u.####===-__.-=+#=---|",
        strict=True,
    )
)


class SafeConsole(Console):
    """A console for text that comes from files."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Remove control characters before printing; the console's own colours are added later."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def never_unprintable() -> None:
    """Let the standard streams replace what their encoding does not have, in place of raising."""
    codecs.register_error("h5stream", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="h5stream")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_IN_ASCII.get(one, "?") for one in error.object[error.start : error.end]), error.end


# Characters of a name for which other columns leave room, and of a column where longer ones have lines of their own.
_LEAST_NAME, _SHORT_NAME = 12, 26

# Columns that are aligned to the right.
_NUMBERS = {"chunk rows", "chunk size", "stored", "ratio", "mean", "std", "min", "max", "NaN", "inf"}


def line(console: Console, text: str) -> None:
    """Print one line, as it is: file names are no markup, and only the terminal may break it."""
    console.print(printable(text, kept=""), markup=False, highlight=False, soft_wrap=True)


def prose(console: Console, text: str, style: str = "") -> None:
    """Print a sentence, wrapped at the console's width, without interpreting markup."""
    console.print(printable(text, kept=""), style=style, markup=False, highlight=False)


def notes(console: Console, notices: Iterable[str], seen: set[str]) -> None:
    """Print each notice once."""
    for notice in notices:
        if notice not in seen:
            seen.add(notice)
            prose(console, f"note: {notice}")


@contextlib.contextmanager
def print_notices(as_typed: Callable[[str], str]) -> Iterator[None]:
    """Print log records and warnings of the package as notes on standard error, wrapped between words."""

    def show(text: str, head: str) -> None:
        prose(SafeConsole(stderr=True), f"{head}: {as_typed(text)}", style="yellow")

    class NoticeHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name != "h5stream.monitor":  # which the command reports itself
                show(record.getMessage(), "note")

    logger, handler = logging.getLogger("h5stream"), NoticeHandler(logging.WARNING)
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            plain = warnings.showwarning

            def showwarning(
                message: Warning | str,
                category: type[Warning],
                filename: str,
                lineno: int,
                file: TextIO | None = None,
                line: str | None = None,
            ) -> None:
                if category.__module__.startswith("h5stream"):
                    show(str(message), "warning")
                else:
                    plain(message, category, filename, lineno, file, line)

            warnings.showwarning = showwarning
            yield
    finally:
        logger.removeHandler(handler)


def interrupted(console: Console, what: str) -> None:
    """Print what is available after Ctrl-C."""
    prose(console, f"Interrupted: {what}.", style="yellow")


def advice(suggestion: Suggestion, *, with_arithmetic: bool = True) -> Group:
    """Lay a suggestion out: its answer, then arithmetic, notes and sources beside their labels."""
    parts: list[tuple[str, list[RenderableType]]] = []
    for label, lines, style in (
        ("because", suggestion.arithmetic if with_arithmetic else (), ""),
        ("note", suggestion.caveats, "yellow"),
        ("source", suggestion.sources, "dim"),
    ):
        # As padding and not as spaces, an indent also holds where the line is folded.
        indents = [(line.lstrip(), len(line) - len(line.lstrip())) for line in lines]
        parts.append((label, [Padding(Text(line, style=style), (0, 0, 0, indent)) for line, indent in indents]))
    return Group(Text(f"{suggestion.title}: {suggestion.answer}", style="bold"), labelled(parts, width=8))


def print_json(value: object) -> None:
    """Print JSON, not through rich, which would break long lines."""
    typer.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def table(
    columns: Sequence[str | Column],
    rows: Iterable[Iterable[RenderableType]],
    *,
    gap: int = 1,
    header_style: str = "bold",
) -> Table:
    """Return a table without lines; the titles are shown if any column has one."""
    titled = any(column if isinstance(column, str) else column.header for column in columns)
    result = Table(
        *columns, box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style=header_style, show_header=titled
    )
    for row in rows:
        result.add_row(*row)
    return result


def whole(text: str, style: str = "") -> Text:
    """Return a line that is never broken, however long, so that it can be copied."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


Cells = Sequence[str | Text]


def named_lines(
    titles: Sequence[str], rows: Sequence[tuple[str, Cells]], width: int, *, gap: int = 2, most: int = 1 << 30
) -> Callable[..., Iterator[Text]]:
    """Return a function that yields the lines of a table row; a name longer than its column gets its own line.

    Columns are as wide as the longest of their cells, or `most`, beyond which a cell goes on in the next line. Not
    rich's table: that breaks names, and a broken name cannot be copied.
    """
    words = [[title.split() for title in titles[1:]], *([[str(cell)] for cell in cells] for _, cells in rows)]
    widths = [min(most, max(len(word) for cell in column for word in cell)) for column in zip(*words, strict=True)]
    room = max(_LEAST_NAME, width - sum(widths) - gap * len(widths))
    longest = max(map(len, [titles[0], *(name for name, _ in rows)]))
    name_width = longest if longest <= room else min(room, _SHORT_NAME)

    def lines_of(name: str = titles[0], cells: Cells = titles[1:], style: str = "dim") -> Iterator[Text]:
        texts = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        folded = [_folded(text.plain, width) for text, width in zip(texts, widths, strict=True)]
        if len(name) > name_width:
            yield whole(name, style)
            name = ""
        for place in range(max(map(len, folded))):
            line = Text((name if place == 0 else "").ljust(name_width), style=style)
            for text, parts, title, width in zip(texts, folded, titles[1:], widths, strict=True):
                part = parts[place] if place < len(parts) else ""
                part = part.rjust(width) if title in _NUMBERS else part.ljust(width)
                line.append(" " * gap).append(part, style=text.style or style)
            line.rstrip()
            yield line

    return lines_of


def _folded(text: str, width: int) -> list[str]:
    """Break a text after spaces and plus signs."""
    lines = [""]
    for part in re.split(r"(?<=[ +])", text) if len(text) > width else [text]:
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def labelled(parts: Iterable[tuple[str, Sequence[RenderableType]]], style: str = "dim", width: int = 10) -> Table:
    """Return lines beneath one another, each part with its label on the left."""
    columns = [Column("", justify="right", style=style, min_width=width, no_wrap=True), Column("", overflow="fold")]
    rows = ((label if place == 0 else "", line) for label, lines in parts for place, line in enumerate(lines))
    return table(columns, ((label, Text(line) if isinstance(line, str) else line) for label, line in rows))
