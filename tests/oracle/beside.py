"""A loader of the same process that asks otherwise for the same fields while a case is read; loaders share rows."""

from __future__ import annotations

import collections
import contextlib
import copy
import random
import warnings
from collections.abc import Iterator
from typing import Any

from h5stream import H5Dataset, H5StreamLoader

from .calls import call, is_call
from .reading import Reading


def drawn(rng: random.Random, case: dict[str, Any]) -> None:
    """Draw whether there is one, and how its fields differ."""
    if rng.random() < 0.25:
        case["beside"] = rng.randrange(1000)
        case["marks"] = sorted({*case["marks"], "a loader beside"})


def altered(tree: Any, rng: random.Random, *, is_of_genes: bool) -> Any:
    """Return a field without one of its options, with fewer columns, or in another form."""
    options = dict(tree["options"]) if is_call(tree, "Field") else {}
    changes = [options | {"ragged": "packed"}] if options.get("ragged") == "dense" else []
    if is_of_genes:
        changes += 2 * [options | {"columns": ["GENE1"]}]
    for name in options:
        changes.append({key: value for key, value in options.items() if key != name})
    columns = options.get("columns")
    if isinstance(columns, list) and len(columns) > 1:
        changes.append(options | {"columns": columns[: len(columns) // 2]})
    name = tree["args"][0] if is_call(tree, "Field") else tree
    return call("Field", name, **rng.choice(changes)) if changes else tree


@contextlib.contextmanager
def loader_beside(reading: Reading) -> Iterator[None]:
    """Keep such a loader, which has read its epoch; whatever it asks for may be refused."""
    with contextlib.ExitStack() as opened:
        if "beside" in reading.case:
            rng, other = random.Random(reading.case["beside"]), copy.copy(reading)
            is_of_genes = any(node["path"].endswith("var/_index") for node in reading.case["files"][0]["nodes"])
            other.trees = {
                name: altered(tree, rng, is_of_genes=is_of_genes and name == "X")
                for name, tree in reading.trees.items()
            }
            with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
                loader = opened.enter_context(H5StreamLoader(H5Dataset(other.source, **other.asked), 64, num_workers=0))
                collections.deque(loader, maxlen=0)
        yield
