"""What is passed to h5stream as plain data: a call is a dict, which becomes the object, or the text of a script."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch

import h5stream

Tree = Any

MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "array": np.array,
    "bytes": lambda values: np.array([value.encode() for value in values]),
    "objects": lambda values: np.array(values, dtype=object),
    "keys": lambda values: dict.fromkeys(values).keys(),
    "generator": lambda values: (value for value in values),
    "set": set,
    "frozenset": frozenset,
}
"""What a list may be passed as."""

WRITTEN = {name: name for name in MAKERS} | {"array": "np.array", "bytes": "np.bytes_", "objects": "np.array"}
WRITTEN |= {"keys": "dict.fromkeys", "generator": "iter"}
"""How that is written, more or less, in a script."""


class Spread:
    """A function that looks up: rows as far apart as may be, of each sample its own in any epoch."""

    def __init__(self, rows: int, step: int) -> None:
        self.rows, self.step = rows, step

    def __call__(self, samples: Any, epoch: int = 0, seed: int = 0) -> Any:
        return samples * self.step % self.rows


def call(name: str, *args: Tree, **options: Tree) -> dict[str, Tree]:
    """Describe ``name(*args, **options)``; "tuple" and "..." are what Python writes for them."""
    return {"call": name, "args": list(args), "options": options}


def is_call(tree: Tree, name: str | None = None) -> bool:
    """Tell whether a tree is a call, or one of a name."""
    return isinstance(tree, dict) and "call" in tree and name in (None, tree["call"])


def in_words(tree: dict[str, Tree]) -> dict[str, Tree]:
    """Return a call of Field with its options as h5stream takes them; cases name each on its own."""
    options = dict(tree["options"])
    if tree["call"] != "Field":
        return tree
    took = {name: options.pop(name) for name in ("axis", "scale", "pad", "at") if name in options}
    steps = [options.pop("steps")] if "steps" in options else []
    ragged = {name: options.pop(name) for name in ("crop", "pad_value") if name in options}
    if "max_length" in options:
        ragged["crop"] = call("Crop", options.pop("max_length"), at="start")
    scaled = {name: options.pop(name) for name in ("mean", "std", "factor", "nan") if name in options}
    if took or steps:
        options["take"] = call("Take", *steps, **took) if took else steps[0]
    if options.pop("repeat", False):
        options["take"] = "all"
    if "members" in options:
        options["columns"] = options.pop("members")
    for name in ("rows", "names"):
        if name in options:
            options["lookup"] = options.pop(name)
    if ragged:
        options["ragged"] = call("Ragged", *([options["ragged"]] if "ragged" in options else []), **ragged)
    if scaled:
        options["normalize"] = scaled
    return {**tree, "options": options}


def built(tree: Tree, folder: str = "") -> Any:
    """Make the objects that a tree describes; a call of "path" is a file in the folder."""
    if isinstance(tree, list):
        return [built(one, folder) for one in tree]
    if not isinstance(tree, dict):
        return tree
    if "call" not in tree:
        return {name: built(one, folder) for name, one in tree.items()}
    name, args = tree["call"], built(tree["args"], folder)
    if name == "path":
        return f"{folder}/{args[0]}"
    if name == "tuple":
        return tuple(args)
    if name == "as":
        return MAKERS[args[0]](args[1])
    if name == "...":
        return ...
    if name == "slice":
        return slice(*args)
    if name == "Fraction":
        return Fraction(*args)
    if name == "Spread":
        return Spread(*args)
    if name.startswith("torch."):
        return getattr(torch, name.removeprefix("torch."))
    return getattr(h5stream, name)(*args, **built(in_words(tree)["options"], folder))


def text(tree: Tree) -> str:
    """Write a tree as Python."""
    if isinstance(tree, list):
        return f"[{', '.join(map(text, tree))}]"
    if not isinstance(tree, dict):
        return repr(tree)
    if "call" not in tree:
        return "{" + ", ".join(f"{name!r}: {text(one)}" for name, one in tree.items()) + "}"
    tree = in_words(tree)
    name, args = tree["call"], [text(one) for one in tree["args"]]
    if name == "path":
        return f'f"{{folder}}/{tree["args"][0]}"'
    if name == "tuple":
        return f"({', '.join(args)},)"
    if name == "as":
        return f"{WRITTEN[tree['args'][0]]}({args[1]})"
    if name == "Spread":
        return f"lambda samples, epoch, seed: samples * {args[1]} % {args[0]}"
    if name == "..." or name.startswith("torch."):
        return name
    return f"{name}({', '.join([*args, *(f'{key}={text(one)}' for key, one in tree['options'].items())])})"
