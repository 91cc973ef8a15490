"""Rows of groups, one group behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from h5stream.errors import OptionError
from h5stream.samples.sequences import integer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Samples that are rows, of groups that hold equally named datasets of many rows each.

    Parameters
    ----------
    of : str or sequence of str, optional
        The groups: a pattern (``"*"``, ``"data/*"``), whose groups come in the order of their names, numbers in these
        counted as such; or names, in the order given. By default each file's fields are taken as they are.
    axis : int
        The axis that samples lie along, where it is not the first: -1 for the last. A sample has the other axes.

    Raises
    ------
    OptionError
        If it says neither groups nor an axis.

    Examples
    --------
    >>> Rows(of="*").of
    '*'
    """

    of: str | Sequence[str] | None = None
    axis: int = 0

    def __post_init__(self) -> None:
        if integer(self.axis, "axis") == 0 and self.of is None:
            raise OptionError("Rows needs of=, the groups whose rows are samples, or axis=, where these are not axis 0")
