"""Parse and format bytes, whole numbers, counts, shapes and names, also for notebooks."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import re
import reprlib
from collections.abc import Callable, Iterable, KeysView, Mapping, Reversible, Sequence, Set
from typing import Any, Protocol, SupportsIndex, TypeVar

import numpy as np

from h5stream.errors import MissingExtraError, OptionError

_NAMED = 3  # names that a sentence lists before it counts

_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB")

# "4GiB", "4G" and "4 gib" are one unit; only the makers' "GB" counts in thousands.
_BYTES_OF = {"": 1, "b": 1} | {
    unit: size
    for power, letter in enumerate("kmgtp", start=1)
    for unit, size in ((letter, 1024**power), (f"{letter}ib", 1024**power), (f"{letter}b", 1000**power))
}

_TEXT = re.compile(r"\s*(\d[\d_]*(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)


_BROUGHT = {
    "remote": "obstore",
    "ray": "'ray[data]'",
    "plot": "matplotlib",
    "prometheus": "prometheus-client",
    "tensorboard": "tensorboard",
}
"""The pip requirement of each extra; h5stream itself is not on PyPI."""


def missing_extra(needs: str, extra: str) -> MissingExtraError:
    """Return the error for a missing package, with the command that installs it."""
    return MissingExtraError(
        f"{needs}, which is not installed: python -m pip install {_BROUGHT[extra]}, or, in a clone of h5stream, "
        f"python -m pip install -c constraints.txt '.[{extra}]'"
    )


def as_bytes(value: int | str, *, name: str) -> int:
    """Return the bytes that an int or a text such as ``"4GiB"`` means; `name` is the option's, for errors."""
    refused = OptionError(f'{name} takes bytes, as a whole number or as a text such as "4GiB", not {value!r}')
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is None or match[2].lower() not in _BYTES_OF:
            raise refused
        number, scale = match[1].replace("_", ""), _BYTES_OF[match[2].lower()]
        # Whole numbers stay exact beyond what a float can hold.
        return int(number) * scale if number.isdigit() else int(float(number) * scale)
    if (nbytes := whole_number(value)) is None or nbytes < 0:
        raise refused
    return nbytes


NA = "n/a"
"""Text of an unknown number."""


def or_na(value: float | None, form: str) -> str:
    """Format a number, with a form such as ``{:.1f} ms``; ``n/a`` for None."""
    return NA if value is None else form.format(value)


def percent(ratio: float | None, digits: int = 1) -> str:
    """Format a ratio as a percentage, such as ``45.2%``; ``n/a`` for None."""
    return NA if ratio is None else f"{ratio:.{digits}%}"


def text_of_bytes(nbytes: float | None, per: str = "") -> str:
    """Format bytes, or with ``"/s"`` bytes a second, with three digits and a binary unit."""
    if nbytes is None:
        return NA
    if abs(nbytes) < 1024:
        return f"{nbytes:.0f} B{per}"
    size = float(nbytes)
    for unit in _BINARY:
        size /= 1024
        # What would print as 1024 belongs to the next unit.
        if abs(size) < 1023.5 or unit == _BINARY[-1]:
            break
    digits = 2 if abs(size) < 9.995 else 1 if abs(size) < 99.95 else 0
    return f"{size:.{digits}f} {unit}{per}"


def check_ordered(what: str, values: object) -> None:
    """Raise `OptionError` for a set: the order matters for `what`, and a set's differs between processes."""
    is_set = isinstance(values, Set) and not isinstance(values, (Reversible, KeysView))
    if is_set or isinstance(values, type(iter(set()))):
        shown = (
            f"a set of {len(values)}, {reprlib.repr(values)}," if isinstance(values, Set) else "an iterator over a set,"
        )
        raise OptionError(
            f"{what} takes several in an order, and {shown} has no order: it differs between processes, such as ranks. "
            "Write sorted(...), or a list"
        )


def listed(what: str, values: object) -> list[Any]:
    """Return the values that a user listed as a list, in their order; the items of an array as Python objects."""
    check_ordered(what, values)
    if not hasattr(values, "__array__"):
        if not isinstance(values, Iterable):
            raise OptionError(f"{what} takes several in a list, not {values!r:.200}")
        return list(values)
    array = np.asarray(values)
    if array.ndim > 1:
        raise OptionError(f"{what} takes names in an array of one axis, not of shape {array.shape}: reshape(-1)")
    return list(array.reshape(-1).tolist())


def as_text(name: object) -> Any:
    """Decode a name if it is bytes, as some from h5py and NumPy are; return anything else unchanged."""
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


def names_in(what: str, values: object) -> tuple[Any, ...]:
    """Return the names that a user listed, in their order, bytes decoded; see `listed`."""
    return tuple(map(as_text, listed(what, values)))


def whole_number(value: object) -> int | None:
    """Return a whole number of any type, including NumPy's, as int; None for anything else, and for a bool."""
    try:
        return operator.index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else None
    except TypeError:
        return None


MOST_WHOLE = (1 << 63) - 1
"""The largest whole number that arrays of rows, and of other counts, can hold."""


def check_holds(what: str, number: int) -> None:
    """Raise `OptionError` for a whole number that int64 arrays cannot hold, of either sign."""
    if abs(number) > MOST_WHOLE:
        raise OptionError(f"{what} takes whole numbers of at most 2**63 - 1, which arrays hold, not {number!r:.200}")


