"""Cases run in a process of their own, which may crash, and is ended where it takes too long."""

import faulthandler
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from typing import Any

CASE_S = 60
"""Seconds of processor time that a case may take, and as much again for each thousand things in its files: a form that
opens 2,050 objects of unlike storage, of which h5py reads each for the model too, takes 16 to 35."""

WAIT = 5
"""So many times as long a process may take by the clock; one that uses no processor is taken for one that hangs."""


def seconds_of(case: dict[str, Any], case_s: int) -> int:
    """Return the processor time that a case may take."""
    return case_s * (1 + sum(len(file["nodes"]) for file in case["files"]) // 1000)


def _serve(pipe: Any, case_s: int) -> None:
    os.setsid()  # a signal to the whole group would end the case that runs
    faulthandler.register(signal.SIGUSR1)  # what each thread does
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    from oracle.run import run  # type: ignore[import-not-found]

    while (case := pipe.recv()) is not None:
        used, most = resource.getrusage(resource.RUSAGE_SELF), seconds_of(case, case_s)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + most, resource.RLIM_INFINITY))
        pipe.send(run(case))


class Worker:
    """A process that runs one case after the other; a new one takes the place of one that is gone."""

    def __init__(self, case_s: int = CASE_S, start_method: str = "spawn") -> None:
        self._process: Any = None
        self._case_s = case_s
        self._context: Any = multiprocessing.get_context(start_method)

    def run(self, case: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a case; one that ends its process, or does not end, is "raw" too."""
        if self._process is None or not self._process.is_alive():
            self._start()
        most = seconds_of(case, self._case_s)
        try:
            self._pipe.send(case)
            if self._pipe.poll(WAIT * most):
                found: list[dict[str, Any]] = self._pipe.recv()
                return found
            said = f"nothing came for {WAIT * most} s"
            os.kill(self._process.pid, signal.SIGUSR1)
            time.sleep(1)  # while it says that
        except (EOFError, OSError):
            self._process.join()
            said = f"the process ended with {self._process.exitcode}: a signal, or {most} s of processor time"
        self.close()
        return [{"form": case["forms"][0]["form"], "status": "raw", "said": said}]

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs, self._case_s), daemon=True)
        self._process.start()
        theirs.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
