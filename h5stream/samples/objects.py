"""Objects: samples that are a group, a dataset or a file each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

from h5stream.errors import OptionError
from h5stream.samples.segments import Bounds, Ends, Ids, Lengths
from h5stream.samples.sequences import checked_of, integer, one_of

Missing = Literal["error", "skip", "fill"]
MISSING = get_args(Missing)


@dataclass(frozen=True, slots=True)
class Objects:
    """Samples that are a group, a dataset or a file each, all of one form.

    Fields are looked up in each group or file: ``"x"`` is a dataset there, all of it, ``"@name"`` an attribute. Where
    the objects are datasets, ``"."`` is the object itself.

    Parameters
    ----------
    of : str or sequence of str
        The objects: a pattern (``"*"``, ``"data/*"``, ``"*/*/run_*"``), which takes them in the order in which h5py
        lists them, so sample ``k`` is the one that ``list(file)[k]`` names; names, in the order given; or ``"files"``.
    missing : str, keyword-only
        What becomes of an object that lacks a field: ``"error"``; ``"skip"``, which leaves it out,
        ``print(dataset)`` tells how many; or ``"fill"``, which gives it the fill value (0, unless the
        file says otherwise) of the first object that has all fields, or no rows where the field is ragged.

    Raises
    ------
    OptionError
        If `of` names nothing, or `missing` is something else.

    Examples
    --------
    >>> Objects("data/*").of
    'data/*'
    """

    of: str | Sequence[str]
    _: KW_ONLY
    missing: Missing = "error"

    def __post_init__(self) -> None:
        if not isinstance(self.of, Collection):
            raise OptionError(f"Objects: of= takes a list of names, or a pattern such as 'data/*', not {self.of!r}")
        if not len(self.of):
            raise OptionError("Objects: of= lists no object; name some, or a pattern such as 'data/*'")
        one_of("Objects", "missing", self.missing, MISSING)


# --- Rows of groups, one group behind the other ---------------------------------------------------


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
