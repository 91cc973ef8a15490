"""How values look as the last line of a notebook's cell."""

from __future__ import annotations

from typing import Any


class ShownAsText:
    """Shown in notebooks as ``print`` shows it; ``repr`` stays what a dataclass gives.

    Examples
    --------
    >>> class Reading(ShownAsText):
    ...     def __str__(self) -> str:
    ...         return "42 rows/s"
    >>> class Printer:  # IPython's
    ...     text = staticmethod(print)
    >>> Reading()._repr_pretty_(Printer, cycle=False)
    42 rows/s
    """

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))
