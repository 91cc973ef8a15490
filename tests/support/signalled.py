"""A training script that stops in a given state and says so; run by ``test_runtime_faults.py``, which signals it.

Its arguments are a file, the state, how many reader threads, and whether SIGTERM is turned into an exception. It writes
``ready`` once it is in the state, and ``gone <threads>`` once an exception came through and the loader is left.
"""

import os
import signal
import sys
import threading

import numpy as np

from h5stream import H5StreamLoader
from h5stream.engine import run as engine_run
from h5stream.engine.plan import chunks

NEVER, _ = os.pipe()
WOKEN, WAKE = os.pipe()
"""A signal that comes between the last look at signals and a system call is noticed only when that returns."""


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def block(*_) -> None:
    """Say that the state is reached, and wait for a byte that never comes."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main:
        let_main_wait()
    say("ready")
    os.read(WOKEN if is_main else NEVER, 1)


def let_main_wait() -> None:
    """Return once the main thread is inside of a wait, and not on its way into it."""
    before, now = None, (0, "")
    while before != now or now[1] != "wait":
        threading.Event().wait(0.01)
        frame = sys._current_frames()[threading.main_thread().ident]
        before, now = now, (frame.f_lasti, frame.f_code.co_name)


def block_reads() -> None:
    os.preadv = block
    chunks.pipelines_of = lambda part, fields, table: np.full(len(table.entry), -1, np.int8)  # chunk by chunk
    engine_run.EXIT_S = 0.5  # for which the interpreter's end waits


def run(path: str, state: str, workers: int) -> None:
    options = {"fields": ["x", "y"], "num_workers": workers, "window": 100, "shuffle": True}
    if state == "opening":
        block_reads()
    if state == "batch_transform":
        options["batch_transform"] = block
    with H5StreamLoader(path, 50, persistent_workers=state == "between epochs", **options) as loader:
        if state == "first batch":
            block_reads()
        for number, _ in enumerate(loader):
            if number == 3 and state == "waiting":
                block_reads()
            if number == 3 and state == "training step":
                block()
        block()


def raise_exit(number, frame):
    raise SystemExit(3)


def main(path: str, state: str, workers: str, handled: str) -> int:
    """Be the training script; return its exit status."""
    os.set_blocking(WAKE, False)
    signal.set_wakeup_fd(WAKE)
    if handled == "handled":
        signal.signal(signal.SIGTERM, raise_exit)
    status = 0
    try:
        run(path, state, int(workers))
    except BaseException as error:
        say(f"error {type(error).__name__}")
        status = error.code if isinstance(error, SystemExit) else 1
    say(f"gone {sum('h5stream' in thread.name for thread in threading.enumerate())}")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
