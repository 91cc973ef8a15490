"""Hints about omitted arguments and about data that look like another kind; each is logged once per process."""

from __future__ import annotations

import inspect
import logging
import os
import warnings

DEFAULTS, SAMPLES, WORKERS = "h5stream.defaults", "h5stream.samples", "h5stream.workers"
"""Loggers for omitted arguments, for the kind that samples seem to have, and for slow worker processes."""

_logged: set[str] = set()


def hint(text: str, logger: str = DEFAULTS) -> None:
    """Log a hint, once per process; nothing for an empty text."""
    if text and text not in _logged:
        _logged.add(text)
        logging.getLogger(logger).warning("%s", text)


_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside h5stream that led here, so that the user's own line is shown."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
