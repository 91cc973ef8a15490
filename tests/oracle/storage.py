"""How a dataset lies in a file, drawn: layout, chunks, filters, types, fill values, and what was never written."""

import random
from typing import Any

import numpy as np

from .writing import is_raw

PLAIN = ["u1", "<i2", "<i4", "<i8", "<f4", "<f8"]
NUMBERS = [*PLAIN, ">i4", ">f8", "<f2", ">u2", "?", "<c8", "<u4"]
COMPOUND = {"members": [["a", "<i2"], ["b", "<f4"], ["c", "<f4"]]}
APART = {"members": [["b", "<f4"], ["a", "<i2"], ["c", "<f4"]]}
NESTED = {
    "members": [["a", ">i2"], ["b", {"array": "<f4", "shape": [2]}], ["c", {"members": [["d", "S3"], ["e", "<u4"]]}]],
    "gap": 3,
}
OFFSET = [{"bits": "<u2", "precision": 11, "offset": 2}, {"bits": ">i4", "precision": 20, "offset": 7}]
"""Integers that take some bits of their bytes, and not the lowest."""
ARRAYS = [{"array": "<f4", "shape": [2, 3]}, {"array": ">i2", "shape": [3]}, {"array": "?", "shape": [2]}]
SMALL = [{"float": "bfloat16"}, {"float": "e4m3"}, {"float": "e5m2"}]
"""Floats that torch has types for, and NumPy has none."""
COMPLEX = [{"complex": "<f4"}, {"complex": "<f8"}]
DECLARED = [
    {"members": [["early", "<i4"], ["late", ">i2"]], "order": [1, 0]},
    {"members": [["i", "<f4"], ["r", "<f4"]], "order": [1, 0]},  # complex numbers, the imaginary part first
    {"members": [["a", "S3"], ["b", "<f4"], ["c", "<f4"]], "order": [2, 0, 1]},
]
"""Compounds whose members are declared in another order than they have in an element."""
VARYING = [
    {"members": [["b", "<f4"], ["a", {"vlen": "<f4"}], ["c", "<f4"]]},
    {"members": [["a", "str"], ["b", "<f4"], ["c", "<f4"]]},
    {"members": [["b", "<f4"], ["c", "<f4"], ["a", {"vlen": "<i4"}], ["d", "str"]]},
]
"""Compounds with members of variable length."""
UNREADABLE = [{"integer": 3}, {"time": 4}, {"members": [["x", SMALL[0]], ["y", {"integer": 3}]]}, {"unused": 2}]
"""Types that h5py has no word for."""
BESIDE = [{"members": [["b", "<f4"], ["a", one], ["c", "<f4"]]} for one in [*UNREADABLE, *SMALL, *COMPLEX, *ARRAYS]]
"""Compounds of numbers and a member that is rare."""
ODD = [{"unused": 2}, {"enum": "<i2"}, *OFFSET, *ARRAYS, COMPOUND, NESTED, "S5", "str", {"vlen": "<i4"}]
ODD += ["V8", "M8[s]", "g", "<c16", *SMALL, *COMPLEX, *DECLARED[:2], *VARYING[:2], {"field": 1}, {"field": 2}]
ODD += [{"array": SMALL[0], "shape": [2]}, {"array": COMPLEX[0], "shape": [2, 2]}, {"array": OFFSET[0], "shape": [3]}]
ODD += [{"vlen": {"vlen": "<i4"}}, *UNREADABLE[:2]]
SOLID = [*ARRAYS, *SMALL, *COMPLEX, *OFFSET, ODD[-5], ODD[-4], ODD[-3], {"enum": "<i2"}, COMPOUND, DECLARED[1]]
"""Types whose elements all have as many bytes, which any kind of samples may have."""
LIBVERS = [["earliest", "latest"], ["earliest", "v18"], ["v18", "latest"], ["v110", "latest"], ["latest", "latest"]]
FILTERS = [["gzip"], ["shuffle", "gzip"], ["shuffle", "gzip", "fletcher32"], ["fletcher32"], ["shuffle"]]
FILTERS += [["lzf"], ["shuffle", "lzf"], ["lz4"], ["zstd"], ["blosc"], ["bitshuffle"], ["szip"]]
FILTERS += [["scaleoffset"], ["nbit"]]


def is_number(kind: Any) -> bool:
    """Tell whether a type is one of NumPy's plain integers and floats."""
    return isinstance(kind, str) and kind not in ("str", "M8[ms]") and np.dtype(kind).kind in "iuf" and kind != "g"


def has_varying(kind: Any) -> bool:
    """Tell whether a type is of variable length, or has a member that is."""
    if isinstance(kind, dict):
        return "vlen" in kind or any(has_varying(one) for _, one in kind.get("members", ()))
    return bool(kind == "str")


def marks_of(kind: Any) -> set[str]:
    """Name what is rare in a type of elements, or in what it is made of."""
    if not isinstance(kind, dict):
        return set()
    found = {name for key, name in RARE.items() if key in kind}
    if "array" in kind or "vlen" in kind:
        inner = kind.get("array", kind.get("vlen"))
        found |= marks_of(inner) | ({"nested"} if isinstance(inner, dict) and {"array", "vlen"} & set(inner) else set())
    return found.union(*(marks_of(one) for _, one in kind.get("members", ())))


RARE = {
    "float": "small float", "complex": "native complex", "field": "bit field", "integer": "unreadable",
    "time": "unreadable", "unused": "unreadable", "array": "array", "order": "declared", "meanings": "enum",
}  # fmt: skip


