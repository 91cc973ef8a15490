"""Sinks: samples into JSONL and CSV files and into TensorBoard."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from h5stream.errors import MissingExtraError, OptionError
from h5stream.monitor.figures import flatten
from h5stream.monitor.sample import GpuSample, HostSample, ProcessSample, SystemSample
from h5stream.monitor.system import Sink


def sample_to_json(sample: SystemSample) -> str:
    """Return a sample as one line of JSON, named as in the classes; what is not known is ``null``.

    Examples
    --------
    >>> sample_from_json(sample_to_json(SystemSample(time_s=1.5))) == SystemSample(time_s=1.5)
    True
    """
    return json.dumps(asdict(sample))


def sample_from_json(line: str) -> SystemSample:
    """Return the sample that `sample_to_json` made the line from."""
    facts: dict[str, Any] = json.loads(line)
    facts["gpus"] = tuple(
        GpuSample(**{**gpu, "throttle_reasons": _as_tuple(gpu["throttle_reasons"])}) for gpu in facts["gpus"]
    )
    facts["host"] = HostSample(**facts["host"])
    facts["process"] = ProcessSample(**facts["process"]) if facts["process"] else None
    return SystemSample(**facts)


def _as_tuple(reasons: list[str] | None) -> tuple[str, ...] | None:
    return None if reasons is None else tuple(reasons)


def read_log(path: str | Path) -> list[SystemSample]:
    """Read the samples of a file that `JsonlLog` wrote.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    list of SystemSample
        Oldest first.
    """
    with Path(path).open(encoding="utf-8") as lines:
        return [sample_from_json(line) for line in lines]


class _FileLog:
    """A text file that is opened with the first sample and complete after every one.

    An existing file is replaced.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None
        folder = self.path.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK) or self.path.is_dir():
            raise OptionError(f"cannot write {str(path)!r}: {str(folder)!r} must be a folder that takes files")

    def _opened(self) -> IO[str]:
        if self._file is None:
            # Kept open from sample to sample; `close` is its end.
            self._file = self.path.open("w", encoding="utf-8", newline="")
        return self._file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class JsonlLog(_FileLog):
    """A sink that writes one JSON object a line; `read_log` reads it back.

    Parameters
    ----------
    path : path
        The file; an existing one is replaced.

    Raises
    ------
    OptionError
        If there is no folder to write it to.
    """

    def write(self, sample: SystemSample) -> None:
        """Write one line.

        Parameters
        ----------
        sample : SystemSample
            What was measured.
        """
        out = self._opened()
        out.write(sample_to_json(sample) + "\n")
        out.flush()


class CsvLog(_FileLog):
    """A sink that writes a table with one row a sample; what is not known is an empty cell.

    The first sample decides about the columns.

    Parameters
    ----------
    path : path
        The file; an existing one is replaced.

    Raises
    ------
    OptionError
        If there is no folder to write it to.
    """

    _table: csv.DictWriter[str] | None = None

    def write(self, sample: SystemSample) -> None:
        """Write one row, and the heading before the first.

        Parameters
        ----------
        sample : SystemSample
            What was measured.
        """
        row = dict(flatten(sample))
        out = self._opened()
        if self._table is None:
            self._table = csv.DictWriter(out, list(row), extrasaction="ignore")
            self._table.writeheader()
        self._table.writerow(row)
        out.flush()


def open_log(path: str | Path) -> Sink:
    """Choose how samples are written to a file by its ending: ``.csv``, or ``.jsonl`` and ``.json`` for lines of JSON.

    Parameters
    ----------
    path : path
        The file; it is written anew when the first sample comes.

    Returns
    -------
    Sink
        A `CsvLog` or a `JsonlLog`.

    Raises
    ------
    OptionError
        If the ending is another, or there is no folder to write to.
    """
    kinds: dict[str, type[CsvLog | JsonlLog]] = {".csv": CsvLog, ".jsonl": JsonlLog, ".json": JsonlLog}
    kind = kinds.get(Path(path).suffix.lower())
    if kind is None:
        raise OptionError(f"log file {str(path)!r}: must end in one of {', '.join(kinds)}")
    return kind(path)


class TensorBoardLog:
    """A sink that writes every known figure as a scalar ``system/...``; needs the extra ``tensorboard``.

    Parameters
    ----------
    folder : path
        Where the event file goes, as for ``torch.utils.tensorboard.SummaryWriter``.
    prefix : str, default "system"
        Before the figures' names.

    Raises
    ------
    MissingExtraError
        If TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path, prefix: str = "system") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "TensorBoardLog needs tensorboard, which is absent: pip install 'h5stream[tensorboard]'"
            ) from error
        self._make_writer, self._folder, self._prefix = SummaryWriter, str(folder), prefix
        self._writer: Any = None
        self._step = 0

    def write(self, sample: SystemSample) -> None:
        """Write the figures that are known; steps count samples, and the time is the sample's.

        Parameters
        ----------
        sample : SystemSample
            What was measured.
        """
        if self._writer is None:
            self._writer = self._make_writer(self._folder)
        for name, value in flatten(sample):
            if isinstance(value, int | float) and name != "time_s":
                self._writer.add_scalar(f"{self._prefix}/{name}", value, self._step, sample.time_s)
        self._step += 1

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()
