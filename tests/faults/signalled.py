"""Training scripts that stop in a given state and say so; run by ``test_runtime_faults.py``, which signals them.

A line of standard input is one: file, state, reader threads, and whether SIGTERM is turned into an exception. It
writes ``ready`` once it is in the state, and ``gone <threads>`` once an exception came through and the loader is left.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from forking import end_now

from h5stream import H5StreamLoader
from h5stream.engine.landing import chunks

READ, WRITE = os.pipe()
woken = READ


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def block() -> None:
    """Say that the state is reached, and wait for a byte that never comes."""
    say("ready")
    os.read(woken if threading.current_thread() is threading.main_thread() else READ, 1)


def block_reads() -> None:
    def blocked(fd, buffers, offset):
        block()

    os.preadv = blocked
    chunks.STACK_READ_NBYTES = 1  # each range by a call of its own, not several in a kernel


def transform_that_blocks(batch):
    block()


def run(path: str, state: str, workers: int) -> None:
    options = {"fields": ["x", "y"], "num_workers": workers, "window": 100, "shuffle": True}
    if state == "opening":
        block_reads()
    if state == "batch_transform":
        options["batch_transform"] = transform_that_blocks
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


def in_child(path: str, state: str, workers: str, handled: str) -> int:
    """Be the training script; give its exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A signal that comes between the last look at signals and a system call is noticed only when that returns.
    global woken
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
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


def main() -> None:
    """Fork for each line of standard input: importing torch again for each would take seconds."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            say(f"pid {os.getpid()}")
            end_now(in_child(*line.rstrip("\n").split("\t")))
        say(f"status {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


if __name__ == "__main__":
    main()
