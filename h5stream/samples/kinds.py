"""Kinds of samples along rows: sequences, rows of groups, whole objects.

A sequence is identified by its *anchor*, a row; each field takes the rows ``anchor + step`` for its own steps.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

import numpy as np

from h5stream.base.texts import answering, as_text, check_holds, check_ordered, names_in, whole_number
from h5stream.errors import OptionError
from h5stream.samples.segments import Segmentation

Of = str | Sequence[str] | Segmentation | None

Tail = Literal["drop", "shift"]

Missing = Literal["error", "skip", "fill"]

MissingRows = Literal["error", "skip"]

Draw = Literal["segments", "rows"]
"""How random samples are drawn: each segment equally often, or each start with the same probability."""

DRAWS = get_args(Draw)

Pad = Literal["edge", "zeros"] | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How an epoch's samples are drawn from all possible ones."""

    per_epoch: int | None = None  # how many; None takes one of each segment
    by: str = "segments"  # `"segments"` (each as often as any other) or `"rows"` (each start as likely as any other)


MOST_DRAWN = 1 << 53
"""The most samples that an epoch draws: shares of more could not be computed exactly."""

MOST_STEPS = 1 << 26
"""The most rows of a sample, each of which is a Python number while files are opened."""

_LENGTH = "write the length first, Sequences(64)"


@answering(
    {
        **dict.fromkeys(("window", "size", "seq_len", "window_size", "steps"), _LENGTH),
        "step": "write stride=, the rows from window to window; Field(NAME, take=range(0, 64, 2)) takes every other",
        "group": "write of=",
    }
)
@dataclass(frozen=True, slots=True)
class Sequences:
    """Samples of consecutive rows, which never cross the edge of a segment: a file, a group, an episode.

    Parameters
    ----------
    length : int, optional
        Rows of a sequence; not needed if all fields have a ``take=`` of their own.
    stride : int, keyword-only
        Rows from the beginning of one sequence to that of the next in a segment.
    of : str, list of str, Ends, Bounds, Lengths or Ids, optional, keyword-only
        What a segment is: a file (``"files"``, the default), a group, by pattern (``"data/*"``) or by name, or rows
        that a field or an array says (`Ends`, `Bounds`, `Lengths`, `Ids`). With `axis`, ``"rows"`` makes each index of
        axis 0 a segment.
    pad : str or number, optional, keyword-only
        What fills steps outside of the segment: ``"edge"`` (its first or last row again), ``"zeros"`` or a number;
        texts are empty there. By default nothing is padded: only whole sequences are samples.
    pad_rows : tuple of int, optional, keyword-only
        The most rows that may be padded before a segment's first row and after its last. By default as many as the
        steps need, so that a sequence begins at each row (or each `stride` rows).
    tail : str, keyword-only
        What to do with rows after a segment's last whole sequence: ``"drop"``, or ``"shift"``, which adds the sequence
        that ends with the segment's last row.
    starts : str, keyword-only
        ``"all"``, or ``"random"``: an epoch takes one random sequence of each segment. The loader's seed and epoch
        determine which; without a loader, those of `H5Dataset.set_epoch`.
    per_epoch : int, optional, keyword-only
        For random starts: how many samples an epoch has.
    draw : str, keyword-only
        With `per_epoch`: ``"segments"`` draws each segment equally often, ``"rows"`` each start with the same
        probability, so a long segment more often.
    axis : int, keyword-only
        The axis that sequences lie along, if it is not the first: 1 for recordings of channels x time; -1 is the last.
        A sample has all of the other axes, in the dataset's order, but only one index of axis 0 with ``of="rows"``.
    lengths : str, keyword-only
        What to do with groups or files whose fields have different numbers of rows: ``"equal"`` refuses them;
        ``"shortest"`` leaves out rows after the end of the shortest field, such as the observation after the last
        action.
    missing : str, optional, keyword-only
        What to do with a file or a group that lacks a field, or the group of `of`. ``"error"`` raises an error.
        ``"skip"`` leaves it out; ``print(dataset)`` says how many. By default it is an error, unless a pattern names
        the files: those of them that have none of the datasets are left out then, with a warning.

    Raises
    ------
    OptionError
        If `length` or `stride` is below 1, or an argument is none of these.

    Examples
    --------
    >>> Sequences(16, of="data/*", pad="edge").steps
    range(0, 16)
    """

    length: int | None = None
    _: KW_ONLY
    stride: int = 1
    of: Of = None
    pad: Pad = None
    pad_rows: tuple[int, ...] | None = None
    tail: Tail = "drop"
    starts: Literal["all", "random"] = "all"
    per_epoch: int | None = None
    draw: Draw = "segments"
    axis: int = 0
    lengths: Literal["equal", "shortest"] = "equal"
    missing: MissingRows | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", checked_of("Sequences", self.of))
        integer(self.axis, "axis")
        if self.of == "rows" and self.axis == 0:
            raise OptionError("Sequences: of='rows' makes each row of axis 0 a segment, so axis= is another, such as 1")
        if self.axis != 0 and isinstance(self.of, Segmentation):
            raise OptionError(f"Sequences: {type(self.of).__name__} says where segments of rows end, and needs axis=0")
        if isinstance(self.stride, Iterable):
            raise OptionError(
                f"Sequences: stride= is one number, the rows from a sample to the next, not {self.stride!r}. Rows "
                "of a sample that lie apart are steps, Field(..., take=range(0, 32, 2)); for a spacing drawn for each "
                "sample take as many as the widest has, and thin them in sample_transform="
            )
        one_of("Sequences", "lengths", self.lengths, ("equal", "shortest"))
        if self.lengths == "shortest" and (self.axis != 0 or isinstance(self.of, Segmentation)):
            raise OptionError("Sequences: lengths='shortest' is for rows of whole groups or files, along axis 0")
        for name, count in (("length", 1 if self.length is None else self.length), ("stride", self.stride)):
            if integer(count, name) < 1:
                raise OptionError(f"Sequences: {name} must be at least 1, not {count!r}")
        check_steps("Sequences: length", self.length or 1)
        checked_pad("Sequences", self.pad)
        one_of("Sequences", "tail", self.tail, get_args(Tail))
        checked_missing("Sequences", self.missing)
        if self.tail == "shift" and self.pad is not None:
            raise OptionError("Sequences: tail='shift' pads nothing, it moves the last sequence back; leave pad= out")
        if self.pad_rows is not None:
            if self.pad is None:
                raise OptionError("Sequences: pad_rows= says how much may be padded, so it needs pad=")
            rule = "two numbers of rows, (before, after), 0 or more"
            object.__setattr__(self, "pad_rows", checked_counts("pad_rows=", self.pad_rows, 0, rule, 2))
        one_of("Sequences", "starts", self.starts, ("all", "random"))
        one_of("Sequences", "draw", self.draw, DRAWS)
        if self.per_epoch is None:
            if self.draw != "segments":
                raise OptionError("Sequences: draw= says how per_epoch= samples are drawn; say how many")
        elif self.starts != "random" or integer(self.per_epoch, "per_epoch") < 1:
            raise OptionError(
                "Sequences: per_epoch= is a number of random starts, at least 1, for starts='random', not "
                f"{self.per_epoch!r} for {self.starts!r}"
            )
        check_drawn("Sequences: per_epoch=", self.per_epoch or 0)

    @property
    def draws(self) -> Draws | None:
        """How an epoch's samples are drawn; None if it takes all."""
        return Draws(per_epoch=self.per_epoch, by=self.draw) if self.starts == "random" else None

    @property
    def steps(self) -> range | None:
        """The steps of a field that names none."""
        return None if self.length is None else range(self.length)


