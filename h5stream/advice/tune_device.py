"""Whether a window on a device was faster than the same window on the host: what `tune` asks last."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

LEAST_GAIN = 0.03
"""Share by which a device window must be faster, where runs of one setting differ by less: it takes GPU memory."""


def is_faster(ratios: Sequence[float], spread: float) -> bool:
    """Tell whether runs that took turns show a gain beyond what runs of one setting differ by.

    Parameters
    ----------
    ratios : sequence of float
        For each turn, the rate with the window on the device over that with it on the host.
    spread : float
        Share by which two runs of one setting differ.

    Examples
    --------
    >>> is_faster([1.2, 1.3, 1.25], 0.05), is_faster([1.2, 0.98, 1.25], 0.05), is_faster([1.2, 1.3, 1.25], 0.3)
    (True, False, False)
    """
    return bool(ratios) and min(ratios) > 1.0 and statistics.median(ratios) > 1.0 + max(LEAST_GAIN, spread)


def on_device_said(window_device: str, refused: str, ratios: Sequence[float]) -> str:
    """Say in one line how a window on the device did beside the same window on the host.

    Examples
    --------
    >>> on_device_said("cuda", "", [1.234, 1.1])
    "window_device='cuda' ran at 1.10 to 1.23 times the host window's rate"
    """
    if refused:
        return f"window_device={window_device!r} was not run: {refused}"
    return f"window_device={window_device!r} ran at {min(ratios):.2f} to {max(ratios):.2f} times the host window's rate"
