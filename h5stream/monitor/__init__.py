"""What the machine does while training runs: `SystemMonitor`, its samples, and where they can be sent."""

from __future__ import annotations

from h5stream.monitor.export import CsvLog, JsonlLog, TensorBoardLog, open_log, read_log
from h5stream.monitor.sample import GpuSample, HostSample, ProcessSample, SystemSample, format_line
from h5stream.monitor.summary import GpuSummary, Spread, SystemSummary, summarize
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
