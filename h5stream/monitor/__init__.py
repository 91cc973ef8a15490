"""What the machine does while training runs: `SystemMonitor`, its samples, and where they can be sent."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h5stream.monitor.export import CsvLog, JsonlLog, TensorBoardLog, open_log, read_log
    from h5stream.monitor.sample import (
        GpuSample,
        GpuSummary,
        HostSample,
        ProcessSample,
        Spread,
        SystemSample,
        SystemSummary,
        format_line,
        summarize,
    )
    from h5stream.monitor.system import Sink, SystemMonitor

__all__ = [
    "CsvLog",
    "GpuSample",
    "GpuSummary",
    "HostSample",
    "JsonlLog",
    "ProcessSample",
    "Sink",
    "Spread",
    "SystemMonitor",
    "SystemSample",
    "SystemSummary",
    "TensorBoardLog",
    "format_line",
    "open_log",
    "read_log",
    "summarize",
]


if not TYPE_CHECKING:  # so that a type checker finds names that are not there

    def __getattr__(name: str) -> Any:
        """Return a public name from the first file that has it: psutil is imported by those who watch, not by a bar."""
        for file in ("sample", "export", "system") if name in __all__ else ():
            if hasattr(module := importlib.import_module(f"{__name__}.{file}"), name):
                return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
