"""Cases run in a process of their own, which may crash, and is ended where it takes too long."""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
from typing import Any

CASE_S = 60
"""Seconds of processor time that a case may take: three ranks open 2,050 objects of unlike storage in 16."""

WAIT_S = 300
"""Seconds after which a process that uses no processor is taken for one that hangs."""


def _serve(pipe: Any) -> None:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    from .run import run

    while (case := pipe.recv()) is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CASE_S, resource.RLIM_INFINITY))
        pipe.send(run(case))


class Worker:
    """A process that runs one case after the other; a new one takes the place of one that is gone."""

    def __init__(self) -> None:
        self._process: Any = None

    def run(self, case: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a case; one that ends its process, or does not end, is "raw" too."""
        if self._process is None or not self._process.is_alive():
            self._start()
        try:
            self._pipe.send(case)
            if self._pipe.poll(WAIT_S):
                found: list[dict[str, Any]] = self._pipe.recv()
                return found
            said = f"nothing came for {WAIT_S} s"
        except (EOFError, OSError):
            self._process.join()
            said = f"the process ended with {self._process.exitcode}: a signal, or {CASE_S} s of processor time"
        self.close()
        return [{"form": case["forms"][0]["form"], "status": "raw", "said": said}]

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
