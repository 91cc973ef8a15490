"""`h5stream doctor`: a checklist of the machine and, if given, of a file on it."""

from __future__ import annotations


def doctor_command() -> None:
    """Check."""
