"""Which generators of random numbers of their own the user's functions reach: no one seeds those for each sample.

Each worker has a copy of them, in the same state more often than not, so that workers draw the same numbers.
"""

from __future__ import annotations

import dis
import functools
import itertools
import random
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from h5stream.errors import OwnGeneratorWarning

_KINDS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_SEEDED = (random._inst, np.random.mtrand._rand, torch.default_generator)
_SEEDING = frozenset({"seed", "manual_seed", "set_random_seed", "bit_generator", "setstate", "set_state"})
_DEPTH = 4
_MOST_LOOKED_AT = 1000


def warn_of_own_generators(
    functions: Mapping[str, Callable[..., Any] | None], on_start: Any, whose: str, stacklevel: int
) -> None:
    """Warn where functions reach generators of their own, but for those that a worker's start reaches as well."""
    started = _own(on_start)
    for name, function in functions.items():
        if found := [where for key, where in _own(function).items() if key not in started]:
            warnings.warn(
                f"{name}= reaches {found[0]!r}, a generator of random numbers of its own, of which each process of "
                f"{whose} has a copy: they may draw the same numbers, and batches depend on how many there are. The "
                "generators of the modules random, numpy.random and torch are seeded for each sample: draw from "
                "these, or seed your own by them inside of the function, as by "
                "np.random.default_rng(np.random.randint(2**32)), or in albumentations "
                "pipeline.set_random_seed(np.random.randint(2**32))",
                OwnGeneratorWarning,
                stacklevel=stacklevel + 1,
            )


def _own(function: Any) -> dict[int, str]:
    """Return the generators that a function reaches, by their `id`, with where; none if it says that it seeds some."""
    found: dict[int, str] = {}
    seen: set[int] = set()
    waiting = [("", function, 0)]
    while waiting and len(seen) < _MOST_LOOKED_AT:
        name, value, depth = waiting.pop(0)
        if id(value) in seen or any(value is one for one in _SEEDED):
            continue
        seen.add(id(value))
        if isinstance(value, _KINDS):
            found[id(value)] = name or type(value).__name__
        elif depth < _DEPTH:
            codes = (code for one in _functions(value, depth) for code in _codes(one.__code__))
            if any(not _SEEDING.isdisjoint(code.co_names) for code in codes):
                return {}
            waiting += [(".".join(filter(None, (name, key))), one, depth + 1) for key, one in _inside(value)]
    return found


def _functions(value: Any, depth: int) -> Iterator[types.FunctionType]:
    """Return a function, or the methods of an object that is called as one."""
    if isinstance(value, types.FunctionType):
        yield value
    elif depth == 0:
        yield from (one for one in vars(type(value)).values() if isinstance(one, types.FunctionType))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Give code, and the code inside of it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Return what a value reaches, with its name: of a function its globals, defaults and closure."""
    if isinstance(value, functools.partial):
        yield from (("", one) for one in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.FunctionType):
        code = value.__code__
        steps = itertools.chain.from_iterable(map(dis.get_instructions, _codes(code)))
        names = (step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"))
        yield from ((name, value.__globals__.get(name)) for name in names)
        defaults = value.__defaults__ or ()
        yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
        yield from (value.__kwdefaults__ or {}).items()
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            if cell != types.CellType():  # it may be empty yet
                yield name, cell.cell_contents
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield from (("", getattr(value, one, None)) for one in ("__self__", "__func__"))
    elif not isinstance(value, (type, types.ModuleType)):
        yield from getattr(value, "__dict__", {}).items()
