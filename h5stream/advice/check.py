"""A line of a checklist."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "warn", "fail"]
_ORDER: tuple[Status, ...] = ("pass", "warn", "fail")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status  # ``warn`` costs speed, ``fail`` stops something from working
    found: str
    fix: str = ""  # what to do about it; empty if there is nothing to do


def passed(name: str, found: str) -> Check:
    """Return a check that found nothing to complain about."""
    return Check(name=name, status="pass", found=found)


def warned(name: str, found: str, fix: str) -> Check:
    """Return a check that found something slow."""
    return Check(name=name, status="warn", found=found, fix=fix)


def failed(name: str, found: str, fix: str) -> Check:
    """Return a check that found something broken."""
    return Check(name=name, status="fail", found=found, fix=fix)


def worst(checks: Iterable[Check]) -> Status:
    """Return the worst status; ``pass`` without any checks.

    Examples
    --------
    >>> worst([passed("a", ""), warned("b", "", ""), passed("c", "")])
    'warn'
    """
    return max((check.status for check in checks), key=_ORDER.index, default="pass")
