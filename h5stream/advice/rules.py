"""The checks on numbers that come from outside, with one message form for all of this room."""

from __future__ import annotations

from h5stream.errors import OptionError


def at_least(smallest: float, **values: float | None) -> None:
    """Raise `OptionError` where a named value is smaller than allowed; ``None`` (not given) passes.

    Examples
    --------
    >>> at_least(1, workers=8, rows=None)
    >>> at_least(1, batch_size=0)
    Traceback (most recent call last):
        ...
    h5stream.errors.OptionError: batch_size must be at least 1, not 0
    """
    for name, value in values.items():
        if value is not None and not value >= smallest:
            raise OptionError(f"{name} must be at least {smallest}, not {value}")


def above_zero(**values: float | None) -> None:
    """Raise `OptionError` where a named value is zero, negative or not a number; ``None`` passes.

    Examples
    --------
    >>> above_zero(lr=-0.1)
    Traceback (most recent call last):
        ...
    h5stream.errors.OptionError: lr must be above 0, not -0.1
    """
    for name, value in values.items():
        if value is not None and not value > 0:
            raise OptionError(f"{name} must be above 0, not {value}")
