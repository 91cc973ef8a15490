"""Reads mutated copies of a file, each in a guarded child process, and says how each went: run by ``conftest.py``.

Everything is imported once; then each line of standard input (JSON: the mutated file, the original, and how to read)
is answered with one line. One child reads file after file while all goes well. A file that does not go well in it gets
a fresh fork, so that damage to the heap by one is never blamed on the next, and a failure comes again when it is asked
for again. A child has a limit on its memory and on its time, and says over a pipe how far it came, so that a crash of
libhdf5 or of a codec in it is told apart from one of ours.
"""

import contextlib
import ctypes
import faulthandler
import functools
import gc
import hashlib
import json
import os
import resource
import signal
import sys
import traceback
import warnings

import h5py
import hdf5plugin  # noqa: F401
import numpy as np
import torch
from oracle import expected, same
from support.forking import Standing, end_now

from h5stream import H5Dataset, H5StreamLoader
from h5stream.advice.listing import list_file
from h5stream.engine import sizing
from h5stream.errors import H5StreamError

MEMORY_NBYTES = 1 << 30
"""What a child may take beyond what it was forked with; the files are a few KiB."""

FILES_OF_A_CHILD = 50
M_PERTURB = -6

EQUAL, ERROR, RIGHT = "equal to h5py", "clear error", "right bytes where h5py fails"
NOISE = "depends on what memory holds"
H5PY_CRASHED, H5PY_HUNG = "h5py crashes, we do not", "h5py hangs, we do not"
BOTH_CRASHED, BOTH_HUNG = "we crash, and h5py too", "we hang, and h5py too"
WRONG, UNCLEAR, CRASH, HANG = "wrong bytes", "unclear error", "crash", "hang"
WELL = {EQUAL, ERROR, RIGHT}
GOOD = {EQUAL, ERROR, RIGHT, NOISE, H5PY_CRASHED, H5PY_HUNG}

TOUCHED_ROWS = 256
"""A batch of a file that is only touched; of rows of a byte a window has millions, and each batch costs."""

SAID_OURS, SAID_DONE = b"!", b"<done>"
FILLINGS = (None, 0x33, 0x55, 0xAA)
"""What fresh memory holds in turn: whether damaged bytes crash a codec may depend on it."""


def read_ours(path: str):
    """Give every field in whole through the loader, its fields by name, or one of our errors."""
    loader = H5StreamLoader(path, 16, num_workers=0, memory_budget=256 << 20)
    names = list(loader.dataset.layout.shape.keys)
    batches = [batch if len(names) > 1 else {names[0]: batch} for batch in loader]
    return {name: _joined([batch[name] for batch in batches]) for name in names}


def _joined(parts):
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(parts)
    if isinstance(parts[0], dict):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    return [one for part in parts for one in part]


def read_theirs(path: str, names):
    """Give what h5py reads of these fields, or None if it fails."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return {name: file[name][()] for name in names}
    except Exception:
        return None


def crash(path: str):
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(path: str):
    end_now(0)  # as some codecs do where they find an error


def hang(path: str):
    signal.alarm(1)
    while True:
        signal.pause()


def misread(path: str):
    return {name: values + 1 for name, values in read_ours(path).items()}


def two_rows(path: str):
    with contextlib.suppress(MemoryError):  # a fair answer to whoever asks for rows of gigabytes
        H5Dataset(path)[:2]


def touch(path: str):
    """List what is there, read some rows, start an epoch: each must end soon and take little."""
    errors = []
    for step in (
        lambda: list_file(path),
        lambda: two_rows(path),
        lambda: next(iter(H5StreamLoader(path, TOUCHED_ROWS, True, num_workers=0))),
        lambda: next(iter(H5StreamLoader(path, TOUCHED_ROWS, num_workers=0))),
    ):
        try:
            step()
        except H5StreamError as error:
            errors.append(error)
    if errors:
        raise errors[-1]
    return {}


READINGS = {"whole": read_ours, "touch": touch, "crash": crash, "exit": leave, "hang": hang, "wrong": misread}
"""Ways to read; the last four are what the harness must notice, to show that it does."""


def judge(path: str, original: str, say, read) -> tuple[str, str]:
    """Read both ways and give the outcome with a word of detail; `say` marks that our part is over."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = read(path)
    except H5StreamError as error:
        return ERROR, f"{type(error).__name__}: {error}"[:3000]
    except Exception:
        return UNCLEAR, traceback.format_exc()[-3000:]
    say()
    theirs = read_theirs(path, ours)
    if theirs is not None and all(same(ours[name], expected(theirs[name])) for name in ours):
        return EQUAL, ""
    truth = read_theirs(original, ours)
    if truth is not None and all(same(ours[name], expected(truth[name])) for name in ours):
        return RIGHT, ""
    return WRONG, "h5py fails" if theirs is None else f"h5py reads {str(theirs)[:2000]}, we {str(ours)[:2000]}"


