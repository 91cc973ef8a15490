"""Knowing what was dropped without Python code that runs then: a Ctrl-C that came in it would be printed, and lost.

`weakref.WeakSet` and `weakref.finalize` call Python functions. Here the interpreter appends to a list, and a later call
does the rest.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Lent(Generic[_T]):
    """Values that are lent out, each with an object, and come back once that is dropped.

    # Guarantees: any thread may call; each step is one operation on a dict or a list, and needs no lock.
    """

    def __init__(self) -> None:
        self._refs: dict[int, tuple[weakref.ref[Any], _T]] = {}
        self._dropped: collections.deque[Any] = collections.deque()

    def lend(self, value: _T, until_dropped: Any) -> None:
        """Lend a value until an object is dropped."""
        ref = weakref.ref(until_dropped, self._dropped.append)
        self._refs[id(ref)] = ref, value

    def returned(self) -> list[_T]:
        """Return the values that came back since the last call."""
        values: list[_T] = []
        if not self._dropped:
            return values
        with contextlib.suppress(IndexError):  # all are taken, by another thread perhaps
            while True:
                _, value = self._refs.pop(id(self._dropped.popleft()))
                values.append(value)
        return values


class Living(Lent[None], Generic[_T]):
    """Objects, for as long as others keep them.

    # Guarantees: as of `Lent`.
    """

    def add(self, one: _T) -> None:
        """Take one in."""
        self.lend(None, one)
        self.returned()

    def __iter__(self) -> Iterator[_T]:
        return iter([one for ref, _ in tuple(self._refs.values()) if (one := ref()) is not None])
