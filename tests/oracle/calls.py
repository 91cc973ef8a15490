"""What is passed to h5stream as plain data: a call is a dict, which becomes the object, or the text of a script."""

from __future__ import annotations

from typing import Any

import torch

import h5stream

Tree = Any


def call(name: str, *args: Tree, **options: Tree) -> dict[str, Tree]:
    """Describe ``name(*args, **options)``; "tuple" and "..." are what Python writes for them."""
    return {"call": name, "args": list(args), "options": options}


def is_call(tree: Tree, name: str | None = None) -> bool:
    """Tell whether a tree is a call, or one of a name."""
    return isinstance(tree, dict) and "call" in tree and name in (None, tree["call"])


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
    if name == "...":
        return ...
    if name == "slice":
        return slice(*args)
    if name.startswith("torch."):
        return getattr(torch, name.removeprefix("torch."))
    return getattr(h5stream, name)(*args, **built(tree["options"], folder))


def text(tree: Tree) -> str:
    """Write a tree as Python."""
    if isinstance(tree, list):
        return f"[{', '.join(map(text, tree))}]"
    if not isinstance(tree, dict):
        return repr(tree)
    if "call" not in tree:
        return "{" + ", ".join(f"{name!r}: {text(one)}" for name, one in tree.items()) + "}"
    name, args = tree["call"], [text(one) for one in tree["args"]]
    if name == "path":
        return f'f"{{folder}}/{tree["args"][0]}"'
    if name == "tuple":
        return f"({', '.join(args)},)"
    if name == "..." or name.startswith("torch."):
        return name
    return f"{name}({', '.join([*args, *(f'{key}={text(one)}' for key, one in tree['options'].items())])})"
