"""What may go to a terminal: no control characters from files, and nothing that its encoding cannot say."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

# What our own screens draw, and one character each for terminals that know ASCII only.
_IN_ASCII = dict(
    zip(
        "✓✗→←↓↑…µ·█▉▊▋▌▍▎▏▁▂▃▄▅▆▇━╸╺─│",
        "+x><v^.u.####===-__.-=+#=---|",
        strict=True,
    )
)


def printable(text: str, kept: str = "\n") -> str:
    r"""Replace what is not printable, but for line breaks; without ``kept`` also those, as in names that are one line.

    Examples
    --------
    >>> printable("a\x1b[31mb\n")
    'a�[31mb\n'
    """
    if text.isprintable():
        return text
    valid = text.encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in kept else "\N{REPLACEMENT CHARACTER}" for c in valid)


class _Cleaned:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class _CleaningHook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Clean what is about to be printed; the console's own colours are added later."""
        return [_Cleaned(one) for one in renderables]


def safe_console(*, stderr: bool = False) -> Console:
    """Give a console for text that comes from files."""
    console = Console(stderr=stderr)
    console.push_render_hook(_CleaningHook())
    return console


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
