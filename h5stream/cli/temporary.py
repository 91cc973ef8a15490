"""A temporary folder that a closed terminal and SIGTERM take with the command."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder that is gone at the end, also where SIGHUP or SIGTERM is the end.

    # Guarantees: the handler removes and dies, and raises nothing: an exception is lost where Python runs a weak
    reference's callback, as it does behind each call of h5py.
    """
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:

        def end(number: int, frame: object) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        before = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be asked for
            for number in (signal.SIGHUP, signal.SIGTERM):
                if signal.getsignal(number) == signal.SIG_DFL:  # not below `nohup`
                    before[number] = signal.signal(number, end)
        try:
            yield Path(folder)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
