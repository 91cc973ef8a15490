"""Loaders that were given no budget share one: what an idle one holds goes back before another takes more.

Only memory is shared, never the size of a window: that is part of the order, which must not depend on what else is
open. So loaders that take turns, as training and validation do, hold one default budget together; those that run
at the same time hold what each of them needs.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

from h5stream.dropped import Living


class Member(Protocol):
    """A loader, as far as sharing goes."""

    @property
    def is_idle(self) -> bool:
        """Whether no epoch is under way."""

    @property
    def held_nbytes(self) -> int:
        """Bytes of the slots that it has."""

    def trim(self) -> None:
        """Let go of the slots that nobody looks at."""


class SharedBudget:
    """The members, and how room is made among them.

    # Guarantees: any thread may call; `_lock` is made anew in a forked child.
    """

    def __init__(self) -> None:
        self._members: Living[Member] = Living()
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def joined(self, member: Member) -> SharedBudget:
        """Take a member in, for as long as it lives."""
        with self._lock:
            self._members.add(member)
        return self

    def make_room(self, member: Member, needed_nbytes: int, budget: int) -> None:
        """Let idle members' slots go, the largest holder first, until a member's needs fit the budget."""
        with self._lock:
            others = [other for other in self._members if other is not member]
        held = {other: other.held_nbytes for other in others}
        for other in sorted((o for o in others if o.is_idle), key=lambda o: -held[o]):
            if sum(held.values()) + needed_nbytes <= budget:
                return
            other.trim()
            held[other] = 0


DEFAULT = SharedBudget()
"""Of all loaders of this process that were given no budget."""
