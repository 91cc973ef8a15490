"""Loops that are busy, that leave an epoch, that have two under way, or that meet a fault in the middle of one.

Whoever leaves an epoch, however, may read whole ones behind it, and no thread stays. Whatever comes before a fault,
beside it and behind it is right; what cannot be had is an error of h5stream that says where, or is left out if that is
asked for.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from h5stream import H5StreamError
from h5stream.errors import CorruptChunkError, LoaderClosedError, SourceError

from . import beside, hazards, writing
from .compare import WrongError
from .reading import Reading, flat, numbers_in

END_S = 20.0
"""So long the threads of a loader that was dropped may take to end; one that stays is no matter of speed."""


def drawn_beside(rng: random.Random, case: dict[str, Any], sound: list[tuple[str, str]]) -> None:
    """Draw how many threads read, how busy the loop is, stops, and a fault in a chunk that has a checksum."""
    if rng.random() < 0.4:
        case["loader"]["num_workers"] = rng.randint(0, 16)
    if rng.random() < 0.25:
        case["consumer"] = {"how": rng.choice(["holds", "holds", "sleeps"]), "ms": rng.choice([1, 3, 10])}
        case["marks"] = sorted({*case["marks"], f"a loop that {case['consumer']['how']}"})
    beside.drawn(rng, case)
    after = rng.choice([0, 1, 1, 2, 5])
    if any(form["form"] == "damaged" for form in case["forms"]):
        return
    if rng.random() < 0.35:
        case["forms"].append({"form": "stopped", "how": rng.choice(list(STOPS)), "after": after})
    if rng.random() < 0.4:
        how = rng.choice(["corrupt", "corrupt", "cut before", "cut meanwhile"])
        files = [(file["name"], "") for file in case["files"]]
        file, path = rng.choice(sound if how == "corrupt" and sound else files)
        how = how if path or how != "corrupt" else "cut meanwhile"
        fault = {"how": how, "file": file, "after": after, "seed": rng.randrange(1000)}
        fault |= {"path": path} if path else {}
        case["forms"].append({"form": "faulty", **fault, "on_error": rng.choice(["raise", "skip"])})


def whole(reading: Reading, loader: Any) -> None:
    """Read an epoch, and tell whether it has each sample once."""
    dropped = reading.case["loader"].get("drop_last", False)
    reading.check_once(flat(numbers_in(loader, reading)), dropped=dropped)


# --- an epoch that is left: after some batches, the loader goes on ------------------------------------------------


def _breaks(reading: Reading, loader: Any, after: int) -> None:
    for _ in range(2):
        numbers_in(loader, reading, after)


def _closes(reading: Reading, loader: Any, after: int) -> None:
    epoch = iter(loader)
    some = numbers_in(epoch, reading, after)
    loader.close()
    try:
        next(epoch)
    except LoaderClosedError:
        return
    except StopIteration:
        if len(some) == len(epoch):
            return
    raise WrongError("the loader is closed, and its epoch goes on")


def _is_closed_by_another(reading: Reading, loader: Any, after: int) -> None:
    epoch = iter(loader)
    numbers_in(epoch, reading, after)
    other = threading.Thread(target=loader.close)
    other.start()
    with contextlib.suppress(LoaderClosedError):
        numbers_in(epoch, reading)
    other.join()


def _has_two(reading: Reading, loader: Any, after: int) -> None:
    epochs, numbers = [iter(loader)], list[list[int]]([[], []])
    numbers[0] += flat(numbers_in(epochs[0], reading, after))
    epochs.append(iter(loader))
    counts = [after, 0]
    while counts != [-1, -1]:
        for k in (0, 1):
            some = numbers_in(epochs[k], reading, 1) if counts[k] >= 0 else []
            numbers[k] += flat(some)
            counts[k] = counts[k] + 1 if some else -1
    for one in numbers:
        reading.check_once(one, dropped=reading.case["loader"].get("drop_last", False))


def _resumes(reading: Reading, loader: Any, after: int) -> None:
    some = numbers_in(loader, reading, min(after, len(loader) - 1))
    state = json.loads(json.dumps(loader.state_dict()))
    numbers_in(loader, reading, 1)  # of another epoch, or the same
    loader.load_state_dict(state)
    some += numbers_in(loader, reading)
    if not reading.model.is_drawn:
        reading.check_once(flat(some), dropped=reading.case["loader"].get("drop_last", False))


def _fails(reading: Reading, loader: Any, after: int) -> None:
    with contextlib.suppress(ZeroDivisionError):
        for k, batch in enumerate(loader):
            reading.check_batch(batch)
            _ = k // (after - k)


STOPS: dict[str, Callable[[Reading, Any, int], None]] = {
    "breaks": _breaks,
    "closes": _closes,
    "is closed by another": _is_closed_by_another,
    "has two": _has_two,
    "resumes": _resumes,
    "fails": _fails,
}


def stopped(reading: Reading, options: dict[str, Any]) -> None:
    """Leave an epoch after some batches, and read whole ones behind it; then drop a loader without a word."""
    with reading.loader(shuffle=True) as loader:
        STOPS[options["how"]](reading, loader, options["after"])
        whole(reading, loader)
    dropped = reading.loader(shuffle=True)
    epoch = iter(dropped)
    numbers_in(epoch, reading, options["after"])
    del loader, dropped, epoch
    gc.collect()
    until = time.monotonic() + END_S
    while some := [one.name for one in threading.enumerate() if one.name.startswith("h5stream-reader")]:
        if time.monotonic() > until:
            raise WrongError(f"threads of loaders that are closed or dropped: {some}")
        time.sleep(0.001)


# --- a fault in the middle of an epoch ----------------------------------------------------------------------------


def check_named(error: CorruptChunkError | SourceError, options: dict[str, Any]) -> None:
    """Tell whether an error names the file and the dataset that are at fault; quotes may be escaped."""
    name = options["path"]
    is_named = {one.rpartition("/")[2] for one in (name, repr(name)[1:-1])}
    if not error.file.endswith(options["file"]) or not any(one in str(error) for one in is_named):
        raise WrongError(f"{name!r} of {options['file']!r} is corrupt, and no word of it: {error}") from error


@contextlib.contextmanager
def at_fault(options: dict[str, Any]) -> Iterator[None]:
    """Let those errors pass that a fault may lead to."""
    try:
        yield
    except (CorruptChunkError, SourceError) as error:
        if options["how"] == "corrupt":
            check_named(error, options)
    except H5StreamError:
        if options["how"] != "cut before":
            raise


def cut(path: str, seed: int) -> None:
    """Cut off the end of a file."""
    size = os.path.getsize(path)
    os.truncate(path, random.Random(seed).randrange(size // 4, size))


def faulty(reading: Reading, options: dict[str, Any]) -> None:
    """A corrupt chunk, or a file that is cut off: before it is opened, or while an epoch is under way."""
    there = hazards.copied(reading, "faulty")
    path, how, after = f"{there.base}/{options['file']}", options["how"], options["after"]
    if reading.model.is_drawn or (how == "corrupt" and not writing.corrupt(path, options["path"], options["seed"])):
        return
    if how == "cut before":
        cut(path, options["seed"])
    with at_fault(options):
        dataset = there.dataset()
        with there.loader(dataset, shuffle=True, drop_last=False, on_error=options["on_error"]) as loader:
            _epochs_of_faults(there, loader, options, path, after)


def _epochs_of_faults(there: Reading, loader: Any, options: dict[str, Any], path: str, after: int) -> None:
    """Leave an epoch after some batches, cut the file off if that is asked for, and read two more."""
    with at_fault(options):
        numbers_in(loader, there, after)
    if options["how"] == "cut meanwhile":
        epoch = iter(loader)
        with at_fault(options):
            _checked(there, flat(numbers_in(epoch, there, after)), is_whole=False)
            cut(path, options["seed"])
            _checked(there, flat(numbers_in(epoch, there)), is_whole=False)
    for _ in range(2):
        with at_fault(options):
            _checked(there, flat(numbers_in(loader, there)), is_whole=options["on_error"] == "raise")


def _checked(there: Reading, numbers: list[int], *, is_whole: bool) -> None:
    """Tell whether an epoch has each sample once, or, where some may be left out, none twice."""
    if is_whole:
        there.check_once(numbers)
    extra, every = (collections.Counter(there.like(k)[0] for k in some) for some in (numbers, range(there.count)))
    if extra - every:
        raise WrongError(f"samples come twice: {sorted(extra - every)[:9]}")
