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
    asked, keys = _key(name), {known: _key(known) for known in there}
    for part in (str, _leaf):
        for case in (str, str.casefold):
            if same := [known for known, key in keys.items() if case(part(key)) == case(part(asked))]:
                return same[:MOST_NAMED]
    if len(keys) > _MOST_COMPARED:
        return []
    # What lies in the same group or compound is compared by its last name alone: all else is equal anyway.
    folded = asked.casefold()
    beside: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    for known, key in ((known, key.casefold()) for known, key in keys.items()):
        is_beside = key.rpartition("/")[0] == folded.rpartition("/")[0]
        (beside if is_beside else elsewhere).setdefault(_leaf(key) if is_beside else key, known)
    for written, spelled, cutoff in ((_leaf(folded), beside, _ALIKE), (folded, elsewhere, _PATHS_ALIKE)):
        if near := difflib.get_close_matches(written, spelled, n=1, cutoff=cutoff):
            return [spelled[near[0]]]
    return []


def did_you_mean(name: str, there: Iterable[str]) -> str:
    """Ask for the nearest names in a sentence, beginning with a space; empty where none is near."""
    near = [repr(known) for known in nearest_names(name, there)]
    if not near:
        return ""
    return f" Did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?"


def _key(name: str) -> str:
    return name.strip("/").translate(_SEPARATORS)


def _leaf(key: str) -> str:
    return key.rpartition("/")[2]
