"""Track dropped objects without Python callbacks, in which a Ctrl-C would be printed and lost.

`weakref.WeakSet` and `weakref.finalize` call Python functions. Here the interpreter appends to a deque, and a later
call does the rest.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Lent(Generic[_T]):
    """Values that are each lent with an object, and returned once that object is dropped.

    # Guarantees: any thread may call; each step is one atomic operation on a dict or a deque, and needs no lock.
    """

    def __init__(self) -> None:
        self._refs: dict[int, tuple[weakref.ref[Any], _T]] = {}
        self._dropped: collections.deque[object] = collections.deque()

    def lend(self, value: _T, until_dropped: object) -> None:
        """Lend a value until an object is dropped."""
        ref = weakref.ref(until_dropped, self._dropped.append)
        self._refs[id(ref)] = ref, value

    def returned(self) -> list[_T]:
        """Return the values whose objects were dropped since the last call."""
        values: list[_T] = []
        if not self._dropped:
            return values
        with contextlib.suppress(IndexError):  # the deque is empty; another thread may have taken the last
            while True:
                _, value = self._refs.pop(id(self._dropped.popleft()))
                values.append(value)
        return values


class Living(Lent[None], Generic[_T]):
    """A set of objects that keeps none of them alive.

    # Guarantees: those of `Lent`.
    """

    def add(self, item: _T) -> None:
        """Add an object."""
        self.lend(None, item)
        self.returned()

    def __iter__(self) -> Iterator[_T]:
        living: list[_T] = []
        for ref, _ in tuple(self._refs.values()):
            if (item := ref()) is not None:
                living.append(item)
        return iter(living)
