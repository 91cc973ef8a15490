"""What a user writes in Python, read from text on the command line: literals and the package's own words alone."""

from __future__ import annotations

import ast
from typing import Any

import torch

from h5stream.errors import OptionError
from h5stream.samples.boxes import Boxes
from h5stream.samples.columns import Padding, SampleNumber, Values
from h5stream.samples.objects import Objects
from h5stream.samples.rows import Rows
from h5stream.samples.segments import Bounds, Ends, Ids, Lengths
from h5stream.samples.sequences import Sequences
from h5stream.samples.stretches import Between, Crop
from h5stream.samples.table import Table
from h5stream.storage.extents import SampleKind
from h5stream.storage.fields import Field

_SAID = (Ends, Bounds, Lengths, Ids)
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Sequences, Rows, Objects, Table, Boxes, *_SAID)}
"""What ``--samples`` is made of."""

FIELDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Field, Bounds, Lengths, Between, Crop, Values, SampleNumber, Padding, slice, range)
}
"""What ``--fields`` is made of, beside names."""


def samples_from_text(text: str) -> SampleKind:
    """Read what a sample is from text as Python has it, of literals alone.

    Examples
    --------
    >>> samples_from_text("Sequences(16, of=Ends('terminals'))").length
    16
    """
    made = _read(text, KINDS, "--samples", "\"Sequences(16, of='data/*')\"")
    if not isinstance(made, SampleKind):
        raise OptionError(f"--samples takes one of {', '.join(KINDS)}, not {text!r}")
    return made


def fields_from_text(text: str) -> Any:
    r"""Read what ``fields=`` takes from text as Python has it, of literals and fields alone.

    Examples
    --------
    >>> fields_from_text("{'x': Field('hits', rows=Bounds('index')), 'y': 'label'}")["x"].rows
    Bounds(name='index')
    """
    made = _read(text, FIELDS, "--fields", "\"{'x': Field('hits', rows=Bounds('index')), 'y': 'label'}\"")
    return list(made) if isinstance(made, tuple) else made


def _read(text: str, known: dict[str, Any], option: str, example: str) -> Any:
    try:
        return _made(ast.parse(text.strip(), mode="eval").body, known)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise OptionError(
            f"{option} takes what {option[2:]}= does, such as {example}, and {text!r} is not that: {error}"
        ) from None


def _made(node: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id not in known:
            raise ValueError(f"{node.func.id} is none of {', '.join(known)}")
        named = {str(keyword.arg): _made(keyword.value, known) for keyword in node.keywords}
        return known[node.func.id](*(_made(arg, known) for arg in node.args), **named)
    if isinstance(node, ast.Dict):
        if None in node.keys:
            raise ValueError("** is not read here")
        pairs = zip(node.keys, node.values, strict=True)
        return {_made(key, known): _made(value, known) for key, value in pairs if key is not None}
    if isinstance(node, ast.List | ast.Tuple):
        every = [_made(one, known) for one in node.elts]
        return every if isinstance(node, ast.List) else tuple(every)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        if isinstance(dtype := getattr(torch, node.attr, None), torch.dtype):
            return dtype
        raise ValueError(f"torch.{node.attr} is no dtype")
    return ast.literal_eval(node)
