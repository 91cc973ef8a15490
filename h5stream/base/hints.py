"""Hints about omitted arguments and about data that look like another kind; each is logged once per process."""

from __future__ import annotations

import logging

DEFAULTS, SAMPLES, WORKERS = "h5stream.defaults", "h5stream.samples", "h5stream.workers"
"""Loggers for omitted arguments, for the kind that samples seem to have, and for slow worker processes."""

_logged: set[str] = set()


def hint(text: str, logger: str = DEFAULTS) -> None:
    """Log a hint, once per process; nothing for an empty text."""
    if text and text not in _logged:
        _logged.add(text)
        logging.getLogger(logger).warning("%s", text)