def limit_memory() -> None:
    """Let this process have little more than it has, and leave nothing behind should it crash."""
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_NBYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def in_child(work, seconds: int) -> tuple[bytes, int]:
    """Run `work(write end)` in a guarded fork; give what it wrote, with where it crashed, and its exit status."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read_end)
            signal.alarm(seconds)  # ends the process even inside libhdf5
            limit_memory()
            faulthandler.enable(write_end, all_threads=False)
            work(write_end)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            end_now(code)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome_of(path: str, original: str, read, seconds: int) -> tuple[str, str]:
    """Judge one mutated file in a child, and what a child that died means."""

    def both(pipe: int) -> None:
        # Written in one piece each, so that what arrived is whole.
        verdict = judge(path, original, lambda: os.write(pipe, SAID_OURS), read)
        os.write(pipe, b"\n" + json.dumps(verdict).encode())

    said, code = in_child(both, seconds)
    how, _, verdict = said.partition(b"\n")
    if verdict.startswith(b"["):
        outcome, detail = json.loads(verdict.splitlines()[0])
        # Where h5py's answer, or the codec's, depends on what memory holds, there is no right one.
        if outcome == WRONG and (varies(path, h5py_digest, seconds) or varies(path, our_digest, seconds)):
            return NOISE, ""
        if outcome == WRONG and any(in_child(both, seconds)[0].partition(b"\n")[2] != verdict for _ in range(3)):
            return NOISE, ""
        return outcome, detail
    hung = code == -signal.SIGALRM
    if how.startswith(SAID_OURS):
        return (H5PY_HUNG if hung else H5PY_CRASHED), f"exit {code}"
    detail = f"exit {code} {said.decode(errors='replace')[:1500]}"
    tries = FILLINGS[:1] if hung else FILLINGS
    if any(alone(path, h5py_digest, filling, seconds) == (HANG if hung else CRASH) for filling in tries):
        return (BOTH_HUNG if hung else BOTH_CRASHED), detail
    return (HANG if hung else CRASH), detail


def alone(path: str, digest, filling: int | None, seconds: int) -> str:
    """Read as the first thing a process does, and again; give `CRASH`, `HANG`, or digests of what was read."""

    def read(pipe: int) -> None:
        if filling is not None:
            ctypes.CDLL(None).mallopt(M_PERTURB, filling)  # what fresh memory holds
        os.write(pipe, " ".join(digest(path) for _ in range(3)).encode() + SAID_DONE)

    said, code = in_child(read, seconds)
    if said.endswith(SAID_DONE):
        return said[: -len(SAID_DONE)].decode()
    return HANG if code == -signal.SIGALRM else CRASH


def varies(path: str, digest, seconds: int) -> bool:
    """Tell whether what is read depends on what fresh memory holds, or on where it lies."""
    return len({one for filling in FILLINGS for one in alone(path, digest, filling, seconds).split(" ")}) > 1


def h5py_digest(path: str) -> str:
    """Read what the root has, as a user of h5py would; then some rows at a time, and again where that failed."""
    digest = hashlib.sha256()
    with contextlib.suppress(Exception), h5py.File(path, "r", locking=False) as file:
        for name in file:
            with contextlib.suppress(Exception):
                digest.update(np.ascontiguousarray(file[name][()]).tobytes())
            for first in 2 * list(range(0, 64, 16)):
                with contextlib.suppress(Exception):
                    file[name][first : first + 16]
    return digest.hexdigest()


def our_digest(path: str) -> str:
    """Read what we make of it."""
    with contextlib.suppress(H5StreamError):
        return hashlib.sha256(repr(_plain(read_ours(path))).encode()).hexdigest()
    return "error"


def _plain(value):
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


@functools.cache
def begin_standing() -> None:
    """Guard a child that stays."""
    limit_memory()


def answer(line: str) -> str:
    """Judge a file in the child that stays."""
    begin_standing()
    request = json.loads(line)
    signal.alarm(request["seconds"])
    verdict = judge(request["path"], request["original"], lambda: None, READINGS[request["how"]])
    signal.alarm(0)
    return json.dumps(verdict)


def main() -> None:
    sizing.KEEP_NBYTES = -1  # small files would otherwise be read once and kept
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some codecs print to standard output
    gc.collect()
    gc.freeze()  # or the first collection in every child would copy all pages
    child = Standing(answer)
    for line in sys.stdin:
        said = child.ask(line)
        verdict = json.loads(said) if said else ("", "")
        if verdict[0] not in WELL or child.asked == FILES_OF_A_CHILD:
            child.end()
            child = Standing(answer)
        if verdict[0] not in WELL:
            request = json.loads(line)
            verdict = outcome_of(request["path"], request["original"], READINGS[request["how"]], request["seconds"])
        answers.write(json.dumps(verdict) + "\n")
        answers.flush()
    child.end()


if __name__ == "__main__":
    main()
