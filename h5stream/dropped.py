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


class _Holding(weakref.ref[Any]):
    __slots__ = ("value",)
    value: Any


class Lent(Generic[_T]):
    """Values that are lent out, each with an object, and come back once that is dropped.

    # Guarantees: any thread may call; each step is one operation on a dict or a list, and needs no lock.
    """

    def __init__(self) -> None:
        self._refs: dict[int, _Holding] = {}
        self._dropped: collections.deque[Any] = collections.deque()

    def lend(self, value: _T, until_dropped: Any) -> None:
        """Lend a value until an object is dropped."""
        ref = _Holding(until_dropped, self._dropped.append)
        ref.value = value
        self._refs[id(ref)] = ref

    def returned(self) -> list[_T]:
        """Return the values that came back since the last call."""
        values = []
        with contextlib.suppress(IndexError):  # all are taken, by another thread perhaps
            while True:
                ref = self._dropped.popleft()
                del self._refs[id(ref)]
                values.append(ref.value)
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
        return iter([one for ref in tuple(self._refs.values()) if (one := ref()) is not None])
