"""How lists are passed: tuples, arrays, views and generators mean the same; sets have no order, and are refused."""

import random
from typing import Any

from .calls import call, is_call

NAMES = ["tuple", "array", "bytes", "objects", "keys", "generator", "set", "frozenset"]
FILES = ["tuple", "array", "objects", "generator", "set"]
NUMBERS = ["tuple", "array", "array"]


def worn(rng: random.Random, case: dict[str, Any]) -> dict[str, str]:
    """Draw how the lists of a case are passed, by what they list."""
    found = {}
    tree = case["samples"] or call("")
    of = tree["args"][0] if tree["call"] == "Objects" else tree["options"].get("of")
    if isinstance(of, list):
        found["of"] = rng.choice(NAMES)
    if len(case["source"]) > 1 and not found:
        found["source"] = rng.choice(FILES)
    if not {"set", "frozenset"} & {*found.values()}:
        found |= {"numbers": rng.choice(NUMBERS), "names": rng.choice(NAMES[:4])}
    return found


def has_set(case: dict[str, Any]) -> bool:
    """Tell whether something is passed that has no order."""
    return bool({"set", "frozenset"} & {*case.get("worn", {}).values()})


def dressed(tree: Any, how: dict[str, str]) -> Any:
    """Return a call of samples or of a field whose lists are passed as drawn."""
    if not is_call(tree) or not how:
        return tree
    args, options = list(tree["args"]), dict(tree["options"])
    if tree["call"] == "Objects":
        args[0] = _as(how.get("of"), args[0])
    elif "of" in options and tree["call"] in ("Rows", "Sequences", "Boxes"):
        options["of"] = _as(how.get("of"), options["of"])
    elif tree["call"] == "Table":
        options = {name: _as(_by_kind(one, how), one) for name, one in options.items()}
    elif tree["call"] == "Field":
        for name in ("rows", "names", "steps"):
            if name in options:
                options[name] = _as(_by_kind(options[name], how), options[name])
        if is_call(options.get("rows")) and options["rows"]["call"] in ("Bounds", "Lengths", "Between"):
            rows = options["rows"]
            options["rows"] = {**rows, "args": [_as(_by_kind(one, how), one) for one in rows["args"]]}
    return {**tree, "args": args, "options": options}


def _by_kind(values: Any, how: dict[str, str]) -> str | None:
    if not isinstance(values, list) or not values or isinstance(values[0], list):
        return None
    return how.get("names" if isinstance(values[0], str) else "numbers")


def _as(how: str | None, values: Any) -> Any:
    return call("as", how, values) if how and isinstance(values, list) else values
