"""Hints: what comes of an argument that was left out, or of data that look like something else; each is logged once."""

from __future__ import annotations

import logging

DEFAULTS, SAMPLES, WORKERS = "h5stream.defaults", "h5stream.samples", "h5stream.workers"
"""The loggers: of arguments that were left out, of what samples seem to be, and of processes that are waited for."""

_logged: set[str] = set()


def hint(text: str, logger: str = DEFAULTS) -> None:
    """Log a hint, once per process; nothing for an empty text."""
    if text and text not in _logged:
        _logged.add(text)
        logging.getLogger(logger).warning("%s", text)