@answering()
@dataclass(frozen=True, slots=True)
class Objects:
    """Samples that are a whole group, dataset or file each, all of one form.

    Fields are looked up in each group or file: ``"x"`` is a whole dataset there, ``"@name"`` an attribute. If the
    objects are datasets, ``"."`` is the object itself.

    Parameters
    ----------
    of : str or sequence of str
        The objects: a pattern (``"*"``, ``"data/*"``, ``"*/*/run_*"``), in the order in which h5py lists them, so
        sample ``k`` is the one that ``list(file)[k]`` names; names, each once, in the order given; or ``"files"``. An
        object whose name equals the pattern is taken alone; a backslash takes the next character as it is.
    missing : str, keyword-only
        What to do with an object that lacks a field. ``"error"`` raises an error. ``"skip"`` leaves the object out;
        ``print(dataset)`` says how many. ``"fill"`` gives it the fill value (0, unless the file says otherwise) of the
        first object that has all fields, NaN if the field has ``missing=``, or no rows of a ragged field. Attributes
        and single values have no fill value: without one, an object is an error with ``"fill"``, too.

    Raises
    ------
    OptionError
        If `of` names nothing, or something twice, or `missing` is something else.

    Examples
    --------
    >>> Objects("data/*").of
    'data/*'
    """

    of: str | Sequence[str]
    _: KW_ONLY
    missing: Missing = "error"

    def __post_init__(self) -> None:
        value: object = self.of
        if not isinstance(value, Collection) and not hasattr(value, "__array__"):
            raise OptionError(f"Objects takes a list of names, or a pattern such as 'data/*', not {value!r}")
        of = checked_of("Objects", value)
        if not isinstance(of, (str, list)):
            raise OptionError(f"Objects takes a list of names, or a pattern such as 'data/*', not {of!r}")
        if not of:
            raise OptionError("Objects([]) lists no object; name some, or a pattern such as 'data/*'")
        object.__setattr__(self, "of", of)
        one_of("Objects", "missing", self.missing, get_args(Missing))


