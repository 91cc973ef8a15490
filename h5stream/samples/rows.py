"""Rows of groups, one group behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Samples that are rows, of groups that hold equally named datasets of many rows each.

    Parameters
    ----------
    of : str or sequence of str
        The groups: a pattern (``"*"``, ``"data/*"``), whose groups come in the order of their names, numbers in these
        counted as such; or names, in the order given.

    Examples
    --------
    >>> Rows(of="*").of
    '*'
    """

    of: str | Sequence[str]
