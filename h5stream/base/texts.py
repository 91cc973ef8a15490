"""Bytes, whole numbers, counts, shapes and names as people write and read them, also in notebooks."""

from __future__ import annotations

import difflib
import operator
import re
import reprlib
from collections.abc import Iterable, KeysView, Reversible, Sequence, Set
from typing import Any

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
"""What each extra brings, as pip calls it; h5stream itself is not on PyPI."""


def missing_extra(needs: str, extra: str) -> MissingExtraError:
    """Return the error for a package that is not installed, with what installs it."""
    return MissingExtraError(
        f"{needs}, which is not installed: python -m pip install {_BROUGHT[extra]}, or, in a clone of h5stream, "
        f"python -m pip install -c constraints.txt '.[{extra}]'"
    )


def as_bytes(value: int | str, *, name: str) -> int:
    """Return the bytes that a number or a text such as ``"4GiB"`` means; `name` is the option's, for errors."""
    refused = OptionError(f'{name} takes bytes, as a whole number or as a text such as "4GiB", not {value!r}')
    if isinstance(value, str):
        found = _TEXT.fullmatch(value)
        if found is None or found[2].lower() not in _BYTES_OF:
            raise refused
        number, scale = found[1].replace("_", ""), _BYTES_OF[found[2].lower()]
        # Whole numbers stay exact beyond what a float can hold.
        return int(number) * scale if number.isdigit() else int(float(number) * scale)
    if (nbytes := whole_number(value)) is None or nbytes < 0:
        raise refused
    return nbytes


NA = "n/a"
"""Stands for what is not known."""


def told(value: float | None, form: str) -> str:
    """Return a number in a form such as ``{:.1f} ms``; ``n/a`` where it is not known."""
    return NA if value is None else form.format(value)


def percent(ratio: float | None, digits: int = 1) -> str:
    """Return a ratio as a percentage, such as ``45.2%``; ``n/a`` where it is not known."""
    return NA if ratio is None else f"{ratio:.{digits}%}"


def text_of_bytes(nbytes: float | None, per: str = "") -> str:
    """Return bytes, or bytes a second with ``"/s"``, as people read them: three digits and a binary unit."""
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


def check_ordered(what: str, given: Any) -> None:
    """Refuse a set where several things are named: `what` takes them in an order, and each process has its own."""
    is_set = isinstance(given, Set) and not isinstance(given, (Reversible, KeysView))
    if is_set or isinstance(given, type(iter(set()))):
        shown = f"a set of {len(given)}, {reprlib.repr(given)}," if is_set else "an iterator over a set,"
        raise OptionError(
            f"{what} takes several in an order, and {shown} has no order: it differs between processes, such as ranks. "
            "Write sorted(...), or a list"
        )


def listed(what: str, given: Any) -> list[Any]:
    """Return several things that a user names as a list, in their order; those of an array are Python's objects."""
    check_ordered(what, given)
    if not hasattr(given, "__array__"):
        if not isinstance(given, Iterable):
            raise OptionError(f"{what} takes several in a list, not {given!r:.200}")
        return list(given)
    array = np.asarray(given)
    if array.ndim > 1:
        raise OptionError(f"{what} takes names in an array of one axis, not of shape {array.shape}: reshape(-1)")
    return list(array.reshape(-1).tolist())


def as_text(name: Any) -> Any:
    """Return a name that is bytes, as h5py and NumPy have some, as text; anything else as it is."""
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


def names_in(what: str, given: Any) -> tuple[Any, ...]:
    """Return several names in their order, those that are bytes as texts; see `listed`."""
    return tuple(map(as_text, listed(what, given)))


def whole_number(value: Any) -> int | None:
    """Return a whole number of whatever type, NumPy's as well; None for what is none, and for a bool."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


MOST_WHOLE = (1 << 63) - 1
"""The largest whole number that arrays of rows, and of other counts, can hold."""


def check_holds(what: str, number: int) -> None:
    """Refuse a whole number that arrays cannot hold, of either sign."""
    if abs(number) > MOST_WHOLE:
        raise OptionError(f"{what} takes whole numbers of at most 2**63 - 1, which arrays hold, not {number!r:.200}")


def checked_number(what: str, value: Any, least: int, rule: str, *, is_seed: bool = False) -> int:
    """Return a whole number that is not below the least; refuse all else: `what` takes `rule`. A seed has any size."""
    if (number := whole_number(value)) is None or number < least:
        raise OptionError(f"{what} takes {rule}, not {value!r:.200}")
    if not is_seed:
        check_holds(what, number)
    return number


def count_text(number: float) -> str:
    """Return a number as people read it: small ones with what follows the point."""
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}".removesuffix(".0") if number >= 1 else f"{number:.2g}"


def counted(count: int, thing: str, things: str = "") -> str:
    """Count things."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def shape_text(shape: Sequence[int]) -> str:
    """Write a shape, such as ``3 x 1,024``."""
    return " x ".join(f"{n:,}" for n in shape)


def names_text(names: Sequence[str]) -> str:
    """Name some datasets and count the others."""
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


class ShownAsText:
    """Shown as the last line of a notebook's cell as ``print`` shows it; ``repr`` stays what a dataclass gives."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


# --- names that may be meant by another one


_LEAST = 3
"""Letters that another name begins with, from which it may be meant: ``obs`` by ``observations``."""

_MOST_COMPARED = 20_000
"""Names that are compared letter by letter; beyond, only whole parts of them are."""


def nearest_names(name: str, there: Iterable[str]) -> list[str]:
    """Find the names that were most likely meant by `name`, the best first; few or none.

    What differs in the separator (``obs/label`` for the member ``obs:label``) or in case only is sure; then come names
    that end alike; then those that are spelled alike.
    """
    asked, keys = _key(name), {known: _key(known) for known in there}
    for part in (str, _leaf):
        for case in (str, str.casefold):
            if same := [known for known, key in keys.items() if case(part(key)) == case(part(asked))]:
                return same[:3]
    # What lies in the same group or compound is compared by its last name alone: all else is equal anyway.
    folded = {key.casefold(): known for known, key in keys.items()} if len(keys) <= _MOST_COMPARED else {}
    group, leaf = asked.casefold().rpartition("/")[::2]
    beside = {_leaf(key): known for key, known in folded.items() if key.rpartition("/")[0] == group}
    elsewhere = {key: known for key, known in folded.items() if key.rpartition("/")[0] != group}
    begin = [key for key in beside if key.startswith(leaf) or leaf.startswith(key)]
    if longest := max((key for key in begin if min(len(key), len(leaf)) >= _LEAST), key=len, default=""):
        return [beside[longest]]
    for written, spelled, cutoff in ((leaf, beside, 0.5), (asked.casefold(), elsewhere, 0.65)):
        if near := difflib.get_close_matches(written, spelled, n=1, cutoff=cutoff):
            return [spelled[near[0]]]
    return []


def did_you_mean(name: str, there: Iterable[str]) -> str:
    """Ask for the nearest names in a sentence, beginning with a space; empty where none is near."""
    near = " or ".join(map(repr, nearest_names(name, there)))
    return f" Did you mean {near}?" if near else ""


def _key(name: str) -> str:
    return re.sub(r"[:.\\]", "/", name.strip("/"))


def _leaf(key: str) -> str:
    return key.rpartition("/")[2]
