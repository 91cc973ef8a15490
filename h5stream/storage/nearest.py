"""What may have been meant by a name that a file does not have: pure, names in and names out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_NAMED = 3
"""Names that one suggestion holds at most."""

_ALIKE, _PATHS_ALIKE = 0.5, 0.65
"""`difflib`'s ratio from which a name counts as a misspelling of its neighbour, and a whole path of another."""

_MOST_COMPARED = 20_000
"""Names that are compared letter by letter; beyond, only whole parts of them are."""

_SEPARATORS = str.maketrans(":.\\", "///")


def nearest_names(name: str, there: Iterable[str]) -> list[str]:
    """Find the names that were most likely meant by `name`, the best first; few or none.

    What differs in the separator (``obs/label`` for the member ``obs:label``) or in case only is sure; then come names
    that end alike; then those that are spelled alike.
    """
    asked, names = _key(name), list(there)
    keys = {known: _key(known) for known in names}
    for same in (
        [n for n in names if keys[n] == asked],
        [n for n in names if keys[n].casefold() == asked.casefold()],
        _ending_like(asked, keys),
        _ending_like(asked.casefold(), {n: key.casefold() for n, key in keys.items()}),
    ):
        if same:
            return same[:MOST_NAMED]
    return [] if len(names) > _MOST_COMPARED else _spelled_alike(asked.casefold(), keys)


def _spelled_alike(asked: str, keys: dict[str, str]) -> list[str]:
    """Compare with what lies in the same group or compound by the last name alone: all else is equal anyway."""
    above, _, leaf = asked.rpartition("/")
    beside: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    for name, key in keys.items():
        others, _, last = key.casefold().rpartition("/")
        if others == above:
            beside.setdefault(last, name)
        else:
            elsewhere.setdefault(key.casefold(), name)
    for written, known, cutoff in ((leaf, beside, _ALIKE), (asked, elsewhere, _PATHS_ALIKE)):
        if near := difflib.get_close_matches(written, known, n=1, cutoff=cutoff):
            return [known[near[0]]]
    return []


def did_you_mean(name: str, there: Iterable[str]) -> str:
    """Ask for the nearest names in a sentence, beginning with a space; empty where none is near."""
    near = [repr(known) for known in nearest_names(name, there)]
    if not near:
        return ""
    return f" Did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?"


def _key(name: str) -> str:
    return name.strip("/").translate(_SEPARATORS)


def _ending_like(asked: str, keys: dict[str, str]) -> list[str]:
    leaf = asked.rsplit("/", 1)[-1]
    return [name for name, key in keys.items() if key.rsplit("/", 1)[-1] == leaf]
