"""Rows of groups, one group behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from h5stream.errors import OptionError
from h5stream.samples.segments import Bounds, Ends, Ids, Lengths
from h5stream.samples.sequences import checked_of, integer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Samples that are rows, of groups that hold equally named datasets of many rows each.

    Parameters
    ----------
    of : str or sequence of str, optional
        The groups: a pattern (``"*"``, ``"data/*"``), whose groups come in the order in which h5py lists them; or
        names, in the order given. By default each file's fields are taken as they are.
    axis : int
        The axis that samples lie along, where it is not the first: -1 for the last. A sample has the other axes; with
        ``of="rows"`` it is of one index of axis 0 as well.

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
        object.__setattr__(self, "of", checked_of("Rows", self.of))
        if isinstance(self.of, (Ends, Ids, Lengths, Bounds)):
            raise OptionError("Rows: of= names groups; where rows end segments says nothing about single rows")
        if self.of == "rows" and self.axis == 0:
            raise OptionError("Rows: of='rows' is for another axis: each index of it, of each row, is a sample")
        if integer(self.axis, "axis") == 0 and self.of is None:
            raise OptionError("Rows needs of=, the groups whose rows are samples, or axis=, where these are not axis 0")
