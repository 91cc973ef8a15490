"""A console that passes on no control characters: names in a file may hold escape sequences for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment


def printable(text: str) -> str:
    r"""Replace what is not printable, but for line breaks.

    Examples
    --------
    >>> printable("a\x1b[31mb\n")
    'a�[31mb\n'
    """
    if text.isprintable():
        return text
    valid = text.encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in valid)


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
