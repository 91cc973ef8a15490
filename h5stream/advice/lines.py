"""Lines of Python to copy: they run as they are printed, and no name in them is shortened."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping, Sequence

Lines = tuple[str, ...]

WIDTH = 76
"""Characters of a line; a name that is longer than that stays whole on a line of its own."""

MOST_UNPACKED = 4
"""Fields that a loop gives names of their own."""


def quoted(text: str) -> str:
    r"""Write a text as Python does, in double quotes where that is the same.

    Examples
    --------
    >>> print(quoted("train.h5"), quoted('a "b".h5'))
    "train.h5" 'a "b".h5'
    """
    plain = text.isprintable() and '"' not in text and "\\" not in text
    return f'"{text}"' if plain else repr(text)


def loader_lines(
    path: str | Sequence[str],
    fields: Sequence[str] | Mapping[str, str],
    *,
    batch_size: int,
    memory_budget: int | None = None,
    allow_external: bool = False,
    samples: str = "",
    before: Lines = (),
) -> Lines:
    r"""Return the program that streams fields of a file in shuffled batches.

    `fields` are names, none for the loader's own choice, or by name what `fields=` takes, as Python; with `samples`,
    what that takes, a batch is a dict. `before` are lines with h5py that come before the loader.

    Examples
    --------
    >>> print("\n".join(loader_lines("a.h5", ["X", "obs:label"], batch_size=64)))
    from h5stream import H5StreamLoader
    <BLANKLINE>
    loader = H5StreamLoader(
        "a.h5",
        batch_size=64,
        shuffle=True,
        fields=["X", "obs:label"],
    )
    for X, label in loader:
        ...  # your training step
    """
    forms = fields if isinstance(fields, Mapping) else {name: quoted(name) for name in fields}
    options = [
        quoted(path) if isinstance(path, str) else f"[{', '.join(map(quoted, path))}]",
        f"batch_size={batch_size}",
        "shuffle=True",
        *([f"memory_budget={memory_budget}"] if memory_budget is not None else []),
        *(["allow_external=True"] if allow_external else []),
        *([f"samples={samples}"] if samples else []),
    ]
    text = fields_text(forms, as_dict=bool(samples) or any(name not in form for name, form in forms.items()))
    imported = sorted({"H5StreamLoader", *called(samples), *(name for form in forms.values() for name in called(form))})
    is_dict = text.startswith("{")
    return (
        *(("import h5py",) if before else ()),
        f"from h5stream import {', '.join(imported)}",
        "",
        *((*before, "") if before else ()),
        "loader = H5StreamLoader(",
        *(f"    {option}," for option in options),
        *(_fields_lines(text, [*_entries(forms, is_dict)]) if forms else ()),
        ")",
        f"for {'batch' if is_dict else _batch_name([*forms])} in loader:",
        "    ...  # your training step",
    )


def fields_text(forms: Mapping[str, str], *, as_dict: bool) -> str:
    """Write what ``fields=`` takes: one alone, a list, or a dict."""
    if len(forms) == 1:
        return next(iter(forms.values()))
    inside = ", ".join(_entries(forms, as_dict))
    return f"{{{inside}}}" if as_dict else f"[{inside}]"


def called(text: str) -> set[str]:
    """Return the names that a text in Python calls.

    Examples
    --------
    >>> sorted(called('Field("Objects(x)", rows=Bounds("i"))'))
    ['Bounds', 'Field']
    """
    calls = [node.func for node in ast.walk(ast.parse(text or "0", mode="eval")) if isinstance(node, ast.Call)]
    return {func.id for func in calls if isinstance(func, ast.Name)}


def _entries(forms: Mapping[str, str], as_dict: bool) -> list[str]:
    return [f"{quoted(key)}: {form}" if as_dict else form for key, form in forms.items()]


def _fields_lines(text: str, entries: Sequence[str]) -> list[str]:
    in_one = f"    fields={text},"
    if len(entries) == 1 or len(in_one) <= WIDTH:
        return [in_one]
    inside = (line for entry in entries for line in _folded(f"{entry},"))
    return [f"    fields={text[0]}", *(f"        {line}" for line in inside), f"    {text[-1]},"]


def _folded(entry: str) -> list[str]:
    """Write a field that is too long on several lines."""
    parts = re.fullmatch(r'(.*?Field\()("[^"\\]*"), (.*)(\),)', entry)
    if parts is None or len(entry) + 8 <= WIDTH:
        return [entry]
    start, name, rest, end = parts.groups()
    return [start, f"    {name},", f"    {rest},", end]


def _batch_name(fields: Sequence[str]) -> str:
    """Name what a batch holds: each field by the end of its name, where those can be names and differ."""
    if not 1 < len(fields) <= MOST_UNPACKED:
        return "batch"
    names = [re.sub(r"\W", "_", re.split(r"[/:]", name)[-1], flags=re.ASCII) for name in fields]
    together = ", ".join(names)
    good = all(name.isidentifier() and not keyword.iskeyword(name) for name in names)
    fits = len(f"for {together} in loader:") <= WIDTH
    return together if good and fits and len(set(names) | {"loader"}) > len(names) else "batch"