@answering()
@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Samples that are rows of many groups, whose datasets have the same names, or rows along another axis.

    Parameters
    ----------
    of : str or sequence of str, optional
        The groups: a pattern (``"*"``, ``"data/*"``), whose groups come in the order in which h5py lists them; or
        names, in the order given. A group whose name equals the pattern is taken alone; a backslash takes the next
        character as it is. By default each file's fields are taken as they are.
    axis : int
        The axis that samples lie along, if it is not the first: -1 for the last. A sample has the other axes, but only
        one index of axis 0 with ``of="rows"``.
    missing : str, optional
        What to do with a file or a group that lacks a field, or the group of `of`. ``"error"`` raises an error.
        ``"skip"`` leaves it out; ``print(dataset)`` says how many. By default it is an error, unless a pattern names
        the files: those of them that have none of the datasets are left out then, with a warning.

    Raises
    ------
    OptionError
        If neither groups, nor an axis, nor `missing` are given.

    Examples
    --------
    >>> Rows(of="*").of
    '*'
    """

    of: str | Sequence[str] | None = None
    axis: int = 0
    missing: MissingRows | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", checked_of("Rows", self.of))
        if isinstance(self.of, Segmentation):
            raise OptionError("Rows: of= names groups; where rows end segments says nothing about single rows")
        if self.of == "rows" and self.axis == 0:
            raise OptionError("Rows: of='rows' is for another axis: each index of it, of each row, is a sample")
        checked_missing("Rows", self.missing)
        if integer(self.axis, "axis") == 0 and self.of is None and self.missing is None:
            raise OptionError("Rows needs of=, the groups whose rows are samples, or axis=, where these are not axis 0")


def check_drawn(what: str, count: int) -> None:
    """Raise `OptionError` for more samples than an epoch may draw."""
    if count > MOST_DRAWN:
        raise OptionError(f"{what} takes at most 2**53 samples of an epoch, not {count:,}; take fewer, in more epochs")


def check_steps(what: str, count: int, unit: str = "rows") -> None:
    """Raise `OptionError` for more steps than a sample may have."""
    if count > MOST_STEPS:
        raise OptionError(f"{what} takes at most {MOST_STEPS:,} {unit} of a sample, not {count:,}; take fewer")


def checked_steps(steps: object) -> tuple[int, ...]:
    """Validate ``steps=`` and return it as a tuple."""
    check_ordered("take= (steps=)", steps)
    if isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
        raise OptionError(f"take= (steps=) takes a range or list of integers, range(-1, 15) or [0], not {steps!r}")
    if isinstance(steps, range):
        check_steps("take= (steps=)", max(0, (steps.stop - steps.start) // steps.step))
    numbers = tuple(integer(step, "a step") for step in steps)
    if not numbers:
        raise OptionError("steps= is empty; a field has one row at least, steps=[0]")
    return numbers


def one_of(kind: str, name: str, value: object, options: tuple[str, ...]) -> None:
    """Raise `OptionError` if a value is not one of the options."""
    if value not in options:
        raise OptionError(f"{kind}: {name}= is {', '.join(map(repr, options[:-1]))} or {options[-1]!r}, not {value!r}")


def checked_missing(kind: str, missing: object) -> None:
    """Raise `OptionError` if ``missing=`` is not valid for rows."""
    if missing == "fill":
        raise OptionError(f"{kind}: missing='fill' is for Objects; rows of a file that lacks them cannot be counted")
    if missing is not None:
        one_of(kind, "missing", missing, get_args(MissingRows))


def checked_of(kind: str, of: Any) -> Of:
    """Validate ``of=`` and return it, names as a list without duplicates."""
    if of is None or isinstance(of, (str, Segmentation)):
        return of
    is_one = isinstance(of, bytes) or not (isinstance(of, Iterable) or hasattr(of, "__array__"))
    names = [as_text(of)] if is_one else [*names_in(f"{kind}: of=", of)]
    if isinstance(of, bytes) or (hasattr(of, "__array__") and np.ndim(of) == 0 and isinstance(names[0], str)):
        return str(names[0])
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise OptionError(f"{kind}: of= takes a pattern such as 'data/*', or names of groups, not {wrong!r}")
    if len(set(names)) < len(names):
        twice = collections.Counter(names).most_common(1)[0][0]
        raise OptionError(f"{kind}: of= names {twice!r} twice; each once")
    return names


def checked_pad(kind: str, pad: Pad) -> Pad:
    """Return ``pad=`` if it is valid, else raise `OptionError`; `kind` names the samples in the message."""
    if pad is None or pad in ("edge", "zeros") or (isinstance(pad, (int, float)) and not isinstance(pad, bool)):
        return pad
    raise OptionError(f"{kind}: pad= is 'edge', 'zeros' or a number, not {pad!r}")


def integer(value: object, name: str) -> int:
    """Return an integer of any type as an int; raise `OptionError` for anything else."""
    if (number := whole_number(value)) is None:
        raise OptionError(f"{name} is an integer, not {value!r}")
    check_holds(name, number)
    return number


def checked_counts(what: str, values: object, least: int, rule: str, length: int | None = None) -> tuple[int, ...]:
    """Return whole numbers of at least `least`, `length` of them if given; the error says that `what` is `rule`."""
    check_ordered(what, values)
    numbers = [whole_number(number) for number in values] if isinstance(values, Iterable) else []
    counts = tuple(number for number in numbers if number is not None and number >= least)
    if not counts or len(counts) != (len(numbers) if length is None else length):
        raise OptionError(f"{what} is {rule}, not {values!r}")
    for number in counts:
        check_holds(what, number)
    return counts
