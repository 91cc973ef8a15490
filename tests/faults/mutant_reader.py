"""Reads mutated copies of a file, each in a guarded child process, and says how each went: run by ``guarded.py``.

Everything is imported once; then each line of standard input (JSON: the original, a scratch path and mutations)
is answered with one line of outcomes. A child has a limit on its memory and on its time, and says over a pipe how
far it came, so that a crash inside libhdf5 is told apart from one of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
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

from h5stream import H5Dataset, H5StreamLoader
from h5stream.engine import kept, kernels
from h5stream.errors import H5StreamError
from h5stream.storage.listing import list_datasets

MEMORY_NBYTES = 1 << 30
"""What a child may take beyond what it was forked with; the files are a few KiB."""

CHILD_SECONDS = 60

M_PERTURB = -6
LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.free.argtypes = [ctypes.c_void_p]
LIBC.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

EQUAL, ERROR, RIGHT = "equal to h5py", "clear error", "right bytes where h5py fails"
H5PY_CRASHED = "h5py crashed by itself"
WRONG, UNCLEAR, CRASH, HANG = "wrong bytes", "unclear error", "crash", "hang"
NOISE = "h5py reads behind the end"
GOOD = (EQUAL, ERROR, RIGHT, H5PY_CRASHED, NOISE)


def read_ours(path: str):
    """Give every field in whole through the loader, its fields by name, or one of our errors."""
    loader = H5StreamLoader(path, 16, num_workers=0, memory_budget=256 << 20)
    names = list(loader.dataset.layout.shape.keys)
    batches = [batch if isinstance(batch, dict) else {names[0]: batch} for batch in loader]
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


def fill_the_heap(filling: int) -> None:
    """Let what lies behind whatever is allocated next be `filling`."""
    LIBC.mallopt(M_PERTURB, filling)
    blocks = []
    for nbytes in 12 * list(range(64, 2048, 8)):
        blocks.append(LIBC.malloc(nbytes))
        LIBC.memset(blocks[-1], filling, nbytes)
    for block in blocks[::2]:
        LIBC.free(block)


def is_one_answer(path: str, names) -> bool:
    """Tell whether h5py reads the same whatever fresh memory holds; a codec may look behind its input's end."""
    answers = []
    for filling in (0x55, 0xAA):
        fill_the_heap(filling)
        theirs = read_theirs(path, names)
        answers.append({name: np.asarray(theirs[name]).tobytes() for name in names} if theirs else None)
    return answers[0] == answers[1]


def crash(path: str):
    os.kill(os.getpid(), signal.SIGSEGV)


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
        lambda: list_datasets(path),
        lambda: two_rows(path),
        lambda: next(iter(H5StreamLoader(path, 16, True, num_workers=0))),
        lambda: next(iter(H5StreamLoader(path, 16, num_workers=0))),
    ):
        try:
            step()
        except H5StreamError as error:
            errors.append(error)
    if errors:
        raise errors[-1]
    return {}


READINGS = {"crash": crash, "hang": hang, "wrong": misread, "touch": touch}
"""What the harness must notice, to show that it does; and another way of reading a file as it is."""


def judge(path: str, original: str, say, read=read_ours) -> tuple[str, str]:
    """Read both ways and give the outcome with a word of detail; `say` marks that our part is over."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = read(path)
    except H5StreamError as error:
        return ERROR, f"{type(error).__name__}: {error}"[:3000]
    except MemoryError:
        return UNCLEAR, traceback.format_exc()[-3000:]
    except Exception:
        return UNCLEAR, traceback.format_exc()[-3000:]
    say()
    theirs = read_theirs(path, ours)
    if theirs is not None and all(same(ours[name], expected(theirs[name])) for name in ours):
        return EQUAL, ""
    if theirs is not None and not is_one_answer(path, ours):
        return NOISE, ""
    truth = read_theirs(original, ours)
    if truth is not None and all(same(ours[name], expected(truth[name])) for name in ours):
        return RIGHT, ""
    return WRONG, "h5py fails" if theirs is None else f"h5py reads {str(theirs)[:2000]}, we {str(ours)[:2000]}"


def in_child(work) -> tuple[bytes, int]:
    """Run `work(write end)` in a guarded fork; give what it wrote and its exit status."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read_end)
            signal.alarm(CHILD_SECONDS)  # ends the process even inside libhdf5
            with open("/proc/self/statm") as statm:
                now = int(statm.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_NBYTES,) * 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            work(write_end)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome_of(path: str, original: str, read=read_ours) -> tuple[str, str]:
    """Judge one mutated file in a child, and what a child that died means."""

    def both(pipe: int) -> None:
        # Written in one piece each, so that what arrived is whole.
        verdict = judge(path, original, lambda: os.write(pipe, b"!"), read)
        os.write(pipe, json.dumps(verdict).encode())

    said, code = in_child(both)
    if said.lstrip(b"!"):
        return tuple(json.loads(said.lstrip(b"!")))
    if said == b"!":
        return H5PY_CRASHED, f"exit {code}"
    _, alone_code = in_child(lambda pipe: read_all_with_h5py(path))
    if alone_code < 0 and alone_code != -signal.SIGALRM:
        return H5PY_CRASHED, f"ours {code}, alone {alone_code}"
    return (HANG if code == -signal.SIGALRM else CRASH), f"exit {code}, h5py alone {alone_code}"


def read_all_with_h5py(path: str) -> None:
    """Read what the root has, as a user of h5py would."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            for name in file:
                file[name][()]
    except Exception:
        return


def mutate(data: bytes, mutation) -> bytes:
    """Apply a mutation: ``["cut", size]``, or ``["put", offset, hex bytes]``; ``read`` leaves the file as it is."""
    if mutation[0] == "read":
        return data
    if mutation[0] == "cut":
        return data[: mutation[1]]
    _, offset, new = mutation
    new = bytes.fromhex(new)
    return data[:offset] + new + data[offset + len(new) :]


def main() -> None:
    kernels.warm_up()
    kept.KEEP_NBYTES = -1  # small files would otherwise be read once and kept
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some codecs print to standard output
    for line in sys.stdin:
        request = json.loads(line)
        with open(request["original"], "rb") as file:
            data = file.read()
        outcomes = []
        for mutation in request["mutations"]:
            with open(request["scratch"], "wb") as file:
                file.write(mutate(data, mutation))
            reading = READINGS[mutation[1]] if mutation[0] == "read" else read_ours
            outcomes.append(outcome_of(request["scratch"], request["original"], reading))
        answers.write(json.dumps(outcomes) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