def checked_number(what: str, value: object, least: int, rule: str, *, is_seed: bool = False) -> int:
    """Return a whole number of at least `least`, or raise: `what` takes `rule`. A seed has any size."""
    if (number := whole_number(value)) is None or number < least:
        raise OptionError(f"{what} takes {rule}, not {value!r:.200}")
    if not is_seed:
        check_holds(what, number)
    return number


def count_text(number: float) -> str:
    """Format a number for people: small ones with decimals."""
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}".removesuffix(".0") if number >= 1 else f"{number:.2g}"


def counted(count: int, singular: str, plural: str = "") -> str:
    """Return a count and its noun, such as ``2 files``."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def shape_text(shape: Sequence[int]) -> str:
    """Format a shape, such as ``3 x 1,024``."""
    return " x ".join(f"{n:,}" for n in shape)


def names_text(names: Sequence[str]) -> str:
    """List the first names, and count the others."""
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


class _PrettyPrinter(Protocol):
    """The part of IPython's printer that is used here."""

    def text(self, obj: str) -> object:
        """Print a text."""


class ShownAsText:
    """Mixin: a notebook shows ``str`` of the object; ``repr`` is not changed."""

    __slots__ = ()

    def _repr_pretty_(self, printer: _PrettyPrinter, cycle: bool) -> None:
        printer.text(str(self))


# --- suggestions for misspelt names


_LEAST = 3
"""Letters of a shared prefix that make a suggestion: ``observations`` for ``obs``."""

_MOST_COMPARED = 20_000
"""Names that are compared letter by letter; with more, only whole parts are compared."""


def nearest_names(name: str, candidates: Iterable[str]) -> list[str]:
    """Return the few candidates that `name` most likely means, the best first; none if none is close.

    Names that differ only in the separator (``obs/label`` for the member ``obs:label``) or in case come first, then
    names with the same last part, names in a group that begins so, then names with a similar spelling.
    """
    wanted, keys = _key(name), {candidate: _key(candidate) for candidate in candidates}
    for part in (str, _leaf):
        for case in (str, str.casefold):
            if same := [candidate for candidate, key in keys.items() if case(part(key)) == case(part(wanted))]:
                return same[:3]
    # Names in the same group or compound are compared by their last part alone: the rest is equal.
    folded = {key.casefold(): candidate for candidate, key in keys.items()} if len(keys) <= _MOST_COMPARED else {}
    group, leaf = wanted.casefold().rpartition("/")[::2]
    beside = {_leaf(key): candidate for key, candidate in folded.items() if key.rpartition("/")[0] == group}
    elsewhere = {key: candidate for key, candidate in folded.items() if key.rpartition("/")[0] != group}
    begin = [key for key in beside if key.startswith(leaf) or leaf.startswith(key)]
    if longest := max((key for key in begin if min(len(key), len(leaf)) >= _LEAST), key=len, default=""):
        return [beside[longest]]
    leaves = {_leaf(key): candidate for key, candidate in elsewhere.items()}
    for written, spelled in ((leaf, beside), (wanted.casefold(), elsewhere), (leaf, leaves)):
        if near := difflib.get_close_matches(written, spelled, n=1, cutoff=0.75):
            return [spelled[near[0]]]
    inside = []
    for key, candidate in elsewhere.items() if not group else ():
        own = _leaf(key.rpartition("/")[0])
        if min(len(own), len(leaf)) >= _LEAST and (own.startswith(leaf) or leaf.startswith(own)):
            inside.append(candidate)
    if inside:
        return inside[:3]
    for written, spelled, cutoff in ((leaf, beside, 0.5), (wanted.casefold(), elsewhere, 0.65)):
        if near := difflib.get_close_matches(written, spelled, n=1, cutoff=cutoff):
            return [spelled[near[0]]]
    return []


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the nearest names, or an empty text if none is close."""
    near = " or ".join(map(repr, nearest_names(name, candidates)))
    return f" Did you mean {near}?" if near else ""


Kind = TypeVar("Kind", bound=type)


def answering(way_outs: Mapping[str, str] | None = None, others: str = "") -> Callable[[Kind], Kind]:
    """Return a decorator for a class that answers an argument which it does not have, with what to write instead.

    `way_outs` are by such an argument's name; `others` is for all that are like none of the class.
    """

    def decorated(kind: Kind) -> Kind:
        made = kind.__init__  # type: ignore[misc]
        names = [*inspect.signature(made).parameters][1:]
        has = f" It has {', '.join(f'{name}=' for name in names if name != '_')}"

        @functools.wraps(made)
        def init(self: object, *arguments: object, **named: object) -> None:
            for name in named:
                if name not in names:
                    way_out = (way_outs or {}).get(name)
                    hint = f": {way_out}" if way_out else f".{did_you_mean(name, names) + others or has}"
                    raise TypeError(f"{type(self).__name__} has no argument {name}={hint}")
            made(self, *arguments, **named)

        kind.__init__ = init  # type: ignore[misc]
        return kind

    return decorated


def _key(name: str) -> str:
    return re.sub(r"[:.\\]", "/", name.strip("/"))


def _leaf(key: str) -> str:
    return key.rpartition("/")[2]
