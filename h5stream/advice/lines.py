"""Lines of Python to copy: they run as they are printed, and no name in them is shortened."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence

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
    path: str,
    fields: Sequence[str],
    *,
    batch_size: int,
    memory_budget: int | None = None,
    allow_external: bool = False,
    rows_of: str = "",
    repeated: Sequence[str] = (),
) -> Lines:
    r"""Give the program that streams fields of a file in shuffled batches.

    `rows_of` is what `Rows` takes, as Python; without it a sample is a row of the file. `repeated` are fields that a
    group has once.

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
    options = [
        quoted(path),
        f"batch_size={batch_size}",
        "shuffle=True",
        *([f"memory_budget={memory_budget}"] if memory_budget is not None else []),
        *(["allow_external=True"] if allow_external else []),
        *([f"samples=Rows(of={rows_of})"] if rows_of else []),
    ]
    imported = [*(["Field"] if repeated else []), "H5StreamLoader", *(["Rows"] if rows_of else [])]
    return (
        f"from h5stream import {', '.join(imported)}",
        "",
        "loader = H5StreamLoader(",
        *(f"    {option}," for option in options),
        *_fields_lines([*map(quoted, fields), *(f"Field({quoted(name)}, repeat=True)" for name in repeated)]),
        ")",
        f"for {_batch_name([*fields, *repeated])} in loader:",
        "    ...  # your training step",
    )


def _fields_lines(names: Sequence[str]) -> list[str]:
    if len(names) == 1:
        return [f"    fields={names[0]},"]
    in_one = f"    fields=[{', '.join(names)}],"
    if len(in_one) <= WIDTH:
        return [in_one]
    return ["    fields=[", *(f"        {name}," for name in names), "    ],"]


def _batch_name(fields: Sequence[str]) -> str:
    """Name what a batch holds: each field by the end of its name, where those can be names and differ."""
    if not 1 < len(fields) <= MOST_UNPACKED:
        return "batch"
    names = [re.sub(r"\W", "_", re.split(r"[/:]", name)[-1], flags=re.ASCII) for name in fields]
    together = ", ".join(names)
    good = all(name.isidentifier() and not keyword.iskeyword(name) for name in names)
    fits = len(f"for {together} in loader:") <= WIDTH
    return together if good and fits and len(set(names) | {"loader"}) > len(names) else "batch"