def drawn_type(rng: random.Random, odd: float = 0.2) -> Any:
    """Draw a type of elements."""
    return rng.choice(ODD) if rng.random() < odd else rng.choice(NUMBERS if rng.random() < 0.5 else PLAIN)


def drawn_file(rng: random.Random, name: str) -> dict[str, Any]:
    """Draw a file without anything in it."""
    libver, userblock, track = rng.choice(LIBVERS), 512 if rng.random() < 0.1 else 0, rng.random() < 0.15
    return {"name": name, "libver": libver, "userblock": userblock, "track": track, "nodes": []}


def drawn_group(rng: random.Random, path: str) -> dict[str, Any]:
    """Draw a group: how its links lie."""
    node: dict[str, Any] = {"path": path}
    if rng.random() < 0.3:
        node["beside"] = 12  # more links than fit into a group's header
    if rng.random() < 0.2:
        node["track"] = True
    return node


def stored(rng: random.Random, shape: list[int], kind: Any, seed: int, libver: Any = None) -> dict[str, Any]:
    """Draw how a dataset of a shape and a type lies."""
    plain, varies, raw = is_number(kind), has_varying(kind), is_raw(kind)
    node: dict[str, Any] = {"shape": shape, "type": kind, "seed": seed}
    layout = rng.choices(["contiguous", "chunked", "compact", "virtual", "external"], [6, 12, 3, 0.5, 0.3])[0]
    is_array = isinstance(kind, dict) and kind.get("array") in PLAIN
    fits = (plain or is_array) and np.prod(shape) and libver != ["earliest", "v18"]
    if is_array and fits and layout == "contiguous" and rng.random() < 0.3:
        layout = "virtual"
    if layout in ("virtual", "external") and not fits:
        layout = "chunked"
    if layout == "external" and is_array:
        layout = "contiguous"
    if layout == "compact" and np.prod(shape) > (4000 if plain else 300):  # 64 KiB at most
        layout = "contiguous"
    if not shape or (0 in shape and rng.random() < 0.5):
        return {**node, "layout": rng.choice(["contiguous", "compact"])}
    if plain and rng.random() < 0.3:
        node["fill"] = rng.choice([7, 1])
    if layout != "chunked":
        node["layout"] = layout
        node["written"] = 0 if rng.random() < 0.08 and layout in ("contiguous", "compact") and not varies else 1
        return node
    node["chunks"] = drawn_chunks(rng, shape)
    if rng.random() < 0.6:
        names = rng.choice(FILTERS)
        fits = plain or names[-1] in ("gzip", "shuffle", "fletcher32", "lzf", "zstd")
        if names == ["szip"] and np.prod(node["chunks"]) < 8:
            fits = False
        if names == ["scaleoffset"] and kind == "<f2":
            fits = False
        if varies:  # libhdf5 writes no array of these through szip, scaleoffset or nbit
            fits = names[-1] in ("gzip", "lzf", "lz4", "zstd", "bitshuffle")  # blosc ends the process
        if is_array and rng.random() < 0.3:
            names, fits = ["nbit"], True
        node["filters"] = names if fits else ["gzip"]
    limits = rng.choice(["none", "none", "first", "other", "all", "several"])
    along = zip(drawn_limits(rng, shape, limits), node["chunks"], strict=True)
    node["maxshape"] = [None if most is None else max(most, chunk) for most, chunk in along]
    if not varies and rng.random() < 0.2:
        node |= {"alloc": rng.choice(["EARLY", "INCR", "LATE"]), "fill_time": rng.choice(["ALLOC", "IFSET", "NEVER"])}
    if raw:
        return {**node, "written": rng.choice([1, 1, 1, 0])}
    if plain and rng.random() < 0.2:  # what may grow was of another shape when it was made
        grown = zip(shape, node["maxshape"], strict=True)
        node["first"] = [n if most == n else rng.randint(1, most or 2 * n + 1) for n, most in grown]
    node["written"] = rng.choices([1, 0.5, 0], [8, 2 if plain else 0.5, 0.7])[0]
    raw = node.get("filters", []) and not {"scaleoffset", "nbit", "fletcher32"} & set(node["filters"])
    if plain and raw and rng.random() < 0.15:
        node["masked"] = True
    return node


def drawn_chunks(rng: random.Random, shape: list[int]) -> list[int]:
    """Draw the shape of chunks: rows alone, some of each axis, everything, or more than there is."""
    how = rng.choice(["row", "rows", "any", "any", "whole", "more"])
    if how in ("row", "rows"):
        return [1 if how == "row" else rng.randint(1, max(1, shape[0])), *(max(1, n) for n in shape[1:])]
    if how == "any":
        return [rng.randint(1, max(1, n)) for n in shape]
    return [max(1, n) + (rng.randint(0, 4) if how == "more" else 0) for n in shape]


def drawn_limits(rng: random.Random, shape: list[int], limits: str) -> list[int | None]:
    """Draw a maxshape."""
    if limits == "all":
        return [None] * len(shape)
    found: list[int | None] = [max(1, n) if rng.random() < 0.7 else n + rng.randint(1, 5) for n in shape]
    if limits == "several":
        return [None if rng.random() < 0.6 else n for n in found]
    if limits == "first":
        found[0] = None
    elif limits == "other":
        found[rng.randrange(len(shape))] = None
    return found
